//! Searches over all shards.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use treering_domain::{EventBody, ShardId, ToolCallRequested, ToolResultRecorded};
use treering_meaning::{EmbedError, Embedder, TextRole};
use treering_proto::{json, pb};

use crate::{
    memory::{MemoryCluster, ServingNode, settled},
    routing::{append, created, event, said},
    stand::id_in,
};

const SHARDS: u32 = 12;

// An agent asked a memory, whose answer quotes another conversation. The quote must not stand beside
// the original, whichever shards they are in, and is found if nothing else is.
#[tokio::test(flavor = "multi_thread")]
async fn echo_in_another_shard_is_a_hit_only_if_nothing_else_is() {
    let (cluster, dir) = (MemoryCluster::new(SHARDS), tempfile::tempdir().unwrap());
    let one = ServingNode::start(&cluster, "one", dir.path()).await;
    let two = ServingNode::start(&cluster, "two", dir.path()).await;
    settled(&[&one, &two]).await;
    let original = id_in(ShardId(2), SHARDS).to_string();
    let echo = id_in(ShardId(7), SHARDS).to_string();
    let call = ToolCallRequested {
        call_id: "c".into(),
        tool: "mcp__treering__search".into(),
        arguments: json::check(&b"{}"[..]).unwrap(),
        ..ToolCallRequested::default()
    };
    let result = ToolResultRecorded::text("c", "the mast broke, said the rigger");
    let asked = vec![
        created(),
        event(&EventBody::ToolCallRequested(call)),
        event(&EventBody::ToolResultRecorded(result)),
    ];
    for request in [
        append(&original, vec![created(), said("the mast broke at noon")]),
        append(&echo, asked),
    ] {
        one.events().append(request).await.unwrap();
    }
    let search = async |query: &str, regex| {
        let request = pb::SearchRequest {
            query: query.into(),
            regex,
            ..Default::default()
        };
        let found = two.search().search(request).await.unwrap().into_inner();
        let hits = found.hits.into_iter();
        hits.map(|hit| hit.conversation_id).collect::<Vec<_>>()
    };
    let give_up = Instant::now() + Duration::from_secs(60);
    while search("broke", false).await.is_empty() || search("rigger", false).await.is_empty() {
        assert!(Instant::now() < give_up, "nothing is found");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for regex in [false, true] {
        assert_eq!(search("broke", regex).await, [original.as_str()], "{regex}");
        assert_eq!(search("rigger", regex).await, [echo.as_str()], "{regex}");
    }
}

/// A model for which texts are similar if they have words in common.
#[derive(Debug)]
struct BagOfWords;

impl Embedder for BagOfWords {
    fn model(&self) -> &str {
        "bag of words"
    }

    fn embed(&self, texts: &[&str], _: TextRole) -> Result<Vec<Vec<f32>>, EmbedError> {
        let vector = |text: &&str| {
            let mut vector = vec![0.01; 64];
            for word in text.split_whitespace() {
                let number: usize = word.bytes().map(usize::from).sum();
                vector[number % 64] += 1.0;
            }
            let length = vector.iter().map(|x: &f32| x * x).sum::<f32>().sqrt();
            vector.iter().map(|x| x / length).collect()
        };
        Ok(texts.iter().map(vector).collect())
    }
}

// An agent looks for texts like one that it has read. The text is in one shard, and those like it are
// in others.
#[tokio::test(flavor = "multi_thread")]
async fn texts_like_one_of_another_shard_are_found() {
    let (cluster, dir) = (MemoryCluster::new(SHARDS), tempfile::tempdir().unwrap());
    let start = |name| {
        let model: Arc<dyn Embedder> = Arc::new(BagOfWords);
        ServingNode::start_with(&cluster, name, dir.path(), Some(model))
    };
    let (one, two) = (start("one").await, start("two").await);
    settled(&[&one, &two]).await;
    let texts = [
        (2, "the mast of the ship broke at noon"),
        (7, "at noon the mast of a ship broke"),
        (9, "quarterly tax forms need three signatures"),
    ];
    let mut ids = Vec::new();
    for (shard, text) in texts {
        let id = id_in(ShardId(shard), SHARDS).to_string();
        let request = append(&id, vec![created(), said(text)]);
        one.events().append(request).await.unwrap();
        ids.push(id);
    }
    let similar = async |node: &ServingNode, within: &str| {
        let request = pb::SearchRequest {
            conversation_id: within.into(),
            similar_to: Some(pb::EventRef {
                conversation_id: ids[0].clone(),
                revision: 2,
            }),
            ..Default::default()
        };
        let found = node.search().search(request).await.unwrap().into_inner();
        let hits = found.hits.into_iter();
        hits.map(|hit| hit.conversation_id).collect::<Vec<_>>()
    };
    let give_up = Instant::now() + Duration::from_secs(60);
    while similar(&two, "").await.len() < 2 {
        assert!(Instant::now() < give_up, "nothing is found");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for node in [&one, &two] {
        // The text itself is left out, and the most similar one is first.
        assert_eq!(similar(node, "").await, [ids[1].as_str(), &ids[2]]);
        assert_eq!(similar(node, &ids[2]).await, [ids[2].as_str()]);
    }
    let missing = pb::SearchRequest {
        similar_to: Some(pb::EventRef {
            conversation_id: ids[0].clone(),
            revision: 99,
        }),
        ..Default::default()
    };
    let refused = two.search().search(missing).await.unwrap_err();
    assert!(refused.message().contains("has no event 99"), "{refused}");
}
