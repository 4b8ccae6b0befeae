//! Valid histories for tests.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

use super::{WindowEvent, WindowInput};
use crate::{
    called_tools::CalledTools, cancellation::CancellationToken, heuristics::PlainHeuristics,
};
use treering_domain::*;

/// A growing history of a branch.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Story {
    events: Vec<Arc<WindowEvent>>,
    /// Policies of the conversation.
    pub policies: BTreeMap<String, String>,
}

pub fn conversation() -> ConversationId {
    ConversationId(uuid::Uuid::from_u128(7))
}

pub fn at(revision: u64) -> EventRef {
    EventRef {
        conversation: conversation(),
        revision: Revision(revision),
    }
}

impl Story {
    pub fn new() -> Self {
        let created = EventBody::ConversationCreated(ConversationCreated::default());
        Self::default().then(created)
    }

    pub fn push(&mut self, body: EventBody) {
        let number = self.events.len() as u64 + 1;
        self.events.push(Arc::new(WindowEvent {
            at: at(number),
            offset: number,
            recorded_at: TimestampMicros(0),
            body,
        }));
    }

    pub fn then(mut self, body: EventBody) -> Self {
        self.push(body);
        self
    }

    pub fn user(self, text: &str) -> Self {
        self.then(say(Role::User, text))
    }

    pub fn assistant(self, text: &str) -> Self {
        self.then(say(Role::Assistant, text))
    }

    pub fn call(self, call_id: &str) -> Self {
        self.then(call(call_id, false))
    }

    pub fn call_with(self, call_id: &str, arguments: &str) -> Self {
        let EventBody::ToolCallRequested(mut called) = call(call_id, false) else {
            return self;
        };
        called.arguments = json(arguments);
        called.arguments_hash = hash(&called.arguments);
        self.then(EventBody::ToolCallRequested(called))
    }

    pub fn result(self, call_id: &str, text: &str) -> Self {
        self.then(EventBody::ToolResultRecorded(ToolResultRecorded::text(
            call_id, text,
        )))
    }

    #[expect(clippy::len_without_is_empty, reason = "no test asks")]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    pub fn last(&self) -> EventRef {
        at(self.len() as u64)
    }

    /// Returns the branch after its first `count` events.
    pub fn branch(&self, count: usize) -> BranchState {
        let mut branch = BranchState::root();
        for event in &self.events[..count] {
            branch.apply(event.at, &event.body);
        }
        branch
    }

    pub fn input(&self) -> WindowInput {
        self.input_at(self.len())
    }

    /// Returns the window after the first `count` events.
    pub fn input_at(&self, count: usize) -> WindowInput {
        let branch = self.branch(count);
        let open = self.events[..count]
            .iter()
            .filter(|event| event.at.revision > branch.cut);
        let cut = branch.cut;
        let earlier = self.events[..count]
            .iter()
            .filter_map(|event| match &event.body {
                EventBody::ToolCallRequested(call) if event.at.revision <= cut => Some(call),
                _ => None,
            });
        let referred = self.events[..count].iter();
        let info = ConversationInfo {
            policies: self.policies.clone(),
            ..ConversationInfo::new(&ConversationCreated::default(), conversation())
        };
        WindowInput {
            conversation: conversation(),
            info: Arc::new(info),
            revision: branch.head,
            events: open.cloned().collect(),
            referred: referred
                .map(|event| (event.at, Arc::clone(event)))
                .collect(),
            branch: Arc::new(branch),
            folded: None,
            earlier_tools: Arc::new(CalledTools::of(earlier)),
            long_term: Vec::new(),
            names_in_results: Vec::new(),
            warnings: Vec::new(),
            knowledge: None,
            heuristics: Arc::new(PlainHeuristics),
            cancellation: CancellationToken::default(),
        }
    }
}

pub fn say(role: Role, text: &str) -> EventBody {
    EventBody::MessageAppended(MessageAppended::text(role, text))
}

pub fn json(text: &str) -> JsonText {
    JsonText::from_checked(Bytes::copy_from_slice(text.as_bytes()))
}

pub fn call(call_id: &str, needs_approval: bool) -> EventBody {
    let arguments = json(r#"{"path": "src/main.rs"}"#);
    EventBody::ToolCallRequested(ToolCallRequested {
        call_id: call_id.to_owned(),
        tool: format!("tool_{call_id}"),
        arguments_hash: hash(&arguments),
        arguments,
        message_revision: None,
        needs_approval,
        ..ToolCallRequested::default()
    })
}

fn hash(arguments: &JsonText) -> ContentHash {
    ContentHash(blake3::hash(arguments.as_bytes()).into())
}

pub fn decided(call_id: &str, decision: Decision, reason: &str) -> EventBody {
    EventBody::ApprovalDecided(ApprovalDecided {
        call_id: call_id.to_owned(),
        decision,
        arguments_hash: hash(&json(r#"{"path": "src/main.rs"}"#)),
        decided_by: "alice".to_owned(),
        reason: reason.to_owned(),
    })
}

pub fn cancelled(call_id: &str, reason: CancelReason, detail: &str) -> EventBody {
    EventBody::ToolCallCancelled(ToolCallCancelled {
        call_id: call_id.to_owned(),
        reason,
        detail: detail.to_owned(),
    })
}

pub fn compacted(cut: u64, summary: &str) -> EventBody {
    EventBody::Compacted(Compacted {
        summary: summary.to_owned(),
        cut_revision: Revision(cut),
        kept_turns: 0,
        tokens_before: 0,
        tokens_after: 0,
        trigger: CompactionTrigger::Manual,
        raw: None,
    })
}

pub fn tool(name: &str, discoverable: bool, guidance: &str) -> ToolDefinition {
    ToolDefinition {
        name: name.to_owned(),
        description: format!("does {name}"),
        input_schema: json(r#"{"type": "object"}"#),
        source: String::new(),
        needs_approval: false,
        guidance: guidance.to_owned(),
        discoverable,
        strict: None,
    }
}

/// One step of a history, made valid for the events before it.
#[derive(Clone, Copy, Debug)]
pub enum SampleStep {
    User(u16),
    Assistant(u16, u8),
    System,
    Call(u8, bool),
    Result(u8, u16),
    Failure(u8),
    Cancel(u8),
    Decide(u8, bool),
    Start(u8),
    ToolMessage(u8, bool),
    Discover(u8),
    Guidance(u8),
    Returned(u8),
    Set(u8),
    Summary,
    Snapshot(u8),
    Compact(u8),
}

/// Returns a valid history with these steps. Skips steps that are not possible.
pub fn told(steps: &[SampleStep]) -> Story {
    let tools = ["t0", "t1", "t2"].map(|name| tool(name, name != "t0", "with care"));
    let mut story =
        Story::new()
            .then(say(Role::System, "be brief"))
            .then(EventBody::ToolsDefined {
                tools: tools.into(),
            });
    for next in steps {
        let branch = story.branch(story.len());
        if let Some(body) = body(&story, &branch, *next) {
            story.push(body);
        }
    }
    story
}

fn words(count: u16) -> String {
    (0..count).map(|number| format!("w{number} ")).collect()
}

fn body(story: &Story, branch: &BranchState, next: SampleStep) -> Option<EventBody> {
    let open = |number: u8| {
        let ids: Vec<_> = branch.open_calls.keys().collect();
        let id = *ids.get(usize::from(number) % ids.len().max(1))?;
        Some((id.clone(), branch.open_calls[id].approval))
    };
    let may_run = |approval| {
        matches!(
            approval,
            ApprovalStatus::NotRequired | ApprovalStatus::Approved
        )
    };
    Some(match next {
        SampleStep::User(size) => say(Role::User, &words(size)),
        SampleStep::System => say(Role::System, "a word from the system"),
        SampleStep::Assistant(size, id) => {
            let mut message = MessageAppended::text(Role::Assistant, words(size));
            if id < 100 {
                message.message_id = format!("m{}", id % 2);
            }
            if id % 3 == 0 {
                let thought = Reasoning {
                    text: "hm".to_owned(),
                    signature: Bytes::from_static(b"sig"),
                    provider: "anthropic".to_owned(),
                    ..Reasoning::default()
                };
                message.parts.insert(0, ContentPart::Reasoning(thought));
            }
            EventBody::MessageAppended(message)
        }
        SampleStep::Call(id, needs_approval) => {
            let id = format!("c{}", id % 4);
            if branch.open_calls.contains_key(&id) {
                return None;
            }
            call(&id, needs_approval)
        }
        SampleStep::Result(number, size) => {
            let (id, approval) = open(number)?;
            let text = words(size);
            EventBody::ToolResultRecorded(if may_run(approval) {
                ToolResultRecorded::text(id, text)
            } else {
                ToolResultRecorded::failure(id, text)
            })
        }
        SampleStep::Failure(number) => {
            let result = ToolResultRecorded::failure(open(number)?.0, "no such file");
            EventBody::ToolResultRecorded(result)
        }
        SampleStep::Cancel(number) => cancelled(&open(number)?.0, CancelReason::Interrupted, ""),
        SampleStep::Decide(number, yes) => {
            let (id, approval) = open(number)?;
            let decision = if yes {
                Decision::Approved
            } else {
                Decision::Denied
            };
            (approval == ApprovalStatus::Pending).then(|| decided(&id, decision, "so be it"))?
        }
        SampleStep::Start(number) => {
            let (call_id, approval) = open(number)?;
            may_run(approval).then(|| {
                EventBody::ToolCallStarted(ToolCallStarted {
                    call_id,
                    executor: "bob".to_owned(),
                })
            })?
        }
        SampleStep::ToolMessage(number, known) => {
            let mut message = MessageAppended::text(Role::Tool, "found");
            message.tool_call_id = match open(number) {
                Some((id, _)) if known => id,
                _ => "unknown".to_owned(),
            };
            EventBody::MessageAppended(message)
        }
        SampleStep::Discover(number) => EventBody::ToolsDiscovered {
            names: vec![format!("t{}", number % 4)],
        },
        SampleStep::Guidance(number) => EventBody::GuidanceGiven {
            guidance: vec![Guidance {
                tool: format!("t{}", number % 4),
                text: "slowly".to_owned(),
            }],
        },
        SampleStep::Returned(number) => EventBody::SubContextReturned(SubContextReturned {
            conversation: conversation(),
            summary: "found it".to_owned(),
            call_id: match number % 2 {
                0 => String::new(),
                _ => format!("c{}", number % 4),
            },
        }),
        SampleStep::Set(number) => EventBody::ContextSet(ContextSet {
            key: format!("k{}", number % 3),
            value: json(r#"{"a": 1.50}"#),
            provider: String::new(),
        }),
        SampleStep::Summary => EventBody::SummaryRecorded(SummaryRecorded {
            content: "they talk".to_owned(),
            from_revision: Revision(1),
            to_revision: story.last().revision,
        }),
        SampleStep::Snapshot(number) => {
            let requests: Vec<_> = story
                .events
                .iter()
                .filter_map(|event| match &event.body {
                    EventBody::ToolCallRequested(call) => Some((event.at, &call.call_id)),
                    _ => None,
                })
                .collect();
            let (request, call_id) = requests.get(usize::from(number) % requests.len().max(1))?;
            EventBody::ToolSnapshotRecorded(ToolSnapshotRecorded {
                call_id: (*call_id).clone(),
                request_revision: request.revision,
                summary: "in short".to_owned(),
            })
        }
        SampleStep::Compact(back) => compacted(boundary(story, branch, back)?, "what was done"),
    })
}

/// Returns the turn boundary at index `back`, modulo the number of boundaries, after the last cut.
fn boundary(story: &Story, branch: &BranchState, back: u8) -> Option<u64> {
    let is_call = |number: usize| {
        let next = story.events.get(number).map(|event| &event.body);
        matches!(next, Some(EventBody::ToolCallRequested(_)))
    };
    let last = branch.cut.0 as usize;
    let boundaries: Vec<_> = (last + 1..=story.len())
        .filter(|number| story.branch(*number).at_turn_boundary() && !is_call(*number))
        .collect();
    let back = usize::from(back) % boundaries.len().max(1);
    boundaries.get(back).map(|number| *number as u64)
}
