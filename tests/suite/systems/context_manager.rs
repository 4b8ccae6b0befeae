//! Context manager: one conversation with many branches, each with its own settings; tools that
//! need approval; tasks that are delegated and return.
//!
//! | feature | test |
//! |---|---|
//! | message pool with O(1) look-up | [`message_is_read_by_its_revision`] |
//! | named branches with ordered history | [`named_branches_have_an_ordered_history`] |
//! | own system and user prompt | [`branches_have_their_own_system_and_user_prompt`] |
//! | config (model, mode, parameters) | [`each_branch_has_its_own_model_mode_and_parameters`] |
//! | first-class tool calls with approval | [`tool_calls_are_first_class_with_approval`] |
//! | enhancers | [`enhancers_can_be_switched_off_set_and_added`] |
//! | typed adapters | [`adapters_are_typed_for_each_provider`] |
//! | hierarchical contexts with summary and return | [`hierarchical_contexts_return_a_summary`] |
//! | all of it from the command line | [`context_manager_works_from_the_command_line`] |

use std::{sync::Arc, time::Duration};

use serde_json::json;
use treering::{
    context::{
        self, Content, ContextPolicy, Draft, EnhancerReport, Item, Message, Provider, Section,
        Speaker, WindowInput,
        cancellation::CancellationToken,
        enhancer::Enhancer,
        provider::{Adapter, anthropic, gemini, neutral, openai_chat, openai_responses},
    },
    domain::*,
    engine::*,
    proto::pb,
};

use super::*;
use crate::suite::grpc::harness::{branch_source, conversation_source, decision, read, reason};

const DEPLOY: &str = r#"{"service":"billing","to":"production"}"#;

async fn planning(world: &World) -> String {
    let opening = vec![
        EventBody::ConversationCreated(created("move to the new parser")),
        system_prompt("You plan changes to a compiler."),
        user("How do we replace the parser?"),
        assistant("In three steps; first the lexer."),
    ];
    world.begin(opening).await
}

async fn fork(world: &World, id: &str, at: u64, name: &str, system_prompt: &str) {
    let request = pb::ForkRequest {
        conversation_id: id.into(),
        at_revision: at,
        name: name.into(),
        system_prompt: system_prompt.into(),
        ..Default::default()
    };
    let fork = world.server.conversations().fork(request).await.unwrap();
    assert_eq!(fork.into_inner().branch.unwrap().fork_revision, at);
}

async fn lines_on(world: &World, id: &str, name: &str) -> Vec<String> {
    let query = pb::BuildRequest {
        branch: name.into(),
        ..next(id)
    };
    lines(&world.request(query).await.body)
}

/// Creates a conversation of this many events.
async fn long_talk(world: &World, events: usize) -> String {
    let mut opening = vec![EventBody::ConversationCreated(created("long"))];
    opening.extend((2..=events).map(|n| user(&format!("message number {n}"))));
    world.begin(opening).await
}

/// Reads a hundred events, spread over a conversation.
async fn look_ups(world: &World, id: &str, events: u64) {
    let source = EventSource::Conversation(conversation(id));
    for n in (0..100).map(|n| 2 + n * (events - 2) / 100) {
        let query = ReadQuery {
            from: n,
            to: n,
            ..ReadQuery::all(ns(), source.clone())
        };
        let found = world.engine().read_all(query).await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].event.header.revision, Revision(n));
    }
}

// Any message is read by its revision, without reading others. `treering-bench` measures that the
// length of the conversation does not matter.
#[tokio::test(flavor = "multi_thread")]
async fn message_is_read_by_its_revision() {
    let world = World::start().await;
    let many = 9_000;
    let long = long_talk(&world, many).await;
    let request = pb::ReadRequest {
        source: Some(conversation_source(&long)),
        from_revision: 4_711,
        to_revision: 4_711,
        ..Default::default()
    };
    let found = read(world.server.events(), request).await.unwrap();
    assert_eq!(found.len(), 1);
    let found = prost::Message::encode_to_vec(&found[0]);
    assert!(String::from_utf8_lossy(&found).contains("message number 4711"));

    look_ups(&world, &long, many as u64).await;
    world.end().await;
}

// Two ideas are tried from the same point. Messages of one branch must never appear on the other,
// each keeps its order, and both share what came before.
#[tokio::test(flavor = "multi_thread")]
async fn named_branches_have_an_ordered_history() {
    let world = World::start().await;
    let id = planning(&world).await;
    fork(&world, &id, 4, "recursive-descent", "").await;
    fork(&world, &id, 4, "generated", "").await;
    for n in 1..=3 {
        let text = |idea: &str| vec![user(&format!("{idea}, step {n}?")), assistant("Yes.")];
        world.on(&id, "recursive-descent", text("By hand")).await;
        world.on(&id, "generated", text("With a generator")).await;
    }
    for (name, idea) in [
        ("recursive-descent", "By hand"),
        ("generated", "With a generator"),
    ] {
        let said = lines_on(&world, &id, name).await;
        let asked: Vec<_> = said
            .iter()
            .filter(|line| line.starts_with("user"))
            .collect();
        let mut expected = vec!["user: How do we replace the parser?".to_owned()];
        expected.extend((1..=3).map(|n| format!("user: {idea}, step {n}?")));
        assert_eq!(asked, expected.iter().collect::<Vec<_>>());
        let request = pb::ReadRequest {
            source: Some(pb::read_request::Source::Branch(
                match branch_source(&id, name) {
                    pb::read_request::Source::Branch(branch) => branch,
                    _ => unreachable!(),
                },
            )),
            ..Default::default()
        };
        let events = read(world.server.events(), request).await.unwrap();
        let revisions: Vec<_> = events.iter().map(|event| event.revision).collect();
        assert!(
            revisions.is_sorted() && revisions[..4] == [1, 2, 3, 4],
            "{revisions:?}"
        );
        let source = EventSource::Branch {
            conversation: conversation(&id),
            branch: branch(name),
        };
        let own = world
            .engine()
            .read_all(ReadQuery::all(ns(), source))
            .await
            .unwrap();
        let own: Vec<_> = own
            .iter()
            .map(|event| event.event.header.revision.0)
            .collect();
        assert_eq!(revisions, own);
    }
    assert_eq!(lines_on(&world, &id, "main").await.len(), 3);
    let renamed = EventBody::BranchRenamed(BranchName::new("by-hand").unwrap());
    world.on(&id, "recursive-descent", vec![renamed]).await;
    assert_eq!(lines_on(&world, &id, "by-hand").await.len(), 9);
    let diff = pb::DiffRequest {
        conversation_id: id.clone(),
        left_branch: "by-hand".into(),
        right_branch: "generated".into(),
        ..Default::default()
    };
    let diff = world
        .server
        .conversations()
        .diff(diff)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(diff.ancestor_revision, 4);
    world.end().await;
}

// Branches with different instructions must not get each other's. A fork has its parent's until it
// sets its own, and earlier revisions keep their prompt.
#[tokio::test(flavor = "multi_thread")]
async fn branches_have_their_own_system_and_user_prompt() {
    let world = World::start().await;
    let id = planning(&world).await;
    fork(&world, &id, 4, "critic", "You look for what can go wrong.").await;
    fork(&world, &id, 4, "same", "").await;
    let prompt = |content: &str| PromptSet {
        id: "user".into(),
        content: content.into(),
    };
    let short = EventBody::UserPromptSet(prompt("Answer in one sentence."));
    world.on(&id, "critic", vec![short]).await;
    let plan = "system: You plan changes to a compiler.";
    let doubt = "system: You look for what can go wrong.";
    let asked = "user: How do we replace the parser?";
    assert_eq!(lines_on(&world, &id, "main").await[..2], [plan, asked]);
    assert_eq!(lines_on(&world, &id, "same").await[..2], [plan, asked]);
    let critic = lines_on(&world, &id, "critic").await;
    assert_eq!(critic[..3], [doubt, "user: Answer in one sentence.", asked]);
    let head = world.state_of(&id, "critic").await.head;
    let harder = EventBody::SystemPromptSet(prompt("You are a hostile reviewer."));
    world.on(&id, "critic", vec![harder]).await;
    let critic = lines_on(&world, &id, "critic").await;
    assert_eq!(critic[0], "system: You are a hostile reviewer.");
    let past = pb::BuildRequest {
        branch: "critic".into(),
        as_of_revision: head,
        ..next(&id)
    };
    assert_eq!(lines(&world.request(past).await.body)[0], doubt);
    let mut anthropic = next_for(&id, pb::Provider::Anthropic);
    anthropic.branch = "critic".into();
    let anthropic = world.request(anthropic).await.body;
    assert!(
        anthropic["system"].to_string().contains("hostile reviewer"),
        "{anthropic}"
    );
    let states = (
        world.state_of(&id, "main").await,
        world.state_of(&id, "critic").await,
    );
    assert_ne!(states.0.system_prompt, states.1.system_prompt);
    assert_eq!(states.0.user_prompt, None);
    assert!(states.1.user_prompt.is_some());
    world.end().await;
}

// A cheap model drafts with a high temperature on one branch, and the careful one stays on the
// other. A request must have the settings of its own branch.
#[tokio::test(flavor = "multi_thread")]
async fn each_branch_has_its_own_model_mode_and_parameters() {
    let world = World::start().await;
    let id = planning(&world).await;
    fork(&world, &id, 4, "drafts", "").await;
    let config = EventBody::ConfigChanged(Config {
        model_id: "gpt-4o-mini".into(),
        mode: "brainstorm".into(),
        parameters: [
            ("temperature".to_owned(), "1.20".to_owned()),
            ("top_p".to_owned(), "0.9".to_owned()),
        ]
        .into(),
    });
    world.on(&id, "drafts", vec![config]).await;
    for (name, model, mode, temperature) in [
        ("main", "gpt-4o", "agent", 0.2),
        ("drafts", "gpt-4o-mini", "brainstorm", 1.2),
    ] {
        let of = |provider| pb::BuildRequest {
            branch: name.into(),
            ..next_for(&id, provider)
        };
        let neutral = world.request(of(pb::Provider::Neutral)).await.body;
        assert_eq!(
            (&neutral["model"], &neutral["mode"]),
            (&json!(model), &json!(mode))
        );
        let chat = world.request(of(pb::Provider::OpenaiChat)).await.body;
        assert_eq!(
            (&chat["model"], &chat["temperature"]),
            (&json!(model), &json!(temperature))
        );
        let gemini = world.request(of(pb::Provider::Gemini)).await.body;
        assert_eq!(
            gemini["generationConfig"]["temperature"],
            json!(temperature)
        );
        let state = world.state_of(&id, name).await;
        assert_eq!(state.config.unwrap().mode, mode);
    }
    let other = pb::BuildRequest {
        model: "gpt-4.1".into(),
        ..next_for(&id, pb::Provider::OpenaiChat)
    };
    let other = world.contexts().build(other).await.unwrap().into_inner();
    let other: Value = serde_json::from_slice(&other.request).unwrap();
    assert_eq!(other["model"], "gpt-4.1", "a call may name another");
    world.end().await;
}

// An agent wants to deploy. The person approves one call and denies the other. Only the approved
// call may run, exactly as it was shown, and the model is told why the other was denied. A restart
// in between changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn tool_calls_are_first_class_with_approval() {
    let world = World::start().await;
    let deploy: Value = serde_json::from_str(DEPLOY).unwrap();
    let drop = json!({"table": "invoices_old"});
    let opening = vec![
        EventBody::ConversationCreated(created("release 4.2")),
        user("Deploy billing and clean up the old table."),
        assistant("Both need your word."),
        risky("call_d1", "deploy", &deploy),
        risky("call_x1", "drop_table", &drop),
        call("call_s1", "get_status", &json!({"service": "billing"})),
    ];
    let id = world.begin(opening).await;
    world
        .then(&id, vec![result("call_s1", "healthy, version 4.1")])
        .await;
    let asked = world.state(&id).await.head;
    fork(&world, &id, asked, "dry-run", "").await;
    let world = world.restart().await;
    let pending = pb::PendingRequest {
        branch: "main".into(),
        conversation_id: id.clone(),
        ..Default::default()
    };
    let waiting = world
        .server
        .tools()
        .pending(pending)
        .await
        .unwrap()
        .into_inner()
        .calls;
    let ids: Vec<_> = waiting.iter().map(|call| &*call.call_id).collect();
    assert_eq!(ids, ["call_d1", "call_x1"]);
    let own = world
        .engine()
        .pending(&ns(), Some(conversation(&id)), branch("main").as_ref(), 10)
        .await;
    assert_eq!(own.unwrap().len(), 2);
    let said = world.lines(&id).await;
    assert!(
        said[2].ends_with("? no result yet: the call waits for approval"),
        "{}",
        said[2]
    );

    let early = world
        .server
        .events()
        .append(batch(&id, [result("call_d1", "done")]))
        .await;
    assert_eq!(reason(&early.unwrap_err()), "CALL_NOT_APPROVED");
    let swapped = decision(
        "call_d1",
        r#"{"service":"billing","to":"staging"}"#,
        Decision::Approved,
    );
    let swapped = world.server.events().append(batch(&id, [swapped])).await;
    assert_eq!(reason(&swapped.unwrap_err()), "ARGUMENTS_CHANGED");
    let mut tools = world.server.tools();
    let wait = pb::WaitForDecisionRequest {
        conversation_id: id.clone(),
        call_id: "call_d1".into(),
        timeout_ms: 20_000,
        ..Default::default()
    };
    let runner = tokio::spawn(async move { tools.wait_for_decision(wait).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    world
        .then(&id, vec![decision("call_d1", DEPLOY, Decision::Approved)])
        .await;
    let decided = runner.await.unwrap().unwrap().into_inner();
    assert!(decided.decided);
    assert_eq!(decided.call.unwrap().status(), pb::CallStatus::Approved);
    let mut no = match decision("call_x1", &drop.to_string(), Decision::Denied) {
        EventBody::ApprovalDecided(decided) => decided,
        _ => unreachable!(),
    };
    no.reason = "audit needs it until June".into();
    world.then(&id, vec![EventBody::ApprovalDecided(no)]).await;
    let denied = world
        .server
        .events()
        .append(batch(&id, [result("call_x1", "dropped")]))
        .await;
    assert_eq!(reason(&denied.unwrap_err()), "CALL_NOT_APPROVED");
    world
        .then(&id, vec![result("call_d1", "billing 4.2 is live")])
        .await;

    let said = world.lines(&id).await;
    assert_eq!(said[2], format!("deploy({DEPLOY}) = billing 4.2 is live"));
    assert_eq!(
        said[3],
        r#"drop_table({"table":"invoices_old"}) ? denied by ada: audit needs it until June"#
    );
    let chat = world
        .request(next_for(&id, pb::Provider::OpenaiChat))
        .await
        .body;
    let calls = list(&chat["messages"][1]["tool_calls"]);
    assert_eq!(calls.len(), 3);
    assert!(chat.to_string().contains("audit needs it until June"));
    let forked = lines_on(&world, &id, "dry-run").await;
    assert!(
        forked[2].ends_with("waits for approval") && forked[3].ends_with("waits for approval"),
        "what was decided on one line is not decided on another: {forked:?}"
    );
    let still = pb::PendingRequest {
        conversation_id: id.clone(),
        branch: "dry-run".into(),
        ..Default::default()
    };
    let still = world.server.tools().pending(still).await.unwrap();
    assert_eq!(still.into_inner().calls.len(), 2);
    let history = pb::ToolHistoryRequest {
        conversation_id: id.clone(),
        tool: "deploy".into(),
        ..Default::default()
    };
    let history = world
        .server
        .tools()
        .history(history)
        .await
        .unwrap()
        .into_inner();
    let call = &history.calls[0];
    assert_eq!(
        (call.status(), &*call.decided_by),
        (pb::CallStatus::Succeeded, "ada")
    );
    world.end().await;
}

#[derive(Debug)]
struct House;

impl Enhancer for House {
    fn name(&self) -> &str {
        "house_rules"
    }

    fn enhance(
        &self,
        window: &WindowInput,
        _: &ContextPolicy,
        draft: &mut Draft,
    ) -> EnhancerReport {
        let text = format!("House rules of {}: no unsafe.", window.info.title);
        let message = Message::text(Speaker::User, text);
        draft.items.push(Item::new(
            Section::Other,
            "house_rules",
            Content::Message(message),
        ));
        EnhancerReport::ran("house_rules", "one rule", 1)
    }
}

// An enhancer is switched off, another is configured, and a third is added: by the call, by the
// conversation, and in the library. The explanation must say what each did.
#[tokio::test(flavor = "multi_thread")]
async fn enhancers_can_be_switched_off_set_and_added() {
    let world = World::start().await;
    let policy = json!({"enhancers": {"dialogue_summary": {"params": {"max_chars": 12}}}});
    let opening = vec![
        created_with("compiler", "context", &policy),
        system_prompt("You plan changes to a compiler."),
        user("How do we replace the parser?"),
        assistant("In three steps; first the lexer."),
        EventBody::SummaryRecorded(SummaryRecorded {
            content: "The parser is to be replaced in three steps.".into(),
            from_revision: Revision(1),
            to_revision: Revision(4),
        }),
    ];
    let id = world.begin(opening).await;
    let file = key("file", &json!("parser.rs"), "workspace");
    let secret = key("token_count", &json!(12), "workspace");
    world
        .contexts()
        .set(set(&id, vec![file, secret]))
        .await
        .unwrap();
    let request = world.request(next(&id)).await;
    let said = lines(&request.body);
    assert_eq!(
        tagged(&said, "DIALOGUE_SUMMARY"),
        Some("The parser i".into())
    );
    let names: Vec<_> = request
        .told
        .enhancers
        .iter()
        .map(|report| &*report.name)
        .collect();
    for name in [
        "system_prompt",
        "user_prompt",
        "tools",
        "compaction_summary",
        "messages",
        "tool_guidance",
        "tool_snapshots",
        "knowledge",
        "long_term_context",
        "active_context",
        "dialogue_summary",
    ] {
        assert!(names.contains(&name), "{name} of {names:?}");
    }
    let call = json!({"enhancers": {
        "system_prompt": {"enabled": false},
        "active_context": {"params": {"only": ["file"]}},
        "dialogue_summary": null}});
    let request = world.request(next_by(&id, &call)).await;
    let said = lines(&request.body);
    assert_eq!(said[0], "user: How do we replace the parser?");
    assert_eq!(
        tagged_json(&said, "SYSTEM_CONTEXT"),
        Some(json!({"file": "parser.rs"}))
    );
    let whole = "The parser is to be replaced in three steps.";
    assert_eq!(tagged(&said, "DIALOGUE_SUMMARY"), Some(whole.into()));
    let off = &request.told.enhancers[0];
    assert_eq!((&*off.name, off.enabled), ("system_prompt", false));

    let own = BuildQuery {
        enhancers: vec![Arc::new(House)],
        ..BuildQuery::new(
            BranchAddress::active(ns(), conversation(&id)),
            Provider::Anthropic,
        )
    };
    let built = world.engine().build(own).await.unwrap();
    let body = String::from_utf8(built.request).unwrap();
    assert!(
        body.contains("House rules of compiler: no unsafe."),
        "{body}"
    );
    let last = built.explanation.enhancers.last().unwrap();
    assert_eq!((&*last.name, &*last.did), ("house_rules", "one rule"));
    world.end().await;
}

/// An adapter of another crate, with its own type of body.
struct Transcript;

#[derive(serde::Serialize)]
struct Said {
    lines: usize,
    model: String,
}

impl Adapter for Transcript {
    type Body<'a> = Said;

    fn provider(&self) -> Provider {
        Provider::Neutral
    }

    fn adapt(
        &self,
        draft: &Draft,
        _: &ContextPolicy,
        _: &CancellationToken,
    ) -> Result<context::provider::AdaptedBody<Said>, context::RenderError> {
        Ok(context::provider::AdaptedBody {
            body: Said {
                lines: draft.items.len(),
                model: draft.config.model_id.clone(),
            },
            units: Vec::new(),
            warnings: Vec::new(),
        })
    }
}

// The same history must be sent to any provider in its own shape. With typed bodies a wrong one
// does not compile, and the server sends what the type says.
#[tokio::test(flavor = "multi_thread")]
async fn adapters_are_typed_for_each_provider() {
    let world = World::start().await;
    let id = planning(&world).await;
    let rest = vec![
        user("Start with the lexer."),
        assistant("I read it first."),
        call("call_1", "read_file", &json!({"path": "src/lexer.rs"})),
        call("call_2", "count_lines", &json!({"path": "src/lexer.rs"})),
        result("call_1", "fn next_token() {}"),
        result("call_2", "412"),
    ];
    world.then(&id, rest).await;
    let query = BuildQuery::new(
        BranchAddress::active(ns(), conversation(&id)),
        Provider::Neutral,
    );
    let (draft, _) = world.engine().draft(query).await.unwrap();
    let policy = ContextPolicy::default();
    let token = CancellationToken::default();
    macro_rules! typed {
        ($adapter:expr) => {{
            let adapted = $adapter.adapt(&draft, &policy, &token).unwrap();
            serde_json::to_value(&adapted.body).unwrap()
        }};
    }
    let chat = typed!(openai_chat::OpenAiChat);
    let responses = typed!(openai_responses::OpenAiResponses);
    let anthropic = typed!(anthropic::Anthropic);
    let gemini = typed!(gemini::Gemini);
    let neutral = typed!(neutral::Neutral);
    for (provider, typed) in [
        (pb::Provider::OpenaiChat, &chat),
        (pb::Provider::OpenaiResponses, &responses),
        (pb::Provider::Anthropic, &anthropic),
        (pb::Provider::Gemini, &gemini),
        (pb::Provider::Neutral, &neutral),
    ] {
        let sent = world.request(next_for(&id, provider)).await.body;
        assert_eq!(sent, *typed, "{provider:?}");
    }
    let call = &chat["messages"][4]["tool_calls"][0];
    assert_eq!(call["function"]["arguments"], r#"{"path":"src/lexer.rs"}"#);
    let items = list(&responses["input"]);
    let back = items
        .iter()
        .find(|item| item["type"] == "function_call_output");
    assert_eq!(back.unwrap()["call_id"], "call_1");
    let blocks = list(&anthropic["messages"]).last().unwrap();
    assert_eq!(
        (&blocks["role"], list(&blocks["content"]).len()),
        (&json!("user"), 2)
    );
    let parts = list(&gemini["contents"]).last().unwrap();
    assert_eq!(parts["parts"][1]["functionResponse"]["name"], "count_lines");
    let own = Transcript.adapt(&draft, &policy, &token).unwrap().body;
    assert_eq!((own.lines, &*own.model), (draft.items.len(), "gpt-4o"));
    world.end().await;
}

// A long search must not fill the main conversation. A child with its own model and prompt does it
// and survives a restart. The parent gets one message and the result of the call.
#[tokio::test(flavor = "multi_thread")]
async fn hierarchical_contexts_return_a_summary() {
    let world = World::start().await;
    let id = planning(&world).await;
    let ask = vec![
        user("Which parser generators handle our grammar?"),
        assistant("I let someone find out."),
        call(
            "call_q1",
            "research",
            &json!({"topic": "parser generators"}),
        ),
    ];
    world.then(&id, ask).await;
    let spawn = pb::SpawnRequest {
        conversation_id: id.clone(),
        call_id: "call_q1".into(),
        purpose: "compare parser generators".into(),
        title: "generators".into(),
        config: Some(pb::Config {
            model_id: "claude-haiku-4-5".into(),
            mode: "research".into(),
            ..Default::default()
        }),
        system_prompt: "You compare software.".into(),
        ..Default::default()
    };
    let child = world
        .contexts()
        .spawn(spawn)
        .await
        .unwrap()
        .into_inner()
        .child_id;
    let work = vec![
        user("Compare LALR and PEG generators for a grammar with 180 rules."),
        assistant("I look at lalrpop and pest."),
        call(
            "call_w1",
            "web_search",
            &json!({"query": "lalrpop vs pest"}),
        ),
        result("call_w1", &"a long page about lalrpop\n".repeat(300)),
        assistant("lalrpop fits: it takes left recursion, and reports conflicts."),
    ];
    world.then(&child, work).await;
    let world = world.restart().await;
    let of_child = world.request(next(&child)).await.body;
    assert_eq!(of_child["model"], "claude-haiku-4-5");
    let said = lines(&of_child);
    assert_eq!(said[0], "system: You compare software.");
    assert!(
        said.iter().all(|line| !line.contains("replace the parser")),
        "it shares no history"
    );
    let waiting = world.lines(&id).await;
    assert!(waiting.last().unwrap().starts_with("research("));
    assert!(waiting.iter().all(|line| !line.contains("lalrpop")));

    let end = pb::ReturnRequest {
        conversation_id: child.clone(),
        ..Default::default()
    };
    let returned = world.contexts().r#return(end).await.unwrap().into_inner();
    assert_eq!(
        returned.events.len(),
        3,
        "seal, summary and result in one step"
    );
    let said = world.lines(&id).await;
    let answer = "lalrpop fits: it takes left recursion, and reports conflicts.";
    assert_eq!(
        *said.last().unwrap(),
        format!(r#"research({{"topic":"parser generators"}}) = {answer}"#)
    );
    let state = world
        .engine()
        .conversation(&BranchAddress::active(ns(), conversation(&child)), None)
        .await;
    assert!(state.unwrap().summary.sealed);
    let more = world
        .server
        .events()
        .append(batch(&child, [user("Go on")]))
        .await;
    assert!(
        more.is_err(),
        "a returned sub-context accepts no more events"
    );
    let lineage = pb::LineageRequest {
        conversation_id: id.clone(),
        ..Default::default()
    };
    let lineage = world.server.conversations().lineage(lineage).await.unwrap();
    assert_eq!(lineage.into_inner().children, std::slice::from_ref(&child));

    let search = |include_sub_contexts| pb::SearchRequest {
        query: "\"long page about lalrpop\"".into(),
        conversation_id: id.clone(),
        include_sub_contexts,
        at_least: returned.events[2].position,
        ..Default::default()
    };
    for (with_children, found_in) in [(true, vec![child.clone()]), (false, Vec::new())] {
        let found = world.server.search().search(search(with_children)).await;
        let hits = found.unwrap().into_inner().hits;
        let mut places: Vec<_> = hits.into_iter().map(|hit| hit.conversation_id).collect();
        places.dedup();
        assert_eq!(places, found_in, "with children: {with_children}");
    }

    // A child that no call requested returns as a message.
    let own = SpawnCommand {
        purpose: "name the branch".into(),
        ..SpawnCommand::new(BranchAddress::active(ns(), conversation(&id)))
    };
    let own = world.engine().spawn(own).await.unwrap().child;
    let settings = world.request(next(&own.to_string())).await.body;
    assert_eq!(
        settings["model"], "gpt-4o",
        "its parent's, unless it has its own"
    );
    let end = ReturnCommand {
        summary: "Call it parser-lalr.".into(),
        ..ReturnCommand::new(ns(), own)
    };
    world.engine().return_sub_context(end).await.unwrap();
    let said = world.lines(&id).await;
    assert_eq!(
        *said.last().unwrap(),
        "user: [SUB-CONTEXT RESULT]\nCall it parser-lalr."
    );
    world.end().await;
}

// A person at a terminal decides, forks, compares and delegates a task. The agent's next request
// must show it.
#[tokio::test(flavor = "multi_thread")]
async fn context_manager_works_from_the_command_line() {
    let world = World::start().await;
    let id = planning(&world).await;
    world
        .cli(&[
            "fork",
            &id,
            "--at",
            "4",
            "--name",
            "critic",
            "--system-prompt",
            "You doubt.",
        ])
        .await;
    world
        .on(
            &id,
            "critic",
            vec![user("What can go wrong?"), assistant("Error messages.")],
        )
        .await;
    let branches = world.cli_json(&["show", &id]).await;
    let names: Vec<_> = list(&branches[0]["branch_list"])
        .iter()
        .map(|b| text(&b["name"]))
        .collect();
    assert_eq!(names, ["main", "critic"]);
    let log = world.cli_json(&["log", &id, "--branch", "critic"]).await;
    assert_eq!(log.len(), 7);
    let one = world
        .cli_json(&["log", &id, "--from", "3", "--to", "3"])
        .await;
    assert_eq!((one.len(), &one[0]["revision"]), (1, &json!(3)));
    let diff = world.cli(&["diff", &id, "main", "critic"]).await;
    assert!(diff.contains("What can go wrong?"), "{diff}");
    for (provider, field) in [
        ("openai-chat", "messages"),
        ("openai-responses", "input"),
        ("anthropic", "messages"),
        ("gemini", "contents"),
        ("neutral", "items"),
    ] {
        let arguments = [
            "context",
            &id,
            "-b",
            "critic",
            "--provider",
            provider,
            "--model",
            "m",
        ];
        let body = world.cli(&arguments).await;
        let body: Value = serde_json::from_str(&body).unwrap();
        assert!(!list(&body[field]).is_empty(), "{provider}");
        assert!(body.to_string().contains("You doubt."), "{provider}");
    }
    let without = world
        .cli(&["context", &id, "-b", "critic", "--without", "system_prompt"])
        .await;
    assert!(!without.contains("You doubt."), "{without}");

    let asked = vec![
        risky("call_d1", "deploy", &json!({"to": "production"})),
        risky("call_x1", "drop_table", &json!({"table": "invoices_old"})),
        call("call_q1", "research", &json!({"topic": "generators"})),
    ];
    world
        .then(&id, vec![user("Go."), assistant("I need your word.")])
        .await;
    world.then(&id, asked).await;
    let pending = world.cli_json(&["pending", &id]).await;
    assert_eq!(pending.len(), 2, "{pending:?}");
    world
        .cli(&[
            "approve", &id, "call_d1", "--by", "ada", "--reason", "tested",
        ])
        .await;
    world
        .cli(&["deny", &id, "call_x1", "--by", "ada", "--reason", "not yet"])
        .await;
    let spawned = world
        .cli_json(&[
            "sub",
            "spawn",
            &id,
            "--call",
            "call_q1",
            "--purpose",
            "compare",
            "--model",
            "claude-haiku-4-5",
            "--mode",
            "research",
            "--system-prompt",
            "You compare software.",
        ])
        .await;
    let child = text(&spawned[0]["child"]).to_owned();
    let body = world.cli(&["context", &child]).await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&body["model"], &body["mode"]),
        (&json!("claude-haiku-4-5"), &json!("research"))
    );
    world
        .cli(&["sub", "return", &child, "--summary", "Take lalrpop."])
        .await;
    let children = world.cli(&["sub", "ls", &id]).await;
    assert!(children.contains(&child[..8]), "{children}");
    let body = world.cli(&["context", &id]).await;
    let said = lines(&serde_json::from_str(&body).unwrap());
    let calls: Vec<_> = said.iter().rev().take(3).rev().collect();
    assert!(calls[0].ends_with("? no result yet: the call is approved and has not begun"));
    assert!(calls[1].ends_with("? denied by ada: not yet"), "{calls:?}");
    assert!(calls[2].ends_with("= Take lalrpop."), "{calls:?}");
    world.end().await;
}
