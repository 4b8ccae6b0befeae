//! Any node takes a request to erase.

use tonic::{Code, Status};
use treering_domain::{ConversationCreated, EventBody, MessageAppended, Role, ShardId};
use treering_engine::receipt_signer;
use treering_proto::{
    body, envelope,
    pb::{self, erase_request::Target, erase_response::Item, read_request::Source},
};

use crate::{
    memory::{MemoryCluster, ServingNode, settled},
    stand::id_in,
};

const NEEDLE: &str = "needletextqzx";
const SHARDS: u32 = 6;

fn event(body: &EventBody) -> pb::NewEvent {
    pb::NewEvent {
        body: Some(envelope::new_arm(body.kind(), body::encode(body))),
        ..Default::default()
    }
}

/// Appends a conversation with one message; returns its id.
async fn say(node: &ServingNode, shard: ShardId, text: &str) -> String {
    let id = id_in(shard, SHARDS).to_string();
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let said = EventBody::MessageAppended(MessageAppended::text(Role::User, text));
    let append = pb::AppendRequest {
        conversation_id: id.clone(),
        events: vec![event(&created), event(&said)],
        ..Default::default()
    };
    node.events().append(append).await.unwrap();
    id
}

async fn read(node: &ServingNode, id: &str) -> String {
    let request = pb::ReadRequest {
        source: Some(Source::Conversation(pb::ConversationSource {
            conversation_id: id.into(),
        })),
        ..Default::default()
    };
    let mut pages = node.events().read(request).await.unwrap().into_inner();
    let mut events = Vec::new();
    while let Some(page) = pages.message().await.unwrap() {
        events.extend(page.events);
    }
    format!("{events:?}")
}

/// Returns the erased events and the outcome.
async fn erase(
    node: &ServingNode,
    request: pb::EraseRequest,
) -> Result<(Vec<pb::ErasedEvent>, pb::EraseOutcome), Status> {
    let mut items = node.conversations().erase(request).await?.into_inner();
    let (mut events, mut outcome) = (Vec::new(), None);
    while let Some(answer) = items.message().await? {
        match answer.item {
            Some(Item::Event(event)) => events.push(event),
            Some(Item::Outcome(last)) => assert!(outcome.replace(last).is_none()),
            _ => {}
        }
    }
    Ok((events, outcome.unwrap()))
}

fn request(target: Target) -> pb::EraseRequest {
    pb::EraseRequest {
        target: Some(target),
        reason: "asked for".into(),
        ..Default::default()
    }
}

// Nobody knows which shards have a text. A request to any node must erase it everywhere, and bring
// the receipt of each shard that had it.
#[tokio::test(flavor = "multi_thread")]
async fn literal_is_erased_in_all_shards() {
    let (cluster, dir) = (MemoryCluster::new(SHARDS), tempfile::tempdir().unwrap());
    let one = ServingNode::start(&cluster, "one", dir.path()).await;
    let two = ServingNode::start(&cluster, "two", dir.path()).await;
    settled(&[&one, &two]).await;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for shard in (0..SHARDS).map(ShardId) {
        without.push(say(&one, shard, "hay").await);
        if shard.0 % 2 == 0 {
            with.push(say(&two, shard, NEEDLE).await);
        }
    }
    let literal = request(Target::Literal(NEEDLE.into()));
    let dry = pb::EraseRequest {
        dry_run: true,
        ..literal.clone()
    };
    let (found, outcome) = erase(&one, dry).await.unwrap();
    assert_eq!((found.len(), outcome.events), (3, 3));
    assert!(outcome.receipt.is_empty() && read(&two, &with[0]).await.contains(NEEDLE));

    let (erased, outcome) = erase(&two, literal).await.unwrap();
    assert_eq!(erased, found);
    assert_eq!(outcome.events, 3);
    let receipts: Vec<serde_json::Value> = serde_json::from_str(&outcome.receipt).unwrap();
    assert_eq!(receipts.len(), 3);
    let mut named = Vec::new();
    for receipt in receipts {
        receipt_signer(&receipt.to_string()).unwrap();
        let conversation = receipt["recorded"][0]["conversation"].as_str().unwrap();
        named.push(conversation.to_owned());
    }
    assert_eq!(named, with);
    for node in [&one, &two] {
        for id in &with {
            assert!(!read(node, id).await.contains(NEEDLE), "{id}");
        }
        for id in &without {
            assert!(read(node, id).await.contains("hay"));
        }
    }
    // An invalid target is refused before anything is erased.
    let short = request(Target::Literal("ha".into()));
    for invalid in [short, pb::EraseRequest::default()] {
        let refused = erase(&one, invalid).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    }
}

// A request that names a conversation goes to its owner, whichever node takes it.
#[tokio::test(flavor = "multi_thread")]
async fn conversation_is_erased_by_its_owner() {
    let (cluster, dir) = (MemoryCluster::new(SHARDS), tempfile::tempdir().unwrap());
    let one = ServingNode::start(&cluster, "one", dir.path()).await;
    let two = ServingNode::start(&cluster, "two", dir.path()).await;
    settled(&[&one, &two]).await;
    for shard in (0..SHARDS).map(ShardId) {
        let id = say(&one, shard, NEEDLE).await;
        let other = say(&one, shard, NEEDLE).await;
        let ranges = vec![pb::RevisionRange { first: 2, last: 2 }];
        let target = match shard.0 % 2 {
            0 => Target::ConversationId(id.clone()),
            _ => Target::Revisions(pb::EraseRevisions {
                conversation_id: id.clone(),
                ranges,
            }),
        };
        let (_, outcome) = erase(&two, request(target)).await.unwrap();
        receipt_signer(&outcome.receipt).unwrap();
        assert!(!read(&one, &id).await.contains(NEEDLE));
        assert!(read(&one, &other).await.contains(NEEDLE));
    }
}
