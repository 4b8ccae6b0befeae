//! The network between clients, processes and the database, which delays and loses what it carries.

use std::{any::Any, time::Duration};

use uuid::Uuid;

use super::{Caller, Event, Note, PATIENCE, STATEMENT_MAX, Waiting, World};
use crate::simulation::{
    backend::Statement,
    process::{Outgoing, Reply, Request},
};

impl World {
    /// Sends what a process has put into its outbox.
    pub(super) fn send(&mut self, process: usize, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Statement { name, statement } => {
                self.note(&Note::Sent(process, name));
                let there = self.statement_time();
                let back = self.statement_time();
                if self.chance.happens(self.weather.statement_lost) {
                    return self.lose(statement);
                }
                let is_answer_lost = self.chance.happens(self.weather.answer_lost);
                let event = Event::Execute {
                    process,
                    statement,
                    back,
                    is_answer_lost,
                };
                self.put(there, event);
            }
            Outgoing::Forward {
                owner,
                request,
                reply,
            } => {
                let call = self.events;
                let from = Caller::Process(process, reply);
                let server = None;
                self.calls.insert(call, Waiting { from, server });
                match self.newest(&owner.address) {
                    Some(server) => self.deliver(server, call, request, Some(owner.process)),
                    // Nobody listens there, so the call was not executed.
                    None => self.reply(call, Reply::NotOwner),
                }
            }
            Outgoing::Reply { call, reply } => self.reply(call, reply),
        }
    }

    fn statement_time(&mut self) -> Duration {
        match self.chance.happens(self.weather.slow) {
            true => self.chance.millis(20, STATEMENT_MAX.as_millis() as usize),
            false => self.chance.millis(1, 12),
        }
    }

    pub(super) fn is_cut(&self, process: usize) -> bool {
        let process = self.processes[process].as_ref();
        self.now < self.outage_until || process.is_some_and(|own| self.now < own.cut_until)
    }

    /// Loses a message. Its sender notices at once, or never.
    pub(super) fn lose(&mut self, message: impl Any) {
        let wait = match self.chance.happens(500) {
            true => self.chance.millis(1, 20),
            false => PATIENCE,
        };
        self.put(wait, Event::Lost(Box::new(message)));
    }

    /// Executes a statement that has reached the database.
    pub(super) fn execute(
        &mut self,
        process: usize,
        statement: Statement,
        back: Duration,
        is_answer_lost: bool,
    ) -> Result<(), String> {
        if self.is_cut(process) {
            self.lose(statement);
            return Ok(());
        }
        self.note(&Note::Executed(process));
        self.database.now = self.now;
        let answer = statement(&mut self.database);
        if let Some((shard, offset)) = self.database.overwritten {
            return Err(format!(
                "offset {offset} of shard {} has two events",
                shard.0
            ));
        }
        match is_answer_lost {
            true => self.lose(answer),
            false => self.put(back, Event::Answered { process, answer }),
        }
        Ok(())
    }

    /// Sends a call to a process. A forwarded one is for the process `receiver`.
    pub(super) fn deliver(
        &mut self,
        process: usize,
        call: u64,
        request: Request,
        receiver: Option<Uuid>,
    ) {
        if self.chance.happens(self.weather.message_lost) {
            let wait = self.chance.millis(1, 2_000);
            return self.put(wait, Event::Returned { call, reply: None });
        }
        let wait = self.chance.millis(1, 10);
        let event = Event::Arrived {
            process,
            call,
            request,
            receiver,
        };
        self.put(wait, event);
    }

    pub(super) fn arrive(
        &mut self,
        process: usize,
        call: u64,
        request: Request,
        receiver: Option<Uuid>,
    ) -> Result<(), String> {
        let Some(waiting) = self.calls.get_mut(&call) else {
            // Its caller has given up, but the network does not know.
            return self.take(process, call, request, receiver);
        };
        waiting.server = Some(process);
        if self.processes[process].is_none() {
            let reply = match receiver {
                Some(_) => Reply::NotOwner,
                None => Reply::Refused,
            };
            self.reply(call, reply);
            return Ok(());
        }
        self.take(process, call, request, receiver)
    }

    fn take(
        &mut self,
        process: usize,
        call: u64,
        request: Request,
        receiver: Option<Uuid>,
    ) -> Result<(), String> {
        self.note(&Note::Arrived(process, call, &request));
        if let Some(own) = &self.processes[process] {
            own.take(call, request, receiver);
        }
        self.run_process(process)
    }

    fn reply(&mut self, call: u64, reply: Reply) {
        let reply = Some(reply).filter(|_| !self.chance.happens(self.weather.message_lost));
        let wait = match reply {
            Some(_) => self.chance.millis(1, 10),
            None => self.chance.millis(1, 2_000),
        };
        self.put(wait, Event::Returned { call, reply });
    }

    /// Gives a reply to its caller, or tells it that there will be none.
    pub(super) fn finish(&mut self, call: u64, reply: Option<Reply>) -> Result<(), String> {
        let Some(waiting) = self.calls.remove(&call) else {
            return Ok(());
        };
        self.note(&Note::Returned(call, &reply));
        match waiting.from {
            Caller::Client {
                client,
                began,
                request,
            } => self.record(client, began, request, reply),
            Caller::Process(process, sender) => {
                match reply {
                    // The process may have died.
                    Some(reply) => drop(sender.send(reply)),
                    None => drop(sender),
                }
                self.run_process(process)
            }
        }
    }
}
