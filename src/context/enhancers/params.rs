//! Parameters of the built-in enhancers.

use std::collections::HashSet;

use serde_json::Value;

use crate::{draft::Draft, policy::ContextPolicy};

/// Type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// `true` or `false`.
    Flag,
    /// An integer, 0 or more.
    Number,
    /// A list of strings.
    Names,
}

/// A parameter of an enhancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Name in `params`.
    pub name: &'static str,
    /// Its type.
    pub kind: ParamKind,
    /// Its effect and default.
    pub about: &'static str,
}

impl Param {
    pub(super) const fn new(name: &'static str, kind: ParamKind, about: &'static str) -> Self {
        Self { name, kind, about }
    }
}

/// The parameters of an enhancer in a policy. Values of the wrong type are ignored, with a warning
/// in the draft.
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
                "the parameter {name} of the enhancer {} must be {kind}: its default is used",
                self.enhancer
            ));
        }
        found
    }
}
