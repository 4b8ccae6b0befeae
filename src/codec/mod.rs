//! Protobuf messages ↔ domain types. The only place that knows both.
//!
//! Nothing here does I/O or decides whether an event may be appended: it checks
//! shape (what one event can say by itself), and no more. [`body`] turns stored
//! bytes into an [`EventBody`](crate::domain::EventBody) and back, [`envelope`]
//! does the same for what surrounds a body, [`json`] checks JSON text.

pub mod body;
pub mod envelope;
pub mod json;
pub mod pb;
pub mod rfc3339;
pub mod tags;

#[cfg(test)]
pub(crate) mod arbitrary;
