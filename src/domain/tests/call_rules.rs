use super::world::{
    ARGUMENTS, World, approve, decision, deny, event, failure, first, fork, name, request, start,
    success,
};
use crate::{
    ApprovalStatus, CancelReason, ContentHash, Decision, EventBody, NewEvent, Revision, Rule,
    ToolCallCancelled,
};

fn cancel(call_id: &str) -> NewEvent {
    event(EventBody::ToolCallCancelled(ToolCallCancelled {
        call_id: call_id.to_owned(),
        reason: CancelReason::Interrupted,
        detail: String::new(),
    }))
}

fn with_call(needs_approval: bool) -> World {
    let mut world = World::new();
    world.take(vec![request("call", needs_approval)]);
    world
}

// Results, decisions, starts and cancellations name a call. If it is not open on this branch,
// it has ended already or belongs to another branch.
#[test]
fn event_of_a_call_that_is_not_open_is_refused() {
    let every = || {
        [
            success("call"),
            failure("call"),
            approve("call"),
            start("call"),
            cancel("call"),
        ]
    };
    let is_refused = |world: &mut World, event: NewEvent| {
        let rule = first(world.refusal(vec![event]));
        assert!(matches!(rule, Rule::CallNotOpen { .. }), "{rule:?}");
    };
    let mut world = World::new();
    every()
        .into_iter()
        .for_each(|event| is_refused(&mut world, event));
    world.take(vec![fork("draft", 0, 1), request("call", false)]);
    for event in every() {
        is_refused(&mut world, event.on_branch(name("draft")));
    }
    world.take(vec![success("call")]);
    every()
        .into_iter()
        .for_each(|event| is_refused(&mut world, event));
    world.take(vec![request("call", false), cancel("call")]);
    every()
        .into_iter()
        .for_each(|event| is_refused(&mut world, event));
}

// A fork in the middle of a call inherits it; each branch ends the call separately.
#[test]
fn inherited_call_ends_once_on_each_branch() {
    let mut world = with_call(false);
    world.take(vec![fork("draft", 0, 2), success("call")]);
    world.take(vec![failure("call").on_branch(name("draft"))]);
    for event in [success("call"), success("call").on_branch(name("draft"))] {
        let rule = first(world.refusal(vec![event]));
        assert!(matches!(rule, Rule::CallNotOpen { .. }), "{rule:?}");
    }
}

// Providers do reuse call ids. That is legal once the first call has ended; before that, a result
// could belong to either call.
#[test]
fn open_call_id_cannot_be_reused() {
    let mut world = with_call(false);
    let open = Rule::CallAlreadyOpen {
        call_id: "call".to_owned(),
        since: Revision(2),
    };
    assert_eq!(first(world.refusal(vec![request("call", false)])), open);
    world.take(vec![success("call"), request("call", false)]);
}

// A decision is final: a second one must not change it, whatever the first was.
#[test]
fn second_decision_is_refused() {
    let decided = [
        (Decision::Approved, ApprovalStatus::Approved),
        (Decision::Denied, ApprovalStatus::Denied),
        (Decision::Expired, ApprovalStatus::Expired),
    ];
    for (how, status) in decided {
        let mut world = with_call(true);
        world.take(vec![decision("call", how, ARGUMENTS)]);
        let rule = Rule::CallAlreadyDecided {
            call_id: "call".to_owned(),
            status,
        };
        for again in [approve("call"), deny("call")] {
            assert_eq!(first(world.refusal(vec![again])), rule);
        }
    }
}

// A decision about a call that needs none is the sender's mistake and must be refused.
#[test]
fn decision_without_required_approval_is_refused() {
    let mut world = with_call(false);
    let rule = Rule::ApprovalNotRequired {
        call_id: "call".to_owned(),
    };
    assert_eq!(first(world.refusal(vec![deny("call")])), rule);
    world.take(vec![request("other", true), deny("other")]);
}

// Two executors take the same call. The second must learn that it is already running before
// it, say, writes a file twice.
#[test]
fn second_start_of_a_call_is_refused() {
    let mut world = with_call(false);
    world.take(vec![start("call")]);
    let rule = Rule::CallAlreadyStarted {
        call_id: "call".to_owned(),
    };
    assert_eq!(first(world.refusal(vec![start("call")])), rule);
    world.take(vec![success("call"), request("call", false), start("call")]);
}

// A call that is pending, denied or expired must not run; it can only fail or be cancelled.
#[test]
fn unapproved_call_cannot_run() {
    let states = [
        (None, ApprovalStatus::Pending),
        (Some(Decision::Denied), ApprovalStatus::Denied),
        (Some(Decision::Expired), ApprovalStatus::Expired),
    ];
    for (decided, status) in states {
        let mut world = with_call(true);
        if let Some(how) = decided {
            world.take(vec![decision("call", how, ARGUMENTS)]);
        }
        let rule = Rule::CallNotApproved {
            call_id: "call".to_owned(),
            status,
        };
        for event in [start("call"), success("call")] {
            assert_eq!(first(world.refusal(vec![event])), rule);
        }
        world.clone().take(vec![failure("call")]);
        world.take(vec![cancel("call")]);
    }
    let mut world = with_call(true);
    world.take(vec![approve("call"), start("call"), success("call")]);
}

// Someone approves `rm a`, but the pending call says `rm b`. An approval covers exactly the
// arguments that were seen.
#[test]
fn decision_on_changed_arguments_is_refused() {
    let mut world = with_call(true);
    let seen = ContentHash([2; 32]);
    for how in [Decision::Approved, Decision::Denied] {
        let rule = Rule::ArgumentsChanged {
            call_id: "call".to_owned(),
            approved: seen.to_string(),
            actual: ARGUMENTS.to_string(),
        };
        assert_eq!(
            first(world.refusal(vec![decision("call", how, seen)])),
            rule
        );
    }
    world.take(vec![approve("call")]);
}
