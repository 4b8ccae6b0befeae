//! Compares what clients sent and what they were answered with the contents of the store.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use tonic::transport::Channel;
use treering::{
    domain::{ContentHash, EventKind},
    proto::{
        envelope,
        pb::{self, events_client::EventsClient},
    },
    server::bounds::MESSAGE_BYTES_MAX,
};

use crate::suite::grpc::harness::read;

/// A batch that was sent. Its tag is the actor of each of its events.
pub struct Sent {
    pub tag: String,
    pub request: pb::AppendRequest,
    /// The answer; `None` if the outcome is unknown.
    pub answer: Option<pb::AppendResponse>,
}

impl Sent {
    pub fn acknowledged(&self) -> Option<&[pb::Appended]> {
        self.answer.as_ref().map(|answer| answer.events.as_slice())
    }
}

/// An event as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRow {
    pub id: String,
    pub conversation: String,
    pub branch: u64,
    pub revision: u64,
    tag: String,
    content: (EventKind, ContentHash),
}

/// The expected contents of the store.
#[derive(Default)]
pub struct Ledger {
    /// The events that earlier checks found, by offset, from 1. They must stay.
    kept: Vec<StoredRow>,
    heads: HashMap<String, u64>,
    /// Batches sent since the last check.
    sent: HashMap<String, Sent>,
    /// The first offset of every stored batch.
    present: HashMap<String, usize>,
    acknowledged: u64,
    survived_unacknowledged: u64,
    lost_unacknowledged: u64,
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} events; batches: {} acknowledged, {} stored and {} not stored without an answer",
            self.kept.len(),
            self.acknowledged,
            self.survived_unacknowledged,
            self.lost_unacknowledged,
        )
    }
}

impl Ledger {
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Adds the batches that a client sent. A batch may be sent again with its key.
    pub fn expect(&mut self, sent: Vec<Sent>) {
        for sent in sent {
            match self.present.get(&sent.tag) {
                Some(first) => self.expect_repeated(*first, &sent),
                None => {
                    self.sent.insert(sent.tag.clone(), sent);
                }
            }
        }
    }

    /// Checks the answer to a batch that was already stored: it must name the stored events.
    fn expect_repeated(&self, first: usize, sent: &Sent) {
        let Some(answer) = &sent.answer else { return };
        assert!(answer.repeated_key, "{} was already stored", sent.tag);
        for (appended, kept) in answer.events.iter().zip(&self.kept[first - 1..]) {
            assert_eq!(appended.event_id, kept.id, "{}", sent.tag);
            assert_eq!(appended.revision, kept.revision, "{}", sent.tag);
        }
    }

    /// Returns the events of a batch, if it is stored.
    pub fn place_of(&self, tag: &str) -> Option<&[StoredRow]> {
        let first = *self.present.get(tag)?;
        let events = &self.kept[first - 1..];
        let end = events.iter().position(|kept| kept.tag != tag);
        Some(&events[..end.unwrap_or(events.len())])
    }

    /// Reads the new events, or all, and compares. Returns the batches whose outcome was unknown.
    pub async fn check(&mut self, channel: &Channel, everything: bool) -> Vec<Sent> {
        let from = if everything { 1 } else { self.kept.len() + 1 };
        let request = pb::ReadRequest {
            source: Some(pb::read_request::Source::Log(pb::LogSource {})),
            from_offset: from as u64,
            ..Default::default()
        };
        let client = EventsClient::new(channel.clone());
        let client = client.max_decoding_message_size(MESSAGE_BYTES_MAX);
        let events = read(client, request).await.unwrap();
        let mut found = HashSet::new();
        for (offset, event) in (from..).zip(events) {
            assert_eq!(event.position.unwrap().offset, offset as u64);
            let kept = kept(&event);
            match self.kept.get(offset - 1) {
                Some(before) => assert_eq!(&kept, before, "offset {offset} changed"),
                None => self.take(kept, &mut found),
            }
        }
        self.settle()
    }

    /// Checks and adds the next event of the log.
    fn take(&mut self, kept: StoredRow, found: &mut HashSet<String>) {
        let head = self.heads.entry(kept.conversation.clone()).or_default();
        assert_eq!(kept.revision, *head + 1, "a gap in {}", kept.conversation);
        *head = kept.revision;
        let tag = kept.tag.clone();
        let goes_on = self.kept.last().is_some_and(|last| last.tag == tag);
        self.kept.push(kept);
        if !goes_on {
            assert!(found.insert(tag.clone()), "{tag} is stored twice or split");
            let before = self.present.insert(tag.clone(), self.kept.len());
            assert!(before.is_none(), "{tag} is stored twice");
            assert!(self.sent.contains_key(&tag), "nobody sent {tag}");
        }
    }

    /// Compares what was sent with what is stored.
    fn settle(&mut self) -> Vec<Sent> {
        let mut unknown = Vec::new();
        for (tag, sent) in std::mem::take(&mut self.sent) {
            let there = self.place_of(&tag);
            if let Some(there) = there {
                let bodies = sent.request.events.iter();
                let wanted: Vec<_> = bodies.map(|e| content(e.body.clone().unwrap())).collect();
                let have: Vec<_> = there.iter().map(|kept| kept.content).collect();
                assert_eq!(have, wanted, "{tag} is stored in part or changed");
            }
            let survived = there.is_some();
            match &sent.answer {
                Some(answer) => {
                    let there = there.unwrap_or_else(|| panic!("{tag} is lost"));
                    assert_eq!(answer.events.len(), there.len());
                    for (appended, kept) in answer.events.iter().zip(there) {
                        assert_eq!(appended.event_id, kept.id, "{tag}");
                        assert_eq!(appended.conversation_id, kept.conversation, "{tag}");
                        assert_eq!(appended.branch_id, kept.branch, "{tag}");
                        assert_eq!(appended.revision, kept.revision, "{tag}");
                    }
                    let offset = answer.events[0].position.unwrap().offset;
                    assert_eq!(self.present[&tag] as u64, offset, "{tag} is out of order");
                    self.acknowledged += 1;
                }
                None => {
                    self.survived_unacknowledged += u64::from(survived);
                    self.lost_unacknowledged += u64::from(!survived);
                    unknown.push(sent);
                }
            }
        }
        unknown
    }
}

fn kept(event: &pb::Event) -> StoredRow {
    let (kind, body) = envelope::arm_of_event(event.body.clone().unwrap());
    StoredRow {
        id: event.id.clone(),
        conversation: event.conversation_id.clone(),
        branch: event.branch_id,
        revision: event.revision,
        tag: event.actor.clone(),
        content: (kind, ContentHash(blake3::hash(&body).into())),
    }
}

fn content(body: pb::new_event::Body) -> (EventKind, ContentHash) {
    let (kind, body) = envelope::arm_of_new(body);
    (kind, ContentHash(blake3::hash(&body).into()))
}
