//! What an API key needs to call a method and to append an event, as `proto/` says.

use crate::pb::Access;
use treering_domain::EventKind;

include!(concat!(env!("OUT_DIR"), "/access.rs"));
