//! The rules of each provider on calls and results, and a checker of bodies.
//!
//! It reads JSON and knows nothing of the adapters, so that it finds their
//! mistakes, and those of bodies that others made. [`check`] runs on every
//! request that Treering builds: it borrows from the body and looks into values
//! only as far as a rule needs.
//!
//! Each provider has its rules in its own folder, as `rules.rs`; [`rules`] lists their
//! names. What stands here is what several of them share.

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
    /// Where, as in `messages[3].content[0]`.
    pub path: String,
    /// What is wrong. Holds no text of the conversation.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.rule, self.path, self.message)
    }
}

/// What a body breaks, in the order in which it was found. The body is JSON
/// text, as it is sent.
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

/// What was found so far.
#[derive(Default)]
pub(crate) struct Violations(Vec<Violation>);

impl Violations {
    /// Notes a rule that is broken.
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
