//! State, lists, forks, lineage, diff, seal.

use tonic::Code;
use treering::{domain::*, proto::pb};

use super::harness::*;

fn fork(id: &str, name: &str, at: u64) -> pb::ForkRequest {
    pb::ForkRequest {
        conversation_id: id.into(),
        name: name.into(),
        at_revision: at,
        ..Default::default()
    }
}

// The state must be what the events say, now and as of any revision.
#[tokio::test(flavor = "multi_thread")]
async fn state_is_returned_as_of_any_revision() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let get = async |as_of_revision| {
        let request = pb::GetConversationRequest {
            conversation_id: id.clone(),
            as_of_revision,
            ..Default::default()
        };
        let state = server.conversations().get(request).await;
        state.map(|state| state.into_inner())
    };
    let now = get(0).await.unwrap();
    let summary = now.summary.unwrap();
    assert_eq!((&*summary.title, summary.head), ("trip", 5));
    assert_eq!((now.branches.len(), now.branches[0].active), (1, true));
    let branch = now.branch.unwrap();
    let open: Vec<_> = branch.open_calls.iter().map(|c| &*c.call_id).collect();
    assert_eq!(open, ["call_1", "call_2"]);
    assert_eq!(branch.tool_uses["weather"], 1);
    let pending = i32::from(pb::ApprovalStatus::Pending);
    assert_eq!(branch.open_calls[0].approval, pending);

    let before = get(3).await.unwrap().branch.unwrap();
    assert_eq!((before.head, before.open_calls.len()), (3, 0));
    let status = get(99).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert_eq!(reason(&status), "REVISION_NOT_FOUND");
    server.stop().done().await;
}

// Pages must join to the whole list, in both directions, without gaps or repetitions.
#[tokio::test(flavor = "multi_thread")]
async fn list_pages_join_to_the_whole_list() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let mut ids = Vec::new();
    for _ in 0..11 {
        ids.push(server.conversation().await);
    }
    let happened = i32::from(pb::ListOrder::Happened);
    for (ascending, order) in [(true, 0), (false, 0), (true, happened), (false, happened)] {
        let mut listed = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = pb::ListConversationsRequest {
                page_size: 4,
                page_token,
                ascending,
                order,
                ..Default::default()
            };
            let page = server.conversations().list(request).await.unwrap();
            let page = page.into_inner();
            assert!(page.conversations.len() <= 4);
            listed.extend(page.conversations.into_iter().map(|c| c.conversation_id));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        if !ascending {
            listed.reverse();
        }
        assert_eq!(listed, ids);
    }
    let wrong = pb::ListConversationsRequest {
        order: 77,
        ..Default::default()
    };
    let status = server.conversations().list(wrong).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    server.stop().done().await;
}

// People type parts of ids. Each part must find the conversations that contain it, and none of
// another tenant. The limit must hold if many match.
#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_found_by_a_part_of_the_id() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let mut ids = Vec::new();
    for _ in 0..9 {
        ids.push(server.conversation().await);
    }
    let find = async |id_part: &str, limit| {
        let request = pb::FindConversationsRequest {
            id_part: id_part.into(),
            limit,
        };
        let found = server.conversations().find(request).await;
        found.map(|found| {
            let found = found.into_inner();
            let ids = found.conversations.into_iter().map(|c| c.conversation_id);
            (ids.collect::<Vec<_>>(), found.more)
        })
    };
    for id in &ids {
        assert_eq!(find(id, 0).await.unwrap(), (vec![id.clone()], false));
        let (ending, more) = find(&id[24..], 0).await.unwrap();
        assert_eq!((ending, more), (vec![id.clone()], false));
    }
    // Ids begin with the time, which is nearly the same.
    let (some, more) = find(&ids[0][..4], 3).await.unwrap();
    assert_eq!((some.len(), more), (3, true));
    let (all, more) = find(&ids[0][..4], 9).await.unwrap();
    assert_eq!((all.len(), more), (9, false));
    assert_eq!(find("no such id", 0).await.unwrap(), (vec![], false));
    let status = find("", 0).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    server.stop().done().await;
}

// A fork shares what was before it and nothing after. Both sides continue independently, and
// lineage and diff show that.
#[tokio::test(flavor = "multi_thread")]
async fn fork_shares_only_history_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let mut client = server.conversations();
    let forked = client
        .fork(fork(&id, "other", 3))
        .await
        .unwrap()
        .into_inner();
    let branch = forked.branch.unwrap();
    assert_eq!((&*branch.name, branch.fork_revision), ("other", 3));
    assert!(!branch.active);
    assert_eq!(forked.events[0].revision, 6);
    let mut request = batch(&id, [message(Role::User, "another way")]);
    request.branch = "other".into();
    request.expected = exactly(branch.head);
    server.append(request).await;

    let revisions = async |name: &str| {
        let request = pb::ReadRequest {
            source: Some(branch_source(&id, name)),
            ..Default::default()
        };
        let events = read(server.events(), request).await.unwrap();
        events.iter().map(|e| e.revision).collect::<Vec<_>>()
    };
    assert_eq!(revisions("main").await, [1, 2, 3, 4, 5]);
    assert_eq!(revisions("other").await, [1, 2, 3, 6, 7]);

    let request = pb::LineageRequest {
        conversation_id: id.clone(),
        branch: "other".into(),
    };
    let lineage = client.lineage(request).await.unwrap().into_inner();
    let steps: Vec<_> = lineage
        .steps
        .iter()
        .map(|step| (&*step.name, step.from_revision, step.to_revision))
        .collect();
    assert_eq!(steps, [("other", 3, 7), ("main", 0, 3)]);

    let request = pb::DiffRequest {
        conversation_id: id.clone(),
        left_branch: "main".into(),
        right_branch: "other".into(),
        ..Default::default()
    };
    let diff = client.diff(request.clone()).await.unwrap().into_inner();
    assert_eq!(diff.ancestor_revision, 3);
    let side = |events: &[pb::Event]| events.iter().map(|e| e.revision).collect::<Vec<_>>();
    assert_eq!(
        (side(&diff.left), side(&diff.right)),
        (vec![4, 5], vec![6, 7])
    );
    assert!(!diff.truncated);
    let request = pb::DiffRequest {
        limit: 1,
        headers_only: true,
        ..request
    };
    let diff = client.diff(request).await.unwrap().into_inner();
    assert!(diff.truncated && diff.left.len() == 1 && diff.right.len() == 1);
    server.stop().done().await;
}

// A fork into a new conversation reads like its parent up to the fork, and each names the other.
#[tokio::test(flavor = "multi_thread")]
async fn fork_into_a_new_conversation_shares_history() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let mut client = server.conversations();
    let request = pb::ForkRequest {
        into_conversation: "new".into(),
        idempotency_key: "fork-1".into(),
        ..fork(&id, "a second trip", 3)
    };
    let forked = client.fork(request.clone()).await.unwrap().into_inner();
    assert_ne!(forked.conversation_id, id);
    assert!(forked.branch.unwrap().active);
    let again = client.fork(request).await.unwrap().into_inner();
    assert_eq!(again.conversation_id, forked.conversation_id);

    let request = pb::ReadRequest {
        source: Some(branch_source(&forked.conversation_id, "")),
        ..Default::default()
    };
    let events = read(server.events(), request).await.unwrap();
    let places: Vec<_> = events
        .iter()
        .map(|e| (e.conversation_id == id, e.revision))
        .collect();
    assert_eq!(places, [(true, 1), (true, 2), (true, 3), (false, 1)]);

    let request = pb::LineageRequest {
        conversation_id: forked.conversation_id.clone(),
        branch: String::new(),
    };
    let lineage = client.lineage(request).await.unwrap().into_inner();
    assert_eq!(lineage.steps.len(), 2);
    assert_eq!(
        (lineage.steps[0].from_revision, lineage.steps[1].to_revision),
        (0, 3)
    );
    let request = pb::LineageRequest {
        conversation_id: id,
        branch: String::new(),
    };
    let children = client.lineage(request).await.unwrap().into_inner().children;
    assert_eq!(children, [forked.conversation_id]);
    server.stop().done().await;
}

// An impossible fork is refused, and nothing is appended.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_forks_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let head = server.events_stored();
    let into = |into: &str| pb::ForkRequest {
        into_conversation: into.into(),
        ..fork(&id, "x", 3)
    };
    for (request, code) in [
        (fork(&id, "main", 3), Code::AlreadyExists),
        (fork(&id, "", 3), Code::InvalidArgument),
        (fork(&id, " x ", 3), Code::InvalidArgument),
        (fork(&id, "x", 99), Code::NotFound),
        (into("not a uuid"), Code::InvalidArgument),
        (into(&id), Code::AlreadyExists),
    ] {
        let status = server
            .conversations()
            .fork(request.clone())
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{request:?} {status:?}");
    }
    assert_eq!(server.events_stored(), head);
    server.stop().done().await;
}

// A sealed conversation refuses appends, and the error says why.
#[tokio::test(flavor = "multi_thread")]
async fn sealed_conversation_refuses_appends() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let seal = pb::SealRequest {
        conversation_id: id.clone(),
        reason: "done".into(),
        idempotency_key: "seal".into(),
        ..Default::default()
    };
    let mut client = server.conversations();
    let sealed = client.seal(seal.clone()).await.unwrap().into_inner();
    assert_eq!(sealed.events[0].revision, 6);
    assert!(client.seal(seal).await.unwrap().into_inner().repeated_key);
    let request = batch(&id, [message(Role::User, "more")]);
    let status = server.events().append(request).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(reason(&status), "SEALED");
    server.stop().done().await;
}

fn listing() -> pb::ListConversationsRequest {
    pb::ListConversationsRequest {
        ascending: true,
        ..Default::default()
    }
}

fn changed(changed: ConversationChanged) -> EventBody {
    EventBody::ConversationChanged(changed)
}

// A framework labels its threads, changes labels and metadata, and filters lists by them. The
// filters must use the current values, also after a rebuild of the projections.
#[tokio::test(flavor = "multi_thread")]
async fn list_filters_use_current_labels_and_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let mut ids = Vec::new();
    for number in 0..4 {
        let created = EventBody::ConversationCreated(ConversationCreated {
            title: format!("Trip to Lisbon {number}"),
            labels: [("team/α=β".to_owned(), "a, b".to_owned())].into(),
            metadata: [("user".to_owned(), format!(r#"{{"id": {number}}}"#))].into(),
            ..Default::default()
        });
        let answer = server.append(batch("", [created])).await;
        ids.push(answer.events[0].conversation_id.clone());
    }
    let change = changed(ConversationChanged {
        title: Some("Trip to PORTO".to_owned()),
        set_labels: [("kind".to_owned(), String::new())].into(),
        remove_labels: vec!["team/α=β".to_owned(), "no such".to_owned()],
        set_metadata: [("user".to_owned(), r#"{ "id":2 }"#.to_owned())].into(),
        remove_metadata: vec![],
    });
    server.append(batch(&ids[3], [change])).await;
    let seal = pb::SealRequest {
        conversation_id: ids[0].clone(),
        ..Default::default()
    };
    server.conversations().seal(seal).await.unwrap();
    let fork = pb::ForkRequest {
        into_conversation: "new".into(),
        ..fork(&ids[1], "copy", 1)
    };
    let copy = server
        .conversations()
        .fork(fork)
        .await
        .unwrap()
        .into_inner()
        .conversation_id;
    let rebuild = pb::RebuildRequest {
        views: true,
        index: false,
    };
    let mut rebuilt = server.admin().rebuild(rebuild).await.unwrap().into_inner();
    while rebuilt.message().await.unwrap().is_some() {}

    let of = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
    let list = async |request: pb::ListConversationsRequest| {
        let page = server
            .conversations()
            .list(request)
            .await
            .unwrap()
            .into_inner();
        let ids = page
            .conversations
            .into_iter()
            .map(|one| one.conversation_id);
        ids.collect::<Vec<_>>()
    };
    type Asked = pb::ListConversationsRequest;
    for (asked, expected) in [
        (
            Asked {
                labels: of("team/α=β", "a, b"),
                ..listing()
            },
            &ids[..3],
        ),
        (
            Asked {
                labels: of("team/α=β", "a"),
                ..listing()
            },
            &[],
        ),
        (
            Asked {
                labels: of("kind", ""),
                ..listing()
            },
            &ids[3..],
        ),
        (
            Asked {
                metadata: of("user", r#"{"id":2}"#),
                ..listing()
            },
            &ids[2..],
        ),
        (
            Asked {
                metadata: of("user", "2"),
                ..listing()
            },
            &[],
        ),
        (
            Asked {
                title: "porto".into(),
                ..listing()
            },
            &ids[3..],
        ),
        (
            Asked {
                sealed: Some(true),
                ..listing()
            },
            &ids[..1],
        ),
        (
            Asked {
                parent: ids[1].clone(),
                ..listing()
            },
            std::slice::from_ref(&copy),
        ),
    ] {
        assert_eq!(list(asked.clone()).await, expected, "{asked:?}");
    }
    assert_eq!(
        list(Asked {
            sealed: Some(false),
            ..listing()
        })
        .await
        .len(),
        4
    );
    let request = pb::GetConversationRequest {
        conversation_id: ids[3].clone(),
        ..Default::default()
    };
    let state = server
        .conversations()
        .get(request.clone())
        .await
        .unwrap()
        .into_inner();
    let summary = state.summary.unwrap();
    assert_eq!(summary.title, "Trip to PORTO");
    assert_eq!(summary.metadata["user"], r#"{ "id":2 }"#);
    // The lower limit of the time includes the last event, the upper limit excludes it.
    let at = summary.updated_at;
    assert!(
        list(Asked {
            updated_from: at,
            ..listing()
        })
        .await
        .contains(&ids[3])
    );
    assert!(
        !list(Asked {
            updated_to: at,
            ..listing()
        })
        .await
        .contains(&ids[3])
    );
    // Too much metadata is refused.
    let large = changed(ConversationChanged {
        set_metadata: [("x".to_owned(), format!("{:?}", "y".repeat(70_000)))].into(),
        ..Default::default()
    });
    let status = server
        .events()
        .append(batch(&ids[3], [large]))
        .await
        .unwrap_err();
    assert_eq!(reason(&status), "LIMIT_REACHED");
    let no_json = Asked {
        metadata: of("user", "ada"),
        ..listing()
    };
    let status = server.conversations().list(no_json).await.unwrap_err();
    assert_eq!(bad_field(&status), "metadata");
    server.stop().done().await;
}

// While one client reads the pages, others create conversations and append to old ones. No
// conversation is on two pages, and none that existed at the start is missing, also if a filter
// excludes most. A token of another query, tenant or store is refused.
#[tokio::test(flavor = "multi_thread")]
async fn page_token_is_valid_only_for_its_query() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let mut ids = Vec::new();
    let labelled = |number: u32| {
        EventBody::ConversationCreated(ConversationCreated {
            labels: [("odd".to_owned(), (number % 2).to_string())].into(),
            ..Default::default()
        })
    };
    for number in 0..30 {
        let answer = server.append(batch("", [labelled(number)])).await;
        ids.push(answer.events[0].conversation_id.clone());
    }
    let odd = pb::ListConversationsRequest {
        page_size: 4,
        labels: [("odd".to_owned(), "1".to_owned())].into(),
        ..Default::default()
    };
    let (mut found, mut token, mut first) = (Vec::new(), String::new(), String::new());
    loop {
        let request = pb::ListConversationsRequest {
            page_token: token,
            ..odd.clone()
        };
        let page = server
            .conversations()
            .list(request)
            .await
            .unwrap()
            .into_inner();
        found.extend(
            page.conversations
                .into_iter()
                .map(|one| one.conversation_id),
        );
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
        first = if first.is_empty() {
            token.clone()
        } else {
            first
        };
        for _ in 0..6 {
            server.append(batch("", [labelled(1)])).await;
        }
        server
            .append(batch(&ids[found.len()], [message(Role::User, "more")]))
            .await;
    }
    found.reverse();
    let expected: Vec<_> = ids.iter().skip(1).step_by(2).cloned().collect();
    assert_eq!(found, expected);

    let even = pb::ListConversationsRequest {
        labels: [("odd".to_owned(), "0".to_owned())].into(),
        page_token: first.clone(),
        ..odd.clone()
    };
    let turned = pb::ListConversationsRequest {
        ascending: true,
        page_token: first.clone(),
        ..odd.clone()
    };
    let same = pb::ListConversationsRequest {
        page_token: first.clone(),
        ..odd.clone()
    };
    let cut = pb::ListConversationsRequest {
        page_token: first[..17].into(),
        ..odd.clone()
    };
    for request in [
        within("default", even),
        within("default", turned),
        within("other", same.clone()),
        within("default", cut),
    ] {
        let status = server.conversations().list(request).await.unwrap_err();
        assert_eq!(bad_field(&status), "page_token");
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let other = TestServer::start(elsewhere.path()).await;
    let status = other.conversations().list(same.clone()).await.unwrap_err();
    assert_eq!(bad_field(&status), "page_token");
    assert!(server.conversations().list(same).await.is_ok());
    other.stop().done().await;
    server.stop().done().await;
}

// A thousand forks would make the state of a conversation large. Its branches come in pages.
#[tokio::test(flavor = "multi_thread")]
async fn branches_are_listed_in_pages() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let forks = (0..250).map(|number| {
        EventBody::BranchForked(BranchForked {
            name: BranchName::new(&format!("b{number}")).unwrap(),
            parent: BranchId::MAIN,
            fork_revision: Revision(3),
            system_prompt: String::new(),
        })
    });
    server.append(batch(&id, forks)).await;
    let request = pb::GetConversationRequest {
        conversation_id: id.clone(),
        branch: "b249".into(),
        ..Default::default()
    };
    let state = server
        .conversations()
        .get(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!((state.branches.len(), state.more_branches), (100, true));
    assert_eq!(state.branch.unwrap().name, "b249");
    let (mut names, mut request) = (
        Vec::new(),
        pb::ListBranchesRequest {
            conversation_id: id.clone(),
            page_size: 60,
            ..Default::default()
        },
    );
    loop {
        let page = server
            .conversations()
            .list_branches(request.clone())
            .await
            .unwrap()
            .into_inner();
        names.extend(
            page.branches
                .into_iter()
                .map(|branch| (branch.name, branch.active)),
        );
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(names.len(), 251);
    assert_eq!(
        (&names[0], &names[250]),
        (&("main".into(), true), &("b249".into(), false))
    );
    let events = server.read_all(&id).await;
    assert_eq!((events.len(), &*events[254].branch), (255, "b249"));
    server.stop().done().await;
}
