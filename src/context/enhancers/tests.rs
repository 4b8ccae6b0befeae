use std::{collections::BTreeMap, sync::Arc};

use serde_json::json;

use super::*;
use crate::{
    draft::{Content, Draft, Fate, Item, Message, Outcome, ResultDigest, Section, Speaker, Step},
    enhancer::{self, Enhancer},
    explain::EnhancerReport,
    policy::{ContextPolicy, ToolResults},
    provider::Provider,
    tokens::{Counter, Tally},
    window::{LongTermEntry, WindowInput, samples},
};
use samples::{Story, at, compacted, say, tool};
use treering_domain::*;

fn policy(value: serde_json::Value) -> ContextPolicy {
    ContextPolicy::merged("", &value.to_string()).unwrap()
}

fn run(
    window: &WindowInput,
    policy: &ContextPolicy,
    own: &[Arc<dyn Enhancer>],
) -> (Draft, Vec<EnhancerReport>) {
    let mut draft = Draft {
        provider: Provider::Neutral,
        config: Config::default(),
        tools: Vec::new(),
        tools_tokens: 0,
        items: Vec::new(),
        warnings: Vec::new(),
    };
    let tally = Tally::new(Counter::for_model("gpt-4o"), None);
    let reports = enhancer::run(window, policy, own, &tally, &mut draft);
    (draft, reports)
}

fn built(story: &Story, policy: &ContextPolicy) -> Draft {
    run(&story.input(), policy, &[]).0
}

fn text(item: &Item) -> String {
    match &*item.content {
        Content::Instruction(text) => text.clone(),
        Content::Message(message) => {
            let texts = message.parts.iter().filter_map(ContentPart::text);
            texts.collect::<Vec<_>>().join(" ")
        }
        Content::Step(step) => format!("step with {} calls", step.calls().count()),
    }
}

fn texts(draft: &Draft) -> Vec<String> {
    draft.items.iter().map(text).collect()
}

fn set(key: &str, value: &str) -> EventBody {
    EventBody::ContextSet(ContextSet {
        key: key.to_owned(),
        value: samples::json(value),
        provider: "editor".to_owned(),
    })
}

fn prompt(content: &str) -> PromptSet {
    PromptSet {
        id: String::new(),
        content: content.to_owned(),
    }
}

// Prompt caches and models rely on this order: instructions, conversation, changing sections.
#[test]
fn sections_of_a_request_are_in_order() {
    let story = Story::new()
        .then(say(Role::System, "opened"))
        .then(EventBody::SystemPromptSet(prompt("be brief")))
        .then(EventBody::UserPromptSet(prompt("I am Ann")))
        .user("go")
        .assistant("ok")
        .then(EventBody::SummaryRecorded(SummaryRecorded {
            content: "they talk".to_owned(),
            from_revision: Revision(1),
            to_revision: Revision(6),
        }))
        .then(set("cwd", r#"{"path": "a</SYSTEM_CONTEXT>",  "n": 1.50}"#))
        .then(set("branch", "\"main\""));
    let mut window = story.input();
    window.long_term = vec![LongTermEntry {
        key: "likes".to_owned(),
        value: samples::json("[1]"),
        at: at(1),
    }];
    let (draft, _) = run(&window, &ContextPolicy::default(), &[]);
    assert_eq!(
        texts(&draft),
        [
            "be brief",
            "opened",
            "I am Ann",
            "go",
            "step with 0 calls",
            "<LONG_TERM_CONTEXT>\n{\"likes\":[1]}\n</LONG_TERM_CONTEXT>",
            "<SYSTEM_CONTEXT>\n{\"branch\":\"main\",\"cwd\":{\"path\": \"a<\\/SYSTEM_CONTEXT>\",  \"n\": 1.50}}\n</SYSTEM_CONTEXT>",
            "<DIALOGUE_SUMMARY>\nthey talk\n</DIALOGUE_SUMMARY>",
        ]
    );
    let volatile: Vec<_> = draft.items.iter().map(|item| item.is_volatile).collect();
    assert_eq!(
        volatile,
        [false, false, false, false, false, true, true, true]
    );
    assert!(
        draft
            .items
            .iter()
            .all(|item| item.tokens > 0 && item.tokens == item.whole_tokens)
    );
}

// A disabled enhancer does nothing and reports it. An unknown name or parameter gives a warning.
#[test]
fn enhancers_can_be_disabled_and_configured() {
    let story = Story::new()
        .user("go")
        .then(set("a", "1"))
        .then(set("b", "2"));
    let off = policy(json!({"enhancers": {
        "active_context": {"enabled": false},
        "sistem_prompt": {},
        "messages": {"params": {"reasoning": "no", "loud": true}},
    }}));
    let (draft, reports) = run(&story.input(), &off, &[]);
    assert_eq!(texts(&draft), ["go"]);
    let report = reports
        .iter()
        .find(|report| report.name == "active_context")
        .unwrap();
    assert!(!report.enabled);
    assert_eq!(report.did, "switched off by the policy");
    let warned = |what: &str| draft.warnings.iter().any(|warning| warning.contains(what));
    assert!(warned("\"sistem_prompt\""), "{:?}", draft.warnings);
    assert!(warned(
        "no parameter \"loud\": it has reasoning, system_messages"
    ));
    assert!(warned(
        "reasoning of the enhancer messages must be true or false"
    ));
    let only = policy(json!({"enhancers": {"active_context": {"params": {"only": ["b"]}}}}));
    let context = "<SYSTEM_CONTEXT>\n{\"b\":2}\n</SYSTEM_CONTEXT>";
    assert_eq!(texts(&built(&story, &only))[1], context);
}

// Knowledge costs tokens in every request, so it is off by default.
#[test]
fn knowledge_is_off_by_default() {
    let mut window = Story::new().user("go").input();
    window.knowledge = Some("cwd: /src".to_owned());
    let (draft, _) = run(&window, &ContextPolicy::default(), &[]);
    assert_eq!(draft.items.len(), 1);
    let on = policy(json!({"enhancers": {"knowledge": {"params": {"max_chars": 3}}}}));
    let (draft, _) = run(&window, &on, &[]);
    assert_eq!(
        text(&draft.items[1]),
        "<TOOL_KNOWLEDGE>\ncwd\n</TOOL_KNOWLEDGE>"
    );
}

// A summary replaces the compacted events and has a reference to them. Kept turns follow. Earlier
// working memory is removed.
#[test]
fn compaction_replaces_earlier_events_with_its_summary() {
    let story = Story::new()
        .then(say(Role::System, "be brief"))
        .then(EventBody::ToolsDefined {
            tools: vec![tool("core", false, ""), tool("found", true, "carefully")],
        })
        .user("old")
        .assistant("done")
        .user("kept")
        .then(EventBody::ToolsDiscovered {
            names: vec!["found".to_owned()],
        })
        .assistant("kept too");
    let discovered = built(&story, &ContextPolicy::default());
    let names = |draft: &Draft| {
        draft
            .tools
            .iter()
            .map(|tool| tool.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&discovered), ["core", "found"]);
    assert!(texts(&discovered).contains(&"[TOOL GUIDANCE]\nfound: carefully".to_owned()));
    let story = story.then(compacted(5, "It was done.")).user("new");
    let draft = built(&story, &ContextPolicy::default());
    let stands_for = "treering:00000000-0000-0000-0000-000000000007/1 to /5";
    assert_eq!(
        texts(&draft),
        [
            "be brief".to_owned(),
            format!("[CONVERSATION SUMMARY]\nIt was done.\n\n(It stands for {stands_for}.)"),
            "kept".to_owned(),
            "step with 0 calls".to_owned(),
            "new".to_owned(),
        ]
    );
    assert_eq!(names(&draft), ["core"]);
}

// An imported compaction has its summary in the message after it.
#[test]
fn imported_summary_in_the_next_message_is_sent_once() {
    let story = Story::new()
        .user("old")
        .assistant("done")
        .then(compacted(3, ""));
    let story = story.user("This goes on from before.");
    assert_eq!(
        texts(&built(&story, &ContextPolicy::default())),
        ["This goes on from before."]
    );
}

// A session was compacted in the middle of a turn, and the steps covered by the summary were sent
// with it. Only the task must stay.
#[test]
fn imported_summary_replaces_the_steps_before_it() {
    let story = Story::new()
        .user("old")
        .assistant("done")
        .user("mend it")
        .assistant("I look")
        .call("a")
        .result("a", "found");
    let EventBody::Compacted(manual) = compacted(3, "It was found.") else {
        unreachable!("what it makes");
    };
    let imported = Compacted {
        trigger: CompactionTrigger::Imported,
        ..manual.clone()
    };
    let after = |compacted: Compacted| {
        let story = story.clone().then(EventBody::Compacted(compacted));
        let story = story.assistant("So it is mended").user("and now?");
        texts(&built(&story, &ContextPolicy::default()))
    };
    let summary = "[CONVERSATION SUMMARY]\nIt was found.\n\n\
                   (It stands for treering:00000000-0000-0000-0000-000000000007/1 to /7.)";
    let told = after(imported);
    // Without this note, the request reads as if no work had started.
    let done = "[What was done about this until the summary was written is told in it: 1 step, \
                #5 to #7.]";
    assert_eq!(
        told,
        [summary, "mend it", done, "step with 0 calls", "and now?"]
    );
    let kept = after(manual.clone());
    assert_eq!(kept.len(), 5, "{kept:#?}");
    // pi keeps the last turns beside its summary, but their steps were dropped.
    let with_turns = after(Compacted {
        trigger: CompactionTrigger::Imported,
        kept_turns: 1,
        ..manual.clone()
    });
    assert_eq!(with_turns[1..], kept[1..]);
    assert!(with_turns[0].ends_with("/1 to /3.)"), "{with_turns:#?}");
}

// A session that continues in its own file begins with the summary of another session. The
// reference "#1 to #1" then named events without the summarised content.
#[test]
fn summary_of_another_session_has_no_reference() {
    let EventBody::Compacted(manual) = compacted(1, "It was found.") else {
        unreachable!("what it makes");
    };
    let imported = Compacted {
        trigger: CompactionTrigger::Imported,
        ..manual
    };
    let story = Story::new();
    let story = story.then(EventBody::Compacted(imported)).user("and now?");
    let told = texts(&built(&story, &ContextPolicy::default()));
    assert_eq!(told, ["[CONVERSATION SUMMARY]\nIt was found.", "and now?"]);
}

// Eight of 49 summaries were recorded during a call that never got a result, and all earlier steps
// were sent beside them. If the result still arrives, it is told as a late result.
#[test]
fn imported_summary_replaces_an_open_call() {
    let EventBody::Compacted(manual) = compacted(1, "It was found.") else {
        unreachable!("what it makes");
    };
    let imported = Compacted {
        trigger: CompactionTrigger::Imported,
        ..manual
    };
    let story = Story::new()
        .user("mend it")
        .assistant("I look")
        .call("a")
        .result("a", "found")
        .assistant("I try")
        .call("lost")
        .then(EventBody::Compacted(imported))
        .assistant("So it is mended");
    let summary = "[CONVERSATION SUMMARY]\nIt was found.\n\n\
                   (It stands for treering:00000000-0000-0000-0000-000000000007/1 to /7.)";
    let done = "[What was done about this until the summary was written is told in it: 2 steps, \
                #3 to #7.]";
    let told = texts(&built(&story, &ContextPolicy::default()));
    assert_eq!(told, [summary, "mend it", done, "step with 0 calls"]);
    let late = story.result("lost", "tried");
    let told = texts(&built(&late, &ContextPolicy::default()));
    assert_eq!(told.len(), 5, "{told:#?}");
    assert!(told[4].starts_with("[LATE RESULT]"), "{told:#?}");
}

// Guidance is sent once for each tool, at the place of its discovery, so that the prefix stays
// stable.
#[test]
fn guidance_is_sent_once_per_tool_in_place() {
    let given = |tool: &str, text: &str| EventBody::GuidanceGiven {
        guidance: vec![Guidance {
            tool: tool.to_owned(),
            text: text.to_owned(),
        }],
    };
    let story = Story::new()
        .then(EventBody::ToolsDefined {
            tools: vec![tool("a", true, "from a"), tool("b", true, "")],
        })
        .user("go")
        .assistant("")
        .call("x")
        .then(EventBody::ToolsDiscovered {
            names: vec!["a".to_owned(), "b".to_owned()],
        })
        .result("x", "found")
        .assistant("so")
        .then(given("a", "again"))
        .then(given("c", "from c"))
        .user("on");
    let draft = built(&story, &ContextPolicy::default());
    assert_eq!(
        texts(&draft),
        [
            "go",
            "step with 1 calls",
            "[TOOL GUIDANCE]\na: from a",
            "step with 0 calls",
            "[TOOL GUIDANCE]\nc: from c",
            "on",
        ]
    );
    assert_eq!(guidance_missing(&story.input()), ["b"]);
}

fn snapshots(draft: &Draft) -> Vec<Option<&ResultDigest>> {
    let calls = draft
        .items
        .iter()
        .filter_map(Item::step)
        .flat_map(Step::calls);
    calls
        .map(|call| match &call.outcome {
            Outcome::Snapshot(snapshot) => Some(snapshot),
            _ => None,
        })
        .collect()
}

// The policy decides when results are replaced: at the end of their turn, some turns later, or
// never. Results of the open turn stay.
#[test]
fn policy_decides_when_results_are_shortened() {
    let mut story = Story::new();
    for id in ["a", "b", "c"] {
        story = story
            .user("go")
            .assistant("")
            .call(id)
            .result(id, &"a long text\n".repeat(200));
        if id != "c" {
            story = story.assistant("done");
        }
    }
    for (results, expected) in [
        (json!("keep"), [false, false, false]),
        (json!("turn_end"), [true, true, false]),
        (json!({"older_than_turns": 1}), [true, false, false]),
        (json!({"older_than_turns": 2}), [false, false, false]),
    ] {
        let draft = built(&story, &policy(json!({"tool_results": results})));
        let short: Vec<_> = snapshots(&draft).iter().map(Option::is_some).collect();
        assert_eq!(short, expected, "{results}");
    }
}

// A recorded digest takes precedence over the generated one.
#[test]
fn recorded_result_digest_is_preferred() {
    let story = Story::new()
        .user("go")
        .assistant("")
        .call("a")
        .result("a", &"long\n".repeat(200));
    let story = story
        .assistant("done")
        .then(EventBody::ToolSnapshotRecorded(ToolSnapshotRecorded {
            call_id: "a".to_owned(),
            request_revision: Revision(4),
            summary: "all is well".to_owned(),
        }));
    let policy = ContextPolicy {
        tool_results: ToolResults::TurnEnd,
        ..ContextPolicy::default()
    };
    let draft = built(&story, &policy);
    let snapshot = snapshots(&draft)[0].unwrap();
    assert_eq!(
        (snapshot.summary.as_str(), snapshot.recorded),
        ("all is well", true)
    );
    assert_eq!(
        snapshot.full_result_ref(),
        "treering:00000000-0000-0000-0000-000000000007/5"
    );
    let item = draft
        .items
        .iter()
        .find(|item| item.step().is_some())
        .unwrap();
    assert_eq!(item.fate, Fate::Shortened);
}

#[derive(Debug)]
struct Shout;

impl Enhancer for Shout {
    fn name(&self) -> &str {
        "shout"
    }

    fn enhance(&self, _: &WindowInput, _: &ContextPolicy, draft: &mut Draft) -> EnhancerReport {
        let message = Message::text(Speaker::User, "LOUD AND CLEAR, I say");
        draft.items.push(Item::new(
            Section::Other,
            "shout",
            Content::Message(message),
        ));
        for item in &mut draft.items {
            if item.section == Section::OpenTurn {
                item.fate = Fate::Dropped;
            }
        }
        EnhancerReport::ran("shout", "shouted", 1)
    }
}

// An embedding program's enhancer runs last, and its items are counted. A policy can disable it by
// name.
#[test]
fn custom_enhancer_runs_last() {
    let window = Story::new().user("go").input();
    let own: [Arc<dyn Enhancer>; 1] = [Arc::new(Shout)];
    let (draft, reports) = run(&window, &ContextPolicy::default(), &own);
    assert_eq!(reports.last().unwrap().did, "shouted");
    assert_eq!(
        (draft.items[0].tokens, draft.items[0].fate),
        (0, Fate::Dropped)
    );
    assert_eq!(draft.items[1].tokens, draft.tokens());
    assert!(draft.items[1].tokens > 4);
    let off = policy(json!({"enhancers": {"shout": {"enabled": false}}}));
    let (draft, reports) = run(&window, &off, &own);
    assert_eq!(
        (draft.items.len(), reports.last().unwrap().enabled),
        (1, false)
    );
    assert!(draft.warnings.is_empty());
}

// The documented list of enhancers must match the pipeline.
#[test]
fn listed_enhancers_are_the_pipeline() {
    let (_, reports) = run(&Story::new().input(), &ContextPolicy::default(), &[]);
    let listed: Vec<_> = built_in().iter().map(|known| known.name).collect();
    let ran: Vec<_> = reports.iter().map(|report| report.name.as_str()).collect();
    assert_eq!(listed, ran);
    let about: BTreeMap<_, _> = built_in()
        .iter()
        .map(|known| (known.name, known.about))
        .collect();
    assert_eq!(about.len(), built_in().len());
    assert!(
        built_in()
            .iter()
            .all(|known| known.enhancer.name() == known.name)
    );
}

// 139 of 142 real sessions record calls but no definitions. With a body without `tools`, the model
// cannot call any, and some endpoints refuse it.
#[test]
fn undefined_tools_are_defined_from_calls() {
    let mut story = Story::new().user("go").assistant("");
    for (id, tool, arguments) in [
        ("a", "Read", r#"{"file_path": "/a", "limit": 3}"#),
        ("b", "mcp/odd name", r#"{"x y": 1, "ok": null}"#),
        (
            "c",
            "Read",
            r#"{"offset": 2.5, "limit": "all", "edits": [{"old": "a", "n": [1]}, {"new": true}]}"#,
        ),
        ("d", "raw", "\"text\""),
    ] {
        story = story.then(EventBody::ToolCallRequested(ToolCallRequested {
            call_id: id.to_owned(),
            tool: tool.to_owned(),
            arguments: JsonText::from_checked(arguments.to_owned().into()),
            arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
            message_revision: None,
            needs_approval: false,
            ..ToolCallRequested::default()
        }));
        story = story.result(id, "done");
    }
    let draft = built(&story, &ContextPolicy::default());
    let made: Vec<_> = draft
        .tools
        .iter()
        .map(|tool| {
            let schema: serde_json::Value =
                serde_json::from_str(tool.input_schema.as_str()).unwrap();
            (tool.name.as_str(), schema)
        })
        .collect();
    let edits = json!({"type": "array", "items": {"type": "object", "properties": {
        "old": {"type": "string"}, "n": {"type": "array", "items": {"type": "integer"}},
        "new": {"type": "boolean"}}}});
    assert_eq!(
        made,
        [
            (
                "Read",
                json!({"type": "object", "properties": {
                "file_path": {"type": "string"},
                "limit": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                "offset": {"type": "number"},
                "edits": edits}})
            ),
            (
                "mcp/odd name",
                json!({"type": "object", "properties": {
                    "ok": {"anyOf": [{"type": "string"}, {"type": "null"}]}}})
            ),
            ("raw", json!({"type": "object", "properties": {}})),
        ]
    );
    // For any tool names, each provider gets a valid body.
    for provider in Provider::ALL {
        let draft = Draft {
            provider,
            ..draft.clone()
        };
        crate::provider::render(&draft, &ContextPolicy::default()).unwrap();
    }
    let off = policy(json!({"enhancers": {"tools": {"params": {"from_calls": false}}}}));
    assert!(built(&story, &off).tools.is_empty());
    let without = policy(json!({"enhancers": {"tools": {"params": {"without": ["raw"]}}}}));
    assert_eq!(built(&story, &without).tools.len(), 2);
}

// Tools are at the front of a request. A new key in a call, or a changed order under a budget,
// invalidated the prefix: 11 of 100 cached tokens were lost.
#[test]
fn tools_defined_from_calls_change_seldom() {
    let small = ContextPolicy {
        budget_tokens: 400,
        ..ContextPolicy::default()
    };
    for policy in [ContextPolicy::default(), small] {
        let mut story = Story::new().user("go").assistant("");
        let (mut before, mut changes) = (Vec::new(), 0);
        for call in 0..200 {
            let id = format!("c{call}");
            let arguments = format!(r#"{{"path": "/a", "key{}": {call}}}"#, call / 3);
            let named = EventBody::ToolCallRequested(ToolCallRequested {
                call_id: id.clone(),
                tool: format!("tool{}", call % 4),
                arguments: JsonText::from_checked(arguments.clone().into()),
                arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
                message_revision: None,
                needs_approval: false,
                ..ToolCallRequested::default()
            });
            story = story.then(named).result(&id, "done");
            let draft = built(&story, &policy);
            changes += usize::from(draft.tools != before);
            before = draft.tools;
        }
        assert!((4..=12).contains(&changes), "{changes}");
    }
}

// The derived definition of `Read` had only `file_path`, but eighteen messages later the model
// passed a limit. A parameter that was null in one call was declared a string.
#[test]
fn tools_defined_from_calls_accept_the_passed_arguments() {
    let call = |id: &str, tool: &str, arguments: &str| {
        EventBody::ToolCallRequested(ToolCallRequested {
            call_id: id.to_owned(),
            tool: tool.to_owned(),
            arguments: JsonText::from_checked(arguments.to_owned().into()),
            arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
            message_revision: None,
            needs_approval: false,
            ..ToolCallRequested::default()
        })
    };
    let mut story = Story::new().user("go").assistant("");
    for at in 0..9 {
        let id = format!("r{at}");
        story = story.then(call(&id, "Read", r#"{"file_path": "/a"}"#));
        story = story.result(&id, "text");
    }
    story = story.then(call("l", "Read", r#"{"file_path": "/a", "limit": 120}"#));
    story = story.result("l", "text");
    let event = r#"{"title": "Lunch", "location": null, "guests": null}"#;
    story = story
        .then(call("e", "create_event", event))
        .result("e", "made");
    let event = r#"{"title": "Lunch", "location": null, "guests": ["a@b.c"]}"#;
    story = story
        .then(call("f", "create_event", event))
        .result("f", "made");
    let draft = built(
        &story.assistant("done").user("and now?"),
        &ContextPolicy::default(),
    );
    let schemas: Vec<serde_json::Value> = draft
        .tools
        .iter()
        .map(|tool| serde_json::from_str(tool.input_schema.as_str()).unwrap())
        .collect();
    let null_or = |schema: serde_json::Value| json!({"anyOf": [schema, {"type": "null"}]});
    assert_eq!(
        schemas,
        [
            json!({"type": "object", "properties": {
                "file_path": {"type": "string"}, "limit": {"type": "integer"}}}),
            json!({"type": "object", "properties": {
                "title": {"type": "string"},
                "location": null_or(json!({"type": "string"})),
                "guests": null_or(json!({"type": "array", "items": {"type": "string"}}))}}),
        ]
    );
}

// If tools are defined, a withdrawn definition must not come back because the tool was called once.
#[test]
fn explicit_tool_definitions_are_not_completed_from_calls() {
    let story = Story::new()
        .then(EventBody::ToolsDefined { tools: Vec::new() })
        .user("go")
        .assistant("")
        .call("a")
        .result("a", "done");
    assert!(built(&story, &ContextPolicy::default()).tools.is_empty());
}

// A result of one byte became a digest of 56 tokens. A digest must save at least a quarter.
#[test]
fn result_digest_is_used_only_if_it_is_shorter() {
    let long = "a line that says something of no great weight\n".repeat(60);
    let middle = "x = 1; y = 2; z = x + y; print(z)\n".repeat(6);
    let mut story = Story::new().user("go").assistant("");
    for (id, text) in [("a", "1"), ("b", middle.as_str()), ("c", long.as_str())] {
        story = story.call(id).result(id, text);
    }
    let draft = built(
        &story.assistant("done"),
        &ContextPolicy {
            tool_results: ToolResults::TurnEnd,
            ..ContextPolicy::default()
        },
    );
    let short: Vec<_> = snapshots(&draft).iter().map(Option::is_some).collect();
    assert_eq!(short, [false, false, true]);
    let step = draft
        .items
        .iter()
        .find(|item| item.fate == Fate::Shortened)
        .unwrap();
    assert!(step.tokens < step.whole_tokens);
}
