//! Events as text for people: one header line, then the content, indented.
//! JSON is in [`super::json`].

mod event;
mod format;

pub use event::{EventText, event_lines};
pub use format::{
    bytes_human, clock, count, day_clock, first_line, indent, printable, short_id, things,
};
