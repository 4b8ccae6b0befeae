use std::collections::BTreeSet;

use super::world::{
    World, assistant, compact, create, create_from, event, expecting, first, fork, id, name,
    request, start, success, user,
};
use crate::{
    AnnotationAdded, AppendCommand, ApprovalStatus, BranchId, EventBody, EventId, EventKind,
    ExpectedNewest, ExpectedRevision, Namespace, NewEvent, Revision, Rule, SummaryRecorded,
    ToolSnapshotRecorded,
};

// A client that sends an empty batch has a bug and must get an error, not an empty success.
#[test]
fn empty_batch_is_refused() {
    let mut world = World::new();
    let rejection = world.refusal(vec![]);
    assert_eq!(rejection.rule, Rule::EmptyBatch);
    assert_eq!(rejection.event_index, None);
    world.take(vec![user()]);
}

// A typo in an id must not create a conversation without a first event.
#[test]
fn append_to_a_missing_conversation_is_refused() {
    let mut world = World::new();
    let stray = NewEvent::new(id(2), user().body);
    let not_found = Rule::ConversationNotFound {
        conversation: id(2),
    };
    assert_eq!(first(world.refusal(vec![stray.clone()])), not_found);
    let orphan = create_from(3, 2, 1, true);
    assert_eq!(first(world.refusal(vec![orphan])), not_found);
    world.take(vec![create(2), stray]);
}

// An exact expectation of a missing conversation fails, before any event is checked.
#[test]
fn exact_expectation_of_a_missing_conversation_fails() {
    let mut world = World::new();
    let mut command = AppendCommand::new(Namespace::default(), vec![create(2)]);
    command.expectations = expecting(None, ExpectedRevision::Exact(Revision(1))).expectations;
    command.expectations[0].conversation = id(2);
    let rejection = world.refusal_of(&command);
    assert_eq!(rejection.event_index, None);
    assert_eq!(
        rejection.rule,
        Rule::ConversationNotFound {
            conversation: id(2)
        }
    );
    command.expectations[0].expected = ExpectedRevision::NoStream;
    assert!(world.append(&command).is_ok());
}

// Two clients create the same conversation, or one batch does so twice. The second must not
// write into the first.
#[test]
fn second_creation_of_a_conversation_is_refused() {
    let mut world = World::new();
    let exists = |n, head| Rule::ConversationExists {
        conversation: id(n),
        head: Revision(head),
    };
    assert_eq!(first(world.refusal(vec![create(1)])), exists(1, 1));
    let twice = world.refusal(vec![create(2), create(2)]);
    assert_eq!((twice.event_index, twice.rule), (Some(1), exists(2, 1)));
    let unexpected = world.refusal_of(&expecting(None, ExpectedRevision::NoStream));
    assert_eq!(unexpected.rule, exists(1, 1));
    world.take(vec![create(2)]);
}

// `NoStream` checks the conversation and `Any` checks nothing: an unknown branch name must not
// affect either.
#[test]
fn no_stream_and_any_ignore_the_branch_name() {
    let mut world = World::new();
    let rejection = world.refusal_of(&expecting(Some("draft"), ExpectedRevision::NoStream));
    let exists = Rule::ConversationExists {
        conversation: id(1),
        head: Revision(1),
    };
    assert_eq!(rejection.rule, exists);
    let any = expecting(Some("draft"), ExpectedRevision::Any);
    assert!(world.append(&any).is_ok());
}

// Two agents read the same head and both append. The second must be told the current head,
// or their messages interleave unnoticed.
#[test]
fn stale_expected_revision_is_refused() {
    let mut world = World::new();
    world.take(vec![user()]);
    let rejection = world.refusal_of(&expecting(None, ExpectedRevision::Exact(Revision(1))));
    let mismatch = Rule::RevisionMismatch {
        branch: name("main"),
        expected: Revision(1),
        actual: Revision(2),
    };
    assert_eq!((rejection.event_index, rejection.rule), (None, mismatch));
    let right = expecting(Some("main"), ExpectedRevision::Exact(Revision(2)));
    assert!(world.append(&right).is_ok());
}

// A sealed conversation is evidence. Nothing may follow, not even in the batch that seals it,
// but it may be forked into a new one.
#[test]
fn sealed_conversation_refuses_events() {
    let mut world = World::new();
    let seal = || {
        event(EventBody::ConversationSealed {
            reason: "done".to_owned(),
            summary: String::new(),
        })
    };
    let sealed = Rule::Sealed {
        conversation: id(1),
    };
    let rejection = world.refusal(vec![seal(), user()]);
    assert_eq!(
        (rejection.event_index, rejection.rule),
        (Some(1), sealed.clone())
    );
    world.take(vec![user(), seal()]);
    for late in [user(), seal(), fork("late", 0, 1)] {
        assert_eq!(first(world.refusal(vec![late])), sealed);
    }
    world.take(vec![create_from(2, 1, 3, true)]);
}

// A tree of conversations lives in one shard, so a batch must not span two trees.
#[test]
fn batch_over_two_trees_is_refused() {
    let mut world = World::new();
    world.take(vec![create(2)]);
    let both = vec![user(), NewEvent::new(id(2), user().body)];
    let rejection = world.refusal(both);
    let trees = Rule::DifferentTrees {
        first: id(1),
        second: id(2),
    };
    assert_eq!((rejection.event_index, rejection.rule), (None, trees));
    world.take(vec![create_from(3, 1, 1, false)]);
    world.take(vec![user(), NewEvent::new(id(3), user().body)]);
}

// Only an erasure by the engine removes content. A client's event that claims an erasure would
// falsify the history.
#[test]
fn client_cannot_append_content_erased() {
    let mut world = World::new();
    let erased = event(EventBody::ContentErased {
        revisions: vec![Revision(1)],
        reason: String::new(),
        stubs: None,
        signed_by: None,
    });
    let kind = EventKind::ContentErased;
    assert_eq!(
        first(world.refusal(vec![erased])),
        Rule::EngineOnly { kind }
    );
    let reason = String::new();
    let summary = String::new();
    world.take(vec![event(EventBody::ConversationSealed {
        reason,
        summary,
    })]);
}

// If a conversation were its own parent, every walk to the root would be endless.
#[test]
fn conversation_cannot_be_its_own_parent() {
    let mut world = World::new();
    let own = Rule::OwnParent {
        conversation: id(2),
    };
    assert_eq!(first(world.refusal(vec![create_from(2, 2, 1, true)])), own);
    world.take(vec![create_from(2, 1, 1, true)]);
}

// Sharing history requires a parent. Without one the new conversation would look complete but
// lack its past.
#[test]
fn shared_history_requires_a_parent() {
    let mut world = World::new();
    let mut shares = create(2);
    if let EventBody::ConversationCreated(created) = &mut shares.body {
        created.shares_history = true;
    }
    let rule = first(world.refusal(vec![shares]));
    assert!(matches!(rule, Rule::ParentIncomplete { .. }), "{rule:?}");
    world.take(vec![create_from(2, 1, 1, true)]);
}

// Annotations, snapshots and summaries refer to events. A dangling reference would silently never
// be shown.
#[test]
fn reference_to_a_missing_revision_is_refused() {
    let mut world = World::new();
    let annotate = |target| {
        event(EventBody::AnnotationAdded(AnnotationAdded {
            target,
            ..AnnotationAdded::default()
        }))
    };
    let snapshot = |revision| {
        event(EventBody::ToolSnapshotRecorded(ToolSnapshotRecorded {
            call_id: "call".to_owned(),
            request_revision: Revision(revision),
            summary: String::new(),
        }))
    };
    let summary = |from, to| {
        event(EventBody::SummaryRecorded(SummaryRecorded {
            content: String::new(),
            from_revision: Revision(from),
            to_revision: Revision(to),
        }))
    };
    let pointing_nowhere = [
        (annotate(Some(Revision(2))), 2),
        (annotate(Some(Revision(0))), 0),
        (snapshot(2), 2),
        (summary(0, 1), 0),
        (summary(1, 9), 9),
    ];
    for (event, revision) in pointing_nowhere {
        let missing = Rule::RevisionMissing {
            revision: Revision(revision),
            head: Revision(1),
        };
        assert_eq!(first(world.refusal(vec![event])), missing);
    }
    world.take(vec![annotate(Some(Revision(1))), annotate(None)]);
    world.take(vec![
        snapshot(1),
        summary(1, 2),
        annotate(Some(Revision(5))),
    ]);
}

// A call belongs to the message that requested it. A wrong revision would pair them wrongly in
// a later request.
#[test]
fn call_of_a_missing_message_is_refused() {
    let mut world = World::new();
    let asked = |revision| super::world::request_from("call", false, Some(revision));
    let missing = |revision| Rule::MessageMissing {
        revision: Revision(revision),
    };
    assert_eq!(first(world.refusal(vec![asked(1)])), missing(1));
    world.take(vec![user(), assistant()]);
    assert_eq!(first(world.refusal(vec![asked(2)])), missing(2));
    world.take(vec![asked(3)]);
}

// Idempotency keys are checked before `decide`, so this rule has no state here. Clients see its
// name and text.
#[test]
fn idempotency_key_does_not_affect_domain_rules() {
    let rule = Rule::IdempotencyConflict;
    assert_eq!(rule.name(), "IDEMPOTENCY_CONFLICT");
    let mut world = World::new();
    let mut command = AppendCommand::new(Namespace::default(), vec![user()]);
    command.idempotency_key = Some("key".to_owned());
    assert!(
        world.append(&command).is_ok(),
        "a key is no rule of its own"
    );
}

// Clients distinguish rules by name: each rule needs a unique name in capitals and a text that says
// what happened.
#[test]
fn every_rule_has_a_unique_name_and_text() {
    let conversation = id(1);
    let branch = name("main");
    let call_id = "call".to_owned();
    let status = ApprovalStatus::Pending;
    let revision = Revision(1);
    let rules = [
        Rule::EmptyBatch,
        Rule::ConversationNotFound { conversation },
        Rule::ConversationExists {
            conversation,
            head: revision,
        },
        Rule::BranchNotFound {
            conversation,
            branch: "a".to_owned(),
        },
        Rule::RevisionMismatch {
            branch: branch.clone(),
            expected: revision,
            actual: revision,
        },
        Rule::Sealed { conversation },
        Rule::BranchArchived {
            branch: branch.clone(),
        },
        Rule::ArchivesActiveBranch {
            branch: branch.clone(),
        },
        Rule::BranchNameTaken {
            name: branch.clone(),
        },
        Rule::ForkPointMissing {
            conversation,
            branch: BranchId::MAIN,
            revision,
        },
        Rule::CallNotOpen {
            branch: branch.clone(),
            call_id: call_id.clone(),
            state: "ended",
        },
        Rule::CallAlreadyOpen {
            call_id: call_id.clone(),
            since: revision,
        },
        Rule::CallAlreadyDecided {
            call_id: call_id.clone(),
            status,
        },
        Rule::ApprovalNotRequired {
            call_id: call_id.clone(),
        },
        Rule::CallAlreadyStarted {
            call_id: call_id.clone(),
        },
        Rule::CallNotApproved {
            call_id: call_id.clone(),
            status,
        },
        Rule::ArgumentsChanged {
            call_id,
            approved: String::new(),
            actual: String::new(),
        },
        Rule::MessageMissing { revision },
        Rule::NotATurnBoundary { branch, revision },
        Rule::CutBeforeLastCut {
            cut: revision,
            last_cut: revision,
        },
        Rule::RevisionMissing {
            revision,
            head: revision,
        },
        Rule::IdempotencyConflict,
        Rule::EventIdTaken {
            id: EventId::default(),
            conversation,
            revision,
        },
        Rule::EventIdConflict {
            id: EventId::default(),
            conversation,
            revision,
        },
        Rule::LatestMismatch {
            index: 0,
            expected: ExpectedNewest::Revision(revision),
            actual: None,
        },
        Rule::DifferentTrees {
            first: conversation,
            second: id(2),
        },
        Rule::EngineOnly {
            kind: EventKind::ContentErased,
        },
        Rule::LimitReached {
            what: "calls",
            actual: 2,
            max: 1,
            limit: "open_calls_max",
        },
        Rule::OwnParent { conversation },
        Rule::ParentIncomplete { what: "nothing" },
        Rule::SubContextNotRunning {
            branch: name("main"),
            child: conversation,
        },
        Rule::SubContextRunning {
            child: conversation,
            call_id: String::new(),
        },
    ];
    let names: BTreeSet<&str> = rules.iter().map(Rule::name).collect();
    let texts: BTreeSet<String> = rules.iter().map(Rule::to_string).collect();
    assert_eq!((names.len(), texts.len()), (rules.len(), rules.len()));
    let capital = |c: char| c.is_ascii_uppercase() || c == '_';
    assert!(names.iter().all(|name| name.chars().all(capital)));
}

// An import appends a whole conversation in one batch: rules must see the batch's own earlier
// events, not only stored ones.
#[test]
fn rules_see_earlier_events_of_the_batch() {
    let mut world = World::new();
    let placed = world.take(vec![
        user(),
        assistant(),
        request("a", false),
        request("b", false),
        start("a"),
        success("b"),
        success("a"),
        assistant(),
        compact(9),
        fork("try", 0, 10),
        user().on_branch(name("try")),
    ]);
    assert_eq!(placed.last().map(|p| p.branch), Some(BranchId(11)));
    let revisions: Vec<u64> = placed.iter().map(|p| p.at.revision.0).collect();
    assert_eq!(revisions, (2..=12).collect::<Vec<_>>());
    assert_eq!(world.main(1).head, Revision(10));
}
