//! The store compared with a plain model; damage; speed.

mod damage;
mod lookups;
mod model;
mod speed;
