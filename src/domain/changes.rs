//! The resulting state of the conversations that a batch touches: an overlay that copies only the
//! branches that change.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    id::{BranchId, BranchName, ConversationId, Namespace, Position, Revision},
    kind::EventBody,
    state::{
        BranchState, ConversationInfo, ConversationRow, ConversationState, EventRef, ForkPoint,
    },
};

/// The state of a conversation after the batch.
#[derive(Clone, Debug)]
pub struct ChangedConversation {
    /// The conversation as a whole.
    pub row: ConversationRow,
    /// The branches that changed.
    pub branches: BTreeMap<BranchId, Arc<BranchState>>,
    /// Snapshots to be stored; see [`SNAPSHOT_EVERY_EVENTS`](super::SNAPSHOT_EVERY_EVENTS).
    pub snapshots: Vec<Arc<BranchState>>,
    renamed: BTreeMap<BranchName, Option<BranchId>>,
}

impl ChangedConversation {
    /// Starts from an existing conversation.
    #[must_use]
    pub fn of(state: &ConversationState) -> Self {
        Self {
            row: state.row.clone(),
            branches: BTreeMap::new(),
            snapshots: Vec::new(),
            renamed: BTreeMap::new(),
        }
    }

    /// Starts a conversation before its first event. `inherited` is the parent's branch at the fork
    /// point if its history is shared.
    #[must_use]
    pub fn new(
        namespace: Namespace,
        id: ConversationId,
        info: ConversationInfo,
        inherited: Option<(&BranchState, ForkPoint)>,
    ) -> Self {
        let main = match inherited {
            Some((base, fork)) => base.forked(BranchId::MAIN, BranchName::default(), fork),
            None => BranchState::root(),
        };
        let row = ConversationRow {
            namespace,
            id,
            info: Arc::new(info),
            head: Revision::NONE,
            chain_hash: Default::default(),
            first_position: Position::default(),
            last_position: Position::default(),
            active: BranchId::MAIN,
            branch_count: 1,
            sealed: false,
            created_at: Default::default(),
            updated_at: Default::default(),
            happened_from: Default::default(),
            happened_to: Default::default(),
            damage: None,
        };
        Self {
            row,
            renamed: BTreeMap::from([(main.name.clone(), Some(BranchId::MAIN))]),
            branches: BTreeMap::from([(BranchId::MAIN, Arc::new(main))]),
            snapshots: Vec::new(),
        }
    }

    /// Returns the branch with this id, changed or not.
    #[must_use]
    pub fn branch<'a>(
        &'a self,
        base: Option<&'a ConversationState>,
        id: BranchId,
    ) -> Option<&'a Arc<BranchState>> {
        self.branches.get(&id).or_else(|| base?.branches.get(&id))
    }

    /// Returns the branch with this name; `None` means the active one.
    #[must_use]
    pub fn branch_named<'a>(
        &'a self,
        base: Option<&'a ConversationState>,
        name: Option<&BranchName>,
    ) -> Option<&'a Arc<BranchState>> {
        let Some(name) = name else {
            return self.branch(base, self.row.active);
        };
        match self.renamed.get(name) {
            Some(Some(id)) => self.branch(base, *id),
            Some(None) => None,
            None => {
                let id = base?.branch(Some(name))?.id;
                self.branch(base, id)
            }
        }
    }

    /// Adds the branch that the next event forks.
    pub fn open_branch(&mut self, branch: BranchState) {
        self.renamed.insert(branch.name.clone(), Some(branch.id));
        self.row.branch_count += 1;
        self.branches.insert(branch.id, Arc::new(branch));
    }

    /// Applies the next event to an existing branch and returns the event's place.
    pub fn apply(
        &mut self,
        base: Option<&ConversationState>,
        branch: BranchId,
        body: &EventBody,
    ) -> EventRef {
        self.row.head = self.row.head.next();
        let at = EventRef {
            conversation: self.row.id,
            revision: self.row.head,
        };
        match body {
            EventBody::BranchActivated => self.row.active = branch,
            EventBody::ConversationSealed { .. } => self.row.sealed = true,
            EventBody::ConversationChanged(change) => {
                Arc::make_mut(&mut self.row.info).change(change);
            }
            _ => {}
        }
        if !self.branches.contains_key(&branch)
            && let Some(unchanged) = base.and_then(|state| state.branches.get(&branch))
        {
            self.branches.insert(branch, Arc::clone(unchanged));
        }
        if let Some(state) = self.branches.get_mut(&branch) {
            let state = Arc::make_mut(state);
            if let EventBody::BranchRenamed(name) = body {
                self.renamed.insert(state.name.clone(), None);
                self.renamed.insert(name.clone(), Some(branch));
            }
            state.apply(at, body);
            if state.is_snapshot_point() {
                self.snapshots.push(Arc::new(state.clone()));
            }
        }
        at
    }
}
