//! Describes events in words: title, note and content of each kind.

use prost::Message;

use super::{
    super::{
        Tone,
        json::{cancel_name, kind_name, role_name, status_name},
        pb::{self, event::Body},
    },
    bytes_human,
    event::{EventWords, pair, parts_text},
};
use treering_domain::event_kinds;

/// Describes an event.
#[must_use]
pub fn describe_event(event: &pb::Event) -> EventWords {
    let Some(body) = &event.body else {
        return EventWords::new(Tone::Strong, kind_name(event.kind));
    };
    let said = say_body(body).unwrap_or_else(|_| {
        EventWords::new(Tone::Bad, kind_name(event.kind)).note("its body cannot be decoded")
    });
    match event.erased {
        // The stub of an erased message has no meaningful content.
        true => said.note("its content was erased").content(""),
        false => said,
    }
}

/// Describes a decision about a call.
#[must_use]
pub fn decision_text(decision: pb::Decision) -> (Tone, &'static str) {
    match decision {
        pb::Decision::Approved => (Tone::Good, "approved"),
        pb::Decision::Denied => (Tone::Bad, "denied"),
        pb::Decision::Expired => (Tone::Bad, "approval expired"),
        pb::Decision::Unspecified => (Tone::Wait, "decided"),
    }
}

/// Describes the status of a call.
#[must_use]
pub fn status_text(status: pb::CallStatus) -> (Tone, String) {
    use pb::CallStatus;
    let tone = match status {
        CallStatus::Succeeded => Tone::Good,
        CallStatus::Failed | CallStatus::Denied | CallStatus::Expired | CallStatus::Cancelled => {
            Tone::Bad
        }
        CallStatus::PendingApproval => Tone::Wait,
        CallStatus::Unspecified
        | CallStatus::Requested
        | CallStatus::Approved
        | CallStatus::Started => Tone::Strong,
    };
    (tone, status_name(status).replace('_', " "))
}

macro_rules! words {
    ($(
        $(#[$about:meta])*
        $number:literal $text:ident $name:ident
        $(($($payload:tt)*))? $({ $($fields:tt)* })?;
    )*) => {
        fn say_body(body: &Body) -> Result<EventWords, prost::DecodeError> {
            Ok(match body {
                $(Body::$name(bytes) => pb::$name::decode(bytes.as_ref())?.describe(),)*
            })
        }
    };
}

event_kinds!(words);

/// Describes a body.
trait InWords {
    fn describe(self) -> EventWords;
}

impl InWords for pb::MessageAppended {
    fn describe(self) -> EventWords {
        let tone = match self.role() {
            pb::Role::User => Tone::User,
            pb::Role::Assistant => Tone::Assistant,
            pb::Role::Tool => Tone::Tool,
            pb::Role::System | pb::Role::Developer | pb::Role::Unspecified => Tone::Strong,
        };
        let tokens = self.usage.as_ref().map_or(String::new(), |usage| {
            format!(
                "{} tokens in, {} out",
                usage.input_tokens, usage.output_tokens
            )
        });
        EventWords::new(tone, role_name(self.role))
            .note(pair(&self.author, &tokens))
            .content(parts_text(&self.parts))
    }
}

impl InWords for pb::ToolCallRequested {
    fn describe(self) -> EventWords {
        let waits = self.approval() == pb::ApprovalRequirement::Pending;
        let said = if waits {
            EventWords::new(Tone::Wait, format!("{} (needs approval)", self.tool))
        } else {
            EventWords::new(Tone::Tool, self.tool.clone())
        };
        let note = match self.arguments_not_json {
            true => format!("{}, arguments that are not JSON", self.call_id),
            false => self.call_id.clone(),
        };
        said.note(note)
            .content(String::from_utf8_lossy(&self.arguments))
    }
}

impl InWords for pb::ToolResultRecorded {
    fn describe(self) -> EventWords {
        let text = parts_text(&self.parts);
        let took = self
            .execution_time_ms
            .map_or(String::new(), |ms| format!("{ms} ms"));
        let size = bytes_human(text.len() as u64);
        let (tone, title) = if self.success {
            (Tone::Good, "result")
        } else {
            (Tone::Bad, "failed")
        };
        let content = match (self.error_message.is_empty(), text.is_empty()) {
            (true, _) => text,
            (false, true) => self.error_message,
            (false, false) => format!("{}\n{text}", self.error_message),
        };
        EventWords::new(tone, title)
            .note(pair(&pair(&self.call_id, &took), &size))
            .content(content)
    }
}

impl InWords for pb::ApprovalDecided {
    fn describe(self) -> EventWords {
        let (tone, title) = decision_text(self.decision());
        let by = pair(&self.call_id, &self.decided_by);
        EventWords::new(tone, title)
            .note(by)
            .content(self.reason.clone())
    }
}

impl InWords for pb::ToolCallStarted {
    fn describe(self) -> EventWords {
        EventWords::new(Tone::Tool, "started").note(pair(&self.call_id, &self.executor))
    }
}

impl InWords for pb::ToolCallCancelled {
    fn describe(self) -> EventWords {
        let why = cancel_name(self.reason());
        EventWords::new(Tone::Bad, format!("cancelled ({why})"))
            .note(pair(&self.call_id, &self.detail))
    }
}

impl InWords for pb::ToolSnapshotRecorded {
    fn describe(self) -> EventWords {
        EventWords::new(Tone::Tool, "snapshot")
            .note(self.call_id)
            .content(self.summary)
    }
}

impl InWords for pb::SummaryRecorded {
    fn describe(self) -> EventWords {
        EventWords::new(Tone::Strong, "summary")
            .note(format!(
                "of #{} to #{}",
                self.from_revision, self.to_revision
            ))
            .content(self.content)
    }
}

impl InWords for pb::Compacted {
    fn describe(self) -> EventWords {
        EventWords::new(Tone::Wait, "compacted")
            .note(match self.trigger() {
                // An imported compaction replaces everything before it.
                pb::CompactionTrigger::Imported => "all before".to_owned(),
                _ => format!("up to #{}", self.cut_revision),
            })
            .content(self.summary)
    }
}

impl InWords for pb::SystemPromptSet {
    fn describe(self) -> EventWords {
        EventWords::new(Tone::Strong, "system prompt")
            .note(self.id)
            .content(self.content)
    }
}

impl InWords for pb::UserPromptSet {
    fn describe(self) -> EventWords {
        EventWords::new(Tone::User, "user prompt")
            .note(self.id)
            .content(self.content)
    }
}

impl InWords for pb::ConversationCreated {
    fn describe(self) -> EventWords {
        let from = pair(&self.source, &self.source_id);
        EventWords::new(Tone::Strong, "conversation created")
            .note(from)
            .content(self.title)
    }
}

impl InWords for pb::ConversationChanged {
    fn describe(self) -> EventWords {
        let set = |(name, value): (&String, &String)| format!("{name}={value}");
        let removed = |name: &String| format!("without {name}");
        let labels = self.set_labels.iter().map(set);
        let metadata = self.set_metadata.iter().map(set);
        let names = self.remove_labels.iter().chain(&self.remove_metadata);
        let all: Vec<_> = labels.chain(metadata).chain(names.map(removed)).collect();
        EventWords::new(Tone::Strong, "conversation changed")
            .note(all.join(", "))
            .content(self.title.unwrap_or_default())
    }
}

impl InWords for pb::ConfigChanged {
    fn describe(self) -> EventWords {
        let config = self.config.unwrap_or_default();
        EventWords::new(Tone::Strong, "config").note(pair(&config.model_id, &config.mode))
    }
}

impl InWords for pb::BranchForked {
    fn describe(self) -> EventWords {
        EventWords::new(Tone::Strong, format!("branch {}", self.name))
            .note(format!("forked after #{}", self.fork_revision))
            .content(self.system_prompt)
    }
}

impl InWords for pb::BranchActivated {
    fn describe(self) -> EventWords {
        EventWords::new(Tone::Strong, "branch activated")
    }
}

impl InWords for pb::BranchRenamed {
    fn describe(self) -> EventWords {
        EventWords::new(Tone::Strong, format!("branch renamed to {}", self.name))
    }
}

impl InWords for pb::BranchArchived {
    fn describe(self) -> EventWords {
        EventWords::new(Tone::Strong, "branch archived").note(self.reason)
    }
}

impl InWords for pb::ConversationSealed {
    fn describe(self) -> EventWords {
        EventWords::new(Tone::Strong, "sealed")
            .note(self.reason)
            .content(self.summary)
    }
}

impl InWords for pb::SubContextSpawned {
    fn describe(self) -> EventWords {
        EventWords::new(Tone::Tool, "sub-context spawned")
            .note(self.conversation_id)
            .content(self.purpose)
    }
}

impl InWords for pb::SubContextReturned {
    fn describe(self) -> EventWords {
        EventWords::new(Tone::Tool, "sub-context returned")
            .note(self.conversation_id)
            .content(self.summary)
    }
}

impl InWords for pb::ContextSet {
    fn describe(self) -> EventWords {
        EventWords::new(Tone::Strong, format!("context {}", self.key))
            .note(self.provider)
            .content(String::from_utf8_lossy(&self.value))
    }
}

impl InWords for pb::ContextRemoved {
    fn describe(self) -> EventWords {
        EventWords::new(Tone::Strong, format!("context {} removed", self.key))
    }
}

impl InWords for pb::ToolsDiscovered {
    fn describe(self) -> EventWords {
        EventWords::new(Tone::Tool, "tools discovered").note(self.names.join(", "))
    }
}

impl InWords for pb::ToolsDefined {
    fn describe(self) -> EventWords {
        let names: Vec<_> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
        EventWords::new(Tone::Tool, "tools defined").note(names.join(", "))
    }
}

impl InWords for pb::GuidanceGiven {
    fn describe(self) -> EventWords {
        let names: Vec<_> = self
            .guidance
            .iter()
            .map(|item| item.tool.as_str())
            .collect();
        EventWords::new(Tone::Tool, "guidance given").note(names.join(", "))
    }
}

impl InWords for pb::EntitiesNoted {
    fn describe(self) -> EventWords {
        let ids: Vec<_> = self.entities.iter().map(|item| item.id.as_str()).collect();
        EventWords::new(Tone::Strong, "entities").note(ids.join(", "))
    }
}

impl InWords for pb::AnnotationAdded {
    fn describe(self) -> EventWords {
        let of = match (self.target_revision, self.whole_turn) {
            (0, _) => "the branch".to_owned(),
            (revision, true) => format!("the turn of #{revision}"),
            (revision, false) => format!("#{revision}"),
        };
        let score = self.score.map_or(String::new(), |score| score.to_string());
        EventWords::new(Tone::Wait, format!("annotation of {of}"))
            .note(pair(&self.label, &score))
            .content(self.comment)
    }
}

impl InWords for pb::Custom {
    fn describe(self) -> EventWords {
        let size = bytes_human(self.data.len() as u64);
        EventWords::new(Tone::Strong, self.type_name)
            .note(pair(&self.content_type, &size))
            .content(self.text)
    }
}

impl InWords for pb::ContentErased {
    fn describe(self) -> EventWords {
        let revisions: Vec<_> = self.revisions.iter().map(|r| format!("#{r}")).collect();
        EventWords::new(Tone::Bad, format!("erased {}", revisions.join(", "))).note(self.reason)
    }
}
