use std::{path::Path, sync::Arc, time::Duration};

use treering_domain::*;
use treering_engine::{context::*, *};
use treering_log::{EventLog, LogError};

use crate::{
    server::{Server, open, single_copy},
    stand::{created, events_of, id_in, ns, said},
};

const SHARDS: u32 = 64;

async fn engine(log: &Arc<dyn EventLog>, shard: u32, dir: &Path) -> Engine {
    Engine::open_shard(Arc::clone(log), place(shard), OpenOptions::new(dir))
        .await
        .unwrap()
}

fn place(shard: u32) -> ShardPlace {
    ShardPlace {
        shard: ShardId(shard),
        shards: SHARDS,
    }
}

/// What an engine answers about a conversation: events, found revisions and the next request.
async fn answers(engine: &Engine, id: ConversationId) -> (Vec<StoredEvent>, Vec<u64>, Vec<u8>) {
    let events = events_of(engine).await.into_iter().map(|found| found.event);
    let search = SearchRequest {
        at_least: Some(engine.head()),
        wait_max: Some(Duration::from_secs(20)),
        ..SearchRequest::new(ns(), "needle", 10)
    };
    let hits = engine.search(search).await.unwrap().hits;
    let address = BranchAddress::active(ns(), id);
    let query = BuildQuery {
        model: Some("gpt-4o".into()),
        ..BuildQuery::new(address, treering_context::provider::Provider::OpenAiChat)
    };
    let built = engine.build(query).await.unwrap();
    let found = hits.iter().map(|hit| hit.found.revision.0).collect();
    (events.collect(), found, built.request)
}

// A node's folder may be up to date, old or lost. Whatever it is, the shard's answers must be the
// same, and no other shard's events may be among them.
#[tokio::test(flavor = "multi_thread")]
async fn shard_has_the_same_answers_from_any_folder() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let url = server.url(&server.new_log().await);
    let log: Arc<dyn EventLog> = Arc::new(open(&url, single_copy()).await);
    let dir = tempfile::tempdir().unwrap();
    let [one, other, empty] = ["one", "other", "empty"].map(|name| dir.path().join(name));
    let (own, foreign) = (engine(&log, 3, &one).await, engine(&log, 4, &other).await);
    let (id, apart) = (id_in(ShardId(3), SHARDS), id_in(ShardId(4), SHARDS));
    let large = format!("a needle {}", "in hay ".repeat(20_000));
    let batch = vec![created(id), said(id, "hello"), said(id, &large)];
    let done = own.append(AppendCommand::new(ns(), batch)).await.unwrap();
    let last = done.events[2].position;
    assert_eq!((last.shard, last.offset), (ShardId(3), 3));
    let batch = vec![created(apart), said(apart, "another needle")];
    foreign
        .append(AppendCommand::new(ns(), batch))
        .await
        .unwrap();

    let into = own.place(ConversationId::generate());
    let fork = |into| ForkCommand {
        address: BranchAddress::active(ns(), id),
        at: None,
        name: "fork".into(),
        system_prompt: String::new(),
        into: Some(into),
        activate: false,
        idempotency_key: None,
        actor: String::new(),
    };
    own.fork(fork(into)).await.unwrap();
    let refused = own.fork(fork(apart)).await.unwrap_err().to_string();
    assert!(refused.contains("would be in shard 4"), "{refused}");

    let before = answers(&own, id).await;
    assert_eq!(before.0.len() as u64, own.head().offset);
    assert!(
        before
            .0
            .iter()
            .all(|event| event.position.shard == ShardId(3))
    );
    assert_eq!(before.1, [3]);
    assert!(matches!(
        own.conversation(&BranchAddress::active(ns(), apart), None)
            .await,
        Err(ReadError::ConversationNotFound { .. })
    ));
    let refused = Engine::open_shard(Arc::clone(&log), place(3), OpenOptions::new(&one));
    assert!(matches!(refused.await, Err(OpenError::Locked { .. })));

    own.close().await;
    // The other shard of the same log goes on.
    foreign
        .append(AppendCommand::new(ns(), vec![said(apart, "still")]))
        .await
        .unwrap();
    foreign.close().await;
    // From the folder as it was left, from none, and from that of another shard.
    for folder in [&one, &empty, &other] {
        let again = engine(&log, 3, folder).await;
        assert_eq!(answers(&again, id).await, before, "{}", folder.display());
        again.close().await;
    }
    log.close().await.unwrap();
    assert!(matches!(
        log.acquire(ShardId(3)).await,
        Err(LogError::Closed)
    ));
}
