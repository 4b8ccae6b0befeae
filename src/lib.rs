//! Treering: an event-sourced context storage engine for LLM agents.
//!
//! Everything that an agent does (messages, tool calls, approvals, results, summaries, forks) is
//! appended once, as an event, and never changes. Everything else is derived from the events: the
//! state of a branch at any moment, the next request for a provider, the search index. This page is
//! a tour of the library; its code compiles and runs as shown.
//!
//! # A tour
//!
//! **Open a store.** A store is a folder, which one process has open at a time. Acknowledged
//! events are on disk. ([`Engine::in_memory`](engine::Engine::in_memory) is for tests.)
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use treering::{proto::body, context::Provider, domain::*, engine::*};
//!
//! # let dir = tempfile::tempdir()?;
//! # let folder = dir.path();
//! let engine = Engine::open(OpenOptions::new(folder)).await?;
//! let namespace = Namespace::default(); // a tenant; it never sees another tenant's data
//! let id = ConversationId::generate();
//!
//! // **Append.** A batch is atomic: all of its events are accepted, or none. The first event
//! // of a conversation creates it; then the user says something.
//! let created = EventBody::ConversationCreated(ConversationCreated {
//!     title: "Dependencies".into(),
//!     ..ConversationCreated::default()
//! });
//! let question = MessageAppended::text(Role::User, "What does this project depend on?");
//! let batch = vec![
//!     NewEvent::new(id, created),
//!     NewEvent::new(id, EventBody::MessageAppended(question)),
//! ];
//! engine.append(AppendCommand::new(namespace.clone(), batch)).await?;
//!
//! // **A tool call and its result.** The call comes from the model; the whole result
//! // is kept, even if a request later shows only a part of it.
//! let call = body::tool_call("call_1", "read_file", r#"{"path": "Cargo.toml"}"#)?;
//! let result = ToolResultRecorded::text("call_1", "[dependencies]\nredb = \"4.5\"\n");
//! let answer = MessageAppended::text(Role::Assistant, "On redb.");
//! let batch = vec![
//!     NewEvent::new(id, EventBody::ToolCallRequested(call)),
//!     NewEvent::new(id, EventBody::ToolResultRecorded(result)),
//!     NewEvent::new(id, EventBody::MessageAppended(answer)),
//! ];
//! let appended = engine.append(AppendCommand::new(namespace.clone(), batch)).await?;
//! let last = appended.events.last().expect("three events were appended");
//! assert_eq!(last.revision, Revision(5)); // its place in the conversation: 1, 2, 3 …
//!
//! // Every append is validated: for example, a call has only one result.
//! let again = ToolResultRecorded::text("call_1", "something else");
//! let batch = vec![NewEvent::new(id, EventBody::ToolResultRecorded(again))];
//! let refused = engine.append(AppendCommand::new(namespace.clone(), batch)).await;
//! assert!(matches!(refused, Err(AppendError::Rejected(_))));
//!
//! // **Fork.** A branch is a parent and a revision, so this costs one event. The new
//! // branch shares everything up to the result, and gets another answer.
//! let main = BranchAddress::active(namespace.clone(), id);
//! let forked = engine
//!     .fork(ForkCommand {
//!         address: main.clone(),
//!         at: Some(Revision(4)),
//!         name: "longer".into(),
//!         system_prompt: "Answer at length.".into(),
//!         into: None,
//!         activate: false,
//!         idempotency_key: None,
//!         actor: "tour".into(),
//!     })
//!     .await?;
//! let longer = forked.branch.name.clone();
//! let answer = MessageAppended::text(Role::Assistant, "On redb, a store in one file.");
//! let event = NewEvent::new(id, EventBody::MessageAppended(answer)).on_branch(longer.clone());
//! engine.append(AppendCommand::new(namespace.clone(), vec![event])).await?;
//!
//! // **Build a request.** The body is ready to be sent: legal for its provider, within the
//! // budget, and starting with the same bytes as the previous request. The explanation says
//! // which event each item came from, and whether it was kept, shortened or dropped.
//! let built = engine
//!     .build(BuildQuery {
//!         model: Some("claude-sonnet-4-5".into()),
//!         policy: r#"{"budget_tokens": 4000}"#.into(),
//!         ..BuildQuery::new(main.on(longer), Provider::Anthropic)
//!     })
//!     .await?;
//! let body: serde_json::Value = serde_json::from_slice(&built.request)?;
//! assert_eq!(body["system"][0]["text"], "Answer at length.");
//! assert_eq!(body["messages"][1]["content"][0]["type"], "tool_use");
//! assert!(built.explanation.tokens < 4000);
//!
//! // **Search.** Results, messages and arguments are indexed in the background; `at_least`
//! // waits until the given append is indexed.
//! let found = engine
//!     .search(SearchRequest {
//!         at_least: Some(last.position),
//!         ..SearchRequest::new(namespace, "dependencies redb", 3)
//!     })
//!     .await?;
//! let hit = found.hits.iter().find(|hit| hit.found.tool == "read_file").expect("it was read");
//! assert_eq!((hit.found.conversation, hit.found.revision), (id, Revision(4)));
//!
//! engine.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Where to read on
//!
//! - [`engine::Engine`]: everything that can be done with a store;
//! - [`domain`]: the events, their rules and their terms;
//! - [`context`]: how a request is built, and for which providers;
//! - [`digest`]: digests, summaries and tool observations without a model;
//! - [`log`]: the log on disk, and the port for other backends;
//! - [`server`]: the same operations as gRPC services, for any language;
//! - [`access`]: API keys, and what they may do.
//!
//! `examples/` has complete programs; `docs/ARCHITECTURE.md` describes the modules in the order
//! in which data flows.
//!
//! # Features
//!
//! Each layer is a crate (`treering-engine`, `treering-log`, …); this one re-exports what an
//! embedding program needs. `server` and `digest` (digests and summaries without a model, tool
//! observations) are on by default; `import`, `summariser`, `backup` and `testkit` (the test suite
//! for log backends of other crates) are not. `treering-client` connects to a server from Rust;
//! `treering-cli` is the command line.

#[cfg(feature = "server")]
pub use treering_access as access;
#[cfg(feature = "backup")]
pub use treering_backup as backup;
pub use treering_context as context;
#[cfg(feature = "digest")]
pub use treering_digest as digest;
pub use treering_domain as domain;
pub use treering_engine as engine;
#[cfg(feature = "import")]
pub use treering_import as import;
pub use treering_log as log;
pub use treering_projections as projections;
pub use treering_proto as proto;
pub use treering_search as search;
#[cfg(feature = "server")]
pub use treering_server as server;
#[cfg(feature = "summariser")]
pub use treering_summariser as summariser;
