//! Parameters of the built-in enhancers.

use std::collections::HashSet;

use serde_json::Value;

use crate::{draft::Draft, policy::ContextPolicy};

/// What a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// `true` or `false`.
    Flag,
    /// A whole number, 0 or more.
    Number,
    /// A list of texts.
    Names,
}

/// A parameter of an enhancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name in `params`.
    pub name: &'static str,
    /// What it takes.
    pub kind: ParamKind,
    /// What it does, and its default.
    pub about: &'static str,
}

impl Param {
    pub(super) const fn new(name: &'static str, kind: ParamKind, about: &'static str) -> Self {
        Self { name, kind, about }
    }
}

/// An enhancer's parameters as the policy sets them. A value of the wrong type
/// counts as not set, and the draft warns of it.
pub(super) struct Params<'a> {
    enhancer: &'static str,
    policy: &'a ContextPolicy,
}

impl<'a> Params<'a> {
    pub fn of(policy: &'a ContextPolicy, enhancer: &'static str) -> Self {
        Self { enhancer, policy }
    }

    pub fn flag(&self, name: &str, draft: &mut Draft) -> Option<bool> {
        self.read(name, "true or false", draft, Value::as_bool)
    }

    pub fn number(&self, name: &str, draft: &mut Draft) -> Option<usize> {
        let read = |value: &Value| usize::try_from(value.as_u64()?).ok();
        self.read(name, "a whole number", draft, read)
    }

    pub fn names(&self, name: &str, draft: &mut Draft) -> Option<HashSet<&'a str>> {
        self.read(name, "a list of texts", draft, |value| {
            value.as_array()?.iter().map(Value::as_str).collect()
        })
    }

    fn read<T>(
        &self,
        name: &str,
        kind: &str,
        draft: &mut Draft,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.policy.enhancers.get(self.enhancer)?.params.get(name)?;
        let found = read(value);
        if found.is_none() {
            draft.warnings.push(format!(
                "the parameter {name} of the enhancer {} takes {kind}: its default is used",
                self.enhancer
            ));
        }
        found
    }
}
