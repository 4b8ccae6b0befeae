//! Measures how fast requests are built, by the size of the window and by the length of the history
//! before it. The length of the history must not matter.

use std::path::Path;

use super::{
    Setup,
    child::Child,
    failed,
    payload::created,
    rounds::{median, percentile, timed},
    row::{Row, Target, Unit},
    stores::{self, Filler},
};
use treering::{
    context::Provider,
    domain::{
        Compacted, CompactionTrigger, ContentPart, ConversationId, EventBody, JsonText,
        MessageAppended, Namespace, NewEvent, Revision, Role, ToolResultRecorded,
    },
    engine::{BranchAddress, BuildQuery, Engine},
    proto::{
        body,
        pb::{self, contexts_client::ContextsClient},
    },
};
use treering_client::error::ClientError;

/// Window sizes, in messages.
const WINDOWS: [u64; 3] = [20, 200, 2_000];
/// Events of a turn: question, step, call, result, answer. Four of them count as messages.
const TURN_EVENTS: u64 = 5;
const TURN_MESSAGES: u64 = 4;
/// Turns in one append while a conversation is filled.
const BATCH_TURNS: u64 = 1_000;
/// The model that requests are built for. Its tokens are counted exactly.
const MODEL: &str = "gpt-4o";
/// Longest time of a hot build, in milliseconds, by window size.
const HOT_MS: [(u64, f64); 2] = [(200, 2.0), (2_000, 4.0)];
/// Longest cold build after the longest history, relative to the shortest history, for one window
/// size.
const COLD_RATIO: (u64, f64) = (200, 1.1);
/// Largest answer that the client accepts, in bytes.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Text that messages are cut from: prose, paths and code.
const TEXT: &str = include_str!("../../docs/ARCHITECTURE.md");
const RESULT_BYTES: usize = 1_024;
const MESSAGE_BYTES: usize = 300;

/// A conversation whose window has `window` messages.
struct Case {
    window: u64,
    events: u64,
    id: ConversationId,
}

/// Times of one case, in milliseconds.
#[derive(Default)]
struct Times {
    hot: Vec<f64>,
    next: Vec<f64>,
    cold: Vec<f64>,
    grpc: Vec<f64>,
}

/// Measures the rows of this group.
///
/// # Errors
/// When a build fails.
pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    let folder = setup.folder()?;
    let store = folder.path().join("store");
    let engine = stores::open(&store).await?;
    let (mut cases, mut times) = (Vec::new(), Vec::new());
    for window in WINDOWS {
        for events in setup.or_quick([200, 10_000, 100_000], [200, 2_000, 20_000]) {
            if let Some(case) = filled(setup, &engine, window, events).await? {
                cases.push(case);
                times.push(Times::default());
            }
        }
    }
    stores::indexed(&engine).await?;
    in_process(setup, &engine, &cases, &mut times).await?;
    engine.close().await;
    drop(engine);
    cold(setup, &store, &cases, &mut times).await?;
    over_grpc(setup, &store, &cases, &mut times).await?;
    Ok(rows(&cases, &times))
}

/// Creates the conversation of a case. Returns `None` if the window does not fit in `events`.
async fn filled(
    setup: &Setup,
    engine: &Engine,
    window: u64,
    events: u64,
) -> Result<Option<Case>, ClientError> {
    // The shortest history that holds the window is used as the short one.
    let turns_open = window / TURN_MESSAGES;
    let least = 1 + turns_open * TURN_EVENTS;
    if events < least && events != 200 {
        return Ok(None);
    }
    let events = events.max(least);
    setup.doing("build: filling");
    let id = ConversationId::generate();
    let turns = (events - 1) / TURN_EVENTS;
    let mut filler = Filler::new(engine);
    filler.append(vec![created(id)]).await?;
    filler.settle().await?;
    let mut next = 0;
    while next < turns {
        let last = (next + BATCH_TURNS).min(turns);
        let mut batch = Vec::new();
        for turn in next..last {
            batch.extend(turn_events(id, turn)?);
        }
        filler.append(batch).await?;
        filler.settle().await?;
        next = last;
    }
    if turns > turns_open {
        filler
            .append(vec![compaction(id, turns - turns_open)])
            .await?;
        filler.settle().await?;
    }
    Ok(Some(Case { window, events, id }))
}

fn compaction(id: ConversationId, turns: u64) -> NewEvent {
    let compacted = Compacted {
        summary: piece(turns, MESSAGE_BYTES),
        cut_revision: Revision(1 + turns * TURN_EVENTS),
        kept_turns: 0,
        tokens_before: 1,
        tokens_after: 1,
        trigger: CompactionTrigger::Manual,
        raw: None,
    };
    NewEvent::new(id, EventBody::Compacted(compacted))
}

fn turn_events(id: ConversationId, turn: u64) -> Result<[NewEvent; 5], ClientError> {
    let say = |role, bytes| {
        let text = piece(turn * 7 + bytes as u64, bytes);
        EventBody::MessageAppended(MessageAppended::text(role, text))
    };
    let call_id = format!("call_{turn}");
    let arguments = format!(r#"{{"path":"src/part_{turn}.rs","from":{turn}}}"#);
    let call = body::tool_call(&call_id, "read_file", &arguments)
        .map_err(|error| failed("making a call", error))?;
    let result = ToolResultRecorded {
        call_id,
        success: true,
        error_message: String::new(),
        execution_time_ms: Some(12),
        parts: vec![ContentPart::Text(piece(turn * 13, RESULT_BYTES))],
        structured: JsonText::default(),
        raw: None,
    };
    let bodies = [
        say(Role::User, MESSAGE_BYTES),
        say(Role::Assistant, MESSAGE_BYTES / 3),
        EventBody::ToolCallRequested(call),
        EventBody::ToolResultRecorded(result),
        say(Role::Assistant, MESSAGE_BYTES),
    ];
    Ok(bodies.map(|body| NewEvent::new(id, body)))
}

/// Returns a part of the text that differs for each number.
fn piece(number: u64, bytes: usize) -> String {
    let start = usize::try_from(number * 389).unwrap_or(0) % (TEXT.len() - bytes - 8);
    let start = TEXT.floor_char_boundary(start);
    let end = TEXT.floor_char_boundary(start + bytes);
    format!("{number}: {}", &TEXT[start..end])
}

fn query(case: &Case) -> BuildQuery {
    BuildQuery {
        model: Some(MODEL.to_owned()),
        ..BuildQuery::new(
            BranchAddress::active(Namespace::default(), case.id),
            Provider::OpenAiChat,
        )
    }
}

/// Returns the milliseconds of one build.
async fn build(engine: &Engine, case: &Case) -> Result<f64, ClientError> {
    let (built, micros) = timed(engine.build(query(case))).await;
    let built = built.map_err(|error| failed("building a request", error))?;
    std::hint::black_box(built.request.len());
    Ok(micros / 1e3)
}

async fn in_process(
    setup: &Setup,
    engine: &Engine,
    cases: &[Case],
    times: &mut [Times],
) -> Result<(), ClientError> {
    setup.doing("build: hot");
    for case in cases {
        build(engine, case).await?;
    }
    for _ in 0..setup.or_quick(100, 15) {
        for (case, times) in cases.iter().zip(times.iter_mut()) {
            times.hot.push(build(engine, case).await?);
        }
    }
    for round in 0..setup.or_quick(20, 4) {
        for (case, times) in cases.iter().zip(times.iter_mut()) {
            // Any event will do: it must only extend the window by one.
            let text = piece(round * 31, MESSAGE_BYTES);
            let message = EventBody::MessageAppended(MessageAppended::text(Role::User, text));
            stores::append(engine, vec![NewEvent::new(case.id, message)]).await?;
            times.next.push(build(engine, case).await?);
        }
    }
    Ok(())
}

/// Measures the first build of each case after the store was opened. The token encoding is loaded
/// already, by earlier builds.
async fn cold(
    setup: &Setup,
    store: &Path,
    cases: &[Case],
    times: &mut [Times],
) -> Result<(), ClientError> {
    for _ in 0..setup.or_quick(10, 3) {
        setup.doing("build: cold");
        let engine = stores::open(store).await?;
        for (case, times) in cases.iter().zip(times.iter_mut()) {
            times.cold.push(build(&engine, case).await?);
        }
        engine.close().await;
    }
    Ok(())
}

async fn over_grpc(
    setup: &Setup,
    store: &Path,
    cases: &[Case],
    times: &mut [Times],
) -> Result<(), ClientError> {
    setup.doing("build: over gRPC");
    let server = Child::serve(store).await?;
    let connection = server.connect().await?;
    let mut client =
        ContextsClient::new(connection.transport()).max_decoding_message_size(ANSWER_BYTES_MAX);
    for round in 0..=setup.or_quick(50, 8) {
        for (case, times) in cases.iter().zip(times.iter_mut()) {
            let request = pb::BuildRequest {
                conversation_id: case.id.to_string(),
                provider: pb::Provider::OpenaiChat.into(),
                model: MODEL.to_owned(),
                ..Default::default()
            };
            let (answer, micros) = timed(client.build(request)).await;
            std::hint::black_box(answer?.into_inner().request.len());
            if round > 0 {
                times.grpc.push(micros / 1e3);
            }
        }
    }
    Ok(())
}

fn rows(cases: &[Case], times: &[Times]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (case, own) in cases.iter().zip(times) {
        let short = cases
            .iter()
            .zip(times)
            .find(|(short, _)| short.window == case.window);
        let Some((short_case, short)) = short else {
            continue;
        };
        let is_aimed = case.events >= 10_000;
        let mut row = |id, how: &str, of: fn(&Times) -> &Vec<f64>, aim: Option<Target>| {
            let (own, short) = (of(own), of(short));
            let p50 = median(own);
            let what = format!(
                "request, {}-message window, {} events, {how}",
                case.window, case.events
            );
            let mut row = Row::new(id, what, p50, Unit::Milliseconds)
                .note(format!("p50; p99 {:.2} ms", percentile(own, 99.0)));
            if case.events != short_case.events {
                let short = median(short);
                row = row.beside("shortest history", short, p50 / short);
            }
            rows.push(match aim.filter(|_| is_aimed) {
                Some(target) => row.aim(target),
                None => row,
            });
        };
        let of_window = HOT_MS.iter().find(|(window, _)| *window == case.window);
        let hot = || of_window.map(|(_, at_most)| Target::AtMost(*at_most));
        let (window, at_most) = COLD_RATIO;
        let cold = (case.window == window).then_some(Target::RatioAtMost(at_most));
        row("build.hot", "hot", |t| &t.hot, hot());
        row("build.next", "after one more event", |t| &t.next, hot());
        row("build.cold", "cold", |t| &t.cold, cold);
        row("build.grpc", "gRPC", |t| &t.grpc, None);
    }
    rows
}
