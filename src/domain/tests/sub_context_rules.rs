//! Rules for sub-contexts: spawned, returned once, and bounded in depth.

use super::world::*;
use crate::{EventBody, NewEvent, Rule, SubContextReturned, SubContextSpawned};

fn spawn(child: u128, call_id: &str) -> NewEvent {
    event(EventBody::SubContextSpawned(SubContextSpawned {
        conversation: id(child),
        call_id: call_id.to_owned(),
        purpose: "look around".to_owned(),
    }))
}

fn returned(child: u128) -> NewEvent {
    event(EventBody::SubContextReturned(SubContextReturned {
        conversation: id(child),
        summary: "nothing there".to_owned(),
        call_id: String::new(),
    }))
}

// A summary of work that this branch never requested, or a repeated summary, would appear in its
// window as its own.
#[test]
fn sub_context_returns_once_and_only_to_its_branch() {
    let mut world = World::new();
    let stranger = Rule::SubContextNotRunning {
        branch: name("main"),
        child: id(2),
    };
    assert_eq!(first(world.refusal(vec![returned(2)])), stranger);
    world.take(vec![user(), fork("before", 0, 2), spawn(2, "")]);
    let elsewhere = world.refusal(vec![returned(2).on_branch(name("before"))]);
    assert!(matches!(
        first(elsewhere),
        Rule::SubContextNotRunning { .. }
    ));
    world.take(vec![fork("after", 0, 4)]);
    world.take(vec![returned(2)]);
    assert_eq!(first(world.refusal(vec![returned(2)])), stranger);
    // A fork made in between still waits for the sub-context, as it does for open calls.
    world.take(vec![returned(2).on_branch(name("after"))]);
    assert!(world.main(1).sub_contexts.is_empty());
}

// The sub-context answers its call: the call must be open and allowed to run, and two
// sub-contexts cannot both answer it.
#[test]
fn call_takes_one_sub_context_while_open() {
    let mut world = World::new();
    let refused = world.refusal(vec![spawn(2, "a")]);
    assert!(matches!(first(refused), Rule::CallNotOpen { .. }));
    world.take(vec![user(), assistant(), request("a", true)]);
    let refused = world.refusal(vec![spawn(2, "a")]);
    assert!(matches!(first(refused), Rule::CallNotApproved { .. }));
    world.take(vec![approve("a"), spawn(2, "a")]);
    for again in [spawn(3, "a"), spawn(2, "")] {
        let running = Rule::SubContextRunning {
            child: id(2),
            call_id: "a".to_owned(),
        };
        assert_eq!(first(world.refusal(vec![again])), running);
    }
    world.take(vec![spawn(3, "")]);
    world.take(vec![returned(2), spawn(4, "a"), success("a")]);
    assert!(world.main(1).sub_contexts.contains_key(&id(4)));
}

// A chain of agents that call agents must be bounded; forks do not add to its depth.
#[test]
fn sub_context_depth_is_limited() {
    let mut world = World::new();
    world.limits.sub_context_depth_max = 2;
    world.take(vec![create_from(2, 1, 1, false)]);
    world.take(vec![create_from(3, 2, 1, true), create_from(4, 3, 1, true)]);
    world.take(vec![create_from(5, 4, 1, false)]);
    assert_eq!(world.states[&id(5)].row.info.sub_context_depth, 2);
    let refused = world.refusal(vec![create_from(6, 5, 1, false)]);
    let expected = Rule::LimitReached {
        what: "the depth of sub-contexts",
        actual: 3,
        max: 2,
        limit: "sub_context_depth_max",
    };
    assert_eq!(first(refused), expected);
    world.take(vec![create_from(6, 5, 1, true)]);
    // Nesting within one batch counts too.
    let batch = vec![create_from(7, 2, 1, false), create_from(8, 7, 1, false)];
    assert_eq!(world.refusal(batch).event_index, Some(1));
}
