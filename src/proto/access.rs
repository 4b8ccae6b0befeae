//! The access that an API key needs to call a method or append an event, as `proto/` defines it.

use crate::pb::Access;
use treering_domain::EventKind;

include!(concat!(env!("OUT_DIR"), "/access.rs"));
