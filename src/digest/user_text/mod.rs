//! Tells what the user said from other texts in the user's role.
//!
//! A harness records more in the user's role than the user's words: notices, texts of skills,
//! commands run at the prompt. And some of the user's words are results of calls: answers to
//! questions, and reasons for a denial. Requests, the budget and every summary use the decisions
//! made here.
//!
//! - `harness`: tagged texts of a harness;
//! - `marks`: marks of the author in the original form of a message;
//! - `local_command`: commands at the prompt;
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

/// The user's words in a message, without the harness's texts. None if it is not from the user or
/// asks nothing.
pub(crate) fn of_message(message: &MessageAppended) -> Option<String> {
    let is_user = message.role == Role::User;
    if !is_user || is_by_harness(message) || local_command(message).is_some() {
        return None;
    }
    of_texts(message.parts.iter().filter_map(ContentPart::text))
}

/// The user's words in the texts of a message.
pub(crate) fn of_texts<'a>(texts: impl Iterator<Item = &'a str>) -> Option<String> {
    let said: Vec<Cow<'_, str>> = texts
        .filter(|text| is_said(text))
        .map(harness::strip_harness)
        .collect();
    (!said.is_empty()).then(|| said.join("\n"))
}
