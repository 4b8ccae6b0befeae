//! Tests of reads: bounded bytes per page, bounded ancestor look-ups, and the check that events
//! match the projections.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};

use super::{query::*, test_events::*, *};
use treering_domain::*;

fn pending_call(id: ConversationId, call_id: &str) -> NewEvent {
    let arguments = treering_proto::json::check(b"{}").unwrap();
    let call = ToolCallRequested {
        call_id: call_id.to_owned(),
        tool: "look".to_owned(),
        arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
        arguments,
        message_revision: None,
        needs_approval: true,
        ..ToolCallRequested::default()
    };
    NewEvent::new(id, EventBody::ToolCallRequested(call))
}

async fn batches(engine: &Engine, query: ReadQuery) -> Vec<Vec<NamedEvent>> {
    engine.read(query).try_collect().await.unwrap()
}

fn branch(id: ConversationId) -> EventSource {
    EventSource::Branch {
        conversation: id,
        branch: None,
    }
}

// Bodies in the blob table were not counted: a read of the log loaded a thousand of them at once,
// 110 MB for one requested message.
#[tokio::test]
async fn page_limit_includes_large_bodies() {
    const LARGE: usize = 300_000;
    let engine = memory().await;
    let id = ConversationId::generate();
    append(&engine, vec![created(id)]).await;
    for number in 0..24 {
        let text = format!("{number} ") + &"x".repeat(LARGE);
        append(&engine, vec![said(id, text), said(id, "small".to_owned())]).await;
    }
    let sources = [EventSource::Log, EventSource::Conversation(id), branch(id)];
    for (source, backward) in sources
        .into_iter()
        .flat_map(|s| [(s.clone(), false), (s, true)])
    {
        let query = ReadQuery {
            backward,
            ..ReadQuery::all(ns(), source.clone())
        };
        let batches = batches(&engine, query).await;
        for batch in &batches {
            let bytes: usize = batch.iter().map(|event| event.event.body.len()).sum();
            assert!(
                bytes <= history::PAGE_BYTES + 2 * LARGE,
                "{source:?} {backward}: {bytes} bytes at once"
            );
        }
        let mut offsets: Vec<u64> = batches
            .iter()
            .flatten()
            .map(|event| event.event.position.offset)
            .collect();
        if backward {
            offsets.reverse();
        }
        assert_eq!(
            offsets,
            (1..=49).collect::<Vec<u64>>(),
            "{source:?} {backward}"
        );
    }
    engine.close().await;
}

// Twenty concurrent full reads raised the latency of health checks twentyfold. Long reads must
// queue behind short ones.
#[tokio::test]
async fn long_reads_leave_slots_for_short_reads() {
    let limits = Limits {
        bulk_reads_max: 1,
        ..Limits::default()
    };
    let engine = Engine::in_memory(limits).await.unwrap();
    let id = ConversationId::generate();
    append(&engine, vec![created(id)]).await;
    let texts = (0..500).map(|number| said(id, format!("{number}")));
    append(&engine, texts.collect()).await;

    let (release, held) = tokio::sync::oneshot::channel::<()>();
    let (began, begun) = tokio::sync::oneshot::channel();
    let other = engine.clone();
    let holding = tokio::spawn(async move {
        let held = async move {
            began.send(()).unwrap();
            held.await.unwrap();
        };
        other
            .inner
            .work
            .run(work::PriorityClass::Bulk, held)
            .await
            .unwrap();
    });
    begun.await.unwrap();

    let mut whole = engine.read(ReadQuery::all(ns(), EventSource::Log));
    let first = whole.next().await.unwrap().unwrap();
    assert!(!first.is_empty() && first.len() < 501);
    let waiting = tokio::time::timeout(Duration::from_millis(50), whole.next());
    assert!(waiting.await.is_err(), "it reads on beside another one");
    // Short reads still get their turn.
    let query = ReadQuery {
        limit: 3,
        ..ReadQuery::all(ns(), EventSource::Log)
    };
    assert_eq!(engine.read_all(query).await.unwrap().len(), 3);

    release.send(()).unwrap();
    holding.await.unwrap();
    let rest: Vec<_> = whole.try_concat().await.unwrap();
    assert_eq!(first.len() + rest.len(), 501);
    engine.close().await;
}

/// A chain of forks: each branch adds one message, and the next one forks there.
async fn chain(engine: &Engine, depth: usize) -> ConversationId {
    let id = ConversationId::generate();
    append(engine, vec![created(id), said(id, "root".to_owned())]).await;
    for number in 0..depth {
        let fork = ForkCommand {
            address: BranchAddress::active(ns(), id),
            at: None,
            name: format!("b{number}"),
            system_prompt: String::new(),
            into: None,
            activate: true,
            idempotency_key: None,
            actor: String::new(),
        };
        engine.fork(fork).await.unwrap();
        append(engine, vec![said(id, format!("at {number}"))]).await;
    }
    id
}

// Each page of a deep fork, and each event of its subscription, looked up all ancestors again, and
// each ancestor's events were loaded and sent separately.
#[tokio::test]
async fn deep_fork_is_read_as_one_history() {
    let engine = memory().await;
    let id = chain(&engine, 40).await;
    let inner = &engine.inner;
    let head = inner.reads.branch(&ns(), id, None).unwrap();
    let all = inner.reads.history().lineage(ns().key(id), &head).unwrap();
    assert_eq!(all.len(), 41);
    let whole = batches(&engine, ReadQuery::all(ns(), branch(id))).await;
    assert_eq!(whole.len(), 1, "what is read together comes together");
    let mut seen = Vec::new();
    let end = ReadQuery {
        from: head.head.0,
        ..ReadQuery::all(ns(), branch(id))
    };
    let near = inner
        .reads
        .history()
        .lineage_while(ns().key(id), &head, |segment| {
            seen.push(segment.branch);
            segment.first.0 > end.from
        });
    assert_eq!(near.unwrap().len(), 1);
    let last = batches(&engine, end).await;
    assert_eq!(last.concat(), whole[0][whole[0].len() - 1..]);
    // The history is the same in both directions and with pages of any size.
    let mut paged = Vec::new();
    let mut from = 0;
    loop {
        let page = ReadQuery {
            from,
            limit: 7,
            ..ReadQuery::all(ns(), branch(id))
        };
        let page = batches(&engine, page).await.concat();
        let Some(last) = page.last() else { break };
        from = last.event.header.revision.0 + 1;
        paged.extend(page);
    }
    assert_eq!(paged, whole.concat());
    let backward = ReadQuery {
        backward: true,
        ..ReadQuery::all(ns(), branch(id))
    };
    let mut backward = batches(&engine, backward).await.concat();
    backward.reverse();
    assert_eq!(backward, whole.concat());
    engine.close().await;
}

// With a segment or projections of another store, a read returned another conversation's events
// without an error. Each event must be compared with the projections' entry.
#[tokio::test]
async fn event_that_differs_from_the_projections_is_damage() {
    let (ours, other) = (memory().await, memory().await);
    let (id, other_id) = (ConversationId::generate(), ConversationId::generate());
    for (engine, id) in [(&ours, id), (&other, other_id)] {
        let command = AppendCommand {
            idempotency_key: Some("once".to_owned()),
            ..AppendCommand::new(
                ns(),
                vec![
                    created(id),
                    said(id, format!("of {id}")),
                    pending_call(id, "c"),
                ],
            )
        };
        engine.append(command).await.unwrap();
    }
    // The projections of one store over the log of the other.
    ours.inner
        .reads
        .projections
        .store(other.inner.reads.projections.load_full());
    let mut damage = Vec::new();
    let mut query = ReadQuery::all(ns(), branch(other_id));
    damage.push(ours.read_all(query.clone()).await.unwrap_err());
    query.source = EventSource::Conversation(other_id);
    damage.push(ours.read_all(query).await.unwrap_err());
    damage.push(ours.source_meta(&ns(), other_id).await.unwrap_err());
    damage.push(ours.pending(&ns(), None, None, 10).await.unwrap_err());
    let build = BuildQuery::new(
        BranchAddress::active(ns(), other_id),
        treering_context::Provider::Neutral,
    );
    match ours.build(build).await {
        Err(ContextError::Read(error)) => damage.push(error),
        other => panic!("{other:?}"),
    }
    for error in damage {
        let text = error.to_string();
        assert!(matches!(error, ReadError::Damaged { .. }), "{text}");
        let names_both = text.contains(&id.to_string()) && text.contains(&other_id.to_string());
        assert!(names_both, "{text}");
    }
    // The same for the batch of an idempotency key: here the log has other content.
    let again = ours.appended_with_key(&ns(), "once").await;
    assert!(
        matches!(again, Err(AppendError::Read(ReadError::Damaged { .. }))),
        "{again:?}"
    );
    assert!(ours.damage_met().is_some(), "it is told");
    ours.close().await;
    other.close().await;
}

// Statistics loaded every pending call with its arguments to count them. The count must be updated
// as calls come and go, on every branch.
#[tokio::test]
async fn pending_calls_are_counted_on_every_branch() {
    let engine = memory().await;
    let id = ConversationId::generate();
    let calls = ["a", "b", "c"].map(|call_id| pending_call(id, call_id));
    append(&engine, [vec![created(id)], calls.to_vec()].concat()).await;
    let count = || async { engine.stats(&ns()).await.unwrap().pending_approvals };
    assert_eq!(count().await, 3);
    let EventBody::ToolCallRequested(requested) = &calls[0].body else {
        unreachable!("it makes a call")
    };
    let decided = ApprovalDecided {
        call_id: "a".to_owned(),
        decision: Decision::Approved,
        arguments_hash: requested.arguments_hash,
        decided_by: String::new(),
        reason: String::new(),
    };
    let cancelled = ToolCallCancelled {
        call_id: "b".to_owned(),
        reason: CancelReason::TimedOut,
        detail: String::new(),
    };
    append(
        &engine,
        vec![NewEvent::new(id, EventBody::ApprovalDecided(decided))],
    )
    .await;
    append(
        &engine,
        vec![NewEvent::new(id, EventBody::ToolCallCancelled(cancelled))],
    )
    .await;
    assert_eq!(count().await, 1);
    // A fork at its parent's head has the pending call, too.
    chain_fork(&engine, id).await;
    let waiting = engine.pending(&ns(), None, None, 100).await.unwrap();
    assert_eq!(count().await, waiting.len() as u64);
    assert_eq!(waiting.len(), 2);
    let other = engine
        .stats(&Namespace::new("other").unwrap())
        .await
        .unwrap();
    assert_eq!(other.pending_approvals, 0);
    engine.close().await;
}

async fn chain_fork(engine: &Engine, id: ConversationId) {
    let fork = EventBody::BranchForked(BranchForked {
        name: BranchName::new("try").unwrap(),
        parent: BranchId::MAIN,
        fork_revision: engine.inner.reads.branch(&ns(), id, None).unwrap().head,
        system_prompt: String::new(),
    });
    append(engine, vec![NewEvent::new(id, fork)]).await;
}

// Whether an answer ended its turn depends on the branch's next event, which was searched among the
// next 512 of the conversation. After a long attempt on another branch the call was missed, and a
// compaction could cut between an answer and its call.
#[tokio::test]
async fn next_call_of_a_branch_is_found_past_other_branches() {
    let engine = memory().await;
    let id = ConversationId::generate();
    let main = |body| NewEvent {
        branch: Some(BranchName::default()),
        ..NewEvent::new(id, body)
    };
    let assistant = MessageAppended::text(Role::Assistant, "I look.");
    append(
        &engine,
        vec![
            created(id),
            said(id, "Where?".to_owned()),
            main(EventBody::MessageAppended(assistant)),
        ],
    )
    .await;
    let answer = engine.inner.reads.branch(&ns(), id, None).unwrap().head;
    chain_fork(&engine, id).await;
    let attempt = BranchName::new("try").unwrap();
    let tries = (0..600).map(|number| NewEvent {
        branch: Some(attempt.clone()),
        ..said(id, format!("attempt {number}"))
    });
    append(&engine, tries.collect()).await;
    let call = pending_call(id, "c1");
    append(&engine, vec![main(call.body)]).await;
    let history = engine.inner.reads.history();
    let past = history
        .branch_at(ns().key(id), BranchId::MAIN, answer)
        .await;
    let past = past.unwrap().unwrap();
    assert!(past.state.at_turn_boundary() && past.followed_by_call);
    engine.close().await;
}

// Two deep verifications blocked everyone else, and continued after their clients had gone. Only
// one may run at a time, and it must end with its stream.
#[tokio::test]
async fn verification_stops_when_its_stream_is_dropped() {
    let engine = memory().await;
    let id = ConversationId::generate();
    append(&engine, vec![created(id)]).await;
    for number in 0..200 {
        append(&engine, vec![said(id, format!("message {number}"))]).await;
    }
    let mut first = engine.verify(&ns(), true);
    assert!(first.next().await.unwrap().is_ok());
    drop(first);
    let again = async {
        let mut items = engine.verify(&ns(), true);
        let mut last = None;
        while let Some(item) = items.next().await {
            last = Some(item.unwrap());
        }
        last
    };
    let again = tokio::time::timeout(std::time::Duration::from_secs(60), again).await;
    let Ok(Some(VerifyItem::Outcome(outcome))) = again else {
        panic!("{again:?}");
    };
    assert!(outcome.sound);
    engine.close().await;
}

// A request refers to omitted events as "#3 to #9", and to a truncated message as "the whole: #2".
// Only results could be read back.
#[tokio::test]
async fn messages_calls_and_results_are_read_by_revision() {
    let engine = memory().await;
    let id = ConversationId::generate();
    append(&engine, vec![created(id), said(id, "all of it".to_owned())]).await;
    append(&engine, vec![pending_call(id, "c")]).await;
    let read = async |revision| {
        let which = WhichResult::Revision(Revision(revision));
        engine.result(&BranchAddress::active(ns(), id), which).await
    };
    let message = read(2).await.unwrap();
    assert_eq!((&*message.text, &*message.tool), ("all of it", ""));
    let call = read(3).await.unwrap();
    assert_eq!((&*call.text, &*call.tool), ("{}", "look"));
    assert_eq!(call.result.call_id, "c");
    for nothing in [1, 9] {
        let error = read(nothing).await.unwrap_err();
        assert!(
            matches!(error, ReadError::RevisionNotFound { .. }),
            "{error}"
        );
    }
}

// A conversation with a thousand forks was read whole, branch by branch, to find one branch by its
// name: a read of ten events took 26 ms. The test counts rows, not seconds.
#[tokio::test]
async fn branch_lookup_cost_does_not_depend_on_fork_count() {
    let engine = memory().await;
    let rows_for = async |forks: usize| {
        let id = ConversationId::generate();
        append(&engine, vec![created(id), said(id, "hello".to_owned())]).await;
        let forked = (0..forks).map(|number| {
            let forked = BranchForked {
                name: BranchName::new(&format!("branch {number}")).unwrap(),
                parent: BranchId::MAIN,
                fork_revision: Revision(2),
                system_prompt: String::new(),
            };
            NewEvent::new(id, EventBody::BranchForked(forked))
        });
        append(&engine, forked.collect()).await;
        let name = BranchName::new(&format!("branch {}", forks / 2)).unwrap();
        let inner = &engine.inner;
        let before = treering_projections::rows_read();
        let found = inner.reads.branch(&ns(), id, Some(&name)).unwrap();
        assert_eq!(found.name, name);
        inner.reads.history().lineage(ns().key(id), &found).unwrap();
        assert_eq!(
            inner.reads.branch(&ns(), id, None).unwrap().id,
            BranchId::MAIN
        );
        inner
            .reads
            .branches_after(ns().key(id), Some(found.id), 1)
            .unwrap();
        treering_projections::rows_read() - before
    };
    let (few, many) = (rows_for(4).await, rows_for(400).await);
    assert!(
        few > 0 && many <= few + 4,
        "{few} rows of 4 forks, {many} of 400"
    );
    engine.close().await;
}

// A name must lead to the branch that has it now: after renames, after swaps in one batch, and when
// the first branch gives its name away and gets it back.
#[tokio::test]
async fn branch_names_resolve_after_renames() {
    let engine = memory().await;
    let id = ConversationId::generate();
    append(&engine, vec![created(id), said(id, "hello".to_owned())]).await;
    let name = |text: &str| BranchName::new(text).unwrap();
    let rename = |from: &str, to: &str| {
        NewEvent::new(id, EventBody::BranchRenamed(name(to))).on_branch(name(from))
    };
    let fork = EventBody::BranchForked(BranchForked {
        name: name("side"),
        parent: BranchId::MAIN,
        fork_revision: Revision(2),
        system_prompt: String::new(),
    });
    append(&engine, vec![NewEvent::new(id, fork)]).await;
    let side = BranchId(3);
    let is = |text: &str, expected: Option<BranchId>| {
        let found = engine.inner.reads.branch(&ns(), id, Some(&name(text)));
        assert_eq!(found.ok().map(|branch| branch.id), expected, "{text}");
    };
    is("main", Some(BranchId::MAIN));
    is("side", Some(side));
    let swapped = vec![
        rename("main", "x"),
        rename("side", "main"),
        rename("x", "side"),
    ];
    append(&engine, swapped).await;
    is("main", Some(side));
    is("side", Some(BranchId::MAIN));
    is("x", None);
    append(&engine, vec![rename("main", "y")]).await;
    is("main", None);
    append(&engine, vec![rename("side", "main")]).await;
    is("main", Some(BranchId::MAIN));
    is("side", None);
    is("y", Some(side));
    let found = engine
        .verify(&ns(), true)
        .try_collect::<Vec<_>>()
        .await
        .unwrap();
    assert!(matches!(found.last(), Some(VerifyItem::Outcome(outcome)) if outcome.sound));
    engine.close().await;
}
