//! Tests of the fold: its inputs and its limits.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::Value;

use super::{Knowledge, KnowledgePolicy, UNKNOWN_FILE, read::PATH_BYTES_MAX};
use treering_domain::{
    CancelReason, ContentHash, ConversationCreated, ConversationId, EventBody, EventRef, JsonText,
    Revision, ToolCallCancelled, ToolCallRequested, ToolResultRecorded,
};

/// Tool, arguments and result text. A call fails if its arguments have a member `fail`.
pub type Call<'a> = (&'a str, &'a str, &'a str);

fn at(revision: u64) -> EventRef {
    EventRef {
        conversation: ConversationId::default(),
        revision: Revision(revision),
    }
}

pub fn request(call_id: &str, tool: &str, arguments: &str) -> EventBody {
    EventBody::ToolCallRequested(ToolCallRequested {
        call_id: call_id.to_owned(),
        tool: tool.to_owned(),
        arguments: JsonText::from_checked(bytes::Bytes::copy_from_slice(arguments.as_bytes())),
        arguments_hash: ContentHash([0; 32]),
        message_revision: None,
        needs_approval: false,
        ..ToolCallRequested::default()
    })
}

fn answer(call_id: &str, arguments: &str, text: &str) -> EventBody {
    let mut result = ToolResultRecorded::text(call_id, text);
    result.success = !arguments.contains("\"fail\"");
    EventBody::ToolResultRecorded(result)
}

fn events(calls: &[Call<'_>]) -> Vec<(EventRef, EventBody)> {
    let mut events = Vec::new();
    for (place, (tool, arguments, text)) in calls.iter().enumerate() {
        let revision = place as u64 * 2 + 1;
        events.push((at(revision), request("c", tool, arguments)));
        events.push((at(revision + 1), answer("c", arguments, text)));
    }
    events
}

fn fold(mut knowledge: Knowledge, events: &[(EventRef, EventBody)]) -> Knowledge {
    for (at, body) in events {
        knowledge.apply(*at, body);
    }
    knowledge
}

pub fn with_policy(policy: &str, calls: &[Call<'_>]) -> Knowledge {
    let policy = Arc::new(KnowledgePolicy::merged(policy).unwrap());
    fold(Knowledge::new(policy, 10_000), &events(calls))
}

pub fn told(calls: &[Call<'_>]) -> Knowledge {
    with_policy("", calls)
}

fn paths(knowledge: &Knowledge) -> Vec<&str> {
    knowledge.files().iter().map(|file| &*file.path).collect()
}

// Failed calls, cancelled calls and calls without a rule give no knowledge. Each file has the first
// event that named it.
#[test]
fn only_successful_results_give_knowledge() {
    let knowledge = told(&[
        (
            "list_files",
            r#"{"fail": 1, "cwd": "/no"}"#,
            r#"["no.txt"]"#,
        ),
        ("read_file", "{}", r#"["no.txt"]"#),
        ("list_files", r#"{"cwd": "/yes"}"#, r#"["b.txt", "a.txt"]"#),
        ("find_files", "not json", r#"["a.txt", "c.txt"]"#),
        ("cd", r#"{"path": "sub/../data"}"#, ""),
    ]);
    assert_eq!(paths(&knowledge), ["b.txt", "a.txt", "c.txt"]);
    assert_eq!(knowledge.file("a.txt").unwrap().event, at(6));
    assert_eq!(&*knowledge.file("c.txt").unwrap().tool, "find_files");
    assert_eq!(knowledge.working_directory().unwrap().path, "/yes/data");
    let outcomes = knowledge.outcomes()["list_files"];
    assert_eq!((outcomes.succeeded, outcomes.failed), (1, 1));
    assert_eq!(outcomes.last, at(6));

    let cancelled = EventBody::ToolCallCancelled(ToolCallCancelled {
        call_id: "c".into(),
        reason: CancelReason::Interrupted,
        detail: String::new(),
    });
    let mut knowledge = told(&[]);
    knowledge.apply(at(1), &request("c", "list_files", "{}"));
    knowledge.apply(at(2), &cancelled);
    knowledge.apply(at(3), &answer("c", "{}", r#"["late.txt"]"#));
    assert!(knowledge.files().is_empty() && knowledge.outcomes().is_empty());
}

// An agent names a file by its absolute path and by paths relative to its working directory. These
// must be one file under its absolute name, even if the working directory is only known from such a
// pair. Files with the same name in two directories stay two files.
#[test]
fn file_has_one_name() {
    let listed = |cwd: &str, names: &str| {
        let listing = format!(r#"["{}"]"#, names.replace(' ', r#"", ""#));
        (format!(r#"{{"cwd": "{cwd}"}}"#), listing)
    };
    let (arguments, listing) = listed("/repo", "src/a.rs b.md");
    let in_repo = ("list_files", arguments.as_str(), listing.as_str());
    let read_a = ("Read", r#"{"file_path": "/repo/src/a.rs"}"#, "fn main() {}");
    let read_b = ("Read", r#"{"file_path": "/repo/b.md"}"#, "# Title");
    assert_eq!(
        paths(&told(&[in_repo, read_a, read_b])),
        ["/repo/src/a.rs", "/repo/b.md"]
    );
    assert_eq!(paths(&told(&[read_a, in_repo])), ["/repo/src/a.rs", "b.md"]);

    // Only the two names of `a.rs` show where relative paths start.
    let somewhere = ("list_files", "{}", listing.as_str());
    let known = told(&[somewhere, read_a]);
    assert_eq!(paths(&known), ["/repo/src/a.rs", "b.md"]);
    assert_eq!(known.files()[1].absolute.as_deref(), Some("/repo/b.md"));
    assert_eq!(
        paths(&told(&[somewhere, read_a, read_b])),
        ["/repo/src/a.rs", "/repo/b.md"]
    );

    let (arguments, listing) = listed("/other", "src/a.rs");
    let in_other = ("list_files", arguments.as_str(), listing.as_str());
    assert_eq!(paths(&told(&[in_repo, in_other])).len(), 3);

    // The source's own field gives the session's directory.
    let created = ConversationCreated {
        source_meta: JsonText::from_checked(br#"{"cwd": "/repo"}"#.as_slice().into()),
        ..ConversationCreated::default()
    };
    let mut known = told(&[]);
    known.apply(at(1), &EventBody::ConversationCreated(created));
    let known = fold(known, &events(&[somewhere, read_b]));
    assert_eq!(paths(&known), ["src/a.rs", "/repo/b.md"]);
}

// Variables belong to the file that the call or its result names. The newest detail of each
// variable is used; other variables stay.
#[test]
fn variables_are_grouped_by_file() {
    let knowledge = told(&[
        (
            "inspect_file",
            r#"{"filename": "a"}"#,
            r#"{"t": 1, "u": 2}"#,
        ),
        ("analyze_file", r#"{"path": "a"}"#, r#"{"u": 3, "v": 4}"#),
        ("inspect_it", "{}", r#"{"file": "b", "w": 5}"#),
        ("inspect_it", "{}", r#"{"x": 6}"#),
    ]);
    let a: Vec<_> = knowledge
        .variables_of("a")
        .unwrap()
        .variables
        .iter()
        .map(|v| format!("{}={}", v.name, v.detail))
        .collect();
    assert_eq!(a, ["t=1", "u=3", "v=4"]);
    assert_eq!(&*knowledge.variables_of("a").unwrap().tool, "analyze_file");
    assert_eq!(knowledge.variables_of("b").unwrap().variables[0].name, "w");
    assert_eq!(
        knowledge.variables_of(UNKNOWN_FILE).unwrap().variables[0].name,
        "x"
    );
}

// Tools of coding agents follow no naming rule. A policy must be able to read arguments, grep
// output, and `cd` in a shell command.
#[test]
fn policy_rules_apply_to_other_tools() {
    let policy = r#"{"rules": {
        "glob": {"tools": {"names": ["Glob"]}},
        "grep": {"tools": {"names": ["Grep"]}, "text": "before_colon"},
        "edited": {"tools": {"names": ["Read"]}, "from": "arguments", "arguments": ["file_path"]},
        "shell": {"tools": {"suffixes": ["ash"]}, "gives": "working_directory", "from": "arguments",
                  "arguments": ["command"], "text": "shell_cd", "relative": true},
        "nested": {"tools": {"names": ["api"]}, "pointers": ["/data/found"], "name_keys": ["id"]}}}"#;
    let knowledge = with_policy(
        policy,
        &[
            ("Glob", "{}", "/r/a.go\n/r/b.go"),
            ("Grep", "{}", "c.go:12:x: y\nc.go:13:z"),
            ("Read", r#"{"file_path": "d.go"}"#, "package d"),
            ("Bash", r#"{"command": "cd /r && ls"}"#, ""),
            ("Bash", r#"{"command": "cd sub"}"#, ""),
            (
                "api",
                "{}",
                r#"{"data": {"found": [{"id": "e.go"}], "other": [{"id": "f.go"}]}}"#,
            ),
        ],
    );
    assert_eq!(
        paths(&knowledge),
        ["/r/a.go", "/r/b.go", "c.go", "d.go", "e.go"]
    );
    assert_eq!(knowledge.working_directory().unwrap().path, "/r/sub");
}

// A tool that lists endlessly must not fill the memory. The first items are kept; the others are
// counted.
#[test]
fn items_over_the_limit_are_counted() {
    let policy = Arc::new(KnowledgePolicy::default());
    let list: Vec<String> = (0..50).map(|n| format!("{n}.txt")).collect();
    let list = serde_json::to_string(&list).unwrap();
    let variables = r#"{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1}"#;
    let calls: Vec<Call<'_>> = vec![
        ("list_files", "{}", &list),
        ("inspect_a", r#"{"file": "x"}"#, variables),
        ("inspect_a", r#"{"file": "y"}"#, variables),
        ("list_more", "{}", "[]"),
        ("list_b", "{}", "[]"),
        ("list_c", "{}", "[]"),
        ("list_d", "{}", "[]"),
    ];
    let knowledge = fold(Knowledge::new(policy, 5), &events(&calls));
    assert_eq!(
        paths(&knowledge),
        ["0.txt", "1.txt", "2.txt", "3.txt", "4.txt"]
    );
    assert_eq!(knowledge.variables().len(), 1);
    assert_eq!(knowledge.variables()[0].variables.len(), 5);
    assert_eq!(knowledge.outcomes().len(), 5);
    assert_eq!(knowledge.left_out(), 45 + 2 + 7 + 1);
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(r#"["a.txt", "b/a.txt"]"#.to_owned()),
        Just(r#"{"files": [{"path": "c.txt"}], "variables": {"t": 1}}"#.to_owned()),
        Just("d.txt\ne.txt".to_owned()),
        proptest::collection::vec("[a-d]{1,2}\\.txt", 0..6)
            .prop_map(|names| serde_json::to_string(&names).unwrap_or_default()),
        "\\PC{0,40}",
        proptest::collection::vec(any::<char>(), 0..40).prop_map(|c| c.into_iter().collect()),
    ]
}

fn any_call() -> impl Strategy<Value = (String, String, String)> {
    let tool = prop_oneof![
        Just("list_files"),
        Just("inspect_file"),
        Just("read_file"),
        Just("cd"),
        Just("pwd"),
    ];
    let arguments = prop_oneof![
        Just(r#"{"path": "a.txt"}"#),
        Just(r#"{"filename": "c.txt", "cwd": "/w"}"#),
        Just(r#"{"fail": 1}"#),
        Just("{}"),
        Just(r#"{"path": "../x"}"#),
        Just("[]"),
    ];
    (tool, arguments, any_text())
        .prop_map(|(tool, arguments, text)| (tool.into(), arguments.into(), text))
}

fn borrowed(calls: &[(String, String, String)]) -> Vec<Call<'_>> {
    calls
        .iter()
        .map(|(t, a, r)| (t.as_str(), a.as_str(), r.as_str()))
        .collect()
}

proptest! {
    // The engine extends its knowledge, but a restart folds from the start. Both must give equal
    // results, wherever the fold was interrupted, even between a call and its result.
    #[test]
    fn extended_knowledge_equals_a_full_fold(
        calls in proptest::collection::vec(any_call(), 0..12), cut in 0_usize..25,
    ) {
        let events = events(&borrowed(&calls));
        let cut = cut.min(events.len());
        let empty = told(&[]);
        let first = fold(empty.clone(), &events[..cut]);
        let extended = fold(first.clone(), &events[cut..]);
        let whole = fold(empty, &events);
        prop_assert_eq!(&extended, &whole);
        prop_assert_eq!(extended.summary_text(), whole.summary_text());
    }

    // Calls of one batch return in any order. The knowledge and the success counts must not depend
    // on it, unless a call changes the directory of relative paths.
    #[test]
    fn knowledge_does_not_depend_on_result_order(
        mut calls in proptest::collection::vec(any_call(), 0..8).prop_shuffle(), seed in any::<u64>(),
    ) {
        calls.retain(|(tool, arguments, _)| {
            !matches!(tool.as_str(), "cd" | "pwd") && !arguments.contains("cwd")
        });
        let known = |calls: &[(String, String, String)]| {
            let knowledge = told(&borrowed(calls));
            let mut files: Vec<String> = knowledge.files().iter().map(|f| f.path.to_string()).collect();
            files.sort();
            let mut variables: Vec<String> = knowledge.variables().iter()
                .flat_map(|f| f.variables.iter().map(|v| format!("{}/{}", f.file, v.name)))
                .collect();
            variables.sort();
            let outcomes: Vec<_> = knowledge.outcomes().iter()
                .map(|(tool, o)| (tool.clone(), o.succeeded, o.failed)).collect();
            (files, variables, outcomes, knowledge.left_out())
        };
        let mut other = calls.clone();
        if !other.is_empty() {
            let by = usize::try_from(seed % other.len() as u64).unwrap_or_default();
            other.rotate_left(by);
            other.reverse();
        }
        prop_assert_eq!(known(&calls), known(&other));
    }

    // For any results, nothing exceeds its limit, no text breaks a line of a prompt, and all texts
    // are bounded.
    #[test]
    fn knowledge_of_any_calls_is_bounded(
        calls in proptest::collection::vec(any_call(), 0..20), items_max in 0_usize..6,
    ) {
        let policy = Arc::new(KnowledgePolicy::default());
        let knowledge = fold(Knowledge::new(policy, items_max), &events(&borrowed(&calls)));
        prop_assert!(knowledge.files().len() <= items_max);
        let variables: usize = knowledge.variables().iter().map(|f| f.variables.len()).sum();
        prop_assert!(variables <= items_max);
        let names = knowledge.files().iter().map(|f| f.path.to_string())
            .chain(knowledge.variables().iter().map(|f| f.file.to_string()))
            .chain(knowledge.working_directory().map(|d| d.path.clone()));
        for name in names {
            prop_assert!(!name.is_empty() && name.len() <= PATH_BYTES_MAX);
            prop_assert!(!name.chars().any(char::is_control));
        }
        let summary = knowledge.summary_text();
        prop_assert!(summary.chars().count() <= 2_000);
        prop_assert!(summary.lines().count() <= 9);
        prop_assert!(knowledge.guidance(&[]).chars().count() <= 2_000);
        let suggested = knowledge.suggest_arguments("t", r#"{"path": null, "column": ""}"#, None);
        let arguments = suggested.unwrap().arguments;
        prop_assert!(serde_json::from_str::<Value>(&arguments).unwrap().is_object());
    }
}
