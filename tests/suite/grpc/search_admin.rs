//! Search and Admin.

use tonic::Code;
use treering::{domain::Role, proto::pb};

use super::harness::*;

// A search that waits for a position must find what was appended there, and the hit must point at
// the right bytes.
#[tokio::test(flavor = "multi_thread")]
async fn appended_text_is_found_by_search() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let text = format!("{}\nthe zebra crosses here\n", "filler line\n".repeat(3));
    let response = server.append(batch(&id, [result("call_2", &text)])).await;
    let request = pb::SearchRequest {
        query: "zebra".into(),
        at_least: response.events[0].position,
        ..Default::default()
    };
    let answer = server
        .search()
        .search(request.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.hits.len(), 1);
    let hit = &answer.hits[0];
    assert_eq!((&*hit.conversation_id, hit.revision), (&*id, 6));
    assert_eq!(
        (&*hit.tool, &*hit.call_id, hit.success),
        ("clock", "call_2", Some(true))
    );
    let (start, end) = (hit.byte_start as usize, hit.byte_end as usize);
    assert!(text[start..end].contains("zebra"));
    let marked = &hit.highlights[0];
    let marked = &hit.snippet[marked.start as usize..marked.end as usize];
    assert_eq!(marked, "zebra");

    for (change, hits) in [
        (
            pb::SearchRequest {
                tools: vec!["weather".into()],
                ..request.clone()
            },
            0,
        ),
        (
            pb::SearchRequest {
                success: Some(true),
                ..request.clone()
            },
            1,
        ),
        (
            pb::SearchRequest {
                conversation_id: id.clone(),
                ..request.clone()
            },
            1,
        ),
        (
            pb::SearchRequest {
                kinds: vec![28],
                ..request.clone()
            },
            0,
        ),
    ] {
        let answer = server.search().search(change.clone()).await.unwrap();
        assert_eq!(answer.into_inner().hits.len(), hits, "{change:?}");
    }
    let broken = pb::SearchRequest {
        query: "\"unclosed (".into(),
        ..Default::default()
    };
    // Parsed as words, or refused with the field: never an internal error.
    if let Err(status) = server.search().search(broken).await {
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(bad_field(&status), "query");
    }
    // Clients fall back to a literal search on this reason: they must not have to parse the
    // message.
    let signs = pb::SearchRequest {
        query: "--- !!".into(),
        ..Default::default()
    };
    let status = server.search().search(signs).await.unwrap_err();
    assert_eq!(reason(&status), "EMPTY_QUERY");
    server.stop().done().await;
}

// The arguments of a call must be found. A hit must have enough details to continue from, and the
// line of the match, not of the passage.
#[tokio::test(flavor = "multi_thread")]
async fn hit_has_its_bytes_line_and_passage() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let text = format!("{}the zebra crosses\nhere\n", "filler line\n".repeat(30));
    let response = server.append(batch(&id, [result("call_2", &text)])).await;
    let ask = |change: fn(&mut pb::SearchRequest)| {
        let mut request = pb::SearchRequest {
            query: "zebra".into(),
            at_least: response.events[0].position,
            context_lines: 1,
            ..Default::default()
        };
        change(&mut request);
        let mut client = server.search();
        async move { client.search(request).await.unwrap().into_inner() }
    };
    let answer = ask(|_| {}).await;
    assert!(answer.complete && answer.events_missing == 0);
    assert_eq!(answer.read_as(), pb::QueryMode::Plain);
    let hit = &answer.hits[0];
    let (start, end) = (hit.byte_start as usize, hit.byte_end as usize);
    assert_eq!((&text[start..end], hit.line), ("zebra", 31));
    assert_eq!((hit.passage_line, hit.passage_byte_start), (1, 0));
    assert_eq!(hit.passage_byte_end as usize, text.len());
    assert_eq!(hit.context, "filler line\nthe zebra crosses\nhere");
    assert_eq!(hit.context_line, 30);
    let scores = hit.scores.unwrap();
    assert!(scores.words > 0.0 && scores.kind > 0.0);
    assert!(hit.happened_at.is_some());

    let pattern = ask(|request| {
        request.query = "z[e]bra cro.*$".into();
        request.regex = true;
        request.by_conversation = true;
    })
    .await;
    let hit = &pattern.hits[0];
    let (start, end) = (hit.byte_start as usize, hit.byte_end as usize);
    assert_eq!((&text[start..end], hit.line), ("zebra crosses", 31));
    assert_eq!((pattern.total, pattern.conversations.len()), (1, 1));
    assert_eq!(pattern.conversations[0].conversation_id, id);

    let of_calls = ask(|request| {
        request.query = "weather".into();
        request.kinds = vec![pb::EventKind::ToolCallRequested.into()];
    })
    .await;
    assert!(of_calls.hits.iter().all(|hit| !hit.call_id.is_empty()));
    let none = ask(|request| request.sources = vec!["elsewhere".into()]).await;
    assert!(none.hits.is_empty() && none.complete);
    let grouped = ask(|request| request.by_conversation = true).await;
    assert_eq!(grouped.conversations[0].hits, 1);
    server.stop().done().await;
}

// The counts must be right, a sound store must be reported as sound, and a rebuild must change
// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn stats_verify_and_rebuild_agree_with_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    server.append(batch(&id, [result("call_2", "noon")])).await;
    let before = server.read_all(&id).await;
    let mut admin = server.admin();
    let stats = admin.stats(pb::StatsRequest {}).await.unwrap().into_inner();
    assert_eq!(
        (stats.conversations, stats.events, stats.branches),
        (1, 6, 1)
    );
    assert_eq!(stats.pending_approvals, 1);
    assert_eq!(stats.events_by_kind["tool_call_requested"], 2);
    assert!(!stats.version.is_empty());

    let request = pb::RebuildRequest {
        views: true,
        index: true,
    };
    let mut items = admin.rebuild(request).await.unwrap().into_inner();
    let mut rebuilt = None;
    while let Some(response) = items.message().await.unwrap() {
        assert!(rebuilt.is_none(), "nothing comes after the outcome");
        if let Some(pb::rebuild_response::Item::Outcome(outcome)) = response.item {
            rebuilt = Some(outcome);
        }
    }
    assert_eq!(rebuilt.unwrap().events, 6);

    let request = pb::VerifyRequest { deep: true };
    let mut items = admin.verify(request).await.unwrap().into_inner();
    let mut verified = None;
    while let Some(response) = items.message().await.unwrap() {
        match response.item.unwrap() {
            pb::verify_response::Item::Outcome(outcome) => verified = Some(outcome),
            pb::verify_response::Item::Fault(fault) => panic!("{fault:?}"),
            pb::verify_response::Item::Progress(_) => {}
        }
    }
    let verified = verified.unwrap();
    assert!(verified.sound && verified.faults == 0 && verified.events == 6);
    assert_eq!(server.read_all(&id).await, before);
    server.stop().done().await;
}

// On request, a search finds only what active branches show: not what was rewound, cleared, sealed
// or appended to another branch.
#[tokio::test(flavor = "multi_thread")]
async fn search_can_be_limited_to_visible_events() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let said = [created("z"), message(Role::User, "the zebra stays")];
        ids.push(
            server.append(batch("", said)).await.events[0]
                .conversation_id
                .clone(),
        );
    }
    server
        .append(batch(&ids[0], [message(Role::User, "the zebra goes")]))
        .await;
    let rewind = pb::RewindRequest {
        conversation_id: ids[0].clone(),
        to_revision: 2,
        ..Default::default()
    };
    server.conversations().rewind(rewind).await.unwrap();
    server
        .append(batch(&ids[0], [message(Role::User, "the zebra comes")]))
        .await;
    let fork = pb::ForkRequest {
        conversation_id: ids[1].clone(),
        name: "side".into(),
        ..Default::default()
    };
    server.conversations().fork(fork).await.unwrap();
    let mut side = batch(&ids[1], [message(Role::User, "a zebra aside")]);
    side.branch = "side".into();
    server.append(side).await;
    let seal = pb::SealRequest {
        conversation_id: ids[2].clone(),
        ..Default::default()
    };
    let sealed = server
        .conversations()
        .seal(seal)
        .await
        .unwrap()
        .into_inner();
    let ask = async |active_branches_only, not_sealed, branch: &str, conversation: &str| {
        let request = pb::SearchRequest {
            query: "zebra".into(),
            every_copy: true,
            active_branches_only,
            not_sealed,
            branch: branch.into(),
            conversation_id: conversation.into(),
            at_least: sealed.events[0].position,
            ..Default::default()
        };
        let answer = server.search().search(request).await.unwrap().into_inner();
        let mut found: Vec<_> = answer.hits.into_iter().map(|hit| hit.snippet).collect();
        found.sort();
        found
    };
    assert_eq!(ask(false, false, "", "").await.len(), 6);
    let (comes, stays, aside) = ("the zebra comes", "the zebra stays", "a zebra aside");
    assert_eq!(ask(true, false, "", "").await, [comes, stays, stays, stays]);
    assert_eq!(ask(true, true, "", "").await, [comes, stays, stays]);
    assert_eq!(ask(true, false, "", &ids[0]).await, [comes, stays]);
    assert_eq!(ask(true, false, "side", &ids[1]).await, [aside, stays]);
    // Activating the old end shows it again.
    let activate = pb::ActivateBranchRequest {
        conversation_id: ids[0].clone(),
        branch: "rewound-3".into(),
        ..Default::default()
    };
    server
        .conversations()
        .activate_branch(activate)
        .await
        .unwrap();
    assert_eq!(
        ask(true, false, "", &ids[0]).await,
        ["the zebra goes", stays]
    );
    server.stop().done().await;
}
