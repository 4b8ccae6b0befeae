//! Utilities for every layer: files and folders, caught panics, cancellation, trace spans,
//! measurements.

#![cfg_attr(not(test), warn(unreachable_pub))]

pub mod cancel;
pub mod catch_panics;
pub mod disk;
pub mod measure;
pub mod trace;
