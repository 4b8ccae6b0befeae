//! Cuts a body into the units that a prompt cache can share as a whole.

use std::{hash::BuildHasher, ops::Range, sync::OnceLock};

use foldhash::quality::RandomState;

use super::{
    CacheUnit, Provider, RenderError,
    outline::{Node, OutlinedBody},
    table::UnitFields,
};

/// Anthropic's breakpoint as the adapter writes it. It is the last field of an object that the
/// adapter writes, which distinguishes it from the same text in recorded values.
const BREAKPOINT: &str = r#","cache_control":{"type":"ephemeral"}"#;

/// Depth down to which node positions are needed to find the units.
pub(super) fn depth(provider: Provider) -> usize {
    match provider.description().cutting.by_block {
        true => 4,
        false => 2,
    }
}

/// Returns the units of a body. `items` are the items of each unit after the tools.
pub(super) fn of_body(
    provider: Provider,
    body: &OutlinedBody,
    items: Vec<Vec<usize>>,
) -> Result<Vec<CacheUnit>, RenderError> {
    let BodyUnits { heads, messages } = cut(provider, body);
    let tools = heads.iter().filter(|(is_tools, _)| *is_tools).count();
    let mut units: Vec<CacheUnit> = Vec::with_capacity(items.len() + tools);
    let pieces = heads.into_iter().map(|(_, head)| (0..0, head));
    for (role, piece) in pieces.chain(messages) {
        units.push(unit(&body.json[role], &body.json[piece]));
    }
    if units.len() - tools != items.len() {
        let (found, told) = (units.len() - tools, items.len());
        return Err(RenderError::Illegal {
            provider,
            message: format!("the body has {found} units, but the adapter declared {told}"),
        });
    }
    for (unit, items) in units[tools..].iter_mut().zip(items) {
        unit.items = items;
        unit.items.dedup();
    }
    Ok(units)
}

/// Positions of the units of a body.
#[derive(Default)]
struct BodyUnits {
    /// The tools (true) and the instructions, if there are any.
    heads: Vec<(bool, Range<usize>)>,
    /// For each message or block that is a unit: the position of its role (empty for a message),
    /// and its own position. The hash of a block includes the role.
    messages: Vec<(Range<usize>, Range<usize>)>,
}

fn cut(provider: Provider, body: &OutlinedBody) -> BodyUnits {
    let mut cut = BodyUnits::default();
    let UnitFields {
        instructions,
        said,
        by_block,
    } = provider.description().cutting;
    let (mut in_messages, mut role, mut in_content) = (false, 0..0, false);
    for Node { depth, key, value } in &body.nodes {
        // The name includes quotes. An element of a list has no name.
        let name = &body.json[key.clone()];
        let is =
            |field: &str| name.len() == field.len() + 2 && name[1..].starts_with(field.as_bytes());
        if *depth == 1 {
            in_messages = is(said);
        }
        match (*depth, name) {
            (1, br#""tools""#) => cut.heads.insert(0, (true, value.clone())),
            (1, _) if is(instructions) => cut.heads.push((false, value.clone())),
            (2, []) if in_messages && !by_block => {
                cut.messages.push((0..0, value.clone()));
            }
            (3, br#""role""#) if in_messages => role = value.clone(),
            (3, name) => in_content = name == br#""content""#,
            (4, []) if in_messages && in_content => {
                cut.messages.push((role.clone(), value.clone()));
            }
            _ => {}
        }
    }
    cut
}

/// Returns hashers with random keys. Hashes are compared only within a process.
fn hashers() -> &'static [RandomState; 2] {
    static HASHERS: OnceLock<[RandomState; 2]> = OnceLock::new();
    HASHERS.get_or_init(Default::default)
}

fn unit(role: &[u8], json: &[u8]) -> CacheUnit {
    let (head, tail) = without_breakpoint(json);
    let half = |hasher: &RandomState| u128::from(hasher.hash_one((role, head, tail)));
    let [first, second] = hashers();
    CacheUnit {
        hash: half(first) << 64 | half(second),
        bytes: (head.len() + tail.len()) as u64,
        items: Vec::new(),
    }
}

/// Splits a unit around its breakpoint, if it has one. The second part is the closing brackets.
fn without_breakpoint(json: &[u8]) -> (&[u8], &[u8]) {
    let is_closer = |byte: &&u8| matches!(byte, b'}' | b']');
    let closers = json.iter().rev().take_while(is_closer).count();
    let (head, tail) = json.split_at(json.len() - closers);
    let open = BREAKPOINT.trim_end_matches('}').as_bytes();
    match head.strip_suffix(open) {
        // The closing brackets include the breakpoint's own brace.
        Some(head) if is_breakpoint(json, tail) => (head, &tail[1..]),
        _ => {
            let ends = if json.starts_with(b"[") { 2 } else { 1 };
            json.split_at(json.len().saturating_sub(ends))
        }
    }
}

/// Whether this is a breakpoint: it is at the end of the unit's object (`{…}`) or of the last
/// object in its list (`[{…}]`). Deeper ones are in recorded values.
fn is_breakpoint(json: &[u8], closers: &[u8]) -> bool {
    if json.starts_with(b"[") {
        closers == b"}}]"
    } else {
        closers == b"}}"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(json: &str) -> u128 {
        unit(b"", json.as_bytes()).hash
    }

    /// A breakpoint moves from request to request while the text before it stays. The hash must
    /// ignore it, but must include the same text in recorded values.
    #[test]
    fn unit_hashes_ignore_cache_breakpoints() {
        let mark = BREAKPOINT;
        let cases = [
            (format!(r#"[{{"name":"a"{mark}}}]"#), r#"[{"name":"a"}]"#),
            (format!(r#"{{"type":"text"{mark}}}"#), r#"{"type":"text"}"#),
            // The text before a breakpoint may also end with closing brackets.
            (
                format!(r#"{{"input":{{"a":{{}}}}{mark}}}"#),
                r#"{"input":{"a":{}}}"#,
            ),
            (
                format!(r#"[{{"schema":{{"a":[]}}{mark}}}]"#),
                r#"[{"schema":{"a":[]}}]"#,
            ),
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
