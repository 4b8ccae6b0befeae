//! Any node takes any call.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::StreamExt;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;
use treering_cluster::shard_of;
use treering_domain::{
    ConversationCreated, ConversationId, EventBody, MessageAppended, Role, ShardId,
};
use treering_proto::{
    body, envelope,
    pb::{self, append_stream_response::Outcome, read_request::Source},
};

use crate::{
    memory::{MemoryCluster, ServingNode, settled},
    stand::id_in,
};

const SHARDS: u32 = 12;

pub fn event(body: &EventBody) -> pb::NewEvent {
    pb::NewEvent {
        body: Some(envelope::new_arm(body.kind(), body::encode(body))),
        ..Default::default()
    }
}

pub fn said(text: &str) -> pb::NewEvent {
    let message = MessageAppended::text(Role::User, text);
    event(&EventBody::MessageAppended(message))
}

pub fn created() -> pb::NewEvent {
    event(&EventBody::ConversationCreated(Default::default()))
}

pub fn append(id: &str, events: Vec<pb::NewEvent>) -> pb::AppendRequest {
    pb::AppendRequest {
        conversation_id: id.into(),
        events,
        ..Default::default()
    }
}

async fn read(node: &ServingNode, id: &str) -> Result<Vec<pb::Event>, Status> {
    let request = pb::ReadRequest {
        source: Some(Source::Conversation(pb::ConversationSource {
            conversation_id: id.into(),
        })),
        ..Default::default()
    };
    let mut pages = node.events().read(request).await?.into_inner();
    let mut events = Vec::new();
    while let Some(page) = pages.message().await? {
        events.extend(page.events);
    }
    Ok(events)
}

fn reason(status: &Status) -> String {
    let info = status.get_details_error_info();
    info.map(|info| info.reason).unwrap_or_default()
}

// A load balancer sends each call to any node. Whichever takes it, the caller must get what the
// owner of the conversation's shard answers, in one hop.
#[tokio::test(flavor = "multi_thread")]
async fn any_node_takes_any_call() {
    let (cluster, dir) = (MemoryCluster::new(SHARDS), tempfile::tempdir().unwrap());
    let one = ServingNode::start(&cluster, "one", dir.path()).await;
    let two = ServingNode::start(&cluster, "two", dir.path()).await;
    settled(&[&one, &two]).await;
    let owner_of = |shard| one.node.owner(shard).unwrap().address;
    let mut forwarded = 0;
    for shard in (0..SHARDS).map(ShardId) {
        let id = id_in(shard, SHARDS).to_string();
        let request = append(&id, vec![created(), said("hello")]);
        let answer = one.events().append(request).await.unwrap();
        let owner = answer.metadata().get("treering-owner").unwrap();
        assert_eq!(owner, &owner_of(shard));
        forwarded += usize::from(owner != one.address.to_string().as_str());
        let appended = answer.into_inner().events;
        assert_eq!(appended.len(), 2);

        // Streams and forks through the other node see it at once.
        let seen = read(&two, &id).await.unwrap();
        let ids: Vec<_> = seen.iter().map(|event| event.id.clone()).collect();
        let wanted: Vec<_> = appended
            .iter()
            .map(|event| event.event_id.clone())
            .collect();
        assert_eq!(ids, wanted);
        let fork = pb::ForkRequest {
            conversation_id: id.clone(),
            name: "fork".into(),
            ..Default::default()
        };
        let fork = two.conversations().fork(fork).await.unwrap().into_inner();
        let again = pb::GetConversationRequest {
            conversation_id: fork.conversation_id,
            ..Default::default()
        };
        let state = one.conversations().get(again).await.unwrap().into_inner();
        assert_eq!(state.branches.len(), 2, "{state:?}");
    }
    assert!(forwarded > 0 && forwarded < SHARDS as usize, "{forwarded}");

    let missing = id_in(ShardId(0), SHARDS).to_string();
    for node in [&one, &two] {
        let error = read(node, &missing).await.unwrap_err();
        assert_eq!(reason(&error), "CONVERSATION_NOT_FOUND", "{error:?}");
    }
}

// People name a session by its id at its source, which is a UUID for many agents and says nothing
// about the shard.
#[tokio::test(flavor = "multi_thread")]
async fn conversation_is_found_by_its_id_at_the_source() {
    let (cluster, dir) = (MemoryCluster::new(SHARDS), tempfile::tempdir().unwrap());
    let one = ServingNode::start(&cluster, "one", dir.path()).await;
    let two = ServingNode::start(&cluster, "two", dir.path()).await;
    settled(&[&one, &two]).await;
    for (number, source_id) in ["session 7", "0b5c2a14-7d4f-4c7e-9d53-0a6f5a1f9a11"]
        .into_iter()
        .enumerate()
    {
        let uuid: ConversationId = "0b5c2a14-7d4f-4c7e-9d53-0a6f5a1f9a11".parse().unwrap();
        let other = (shard_of(uuid, SHARDS).0 + 1) % SHARDS;
        let id = id_in(ShardId(other), SHARDS).to_string();
        let body = EventBody::ConversationCreated(ConversationCreated {
            source: "agent".into(),
            source_id: source_id.into(),
            ..Default::default()
        });
        let batch = append(&id, vec![event(&body), said("hello")]);
        one.events().append(batch).await.unwrap();
        for node in [&one, &two] {
            let request = pb::GetConversationRequest {
                conversation_id: source_id.into(),
                ..Default::default()
            };
            let state = node
                .conversations()
                .get(request)
                .await
                .unwrap()
                .into_inner();
            assert_eq!(state.summary.unwrap().conversation_id, id, "{number}");
            assert!(read(node, source_id).await.unwrap().len() >= 2);
            node.events()
                .append(append(source_id, vec![said("more")]))
                .await
                .unwrap();
        }
        assert_eq!(read(&two, &id).await.unwrap().len(), 4);
    }
    let lost = append("nobody's", vec![said("lost")]);
    let error = two.events().append(lost).await.unwrap_err();
    assert_eq!(reason(&error), "CONVERSATION_NOT_FOUND");
}

// One stream carries the events of many agents, which are in many shards. The answers must come in
// the order of the requests, and a refused request must not end the stream.
#[tokio::test(flavor = "multi_thread")]
async fn append_stream_spans_shards_and_answers_in_order() {
    let (cluster, dir) = (MemoryCluster::new(SHARDS), tempfile::tempdir().unwrap());
    let one = ServingNode::start(&cluster, "one", dir.path()).await;
    let two = ServingNode::start(&cluster, "two", dir.path()).await;
    settled(&[&one, &two]).await;
    let ids: Vec<_> = (0..SHARDS)
        .map(|shard| id_in(ShardId(shard), SHARDS).to_string())
        .collect();
    let mut requests: Vec<_> = ids.iter().map(|id| append(id, vec![created()])).collect();
    let rounds = 20;
    for round in 0..rounds {
        requests.extend(
            ids.iter()
                .map(|id| append(id, vec![said(&format!("round {round}"))])),
        );
    }
    let unknown = id_in(ShardId(5), SHARDS).to_string();
    requests.insert(40, append(&unknown, vec![said("to nobody")]));
    let wanted: Vec<_> = requests
        .iter()
        .map(|request| request.conversation_id.clone())
        .collect();

    let stream = futures::stream::iter(requests);
    let answers = two
        .events()
        .append_stream(stream)
        .await
        .unwrap()
        .into_inner();
    let answers: Vec<_> = answers
        .map(|answer| answer.unwrap().outcome.unwrap())
        .collect()
        .await;
    assert_eq!(answers.len(), wanted.len());
    for (index, (answer, id)) in answers.iter().zip(&wanted).enumerate() {
        match answer {
            Outcome::Appended(appended) => {
                assert_eq!(appended.events[0].conversation_id, *id, "{index}");
            }
            Outcome::Error(error) => {
                assert_eq!(
                    (index, &*error.reason),
                    (40, "CONVERSATION_NOT_FOUND"),
                    "{error:?}"
                );
            }
        }
    }
    for id in &ids {
        assert_eq!(read(&one, id).await.unwrap().len(), rounds + 1);
    }
}

// A list goes over all shards. Its pages must have every conversation once and in order, although
// each shard has its own place in the list.
#[tokio::test(flavor = "multi_thread")]
async fn list_and_look_ups_cover_all_shards() {
    let (cluster, dir) = (MemoryCluster::new(SHARDS), tempfile::tempdir().unwrap());
    let one = ServingNode::start(&cluster, "one", dir.path()).await;
    let two = ServingNode::start(&cluster, "two", dir.path()).await;
    settled(&[&one, &two]).await;
    let (mut ids, mut places) = (Vec::new(), Vec::new());
    for number in 0..50_u32 {
        let id = id_in(ShardId(number * 7 % SHARDS), SHARDS).to_string();
        let text = format!("number {number}");
        let done = one
            .events()
            .append(append(&id, vec![created(), said(&text)]))
            .await;
        let done = done.unwrap().into_inner();
        places.push((id.clone(), done.events[1].event_id.clone()));
        ids.push(id);
    }
    for (ascending, size) in [(false, 7), (true, 20), (false, 1_000)] {
        let (mut listed, mut token) = (Vec::new(), String::new());
        loop {
            let request = pb::ListConversationsRequest {
                page_size: size,
                page_token: token,
                ascending,
                with_values: size == 20,
                ..Default::default()
            };
            let page = two
                .conversations()
                .list(request)
                .await
                .unwrap()
                .into_inner();
            let expected = (50 - listed.len()).min(size as usize);
            assert_eq!(page.conversations.len(), expected);
            assert_eq!(page.values.len(), if size == 20 { expected } else { 0 });
            listed.extend(
                page.conversations
                    .into_iter()
                    .map(|one| one.conversation_id),
            );
            token = page.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        if !ascending {
            listed.reverse();
        }
        assert_eq!(listed, ids, "{size}");
    }

    let search = |query: &str, offset| pb::SearchRequest {
        query: query.into(),
        limit: 20,
        offset,
        ..Default::default()
    };
    let mut found = Vec::new();
    let give_up = Instant::now() + Duration::from_secs(60);
    while found.len() < 50 {
        assert!(Instant::now() < give_up, "not all are found: {found:?}");
        found.clear();
        for offset in [0, 20, 40] {
            let page = two.search().search(search("number", offset)).await.unwrap();
            found.extend(
                page.into_inner()
                    .hits
                    .into_iter()
                    .map(|hit| hit.conversation_id),
            );
        }
    }
    found.sort();
    let mut wanted = ids.clone();
    wanted.sort();
    assert_eq!(found, wanted);
    let answer = one
        .search()
        .search(search("\"number 17\"", 0))
        .await
        .unwrap();
    let hits = answer.into_inner().hits;
    assert_eq!((hits.len(), &hits[0].conversation_id), (1, &ids[17]));

    let request = pb::LatestRequest {
        conversations: ids.clone(),
        kinds: vec![
            pb::EventKind::MessageAppended.into(),
            pb::EventKind::Custom.into(),
        ],
        ..Default::default()
    };
    let found = two
        .events()
        .latest(request)
        .await
        .unwrap()
        .into_inner()
        .found;
    assert_eq!(found.len(), 2 * ids.len());
    for (index, pair) in found.chunks(2).enumerate() {
        let (id, event) = &places[index];
        assert!(pair.iter().all(|one| one.conversation_id == *id), "{index}");
        assert_eq!(pair[0].event.as_ref().map(|event| &event.id), Some(event));
        assert!(pair[1].event.is_none());
    }
    use pb::event_name::By;
    let names = places
        .iter()
        .enumerate()
        .map(|(index, (id, event))| pb::EventName {
            by: Some(match index % 2 {
                0 => By::EventId(event.clone()),
                _ => By::Place(pb::EventPlace {
                    conversation_id: id.clone(),
                    revision: 2,
                }),
            }),
        });
    let request = pb::GetManyRequest {
        events: names.collect(),
        headers_only: false,
    };
    let got = one
        .events()
        .get_many(request)
        .await
        .unwrap()
        .into_inner()
        .events;
    let got: Vec<_> = got
        .into_iter()
        .map(|got| got.event.map(|event| event.id))
        .collect();
    let wanted: Vec<_> = places.into_iter().map(|(_, event)| Some(event)).collect();
    assert_eq!(got, wanted);
}

// A node is upgraded at noon. Clients of the other node must not notice that its shards change
// hands: no error, nothing lost, nothing twice.
#[tokio::test(flavor = "multi_thread")]
async fn drain_is_invisible_to_clients_of_another_node() {
    let (cluster, dir) = (MemoryCluster::new(SHARDS), tempfile::tempdir().unwrap());
    let one = ServingNode::start(&cluster, "one", dir.path()).await;
    let two = Arc::new(ServingNode::start(&cluster, "two", dir.path()).await);
    settled(&[&one, &two]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..SHARDS)
        .map(|shard| {
            let (node, stop) = (Arc::clone(&two), Arc::clone(&stop));
            tokio::spawn(async move {
                let id = id_in(ShardId(shard), SHARDS).to_string();
                let mut client = node.events();
                let mut acknowledged = Vec::new();
                let mut events = vec![created(), said("begin")];
                while !stop.load(Ordering::Acquire) {
                    let answer = client.append(append(&id, events)).await.unwrap();
                    let answer = answer.into_inner();
                    acknowledged.extend(answer.events.into_iter().map(|event| event.event_id));
                    events = vec![said("and on")];
                }
                (id, acknowledged)
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(one.node.drain(Duration::from_secs(60)).await);
    settled(&[&two]).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, Ordering::Release);
    for writer in writers {
        let (id, acknowledged) = writer.await.unwrap();
        let stored = read(&two, &id).await.unwrap();
        let stored: Vec<_> = stored.into_iter().map(|event| event.id).collect();
        assert_eq!(stored, acknowledged);
    }
}

// An owner dies while the other node forwards appends to it. Each append must be acknowledged,
// refused as not executed, or have an unknown outcome; what was acknowledged is there once, and the
// conversations are writable again after the lease.
#[tokio::test(flavor = "multi_thread")]
async fn death_of_an_owner_loses_nothing_and_doubles_nothing() {
    let (cluster, dir) = (MemoryCluster::new(SHARDS), tempfile::tempdir().unwrap());
    let one = ServingNode::start(&cluster, "one", dir.path()).await;
    let two = Arc::new(ServingNode::start(&cluster, "two", dir.path()).await);
    settled(&[&one, &two]).await;
    let shards = one.node.served();
    let mut ids = Vec::new();
    for shard in shards {
        let id = id_in(shard, SHARDS).to_string();
        let create = append(&id, vec![created()]);
        two.events().append(create).await.unwrap();
        ids.push(id);
    }
    let stop = Arc::new(AtomicBool::new(false));
    // Several for each conversation, so that some appends are on their way at any moment.
    let writers: Vec<_> = (0..4)
        .flat_map(|writer| ids.iter().map(move |id| (writer, id.clone())))
        .map(|(writer, id)| {
            let node = Arc::clone(&two);
            let stop = Arc::clone(&stop);
            tokio::spawn(async move {
                let mut client = node.events();
                let mut outcomes = HashMap::new();
                for number in 0.. {
                    let text = format!("number {writer}-{number}.");
                    let done = client.append(append(&id, vec![said(&text)])).await;
                    let is_last = done.is_err() || stop.load(Ordering::Acquire);
                    outcomes.insert(text, done.map(drop));
                    if is_last {
                        break;
                    }
                }
                (id, outcomes)
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    one.kill();
    settled(&[&two]).await;
    stop.store(true, Ordering::Release);
    for writer in writers {
        let (id, outcomes) = writer.await.unwrap();
        let stored = read(&two, &id).await.unwrap();
        let mut count = HashMap::<String, usize>::new();
        for event in &stored {
            let text = format!("{event:?}");
            let number = text
                .find("number ")
                .and_then(|at| text[at..].split_inclusive('.').next());
            let number = number.unwrap_or_default().to_owned();
            *count.entry(number).or_default() += 1;
        }
        for (text, outcome) in outcomes {
            let times = count.get(&text).copied().unwrap_or_default();
            match outcome {
                Ok(()) => assert_eq!(times, 1, "{text}"),
                Err(status) => {
                    assert_eq!(reason(&status), "UNKNOWN_OUTCOME", "{status:?}");
                    assert!(times <= 1, "{text}");
                }
            }
        }
        two.events()
            .append(append(&id, vec![said("after")]))
            .await
            .unwrap();
    }
}

// A client that says it is a node could place conversations where nobody finds them.
#[tokio::test(flavor = "multi_thread")]
async fn client_cannot_pass_for_a_node() {
    let (cluster, dir) = (MemoryCluster::new(SHARDS), tempfile::tempdir().unwrap());
    let one = ServingNode::start(&cluster, "one", dir.path()).await;
    settled(&[&one]).await;
    for secret in ["", "00000000-0000-0000-0000-000000000000"] {
        let mut request = Request::new(append("", vec![created()]));
        request
            .metadata_mut()
            .insert("treering-shard", "3".parse().unwrap());
        request
            .metadata_mut()
            .insert("treering-process", secret.parse().unwrap());
        let refused = one.events().append(request).await.unwrap_err();
        assert_eq!(
            (refused.code(), &*reason(&refused)),
            (Code::Unavailable, "NOT_OWNER")
        );
    }
}
