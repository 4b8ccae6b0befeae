//! Utilities for every layer: files and folders, caught panics, cancellation, trace spans,
//! measurements.

#![cfg_attr(not(test), warn(unreachable_pub))]

pub mod contained;
pub mod disk;
pub mod measure;
pub mod stop;
pub mod traced;
