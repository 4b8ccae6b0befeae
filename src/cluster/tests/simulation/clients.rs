//! The clients: they append numbered events and read, each with one call at a time.

use std::{collections::BTreeMap, time::Duration};

use super::{Caller, Event, NODES, PATIENCE, Waiting, World};
use crate::simulation::{
    database::shard_of,
    history::{self, Call, NEVER, What},
    process::{Reply, Request, name_of},
};

/// Number of clients.
pub(super) const CLIENTS: usize = 4;
const CONVERSATIONS: u32 = 6;

impl World {
    /// Has a client send its next call, usually to a node that others know.
    pub(super) fn act(&mut self, client: usize) {
        let name = name_of(self.chance.below(NODES));
        let running = self.running();
        let process = match self.newest(&name) {
            Some(newest) if self.chance.happens(850) => newest,
            _ if running.is_empty() => return self.rest(client),
            _ => running[self.chance.below(running.len())],
        };
        let is_read = self.chance.happens(500);
        let conversation = self.chance.below(CONVERSATIONS as usize) as u32;
        self.ask(client, process, conversation, is_read);
    }

    fn ask(&mut self, client: usize, process: usize, conversation: u32, is_read: bool) {
        // Numbers of events of the queue are numbers of calls and of appended events too.
        let call = self.events;
        let request = Request {
            conversation,
            append: (!is_read).then_some(call),
            is_of_stream: self.chance.happens(300),
            work: self.chance.millis(0, 15),
        };
        let from = Caller::Client {
            client,
            began: self.moment,
            request,
        };
        let server = None;
        self.calls.insert(call, Waiting { from, server });
        self.put(PATIENCE, Event::GiveUp { call });
        self.deliver(process, call, request, None);
    }

    fn rest(&mut self, client: usize) {
        let wait = self.chance.millis(0, 120);
        self.put(wait, Event::Act { client });
    }

    /// Records what a client was told, or that it was told nothing.
    pub(super) fn record(
        &mut self,
        client: usize,
        began: u64,
        request: Request,
        reply: Option<Reply>,
    ) -> Result<(), String> {
        if client < CLIENTS {
            self.rest(client);
        }
        let (ended, what) = match (request.append, reply) {
            (Some(event), Some(Reply::Appended(offset))) => {
                let place = (shard_of(request.conversation), offset);
                let stored = self.database.stored.get(&place);
                if stored.is_none_or(|stored| stored.number != event) {
                    return Err(format!(
                        "event {event} is not at offset {offset}: {stored:?}"
                    ));
                }
                (self.moment, What::Acknowledged(event))
            }
            (Some(event), Some(Reply::Refused)) => (self.moment, What::Refused(event)),
            (Some(event), _) => (NEVER, What::Unknown(event)),
            (None, Some(Reply::Events(events))) => (self.moment, What::Read(events)),
            (None, _) => return Ok(()),
        };
        self.history.push(Call {
            conversation: request.conversation,
            began,
            ended,
            what,
        });
        Ok(())
    }

    /// Reads each conversation through each node. All must answer.
    pub(super) fn read_all(&mut self) -> Result<(), String> {
        self.events += 1;
        self.moment = self.events;
        let began = self.moment;
        let nodes = self.running();
        for node in &nodes {
            for conversation in 0..CONVERSATIONS {
                self.ask(CLIENTS, *node, conversation, true);
            }
        }
        let give_up = self.now + PATIENCE;
        while self.now < give_up {
            self.run_until(self.now + Duration::from_millis(100))?;
            let answered = self
                .history
                .iter()
                .filter(|call| call.began == began && matches!(call.what, What::Read(_)));
            if answered.count() == nodes.len() * CONVERSATIONS as usize {
                return Ok(());
            }
        }
        Err("a settled cluster does not answer".to_owned())
    }

    /// Checks all calls. Those without an answer have an unknown outcome.
    pub(super) fn check_history(&mut self) -> Result<(), String> {
        let waiting: Vec<u64> = self.calls.keys().copied().collect();
        for call in waiting {
            self.finish(call, None)?;
        }
        let mut stored = BTreeMap::<u32, Vec<u64>>::new();
        for event in self.database.stored.values() {
            let conversation = stored.entry(event.conversation).or_default();
            conversation.push(event.number);
        }
        history::check(&self.history, &stored)
    }
}
