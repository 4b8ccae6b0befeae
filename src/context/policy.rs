//! Configuration of requests: the `context` policy, a JSON object in
//! `ConversationCreated.policies`. A call may merge its own policy over it (RFC 7396).

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::{draft::Section, references::READ_TOOL};

/// Name of the policy in `ConversationCreated.policies`.
pub const CONTEXT_POLICY: &str = "context";

/// How requests are built. Every field has a default, so `{}` is a policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContextPolicy {
    /// Token budget of a request; 0 for none.
    pub budget_tokens: u64,
    /// When results of finished calls are replaced by digests.
    pub tool_results: ToolResults,
    /// When and where to compact.
    pub compaction: CompactionPolicy,
    /// What to shorten or drop until the request fits, in this order.
    pub drop_order: Vec<Drop>,
    /// Settings of enhancers by name.
    pub enhancers: BTreeMap<String, EnhancerPolicy>,
    /// What to do with media that the provider does not accept.
    pub unsupported_media: UnsupportedMedia,
    /// Set cache breakpoints in bodies for Anthropic.
    pub anthropic_cache_breakpoints: bool,
    /// Maximum number of tokens of the answer, for providers that require it.
    pub max_output_tokens: u64,
    /// Name of the tool that reads shortened results. It is offered if something is shortened, and
    /// the caller answers its calls. In JSON: a name, or `true` for the default name.
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

/// When results of finished calls are replaced by digests. In JSON: `"keep"`, `"turn_end"`, or
/// `{"older_than_turns": 3}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolResults {
    /// They stay in full until a compaction, so that the prefix stays byte-equal.
    #[default]
    Keep,
    /// At the end of their turn.
    TurnEnd,
    /// When this many later turns have ended.
    OlderThanTurns(u32),
}

/// When and where to compact.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompactionPolicy {
    /// Share of the budget above which a compaction is due; of `window_tokens` if there is no
    /// budget.
    pub threshold: f64,
    /// Size of the model's context window in tokens, for conversations without a budget.
    pub window_tokens: u64,
    /// Number of finished turns that stay.
    pub keep_turns: u32,
    /// Approximate limit of the engine's own summary, in tokens.
    pub extract_tokens: u64,
    /// Limit of the summary as a share of the text that it replaces, up to `extract_tokens`.
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

/// What may be shortened or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drop {
    /// Cuts long results of finished turns to head and tail, oldest first.
    ToolResults,
    /// Drops reasoning of finished turns.
    Reasoning,
    /// Drops the tool knowledge.
    Knowledge,
    /// Drops whole steps and messages, oldest first, also in the open turn. The user's first
    /// message stays while there is room; the last one always stays.
    #[serde(alias = "turns")]
    Steps,
    /// Drops the dialogue summary.
    DialogueSummary,
    /// Drops the namespace's long-term context.
    LongTermContext,
    /// Drops the active context.
    ActiveContext,
    /// Cuts long results of the open turn to head and tail, oldest first.
    OpenTurnResults,
    /// Drops tool guidance.
    Guidance,
}

impl Drop {
    /// The default order: first content that a reference can restore, last content that the model
    /// is working on.
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

/// Settings of an enhancer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EnhancerPolicy {
    /// Whether it runs.
    pub enabled: bool,
    /// Its parameters.
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

/// What to do with media that the provider does not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnsupportedMedia {
    /// A text says what was left out and why. The explanation has a warning.
    #[default]
    Placeholder,
    /// The request is refused.
    Refuse,
}

/// An invalid policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {whose} `{CONTEXT_POLICY}` policy cannot be used: {message}")]
pub struct PolicyError {
    /// Whose policy it is: `conversation's` or `call's`.
    pub whose: &'static str,
    /// What is wrong.
    pub message: String,
}

impl ContextPolicy {
    /// Returns a conversation's policy with a call's policy merged over it. Both are JSON objects;
    /// empty text counts as `{}`.
    ///
    /// # Errors
    /// [`PolicyError`] says whose JSON is invalid, and in which field.
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
    /// Returns the section that it reduces.
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
