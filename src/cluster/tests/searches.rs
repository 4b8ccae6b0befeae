//! Searches over all shards.

use std::time::{Duration, Instant};

use treering_domain::{EventBody, ShardId, ToolCallRequested, ToolResultRecorded};
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
