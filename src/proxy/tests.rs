//! A proxy between a scripted provider and a client, both on loopback, and a store in a folder.

mod conversations;
mod loopback;
mod recording;
mod transport;
