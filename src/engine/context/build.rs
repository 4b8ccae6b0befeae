//! Building requests.
