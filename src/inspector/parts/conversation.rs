//! What the pages of one conversation have in common.

use maud::{Markup, html};

use crate::{
    codec::pb,
    inspector::visit::{Visit, path_part, query},
};

/// Labels of ours begin with this, and say nothing to people.
const OWN: &str = "treering/";

/// The labels that people gave.
#[must_use]
pub fn labels_of(summary: &pb::ConversationSummary) -> Vec<(&String, &String)> {
    let given = summary
        .labels
        .iter()
        .filter(|(name, _)| !name.starts_with(OWN));
    given.collect()
}

/// The pages of a conversation: name, what stands behind its address, word.
const VIEWS: [(&str, &str, &str); 5] = [
    ("transcript", "", "Transcript"),
    ("branches", "/branches", "Branches"),
    ("tools", "/tools", "Tool calls"),
    ("request", "/request", "Request"),
    ("diff", "/diff", "Compare"),
];

/// What a page of a conversation is called.
#[must_use]
pub fn word(name: &str) -> &'static str {
    let view = VIEWS.iter().find(|(one, ..)| *one == name);
    view.map_or("", |(_, _, word)| word)
}

/// Links to the pages of a conversation, of which `current` is shown.
#[must_use]
pub fn tabs(visit: &Visit, id: &str, branch: &str, current: &str) -> Markup {
    let query = match query(&[("branch", branch)]) {
        query if query.is_empty() => query,
        query => format!("?{query}"),
    };
    let search = crate::inspector::visit::query(&[("c", id)]);
    html! {
        nav.views aria-label="Pages of this conversation" {
            @for (name, path, word) in VIEWS {
                a href={ (visit.link(&format!("/c/{}{path}", path_part(id)))) (query) }
                    aria-current=[(name == current).then_some("page")] { (word) }
            }
            a href={ (visit.link("/search")) "?" (search) } { "Search in it" }
        }
    }
}
