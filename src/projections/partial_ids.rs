//! Finds conversations by a part of an id, as users type it.

use std::ops::Bound;

use uuid::Uuid;

use treering_domain::{ConversationId, Namespace};

use super::{
    codec,
    error::ProjectionsError,
    facets::{Facet, listed_conversation, tail, with_facet},
    keys,
    read::{conversation, prefix},
    row_store::Reader,
    store::Projections,
    table::{CONVERSATIONS, NAMESPACES, ReadTable},
};

/// Length of a UUID as text.
const UUID_CHARS: usize = 36;
/// Positions of its hyphens.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

impl Projections {
    /// Returns at most `limit` conversations whose UUID or source id begins with `part`. Reads only
    /// these and, for each distinct length of source ids, one more row.
    ///
    /// # Errors
    /// As for every read.
    pub fn beginning(
        &self,
        namespace: &Namespace,
        part: &str,
        limit: usize,
    ) -> Result<Vec<ConversationId>, ProjectionsError> {
        self.read(|reader| {
            let mut found = FoundIds::new(limit);
            if let Some((first, last)) = uuids_beginning(part) {
                uuids(reader, namespace, (first, last), &mut found)?;
            }
            source_ids(&reader.table(NAMESPACES), namespace, part, &mut found)?;
            Ok(found.ids)
        })
    }

    /// Returns at most `limit` conversations whose UUID or source id ends with `part`. For a part
    /// of less than four bytes, scans the keys of all conversations. Returns early, with an
    /// incomplete result, once `is_wanted` returns false.
    ///
    /// # Errors
    /// As for every read.
    pub fn ending(
        &self,
        namespace: &Namespace,
        part: &str,
        limit: usize,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Vec<ConversationId>, ProjectionsError> {
        self.read(|reader| {
            let mut found = FoundIds::new(limit);
            match tail(part) {
                Some(tail) => with_tail(reader, namespace, (part, tail), &is_wanted, &mut found)?,
                None => scan_for_end(reader, namespace, part, &is_wanted, &mut found)?,
            }
            Ok(found.ids)
        })
    }
}

/// Adds the conversations whose id ends with `part`. Reads only those with the same tail.
fn with_tail(
    reader: &Reader,
    namespace: &Namespace,
    (part, tail): (&str, Facet<'_>),
    is_wanted: &dyn Fn() -> bool,
    found: &mut FoundIds,
) -> Result<(), ProjectionsError> {
    let table = reader.table(CONVERSATIONS);
    for id in with_facet(reader, namespace, tail) {
        let id = id?;
        if !is_wanted() {
            break;
        }
        let ends = id.to_string().ends_with(part) || {
            let row = conversation(&table, namespace.key(id))?;
            row.is_some_and(|row| row.info.source_id.ends_with(part))
        };
        if ends && found.is_full_with(id) {
            break;
        }
    }
    Ok(())
}

/// Adds the conversations whose id ends with `part`, by a scan of all conversations.
fn scan_for_end(
    reader: &Reader,
    namespace: &Namespace,
    part: &str,
    is_wanted: &dyn Fn() -> bool,
    found: &mut FoundIds,
) -> Result<(), ProjectionsError> {
    let table = reader.table(NAMESPACES);
    for row in prefix(&table, &keys::listing(namespace, None)) {
        let (key, value) = row?;
        let id = listed_conversation(&key, &value)?;
        let ends = id.to_string().ends_with(part);
        if !is_wanted() || ends && found.is_full_with(id) {
            return Ok(());
        }
    }
    for row in prefix(&table, &keys::all_source_ids(namespace)) {
        let (key, value) = row?;
        codec::checked(&key, &value)?;
        let source_id = keys::source_id_of(namespace, &key).map(|(_, id)| id);
        let ends = source_id.is_some_and(|id| id.ends_with(part.as_bytes()));
        let id = keys::last_conversation(&key).filter(|_| ends);
        if !is_wanted() || id.is_some_and(|id| found.is_full_with(id)) {
            return Ok(());
        }
    }
    Ok(())
}

/// Distinct ids, up to a limit.
struct FoundIds {
    ids: Vec<ConversationId>,
    limit: usize,
}

impl FoundIds {
    fn new(limit: usize) -> Self {
        Self {
            ids: Vec::new(),
            limit,
        }
    }

    fn is_full(&self) -> bool {
        self.ids.len() >= self.limit
    }

    fn is_full_with(&mut self, id: ConversationId) -> bool {
        if !self.is_full() && !self.ids.contains(&id) {
            self.ids.push(id);
        }
        self.is_full()
    }
}

/// Returns the first and the last UUID that begin with this text; `None` when it is not the
/// beginning of a UUID.
fn uuids_beginning(part: &str) -> Option<(ConversationId, ConversationId)> {
    let is_right = |(at, c): (usize, char)| match HYPHENS.contains(&at) {
        true => c == '-',
        false => c.is_ascii_hexdigit() && !c.is_ascii_uppercase(),
    };
    if part.len() > UUID_CHARS || !part.chars().enumerate().all(is_right) {
        return None;
    }
    let filled = |with: char| {
        let rest = (part.len()..UUID_CHARS).map(|at| match HYPHENS.contains(&at) {
            true => '-',
            false => with,
        });
        let text: String = part.chars().chain(rest).collect();
        Uuid::parse_str(&text).ok().map(ConversationId)
    };
    filled('0').zip(filled('f'))
}

/// Adds the namespace's conversations between two ids.
fn uuids(
    reader: &Reader,
    namespace: &Namespace,
    (first, last): (ConversationId, ConversationId),
    found: &mut FoundIds,
) -> Result<(), ProjectionsError> {
    let table = reader.table(CONVERSATIONS);
    let last = namespace.key(last);
    let mut from = keys::from_conversation(namespace.key(first));
    while !found.is_full()
        && let Some(row) = table.range(from.as_bytes()..).next()
    {
        let Some(id) = keys::conversation_of(&row?.0).filter(|id| *id <= last) else {
            return Ok(());
        };
        if conversation(&table, id)?.is_some() {
            found.is_full_with(id.id);
        }
        from = keys::after_conversation(id);
    }
    Ok(())
}

/// Adds conversations by source id. Source ids are sorted by length first, so there is one range
/// for each length.
fn source_ids(
    table: &ReadTable,
    namespace: &Namespace,
    part: &str,
    found: &mut FoundIds,
) -> Result<(), ProjectionsError> {
    let mut from = keys::all_source_ids(namespace);
    let end = from.after_prefix();
    while !found.is_full() {
        let bounds = (
            Bound::Included(from.as_bytes()),
            Bound::Excluded(end.as_bytes()),
        );
        let Some(row) = table.range(bounds).next() else {
            return Ok(());
        };
        let key = row?.0;
        let Some((as_long, id)) = keys::source_id_of(namespace, &key) else {
            return Err(ProjectionsError::damaged("a source id is corrupt"));
        };
        from = as_long.after_prefix();
        if id.len() < part.len() {
            continue;
        }
        for row in prefix(table, &as_long.bytes(part.as_bytes())) {
            let (key, value) = row?;
            codec::checked(&key, &value)?;
            if keys::last_conversation(&key).is_some_and(|id| found.is_full_with(id)) {
                return Ok(());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Text that cannot begin a UUID matches none; any other text matches the whole range.
    #[test]
    fn id_prefix_gives_a_range_of_uuids() {
        let stretch =
            |part| uuids_beginning(part).map(|(first, last)| (first.to_string(), last.to_string()));
        let whole = "7ad31c26-9708-4bd2-bbd5-9a3c977380c2";
        assert_eq!(stretch(whole), Some((whole.into(), whole.into())));
        assert_eq!(
            stretch("7ad31c26-9"),
            Some((
                "7ad31c26-9000-0000-0000-000000000000".into(),
                "7ad31c26-9fff-ffff-ffff-ffffffffffff".into()
            ))
        );
        for none in ["7ad31c269", "tau", "7AD3", "-", "ä", &format!("{whole}0")] {
            assert_eq!(stretch(none), None, "{none}");
        }
    }
}
