//! Stores the data of a source record that its events lack, and restores the record.
//!
//! The texts of a record are also in its events. So the stored JSON Patch starts from a list of all
//! texts of the events and builds the record around them. Each text is thus stored once, whatever
//! the structure of the record.
//!
//! **Frozen.** Stored patches refer to texts by their index in [`recorded_texts`]: changing the
//! order would damage earlier imports.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    exporter::ExportFault,
    number::numbers_survive,
    raw::{self, RawFault},
    record::Record,
};
use treering_domain::{
    ContentPart, EventBody, Media, MediaSource, RawEncoding, RawMessage, StoredEvent,
};
use treering_proto::body;

/// Shorter texts are written into the patch: a reference would take as much space.
const COPIED_BYTES_MIN: usize = 64;

/// Returns all texts of the events of a record, in order: each as a string, and JSON also as a
/// value.
fn recorded_texts<'a>(bodies: impl IntoIterator<Item = &'a EventBody>) -> Vec<Value> {
    let mut said = Vec::new();
    for body in bodies {
        match body {
            EventBody::MessageAppended(message) => add_parts(&mut said, &message.parts),
            EventBody::ToolCallRequested(call) => add_json(&mut said, call.arguments.as_str()),
            EventBody::ToolResultRecorded(result) => {
                add_parts(&mut said, &result.parts);
                said.push(result.error_message.as_str().into());
                add_json(&mut said, result.structured.as_str());
            }
            EventBody::Compacted(compacted) => said.push(compacted.summary.as_str().into()),
            _ => {}
        }
    }
    said
}

fn add_parts(said: &mut Vec<Value>, parts: &[ContentPart]) {
    for part in parts {
        match part {
            ContentPart::Text(text) | ContentPart::Refusal(text) => said.push(text.as_str().into()),
            ContentPart::Json(text) => add_json(said, text.as_str()),
            ContentPart::Reasoning(thought) => {
                said.push(thought.text.as_str().into());
                said.push(String::from_utf8_lossy(&thought.signature).into());
            }
            ContentPart::Image(media) | ContentPart::File(media) | ContentPart::Audio(media) => {
                add_media(said, media);
            }
        }
    }
}

/// Adds the URI, and for a data URL also its data alone.
fn add_media(said: &mut Vec<Value>, media: &Media) {
    let uri = match &media.source {
        MediaSource::Uri(uri) => uri.as_str(),
        MediaSource::Data(_) | MediaSource::Absent => "",
    };
    said.push(uri.into());
    let data = uri.split_once(";base64,").map_or("", |(_, data)| data);
    said.push(data.into());
}

fn add_json(said: &mut Vec<Value>, text: &str) {
    said.push(text.into());
    said.push(serde_json::from_str(text).unwrap_or_default());
}

/// Returns the data that must be kept beside these events to restore the record.
pub(super) fn keep(origin: &str, model: &str, bodies: &[EventBody], record: &Record) -> RawMessage {
    let whole = || (RawEncoding::Whole, record.text.clone());
    let (encoding, data) = match numbers_survive(record.as_str()) {
        false => whole(),
        true => {
            patch(bodies, &record.value).map_or_else(whole, |patch| (RawEncoding::JsonPatch, patch))
        }
    };
    RawMessage {
        origin: origin.to_owned(),
        provider: String::new(),
        model: model.to_owned(),
        encoding,
        data,
    }
}

/// Returns a patch if it saves space and restores the record.
fn patch(bodies: &[EventBody], value: &Value) -> Option<Bytes> {
    let texts = recorded_texts(bodies);
    let mut writer = PatchWriter {
        texts: &texts,
        operations: Vec::new(),
    };
    let frame = writer.frame(value, &mut "/record".to_owned())?;
    if writer.operations.is_empty() {
        return None;
    }
    let mut operations = vec![json!({"op": "add", "path": "/record", "value": frame})];
    operations.append(&mut writer.operations);
    operations.push(json!({"op": "move", "from": "/record", "path": ""}));
    let patch = Value::Array(operations).to_string();
    // Use the patch only if it restores the record.
    (restore(bodies, patch.as_bytes()).as_ref() == Ok(value)).then(|| patch.into())
}

struct PatchWriter<'a> {
    texts: &'a [Value],
    operations: Vec<Value>,
}

impl PatchWriter<'_> {
    /// Returns the value without the parts that the patch copies into it; `None` if it copies all
    /// of it.
    fn frame(&mut self, value: &Value, path: &mut String) -> Option<Value> {
        if let Some(place) = self.place_of(value) {
            let from = format!("/said/{place}");
            let copy = json!({"op": "copy", "from": from, "path": path.as_str()});
            self.operations.push(copy);
            return None;
        }
        let end = path.len();
        let framed = match value {
            Value::Object(fields) => {
                let mut frame = serde_json::Map::with_capacity(fields.len());
                for (name, field) in fields {
                    path.push('/');
                    path.push_str(&name.replace('~', "~0").replace('/', "~1"));
                    // A null placeholder keeps the order of the fields.
                    let field = self.frame(field, path).unwrap_or_default();
                    frame.insert(name.clone(), field);
                    path.truncate(end);
                }
                Value::Object(frame)
            }
            Value::Array(items) => {
                let mut frame = Vec::with_capacity(items.len());
                for (index, item) in items.iter().enumerate() {
                    path.push_str(&format!("/{index}"));
                    frame.extend(self.frame(item, path));
                    path.truncate(end);
                }
                Value::Array(frame)
            }
            other => other.clone(),
        };
        Some(framed)
    }

    fn place_of(&self, value: &Value) -> Option<usize> {
        let is_long = match value {
            Value::String(text) => text.len() >= COPIED_BYTES_MIN,
            Value::Object(fields) => !fields.is_empty(),
            Value::Array(items) => !items.is_empty(),
            _ => false,
        };
        let place = || self.texts.iter().position(|text| text == value);
        let place = is_long.then(place).flatten()?;
        let saves = value.is_string() || value.to_string().len() >= COPIED_BYTES_MIN;
        saves.then_some(place)
    }
}

/// Restores the record of these events.
fn restore<'a>(
    bodies: impl IntoIterator<Item = &'a EventBody>,
    patch: &[u8],
) -> Result<Value, RawFault> {
    let mut value = json!({"said": recorded_texts(bodies)});
    let patch: json_patch::Patch = serde_json::from_slice(patch).map_err(|_| RawFault::NotJson)?;
    json_patch::patch_unsafe(&mut value, &patch).map_err(|_| RawFault::DoesNotApply)?;
    Ok(value)
}

/// Returns the records of an imported conversation in order, each equal as JSON to the original
/// (byte for byte if it is not JSON). `events` are all events of the conversation in revision
/// order, `origin` is the source of the import.
///
/// # Errors
/// [`ExportFault`] names the event whose record cannot be restored.
pub fn records(events: &[StoredEvent], origin: &str) -> Result<Vec<Vec<u8>>, ExportFault> {
    let mut decoded = Vec::with_capacity(events.len());
    for event in events {
        let revision = event.header.revision;
        let Some(kind) = event.header.kind() else {
            continue;
        };
        let body = body::decode(kind, &event.body);
        let body = body.map_err(|fault| ExportFault::Body { revision, fault })?;
        decoded.push((revision, body));
    }
    let mut records = Vec::new();
    for (at, (revision, body)) in decoded.iter().enumerate() {
        if let EventBody::Custom(custom) = body {
            if is_record(&custom.type_name, origin) {
                records.push(custom.data.to_vec());
            }
            continue;
        }
        let Some(raw) = raw_of(body).filter(|raw| raw.origin == origin) else {
            continue;
        };
        let rest = decoded[at + 1..].iter().map(|(_, body)| body);
        let rest = rest.take_while(|body| !starts_record(body));
        let record = match raw.encoding {
            RawEncoding::Whole | RawEncoding::Rest => raw::restore(|| Value::Null, Some(raw)),
            RawEncoding::JsonPatch => restore(std::iter::once(body).chain(rest), &raw.data)
                .map(|record| record.to_string()),
        };
        let record = record.map_err(|fault| ExportFault::Raw {
            revision: *revision,
            fault,
        })?;
        records.push(record.into_bytes());
    }
    Ok(records)
}

/// True for the type name of events that hold an unchanged record.
pub(super) fn is_record(type_name: &str, origin: &str) -> bool {
    let rest = type_name.strip_prefix(origin);
    rest.is_some_and(|rest| rest.starts_with('/'))
}

/// True for the first event of a record: it has the raw form, or is the record.
fn starts_record(body: &EventBody) -> bool {
    raw_of(body).is_some() || matches!(body, EventBody::Custom(_))
}

fn raw_of(body: &EventBody) -> Option<&RawMessage> {
    match body {
        EventBody::MessageAppended(message) => message.raw.as_ref(),
        EventBody::ToolResultRecorded(result) => result.raw.as_ref(),
        EventBody::Compacted(compacted) => compacted.raw.as_ref(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use treering_domain::{JsonText, MessageAppended, Role, ToolCallRequested};

    // Text must be stored once and all fields around it restored, including in lists, where
    // removing an element shifts those after it.
    #[test]
    fn record_is_restored_and_its_text_stored_once() {
        let long = |c: char| c.to_string().repeat(COPIED_BYTES_MIN);
        let arguments = json!({"path": long('p'), "n": 1});
        let parts = vec![
            ContentPart::Text(long('a')),
            ContentPart::Text("short".into()),
            ContentPart::Text(long('b')),
        ];
        let bodies = [
            EventBody::MessageAppended(MessageAppended::new(Role::Assistant, parts)),
            EventBody::ToolCallRequested(ToolCallRequested {
                call_id: "c".into(),
                tool: "read".into(),
                arguments: JsonText::from_checked(arguments.to_string().into()),
                arguments_hash: Default::default(),
                message_revision: None,
                needs_approval: false,
                ..ToolCallRequested::default()
            }),
        ];
        let record = Record::of(json!({
            "a/b~c": {"args": arguments, "odd": null},
            "list": [long('a'), {"text": "short"}, long('b'), [long('b')], long('a')],
        }));
        let raw = keep("x", "", &bodies, &record);
        assert_eq!(raw.encoding, RawEncoding::JsonPatch);
        assert_eq!(restore(&bodies, &raw.data), Ok(record.value.clone()));
        let kept = String::from_utf8_lossy(&raw.data);
        for text in ['a', 'b', 'p'] {
            assert!(!kept.contains(&long(text)), "{kept}");
        }
        // Records with nothing to copy, and those with numbers that a value cannot hold, are kept
        // byte for byte.
        let short = Record::of(json!({"text": "short"}));
        assert_eq!(keep("x", "", &bodies, &short).data, short.text);
        let text = format!(r#"{{"n":1.00000000000000000001,"t":"{}"}}"#, long('a'));
        let precise = Record::read(&text.clone().into()).remove(0);
        assert_eq!(keep("x", "", &bodies, &precise).data, text);
    }
}
