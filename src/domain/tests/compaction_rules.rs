use super::world::{
    World, assistant, compact, create_from, first, id, name, request, success, user,
};
use crate::{CompactionTrigger, EventBody, NewEvent, Revision, Rule};

/// An imported compaction.
fn imported(cut: u64) -> NewEvent {
    let mut event = compact(cut);
    if let EventBody::Compacted(compacted) = &mut event.body {
        compacted.trigger = CompactionTrigger::Imported;
    }
    event
}

// A cut inside a turn would separate a call from its result, or a question from its answer.
#[test]
fn cut_inside_a_turn_is_refused() {
    let mut world = World::new();
    world.take(vec![user(), assistant(), user(), assistant()]);
    world.take(vec![request("call", false), success("call"), assistant()]);
    let inside = |revision| Rule::NotATurnBoundary {
        branch: name("main"),
        revision: Revision(revision),
    };
    for cut in [2, 4, 5, 6, 7, 99] {
        assert_eq!(
            first(world.refusal(vec![compact(cut)])),
            inside(cut),
            "{cut}"
        );
    }
    let mut early = world.clone();
    early.take(vec![compact(3)]);
    world.take(vec![compact(8)]);
}

// Real sessions have calls that are never answered. If one of them blocked every later cut,
// the conversation would grow until no model accepts it.
#[test]
fn abandoned_call_does_not_block_a_cut() {
    let mut world = World::new();
    world.take(vec![user(), assistant(), request("lost", false)]);
    let waiting = first(world.refusal(vec![compact(4)]));
    assert!(
        matches!(waiting, Rule::NotATurnBoundary { .. }),
        "{waiting:?}"
    );
    world.take(vec![user(), assistant(), user()]);
    for inside in [4, 5, 7] {
        let refused = first(world.refusal(vec![compact(inside)]));
        assert!(matches!(refused, Rule::NotATurnBoundary { .. }), "{inside}");
    }
    world.take(vec![compact(6)]);
    // The result may still arrive, and is recorded.
    world.take(vec![success("lost")]);
}

// An unanswered call kept open every later turn that ended without an answer. A session of an agent
// that only calls tools could then never be compacted again.
#[test]
fn abandoned_call_does_not_join_the_turns_after_it() {
    let mut world = World::new();
    world.take(vec![user(), assistant(), request("lost", false)]);
    for call in ["a", "b", "c"] {
        world.take(vec![
            user(),
            assistant(),
            request(call, false),
            success(call),
        ]);
    }
    world.take(vec![user()]);
    // The message after the call may have come while it ran, so both are one turn.
    let finished = world.main(1).turn.finished;
    assert_eq!(finished, 3);
    // A call of the last message may still be answered.
    world.take(vec![assistant(), request("d", false), user()]);
    assert_eq!(world.main(1).turn.finished, finished);
}

// The message at the stored head ends its turn, unless the same batch continues with a call. A
// later compaction in that batch must not cut between the message and the call, just as with two
// batches.
#[test]
fn cut_before_a_call_of_the_same_batch_is_refused() {
    let mut world = World::new();
    world.take(vec![user(), assistant()]);
    let batch = vec![request("call", false), success("call"), compact(3)];
    let rejection = world.refusal(batch.clone());
    let inside = Rule::NotATurnBoundary {
        branch: name("main"),
        revision: Revision(3),
    };
    assert_eq!((rejection.event_index, rejection.rule), (Some(2), inside));
    world.clone().take(vec![user(), compact(3)]);
    world.take(vec![user(), assistant(), compact(5)]);
}

// A second summary of an already compacted range would bring old text back into the window.
#[test]
fn cut_before_the_last_cut_is_refused() {
    let mut world = World::new();
    world.take(vec![user(), assistant(), user(), assistant(), compact(5)]);
    for cut in [3, 5] {
        let before = Rule::CutBeforeLastCut {
            cut: Revision(cut),
            last_cut: Revision(5),
        };
        assert_eq!(first(world.refusal(vec![compact(cut)])), before);
    }
    world.take(vec![compact(6)]);
}

// A fork into a new conversation counts its revisions from 1 again, so its parent's last cut
// does not apply to it.
#[test]
fn last_cut_of_the_parent_does_not_apply_to_a_fork() {
    let mut world = World::new();
    world.take(vec![user(), assistant(), user(), assistant(), compact(5)]);
    world.take(vec![create_from(2, 1, 6, true)]);
    let own = |event: NewEvent| NewEvent::new(id(2), event.body);
    world.take(vec![own(user()), own(assistant()), own(compact(3))]);
    let again = world.refusal(vec![own(compact(3))]);
    assert!(matches!(again.rule, Rule::CutBeforeLastCut { .. }));
}

// A source compacts whenever its window is full, even before any turn has ended or twice in one
// turn. Its summary replaces everything before it, wherever the cut is, so it must be accepted. A
// cut inside a turn is still refused, and a cut never moves back.
#[test]
fn imported_compaction_may_repeat_the_last_cut() {
    let mut world = World::new();
    world.take(vec![user(), assistant(), request("a", false), success("a")]);
    let inside = first(world.refusal(vec![imported(3)]));
    assert!(
        matches!(inside, Rule::NotATurnBoundary { .. }),
        "{inside:?}"
    );
    world.take(vec![imported(1)]);
    world.take(vec![assistant(), request("b", false), imported(1)]);
    let own = first(world.refusal(vec![compact(1)]));
    assert!(matches!(own, Rule::CutBeforeLastCut { .. }), "{own:?}");
    world.take(vec![success("b"), assistant(), compact(11), imported(1)]);
    let main = world.main(1);
    assert_eq!((main.cut.0, main.compaction.unwrap().revision.0), (11, 13));
}
