//! The inspector: pages for people who look at what agents did, served on the port of the
//! services (`serve`, `demo`; `--no-inspector` leaves it out).
//!
//! `routes` is the table of all pages; `pages` has them, one module each; `parts` is what they
//! are made of; `frame` is what stands around each of them; `visit` is what a page knows of a
//! request: who looks, and the store as they see it. `guard` is passed first (hosts, origins,
//! headers), `session` is who has logged in, `failure` is a page that says what went wrong.
//!
//! All of it knows the gRPC services and nothing behind them, as commands do: keys, namespaces
//! and rules hold here as there. What was recorded is hostile text: it goes out through
//! `parts::hostile`, and the only markup is our own.

mod bounds;
mod digest;
mod failure;
mod form;
mod frame;
mod guard;
mod live;
mod pages;
mod parts;
mod recorded;
mod routes;
mod sampler;
mod session;
mod site;
mod sources;
mod transcript;
mod visit;

pub use site::Inspector;
