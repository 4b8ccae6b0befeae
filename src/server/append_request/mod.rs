//! Converts append requests to commands in three steps: parse what needs no store, resolve names
//! to conversations, authorise each event for the caller.

mod parse;
mod resolve;

use super::{guard::Caller, status::Refusal};
use parse::ParsedAppend;
pub(super) use resolve::{chosen, new_conversation};
use treering_domain::AppendCommand;
use treering_engine::Engine;
use treering_proto::{body::EncodedBody, pb};

/// Converts an append request to a command.
///
/// # Errors
/// The first malformed field, a conversation that cannot be found, or the first event that the
/// caller may not append.
pub(super) async fn command(
    engine: &Engine,
    caller: &Caller,
    request: pb::AppendRequest,
) -> Result<AppendCommand<EncodedBody>, Refusal> {
    let parsed = ParsedAppend::parse(request, engine.limits().batch_events_max)?;
    let mut command = resolve::resolve(engine, &caller.namespace, parsed).await?;
    authorise(caller, &mut command)?;
    Ok(command)
}

/// Checks that the caller may append each event, and signs it with the caller's name.
fn authorise(caller: &Caller, command: &mut AppendCommand<EncodedBody>) -> Result<(), Refusal> {
    let created = command.create_if_missing.as_deref_mut();
    let mut events = command.events.iter_mut().chain(created);
    events.try_for_each(|event| caller.sign(event))
}
