//! Elements that the pages of one conversation share.

use maud::{Markup, html};

use crate::request_context::{RequestContext, path_part, query};
use treering_proto::pb;

/// Prefix of Treering's own labels, which are not shown.
const OWN: &str = "treering/";

/// Returns the labels that users set.
#[must_use]
pub(crate) fn labels_of(summary: &pb::ConversationSummary) -> Vec<(&String, &String)> {
    let given = summary
        .labels
        .iter()
        .filter(|(name, _)| !name.starts_with(OWN));
    given.collect()
}

/// The pages of a conversation: name, suffix of the address, label.
const VIEWS: [(&str, &str, &str); 6] = [
    ("transcript", "", "Transcript"),
    ("branches", "/branches", "Branches"),
    ("tools", "/tools", "Tool calls"),
    ("request", "/request", "Request"),
    ("usage", "/usage", "Tokens"),
    ("diff", "/diff", "Compare"),
];

/// Returns the label of a page.
#[must_use]
pub(crate) fn word(name: &str) -> &'static str {
    let view = VIEWS.iter().find(|(one, ..)| *one == name);
    view.map_or("", |(_, _, word)| word)
}

/// Renders links to the pages of a conversation; `current` is the page that is shown.
#[must_use]
pub(crate) fn tabs(
    request_context: &RequestContext,
    id: &str,
    branch: &str,
    current: &str,
) -> Markup {
    let query = match query(&[("branch", branch)]) {
        query if query.is_empty() => query,
        query => format!("?{query}"),
    };
    let search = crate::request_context::query(&[("c", id)]);
    html! {
        nav.views aria-label="Pages of this conversation" {
            @for (name, path, word) in VIEWS {
                a href={ (request_context.link(&format!("/c/{}{path}", path_part(id)))) (query) }
                    aria-current=[(name == current).then_some("page")] { (word) }
            }
            a href={ (request_context.link("/search")) "?" (search) } { "Search in it" }
        }
    }
}
