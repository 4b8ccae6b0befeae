//! Provider fields beside texts are returned over the wire, and context values come with the state.

use prost::Message;
use serde_json::{Value, json};
use treering::{
    domain::*,
    proto::{envelope, pb},
};

use super::harness::*;

/// Returns a call as a client sends it.
fn asked(call: &pb::ToolCallRequested) -> pb::NewEvent {
    let kind = EventKind::ToolCallRequested;
    pb::NewEvent {
        body: Some(envelope::new_arm(kind, call.encode_to_vec().into())),
        ..Default::default()
    }
}

/// Returns the calls of a conversation, as they are read.
async fn calls(server: &TestServer, id: &str) -> Vec<pb::ToolCallRequested> {
    let events = server.read_all(id).await;
    let call = |event: pb::Event| match event.body {
        Some(pb::event::Body::ToolCallRequested(call)) => {
            Some(pb::ToolCallRequested::decode(call).unwrap())
        }
        _ => None,
    };
    events.into_iter().filter_map(call).collect()
}

async fn built(server: &TestServer, id: &str, provider: pb::Provider, model: &str) -> Value {
    let request = pb::BuildRequest {
        conversation_id: id.into(),
        provider: provider.into(),
        model: model.into(),
        ..Default::default()
    };
    let answer = server.contexts().build(request).await.unwrap().into_inner();
    serde_json::from_slice(&answer.request).unwrap()
}

// A model may write arguments that are not JSON. They are recorded unchanged and marked, found,
// decided for exactly these bytes, and sent to every provider.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_json_arguments_are_recorded_and_marked() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.append(batch("", [created("odd")])).await.events[0]
        .conversation_id
        .clone();
    server.append(batch(&id, [message(Role::User, "go")])).await;
    let texts = ["{\"a\": 1", "", "rm -rf build"];
    for (index, text) in texts.iter().enumerate() {
        let call_id = format!("call_{index}");
        let call = pb::ToolCallRequested {
            call_id: call_id.clone(),
            tool: "shell".into(),
            arguments: text.as_bytes().to_vec().into(),
            approval: pb::ApprovalRequirement::Pending.into(),
            ..Default::default()
        };
        let mut request = batch(&id, []);
        request.events.push(asked(&call));
        request.idempotency_key = call_id.clone();
        server.append(request.clone()).await;
        assert!(server.append(request).await.repeated_key);
        let pending = pb::PendingRequest {
            conversation_id: id.clone(),
            ..Default::default()
        };
        let pending = server.tools().pending(pending).await.unwrap().into_inner();
        let waits = &pending.calls[0];
        assert_eq!(waits.arguments, text.as_bytes());
        assert!(waits.arguments_not_json);
        let hash = blake3::hash(text.as_bytes());
        assert_eq!(waits.arguments_hash, hash.as_bytes()[..]);
        let approve = decision(&call_id, text, Decision::Approved);
        let answered = result(&call_id, &format!("result {index}"));
        server.append(batch(&id, [approve, answered])).await;
    }
    let read = calls(&server, &id).await;
    assert_eq!(read.len(), texts.len());
    for (call, text) in read.iter().zip(texts) {
        assert_eq!(call.arguments, text.as_bytes());
        assert!(call.arguments_not_json);
    }
    let recorded = pb::RecordedRequest {
        conversation_id: id.clone(),
        tool: "shell".into(),
        arguments: "rm -rf build".into(),
        ..Default::default()
    };
    let recorded = server
        .tools()
        .recorded(recorded)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(recorded.call.unwrap().call_id, "call_2");
    let chat = built(&server, &id, pb::Provider::OpenaiChat, "gpt-4o").await;
    let told = chat["messages"].to_string();
    assert!(told.contains(r#""arguments":"{\"a\": 1""#), "{told}");
    let own = built(&server, &id, pb::Provider::Anthropic, "claude-sonnet-4-5").await;
    let told = own["messages"].to_string();
    for object in [
        json!({"invalid_arguments": "{\"a\": 1"}),
        json!({"invalid_arguments": "rm -rf build"}),
        json!({}),
    ] {
        assert!(told.contains(&format!("\"input\":{object}")), "{told}");
    }
    server.stop().done().await;
}

// The ids that OpenAI gave to the items of an answer must survive the store: the next request names
// the items by them.
#[tokio::test(flavor = "multi_thread")]
async fn openai_item_ids_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let call = pb::ToolCallRequested {
        call_id: "call_1".into(),
        tool: "look".into(),
        arguments: "{}".into(),
        item_id: "fc_0a".into(),
        raw: Some(pb::RawMessage {
            origin: "openai-responses".into(),
            encoding: pb::RawEncoding::Rest.into(),
            data: r#"{"status":"completed"}"#.into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let thought = ContentPart::Reasoning(Reasoning {
        text: "hm".into(),
        signature: "gAAA".into(),
        provider: "openai".into(),
        model: "gpt-5".into(),
        id: "rs_0b".into(),
        ..Reasoning::default()
    });
    let said = EventBody::MessageAppended(MessageAppended {
        message_id: "msg_0c".into(),
        ..MessageAppended::text(Role::Assistant, "I look.")
    });
    let mut request = batch(
        "",
        [
            created("ids"),
            message(Role::User, "go"),
            EventBody::MessageAppended(MessageAppended::new(Role::Assistant, vec![thought])),
            said,
        ],
    );
    request.events.push(asked(&call));
    request.events.push(new_event(&result("call_1", "nothing")));
    let id = server.append(request).await.events[0]
        .conversation_id
        .clone();
    assert_eq!(calls(&server, &id).await, [call]);
    let body = built(&server, &id, pb::Provider::OpenaiResponses, "gpt-5").await;
    let ids: Vec<_> = body["input"].as_array().unwrap()[1..4]
        .iter()
        .map(|item| item["id"].clone())
        .collect();
    assert_eq!(ids, ["rs_0b", "msg_0c", "fc_0a"], "{body:#}");
    let chat = built(&server, &id, pb::Provider::OpenaiChat, "gpt-5").await;
    for id in ["rs_0b", "msg_0c", "fc_0a"] {
        assert!(!chat.to_string().contains(id), "{chat:#}");
    }
    server.stop().done().await;
}

// The state contains the context values of a branch if requested, as of any revision. Values that
// do not fit are named.
#[tokio::test(flavor = "multi_thread")]
async fn state_includes_context_values_if_requested() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let prompt = |content: &str| {
        EventBody::SystemPromptSet(PromptSet {
            id: String::new(),
            content: content.into(),
        })
    };
    let set = |key: &str, value: &str| {
        EventBody::ContextSet(ContextSet {
            key: key.into(),
            value: treering::proto::json::check(value.as_bytes()).unwrap(),
            provider: String::new(),
        })
    };
    let large = format!("\"{}\"", "x".repeat(4 << 20));
    let events = [
        created("values"),
        prompt("be kind"),
        set("cwd", "\"/\""),
        prompt("be brief"),
        set("large", &large),
    ];
    let id = server.append(batch("", events)).await.events[0]
        .conversation_id
        .clone();
    let state = |as_of_revision: u64, with_values: bool| {
        let request = pb::GetConversationRequest {
            conversation_id: id.clone(),
            as_of_revision,
            with_values,
            ..Default::default()
        };
        let mut conversations = server.conversations();
        async move {
            conversations
                .get(request)
                .await
                .unwrap()
                .into_inner()
                .values
        }
    };
    assert_eq!(state(0, false).await, None);
    let then = state(3, true).await.unwrap();
    assert_eq!(then.system_prompt.as_deref(), Some("be kind"));
    assert_eq!(then.left_out, [""; 0]);
    let now = state(0, true).await.unwrap();
    assert_eq!(now.system_prompt.as_deref(), Some("be brief"));
    assert_eq!((now.user_prompt, now.summary), (None, None));
    assert_eq!(now.active_context["cwd"], "\"/\"");
    assert_eq!(now.active_context.len(), 1);
    assert_eq!(now.left_out, ["active_context.large"]);

    let events = [created("after"), prompt("be quick")];
    server.append(batch("", events)).await;
    let list = |with_values: bool, page_token: String| {
        let request = pb::ListConversationsRequest {
            with_values,
            page_token,
            page_size: 1,
            ..Default::default()
        };
        let mut conversations = server.conversations();
        async move { conversations.list(request).await.unwrap().into_inner() }
    };
    let first = list(true, String::new()).await;
    assert_eq!(first.values[0].system_prompt.as_deref(), Some("be quick"));
    let second = list(true, first.next_page_token.clone()).await;
    assert_eq!(second.conversations[0].conversation_id, id);
    assert_eq!(second.values, [state(0, true).await.unwrap()]);
    let without = list(false, first.next_page_token).await;
    assert!(without.values.is_empty() && without.conversations == second.conversations);
    server.stop().done().await;
}
