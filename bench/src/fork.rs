//! Measures forks. A branch is a parent and a revision, so the length of history must not matter.

use super::{
    Setup, failed,
    payload::created,
    rounds::{median, timed},
    row::{Row, Target, Unit},
    stores::{self, Filler},
};
use treering::{
    domain::{ConversationId, EventBody, MessageAppended, Namespace, NewEvent, Revision, Role},
    engine::{BranchAddress, Engine, ForkCommand},
};
use treering_client::error::ClientError;

/// Events in the short conversation.
const SHORT: u64 = 10;
/// Events in one append while the long conversation is filled.
const BATCH: u64 = 5_000;

/// Measures the rows of this group.
///
/// # Errors
/// When an append fails.
pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    let folder = setup.folder()?;
    let engine = stores::open(&folder.path().join("store")).await?;
    setup.doing("fork");
    let long = setup.or_quick(100_000, 20_000);
    let long_id = conversation(&engine, long).await?;
    let short_id = conversation(&engine, SHORT).await?;
    stores::indexed(&engine).await?;
    let (mut longs, mut shorts) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for round in 0..setup.or_quick(100, 30) {
        // Forks in the middle of the long conversation, each time at another revision.
        let place = long / 4 + round * 487 % (long / 2);
        longs[0].push(fork(&engine, long_id, Some(place)).await?);
        shorts[0].push(fork(&engine, short_id, Some(SHORT / 2)).await?);
        longs[1].push(fork(&engine, long_id, None).await?);
        shorts[1].push(fork(&engine, short_id, None).await?);
    }
    engine.close().await;
    let row = |id, place: &str, at: usize| {
        let (own, short) = (median(&longs[at]), median(&shorts[at]));
        let what = format!("fork of a {long}-event conversation, {place}");
        Row::new(id, what, own, Unit::Microseconds)
            .beside("of 10 events", short, own / short)
            .aim(Target::RatioAtMost(1.2))
            .note("one durable append by one caller; ratio of the medians")
    };
    Ok(vec![
        row("fork.middle", "in the middle", 0),
        row("fork.head", "at the head", 1),
    ])
}

/// Returns the microseconds of one fork.
async fn fork(
    engine: &Engine,
    conversation: ConversationId,
    at: Option<u64>,
) -> Result<f64, ClientError> {
    let command = ForkCommand {
        address: BranchAddress::active(Namespace::default(), conversation),
        at: at.map(Revision),
        name: format!("try-{}", treering::domain::EventId::generate().0.simple()),
        system_prompt: String::new(),
        into: None,
        activate: false,
        idempotency_key: None,
        actor: String::new(),
    };
    let (done, micros) = timed(engine.fork(command)).await;
    done.map_err(|error| failed("forking", error))?;
    Ok(micros)
}

/// Creates a conversation of questions and answers.
async fn conversation(engine: &Engine, events: u64) -> Result<ConversationId, ClientError> {
    let id = ConversationId::generate();
    let event = |revision: u64| match revision {
        1 => created(id),
        _ => {
            let role = if revision.is_multiple_of(2) {
                Role::User
            } else {
                Role::Assistant
            };
            let text = format!("This is what was said at place {revision}.");
            let message = MessageAppended::text(role, text);
            NewEvent::new(id, EventBody::MessageAppended(message))
        }
    };
    let mut filler = Filler::new(engine);
    let mut next = 1;
    while next <= events {
        let last = (next + BATCH - 1).min(events);
        filler.append((next..=last).map(event).collect()).await?;
        next = last + 1;
    }
    filler.settle().await?;
    Ok(id)
}
