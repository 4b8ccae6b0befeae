//! Tracks the calls of a body: each must have one result, at a place that its provider accepts.
//!
//! A provider's rules report what they find, in order: [`call`](Ledger::call),
//! [`result`](Ledger::result), and [`settle`](Ledger::settle) when no result may follow. Gemini's
//! calls have no ids and are not tracked here.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    fmt,
};

use super::Violations;

/// Names of the rules that the ledger checks.
pub(crate) const CALL_ID: &str = "call-id";
pub(crate) const CALL_ID_UNIQUE: &str = "call-id-unique";
pub(crate) const UNANSWERED_CALL: &str = "unanswered-call";
pub(crate) const UNMATCHED_RESULT: &str = "unmatched-result";

/// The calls of a body.
#[derive(Default)]
pub(crate) struct Ledger<'a> {
    /// Indexes of the calls without results, by id. A duplicate id breaks a rule, and each call
    /// still needs its result.
    open: HashMap<Cow<'a, str>, Vec<usize>>,
    seen: HashSet<Cow<'a, str>>,
}

impl<'a> Ledger<'a> {
    /// Records a call in the message or item `at`.
    pub fn call(
        &mut self,
        id: Cow<'a, str>,
        is_legal: bool,
        at: usize,
        path: fmt::Arguments<'_>,
        report: &mut Violations,
    ) {
        if !is_legal {
            let message = "an id is empty, too long, or has characters that are not accepted";
            report.add(CALL_ID, path, message);
        }
        self.own(id.clone(), path, report);
        self.open.entry(id).or_default().push(at);
    }

    /// Records an id, and reports it if it is already used.
    pub fn own(&mut self, id: Cow<'a, str>, path: fmt::Arguments<'_>, report: &mut Violations) {
        if !self.seen.insert(id) {
            report.add(CALL_ID_UNIQUE, path, "an id is used twice");
        }
    }

    /// Records a result.
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

    /// Reports calls without results. To be called when no result may follow. `path` gives the path
    /// of a message or item by its index.
    pub fn settle(&mut self, path: impl Fn(usize) -> String, report: &mut Violations) {
        let mut left: Vec<usize> = self.open.drain().flat_map(|(_, places)| places).collect();
        left.sort_unstable();
        for at in left {
            let message = "a call has no result where one is required";
            report.add(UNANSWERED_CALL, format_args!("{}", path(at)), message);
        }
    }
}
