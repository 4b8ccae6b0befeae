//! A conversation as people read it: `window` takes a part of a branch's history, `thread` makes
//! messages and steps of its events, `card` and `step` show them.

pub mod card;
pub mod step;
pub mod thread;
pub mod window;
