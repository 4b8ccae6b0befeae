//! Writes a body and records the positions of its fields and elements. A body of a megabyte then
//! need not be parsed to find its parts.

use std::{cell::Cell, io, ops::Range};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};

/// A written body.
pub(super) struct OutlinedBody {
    pub json: Vec<u8>,
    /// Nodes in the order in which they begin.
    pub nodes: Vec<Node>,
}

/// A field of an object, or an element of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Number of enclosing containers: 1 for a field of the body.
    pub depth: usize,
    /// Position of the field's name, with quotes; empty for an element.
    pub key: Range<usize>,
    /// Position of its value.
    pub value: Range<usize>,
}

/// Writes a value as JSON. Nodes in more than `depth_max` containers are not recorded.
///
/// # Errors
/// Serde's error if the value cannot be serialized.
pub(super) fn write(value: &impl Serialize, depth_max: usize) -> serde_json::Result<OutlinedBody> {
    let mut json = Vec::with_capacity(FIRST_BYTES);
    let at = Cell::new(0);
    let mut nodes = Vec::new();
    let writer = CountingWriter {
        json: &mut json,
        at: &at,
    };
    let noting = OutlineFormatter {
        at: &at,
        depth: 0,
        depth_max,
        key: 0..0,
        open: Vec::new(),
        nodes: &mut nodes,
    };
    value.serialize(&mut Serializer::with_formatter(writer, noting))?;
    Ok(OutlinedBody { json, nodes })
}

/// Initial capacity, enough for a small body.
const FIRST_BYTES: usize = 16 << 10;

/// Counts the written bytes for the formatter, which cannot see them itself.
struct CountingWriter<'a> {
    json: &'a mut Vec<u8>,
    at: &'a Cell<usize>,
}

impl io::Write for CountingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    #[inline]
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.json.extend_from_slice(bytes);
        self.at.set(self.json.len());
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct OutlineFormatter<'a> {
    at: &'a Cell<usize>,
    depth: usize,
    depth_max: usize,
    /// Position of the last field's name.
    key: Range<usize>,
    /// Indexes of nodes that have not ended.
    open: Vec<usize>,
    nodes: &'a mut Vec<Node>,
}

impl OutlineFormatter<'_> {
    fn begin(&mut self, key: Range<usize>) {
        if self.depth <= self.depth_max {
            let at = self.at.get();
            self.open.push(self.nodes.len());
            self.nodes.push(Node {
                depth: self.depth,
                key,
                value: at..at,
            });
        }
    }

    fn end(&mut self) {
        if self.depth <= self.depth_max
            && let Some(index) = self.open.pop()
            && let Some(node) = self.nodes.get_mut(index)
        {
            node.value.end = self.at.get();
        }
    }
}

type WriteResult = io::Result<()>;

impl Formatter for OutlineFormatter<'_> {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> WriteResult {
        self.depth += 1;
        CompactFormatter.begin_array(writer)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> WriteResult {
        self.depth -= 1;
        CompactFormatter.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> WriteResult {
        CompactFormatter.begin_array_value(writer, first)?;
        self.begin(0..0);
        Ok(())
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> WriteResult {
        self.end();
        CompactFormatter.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> WriteResult {
        self.depth += 1;
        CompactFormatter.begin_object(writer)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> WriteResult {
        self.depth -= 1;
        CompactFormatter.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> WriteResult {
        CompactFormatter.begin_object_key(writer, first)?;
        self.key.start = self.at.get();
        Ok(())
    }

    fn end_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> WriteResult {
        self.key.end = self.at.get();
        CompactFormatter.end_object_key(writer)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> WriteResult {
        CompactFormatter.begin_object_value(writer)?;
        self.begin(self.key.clone());
        Ok(())
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> WriteResult {
        self.end();
        CompactFormatter.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*};
    use serde_json::{Value, json};

    use super::*;

    /// Depth, name and value of each node.
    fn noted(value: &Value, depth_max: usize) -> Vec<(usize, String, Value)> {
        let outlined = write(value, depth_max).unwrap();
        let text = |range: &Range<usize>| &outlined.json[range.clone()];
        let node = |node: &Node| {
            let key = match text(&node.key) {
                [] => String::new(),
                key => serde_json::from_slice(key).unwrap(),
            };
            let value = serde_json::from_slice(text(&node.value)).unwrap();
            (node.depth, key, value)
        };
        outlined.nodes.iter().map(node).collect()
    }

    fn expected(value: &Value, depth: usize, max: usize, found: &mut Vec<(usize, String, Value)>) {
        let children: Vec<(String, &Value)> = match value {
            Value::Object(fields) => fields.iter().map(|(k, v)| (k.clone(), v)).collect(),
            Value::Array(elements) => elements.iter().map(|v| (String::new(), v)).collect(),
            _ => Vec::new(),
        };
        for (key, child) in children.into_iter().filter(|_| depth <= max) {
            found.push((depth, key, child.clone()));
            expected(child, depth + 1, max, found);
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<i64>().prop_map(Value::from),
            "[a-z\"\\\\\\n{}\\[\\],:é]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 40, 5, |inner| {
            prop_oneof![
                collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                collection::btree_map("[a-z\"]{0,6}", inner, 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        // If a unit is cut at the wrong place, a cached prefix looks changed, or a changed one
        // looks equal.
        #[test]
        fn outline_records_the_range_of_any_value(value in values(), depth_max in 0_usize..6) {
            let mut all = Vec::new();
            expected(&value, 1, depth_max, &mut all);
            prop_assert_eq!(noted(&value, depth_max), all);
            let plain = serde_json::to_vec(&value).unwrap();
            prop_assert_eq!(write(&value, depth_max).unwrap().json, plain);
        }
    }
}
