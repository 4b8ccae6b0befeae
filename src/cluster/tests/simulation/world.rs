//! The world of a simulation: time, the network, the processor of each process, the clients, and
//! what goes wrong. Everything happens in the order of a queue, and all chance is in one seed.

use std::{
    any::Any,
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use tokio::sync::oneshot;
use treering_domain::ShardId;
use uuid::Uuid;

use super::{
    LEASE,
    backend::{Answer, Statement},
    chance::Chance,
    database::Database,
    history::{Call, What},
    process::{Process, Reply, Request, name_of},
};

mod clients;
mod faults;
mod network;

use self::{clients::CLIENTS, faults::Weather};

const NODES: usize = 3;
/// How long things go wrong.
const FAULTS: Duration = Duration::from_secs(12);
/// How long the cluster may take to settle after that, in the worst case: a node starts within two
/// leases, and a failed open is repeated after another.
const SETTLE_MAX: Duration = Duration::from_secs(3);
/// How long a statement may take on its way.
const STATEMENT_MAX: Duration = Duration::from_millis(2_500);
/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(4);

/// Something that happens.
enum Event {
    /// The process gets its processor.
    Run(usize),
    /// A statement reaches the database.
    Execute {
        process: usize,
        statement: Statement,
        back: Duration,
        is_answer_lost: bool,
    },
    /// The database's answer reaches the process.
    Answered {
        process: usize,
        answer: Answer,
    },
    /// Somebody notices that no answer will come: what is dropped would have sent it.
    Lost(Box<dyn Any>),
    /// A call reaches a process.
    Arrived {
        process: usize,
        call: u64,
        request: Request,
        receiver: Option<Uuid>,
    },
    /// A reply reaches the caller. `None`: the connection broke.
    Returned {
        call: u64,
        reply: Option<Reply>,
    },
    /// A client sends its next call.
    Act {
        client: usize,
    },
    /// A client waits no longer.
    GiveUp {
        call: u64,
    },
    /// A process starts; with `is_second`, although another has its name.
    Start {
        node: usize,
        is_second: bool,
    },
    Fault,
}

/// What is added to the trace.
#[derive(Debug, Hash)]
enum Note<'a> {
    Started(usize, &'a str),
    Ended(usize),
    Sent(usize, &'a str),
    Executed(usize),
    Answered(usize),
    Arrived(usize, u64, &'a Request),
    Returned(u64, &'a Option<Reply>),
    Serves(usize, &'a [u32]),
    Fault(&'a str, usize, Duration),
    Calm,
    Settled,
}

/// A call that waits for its reply.
struct Waiting {
    from: Caller,
    /// The process that has got it.
    server: Option<usize>,
}

enum Caller {
    Client {
        client: usize,
        began: u64,
        request: Request,
    },
    Process(usize, oneshot::Sender<Reply>),
}

/// See the module.
pub(super) struct World {
    chance: Chance,
    weather: Weather,
    now: Duration,
    queue: BTreeMap<(Duration, u64), Event>,
    /// Number of events that were put into the queue.
    events: u64,
    /// Number of the current event.
    moment: u64,
    database: Database,
    /// All processes that ever started.
    processes: Vec<Option<Process>>,
    /// The shards that each process could serve when it ran last.
    served: Vec<Vec<ShardId>>,
    /// The database cannot be reached before this time.
    outage_until: Duration,
    calls: BTreeMap<u64, Waiting>,
    is_calm: bool,
    history: Vec<Call>,
    trace: DefaultHasher,
    is_told: bool,
}

/// What a simulation has found out.
pub(super) struct Outcome {
    /// A hash of everything that happened.
    pub(super) trace: u64,
    pub(super) acknowledged: usize,
}

impl World {
    /// Creates the world of a seed. `is_told`: it prints what happens.
    pub(super) fn new(seed: u64, is_told: bool) -> Self {
        let mut chance = Chance::new(seed);
        Self {
            weather: Weather::of(&mut chance),
            chance,
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            events: 0,
            moment: 0,
            database: Database::default(),
            processes: Vec::new(),
            served: Vec::new(),
            outage_until: Duration::ZERO,
            calls: BTreeMap::new(),
            is_calm: false,
            history: Vec::new(),
            trace: DefaultHasher::new(),
            is_told,
        }
    }

    /// Runs the simulation to its end.
    ///
    /// # Errors
    /// The rule that was broken.
    pub(super) fn run(mut self) -> Result<Outcome, String> {
        for node in 0..NODES {
            let wait = self.chance.millis(0, 500);
            self.start_in(wait, node);
        }
        for client in 0..CLIENTS {
            self.put(Duration::ZERO, Event::Act { client });
        }
        self.put(LEASE, Event::Fault);
        self.run_until(FAULTS)?;
        self.calm_down();
        // The last statements of before arrive, and may still change something.
        let disturbed_until = FAULTS + STATEMENT_MAX;
        while self.now < disturbed_until || !self.is_settled() {
            if self.now > disturbed_until + SETTLE_MAX {
                return Err("the cluster does not settle".to_owned());
            }
            self.restart_replaced();
            self.run_until(self.now + Duration::from_millis(50))?;
        }
        self.note(&Note::Settled);
        self.read_all()?;
        self.check_history()?;
        let acknowledged = |call: &&Call| matches!(call.what, What::Acknowledged(_));
        Ok(Outcome {
            trace: self.trace.finish(),
            acknowledged: self.history.iter().filter(acknowledged).count(),
        })
    }

    fn note(&mut self, note: &Note<'_>) {
        (self.now, note).hash(&mut self.trace);
        if self.is_told {
            eprintln!("{:>9.3} {note:?}", self.now.as_secs_f64());
        }
    }

    fn put(&mut self, wait: Duration, event: Event) {
        self.events += 1;
        self.queue.insert((self.now + wait, self.events), event);
    }

    fn run_until(&mut self, end: Duration) -> Result<(), String> {
        while let Some(next) = self.queue.first_entry() {
            let (at, number) = *next.key();
            if at > end {
                break;
            }
            let event = next.remove();
            (self.now, self.moment) = (at, number);
            self.happen(event)?;
        }
        self.now = end;
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Run(index) => self.give_time(index)?,
            Event::Execute {
                process,
                statement,
                back,
                is_answer_lost,
            } => self.execute(process, statement, back, is_answer_lost)?,
            Event::Answered { process, answer } => {
                if self.is_cut(process) {
                    self.lose(answer);
                } else {
                    self.note(&Note::Answered(process));
                    answer();
                    self.run_process(process)?;
                }
            }
            Event::Lost(message) => drop(message),
            Event::Arrived {
                process,
                call,
                request,
                receiver,
            } => self.arrive(process, call, request, receiver)?,
            Event::Returned { call, reply } => self.finish(call, reply)?,
            Event::Act { client } => self.act(client),
            Event::GiveUp { call } => self.finish(call, None)?,
            Event::Start { node, is_second } => self.start(node, is_second),
            Event::Fault => self.fault(),
        }
        Ok(())
    }
}

/// Processes.
impl World {
    fn start_in(&mut self, wait: Duration, node: usize) {
        let is_second = false;
        self.put(wait, Event::Start { node, is_second });
    }

    /// Starts a process with a node's name, unless one has it; as a fault, even then.
    fn start(&mut self, node: usize, is_second: bool) {
        let name = name_of(node);
        let may_be_second = is_second && !self.is_calm;
        if !may_be_second && self.newest(&name).is_some() {
            return;
        }
        let index = self.processes.len();
        self.note(&Note::Started(index, &name));
        let id = Uuid::from_u128(index as u128 + 1);
        // Almost the tenth of a lease that a node does not use.
        let clock_rate = 910 + self.chance.below(181) as u32;
        let process = Process::start(node, id, self.now, clock_rate);
        self.processes.push(Some(process));
        self.served.push(Vec::new());
        self.put(Duration::ZERO, Event::Run(index));
    }

    /// Returns the last process that was started with a name and runs.
    fn newest(&self, name: &str) -> Option<usize> {
        let mut processes = self.processes.iter();
        processes.rposition(|process| process.as_ref().is_some_and(|own| own.name == name))
    }

    fn running(&self) -> Vec<usize> {
        let indices = 0..self.processes.len();
        indices
            .filter(|index| self.processes[*index].is_some())
            .collect()
    }

    /// Lets a process run now and again, as an operating system does.
    fn give_time(&mut self, index: usize) -> Result<(), String> {
        let Some(process) = &self.processes[index] else {
            return Ok(());
        };
        let left = process.paused_until.saturating_sub(self.now);
        if !left.is_zero() {
            self.put(left, Event::Run(index));
            return Ok(());
        }
        let gap = self.chance.millis(5, 40);
        self.put(gap, Event::Run(index));
        self.run_process(index)
    }

    /// Runs a process, unless it is paused or dead, and sends what it sends.
    fn run_process(&mut self, index: usize) -> Result<(), String> {
        let now = self.now;
        let process = self.processes[index].as_mut();
        let Some(process) = process.filter(|process| process.paused_until <= now) else {
            return Ok(());
        };
        let sent = process.run(now);
        for outgoing in sent {
            self.send(index, outgoing);
        }
        self.check_served(index)?;
        if self.processes[index]
            .as_ref()
            .is_some_and(Process::is_ended)
        {
            self.end(index);
        }
        Ok(())
    }

    /// Checks that no other process could pass the check of a guard for the same shard now. A
    /// paused one cannot check anything.
    fn check_served(&mut self, index: usize) -> Result<(), String> {
        let served = self.served_by(index);
        for other in self.running() {
            let is_rival = |served: &[ShardId], shard| other != index && served.contains(shard);
            for shard in &served {
                // Nothing can be gained without running, so the last list is a bound.
                if is_rival(&self.served[other], shard) && is_rival(&self.served_by(other), shard) {
                    return Err(format!(
                        "processes {index} and {other} both serve shard {}",
                        shard.0
                    ));
                }
            }
        }
        Ok(())
    }

    fn served_by(&mut self, index: usize) -> Vec<ShardId> {
        let now = self.now;
        let process = self.processes[index].as_mut();
        let Some(process) = process.filter(|process| process.paused_until <= now) else {
            return Vec::new();
        };
        let served = process.served(now);
        if served != self.served[index] {
            let shards: Vec<u32> = served.iter().map(|shard| shard.0).collect();
            self.note(&Note::Serves(index, &shards));
            self.served[index].clone_from(&served);
        }
        served
    }

    /// Ends a process, as SIGKILL does. What it has sent stays on its way.
    fn end(&mut self, index: usize) {
        let Some(process) = self.processes[index].take() else {
            return;
        };
        self.note(&Note::Ended(index));
        self.served[index].clear();
        let broken: Vec<u64> = self
            .calls
            .iter()
            .filter(|(_, waiting)| waiting.server == Some(index))
            .map(|(call, _)| *call)
            .collect();
        for call in broken {
            let wait = self.chance.millis(1, 10);
            self.put(wait, Event::Returned { call, reply: None });
        }
        let wait = match self.is_calm {
            true => Duration::ZERO,
            false => self.chance.millis(0, 2_000),
        };
        self.start_in(wait, process.node_number);
    }
}
