//! Components of pages.

pub(crate) mod chart;
pub(crate) mod conversation;
pub(crate) mod edits;
pub(crate) mod escape;
pub(crate) mod json;
pub(crate) mod line_diff;
pub(crate) mod markdown;
pub(crate) mod numbers;
pub(crate) mod pager;
pub(crate) mod period;
pub(crate) mod pieces;
pub(crate) mod place;
pub(crate) mod time;
