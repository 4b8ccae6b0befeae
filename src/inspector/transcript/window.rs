//! Reads a part of a branch's history for a page. Of a large result, only the beginning is read.

use std::collections::HashMap;

use futures::{StreamExt, stream};

use crate::{
    bounds::{EVENTS, EVENTS_BEFORE, HEAD_BYTES, HEADS_AT_ONCE},
    failure::PageFailure,
    recorded_text::{Piece, TextPart, TextPlace},
    request_context::PageQuery,
};
use treering_client::Connection;
use treering_proto::pb;

/// Identifies a history.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// The conversation.
    pub(crate) conversation: String,
    /// The branch.
    pub(crate) branch: String,
    /// The revision as of which it is read; 0: the newest.
    pub(crate) at: u64,
}

/// Selects a part of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WindowPlace {
    /// From the beginning.
    Start,
    /// Up to the end.
    End,
    /// From this event on.
    From(EventLocation),
    /// Up to, but not including, this event.
    Before(EventLocation),
    /// This event and the events around it.
    Around(EventLocation),
}

/// The location of an event in a history. An inherited event belongs to another conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventLocation {
    /// Its revision.
    pub(crate) revision: u64,
    /// Its conversation; empty if it is the history's.
    pub(crate) of: String,
}

impl EventLocation {
    /// Returns the form used in addresses.
    #[must_use]
    pub(crate) fn text(&self) -> String {
        match self.of.is_empty() {
            true => self.revision.to_string(),
            false => format!("{}@{}", self.revision, self.of),
        }
    }

    fn parse(name: &str, text: &str) -> Result<Self, PageFailure> {
        let (revision, of) = text.split_once('@').unwrap_or((text, ""));
        let revision = revision.trim_start_matches('#').parse().map_err(|_| {
            PageFailure::asked(
                format!("`{name}` is not an event"),
                format!("use its number, for example `{name}=12`"),
            )
        })?;
        Ok(Self {
            revision,
            of: of.to_owned(),
        })
    }
}

impl WindowPlace {
    /// Returns true when this selects the events around this revision.
    #[must_use]
    pub(crate) fn is_at(&self, revision: u64) -> bool {
        matches!(self, Self::Around(spot) if spot.revision == revision)
    }

    /// Parses the query of an address.
    ///
    /// # Errors
    /// When an event location is malformed.
    pub(crate) fn of(asked: &PageQuery) -> Result<Self, PageFailure> {
        let spot = |name| {
            asked
                .text(name)
                .map(|text| EventLocation::parse(name, text))
                .transpose()
        };
        if let Some(spot) = spot("around")? {
            return Ok(Self::Around(spot));
        }
        if let Some(spot) = spot("from")? {
            return Ok(Self::From(spot));
        }
        if let Some(spot) = spot("before")? {
            return Ok(Self::Before(spot));
        }
        // A view as of a past revision (`at=`) shows the last events up to it.
        let is_moment = asked.text("at").is_some() && !asked.is_set("start");
        Ok(match asked.is_set("end") || is_moment {
            true => Self::End,
            false => Self::Start,
        })
    }
}

/// A part of a history.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// The events, with their bodies except those in `heads`.
    pub(crate) events: Vec<pb::Event>,
    /// Beginnings of events that are too large, by conversation and revision.
    pub(crate) heads: HashMap<(String, u64), Piece>,
    /// Whether there are events before it.
    pub(crate) has_before: bool,
    /// Whether there are events after it.
    pub(crate) has_after: bool,
}

impl Window {
    /// Reads a window from the store.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) async fn read(
        store: &Connection,
        history: &History,
        place: &WindowPlace,
    ) -> Result<Self, PageFailure> {
        let headers = match place {
            WindowPlace::Start => forward(store, history, &EventLocation::default()).await?,
            WindowPlace::From(spot) => forward(store, history, spot).await?,
            WindowPlace::End => backward(store, history, &EventLocation::default(), EVENTS).await?,
            WindowPlace::Before(spot) => before(store, history, spot).await?,
            WindowPlace::Around(spot) => {
                let lead = backward(store, history, spot, EVENTS_BEFORE).await?;
                let first = lead.events.first().map(|event| history.spot(event));
                let mut window = forward(store, history, &first.unwrap_or_default()).await?;
                window.has_before = lead.has_before;
                window
            }
        };
        headers.with_bodies(store).await
    }

    async fn with_bodies(mut self, store: &Connection) -> Result<Self, PageFailure> {
        let is_result = |event: &pb::Event| event.kind() == pb::EventKind::ToolResultRecorded;
        // The store returns bodies up to a size limit, so messages are requested before results.
        let mut order: Vec<usize> = (0..self.events.len()).collect();
        order.sort_by_key(|index| is_result(&self.events[*index]));
        let names = order.iter().map(|index| name_of(&self.events[*index]));
        let request = pb::GetManyRequest {
            events: names.collect(),
            headers_only: false,
        };
        let got = store.events().get_many(request).await?.into_inner().events;
        let mut left_out = Vec::new();
        for (index, got) in order.into_iter().zip(got) {
            let Some(event) = got.event else { continue };
            if got.body_left_out {
                left_out.push(place_of(&event));
            }
            // Keeps the branch as the first read returned it.
            let branch = std::mem::take(&mut self.events[index].branch);
            self.events[index] = pb::Event { branch, ..event };
        }
        let heads = stream::iter(left_out).map(|place| async move {
            let head = Piece::read(store, &place, TextPart::Bytes { first: 0 }, HEAD_BYTES).await;
            ((place.conversation, place.revision), head)
        });
        let mut heads = heads.buffer_unordered(HEADS_AT_ONCE);
        while let Some((place, head)) = heads.next().await {
            // An event without text is shown with its header only.
            if let Ok(head) = head {
                self.heads.insert(place, head);
            }
        }
        drop(heads);
        Ok(self)
    }
}

fn name_of(event: &pb::Event) -> pb::EventName {
    pb::EventName {
        by: Some(pb::event_name::By::Place(pb::EventPlace {
            conversation_id: event.conversation_id.clone(),
            revision: event.revision,
        })),
    }
}

fn place_of(event: &pb::Event) -> TextPlace {
    TextPlace {
        conversation: event.conversation_id.clone(),
        branch: event.branch.clone(),
        revision: event.revision,
    }
}

impl History {
    /// Returns the location of an event.
    #[must_use]
    pub(crate) fn spot(&self, event: &pb::Event) -> EventLocation {
        let is_own = event.conversation_id == self.conversation;
        EventLocation {
            revision: event.revision,
            of: match is_own {
                true => String::new(),
                false => event.conversation_id.clone(),
            },
        }
    }

    fn request(&self, from: &EventLocation, limit: u64, is_backward: bool) -> pb::ReadRequest {
        pb::ReadRequest {
            source: Some(pb::read_request::Source::Branch(pb::BranchSource {
                conversation_id: self.conversation.clone(),
                branch: self.branch.clone(),
            })),
            from_revision: match (from.revision, is_backward) {
                (0, true) => self.at,
                (revision, _) => revision,
            },
            from_conversation: from.of.clone(),
            to_revision: if is_backward { 0 } else { self.at },
            limit,
            backward: is_backward,
            headers_only: true,
            ..Default::default()
        }
    }
}

async fn headers(
    store: &Connection,
    request: pb::ReadRequest,
) -> Result<Vec<pb::Event>, PageFailure> {
    let mut answers = store.events().read(request).await?.into_inner();
    let mut events = Vec::new();
    while let Some(answer) = answers.next().await {
        events.extend(answer?.events);
    }
    Ok(events)
}

/// Reads from an event on. Reads one event more than a page shows, to know whether more follow.
async fn forward(
    store: &Connection,
    history: &History,
    from: &EventLocation,
) -> Result<Window, PageFailure> {
    let request = history.request(from, EVENTS + 1, false);
    let mut events = headers(store, request).await?;
    let has_after = events.len() as u64 > EVENTS;
    events.truncate(usize::try_from(EVENTS).unwrap_or(usize::MAX));
    Ok(Window {
        has_before: from.revision > 1 || !from.of.is_empty(),
        has_after,
        events,
        ..Window::default()
    })
}

/// Reads up to and including an event; returns the oldest first.
async fn backward(
    store: &Connection,
    history: &History,
    to: &EventLocation,
    limit: u64,
) -> Result<Window, PageFailure> {
    let request = history.request(to, limit + 1, true);
    let mut events = headers(store, request).await?;
    let has_before = events.len() as u64 > limit;
    events.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    events.reverse();
    Ok(Window {
        has_before,
        has_after: false,
        events,
        ..Window::default()
    })
}

/// Reads up to, but not including, an event.
async fn before(
    store: &Connection,
    history: &History,
    to: &EventLocation,
) -> Result<Window, PageFailure> {
    let mut window = backward(store, history, to, EVENTS + 1).await?;
    let last = window.events.last().map(|event| history.spot(event));
    if last.as_ref() == Some(to) {
        window.events.pop();
    } else if window.events.len() as u64 > EVENTS {
        window.events.remove(0);
        window.has_before = true;
    }
    window.has_after = true;
    Ok(window)
}

#[cfg(test)]
mod tests {
    use super::*;

    // A link to an inherited event must keep the conversation of the event.
    #[test]
    fn transcript_positions_are_parsed() {
        let place = |query: &str| WindowPlace::of(&PageQuery::of(query));
        let spot = |revision, of: &str| EventLocation {
            revision,
            of: of.to_owned(),
        };
        assert_eq!(place("").unwrap(), WindowPlace::Start);
        assert_eq!(place("end=1").unwrap(), WindowPlace::End);
        assert_eq!(place("at=7").unwrap(), WindowPlace::End);
        assert_eq!(place("at=7&start=1").unwrap(), WindowPlace::Start);
        assert_eq!(place("from=12").unwrap(), WindowPlace::From(spot(12, "")));
        let inherited = spot(7, "0198");
        let query = format!("before={}", inherited.text());
        assert_eq!(place(&query).unwrap(), WindowPlace::Before(inherited));
        assert_eq!(
            place("around=%235&from=1").unwrap(),
            WindowPlace::Around(spot(5, ""))
        );
        assert!(place("from=x").is_err());
    }
}
