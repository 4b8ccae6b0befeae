//! Client access to a store: a server over the network, or a folder that is opened in this process
//! and served through an in-memory pipe. Both use the generated gRPC clients, so both give the same
//! answers.
//!
//! [`Connection`] connects to a store, [`ConversationWriter`] appends planned events of an import,
//! [`names`] resolves the name of a conversation, [`read`] makes requests that several programs
//! share, and [`ClientError`] describes an error and what to do about it.

#![cfg_attr(not(test), warn(unreachable_pub))]

pub mod connect;
pub mod conversation_writer;
pub mod embedded;
pub mod error;
pub mod holder;
pub mod names;
pub mod options;
pub mod read;

pub use connect::{Connection, FolderOptions};
pub use conversation_writer::{ConversationWriter, WriteRefusal};
pub use error::ClientError;
pub use options::{ConnectOptions, Credentials, KeyArgument, Target};
use treering_present::{safe, text};
use treering_proto::pb;
