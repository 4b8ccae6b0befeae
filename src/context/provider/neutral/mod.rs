//! Treering's own format: everything in the draft, unchanged.
//!
//! ```json
//! {
//!   "format": "treering.context/1",
//!   "model": "…", "mode": "…", "parameters": {"temperature": 0.2},
//!   "tools": [{"name": "…", "description": "…", "input_schema": {…},
//!     "source": "…", "needs_approval": false, "discoverable": false, "guidance": "…"}],
//!   "instructions": [{"section": "system", "events": ["treering:ID/1"], "text": "…"}],
//!   "items": [
//!     {"type": "message", "section": "messages", "events": […], "turn": 1,
//!      "volatile": false, "role": "user", "author": "…",
//!      "parts": [{"type": "text", "text": "…"}]},
//!     {"type": "step", …, "provider": "…", "model": "…", "message_id": "…",
//!      "blocks": [{"type": "text", "text": "…"},
//!        {"type": "call", "id": "…", "call_id": "…", "tool_name": "…", "arguments": {…},
//!         "request": "treering:ID/3", "outcome": {"type": "result", "event": "treering:ID/4",
//!           "success": true, "error_message": "", "parts": […], "structured": {…},
//!           "shortened": false}}]}
//!   ]
//! }
//! ```
//!
//! Other outcomes are `{"type": "snapshot", "tool_name", "arguments", "result_summary",
//! "full_result_ref", "success", "recorded"}` and `{"type": "missing", "why", "event", "open"}`.
//! Arguments, schemas and structured values are JSON as it was recorded; text that is not JSON is a
//! JSON string. Media have `data` in base64, or `uri`. Signatures are text if they were recorded as
//! text, else base64. Empty fields are omitted.

use std::borrow::Cow;

use serde::Serialize;

use super::{
    AdaptedBody, Adapter, Provider, RenderError,
    json::{self, Fields, Raw},
    media, render_with,
    table::{Description, ReasoningPlacement, UnitFields},
};
use crate::{
    cancellation::CancellationToken,
    draft::{
        Block as StepBlock, Call, Content, Draft, Fate, Item as DraftItem, Message, Outcome,
        ResultDigest, ResultOutcome, Section, Speaker, Step, full_result_ref,
    },
    policy::ContextPolicy,
    steps,
};
use treering_domain::{ContentPart, EventRef, JsonText, Media, MediaSource, Role, ToolDefinition};

pub(super) static DESCRIPTION: Description = Description {
    vendor: None,
    is_for_any_model: true,
    reshaping: None,
    // Parameters are written unchanged.
    parameters: &[],
    temperature_max: f64::INFINITY,
    thoughts: ReasoningPlacement::Anywhere,
    names_authors: true,
    cutting: UnitFields {
        instructions: "instructions",
        said: "items",
        by_block: false,
    },
    render: |draft, policy, cancellation| render_with(&Neutral, draft, policy, cancellation),
};

/// Name and version of the format.
pub const FORMAT: &str = "treering.context/1";

/// The body.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Body<'a> {
    /// [`FORMAT`].
    pub format: &'static str,
    pub model: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub mode: &'a str,
    #[serde(skip_serializing_if = "Fields::is_empty")]
    pub parameters: Fields<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub instructions: Vec<Instruction<'a>>,
    pub items: Vec<Item<'a>>,
}

/// A tool on offer.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Tool<'a> {
    pub name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub description: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<Raw<'a>>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub source: &'a str,
    pub needs_approval: bool,
    pub discoverable: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub guidance: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// An instruction for the whole request.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Instruction<'a> {
    pub section: Section,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
    pub text: &'a str,
}

/// An item of the request.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Item<'a> {
    /// `message` or `step`.
    pub r#type: &'static str,
    pub section: Section,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pub turn: u32,
    pub volatile: bool,
    /// Whether it was shortened.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shortened: bool,
    #[serde(flatten)]
    pub content: ItemContent<'a>,
}

/// Content of an item.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum ItemContent<'a> {
    Message {
        /// `system`, `developer` or `user`.
        role: &'static str,
        #[serde(skip_serializing_if = "str::is_empty")]
        author: &'a str,
        parts: Vec<Part<'a>>,
    },
    Step {
        #[serde(skip_serializing_if = "str::is_empty")]
        provider: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        model: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        message_id: &'a str,
        blocks: Vec<Block<'a>>,
    },
}

/// A block of a step.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum Block<'a> {
    Part(Part<'a>),
    Call {
        /// `call`.
        r#type: &'static str,
        /// Id in the request, unique.
        id: &'a str,
        /// Id as it was recorded.
        call_id: &'a str,
        tool_name: &'a str,
        arguments: Raw<'a>,
        request: String,
        outcome: CallOutcome<'a>,
    },
}

/// A part of a message or of a result.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Part<'a> {
    Text { text: &'a str },
    Refusal { text: &'a str },
    Json { value: Raw<'a> },
    Image(Medium<'a>),
    File(Medium<'a>),
    Audio(Medium<'a>),
    Reasoning(Reasoning<'a>),
}

/// A medium.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Medium<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    pub media_type: &'a str,
    /// Base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub detail: &'a str,
}

/// Reasoning of a model.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Reasoning<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    pub text: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub signature: Cow<'a, str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub redacted: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub provider: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub model: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub id: &'a str,
}

/// Outcome of a call.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum CallOutcome<'a> {
    Result {
        event: String,
        success: bool,
        #[serde(skip_serializing_if = "str::is_empty")]
        error_message: &'a str,
        parts: Vec<Part<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        structured: Option<Raw<'a>>,
        shortened: bool,
    },
    Snapshot {
        tool_name: &'a str,
        arguments: Raw<'a>,
        result_summary: &'a str,
        full_result_ref: String,
        success: bool,
        recorded: bool,
    },
    Missing {
        why: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        event: Option<String>,
        open: bool,
    },
}

// Serde requires a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The adapter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Neutral;

impl Adapter for Neutral {
    type Body<'a> = Body<'a>;

    fn provider(&self) -> Provider {
        Provider::Neutral
    }

    fn adapt<'a>(
        &self,
        draft: &'a Draft,
        _: &ContextPolicy,
        cancellation: &CancellationToken,
    ) -> Result<AdaptedBody<Body<'a>>, RenderError> {
        let (mut instructions, mut instruction_items) = (Vec::new(), Vec::new());
        let (mut items, mut units) = (Vec::new(), Vec::new());
        for (at, item) in draft.items.iter().enumerate() {
            if cancellation.is_cancelled_at(at) {
                break;
            }
            steps::note(1);
            if item.fate == Fate::Dropped {
                continue;
            }
            if let Content::Instruction(text) = &*item.content {
                instructions.push(Instruction {
                    section: item.section,
                    events: refs(&item.events),
                    text,
                });
                instruction_items.push(at);
            } else {
                items.push(item_of(item));
                units.push(vec![at]);
            }
        }
        if !instructions.is_empty() {
            units.insert(0, instruction_items);
        }
        let parameters = draft.config.parameters.iter();
        let parameters = parameters.map(|(name, text)| (Cow::from(name), value(text)));
        Ok(AdaptedBody {
            body: Body {
                format: FORMAT,
                model: &draft.config.model_id,
                mode: &draft.config.mode,
                parameters: Fields(parameters.collect()),
                tools: draft.tools.iter().map(tool).collect(),
                instructions,
                items,
            },
            units,
            warnings: Vec::new(),
        })
    }
}

/// JSON unchanged; other text as a JSON string.
fn value(text: &str) -> Raw<'_> {
    json::raw(text).unwrap_or_else(|| json::to_raw(text))
}

fn optional(text: &JsonText) -> Option<Raw<'_>> {
    (!text.is_absent()).then(|| value(text.as_str()))
}

fn refs(events: &[EventRef]) -> Vec<String> {
    events.iter().copied().map(full_result_ref).collect()
}

fn tool(tool: &ToolDefinition) -> Tool<'_> {
    Tool {
        name: &tool.name,
        description: &tool.description,
        input_schema: optional(&tool.input_schema),
        source: &tool.source,
        needs_approval: tool.needs_approval,
        discoverable: tool.discoverable,
        guidance: &tool.guidance,
        strict: tool.strict,
    }
}

fn item_of(item: &DraftItem) -> Item<'_> {
    let (r#type, content) = match &*item.content {
        Content::Message(message) => ("message", message_of(message)),
        Content::Step(step) => ("step", step_of(step)),
        // The caller has already removed instructions.
        Content::Instruction(text) => (
            "message",
            ItemContent::Message {
                role: Role::System.as_str(),
                author: "",
                parts: vec![Part::Text { text }],
            },
        ),
    };
    Item {
        r#type,
        // An item of the open turn is sent with the section that it has later, so that it does not
        // change when the turn ends.
        section: match item.section {
            Section::OpenTurn => Section::Messages,
            section => section,
        },
        events: refs(&item.events),
        turn: item.turn,
        volatile: item.is_volatile,
        shortened: item.fate == Fate::Shortened,
        content,
    }
}

fn message_of(message: &Message) -> ItemContent<'_> {
    let role = match message.speaker {
        Speaker::System => Role::System,
        Speaker::Developer => Role::Developer,
        Speaker::User => Role::User,
    };
    ItemContent::Message {
        role: role.as_str(),
        author: &message.author,
        parts: message.parts.iter().map(part).collect(),
    }
}

fn step_of(step: &Step) -> ItemContent<'_> {
    let blocks = step.blocks.iter().map(|block| match block {
        StepBlock::Part(one) => Block::Part(part(one)),
        StepBlock::Call(call) => Block::Call {
            r#type: "call",
            id: &call.wire_id,
            call_id: &call.call_id,
            tool_name: &call.tool,
            arguments: value(call.arguments.as_str()),
            request: full_result_ref(call.request),
            outcome: outcome(call),
        },
    });
    ItemContent::Step {
        provider: &step.maker.provider,
        model: &step.maker.model,
        message_id: &step.message_id,
        blocks: blocks.collect(),
    }
}

fn outcome(call: &Call) -> CallOutcome<'_> {
    match &call.outcome {
        Outcome::Result(result) => result_of(result),
        Outcome::Snapshot(snapshot) => snapshot_of(call, snapshot),
        Outcome::Missing { why, event, open } => CallOutcome::Missing {
            why,
            event: event.map(full_result_ref),
            open: *open,
        },
    }
}

fn result_of(result: &ResultOutcome) -> CallOutcome<'_> {
    CallOutcome::Result {
        event: full_result_ref(result.event),
        success: result.success,
        error_message: &result.error_message,
        parts: result.parts.iter().map(part).collect(),
        structured: optional(&result.structured),
        shortened: result.shortened,
    }
}

fn snapshot_of<'a>(call: &'a Call, snapshot: &'a ResultDigest) -> CallOutcome<'a> {
    CallOutcome::Snapshot {
        tool_name: &call.tool,
        arguments: value(call.arguments.as_str()),
        result_summary: &snapshot.summary,
        full_result_ref: snapshot.full_result_ref(),
        success: snapshot.success,
        recorded: snapshot.recorded,
    }
}

fn part(part: &ContentPart) -> Part<'_> {
    match part {
        ContentPart::Text(text) => Part::Text { text },
        ContentPart::Refusal(text) => Part::Refusal { text },
        ContentPart::Json(json) => Part::Json {
            value: value(json.as_str()),
        },
        ContentPart::Image(media) => Part::Image(medium(media)),
        ContentPart::File(media) => Part::File(medium(media)),
        ContentPart::Audio(media) => Part::Audio(medium(media)),
        ContentPart::Reasoning(reasoning) => Part::Reasoning(Reasoning {
            text: &reasoning.text,
            signature: media::opaque_text(&reasoning.signature),
            redacted: reasoning.redacted,
            provider: &reasoning.provider,
            model: &reasoning.model,
            id: &reasoning.id,
        }),
    }
}

fn medium(media: &Media) -> Medium<'_> {
    let (data, uri) = match &media.source {
        MediaSource::Absent => (None, None),
        MediaSource::Data(data) => (Some(media::base64(data)), None),
        MediaSource::Uri(uri) => (None, Some(uri.as_str())),
    };
    Medium {
        media_type: &media.media_type,
        data,
        uri,
        name: &media.name,
        detail: &media.detail,
    }
}
