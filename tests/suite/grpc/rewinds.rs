//! Rewinding branches, and changes of branches.

use tonic::Code;
use treering::{domain::*, proto::pb};

use super::harness::*;

fn rewind(id: &str, to: u64) -> pb::RewindRequest {
    pb::RewindRequest {
        conversation_id: id.into(),
        to_revision: to,
        ..Default::default()
    }
}

async fn revisions(server: &TestServer, id: &str, branch: &str) -> Vec<u64> {
    let request = pb::ReadRequest {
        source: Some(branch_source(id, branch)),
        ..Default::default()
    };
    let events = read(server.events(), request).await.unwrap();
    events.iter().map(|event| event.revision).collect()
}

async fn state(server: &TestServer, id: &str) -> pb::ConversationState {
    let request = pb::GetConversationRequest {
        conversation_id: id.into(),
        ..Default::default()
    };
    let state = server.conversations().get(request).await.unwrap();
    state.into_inner()
}

async fn sound(server: &TestServer) {
    let request = pb::VerifyRequest { deep: true };
    let mut found = server.admin().verify(request).await.unwrap().into_inner();
    let mut last = None;
    while let Some(item) = found.message().await.unwrap() {
        last = item.item;
    }
    let Some(pb::verify_response::Item::Outcome(outcome)) = last else {
        panic!("no outcome");
    };
    assert!(outcome.sound, "{outcome:?}");
}

/// Creates a conversation with three turns: revisions 1 to 7.
async fn three_turns(server: &TestServer) -> String {
    let mut bodies = vec![created("turns")];
    for turn in 1..=3 {
        bodies.push(message(Role::User, &format!("question {turn}")));
        bodies.push(message(Role::Assistant, &format!("answer {turn}")));
    }
    let appended = server.append(batch("", bodies)).await;
    appended.events[0].conversation_id.clone()
}

// A framework removes its last message. The answer must contain the removed events, the branch must
// continue under its name without them, and the old end must still be readable.
#[tokio::test(flavor = "multi_thread")]
async fn rewind_returns_and_keeps_the_removed_events() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = three_turns(&server).await;
    let rewound = server.conversations().rewind(rewind(&id, 5)).await;
    let rewound = rewound.unwrap().into_inner();
    let went: Vec<_> = rewound.went.iter().map(|event| event.revision).collect();
    assert_eq!((went, rewound.truncated), (vec![6, 7], false));
    let (now, kept) = (rewound.branch.unwrap(), rewound.kept.unwrap());
    assert_eq!(
        (&*now.name, now.active, now.fork_revision),
        ("main", true, 5)
    );
    assert_eq!((&*kept.name, kept.active), ("rewound-7", false));
    assert_eq!(now.head, rewound.events.last().unwrap().revision);

    // Appends without a branch, or to its name, continue there.
    let mut request = batch(&id, [message(Role::User, "another question")]);
    request.expected = exactly(now.head);
    server.append(request).await;
    assert_eq!(
        revisions(&server, &id, "").await,
        [1, 2, 3, 4, 5, 9, 10, 11]
    );
    let old = revisions(&server, &id, "rewound-7").await;
    assert_eq!(old, [1, 2, 3, 4, 5, 6, 7, 8]);
    let build = pb::BuildRequest {
        conversation_id: id.clone(),
        ..Default::default()
    };
    let built = server.contexts().build(build).await.unwrap().into_inner();
    let built = String::from_utf8(built.request.to_vec()).unwrap();
    assert!(built.contains("answer 2") && built.contains("another question"));
    assert!(
        !built.contains("question 3") && !built.contains("answer 3"),
        "{built}"
    );
    sound(&server).await;
    server.stop().done().await;
}

// A client without an answer retries, perhaps after others have appended. The retry must remove
// nothing, and return the first answer.
#[tokio::test(flavor = "multi_thread")]
async fn rewind_with_an_idempotency_key_happens_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = three_turns(&server).await;
    let request = pb::RewindRequest {
        idempotency_key: "pop-1".into(),
        ..rewind(&id, 5)
    };
    let mut client = server.conversations();
    let first = client.rewind(request.clone()).await.unwrap().into_inner();
    server
        .append(batch(&id, [message(Role::User, "more")]))
        .await;
    let again = client.rewind(request.clone()).await.unwrap().into_inner();
    assert!(again.repeated_key && !first.repeated_key);
    assert_eq!(again.events, first.events);
    let places = |answer: &pb::RewindResponse| {
        let places = answer.went.iter().map(|event| event.revision);
        places.collect::<Vec<_>>()
    };
    assert_eq!(places(&again), places(&first));
    assert_eq!(again.kept, first.kept);
    assert!(revisions(&server, &id, "main").await.contains(&11));
    for other in [
        pb::RewindRequest {
            to_revision: 4,
            ..request.clone()
        },
        pb::RewindRequest {
            keep_as: "else".into(),
            ..request.clone()
        },
        pb::RewindRequest {
            branch: "rewound-7".into(),
            ..request.clone()
        },
    ] {
        let status = client.rewind(other).await.unwrap_err();
        assert_eq!(reason(&status), "IDEMPOTENCY_CONFLICT");
    }
    // The key of a rewind that removes nothing is remembered, too: later events stay.
    let head = state(&server, &id).await.branch.unwrap().head;
    let nothing = pb::RewindRequest {
        idempotency_key: "pop-2".into(),
        ..rewind(&id, head)
    };
    client.rewind(nothing.clone()).await.unwrap();
    server
        .append(batch(&id, [message(Role::User, "stays")]))
        .await;
    let head = state(&server, &id).await.branch.unwrap().head;
    assert!(
        client
            .rewind(nothing)
            .await
            .unwrap()
            .into_inner()
            .repeated_key
    );
    assert_eq!(state(&server, &id).await.branch.unwrap().head, head);
    server.stop().done().await;
}

// Of two concurrent rewinds, each must return what it removed, and no event may be removed twice.
// With an expected head, only one may succeed.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_rewinds_do_not_mix() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = three_turns(&server).await;
    let head = state(&server, &id).await.branch.unwrap().head;
    let ask = |request: pb::RewindRequest| {
        let mut client = server.conversations();
        tokio::spawn(async move {
            client
                .rewind(request)
                .await
                .map(|answer| answer.into_inner())
        })
    };
    let expecting = |to| pb::RewindRequest {
        expected_head: head,
        ..rewind(&id, to)
    };
    let both = [ask(expecting(5)), ask(expecting(3))];
    let mut done = Vec::new();
    for one in both {
        done.push(one.await.unwrap());
    }
    let refused: Vec<_> = done.iter().filter_map(|one| one.as_ref().err()).collect();
    assert_eq!(refused.len(), 1, "{done:?}");
    assert_eq!(reason(refused[0]), "REVISION_MISMATCH");

    let id = three_turns(&server).await;
    let all: Vec<_> = (0..16).map(|_| ask(rewind(&id, 5))).collect();
    let mut went = Vec::new();
    for one in all {
        let answer = one.await.unwrap().unwrap();
        went.extend(answer.went.into_iter().map(|event| event.revision));
    }
    assert_eq!(went, [6, 7]);

    let id = three_turns(&server).await;
    let keyed = || pb::RewindRequest {
        idempotency_key: "one".into(),
        ..rewind(&id, 1)
    };
    let all: Vec<_> = (0..16).map(|_| ask(keyed())).collect();
    let mut events = Vec::new();
    for one in all {
        events.push(one.await.unwrap().unwrap().events);
    }
    assert!(events.iter().all(|these| *these == events[0]));
    assert_eq!(state(&server, &id).await.branches.len(), 2);
    sound(&server).await;
    server.stop().done().await;
}

// An agent may rewind and append all day. The lineage that a read follows must contain only the
// forks that still matter, not each rewind.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_rewinds_keep_the_lineage_short() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = three_turns(&server).await;
    for round in 0..40 {
        server
            .append(batch(&id, [message(Role::User, "try")]))
            .await;
        let rewound = server.conversations().rewind(rewind(&id, 7)).await;
        assert_eq!(rewound.unwrap().into_inner().went.len(), 1, "{round}");
    }
    let request = pb::LineageRequest {
        conversation_id: id.clone(),
        branch: String::new(),
    };
    let lineage = server.conversations().lineage(request).await.unwrap();
    assert_eq!(lineage.into_inner().steps.len(), 2);
    server.stop().done().await;
}

// After a rewind behind a compaction, the events that it replaced are in the window again. After a
// rewind behind a fork, the parent's part remains. Both keep their old end.
#[tokio::test(flavor = "multi_thread")]
async fn rewind_crosses_compactions_and_forks() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = three_turns(&server).await;
    let compact = pb::CompactRequest {
        conversation_id: id.clone(),
        summary: "so far".into(),
        cut_revision: 5,
        ..Default::default()
    };
    server.contexts().compact(compact).await.unwrap();
    let mut client = server.conversations();
    let rewound = client.rewind(rewind(&id, 3)).await.unwrap().into_inner();
    let went: Vec<_> = rewound.went.iter().map(|event| event.revision).collect();
    assert_eq!(went, [4, 5, 6, 7, 8]);
    let now = state(&server, &id).await.branch.unwrap();
    assert_eq!((now.compaction, now.cut_revision), (None, 0));

    let fork = pb::ForkRequest {
        conversation_id: id.clone(),
        branch: "rewound-8".into(),
        at_revision: 5,
        name: "side".into(),
        ..Default::default()
    };
    let side = client
        .fork(fork)
        .await
        .unwrap()
        .into_inner()
        .branch
        .unwrap();
    let mut said = batch(&id, [message(Role::User, "on the side")]);
    said.branch = "side".into();
    server.append(said).await;
    let request = pb::RewindRequest {
        branch: "side".into(),
        keep_as: "old side".into(),
        ..rewind(&id, 2)
    };
    let rewound = client.rewind(request).await.unwrap().into_inner();
    let (now, kept) = (rewound.branch.unwrap(), rewound.kept.unwrap());
    assert_eq!(
        (&*now.name, now.active, now.fork_revision),
        ("side", false, 2)
    );
    assert_eq!((kept.branch_id, &*kept.name), (side.branch_id, "old side"));
    assert_eq!(revisions(&server, &id, "side").await[..2], [1, 2]);
    assert_eq!(revisions(&server, &id, "side").await.len(), 3);
    // A revision of another branch is not in this one's history.
    let elsewhere = pb::RewindRequest {
        branch: "side".into(),
        ..rewind(&id, 4)
    };
    let status = client.rewind(elsewhere).await.unwrap_err();
    assert_eq!(reason(&status), "REVISION_NOT_FOUND");
    sound(&server).await;
    server.stop().done().await;
}

// Clearing keeps the conversation itself, and clearing an empty branch does nothing. A rewind of a
// sealed, archived or missing branch is refused, and nothing changes.
#[tokio::test(flavor = "multi_thread")]
async fn impossible_rewind_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = three_turns(&server).await;
    let mut client = server.conversations();
    let cleared = client.rewind(rewind(&id, 0)).await.unwrap().into_inner();
    assert_eq!(cleared.went.len(), 6);
    let head = server.events_stored();
    let again = client.rewind(rewind(&id, 0)).await.unwrap().into_inner();
    assert!(again.kept.is_none() && again.events.is_empty() && again.went.is_empty());
    assert_eq!(server.events_stored(), head);

    let fork = pb::ForkRequest {
        conversation_id: id.clone(),
        branch: "rewound-7".into(),
        name: "a copy".into(),
        into_conversation: "new".into(),
        ..Default::default()
    };
    let copy = client
        .fork(fork)
        .await
        .unwrap()
        .into_inner()
        .conversation_id;
    server
        .append(batch(&copy, [message(Role::User, "its own")]))
        .await;
    let head = server.events_stored();
    let taken = pb::RewindRequest {
        branch: "rewound-7".into(),
        keep_as: "main".into(),
        ..rewind(&id, 3)
    };
    for (request, code, why) in [
        (rewind(&copy, 0), Code::InvalidArgument, ""),
        (rewind(&id, 999), Code::NotFound, "REVISION_NOT_FOUND"),
        (
            rewind("no such", 1),
            Code::NotFound,
            "CONVERSATION_NOT_FOUND",
        ),
        (taken, Code::AlreadyExists, "BRANCH_NAME_TAKEN"),
    ] {
        let status = client.rewind(request).await.unwrap_err();
        assert_eq!(status.code(), code, "{status:?}");
        assert!(why.is_empty() || reason(&status) == why, "{status:?}");
    }
    assert_eq!(server.events_stored(), head);
    let own = client.rewind(rewind(&copy, 1)).await.unwrap().into_inner();
    assert_eq!(own.went.len(), 1);

    let archive = pb::ArchiveBranchRequest {
        conversation_id: id.clone(),
        branch: "rewound-7".into(),
        reason: "led nowhere".into(),
        ..Default::default()
    };
    client.archive_branch(archive).await.unwrap();
    let archived = pb::RewindRequest {
        branch: "rewound-7".into(),
        ..rewind(&id, 3)
    };
    let status = client.rewind(archived).await.unwrap_err();
    assert_eq!(reason(&status), "BRANCH_ARCHIVED");
    let seal = pb::SealRequest {
        conversation_id: id.clone(),
        ..Default::default()
    };
    server
        .append(batch(&id, [message(Role::User, "last")]))
        .await;
    client.seal(seal).await.unwrap();
    let head = server.events_stored();
    let status = client.rewind(rewind(&id, 1)).await.unwrap_err();
    assert_eq!(reason(&status), "SEALED");
    assert_eq!(server.events_stored(), head);
    sound(&server).await;
    server.stop().done().await;
}

// Branches are renamed and activated by explicit calls, once per key.
#[tokio::test(flavor = "multi_thread")]
async fn branches_are_renamed_and_activated() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = three_turns(&server).await;
    let mut client = server.conversations();
    let fork = pb::ForkRequest {
        conversation_id: id.clone(),
        name: "retry".into(),
        at_revision: 3,
        ..Default::default()
    };
    client.fork(fork).await.unwrap();
    let rename = pb::RenameBranchRequest {
        conversation_id: id.clone(),
        branch: "retry".into(),
        name: "better".into(),
        idempotency_key: "rename".into(),
        ..Default::default()
    };
    client.rename_branch(rename.clone()).await.unwrap();
    assert_eq!(
        reason(
            &client
                .rename_branch(pb::RenameBranchRequest {
                    idempotency_key: String::new(),
                    ..rename.clone()
                })
                .await
                .unwrap_err()
        ),
        "BRANCH_NOT_FOUND"
    );
    assert!(
        client
            .rename_branch(rename)
            .await
            .unwrap()
            .into_inner()
            .repeated_key
    );
    let activate = pb::ActivateBranchRequest {
        conversation_id: id.clone(),
        branch: "better".into(),
        ..Default::default()
    };
    client.activate_branch(activate).await.unwrap();
    assert_eq!(
        state(&server, &id).await.summary.unwrap().active_branch,
        "better"
    );
    let blank = pb::RenameBranchRequest {
        conversation_id: id,
        name: " ".into(),
        ..Default::default()
    };
    assert_eq!(
        bad_field(&client.rename_branch(blank).await.unwrap_err()),
        "name"
    );
    server.stop().done().await;
}

// A fork of the head that is requested twice with one key, while others append, is made once. With
// an expected head it is refused at another one. A new conversation keeps the given labels.
#[tokio::test(flavor = "multi_thread")]
async fn fork_checks_the_expected_head_and_keeps_labels() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let labels = [("team/α", "a=b"), ("kind", "chat")];
    let first = EventBody::ConversationCreated(ConversationCreated {
        labels: labels
            .map(|(name, value)| (name.into(), value.into()))
            .into(),
        source: "langgraph".into(),
        source_id: "thread 1".into(),
        ..Default::default()
    });
    let bodies = [first, message(Role::User, "hello")];
    let id = server.append(batch("", bodies)).await.events[0]
        .conversation_id
        .clone();
    let mut client = server.conversations();
    let request = pb::ForkRequest {
        conversation_id: id.clone(),
        name: "copy".into(),
        idempotency_key: "fork".into(),
        expected_head: 2,
        ..Default::default()
    };
    let forked = client.fork(request.clone()).await.unwrap().into_inner();
    server
        .append(batch(&id, [message(Role::User, "more")]))
        .await;
    let again = client.fork(request.clone()).await.unwrap().into_inner();
    assert_eq!(again.events, forked.events);
    let stale = pb::ForkRequest {
        name: "late".into(),
        idempotency_key: String::new(),
        ..request.clone()
    };
    assert_eq!(
        reason(&client.fork(stale).await.unwrap_err()),
        "REVISION_MISMATCH"
    );
    let branch = pb::ForkRequest {
        name: "b".into(),
        keep_labels: true,
        idempotency_key: String::new(),
        expected_head: 0,
        ..request.clone()
    };
    assert_eq!(
        bad_field(&client.fork(branch).await.unwrap_err()),
        "keep_labels"
    );
    let into = pb::ForkRequest {
        idempotency_key: "into".into(),
        into_conversation: "new".into(),
        expected_head: 0,
        keep_labels: true,
        keep_source: true,
        labels: [("kind".to_owned(), "copy".to_owned())].into(),
        source_id: "thread 2".into(),
        ..request
    };
    let copy = client
        .fork(into)
        .await
        .unwrap()
        .into_inner()
        .conversation_id;
    let summary = state(&server, &copy).await.summary.unwrap();
    assert_eq!(
        (&*summary.source, &*summary.source_id),
        ("langgraph", "thread 2")
    );
    assert_eq!(summary.labels["team/α"], "a=b");
    assert_eq!(summary.labels["kind"], "copy");
    assert_eq!(
        state(&server, "thread 1")
            .await
            .summary
            .unwrap()
            .conversation_id,
        id
    );
    server.stop().done().await;
}
