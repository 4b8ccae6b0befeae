//! Measures durable appends over gRPC. This process is the client; each server is its own process.
//! They communicate over loopback TCP.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use futures::StreamExt;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{
    Setup,
    child::Child,
    empty, failed,
    payload::created,
    rounds::{LoopResult, closed_loop, median, ratio},
    row::{Row, Target, Unit},
    stores,
};
use treering::{
    domain::ConversationId,
    proto::pb::{self, append_stream_response::Outcome},
};
use treering_client::{Credentials, connect::Connection, error::ClientError};

/// Concurrent streams; each has its own conversation.
const STREAMS: usize = 4;
/// Requests in flight on each stream.
const STREAM_UNDER_WAY: usize = 256;

/// A server and a connection to it.
pub(super) struct Peer {
    pub(super) child: Child,
    pub(super) connection: Connection,
}

impl Peer {
    pub(super) async fn to(child: Child) -> Result<Self, ClientError> {
        Self::to_as(child, &Credentials::default()).await
    }

    /// Connects with an API key, or over TLS.
    pub(super) async fn to_as(
        child: Child,
        credentials: &Credentials,
    ) -> Result<Self, ClientError> {
        let connection = Connection::to_server_as(&child.url, "default", credentials).await?;
        Ok(Self { child, connection })
    }
}

/// Rates and processor times of all rounds.
#[derive(Default)]
struct Samples {
    per_second: Vec<f64>,
    cpu_micros: Vec<f64>,
}

impl Samples {
    fn push(&mut self, peer: &Peer, cpu_before: Option<f64>, done: LoopResult) {
        self.per_second.push(done.per_second);
        if let (Some(before), Some(after)) = (cpu_before, peer.child.cpu_micros()) {
            self.cpu_micros.push((after - before) / done.calls as f64);
        }
    }
}

/// Measures the rows of this group.
///
/// # Errors
/// When a server or an append fails.
pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    let folder = setup.folder()?;
    let store = Peer::to(Child::serve(&folder.path().join("store")).await?).await?;
    let nothing = Peer::to(Child::empty().await?).await?;
    let ids = conversations(&store, 256).await?;
    let mut rows = Vec::new();
    let mut cpu = None;
    for in_flight in [64, 256] {
        let (ours, echoes) = unary(setup, &store, &nothing, &ids, in_flight).await?;
        let (id, what) = match in_flight {
            64 => ("grpc.unary64", "durable append, gRPC unary, 64 in flight"),
            _ => ("grpc.unary256", "durable append, gRPC unary, 256 in flight"),
        };
        rows.push(
            Row::new(id, what, median(&ours.per_second), Unit::PerSecond)
                .beside(
                    "echo",
                    median(&echoes.per_second),
                    ratio(&ours.per_second, &echoes.per_second),
                )
                .aim(Target::RatioAtLeast(0.65))
                .note(
                    "1 KiB events; client and server are two processes on loopback; the echo: a \
                     unary call that sends as many bytes and gets them back",
                ),
        );
        if !ours.cpu_micros.is_empty() {
            cpu = Some(cpu_row(&ours, &echoes));
        }
    }
    rows.push(streamed_row(setup, &store, &nothing, &ids).await?);
    rows.extend(cpu);
    Ok(rows)
}

async fn unary(
    setup: &Setup,
    store: &Peer,
    nothing: &Peer,
    ids: &Arc<[ConversationId]>,
    in_flight: usize,
) -> Result<(Samples, Samples), ClientError> {
    let (mut ours, mut echoes) = (Samples::default(), Samples::default());
    for round in 0..=setup.rounds() {
        setup.doing("grpc: unary");
        let before = nothing.child.cpu_micros();
        let idle = call_echo(setup, nothing, ids[0], in_flight).await?;
        let cpu = store.child.cpu_micros();
        let done = call_append(setup, store, Arc::clone(ids), in_flight).await?;
        if round > 0 {
            echoes.push(nothing, before, idle);
            ours.push(store, cpu, done);
        }
    }
    Ok((ours, echoes))
}

/// Calls the echo with as many bytes as an append request has.
async fn call_echo(
    setup: &Setup,
    peer: &Peer,
    id: ConversationId,
    in_flight: usize,
) -> Result<LoopResult, ClientError> {
    let transport = peer.connection.transport();
    let request = stores::request(&[setup.payloads.event(id)]);
    let bytes = Bytes::from(request.encode_to_vec());
    closed_loop(in_flight, setup.round_time(), move |_| {
        empty::echo(transport.clone(), bytes.clone())
    })
    .await
}

async fn call_empty(
    setup: &Setup,
    peer: &Peer,
    in_flight: usize,
) -> Result<LoopResult, ClientError> {
    let transport = peer.connection.transport();
    closed_loop(in_flight, setup.round_time(), move |_| {
        empty::call(transport.clone())
    })
    .await
}

/// Appends one 1 KiB event per call, with `in_flight` concurrent calls.
pub(super) async fn call_append(
    setup: &Setup,
    peer: &Peer,
    ids: Arc<[ConversationId]>,
    in_flight: usize,
) -> Result<LoopResult, ClientError> {
    let client = peer.connection.events();
    let payloads = setup.payloads.clone();
    closed_loop(in_flight, setup.round_time(), move |caller| {
        let request = stores::request(&[payloads.event(ids[caller])]);
        let mut client = client.clone();
        async move {
            client.append(request).await?;
            Ok(())
        }
    })
    .await
}

fn cpu_row(ours: &Samples, echoes: &Samples) -> Row {
    let (own, echo) = (median(&ours.cpu_micros), median(&echoes.cpu_micros));
    Row::new(
        "grpc.cpu",
        "server CPU per append, above an echo",
        own - echo,
        Unit::Microseconds,
    )
    .aim(Target::AtMost(15.0))
    .note(format!(
        "user and system time of the server's process, unary, 256 in flight: {own:.1} µs per \
         append, {echo:.1} µs per echo of as many bytes"
    ))
}

async fn streamed_row(
    setup: &Setup,
    store: &Peer,
    nothing: &Peer,
    ids: &Arc<[ConversationId]>,
) -> Result<Row, ClientError> {
    let (mut ours, mut empties) = (Vec::new(), Vec::new());
    for round in 0..=setup.rounds() {
        setup.doing("grpc: streamed");
        let idle = call_empty(setup, nothing, 256).await?.per_second;
        let done = streamed(setup, store, ids).await?;
        if round > 0 {
            empties.push(idle);
            ours.push(done);
        }
    }
    let what = "durable append, gRPC streamed";
    Ok(
        Row::new("grpc.stream", what, median(&ours), Unit::PerSecond)
            .beside("empty call", median(&empties), ratio(&ours, &empties))
            .aim(Target::RatioAtLeast(2.0))
            .note(format!(
                "{STREAMS} streams, {STREAM_UNDER_WAY} appends of one 1 KiB event under way on \
                 each; the empty call: unary, 256 in flight"
            )),
    )
}

/// Returns the appends per second over a few streams.
async fn streamed(
    setup: &Setup,
    store: &Peer,
    ids: &Arc<[ConversationId]>,
) -> Result<f64, ClientError> {
    let started = Instant::now();
    let streams = (0..STREAMS).map(|stream| one_stream(setup, store, ids[stream]));
    let calls: u64 = futures::future::try_join_all(streams).await?.iter().sum();
    Ok(calls as f64 / started.elapsed().as_secs_f64())
}

async fn one_stream(setup: &Setup, store: &Peer, id: ConversationId) -> Result<u64, ClientError> {
    let (to, requests) = mpsc::channel(STREAM_UNDER_WAY);
    let payloads = setup.payloads.clone();
    let until = Instant::now() + setup.round_time();
    let sending = tokio::spawn(async move {
        while Instant::now() < until {
            let request = stores::request(&[payloads.event(id)]);
            if to.send(request).await.is_err() {
                return;
            }
        }
    });
    let mut answers = store
        .connection
        .events()
        .append_stream(ReceiverStream::new(requests))
        .await?
        .into_inner();
    let mut calls = 0;
    while let Some(answer) = answers.next().await {
        if let Some(Outcome::Error(error)) = answer?.outcome {
            return Err(failed("appending over a stream", error.message));
        }
        calls += 1;
    }
    sending
        .await
        .map_err(|error| failed("sending appends", error))?;
    Ok(calls)
}

/// Creates conversations of one event each.
pub(super) async fn conversations(
    server: &Peer,
    number: usize,
) -> Result<Arc<[ConversationId]>, ClientError> {
    let ids: Vec<_> = (0..number).map(|_| ConversationId::generate()).collect();
    let requests: Vec<pb::AppendRequest> = ids
        .iter()
        .map(|id| stores::request(&[created(*id)]))
        .collect();
    let mut answers = server
        .connection
        .events()
        .append_stream(futures::stream::iter(requests))
        .await?
        .into_inner();
    while let Some(answer) = answers.next().await {
        answer?;
    }
    Ok(ids.into())
}
