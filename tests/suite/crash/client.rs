//! Clients that append events of many kinds until the server is gone.

use std::collections::VecDeque;

use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, transport::Channel};
use treering::{
    domain::*,
    proto::{
        body, envelope,
        pb::{self, append_stream_response::Outcome, events_client::EventsClient},
    },
};

use super::ledger::{Ledger, Sent};
use crate::suite::{
    child::PATIENCE,
    grpc::harness::{batch, call, created, exactly, message, reason, result},
    random::Random,
};

/// Number of concurrent appends on the stream.
const PIPELINED: usize = 12;

/// What a client knows about one of its conversations.
#[derive(Default)]
struct Conversation {
    id: String,
    /// The last known revision. No other client appends to the conversation.
    head: u64,
    main: Vec<u64>,
    branches: Vec<String>,
    /// Open calls on the first branch.
    open_calls: Vec<String>,
    calls: u64,
}

pub struct Client {
    pub index: usize,
    shared: String,
    random: Random,
    batches: u64,
    conversations: Vec<Conversation>,
    sent: Vec<Sent>,
    /// Batches with a key but without an answer. They are sent again first, whether they were
    /// stored or not.
    again: Vec<pb::AppendRequest>,
}

impl Client {
    pub fn new(index: usize, shared: String, seed: u64) -> Self {
        Self {
            index,
            shared,
            random: Random(seed),
            batches: 0,
            conversations: Vec::new(),
            sent: Vec::new(),
            again: Vec::new(),
        }
    }

    pub fn next_tag(&mut self) -> String {
        self.batches += 1;
        format!("c{}-b{}", self.index, self.batches)
    }

    pub fn take_sent(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.sent)
    }

    /// Appends until the server is gone.
    pub async fn work(&mut self, channel: Channel) {
        for request in std::mem::take(&mut self.again) {
            if !self.send_one(&channel, request).await {
                return;
            }
        }
        if self.index == super::CLIENTS - 1 {
            return self.pipeline(channel).await;
        }
        loop {
            let request = self.next_batch();
            if !self.send_one(&channel, request).await {
                return;
            }
        }
    }

    /// Sends a batch. Returns false if no answer came.
    pub async fn send_one(&mut self, channel: &Channel, request: pb::AppendRequest) -> bool {
        let mut events = EventsClient::new(channel.clone());
        let answer = timeout(PATIENCE, events.append(request.clone()))
            .await
            .expect("an append hangs");
        let answer = match answer {
            Ok(answer) => Some(answer.into_inner()),
            Err(status) => {
                assert_is_gone(&status);
                None
            }
        };
        self.note(request, answer)
    }

    /// Sends many batches without waiting for answers, which come in order.
    async fn pipeline(&mut self, channel: Channel) {
        let (sender, receiver) = mpsc::channel(PIPELINED);
        let mut events = EventsClient::new(channel);
        let mut under_way = VecDeque::new();
        let first = self.pipelined_batch();
        under_way.push_back(first.clone());
        let _gone = sender.send(first).await;
        let opened = timeout(
            PATIENCE,
            events.append_stream(ReceiverStream::new(receiver)),
        );
        if let Ok(answers) = opened.await.expect("a stream hangs") {
            let mut answers = answers.into_inner();
            loop {
                while under_way.len() < PIPELINED {
                    let request = self.pipelined_batch();
                    under_way.push_back(request.clone());
                    let _gone = sender.send(request).await;
                }
                let answer = timeout(PATIENCE, answers.message()).await;
                let Ok(Some(answer)) = answer.expect("a stream hangs") else {
                    break;
                };
                let Some(Outcome::Appended(answer)) = answer.outcome else {
                    panic!("refused: {:?}", answer.outcome);
                };
                let request = under_way.pop_front().unwrap();
                self.note(request, Some(answer));
            }
        }
        for request in under_way {
            self.note(request, None);
        }
    }

    /// Records the outcome of a batch. Returns false if it is unknown.
    fn note(&mut self, request: pb::AppendRequest, answer: Option<pb::AppendResponse>) -> bool {
        let tag = request.events[0].actor.clone();
        let known = answer.is_some();
        if let Some(answer) = &answer {
            let places = answer.events.iter();
            let places = places.map(|e| (e.conversation_id.clone(), e.branch_id, e.revision));
            self.apply(&request, &places.collect::<Vec<_>>());
        }
        self.sent.push(Sent {
            tag,
            request,
            answer,
        });
        known
    }

    /// Updates the conversations with the batches that were stored without an answer.
    pub fn learn(&mut self, unsettled: &[Sent], ledger: &Ledger) {
        let prefix = format!("c{}-", self.index);
        for sent in unsettled.iter().filter(|s| s.tag.starts_with(&prefix)) {
            if !sent.request.idempotency_key.is_empty() {
                self.again.push(sent.request.clone());
            }
            if let Some(kept) = ledger.place_of(&sent.tag) {
                let places = kept
                    .iter()
                    .map(|k| (k.conversation.clone(), k.branch, k.revision));
                self.apply(&sent.request, &places.collect::<Vec<_>>());
            }
        }
    }

    fn apply(&mut self, request: &pb::AppendRequest, places: &[(String, u64, u64)]) {
        for (event, (id, branch, revision)) in request.events.iter().zip(places) {
            if *id == self.shared {
                continue;
            }
            let at = match self.conversations.iter().position(|c| c.id == *id) {
                Some(at) => at,
                None => {
                    self.conversations.push(Conversation {
                        id: id.clone(),
                        ..Default::default()
                    });
                    self.conversations.len() - 1
                }
            };
            let conversation = &mut self.conversations[at];
            if *revision <= conversation.head {
                continue;
            }
            conversation.head = *revision;
            let (kind, bytes) = envelope::arm_of_new(event.body.clone().unwrap());
            match body::decode(kind, &bytes).unwrap() {
                EventBody::BranchForked(forked) => {
                    conversation.branches.push(forked.name.to_string());
                }
                EventBody::ToolCallRequested(call) => conversation.open_calls.push(call.call_id),
                EventBody::ToolResultRecorded(result) => {
                    conversation.open_calls.retain(|id| *id != result.call_id);
                }
                _ => {}
            }
            if *branch == 0 {
                conversation.main.push(*revision);
            }
        }
    }

    /// Returns a batch that does not depend on the answers to earlier ones.
    fn pipelined_batch(&mut self) -> pb::AppendRequest {
        let bodies: Vec<_> = (0..=self.random.below(3)).map(|_| self.words()).collect();
        let shared = self.shared.clone();
        self.tagged(batch(&shared, bodies))
    }

    fn next_batch(&mut self) -> pb::AppendRequest {
        if self.conversations.len() < 2 || self.random.one_in(12) {
            let id = ConversationId::generate().to_string();
            let words = self.words();
            return self.tagged(batch(&id, [created("killed"), words]));
        }
        if self.random.one_in(5) {
            return self.pipelined_batch();
        }
        let at = self.random.below(self.conversations.len() as u64) as usize;
        let mut request = match self.random.below(10) {
            0..3 => self.calls(at),
            3..5 => self.results(at),
            5 => self.fork(at),
            6 => self.on_a_branch(at),
            _ => {
                let words = [self.words(), self.words()];
                batch(&self.conversations[at].id, words)
            }
        };
        let conversation = &self.conversations[at];
        let on_main = request.branch.is_empty();
        if on_main && self.random.one_in(3) {
            request.expected = conversation.main.last().and_then(|head| exactly(*head));
        }
        self.tagged(request)
    }

    fn words(&mut self) -> EventBody {
        let bytes = 20 + self.random.below(400) as usize;
        let text = self.random.text(bytes);
        message(*self.random.pick(&[Role::User, Role::Assistant]), &text)
    }

    fn calls(&mut self, at: usize) -> pb::AppendRequest {
        let words = self.words();
        let conversation = &mut self.conversations[at];
        let count = 1 + self.random.below(3);
        let mut bodies = vec![words];
        for _ in 0..count {
            conversation.calls += 1;
            let call_id = format!("{}-{}", self.batches, conversation.calls);
            bodies.push(call(&call_id, "read", r#"{"path": "src"}"#, false));
        }
        batch(&conversation.id, bodies)
    }

    fn results(&mut self, at: usize) -> pb::AppendRequest {
        let open = self.conversations[at].open_calls.clone();
        if open.is_empty() {
            return self.calls(at);
        }
        let bodies: Vec<_> = open.iter().map(|id| result(id, &self.output())).collect();
        batch(&self.conversations[at].id, bodies)
    }

    /// Returns a result: short, too large for a frame, or sometimes one that was sent before.
    fn output(&mut self) -> String {
        match self.random.below(8) {
            0 => Random(7).text(70_000),
            1 => {
                let bytes = 65_000 + self.random.below(200_000) as usize;
                self.random.text(bytes)
            }
            _ => self.random.text(1_000),
        }
    }

    fn fork(&mut self, at: usize) -> pb::AppendRequest {
        let conversation = &self.conversations[at];
        let name = format!("try {}", self.batches);
        let forked = BranchForked {
            name: BranchName::new(&name).unwrap(),
            parent: BranchId::MAIN,
            fork_revision: Revision(*self.random.pick(&conversation.main)),
            system_prompt: String::new(),
        };
        batch(&conversation.id, [EventBody::BranchForked(forked)])
    }

    fn on_a_branch(&mut self, at: usize) -> pb::AppendRequest {
        if self.conversations[at].branches.is_empty() {
            return self.fork(at);
        }
        let words = self.words();
        let conversation = &self.conversations[at];
        pb::AppendRequest {
            branch: self.random.pick(&conversation.branches).clone(),
            ..batch(&conversation.id, [words])
        }
    }

    fn tagged(&mut self, mut request: pb::AppendRequest) -> pb::AppendRequest {
        let tag = self.next_tag();
        if self.random.one_in(3) {
            request.idempotency_key = format!("key of {tag}");
        }
        for event in &mut request.events {
            event.actor.clone_from(&tag);
        }
        request
    }
}

/// Checks that an error has no reason, as when the server is killed. A running server gives a
/// reason, and these tests should cause none.
fn assert_is_gone(status: &Status) {
    let said = reason(status);
    assert!(said.is_empty(), "refused: {said}: {}", status.message());
}
