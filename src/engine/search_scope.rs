//! The scope of a search: the conversations that it names or that its filters select, and what
//! their active branches show.

use std::{collections::BTreeSet, iter};

use super::{
    Inner,
    error::{ReadError, SearchError},
    search::refused,
    search_query::ConversationFilters,
    work,
};
use treering_domain::{ConversationId, ConversationRow, Namespace};
use treering_projections::Facet;
use treering_search::{
    ChosenConversations, ExceededBound, HeldMemory, LineageSegment, Scope, SearchMemory,
};

/// Maximum number of conversations that a search with sub-contexts covers.
const SUB_CONTEXTS_MAX: usize = 1_000;
/// If fewer conversations are selected, each is looked at, and not all that have several branches.
const CHOSEN_FEW_MAX: usize = 100;
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
        let mut of_several = Vec::new();
        let mut look_at = |row: ConversationRow| -> Result<(), SearchError> {
            if row.branch_count > 1 {
                held.more(SEVERAL_BYTES).map_err(refused)?;
                of_several.push((row.key(), row.active));
            }
            Ok(())
        };
        let chosen = match scope {
            Some(Scope::Conversations(chosen)) => chosen.ids(),
            // A named branch already determines what is shown.
            Some(Scope::Lineage(_)) => return Ok(Vec::new()),
            None => None,
        };
        match chosen.filter(|ids| ids.len() < CHOSEN_FEW_MAX) {
            Some(few) => {
                for id in few {
                    work::check()?;
                    look_at(self.row(namespace, *id)?)?;
                }
            }
            None => self.each_with(namespace, Facet::Forked, |id| {
                match chosen.is_none_or(|ids| ids.binary_search(&id).is_ok()) {
                    true => look_at(self.row(namespace, id)?),
                    false => Ok(()),
                }
            })?,
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
        let mut held = memory.holding(ExceededBound::Chosen);
        let mut chosen: Option<Vec<ConversationId>> = None;
        let mut narrow = |found: Vec<ConversationId>| match &mut chosen {
            None => chosen = Some(found),
            Some(chosen) => chosen.retain(|id| found.binary_search(id).is_ok()),
        };
        let sources = within.sources.iter().map(|source| Facet::Source(source));
        if !within.sources.is_empty() {
            narrow(self.with_one_of(namespace, sources, &mut held)?);
        }
        for label in &within.labels {
            let label = label_facet(label);
            narrow(self.with_one_of(namespace, iter::once(label), &mut held)?);
        }
        if !within.not_sealed {
            let chosen = chosen.unwrap_or_default();
            return Ok(Some(ChosenConversations::holding(chosen, Some(held))));
        }
        let sealed = self.with_one_of(namespace, iter::once(Facet::Sealed), &mut held)?;
        Ok(Some(match chosen {
            None => ChosenConversations::all_but(sealed, Some(held)),
            Some(mut chosen) => {
                chosen.retain(|id| sealed.binary_search(id).is_err());
                ChosenConversations::holding(chosen, Some(held))
            }
        }))
    }

    /// Returns the conversations with one of these facets, in order.
    fn with_one_of<'f>(
        &self,
        namespace: &Namespace,
        facets: impl Iterator<Item = Facet<'f>>,
        held: &mut HeldMemory,
    ) -> Result<Vec<ConversationId>, SearchError> {
        let mut found = Vec::new();
        for facet in facets {
            self.each_with(namespace, facet, |id| {
                held.more(CHOSEN_BYTES).map_err(refused)?;
                found.push(id);
                Ok(())
            })?;
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Visits the conversations with a facet, until the work is cancelled.
    fn each_with(
        &self,
        namespace: &Namespace,
        facet: Facet<'_>,
        mut each: impl FnMut(ConversationId) -> Result<(), SearchError>,
    ) -> Result<(), SearchError> {
        let (projections, mut looked) = (self.projections.load(), Ok(()));
        let walked = projections.each_with(namespace, facet, |id| {
            looked = work::check().map_err(SearchError::from);
            if looked.is_ok() {
                looked = each(id);
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

/// Returns the facet of a label as a filter names it: `name` or `name=value`.
fn label_facet(label: &str) -> Facet<'_> {
    match label.split_once('=') {
        Some((name, value)) => Facet::Label(name, value),
        None => Facet::LabelName(label),
    }
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
