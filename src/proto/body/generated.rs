//! The code that `build/bodies.rs` generates from `event.proto` and its options.

#![allow(clippy::all, clippy::pedantic, unused_variables)]

use bytes::Bytes;

use super::{
    Body,
    convert::{
        Choice, ERASED, Scalar, branch_name, chosen, each, event_key, json, json_map, name,
        name_list, optional_json, short, short_list, text_map, unspecified, uuid, values,
    },
    decode_as,
    fault::FieldResult,
    written,
};
use crate::pb;
use treering_domain::{self as domain, BranchId, EventBody, EventKind};

include!(concat!(env!("OUT_DIR"), "/bodies.rs"));
