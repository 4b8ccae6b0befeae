//! The window: what the branch's events since its last compaction offer for the
//! next request. [`fold()`] makes items of them.

mod calls;
mod fold;
mod maker;
#[cfg(any(test, feature = "testkit"))]
#[allow(missing_docs, clippy::missing_panics_doc, clippy::must_use_candidate)]
pub mod samples;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{called::CalledTools, cancellation::CancellationToken, heuristics::Heuristics};
use treering_domain::{
    BranchState, ConversationId, ConversationInfo, EventBody, EventRef, JsonText, Revision,
    TimestampMicros,
};

pub use fold::{Folded, fold};

/// An event of a window.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowEvent {
    /// Its place.
    pub at: EventRef,
    /// Its offset in the log.
    pub offset: u64,
    /// When it was recorded.
    pub recorded_at: TimestampMicros,
    /// What it says.
    pub body: EventBody,
}

/// Everything that a request is made of.
#[derive(Clone, Debug)]
pub struct WindowInput {
    /// The conversation.
    pub conversation: ConversationId,
    /// What it was created with; its policies.
    pub info: Arc<ConversationInfo>,
    /// The branch as of the revision that is asked for.
    pub branch: Arc<BranchState>,
    /// That revision.
    pub revision: Revision,
    /// The branch's history after the last compaction's cut, oldest first.
    pub events: Vec<Arc<WindowEvent>>,
    /// Events that the branch's state refers to, wherever they are: prompts, the
    /// preamble, active context, tools, summary, compaction.
    pub referred: BTreeMap<EventRef, Arc<WindowEvent>>,
    /// What the events were folded to, where that is known already.
    pub folded: Option<Arc<Folded>>,
    /// What calls behind the last compaction's cut have shown of tools, where nothing defines
    /// any: an agent that goes on needs them.
    pub earlier_tools: Arc<CalledTools>,
    /// The namespace's long-term context as of then, by key.
    pub long_term: Vec<LongTermEntry>,
    /// What tool results have shown, as text; none when nobody asked for it.
    pub knowledge: Option<String>,
    /// Guesses about recorded text.
    pub heuristics: Arc<dyn Heuristics>,
    /// Ends folding early; what is folded then is incomplete.
    pub cancellation: CancellationToken,
}

/// A key of the namespace's long-term context.
#[derive(Clone, Debug, PartialEq)]
pub struct LongTermEntry {
    /// Key.
    pub key: String,
    /// Value.
    pub value: JsonText,
    /// The event that set it.
    pub at: EventRef,
}

impl WindowInput {
    /// An event that the branch's state refers to.
    #[must_use]
    pub fn referred(&self, at: Option<EventRef>) -> Option<&WindowEvent> {
        self.referred.get(&at?).map(Arc::as_ref)
    }

    /// Each event's place in `events`.
    #[must_use]
    pub fn places(&self) -> HashMap<EventRef, usize> {
        let places = self.events.iter().enumerate();
        places.map(|(place, event)| (event.at, place)).collect()
    }

    /// The place in `events` from which on working memory counts: after the last
    /// compaction. Kept turns stand before it.
    #[must_use]
    pub fn memory_begins(&self) -> usize {
        let Some(compaction) = self.branch.compaction else {
            return 0;
        };
        let place = self.events.iter().position(|event| event.at == compaction);
        place.map_or(0, |place| place + 1)
    }
}
