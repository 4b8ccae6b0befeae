//! Active context: of a branch, and of the namespace for the long term.

use crate::{
    context::window::LongTermEntry,
    domain::{EventBody, Namespace, Position, Revision},
    engine::{Inner, error::ReadError},
};

impl Inner {
    /// The namespace's long-term context as of a position of the log.
    pub(super) async fn long_term(
        &self,
        namespace: &Namespace,
        as_of: Option<Position>,
    ) -> Result<Vec<LongTermEntry>, ReadError> {
        let id = namespace.long_term_conversation();
        let Some(row) = self.find_row(namespace, id)? else {
            return Ok(Vec::new());
        };
        let mut branch = self.branch(namespace, id, None)?;
        if let Some(position) = as_of
            && row.last_position.offset > position.offset
        {
            let (mut low, mut high) = (0, row.head.0);
            while low < high {
                let middle = Revision(low + (high - low).div_ceil(2));
                let offset = self.views.load().offset(id, middle)?;
                if offset.is_some_and(|offset| offset <= position.offset) {
                    low = middle.0;
                } else {
                    high = middle.0 - 1;
                }
            }
            if low == 0 {
                return Ok(Vec::new());
            }
            branch = self.as_of(id, &branch, Revision(low)).await?;
        }
        let mut entries = Vec::new();
        for (key, at) in &branch.active_context {
            if let EventBody::ContextSet(set) = &self.window_event(*at).await?.body {
                entries.push(LongTermEntry {
                    key: key.clone(),
                    value: set.value.clone(),
                    at: *at,
                });
            }
        }
        Ok(entries)
    }
}
