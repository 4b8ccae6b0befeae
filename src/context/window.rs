//! The window: the events of a branch since its last compaction. [`fold()`] turns them into items.

mod calls;
mod fold;
mod maker;
#[cfg(test)]
mod sample_steps;
#[cfg(any(test, feature = "testkit"))]
#[allow(missing_docs, clippy::missing_panics_doc, clippy::must_use_candidate)]
pub mod samples;
#[cfg(test)]
mod tests;

#[cfg(test)]
use samples::SampleStep;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{called_tools::CalledTools, cancellation::CancellationToken, heuristics::Heuristics};
use treering_domain::{
    BranchState, ConversationId, ConversationInfo, EventBody, EventRef, JsonText, Revision,
    TimestampMicros,
};

pub use fold::{FoldedWindow, fold};

/// An event of a window.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowEvent {
    /// Conversation and revision.
    pub at: EventRef,
    /// Offset in the log.
    pub offset: u64,
    /// When it was recorded.
    pub recorded_at: TimestampMicros,
    /// Its body.
    pub body: EventBody,
}

/// All inputs of a request.
#[derive(Clone, Debug)]
pub struct WindowInput {
    /// The conversation.
    pub conversation: ConversationId,
    /// Its creation settings and policies.
    pub info: Arc<ConversationInfo>,
    /// State of the branch as of `revision`.
    pub branch: Arc<BranchState>,
    /// The revision as of which the request is built.
    pub revision: Revision,
    /// The branch's history after the last compaction's cut, oldest first.
    pub events: Vec<Arc<WindowEvent>>,
    /// Events that the branch's state refers to: prompts, preamble, active context, tools, summary,
    /// compaction.
    pub referred: BTreeMap<EventRef, Arc<WindowEvent>>,
    /// The fold of the events, if it is already known.
    pub folded: Option<Arc<FoldedWindow>>,
    /// Tools of calls before the last compaction's cut, if nothing defines any. An agent that
    /// continues needs them.
    pub earlier_tools: Arc<CalledTools>,
    /// The namespace's long-term context as of then, by key.
    pub long_term: Vec<LongTermEntry>,
    /// Tool knowledge as text; none if the policy does not enable it.
    pub knowledge: Option<String>,
    /// Heuristics about recorded text.
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

    /// Index of each event in `events`.
    #[must_use]
    pub fn places(&self) -> HashMap<EventRef, usize> {
        let places = self.events.iter().enumerate();
        places.map(|(place, event)| (event.at, place)).collect()
    }

    /// Index in `events` from which working memory counts: after the last compaction. Kept turns
    /// are before it.
    #[must_use]
    pub(crate) fn memory_begins(&self) -> usize {
        let Some(compaction) = self.branch.compaction else {
            return 0;
        };
        let place = self.events.iter().position(|event| event.at == compaction);
        place.map_or(0, |place| place + 1)
    }
}
