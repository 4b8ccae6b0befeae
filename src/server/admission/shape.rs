//! Computes the memory of decoded messages from the descriptors, so that new fields and methods are
//! covered automatically.
//!
//! The numbers are upper bounds of what the generated code allocates; a test compares them with the
//! real types.

use std::collections::HashMap;

use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};

/// A string, a vector or a `Bytes`, without what it points to.
const POINTER_BYTES: usize = 32;
/// An empty hash map.
const MAP_BYTES: usize = 48;
/// The allocator's overhead for a block.
const BLOCK_BYTES: usize = 16;
/// Copies of a list element: two while the list grows, and one as a domain value.
const COPIES: usize = 3;
/// The smallest event, as a domain value.
const EVENT_BYTES: usize = 256;
/// Highest field number that is scanned; fields beyond it are skipped.
const FIELD_NUMBER_MAX: usize = 1_000;

/// All described messages.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    shapes: Vec<Shape>,
    by_name: HashMap<String, usize>,
}

/// A message.
#[derive(Debug, Default)]
pub(super) struct Shape {
    /// The size of the generated struct, in bytes.
    pub(crate) size: usize,
    fields: Vec<Option<Field>>,
}

/// The memory of a field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(crate) kind: Kind,
    /// Bytes of each occurrence besides its content.
    pub(crate) each: usize,
}

/// The wire format of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A number of variable length.
    Varint,
    /// A number of this many bytes.
    Fixed(usize),
    /// Text or bytes.
    Text,
    /// The message with this index in [`Shapes`].
    Message(usize),
}

impl Shape {
    pub(crate) fn field(&self, number: u64) -> Option<&Field> {
        let number = usize::try_from(number).ok()?;
        self.fields.get(number)?.as_ref()
    }
}

impl Shapes {
    /// Adds the messages of a set of files. Known messages are kept.
    pub(crate) fn add(&mut self, files: &FileDescriptorSet) {
        let mut messages = HashMap::new();
        for file in &files.file {
            collect(&mut messages, file.package(), &file.message_type);
        }
        let mut names: Vec<_> = messages.keys().cloned().collect();
        names.retain(|name| !self.by_name.contains_key(name));
        names.sort();
        for name in &names {
            self.by_name.insert(name.clone(), self.shapes.len());
            self.shapes.push(Shape::default());
        }
        for name in names {
            let index = self.by_name[&name];
            self.shapes[index] = self.shape(&messages, messages[&name], 0);
        }
    }

    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        self.by_name.get(name.trim_start_matches('.')).copied()
    }

    pub(crate) fn get(&self, index: usize) -> &Shape {
        &self.shapes[index]
    }

    fn shape(&self, messages: &Messages<'_>, message: &DescriptorProto, depth: usize) -> Shape {
        let highest = message.field.iter().filter_map(number).max();
        let mut fields = vec![None; highest.map_or(0, |number| number + 1)];
        for field in &message.field {
            if let Some(number) = number(field) {
                fields[number] = self.field(messages, message, field, depth);
            }
        }
        let size = size_of(messages, message, depth);
        Shape { size, fields }
    }

    fn field(
        &self,
        messages: &Messages<'_>,
        message: &DescriptorProto,
        field: &FieldDescriptorProto,
        depth: usize,
    ) -> Option<Field> {
        let repeated = field.label() == Label::Repeated;
        let listed = |bytes: usize| if repeated { COPIES * bytes } else { 0 };
        let number = |kind| Field {
            kind,
            each: listed(8),
        };
        Some(match field.r#type() {
            Type::String | Type::Bytes => Field {
                kind: Kind::Text,
                each: listed(POINTER_BYTES) + BLOCK_BYTES,
            },
            Type::Message => {
                let name = field.type_name().trim_start_matches('.');
                let inner = messages.get(name)?;
                let size = size_of(messages, inner, depth + 1);
                let each = if is_event_arm(message, field) {
                    COPIES * size.max(EVENT_BYTES)
                } else {
                    listed(size + BLOCK_BYTES)
                };
                let kind = Kind::Message(*self.by_name.get(name)?);
                Field { kind, each }
            }
            Type::Double | Type::Fixed64 | Type::Sfixed64 => number(Kind::Fixed(8)),
            Type::Float | Type::Fixed32 | Type::Sfixed32 => number(Kind::Fixed(4)),
            // Not in proto3; the generated code and the scan skip it.
            Type::Group => return None,
            _ => number(Kind::Varint),
        })
    }
}

type Messages<'a> = HashMap<String, &'a DescriptorProto>;

fn collect<'a>(messages: &mut Messages<'a>, scope: &str, found: &'a [DescriptorProto]) {
    for message in found {
        let name = format!("{scope}.{}", message.name());
        collect(messages, &name, &message.nested_type);
        messages.insert(name, message);
    }
}

fn number(field: &FieldDescriptorProto) -> Option<usize> {
    let number = usize::try_from(field.number()).ok()?;
    (number <= FIELD_NUMBER_MAX).then_some(number)
}

/// Returns true for the arms of event envelopes, which are bytes in the generated code and become
/// separate bodies later (see `build.rs`).
fn is_event_arm(message: &DescriptorProto, field: &FieldDescriptorProto) -> bool {
    matches!(message.name(), "Event" | "NewEvent") && field.oneof_index.is_some()
}

/// Returns the size of the generated struct in bytes: every field with padding, a oneof as its
/// largest arm.
fn size_of(messages: &Messages<'_>, message: &DescriptorProto, depth: usize) -> usize {
    // The generated code boxes a message that contains itself.
    const DEPTH_MAX: usize = 16;
    if depth > DEPTH_MAX {
        return POINTER_BYTES;
    }
    let mut oneofs = vec![0; message.oneof_decl.len()];
    let mut size = 0;
    for field in &message.field {
        let repeated = field.label() == Label::Repeated;
        let own = match field.r#type() {
            Type::Message if repeated => MAP_BYTES,
            Type::Message if is_event_arm(message, field) => POINTER_BYTES,
            Type::Message => {
                let inner = messages.get(field.type_name().trim_start_matches('.'));
                8 + inner.map_or(0, |inner| size_of(messages, inner, depth + 1))
            }
            Type::String | Type::Bytes => POINTER_BYTES,
            _ if repeated => POINTER_BYTES,
            _ => 8,
        };
        match field
            .oneof_index
            .and_then(|index| usize::try_from(index).ok())
        {
            Some(index) if index < oneofs.len() => oneofs[index] = oneofs[index].max(own + 8),
            _ => size += own,
        }
    }
    size + oneofs.iter().sum::<usize>()
}
