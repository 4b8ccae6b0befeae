//! Where a conversation can no longer be read.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::id::{Position, Revision};

/// Longest text on what is wrong, in bytes. It is in the views, once for each
/// damaged conversation.
pub const DAMAGE_TEXT_BYTES_MAX: usize = 256;

/// What is the matter with the first event that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DamageKind {
    /// It is there, and its body is not what was written.
    Unreadable,
    /// It is not there: a part of the log cannot be read.
    Missing,
    /// It does not follow from the event before it.
    Broken,
    /// It builds on another conversation's event that cannot be served.
    Inherited,
}

/// A conversation's damage: from one revision on, nothing of it can be trusted.
/// What is before is whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// What is the matter.
    pub kind: DamageKind,
    /// The first revision that cannot be served. 1: nothing of the conversation can.
    pub revision: Revision,
    /// Where the log is damaged.
    pub position: Position,
    /// What was found there, without any payload.
    pub what: String,
}

impl Damage {
    /// A mark, its text cut at the bound.
    #[must_use]
    pub fn new(kind: DamageKind, revision: Revision, position: Position, what: &str) -> Self {
        let fits = |end: &usize| what.is_char_boundary(*end);
        let end = (0..=what.len().min(DAMAGE_TEXT_BYTES_MAX)).rev().find(fits);
        Self {
            kind,
            revision,
            position,
            what: what[..end.unwrap_or_default()].to_owned(),
        }
    }

    /// The last revision that is whole.
    #[must_use]
    pub fn sound_to(&self) -> Revision {
        Revision(self.revision.0.saturating_sub(1))
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            revision,
            position,
            what,
            ..
        } = self;
        write!(
            f,
            "damaged from revision {revision} on (position {position}: {what})"
        )
    }
}
