//! Tenants do not see each other, in any call.

use tonic::{Code, Status};
use treering::{domain::*, proto::pb};

use super::harness::*;

fn not_found<T: std::fmt::Debug>(answer: Result<T, Status>, what: &str) {
    let status = answer.expect_err(what);
    assert_eq!(status.code(), Code::NotFound, "{what}: {status:?}");
}

// A tenant who knows another tenant's conversation, branch, call and key must get the same answers
// as if they did not exist.
#[tokio::test(flavor = "multi_thread")]
async fn objects_of_another_namespace_are_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let conversation_id = server.conversation().await;
    let id = || conversation_id.clone();
    let before = server.read_all(&conversation_id).await;
    let mut events = server.events();
    let mut conversations = server.conversations();
    let mut tools = server.tools();

    let request = batch(&id(), [message(Role::User, "hello")]);
    not_found(events.append(within("b", request)).await, "append");
    for source in [conversation_source(&id()), branch_source(&id(), "main")] {
        let request = pb::ReadRequest {
            source: Some(source),
            ..Default::default()
        };
        not_found(events.read(within("b", request)).await, "read");
    }
    let request = pb::SubscribeRequest {
        source: Some(pb::subscribe_request::Source::Conversation(
            pb::ConversationSource {
                conversation_id: id(),
            },
        )),
        ..Default::default()
    };
    not_found(events.subscribe(within("b", request)).await, "subscribe");

    let request = pb::GetConversationRequest {
        conversation_id: id(),
        ..Default::default()
    };
    not_found(conversations.get(within("b", request)).await, "get");
    let request = pb::ForkRequest {
        conversation_id: id(),
        name: "x".into(),
        ..Default::default()
    };
    not_found(conversations.fork(within("b", request)).await, "fork");
    let request = pb::LineageRequest {
        conversation_id: id(),
        ..Default::default()
    };
    not_found(conversations.lineage(within("b", request)).await, "lineage");
    let request = pb::DiffRequest {
        conversation_id: id(),
        ..Default::default()
    };
    not_found(conversations.diff(within("b", request)).await, "diff");
    let request = pb::SealRequest {
        conversation_id: id(),
        ..Default::default()
    };
    not_found(conversations.seal(within("b", request)).await, "seal");

    let request = pb::ToolHistoryRequest {
        conversation_id: id(),
        ..Default::default()
    };
    not_found(tools.history(within("b", request)).await, "history");
    let request = pb::PendingRequest {
        conversation_id: id(),
        ..Default::default()
    };
    not_found(tools.pending(within("b", request)).await, "pending");
    let request = pb::WaitForDecisionRequest {
        conversation_id: id(),
        call_id: "call_1".into(),
        timeout_ms: 10,
        ..Default::default()
    };
    not_found(tools.wait_for_decision(within("b", request)).await, "wait");
    let request = pb::GetResultRequest {
        conversation_id: id(),
        which: Some(pb::get_result_request::Which::Revision(1)),
        ..Default::default()
    };
    not_found(tools.get_result(within("b", request)).await, "result");
    let request = pb::RecordedRequest {
        conversation_id: id(),
        tool: "clock".into(),
        arguments: "{}".into(),
        ..Default::default()
    };
    not_found(tools.recorded(within("b", request)).await, "recorded");
    let start = pb::RecordResultStart {
        conversation_id: id(),
        result: Some(pb::ToolResultRecorded {
            call_id: "call_2".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let item = pb::record_result_request::Item::Start(start);
    let items = futures::stream::iter([pb::RecordResultRequest { item: Some(item) }]);
    not_found(tools.record_result(within("b", items)).await, "record");
    let request = pb::SearchRequest {
        query: "weather".into(),
        conversation_id: id(),
        ..Default::default()
    };
    not_found(server.search().search(within("b", request)).await, "search");
    assert_eq!(server.read_all(&conversation_id).await, before);
    server.stop().done().await;
}

// Counts, lists, searches and subscriptions of one namespace must contain nothing of another.
// Idempotency keys belong to one namespace.
#[tokio::test(flavor = "multi_thread")]
async fn counts_lists_and_searches_stay_in_one_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let mut request = batch("", opening());
    request.idempotency_key = "same".into();
    let first = server.append(request.clone()).await;
    let answer = server.events().append(within("b", request)).await.unwrap();
    let second = answer.into_inner();
    assert!(!second.repeated_key);
    let ours = &first.events[0].conversation_id;
    let theirs = second.events[0].conversation_id.clone();
    assert_ne!(*ours, theirs);

    let log = pb::read_request::Source::Log(pb::LogSource {});
    let read = pb::ReadRequest {
        source: Some(log),
        ..Default::default()
    };
    let mut stream = server
        .events()
        .read(within("b", read))
        .await
        .unwrap()
        .into_inner();
    let mut count = 0;
    while let Some(response) = stream.message().await.unwrap() {
        assert!(response.events.iter().all(|e| e.conversation_id == theirs));
        count += response.events.len();
    }
    assert_eq!(count, 5);
    let request = within("b", pb::ListConversationsRequest::default());
    let listed = server
        .conversations()
        .list(request)
        .await
        .unwrap()
        .into_inner();
    let listed: Vec<_> = listed
        .conversations
        .iter()
        .map(|c| &c.conversation_id)
        .collect();
    assert_eq!(listed, [&theirs]);
    let request = within("b", pb::PendingRequest::default());
    let pending = server
        .tools()
        .pending(request)
        .await
        .unwrap()
        .into_inner()
        .calls;
    assert!(pending.len() == 1 && pending[0].conversation_id == theirs);
    let stats = server
        .admin()
        .stats(within("b", pb::StatsRequest {}))
        .await
        .unwrap();
    let stats = stats.into_inner();
    assert_eq!((stats.conversations, stats.events), (1, 5));
    let search = pb::SearchRequest {
        query: "weather".into(),
        at_least: second.events[4].position,
        ..Default::default()
    };
    let found = server
        .search()
        .search(within("b", search))
        .await
        .unwrap()
        .into_inner();
    assert!(!found.hits.is_empty());
    assert!(found.hits.iter().all(|hit| hit.conversation_id == theirs));
    server.stop().done().await;
}

// A UUID that another tenant uses must be usable in each namespace: a refusal would block it and
// reveal that it is in use. The other tenant's conversation must not change.
#[tokio::test(flavor = "multi_thread")]
async fn id_used_in_another_namespace_can_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let events = async |namespace: &str| {
        let request = pb::ReadRequest {
            source: Some(conversation_source(&id)),
            ..Default::default()
        };
        let pages = server.events().read(within(namespace, request)).await;
        let mut pages = pages.unwrap().into_inner();
        let mut count = 0;
        while let Some(page) = pages.message().await.unwrap() {
            count += page.events.len();
        }
        count
    };
    let theirs = events("default").await;
    let opened = within("b", batch(&id, opening()));
    server.events().append(opened).await.unwrap();
    assert_eq!(events("b").await, opening().len());
    assert_eq!(events("default").await, theirs);
    server.stop().done().await;
}

// The size of the whole log reveals whether a text is already stored for another tenant, because it
// takes no space a second time. So `Stats` shows sizes of the store only to admins of the store.
#[tokio::test(flavor = "multi_thread")]
async fn store_sizes_are_shown_only_to_store_admins() {
    use super::keys::{guarded, key, keyed};
    let dir = tempfile::tempdir().unwrap();
    let reader = key(dir.path(), "reader", &["admin:default", "reader:other"]);
    let admin = key(dir.path(), "operator", &["admin:*"]);
    let server = guarded(dir.path()).await;
    let created = batch(&ConversationId::generate().to_string(), [created("sizes")]);
    let mut events = server.events();
    events.append(keyed(&admin, created)).await.unwrap();
    let stats = async |key: &str| {
        let asked = server.admin().stats(keyed(key, pb::StatsRequest {})).await;
        asked.unwrap().into_inner()
    };
    let told = stats(&admin).await;
    assert!(told.log_bytes > 0 && told.views_bytes > 0 && told.log_segments > 0);
    // Pages of the index look like a leak of memory, but the system can take them back.
    assert!(told.mapped_bytes > Some(0) && told.resident_bytes > told.mapped_bytes);
    let told = stats(&reader).await;
    assert_eq!((told.conversations, told.events), (1, 1));
    assert_eq!((told.resident_bytes, told.mapped_bytes), (None, None));
    assert_eq!(
        [
            told.log_bytes,
            told.views_bytes,
            told.index_bytes,
            told.log_segments,
            told.indexed_documents
        ],
        [0; 5]
    );
    server.stop().done().await;
}
