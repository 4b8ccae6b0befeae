//! Appends a conversation to a store in a folder, and reads it back.
//!
//! ```text
//! cargo run --example append_and_read
//! ```

use std::error::Error;

use treering::{domain::*, engine::*, proto::body};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let engine = Engine::open(OpenOptions::new(folder.path())).await?;
    let namespace = Namespace::default();
    let id = ConversationId::generate();

    // A batch is atomic: all of its events are accepted, or none. They are durable when the call
    // returns.
    let outcome = engine
        .append(AppendCommand::new(
            namespace.clone(),
            vec![
                created(id, "First steps"),
                message(id, Role::User, "Where is the port set?"),
                message(id, Role::Assistant, "In `serve.rs`."),
            ],
        ))
        .await?;
    let head = outcome.events[2].revision;
    println!("appended up to revision {head}");

    // A writer that states the head it has seen is refused if there are newer events.
    let mut late = AppendCommand::new(namespace.clone(), vec![message(id, Role::User, "And?")]);
    late.expectations = vec![Expectation {
        conversation: id,
        branch: None,
        expected: ExpectedRevision::Exact(Revision(2)),
    }];
    match engine.append(late).await {
        Err(refused) => println!("refused: {refused}"),
        Ok(_) => return Err("an append at an old revision was taken".into()),
    }

    // Stored bodies are protobuf; `proto::body` decodes them into typed events.
    let source = EventSource::Branch {
        conversation: id,
        branch: None,
    };
    for named in engine.read_all(ReadQuery::all(namespace, source)).await? {
        let header = named.event.header;
        let Some(kind) = header.kind() else {
            continue; // written by a newer version
        };
        match body::decode(kind, &named.event.body)? {
            EventBody::MessageAppended(message) => {
                let text: String = message.parts.iter().filter_map(ContentPart::text).collect();
                println!("{} {:<9} {text}", header.revision, message.role.as_str());
            }
            _ => println!("{} {kind}", header.revision),
        }
    }
    engine.close().await;
    Ok(())
}

fn created(id: ConversationId, title: &str) -> NewEvent {
    let created = ConversationCreated {
        title: title.into(),
        ..ConversationCreated::default()
    };
    NewEvent::new(id, EventBody::ConversationCreated(created))
}

fn message(id: ConversationId, role: Role, text: &str) -> NewEvent {
    let message = MessageAppended::text(role, text);
    NewEvent::new(id, EventBody::MessageAppended(message))
}
