//! The vocabulary and the rules: ids, events, messages, tool calls, branches, and [`decide()`],
//! which checks whether a batch may be appended.
//!
//! This crate does no I/O, makes no decision based on the clock, and does not know how events are
//! encoded, stored or sent. It depends only on std, serde, uuid, bytes, blake3 and thiserror.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod cause;
mod chain;
mod changes;
mod damage;
mod decide;
mod event;
mod hex;
mod id;
mod kind;
pub mod limits;
mod memory;
mod message;
mod quota;
mod rejection;
mod rules;
mod state;
mod tags;
#[cfg(test)]
mod tests;
mod tool;

pub use cause::{Cause, OperationError, WithCauses, with_causes};
pub use chain::{ChainHash, ChainHashes};
pub use changes::ChangedConversation;
pub use damage::{Damage, DamageKind};
pub use decide::{
    AcceptedBatch, DecideError, Lookup, MissingData, PastBranch, SequencedEvent, decide,
    decide_erasure,
};
pub use event::*;
pub use hex::{hex, unhex};
pub use id::*;
pub use kind::{EventBody, EventKind};
pub use limits::Limits;
pub use message::*;
pub use quota::*;
pub use rejection::{NewestWithKey, Rejection, Rule};
pub use state::*;
pub use tags::{Tags, TagsFault, check_key};
pub use tool::*;
