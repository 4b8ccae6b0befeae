//! Reads the tool definitions of a line.

use serde::Deserialize;
use serde_json::value::RawValue;

use treering_domain::{JsonText, ToolDefinition, limits::SHORT_TEXT_BYTES_MAX};

/// A tool in the form of Chat Completions. Other providers omit the wrapper.
#[derive(Deserialize)]
struct WrappedTool<'a> {
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    name: Option<String>,
    description: Option<String>,
    #[serde(borrow, alias = "input_schema")]
    parameters: Option<&'a RawValue>,
}

/// Returns the definitions in a list; entries that are not definitions are skipped.
pub(super) fn read(tools: &RawValue) -> Vec<ToolDefinition> {
    let list: Vec<&RawValue> = serde_json::from_str(tools.get()).unwrap_or_default();
    list.into_iter().filter_map(definition).collect()
}

fn definition(tool: &RawValue) -> Option<ToolDefinition> {
    let wrapped: Option<WrappedTool<'_>> = serde_json::from_str(tool.get()).ok();
    let function = match wrapped {
        Some(wrapped) => wrapped.function,
        None => serde_json::from_str(tool.get()).ok()?,
    };
    let name = function.name?;
    if name.is_empty() || name.len() > SHORT_TEXT_BYTES_MAX {
        return None;
    }
    let schema = function
        .parameters
        .map(RawValue::get)
        .filter(|schema| schema.starts_with('{'));
    Some(ToolDefinition {
        name,
        description: function.description.unwrap_or_default(),
        input_schema: schema.map_or_else(JsonText::default, |schema| {
            JsonText::from_checked(schema.to_owned().into())
        }),
        source: String::new(),
        needs_approval: false,
        guidance: String::new(),
        discoverable: false,
        strict: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // A conversation that came with tools must keep them, or the model cannot call them any more.
    #[test]
    fn tool_definitions_are_parsed_in_both_shapes() {
        let list = r#"[{"type":"function","function":{"name":"a","description":"d",
            "parameters":{"type": "object"}}}, {"name":"b","input_schema":{"x":1.0}},
            {"type":"function"}, 5, {"name":""}]"#;
        let tools = read(&RawValue::from_string(list.to_owned()).unwrap());
        let seen: Vec<_> = tools
            .iter()
            .map(|tool| (tool.name.as_str(), tool.input_schema.as_str()))
            .collect();
        assert_eq!(
            seen,
            [("a", r#"{"type": "object"}"#), ("b", r#"{"x":1.0}"#)]
        );
        assert_eq!(tools[0].description, "d");
    }
}
