//! Events as text for people: one header line, then the content, indented.
//! JSON is in [`super::json`].

mod address;
mod event;
mod explanation;
mod format;
mod pretty;
mod words;

pub use address::{address, row_around};
pub use event::{EventText, EventWords, event_lines, parts_text};
pub use explanation::{ExplanationText, compact_command, explanation_lines};
use format::columns_of;
pub use format::{
    ago, bytes_human, clock, count, cut, day, day_clock, first_line, happened, indent, is_hidden,
    is_undated, printable, short_id, things, turns_order, wrapped,
};
pub use pretty::pretty_json;
pub use words::say;
