//! Formats events as text for people: one header line, then the content, indented. For JSON see
//! [`super::json`].

mod address;
mod beside_talk;
mod descriptions;
mod event;
mod explanation;
mod format;
mod pretty;
mod sign;
mod zone;

pub use address::{address, row_around};
pub use beside_talk::{is_beside_talk, is_usual_end, left_out};
pub use descriptions::{decision_text, describe_event, status_text};
pub use event::{EventText, EventWords, event_lines, parts_text};
pub use explanation::{ExplanationText, explanation_lines};
use format::columns_of;
pub use format::{
    bytes_human, count, cut, duration, first_line, happened, indent, is_undated, short_id, things,
    wrapped,
};
pub use pretty::pretty_json;
pub use sign::{is_unseen, picture, printable, printable_json, printable_lines, push_escape};
pub use zone::Zone;
