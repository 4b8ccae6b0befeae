//! A conversation for readers: `window` reads a part of a branch's history, `thread` converts its
//! events to messages and steps, `card` and `step` render them.

pub(crate) mod card;
pub(crate) mod step;
pub(crate) mod thread;
pub(crate) mod window;
