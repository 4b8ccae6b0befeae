//! Cuts a body into the pieces that a prompt cache can share as a whole.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Provider, RenderError, Unit};

/// How Anthropic's breakpoints are written: always the last field of their
/// object, so they can be told from fields that a recorded value holds.
const BREAKPOINT: &str = r#","cache_control":{"type":"ephemeral"}"#;

/// The parts of a body that are units, or hold them.
#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow, alias = "instructions", alias = "systemInstruction")]
    system: Option<&'a RawValue>,
    #[serde(borrow, alias = "input", alias = "contents", alias = "items")]
    messages: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: &'a RawValue,
    #[serde(borrow)]
    content: Vec<&'a RawValue>,
}

/// The units of a body; `items` are those of each unit after the tools.
pub(super) fn of_body(
    provider: Provider,
    body: &[u8],
    items: Vec<Vec<usize>>,
) -> Result<Vec<Unit>, RenderError> {
    let unread = |error: serde_json::Error| RenderError::Json {
        provider,
        message: error.to_string(),
    };
    let body: Body<'_> = serde_json::from_slice(body).map_err(unread)?;
    let mut units: Vec<Unit> = body
        .tools
        .map(|tools| unit("", tools))
        .into_iter()
        .collect();
    let tools = units.len();
    units.extend(body.system.map(|system| unit("", system)));
    for message in body.messages {
        if provider == Provider::Anthropic {
            let message: Message<'_> = serde_json::from_str(message.get()).map_err(unread)?;
            let role = message.role.get();
            units.extend(message.content.into_iter().map(|block| unit(role, block)));
        } else {
            units.push(unit("", message));
        }
    }
    if units.len() - tools != items.len() {
        let (found, told) = (units.len() - tools, items.len());
        return Err(RenderError::Illegal {
            provider,
            message: format!("the body has {found} units and the adapter told of {told}"),
        });
    }
    for (unit, items) in units[tools..].iter_mut().zip(items) {
        unit.items = items;
        unit.items.dedup();
    }
    Ok(units)
}

fn unit(role: &str, json: &RawValue) -> Unit {
    let json = json.get();
    let closers = json.len() - json.trim_end_matches(['}', ']']).len();
    // A breakpoint's own brace is among the closing ones: it ends `kept` only
    // once it is back.
    let (head, tail) = json.split_at(json.len() - closers);
    let open = BREAKPOINT.trim_end_matches('}');
    let (head, tail) = match head.strip_suffix(open) {
        Some(head) if is_breakpoint(json, tail) => (head, &tail[1..]),
        _ => (head, tail),
    };
    let mut hasher = blake3::Hasher::new();
    hasher.update(role.as_bytes());
    hasher.update(head.as_bytes());
    hasher.update(tail.as_bytes());
    Unit {
        hash: hasher.finalize().into(),
        bytes: (head.len() + tail.len()) as u64,
        items: Vec::new(),
    }
}

/// A breakpoint ends the unit's object (`{…}`) or the last object of its list
/// (`[{…}]`); deeper ones belong to recorded values.
fn is_breakpoint(json: &str, closers: &str) -> bool {
    if json.starts_with('[') {
        closers == "}}]"
    } else {
        closers == "}}"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(json: &str) -> [u8; 32] {
        unit("", serde_json::from_str(json).unwrap()).hash
    }

    /// A breakpoint moves from request to request while the text before it stays:
    /// the hash must not see it, and must see the same words in recorded values.
    #[test]
    fn hashes_leave_breakpoints_out() {
        let mark = BREAKPOINT;
        let cases = [
            (format!(r#"[{{"name":"a"{mark}}}]"#), r#"[{"name":"a"}]"#),
            (format!(r#"{{"type":"text"{mark}}}"#), r#"{"type":"text"}"#),
        ];
        for (marked, plain) in cases {
            assert_eq!(hash(&marked), hash(plain), "{marked}");
        }
        let recorded = format!(r#"{{"input":{{"a":1{mark}}}}}"#);
        assert_ne!(hash(&recorded), hash(r#"{"input":{"a":1}}"#));
        let schema = format!(r#"[{{"input_schema":{{"a":1{mark}}}}}]"#);
        assert_ne!(hash(&schema), hash(r#"[{"input_schema":{"a":1}}]"#));
    }
}
