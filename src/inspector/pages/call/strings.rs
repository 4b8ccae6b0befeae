//! Shows the multi-line strings in a call's arguments: edits as a diff, other strings as lines of
//! text, not as escaped JSON.

use maud::{Markup, PreEscaped, html};
use serde_json::Value;

use super::arguments;
use crate::{
    bounds::{ARGUMENTS_BYTES, DIFFERENT_LINES},
    parts::{
        edits::edits,
        escape::{escape_inline, escaped, fitting},
        pieces::fold,
        place::ConversationPlace,
    },
    request_context::RequestContext,
};
use treering_proto::pb;

/// Maximum bytes of markup for all multi-line strings of a call.
const TEXTS_MARKUP: usize = 48 << 10;
/// Maximum number of multi-line strings shown.
const TEXTS: usize = 20;

/// Renders the arguments of a call: first its edits as a diff or its multi-line strings as text,
/// then all arguments as written.
#[must_use]
pub(crate) fn apart(
    request_context: &RequestContext,
    place: &ConversationPlace,
    call: &pb::ToolCall,
) -> Markup {
    let whole = arguments(request_context, place, call);
    let edits = edits(&String::from_utf8_lossy(&call.arguments), DIFFERENT_LINES);
    if !edits.is_empty() {
        return html! {
            @for edit in &edits {
                div.lines-diff tabindex="0" role="group" aria-label="an edit" {
                    (edit.lines(["before: ", "after: "]))
                }
                @if edit.is_cut { p.hint { "Truncated; the complete text is below." } }
            }
            (fold("as-written", false, &html! { "All arguments, as written" }, &whole))
        };
    }
    let texts = match call.arguments.len() <= ARGUMENTS_BYTES {
        true => texts(&call.arguments),
        false => Vec::new(),
    };
    if texts.is_empty() {
        return whole;
    }
    let mut room = TEXTS_MARKUP;
    let cut = |(name, text): (String, String)| {
        let end = fitting(&text, room);
        let markup = escaped(&text[..end]).0;
        room -= markup.len();
        (name, PreEscaped(markup), end < text.len())
    };
    let shown_texts: Vec<_> = texts.into_iter().take(TEXTS).map(cut).collect();
    html! {
        @for (name, markup, is_cut) in &shown_texts {
            h3.of-argument { code { (escape_inline(name)) } }
            pre.text dir="auto" tabindex="0" { (markup) }
            @if *is_cut { p.hint { "Truncated; the complete text is below." } }
        }
        (fold("as-written", false, &html! { "All arguments, as written" }, &whole))
    }
}

/// Returns the multi-line strings in a JSON value, each with its path.
fn texts(json: &[u8]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    if let Ok(value) = serde_json::from_slice(json) {
        look(String::new(), value, &mut found);
    }
    found
}

fn look(name: String, value: Value, found: &mut Vec<(String, String)>) {
    match value {
        Value::String(text) if text.trim_end().contains('\n') => found.push((name, text)),
        Value::Array(items) => {
            for (index, item) in items.into_iter().enumerate() {
                look(format!("{name}[{index}]"), item, found);
            }
        }
        Value::Object(fields) => {
            for (field, item) in fields {
                let dot = if name.is_empty() { "" } else { "." };
                look(format!("{name}{dot}{field}"), item, found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // An edit must not be shown as one line with `\\n` and `\\"` in it.
    #[test]
    fn multi_line_texts_in_arguments_are_found() {
        let json = br#"{"path":"a.rs","edits":[{"old":"a\n\"b\"","new":"one"}],"text":"x\ny","end":"z\n"}"#;
        let found = texts(json);
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["edits[0].old", "text"]);
        assert_eq!(found[0].1, "a\n\"b\"");
        assert!(texts(b"no json").is_empty());
    }
}
