//! Test support: properties that hold for all importers of sessions.

use proptest::test_runner::{Config, TestRunner};
use serde_json::Value;

use super::{
    ImportedConversation, Oddity, plan,
    session::ToolSession,
    stored::{assert_legal, erased, stored},
};
use treering_domain::{EventBody, StoredEvent};

/// Makes a session of these lines.
pub(super) fn session(format: super::format::Format, lines: &[Value]) -> ToolSession {
    ToolSession {
        format,
        name: "name".to_owned(),
        lines: lines.iter().map(|line| line.to_string().into()).collect(),
        unfinished: Vec::new(),
    }
}

/// Imports, and checks the rules of appends and that a repeated import adds nothing.
pub(super) fn imported(session: &ToolSession) -> (ImportedConversation, Vec<StoredEvent>) {
    let imported = session.import().unwrap();
    let events = stored(&imported);
    assert_legal(&events);
    assert_eq!(plan(&events, &imported).events, []);
    (imported, events)
}

/// Like [`imported`], and checks that every line can be restored.
pub(super) fn there_and_back(session: &ToolSession) -> (ImportedConversation, Vec<StoredEvent>) {
    let (imported, events) = imported(session);
    let back = super::records(&events, &imported.source).unwrap();
    let value = |line: &[u8]| -> Value {
        serde_json::from_slice(line).unwrap_or_else(|_| String::from_utf8_lossy(line).into())
    };
    let back: Vec<Value> = back.iter().map(|line| value(line)).collect();
    let lines: Vec<Value> = session.lines.iter().map(|line| value(line)).collect();
    assert_eq!(back, lines);
    (imported, events)
}

/// Checks that importing a session after each of its lines gives the same result as importing it
/// once.
pub(super) fn grows(session: &ToolSession) {
    let (whole, events) = imported(session);
    let expected = said(
        &whole
            .events
            .iter()
            .map(|event| &event.body)
            .collect::<Vec<_>>(),
    );
    for cut in 1..session.lines.len() {
        let part = ToolSession {
            lines: session.lines[..cut].to_vec(),
            ..session.clone()
        };
        let (early, known) = imported(&part);
        let mut part = early.clone();
        let rest = plan(&known, &whole);
        assert_eq!(rest.parted, [], "cut after {cut} lines");
        nothing_erased_returns(&known, &whole, &rest);
        part.events.extend(rest.events);
        let grown = stored(&part);
        assert_legal(&grown);
        assert_eq!(plan(&grown, &whole).events, [], "cut after {cut} lines");
        let bodies: Vec<_> = part.events.iter().map(|event| &event.body).collect();
        assert_eq!(said(&bodies), expected, "cut after {cut} lines");
        // An older copy must add nothing.
        assert_eq!(plan(&events, &early).events, [], "cut after {cut} lines");
    }
}

/// Checks that erased events are not appended again, and that new events are appended in the right
/// place.
fn nothing_erased_returns(known: &[StoredEvent], whole: &ImportedConversation, rest: &plan::Plan) {
    // Erased settings are not appended again, so revisions differ and only contents are compared.
    let new = |plan: &plan::Plan| {
        let bodies = plan.events.iter().map(|event| &event.body);
        said(&bodies.collect::<Vec<_>>())
    };
    let some: [fn(usize) -> bool; 4] = [
        |_| true,
        |index| index % 2 == 1,
        |index| index % 2 == 0,
        |index| index % 3 == 1,
    ];
    for goes in some {
        let left = plan(&erased(known, goes), whole);
        assert_eq!(left.parted, []);
        assert_eq!(new(&left), new(rest));
    }
}

/// Checks [`grows`] for random sessions: any of these lines, in any order, also repeated.
pub(super) fn any_grows(format: super::format::Format, pool: &[Value]) {
    /// Each case imports its session once per line.
    const CASES: u32 = 48;
    let mut runner = TestRunner::new(Config::with_cases(CASES));
    let picks = proptest::collection::vec(0..pool.len(), 1..20);
    let done = runner.run(&picks, |picks| {
        let lines: Vec<Value> = picks.iter().map(|pick| pool[*pick].clone()).collect();
        grows(&session(format, &lines));
        Ok(())
    });
    done.unwrap();
}

/// Returns the contents, sorted: positions depend on the events that each import found.
fn said(bodies: &[&EventBody]) -> Vec<String> {
    let bodies = bodies.iter().filter_map(|body| match body {
        EventBody::MessageAppended(_)
        | EventBody::ToolResultRecorded(_)
        | EventBody::ToolCallCancelled(_)
        | EventBody::Custom(_) => Some(format!("{body:?}")),
        EventBody::ToolCallRequested(call) => {
            Some(format!("{} {:?}", call.call_id, call.arguments))
        }
        EventBody::Compacted(compacted) => Some(compacted.summary.clone()),
        EventBody::BranchForked(_) => Some("fork".to_owned()),
        _ => None,
    });
    let mut said: Vec<String> = bodies.collect();
    said.sort();
    said
}

/// Returns the bodies of a conversation, except the first event's.
pub(super) fn bodies(imported: &ImportedConversation) -> Vec<&EventBody> {
    imported.events[1..]
        .iter()
        .map(|event| &event.body)
        .collect()
}

/// Returns the names of the oddities.
pub(super) fn oddities(imported: &ImportedConversation) -> Vec<&'static str> {
    let odd = |note: &super::ImportNote| -> &'static str { Oddity::name(&note.what) };
    imported.notes.iter().map(odd).collect()
}

/// Returns a line for each event: its kind and content.
pub(super) fn told(imported: &ImportedConversation) -> Vec<String> {
    let text = |parts: &[treering_domain::ContentPart]| {
        let texts = parts.iter().map(|part| match part {
            treering_domain::ContentPart::Reasoning(thought) => format!("({})", thought.text),
            part => part.text().unwrap_or("[medium]").to_owned(),
        });
        texts.collect::<Vec<_>>().join("|")
    };
    let line = |event: &treering_domain::NewEvent| {
        let branch = event.branch.clone().unwrap_or_default();
        let said = match &event.body {
            EventBody::MessageAppended(said) => {
                format!("{} {}", said.role.as_str(), text(&said.parts))
            }
            EventBody::ToolCallRequested(call) => {
                format!(
                    "call {} {} {}",
                    call.call_id,
                    call.tool,
                    call.arguments.as_str()
                )
            }
            EventBody::ToolResultRecorded(result) => {
                let how = if result.success { "ok" } else { "failed" };
                format!("result {} {how} {}", result.call_id, text(&result.parts))
            }
            EventBody::Compacted(compacted) => format!("compacted {}", compacted.summary),
            EventBody::Custom(custom) => custom.type_name.clone(),
            EventBody::ConfigChanged(config) => format!("model {}", config.model_id),
            EventBody::BranchForked(forked) => format!("fork at {}", forked.fork_revision),
            other => other.kind().as_str().to_owned(),
        };
        format!("{branch}: {}", said.trim_end())
    };
    imported.events[1..].iter().map(line).collect()
}
