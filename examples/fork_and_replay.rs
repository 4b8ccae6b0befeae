//! Forks a conversation before an answer, appends another answer that uses the recorded tool result
//! instead of running the tool, and prints both branches.
//!
//! ```text
//! cargo run --example fork_and_replay
//! ```

use std::{error::Error, fs};

use treering::{domain::*, engine::*, proto::body};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::in_memory(Limits::default()).await?;
    let namespace = Namespace::default();
    let id = ConversationId::generate();

    // The agent reads a file: the tool really runs, and its complete result is stored.
    let call = body::tool_call("call_1", "read_file", r#"{"path": "Cargo.toml"}"#)?;
    let arguments = call.arguments.clone();
    let manifest = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))?;
    let events = vec![
        EventBody::ConversationCreated(ConversationCreated::default()),
        message(Role::User, "What does this project depend on?"),
        EventBody::ToolCallRequested(call),
        EventBody::ToolResultRecorded(ToolResultRecorded::text("call_1", manifest)),
        message(Role::Assistant, "On tantivy and redb, above all."),
    ];
    append(&engine, id, None, events).await?;

    // A branch is a parent and a revision: revisions 1 to 4 are shared, not copied.
    let address = BranchAddress::active(namespace.clone(), id);
    let forked = engine
        .fork(ForkCommand {
            address: address.clone(),
            at: Some(Revision(4)),
            name: "longer".into(),
            system_prompt: "Answer at length.".into(),
            into: None,
            activate: false,
            idempotency_key: None,
            actor: "example".into(),
        })
        .await?;
    let longer = forked.branch.name.clone();

    // On the new branch the tool need not run, since its result is recorded.
    let recorded = engine
        .recorded(&address.on(longer.clone()), "read_file", &arguments, 0)
        .await?;
    let (_, result) = recorded.ok_or("the result was recorded before the fork")?;
    let crates = result
        .text
        .lines()
        .filter(|line| line.contains("optional = true"));
    let answer = format!("{} of its crates are optional.", crates.count());
    append(
        &engine,
        id,
        Some(&longer),
        vec![message(Role::Assistant, &answer)],
    )
    .await?;

    for branch in [BranchName::default(), longer] {
        println!("{branch}:");
        let source = EventSource::Branch {
            conversation: id,
            branch: Some(branch),
        };
        for named in engine
            .read_all(ReadQuery::all(namespace.clone(), source))
            .await?
        {
            println!("  {}", line(&named)?);
        }
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

/// Formats an event as one line.
fn line(named: &NamedEvent) -> Result<String, Box<dyn Error>> {
    let header = &named.event.header;
    let kind = header.kind().ok_or("an event of a newer version")?;
    let what = match body::decode(kind, &named.event.body)? {
        EventBody::MessageAppended(message) => {
            let text: String = message.parts.iter().filter_map(ContentPart::text).collect();
            format!("{}: {text}", message.role.as_str())
        }
        EventBody::ToolCallRequested(call) => {
            format!("{} {}", call.tool, call.arguments.as_str())
        }
        EventBody::ToolResultRecorded(result) => {
            let text = result.parts.iter().filter_map(ContentPart::text);
            format!("  gave {} bytes", text.map(str::len).sum::<usize>())
        }
        _ => kind.to_string(),
    };
    Ok(format!("{:>2} {what}", header.revision))
}
