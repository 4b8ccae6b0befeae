//! Random batches, mostly invalid, so that many are refused.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    random::{any_event, batches},
    world::{World, assistant, fork, id, name, request, user},
};
use crate::{
    AppendCommand, BranchId, EventBody, Expectation, ExpectedRevision, Namespace, NewEvent,
};

/// The state of a call on a branch's own events since its fork, derived from the accepted
/// events.
#[derive(Default, Clone, Copy)]
struct CallLife {
    open: bool,
    pending: bool,
    started: bool,
}

type Lives = BTreeMap<(u128, BranchId, String), CallLife>;

/// Tracks calls using only the accepted events. `decide` tracks them independently, and the
/// two must agree.
fn follow(lives: &mut Lives, world: &World, event: &NewEvent, at: (u128, BranchId)) {
    let (conversation, branch) = at;
    match &event.body {
        EventBody::BranchForked(_) | EventBody::ConversationCreated(_) => {
            let state = &world.states[&event.conversation].branches[&branch];
            for (call_id, call) in &state.open_calls {
                let life = CallLife {
                    open: true,
                    pending: call.approval == crate::ApprovalStatus::Pending,
                    started: call.started,
                };
                lives.insert((conversation, branch, call_id.clone()), life);
            }
        }
        EventBody::ToolCallRequested(call) => {
            let life = lives.entry((conversation, branch, call.call_id.clone()));
            let life = life.or_default();
            assert!(!life.open, "two open calls with one id");
            *life = CallLife {
                open: true,
                pending: call.needs_approval,
                started: false,
            };
        }
        EventBody::ApprovalDecided(decided) => {
            let life = lives.get_mut(&(conversation, branch, decided.call_id.clone()));
            let life = life.expect("a decision about a call that never was");
            assert!(life.open && life.pending, "decided twice");
            life.pending = false;
        }
        EventBody::ToolCallStarted(started) => {
            let life = lives.get_mut(&(conversation, branch, started.call_id.clone()));
            let life = life.expect("a start of a call that never was");
            assert!(life.open && !life.pending && !life.started, "started twice");
            life.started = true;
        }
        EventBody::ToolResultRecorded(result) => {
            let life = lives.get_mut(&(conversation, branch, result.call_id.clone()));
            let life = life.expect("a result of a call that never was");
            assert!(life.open, "ended twice");
            assert!(!result.success || !life.pending, "succeeded unapproved");
            life.open = false;
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    // For any input: accepted events get revisions without gaps, a call is decided and ended at
    // most once on each branch, and folding event by event gives the same state. A refused batch
    // changes nothing.
    #[test]
    fn random_batches_keep_the_domain_rules(batches in batches()) {
        let mut world = World::new();
        let mut lives = Lives::new();
        for events in batches {
            let before = world.clone();
            let command = AppendCommand::new(Namespace::default(), events);
            let Ok(placed) = world.append(&command) else {
                prop_assert_eq!(&world, &before, "a refused batch left a trace");
                continue;
            };
            let mut heads: BTreeMap<_, u64> = BTreeMap::new();
            for (event, placed) in command.events.iter().zip(&placed) {
                let conversation = placed.at.conversation;
                prop_assert_eq!(conversation, event.conversation);
                let stored = || before.states.get(&conversation).map_or(0, |s| s.row.head.0);
                let head = heads.entry(conversation).or_insert_with(stored);
                *head += 1;
                prop_assert_eq!(placed.at.revision.0, *head, "a gap or a repeat");
            }
            // A fork inside a batch inherits an intermediate state, which the states after the
            // batch no longer show.
            let forks = |event: &NewEvent| matches!(
                event.body,
                EventBody::BranchForked(_) | EventBody::ConversationCreated(_)
            );
            if command.events.len() > 1 && command.events.iter().any(forks) {
                lives = lives_of(&world);
                continue;
            }
            for (event, placed) in command.events.iter().zip(&placed) {
                let at = (event.conversation.0.as_u128(), placed.branch);
                follow(&mut lives, &world, event, at);
            }
        }
    }

    // Agents explore on their own branches. An append to one branch must not invalidate the
    // other's exact expected revision, in either order.
    #[test]
    fn writers_on_two_branches_never_conflict(
        on_main in prop::collection::vec(any_event(), 1..4),
        on_side in prop::collection::vec(any_event(), 1..4),
    ) {
        let mut world = World::new();
        world.take(vec![user(), assistant(), fork("side", 0, 3), request("x", true)]);
        let stays = |event: &NewEvent| matches!(
            event.body,
            EventBody::MessageAppended(_)
                | EventBody::ToolCallRequested(_)
                | EventBody::ApprovalDecided(_)
                | EventBody::ToolCallStarted(_)
                | EventBody::ToolResultRecorded(_)
        );
        let command = |events: &[NewEvent], branch: &str| {
            let on_branch = |event: &NewEvent| {
                NewEvent::new(id(1), event.body.clone()).on_branch(name(branch))
            };
            let events = events.iter().filter(|event| stays(event)).map(on_branch);
            let mut command = AppendCommand::new(Namespace::default(), events.collect());
            let state = world.states[&id(1)].branch(Some(&name(branch))).unwrap();
            command.expectations.push(Expectation {
                conversation: id(1),
                branch: Some(name(branch)),
                expected: ExpectedRevision::Exact(state.head),
            });
            command
        };
        let (main, side) = (command(&on_main, "main"), command(&on_side, "side"));
        let alone = (world.clone().append(&main).is_ok(), world.clone().append(&side).is_ok());
        let mut main_first = world.clone();
        let main_then_side =
            (main_first.append(&main).is_ok(), main_first.append(&side).is_ok());
        let mut side_first = world.clone();
        let side_then_main =
            (side_first.append(&side).is_ok(), side_first.append(&main).is_ok());
        prop_assert_eq!(main_then_side, alone);
        prop_assert_eq!((side_then_main.1, side_then_main.0), alone);
    }
}

fn lives_of(world: &World) -> Lives {
    let mut lives = Lives::new();
    for (conversation, state) in &world.states {
        for branch in state.branches.values() {
            for (call_id, call) in &branch.open_calls {
                let life = CallLife {
                    open: true,
                    pending: call.approval == crate::ApprovalStatus::Pending,
                    started: call.started,
                };
                let conversation = conversation.0.as_u128();
                lives.insert((conversation, branch.id, call_id.clone()), life);
            }
        }
    }
    lives
}
