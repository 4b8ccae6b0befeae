//! Runs a mixed load for a long time to detect drift.
//!
//! Agents drive a server in its own process at half of its peak rate by replaying real
//! conversations: they append the next event, build the next request, read back, search and fork.
//! Throughput, times, memory and sizes are sampled at even intervals. None of them may drift.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::StreamExt;
use tokio::{task::JoinSet, time};

use super::{
    Setup,
    child::Child,
    failed,
    folder::bytes_on_disk,
    payload::created,
    rounds::{median, percentile},
    row::{Row, Target, Unit},
    stores,
};
use treering::{
    domain::{ConversationId, EventBody, NewEvent},
    proto::pb,
};
use treering_client::{connect::Connection, error::ClientError};

/// Concurrent agents. Each replays one conversation after the other.
const AGENTS: usize = 16;
/// Duration of the peak measurement.
const PEAK_TIME: Duration = Duration::from_secs(10);
/// Samples over the whole run.
const SAMPLES: u32 = 60;
/// Conversations that are read from the trajectories. Each is replayed repeatedly, under a new id
/// each time.
const CONVERSATIONS_MAX: usize = 2_000;
/// Longest conversation that is replayed, in events.
const EVENTS_MAX: usize = 400;
/// One in this many appends is followed by a request, a read, a search or a fork.
const BUILD_EVERY: usize = 10;
const READ_EVERY: usize = 15;
const SEARCH_EVERY: usize = 40;
const FORK_EVERY: usize = 100;

/// Duration of the run, and the file for samples.
#[derive(Clone, Debug)]
pub struct SoakOptions {
    /// Duration of the run.
    pub time: Duration,
    /// CSV file for the samples.
    pub samples: Option<PathBuf>,
}

/// The number of appended events, and the duration of each call in milliseconds.
#[derive(Debug, Default)]
struct CallTimes {
    events: AtomicU64,
    appends: Mutex<Vec<f64>>,
    builds: Mutex<Vec<f64>>,
    reads: Mutex<Vec<f64>>,
    searches: Mutex<Vec<f64>>,
}

impl CallTimes {
    fn note(times: &Mutex<Vec<f64>>, started: Instant) {
        let took = started.elapsed().as_secs_f64() * 1e3;
        times
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(took);
    }

    fn taken(times: &Mutex<Vec<f64>>) -> Vec<f64> {
        std::mem::take(&mut *times.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One sample.
#[derive(Clone, Copy, Debug)]
struct Sample {
    seconds: f64,
    events: u64,
    per_second: f64,
    append: [f64; 2],
    build_p99: f64,
    read_p99: f64,
    search_p99: f64,
    anonymous_mib: f64,
    resident_mib: f64,
    log_mib: f64,
    views_mib: f64,
    index_mib: f64,
}

impl Sample {
    const HEADER: &'static str = "seconds,events,events_per_second,append_p50_ms,append_p99_ms,\
                                  build_p99_ms,read_p99_ms,search_p99_ms,anonymous_mib,\
                                  resident_mib,log_mib,views_mib,index_mib";

    fn line(&self) -> String {
        let figures = [
            self.seconds,
            self.events as f64,
            self.per_second,
            self.append[0],
            self.append[1],
            self.build_p99,
            self.read_p99,
            self.search_p99,
            self.anonymous_mib,
            self.resident_mib,
            self.log_mib,
            self.views_mib,
            self.index_mib,
        ];
        figures.map(|figure| format!("{figure:.2}")).join(",")
    }
}

/// Drives a server for the given time.
///
/// # Errors
/// When a server or a call fails, or the samples cannot be written.
pub(super) async fn measure(setup: &Setup, plan: &SoakOptions) -> Result<Vec<Row>, ClientError> {
    let lives = lives(setup)?;
    let folder = setup.folder()?;
    let store = folder.path().join("store");
    let child = Child::serve(&store).await?;
    let done = Arc::new(CallTimes::default());
    setup.doing("soak: the peak");
    let started = Instant::now();
    drive(&child, &lives, &done, None, PEAK_TIME, |_| Ok(())).await?;
    let peak = done.events.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
    for times in [&done.appends, &done.builds, &done.reads, &done.searches] {
        CallTimes::taken(times);
    }
    let mut file = match &plan.samples {
        Some(path) => Some(created_file(path)?),
        None => None,
    };
    let mut samples = Vec::new();
    let mut before = (Instant::now(), done.events.load(Ordering::Relaxed));
    drive(
        &child,
        &lives,
        &done,
        Some(peak / 2.0),
        plan.time,
        |seconds| {
            let sample = sample(&child, &store, &done, seconds, &mut before);
            if let Some(file) = &mut file {
                writeln!(file, "{}", sample.line())?;
            }
            setup.doing(&format!(
                "soak: {:.0} of {} s, {:.0} events/s, append p99 {:.1} ms, {:.0} MiB",
                seconds,
                plan.time.as_secs(),
                sample.per_second,
                sample.append[1],
                sample.resident_mib
            ));
            samples.push(sample);
            Ok(())
        },
    )
    .await?;
    Ok(rows(&samples, peak))
}

fn created_file(path: &Path) -> Result<File, ClientError> {
    let mut file = File::create(path)?;
    writeln!(file, "{}", Sample::HEADER)?;
    Ok(file)
}

/// Returns the conversations to replay: real ones, or generated ones if there are none.
fn lives(setup: &Setup) -> Result<Arc<[Vec<NewEvent>]>, ClientError> {
    let files = setup.trajectory_files();
    let mut lives = Vec::new();
    for file in &files {
        let found = stores::conversations_of(file)?;
        let found = found.filter(|events| events.len() <= EVENTS_MAX);
        lives.extend(found.take(CONVERSATIONS_MAX / files.len()));
    }
    if lives.is_empty() {
        setup.left_out("soak: real conversations", "trajectories");
        lives.extend((0..16).map(|_| setup.payloads.conversation(60)));
    }
    Ok(lives.into())
}

/// Runs the agents for `time`, at a given rate or as fast as they can. Calls `look` at even
/// intervals with the seconds that have passed.
async fn drive(
    child: &Child,
    lives: &Arc<[Vec<NewEvent>]>,
    done: &Arc<CallTimes>,
    events_per_second: Option<f64>,
    time: Duration,
    mut look: impl FnMut(f64) -> Result<(), ClientError>,
) -> Result<(), ClientError> {
    let ends = Arc::new(AtomicBool::new(false));
    let next = Arc::new(AtomicUsize::new(0));
    let mut agents = JoinSet::new();
    for _ in 0..AGENTS {
        let mut agent = Agent {
            server: child.connect().await?,
            lives: Arc::clone(lives),
            next: Arc::clone(&next),
            done: Arc::clone(done),
            ends: Arc::clone(&ends),
            pause: events_per_second.map(|rate| Duration::from_secs_f64(AGENTS as f64 / rate)),
            appends: 0,
        };
        agents.spawn(async move { agent.run().await });
    }
    let started = Instant::now();
    let mut ticks = time::interval_at((started + time / SAMPLES).into(), time / SAMPLES);
    while started.elapsed() < time {
        tokio::select! {
            _ = ticks.tick() => look(started.elapsed().as_secs_f64())?,
            Some(ended) = agents.join_next() => {
                ended.map_err(|error| failed("an agent", error))??;
            }
        }
    }
    ends.store(true, Ordering::Relaxed);
    while let Some(ended) = agents.join_next().await {
        ended.map_err(|error| failed("an agent", error))??;
    }
    Ok(())
}

struct Agent {
    server: Connection,
    lives: Arc<[Vec<NewEvent>]>,
    next: Arc<AtomicUsize>,
    done: Arc<CallTimes>,
    ends: Arc<AtomicBool>,
    /// Time between two events; `None` means as fast as possible.
    pause: Option<Duration>,
    appends: usize,
}

impl Agent {
    async fn run(&mut self) -> Result<(), ClientError> {
        let mut due = Instant::now();
        while !self.ends() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let lives = Arc::clone(&self.lives);
            self.live(&lives[number % lives.len()], &mut due).await?;
        }
        Ok(())
    }

    fn ends(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// Replays one conversation.
    async fn live(&mut self, events: &[NewEvent], due: &mut Instant) -> Result<(), ClientError> {
        let id = ConversationId::generate();
        for event in events {
            if self.ends() {
                break;
            }
            if let Some(pause) = self.pause {
                // An agent that is late does not wait. It catches up at most one second.
                *due = (*due + pause).max(Instant::now() - Duration::from_secs(1));
                time::sleep_until((*due).into()).await;
            }
            let mut event = event.clone();
            event.conversation = id;
            if matches!(event.body, EventBody::ConversationCreated(_)) {
                event = created(id);
            }
            self.append(event).await?;
            self.look_about(id).await?;
        }
        Ok(())
    }

    async fn append(&mut self, event: NewEvent) -> Result<(), ClientError> {
        let request = stores::request(&[event]);
        let started = Instant::now();
        self.server.events().append(request).await?;
        CallTimes::note(&self.done.appends, started);
        self.done.events.fetch_add(1, Ordering::Relaxed);
        self.appends += 1;
        Ok(())
    }

    /// Makes the other calls that are due between appends.
    async fn look_about(&self, id: ConversationId) -> Result<(), ClientError> {
        let conversation_id = id.to_string();
        if self.appends.is_multiple_of(BUILD_EVERY) {
            let request = pb::BuildRequest {
                conversation_id: conversation_id.clone(),
                provider: pb::Provider::OpenaiChat.into(),
                ..Default::default()
            };
            let started = Instant::now();
            self.server.contexts().build(request).await?;
            CallTimes::note(&self.done.builds, started);
        }
        if self.appends.is_multiple_of(READ_EVERY) {
            let started = Instant::now();
            self.read_back(conversation_id.clone()).await?;
            CallTimes::note(&self.done.reads, started);
        }
        if self.appends.is_multiple_of(SEARCH_EVERY) {
            let request = pb::SearchRequest {
                query: "error in file".to_owned(),
                limit: 10,
                ..Default::default()
            };
            let started = Instant::now();
            self.server.search().search(request).await?;
            CallTimes::note(&self.done.searches, started);
        }
        if self.appends.is_multiple_of(FORK_EVERY) {
            let request = pb::ForkRequest {
                conversation_id,
                name: format!("try {}", self.appends),
                // Forks into a new conversation: the replayed events rely on the revisions of this
                // one.
                into_conversation: "new".to_owned(),
                ..Default::default()
            };
            self.server.conversations().fork(request).await?;
        }
        Ok(())
    }

    async fn read_back(&self, conversation_id: String) -> Result<(), ClientError> {
        let branch = pb::BranchSource {
            conversation_id,
            ..Default::default()
        };
        let request = pb::ReadRequest {
            source: Some(pb::read_request::Source::Branch(branch)),
            backward: true,
            limit: 20,
            ..Default::default()
        };
        let mut answers = self.server.events().read(request).await?.into_inner();
        while let Some(answer) = answers.next().await {
            answer?;
        }
        Ok(())
    }
}

fn sample(
    child: &Child,
    store: &Path,
    done: &CallTimes,
    seconds: f64,
    before: &mut (Instant, u64),
) -> Sample {
    const MIB: f64 = 1_048_576.0;
    let events = done.events.load(Ordering::Relaxed);
    let now = Instant::now();
    let per_second = (events - before.1) as f64 / (now - before.0).as_secs_f64();
    *before = (now, events);
    let p99 = |times| percentile(&CallTimes::taken(times), 99.0);
    let appends = CallTimes::taken(&done.appends);
    let size = |name: &str| bytes_on_disk(&store.join(name)) as f64 / MIB;
    Sample {
        seconds,
        events,
        per_second,
        append: [median(&appends), percentile(&appends, 99.0)],
        build_p99: p99(&done.builds),
        read_p99: p99(&done.reads),
        search_p99: p99(&done.searches),
        anonymous_mib: child.anonymous_mib().unwrap_or_default(),
        resident_mib: child.resident_mib().unwrap_or_default(),
        log_mib: size("log"),
        views_mib: size("views.redb"),
        index_mib: size("index"),
    }
}

/// Compares the last quarter with the second. A figure that drifts has a ratio far from 1.
fn rows(samples: &[Sample], peak: f64) -> Vec<Row> {
    let quarter = samples.len() / 4;
    if quarter == 0 {
        return Vec::new();
    }
    let (early, late) = (
        &samples[quarter..2 * quarter],
        &samples[samples.len() - quarter..],
    );
    let over = |part: &[Sample], figure: fn(&Sample) -> f64| {
        median(&part.iter().map(figure).collect::<Vec<_>>())
    };
    let events = samples.last().map_or(0, |sample| sample.events);
    let row = |id, what: &str, unit, figure: fn(&Sample) -> f64| {
        let (early, late) = (over(early, figure), over(late, figure));
        Row::new(id, what, late, unit).beside("second quarter", early, late / early)
    };
    vec![
        row(
            "soak.rate",
            "soak: events per second",
            Unit::PerSecond,
            |s| s.per_second,
        )
        .note(format!(
            "half of the peak, which was {peak:.0}/s; {events} events of real conversations; the \
             last quarter of the time beside the second"
        )),
        row(
            "soak.append",
            "soak: append, p99",
            Unit::Milliseconds,
            |s| s.append[1],
        ),
        row(
            "soak.build",
            "soak: request, p99",
            Unit::Milliseconds,
            |s| s.build_p99,
        ),
        row(
            "soak.search",
            "soak: search, p99",
            Unit::Milliseconds,
            |s| s.search_p99,
        ),
        row(
            "soak.memory",
            "soak: resident memory",
            Unit::Mebibytes,
            |s| s.resident_mib,
        )
        .aim(Target::RatioAtMost(1.1)),
        row(
            "soak.anonymous",
            "soak: of it, not backed by files",
            Unit::Mebibytes,
            |s| s.anonymous_mib,
        )
        .aim(Target::RatioAtMost(1.1)),
    ]
}
