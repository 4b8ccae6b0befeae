//! Tool discovery: an agent begins with a few tools, searches for more, is told once how to use
//! them, and starts afresh after a compaction.
//!
//! | feature | test |
//! |---|---|
//! | discovered tools saved within the turn | [`discovered_tools_are_saved_within_the_turn`] |
//! | and between turns | [`discovered_tools_are_saved_between_turns_and_restarts`] |
//! | guidance injected once | [`guidance_is_injected_once`] |
//! | compaction to summary and last turns | [`compaction_leaves_the_summary_and_the_last_turns`] |
//! | with a full reset | [`compaction_resets_the_working_memory`] |
//! | summaries of outcomes without tool names | [`summaries_tell_outcomes_without_tool_names`] |
//! | tools and entities taken from results by rules | [`results_name_tools_and_entities`] |
//! | all of it from the command line | [`tool_discovery_works_from_the_command_line`], [`shell_script_can_act_as_an_agent`] |

use serde_json::json;
use treering::{domain::*, engine::*, proto::pb};

use super::*;

const HERO: &str = "Always send the whole section, not only the field that changes.";
const NAV: &str = "Items keep their order; give the index to move one.";

fn tools() -> EventBody {
    let query = json!({"query": {"type": "string"}});
    let mut answer = tool("finalAnswer", "Ends the turn.", &json!({}));
    answer.source = "core".into();
    EventBody::ToolsDefined {
        tools: vec![
            tool("searchTools", "Finds tools by what they do.", &query),
            hidden("updateSection", "Changes a section of a page.", HERO),
            hidden("getPage", "Reads a page.", "Slugs have no leading slash."),
            hidden("updateNavItem", "Changes an item of the navigation.", NAV),
            answer,
        ],
    }
}

fn discovered(names: &[&str]) -> EventBody {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    EventBody::ToolsDiscovered { names }
}

/// Creates a conversation in which the user wants a page changed, and the agent has searched and
/// found two tools.
async fn searching(world: &World) -> String {
    let opening = vec![
        EventBody::ConversationCreated(created("home page")),
        system_prompt("You edit a website. Look for tools before you act."),
        tools(),
        user("Change the hero title of the home page to Welcome."),
        assistant("I look for what I need."),
        call(
            "call_s1",
            "searchTools",
            &json!({"query": "page section update"}),
        ),
        result("call_s1", r#"{"tools": ["getPage", "updateSection"]}"#),
        discovered(&["getPage", "updateSection"]),
    ];
    world.begin(opening).await
}

/// Creates a conversation in which the change was made and the turn has ended.
async fn changed(world: &World) -> String {
    let id = searching(world).await;
    let section = json!({"page": "home", "section": "hero-7", "title": "Welcome"});
    let rest = vec![
        assistant("Now I change it."),
        call("call_u1", "updateSection", &section),
        result("call_u1", r#"{"ok": true, "sectionId": "hero-7"}"#),
        EventBody::EntitiesNoted {
            entities: vec![Entity {
                id: "hero-7".into(),
                kind: "section".into(),
                name: "Hero".into(),
            }],
        },
        assistant("The hero title of Home is \"Welcome\" now (section hero-7)."),
    ];
    world.then(&id, rest).await;
    id
}

/// Appends this many more turns, each a question and an answer.
async fn chat(world: &World, id: &str, turns: usize) {
    for n in 1..=turns {
        let turn = vec![
            user(&format!(
                "What else could we do with the home page, idea {n}?"
            )),
            assistant(&format!("Idea {n}: a photo of the harbour at the top.")),
        ];
        world.then(id, turn).await;
    }
}

fn names(tools: &Value) -> Vec<&str> {
    list(tools).iter().map(|tool| text(&tool["name"])).collect()
}

async fn offered(world: &World, id: &str) -> Vec<String> {
    let request = world.request(next(id)).await;
    let names = names(&request.body["tools"]);
    names.into_iter().map(str::to_owned).collect()
}

/// Returns the guidance blocks of a request.
async fn guidance(world: &World, id: &str) -> Vec<String> {
    let said = world.lines(id).await;
    let told = said
        .into_iter()
        .filter(|line| line.contains("[TOOL GUIDANCE]"));
    told.collect()
}

async fn compact(world: &World, id: &str, summary: &str, keep: u32) -> pb::CompactResponse {
    let request = pb::CompactRequest {
        conversation_id: id.into(),
        summary: summary.into(),
        keep_turns: Some(keep),
        trigger: pb::CompactionTrigger::Manual.into(),
        ..Default::default()
    };
    world
        .contexts()
        .compact(request)
        .await
        .unwrap()
        .into_inner()
}

// An agent searches and gets three tool names. It must be able to call the tools in the very next
// step.
#[tokio::test(flavor = "multi_thread")]
async fn discovered_tools_are_saved_within_the_turn() {
    let world = World::start().await;
    let id = searching(&world).await;
    assert!(world.state(&id).await.turn_open);
    assert_eq!(
        world.state(&id).await.discovered_tools,
        ["getPage", "updateSection"]
    );
    let expected = ["searchTools", "finalAnswer", "getPage", "updateSection"];
    assert_eq!(offered(&world, &id).await, expected);
    let chat = world.request(next_for(&id, pb::Provider::OpenaiChat)).await;
    let functions: Vec<_> = list(&chat.body["tools"])
        .iter()
        .map(|tool| text(&tool["function"]["name"]))
        .collect();
    assert_eq!(functions, expected);
    // Before the search there were two.
    let before = pb::BuildRequest {
        as_of_revision: 6,
        ..next(&id)
    };
    let before = world.request(before).await;
    assert_eq!(names(&before.body["tools"]), ["searchTools", "finalAnswer"]);
    world.end().await;
}

// The user continues the next day, in another process. The tools must still be there, in the order
// in which they were found, and none twice.
#[tokio::test(flavor = "multi_thread")]
async fn discovered_tools_are_saved_between_turns_and_restarts() {
    let world = World::start().await;
    let id = changed(&world).await;
    world.then(&id, vec![user("Now the menu.")]).await;
    let world = world.restart().await;
    let all = ["searchTools", "finalAnswer", "getPage", "updateSection"];
    assert_eq!(offered(&world, &id).await, all);
    let again = vec![discovered(&["updateSection", "updateNavItem"])];
    world.then(&id, again).await;
    let world = world.restart().await;
    let found = ["getPage", "updateSection", "updateNavItem"];
    let state = world.state(&id).await;
    assert_eq!(state.discovered_tools, found);
    assert_eq!(state.tool_uses["updateSection"], 1);
    assert_eq!(offered(&world, &id).await[2..], found);

    // A tool that is discovered on one branch is not available on another.
    let before_the_search = pb::ForkRequest {
        conversation_id: id.clone(),
        at_revision: 5,
        name: "menu-first".into(),
        ..Default::default()
    };
    let forked = world.server.conversations().fork(before_the_search).await;
    forked.unwrap();
    world
        .on(&id, "menu-first", vec![discovered(&["updateNavItem"])])
        .await;
    let other = pb::BuildRequest {
        branch: "menu-first".into(),
        ..next(&id)
    };
    let other = world.request(other).await;
    assert_eq!(
        names(&other.body["tools"])[2..],
        ["updateNavItem"],
        "on the fork"
    );
    assert_eq!(world.state(&id).await.discovered_tools, found);
    world.end().await;
}

// Guidance that is repeated at each step fills the window. It must be given once, where the tool
// was found, even if it is found again, and earlier items must not move.
#[tokio::test(flavor = "multi_thread")]
async fn guidance_is_injected_once() {
    let world = World::start().await;
    let id = searching(&world).await;
    let first = world.lines(&id).await;
    let told = guidance(&world, &id).await;
    assert_eq!(
        told,
        [format!(
            "user: [TOOL GUIDANCE]\ngetPage: Slugs have no leading slash.\n\nupdateSection: {HERO}"
        )]
    );
    assert_eq!(
        first.last(),
        told.last(),
        "guidance is sent where the tools were found"
    );
    let given = EventBody::GuidanceGiven {
        guidance: vec![Guidance {
            tool: "updateSection".into(),
            text: HERO.into(),
        }],
    };
    world.then(&id, vec![given]).await;
    assert_eq!(world.state(&id).await.guidance_given, ["updateSection"]);
    let section = json!({"section": "hero-7"});
    let rest = vec![
        assistant("I change the title."),
        call("call_u1", "updateSection", &section),
        result("call_u1", "ok"),
        discovered(&["updateSection", "updateNavItem"]),
        assistant("Done."),
        user("And the menu?"),
    ];
    world.then(&id, rest).await;
    let told = guidance(&world, &id).await;
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(
        told[1],
        format!("user: [TOOL GUIDANCE]\nupdateNavItem: {NAV}")
    );
    let all = told.join("\n");
    assert_eq!(all.matches(HERO).count(), 1);
    let later = world.lines(&id).await;
    assert_eq!(later[..first.len()], first, "the sent prefix is unchanged");
    let request = world.request(next(&id)).await;
    assert_eq!(request.told.guidance_missing, Vec::<String>::new());
    world.end().await;
}

// After a compaction, the model gets the summary in place of the old turns, and the last turns word
// for word. The old ones stay readable.
#[tokio::test(flavor = "multi_thread")]
async fn compaction_leaves_the_summary_and_the_last_turns() {
    let world = World::start().await;
    let id = changed(&world).await;
    chat(&world, &id, 5).await;
    let before = world.state(&id).await;
    let plan = pb::PlanCompactionRequest {
        conversation_id: id.clone(),
        ..Default::default()
    };
    let plan = world.contexts().plan_compaction(plan).await.unwrap();
    let plan = plan.into_inner().plan.unwrap();
    let own = world
        .engine()
        .plan_compaction(PlanQuery::new(BranchAddress::active(
            ns(),
            conversation(&id),
        )))
        .await;
    let own = own.unwrap();
    assert_eq!(
        (plan.cut_revision, plan.tokens_before),
        (own.cut.unwrap().0, own.tokens_before)
    );
    assert_eq!((plan.kept_turns, plan.summarised_turns), (3, 3));
    assert!(plan.tokens_kept < plan.tokens_before);

    let summary = "Continuing about the home page: the hero title (section hero-7) is \"Welcome\".";
    let done = compact(&world, &id, summary, 3).await;
    assert_eq!(done.cut_revision, plan.cut_revision);
    assert_eq!(done.warnings, Vec::<String>::new());
    assert!(done.tokens_after < done.tokens_before);
    let said = world.lines(&id).await;
    assert_eq!(
        said[0],
        "system: You edit a website. Look for tools before you act."
    );
    assert!(said[1].contains(summary), "{}", said[1]);
    let kept = said[2..]
        .iter()
        .filter(|line| line.starts_with("user: What else"))
        .count();
    assert_eq!((kept, said.len()), (3, 8), "{said:?}");
    let after = world.state(&id).await;
    assert_eq!(after.compaction.unwrap().revision, before.head + 1);

    let expand = pb::ExpandRequest {
        conversation_id: id.clone(),
        ..Default::default()
    };
    let mut stream = world.contexts().expand(expand).await.unwrap().into_inner();
    let mut originals = Vec::new();
    while let Some(page) = stream.message().await.unwrap() {
        originals.extend(page.events);
    }
    let revisions: Vec<_> = originals.iter().map(|event| event.revision).collect();
    assert_eq!(revisions, (1..=plan.cut_revision).collect::<Vec<_>>());
    world.end().await;
}

// A framework appends only messages, calls and results. The tools that a search returned must be
// offered in the next step, with their guidance. The ids in results must be in the summary after a
// compaction, without an extra event.
#[tokio::test(flavor = "multi_thread")]
async fn results_name_tools_and_entities() {
    let world = World::start().await;
    let policy = json!({"rules": {"pages": {
        "tools": {"names": ["getPage"]}, "gives": "entities", "kind": "page",
        "id_keys": ["pageId", "id"], "list_keys": ["page", "sections"],
    }}});
    let page = json!({"page": {"pageId": "home-1", "title": "Home", "sections": [
        {"id": "hero-7", "type": "section", "name": "Hero"}, {"id": 12, "type": "section"},
    ]}, "author": {"id": "nobody"}});
    let opening = vec![
        created_with("home page", "knowledge", &policy),
        system_prompt("You edit a website. Look for tools before you act."),
        tools(),
        user("Change the hero title of the home page to Welcome."),
        call("call_s1", "searchTools", &json!({"query": "page"})),
        result(
            "call_s1",
            r#"{"tools": ["getPage", {"name": "updateSection"}]}"#,
        ),
    ];
    let id = world.begin(opening).await;
    let all = ["searchTools", "finalAnswer", "getPage", "updateSection"];
    assert_eq!(offered(&world, &id).await, all);
    let told = guidance(&world, &id).await;
    assert_eq!(
        told,
        [format!(
            "user: [TOOL GUIDANCE]\ngetPage: Slugs have no leading slash.\n\nupdateSection: {HERO}"
        )]
    );
    let rest = vec![
        call("call_p1", "getPage", &json!({"page": "home"})),
        result("call_p1", &page.to_string()),
        // A failed search finds nothing.
        call("call_s2", "searchTools", &json!({"query": "menu"})),
        failure("call_s2", r#"{"tools": ["updateNavItem"]}"#),
        assistant("Done."),
    ];
    world.then(&id, rest).await;
    assert_eq!(offered(&world, &id).await, all);
    assert_eq!(guidance(&world, &id).await, told);

    chat(&world, &id, 1).await;
    compact(&world, &id, "The hero title is Welcome.", 1).await;
    let said = world.lines(&id).await;
    let summary = said.iter().find(|line| line.contains("is Welcome."));
    let noted = "Entities: 12 (section); hero-7 (section, Hero); home-1 (page, Home)";
    assert!(summary.unwrap().contains(noted), "{said:?}");
    assert_eq!(offered(&world, &id).await, ["searchTools", "finalAnswer"]);
    world.end().await;
}

// Tools are discovered for one task. After a compaction the agent has only its core tools, gets the
// guidance again for tools that it finds again, and loses nothing but its working memory.
#[tokio::test(flavor = "multi_thread")]
async fn compaction_resets_the_working_memory() {
    let world = World::start().await;
    let id = changed(&world).await;
    let pages = vec![
        user("Which pages are there?"),
        call("call_p1", "list_pages", &json!({"cwd": "/site"})),
        result("call_p1", r#"["home.md", "about.md"]"#),
        assistant("Home and About."),
    ];
    world.then(&id, pages).await;
    let file = key("open_page", &json!("home"), "editor");
    world.contexts().set(set(&id, vec![file])).await.unwrap();
    chat(&world, &id, 2).await;
    let before = world.state(&id).await;
    assert_eq!(before.entities[0].id, "hero-7");
    compact(
        &world,
        &id,
        "The hero title (section hero-7) is Welcome.",
        2,
    )
    .await;

    let world = world.restart().await;
    let state = world.state(&id).await;
    assert!(state.discovered_tools.is_empty() && state.guidance_given.is_empty());
    assert!(state.entities.is_empty() && state.tool_uses.is_empty());
    let own = world
        .engine()
        .conversation(&BranchAddress::active(ns(), conversation(&id)), None)
        .await;
    assert_eq!(own.unwrap().branch.memory, WorkingMemory::default());
    assert_eq!(state.active_context.len(), 1, "the workspace is unchanged");
    assert_eq!(state.system_prompt, before.system_prompt);
    let knowledge = KnowledgeQuery::new(BranchAddress::active(ns(), conversation(&id)));
    let known = world.engine().knowledge(knowledge).await.unwrap().knowledge;
    assert_eq!(known.files().len(), 2, "known facts are kept");
    assert_eq!(offered(&world, &id).await, ["searchTools", "finalAnswer"]);
    assert!(guidance(&world, &id).await.is_empty());

    let found = vec![
        user("Now update the footer."),
        assistant("I look for it."),
        call("call_s2", "searchTools", &json!({"query": "navigation"})),
        result("call_s2", r#"{"tools": ["updateNavItem"]}"#),
        discovered(&["updateNavItem"]),
    ];
    world.then(&id, found).await;
    assert_eq!(offered(&world, &id).await[2..], ["updateNavItem"]);
    let told = guidance(&world, &id).await;
    assert_eq!(
        told,
        [format!("user: [TOOL GUIDANCE]\nupdateNavItem: {NAV}")]
    );

    // The same if the turn that found them is kept.
    let kept = searching(&world).await;
    world.then(&kept, vec![assistant("I found two.")]).await;
    let again = vec![
        user("And now?"),
        discovered(&["updateNavItem"]),
        assistant("The menu, too."),
    ];
    world.then(&kept, again).await;
    compact(&world, &kept, "Ways to edit the home page were found.", 1).await;
    assert_eq!(offered(&world, &kept).await, ["searchTools", "finalAnswer"]);
    assert!(guidance(&world, &kept).await.is_empty());
    let said = world.lines(&kept).await;
    assert_eq!(said[2..], ["user: And now?", "assistant: The menu, too."]);
    world.end().await;
}

// A summary with "used updateSection" makes the model call a tool that it no longer has. Neither
// the summariser's instructions, nor its input, nor the engine's own summary may name a tool,
// except in a user's words. A summary that does gives a warning.
#[tokio::test(flavor = "multi_thread")]
async fn summaries_tell_outcomes_without_tool_names() {
    let world = World::start().await;
    let id = changed(&world).await;
    chat(&world, &id, 1).await;
    let plan = pb::PlanCompactionRequest {
        conversation_id: id.clone(),
        keep_turns: Some(1),
        ..Default::default()
    };
    let plan = world.contexts().plan_compaction(plan).await.unwrap();
    let plan = plan.into_inner().plan.unwrap();
    for written in [&plan.instruction, &plan.material, &plan.extract] {
        for name in ["updateSection", "searchTools", "getPage"] {
            assert!(!written.contains(name), "{name} in: {written}");
        }
    }
    assert!(plan.material.contains("hero-7") && plan.extract.contains("Welcome"));
    assert!(plan.instruction.contains("Outcomes") && plan.instruction.contains("Preferences"));

    let naming = "Used updateSection to change the hero title.";
    let request = pb::CompactRequest {
        idempotency_key: "first".into(),
        conversation_id: id.clone(),
        summary: naming.into(),
        keep_turns: Some(1),
        trigger: pb::CompactionTrigger::Manual.into(),
        ..Default::default()
    };
    let warned = world
        .contexts()
        .compact(request)
        .await
        .unwrap()
        .into_inner()
        .warnings;
    assert!(
        warned.iter().any(|text| text.contains("updateSection")),
        "{warned:?}"
    );
    let other = changed(&world).await;
    chat(&world, &other, 1).await;
    let own = CompactCommand {
        keep_turns: Some(1),
        ..CompactCommand::new(BranchAddress::active(ns(), conversation(&other)))
    };
    let extract = world.engine().compact(own).await.unwrap();
    assert_eq!(extract.warnings, Vec::<String>::new());
    let said = world.lines(&other).await;
    assert!(
        said[1].contains("Welcome") && !said[1].contains("updateSection"),
        "{}",
        said[1]
    );
    world.end().await;
}

// A person at a terminal lists the discovered tools, clears them, and reads the events behind the
// summary.
#[tokio::test(flavor = "multi_thread")]
async fn tool_discovery_works_from_the_command_line() {
    let world = World::start().await;
    let id = changed(&world).await;
    chat(&world, &id, 2).await;
    let tools = world.cli_json(&["tools", &id, "--offered"]).await;
    let found: Vec<_> = tools
        .iter()
        .filter(|tool| tool["discovered"] == true)
        .map(|tool| text(&tool["tool"]))
        .collect();
    // In the order of their definition.
    assert_eq!(found, ["updateSection", "getPage"]);
    let hidden = tools
        .iter()
        .find(|tool| tool["tool"] == "updateNavItem")
        .unwrap();
    assert_eq!(hidden["offered"], false);
    let built = world.cli(&["context", &id]).await;
    assert_eq!(
        built.matches(HERO).count(),
        2,
        "in its definition, and told once"
    );
    let shown = world.cli_json(&["show", &id]).await;
    assert_eq!(
        shown[0]["branch"]["discovered_tools"],
        json!(["getPage", "updateSection"])
    );

    let plan = world
        .cli_json(&["compact", &id, "plan", "--keep-turns", "1"])
        .await;
    assert_eq!(plan[0]["summarised_turns"], 2);
    let material = world
        .cli(&["compact", &id, "plan", "--keep-turns", "1", "--material"])
        .await;
    assert!(
        material.contains("hero-7") && !material.contains("updateSection"),
        "{material}"
    );
    let summary = "The updateSection tool set the hero title to Welcome.";
    let warned = world
        .cli_json(&[
            "compact",
            &id,
            "apply",
            "--keep-turns",
            "1",
            "--summary",
            summary,
        ])
        .await;
    let warnings = warned[0]["warnings"].to_string();
    assert!(warnings.contains("updateSection"), "{warned:?}");
    let originals = world.cli(&["compact", &id, "expand"]).await;
    assert!(
        originals.contains("Change the hero title of the home page"),
        "{originals}"
    );
    let tools = world.cli_json(&["tools", &id, "--offered"]).await;
    assert!(
        tools.iter().all(|tool| tool["discovered"] == false),
        "{tools:?}"
    );
    world.end().await;
}

// A shell script can be an agent: every part of a request can be appended from the command line,
// where the rules apply, too.
#[tokio::test(flavor = "multi_thread")]
async fn shell_script_can_act_as_an_agent() {
    let world = World::start().await;
    let tools = r#"[{"name": "searchTools", "input_schema": {"type": "object"}},
        {"name": "getPage", "discoverable": true, "guidance": "Slugs have no leading slash."}]"#;
    let opened = ["append", "new", "message", "user", "Change the home page."];
    let begun = world.cli_json(&opened).await;
    let id = text(&begun[0]["events"][0]["conversation"]).to_owned();
    let append = async |words: &[&str]| world.cli(&[&["append", &id], words].concat()).await;
    append(&[
        "config",
        "--model",
        "gpt-4o",
        "--parameter",
        "temperature=0.2",
    ])
    .await;
    append(&["system-prompt", "You edit a website."]).await;
    append(&["tools", tools]).await;
    append(&["call", "call_1", "searchTools", r#"{"query": "page"}"#]).await;
    append(&["result", "call_1", "getPage", "--ms", "12"]).await;
    append(&["discovered", "getPage"]).await;
    append(&["entity", "pg_7", "page", "Home"]).await;
    append(&["message", "assistant", "I can read it now."]).await;
    append(&["summary", "The user wants the home page changed."]).await;

    let late = ["append", &id, "result", "call_1", "again"];
    let (code, _, refused) = world.try_cli(&late).await;
    assert!(code != Some(0) && refused.contains("call_1"), "{refused}");
    let stale = ["append", &id, "--expect", "3", "message", "user", "hello"];
    assert_ne!(world.try_cli(&stale).await.0, Some(0));

    let built = world
        .cli_json(&["context", &id, "--provider", "openai-chat"])
        .await;
    let body = &built[0]["request"];
    assert_eq!(
        (text(&body["model"]), &body["temperature"]),
        ("gpt-4o", &json!(0.2))
    );
    assert_eq!(list(&body["tools"]).len(), 2, "core and discovered");
    let said = body["messages"].to_string();
    for part in [
        "You edit a website.",
        "[TOOL GUIDANCE]",
        "no leading slash",
        "home page changed",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    world.end().await;
}
