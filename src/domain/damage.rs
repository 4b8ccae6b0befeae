//! Damage: where a conversation can no longer be read.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::id::{Position, Revision};

/// Maximum length of a damage description, in bytes. The projections hold one for each damaged
/// conversation.
pub(crate) const DAMAGE_TEXT_BYTES_MAX: usize = 256;

/// The fault of the first event that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DamageKind {
    /// The event exists, but its body is not what was written.
    Unreadable,
    /// The event is missing, because a part of the log cannot be read.
    Missing,
    /// The event does not continue the chain of the event before it.
    Broken,
    /// The event builds on an event of another conversation that cannot be served.
    Inherited,
}

/// The damage of a conversation: no event from one revision on can be trusted. All earlier events
/// are intact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// What is wrong.
    pub kind: DamageKind,
    /// The first revision that cannot be served; 1 if no event can.
    pub revision: Revision,
    /// The log position of the damage.
    pub position: Position,
    /// A description of the fault, without any payload.
    pub what: String,
}

impl Damage {
    /// Creates a damage mark; the description is truncated to `DAMAGE_TEXT_BYTES_MAX`.
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

    /// Returns the last intact revision.
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
