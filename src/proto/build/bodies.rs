//! Generates the codec of event bodies: checked conversions between messages and domain types, the
//! limits of JSON in received bodies, and the erasure of content.

use std::{collections::BTreeMap, fmt::Write as _};

use protox::prost_reflect::{
    Cardinality, DescriptorPool, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor,
};

use crate::options::{EventBody, Payload, bodies, camel, of_field, snake};

/// Messages whose conversions are written by hand, in `src/proto/body`.
const BY_HAND: [&str; 5] = [
    "BranchRenamed",
    "ConfigChanged",
    "ContentPart",
    "Media",
    "ToolCallRequested",
];

/// Messages with rules over several fields, whose `check` is in `src/proto/body`.
const CHECKED: [&str; 5] = [
    "ContentErased",
    "ConversationCreated",
    "EntitiesNoted",
    "RawMessage",
    "ToolsDefined",
];

/// Fields that have another name in the domain.
const RENAMED: [(&str, &str); 8] = [
    ("AnnotationAdded.target_revision", "target"),
    ("BranchForked.parent_branch_id", "parent"),
    ("ContentErased.stubs_hash", "stubs"),
    ("ParentRef.branch_id", "branch"),
    ("ParentRef.conversation_id", "conversation"),
    ("SubContextReturned.conversation_id", "conversation"),
    ("SubContextSpawned.conversation_id", "conversation"),
    ("ToolDefinition.approval", "needs_approval"),
];

/// Fields that are not optional in the domain: an absent message equals one without values.
const FLAT: [&str; 1] = ["ConversationCreated.config"];

/// # Panics
/// If a field lacks an option, or has an unsupported type.
pub fn generate(pool: &DescriptorPool) -> String {
    let kinds = bodies(pool);
    let mut all = BTreeMap::new();
    kinds
        .iter()
        .for_each(|kind| collect(&kind.message, &mut all));
    let mut code = dispatch(&kinds);
    for kind in &kinds {
        code += &body(kind);
    }
    let mut enums = BTreeMap::new();
    for message in all.values() {
        let kind = kinds.iter().find(|kind| kind.message == *message);
        code += &conversions(message, kind.map(|kind| &kind.payload));
        enums.extend(message.fields().filter_map(|field| match field.kind() {
            Kind::Enum(choices) => Some((choices.name().to_owned(), choices)),
            _ => None,
        }));
    }
    // It is a bool in the domain.
    enums.remove("ApprovalRequirement");
    enums.values().for_each(|choices| code += &choice(choices));
    code
}

fn collect(message: &MessageDescriptor, all: &mut BTreeMap<String, MessageDescriptor>) {
    all.insert(message.name().to_owned(), message.clone());
    for field in message.fields().filter(|field| !field.is_map()) {
        if let Kind::Message(inner) = field.kind() {
            collect(&inner, all);
        }
    }
}

/// Generates decoding and encoding by kind.
fn dispatch(kinds: &[EventBody]) -> String {
    let (mut decode, mut encode) = (String::new(), String::new());
    for kind in kinds {
        let (number, name) = (kind.number, kind.message.name());
        let _ = writeln!(
            decode,
            "EventKind::{name} => {{ const {{ assert!(EventKind::{name} as u32 == {number}) }}\n\
             decode_as::<pb::{name}>(bytes, is_received) }}"
        );
        let (pattern, message) = match &kind.payload {
            Payload::Nothing => (String::new(), format!("pb::{name} {{}}")),
            Payload::Fields => {
                let fields = kind.message.fields().map(|field| domain_name(&field) + ",");
                let fields: String = fields.collect();
                (format!("{{ {fields} }}"), made(&kind.message, ""))
            }
            Payload::Value(_) => ("(of)".to_owned(), format!("pb::{name}::of(of)")),
        };
        let _ = writeln!(
            encode,
            "EventBody::{name} {pattern} => written({message}, erased_on),"
        );
    }
    format!(
        "pub(super) fn decode_kind(kind: EventKind, bytes: &Bytes, is_received: bool) \
             -> FieldResult<EventBody> {{\n match kind {{\n{decode}}}\n}}\n\
         pub(super) fn encode_kind(body: &EventBody, erased_on: Option<BranchId>) -> Bytes {{\n\
             match body {{\n{encode}}}\n}}\n"
    )
}

/// Generates the implementation of `Body`.
fn body(kind: &EventBody) -> String {
    let message = &kind.message;
    let name = message.name();
    let into_body = match &kind.payload {
        Payload::Nothing => format!("Ok(EventBody::{name})"),
        Payload::Fields => format!(
            "{}Ok(EventBody::{name} {{ {} }})",
            check(message),
            read(message)
        ),
        Payload::Value(_) => format!("self.into_domain().map(EventBody::{name})"),
    };
    format!(
        "impl Body for pb::{name} {{\n\
             fn check_values(&self) -> FieldResult<()> {{ {} Ok(()) }}\n\
             fn erase(&mut self, branch: BranchId) {{ {} }}\n\
             fn into_body(self) -> FieldResult<EventBody> {{ {into_body} }}\n}}\n",
        values(message),
        erase(message),
    )
}

/// Generates the methods of a message that the implementations of `Body` call. `kind` is the
/// payload if the message is itself a body.
fn conversions(message: &MessageDescriptor, kind: Option<&Payload>) -> String {
    let name = message.name();
    let domain = match kind {
        None => Some(name),
        Some(Payload::Value(of)) => Some(of.as_str()),
        Some(Payload::Nothing | Payload::Fields) => None,
    };
    let is_kind = kind.is_some();
    let mut code = String::new();
    if let Some(domain) = domain.filter(|_| !BY_HAND.contains(&name)) {
        let _ = writeln!(
            code,
            "pub(super) fn into_domain(self) -> FieldResult<domain::{domain}> \
                 {{ {} Ok(domain::{domain} {{ {} }}) }}\n\
             pub(super) fn of(of: &domain::{domain}) -> Self {{ {} }}",
            check(message),
            read(message),
            made(message, "of."),
        );
    }
    if !is_kind && !values(message).is_empty() {
        let _ = writeln!(
            code,
            "fn check_values(&self) -> FieldResult<()> {{ {} Ok(()) }}",
            values(message)
        );
    }
    if !is_kind && is_erased_by_field(message) {
        let _ = writeln!(
            code,
            "fn erase(&mut self, branch: BranchId) {{ {} }}",
            erase(message)
        );
    }
    format!("impl pb::{name} {{\n{code}}}\n")
}

fn check(message: &MessageDescriptor) -> &'static str {
    match CHECKED.contains(&message.name()) {
        true => "self.check()?;",
        false => "",
    }
}

/// Generates the fields of the domain type, built from `self`.
fn read(message: &MessageDescriptor) -> String {
    let fields = message.fields().map(|field| {
        let name = field.name();
        let value = match shape(&field) {
            Shape::Text(form) => match form.as_str() {
                "TEXT" | "BYTES" | "LIKELY_JSON" => format!("self.{name}"),
                "BRANCH_NAME" | "UUID" => {
                    format!("{}({name:?}, &self.{name})?", form.to_lowercase())
                }
                "HASH" | "OPTIONAL_HASH" => format!("Scalar::read({name:?}, self.{name})?"),
                _ => format!("{}({name:?}, self.{name})?", form.to_lowercase()),
            },
            Shape::OptionalText(form) | Shape::Texts(form) if form == "TEXT" => {
                format!("self.{name}")
            }
            Shape::OptionalText(form) => {
                let checked = form.to_lowercase();
                format!("self.{name}.map(|text| {checked}({name:?}, text)).transpose()?")
            }
            Shape::Texts(form) => format!("{}_list({name:?}, self.{name})?", form.to_lowercase()),
            Shape::Map(form) => format!("{}_map({name:?}, self.{name})?", form.to_lowercase()),
            Shape::Message(of) if FLAT.contains(&path(&field).as_str()) => {
                let inner = format!("self.{name}.unwrap_or_default()");
                format!("pb::{of}::into_domain({inner}).map_err(|fault| fault.within({name:?}))?")
            }
            Shape::Message(of) => format!(
                "self.{name}.map(pb::{of}::into_domain).transpose()\
                 .map_err(|fault| fault.within({name:?}))?"
            ),
            Shape::Messages(of) => format!("each({name:?}, self.{name}, pb::{of}::into_domain)?"),
            Shape::Choice => format!("Choice::read({name:?}, self.{name})?"),
            Shape::Scalar => format!("Scalar::read({name:?}, self.{name})?"),
        };
        format!("{}: {value},", domain_name(&field))
    });
    fields.collect()
}

/// Generates the message, built from a domain value `of`.
fn made(message: &MessageDescriptor, of: &str) -> String {
    let fields = message.fields().map(|field| {
        let name = field.name();
        let from = format!("{of}{}", domain_name(&field));
        let value = match shape(&field) {
            Shape::Text(form) => match form.as_str() {
                "BRANCH_NAME" | "UUID" => format!("{from}.to_string()"),
                "JSON" | "OPTIONAL_JSON" => format!("{from}.as_bytes().clone()"),
                "HASH" | "OPTIONAL_HASH" => format!("{from}.write()"),
                _ => format!("{from}.clone()"),
            },
            Shape::OptionalText(_) | Shape::Texts(_) | Shape::Map(_) => format!("{from}.clone()"),
            Shape::Message(inner) if FLAT.contains(&path(&field).as_str()) => {
                format!("({from} != Default::default()).then(|| pb::{inner}::of(&{from}))")
            }
            Shape::Message(inner) => format!("{from}.as_ref().map(pb::{inner}::of)"),
            Shape::Messages(inner) => format!("{from}.iter().map(pb::{inner}::of).collect()"),
            Shape::Choice => format!("{from}.number()"),
            Shape::Scalar => format!("{from}.write()"),
        };
        format!("{name}: {value},")
    });
    format!(
        "pb::{} {{ {} }}",
        message.name(),
        fields.collect::<String>()
    )
}

/// Generates the check of the number of values in each JSON text. Empty if there is none.
fn values(message: &MessageDescriptor) -> String {
    let mut code = String::new();
    for field in message.fields() {
        let name = field.name();
        let is_json = form(&field).is_some_and(|form| form.ends_with("JSON"));
        let kind = field.kind();
        code += &match (&kind, oneof(&field)) {
            (Kind::Message(_), _) if field.is_map() && is_json => {
                format!("for of in self.{name}.values() {{ values({name:?}, of.as_bytes())?; }}\n")
            }
            (Kind::Message(inner), oneof) if !field.is_map() && !values(inner).is_empty() => {
                assert!(oneof.is_none(), "{}: JSON in a oneof", path(&field));
                match field.is_list() {
                    true => format!(
                        "for (index, of) in self.{name}.iter().enumerate() {{ of.check_values()\
                         .map_err(|fault| fault.within_entry({name:?}, index))?; }}\n"
                    ),
                    false => format!(
                        "if let Some(of) = &self.{name} {{ of.check_values()\
                         .map_err(|fault| fault.within({name:?}))?; }}\n"
                    ),
                }
            }
            (Kind::String, Some(oneof)) if is_json => format!(
                "if let Some(pb::{}::{}::{}(of)) = &self.{oneof} \
                 {{ values({name:?}, of.as_bytes())?; }}\n",
                snake(message.name()),
                camel(&oneof),
                camel(name),
            ),
            (Kind::String, None) if is_json => {
                format!("values({name:?}, self.{name}.as_bytes())?;\n")
            }
            (Kind::Bytes, None) if is_json => format!("values({name:?}, &self.{name})?;\n"),
            (Kind::Bytes, Some(_)) if is_json => panic!("{}: JSON in a oneof", path(&field)),
            _ => String::new(),
        };
    }
    code
}

/// Generates the erasure of each field of a message.
///
/// # Panics
/// If a text, bytes or map field lacks the option `erase`.
fn erase(message: &MessageDescriptor) -> String {
    let mut code = String::new();
    for field in message.fields() {
        let name = field.name();
        let is_text = field.is_map() || matches!(field.kind(), Kind::String | Kind::Bytes);
        let to = match of_field(&field, "erase").as_deref() {
            None | Some("UNSPECIFIED") if is_text => {
                panic!(
                    "{} needs the option `erase`: see options.proto",
                    path(&field)
                )
            }
            Some("CLEAR") => "Default::default()".to_owned(),
            Some("MARK") => "ERASED.into()".to_owned(),
            Some("MARK_IF_SET") => {
                let _ = writeln!(
                    code,
                    "if !self.{name}.is_empty() {{ self.{name} = ERASED.into(); }}"
                );
                continue;
            }
            Some("EMPTY_OBJECT") => "\"{}\".into()".to_owned(),
            Some("NULL") => "\"null\".into()".to_owned(),
            Some("BRANCH_NAME") => "format!(\"{ERASED}-{branch}\")".to_owned(),
            Some("ZERO_HASH") => "Bytes::from_static(&[0; 32])".to_owned(),
            _ => {
                if let Kind::Message(inner) = field.kind()
                    && !field.is_map()
                    && !erase(&inner).is_empty()
                {
                    let _ = writeln!(
                        code,
                        "self.{name}.iter_mut().for_each(|of| of.erase(branch));"
                    );
                }
                continue;
            }
        };
        assert!(
            oneof(&field).is_none(),
            "{}: erased in a oneof",
            path(&field)
        );
        let _ = writeln!(code, "self.{name} = {to};");
    }
    code
}

/// Returns true if a message is erased field by field: if its fields have the option `erase`.
fn is_erased_by_field(message: &MessageDescriptor) -> bool {
    let is_text = |field: &FieldDescriptor| matches!(field.kind(), Kind::String | Kind::Bytes);
    let mut texts = message.fields().filter(is_text);
    texts.any(|field| of_field(&field, "erase").is_some()) && !erase(message).is_empty()
}

/// Generates the conversions of an enum whose variants are named as in the domain.
fn choice(choices: &EnumDescriptor) -> String {
    let name = choices.name();
    let prefix = format!("{}_", snake(name).to_uppercase());
    let (mut read, mut number) = (String::new(), String::new());
    for value in choices.values().skip(1) {
        let variant = camel(value.name().trim_start_matches(&prefix));
        let _ = writeln!(read, "pb::{name}::{variant} => Self::{variant},");
        let _ = writeln!(number, "Self::{variant} => pb::{name}::{variant},");
    }
    format!(
        "impl Choice for domain::{name} {{\n\
             fn read(field: &str, value: i32) -> FieldResult<Self> {{\n\
                 Ok(match chosen(field, value)? {{\n\
                     pb::{name}::Unspecified => return unspecified(field),\n{read}}})\n}}\n\
             fn number(&self) -> i32 {{\n match self {{\n{number}}}.into()\n}}\n}}\n"
    )
}

/// How a field is converted. The strings are the `form` option of a text, bytes or map field, or
/// the name of a message.
enum Shape {
    Text(String),
    OptionalText(String),
    Texts(String),
    Map(String),
    Message(String),
    Messages(String),
    Choice,
    Scalar,
}

fn shape(field: &FieldDescriptor) -> Shape {
    assert!(
        oneof(field).is_none(),
        "{}: convert it by hand",
        path(field)
    );
    match (field.kind(), field.cardinality()) {
        _ if field.is_map() => Shape::Map(required_form(field)),
        (Kind::Message(of), Cardinality::Repeated) => Shape::Messages(of.name().to_owned()),
        (Kind::Message(of), _) => Shape::Message(of.name().to_owned()),
        (Kind::Enum(_), _) => Shape::Choice,
        (Kind::String, Cardinality::Repeated) => Shape::Texts(required_form(field)),
        (Kind::String, _) if field.supports_presence() => Shape::OptionalText(required_form(field)),
        (Kind::String | Kind::Bytes, _) => Shape::Text(required_form(field)),
        _ => Shape::Scalar,
    }
}

fn form(field: &FieldDescriptor) -> Option<String> {
    of_field(field, "form").filter(|form| form != "UNSPECIFIED")
}

fn required_form(field: &FieldDescriptor) -> String {
    let form = form(field);
    form.unwrap_or_else(|| panic!("{} needs the option `form`: see options.proto", path(field)))
}

/// Returns the oneof of a field, unless it is the synthetic one of `optional`.
fn oneof(field: &FieldDescriptor) -> Option<String> {
    let oneof = field.containing_oneof()?;
    (!oneof.is_synthetic()).then(|| oneof.name().to_owned())
}

fn domain_name(field: &FieldDescriptor) -> String {
    let path = path(field);
    let renamed = RENAMED.iter().find(|(from, _)| *from == path);
    renamed.map_or(field.name(), |(_, to)| to).to_owned()
}

/// Returns `Message.field`.
fn path(field: &FieldDescriptor) -> String {
    format!("{}.{}", field.parent_message().name(), field.name())
}
