//! The scope of a search: the conversations that it names or that its filters select, and what
//! their active branches show.

use std::collections::BTreeSet;

use super::{
    Inner,
    error::{ReadError, SearchError},
    query::ConversationFilters,
    search::refused,
    work,
};
use treering_domain::{ConversationId, ConversationRow, Namespace};
use treering_search::{
    ChosenConversations, ExceededBound, HeldMemory, LineageSegment, Scope, SearchMemory,
};

/// Maximum number of conversations that a search with sub-contexts covers.
const SUB_CONTEXTS_MAX: usize = 1_000;
/// Memory per selected conversation, in bytes.
const CHOSEN_BYTES: usize = size_of::<ConversationId>();
/// Memory per conversation with several branches during their look-up, in bytes.
const SEVERAL_BYTES: usize = 48;
/// Memory per shown branch, in bytes: in the filter, in the query made from it, and for its number
/// in a segment.
const SHOWN_BYTES: usize = 160;

impl Inner {
    /// Returns the conversations or histories that a search is restricted to.
    pub(super) fn scope(
        &self,
        namespace: &Namespace,
        within: &ConversationFilters,
        memory: &SearchMemory,
    ) -> Result<Option<Scope>, SearchError> {
        let Some(id) = within.conversation else {
            if within.branch.is_some() || within.include_sub_contexts {
                let message = "branch and include_sub_contexts require a conversation".to_owned();
                return Err(SearchError::Query { message });
            }
            let chosen = self.chosen_conversations(namespace, within, memory)?;
            return Ok(chosen.map(Scope::Conversations));
        };
        self.row(namespace, id)?;
        let mut conversations = BTreeSet::from([id]);
        if within.include_sub_contexts {
            self.add_children(namespace, id, &mut conversations)?;
        }
        if chooses(within) {
            for id in conversations.clone() {
                work::check()?;
                if !is_chosen(within, &self.row(namespace, id)?) {
                    conversations.remove(&id);
                }
            }
            if conversations.is_empty() {
                return Ok(Some(Scope::Conversations(Vec::new().into())));
            }
        }
        let Some(name) = &within.branch else {
            return Ok(Some(Scope::Conversations(
                conversations.into_iter().collect(),
            )));
        };
        let branch = self.branch(namespace, id, Some(name))?;
        let segments = self.history().lineage(namespace.key(id), &branch)?;
        let mut lineage: Vec<_> = segments
            .into_iter()
            .map(|segment| LineageSegment {
                conversation: segment.conversation.id,
                branch: segment.branch,
                up_to: segment.last,
            })
            .collect();
        for child in conversations.into_iter().filter(|child| *child != id) {
            let state = self.state(namespace, child)?;
            lineage.extend(state.branches.values().map(|branch| LineageSegment {
                conversation: child,
                branch: branch.id,
                up_to: branch.head,
            }));
        }
        Ok(Some(Scope::Lineage(lineage)))
    }

    /// Returns the own events in the histories of the active branches, for conversations with
    /// several branches.
    pub(super) fn shown_by_active_branches(
        &self,
        namespace: &Namespace,
        scope: Option<&Scope>,
        held: &mut HeldMemory,
    ) -> Result<Vec<LineageSegment>, SearchError> {
        // A row includes labels and title: keep only what is needed.
        let mut of_several = Vec::new();
        let mut look_at = |row: ConversationRow| -> Result<(), SearchError> {
            if row.branch_count > 1 {
                held.more(SEVERAL_BYTES).map_err(refused)?;
                of_several.push((row.key(), row.active));
            }
            Ok(())
        };
        match scope {
            Some(Scope::Conversations(chosen)) => {
                for id in chosen.ids() {
                    work::check()?;
                    look_at(self.row(namespace, *id)?)?;
                }
            }
            // A named branch already determines what is shown.
            Some(Scope::Lineage(_)) => return Ok(Vec::new()),
            None => self.each_row(namespace, look_at)?,
        }
        let (history, mut shown) = (self.history(), Vec::new());
        for (id, active) in of_several {
            work::check()?;
            let active = history.branch(id, active)?;
            let segments = history.lineage_while(id, &active, |segment| {
                // Events before these belong to another conversation.
                segment.fork.is_none_or(|fork| fork.conversation == id.id)
            })?;
            held.more(segments.len() * SHOWN_BYTES).map_err(refused)?;
            shown.extend(segments.into_iter().map(|segment| LineageSegment {
                conversation: segment.conversation.id,
                branch: segment.branch,
                up_to: segment.last,
            }));
        }
        Ok(shown)
    }

    /// Returns the namespace's conversations that match the source, label and sealed filters;
    /// `None` without such filters.
    fn chosen_conversations(
        &self,
        namespace: &Namespace,
        within: &ConversationFilters,
        memory: &SearchMemory,
    ) -> Result<Option<ChosenConversations>, SearchError> {
        if !chooses(within) {
            return Ok(None);
        }
        let (mut chosen, mut held) = (Vec::new(), memory.holding(ExceededBound::Chosen));
        self.each_row(namespace, |row| {
            if is_chosen(within, &row) {
                held.more(CHOSEN_BYTES).map_err(refused)?;
                chosen.push(row.id);
            }
            Ok(())
        })?;
        chosen.shrink_to_fit();
        Ok(Some(ChosenConversations::holding(chosen, Some(held))))
    }

    /// Visits all conversations of a namespace, until the work is cancelled.
    fn each_row(
        &self,
        namespace: &Namespace,
        mut each: impl FnMut(ConversationRow) -> Result<(), SearchError>,
    ) -> Result<(), SearchError> {
        let (projections, mut looked) = (self.projections.load(), Ok(()));
        let walked = projections.each_conversation(Some(namespace), |row| {
            looked = work::check().map_err(SearchError::from);
            if looked.is_ok() {
                looked = each(row);
            }
            looked.is_ok()
        });
        walked.map_err(ReadError::from)?;
        looked
    }

    fn add_children(
        &self,
        namespace: &Namespace,
        root: ConversationId,
        found: &mut BTreeSet<ConversationId>,
    ) -> Result<(), ReadError> {
        let mut waiting = vec![root];
        while let Some(id) = waiting.pop() {
            work::check()?;
            for child in self.projections.load().children(namespace.key(id))? {
                if found.len() < SUB_CONTEXTS_MAX && found.insert(child) {
                    waiting.push(child);
                }
            }
        }
        Ok(())
    }
}

/// Returns whether the search selects conversations by filters.
fn chooses(within: &ConversationFilters) -> bool {
    !within.sources.is_empty() || !within.labels.is_empty() || within.not_sealed
}

/// Returns whether the filters select this conversation.
fn is_chosen(within: &ConversationFilters, row: &ConversationRow) -> bool {
    let info = &row.info;
    let has_label = |label: &String| match label.split_once('=') {
        Some((name, value)) => info.labels.get(name).is_some_and(|own| own == value),
        None => info.labels.contains_key(label),
    };
    !(within.not_sealed && row.sealed)
        && (within.sources.is_empty() || within.sources.contains(&info.source))
        && within.labels.iter().all(has_label)
}
