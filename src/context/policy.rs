//! What a conversation or a call can choose about its context: the `context`
//! policy, a JSON object in `ConversationCreated.policies`, over which a call may
//! merge its own (RFC 7396).

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::{draft::Section, references::READ_TOOL};

/// Name of the policy in `ConversationCreated.policies`.
pub const CONTEXT_POLICY: &str = "context";

/// How requests are made. Every field has a default, so `{}` is a policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContextPolicy {
    /// Most tokens of a request; 0: no bound.
    pub budget_tokens: u64,
    /// When finished calls give way to their snapshots.
    pub tool_results: ToolResults,
    /// When and where to compact.
    pub compaction: CompactionPolicy,
    /// What to shorten or drop, in this order, until the request fits.
    pub drop_order: Vec<Drop>,
    /// Steps of the pipeline by name: switched off, or with parameters.
    pub enhancers: BTreeMap<String, EnhancerPolicy>,
    /// What to do with media that the provider does not take.
    pub unsupported_media: UnsupportedMedia,
    /// Set cache breakpoints in bodies for Anthropic.
    pub anthropic_cache_breakpoints: bool,
    /// Most tokens of the answer, where a provider requires the number.
    pub max_output_tokens: u64,
    /// Name of the tool that reads shortened results, where the caller answers its
    /// calls: it is offered when something is shortened. JSON: a name, or `true`
    /// for the usual one.
    #[serde(deserialize_with = "read_tool")]
    pub read_tool: Option<String>,
}

impl Default for ContextPolicy {
    fn default() -> Self {
        Self {
            budget_tokens: 0,
            tool_results: ToolResults::default(),
            compaction: CompactionPolicy::default(),
            drop_order: Drop::DEFAULT.to_vec(),
            enhancers: BTreeMap::new(),
            unsupported_media: UnsupportedMedia::default(),
            anthropic_cache_breakpoints: true,
            max_output_tokens: 4_096,
            read_tool: None,
        }
    }
}

fn read_tool<'de, D: Deserializer<'de>>(json: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum ReadToolSetting {
        Switch(bool),
        Name(String),
    }
    Ok(match Option::<ReadToolSetting>::deserialize(json)? {
        None | Some(ReadToolSetting::Switch(false)) => None,
        Some(ReadToolSetting::Switch(true)) => Some(READ_TOOL.to_owned()),
        Some(ReadToolSetting::Name(name)) => Some(name).filter(|name| !name.trim().is_empty()),
    })
}

/// When finished calls give way to their snapshots. JSON: `"keep"`,
/// `"turn_end"`, or `{"older_than_turns": 3}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolResults {
    /// They stay in full until a compaction: what was sent stays byte-equal.
    #[default]
    Keep,
    /// At the end of their turn.
    TurnEnd,
    /// When so many turns have ended after theirs.
    OlderThanTurns(u32),
}

/// When and where to compact.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompactionPolicy {
    /// Share of the budget (or, without one, of `window_tokens`) above which a
    /// compaction is due.
    pub threshold: f64,
    /// Size of the model's window in tokens, for conversations without a budget.
    pub window_tokens: u64,
    /// Finished turns that stay.
    pub keep_turns: u32,
    /// Most tokens of the engine's own summary, about.
    pub extract_tokens: u64,
    /// Its size as a share of what it replaces, up to `extract_tokens`.
    pub extract_share: f64,
}

impl Default for CompactionPolicy {
    fn default() -> Self {
        Self {
            threshold: 0.8,
            window_tokens: 128_000,
            keep_turns: 3,
            extract_tokens: 8_000,
            extract_share: 0.15,
        }
    }
}

/// Something that may be shortened or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drop {
    /// Long results of finished turns are cut to head and tail, oldest first.
    ToolResults,
    /// Reasoning of finished turns goes.
    Reasoning,
    /// What tool results have shown goes.
    Knowledge,
    /// Whole steps and messages go, oldest first, in the open turn too. The first
    /// message of the user stays as long as there is room, the last one always.
    #[serde(alias = "turns")]
    Steps,
    /// The dialogue summary goes.
    DialogueSummary,
    /// The namespace's long-term context goes.
    LongTermContext,
    /// The active context goes.
    ActiveContext,
    /// Long results of the open turn are cut to head and tail, oldest first.
    OpenTurnResults,
    /// Guidance goes.
    Guidance,
}

impl Drop {
    /// First what can be had back by reference, last what the model works on.
    pub const DEFAULT: [Self; 9] = [
        Self::ToolResults,
        Self::Reasoning,
        Self::Knowledge,
        Self::OpenTurnResults,
        Self::Steps,
        Self::DialogueSummary,
        Self::LongTermContext,
        Self::Guidance,
        Self::ActiveContext,
    ];
}

/// A step of the pipeline, as a policy sets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EnhancerPolicy {
    /// Switch.
    pub enabled: bool,
    /// The step's own parameters.
    pub params: serde_json::Map<String, serde_json::Value>,
}

impl Default for EnhancerPolicy {
    fn default() -> Self {
        Self {
            enabled: true,
            params: serde_json::Map::new(),
        }
    }
}

/// What to do with media that the provider does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnsupportedMedia {
    /// A text says what was left out and why, and the explanation warns.
    #[default]
    Placeholder,
    /// The request is refused.
    Refuse,
}

/// A policy that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {whose} `{CONTEXT_POLICY}` policy cannot be used: {message}")]
pub struct PolicyError {
    /// `conversation's` or `call's`.
    pub whose: &'static str,
    /// What is wrong.
    pub message: String,
}

impl ContextPolicy {
    /// A conversation's policy with a call's merged over it. Both are JSON
    /// objects; empty text counts as `{}`.
    ///
    /// # Errors
    /// [`PolicyError`] names whose JSON it is, and the field.
    pub fn merged(conversation: &str, call: &str) -> Result<Self, PolicyError> {
        let mut base = object("conversation's", conversation)?;
        read("conversation's", base.clone())?;
        json_patch::merge(&mut base, &object("call's", call)?);
        read("call's", base)
    }
}

fn object(whose: &'static str, text: &str) -> Result<serde_json::Value, PolicyError> {
    if text.trim().is_empty() {
        return Ok(serde_json::json!({}));
    }
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| PolicyError {
        whose,
        message: error.to_string(),
    })?;
    if !value.is_object() {
        let message = "it is not a JSON object".to_owned();
        return Err(PolicyError { whose, message });
    }
    Ok(value)
}

fn read(whose: &'static str, value: serde_json::Value) -> Result<ContextPolicy, PolicyError> {
    serde_json::from_value(value).map_err(|error| PolicyError {
        whose,
        message: error.to_string(),
    })
}

impl Drop {
    /// The section that it makes smaller.
    #[must_use]
    pub fn section(self) -> Section {
        match self {
            Self::ToolResults => Section::ToolResults,
            Self::Reasoning | Self::Steps => Section::Messages,
            Self::Knowledge => Section::Knowledge,
            Self::DialogueSummary => Section::DialogueSummary,
            Self::LongTermContext => Section::LongTermContext,
            Self::ActiveContext => Section::ActiveContext,
            Self::OpenTurnResults => Section::OpenTurn,
            Self::Guidance => Section::Guidance,
        }
    }
}
