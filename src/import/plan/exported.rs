//! Finds the records of an exported session in the conversation that they were exported from.

use std::collections::HashMap;

use super::{Cursor, known::StoredConversation};
use crate::origin::ExportOrigin;
use treering_domain::{Revision, StoredEvent};

/// Returns the place of each exported event, by its index. Empty without an origin.
pub(super) fn places(
    known: &StoredConversation<'_>,
    stored: &[StoredEvent],
    origin: Option<&ExportOrigin>,
) -> Vec<Cursor> {
    let Some(origin) = origin.filter(|origin| origin.is_in(stored)) else {
        return Vec::new();
    };
    let headers: HashMap<_, _> = stored
        .iter()
        .map(|event| (event.header.id, &event.header))
        .collect();
    let exported = origin.events().iter();
    let exported: Vec<_> = exported.map(|id| headers.get(id.as_ref()?)).collect();
    let Some(last) = exported.iter().flatten().max_by_key(|it| it.revision) else {
        return Vec::new();
    };
    let path = known.path(last.branch);
    let place = |revision: Option<Revision>| {
        let behind = revision.map(|at| path.partition_point(|(known, _)| *known <= at));
        // Events before the first exported record stand for the conversation's beginning.
        let at = behind.map_or(Some(0), |behind| behind.checked_sub(1));
        let (after, line) = at.and_then(|at| path.get(at).copied()).unwrap_or_default();
        Cursor {
            line,
            after,
            opens: false,
        }
    };
    exported
        .iter()
        .map(|header| place(header.map(|header| header.revision)))
        .collect()
}
