//! Power losses while an engine works: the log keeps what was synced and any part of the rest; the
//! projections are older ones or gone.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use futures::StreamExt;

use super::{Companion, Engine, open::VIEWS_FILE, query::*};
use treering_domain::*;
use treering_log::{OpenMode, RedbLog, RedbLogOptions, redb::simulated_disk::SimulatedDisk};

/// Returns the number of seeds; `TREERING_POWER_LOSS_SEEDS`, which the log's own test uses too,
/// overrides it.
fn seeds() -> u64 {
    std::env::var("TREERING_POWER_LOSS_SEEDS")
        .ok()
        .and_then(|seeds| seeds.parse().ok())
        .unwrap_or(8)
}

/// Acknowledged events by place.
type AcknowledgedEvents = BTreeMap<(ConversationId, Revision), EventId>;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)) % bound
    }
}

async fn open(disk: &SimulatedDisk, dir: &Path) -> Option<Engine> {
    let options = RedbLogOptions {
        segment_bytes_max: 1600 << 10,
        ..RedbLogOptions::default()
    };
    let log = RedbLog::open_with(disk.clone(), options, OpenMode::Create).ok()?;
    Engine::over(Arc::new(log), dir).await.ok()
}

/// Returns the conversation in which each event is noted.
fn notes() -> (Namespace, ConversationId) {
    (
        Namespace::new("_system").unwrap(),
        ConversationId(uuid::Uuid::from_u128(7)),
    )
}

fn noted(conversation: ConversationId, revision: Revision) -> String {
    format!("{conversation} {}", revision.0)
}

/// Notes each event of a batch in another namespace, as an audit does.
fn noting() -> Companion {
    Companion::new(|events, placed| {
        let (namespace, id) = notes();
        let body = EventBody::MessageAppended(MessageAppended::text(Role::User, "noted"));
        let note = |(event, placed): (&NewEvent<_>, &SequencedEvent)| NewEvent {
            actor: noted(event.conversation, placed.at.revision),
            ..NewEvent::new(id, body.clone())
        };
        AppendCommand::new(namespace, events.iter().zip(placed).map(note).collect())
    })
}

/// Appends messages, forks and large results until the power fails.
async fn work(engine: &Engine, random: &mut Random, kept: &mut AcknowledgedEvents) {
    let mut ids: Vec<_> = kept.keys().map(|(id, _)| *id).collect();
    ids.dedup();
    let (system, id) = notes();
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let begin = AppendCommand {
        idempotency_key: Some("notes".to_owned()),
        ..AppendCommand::new(system, vec![NewEvent::new(id, created)])
    };
    if engine.append(begin).await.is_err() {
        return;
    }
    loop {
        let bytes = [40, 3_000, 90_000][random.below(3) as usize];
        let text = random.below(u64::MAX).to_string().repeat(bytes / 18 + 1);
        let message = EventBody::MessageAppended(MessageAppended::text(Role::User, text));
        let create = ids.is_empty() || random.below(10) == 0;
        let id = if create {
            ConversationId::generate()
        } else {
            ids[random.below(ids.len() as u64) as usize]
        };
        let mut bodies = vec![message; 1 + random.below(3) as usize];
        if create {
            let created = EventBody::ConversationCreated(ConversationCreated::default());
            bodies.insert(0, created);
        } else if random.below(4) == 0 {
            bodies = vec![EventBody::BranchForked(BranchForked {
                name: BranchName::new(&format!("b{}", random.below(u64::MAX))).unwrap(),
                parent: BranchId::MAIN,
                fork_revision: Revision(1),
                system_prompt: String::new(),
            })];
        }
        let events = bodies.into_iter().map(|body| NewEvent::new(id, body));
        let command = AppendCommand::new(Namespace::default(), events.collect());
        let Ok(pending) = engine.submit_with(command, Some(noting())).await else {
            return;
        };
        let Ok(outcome) = pending.await else {
            return;
        };
        if create {
            ids.push(id);
        }
        let events = outcome.events.into_iter();
        kept.extend(events.map(|e| ((e.conversation, e.revision), e.event)));
    }
}

/// Checks that every acknowledged event is stored and every stored event is sound. Adds all stored
/// events to `kept`.
async fn check(engine: &Engine, kept: &mut AcknowledgedEvents, seed: u64) {
    let query = ReadQuery::all(Namespace::default(), EventSource::Log);
    let events = engine.read_all(query).await.unwrap();
    let there: AcknowledgedEvents = events
        .iter()
        .map(|event| {
            let header = &event.event.header;
            ((header.conversation, header.revision), header.id)
        })
        .collect();
    for (place, id) in kept.iter() {
        assert_eq!(there.get(place), Some(id), "seed {seed}: {place:?}");
    }
    assert_eq!(there.len(), events.len(), "seed {seed}: a place twice");
    let (system, _) = notes();
    let notes = engine
        .read_all(ReadQuery::all(system, EventSource::Log))
        .await
        .unwrap();
    let notes = notes.iter().map(|note| note.event.header.actor.clone());
    let notes: Vec<_> = notes.filter(|actor| !actor.is_empty()).collect();
    let log_order = events.iter().map(|event| {
        let header = &event.event.header;
        noted(header.conversation, header.revision)
    });
    assert_eq!(notes, log_order.collect::<Vec<_>>(), "seed {seed}: notes");
    *kept = there;
    let mut items = engine.verify(&Namespace::default(), true);
    while let Some(item) = items.next().await {
        if let VerifyItem::Fault(fault) = item.unwrap() {
            panic!("seed {seed}: {fault:?}");
        }
    }
}

async fn run_seed(seed: u64) {
    let mut random = Random(seed << 24);
    let dir = tempfile::tempdir().unwrap();
    let projections = dir.path().join(VIEWS_FILE);
    let older = dir.path().join("older");
    let mut disk = SimulatedDisk::new(seed);
    let mut kept = AcknowledgedEvents::new();
    for _round in 0..3 {
        disk.crash_after(50 + random.below(1_500));
        if let Some(engine) = open(&disk, dir.path()).await {
            work(&engine, &mut random, &mut kept).await;
            engine.close().await;
        }
        // The projections' file is current, older, or gone, independently of the log.
        match random.below(3) {
            0 if older.exists() => drop(std::fs::copy(&older, &projections).unwrap()),
            1 if projections.exists() => std::fs::remove_file(&projections).unwrap(),
            _ => {}
        }
        disk = disk.after_crash();
        let engine = open(&disk, dir.path()).await.expect("it opens again");
        check(&engine, &mut kept, seed).await;
        engine.close().await;
        std::fs::copy(&projections, &older).unwrap();
    }
}

// For any loss or tearing of unsynced data, and however old the projections are: every acknowledged
// event must be stored, and projections and index must equal a rebuild. An event and its note in
// another namespace must both be stored, or neither.
#[tokio::test(flavor = "multi_thread")]
async fn engine_survives_power_loss() {
    let running = futures::stream::iter(0..seeds()).map(|seed| tokio::spawn(run_seed(seed)));
    let patience = Duration::from_secs(60 + seeds());
    let all = running
        .buffer_unordered(8)
        .for_each(|done| async { done.unwrap() });
    tokio::time::timeout(patience, all).await.expect("it hangs");
}
