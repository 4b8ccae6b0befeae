//! Builds requests: records a conversation, forks it, and builds a request from the fork for each
//! of two providers, with its explanation.
//!
//! ```text
//! cargo run --example build_a_request
//! ```

use std::error::Error;

use treering::{context::Provider, domain::*, engine::*, proto::body};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::in_memory(Limits::default()).await?;
    let namespace = Namespace::default();
    let id = ConversationId::generate();

    // A turn with a tool call. The complete result is stored.
    let config = Config {
        model_id: "gpt-4o".into(),
        ..Config::default()
    };
    let call = body::tool_call("call_1", "read_file", r#"{"path": "Cargo.toml"}"#)?;
    let manifest = include_str!("../Cargo.toml");
    let turn = vec![
        EventBody::ConversationCreated(ConversationCreated {
            config,
            ..ConversationCreated::default()
        }),
        message(Role::User, "What does this project depend on?"),
        EventBody::ToolCallRequested(call),
        EventBody::ToolResultRecorded(ToolResultRecorded::text("call_1", manifest)),
        message(Role::Assistant, "On redb and tantivy, above all."),
    ];
    append(&engine, id, None, turn).await?;

    // Context values are stored beside the history, not in it.
    let set = SetContext {
        namespace: namespace.clone(),
        scope: ContextScope::Conversation { id, branch: None },
        set: vec![ContextSet {
            key: "open_file".into(),
            value: treering::proto::json::check(br#"{"path": "src/lib.rs"}"#)?,
            provider: "workspace".into(),
        }],
        remove: Vec::new(),
        idempotency_key: None,
        actor: "workspace".into(),
    };
    engine.set_context(set).await?;

    // Fork here, with another system prompt.
    let forked = engine
        .fork(ForkCommand {
            address: BranchAddress::active(namespace.clone(), id),
            at: None,
            name: "brief".into(),
            system_prompt: "Answer in one sentence.".into(),
            into: None,
            activate: false,
            idempotency_key: None,
            actor: "example".into(),
        })
        .await?;
    let brief = forked.branch.name.clone();
    let question = message(Role::User, "And which of them could be left out?");
    append(&engine, id, Some(&brief), vec![question]).await?;

    for (provider, model) in [
        (Provider::OpenAiChat, "gpt-4o"),
        (Provider::Anthropic, "claude-sonnet-4-5"),
    ] {
        let built = engine
            .build(BuildQuery {
                model: Some(model.into()),
                policy: r#"{"budget_tokens": 4000}"#.into(),
                ..BuildQuery::new(
                    BranchAddress::active(namespace.clone(), id).on(brief.clone()),
                    provider,
                )
            })
            .await?;
        let told = &built.explanation;
        let estimate = if told.basis.estimate { "about " } else { "" };
        println!("{provider}: {estimate}{} tokens for {model}", told.tokens);
        for item in &told.items {
            println!("  {:>5}  {:?}  {}", item.tokens, item.fate, item.label);
        }
        let head = built.request.iter().take(160).copied().collect();
        println!("  {}…\n", String::from_utf8(head)?);
    }
    engine.close().await;
    Ok(())
}

fn message(role: Role, text: &str) -> EventBody {
    EventBody::MessageAppended(MessageAppended::text(role, text))
}

async fn append(
    engine: &Engine,
    id: ConversationId,
    branch: Option<&BranchName>,
    bodies: Vec<EventBody>,
) -> Result<AppendOutcome, AppendError> {
    let events = bodies.into_iter().map(|body| NewEvent {
        branch: branch.cloned(),
        ..NewEvent::new(id, body)
    });
    let command = AppendCommand::new(Namespace::default(), events.collect());
    engine.append(command).await
}
