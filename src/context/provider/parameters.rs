//! Maps a conversation's parameters (`temperature`, `max_tokens` …) to each provider's names. Names
//! are accepted in snake case and camel case, and in any provider's spelling.

use serde_json::value::RawValue;

use super::{
    Provider,
    json::{self, Fields, Raw},
    reader::Warnings,
};
use treering_domain::Config;

/// Type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParameterType {
    Number,
    Whole,
    Bool,
    Text,
    Texts,
    Object,
    Any,
}

impl ParameterType {
    /// Whether the value has this type.
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

/// Known parameters by our names, in the order of a body.
/// [`Description::parameters`](super::table::Description) has each provider's names.
const KNOWN: &[(&str, ParameterType)] = &[
    ("max_tokens", ParameterType::Whole),
    ("temperature", ParameterType::Number),
    ("top_p", ParameterType::Number),
    ("top_k", ParameterType::Whole),
    ("stop", ParameterType::Texts),
    ("seed", ParameterType::Whole),
    ("frequency_penalty", ParameterType::Number),
    ("presence_penalty", ParameterType::Number),
    ("logprobs", ParameterType::Bool),
    ("top_logprobs", ParameterType::Whole),
    ("reasoning_effort", ParameterType::Text),
    ("verbosity", ParameterType::Text),
    ("response_format", ParameterType::Object),
    ("reasoning", ParameterType::Object),
    ("text", ParameterType::Object),
    ("truncation", ParameterType::Text),
    ("thinking", ParameterType::Object),
    ("output_config", ParameterType::Object),
    ("thinking_config", ParameterType::Object),
    ("response_mime_type", ParameterType::Text),
    ("response_schema", ParameterType::Object),
    ("response_json_schema", ParameterType::Any),
    ("metadata", ParameterType::Object),
    ("user", ParameterType::Text),
    ("service_tier", ParameterType::Text),
    ("stream", ParameterType::Bool),
    ("parallel_tool_calls", ParameterType::Bool),
    ("tool_choice", ParameterType::Any),
];

/// The provider's field for a parameter, by our name.
fn field(provider: Provider, name: &str) -> Option<&'static str> {
    let parameters = provider.description().parameters;
    let found = parameters.iter().find(|(ours, _)| *ours == name);
    found.map(|(_, field)| *field)
}

/// Our name for a parameter in any spelling.
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

/// Parameters with the provider's names, in the order of [`KNOWN`].
pub(super) struct Parameters<'a> {
    /// Parameters except the tool choice.
    pub fields: Fields<'a>,
    /// The tool choice, if there are tools.
    pub tool_choice: Option<ToolChoice>,
}

/// Reads a conversation's parameters for a provider.
pub(super) fn read<'a>(
    config: &'a Config,
    provider: Provider,
    has_tools: bool,
    warnings: &mut Warnings,
) -> Parameters<'a> {
    let mut found: Vec<PlacedParameter<'a>> = Vec::new();
    for (name, text) in &config.parameters {
        match placed(name, text, provider) {
            Ok(placed) if !has_tools && KNOWN[placed.at].0.contains("tool") => {}
            Ok(placed) if found.iter().any(|other| other.at == placed.at) => {
                warnings.add(format!(
                    "the parameter {name} was left out: it is set twice"
                ));
            }
            Ok(placed) => found.push(placed),
            Err(why) => warnings.add(format!("the parameter {name} was left out: {why}")),
        }
    }
    found.sort_by_key(|placed| placed.at);
    let mut parameters = Parameters {
        fields: Fields::default(),
        tool_choice: None,
    };
    for PlacedParameter { field, value, .. } in found {
        if field == "tool_choice" {
            parameters.tool_choice = ToolChoice::read(&value);
        } else {
            parameters.fields.push(field, value);
        }
    }
    parameters
}

/// A parameter that goes into the body.
struct PlacedParameter<'a> {
    /// Index among the [known](KNOWN) parameters.
    at: usize,
    field: &'static str,
    value: Raw<'a>,
}

fn placed<'a>(
    name: &str,
    text: &'a str,
    provider: Provider,
) -> Result<PlacedParameter<'a>, &'static str> {
    let name = canonical(name);
    let at = KNOWN.iter().position(|(known, _)| *known == name);
    let (at, field) = at
        .zip(field(provider, &name))
        .ok_or("the provider has no such field")?;
    let mut value = json::raw(text).ok_or("its value is not JSON")?;
    if name == "stop" && value.get().starts_with('"') {
        value = json::to_raw(&[value.as_ref()]);
    }
    if !KNOWN[at].1.fits(&value) {
        return Err("its value has the wrong type for the provider");
    }
    if name == "tool_choice" && ToolChoice::read(&value).is_none() {
        return Err("its value is not a valid tool choice");
    }
    let number: Option<f64> = value.get().parse().ok();
    let temperature_max = provider.description().temperature_max;
    let out_of_range = match name.as_str() {
        "temperature" => number.is_none_or(|n| !(0.0..=temperature_max).contains(&n)),
        "top_p" => number.is_none_or(|n| !(0.0..=1.0).contains(&n)),
        "frequency_penalty" | "presence_penalty" => {
            number.is_none_or(|n| !(-2.0..=2.0).contains(&n))
        }
        "max_tokens" => number.is_none_or(|n| n < 1.0),
        _ => false,
    };
    if out_of_range {
        return Err("its value is outside the provider's range");
    }
    Ok(PlacedParameter { at, field, value })
}

/// Which tool the model must call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToolChoice {
    Auto,
    None,
    Required,
    Tool(String),
}

impl ToolChoice {
    /// Reads a tool choice in any provider's format.
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

    /// A conversation can be sent to any provider. Each provider gets the parameters that it knows,
    /// under its own names. The caller gets warnings about the others.
    #[test]
    fn parameters_are_renamed_for_each_provider() {
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

    /// A value that the provider would refuse must not fail the request.
    #[test]
    fn invalid_parameter_values_are_left_out() {
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
