//! What the user said, and what only stands in his place.
//!
//! A harness keeps more in the user's place than his words: notices, texts of skills, commands
//! that he ran at the prompt. And he says more than his messages: what he answers when he is
//! asked, and why he refuses a call, comes as a call's result. All that decides which is which
//! is here; a request, its budget and every summary go by it.
//!
//! - `harness`: what a harness tells by tags;
//! - `marks`: what a source's own form of a message says about who wrote it;
//! - `local_command`: commands at the prompt, as pi keeps them;
//! - `little`: what says little, whoever says it;
//! - `replies`: refusals and answers in results.

mod harness;
mod little;
mod local_command;
mod marks;
mod replies;

use std::borrow::Cow;

use treering_domain::{ContentPart, MessageAppended, Role};

pub(crate) use harness::{is_said, without_reminders};
pub(crate) use little::says_little;
pub(crate) use marks::{is_by_harness, local_command};
pub(crate) use replies::reply;

/// What the user said with a message, without what a harness put into it; none where it is
/// nobody's word or asks nothing.
pub(crate) fn of_message(message: &MessageAppended) -> Option<String> {
    if message.role != Role::User || is_by_harness(message) {
        return None;
    }
    of_texts(message.parts.iter().filter_map(ContentPart::text))
}

/// What is said with the texts of a message that no harness wrote.
pub(crate) fn of_texts<'a>(texts: impl Iterator<Item = &'a str>) -> Option<String> {
    let said: Vec<Cow<'_, str>> = texts
        .filter(|text| is_said(text))
        .map(harness::as_said)
        .collect();
    (!said.is_empty()).then(|| said.join("\n"))
}
