use super::world::{
    World, assistant, create_from, event, expecting, first, fork, id, name, request, user,
};
use crate::{
    BranchId, ContextSet, Entity, EventBody, ExpectedRevision, Guidance, JsonText, Revision, Rule,
};

fn activate() -> EventBody {
    EventBody::BranchActivated
}

fn archive() -> EventBody {
    let reason = "a dead end".to_owned();
    EventBody::BranchArchived { reason }
}

fn rename(to: &str) -> EventBody {
    EventBody::BranchRenamed(name(to))
}

// A misspelt branch name must not fall back to the active branch.
#[test]
fn unknown_branch_is_refused() {
    let mut world = World::new();
    let not_found = Rule::BranchNotFound {
        conversation: id(1),
        branch: "draft".to_owned(),
    };
    let stray = user().on_branch(name("draft"));
    assert_eq!(first(world.refusal(vec![stray.clone()])), not_found);
    let expected = expecting(Some("draft"), ExpectedRevision::Exact(Revision(1)));
    assert_eq!(world.refusal_of(&expected).rule, not_found);
    world.take(vec![fork("draft", 0, 1), stray]);
}

// An archived branch never changes; to continue, fork it.
#[test]
fn archived_branch_refuses_events() {
    let mut world = World::new();
    world.take(vec![fork("draft", 0, 1)]);
    let on_draft = |body| event(body).on_branch(name("draft"));
    world.take(vec![on_draft(archive())]);
    let archived = Rule::BranchArchived {
        branch: name("draft"),
    };
    for body in [user().body, activate(), archive(), rename("other")] {
        assert_eq!(first(world.refusal(vec![on_draft(body)])), archived);
    }
    let next = fork("draft 2", 2, 3);
    world.take(vec![next, user().on_branch(name("draft 2"))]);
}

// Appends without a branch go to the active one. If it could be archived, all of them would
// fail.
#[test]
fn active_branch_cannot_be_archived() {
    let mut world = World::new();
    world.take(vec![fork("draft", 0, 1)]);
    let rule = Rule::ArchivesActiveBranch {
        branch: name("main"),
    };
    assert_eq!(first(world.refusal(vec![event(archive())])), rule);
    world.take(vec![
        event(activate()).on_branch(name("draft")),
        event(archive()).on_branch(name("main")),
        user(),
    ]);
    let draft = &world.states[&id(1)].branches[&BranchId(2)];
    assert_eq!(draft.head, Revision(5));
}

// Branches are found by name. If two had the same name, one would be unreachable, whether the name
// was taken in the store or in the same batch.
#[test]
fn taken_branch_name_is_refused() {
    let mut world = World::new();
    let taken = |taken| Rule::BranchNameTaken { name: name(taken) };
    assert_eq!(
        first(world.refusal(vec![fork("main", 0, 1)])),
        taken("main")
    );
    let twice = world.refusal(vec![fork("draft", 0, 1), fork("draft", 0, 1)]);
    assert_eq!((twice.event_index, twice.rule), (Some(1), taken("draft")));
    world.take(vec![fork("draft", 0, 1)]);
    assert_eq!(
        first(world.refusal(vec![event(rename("draft"))])),
        taken("draft")
    );
    world.take(vec![event(rename("trunk")), fork("main", 0, 1)]);
    assert_eq!(
        first(world.refusal(vec![event(rename("main"))])),
        taken("main")
    );
}

// Two branches swap names in one batch. Both must be found by their new names afterwards,
// in whichever order the branches are absorbed.
#[test]
fn branches_swap_names_in_one_batch() {
    let mut world = World::new();
    world.take(vec![fork("draft", 0, 1)]);
    world.take(vec![
        event(rename("aside")).on_branch(name("main")),
        event(rename("main")).on_branch(name("draft")),
        event(rename("draft")).on_branch(name("aside")),
    ]);
    let state = &world.states[&id(1)];
    let found = |wanted| state.branch(Some(&name(wanted))).map(|branch| branch.id);
    assert_eq!(found("draft"), Some(BranchId::MAIN));
    assert_eq!(found("main"), Some(BranchId(2)));
    assert_eq!(found("aside"), None);
}

// A fork from a revision that the parent never had would inherit another branch's events,
// or none.
#[test]
fn fork_from_a_missing_revision_is_refused() {
    let mut world = World::new();
    world.take(vec![user(), fork("draft", 0, 2)]);
    world.take(vec![user(), assistant()]);
    let missing = |conversation, branch, revision| Rule::ForkPointMissing {
        conversation: id(conversation),
        branch: BranchId(branch),
        revision: Revision(revision),
    };
    // A future revision, revision 0, one of another branch, and a missing branch.
    for (branch, revision) in [(0, 6), (0, 0), (0, 3), (3, 4), (9, 1)] {
        let rule = first(world.refusal(vec![fork("new", branch, revision)]));
        assert_eq!(rule, missing(1, branch, revision));
        if branch == 0 {
            let elsewhere = create_from(2, 1, revision, true);
            assert_eq!(
                first(world.refusal(vec![elsewhere])),
                missing(1, 0, revision)
            );
        }
    }
    // The head; the past; the parent's past, through the fork.
    for (n, (branch, revision)) in [(0, 5), (0, 4), (3, 2), (3, 1)].into_iter().enumerate() {
        world.take(vec![fork(&format!("new {n}"), branch, revision)]);
    }
    world.take(vec![create_from(2, 1, 4, true)]);
}

// Every count has a limit; otherwise one client could use up the memory for all. A count equal to
// the limit is legal.
#[test]
fn counts_over_their_limit_are_refused() {
    let check = |world: &mut World, limit: &str, inside: EventBody, over: EventBody| {
        world.take(vec![event(inside)]);
        match first(world.refusal(vec![event(over)])) {
            Rule::LimitReached {
                limit: found,
                actual,
                max,
                ..
            } => {
                assert_eq!((found, actual, max), (limit, 3, 2));
            }
            other => panic!("{limit}: {other:?}"),
        }
    };
    let mut world = World::new();
    world.limits.branches_max = 2;
    check(
        &mut world,
        "branches_max",
        fork("a", 0, 1).body,
        fork("b", 0, 1).body,
    );

    let mut world = World::new();
    world.limits.lineage_depth_max = 2;
    world.take(vec![fork("one", 0, 1)]);
    check(
        &mut world,
        "lineage_depth_max",
        fork("two", 2, 2).body,
        fork("three", 3, 3).body,
    );

    let mut world = World::new();
    world.limits.open_calls_max = 2;
    world.take(vec![request("one", false)]);
    let (two, three) = (request("two", false), request("three", false));
    check(&mut world, "open_calls_max", two.body, three.body);
}

// A branch's context keys and discovered tools are limited; setting a key again adds none.
#[test]
fn context_keys_and_tools_over_the_limit_are_refused() {
    let texts = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    let set = |key: &str| {
        EventBody::ContextSet(ContextSet {
            key: key.to_owned(),
            value: JsonText::default(),
            provider: String::new(),
        })
    };
    let entity = |id: &str| Entity {
        id: id.to_owned(),
        kind: String::new(),
        name: String::new(),
    };
    let guidance = |tool: &str| Guidance {
        tool: tool.to_owned(),
        text: String::new(),
    };
    let many = [
        EventBody::ToolsDiscovered {
            names: texts(&["a", "b"]),
        },
        EventBody::GuidanceGiven {
            guidance: vec![guidance("a"), guidance("b")],
        },
        EventBody::EntitiesNoted {
            entities: vec![entity("a"), entity("b")],
        },
    ];
    let mut world = World::new();
    world.limits.branch_items_max = 2;
    for body in many {
        world.take(vec![event(body.clone())]);
        let rule = first(world.refusal(vec![event(body)]));
        assert!(
            matches!(
                rule,
                Rule::LimitReached {
                    actual: 4,
                    max: 2,
                    ..
                }
            ),
            "{rule:?}"
        );
    }
    world.take(vec![event(set("a")), event(set("b")), event(set("a"))]);
    let rule = first(world.refusal(vec![event(set("c"))]));
    assert!(
        matches!(
            rule,
            Rule::LimitReached {
                actual: 3,
                max: 2,
                ..
            }
        ),
        "{rule:?}"
    );
    world.take(vec![
        event(EventBody::ContextRemoved {
            key: "a".to_owned(),
        }),
        event(set("c")),
    ]);
}
