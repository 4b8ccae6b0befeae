//! A conversation for readers: `window` reads a part of a branch's history, `thread` converts its
//! events to messages and steps, `card` and `step` render them.

pub mod card;
pub mod step;
pub mod thread;
pub mod window;
