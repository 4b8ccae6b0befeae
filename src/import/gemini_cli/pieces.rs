//! Splits messages into pieces and assigns each piece to a branch.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{
    super::{
        origin::Place,
        record::Record,
        tree::{Parent, Tree},
    },
    parts::first_text,
};

/// The kind of a piece.
pub(super) enum Kind {
    /// The text of a message, by anybody.
    Message,
    /// Calls that were added to a message.
    Calls,
    /// The result of one call.
    Result,
    /// The tokens of a message, if they came later than the message.
    Tokens,
    /// A summary that replaces everything before the kept messages.
    Compaction {
        summary: String,
        kept_from: Option<usize>,
    },
    /// Anything else, by its name.
    Other(String),
}

pub(super) struct Piece {
    kind: Kind,
    timestamp: Value,
    record: Record,
}

/// A piece without its record.
pub(super) struct About {
    pub(super) kind: Kind,
    pub(super) timestamp: Value,
}

impl Piece {
    pub(super) fn split(self) -> (About, Record) {
        let about = About {
            kind: self.kind,
            timestamp: self.timestamp,
        };
        (about, self.record)
    }
}

/// Returns the messages of a record: the record itself, or the messages in its list.
pub(super) fn messages(record: &Record) -> Vec<&Value> {
    let listed = [&record.value["messages"], &record.value["$set"]["messages"]];
    match listed.iter().find_map(|list| list.as_array()) {
        Some(messages) => messages.iter().collect(),
        None => is_message(&record.value)
            .then_some(&record.value)
            .into_iter()
            .collect(),
    }
}

fn is_message(value: &Value) -> bool {
    value["id"].is_string() && value["type"].is_string()
}

/// Returns the pieces of all records, and their tree.
pub(super) fn take_apart(records: &[Record]) -> (Vec<Piece>, Tree) {
    let mut apart = SessionReader::default();
    for record in records {
        apart.record(record);
    }
    (apart.pieces, apart.tree)
}

/// State of a message.
struct MessageState {
    /// Its latest version.
    value: Value,
    /// Its first piece.
    at: usize,
    /// The predecessor of that piece.
    after: Option<usize>,
    has_tokens: bool,
    /// By call id: true when the result is known.
    calls: HashMap<String, bool>,
}

#[derive(Default)]
struct SessionReader {
    pieces: Vec<Piece>,
    tree: Tree,
    /// By id; without messages that were taken back.
    known: HashMap<String, MessageState>,
    /// The ids in order.
    order: Vec<String>,
    /// The last piece of the current branch.
    last: Option<usize>,
    /// Set when the next piece begins a new branch: the piece that it forks after, or `None` for
    /// the root.
    back_to: Option<Option<usize>>,
}

impl SessionReader {
    fn record(&mut self, record: &Record) {
        let value = &record.value;
        if let Some(id) = value["$rewindTo"].as_str() {
            self.other(record, "rewind");
            self.rewind(id);
        } else if let Some(set) = value.get("$set") {
            match set["messages"].as_array() {
                Some(messages) => self.checkpoint(value, messages),
                None => self.other(record, "set"),
            }
        } else if let Some(messages) = value["messages"].as_array() {
            for message in messages {
                self.message(message);
            }
        } else if is_message(value) {
            self.message(value);
        } else if value.get("sessionId").is_none() {
            self.other(record, "line");
        }
    }

    fn push(&mut self, kind: Kind, timestamp: &Value, record: Record) -> usize {
        let index = self.tree.next_index();
        match self.back_to.take() {
            Some(after) => self.tree.forks(after),
            None => self.tree.continues(self.tree.current(), Parent::Fits),
        }
        self.last = Some(index);
        self.pieces.push(Piece {
            kind,
            timestamp: timestamp.clone(),
            record,
        });
        index
    }

    fn other(&mut self, record: &Record, name: &str) {
        let kind = Kind::Other(name.to_owned());
        self.push(kind, &record.value["timestamp"], record.clone());
    }

    /// Takes back a message and everything after it; an unknown id takes back everything.
    fn rewind(&mut self, id: &str) {
        let first = self.order.iter().position(|known| known == id);
        let gone = self.order.split_off(first.unwrap_or_default());
        let Some(first) = gone.first().and_then(|id| self.known.get(id)) else {
            return;
        };
        self.last = first.after;
        self.back_to = Some(first.after);
        for id in gone {
            self.known.remove(&id);
        }
    }

    fn message(&mut self, message: &Value) {
        let first = self.pieces.len();
        self.pieces_of(message);
        let exported = Place::of(message);
        for piece in &mut self.pieces[first..] {
            piece.record.exported = exported;
        }
    }

    fn pieces_of(&mut self, message: &Value) {
        let Some(id) = message["id"].as_str() else {
            let kind = Kind::Other("message".to_owned());
            self.push(kind, &message["timestamp"], Record::of(message.clone()));
            return;
        };
        if !self.known.contains_key(id) {
            self.first(id, message);
        } else if !self.is_as_known(id, message) {
            let kind = Kind::Other("changed".to_owned());
            self.push(kind, &message["timestamp"], Record::of(message.clone()));
        }
        self.tokens(id, message);
        self.calls(id, message);
        if let Some(known) = self.known.get_mut(id) {
            known.value = message.clone();
        }
    }

    /// Adds a new message: its text, without its calls.
    fn first(&mut self, id: &str, message: &Value) {
        let mut said = message.clone();
        if let Some(fields) = said.as_object_mut() {
            fields.shift_remove("toolCalls");
        }
        let after = self.back_to.unwrap_or(self.last);
        let at = self.push(Kind::Message, &message["timestamp"], Record::of(said));
        let known = MessageState {
            value: message.clone(),
            at,
            after,
            has_tokens: message["tokens"].is_object(),
            calls: HashMap::new(),
        };
        self.known.insert(id.to_owned(), known);
        self.order.push(id.to_owned());
    }

    /// Returns true when nothing has changed except calls and tokens.
    fn is_as_known(&self, id: &str, message: &Value) -> bool {
        let grown = ["toolCalls", "tokens"];
        let fixed = |value: &Value| -> Option<Map<String, Value>> {
            let fields = value.as_object()?.iter();
            let fields = fields.filter(|(name, _)| !grown.contains(&name.as_str()));
            Some(
                fields
                    .map(|(name, value)| (name.clone(), value.clone()))
                    .collect(),
            )
        };
        let known = &self.known[id].value;
        fixed(known) == fixed(message) && !self.has_other_results(known, message)
    }

    /// Returns true when a known result has changed.
    fn has_other_results(&self, known: &Value, message: &Value) -> bool {
        let results = |value: &Value| -> HashMap<String, Value> {
            let calls = value["toolCalls"].as_array().into_iter().flatten();
            let ended = calls.filter(|call| has_ended(call));
            ended
                .filter_map(|call| Some((call["id"].as_str()?.to_owned(), call["result"].clone())))
                .collect()
        };
        let now = results(message);
        let mut known = results(known).into_iter();
        known.any(|(id, result)| now.get(&id).is_some_and(|now| *now != result))
    }

    fn tokens(&mut self, id: &str, message: &Value) {
        let tokens = &message["tokens"];
        let known = self.known.get_mut(id);
        let Some(known) = known.filter(|known| !known.has_tokens && tokens.is_object()) else {
            return;
        };
        known.has_tokens = true;
        let record = Record::of(json!({"message": id, "tokens": tokens}));
        self.push(Kind::Tokens, &message["timestamp"], record);
    }

    fn calls(&mut self, id: &str, message: &Value) {
        let listed = message["toolCalls"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let Some(known) = self.known.get_mut(id) else {
            return;
        };
        let mut new = Vec::new();
        let mut ended = Vec::new();
        for call in listed {
            let call_id = call["id"].as_str().unwrap_or_default();
            let is_new = !known.calls.contains_key(call_id);
            if is_new {
                new.push(fields(call, |name| ["id", "name", "args"].contains(&name)));
            }
            let is_ended = known.calls.entry(call_id.to_owned()).or_default();
            if has_ended(call) && !*is_ended {
                *is_ended = true;
                ended.push(call);
            }
        }
        let first = listed.iter().find(|call| !call["timestamp"].is_null());
        if !new.is_empty() {
            let at = first.map_or(&message["timestamp"], |call| &call["timestamp"]);
            let record = Record::of(json!({"message": id, "calls": new}));
            self.push(Kind::Calls, at, record);
        }
        for call in ended {
            let result = fields(call, |name| name != "args");
            let record = Record::of(json!({"message": id, "result": result}));
            self.push(Kind::Result, &call["timestamp"], record);
        }
    }

    /// Handles a list of all messages as the tool now has them. Unchanged messages are replaced by
    /// their ids. If the list omits earlier messages and begins with a new one, that new message is
    /// their summary.
    fn checkpoint(&mut self, record: &Value, messages: &[Value]) {
        let id_of = |message: &Value| message["id"].as_str().unwrap_or_default().to_owned();
        let is_known = |message: &&Value| self.known.contains_key(&id_of(message));
        let is_same = |message: &Value| {
            let known = self.known.get(&id_of(message));
            known.is_some_and(|known| known.value == *message)
        };
        let shorter = |message: &Value| match is_same(message) {
            true => json!({"id": message["id"]}),
            false => message.clone(),
        };
        let mut kept = record.clone();
        kept["$set"]["messages"] = messages.iter().map(shorter).collect();
        let first = messages.first().filter(|first| !is_known(first));
        let summary = first.and_then(|first| first_text(&first["content"]));
        // The list never contains the tool's notices, so their absence does not count.
        let is_said = |id: &&String| {
            matches!(
                self.known[*id].value["type"].as_str(),
                Some("user" | "gemini")
            )
        };
        let mut said = self.order.iter().filter(is_said);
        let drops = said.any(|id| !messages.iter().any(|one| id_of(one) == *id));
        let kind = match summary.filter(|_| drops) {
            Some(summary) => Kind::Compaction {
                summary: summary.to_owned(),
                kept_from: messages
                    .iter()
                    .find(is_known)
                    .map(|message| self.known[&id_of(message)].at),
            },
            None => Kind::Other("checkpoint".to_owned()),
        };
        let timestamp = kept["$set"]["lastUpdated"].clone();
        let is_compaction = matches!(kind, Kind::Compaction { .. });
        let at = self.push(kind, &timestamp, Record::of(kept));
        self.know_only(messages, at, is_compaction);
    }

    /// Keeps only the messages that a checkpoint lists.
    fn know_only(&mut self, messages: &[Value], at: usize, is_compaction: bool) {
        let mut before = std::mem::take(&mut self.known);
        self.order.clear();
        for message in messages {
            let Some(id) = message["id"].as_str() else {
                continue;
            };
            let known = before.remove(id).map(|known| MessageState {
                value: message.clone(),
                ..known
            });
            let known = match known {
                Some(known) => known,
                // The checkpoint's record already contains the new messages.
                None if is_compaction => MessageState {
                    value: message.clone(),
                    at,
                    after: Some(at),
                    has_tokens: true,
                    calls: calls_of(message),
                },
                None => {
                    self.message(message);
                    continue;
                }
            };
            self.known.insert(id.to_owned(), known);
            self.order.push(id.to_owned());
        }
    }
}

fn calls_of(message: &Value) -> HashMap<String, bool> {
    let calls = message["toolCalls"].as_array().into_iter().flatten();
    calls
        .filter_map(|call| Some((call["id"].as_str()?.to_owned(), has_ended(call))))
        .collect()
}

fn has_ended(call: &Value) -> bool {
    matches!(
        call["status"].as_str(),
        Some("success" | "error" | "cancelled")
    )
}

fn fields(value: &Value, is_wanted: impl Fn(&str) -> bool) -> Value {
    let fields = value.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, _)| is_wanted(name));
    Value::Object(
        fields
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    )
}
