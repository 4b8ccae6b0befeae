//! Planning and appending compactions.
