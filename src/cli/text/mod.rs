//! Events as text for people: one header line, then the content, indented.
//! JSON is in [`super::json`].

mod event;
mod explanation;
mod format;
mod pretty;

pub use event::{EventText, event_lines};
pub use explanation::{ExplanationText, explanation_lines, provider_name};
pub use format::{
    bytes_human, clock, count, day_clock, first_line, indent, printable, short_id, things,
};
pub use pretty::pretty_json;
