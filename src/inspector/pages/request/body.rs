//! The body of a request: its beginning on the page, with a link to all of it.

use bytes::Bytes;
use maud::{Markup, html};

use crate::{
    bounds::BODY_BYTES,
    parts::{escape::block, numbers::size, pieces::fold},
};
use treering_present::text::pretty_json;

/// Bytes of text that are formatted: the shown bytes, and more for the white space that formatting
/// adds.
const LAID_OUT_BYTES: usize = 2 * BODY_BYTES;

/// Renders the beginning of a body.
#[must_use]
pub(crate) fn section(body: &Bytes, address: &str) -> Markup {
    let text = String::from_utf8_lossy(&body[..body.len().min(LAID_OUT_BYTES)]);
    let laid_out = pretty_json(&text);
    let is_whole = body.len() <= LAID_OUT_BYTES && laid_out.len() <= BODY_BYTES;
    let shown = &laid_out[..laid_out.floor_char_boundary(BODY_BYTES)];
    let head = html! { strong { "Body" } span.dim { (size(body.len() as u64)) } };
    let inside = html! {
        p.hint {
            @if !is_whole { "Truncated. " }
            a href=(address) { "Complete, as sent" }
        }
        (block(shown))
    };
    html! { section { (fold("body", true, &head, &inside)) } }
}
