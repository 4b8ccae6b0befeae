//! Measures reading all events, and rebuilding the projections and the index.

use std::{path::Path, time::Instant};

use bytes::Bytes;
use futures::StreamExt;
use rusqlite::Connection as Sqlite;
use uuid::Uuid;

use super::{
    Setup,
    child::Child,
    failed,
    group::{Job, events_database, insert},
    payload::Payloads,
    rounds::{median, ratio},
    row::{Row, Target, Unit},
    stores::{self, Filler},
};
use treering::{
    domain::Namespace,
    engine::{Engine, EventSource, ReadQuery},
    proto::pb,
};
use treering_client::{connect::Connection, error::ClientError};

/// Events in each conversation.
const EACH: usize = 100;

/// Measures the rows of this group.
///
/// # Errors
/// When an append or a read fails.
pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    let folder = setup.folder()?;
    let store = folder.path().join("store");
    let engine = stores::open(&store).await?;
    setup.doing("read: filling");
    let events = setup.or_quick(300_000, 50_000);
    let mut filler = Filler::new(&engine);
    for _ in 0..events / EACH {
        filler.append(setup.payloads.conversation(EACH - 1)).await?;
    }
    filler.settle().await?;
    stores::indexed(&engine).await?;
    // Seals the log first: a running store does this within seconds.
    let dense = engine.pack_log().await;
    dense.map_err(|error| failed("making the log dense", error))?;
    let sqlite = filled_sqlite(
        &folder.path().join("events.sqlite"),
        &setup.payloads,
        events,
    )?;
    let mut rows = in_process(setup, &engine, &sqlite).await?;
    rows.push(rebuild(setup, &engine).await?);
    engine.close().await;
    drop(engine);
    let child = Child::serve(&store).await?;
    rows.push(over_grpc(setup, &child.connect().await?).await?);
    Ok(rows)
}

async fn in_process(
    setup: &Setup,
    engine: &Engine,
    sqlite: &Sqlite,
) -> Result<Vec<Row>, ClientError> {
    let (mut ours, mut theirs, mut by_conversation) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=setup.rounds() {
        setup.doing("read: in process");
        let own = read_log(engine).await?;
        let sql = read_sqlite(sqlite)?;
        let one = read_conversations(engine).await?;
        if round > 0 {
            ours.push(own);
            theirs.push(sql);
            by_conversation.push(one);
        }
    }
    let sqlite = median(&theirs);
    let note = "1 KiB events, every body in memory; SQLite: the same rows by position";
    Ok(vec![
        Row::new(
            "read.log",
            "replay of the log, in process",
            median(&ours),
            Unit::PerSecond,
        )
        .beside("SQLite", sqlite, ratio(&ours, &theirs))
        .aim(Target::RatioAtLeast(1.0))
        .note(note),
        Row::new(
            "read.branch",
            "replay of branches, in process",
            median(&by_conversation),
            Unit::PerSecond,
        )
        .aim(Target::AtLeast(300_000.0))
        .note("one conversation of 100 events after the other"),
    ])
}

async fn read_log(engine: &Engine) -> Result<f64, ClientError> {
    let started = Instant::now();
    let events = read(engine, EventSource::Log).await?;
    Ok(events as f64 / started.elapsed().as_secs_f64())
}

async fn read(engine: &Engine, source: EventSource) -> Result<u64, ClientError> {
    let mut batches = engine.read(ReadQuery::all(Namespace::default(), source));
    let mut events = 0;
    while let Some(batch) = batches.next().await {
        let batch = batch.map_err(|error| failed("reading", error))?;
        events += batch.len() as u64;
    }
    Ok(events)
}

async fn read_conversations(engine: &Engine) -> Result<f64, ClientError> {
    let page = engine
        .list(treering::engine::ListQuery {
            namespace: Namespace::default(),
            limit: 1_000,
            after: None,
            source: None,
            order: Default::default(),
            ascending: true,
        })
        .await
        .map_err(|error| failed("listing", error))?;
    let started = Instant::now();
    let mut events = 0;
    for conversation in page.conversations {
        let source = EventSource::Branch {
            conversation: conversation.id,
            branch: None,
        };
        events += read(engine, source).await?;
    }
    Ok(events as f64 / started.elapsed().as_secs_f64())
}

fn filled_sqlite(path: &Path, payloads: &Payloads, events: usize) -> Result<Sqlite, ClientError> {
    let mut database = events_database(path)?;
    for conversation in 0..events / EACH {
        let conversation = Uuid::from_u128(conversation as u128);
        let jobs: Vec<_> = (1..=EACH as u64)
            .map(|revision| Job {
                conversation,
                revision,
                body: payloads.bytes(),
            })
            .collect();
        insert(&mut database, &jobs).map_err(|error| failed("filling SQLite", error))?;
    }
    Ok(database)
}

fn read_sqlite(database: &Sqlite) -> Result<f64, ClientError> {
    let started = Instant::now();
    let read = || {
        let mut all = database.prepare_cached(
            "SELECT position, id, conversation, revision, kind, recorded_at, body
             FROM event ORDER BY position",
        )?;
        let mut rows = all.query([])?;
        let mut events = 0_u64;
        while let Some(row) = rows.next()? {
            let body = Bytes::copy_from_slice(row.get_ref(6)?.as_blob()?);
            let id = Bytes::copy_from_slice(row.get_ref(1)?.as_blob()?);
            events += u64::from(!std::hint::black_box((body, id)).0.is_empty());
        }
        Ok::<_, rusqlite::Error>(events)
    };
    let events = read().map_err(|error| failed("reading SQLite", error))?;
    Ok(events as f64 / started.elapsed().as_secs_f64())
}

async fn rebuild(setup: &Setup, engine: &Engine) -> Result<Row, ClientError> {
    let mut rates = Vec::new();
    for _ in 0..setup.or_quick(3, 1) {
        setup.doing("read: rebuild of the views");
        rates.push(stores::rebuilt(engine, true, false).await?);
    }
    let what = "rebuild of all views";
    Ok(
        Row::new("read.rebuild", what, median(&rates), Unit::PerSecond)
            .aim(Target::AtLeast(800_000.0))
            .note("conversations of 100 events of 1 KiB"),
    )
}

async fn over_grpc(setup: &Setup, server: &Connection) -> Result<Row, ClientError> {
    let (mut rates, mut counts) = (Vec::new(), Vec::new());
    for round in 0..=setup.rounds() {
        setup.doing("read: over gRPC");
        let started = Instant::now();
        let mut answers = server
            .events()
            .read(pb::ReadRequest {
                source: Some(pb::read_request::Source::Log(pb::LogSource {})),
                ..Default::default()
            })
            .await?
            .into_inner();
        let (mut bytes, mut events) = (0, 0);
        while let Some(answer) = answers.next().await {
            let answer = answer?;
            events += answer.events.len();
            bytes += prost::Message::encoded_len(&answer);
        }
        if round > 0 {
            let seconds = started.elapsed().as_secs_f64();
            rates.push(bytes as f64 / 1e6 / seconds);
            counts.push(events as f64 / seconds);
        }
    }
    let what = "replay of the log, gRPC";
    Ok(
        Row::new("read.grpc", what, median(&rates), Unit::MegabytesPerSecond)
            .aim(Target::AtLeast(500.0))
            .note(format!(
                "one stream, two processes on loopback; {:.0} events/s of 1 KiB",
                median(&counts)
            )),
    )
}
