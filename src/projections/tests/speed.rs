//! Measures how fast the projections are:
//!
//! `cargo test -p treering-projections --release --lib tests::speed -- --ignored --nocapture`

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{EventEntry, KeyEntry, ProjectionDelta, Projections};
use treering_domain::{
    BranchId, BranchState, ContentHash, ConversationCreated, ConversationId, ConversationInfo,
    ConversationRow, EventBody, EventKind, EventRef, MessageAppended, Namespace, Position,
    Revision, Role, TimestampMicros,
};

const CACHE_BYTES: usize = 64 << 20;

struct World {
    conversations: Vec<(ConversationRow, Arc<BranchState>)>,
    offset: u64,
    keys: bool,
}

impl World {
    fn new(conversations: usize, keys: bool) -> Self {
        let one = |_| {
            let id = ConversationId(uuid::Uuid::new_v4());
            let created = ConversationCreated {
                title: "Find out why the build fails".to_owned(),
                source_id: id.to_string(),
                ..ConversationCreated::default()
            };
            let row = ConversationRow {
                namespace: Namespace::default(),
                id,
                info: Arc::new(ConversationInfo::new(&created, id)),
                head: Revision::NONE,
                chain_hash: ContentHash::default(),
                first_position: Position::default(),
                last_position: Position::default(),
                active: BranchId::MAIN,
                branch_count: 1,
                sealed: false,
                created_at: TimestampMicros::default(),
                updated_at: TimestampMicros::default(),
                happened_from: TimestampMicros::default(),
                happened_to: TimestampMicros::default(),
                damage: None,
            };
            (row, Arc::new(BranchState::root()))
        };
        Self {
            conversations: (0..conversations).map(one).collect(),
            offset: 0,
            keys,
        }
    }

    /// Adds `events` more events to each of these conversations.
    fn grow(&mut self, which: std::ops::Range<usize>, events: usize) -> ProjectionDelta {
        let mut delta = ProjectionDelta::default();
        let body = EventBody::MessageAppended(MessageAppended::text(Role::User, ""));
        for (row, branch) in &mut self.conversations[which] {
            for _ in 0..events {
                self.offset += 1;
                row.head = row.head.next();
                let first = row.head == Revision(1);
                let kind = match first {
                    true => EventKind::ConversationCreated,
                    false => EventKind::MessageAppended,
                };
                if first {
                    row.first_position = Position::local(self.offset);
                }
                row.last_position = Position::local(self.offset);
                let at = EventRef {
                    conversation: row.id,
                    revision: row.head,
                };
                let state = Arc::make_mut(branch);
                state.apply(at, &body);
                if state.is_snapshot_point() {
                    delta.snapshots.push((row.key(), Arc::new(state.clone())));
                }
                let entry = EventEntry {
                    conversation: row.key(),
                    revision: row.head,
                    branch: BranchId::MAIN,
                    kind: kind.number(),
                    offset: self.offset,
                };
                delta.events.push((row.namespace.clone(), entry));
            }
            if self.keys {
                delta.keys.push(KeyEntry {
                    namespace: row.namespace.clone(),
                    key: uuid::Uuid::new_v4().to_string(),
                    content_hash: ContentHash::default(),
                    salt: Some([7; 16]),
                    first_offset: self.offset,
                    events: events as u32,
                    ends_at: None,
                });
            }
            delta.conversations.push(row.clone());
            delta.branches.push((row.key(), Arc::clone(branch)));
        }
        delta.reached = self.offset;
        delta
    }
}

/// Returns this thread's processor time, so that other work on the machine does not count. Zero
/// where the system does not report it.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|word| word.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

// The design requires that a group of 256 appends is published in well under a millisecond, and
// 200,000 events a second in a rebuild.
#[test]
#[ignore = "a measurement: run it in release"]
fn measure_publish_and_rebuild() {
    for keys in [false, true] {
        for conversations in [256, 10_000] {
            let folder = tempfile::tempdir().unwrap();
            let projections =
                Projections::open(&folder.path().join("views.redb"), CACHE_BYTES).unwrap();
            let mut world = World::new(conversations, keys);
            projections
                .apply(&world.grow(0..conversations, 100))
                .unwrap();
            let (mut times, mut durable) = (Vec::new(), Vec::new());
            let mut cpu = Duration::ZERO;
            for round in 0..400 {
                let from = round * 256 % (conversations - 255);
                let delta = world.grow(from..from + 256, 1);
                let (start, before) = (Instant::now(), cpu_time());
                projections.apply(&delta).unwrap();
                times.push(start.elapsed());
                cpu += cpu_time().saturating_sub(before);
                if round % 40 == 39 {
                    let start = Instant::now();
                    projections.make_durable().unwrap();
                    durable.push(start.elapsed());
                }
            }
            let ones = (0..400).map(|_| {
                let one = world.grow(0..1, 1);
                let start = Instant::now();
                projections.apply(&one).unwrap();
                start.elapsed()
            });
            let one = median(ones.collect());
            println!(
                "publish 256 of {conversations} conversations, keys {keys}: \
                 {:?} (mean time on a processor {:?}); one event {one:?}; make_durable {:?}; file {} bytes, {} events",
                median(times),
                cpu / 400,
                median(durable),
                projections.file_bytes(),
                world.offset,
            );
        }
    }
    for (conversations, group) in [(1, 10_000), (100, 100), (4_000, 10)] {
        let folder = tempfile::tempdir().unwrap();
        let projections =
            Projections::open(&folder.path().join("views.redb"), CACHE_BYTES).unwrap();
        let mut world = World::new(conversations, false);
        let deltas: Vec<_> = (0..400_000 / (conversations * group))
            .map(|_| world.grow(0..conversations, group))
            .collect();
        let start = Instant::now();
        for delta in &deltas {
            projections.apply(delta).unwrap();
        }
        projections.make_durable().unwrap();
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "rebuild, {conversations} conversations, {} events a delta: {:.0} events/s; file {} bytes",
            conversations * group,
            world.offset as f64 / seconds,
            projections.file_bytes(),
        );
    }
}

// Pages replaced since the last durable commit: does the file grow with every delta until the next
// one?
#[test]
#[ignore = "a measurement: run it in release"]
fn measure_growth_without_durable_commits() {
    let folder = tempfile::tempdir().unwrap();
    let projections = Projections::open(&folder.path().join("views.redb"), CACHE_BYTES).unwrap();
    let mut world = World::new(2_000, true);
    for round in 0..1_600 {
        let from = round * 256 % (2_000 - 255);
        projections.apply(&world.grow(from..from + 256, 1)).unwrap();
        if round % 400 == 399 {
            println!(
                "{round} deltas, not durable: {} bytes",
                projections.file_bytes()
            );
        }
    }
    projections.make_durable().unwrap();
    println!(
        "durable: {} bytes, {} events",
        projections.file_bytes(),
        world.offset
    );
}

// Every append to a conversation that is not cached needs these reads.
#[test]
#[ignore = "a measurement: run it in release"]
fn measure_lookups() {
    let projections = Projections::in_memory().unwrap();
    let mut world = World::new(10_000, true);
    projections.apply(&world.grow(0..10_000, 100)).unwrap();
    projections.apply(&world.grow(0..1, 100_000)).unwrap();
    let time = |name: &str, work: &dyn Fn(usize)| {
        let start = Instant::now();
        (0..20_000).for_each(work);
        println!("{name}: {:?}", start.elapsed() / 20_000);
    };
    let id = |n: usize| world.conversations[n * 7 % 10_000].0.key();
    let long = world.conversations[0].0.key();
    time("state", &|n| drop(projections.state(id(n)).unwrap()));
    time("offset", &|n| {
        let _ = projections
            .offset(long, Revision(n as u64 * 5 + 1))
            .unwrap();
    });
    time("entries, 200", &|n| {
        let from = Revision(n as u64 * 4 + 1);
        let to = Revision(from.0 + 199);
        drop(projections.entries(long, from, to, 200, true).unwrap());
    });
    time("snapshot", &|n| {
        let revision = Revision(n as u64 * 5);
        drop(projections.snapshot_at_or_before(long, BranchId::MAIN, revision));
    });
    time("key that is not there", &|n| {
        drop(
            projections
                .key(&Namespace::default(), &n.to_string())
                .unwrap(),
        );
    });
}
