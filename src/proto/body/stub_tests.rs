//! Stubs keep the structure of a conversation.

use proptest::prelude::*;

use super::*;
use random::batches;
use treering_domain::{
    self as domain, AppendCommand, EventRef, Namespace, NewEvent, Revision, SequencedEvent,
};
use world::{World, create, id};

#[path = "../../domain/tests/random.rs"]
mod random;
#[expect(dead_code, reason = "tests of the domain use more of it")]
#[path = "../../domain/tests/world.rs"]
mod world;

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    // After erasing the content of any events, the branches must have the same events, calls,
    // turns, forks and heads, whatever the texts were.
    #[test]
    fn stubs_fold_to_the_same_structure(
        batches in batches(),
        erased in prop::collection::vec(any::<bool>(), 1..40),
    ) {
        let mut world = World::new();
        let (mut whole, mut stubs) = (World::empty(), World::empty());
        let first = create(1);
        let mut accepted = vec![(first, SequencedEvent { branch: BranchId::MAIN, at: EventRef {
            conversation: id(1),
            revision: Revision(1),
        } })];
        for events in batches {
            let command = AppendCommand::new(Namespace::default(), events);
            if let Ok(placed) = world.append(&command) {
                accepted.extend(command.events.into_iter().zip(placed));
            }
        }
        for ((event, placed), erased) in accepted.into_iter().zip(erased.into_iter().cycle()) {
            whole.record(&event, placed);
            let body = match erased {
                true => stubbed(&event.body, placed.branch),
                false => event.body.clone(),
            };
            prop_assert_eq!(body.kind(), event.body.kind());
            stubs.record(&NewEvent { body, ..event }, placed);
        }
        prop_assert_eq!(whole.without_texts(), world.without_texts());
        prop_assert_eq!(stubs.without_texts(), whole.without_texts());
    }
}

fn stubbed(body: &EventBody, branch: BranchId) -> EventBody {
    decode(body.kind(), &stub(body, branch)).unwrap()
}
