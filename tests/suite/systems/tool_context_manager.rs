//! Tool context management: tool results become knowledge, so that nobody has to repeat a path. The
//! example is an agent that analyses ocean data.
//!
//! | feature | test |
//! |---|---|
//! | full tool result record (name, arguments, result, time, success, error, duration) | [`tool_call_record_has_arguments_result_and_duration`] |
//! | files and variables extracted by pattern | [`files_and_variables_are_extracted_by_pattern`] |
//! | queries over results | [`results_are_queried_by_tool_and_outcome`] |
//! | argument suggestion | [`arguments_are_suggested`] |
//! | prerequisites | [`prerequisite_is_missing_until_it_succeeds`] |
//! | guidance | [`guidance_follows_the_gathered_knowledge`] |
//! | summary for prompts | [`knowledge_summary_is_bounded_and_in_the_request`] |
//! | isolation by conversation | [`knowledge_is_isolated_by_conversation`] |
//! | all of it from the command line | [`tool_knowledge_works_from_the_command_line`] |

use serde_json::json;
use treering::{domain::*, engine::*, proto::pb};

use super::*;

const LISTING: &str = r#"["data/sst_2024.nc", "data/salinity_2024.nc", "data/readme.txt"]"#;
const VARIABLES: &str =
    r#"{"sst": {"units": "kelvin", "shape": [365, 180, 360]}, "lat": {"units": "degrees"}}"#;

fn opening(policy: &Value) -> Vec<EventBody> {
    let read = json!({"filename": {"type": "string"}, "variable_name": {"type": "string"}});
    vec![
        created_with("sea surface", "knowledge", policy),
        EventBody::ToolsDefined {
            tools: vec![
                tool("list_files", "Lists data files.", &json!({})),
                tool(
                    "inspect_variables",
                    "Shows a file's variables.",
                    &json!({"filename": {}}),
                ),
                tool("plot_map", "Draws a map.", &read),
            ],
        },
        user("Was 2024 warmer than usual?"),
    ]
}

fn returned(call_id: &str, text: &str, execution_time_ms: u64) -> EventBody {
    EventBody::ToolResultRecorded(ToolResultRecorded {
        execution_time_ms: Some(execution_time_ms),
        ..ToolResultRecorded::text(call_id, text)
    })
}

async fn listed(world: &World, id: &str) {
    let events = vec![
        assistant("I look at what there is."),
        call("call_l1", "list_files", &json!({"cwd": "/srv/ocean"})),
        returned("call_l1", LISTING, 48),
    ];
    world.then(id, events).await;
}

async fn inspected(world: &World, id: &str) {
    let events = vec![
        call(
            "call_i1",
            "inspect_variables",
            &json!({"filename": "data/sst_2024.nc"}),
        ),
        returned("call_i1", VARIABLES, 312),
    ];
    world.then(id, events).await;
}

/// Creates a conversation in which files are known, one was inspected, and a plot failed.
async fn analysing(world: &World) -> String {
    let id = world.begin(opening(&json!({}))).await;
    listed(world, &id).await;
    inspected(world, &id).await;
    let plot = json!({"filename": "data/sst_2024.nc", "variable_name": "sst"});
    let events = vec![
        call("call_p1", "plot_map", &plot),
        failure("call_p1", "no display"),
    ];
    world.then(&id, events).await;
    id
}

/// Returns what is known. gRPC and the library must agree.
async fn known(world: &World, request: pb::KnowledgeRequest) -> pb::KnowledgeResponse {
    let own = KnowledgeQuery {
        as_of: Some(Revision(request.as_of_revision)).filter(|at| *at > Revision::NONE),
        recent: request.recent as usize,
        tool: Some(request.tool.clone()).filter(|tool| !tool.is_empty()),
        ..KnowledgeQuery::new(BranchAddress {
            namespace: ns(),
            conversation: conversation(&request.conversation_id),
            branch: branch(&request.branch),
        })
    };
    let answer = world
        .server
        .tools()
        .knowledge(request)
        .await
        .unwrap()
        .into_inner();
    let own = world.engine().knowledge(own).await.unwrap();
    let knowledge = &own.knowledge;
    assert_eq!(answer.revision, own.revision.0);
    let files: Vec<_> = answer.files.iter().map(|file| &*file.path).collect();
    let paths: Vec<_> = knowledge.files().iter().map(|file| &*file.path).collect();
    assert_eq!(files, paths);
    let variables: Vec<_> = answer
        .variables
        .iter()
        .map(|of_file| &*of_file.file)
        .collect();
    let analysed: Vec<_> = knowledge
        .variables()
        .iter()
        .map(|of_file| &*of_file.file)
        .collect();
    assert_eq!(variables, analysed);
    assert_eq!(answer.summary, knowledge.summary_text());
    for tool in &answer.tools {
        assert_eq!(
            tool.succeeded > 0,
            knowledge.has_succeeded(&tool.tool),
            "{}",
            tool.tool
        );
    }
    answer
}

fn all(id: &str) -> pb::KnowledgeRequest {
    pb::KnowledgeRequest {
        conversation_id: id.into(),
        recent: 5,
        ..Default::default()
    }
}

async fn suggested(
    world: &World,
    id: &str,
    tool: &str,
    arguments: &str,
) -> pb::SuggestArgumentsResponse {
    let request = pb::SuggestArgumentsRequest {
        conversation_id: id.into(),
        tool: tool.into(),
        arguments: arguments.to_owned().into(),
        ..Default::default()
    };
    let answer = world
        .server
        .tools()
        .suggest_arguments(request)
        .await
        .unwrap()
        .into_inner();
    let own = world
        .engine()
        .suggest_arguments(
            &BranchAddress::active(ns(), conversation(id)),
            tool,
            arguments,
        )
        .await
        .unwrap();
    assert_eq!(answer.arguments, own.arguments.as_bytes());
    assert_eq!(answer.suggestions.len(), own.suggestions.len());
    answer
}

async fn missing(world: &World, id: &str, tool: &str) -> Vec<String> {
    let request = pb::MissingPrerequisitesRequest {
        conversation_id: id.into(),
        tool: tool.into(),
        ..Default::default()
    };
    let answer = world
        .server
        .tools()
        .missing_prerequisites(request)
        .await
        .unwrap();
    let answer = answer.into_inner();
    let own = world
        .engine()
        .missing_prerequisites(&BranchAddress::active(ns(), conversation(id)), tool)
        .await
        .unwrap();
    assert_eq!(
        (&answer.missing, &answer.configured),
        (&own.missing, &own.configured)
    );
    answer.missing
}

async fn guidance(world: &World, id: &str) -> String {
    let request = pb::GuidanceRequest {
        conversation_id: id.into(),
        ..Default::default()
    };
    let answer = world
        .server
        .tools()
        .guidance(request)
        .await
        .unwrap()
        .into_inner()
        .guidance;
    let own = world
        .engine()
        .tool_guidance(&BranchAddress::active(ns(), conversation(id)))
        .await
        .unwrap();
    assert_eq!(answer, own);
    answer
}

// When a chart is wrong, someone needs the tool's exact arguments, its result, its time and its
// duration, also of a failed call.
#[tokio::test(flavor = "multi_thread")]
async fn tool_call_record_has_arguments_result_and_duration() {
    let world = World::start().await;
    let id = analysing(&world).await;
    let world = world.restart().await;
    let request = pb::ToolHistoryRequest {
        conversation_id: id.clone(),
        ..Default::default()
    };
    let calls = world
        .server
        .tools()
        .history(request)
        .await
        .unwrap()
        .into_inner()
        .calls;
    let [failed, inspected, listed] = &calls[..] else {
        panic!("{calls:?}")
    };
    assert_eq!(inspected.tool, "inspect_variables");
    assert_eq!(
        inspected.arguments,
        &br#"{"filename":"data/sst_2024.nc"}"#[..]
    );
    assert_eq!(inspected.execution_time_ms, Some(312));
    assert_eq!(inspected.result_bytes, VARIABLES.len() as u64);
    assert!(inspected.ended_at.is_some() && inspected.requested_at.is_some());
    assert_eq!(listed.status(), pb::CallStatus::Succeeded);
    assert_eq!(
        (failed.status(), &*failed.error_message),
        (pb::CallStatus::Failed, "no display")
    );
    let which = WhichResult::CallId("call_i1".into());
    let whole = world
        .engine()
        .result(&BranchAddress::active(ns(), conversation(&id)), which)
        .await
        .unwrap();
    assert_eq!(
        (&*whole.tool, &*whole.text, whole.result.success),
        ("inspect_variables", VARIABLES, true)
    );
    let recorded = pb::RecordedRequest {
        conversation_id: id.clone(),
        tool: "inspect_variables".into(),
        arguments: r#"{ "filename": "data/sst_2024.nc" }"#.into(),
        ..Default::default()
    };
    let recorded = world
        .server
        .tools()
        .recorded(recorded)
        .await
        .unwrap()
        .into_inner();
    assert!(recorded.found);
    assert_eq!(recorded.call.unwrap().call_id, "call_i1");
    world.end().await;
}

// An agent that has listed files must not ask the user for a path. Whatever the tools are called,
// lists give files, inspections give variables, and `cwd` gives the directory, from JSON and from
// plain text. Failed calls give nothing.
#[tokio::test(flavor = "multi_thread")]
async fn files_and_variables_are_extracted_by_pattern() {
    let world = World::start().await;
    let id = analysing(&world).await;
    let broken = EventBody::ToolResultRecorded(ToolResultRecorded {
        success: false,
        ..ToolResultRecorded::text("call_d1", r#"["grids/unreadable.nc"]"#)
    });
    let more = vec![
        call("call_f1", "find_logs", &json!({})),
        result("call_f1", "logs/run_1.log\nlogs/run_2.log\n"),
        call("call_d1", "discover_grids", &json!({})),
        broken,
        call(
            "call_a1",
            "analyze_file",
            &json!({"filename": "data/salinity_2024.nc"}),
        ),
        result(
            "call_a1",
            r#"{"variables": [{"name": "so", "units": "psu"}]}"#,
        ),
        call("call_r1", "read_notes", &json!({})),
        result("call_r1", r#"["not/a/listing.txt"]"#),
    ];
    world.then(&id, more).await;
    let known = known(&world, all(&id)).await;
    let files: Vec<_> = known
        .files
        .iter()
        .map(|file| (&*file.path, &*file.tool))
        .collect();
    assert_eq!(
        files,
        [
            ("data/sst_2024.nc", "list_files"),
            ("data/salinity_2024.nc", "list_files"),
            ("data/readme.txt", "list_files"),
            ("logs/run_1.log", "find_logs"),
            ("logs/run_2.log", "find_logs"),
        ]
    );
    let variables: Vec<_> = known
        .variables
        .iter()
        .map(|of| {
            (
                &*of.file,
                of.variables.iter().map(|v| &*v.name).collect::<Vec<_>>(),
            )
        })
        .collect();
    assert_eq!(
        variables,
        [
            ("data/sst_2024.nc", vec!["sst", "lat"]),
            ("data/salinity_2024.nc", vec!["so"])
        ]
    );
    assert!(known.variables[0].variables[0].detail.contains("kelvin"));
    assert_eq!(known.working_directory, "/srv/ocean");
    let from = known.files[0].event.as_ref().unwrap();
    assert_eq!(from.revision, 6, "the result that showed it");

    // Another team has other tool names, and configures them.
    let policy = json!({"rules": {"globbed": {"tools": {"names": ["Glob"]}, "gives": "files"}}});
    let other = world.begin(opening(&policy)).await;
    let globbed = vec![
        call("call_g1", "Glob", &json!({"pattern": "*.zarr"})),
        result("call_g1", "store/a.zarr\nstore/b.zarr"),
    ];
    world.then(&other, globbed).await;
    let files = known_files(&world, &other).await;
    assert_eq!(files, ["store/a.zarr", "store/b.zarr"]);
    world.end().await;
}

async fn known_files(world: &World, id: &str) -> Vec<String> {
    let known = known(world, all(id)).await;
    known.files.into_iter().map(|file| file.path).collect()
}

// "What did the last plot return?", "was anything listed?", "and before the failure?": answered
// without reading the whole history.
#[tokio::test(flavor = "multi_thread")]
async fn results_are_queried_by_tool_and_outcome() {
    let world = World::start().await;
    let id = analysing(&world).await;
    let again = json!({"filename": "data/sst_2024.nc", "variable_name": "sst"});
    let events = vec![
        call("call_p2", "plot_map", &again),
        result("call_p2", "plots/sst.png"),
        call("call_p3", "plot_map", &again),
    ];
    world.then(&id, events).await;
    let answer = known(&world, all(&id)).await;
    let recent: Vec<_> = answer.recent.iter().map(|call| &*call.call_id).collect();
    assert_eq!(
        recent,
        ["call_p2", "call_p1", "call_i1", "call_l1"],
        "an open call is no result"
    );
    let counts: Vec<_> = answer
        .tools
        .iter()
        .map(|t| (&*t.tool, t.succeeded, t.failed))
        .collect();
    assert_eq!(
        counts,
        [
            ("inspect_variables", 1, 0),
            ("list_files", 1, 0),
            ("plot_map", 1, 1)
        ]
    );
    let plots = pb::KnowledgeRequest {
        tool: "plot_map".into(),
        recent: 1,
        ..all(&id)
    };
    let plots = known(&world, plots).await;
    let recent: Vec<_> = plots.recent.iter().map(|call| &*call.call_id).collect();
    assert_eq!(recent, ["call_p2"]);
    let before = pb::KnowledgeRequest {
        as_of_revision: 8,
        ..all(&id)
    };
    let before = known(&world, before).await;
    assert_eq!(
        (before.tools.len(), before.recent.len()),
        (2, 2),
        "nothing was plotted yet"
    );
    world.end().await;
}

// The model calls a tool with an empty file name. Known values fill it, and given arguments stay
// unchanged.
#[tokio::test(flavor = "multi_thread")]
async fn arguments_are_suggested() {
    let world = World::start().await;
    let id = analysing(&world).await;
    let filled = suggested(
        &world,
        &id,
        "plot_map",
        r#"{"filename": "", "variable_name": null}"#,
    )
    .await;
    let arguments: Value = serde_json::from_slice(&filled.arguments).unwrap();
    assert_eq!(
        arguments,
        json!({"filename": "data/sst_2024.nc", "variable_name": "sst"})
    );
    let file = &filled.suggestions[0];
    assert_eq!(
        (&*file.argument, &*file.value),
        ("filename", r#""data/sst_2024.nc""#)
    );
    assert!(
        file.alternatives
            .contains(&r#""data/salinity_2024.nc""#.to_owned()),
        "{file:?}"
    );
    assert!(!file.reason.is_empty() && file.event.is_some());
    // Missing, but in the tool's schema.
    let missing = suggested(&world, &id, "plot_map", "{}").await;
    assert_eq!(missing.suggestions.len(), 2);
    let partial = suggested(
        &world,
        &id,
        "plot_map",
        r#"{"filename": "salinity_2024.nc", "variable_name": "so"}"#,
    )
    .await;
    let arguments: Value = serde_json::from_slice(&partial.arguments).unwrap();
    assert_eq!(arguments["filename"], "data/salinity_2024.nc");
    let given = r#"{"filename": "mine.nc",  "variable_name": "x", "dpi": 1e2}"#;
    let kept = suggested(&world, &id, "plot_map", given).await;
    assert_eq!(kept.arguments, given.as_bytes());
    let empty = world.begin(opening(&json!({}))).await;
    let nothing = suggested(&world, &empty, "plot_map", r#"{"filename": ""}"#).await;
    assert!(nothing.suggestions.is_empty());
    world.end().await;
}

// A map of a variable that was not inspected fails after a minute of work. The tools that must run
// first are named until they have succeeded. A failed call does not count.
#[tokio::test(flavor = "multi_thread")]
async fn prerequisite_is_missing_until_it_succeeds() {
    let world = World::start().await;
    let policy = json!({"prerequisites": {"plot_*": ["list_files", "inspect_variables"]}});
    let id = world.begin(opening(&policy)).await;
    assert_eq!(
        missing(&world, &id, "plot_map").await,
        ["list_files", "inspect_variables"]
    );
    assert!(missing(&world, &id, "list_files").await.is_empty());
    listed(&world, &id).await;
    assert_eq!(
        missing(&world, &id, "plot_map").await,
        ["inspect_variables"]
    );
    let events = vec![
        call(
            "call_i0",
            "inspect_variables",
            &json!({"filename": "data/none.nc"}),
        ),
        failure("call_i0", "no such file"),
    ];
    world.then(&id, events).await;
    assert_eq!(
        missing(&world, &id, "plot_map").await,
        ["inspect_variables"]
    );
    inspected(&world, &id).await;
    let world = world.restart().await;
    assert!(missing(&world, &id, "plot_map").await.is_empty());
    world.end().await;
}

// A small model forgets the next step. The guidance must follow from what was found, and must name
// only tools that the model has.
#[tokio::test(flavor = "multi_thread")]
async fn guidance_follows_the_gathered_knowledge() {
    let world = World::start().await;
    let id = world.begin(opening(&json!({}))).await;
    let start = guidance(&world, &id).await;
    assert!(
        start.contains("list the files first") && start.contains("list_files"),
        "{start}"
    );
    listed(&world, &id).await;
    let files = guidance(&world, &id).await;
    assert!(
        files.contains("data/sst_2024.nc") && files.contains("inspect_variables"),
        "{files}"
    );
    inspected(&world, &id).await;
    let variables = guidance(&world, &id).await;
    assert!(
        variables.starts_with("Variables are known for data/sst_2024.nc"),
        "{variables}"
    );
    let plot = json!({"filename": "data/sst_2024.nc", "variable_name": "sst"});
    let plotted = vec![
        call("call_p2", "plot_map", &plot),
        result("call_p2", "plots/sst.png"),
    ];
    world.then(&id, plotted).await;
    let analysed = guidance(&world, &id).await;
    assert!(analysed.contains("interpret"), "{analysed}");
    let quiet = json!({"guidance": {"start": ""}});
    let quiet = world.begin(opening(&quiet)).await;
    assert_eq!(guidance(&world, &quiet).await, "");
    world.end().await;
}

// Knowledge can be added to the prompt automatically: limited in size, as of any revision, and of
// the right branch.
#[tokio::test(flavor = "multi_thread")]
async fn knowledge_summary_is_bounded_and_in_the_request() {
    let world = World::start().await;
    let id = analysing(&world).await;
    let on = json!({"enhancers": {"knowledge": {"enabled": true}}});
    let summary = known(&world, all(&id)).await.summary;
    for fact in [
        "/srv/ocean",
        "data/sst_2024.nc",
        "sst, lat",
        "plot_map 0 ok 1 failed",
    ] {
        assert!(summary.contains(fact), "{fact}: {summary}");
    }
    let request = world.request(next_by(&id, &on)).await;
    let told = tagged(&lines(&request.body), "TOOL_KNOWLEDGE");
    assert_eq!(told, Some(summary));
    let item = request
        .told
        .items
        .iter()
        .find(|item| item.section() == pb::Section::Knowledge);
    assert!(item.unwrap().is_volatile);
    let off = world.lines(&id).await;
    assert_eq!(
        tagged(&off, "TOOL_KNOWLEDGE"),
        None,
        "off unless it is asked for"
    );

    let past = pb::BuildRequest {
        as_of_revision: 6,
        ..next_by(&id, &on)
    };
    let past = tagged(&lines(&world.request(past).await.body), "TOOL_KNOWLEDGE").unwrap();
    assert!(
        past.contains("data/sst_2024.nc") && !past.contains("lat"),
        "{past}"
    );
    let fork = pb::ForkRequest {
        conversation_id: id.clone(),
        at_revision: 4,
        name: "from-scratch".into(),
        ..Default::default()
    };
    world.server.conversations().fork(fork).await.unwrap();
    let scratch = pb::BuildRequest {
        branch: "from-scratch".into(),
        ..next_by(&id, &on)
    };
    let scratch = lines(&world.request(scratch).await.body);
    assert_eq!(tagged(&scratch, "TOOL_KNOWLEDGE"), None);

    let many: Vec<_> = (0..2_000).map(|n| format!("archive/day_{n}.nc")).collect();
    let events = vec![
        call("call_l2", "list_files", &json!({})),
        result("call_l2", &json!(many).to_string()),
    ];
    world.then(&id, events).await;
    let long = tagged(
        &lines(&world.request(next_by(&id, &on)).await.body),
        "TOOL_KNOWLEDGE",
    );
    let long = long.unwrap();
    assert!(
        long.chars().count() <= 2_000 && long.contains("more"),
        "{long}"
    );
    world.end().await;
}

// Two users analyse two oceans. Files must never be suggested across conversations, from a fork to
// its parent, or across tenants.
#[tokio::test(flavor = "multi_thread")]
async fn knowledge_is_isolated_by_conversation() {
    let world = World::start().await;
    let ocean = analysing(&world).await;
    let lake = world.begin(opening(&json!({}))).await;
    let events = vec![
        call("call_l1", "list_files", &json!({})),
        result("call_l1", r#"["lake/depth.csv"]"#),
    ];
    world.then(&lake, events).await;
    assert_eq!(known_files(&world, &lake).await, ["lake/depth.csv"]);
    assert_eq!(known_files(&world, &ocean).await.len(), 3);
    let filled = suggested(&world, &lake, "plot_map", r#"{"filename": ""}"#).await;
    let arguments: Value = serde_json::from_slice(&filled.arguments).unwrap();
    assert_eq!(arguments["filename"], "lake/depth.csv");
    assert!(filled.suggestions[0].alternatives.is_empty());
    let stranger = crate::suite::grpc::harness::within("other-team", all(&ocean));
    let stranger = world.server.tools().knowledge(stranger).await.unwrap_err();
    assert_eq!(stranger.code(), tonic::Code::NotFound);

    let fork = pb::ForkRequest {
        conversation_id: lake.clone(),
        name: "rivers".into(),
        ..Default::default()
    };
    world.server.conversations().fork(fork).await.unwrap();
    let events = vec![
        call("call_l2", "list_files", &json!({})),
        result("call_l2", r#"["river/flow.csv"]"#),
    ];
    world.on(&lake, "rivers", events).await;
    let rivers = pb::KnowledgeRequest {
        branch: "rivers".into(),
        ..all(&lake)
    };
    assert_eq!(known(&world, rivers).await.files.len(), 2);
    assert_eq!(known_files(&world, &lake).await, ["lake/depth.csv"]);
    world.end().await;
}

// On the command line: what is known, the result of a tool, suggested arguments, prerequisites, and
// next steps.
#[tokio::test(flavor = "multi_thread")]
async fn tool_knowledge_works_from_the_command_line() {
    let world = World::start().await;
    let policy = json!({"prerequisites": {"plot_*": ["list_files", "inspect_variables"]}});
    let id = world.begin(opening(&policy)).await;
    listed(&world, &id).await;
    let first = world
        .cli_json(&["knowledge", &id, "prerequisites", "plot_map"])
        .await;
    assert_eq!(first[0]["missing"], json!(["inspect_variables"]));
    inspected(&world, &id).await;
    let plot = json!({"filename": "data/sst_2024.nc", "variable_name": "sst"});
    world
        .then(
            &id,
            vec![
                call("call_p1", "plot_map", &plot),
                failure("call_p1", "no display"),
            ],
        )
        .await;

    let shown = world.cli(&["knowledge", &id]).await;
    for fact in [
        "/srv/ocean",
        "data/sst_2024.nc",
        "kelvin",
        "list_files",
        "no display",
    ] {
        assert!(shown.contains(fact), "{fact}: {shown}");
    }
    let known = world
        .cli_json(&["knowledge", &id, "--recent", "2", "--tool", "plot_map"])
        .await;
    let results: Vec<_> = known
        .iter()
        .filter(|line| line["item"] == "result")
        .collect();
    assert_eq!(results.len(), 1);
    assert_eq!(results[0]["call"]["error_message"], "no display");
    let calls = world
        .cli_json(&["tools", &id, "--tool", "inspect_variables"])
        .await;
    assert_eq!(calls[0]["execution_time_ms"], 312);
    assert_eq!(calls[0]["arguments"]["filename"], "data/sst_2024.nc");
    let filled = world
        .cli_json(&[
            "knowledge",
            &id,
            "suggest",
            "plot_map",
            r#"{"filename": null}"#,
        ])
        .await;
    assert_eq!(filled[0]["arguments"]["filename"], "data/sst_2024.nc");
    let next = world.cli_json(&["knowledge", &id, "guidance"]).await;
    assert!(
        text(&next[0]["guidance"]).contains("Variables are known"),
        "{next:?}"
    );
    let policy = r#"{"enhancers": {"knowledge": {"enabled": true}}}"#;
    let built = world.cli_json(&["context", &id, "--policy", policy]).await;
    let told = tagged(&lines(&built[0]["request"]), "TOOL_KNOWLEDGE").unwrap();
    assert_eq!(told, text(&known[0]["summary"]));
    world.end().await;
}
