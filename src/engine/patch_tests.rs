//! Bodies stored as patches: every read must return the whole body.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use futures::StreamExt;
use proptest::prelude::*;

use super::{query::*, *};
use treering_domain::*;
use treering_log::{RedbLog, RedbLogOptions, patch};

const NEEDLE: &str = "needlepatchqzx";

fn id() -> ConversationId {
    ConversationId(uuid::Uuid::from_u128(
        0x0190_0000_0000_7000_8000_0000_0000_0001,
    ))
}

fn ns() -> Namespace {
    Namespace::default()
}

fn state(data: &[u8]) -> NewEvent {
    let custom = Custom {
        type_name: "state".to_owned(),
        content_type: "application/json".to_owned(),
        data: data.to_vec().into(),
        text: String::new(),
        delta_of: "state".to_owned(),
    };
    NewEvent::new(id(), EventBody::Custom(custom)).with_key("state")
}

fn created() -> NewEvent {
    let created = ConversationCreated::default();
    NewEvent::new(id(), EventBody::ConversationCreated(created))
}

fn forked(name: &str, parent: BranchId, at: Revision) -> NewEvent {
    let fork = BranchForked {
        name: BranchName::new(name).unwrap(),
        parent,
        fork_revision: at,
        system_prompt: String::new(),
    };
    NewEvent::new(id(), EventBody::BranchForked(fork))
}

async fn append(engine: &Engine, events: Vec<NewEvent>) -> AppendOutcome {
    let command = AppendCommand::new(ns(), events);
    engine.append(command).await.unwrap()
}

async fn open(dir: &Path) -> Engine {
    Engine::open(OpenOptions::new(dir)).await.unwrap()
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut out);
    out
}

fn data_of(event: &NamedEvent) -> Vec<u8> {
    let body = treering_proto::body::decode(EventKind::Custom, &event.event.body).unwrap();
    match body {
        EventBody::Custom(custom) => custom.data.to_vec(),
        other => panic!("{other:?}"),
    }
}

async fn is_sound(engine: &Engine) {
    let mut items = engine.verify(&ns(), true);
    while let Some(item) = items.next().await {
        if let VerifyItem::Fault(fault) = item.unwrap() {
            panic!("{fault:?}");
        }
    }
}

/// Returns the size of the log's files, in bytes.
fn log_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir.join("log")).unwrap();
    files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum()
}

/// The appended data, by revision.
type AppendedBodies = BTreeMap<Revision, Vec<u8>>;

/// Checks that every way to read returns what was appended.
async fn check(engine: &Engine, appended: &AppendedBodies, branches: &[&str]) {
    let states = |events: &[NamedEvent]| -> AppendedBodies {
        let states = events.iter().filter(|e| e.event.header.kind == 47);
        states
            .map(|event| (event.event.header.revision, data_of(event)))
            .collect()
    };
    let source = EventSource::Conversation(id());
    let query = ReadQuery::all(ns(), source.clone());
    let read = engine.read_all(query.clone()).await.unwrap();
    assert!(states(&read) == *appended, "forward");
    let backward = ReadQuery {
        backward: true,
        ..query.clone()
    };
    let read = engine.read_all(backward).await.unwrap();
    assert!(states(&read) == *appended, "backward");
    let of_log = ReadQuery::all(ns(), EventSource::Log);
    let read = engine.read_all(of_log).await.unwrap();
    assert!(states(&read) == *appended, "the log");

    let names = appended.keys().map(|revision| {
        EventName::Place(EventRef {
            conversation: id(),
            revision: *revision,
        })
    });
    let got = engine.get_events(GetQuery {
        namespace: ns(),
        names: names.collect(),
        headers_only: false,
        bytes_max: usize::MAX,
    });
    let got: Vec<_> = got
        .await
        .unwrap()
        .into_iter()
        .filter_map(|got| got.event)
        .collect();
    assert!(states(&got) == *appended, "by place");

    for branch in branches {
        let query = LatestQuery {
            namespace: ns(),
            conversations: vec![id()],
            branch: Some(BranchName::new(branch).unwrap()),
            wanted: vec![EventSelector::Key("state".to_owned())],
            as_of: None,
            headers_only: false,
            bytes_max: usize::MAX,
        };
        let latest = engine.latest(query).await.unwrap();
        if let Some(event) = &latest[0].got.event {
            let revision = event.event.header.revision;
            assert!(data_of(event) == appended[&revision], "{branch}");
        }
    }

    let mut followed = engine.subscribe(SubscribeQuery {
        namespace: ns(),
        source,
        start: StartAfter::Place(0),
        kinds: vec![EventKind::Custom],
    });
    let mut events = Vec::new();
    while let Some(brought) = followed.next().await {
        match brought.unwrap() {
            SubscriptionItem::Event(event) => events.push(*event),
            SubscriptionItem::CaughtUp(_) => break,
            SubscriptionItem::FellBehind(_) => {}
        }
    }
    assert!(states(&events) == *appended, "followed");
    is_sound(engine).await;
}

/// A step of a random history.
#[derive(Clone, Debug)]
enum Step {
    /// The state changes at a place, by a number of bytes, this many times in one batch.
    Change(prop::sample::Index, usize, usize),
    /// The state is replaced.
    Replace(usize),
    /// Continues from an earlier revision on a new branch.
    Fork(prop::sample::Index),
    Reopen,
    Rebuild,
    Dense,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (any::<prop::sample::Index>(), 0..3_000_usize, 1..4_usize)
            .prop_map(|(at, bytes, times)| Step::Change(at, bytes, times)),
        2 => prop_oneof![0..9_000_usize, 60_000..90_000_usize].prop_map(Step::Replace),
        2 => any::<prop::sample::Index>().prop_map(Step::Fork),
        1 => Just(Step::Reopen),
        1 => Just(Step::Rebuild),
        1 => Just(Step::Dense),
    ]
}

async fn run(dir: &Path, steps: Vec<Step>) {
    let mut engine = open(dir).await;
    append(&engine, vec![created()]).await;
    let mut appended = AppendedBodies::new();
    let mut data = noise(0, 20_000);
    let mut names = vec!["main".to_owned()];
    let mut branch = BranchName::new("main").unwrap();
    let mut places = vec![(BranchId::MAIN, Revision(1))];
    for (at, step) in (1_u64..).zip(steps) {
        match step {
            Step::Change(place, bytes, times) => {
                let mut batch = Vec::new();
                for time in 0..times as u64 {
                    let place = place.index(data.len() + 1);
                    let added = noise(at << 8 | time, bytes + 1);
                    data.splice(place..place, added);
                    batch.push(data.clone());
                }
                let events = batch
                    .iter()
                    .map(|data| state(data).on_branch(branch.clone()));
                let outcome = append(&engine, events.collect()).await;
                for (event, data) in outcome.events.iter().zip(batch) {
                    appended.insert(event.revision, data);
                    places.push((event.branch, event.revision));
                }
            }
            Step::Replace(bytes) => data = noise(at, bytes),
            Step::Fork(place) => {
                let (parent, revision) = places[place.index(places.len())];
                let name = format!("b{at}");
                let outcome = append(&engine, vec![forked(&name, parent, revision)]).await;
                places.push((outcome.events[0].branch, outcome.events[0].revision));
                branch = BranchName::new(&name).unwrap();
                names.push(name);
            }
            Step::Reopen => {
                engine.close().await;
                engine = open(dir).await;
            }
            Step::Rebuild => {
                let mut items = engine.rebuild(true, true);
                while let Some(item) = items.next().await {
                    item.unwrap();
                }
            }
            Step::Dense => engine.pack_log().await.unwrap(),
        }
    }
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    check(&engine, &appended, &names).await;
    engine.close().await;
    let engine = open(dir).await;
    check(&engine, &appended, &names).await;
    engine.close().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    // For chains of any length across branches, batches, segments and restarts, every read path
    // must return what was appended.
    #[test]
    fn every_read_path_returns_the_appended_body(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        runtime.block_on(run(dir.path(), steps));
    }
}

// The size of a growing state was quadratic in its steps: 60 steps of up to 100 KB took 3 MB. It
// must be little more than the sum of the additions.
#[tokio::test(flavor = "multi_thread")]
async fn growing_state_stores_only_what_is_new() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    append(&engine, vec![created()]).await;
    let mut data = noise(0, 40_000);
    let (mut raw, mut appended) = (0, AppendedBodies::new());
    for step in 1..=60 {
        data.extend(noise(step, 1_000));
        raw += data.len() as u64;
        let outcome = append(&engine, vec![state(&data)]).await;
        appended.insert(outcome.events[0].revision, data.clone());
    }
    check(&engine, &appended, &["main"]).await;
    engine.pack_log().await.unwrap();
    check(&engine, &appended, &["main"]).await;
    engine.close().await;
    assert!(raw > 4_000_000);
    let stored = log_bytes(dir.path());
    assert!(stored < raw / 3, "{stored} of {raw}");
}

// A hint must never cause a refusal: not if no event has the key, the base is on another branch,
// its body is small or erased, or the state is too large. Only an invalid key is refused.
#[tokio::test(flavor = "multi_thread")]
async fn missing_patch_base_does_not_refuse_an_event() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    append(&engine, vec![created()]).await;
    let mut appended = AppendedBodies::new();
    let large = noise(1, patch::PATCHED_BYTES_MAX + 1);
    for data in [&b"small"[..], &noise(2, 10_000), &large, &large[1..], b""] {
        let outcome = append(&engine, vec![state(data)]).await;
        appended.insert(outcome.events[0].revision, data.to_vec());
    }
    let fork = append(&engine, vec![forked("other", BranchId::MAIN, Revision(1))]).await;
    let other = BranchName::new("other").unwrap();
    assert_eq!(fork.events.len(), 1);
    let outcome = append(&engine, vec![state(&large[2..]).on_branch(other)]).await;
    appended.insert(outcome.events[0].revision, large[2..].to_vec());
    check(&engine, &appended, &["main", "other"]).await;
    for key in ["a\0b".to_owned(), "k".repeat(513)] {
        let mut event = state(b"x");
        if let EventBody::Custom(custom) = &mut event.body {
            custom.delta_of = key;
        }
        let refused = engine.append(AppendCommand::new(ns(), vec![event])).await;
        assert!(
            matches!(refused, Err(AppendError::Invalid { .. })),
            "{refused:?}"
        );
    }
    engine.close().await;
}

/// Returns where a text is found: in files, and in compressed data in them.
fn found(dir: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            if memchr::memmem::find(&bytes, NEEDLE.as_bytes()).is_some() {
                found.insert(path.display().to_string());
            }
        }
    }
    found
}

// A leaked key was in the states of three steps, and all later states are patches on them. After
// its erasure the later states must be whole, nothing of the key may be left, and the erased states
// must not be recoverable from the others.
#[tokio::test(flavor = "multi_thread")]
async fn patches_on_an_erased_state_stay_readable() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    append(&engine, vec![created()]).await;
    let mut appended = AppendedBodies::new();
    // Noise does not compress, so the needle appears in it literally.
    let plain = noise(9, 80_000);
    for step in 1..=12_u64 {
        let mut data = plain.clone();
        data.extend(noise(step, 500));
        if (4..=6).contains(&step) {
            data.splice(40_000..40_000, NEEDLE.bytes());
        }
        let outcome = append(&engine, vec![state(&data)]).await;
        appended.insert(outcome.events[0].revision, data);
    }
    assert!(!found(dir.path()).is_empty());
    let mut erased = 0;
    let mut brought = engine.erase(EraseCommand {
        namespace: ns(),
        target: EraseTarget::Literal(NEEDLE.as_bytes().to_vec()),
        keep_derived: false,
        dry_run: false,
        reason: "a key was leaked".to_owned(),
        actor: "ada".to_owned(),
    });
    while let Some(item) = brought.next().await {
        if let EraseItem::Event(event) = item.unwrap() {
            erased += 1;
            appended.insert(event.revision, Vec::new());
        }
    }
    assert_eq!(erased, 3);
    check(&engine, &appended, &["main"]).await;
    engine.close().await;
    assert_eq!(found(dir.path()), BTreeSet::new());

    // New states still work afterwards.
    let engine = open(dir.path()).await;
    let mut data = plain.clone();
    data.extend(noise(99, 500));
    let outcome = append(&engine, vec![state(&data)]).await;
    appended.insert(outcome.events[0].revision, data);
    check(&engine, &appended, &["main"]).await;
    engine.close().await;
}

// A salvage must copy whole states, and they must take no more space than in the source.
#[tokio::test(flavor = "multi_thread")]
async fn salvaged_states_are_stored_as_patches() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = open(dir.path()).await;
    append(&engine, vec![created()]).await;
    let mut appended = AppendedBodies::new();
    let mut data = noise(0, 80_000);
    for step in 1..=40 {
        data.extend(noise(step, 100));
        let outcome = append(&engine, vec![state(&data)]).await;
        appended.insert(outcome.events[0].revision, data.clone());
    }
    engine.close().await;
    salvage(dir.path(), to.path(), |_| {}).await.unwrap();
    let engine = open(to.path()).await;
    check(&engine, &appended, &["main"]).await;
    engine.close().await;
    assert!(log_bytes(to.path()) < 1_500_000, "{}", log_bytes(to.path()));
    let log = RedbLog::open(
        to.path(),
        RedbLogOptions::default(),
        treering_log::OpenMode::Read,
    );
    assert!(log.is_ok());
}
