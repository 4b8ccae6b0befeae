//! Tests of single guarantees that callers of `build` rely on.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use treering::{
    context::{
        ContextPolicy, Item, Message, Section, Speaker, WindowInput, enhancer::Enhancer,
        explain::EnhancerReport,
    },
    engine::{BranchAddress, ContextError},
};

use super::{
    super::store::{append, call, conversation, message, result},
    *,
};

async fn memory() -> Engine {
    Engine::in_memory(Limits::default()).await.unwrap()
}

// The simplest use: append a message, build, send.
#[tokio::test]
async fn appended_message_is_in_the_request() {
    let engine = memory().await;
    let id = conversation(&engine).await;
    let built = engine.build(query(id)).await.unwrap();
    let body: Value = serde_json::from_slice(&built.request).unwrap();
    assert!(body.to_string().contains("hello"), "{body}");
    assert_eq!(built.explanation.items[0].head, "hello");
    assert_eq!(built.explanation.revision, Revision(2));
    adds_up(&built.explanation);
    engine.close().await;
}

// Long-term context belongs to the namespace: every conversation gets it, before its own. A request
// as of an earlier revision gets the values of that time.
#[tokio::test]
async fn long_term_context_is_shared_and_read_as_of_a_revision() {
    let engine = memory().await;
    let id = conversation(&engine).await;
    let long_term = ns().long_term_conversation();
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let first = vec![
        NewEvent::new(long_term, created),
        set(long_term, "likes", "[1]"),
    ];
    append(&engine, first).await.unwrap();
    append(&engine, vec![message(id, "then"), set(id, "cwd", "\"/\"")])
        .await
        .unwrap();
    let (draft, _) = engine.draft(query(id)).await.unwrap();
    let expected = [
        "<LONG_TERM_CONTEXT>\n{\"likes\":[1]}\n</LONG_TERM_CONTEXT>",
        "<SYSTEM_CONTEXT>\n{\"cwd\":\"/\"}\n</SYSTEM_CONTEXT>",
    ];
    assert_eq!(texts(&draft)[2..], expected);
    append(&engine, vec![set(long_term, "likes", "[2]")])
        .await
        .unwrap();
    let (draft, _) = engine.draft(query(id)).await.unwrap();
    assert!(texts(&draft)[2].contains("[2]"), "{:?}", texts(&draft));
    append(&engine, vec![message(id, "now")]).await.unwrap();
    let past = BuildQuery {
        as_of: Some(Revision(3)),
        ..query(id)
    };
    let (draft, _) = engine.draft(past).await.unwrap();
    assert_eq!(texts(&draft), ["hello", "then", expected[0]]);
    engine.close().await;
}

// A request that waits for a position must contain what was appended there, and the wait must end
// when the position is reached.
#[tokio::test]
async fn request_waits_for_its_position() {
    let engine = memory().await;
    let id = conversation(&engine).await;
    let next = Position::local(engine.head().offset + 1);
    let waiting = BuildQuery {
        at_least: Some(next),
        ..query(id)
    };
    let waits = engine.clone();
    let task = tokio::spawn(async move { waits.draft(waiting).await.unwrap().0 });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!task.is_finished());
    append(&engine, vec![message(id, "late")]).await.unwrap();
    assert_eq!(texts(&task.await.unwrap()), ["hello", "late"]);
    engine.close().await;
}

// The next request repeats all bytes of the last one that are not volatile. A request of the past,
// or with another policy, must not count as the last one.
#[tokio::test]
async fn shared_prefix_is_reported() {
    let engine = memory().await;
    let id = conversation(&engine).await;
    append(&engine, vec![set(id, "cwd", "1")]).await.unwrap();
    let first = engine.build(query(id)).await.unwrap().explanation;
    assert_eq!(first.shared_prefix, None);
    append(
        &engine,
        vec![say(id, Role::Assistant, "hi"), message(id, "more")],
    )
    .await
    .unwrap();
    for (as_of, policy) in [(Some(Revision(2)), ""), (None, r#"{"budget_tokens": 1}"#)] {
        let policy = policy.to_owned();
        let other = engine
            .build(BuildQuery {
                as_of,
                policy,
                ..query(id)
            })
            .await;
        assert_eq!(other.unwrap().explanation.shared_prefix, None);
    }
    let second = engine.build(query(id)).await.unwrap().explanation;
    let shared = second.shared_prefix.unwrap();
    assert_eq!(shared.tokens, first.items[0].tokens);
    assert_eq!(shared.previous_tokens, first.tokens);
    assert_eq!(shared.previous_revision, Revision(3));
    let model = BuildQuery {
        model: Some("gpt-4o".to_owned()),
        ..query(id)
    };
    let other = engine.build(model).await.unwrap().explanation;
    assert_eq!((other.shared_prefix, other.basis.estimate), (None, false));
    engine.close().await;
}

// The policy of a call takes precedence over the conversation's stored policy. An error in either
// is reported with its field.
#[tokio::test]
async fn policies_are_merged_and_faults_reported() {
    let engine = memory().await;
    let create = |policy: &str| {
        let id = ConversationId::generate();
        let created = ConversationCreated {
            policies: [("context".to_owned(), policy.to_owned())].into(),
            ..ConversationCreated::default()
        };
        let created = NewEvent::new(id, EventBody::ConversationCreated(created));
        (id, vec![created, message(id, "hello")])
    };
    let (id, events) = create(r#"{"budget_tokens": 1, "compaction": {"threshold": 0.5}}"#);
    append(&engine, events).await.unwrap();
    let built = engine.build(query(id)).await.unwrap().explanation;
    assert!(built.over_budget && built.budget_tokens == 1);
    // A single question gives a compaction nothing to cut.
    assert!(!built.compaction_due);
    let policy = r#"{"budget_tokens": null}"#.to_owned();
    let built = engine
        .build(BuildQuery {
            policy,
            ..query(id)
        })
        .await
        .unwrap();
    assert!(!built.explanation.over_budget);
    let policy = r#"{"budget_token": 5}"#.to_owned();
    let refused = engine
        .build(BuildQuery {
            policy,
            ..query(id)
        })
        .await
        .unwrap_err();
    assert!(matches!(&refused, ContextError::Policy(error) if error.whose == "call's"));
    assert!(refused.to_string().contains("budget_token"), "{refused}");
    let (id, events) = create("[]");
    append(&engine, events).await.unwrap();
    let refused = engine.build(query(id)).await.unwrap_err();
    assert!(matches!(&refused, ContextError::Policy(error) if error.whose == "conversation's"));
    engine.close().await;
}

// Recorded usage of a model calibrates the token counts of its family, and the explanation says so.
#[tokio::test]
async fn recorded_usage_calibrates_the_token_estimate() {
    let engine = memory().await;
    let id = conversation(&engine).await;
    for round in 0..6_u64 {
        let (_, before) = engine.draft(query(id)).await.unwrap();
        let raw = (before.tokens as f64 / before.basis.factor).round();
        let mut answer = MessageAppended::text(Role::Assistant, "so ".repeat(1_000));
        answer.usage = Some(Usage {
            input_tokens: (raw * 1.5) as u64 + 300,
            model: "claude-sonnet-4-5".to_owned(),
            ..Usage::default()
        });
        let answer = NewEvent::new(id, EventBody::MessageAppended(answer));
        append(&engine, vec![answer, message(id, &format!("and {round}?"))])
            .await
            .unwrap();
    }
    let claude = BuildQuery {
        model: Some("claude-opus-4".to_owned()),
        ..query(id)
    };
    let (_, explained) = engine.draft(claude).await.unwrap();
    let basis = &explained.basis;
    assert!((basis.factor - 1.5).abs() < 0.06, "{basis:?}");
    assert!((200..400).contains(&basis.offset), "{basis:?}");
    assert_eq!((basis.calibrated_on, basis.estimate), (6, true));
    adds_up(&explained);
    let other = BuildQuery {
        model: Some("gemini-2.5-pro".to_owned()),
        ..query(id)
    };
    let (_, explained) = engine.draft(other).await.unwrap();
    assert_eq!(
        (explained.basis.factor, explained.basis.calibrated_on),
        (1.0, 0)
    );
    engine.close().await;
}

// After a fork, each branch's request has its own messages. Cached state of one branch must not
// show in the other.
#[tokio::test]
async fn each_branch_has_its_own_window() {
    let engine = memory().await;
    let id = conversation(&engine).await;
    append(&engine, vec![message(id, "both"), call(id, "a", "run")])
        .await
        .unwrap();
    engine.build(query(id)).await.unwrap();
    let fork = ForkCommand {
        address: BranchAddress::active(ns(), id),
        at: Some(Revision(3)),
        name: "other".to_owned(),
        system_prompt: "be someone else".to_owned(),
        into: None,
        activate: false,
        idempotency_key: None,
        actor: String::new(),
    };
    engine.fork(fork).await.unwrap();
    let name = BranchName::new("other").unwrap();
    let on_fork = message(id, "here").on_branch(name.clone());
    append(
        &engine,
        vec![on_fork, result(id, "a", "done"), message(id, "there")],
    )
    .await
    .unwrap();
    let (draft, _) = engine.draft(query(id)).await.unwrap();
    assert_eq!(texts(&draft), ["hello", "both", "step run", "there"]);
    let fork = BuildQuery {
        address: BranchAddress::active(ns(), id).on(name),
        ..query(id)
    };
    let (draft, _) = engine.draft(fork).await.unwrap();
    assert_eq!(texts(&draft), ["be someone else", "hello", "both", "here"]);
    engine.close().await;
}

#[derive(Debug)]
struct Reminder;

impl Enhancer for Reminder {
    fn name(&self) -> &str {
        "reminder"
    }

    fn enhance(
        &self,
        window: &WindowInput,
        _: &ContextPolicy,
        draft: &mut Draft,
    ) -> EnhancerReport {
        let text = format!("{} events so far", window.events.len());
        let message = Message::text(Speaker::User, text);
        draft.items.push(Item::new(
            Section::Other,
            "reminder",
            Content::Message(message),
        ));
        EnhancerReport::ran("reminder", "reminded", 1)
    }
}

// A program that embeds the engine adds its own step, and sees it explained.
#[tokio::test]
async fn custom_enhancer_is_run_and_explained() {
    let engine = memory().await;
    let id = conversation(&engine).await;
    let enhancers: Vec<Arc<dyn Enhancer>> = vec![Arc::new(Reminder)];
    let built = engine
        .build(BuildQuery {
            enhancers,
            ..query(id)
        })
        .await
        .unwrap();
    assert!(
        String::from_utf8(built.request)
            .unwrap()
            .contains("2 events so far")
    );
    assert_eq!(built.explanation.enhancers.last().unwrap().did, "reminded");
    adds_up(&built.explanation);
    engine.close().await;
}

// Caches are optional: without any, requests are the same, but nothing is known about the last one.
#[tokio::test]
async fn requests_are_equal_without_caches() {
    let limits = Limits {
        memory_bytes: 0,
        remembered_requests_max: 0,
        ..Limits::default()
    };
    let engine = Engine::in_memory(limits).await.unwrap();
    let id = conversation(&engine).await;
    for number in 0..3 {
        append(&engine, vec![message(id, &number.to_string())])
            .await
            .unwrap();
        let built = engine.build(query(id)).await.unwrap();
        assert_eq!(built.explanation.items.len(), 2 + number);
        assert_eq!(built.explanation.shared_prefix, None);
    }
    engine.close().await;
}

// A deep lineage and a long dialogue before a compaction must not be read. The window begins at the
// cut, and holds what comes after it, once and in order.
#[tokio::test]
async fn window_begins_at_the_last_cut() {
    let engine = memory().await;
    let id = conversation(&engine).await;
    let mut branch = None;
    for number in 0..30_u64 {
        let say = |role, text: &str| NewEvent {
            branch: branch.clone(),
            ..say(id, role, text)
        };
        let turn = vec![
            say(Role::Assistant, "so"),
            say(Role::User, &format!("turn {number}")),
        ];
        let outcome = append(&engine, turn).await.unwrap();
        if number == 20 {
            let compacted = EventBody::Compacted(Compacted {
                summary: "twenty turns".to_owned(),
                cut_revision: outcome.events[0].revision,
                kept_turns: 0,
                tokens_before: 0,
                tokens_after: 0,
                trigger: CompactionTrigger::Manual,
                raw: None,
            });
            let event = NewEvent {
                branch: branch.clone(),
                ..NewEvent::new(id, compacted)
            };
            append(&engine, vec![event]).await.unwrap();
        }
        let fork = ForkCommand {
            address: BranchAddress {
                namespace: ns(),
                conversation: id,
                branch: branch.clone(),
            },
            at: None,
            name: format!("b{number}"),
            system_prompt: String::new(),
            into: None,
            activate: false,
            idempotency_key: None,
            actor: String::new(),
        };
        branch = Some(engine.fork(fork).await.unwrap().branch.name.clone());
    }
    let (draft, _) = engine
        .draft(BuildQuery {
            address: BranchAddress {
                branch,
                ..BranchAddress::active(ns(), id)
            },
            ..query(id)
        })
        .await
        .unwrap();
    let said: Vec<_> = texts(&draft)
        .into_iter()
        .filter(|text| text.starts_with("turn"))
        .collect();
    let expected: Vec<_> = (20..30).map(|number| format!("turn {number}")).collect();
    assert_eq!(said, expected);
    assert!(texts(&draft)[0].starts_with("[CONVERSATION SUMMARY]\ntwenty turns"));
    engine.close().await;
}

// An agent must not lose its tools after a compaction. Tool definitions derived from calls before
// the cuts of all compactions still count, also as of an earlier revision.
#[tokio::test]
async fn tools_defined_from_calls_survive_compactions() {
    let engine = memory().await;
    let id = conversation(&engine).await;
    for (number, tool) in ["list_files", "read_file"].into_iter().enumerate() {
        let call_id = format!("c{number}");
        let ended = result(id, &call_id, "done");
        let answer = EventBody::MessageAppended(MessageAppended::text(Role::Assistant, "so"));
        let turn = vec![
            message(id, "go on"),
            call(id, &call_id, tool),
            ended,
            NewEvent::new(id, answer),
        ];
        let outcome = append(&engine, turn).await.unwrap();
        let compacted = EventBody::Compacted(Compacted {
            summary: "what was done".to_owned(),
            cut_revision: outcome.events[3].revision,
            kept_turns: 0,
            tokens_before: 0,
            tokens_after: 0,
            trigger: CompactionTrigger::Manual,
            raw: None,
        });
        append(&engine, vec![NewEvent::new(id, compacted)])
            .await
            .unwrap();
    }
    let offered = async |query: BuildQuery| {
        let (draft, _) = engine.draft(query).await.unwrap();
        let names = draft.tools.into_iter().map(|tool| tool.name);
        names.collect::<Vec<_>>()
    };
    assert_eq!(offered(query(id)).await, ["list_files", "read_file"]);
    // Tools of later calls come after them.
    let later = vec![call(id, "c9", "edit_file"), result(id, "c9", "done")];
    append(&engine, later).await.unwrap();
    let all = ["list_files", "read_file", "edit_file"];
    assert_eq!(offered(query(id)).await, all);
    let past = BuildQuery {
        as_of: Some(Revision(6)),
        ..query(id)
    };
    assert_eq!(offered(past).await, ["list_files"]);
    engine.close().await;
}

// The first request after a compaction must not read all 1,000 calls before it to find the tools:
// the most recent calls are enough.
#[tokio::test]
async fn tools_are_defined_only_from_recent_calls() {
    let engine = memory().await;
    let id = conversation(&engine).await;
    let mut events = vec![message(id, "go on")];
    for number in 0..400 {
        let tool = match number {
            0 => "list_files",
            399 => "edit_file",
            _ => "read_file",
        };
        let call_id = format!("c{number}");
        events.push(call(id, &call_id, tool));
        events.push(result(id, &call_id, "done"));
    }
    let answer = EventBody::MessageAppended(MessageAppended::text(Role::Assistant, "so"));
    events.push(NewEvent::new(id, answer));
    let outcome = append(&engine, events).await.unwrap();
    let compacted = EventBody::Compacted(Compacted {
        summary: "what was done".to_owned(),
        cut_revision: outcome.events.last().unwrap().revision,
        kept_turns: 0,
        tokens_before: 0,
        tokens_after: 0,
        trigger: CompactionTrigger::Manual,
        raw: None,
    });
    append(&engine, vec![NewEvent::new(id, compacted)])
        .await
        .unwrap();
    let (draft, _) = engine.draft(query(id)).await.unwrap();
    let offered: Vec<_> = draft.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(offered, ["read_file", "edit_file"]);
    engine.close().await;
}

// Knowledge from tool results is in the request if the policy enables it, in last place.
#[tokio::test]
async fn knowledge_is_in_the_request_if_enabled() {
    let engine = memory().await;
    let id = conversation(&engine).await;
    let found = result(id, "a", r#"["src/main.rs", "src/lib.rs"]"#);
    append(&engine, vec![call(id, "a", "list_files"), found])
        .await
        .unwrap();
    let policy = r#"{"enhancers": {"knowledge": {}}}"#.to_owned();
    let (draft, _) = engine
        .draft(BuildQuery {
            policy,
            ..query(id)
        })
        .await
        .unwrap();
    let last = draft.items.last().unwrap();
    assert_eq!(last.section, Section::Knowledge);
    assert!(text(last).contains("src/main.rs"), "{}", text(last));
    let (draft, _) = engine.draft(query(id)).await.unwrap();
    assert!(
        draft
            .items
            .iter()
            .all(|item| item.section != Section::Knowledge)
    );
    engine.close().await;
}
