//! Tests that work grows no faster than n log n with the size of the window, for any input. The
//! tests count steps instead of seconds.

use std::sync::Arc;

use super::{
    Digested,
    knowledge::{Knowledge, KnowledgePolicy},
    summary::dialogue_summary,
};
use treering_context::{
    budget,
    draft::Draft,
    enhancer,
    policy::ContextPolicy,
    provider::Provider,
    steps,
    tokens::{Counter, Tally},
    window::{
        WindowInput,
        samples::{Story, call, conversation, json, tool},
    },
};
use treering_domain::{EventBody, MessageAppended, Role};

/// Factor between the sizes of the two inputs.
const TIMES: usize = 8;

/// Asserts that `TIMES` times the input takes at most about `TIMES` times the steps.
fn grows_gently(of: &str, n: usize, work: impl Fn(usize) -> usize) {
    let (small, large) = (work(n), work(n * TIMES));
    // Allows a factor of two for logarithms, and some constant steps.
    assert!(
        large <= (small + n) * TIMES * 2,
        "{of}: {small} steps for {n}, {large} for {}",
        n * TIMES
    );
}

fn tally() -> Tally {
    Tally::new(Counter::for_model(""), None)
}

fn drafted(window: &WindowInput, provider: Provider) -> Draft {
    let mut config = window.branch.config.clone();
    config.model_id = "gpt-5".to_owned();
    let mut draft = Draft {
        provider,
        config,
        tools: Vec::new(),
        tools_tokens: 0,
        items: Vec::new(),
        warnings: Vec::new(),
    };
    let policy = ContextPolicy::default();
    enhancer::run(window, &policy, &[], &tally(), &mut draft);
    draft
}

/// One user message followed by `steps` steps in an open turn.
fn open_turn(steps: usize, text: &str) -> Story {
    let mut story = Story::new().user("go");
    for step in 0..steps {
        let id = format!("c{step}");
        story = story.assistant("").call(&id).result(&id, text);
    }
    story
}

#[test]
fn cutting_an_open_turn() {
    let policy = ContextPolicy {
        budget_tokens: 100,
        ..ContextPolicy::default()
    };
    let text = "a ".repeat(1_300);
    grows_gently("cutting", 8, |n| {
        let window = open_turn(n, &text).input().digested();
        let mut draft = drafted(&window, Provider::Neutral);
        steps::of(|| budget::fit(&window, &policy, &tally(), &mut draft)).0
    });
}

#[test]
fn telling_a_turn_of_many_questions() {
    grows_gently("telling", 50, |n| {
        let mut story = Story::new();
        for number in 0..n {
            story = story.user(&format!("and {number}?"));
        }
        let window = story.input().digested();
        steps::of(|| dialogue_summary(conversation(), &window.events, 2_000)).0
    });
}

/// Each result shows one more variable of the same file.
#[test]
fn knowing_many_variables_of_a_file() {
    grows_gently("knowing", 50, |n| {
        let mut story = Story::new();
        for number in 0..n {
            let EventBody::ToolCallRequested(mut requested) = call("c", false) else {
                unreachable!("it makes a call")
            };
            requested.tool = "inspect_variables".to_owned();
            requested.arguments = json(r#"{"file": "a.nc"}"#);
            story = story
                .then(EventBody::ToolCallRequested(requested))
                .result("c", &format!(r#"{{"variables": {{"v{number}": "K"}}}}"#));
        }
        let policy = Arc::new(KnowledgePolicy::merged("").unwrap());
        let mut knowledge = Knowledge::new(policy, 10_000);
        let window = story.input().digested();
        let (steps, ()) = steps::of(|| {
            for event in &window.events {
                knowledge.apply(event.at, &event.body);
            }
        });
        assert_eq!(knowledge.variables()[0].variables.len(), n);
        steps
    });
}

#[test]
fn knowing_many_files_of_one_name() {
    grows_gently("files of one name", 250, |n| {
        let paths: Vec<String> = (0..n)
            .map(|number| format!("src/{number}/mod.rs"))
            .collect();
        let story = Story::new()
            .then(call("c", false))
            .result("c", &paths.join("\n"))
            .then(EventBody::MessageAppended(MessageAppended::text(
                Role::Assistant,
                paths.join(" "),
            )));
        let policy = r#"{"rules": {"files": {"tools": {"prefixes": [""]}}}}"#;
        let policy = Arc::new(KnowledgePolicy::merged(policy).unwrap());
        let mut knowledge = Knowledge::new(policy, 10_000);
        let window = story.input().digested();
        let (steps, ()) = steps::of(|| {
            for event in &window.events {
                knowledge.apply(event.at, &event.body);
            }
        });
        assert_eq!(knowledge.files().len(), n);
        steps
    });
}

#[test]
fn suggesting_among_many_arguments() {
    grows_gently("suggesting", 50, |n| {
        let names = |letter: &str| {
            let names = (0..n).map(|number| format!(r#""{letter}{number}": null"#));
            names.collect::<Vec<_>>().join(",")
        };
        let mut definition = tool("look", false, "");
        definition.input_schema = json(&format!(r#"{{"properties": {{{}}}}}"#, names("b")));
        let policy = Arc::new(KnowledgePolicy::merged("").unwrap());
        let knowledge = Knowledge::new(policy, 10_000);
        let arguments = format!("{{{}}}", names("a"));
        let work = || knowledge.suggest_arguments("Read", &arguments, Some(&definition));
        steps::of(work).0
    });
}
