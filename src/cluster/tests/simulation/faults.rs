//! What goes wrong, and how it ends.

use std::{collections::BTreeSet, time::Duration};

use treering_domain::ShardId;

use super::{Event, NODES, Note, World};
use crate::{
    desired_owner,
    simulation::{chance::Chance, database::SHARDS},
};

/// How often things go wrong, in thousandths.
pub(super) struct Weather {
    pub(super) slow: usize,
    pub(super) statement_lost: usize,
    pub(super) answer_lost: usize,
    pub(super) message_lost: usize,
    /// The longest time between two faults, in milliseconds.
    fault_every: usize,
}

impl Weather {
    pub(super) const CALM: Self = Self {
        slow: 0,
        statement_lost: 0,
        answer_lost: 0,
        message_lost: 0,
        fault_every: 0,
    };

    pub(super) fn of(chance: &mut Chance) -> Self {
        let mut up_to = |most: usize| chance.below(most + 1);
        Self {
            slow: up_to(60),
            statement_lost: up_to(30),
            answer_lost: up_to(30),
            message_lost: up_to(20),
            fault_every: 500 + up_to(2_000),
        }
    }
}

impl World {
    /// Disturbs a process, or all of them, for a while.
    pub(super) fn fault(&mut self) {
        if self.is_calm {
            return;
        }
        let wait = self.chance.millis(50, self.weather.fault_every);
        self.put(wait, Event::Fault);
        let running = self.running();
        if running.is_empty() {
            return;
        }
        let index = running[self.chance.below(running.len())];
        let length = self.chance.millis(100, 3_500);
        let until = self.now + length;
        let kind = self.chance.below(100);
        let Some(process) = self.processes[index].as_mut() else {
            return;
        };
        let what = match kind {
            0..40 => {
                process.paused_until = until;
                "pause"
            }
            40..60 => {
                process.cut_until = until;
                "cut"
            }
            60..72 => {
                self.end(index);
                "kill"
            }
            72..85 => {
                process.close();
                "close"
            }
            85..95 => {
                // Somebody believes that a paused process is dead, and starts another.
                process.paused_until = until;
                let node = process.node_number;
                let wait = self.chance.millis(0, 1_500);
                let is_second = true;
                self.put(wait, Event::Start { node, is_second });
                "second"
            }
            _ => {
                self.outage_until = until;
                "outage"
            }
        };
        self.note(&Note::Fault(what, index, length));
    }

    /// Ends all faults.
    pub(super) fn calm_down(&mut self) {
        self.note(&Note::Calm);
        self.is_calm = true;
        self.weather = Weather::CALM;
        let now = self.now;
        self.outage_until = now;
        for index in self.running() {
            if let Some(process) = self.processes[index].as_mut() {
                (process.paused_until, process.cut_until) = (now, now);
                self.put(Duration::ZERO, Event::Run(index));
            }
        }
        for node in 0..NODES {
            self.start_in(Duration::ZERO, node);
        }
    }

    /// Ends the processes whose name another has taken, and starts them again. They serve nothing
    /// until somebody does so.
    pub(super) fn restart_replaced(&mut self) {
        for index in self.running() {
            let process = self.processes[index].as_ref();
            let has_joined = process.filter(|process| process.node().is_some());
            if has_joined.is_some_and(|own| self.database.process_of(&own.name) != Some(own.id)) {
                self.end(index);
            }
        }
    }

    /// Returns true if the node that should own each shard serves it, and all nodes know it.
    pub(super) fn is_settled(&mut self) -> bool {
        let running = self.running();
        let names: BTreeSet<String> = running
            .iter()
            .filter_map(|index| Some(self.processes[*index].as_ref()?.name.clone()))
            .collect();
        if names.len() != NODES || running.len() != NODES {
            return false;
        }
        (0..SHARDS).map(ShardId).all(|shard| {
            let owner = desired_owner(shard, names.iter().map(String::as_str));
            running.iter().all(|index| {
                let Some(process) = &self.processes[*index] else {
                    return false;
                };
                let known = process.node().and_then(|node| node.owner(shard));
                let is_known = known.is_some_and(|known| Some(&*known.name) == owner);
                let serves = self.served[*index].contains(&shard);
                is_known && serves == (Some(&*process.name) == owner)
            })
        })
    }
}
