//! A checker of bodies: each provider's rules on calls and results.
//!
//! The checker reads JSON and shares no code with the adapters, so it finds their mistakes, and
//! those in bodies from elsewhere. It runs in production, so [`check`] borrows from the body and
//! decodes values only as far as a rule needs.
//!
//! Each provider's rules are in `rules.rs` in its folder; [`rules`] lists their names. This module
//! has what several of them share.

pub(crate) mod ledger;
pub(crate) mod read;
#[cfg(test)]
mod tests;

use std::fmt;

use super::provider::Provider;

/// A rule that a body breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the rule, one of [`rules`].
    pub rule: &'static str,
    /// Path, for example `messages[3].content[0]`.
    pub path: String,
    /// What is wrong. Has no text of the conversation.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.rule, self.path, self.message)
    }
}

/// The violations in a body, in the order in which they were found. `body` is the JSON text that is
/// sent.
#[must_use]
pub fn check(provider: Provider, body: &[u8]) -> Vec<Violation> {
    let mut report = Violations::default();
    (provider.description().check)(body, &mut report);
    report.0
}

/// The names of a provider's rules.
#[must_use]
pub fn rules(provider: Provider) -> &'static [&'static str] {
    provider.description().rules
}

/// The violations found so far.
#[derive(Default)]
pub(crate) struct Violations(Vec<Violation>);

impl Violations {
    /// Adds a violation.
    pub fn add(
        &mut self,
        rule: &'static str,
        path: fmt::Arguments<'_>,
        message: impl Into<String>,
    ) {
        self.0.push(Violation {
            rule,
            path: path.to_string(),
            message: message.into(),
        });
    }
}
