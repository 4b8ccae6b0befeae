//! The scope of a search: the conversations that it names or that its filters select, and what
//! their active branches show.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use super::{
    Inner, ReadPath,
    error::{ReadError, SearchError},
    history::History,
    search::refused,
    search_query::ConversationFilters,
    sequencer::lock,
    work,
};
use treering_domain::{ConversationId, ConversationRow, Namespace};
use treering_projections::Facet;
use treering_search::{
    ChosenConversations, ExceededBound, HeldMemory, LineageSegment, Scope, SearchMemory,
    ShownBranches,
};

/// Maximum number of conversations that a search with sub-contexts covers.
const SUB_CONTEXTS_MAX: usize = 1_000;
/// If fewer conversations are selected, each is looked at. Otherwise, all conversations of the
/// namespace with several branches are listed.
const CHOSEN_FEW_MAX: usize = 100;
/// Memory per selected conversation, in bytes.
const CHOSEN_BYTES: usize = size_of::<ConversationId>();
/// Memory per shown branch, in bytes: the sum for the filter, the query made from the filter, and
/// the branch's number in an index segment.
const SHOWN_BYTES: usize = 160;

/// Looks up which events the active branches show, while a search runs.
pub(super) struct ActiveBranches {
    namespace: Namespace,
    history: History,
    /// The first failure.
    failed: Mutex<Option<SearchError>>,
    held: Mutex<HeldMemory>,
}

impl ActiveBranches {
    /// Fails if a look-up failed, because the search then left something out.
    pub(super) fn check(&self) -> Result<(), SearchError> {
        lock(&self.failed).take().map_or(Ok(()), Err)
    }

    /// Returns the conversation's own events in the history of its active branch.
    fn look_up(&self, id: ConversationId) -> Vec<LineageSegment> {
        self.shown(id).unwrap_or_else(|error| {
            lock(&self.failed).get_or_insert(error);
            Vec::new()
        })
    }

    fn shown(&self, id: ConversationId) -> Result<Vec<LineageSegment>, SearchError> {
        work::check()?;
        let key = self.namespace.key(id);
        let row = self.history.projections.conversation(key);
        let Some(row) = row.map_err(ReadError::from)? else {
            return Ok(Vec::new());
        };
        let active = self.history.branch(key, row.active)?;
        let segments = self.history.lineage_while(key, &active, |segment| {
            // Earlier segments belong to another conversation.
            segment.fork.is_none_or(|fork| fork.conversation == id)
        })?;
        let bytes = segments.len() * SHOWN_BYTES;
        lock(&self.held).more(bytes).map_err(refused)?;
        let shown = segments.into_iter().map(|segment| LineageSegment {
            conversation: segment.conversation.id,
            branch: segment.branch,
            up_to: segment.last,
        });
        Ok(shown.collect())
    }
}

/// Returns the conversations if they are few enough to look at each.
fn few(chosen: &ChosenConversations) -> Option<&[ConversationId]> {
    chosen.ids().filter(|ids| ids.len() < CHOSEN_FEW_MAX)
}

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
        self.reads.row(namespace, id)?;
        let mut conversations = BTreeSet::from([id]);
        if within.include_sub_contexts {
            self.reads.add_children(namespace, id, &mut conversations)?;
        }
        if chooses(within) {
            for id in conversations.clone() {
                work::check()?;
                if !is_chosen(within, &self.reads.row(namespace, id)?) {
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
        let branch = self.reads.branch(namespace, id, Some(name))?;
        let segments = self.reads.history().lineage(namespace.key(id), &branch)?;
        let mut lineage: Vec<_> = segments
            .into_iter()
            .map(|segment| LineageSegment {
                conversation: segment.conversation.id,
                branch: segment.branch,
                up_to: segment.last,
            })
            .collect();
        for child in conversations.into_iter().filter(|child| *child != id) {
            let state = self.reads.state(namespace, child)?;
            lineage.extend(state.branches.values().map(|branch| LineageSegment {
                conversation: child,
                branch: branch.id,
                up_to: branch.head,
            }));
        }
        Ok(Some(Scope::Lineage(lineage)))
    }

    /// Restricts conversations with several branches to their own events in the history of the
    /// active branch.
    pub(super) fn shown_by_active_branches(
        &self,
        namespace: &Namespace,
        scope: Option<&Scope>,
        memory: &SearchMemory,
    ) -> Result<(ShownBranches, Arc<ActiveBranches>), SearchError> {
        let mut held = memory.holding(ExceededBound::Branches);
        let few = match scope {
            Some(Scope::Conversations(chosen)) => few(chosen),
            // A named branch already determines what is shown.
            Some(Scope::Lineage(_)) => Some(&[][..]),
            None => None,
        };
        let of_several = match few {
            Some(few) => {
                let mut of_several = Vec::new();
                for id in few {
                    work::check()?;
                    if self.reads.row(namespace, *id)?.branch_count > 1 {
                        of_several.push(*id);
                    }
                }
                of_several.into()
            }
            None => self.with_facet(namespace, Facet::Forked, &mut held)?,
        };
        let active = Arc::new(ActiveBranches {
            namespace: namespace.clone(),
            history: self.reads.history(),
            failed: Mutex::default(),
            held: Mutex::new(held),
        });
        let looks = Arc::clone(&active);
        let shown = ShownBranches::looked_up(of_several, Box::new(move |id| looks.look_up(id)));
        Ok((shown, active))
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
        let mut chosen: Option<ChosenConversations> = None;
        let mut of_sources = Vec::new();
        for source in &within.sources {
            of_sources.push(self.with_facet(namespace, Facet::Source(source), &mut held)?);
        }
        if let Some((first, others)) = of_sources.split_first() {
            chosen = Some(match others {
                [] => first.clone(),
                _ => union(&of_sources, &mut held)?,
            });
        }
        for label in &within.labels {
            let found = self.with_facet(namespace, label_facet(label), &mut held)?;
            chosen = Some(match chosen {
                None => found,
                Some(chosen) => common(&chosen, &found, &mut held)?,
            });
        }
        if within.not_sealed {
            let open = self
                .with_facet(namespace, Facet::Sealed, &mut held)?
                .others();
            chosen = Some(match chosen {
                None => open,
                Some(chosen) => common(&chosen, &open, &mut held)?,
            });
        }
        Ok(chosen.map(|chosen| chosen.holding(held)))
    }
}

impl ReadPath {
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

/// Returns the union of all sets.
fn union(
    sets: &[ChosenConversations],
    held: &mut HeldMemory,
) -> Result<ChosenConversations, SearchError> {
    let ids: Vec<_> = sets.iter().filter_map(ChosenConversations::ids).collect();
    let ids = ids.concat();
    held.more(ids.len() * CHOSEN_BYTES).map_err(refused)?;
    Ok(ids.into())
}

/// Returns the intersection of both sets. The first one must not be inverted.
fn common(
    chosen: &ChosenConversations,
    others: &ChosenConversations,
    held: &mut HeldMemory,
) -> Result<ChosenConversations, SearchError> {
    let ids = chosen.ids().unwrap_or_default().iter().copied();
    let ids: Vec<_> = ids.filter(|id| others.has(*id)).collect();
    held.more(ids.len() * CHOSEN_BYTES).map_err(refused)?;
    Ok(ids.into())
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
    let has = |facet: Facet<'_>| facet.is_of(row);
    let mut sources = within.sources.iter().map(|source| Facet::Source(source));
    !(within.not_sealed && has(Facet::Sealed))
        && (within.sources.is_empty() || sources.any(has))
        && within.labels.iter().all(|label| has(label_facet(label)))
}
