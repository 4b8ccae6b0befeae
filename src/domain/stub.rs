//! Stubs: what is left of an event after its content was erased.
//!
//! A stub is a body of the same kind. It keeps the ids, numbers and enums that folds need, and
//! no text that somebody wrote. Everything that accepts a body therefore accepts a stub, and a
//! branch keeps the same events, calls, turns and forks. A required text becomes [`ERASED`],
//! and a branch is named by its id.

use super::{
    event::{
        AnnotationAdded, BranchForked, Compacted, Config, ContextSet, ConversationChanged,
        ConversationCreated, Entity, Guidance, PromptSet, SummaryRecorded,
    },
    id::{BranchId, BranchName, ContentHash},
    kind::EventBody,
    message::{ContentPart, JsonText, MessageAppended, RawMessage, Usage},
    tool::{
        ApprovalDecided, Custom, SubContextReturned, SubContextSpawned, ToolCallCancelled,
        ToolCallRequested, ToolCallStarted, ToolDefinition, ToolResultRecorded,
        ToolSnapshotRecorded,
    },
};

/// Replaces an erased text that is required.
pub const ERASED: &str = "erased";

impl EventBody {
    /// Returns what is left of this body after erasure. `branch` is the event's branch. Every field
    /// of every kind is named in the code, so that a new field must be kept or dropped explicitly.
    #[must_use]
    pub fn stub(&self, branch: BranchId) -> Self {
        match self {
            Self::ConversationCreated(created) => Self::ConversationCreated(created.stub()),
            Self::ConfigChanged(config) => Self::ConfigChanged(without_settings(config)),
            Self::BranchForked(forked) => Self::BranchForked(forked.stub(branch)),
            Self::BranchActivated => Self::BranchActivated,
            Self::BranchRenamed(name) => Self::BranchRenamed(branch_name(branch, name)),
            Self::BranchArchived { reason } => Self::BranchArchived {
                reason: gone(reason),
            },
            Self::SystemPromptSet(prompt) => Self::SystemPromptSet(prompt.stub()),
            Self::UserPromptSet(prompt) => Self::UserPromptSet(prompt.stub()),
            Self::MessageAppended(message) => Self::MessageAppended(message.stub()),
            Self::ToolCallRequested(call) => Self::ToolCallRequested(call.stub()),
            Self::ApprovalDecided(decided) => Self::ApprovalDecided(decided.stub()),
            Self::ToolCallStarted(started) => Self::ToolCallStarted(started.stub()),
            Self::ToolResultRecorded(result) => Self::ToolResultRecorded(result.stub()),
            Self::ToolCallCancelled(cancelled) => Self::ToolCallCancelled(cancelled.stub()),
            Self::ToolSnapshotRecorded(snapshot) => Self::ToolSnapshotRecorded(snapshot.stub()),
            Self::ContextSet(set) => Self::ContextSet(set.stub()),
            Self::ContextRemoved { key } => Self::ContextRemoved { key: marker(key) },
            Self::ToolsDiscovered { names } => Self::ToolsDiscovered { names: none(names) },
            Self::GuidanceGiven { guidance } => Self::GuidanceGiven {
                guidance: none::<Guidance>(guidance),
            },
            Self::EntitiesNoted { entities } => Self::EntitiesNoted {
                entities: none::<Entity>(entities),
            },
            Self::SummaryRecorded(summary) => Self::SummaryRecorded(summary.stub()),
            Self::Compacted(compacted) => Self::Compacted(compacted.stub()),
            Self::SubContextSpawned(spawned) => Self::SubContextSpawned(spawned.stub()),
            Self::SubContextReturned(returned) => Self::SubContextReturned(returned.stub()),
            Self::ConversationSealed { reason, summary } => Self::ConversationSealed {
                reason: gone(reason),
                summary: gone(summary),
            },
            Self::ToolsDefined { tools } => Self::ToolsDefined {
                tools: none::<ToolDefinition>(tools),
            },
            Self::AnnotationAdded(added) => Self::AnnotationAdded(added.stub()),
            Self::Custom(custom) => Self::Custom(custom.stub()),
            Self::ConversationChanged(changed) => Self::ConversationChanged(changed.stub()),
            Self::ContentErased {
                revisions,
                reason,
                stubs,
                signed_by,
            } => Self::ContentErased {
                revisions: revisions.clone(),
                reason: gone(reason),
                stubs: *stubs,
                signed_by: *signed_by,
            },
        }
    }
}

/// Erases an optional text.
fn gone(_: &str) -> String {
    String::new()
}

/// Erases a required text.
fn marker(_: &str) -> String {
    ERASED.to_owned()
}

/// Erases a text whose presence means that something is set.
fn marker_if_set(text: &str) -> String {
    match text.is_empty() {
        true => String::new(),
        false => marker(text),
    }
}

/// Erases required JSON.
fn json(_: &JsonText, instead: &'static str) -> JsonText {
    JsonText::from_checked(instead.into())
}

fn no_json(_: &JsonText) -> JsonText {
    JsonText::default()
}

fn none<T>(_: &[T]) -> Vec<T> {
    Vec::new()
}

fn no_raw(_: Option<&RawMessage>) -> Option<RawMessage> {
    None
}

/// Returns a name that no other branch of the conversation has, unless somebody chose it.
fn branch_name(branch: BranchId, name: &BranchName) -> BranchName {
    // This always is a valid name: a word and a number.
    BranchName::new(&format!("{ERASED}-{branch}")).unwrap_or_else(|_| name.clone())
}

fn without_settings(config: &Config) -> Config {
    let Config {
        model_id,
        mode,
        parameters: _,
    } = config;
    Config {
        model_id: gone(model_id),
        mode: gone(mode),
        parameters: Default::default(),
    }
}

impl ConversationCreated {
    fn stub(&self) -> Self {
        let Self {
            title,
            config,
            labels: _,
            parent,
            shares_history,
            policies: _,
            source,
            source_id,
            source_meta,
            metadata: _,
        } = self;
        Self {
            title: gone(title),
            config: without_settings(config),
            labels: Default::default(),
            parent: parent.clone(),
            shares_history: *shares_history,
            policies: Default::default(),
            source: gone(source),
            source_id: gone(source_id),
            source_meta: no_json(source_meta),
            metadata: Default::default(),
        }
    }
}

impl ConversationChanged {
    /// Erases the whole change: earlier values apply again, unless they are erased too.
    fn stub(&self) -> Self {
        let Self {
            title: _,
            set_labels: _,
            remove_labels: _,
            set_metadata: _,
            remove_metadata: _,
        } = self;
        Self::default()
    }
}

impl BranchForked {
    fn stub(&self, branch: BranchId) -> Self {
        let Self {
            name,
            parent,
            fork_revision,
            system_prompt,
        } = self;
        Self {
            name: branch_name(branch, name),
            parent: *parent,
            fork_revision: *fork_revision,
            system_prompt: marker_if_set(system_prompt),
        }
    }
}

impl PromptSet {
    fn stub(&self) -> Self {
        let Self { id, content } = self;
        Self {
            id: gone(id),
            content: gone(content),
        }
    }
}

impl MessageAppended {
    fn stub(&self) -> Self {
        let Self {
            role,
            parts,
            author,
            usage,
            raw,
            message_id,
            finish_reason,
            tool_call_id,
            tool_name,
        } = self;
        Self {
            role: *role,
            parts: none::<ContentPart>(parts),
            author: gone(author),
            usage: usage.as_ref().map(Usage::stub),
            raw: no_raw(raw.as_ref()),
            message_id: gone(message_id),
            finish_reason: gone(finish_reason),
            tool_call_id: tool_call_id.clone(),
            tool_name: marker_if_set(tool_name),
        }
    }
}

impl Usage {
    fn stub(&self) -> Self {
        let Self {
            input_tokens,
            output_tokens,
            cache_read_input_tokens,
            cache_creation_input_tokens,
            reasoning_output_tokens,
            model,
        } = self;
        Self {
            input_tokens: *input_tokens,
            output_tokens: *output_tokens,
            cache_read_input_tokens: *cache_read_input_tokens,
            cache_creation_input_tokens: *cache_creation_input_tokens,
            reasoning_output_tokens: *reasoning_output_tokens,
            model: gone(model),
        }
    }
}

impl ToolCallRequested {
    fn stub(&self) -> Self {
        let Self {
            call_id,
            tool,
            arguments,
            arguments_hash: _,
            message_revision,
            needs_approval,
            arguments_not_json: _,
            item_id,
            raw,
        } = self;
        Self {
            call_id: call_id.clone(),
            tool: marker(tool),
            arguments: json(arguments, "{}"),
            // Computed again whenever the body is decoded.
            arguments_hash: ContentHash::default(),
            message_revision: *message_revision,
            needs_approval: *needs_approval,
            // The placeholder is JSON.
            arguments_not_json: false,
            item_id: gone(item_id),
            raw: no_raw(raw.as_ref()),
        }
    }
}

impl ApprovalDecided {
    /// Drops the hash of the arguments too: it is unkeyed and could reveal a short secret.
    fn stub(&self) -> Self {
        let Self {
            call_id,
            decision,
            arguments_hash: _,
            decided_by,
            reason,
        } = self;
        Self {
            call_id: call_id.clone(),
            decision: *decision,
            arguments_hash: ContentHash::default(),
            decided_by: gone(decided_by),
            reason: gone(reason),
        }
    }
}

impl ToolCallStarted {
    fn stub(&self) -> Self {
        let Self { call_id, executor } = self;
        Self {
            call_id: call_id.clone(),
            executor: gone(executor),
        }
    }
}

impl ToolResultRecorded {
    fn stub(&self) -> Self {
        let Self {
            call_id,
            success,
            error_message,
            execution_time_ms,
            parts,
            structured,
            raw,
        } = self;
        Self {
            call_id: call_id.clone(),
            success: *success,
            error_message: gone(error_message),
            execution_time_ms: *execution_time_ms,
            parts: none::<ContentPart>(parts),
            structured: no_json(structured),
            raw: no_raw(raw.as_ref()),
        }
    }
}

impl ToolCallCancelled {
    fn stub(&self) -> Self {
        let Self {
            call_id,
            reason,
            detail,
        } = self;
        Self {
            call_id: call_id.clone(),
            reason: *reason,
            detail: gone(detail),
        }
    }
}

impl ToolSnapshotRecorded {
    fn stub(&self) -> Self {
        let Self {
            call_id,
            request_revision,
            summary,
        } = self;
        Self {
            call_id: call_id.clone(),
            request_revision: *request_revision,
            summary: gone(summary),
        }
    }
}

impl ContextSet {
    fn stub(&self) -> Self {
        let Self {
            key,
            value,
            provider,
        } = self;
        Self {
            key: marker(key),
            value: json(value, "null"),
            provider: gone(provider),
        }
    }
}

impl SummaryRecorded {
    fn stub(&self) -> Self {
        let Self {
            content,
            from_revision,
            to_revision,
        } = self;
        Self {
            content: gone(content),
            from_revision: *from_revision,
            to_revision: *to_revision,
        }
    }
}

impl Compacted {
    fn stub(&self) -> Self {
        let Self {
            summary,
            cut_revision,
            kept_turns,
            tokens_before,
            tokens_after,
            trigger,
            raw,
        } = self;
        Self {
            summary: gone(summary),
            cut_revision: *cut_revision,
            kept_turns: *kept_turns,
            tokens_before: *tokens_before,
            tokens_after: *tokens_after,
            trigger: *trigger,
            raw: no_raw(raw.as_ref()),
        }
    }
}

impl SubContextSpawned {
    fn stub(&self) -> Self {
        let Self {
            conversation,
            call_id,
            purpose,
        } = self;
        Self {
            conversation: *conversation,
            call_id: call_id.clone(),
            purpose: gone(purpose),
        }
    }
}

impl SubContextReturned {
    fn stub(&self) -> Self {
        let Self {
            conversation,
            summary,
            call_id,
        } = self;
        Self {
            conversation: *conversation,
            summary: gone(summary),
            call_id: call_id.clone(),
        }
    }
}

impl AnnotationAdded {
    fn stub(&self) -> Self {
        let Self {
            target,
            whole_turn,
            score,
            label,
            comment,
        } = self;
        Self {
            target: *target,
            whole_turn: *whole_turn,
            score: *score,
            label: gone(label),
            comment: gone(comment),
        }
    }
}

impl Custom {
    fn stub(&self) -> Self {
        let Self {
            type_name,
            content_type,
            data: _,
            text,
            delta_of,
        } = self;
        Self {
            type_name: marker(type_name),
            content_type: gone(content_type),
            data: Default::default(),
            text: gone(text),
            delta_of: gone(delta_of),
        }
    }
}
