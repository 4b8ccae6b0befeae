//! A conversation's parameters (`temperature`, `max_tokens` …) as each provider
//! names them. Names are taken in snake case or camel case, and in the words of
//! any of the providers.

use serde_json::value::RawValue;

use super::{
    Provider,
    json::{self, Fields, Raw},
    reader::Warnings,
};
use crate::domain::Config;

/// What a parameter is, whoever names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Number,
    Whole,
    Bool,
    Text,
    Texts,
    Object,
    Any,
}

impl Takes {
    /// True when the value is of this type.
    fn fits(self, value: &RawValue) -> bool {
        let text = value.get();
        let first = text.as_bytes().first().copied().unwrap_or_default();
        let is_number = first == b'-' || first.is_ascii_digit();
        match self {
            Self::Number => is_number,
            Self::Whole => text.parse::<i64>().is_ok(),
            Self::Bool => first == b't' || first == b'f',
            Self::Text => first == b'"',
            Self::Texts => serde_json::from_str::<Vec<String>>(text).is_ok(),
            Self::Object => first == b'{',
            Self::Any => true,
        }
    }
}

/// One row: our name for it, its type, and the field of each provider; an empty
/// field: the provider has none.
struct Row {
    name: &'static str,
    takes: Takes,
    chat: &'static str,
    responses: &'static str,
    anthropic: &'static str,
    gemini: &'static str,
}

macro_rules! rows {
    ($($name:literal $takes:ident $chat:literal $responses:literal $anthropic:literal $gemini:literal)*) => {
        &[$(Row { name: $name, takes: Takes::$takes, chat: $chat, responses: $responses,
            anthropic: $anthropic, gemini: $gemini }),*]
    };
}

const ROWS: &[Row] = rows! {
    "max_tokens" Whole "max_completion_tokens" "max_output_tokens" "max_tokens" "maxOutputTokens"
    "temperature" Number "temperature" "temperature" "temperature" "temperature"
    "top_p" Number "top_p" "top_p" "top_p" "topP"
    "top_k" Whole "" "" "top_k" "topK"
    "stop" Texts "stop" "" "stop_sequences" "stopSequences"
    "seed" Whole "seed" "" "" "seed"
    "frequency_penalty" Number "frequency_penalty" "" "" "frequencyPenalty"
    "presence_penalty" Number "presence_penalty" "" "" "presencePenalty"
    "logprobs" Bool "logprobs" "" "" "responseLogprobs"
    "top_logprobs" Whole "top_logprobs" "top_logprobs" "" "logprobs"
    "reasoning_effort" Text "reasoning_effort" "" "" ""
    "verbosity" Text "verbosity" "" "" ""
    "response_format" Object "response_format" "" "" ""
    "reasoning" Object "" "reasoning" "" ""
    "text" Object "" "text" "" ""
    "truncation" Text "" "truncation" "" ""
    "thinking" Object "" "" "thinking" ""
    "output_config" Object "" "" "output_config" ""
    "thinking_config" Object "" "" "" "thinkingConfig"
    "response_mime_type" Text "" "" "" "responseMimeType"
    "response_schema" Object "" "" "" "responseSchema"
    "response_json_schema" Any "" "" "" "responseJsonSchema"
    "metadata" Object "metadata" "metadata" "metadata" ""
    "user" Text "user" "user" "" ""
    "service_tier" Text "service_tier" "service_tier" "service_tier" ""
    "stream" Bool "stream" "stream" "stream" ""
    "parallel_tool_calls" Bool "parallel_tool_calls" "parallel_tool_calls" "" ""
    "tool_choice" Any "tool_choice" "tool_choice" "tool_choice" "tool_choice"
};

impl Row {
    fn field(&self, provider: Provider) -> &'static str {
        match provider {
            Provider::Neutral => self.name,
            Provider::OpenAiChat => self.chat,
            Provider::OpenAiResponses => self.responses,
            Provider::Anthropic => self.anthropic,
            Provider::Gemini => self.gemini,
        }
    }
}

/// Our name for a parameter that anyone named.
fn canonical(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    let name = match snake.as_str() {
        "max_completion_tokens" | "max_output_tokens" => "max_tokens",
        "stop_sequences" => "stop",
        _ => return snake,
    };
    name.to_owned()
}

/// Parameters in the provider's words, in the order of the table.
pub(super) struct Parameters<'a> {
    /// Plain ones.
    pub fields: Fields<'a>,
    /// Which tool the model must call, where there are tools.
    pub tool_choice: Option<ToolChoice>,
}

/// Reads a conversation's parameters for a provider.
pub(super) fn read<'a>(
    config: &'a Config,
    provider: Provider,
    has_tools: bool,
    warnings: &mut Warnings,
) -> Parameters<'a> {
    let mut found: Vec<(usize, Raw<'a>)> = Vec::new();
    for (name, text) in &config.parameters {
        match placed(name, text, provider) {
            Ok((row, _)) if !has_tools && ROWS[row].name.contains("tool") => {}
            Ok((row, _)) if found.iter().any(|(other, _)| *other == row) => {
                warnings.add(format!(
                    "the parameter {name} was left out: it is set twice"
                ));
            }
            Ok(entry) => found.push(entry),
            Err(why) => warnings.add(format!("the parameter {name} was left out: {why}")),
        }
    }
    found.sort_by_key(|(row, _)| *row);
    let mut parameters = Parameters {
        fields: Fields::default(),
        tool_choice: None,
    };
    for (row, value) in found {
        let field = ROWS[row].field(provider);
        if field == "tool_choice" {
            parameters.tool_choice = ToolChoice::read(&value);
        } else {
            parameters.fields.push(field, value);
        }
    }
    parameters
}

/// The row of a parameter, and its value.
fn placed<'a>(
    name: &str,
    text: &'a str,
    provider: Provider,
) -> Result<(usize, Raw<'a>), &'static str> {
    let name = canonical(name);
    let row = ROWS.iter().position(|row| row.name == name);
    let row = row
        .filter(|row| !ROWS[*row].field(provider).is_empty())
        .ok_or("the provider has no such field")?;
    let mut value = json::raw(text).ok_or("its value is not JSON")?;
    if name == "stop" && value.get().starts_with('"') {
        value = json::to_raw(&[value.as_ref()]);
    }
    if !ROWS[row].takes.fits(&value) {
        return Err("its value is of another type than the provider takes");
    }
    if name == "tool_choice" && ToolChoice::read(&value).is_none() {
        return Err("its value is no choice of a tool");
    }
    let number: Option<f64> = value.get().parse().ok();
    let out_of_range = match (name.as_str(), provider) {
        ("temperature", Provider::Anthropic) => number.is_none_or(|n| !(0.0..=1.0).contains(&n)),
        ("temperature", _) => number.is_none_or(|n| !(0.0..=2.0).contains(&n)),
        ("top_p", _) => number.is_none_or(|n| !(0.0..=1.0).contains(&n)),
        ("frequency_penalty" | "presence_penalty", _) => {
            number.is_none_or(|n| !(-2.0..=2.0).contains(&n))
        }
        ("max_tokens", _) => number.is_none_or(|n| n < 1.0),
        _ => false,
    };
    if out_of_range {
        return Err("its value is out of the provider's range");
    }
    Ok((row, value))
}

/// Which tool the model is to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToolChoice {
    Auto,
    None,
    Required,
    Tool(String),
}

impl ToolChoice {
    /// Reads it in any provider's shape.
    fn read(value: &RawValue) -> Option<Self> {
        let value: serde_json::Value = serde_json::from_str(value.get()).ok()?;
        let word = value.as_str().or_else(|| value["type"].as_str())?;
        Some(match word {
            "auto" => Self::Auto,
            "none" => Self::None,
            "required" | "any" => Self::Required,
            "function" | "tool" => {
                let name = value["function"]["name"].as_str();
                Self::Tool(name.or_else(|| value["name"].as_str())?.to_owned())
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(provider: Provider, parameters: &[(&str, &str)]) -> (String, Vec<String>) {
        let config = Config {
            parameters: parameters
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            ..Config::default()
        };
        let mut warnings = Warnings::default();
        let parameters = read(&config, provider, true, &mut warnings);
        let text = serde_json::to_string(&parameters.fields).unwrap();
        (text, warnings.into_vec())
    }

    /// One conversation goes to any provider: each must get what it knows, in
    /// its own words, and the caller must hear of the rest.
    #[test]
    fn parameters_take_each_providers_names() {
        let parameters = [
            ("temperature", "0.70"),
            ("max_tokens", "100"),
            ("stop", "\"END\""),
            ("topK", "5"),
            ("colour", "\"red\""),
        ];
        let cases = [
            (
                Provider::OpenAiChat,
                r#"{"max_completion_tokens":100,"temperature":0.70,"stop":["END"]}"#,
                2,
            ),
            (
                Provider::OpenAiResponses,
                r#"{"max_output_tokens":100,"temperature":0.70}"#,
                3,
            ),
            (
                Provider::Anthropic,
                r#"{"max_tokens":100,"temperature":0.70,"top_k":5,"stop_sequences":["END"]}"#,
                1,
            ),
            (
                Provider::Gemini,
                r#"{"maxOutputTokens":100,"temperature":0.70,"topK":5,"stopSequences":["END"]}"#,
                1,
            ),
        ];
        for (provider, expected, left_out) in cases {
            let (text, warnings) = fields(provider, &parameters);
            assert_eq!(text, expected);
            assert_eq!(warnings.len(), left_out, "{provider}: {warnings:?}");
        }
    }

    /// A value that the provider would refuse must not sink the request.
    #[test]
    fn bad_values_are_left_out() {
        let bad = [
            ("temperature", "\"hot\""),
            ("temperature", "1.5"),
            ("max_tokens", "0"),
            ("stop", "[1]"),
            ("top_p", "not json"),
        ];
        for (name, value) in bad {
            let (text, warnings) = fields(Provider::Anthropic, &[(name, value)]);
            assert_eq!(
                (text.as_str(), warnings.len()),
                ("{}", 1),
                "{name} = {value}"
            );
        }
    }
}
