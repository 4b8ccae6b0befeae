//! The vocabulary and the rules: ids, events, messages, tool calls, branches,
//! and `decide`, which says whether a batch may be appended.
//!
//! Nothing here does I/O, reads a clock for a decision, or knows how events are
//! encoded, stored or sent. It uses only std, serde, uuid, bytes and thiserror.

mod event;
mod id;
mod kind;
pub mod limits;
mod message;
mod tool;

pub use event::*;
pub use id::*;
pub use kind::EventKind;
pub use limits::Limits;
pub use message::*;
pub use tool::*;
