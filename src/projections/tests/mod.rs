//! Tests of the projections: against a plain model, with damaged files, and for speed.

mod damage;
mod lookups;
mod model;
mod speed;
