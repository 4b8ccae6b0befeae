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
    BranchState, ConversationId, ConversationInfo, Entity, EventBody, EventRef, JsonText, Revision,
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
    /// The revision at which the request is built.
    pub revision: Revision,
    /// The branch's history after the last compaction's cut, oldest first.
    pub events: Vec<Arc<WindowEvent>>,
    /// Events that the branch's state refers to: prompts, preamble, active context, tools, summary,
    /// compaction.
    pub referred: BTreeMap<EventRef, Arc<WindowEvent>>,
    /// The folded events, if already known.
    pub folded: Option<Arc<FoldedWindow>>,
    /// Tools called before the last compaction's cut, if no event defines any. An agent that
    /// continues needs them.
    pub earlier_tools: Arc<CalledTools>,
    /// The namespace's long-term context as of `revision`, by key.
    pub long_term: Vec<LongTermEntry>,
    /// Tools and entities named in results since the last compaction, in order.
    pub names_in_results: Vec<NamesInResult>,
    /// Warnings for the explanation of the request.
    pub warnings: Vec<String>,
    /// Tool knowledge as text; none if the policy does not enable it.
    pub knowledge: Option<String>,
    /// Heuristics about recorded text.
    pub heuristics: Arc<dyn Heuristics>,
    /// Stops folding early. The fold is then incomplete.
    pub cancellation: CancellationToken,
}

/// Tools and entities named in one result of the window.
#[derive(Clone, Debug, PartialEq)]
pub struct NamesInResult {
    /// Index of the result in `events`.
    pub place: usize,
    /// Names of tools.
    pub tools: Vec<String>,
    /// Entities.
    pub entities: Vec<Entity>,
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
    /// Returns an event that the branch's state refers to.
    #[must_use]
    pub fn referred(&self, at: Option<EventRef>) -> Option<&WindowEvent> {
        self.referred.get(&at?).map(Arc::as_ref)
    }

    /// Returns the index of each event in `events`.
    #[must_use]
    pub fn places(&self) -> HashMap<EventRef, usize> {
        let places = self.events.iter().enumerate();
        places.map(|(place, event)| (event.at, place)).collect()
    }

    /// Returns the index in `events` of the first event that counts for working memory: the one
    /// after the last compaction. The turns that the compaction kept are before it.
    #[must_use]
    pub(crate) fn memory_begins(&self) -> usize {
        let Some(compaction) = self.branch.compaction else {
            return 0;
        };
        let place = self.events.iter().position(|event| event.at == compaction);
        place.map_or(0, |place| place + 1)
    }

    /// Adds the tools and entities named in results since the last compaction, as if
    /// `ToolsDiscovered` and `EntitiesNoted` events had followed the results.
    pub fn add_names_in_results(&mut self) {
        let begins = self.memory_begins();
        let policies = &self.info.policies;
        match self
            .heuristics
            .names_in_results(policies, &self.events, begins)
        {
            Ok(names) if names.is_empty() => {}
            Ok(names) => {
                self.names_in_results = names;
                self.add_to_memory(begins);
            }
            Err(error) => self.warnings.push(error),
        }
    }

    /// Rebuilds the working memory in the order of events, so that a later discovery does not move
    /// earlier tools.
    fn add_to_memory(&mut self, begins: usize) {
        let mut branch = BranchState::clone(&self.branch);
        branch.memory.discovered_tools.clear();
        branch.memory.entities.clear();
        let mut named = self.names_in_results.iter().peekable();
        for (place, event) in self.events.iter().enumerate().skip(begins) {
            match &event.body {
                EventBody::ToolsDiscovered { names } => branch.memory.discover_tools(names),
                EventBody::EntitiesNoted { entities } => branch.memory.note_entities(entities),
                _ => {}
            }
            if let Some(names) = named.next_if(|names| names.place == place) {
                branch.memory.discover_tools(&names.tools);
                branch.memory.note_entities(&names.entities);
            }
        }
        self.branch = Arc::new(branch);
    }
}
