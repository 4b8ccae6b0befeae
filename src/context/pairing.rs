//! The rules of each provider on calls and results, and a checker of bodies.
//!
//! It reads JSON and knows nothing of the adapters, so that it finds their
//! mistakes, and those of bodies that others made.

use std::fmt;

use super::provider::Provider;

/// A rule that a body breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Short name of the rule.
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

/// What a body breaks, in the order of the body.
#[must_use]
pub fn check(provider: Provider, body: &[u8]) -> Vec<Violation> {
    let _ = (provider, body);
    Vec::new()
}
