//! Compactions through the real engine: planned, appended and expanded; their warnings; what they
//! clear and what they keep; also on real trajectories.

use std::{collections::BTreeMap, env, path::Path};

use futures::TryStreamExt;
use treering::{
    domain::*,
    engine::*,
    import::{self as importer, openai_chat, source::LineSource},
    proto::{body, json},
};

use super::store::{append, call, ns, open, result};

fn new(id: ConversationId, body: EventBody) -> NewEvent {
    NewEvent::new(id, body)
}

fn said(id: ConversationId, role: Role, text: &str) -> NewEvent {
    new(
        id,
        EventBody::MessageAppended(MessageAppended::text(role, text)),
    )
}

/// Returns a finished turn with a tool call: six events.
fn turn(id: ConversationId, number: usize) -> Vec<NewEvent> {
    let call_id = format!("call-{number}");
    vec![
        said(id, Role::User, &format!("request {number}")),
        said(id, Role::Assistant, "I look."),
        call(id, &call_id, "get_page"),
        result(
            id,
            &call_id,
            &format!("page {number} says marzipan{number}"),
        ),
        said(id, Role::Assistant, &format!("answer {number}")),
    ]
}

fn created(id: ConversationId, policy: &str) -> NewEvent {
    new(
        id,
        EventBody::ConversationCreated(ConversationCreated {
            policies: BTreeMap::from([("context".to_owned(), policy.to_owned())]),
            ..ConversationCreated::default()
        }),
    )
}

fn tool(name: &str, discoverable: bool) -> ToolDefinition {
    ToolDefinition {
        name: name.to_owned(),
        description: "Reads a page.".to_owned(),
        input_schema: JsonText::default(),
        source: String::new(),
        needs_approval: false,
        guidance: String::new(),
        discoverable,
        strict: None,
    }
}

async fn turns(engine: &Engine, id: ConversationId, numbers: std::ops::RangeInclusive<usize>) {
    for number in numbers {
        append(engine, turn(id, number)).await.unwrap();
    }
}

async fn with_turns(engine: &Engine, count: usize) -> ConversationId {
    let id = ConversationId::generate();
    append(engine, vec![created(id, "{}")]).await.unwrap();
    turns(engine, id, 1..=count).await;
    id
}

async fn branch_state(engine: &Engine, id: ConversationId) -> BranchState {
    let view = engine
        .conversation(&BranchAddress::active(ns(), id), None)
        .await
        .unwrap();
    (*view.branch).clone()
}

async fn expanded(
    engine: &Engine,
    id: ConversationId,
    branch: Option<&BranchName>,
    at: Option<Revision>,
) -> Vec<u64> {
    let events = engine
        .expand(
            &BranchAddress {
                branch: branch.cloned(),
                ..BranchAddress::active(ns(), id)
            },
            at,
        )
        .await
        .unwrap();
    let batches: Vec<Vec<NamedEvent>> = events.try_collect().await.unwrap();
    batches
        .concat()
        .iter()
        .map(|event| event.event.header.revision.0)
        .collect()
}

fn compact(id: ConversationId) -> CompactCommand {
    CompactCommand::new(BranchAddress::active(ns(), id))
}

fn compacted(summary: &str, cut: u64, tokens: u64, trigger: CompactionTrigger) -> EventBody {
    EventBody::Compacted(Compacted {
        summary: summary.to_owned(),
        cut_revision: Revision(cut),
        kept_turns: 0,
        tokens_before: tokens,
        tokens_after: tokens / 2,
        trigger,
        raw: None,
    })
}

/// A person or a model acts on a plan. It must say where it cuts and what that saves, and must
/// change nothing.
#[tokio::test]
async fn plan_reports_its_cut_and_changes_nothing() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = with_turns(&engine, 5).await;
    let before = engine.head();
    let plan = engine
        .plan_compaction(PlanQuery::new(BranchAddress::active(ns(), id)))
        .await
        .unwrap();
    assert_eq!((plan.cut, plan.head), (Some(Revision(11)), Revision(26)));
    assert_eq!((plan.kept_turns, plan.summarised_turns), (3, 2));
    assert_eq!(plan.summarised_events, 11);
    assert!(plan.tokens_kept < plan.tokens_before && plan.tokens_kept > 0);
    assert!(!plan.due);
    assert!(plan.material.contains("request 2") && !plan.material.contains("request 3"));
    assert!(!plan.material.contains("get_page") && !plan.instruction.contains("get_page"));
    assert!(
        plan.extract
            .starts_with("This continues an earlier conversation")
    );
    let query = PlanQuery {
        keep_turns: Some(9),
        policy: r#"{"budget_tokens": 20}"#.to_owned(),
        ..PlanQuery::new(BranchAddress::active(ns(), id))
    };
    let none = engine.plan_compaction(query).await.unwrap();
    assert_eq!(none.cut, None);
    assert!(none.due && none.threshold_tokens == 16);
    assert_eq!(
        none.reason,
        "the window has 5 finished turns, and 9 must be kept"
    );
    let refused = engine
        .compact(CompactCommand {
            keep_turns: Some(9),
            ..compact(id)
        })
        .await;
    assert!(matches!(
        refused,
        Err(ContextError::NothingToCompact { .. })
    ));
    assert_eq!(engine.head(), before);
}

// A plan and a request must count the same window. If one leaves out a block, they disagree on
// whether a compaction is due.
#[tokio::test(flavor = "multi_thread")]
async fn plan_counts_the_tokens_of_the_request() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let id = ConversationId::generate();
    let policy = r#"{"enhancers": {"knowledge": {"enabled": true}}}"#;
    append(&engine, vec![created(id, policy)]).await.unwrap();
    turns(&engine, id, 1..=5).await;
    let listing = vec![
        said(id, Role::User, "Which files are there?"),
        said(id, Role::Assistant, "I list them."),
        call(id, "call-l", "list_files"),
        result(
            id,
            "call-l",
            r#"["data/sst.nc", "data/wind.nc", "notes.md"]"#,
        ),
        said(id, Role::Assistant, "Three."),
    ];
    append(&engine, listing).await.unwrap();
    let query = BuildQuery::new(
        BranchAddress::active(ns(), id),
        treering::context::Provider::Neutral,
    );
    let told = engine.explain(query).await.unwrap();
    let knowledge = treering::context::Section::Knowledge;
    assert!(told.items.iter().any(|item| item.section == knowledge));
    let plan = engine
        .plan_compaction(PlanQuery::new(BranchAddress::active(ns(), id)))
        .await
        .unwrap();
    assert_eq!(plan.tokens_before, told.tokens);
    engine.close().await;
}

/// After a compaction the agent starts afresh: what it had discovered, was told, noted and used is
/// gone. Everything else is unchanged. The original events can be read, found, and reached from the
/// summary, also after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn compaction_clears_only_working_memory() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let id = ConversationId::generate();
    let prompt = |text: &str| PromptSet {
        id: "p".into(),
        content: text.into(),
    };
    let mut events = vec![
        created(id, "{}"),
        new(id, EventBody::SystemPromptSet(prompt("Be kind"))),
        new(id, EventBody::UserPromptSet(prompt("Ask me"))),
        new(
            id,
            EventBody::ToolsDefined {
                tools: vec![tool("search_tools", false), tool("get_page", true)],
            },
        ),
        new(
            id,
            EventBody::ContextSet(ContextSet {
                key: "workspace".into(),
                value: json::check(b"{}").unwrap(),
                provider: "editor".into(),
            }),
        ),
    ];
    events.extend(turn(id, 1));
    let names = vec!["get_page".to_owned()];
    events.push(new(id, EventBody::ToolsDiscovered { names }));
    let guidance = vec![Guidance {
        tool: "get_page".into(),
        text: "By path".into(),
    }];
    events.push(new(id, EventBody::GuidanceGiven { guidance }));
    let entities = vec![Entity {
        id: "page-1".into(),
        kind: "page".into(),
        name: "Home".into(),
    }];
    events.push(new(id, EventBody::EntitiesNoted { entities }));
    events.push(new(
        id,
        EventBody::SummaryRecorded(SummaryRecorded {
            content: "so far".into(),
            from_revision: Revision(1),
            to_revision: Revision(10),
        }),
    ));
    append(&engine, events).await.unwrap();
    turns(&engine, id, 2..=3).await;

    let before = branch_state(&engine, id).await;
    assert_eq!(before.memory.discovered_tools, ["get_page"]);
    assert_eq!(before.memory.guidance_given, ["get_page"]);
    assert_eq!(before.memory.entities.len(), 1);
    assert_eq!(before.memory.tool_uses["get_page"], 3);
    let command = CompactCommand {
        keep_turns: Some(1),
        ..compact(id)
    };
    let outcome = engine.compact(command).await.unwrap();
    assert_eq!(outcome.warnings, Vec::<String>::new());
    assert!(outcome.tokens_after > 0);

    let mut expected = before;
    expected.memory = WorkingMemory::default();
    expected.head = outcome.event.revision;
    expected.history_events += 1;
    expected.compaction = Some(EventRef {
        conversation: id,
        revision: outcome.event.revision,
    });
    expected.cut = outcome.cut;
    expected.turn.finished = 1;
    let read = ReadQuery::all(ns(), EventSource::Conversation(id));
    let all = engine.read_all(read.clone()).await.unwrap();
    for _ in 0..2 {
        assert_eq!(branch_state(&engine, id).await, expected);
    }
    engine.close().await;
    drop(engine);

    let engine = open(dir.path()).await;
    assert_eq!(branch_state(&engine, id).await, expected);
    assert_eq!(engine.read_all(read).await.unwrap(), all);
    let search = SearchRequest {
        at_least: Some(engine.head()),
        ..SearchRequest::new(ns(), "marzipan1", 10)
    };
    assert_eq!(engine.search(search).await.unwrap().hits.len(), 1);
    let behind: Vec<u64> = (1..=outcome.cut.0).collect();
    assert_eq!(expanded(&engine, id, None, None).await, behind);
    engine.close().await;
}

/// A retried compaction must neither compact twice nor fail because the window has changed. The
/// same key for another compaction is an error.
#[tokio::test]
async fn repeated_idempotency_key_returns_the_first_compaction() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = with_turns(&engine, 5).await;
    let keyed = CompactCommand {
        idempotency_key: Some("once".into()),
        ..compact(id)
    };
    let (one, two) = tokio::join!(engine.compact(keyed.clone()), engine.compact(keyed.clone()));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.event, two.event);
    turns(&engine, id, 6..=9).await;
    let again = engine.compact(keyed.clone()).await.unwrap();
    assert!(again.repeated_key);
    let first = CompactOutcome {
        repeated_key: true,
        ..one
    };
    assert_eq!(again, first);
    for other in [
        CompactCommand {
            summary: "another".into(),
            ..keyed.clone()
        },
        CompactCommand {
            cut: Some(Revision(16)),
            ..keyed
        },
    ] {
        let refused = engine.compact(other).await;
        assert!(
            format!("{refused:?}").contains("IdempotencyConflict"),
            "{refused:?}"
        );
    }
}

/// An agent needs the ids that it noted. Every summary must contain them, whoever wrote it and
/// however many compactions came before. A retry must still count as one compaction.
#[tokio::test]
async fn noted_ids_stand_in_every_summary() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = with_turns(&engine, 3).await;
    let note = |ids: &[&str]| {
        let entity = |id: &&str| Entity {
            id: (*id).to_owned(),
            kind: "station".into(),
            name: "North; Pier".into(),
        };
        let entities = ids.iter().map(entity).collect();
        new(id, EventBody::EntitiesNoted { entities })
    };
    append(&engine, vec![note(&["st-1", "st-17"])])
        .await
        .unwrap();
    turns(&engine, id, 4..=6).await;
    let summary = async |command: CompactCommand| {
        engine.compact(command).await.unwrap();
        let at = branch_state(&engine, id).await.compaction.unwrap();
        compaction_at(&engine, at).await.summary
    };
    let told = CompactCommand {
        summary: "They spoke about st-17.".into(),
        idempotency_key: Some("once".into()),
        ..compact(id)
    };
    let first = summary(told.clone()).await;
    assert_eq!(
        first,
        "They spoke about st-17.\n\n\
         Entities: st-17 (station, North, Pier); st-1 (station, North, Pier)"
    );
    assert_eq!(summary(told.clone()).await, first);
    let shorter = CompactCommand {
        summary: "They spoke".into(),
        ..told
    };
    let refused = engine.compact(shorter).await;
    assert!(
        format!("{refused:?}").contains("IdempotencyConflict"),
        "{refused:?}"
    );
    append(&engine, vec![note(&["st-2"])]).await.unwrap();
    turns(&engine, id, 7..=10).await;
    let second = summary(compact(id)).await;
    turns(&engine, id, 11..=14).await;
    let own = CompactCommand {
        summary: "They went on.".into(),
        ..compact(id)
    };
    let third = summary(own).await;
    for id in ["st-1 (", "st-2 (", "st-17 ("] {
        assert!(second.contains(id), "{id} in {second}");
        assert!(third.contains(id), "{id} in {third}");
    }
}

/// A model may need a minute to write the summary of a plan, while the branch continues. With an
/// expected head, the compaction must be refused, and no message since the plan may be hidden.
#[tokio::test]
async fn compaction_with_a_stale_head_is_refused() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = with_turns(&engine, 5).await;
    let plan = engine
        .plan_compaction(PlanQuery::new(BranchAddress::active(ns(), id)))
        .await
        .unwrap();
    turns(&engine, id, 6..=6).await;
    let late = CompactCommand {
        expected_head: Some(plan.head),
        cut: plan.cut,
        summary: "what was planned".into(),
        ..compact(id)
    };
    let refused = engine.compact(late.clone()).await;
    assert!(matches!(
        refused,
        Err(ContextError::Append(AppendError::Rejected(_)))
    ));
    let outcome = engine
        .compact(CompactCommand {
            expected_head: None,
            ..late
        })
        .await
        .unwrap();
    assert_eq!(
        (outcome.cut, outcome.event.revision),
        (Revision(11), Revision(32))
    );
    let state = branch_state(&engine, id).await;
    assert_eq!((state.cut, state.turn.finished), (Revision(11), 4));
}

/// Inside a turn there is nothing to cut, whatever the caller requests.
#[tokio::test]
async fn cut_inside_a_turn_is_refused() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = with_turns(&engine, 2).await;
    for cut in [2, 3, 4, 5, 7] {
        let command = CompactCommand {
            cut: Some(Revision(cut)),
            ..compact(id)
        };
        let refused = engine.compact(command).await;
        let rejected = matches!(refused, Err(ContextError::Append(AppendError::Rejected(_))));
        assert!(rejected, "{cut}: {refused:?}");
    }
}

/// A summary that names a tool makes the model look for cleared content. One without tokens or text
/// is a mistake of its author. All are accepted, with warnings.
#[tokio::test]
async fn appended_compaction_gives_warnings() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    for (body, expected) in [
        (
            compacted("All is well.", 6, 10, CompactionTrigger::Manual),
            vec![],
        ),
        (
            compacted("get_page said so", 6, 10, CompactionTrigger::Manual),
            vec!["(get_page)"],
        ),
        (
            compacted("ask `lookup`", 6, 10, CompactionTrigger::Threshold),
            vec!["(lookup)"],
        ),
        (
            compacted(" ", 6, 0, CompactionTrigger::Manual),
            vec!["no summary", "no token counts before"],
        ),
        (compacted("", 6, 0, CompactionTrigger::Imported), vec![]),
    ] {
        let id = ConversationId::generate();
        let tools = vec![tool("lookup", false)];
        let mut events = vec![created(id, "{}")];
        events.extend(turn(id, 1));
        events.push(new(id, EventBody::ToolsDefined { tools }));
        append(&engine, events).await.unwrap();
        let command = AppendCommand {
            idempotency_key: Some(id.to_string()),
            ..AppendCommand::new(ns(), vec![new(id, body)])
        };
        let outcome = engine.append(command.clone()).await.unwrap();
        assert_eq!(
            outcome.warnings.len(),
            expected.len(),
            "{:?}",
            outcome.warnings
        );
        for (warning, part) in outcome.warnings.iter().zip(expected) {
            assert!(warning.contains(part), "{warning}");
        }
        // A repeated request gives the same warnings.
        let again = engine.append(command).await.unwrap();
        assert!(again.repeated_key);
        assert_eq!(again.warnings, outcome.warnings);
    }
}

/// A compaction in one batch with its events gives warnings, too.
#[tokio::test]
async fn compaction_in_a_batch_gives_warnings() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = ConversationId::generate();
    let mut events = vec![created(id, "{}")];
    events.extend(turn(id, 1));
    events.push(new(
        id,
        compacted("get_page", 6, 9, CompactionTrigger::Manual),
    ));
    let outcome = append(&engine, events).await.unwrap();
    assert_eq!(outcome.warnings.len(), 1, "{:?}", outcome.warnings);
}

/// Each of several compactions stands for the events since the previous one, so that nothing is
/// summarised twice or lost.
#[tokio::test]
async fn compaction_expands_to_its_own_events() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = with_turns(&engine, 4).await;
    let none = engine.expand(&BranchAddress::active(ns(), id), None).await;
    assert!(matches!(none, Err(ContextError::Invalid { .. })));
    let first = engine.compact(compact(id)).await.unwrap();
    assert_eq!(first.cut, Revision(6));
    turns(&engine, id, 5..=8).await;
    let second = engine.compact(compact(id)).await.unwrap();
    assert_eq!(
        expanded(&engine, id, None, Some(first.event.revision)).await,
        Vec::from_iter(1..=6)
    );
    let between = Vec::from_iter(7..=second.cut.0);
    assert_eq!(expanded(&engine, id, None, None).await, between);
    assert_eq!(
        expanded(&engine, id, None, Some(second.event.revision)).await,
        between
    );
    let no_compaction = engine
        .expand(&BranchAddress::active(ns(), id), Some(Revision(3)))
        .await;
    assert!(matches!(no_compaction, Err(ContextError::Invalid { .. })));

    // A fork before the second compaction has only the first one.
    let into = ConversationId::generate();
    let fork = ForkCommand {
        address: BranchAddress::active(ns(), id),
        at: Some(first.event.revision),
        name: String::new(),
        system_prompt: String::new(),
        into: Some(into),
        activate: false,
        idempotency_key: None,
        actor: String::new(),
    };
    engine.fork(fork.clone()).await.unwrap();
    assert_eq!(
        expanded(&engine, into, None, None).await,
        Vec::from_iter(1..=6)
    );
    // The child does not compact what it inherits from its parent, only its own events.
    let plan = engine
        .plan_compaction(PlanQuery {
            keep_turns: Some(0),
            ..PlanQuery::new(BranchAddress::active(ns(), into))
        })
        .await
        .unwrap();
    assert!(plan.reason.contains("forked from"), "{}", plan.reason);
    turns(&engine, into, 20..=21).await;
    let own = engine
        .compact(CompactCommand {
            keep_turns: Some(1),
            ..compact(into)
        })
        .await
        .unwrap();
    let behind = expanded(&engine, into, None, None).await;
    let inherited = 7..=first.event.revision.0;
    assert_eq!(behind, Vec::from_iter(inherited.chain(1..=own.cut.0)));
    assert_eq!(branch_state(&engine, id).await.cut, second.cut);

    let branch = BranchName::new("other").unwrap();
    let fork = ForkCommand {
        into: None,
        name: "other".into(),
        ..fork
    };
    engine.fork(fork).await.unwrap();
    assert_eq!(
        expanded(&engine, id, Some(&branch), None).await,
        Vec::from_iter(1..=6)
    );
}

/// A source compacts twice in the middle of a turn. Each summary stands for all events since the
/// previous one, whatever its cut says.
#[tokio::test]
async fn imported_compaction_expands_to_all_events_before_it() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = ConversationId::generate();
    let mut events = vec![created(id, "{}")];
    events.extend(turn(id, 1).into_iter().take(4));
    append(&engine, events).await.unwrap();
    let imported = || {
        let body = compacted("so far", 1, 10, CompactionTrigger::Imported);
        vec![new(id, body)]
    };
    append(&engine, imported()).await.unwrap();
    let more = vec![
        said(id, Role::Assistant, "More."),
        call(id, "more", "get_page"),
    ];
    append(&engine, more).await.unwrap();
    append(&engine, imported()).await.unwrap();
    let first = expanded(&engine, id, None, Some(Revision(6))).await;
    assert_eq!(first, Vec::from_iter(1..=5));
    assert_eq!(expanded(&engine, id, None, None).await, [6, 7, 8]);
}

/// The digest of a call in the window is the newest recorded summary, or the engine's own. A call
/// without a result has none.
#[tokio::test]
async fn finished_calls_have_result_digests() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = with_turns(&engine, 3).await;
    let snapshot = |summary: &str| {
        new(
            id,
            EventBody::ToolSnapshotRecorded(ToolSnapshotRecorded {
                call_id: "call-2".into(),
                request_revision: Revision(9),
                summary: summary.into(),
            }),
        )
    };
    let open_call = call(id, "call-9", "get_page");
    let events = vec![
        snapshot("first try"),
        snapshot("in short"),
        said(id, Role::User, "?"),
        open_call,
    ];
    append(&engine, events).await.unwrap();
    let all = engine
        .snapshots(&BranchAddress::active(ns(), id), None, 10)
        .await
        .unwrap();
    let told: Vec<_> = all
        .iter()
        .map(|s| {
            (
                s.call_id.as_str(),
                s.result_summary.as_str(),
                s.recorded,
                s.success,
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("call-3", "page 3 says marzipan3", false, true),
            ("call-2", "in short", true, true),
            ("call-1", "page 1 says marzipan1", false, true),
        ]
    );
    assert_eq!(all[1].full_result_ref(), format!("treering:{id}/10"));
    assert_eq!(
        (all[1].tool.as_str(), all[1].arguments.as_str()),
        ("get_page", "{}")
    );
    let early = engine
        .snapshots(&BranchAddress::active(ns(), id), Some(Revision(11)), 1)
        .await
        .unwrap();
    assert_eq!((early.len(), early[0].recorded), (1, false));
}

/// Number of conversations tested of each file; all with `TREERING_TEST_ALL`.
const LOOKED_AT: usize = 6;

/// Real agents break off turns, call in parallel and talk to themselves. Every plan, at any head
/// and any number of kept turns, must be accepted by an append, and must stand for exactly the
/// events that it lists.
#[tokio::test(flavor = "multi_thread")]
async fn real_trajectories_accept_every_planned_compaction() {
    let Some(folder) = env::var_os("TREERING_TEST_DATA") else {
        println!("skipped: TREERING_TEST_DATA names no folder");
        return;
    };
    let all = env::var_os("TREERING_TEST_ALL").is_some();
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let folder = Path::new(&folder).join("trajectories");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".jsonl.zst"))
        .collect();
    files.sort();
    for file in files {
        let mut counts = Counts::default();
        let lines = LineSource::open(&file, |_| {}).unwrap();
        let most = if all { usize::MAX } else { LOOKED_AT };
        for (number, line) in lines.take(most).enumerate() {
            let imported = openai_chat::import_line(&line.1.unwrap()).unwrap();
            let id = imported.conversation;
            for batch in importer::plan::batches(imported.events, 4_000, 8 << 20) {
                append(&engine, batch).await.unwrap();
            }
            compact_anywhere(&engine, id, number, &mut counts).await;
        }
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        println!("{name}: {counts:?}");
    }
}

#[derive(Debug, Default)]
struct Counts {
    compacted: usize,
    nothing_to_cut: usize,
    tokens_before: u64,
    tokens_after: u64,
}

async fn compact_anywhere(engine: &Engine, id: ConversationId, seed: usize, counts: &mut Counts) {
    let state = branch_state(engine, id).await;
    let heads = [
        state.head.0,
        state.head.0 / 2,
        (seed as u64 * 7_919) % state.head.0 + 1,
    ];
    let history: Vec<u64> = revisions(engine, id, None).await;
    for (at, head) in heads.into_iter().enumerate() {
        // The nearest earlier revision of this branch.
        let Some(head) = history.iter().rev().find(|revision| **revision <= head) else {
            continue;
        };
        let name = format!("fork {at}");
        let fork = ForkCommand {
            address: BranchAddress::active(ns(), id),
            at: Some(Revision(*head)),
            name: name.clone(),
            system_prompt: String::new(),
            into: None,
            activate: false,
            idempotency_key: None,
            actor: String::new(),
        };
        let forked = engine.fork(fork).await.unwrap();
        let branch = BranchName::new(&name).unwrap();
        // The number of kept turns falls to zero, so each cut lies after the previous one. Imported
        // events may already be compacted. Then the first summary stands for all events before it,
        // except the turns that the source kept.
        let mut last_cut = match forked.branch.compaction {
            Some(imported) => stands_until(engine, imported).await,
            None => 0,
        };
        for keep in [3, 1, 0] {
            let query = PlanQuery {
                keep_turns: Some(keep),
                ..PlanQuery::new(BranchAddress::active(ns(), id).on(branch.clone()))
            };
            let plan = engine.plan_compaction(query).await.unwrap();
            let Some(cut) = plan.cut else {
                counts.nothing_to_cut += 1;
                assert!(!plan.reason.is_empty());
                continue;
            };
            assert!(plan.kept_turns >= keep);
            assert!(plan.tokens_kept <= plan.tokens_before);
            let command = CompactCommand {
                address: BranchAddress::active(ns(), id).on(branch.clone()),
                keep_turns: Some(keep),
                expected_head: Some(plan.head),
                ..compact(id)
            };
            let outcome = engine.compact(command).await.unwrap();
            assert_eq!(
                (outcome.cut, outcome.tokens_before),
                (cut, plan.tokens_before)
            );
            assert_eq!(outcome.warnings, Vec::<String>::new(), "{id}");
            let behind = expanded(engine, id, Some(&branch), None).await;
            let of_history = revisions(engine, id, Some(&branch)).await;
            let expected: Vec<u64> = of_history
                .into_iter()
                .filter(|revision| (last_cut + 1..=cut.0).contains(revision))
                .collect();
            assert_eq!(behind, expected);
            last_cut = cut.0;
            counts.compacted += 1;
            counts.tokens_before += outcome.tokens_before;
            counts.tokens_after += outcome.tokens_after;
        }
    }
}

/// Returns the last revision that a compaction stands for.
async fn stands_until(engine: &Engine, compaction: EventRef) -> u64 {
    let compacted = compaction_at(engine, compaction).await;
    compacted.stands_until(compaction.revision).0
}

async fn compaction_at(engine: &Engine, compaction: EventRef) -> Compacted {
    let at = compaction.revision;
    let query = ReadQuery {
        from: at.0,
        to: at.0,
        ..ReadQuery::all(ns(), EventSource::Conversation(compaction.conversation))
    };
    let events = engine.read_all(query).await.unwrap();
    let event = &events[0].event;
    match body::decode(event.header.kind().unwrap(), &event.body).unwrap() {
        EventBody::Compacted(compacted) => compacted,
        other => panic!("another kind: {:?}", other.kind()),
    }
}

async fn revisions(engine: &Engine, id: ConversationId, branch: Option<&BranchName>) -> Vec<u64> {
    let source = EventSource::Branch {
        conversation: id,
        branch: branch.cloned(),
    };
    let query = ReadQuery {
        headers_only: true,
        ..ReadQuery::all(ns(), source)
    };
    let events = engine.read_all(query).await.unwrap();
    events
        .iter()
        .map(|event| event.event.header.revision.0)
        .collect()
}
