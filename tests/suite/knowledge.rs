//! Knowledge from tool results: through the engine, over the wire, and from real trajectories.

use std::{collections::BTreeMap, env, path::Path, sync::Arc};

use tonic::Code;
use treering::{
    digest::knowledge::{Knowledge, KnowledgePolicy, UNKNOWN_FILE},
    domain::*,
    engine::*,
    import::{openai_chat, source::LineSource},
    proto::{json, pb},
};

use super::grpc::harness::{
    TestServer, bad_field, batch, call, created, message, reason, result, within,
};

fn ns() -> Namespace {
    Namespace::default()
}

fn with_policy(policy: &str) -> EventBody {
    EventBody::ConversationCreated(ConversationCreated {
        policies: BTreeMap::from([("knowledge".to_owned(), policy.to_owned())]),
        ..Default::default()
    })
}

/// Returns a call and its result.
fn done(tool: &str, arguments: &str, text: &str) -> [EventBody; 2] {
    [call("c", tool, arguments, false), result("c", text)]
}

fn session() -> Vec<EventBody> {
    let mut bodies = vec![created("data"), message(Role::User, "What is in it?")];
    bodies.extend(done(
        "list_files",
        r#"{"cwd": "/data"}"#,
        r#"["a.nc", "b.nc"]"#,
    ));
    bodies.extend(done(
        "inspect_file",
        r#"{"filename": "a.nc"}"#,
        r#"{"temp": {"unit": "K"}, "wind": null}"#,
    ));
    bodies
}

async fn append(
    engine: &Engine,
    namespace: &Namespace,
    id: ConversationId,
    branch: Option<&str>,
    bodies: Vec<EventBody>,
) -> Revision {
    let event = |body| {
        let event = NewEvent::new(id, body);
        match branch {
            Some(name) => event.on_branch(BranchName::new(name).unwrap()),
            None => event,
        }
    };
    let events = bodies.into_iter().map(event).collect();
    let command = AppendCommand::new(namespace.clone(), events);
    let outcome = engine.append(command).await.unwrap();
    outcome.events.last().unwrap().revision
}

async fn known(engine: &Engine, id: ConversationId, branch: Option<&str>) -> Arc<Knowledge> {
    as_of(engine, id, branch, None).await.unwrap()
}

async fn as_of(
    engine: &Engine,
    id: ConversationId,
    branch: Option<&str>,
    revision: Option<u64>,
) -> Result<Arc<Knowledge>, ReadError> {
    let query = KnowledgeQuery {
        as_of: revision.map(Revision),
        ..KnowledgeQuery::new(BranchAddress {
            namespace: ns(),
            conversation: id,
            branch: branch.map(|name| BranchName::new(name).unwrap()),
        })
    };
    Ok(engine.knowledge(query).await?.knowledge)
}

fn paths(knowledge: &Knowledge) -> Vec<&str> {
    knowledge.files().iter().map(|file| &*file.path).collect()
}

// Knowledge is cached and extended as the branch grows. At every step, as of every earlier step and
// in a reopened store, it must equal a full fold, also with results that are stored as blobs.
#[tokio::test(flavor = "multi_thread")]
async fn extended_knowledge_equals_a_full_fold_at_every_step() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    let id = ConversationId::generate();
    let many: Vec<String> = (0..9_000).map(|n| format!("run/{n:05}.nc")).collect();
    let large = serde_json::to_string(&many).unwrap();
    assert!(large.len() > 64 << 10);
    let mut bodies = session();
    bodies.extend(done("discover_more", "{}", &large));
    bodies.extend(done("cd", r#"{"path": "run"}"#, "ok"));
    let mut at_each = Vec::new();
    for body in bodies {
        append(&engine, &ns(), id, None, vec![body]).await;
        at_each.push(known(&engine, id, None).await);
    }
    let last = at_each.last().unwrap().clone();
    assert_eq!(last.files().len(), 9_002);
    assert_eq!(paths(&last)[..3], ["a.nc", "b.nc", "run/00000.nc"]);
    assert_eq!(last.working_directory().unwrap().path, "/data/run");
    let variables = &last.variables_of("a.nc").unwrap().variables;
    assert_eq!(variables[0].detail, r#"{"unit":"K"}"#);
    assert_eq!(last.files()[0].event.revision, Revision(4));
    engine.close().await;
    drop(engine);

    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    for (place, expected) in at_each.iter().enumerate() {
        let revision = place as u64 + 1;
        let then = as_of(&engine, id, None, Some(revision)).await.unwrap();
        assert_eq!(then, *expected, "as of {revision}");
    }
    assert_eq!(known(&engine, id, None).await, last);
    let missing = as_of(&engine, id, None, Some(99)).await;
    assert!(matches!(missing, Err(ReadError::RevisionNotFound { .. })));
    engine.close().await;
}

// A fork has the knowledge from before the fork, and then only its own; also in a new conversation.
#[tokio::test(flavor = "multi_thread")]
async fn knowledge_of_a_fork_follows_its_own_history() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = ConversationId::generate();
    append(&engine, &ns(), id, None, session()).await;
    let other = ConversationId::generate();
    for (into, name) in [(None, "retry"), (Some(other), "elsewhere")] {
        let command = ForkCommand {
            address: BranchAddress::active(ns(), id),
            at: Some(Revision(4)),
            name: name.into(),
            system_prompt: String::new(),
            into,
            activate: false,
            idempotency_key: None,
            actor: String::new(),
        };
        engine.fork(command).await.unwrap();
    }
    let on_main = done("list_files", "{}", r#"["main.nc"]"#).to_vec();
    append(&engine, &ns(), id, None, on_main).await;
    let on_fork = done("list_files", "{}", r#"["fork.nc"]"#).to_vec();
    append(&engine, &ns(), id, Some("retry"), on_fork.clone()).await;
    assert_eq!(
        paths(&*known(&engine, id, None).await),
        ["a.nc", "b.nc", "main.nc"]
    );
    let fork = known(&engine, id, Some("retry")).await;
    assert_eq!(paths(&fork), ["a.nc", "b.nc", "fork.nc"]);
    assert!(
        fork.variables().is_empty(),
        "a.nc was inspected after the fork"
    );

    assert_eq!(paths(&*known(&engine, other, None).await), ["a.nc", "b.nc"]);
    append(&engine, &ns(), other, None, on_fork).await;
    let elsewhere = known(&engine, other, None).await;
    assert_eq!(paths(&elsewhere), ["a.nc", "b.nc", "fork.nc"]);
    assert_eq!(elsewhere.files()[0].event.conversation, id);
    assert_eq!(elsewhere.files()[2].event.conversation, other);
    engine.close().await;
}

// One tenant's or one conversation's files must never be suggested in another.
#[tokio::test(flavor = "multi_thread")]
async fn knowledge_is_isolated_by_conversation_and_namespace() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let (mine, yours) = (ConversationId::generate(), ConversationId::generate());
    let other = Namespace::new("other").unwrap();
    append(&engine, &ns(), mine, None, session()).await;
    append(&engine, &ns(), yours, None, vec![created("empty")]).await;
    assert_eq!(known(&engine, mine, None).await.files().len(), 2);
    assert!(known(&engine, yours, None).await.files().is_empty());
    let suggested = engine
        .suggest_arguments(
            &BranchAddress::active(ns(), yours),
            "read",
            r#"{"path": null}"#,
        )
        .await
        .unwrap();
    assert!(suggested.suggestions.is_empty());
    let query = KnowledgeQuery::new(BranchAddress::active(other.clone(), mine));
    let refused = engine.knowledge(query).await;
    assert!(matches!(
        refused,
        Err(ReadError::ConversationNotFound { .. })
    ));
    for refused in [
        engine
            .tool_guidance(&BranchAddress::active(other.clone(), mine))
            .await
            .unwrap_err(),
        engine
            .knowledge_summary(&BranchAddress::active(other.clone(), mine), None)
            .await
            .unwrap_err(),
        engine
            .missing_prerequisites(&BranchAddress::active(other.clone(), mine), "x")
            .await
            .unwrap_err(),
    ] {
        assert!(matches!(refused, ReadError::ConversationNotFound { .. }));
    }
    engine.close().await;
}

// With almost no cache, and queries about many growing branches at once, answers may cost more, but
// must be right.
#[tokio::test(flavor = "multi_thread")]
async fn knowledge_is_right_with_a_small_cache_and_many_readers() {
    let limits = Limits {
        memory_bytes: limits::MEMORY_OF_FILES_BYTES + (64 << 10),
        ..Limits::default()
    };
    let engine = Engine::in_memory(limits).await.unwrap();
    let ids: Vec<_> = (0..20).map(|_| ConversationId::generate()).collect();
    for id in &ids {
        append(&engine, &ns(), *id, None, session()).await;
    }
    let readers = ids.iter().flat_map(|id| [*id, *id]).map(|id| {
        let engine = engine.clone();
        tokio::spawn(async move {
            for round in 0..10 {
                let file = format!("[\"{round}.nc\"]");
                let bodies = done("list_files", "{}", &file).to_vec();
                // Both readers of a conversation append. Sometimes one is refused, because its call
                // id is open.
                let events = bodies
                    .into_iter()
                    .map(|body| NewEvent::new(id, body))
                    .collect();
                let _ = engine.append(AppendCommand::new(ns(), events)).await;
                let known = known(&engine, id, None).await;
                assert!(known.file(&format!("{round}.nc")).is_some());
            }
        })
    });
    for reader in readers.collect::<Vec<_>>() {
        reader.await.unwrap();
    }
    for id in ids {
        let now = known(&engine, id, None).await;
        assert_eq!(now.files().len(), 12);
        let query = KnowledgeQuery {
            recent: 3,
            ..KnowledgeQuery::new(BranchAddress::active(ns(), id))
        };
        let answer = engine.knowledge(query).await.unwrap();
        assert_eq!(answer.recent.len(), 3);
        let again = as_of(&engine, id, None, Some(answer.revision.0))
            .await
            .unwrap();
        assert_eq!(now, again);
    }
    engine.close().await;
}

// All knowledge queries over the wire: queries, suggestions, prerequisites and guidance.
#[tokio::test(flavor = "multi_thread")]
async fn knowledge_queries_work_over_grpc() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let policy = r#"{"prerequisites": {"plot": ["list_files", "inspect_*"]}}"#;
    let schema = r#"{"type": "object", "properties": {"filename": {}, "variable_name": {}}}"#;
    let tool = |name: &str| ToolDefinition {
        name: name.into(),
        description: String::new(),
        input_schema: json::check(schema.as_bytes()).unwrap(),
        source: String::new(),
        needs_approval: false,
        guidance: String::new(),
        discoverable: false,
        strict: None,
    };
    let tools = ["list_files", "inspect_file", "plot"].map(tool).to_vec();
    let opening = vec![with_policy(policy), EventBody::ToolsDefined { tools }];
    let id = server.append(batch("", opening)).await.events[0]
        .conversation_id
        .clone();
    let guidance = async || {
        let request = pb::GuidanceRequest {
            conversation_id: id.clone(),
            ..Default::default()
        };
        let answer = server.tools().guidance(request).await.unwrap();
        answer.into_inner().guidance
    };
    let missing = async || {
        let request = pb::MissingPrerequisitesRequest {
            conversation_id: id.clone(),
            tool: "plot".into(),
            ..Default::default()
        };
        let answer = server.tools().missing_prerequisites(request).await.unwrap();
        let answer = answer.into_inner();
        assert_eq!(answer.configured, ["list_files", "inspect_*"]);
        answer.missing
    };
    assert!(guidance().await.contains("list_files"));
    assert_eq!(missing().await, ["list_files", "inspect_*"]);
    server.append(batch(&id, session().split_off(2))).await;
    assert!(missing().await.is_empty());
    assert!(guidance().await.starts_with("Variables are known for a.nc"));
    let failed = EventBody::ToolResultRecorded(ToolResultRecorded::failure("c", "no such file"));
    let fails = [
        call("c", "inspect_file", r#"{"filename": "z.nc"}"#, false),
        failed,
    ];
    server.append(batch(&id, fails)).await;

    let request = pb::KnowledgeRequest {
        conversation_id: id.clone(),
        tool: "inspect_file".into(),
        ..Default::default()
    };
    let known = server
        .tools()
        .knowledge(request)
        .await
        .unwrap()
        .into_inner();
    let files: Vec<_> = known.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(files, ["a.nc", "b.nc"]);
    assert_eq!(known.files[0].event.as_ref().unwrap().revision, 4);
    assert_eq!(known.variables[0].variables[1].name, "wind");
    assert_eq!(known.working_directory, "/data");
    assert_eq!((known.revision, known.left_out), (8, 0));
    let outcomes: Vec<_> = known
        .tools
        .iter()
        .map(|t| (t.tool.as_str(), t.succeeded, t.failed))
        .collect();
    assert_eq!(outcomes, [("inspect_file", 1, 1), ("list_files", 1, 0)]);
    let recent: Vec<_> = known
        .recent
        .iter()
        .map(|c| (c.request_revision, c.status()))
        .collect();
    assert_eq!(
        recent,
        [(7, pb::CallStatus::Failed), (5, pb::CallStatus::Succeeded)]
    );
    assert!(
        known
            .summary
            .starts_with("Working directory: /data\nFiles (2")
    );
    let request = pb::KnowledgeRequest {
        conversation_id: id.clone(),
        as_of_revision: 4,
        recent: 1,
        ..Default::default()
    };
    let then = server
        .tools()
        .knowledge(request)
        .await
        .unwrap()
        .into_inner();
    assert!(then.variables.is_empty());
    assert_eq!((then.recent.len(), then.revision), (1, 4));

    let suggest = |arguments: &str| pb::SuggestArgumentsRequest {
        conversation_id: id.clone(),
        tool: "plot".into(),
        arguments: arguments.to_owned().into(),
        ..Default::default()
    };
    // a.nc was used last, and its variables follow from it.
    let answer = server
        .tools()
        .suggest_arguments(suggest(r#"{"top": 1.50}"#))
        .await;
    let answer = answer.unwrap().into_inner();
    let expected = r#"{"top":1.50,"filename":"a.nc","variable_name":"temp"}"#;
    assert_eq!(answer.arguments, expected.as_bytes());
    assert_eq!(answer.suggestions[0].alternatives, ["\"b.nc\""]);
    assert_eq!(answer.suggestions[1].event.as_ref().unwrap().revision, 6);
    let request = pb::SnapshotsRequest {
        conversation_id: id.clone(),
        limit: 2,
        ..Default::default()
    };
    let short = server
        .tools()
        .snapshots(request)
        .await
        .unwrap()
        .into_inner()
        .snapshots;
    assert_eq!(short.len(), 2);
    assert_eq!(
        (short[0].tool_name.as_str(), short[0].success),
        ("inspect_file", false)
    );
    assert_eq!(short[1].full_result_ref, format!("treering:{id}/6"));

    let bad = server
        .tools()
        .suggest_arguments(suggest("[1]"))
        .await
        .unwrap_err();
    assert_eq!(bad.code(), Code::InvalidArgument);
    let request = pb::SuggestArgumentsRequest {
        tool: String::new(),
        ..suggest("{}")
    };
    let bad = server.tools().suggest_arguments(request).await.unwrap_err();
    assert_eq!(bad_field(&bad), "tool");
    let hidden = server
        .tools()
        .suggest_arguments(within("other", suggest("{}")))
        .await;
    assert_eq!(reason(&hidden.unwrap_err()), "CONVERSATION_NOT_FOUND");
    server.stop().done().await;
}

// An invalid stored policy is not an error of the call, whichever policy it is.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_stored_policies_have_one_reason() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    for name in ["knowledge", "context"] {
        let id = ConversationId::generate().to_string();
        let policies = BTreeMap::from([(name.to_owned(), r#"{"rulez": {}}"#.to_owned())]);
        let created = EventBody::ConversationCreated(ConversationCreated {
            policies,
            ..Default::default()
        });
        server.append(batch(&id, [created])).await;
        let status = match name {
            "knowledge" => {
                let request = pb::KnowledgeRequest {
                    conversation_id: id,
                    ..Default::default()
                };
                server.tools().knowledge(request).await.unwrap_err()
            }
            _ => {
                let request = pb::BuildRequest {
                    conversation_id: id,
                    provider: pb::Provider::OpenaiChat.into(),
                    ..Default::default()
                };
                server.contexts().build(request).await.unwrap_err()
            }
        };
        assert_eq!(reason(&status), "CONVERSATION_POLICY", "{name}: {status}");
        assert_eq!(status.code(), Code::FailedPrecondition);
    }
    server.stop().done().await;
}

// An invalid policy must not be treated as an empty one.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_knowledge_policy_is_refused() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = ConversationId::generate();
    let bodies = vec![with_policy(r#"{"rulez": {}}"#)];
    append(&engine, &ns(), id, None, bodies).await;
    let refused = as_of(&engine, id, None, None)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("`knowledge` policy") && refused.contains("rulez"),
        "{refused}"
    );
    engine.close().await;
}

/// Rules for the tools of the trajectories, which have other names than the default rules expect.
const CODING: &str = r#"{"rules": {
  "listed": {"tools": {"names": ["Glob", "find_file"]}},
  "searched": {"tools": {"names": ["Grep"]}, "text": "before_colon"},
  "worked_on": {"tools": {"names": ["Read", "Edit", "Write", "read", "edit", "write", "open"]},
                "from": "arguments", "arguments": ["file_path", "path"]},
  "documents": {"tools": {"names": ["search_files_by_filename"]}, "from": "arguments", "arguments": ["filename"]},
  "schema": {"tools": {"names": ["get_reservation_details", "get_user_details"]}, "gives": "variables"},
  "shell": {"tools": {"names": ["Bash", "bash", "shell"]}, "gives": "working_directory",
            "from": "arguments", "arguments": ["command"], "text": "shell_cd", "relative": true}}}"#;

// Real results are longer and stranger than invented ones. Every limit must hold on all of them,
// and the rules must find something in each kind of session.
#[tokio::test(flavor = "multi_thread")]
async fn knowledge_of_real_trajectories_is_bounded() {
    let Some(folder) = env::var_os("TREERING_TEST_DATA") else {
        println!("skipped: TREERING_TEST_DATA names no folder");
        return;
    };
    let folder = Path::new(&folder).join("trajectories");
    let limits = Limits {
        knowledge_items_max: 1_000,
        ..Limits::default()
    };
    let engine = Engine::in_memory(limits).await.unwrap();
    let policy = KnowledgePolicy::merged(CODING).unwrap();
    let files = [
        "claude-code-entire",
        "pi-mono",
        "swe-agent",
        "tau-bench",
        "agentdojo",
    ];
    for name in files {
        let file = folder.join(format!("{name}.jsonl.zst"));
        let lines = LineSource::open(&file, |_| {}).unwrap();
        let mut sums = [0; 6];
        for (_, line) in lines.take(400) {
            let mut imported = openai_chat::import_line(&line.unwrap()).unwrap();
            if let EventBody::ConversationCreated(created) = &mut imported.events[0].body {
                created.policies.insert("knowledge".into(), CODING.into());
            }
            let id = imported.events[0].conversation;
            for events in treering::import::plan::batches(imported.events, 4_000, 8 << 20) {
                engine
                    .append(AppendCommand::new(ns(), events))
                    .await
                    .unwrap();
            }
            let known = known(&engine, id, None).await;
            check_bounds(&known, &policy);
            let variables: usize = known.variables().iter().map(|f| f.variables.len()).sum();
            for (sum, number) in sums.iter_mut().zip([
                1,
                known.files().len() as u64,
                variables as u64,
                u64::from(known.working_directory().is_some()),
                known.left_out(),
                known.outcomes().values().map(|o| o.succeeded).sum(),
            ]) {
                *sum += number;
            }
        }
        let [
            conversations,
            files,
            variables,
            directories,
            left_out,
            results,
        ] = sums;
        println!(
            "{name}: {conversations} conversations, {results} good results: {files} files, \
             {variables} variables, {directories} working directories, {left_out} left out"
        );
        assert!(files + variables + directories > 0, "{name}");
    }
    engine.close().await;
}

fn check_bounds(known: &Knowledge, policy: &KnowledgePolicy) {
    let variables = || known.variables().iter().flat_map(|f| &f.variables);
    assert!(known.files().len() <= 1_000 && variables().count() <= 1_000);
    let names = known.files().iter().map(|file| &*file.path);
    for name in names.chain(variables().map(|v| v.name.as_str())) {
        assert!(!name.is_empty() && name.len() <= 1_024);
        assert!(!name.contains(char::is_control), "{name:?}");
    }
    for variable in variables() {
        assert!(variable.detail.len() <= 240);
        serde_json::from_str::<serde_json::Value>(&variable.detail).unwrap();
    }
    assert!(known.summary_text().chars().count() <= policy.summary.chars_max);
    assert!(known.guidance(&[]).chars().count() <= 2_000);
    let filled = known
        .suggest_arguments("t", r#"{"path": null, "n": 1e400}"#, None)
        .unwrap();
    let analysed = known.variables().iter().any(|f| &*f.file != UNKNOWN_FILE);
    let any = analysed || known.files().iter().any(|file| file.is_there());
    assert_eq!(filled.suggestions.is_empty(), !any);
}
