//! `around`: returns the events before and after an event.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{ToolAnswer, given};
use crate::{
    bounds::{AROUND, AROUND_CHARS, AROUND_CHARS_MAX, AROUND_LINES, AROUND_MAX, TITLE_CHARS},
    failure::Failure,
    place,
    quote::{called, named, quote_within},
};
use treering_client::{Connection, names, read as reading};
use treering_domain::EventKind;
use treering_present::text::{Zone, describe_event, first_line, is_beside_talk, left_out};
use treering_proto::pb;

/// Number of events to read for each one returned, because many are not part of the talk.
const READ_FOR_EACH: u64 = 8;

/// Input of `around`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AroundInput {
    /// CONVERSATION#REVISION, as `search` prints it
    #[serde(alias = "reference")]
    address: String,
    /// Number of events before it [3, at most 20]
    before: Option<u32>,
    /// Number of events after it [3, at most 20]
    after: Option<u32>,
    /// Maximum characters per event [400, at most 4000]
    chars: Option<u32>,
    /// The branch, if not the one that has the event
    branch: Option<String>,
}

/// Returns the events, oldest first.
///
/// # Errors
/// Those of the store.
pub(crate) async fn call(input: &AroundInput, store: &Connection) -> Result<ToolAnswer, Failure> {
    let place = place::event(store, &input.address, given(input.branch.as_deref())).await?;
    let chars = input
        .chars
        .unwrap_or(AROUND_CHARS)
        .clamp(40, AROUND_CHARS_MAX) as usize;
    let before = u64::from(input.before.unwrap_or(AROUND).min(AROUND_MAX));
    let after = u64::from(input.after.unwrap_or(AROUND).min(AROUND_MAX));
    let branch = || reading::of_branch(&place.id, &place.branch);
    let mut found = Talk::default();
    if before > 0 && place.revision > 1 {
        let request = pb::ReadRequest {
            from_revision: place.revision - 1,
            backward: true,
            limit: before * READ_FOR_EACH,
            ..branch()
        };
        found.read(store, request, before, chars).await?;
    }
    let mut shown = std::mem::take(&mut found.texts);
    shown.reverse();
    let itself = pb::ReadRequest {
        from_revision: place.revision,
        to_revision: place.revision,
        ..branch()
    };
    let Some(event) = names::first(store, itself).await? else {
        return Err(Failure::new(
            format!("no event {}", place.address()),
            "the tool `branches` shows the head of each branch",
        ));
    };
    shown.push(format!("here: {}", event_text(&event, chars)));
    if after > 0 {
        let request = pb::ReadRequest {
            from_revision: place.revision + 1,
            limit: after * READ_FOR_EACH,
            ..branch()
        };
        found.read(store, request, after, chars).await?;
        shown.append(&mut found.texts);
    }
    let left = left_out(found.left_out, "`read` returns them by their numbers.\n");
    let called_as = &place.called;
    let text = format!(
        "Events of {called_as}, oldest first, shortened to {chars} characters each. `read` \
         {called_as}#REVISION returns one in full; `before` and `after` return more events.\n\n{}{}",
        shown.concat(),
        left.unwrap_or_default()
    );
    Ok(ToolAnswer::text(text))
}

/// Events of the talk around an event.
#[derive(Default)]
struct Talk {
    texts: Vec<String>,
    /// Number of events between them that are not part of the talk.
    left_out: u64,
}

impl Talk {
    /// Reads at most `most` events of the talk.
    async fn read(
        &mut self,
        store: &Connection,
        request: pb::ReadRequest,
        most: u64,
        chars: usize,
    ) -> Result<(), Failure> {
        let most = most as usize;
        let mut events = reading::start(store, request).await?;
        while let Some(batch) = events.message().await? {
            for event in &batch.events {
                if self.texts.len() == most {
                    return Ok(());
                }
                match is_beside_talk(event) {
                    true => self.left_out += 1,
                    false => self.texts.push(event_text(event, chars)),
                }
            }
        }
        Ok(())
    }
}

/// Formats events. They are read in batches, and each batch is dropped before the next is read.
///
/// # Errors
/// Those of the store.
pub(crate) async fn texts(
    store: &Connection,
    request: pb::ReadRequest,
    chars: usize,
) -> Result<Vec<String>, Failure> {
    let mut texts = Vec::new();
    let mut events = reading::start(store, request).await?;
    while let Some(batch) = events.message().await? {
        texts.extend(batch.events.iter().map(|event| event_text(event, chars)));
    }
    Ok(texts)
}

/// Returns the title of an event. Some titles contain recorded text.
fn title(kind: i32, title: &str) -> String {
    let is_recorded = [
        EventKind::ToolCallRequested,
        EventKind::BranchForked,
        EventKind::BranchRenamed,
        EventKind::ContextSet,
        EventKind::ContextRemoved,
        EventKind::Custom,
    ];
    match is_recorded
        .iter()
        .any(|known| i32::from(known.number()) == kind)
    {
        true => called(title),
        false => first_line(title, TITLE_CHARS),
    }
}

/// Formats one event: a line of ours, then the recorded text.
#[must_use]
pub(crate) fn event_text(event: &pb::Event, chars: usize) -> String {
    let said = describe_event(event);
    let time = event.occurred_at.as_ref().or(event.recorded_at.as_ref());
    let mut text = format!(
        "#{}  {}  {}",
        event.revision,
        Zone::Utc.day_clock(time),
        title(event.kind, &said.title)
    );
    if !said.note.is_empty() {
        text.push_str(&format!("  {}", named(&said.note, TITLE_CHARS)));
    }
    text.push('\n');
    if !said.content.is_empty() {
        text.push_str(&quote_within(&said.content, AROUND_LINES, chars));
    }
    text
}
