//! Random events and batches, mostly invalid, so that many are refused.

use proptest::prelude::*;

use super::{
    domain::{EventBody, NewEvent},
    world::{
        approve, assistant, compact, create_from, deny, event, failure, fork, id, name, request,
        start, success, user,
    },
};

const BRANCHES: [&str; 3] = ["main", "a", "b"];
const CALLS: [&str; 2] = ["x", "y"];

pub(crate) fn any_event() -> impl Strategy<Value = NewEvent> {
    let call = prop::sample::select(&CALLS[..]);
    let branch = prop::sample::select(&BRANCHES[..]);
    let body = prop_oneof![
        6 => Just(user()),
        6 => Just(assistant()),
        6 => (call.clone(), any::<bool>()).prop_map(|(call, asks)| request(call, asks)),
        2 => call.clone().prop_map(approve),
        2 => call.clone().prop_map(deny),
        2 => call.clone().prop_map(start),
        3 => call.clone().prop_map(success),
        3 => call.prop_map(failure),
        2 => (branch.clone(), 0..4_u64, 0..20_u64).prop_map(|(n, b, r)| fork(n, b, r)),
        1 => (0..20_u64).prop_map(compact),
        1 => Just(event(EventBody::BranchActivated)),
        1 => branch.clone().prop_map(|to| event(EventBody::BranchRenamed(name(to)))),
        1 => Just(event(EventBody::BranchArchived { reason: String::new() })),
        1 => (2..4_u128, 1..20_u64).prop_map(|(n, r)| create_from(n, 1, r, true)),
    ];
    // Mostly the objects that exist from the start, so that enough batches are accepted.
    let branch = prop_oneof![6 => Just(None), 4 => branch.prop_map(Some)];
    let conversation = prop_oneof![9 => Just(1_u128), 1 => 2..4_u128];
    (body, branch, conversation).prop_map(|(mut event, branch, conversation)| {
        if !matches!(event.body, EventBody::ConversationCreated(_)) {
            event.conversation = id(conversation);
            event.branch = branch.map(name);
        }
        event
    })
}

pub fn batches() -> impl Strategy<Value = Vec<Vec<NewEvent>>> {
    prop::collection::vec(prop::collection::vec(any_event(), 1..4), 1..80)
}
