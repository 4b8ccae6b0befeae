//! Which fields of each message are printed, in which order and form. Scripts rely on all of it:
//! fields may only be added.
//!
//! A message without a view is written field by field in the order of declaration, without unset
//! fields. So a new message needs a view only if its output should differ from that.

use std::{collections::HashMap, sync::LazyLock};

use prost_reflect::{DescriptorPool, FieldDescriptor, MessageDescriptor};

use treering_proto::DESCRIPTORS;

/// Views by name: the name of the message, or `Message/view` for a further view of it. A field is
/// named as in `proto/`, followed by these flags in this order:
///
/// - `?` omits it when it is not set;
/// - `!` writes an unset message as an empty one, not as null;
/// - `&other` writes it only when the field `other` is set;
/// - `=name` gives it another name (see also [`RENAMED`]);
/// - `:form` writes it in one of the forms of [`JsonForm`].
const VIEWS: &[(&str, &str)] = &[
    // Events.
    (
        "Event",
        "id conversation_id branch_id branch revision position! kind recorded_at occurred_at \
         actor causation_id correlation_id chain_hash:hex erased? key? attributes? type_name?",
    ),
    ("Position", "shard offset"),
    ("EventRef", "conversation_id revision"),
    ("Config", "model_id? mode? parameters?:json"),
    (
        "ConversationChanged",
        "title? set_labels? remove_labels? set_metadata?:json remove_metadata?",
    ),
    ("ParentRef", "conversation_id branch_id revision call_id?"),
    (
        "ConversationCreated",
        "title? config? labels? parent? shares_history? policies?:json source? source_id? \
         source_meta? metadata?:json",
    ),
    (
        "BranchForked",
        "name parent_branch_id fork_revision system_prompt?",
    ),
    ("BranchRenamed", "name"),
    ("SystemPromptSet", "id? content"),
    ("UserPromptSet", "id? content"),
    (
        "MessageAppended",
        "role parts author? usage? raw? message_id? finish_reason? tool_call_id? tool_name?",
    ),
    (
        "ContentPart",
        "text? image? file? audio? reasoning? refusal? json?:json",
    ),
    (
        "Media",
        "media_type? name? detail? data?=base64:base64 uri?",
    ),
    (
        "Reasoning",
        "text signature?:base64 redacted? provider? model? id?",
    ),
    (
        "Usage",
        "input_tokens output_tokens cache_read_input_tokens? cache_creation_input_tokens? \
         reasoning_output_tokens? model?",
    ),
    ("RawMessage", "origin provider? model? encoding? data?"),
    (
        "ToolCallRequested",
        "call_id tool arguments message_revision? approval=needs_approval:pending \
         arguments_not_json? item_id? raw?",
    ),
    (
        "ApprovalDecided",
        "call_id decision arguments_hash?:hex decided_by? reason?",
    ),
    ("ToolCallStarted", "call_id executor?"),
    (
        "ToolResultRecorded",
        "call_id success error_message? execution_time_ms? parts structured? raw?",
    ),
    ("ToolCallCancelled", "call_id reason detail?"),
    ("ToolSnapshotRecorded", "call_id request_revision summary"),
    ("ContextSet", "key value provider?"),
    ("ContextRemoved", "key"),
    ("ToolsDiscovered", "names"),
    ("GuidanceGiven", "guidance"),
    ("Guidance", "tool text"),
    ("EntitiesNoted", "entities"),
    ("Entity", "id kind? name?"),
    ("SummaryRecorded", "content from_revision to_revision"),
    (
        "Compacted",
        "summary cut_revision kept_turns? tokens_before? tokens_after? trigger? raw?",
    ),
    ("SubContextSpawned", "conversation_id call_id? purpose?"),
    ("SubContextReturned", "conversation_id summary? call_id?"),
    ("ToolsDefined", "tools"),
    (
        "ToolDefinition",
        "name description? input_schema? source? approval=needs_approval:pending strict?",
    ),
    ("Custom", "type_name content_type? data? text? delta_of?"),
    (
        "ContentErased",
        "revisions reason? stubs_hash?:hex signed_by?:hex",
    ),
    (
        "Appended",
        "conversation_id branch_id revision event_id=event",
    ),
    ("Appended/place", "conversation_id revision"),
    // Conversations.
    (
        "ConversationSummary",
        "conversation_id source_id title branch_count=branches head source active_branch sealed \
         created_at updated_at happened_from happened_to labels? metadata?:json config? parent? \
         shares_history&parent source_meta? damage?",
    ),
    ("Damage", "revision position! what"),
    (
        "Branch",
        "name branch_id parent_branch_id fork_revision head archived active",
    ),
    (
        "BranchState",
        "name branch_id head open_calls system_prompt user_prompt tools_defined summary \
         compaction active_context? discovered_tools tool_uses? cut_revision? finished_turns \
         turn_open config?",
    ),
    (
        "OpenCall",
        "call_id tool request approval arguments_hash?:hex started",
    ),
    ("ForkResponse", "conversation_id branch?"),
    (
        "RewindResponse",
        "branch? kept? went? truncated repeated_key?",
    ),
    // Tools and knowledge.
    (
        "ToolCall",
        "conversation_id branch call_id tool arguments request_revision status approval \
         decided_by? decision_reason? end_revision? error_message? cancel_reason? \
         execution_time_ms? result_bytes result_head requested_at ended_at \
         arguments_not_json? item_id?",
    ),
    (
        "ToolCall/pending",
        "conversation_id branch branch_id call_id tool arguments arguments_hash?:hex \
         request_revision status approval decided_by? decision_reason? error_message? \
         cancel_reason? requested_at arguments_not_json?",
    ),
    (
        "ToolDefinition/offered",
        "discoverable approval=needs_approval:pending source? description? guidance? \
         input_schema?",
    ),
    (
        "ToolSnapshot",
        "call_id tool_name arguments result_summary full_result_ref success recorded request",
    ),
    (
        "KnowledgeResponse",
        "left_out working_directory:null working_directory_from tools summary",
    ),
    ("ToolOutcomeCount", "tool succeeded failed last"),
    ("KnownFile", "path touch tool event"),
    ("KnownVariables", "file variables tool event"),
    ("KnownVariable", "name detail:json"),
    ("SuggestArgumentsResponse", "arguments suggestions"),
    (
        "ArgumentSuggestion",
        "argument value:json alternatives:json reason event",
    ),
    // Search.
    (
        "SearchHit",
        "conversation_id source_id branch revision call_id tool score line byte_start byte_end \
         snippet kind branch_id success? highlights:list recorded_at happened_at title? path? \
         command? context? role? context_line? in_reasoning? together? copies? copies_at? recalled? \
         quotes?",
    ),
    (
        "SearchHit/passage",
        "passage_line=line passage_byte_start=byte_start passage_byte_end=byte_end",
    ),
    ("SearchHit/scores", "scores?"),
    ("SearchScores", "words order nearness names shortness kind"),
    ("HitCopy", "conversation_id source_id revision"),
    ("Highlight", "start end"),
    (
        "ConversationHits",
        "conversation_id source_id title hits score",
    ),
    // The store.
    (
        "StatsResponse",
        "version data_dir conversations branches events pending_approvals events_by_kind? head! \
         views_reached! index_reached! log_bytes views_bytes index_bytes log_segments \
         indexed_documents damaged_conversations unreadable_positions damaged_reads \
         first_damage? event_bytes quota_bytes? quota_conversations? started_at resident_bytes? \
         mapped_bytes?",
    ),
    (
        "Fault",
        "part=fault message conversation_id? revision? position?",
    ),
    ("VerifyOutcome", "sound events conversations blobs faults"),
    // Requests, compactions, active context.
    ("BuildResponse", "request explanation?"),
    (
        "Explanation",
        "conversation_id branch revision provider model tokens budget_tokens over_budget \
         compaction_due tokens_before_budget basis? sections items enhancers shared_prefix \
         warnings guidance_missing",
    ),
    (
        "TokenBasis",
        "encoding estimate factor offset calibrated_on",
    ),
    ("SectionTokens", "section tokens dropped_tokens items"),
    (
        "ExplainedItem",
        "section label turn events fate tokens whole_tokens reason? enhancer \
         is_volatile=volatile head",
    ),
    ("EnhancerReport", "name enabled items did"),
    (
        "SharedPrefix",
        "bytes tokens previous_bytes previous_tokens previous_revision",
    ),
    (
        "CompactionPlan",
        "conversation_id branch head_revision cut_revision kept_turns summarised_turns \
         summarised_events tokens_before tokens_kept due threshold_tokens reason? instruction \
         material extract",
    ),
    (
        "CompactResponse",
        "cut_revision tokens_before tokens_after repeated_key warnings",
    ),
    ("ContextEntry", "key value provider? event"),
];

/// Fields that are renamed in every message.
const RENAMED: [(&str, &str); 1] = [("conversation_id", "conversation")];

/// How a value is written, where its type does not decide it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JsonForm {
    /// By its type. Bytes: as JSON if they are valid JSON, else `{"base64": …}`.
    Plain,
    /// A string that contains JSON.
    Json,
    /// Bytes in hexadecimal.
    Hex,
    /// Bytes as base64.
    Base64,
    /// A string; null when empty.
    OrNull,
    /// An approval requirement: whether the approval is pending.
    IsPending,
    /// A message as the list of its field values.
    List,
}

impl JsonForm {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "json" => Self::Json,
            "hex" => Self::Hex,
            "base64" => Self::Base64,
            "null" => Self::OrNull,
            "pending" => Self::IsPending,
            "list" => Self::List,
            _ => return None,
        })
    }
}

/// A field of a view.
#[derive(Debug)]
pub(crate) struct ViewField {
    /// The field.
    pub(crate) field: FieldDescriptor,
    /// Its name in JSON.
    pub(crate) key: String,
    /// Omitted when it is not set.
    pub(crate) is_optional: bool,
    /// An unset message is written as an empty one.
    pub(crate) is_never_null: bool,
    /// Omitted when this field is not set.
    pub(crate) with: Option<FieldDescriptor>,
    /// The form of the value.
    pub(crate) form: JsonForm,
}

/// All views by name.
static ALL: LazyLock<HashMap<String, Vec<ViewField>>> = LazyLock::new(all);

/// Descriptors of all messages that are printed.
static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).unwrap_or_default());

const PACKAGE: &str = "treering.v1";

/// Returns the message with this name.
pub(crate) fn message(name: &str) -> Option<MessageDescriptor> {
    POOL.get_message_by_name(&format!("{PACKAGE}.{name}"))
}

/// Returns the view with this name.
pub(crate) fn named(name: &str) -> &'static [ViewField] {
    ALL.get(name).map_or(&[], Vec::as_slice)
}

fn all() -> HashMap<String, Vec<ViewField>> {
    let ours = POOL
        .all_messages()
        .filter(|of| of.package_name() == PACKAGE);
    let plain = ours.map(|of| {
        let shown = of.fields().map(ViewField::plain).collect();
        (of.name().to_owned(), shown)
    });
    let mut all: HashMap<_, _> = plain.collect();
    for (name, fields) in VIEWS {
        let of = message(name.split('/').next().unwrap_or(name));
        let shown = of.map(|of| {
            fields
                .split_whitespace()
                .filter_map(|f| ViewField::read(&of, f))
                .collect()
        });
        all.insert((*name).to_owned(), shown.unwrap_or_default());
    }
    all
}

impl ViewField {
    fn plain(field: FieldDescriptor) -> Self {
        let renamed = RENAMED.iter().find(|(name, _)| *name == field.name());
        Self {
            key: renamed.map_or(field.name(), |(_, key)| key).to_owned(),
            field,
            is_optional: true,
            is_never_null: false,
            with: None,
            form: JsonForm::Plain,
        }
    }

    /// Parses a field of a view; `None` when it is malformed.
    fn read(of: &MessageDescriptor, text: &str) -> Option<Self> {
        let (text, form) = match text.split_once(':') {
            Some((text, form)) => (text, JsonForm::named(form)?),
            None => (text, JsonForm::Plain),
        };
        let (text, key) = match text.split_once('=') {
            Some((text, key)) => (text, Some(key)),
            None => (text, None),
        };
        let (text, with) = match text.split_once('&') {
            Some((text, with)) => (text, Some(of.get_field_by_name(with)?)),
            None => (text, None),
        };
        let name = text.trim_end_matches(['?', '!']);
        let mut shown = Self::plain(of.get_field_by_name(name)?);
        if let Some(key) = key {
            key.clone_into(&mut shown.key);
        }
        Some(Self {
            is_optional: text.ends_with('?'),
            is_never_null: text.ends_with('!'),
            with,
            form,
            ..shown
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A mistyped field name, or the old name of a renamed field, must not silently omit a field
    // that scripts read.
    #[test]
    fn views_name_only_existing_fields() {
        for (name, fields) in VIEWS {
            let of = message(name.split('/').next().unwrap()).unwrap_or_else(|| panic!("{name}"));
            for field in fields.split_whitespace() {
                assert!(ViewField::read(&of, field).is_some(), "{name}: {field}");
            }
        }
    }
}
