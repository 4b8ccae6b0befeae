//! The rules that each provider has for requests, and a checker for request bodies.
//!
//! Tests, fuzzing and benchmarks use it. It parses a finished body and shares no code with the
//! adapters that write bodies, so it finds their faults. It depends on no other crate of Treering:
//! a provider is identified by its name on the command line.
//!
//! Each provider has a module with its rules; [`rules`] returns their names. `read` and `ledger`
//! have the code that several of them share.

mod anthropic;
mod gemini;
mod ledger;
mod neutral;
mod openai_chat;
mod openai_responses;
mod read;
#[cfg(test)]
mod tests;

use std::fmt;

/// The names of all providers that have rules.
pub const PROVIDERS: [&str; 5] = [
    "openai-chat",
    "openai-responses",
    "anthropic",
    "gemini",
    "neutral",
];

/// The rules of one provider.
struct Rules {
    check: fn(&[u8], &mut Violations),
    names: &'static [&'static str],
}

fn rules_of(provider: &str) -> Rules {
    let (check, names): (fn(&[u8], &mut Violations), _) = match provider {
        "openai-chat" => (openai_chat::check, openai_chat::RULES),
        "openai-responses" => (openai_responses::check, openai_responses::RULES),
        "anthropic" => (anthropic::check, anthropic::RULES),
        "gemini" => (gemini::check, gemini::RULES),
        "neutral" => (neutral::check, neutral::RULES),
        _ => panic!("no rules for the provider {provider:?}"),
    };
    Rules { check, names }
}

/// A rule that a body breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the rule, one of [`rules`].
    pub rule: &'static str,
    /// The place, such as `messages[3].content[0]`.
    pub path: String,
    /// What is wrong. It contains no text of the conversation.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.rule, self.path, self.message)
    }
}

/// Returns the rules that a body breaks, in the order in which they were found. The body is JSON
/// text, as it is sent.
///
/// # Panics
/// If `provider` is not one of [`PROVIDERS`].
#[must_use]
pub fn check(provider: &str, body: &[u8]) -> Vec<Violation> {
    let mut report = Violations::default();
    (rules_of(provider).check)(body, &mut report);
    report.0
}

/// Asserts that a body breaks no rule.
///
/// # Panics
/// If it breaks one, or if `provider` is not one of [`PROVIDERS`].
#[track_caller]
pub fn assert_legal(provider: &str, body: &[u8]) {
    let violations = check(provider, body);
    assert!(violations.is_empty(), "{provider}: {}", violations[0]);
}

/// Returns the names of a provider's rules.
///
/// # Panics
/// If `provider` is not one of [`PROVIDERS`].
#[must_use]
pub fn rules(provider: &str) -> &'static [&'static str] {
    rules_of(provider).names
}

/// The violations found so far.
#[derive(Default)]
pub(crate) struct Violations(Vec<Violation>);

impl Violations {
    /// Adds a broken rule.
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
