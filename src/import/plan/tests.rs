use super::*;
use crate::{
    openai_chat::import_line,
    stored::{erased, stored},
};

/// Returns a conversation of user messages, each with the index of its parent.
fn conversation(messages: &[(&str, Option<usize>)]) -> ImportedConversation {
    let messages: Vec<_> = messages
        .iter()
        .map(|(text, parent)| {
            serde_json::json!({"role": "user", "content": text, "x": {"parent": parent}})
        })
        .collect();
    let line = serde_json::json!({"id": "a", "source": "s", "messages": messages});
    import_line(line.to_string().as_bytes()).unwrap()
}

/// Returns the stored events after these imports, one after the other.
fn stored_after(imports: &[&ImportedConversation]) -> Vec<StoredEvent> {
    let mut all = imports[0].clone();
    let mut events = stored(&all);
    for import in &imports[1..] {
        all.events.extend(plan(&events, import).events);
        events = stored(&all);
    }
    events
}

fn texts(plan: &Plan) -> Vec<String> {
    let texts = plan.events.iter().map(|event| match &event.body {
        EventBody::MessageAppended(message) => message.parts[0].text().unwrap().to_owned(),
        EventBody::BranchForked(forked) => format!("fork at {}", forked.fork_revision),
        EventBody::BranchActivated => format!("activate {}", event.branch.as_ref().unwrap()),
        other => other.kind().as_str().to_owned(),
    });
    texts.collect()
}

const GROWN: [(&str, Option<usize>); 4] =
    [("1", None), ("2", Some(0)), ("3", Some(1)), ("4", Some(0))];

// Importing again must add new events and nothing else, whatever is stored already.
#[test]
fn repeated_import_appends_only_new_events() {
    let whole = conversation(&GROWN);
    for known in 1..=GROWN.len() {
        let part = conversation(&GROWN[..known]);
        let events = stored_after(&[&part]);
        let rest = plan(&events, &whole);
        assert_eq!(rest.parted, []);
        let mut all = part.clone();
        all.events.extend(rest.events);
        let events = stored(&all);
        assert_eq!(plan(&events, &whole).events, [], "{known} known");
        // An older copy must add nothing.
        assert_eq!(plan(&events, &part).events, [], "{known} known");
    }
}

// A conversation with a changed past must continue on a branch that forks where both differ.
// Importing it again must add nothing, and it must be able to grow.
#[test]
fn changed_history_goes_to_a_branch() {
    let first = conversation(&[("1", None), ("2", Some(0)), ("3", Some(1))]);
    let changed = [
        ("1", None),
        ("two", Some(0)),
        ("three", Some(1)),
        ("four", Some(2)),
    ];
    let short = conversation(&changed[..3]);
    let parted = plan(&stored(&first), &short);
    assert_eq!(
        texts(&parted),
        ["fork at 2", "two", "three", "activate changed-after-2"]
    );
    let after = Revision(2);
    let branch = BranchName::new("changed-after-2").unwrap();
    assert_eq!(parted.parted, [DivergedBranch { branch, after }]);
    let events = stored_after(&[&first, &short]);
    assert_eq!(plan(&events, &short).events, []);
    assert_eq!(plan(&events, &first).events, []);
    assert_eq!(texts(&plan(&events, &conversation(&changed))), ["four"]);
}

// The same text twice is two messages. On another branch, it has another history.
#[test]
fn equal_messages_are_matched_by_place() {
    let twice = conversation(&[("1", None), ("same", Some(0)), ("same", Some(0))]);
    let events = stored(&twice);
    assert_eq!(plan(&events, &twice).events, []);
    let thrice = [
        ("1", None),
        ("same", Some(0)),
        ("same", Some(0)),
        ("same", Some(0)),
    ];
    let rest = plan(&events, &conversation(&thrice));
    assert_eq!(texts(&rest), ["fork at 2", "same", "activate at-2-2"]);
}

// Additions of others to an imported conversation must stay: a note does not prevent matching, and
// an appended message keeps its place.
#[test]
fn events_added_by_others_are_kept() {
    let first = conversation(&[("1", None), ("2", Some(0))]);
    let grown = conversation(&[("1", None), ("2", Some(0)), ("3", Some(1))]);
    let with = |body: EventBody| {
        let mut all = first.clone();
        all.events.push(NewEvent::new(all.conversation, body));
        stored(&all)
    };
    let noted = with(EventBody::AnnotationAdded(Default::default()));
    let rest = plan(&noted, &grown);
    assert_eq!((texts(&rest), rest.parted), (vec!["3".to_owned()], vec![]));
    let mine = treering_domain::MessageAppended::text(treering_domain::Role::User, "mine");
    let rest = plan(&with(EventBody::MessageAppended(mine)), &grown);
    assert_eq!(texts(&rest), ["fork at 3", "3", "activate changed-after-3"]);
}

// Erased content must not come back with the next import. Its position must be recognized, new
// events must follow it, and other changes of the source must become a branch as before.
#[test]
fn erased_events_are_not_imported_again() {
    let first = conversation(&[("1", None), ("secret", Some(0)), ("3", Some(1))]);
    let grown = conversation(&[
        ("1", None),
        ("secret", Some(0)),
        ("3", Some(1)),
        ("4", Some(2)),
    ]);
    let all: fn(usize) -> bool = |_| true;
    for goes in [all, |index| index == 2, |index| index == 3] {
        let left = erased(&stored(&first), goes);
        assert_eq!(plan(&left, &first).events, []);
        let rest = plan(&left, &grown);
        assert_eq!((texts(&rest), rest.parted), (vec!["4".to_owned()], vec![]));
    }
    let left = erased(&stored(&first), |index| index == 2);
    let changed = conversation(&[("1", None), ("secret", Some(0)), ("three", Some(1))]);
    let parted = plan(&left, &changed);
    assert_eq!(
        texts(&parted),
        ["fork at 3", "three", "activate changed-after-3"]
    );
}

// The mark of an import and the custom events of others look alike once they are erased. Neither
// may separate the continuation of the source from its history.
#[test]
fn erased_marks_and_custom_events_do_not_split_the_history() {
    let first = conversation(&[("1", None), ("2", Some(0))]);
    let grown = conversation(&[("1", None), ("2", Some(0)), ("3", Some(1))]);
    let mut marked = first.clone();
    let custom = treering_domain::Custom {
        type_name: "treering/imported".into(),
        content_type: "application/json".into(),
        data: "{}".into(),
        text: String::new(),
        delta_of: String::new(),
    };
    let mark = NewEvent::new(first.conversation, EventBody::Custom(custom));
    marked.events.push(mark.clone());
    let left = erased(&stored(&marked), |_| true);
    assert_eq!(plan(&left, &first).events, []);
    let rest = plan(&left, &grown);
    assert_eq!(
        (texts(&rest), &rest.parted),
        (vec!["3".to_owned()], &vec![])
    );
    marked.events.extend(rest.events);
    marked.events.push(mark);
    let left = erased(&stored(&marked), |_| true);
    let longer = [("1", None), ("2", Some(0)), ("3", Some(1)), ("4", Some(2))];
    let rest = plan(&left, &conversation(&longer));
    assert_eq!((texts(&rest), rest.parted), (vec!["4".to_owned()], vec![]));
}

// Earlier versions imported arguments that are not JSON as a JSON string; now they are kept
// unchanged. A session imported earlier must still match, or its end is appended again on a branch.
#[test]
fn arguments_of_earlier_imports_are_recognised() {
    let call = |id: &str, arguments: &str| {
        serde_json::json!({"id": id, "type": "function",
            "function": {"name": "f", "arguments": arguments}})
    };
    let calls = [call("a", "{\"a\": 1"), call("b", ""), call("c", "{}")];
    let messages = serde_json::json!([
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": null, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "name": "f", "content": "no"},
        {"role": "assistant", "content": "done"},
    ]);
    let line = serde_json::json!({"id": "a", "source": "s", "messages": messages});
    let now = import_line(line.to_string().as_bytes()).unwrap();
    let mut earlier = now.clone();
    let mut stood = Vec::new();
    for event in &mut earlier.events {
        match &mut event.body {
            EventBody::ToolCallRequested(call) if call.arguments_not_json => {
                let text = match call.arguments.as_str() {
                    "" => "{}".to_owned(),
                    text => serde_json::Value::from(text).to_string(),
                };
                stood.push(text.clone());
                let message = call.message_revision;
                *call = body::tool_call(call.call_id.clone(), "f", &text).unwrap();
                call.message_revision = message;
            }
            EventBody::MessageAppended(said) if said.role == treering_domain::Role::Assistant => {
                said.raw = Some(treering_domain::RawMessage {
                    origin: "openai-chat".to_owned(),
                    provider: String::new(),
                    model: String::new(),
                    encoding: treering_domain::RawEncoding::JsonPatch,
                    data: bytes::Bytes::from_static(b"[]"),
                });
            }
            _ => {}
        }
    }
    assert_eq!(stood, ["\"{\\\"a\\\": 1\"", "{}"]);
    assert_ne!(earlier.events, now.events);
    let rest = plan(&stored(&earlier), &now);
    assert_eq!((rest.events, rest.parted), (vec![], vec![]));
    assert_eq!(plan(&stored(&now), &now).events, []);
}
