//! The ledger of a body's calls: each has its result, once, where its provider wants it.
//!
//! A provider's rules tell what they come upon, in order: [`call`](Ledger::call),
//! [`result`](Ledger::result), and [`settle`](Ledger::settle) where nothing may wait any
//! more. Gemini's calls have no ids and are not kept here.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    fmt,
};

use super::Violations;

/// Rules that the ledger holds.
pub(crate) const CALL_ID: &str = "call-id";
pub(crate) const CALL_ID_UNIQUE: &str = "call-id-unique";
pub(crate) const UNANSWERED_CALL: &str = "unanswered-call";
pub(crate) const UNMATCHED_RESULT: &str = "unmatched-result";

/// The calls of a body.
#[derive(Default)]
pub(crate) struct Ledger<'a> {
    /// Places of the calls that wait for their results, by id: an id that comes twice is
    /// a broken rule, and each still wants its result.
    open: HashMap<Cow<'a, str>, Vec<usize>>,
    seen: HashSet<Cow<'a, str>>,
}

impl<'a> Ledger<'a> {
    /// A call was made, in the message or item `at`.
    pub fn call(
        &mut self,
        id: Cow<'a, str>,
        is_legal: bool,
        at: usize,
        path: fmt::Arguments<'_>,
        report: &mut Violations,
    ) {
        if !is_legal {
            let message = "an id is empty, too long or of other characters than is taken";
            report.add(CALL_ID, path, message);
        }
        self.own(id.clone(), path, report);
        self.open.entry(id).or_default().push(at);
    }

    /// An id that is no other call's.
    pub fn own(&mut self, id: Cow<'a, str>, path: fmt::Arguments<'_>, report: &mut Violations) {
        if !self.seen.insert(id) {
            report.add(CALL_ID_UNIQUE, path, "an id comes twice");
        }
    }

    /// A result came.
    pub fn result(&mut self, id: &str, path: fmt::Arguments<'_>, report: &mut Violations) {
        let Some(places) = self.open.get_mut(id) else {
            report.add(UNMATCHED_RESULT, path, "no open call has this id");
            return;
        };
        places.pop();
        if places.is_empty() {
            self.open.remove(id);
        }
    }

    /// Nothing may wait for a result any more; `path` is that of the message or item in
    /// which a call was made.
    pub fn settle(&mut self, path: impl Fn(usize) -> String, report: &mut Violations) {
        let mut left: Vec<usize> = self.open.drain().flat_map(|(_, places)| places).collect();
        left.sort_unstable();
        for at in left {
            let message = "a call has no result where it must have one";
            report.add(UNANSWERED_CALL, format_args!("{}", path(at)), message);
        }
    }
}
