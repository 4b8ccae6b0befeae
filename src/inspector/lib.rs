//! The inspector: web pages that show people what agents did, served on the port of the services
//! (`serve`, `demo`; `--no-inspector` disables it).
//!
//! `routes` is the table of all pages; `pages` has one module for each; `parts` has their
//! components; `frame` is the layout around each page; `request_context` gives a page the visitor
//! of a request, and the store with this visitor's access. Every request first passes `guard`
//! (hosts, origins, headers). `session` stores who is logged in, and `failure` renders the error
//! page.
//!
//! Like the commands, the inspector uses only the gRPC services, so the same keys, namespaces and
//! rules apply. Recorded text is untrusted: it is output through `parts::escape`, and all markup is
//! made by the inspector.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod bounds;
mod digest;
mod failure;
mod form;
mod frame;
mod guard;
mod live;
mod pages;
mod parts;
mod prices;
mod recorded_text;
mod request_context;
mod routes;
mod sampler;
mod session;
mod site;
mod sources;
mod transcript;

pub use prices::Prices;
pub use site::Inspector;
