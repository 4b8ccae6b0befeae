//! Separates the user's words from other texts in the user's role.
//!
//! A harness also records notices, texts of skills and commands run at the prompt in the user's
//! role. Some of the user's words, in turn, are results of calls: answers to questions, and reasons
//! for a denial. Requests, the budget and every summary use the decisions made here.
//!
//! - `harness`: tagged texts of a harness;
//! - `marks`: marks of authorship in the original form of a message;
//! - `local_command`: commands run at the prompt;
//! - `little`: texts that say little;
//! - `replies`: refusals and answers in results.

mod harness;
#[cfg(test)]
mod imported_tests;
mod little;
mod local_command;
mod marks;
mod replies;

use std::borrow::Cow;

use treering_domain::{ContentPart, MessageAppended, Role};

pub(crate) use harness::{is_said, without_reminders};
pub(crate) use little::is_filler;
pub(crate) use marks::{is_by_harness, local_command};
pub(crate) use replies::reply;

/// Returns the user's words in a message, without the harness's texts. None if it is not from the
/// user or asks nothing.
pub(crate) fn of_message(message: &MessageAppended) -> Option<String> {
    let is_user = message.role == Role::User;
    if !is_user || is_by_harness(message) || local_command(message).is_some() {
        return None;
    }
    of_texts(message.parts.iter().filter_map(ContentPart::text))
}

/// Returns the user's words in the texts of a message.
pub(crate) fn of_texts<'a>(texts: impl Iterator<Item = &'a str>) -> Option<String> {
    let said: Vec<Cow<'_, str>> = texts
        .filter(|text| is_said(text))
        .map(harness::strip_harness)
        .collect();
    (!said.is_empty()).then(|| said.join("\n"))
}
