//! Components of pages.

pub mod chart;
pub mod conversation;
pub mod hostile;
pub mod json;
pub mod numbers;
pub mod pager;
pub mod pieces;
pub mod place;
pub mod time;
