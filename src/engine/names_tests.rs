//! Tests of event names: chosen ids, idempotency keys of single events, and appends with
//! expectations on the newest event with a key.

use std::collections::HashMap;

use futures::{StreamExt, future::join_all};
use proptest::prelude::*;
use uuid::Uuid;

use super::{query::*, test_events::*, *};
use treering_domain::*;

fn keyed(event: NewEvent, key: &str) -> NewEvent {
    NewEvent {
        idempotency_key: Some(key.to_owned()),
        ..event
    }
}

/// Returns the version 4 id for a number.
fn chosen(number: u64) -> EventId {
    let hash = blake3::hash(&number.to_le_bytes());
    let bytes = hash.as_bytes().first_chunk::<16>().copied().unwrap();
    EventId(uuid::Builder::from_random_bytes(bytes).into_uuid())
}

fn skipping(events: Vec<NewEvent>) -> AppendCommand {
    AppendCommand {
        skip_known: true,
        ..AppendCommand::new(ns(), events)
    }
}

async fn refused(engine: &Engine, command: AppendCommand) -> Rejection {
    match engine.append(command).await {
        Err(AppendError::Rejected(rejection)) => rejection,
        other => panic!("{other:?}"),
    }
}

async fn begun() -> (Engine, ConversationId) {
    let (engine, id) = (memory().await, ConversationId::generate());
    append(&engine, vec![created(id)]).await;
    (engine, id)
}

/// Returns the revisions of events, by ids.
async fn by_ids(engine: &Engine, ids: Vec<EventId>) -> Vec<Option<u64>> {
    let query = GetQuery {
        namespace: ns(),
        names: ids.into_iter().map(EventName::Id).collect(),
        headers_only: false,
        bytes_max: 1 << 20,
    };
    let found = engine.get_events(query).await.unwrap();
    let revision = |got: &FoundEvent| Some(got.event.as_ref()?.event.header.revision.0);
    found.iter().map(revision).collect()
}

async fn count(engine: &Engine) -> usize {
    let query = ReadQuery::all(ns(), EventSource::Log);
    engine.read_all(query).await.unwrap().len()
}

/// Checks that the projections equal what a rebuild would produce.
async fn check_projections(engine: &Engine) {
    let mut items = engine.verify(&ns(), true);
    while let Some(item) = items.next().await {
        if let VerifyItem::Fault(fault) = item.unwrap() {
            panic!("{fault:?}");
        }
    }
}

// Sessions moved from another store have events whose ids are referenced elsewhere. The events must
// keep their ids, be found by them, and not be appended twice.
#[tokio::test]
async fn chosen_event_id_is_kept_and_unique() {
    let (engine, id) = begun().await;
    let event = || said(id, "one").with_id(chosen(1));
    let outcome = append(&engine, vec![event(), said(id, "two")]).await;
    assert_eq!(outcome.events[0].event, chosen(1));
    assert!(outcome.known.is_empty());
    let ids = vec![chosen(1), outcome.events[1].event, chosen(2)];
    assert_eq!(by_ids(&engine, ids).await, [Some(2), Some(3), None]);

    let rejection = refused(
        &engine,
        AppendCommand::new(ns(), vec![said(id, "x"), event()]),
    )
    .await;
    let (event_index, rule) = (
        Some(1),
        Rule::EventIdTaken {
            id: chosen(1),
            conversation: id,
            revision: Revision(2),
        },
    );
    assert_eq!(rejection, Rejection { event_index, rule });
    // An id that the engine generated is taken like any other.
    let made = outcome.events[1].event;
    let command = AppendCommand::new(ns(), vec![said(id, "x").with_id(made)]);
    let rejection = refused(&engine, command).await;
    assert!(matches!(rejection.rule, Rule::EventIdTaken { id, .. } if id == made));
    // Another namespace may use the same id.
    let elsewhere = Namespace::new("elsewhere").unwrap();
    let other = ConversationId::generate();
    let events = vec![created(other), said(other, "one").with_id(chosen(1))];
    engine
        .append(AppendCommand::new(elsewhere, events))
        .await
        .unwrap();
    assert_eq!(count(&engine).await, 3);
    check_projections(&engine).await;
    engine.close().await;
}

// A feed that is sent again must append only new events, and report where the others are.
#[tokio::test]
async fn known_events_are_skipped() {
    let (engine, id) = begun().await;
    let feed = |from: u64, to: u64| -> Vec<_> {
        let event = |number: u64| said(id, format!("n {number}")).with_id(chosen(number));
        (from..to).map(event).collect()
    };
    append(&engine, feed(0, 3)).await;
    let mut events = feed(1, 5);
    events.insert(1, said(id, "without an id"));
    let outcome = engine.append(skipping(events)).await.unwrap();
    assert_eq!(outcome.known, [0, 2]);
    let revisions: Vec<_> = outcome
        .events
        .iter()
        .map(|event| event.revision.0)
        .collect();
    assert_eq!(revisions, [3, 5, 4, 6, 7]);
    let again = engine.append(skipping(feed(0, 5))).await.unwrap();
    assert_eq!(again.known, [0, 1, 2, 3, 4]);
    assert_eq!(again.events[4], outcome.events[4]);
    assert_eq!(count(&engine).await, 7);

    // Another text under a known id is not a retry: none of its batch is appended.
    let mut events = feed(5, 6);
    events.push(said(id, "another text").with_id(chosen(2)));
    let rejection = refused(&engine, skipping(events)).await;
    let (event_index, rule) = (
        Some(1),
        Rule::EventIdConflict {
            id: chosen(2),
            conversation: id,
            revision: Revision(4),
        },
    );
    assert_eq!(rejection, Rejection { event_index, rule });
    // An error names the event's index in the submitted batch.
    let mut events = feed(0, 2);
    events.push(created(id));
    assert_eq!(
        refused(&engine, skipping(events)).await.event_index,
        Some(2)
    );
    assert_eq!(count(&engine).await, 7);
    engine.close().await;
}

// The engine's ids encode offsets, and derived ids have version 8: clients must not be able to
// choose either, nor an id that is not a UUID of RFC 9562.
#[tokio::test]
async fn reserved_event_ids_are_refused() {
    let (engine, id) = begun().await;
    let version_8 = uuid::Builder::from_custom_bytes([7; 16]).into_uuid();
    for bad in [Uuid::nil(), Uuid::max(), version_8] {
        let command = AppendCommand::new(ns(), vec![said(id, "x").with_id(EventId(bad))]);
        let error = engine.append(command).await.unwrap_err();
        assert!(
            matches!(error, AppendError::Invalid { event_index: 0, .. }),
            "{bad}: {error:?}"
        );
    }
    let twice = vec![
        said(id, "x").with_id(chosen(1)),
        said(id, "y").with_id(chosen(1)),
    ];
    let mut with_key = skipping(vec![said(id, "x").with_id(chosen(1))]);
    with_key.idempotency_key = Some("key".to_owned());
    let mut two_keys = AppendCommand::new(ns(), vec![keyed(said(id, "x"), "one")]);
    two_keys.idempotency_key = Some("key".to_owned());
    let same_keys = vec![keyed(said(id, "x"), "one"), keyed(said(id, "y"), "one")];
    let commands = [AppendCommand::new(ns(), twice), with_key, two_keys];
    for command in commands
        .into_iter()
        .chain([AppendCommand::new(ns(), same_keys)])
    {
        let error = engine.append(command).await.unwrap_err();
        assert!(matches!(error, AppendError::Invalid { .. }), "{error:?}");
    }
    assert_eq!(count(&engine).await, 1);
    engine.close().await;
}

// Two programs that read one feed send its events concurrently, in overlapping batches. Each event
// must be stored once, whichever program was first, and both must get the same place.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_duplicates_are_appended_once() {
    let (engine, id) = begun().await;
    let batch = |from: u64| -> Vec<_> {
        let event = |number: u64| {
            let event = said(id, format!("n {number}"));
            match number % 2 {
                0 => event.with_id(chosen(number)),
                _ => keyed(event, &format!("k {number}")),
            }
        };
        (from..from + 10).map(event).collect()
    };
    for round in 0..20 {
        let at_once = (0..8).map(|reader| {
            let (engine, events) = (engine.clone(), batch(round * 20 + reader));
            tokio::spawn(async move { engine.append(skipping(events)).await.unwrap() })
        });
        let mut places: HashMap<u64, AppendedEvent> = HashMap::new();
        let mut appended = 0;
        for (reader, outcome) in (0..).zip(join_all(at_once).await) {
            let outcome = outcome.unwrap();
            appended += 10 - outcome.known.len();
            for (number, event) in (round * 20 + reader..).zip(outcome.events) {
                let first = places.entry(number).or_insert_with(|| event.clone());
                assert_eq!(*first, event, "{number}");
            }
        }
        assert_eq!(appended, 17, "round {round}");
    }
    assert_eq!(count(&engine).await, 1 + 20 * 17);
    check_projections(&engine).await;
    engine.close().await;
}

// The projections have a group a moment before readers may see it. A batch that was looked up in
// that moment did not find the group's events by id and stored them a second time.
#[tokio::test]
async fn event_looked_up_before_its_publication_is_appended_once() {
    let (engine, id) = begun().await;
    let inner = &engine.inner;
    let batch = || skipping(vec![said(id, "one").with_id(chosen(1))]);
    let published = inner.reads.published.load(Ordering::Acquire);
    let first = engine.append(batch()).await.unwrap();
    // A later group makes the writer forget names that are published.
    append(&engine, vec![said(id, "two")]).await;

    let head = inner.reads.published.swap(published, Ordering::AcqRel);
    let prepared = prepare::ValidatedBatch::new(batch(), &inner.options.limits).unwrap();
    let request = inner.look_up(prepared).await.unwrap();
    inner.reads.published.store(head, Ordering::Release);
    let answer = inner.hand_over(request).unwrap().await;
    let (_, known) = inner.retry_until_decided(answer).await.unwrap();
    assert_eq!(known, [(0, first.events[0].position.offset)]);
    assert_eq!(count(&engine).await, 3);
    engine.close().await;
}

// Only requests had keys, so a batch of a feed, shifted by one event, was either all new or a
// conflict. Each event may have its own key.
#[tokio::test]
async fn each_event_may_have_its_own_idempotency_key() {
    let (engine, id) = begun().await;
    let feed = |from: u64, to: u64| -> Vec<_> {
        let event = |number: u64| keyed(said(id, format!("n {number}")), &format!("k{number}"));
        (from..to).map(event).collect()
    };
    let first = append(&engine, feed(0, 3)).await;
    let second = append(&engine, feed(1, 5)).await;
    assert_eq!(second.known, [0, 1]);
    assert_eq!(second.events[..2], first.events[1..]);
    assert_eq!(second.events[3].revision, Revision(6));
    let keys = ["k0", "k4", "k5"].map(str::to_owned).to_vec();
    assert_eq!(
        engine.known_keys(&ns(), keys).await.unwrap(),
        [true, true, false]
    );

    // Other content under a known key: the batch is refused, naming the event's index.
    let mut events = feed(5, 6);
    events.push(keyed(said(id, "other"), "k1"));
    let rejection = refused(&engine, AppendCommand::new(ns(), events)).await;
    let (event_index, rule) = (Some(1), Rule::IdempotencyConflict);
    assert_eq!(rejection, Rejection { event_index, rule });
    // Requests and events share one space of keys.
    let mut request = AppendCommand::new(ns(), vec![said(id, "other")]);
    request.idempotency_key = Some("k1".to_owned());
    assert_eq!(
        refused(&engine, request).await.rule,
        Rule::IdempotencyConflict
    );
    let mut request = AppendCommand::new(ns(), vec![said(id, "n 1")]);
    request.idempotency_key = Some("k1".to_owned());
    let repeated = engine.append(request).await.unwrap();
    assert!(repeated.repeated_key);
    assert_eq!(repeated.events, first.events[1..2]);
    assert_eq!(count(&engine).await, 6);
    check_projections(&engine).await;
    engine.close().await;
}

// Agents share a fact under a key: each reads it, works, and writes it again. An agent whose
// version is outdated must get an error, but not if only other events were appended to the branch.
#[tokio::test]
async fn append_checks_the_expected_latest_event_of_a_key() {
    let (engine, id) = begun().await;
    let plan = |text: &str| said(id, text).with_key("plan");
    let expecting = |expected, event| AppendCommand {
        expected_keys: vec![ExpectedKey {
            conversation: id,
            branch: None,
            key: "plan".to_owned(),
            expected,
        }],
        ..AppendCommand::new(ns(), vec![event])
    };
    let absent = ExpectedNewest::Absent;
    let first = engine.append(expecting(absent, plan("one"))).await.unwrap();
    append(&engine, vec![said(id, "between")]).await;
    let rejection = refused(&engine, expecting(absent, plan("mine"))).await;
    let at = &first.events[0];
    let actual = Some(NewestWithKey {
        id: at.event,
        conversation: id,
        revision: Revision(2),
    });
    let rule = Rule::LatestMismatch {
        index: 0,
        expected: absent,
        actual,
    };
    assert_eq!(rejection, Rejection::batch(rule));
    let by_revision = ExpectedNewest::Revision(Revision(2));
    let second = engine
        .append(expecting(by_revision, plan("two")))
        .await
        .unwrap();
    refused(&engine, expecting(by_revision, plan("late"))).await;
    refused(
        &engine,
        expecting(ExpectedNewest::Event(at.event), plan("late")),
    )
    .await;
    let by_id = ExpectedNewest::Event(second.events[0].event);
    engine
        .append(expecting(by_id, plan("three")))
        .await
        .unwrap();

    // A fork sees what it inherited, and nothing appended to the other branch later.
    append(&engine, vec![forked(id, "side", BranchId::MAIN, 3)]).await;
    let on_side = |expected, event: NewEvent| {
        let side = BranchName::new("side").unwrap();
        let mut command = expecting(expected, event.on_branch(side.clone()));
        command.expected_keys[0].branch = Some(side);
        command
    };
    refused(&engine, on_side(by_id, plan("x"))).await;
    let own = engine
        .append(on_side(by_revision, plan("side")))
        .await
        .unwrap();
    let by_own = ExpectedNewest::Event(own.events[0].event);
    engine
        .append(on_side(by_own, plan("side again")))
        .await
        .unwrap();

    let unknown = BranchName::new("nowhere").unwrap();
    let mut command = expecting(absent, plan("x"));
    command.expected_keys[0].branch = Some(unknown);
    assert!(matches!(
        refused(&engine, command).await.rule,
        Rule::BranchNotFound { .. }
    ));
    engine.close().await;
}

// Sixteen concurrent counters must not lose a step: each reads the newest value and expects it.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_counters_lose_no_update() {
    let (engine, id) = begun().await;
    let count_up = move |engine: Engine| async move {
        for _ in 0..5 {
            loop {
                let query = LatestQuery {
                    namespace: ns(),
                    conversations: vec![id],
                    branch: None,
                    wanted: vec![EventSelector::Key("count".to_owned())],
                    as_of: None,
                    headers_only: false,
                    bytes_max: 1 << 20,
                };
                let found = engine.latest(query).await.unwrap().remove(0).got.event;
                let header = found.as_ref().map(|found| &found.event.header);
                let is = header.map_or(0, |header| header.correlation_id.parse().unwrap_or(0));
                let next: u64 = is + 1;
                let mut event = said(id, "count").with_key("count");
                event.correlation_id = next.to_string();
                let command = AppendCommand {
                    expected_keys: vec![ExpectedKey {
                        conversation: id,
                        branch: None,
                        key: "count".to_owned(),
                        expected: header.map_or(ExpectedNewest::Absent, |header| {
                            ExpectedNewest::Event(header.id)
                        }),
                    }],
                    ..AppendCommand::new(ns(), vec![event])
                };
                match engine.append(command).await {
                    Ok(_) => break,
                    Err(AppendError::Rejected(rejection)) => {
                        assert!(matches!(rejection.rule, Rule::LatestMismatch { .. }));
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
    };
    let all = (0..16).map(|_| tokio::spawn(count_up(engine.clone())));
    for done in join_all(all).await {
        done.unwrap();
    }
    let events = engine
        .read_all(ReadQuery::all(ns(), EventSource::Log))
        .await
        .unwrap();
    let counted = events
        .iter()
        .skip(1)
        .map(|event| &event.event.header.correlation_id);
    let expected: Vec<_> = (1..=80).map(|number: u64| number.to_string()).collect();
    assert!(counted.eq(expected.iter()));
    engine.close().await;
}

/// A step of the model.
#[derive(Clone, Debug)]
enum Step {
    /// Appends numbered events, each with a variant of its content, by id or by key.
    Append(Vec<(u8, bool, bool)>, bool),
    /// Sets a key, expecting the model's newest event or an older one.
    Set(u8, bool),
    /// Reopens the store, with or without its projections.
    Reopen(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let events = prop::collection::vec((0..12_u8, prop::bool::weighted(0.1), any::<bool>()), 1..5);
    prop_oneof![
        8 => (events, any::<bool>()).prop_map(|(events, skip)| Step::Append(events, skip)),
        6 => (0..3_u8, prop::bool::weighted(0.3)).prop_map(|(key, late)| Step::Set(key, late)),
        1 => any::<bool>().prop_map(Step::Reopen),
    ]
}

/// The expected content: plain maps of ids, keys, and newest events.
#[derive(Default)]
struct Model {
    by_id: HashMap<u8, (bool, AppendedEvent)>,
    by_key: HashMap<u8, (bool, AppendedEvent)>,
    /// All events that had the key.
    newest: HashMap<u8, Vec<EventId>>,
    events: usize,
}

impl Model {
    fn known(&self, (number, _, by_key): (u8, bool, bool)) -> Option<&(bool, AppendedEvent)> {
        match by_key {
            true => self.by_key.get(&number),
            false => self.by_id.get(&number),
        }
    }

    async fn append(
        &mut self,
        engine: &Engine,
        id: ConversationId,
        (batch, skip): (&[(u8, bool, bool)], bool),
    ) {
        let mut seen = std::collections::HashSet::new();
        let batch: Vec<_> = batch
            .iter()
            .filter(|(number, _, by_key)| seen.insert((*number, *by_key)))
            .collect();
        let event = |(number, other, by_key): &(u8, bool, bool)| {
            let event = said(id, format!("{number} {other}"));
            match by_key {
                true => keyed(event, &format!("key {number}")),
                false => event.with_id(chosen(u64::from(*number))),
            }
        };
        let fault = batch.iter().position(|of| {
            let known = self.known(**of);
            known.is_some_and(|(other, _)| *other != of.1 || !of.2 && !skip)
        });
        let command = AppendCommand {
            skip_known: skip,
            ..AppendCommand::new(ns(), batch.iter().copied().map(event).collect())
        };
        if let Some(fault) = fault {
            assert_eq!(refused(engine, command).await.event_index, Some(fault));
            return;
        }
        let outcome = engine.append(command).await.unwrap();
        let expected: Vec<_> = (0..batch.len())
            .filter(|at| self.known(*batch[*at]).is_some())
            .collect();
        assert_eq!(outcome.known, expected);
        for (of, appended) in batch.into_iter().zip(outcome.events) {
            if let Some((_, first)) = self.known(*of) {
                assert_eq!(*first, appended);
                continue;
            }
            self.events += 1;
            let (number, other, by_key) = *of;
            let of = if by_key {
                &mut self.by_key
            } else {
                &mut self.by_id
            };
            of.insert(number, (other, appended));
        }
    }

    async fn set(&mut self, engine: &Engine, id: ConversationId, key: u8, late: bool) {
        let had = self.newest.entry(key).or_default();
        let expected = |event: Option<&EventId>| {
            event.map_or(ExpectedNewest::Absent, |id| ExpectedNewest::Event(*id))
        };
        let late = late && !had.is_empty();
        let behind = had.len().wrapping_sub(2);
        let expected = expected(if late { had.get(behind) } else { had.last() });
        let command = AppendCommand {
            expected_keys: vec![ExpectedKey {
                conversation: id,
                branch: None,
                key: format!("set {key}"),
                expected,
            }],
            ..AppendCommand::new(ns(), vec![said(id, "set").with_key(format!("set {key}"))])
        };
        if late {
            let actual = had.last().copied();
            let rule = refused(engine, command).await.rule;
            let fits = matches!(&rule, Rule::LatestMismatch { actual: Some(there), .. } if Some(there.id) == actual);
            assert!(fits, "{rule:?}");
            return;
        }
        let outcome = engine.append(command).await.unwrap();
        had.push(outcome.events[0].event);
        self.events += 1;
    }

    async fn check(&self, engine: &Engine) {
        let (numbers, places): (Vec<&u8>, Vec<&(bool, AppendedEvent)>) = self.by_id.iter().unzip();
        let ids = numbers.iter().map(|number| chosen(u64::from(**number)));
        let found = by_ids(engine, ids.collect()).await;
        let expected: Vec<_> = places.iter().map(|(_, at)| Some(at.revision.0)).collect();
        assert_eq!(found, expected);
        assert_eq!(count(engine).await, self.events + 1);
        check_projections(engine).await;
    }
}

// A feed is sent again after some of its events were erased. They must still be recognised, also
// after a restart or with rebuilt projections, so that nothing comes back. And nothing may remain
// of their content that distinguishes one text from another.
#[tokio::test]
async fn erased_events_keep_their_ids_and_keys() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Engine::open(OpenOptions::new(folder.path()));
    let mut engine = open().await.unwrap();
    let id = ConversationId::generate();
    append(&engine, vec![created(id)]).await;
    let feed = |one: &str, two: &str| {
        let chosen = said(id, one).with_id(chosen(1));
        skipping(vec![chosen, keyed(said(id, two), "own")])
    };
    engine.append(feed("one", "two")).await.unwrap();
    append(&engine, vec![said(id, "three")]).await;
    let mut erasing = engine.erase(EraseCommand {
        namespace: ns(),
        target: EraseTarget::Revisions {
            conversation: id,
            revisions: vec![2..=3],
        },
        keep_derived: false,
        dry_run: false,
        reason: String::new(),
        actor: String::new(),
    });
    while let Some(item) = erasing.next().await {
        item.unwrap();
    }
    drop(erasing);
    let events = count(&engine).await;
    for with_views in [true, true, false] {
        for (one, two) in [("one", "two"), ("other", "else")] {
            let outcome = engine.append(feed(one, two)).await.unwrap();
            assert_eq!(outcome.known, [0, 1]);
        }
        assert_eq!(count(&engine).await, events);
        assert_eq!(by_ids(&engine, vec![chosen(1)]).await, [Some(2)]);
        let mut of_another = said(id, "one").with_id(chosen(1));
        of_another.actor = "another".to_owned();
        let rule = refused(&engine, skipping(vec![of_another])).await.rule;
        assert!(matches!(rule, Rule::EventIdConflict { .. }), "{rule:?}");
        check_projections(&engine).await;
        engine.close().await;
        if !with_views {
            std::fs::remove_file(folder.path().join("views.redb")).unwrap();
        }
        engine = open().await.unwrap();
    }
    engine.close().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    // For any repeated appends, in any batches, with restarts and lost projections in between:
    // stored events must be recognised, found by id, stay in their first place, and never be stored
    // twice. No key may be set by a client that did not see its newest event.
    #[test]
    fn random_batches_store_each_id_and_key_once(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let open = || Engine::open(OpenOptions::new(folder.path()));
            let mut engine = open().await.unwrap();
            let id = ConversationId::generate();
            append(&engine, vec![created(id)]).await;
            let mut model = Model::default();
            for step in &steps {
                match step {
                    Step::Append(batch, skip) => model.append(&engine, id, (batch, *skip)).await,
                    Step::Set(key, late) => model.set(&engine, id, *key, *late).await,
                    Step::Reopen(with_views) => {
                        engine.close().await;
                        drop(engine);
                        if !with_views {
                            std::fs::remove_file(folder.path().join("views.redb")).unwrap();
                        }
                        engine = open().await.unwrap();
                    }
                }
            }
            model.check(&engine).await;
            engine.close().await;
        });
    }
}
