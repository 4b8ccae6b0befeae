use std::sync::Arc;

use proptest::prelude::*;

use super::model::{Model, apply_in_groups, id, namespace, steps};
use crate::{
    EventEntry, Facet, ListNarrowing, ListOrder, ListPage, ProjectionDelta, Projections,
    ProjectionsError,
};
use treering_domain::{
    BranchId, ConversationId, ConversationKey, ConversationRow, ConversationState, Namespace,
    Revision, TimestampMicros,
};

const CACHE_BYTES: usize = 4 << 20;

/// Checks that every lookup answers as the model does.
fn check(projections: &Projections, model: &Model) {
    assert_eq!(projections.reached().unwrap(), model.reached);
    for n in 0..5 {
        check_conversation(projections, model, id(n));
    }
    for n in 0..2 {
        check_namespace(projections, model, &namespace(n));
    }
    let nobody = Namespace::new("default-").unwrap();
    check_namespace(projections, model, &nobody);
    assert_eq!(projections.counts(&nobody).unwrap(), Default::default());
}

fn check_conversation(projections: &Projections, model: &Model, id: ConversationKey) {
    let row = model.rows.get(&id).cloned();
    assert_eq!(projections.conversation(id).unwrap(), row);
    let branches = || {
        let mine = model.branches.iter().filter(|((of, _), _)| *of == id);
        mine.map(|(_, state)| Arc::clone(state))
    };
    let state = row.map(|row| ConversationState::new(row, branches()));
    assert_eq!(projections.state(id).unwrap(), state);
    assert_eq!(
        projections.state_with_mark(id).unwrap(),
        (model.reached, state)
    );
    for state in branches() {
        let found = projections.branch(id, state.id).unwrap();
        assert_eq!(found.as_ref(), Some(&*state));
        for revision in [0, 1, 31, 32, 33, 100, u64::MAX].map(Revision) {
            let from = (id, state.id, Revision::NONE);
            let mut kept = model.snapshots.range(from..=(id, state.id, revision));
            let expected = kept.next_back().map(|(_, state)| (**state).clone());
            let found = projections
                .snapshot_at_or_before(id, state.id, revision)
                .unwrap();
            assert_eq!(found, expected);
        }
    }
    assert_eq!(projections.branch(id, BranchId(u64::MAX)).unwrap(), None);
    for call_id in ["call", "call-1", "call-12", "", "c"] {
        let calls = model.calls.iter();
        let mine = calls.filter(|call| call.conversation == id && call.call_id == call_id);
        assert!(projections.calls(id, call_id).unwrap().iter().eq(mine));
    }
    let children = model.children.iter().filter(|(parent, _)| *parent == id);
    assert!(
        projections
            .children(id)
            .unwrap()
            .iter()
            .eq(children.map(|(_, child)| child))
    );
    check_entries(projections, model, id);
}

fn check_entries(projections: &Projections, model: &Model, id: ConversationKey) {
    let all: Vec<EventEntry> = model
        .entries
        .range((id, Revision(0))..=(id, Revision(u64::MAX)))
        .map(|(_, entry)| *entry)
        .collect();
    let edges = [0, 1, 2, 127, 128, 129, 130, 256, 257, u64::MAX];
    for (from, to) in edges.iter().flat_map(|a| edges.map(|b| (*a, b))) {
        for max in [0, 1, 3, 128, 129, usize::MAX] {
            let (first, last) = (Revision(from), Revision(to));
            let inside = |entry: &&EventEntry| (from..=to).contains(&entry.revision.0);
            let forward = projections.entries(id, first, last, max, false).unwrap();
            assert!(forward.iter().eq(all.iter().filter(inside).take(max)));
            let backward = projections.entries(id, first, last, max, true).unwrap();
            assert!(
                backward
                    .iter()
                    .eq(all.iter().rev().filter(inside).take(max))
            );
        }
    }
    for revision in edges.map(Revision) {
        let expected = model.entries.get(&(id, revision)).map(|entry| entry.offset);
        assert_eq!(projections.offset(id, revision).unwrap(), expected);
    }
}

fn check_namespace(projections: &Projections, model: &Model, namespace: &Namespace) {
    assert_eq!(
        projections.counts(namespace).unwrap(),
        model.counts(namespace)
    );
    for source in [None, Some("files"), Some("file"), Some("fil")] {
        let mut rows: Vec<ConversationRow> = model
            .rows
            .values()
            .filter(|row| row.namespace == *namespace)
            .filter(|row| source.is_none_or(|source| row.info.source == source))
            .cloned()
            .collect();
        rows.sort_by_key(|row| row.first_position.offset);
        let recorded = (ListOrder::Recorded, namespace, source);
        assert_eq!(pages(projections, recorded, 1, true), rows);
        rows.reverse();
        assert_eq!(pages(projections, recorded, 1, false), rows);
        let second = |row: &ConversationRow| row.happened_to.0.div_euclid(1_000_000);
        rows.sort_by_key(|row| (second(row), row.first_position.offset));
        let happened = (ListOrder::Happened, namespace, source);
        assert_eq!(pages(projections, happened, 1, true), rows);
        rows.reverse();
        assert_eq!(pages(projections, happened, 1, false), rows);
        // On one page, conversations within one second are in exact order too.
        rows.sort_by_key(|row| (row.happened_to, row.first_position.offset));
        assert_eq!(pages(projections, happened, usize::MAX, true), rows);
        rows.reverse();
        assert_eq!(pages(projections, happened, usize::MAX, false), rows);
    }
    check_facets(projections, model, namespace);
    for part in [
        "session",
        "ses",
        "sion-1",
        "session-11",
        "0",
        &id(1).id.to_string()[..9],
        &id(1).id.to_string()[30..],
        &id(1).id.to_string()[32..],
        &id(1).id.to_string()[33..],
    ] {
        check_named(projections, model, namespace, part);
    }
    for source_id in ["session", "session-1", "sess", ""] {
        let rows = model.rows.values().filter(|row| {
            row.namespace == *namespace && row.info.source_id == source_id && !source_id.is_empty()
        });
        let found = projections.by_source_id(namespace, source_id).unwrap();
        assert!(found.iter().eq(rows.map(|row| &row.id)));
    }
    for (_, key) in model.keys.keys().chain(&model.used) {
        let expected = model.keys.get(&(namespace.clone(), key.clone())).cloned();
        let found = projections.key(namespace, key).unwrap();
        assert_eq!(found, (model.reached, expected));
        assert_eq!(projections.key(namespace, &key[..4]).unwrap().1, None);
    }
    let waiting = |of: Option<ConversationId>| {
        let mine = model.pending.iter().filter(move |row| {
            row.0 == *namespace && of.is_none_or(|conversation| row.1 == conversation)
        });
        mine.map(|row| (row.1, row.2))
    };
    for of in [None, Some(id(0).id), Some(id(2).id)] {
        for limit in [0, 1, usize::MAX] {
            let found = projections.pending(namespace, of, limit).unwrap();
            assert!(found.into_iter().eq(waiting(of).take(limit)));
        }
    }
    for (_, hash) in model.blobs.keys() {
        let expected = model.blobs.get(&(namespace.clone(), *hash)).copied();
        assert_eq!(projections.blob_home(namespace, hash).unwrap(), expected);
    }
}

/// Checks the conversations of each facet, and lists that are filtered by it.
fn check_facets(projections: &Projections, model: &Model, namespace: &Namespace) {
    let (run, other) = (serde_json::json!(1), serde_json::json!("1"));
    let facets = [
        Facet::Source("files"),
        Facet::LabelName("name 0"),
        Facet::Label("name 0", "value 1"),
        Facet::Label("name 1", "value 0"),
        Facet::Label("name", "0value 0"),
        Facet::Metadata("run", &run),
        Facet::Metadata("run", &other),
        Facet::Sealed,
        Facet::Forked,
    ];
    for facet in facets {
        let has = |row: &ConversationRow| has_facet(row, facet);
        let rows = model.rows.values();
        let mut expected: Vec<_> = rows
            .filter(|row| row.namespace == *namespace && has(row))
            .collect();
        expected.sort_by_key(|row| row.first_position.offset);
        let expected: Vec<_> = expected.into_iter().map(|row| row.id).collect();
        let mut found = Vec::new();
        let all = projections.each_with(namespace, facet, 0, |_, id| {
            found.push(id);
            true
        });
        all.unwrap();
        assert_eq!(found, expected, "{facet:?}");
        for order in [ListOrder::Recorded, ListOrder::Happened] {
            // First by reading and sorting the conversations, then by filtering the list in order.
            for gathered_max in [usize::MAX - 1, 0] {
                let list = (namespace, order, gathered_max);
                check_narrowed(projections, list, facet, &expected);
            }
        }
    }
    let times = model.rows.values().map(|row| row.updated_at);
    for from in times.chain([TimestampMicros::default()]) {
        let narrowing = ListNarrowing {
            updated_from: Some(from),
            ..ListNarrowing::default()
        };
        let listed = |narrowing| {
            let page = ListPage {
                namespace,
                after: None,
                limit: usize::MAX,
                order: ListOrder::Happened,
                ascending: true,
                source: None,
                narrowing,
            };
            let keep = |row: &ConversationRow| row.updated_at >= from;
            projections.list_where(&page, usize::MAX, &keep).unwrap()
        };
        assert_eq!(listed(narrowing), listed(ListNarrowing::default()));
    }
}

/// Checks a filtered list, read in pages of one, against the whole list filtered here.
fn check_narrowed(
    projections: &Projections,
    (namespace, order, gathered_max): (&Namespace, ListOrder, usize),
    facet: Facet<'_>,
    expected: &[ConversationId],
) {
    for ascending in [true, false] {
        let mut all = pages(projections, (order, namespace, None), 1, ascending);
        all.retain(|row| expected.contains(&row.id));
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = ListPage {
                namespace,
                after,
                limit: 1,
                order,
                ascending,
                source: None,
                narrowing: ListNarrowing {
                    facets: &[facet],
                    ..ListNarrowing::default()
                },
            };
            let keep = |row: &ConversationRow| has_facet(row, facet);
            let page = projections.list_by(&page, (usize::MAX, gathered_max), &keep);
            let (rows, next) = page.unwrap();
            listed.extend(rows);
            after = next;
            if next.is_none() {
                break;
            }
        }
        assert_eq!(listed, all, "{facet:?}, {order:?}");
    }
}

fn has_facet(row: &ConversationRow, facet: Facet<'_>) -> bool {
    let info = &row.info;
    match facet {
        Facet::Source(source) => info.source == source,
        Facet::LabelName(name) => info.labels.contains_key(name),
        Facet::Label(name, value) => info.labels.get(name).is_some_and(|own| own == value),
        Facet::Metadata(name, value) => {
            let own = info.metadata.get(name);
            own.is_some_and(|text| {
                serde_json::from_str::<serde_json::Value>(text).unwrap() == *value
            })
        }
        Facet::Sealed => row.sealed,
        Facet::Forked => row.branch_count > 1,
        Facet::IdTail(_) => false,
    }
}

/// Checks the conversations that a part of an id finds.
fn check_named(projections: &Projections, model: &Model, namespace: &Namespace, part: &str) {
    let named = |is: fn(&str, &str) -> bool| {
        let mine = model
            .rows
            .values()
            .filter(|row| row.namespace == *namespace);
        let named =
            mine.filter(|row| is(&row.id.to_string(), part) || is(&row.info.source_id, part));
        let mut named: Vec<_> = named.map(|row| row.id).collect();
        named.sort();
        named
    };
    let sorted = |mut ids: Vec<ConversationId>| {
        ids.sort();
        ids
    };
    let beginning = |limit| projections.beginning(namespace, part, limit).unwrap();
    assert_eq!(
        sorted(beginning(usize::MAX)),
        named(|id, part| id.starts_with(part))
    );
    assert!(beginning(1).len() <= 1);
    let ending = projections
        .ending(namespace, part, usize::MAX, || true)
        .unwrap();
    assert_eq!(sorted(ending), named(|id, part| id.ends_with(part)));
    // A search that is not wanted any more must stop: it used to scan the keys of all
    // conversations.
    let stopped = projections.ending(namespace, part, usize::MAX, || false);
    assert!(stopped.unwrap().is_empty());
}

/// Reads the whole list in pages of `limit` conversations.
fn pages(
    projections: &Projections,
    (order, namespace, source): (ListOrder, &Namespace, Option<&str>),
    limit: usize,
    ascending: bool,
) -> Vec<ConversationRow> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = ListPage {
            namespace,
            after,
            limit,
            order,
            ascending,
            source,
            narrowing: ListNarrowing::default(),
        };
        let (mut page, next) = projections.list(&page).unwrap();
        all.append(&mut page);
        if next.is_none() {
            return all;
        }
        after = next;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    // The store keeps rows packed, in chunks and by prefix. For any steps in any groups, every
    // lookup must answer as plain maps do, only in its own namespace, and also after the file was
    // closed and reopened.
    #[test]
    fn every_lookup_equals_a_map_model(
        steps in steps(700),
        sizes in prop::collection::vec(1..90_usize, 1..5),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("views.redb");
        let projections = Projections::open(&path, CACHE_BYTES).unwrap();
        let model = apply_in_groups(&projections, &steps, &sizes).unwrap();
        check(&projections, &model);
        prop_assert_eq!(projections.make_durable().unwrap(), model.reached);
        drop(projections);
        let projections = Projections::open(&path, CACHE_BYTES).unwrap();
        prop_assert_eq!(projections.durable(), model.reached);
        check(&projections, &model);
    }

    // A rebuild reads the log in different groups than those in which it was written, and must give
    // the same bytes; so nothing may depend on where a delta ends.
    #[test]
    fn projections_do_not_depend_on_delta_groups(
        steps in steps(500),
        sizes in prop::collection::vec(1..70_usize, 1..4),
    ) {
        let (live, rebuilt) = (Projections::in_memory().unwrap(), Projections::in_memory().unwrap());
        apply_in_groups(&live, &steps, &sizes).unwrap();
        apply_in_groups(&rebuilt, &steps, &[200]).unwrap();
        prop_assert_eq!(live.differs_from(&rebuilt).unwrap(), None);
        prop_assert_eq!(live.digest().unwrap(), rebuilt.digest().unwrap());
    }

    // A process that ends without a flush may lose deltas, but only whole ones from the end: the
    // mark must match the contents, and the lost deltas must be applicable again.
    #[test]
    fn crash_loses_only_whole_deltas(steps in steps(200), durable_after in 0..10_usize) {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("views.redb"), folder.path().join("copy.redb"));
        let projections = Projections::open(&path, CACHE_BYTES).unwrap();
        let (mut model, mut history) = (Model::default(), vec![Model::default()]);
        let mut deltas = Vec::new();
        for (index, group) in steps.chunks(20).enumerate() {
            deltas.push(model.grow(group));
            projections.apply(&deltas[index]).unwrap();
            history.push(model.clone());
            if index == durable_after {
                projections.make_durable().unwrap();
            }
        }
        let continues = |projections: &Projections| {
            let reached = projections.reached().unwrap();
            let place = history.iter().position(|model| model.reached == reached);
            let place = place.expect("the mark is the end of a delta");
            check(projections, &history[place]);
            for delta in &deltas[place..] {
                projections.apply(delta).unwrap();
            }
            check(projections, &model);
            reached
        };
        // A copy of the file of a running process is like a file after a crash.
        std::fs::copy(&path, &copy).unwrap();
        let crashed = continues(&Projections::open(&copy, CACHE_BYTES).unwrap());
        prop_assert_eq!(crashed, projections.durable());
        drop(projections);
        continues(&Projections::open(&path, CACHE_BYTES).unwrap());
    }
}

// After a restart, the engine may send a range of the log again. Counting it twice, or leaving out
// events, would be silent.
#[test]
fn repeated_or_early_delta_is_refused() {
    let projections = Projections::in_memory().unwrap();
    let mut model = Model::default();
    let step = |what| super::model::Step {
        conversation: 0,
        branch: 0,
        what,
    };
    let first = model.grow(&[step(20), step(20)]);
    let left_out = model.grow(&[step(20)]);
    let third = model.grow(&[step(20)]);
    projections.apply(&first).unwrap();
    let before = projections.digest().unwrap();
    let again = projections.apply(&first);
    assert!(
        matches!(again, Err(ProjectionsError::NotBeyond { .. })),
        "{again:?}"
    );
    let mut overlapping = left_out.clone();
    overlapping.events.splice(0..0, first.events.clone());
    let overlap = projections.apply(&overlapping);
    assert!(
        matches!(overlap, Err(ProjectionsError::NotBeyond { .. })),
        "{overlap:?}"
    );
    let gap = projections.apply(&third);
    assert!(matches!(gap, Err(ProjectionsError::Gap { .. })), "{gap:?}");
    assert_eq!(
        projections.digest().unwrap(),
        before,
        "a refused delta left a trace"
    );
    projections.apply(&left_out).unwrap();
    projections.apply(&third).unwrap();
}

// If the id of a conversation were reused in its namespace, the second conversation would overwrite
// the first one's rows: this must be refused here, whatever allowed it before.
#[test]
fn repeated_conversation_id_is_refused() {
    let projections = Projections::in_memory().unwrap();
    let mut model = Model::default();
    let step = super::model::Step {
        conversation: 0,
        branch: 0,
        what: 20,
    };
    projections.apply(&model.grow(&[step])).unwrap();
    let mut other = Model {
        reached: model.reached,
        ..Model::default()
    };
    let mut again = other.grow(&[step]);
    again.conversations[0].sealed = true;
    let refused = projections.apply(&again);
    assert!(
        matches!(refused, Err(ProjectionsError::Gap { .. })),
        "{refused:?}"
    );
    check(&projections, &model);
}

// A range of the log may contain nothing for the projections; the mark must move all the same, or
// every start would read that range again.
#[test]
fn empty_delta_moves_the_mark() {
    let projections = Projections::in_memory().unwrap();
    let delta = ProjectionDelta {
        reached: 9,
        ..ProjectionDelta::default()
    };
    projections.apply(&delta).unwrap();
    assert_eq!(projections.reached().unwrap(), 9);
    assert_eq!(projections.durable(), 0);
    assert_eq!(projections.make_durable().unwrap(), 9);
    assert_eq!(projections.durable(), 9);
}

// Exploration creates many branches. The state of a conversation with a thousand of them must be
// complete.
#[test]
fn state_of_1000_branches_is_complete() {
    let projections = Projections::in_memory().unwrap();
    let mut model = Model::default();
    let forks = (0..=1_000).map(|n| super::model::Step {
        conversation: 0,
        branch: (n % 251) as u8,
        what: 0,
    });
    let steps: Vec<_> = forks.collect();
    projections.apply(&model.grow(&steps)).unwrap();
    let state = projections.state(id(0)).unwrap().unwrap();
    assert_eq!(state.branches.len(), 1_001);
    assert_eq!(state.row.branch_count, 1_001);
}

// A report of a difference must name the row; otherwise nobody knows where to look.
#[test]
fn difference_names_its_row() {
    let (one, two) = (
        Projections::in_memory().unwrap(),
        Projections::in_memory().unwrap(),
    );
    let step = super::model::Step {
        conversation: 0,
        branch: 0,
        what: 20,
    };
    let delta = Model::default().grow(&[step]);
    let mut other = delta.clone();
    other.conversations[0].sealed = true;
    one.apply(&delta).unwrap();
    two.apply(&other).unwrap();
    let difference = one.differs_from(&two).unwrap().unwrap();
    assert!(difference.starts_with("conversations "), "{difference}");
    assert!(difference.ends_with("differs"), "{difference}");
    assert_ne!(one.digest().unwrap(), two.digest().unwrap());
}
