//! Tests for what a budget keeps, cuts and drops with these heuristics.

use proptest::prelude::*;
use sample_steps::sample_steps;

use super::{Digested, note_tests::note_in as note_of, user_text};
use treering_context::{
    budget::{BudgetOutcome, fit},
    draft::{Block, Content, Draft, Fate, Item, Outcome, Section, Step},
    enhancer,
    explain::sections,
    policy::{CompactionPolicy, ContextPolicy, Drop, ToolResults},
    provider::{self, Provider},
    tokens::{Counter, Tally},
    window::{
        WindowInput,
        samples::{SampleStep, Story, compacted, json, told},
    },
};
use treering_domain::{
    ContentPart, ContextSet, EventBody, Media, MediaSource, MessageAppended, PromptSet,
    RawEncoding, RawMessage, Reasoning, Role, ToolResultRecorded,
};

#[path = "../context/window/sample_steps.rs"]
mod sample_steps;

pub(super) fn tally() -> Tally {
    Tally::new(Counter::for_model(""), None)
}

/// The draft of a story before the budget is applied.
pub(super) fn draft(window: &WindowInput, policy: &ContextPolicy, provider: Provider) -> Draft {
    let mut draft = Draft {
        provider,
        config: window.branch.config.clone(),
        tools: Vec::new(),
        tools_tokens: 0,
        items: Vec::new(),
        warnings: Vec::new(),
    };
    enhancer::run(window, policy, &[], &tally(), &mut draft);
    draft
}

pub(super) fn policy(budget_tokens: u64) -> ContextPolicy {
    ContextPolicy {
        budget_tokens,
        ..ContextPolicy::default()
    }
}

pub(super) fn fitted(story: &Story, policy: &ContextPolicy) -> (Draft, BudgetOutcome) {
    let window = story.input().digested();
    let mut draft = draft(&window, policy, Provider::Neutral);
    let fitted = fit(&window, policy, &tally(), &mut draft);
    (draft, fitted)
}

fn turns(count: usize, words: usize) -> Story {
    let text = "word ".repeat(words);
    let prompt = PromptSet {
        id: String::new(),
        content: "be brief".to_owned(),
    };
    let mut story = Story::new().then(EventBody::SystemPromptSet(prompt));
    for turn in 0..count {
        let id = format!("c{turn}");
        story = story
            .user(&format!("question {turn}"))
            .assistant("")
            .call(&id);
        story = story.result(&id, &text).assistant("so it is");
    }
    story
}

/// An open turn of `steps` steps with results of `words` words each.
fn open_turn(steps: usize, words: usize) -> Story {
    let mut story = Story::new().user("fix the failing test");
    for step in 0..steps {
        let id = format!("c{step}");
        let text = format!(
            "step {step} begins\n{}\nerror: step {step} failed",
            "word ".repeat(words)
        );
        story = story.assistant("").call(&id).result(&id, &text);
    }
    story
}

pub(super) fn notes(draft: &Draft) -> Vec<String> {
    let notes = draft.items.iter().filter(|item| item.enhancer == "budget");
    notes.map(text_of).collect()
}

pub(super) fn text_of(item: &Item) -> String {
    match &*item.content {
        Content::Message(message) => message.parts[0].text().unwrap_or_default().to_owned(),
        _ => String::new(),
    }
}

fn of_fate(draft: &Draft, fate: Fate) -> Vec<usize> {
    let items = draft.items.iter().enumerate();
    let items = items.filter(|(_, item)| item.fate == fate);
    items.map(|(place, _)| place).collect()
}

fn results(draft: &Draft) -> Vec<String> {
    let kept = draft.items.iter().filter(|item| item.fate != Fate::Dropped);
    let calls = kept.filter_map(Item::step).flat_map(Step::calls);
    let results = calls.filter_map(|call| match &call.outcome {
        Outcome::Result(result) => Some(result.parts[0].text().unwrap_or_default().to_owned()),
        _ => None,
    });
    results.collect()
}

// Nothing is cut without a budget or within a budget.
#[test]
fn request_within_the_budget_is_unchanged() {
    for budget in [0, 1_000_000] {
        let (draft, fitted) = fitted(&turns(5, 100), &policy(budget));
        assert!(draft.items.iter().all(|item| item.fate == Fate::Kept));
        assert_eq!(fitted.tokens, fitted.tokens_before);
        assert!(!fitted.over_budget);
    }
}

// Results can be read by reference, so they are cut before a step is dropped, oldest first. They
// keep their ends, where errors are.
#[test]
fn results_are_cut_before_steps_and_oldest_first() {
    let story = turns(10, 500).user("and now?");
    let (draft, fitted) = fitted(&story, &policy(4_500));
    assert!(fitted.tokens <= 4_500 && fitted.tokens_before > 5_000);
    assert_eq!(of_fate(&draft, Fate::Dropped), Vec::<usize>::new());
    let shortened = of_fate(&draft, Fate::Shortened);
    let steps = draft.items.iter().enumerate();
    let steps = steps.filter(|(_, item)| item.step().is_some_and(|s| s.calls().count() > 0));
    let steps: Vec<_> = steps.map(|(place, _)| place).collect();
    assert!(!shortened.is_empty() && shortened.len() < steps.len());
    assert_eq!(shortened, steps[..shortened.len()]);
}

// A turn of 54 steps was dropped as a whole, and only 33 of 8,000 tokens were sent. Steps must be
// dropped one by one, oldest first. The task and the newest results stay.
#[test]
fn long_open_turn_keeps_its_task_and_newest_steps() {
    let (draft, fitted) = fitted(&open_turn(54, 1_000), &policy(8_000));
    assert!(!fitted.over_budget && fitted.tokens > 5_600, "{fitted:?}");
    let kept = draft.items.iter().filter(|item| item.fate != Fate::Dropped);
    assert_eq!(
        text_of(kept.clone().next().unwrap()),
        "fix the failing test"
    );
    let results = results(&draft);
    let newest = results.last().unwrap();
    assert!(newest.contains("error: step 53 failed") && !newest.contains("left out"));
    assert!(results.iter().all(|text| text.contains("failed")));
    let [note] = notes(&draft).try_into().unwrap();
    assert!(note.contains("steps are left out here (#3 to #"), "{note}");
}

// A result was many times larger than the budget: the only step was dropped, or the request was
// over budget. The result must be cut to the room and keep its last lines.
#[test]
fn huge_result_is_cut_to_the_budget() {
    let text = format!("first line\n{}\nlast line", "word ".repeat(50_000));
    let story = Story::new().user("go").assistant("").call("a");
    let (draft, fitted) = fitted(&story.result("a", &text), &policy(4_000));
    assert!(!fitted.over_budget && fitted.tokens > 2_800, "{fitted:?}");
    let result = &results(&draft)[0];
    assert!(result.starts_with("first line") && result.ends_with("last line"));
    assert!(result.contains("the whole: #5"), "{result}");
}

// An error message that is also in the text was repeated when the text was cut.
#[test]
fn error_message_is_not_repeated_after_a_cut() {
    let error = format!("cannot do it: {}", "because ".repeat(3_000));
    let story =
        Story::new()
            .user("go")
            .assistant("")
            .call("a")
            .then(EventBody::ToolResultRecorded(ToolResultRecorded {
                error_message: error.clone(),
                success: false,
                ..ToolResultRecorded::text("a", &error)
            }));
    for provider in Provider::ALL {
        let window = story.input().digested();
        let mut draft = draft(&window, &policy(1_000), provider);
        let fitted = fit(&window, &policy(1_000), &tally(), &mut draft);
        assert!(!fitted.over_budget);
        let body = provider::render(&draft, &policy(1_000)).unwrap().body;
        let body = String::from_utf8(body).unwrap();
        assert_eq!(
            body.matches("cannot do it").count(),
            1,
            "{provider}: {body}"
        );
    }
}

// The user's last message stays, however old it is. Later steps may be dropped.
#[test]
fn last_question_is_kept_before_a_long_turn() {
    let mut story = turns(20, 50).user("and now the other one");
    for step in 0..60 {
        let id = format!("s{step}");
        story = story
            .assistant("")
            .call(&id)
            .result(&id, &"word ".repeat(200));
    }
    let (draft, fitted) = fitted(&story, &policy(3_000));
    assert!(!fitted.over_budget && fitted.tokens > 2_100, "{fitted:?}");
    let kept: Vec<_> = draft
        .items
        .iter()
        .filter(|item| item.fate != Fate::Dropped)
        .map(text_of)
        .collect();
    let place = |text: &str| kept.iter().position(|kept| kept == text);
    let (first, last) = (place("question 0"), place("and now the other one"));
    assert!(first.is_some() && first < last, "{kept:#?}");
    let [between, _] = notes(&draft).try_into().unwrap();
    assert!(between.contains("the user: question 19"), "{between}");
}

/// Returns the tokens of all texts in a body.
fn texts_of(value: &serde_json::Value) -> u64 {
    match value {
        serde_json::Value::String(text) => Counter::for_model("").count(text),
        serde_json::Value::Array(values) => values.iter().map(texts_of).sum(),
        serde_json::Value::Object(fields) => fields.values().map(texts_of).sum(),
        _ => 0,
    }
}

// The count of a short request included 4,018 tokens of reasoning that the provider does not
// accept. It also included unsupported images, and errors that are also in the text.
#[test]
fn content_that_is_not_sent_is_not_counted() {
    let mut answer = MessageAppended::text(Role::Assistant, "ok");
    let thought = Reasoning {
        text: "hm ".repeat(4_000),
        signature: "sig".into(),
        provider: "mistral".to_owned(),
        model: "magistral-medium".to_owned(),
        ..Reasoning::default()
    };
    answer
        .parts
        .insert(0, ContentPart::Reasoning(thought.clone()));
    let mut alone = MessageAppended::text(Role::Assistant, "");
    alone.parts = vec![ContentPart::Reasoning(thought)];
    let mut picture = MessageAppended::text(Role::User, "and now?");
    picture.parts.push(ContentPart::Image(Media {
        media_type: "image/x-unknown".to_owned(),
        source: MediaSource::Absent,
        name: String::new(),
        detail: String::new(),
    }));
    let failure = ToolResultRecorded {
        success: false,
        error_message: "no such file ".repeat(50),
        ..ToolResultRecorded::text("a", format!("sadly: {}", "no such file ".repeat(50)))
    };
    let story = Story::new()
        .user("hi")
        .then(EventBody::MessageAppended(answer))
        .user(" ")
        .then(EventBody::MessageAppended(alone))
        .then(EventBody::MessageAppended(picture))
        .call("a")
        .then(EventBody::ToolResultRecorded(failure));
    let policy = ContextPolicy {
        compaction: CompactionPolicy {
            window_tokens: 2_000,
            ..CompactionPolicy::default()
        },
        ..policy(0)
    };
    let window = story.input().digested();
    for provider in Provider::ALL
        .into_iter()
        .filter(|p| *p != Provider::Neutral)
    {
        let tally = tally().sent_to(provider, "claude-opus-4");
        let mut draft = Draft {
            items: Vec::new(),
            ..draft(&window, &policy, provider)
        };
        enhancer::run(&window, &policy, &[], &tally, &mut draft);
        let fitted = fit(&window, &policy, &tally, &mut draft);
        let body = provider::render(&draft, &policy).unwrap().body;
        let sent = texts_of(&serde_json::from_slice(&body).unwrap());
        let lines: u64 = sections(&draft, &tally)
            .iter()
            .map(|line| line.tokens)
            .sum();
        assert_eq!(lines, fitted.tokens);
        assert!(
            fitted.tokens.abs_diff(sent) < 80,
            "{provider}: {} of {sent}",
            fitted.tokens
        );
        assert!(!fitted.compaction_due, "{provider}");
    }
}

// Answers with only reasoning, which is not sent, ended the search for older items. Only 7,514 of
// 64,000 tokens were used.
#[test]
fn content_that_is_not_sent_leaves_the_budget_to_steps() {
    let mut thought = MessageAppended::text(Role::Assistant, "");
    thought.parts = vec![ContentPart::Reasoning(Reasoning {
        text: "hm ".repeat(100),
        ..Reasoning::default()
    })];
    let mut story = Story::new().user("go");
    for step in 0..100 {
        let id = format!("c{step}");
        story = story
            .assistant("")
            .call(&id)
            .result(&id, &"word ".repeat(200));
        if step % 10 == 5 {
            story = story
                .then(EventBody::MessageAppended(thought.clone()))
                .user("on");
        }
    }
    let window = story.input().digested();
    let tally = tally().sent_to(Provider::OpenAiChat, "gpt-5");
    let mut draft = draft(&window, &policy(8_000), Provider::OpenAiChat);
    draft.items.clear();
    enhancer::run(&window, &policy(8_000), &[], &tally, &mut draft);
    let fitted = fit(&window, &policy(8_000), &tally, &mut draft);
    assert!(!fitted.over_budget && fitted.tokens > 5_600, "{fitted:?}");
}

// A late result is told as a message. It was treated as a message of the user and stayed whole, so
// the request was over the budget.
#[test]
fn late_result_can_be_cut() {
    let story = Story::new().user("go").assistant("").call("a");
    let story = story.assistant("never mind").user("and now?");
    let story = story.result("a", &"word ".repeat(9_000));
    let (draft, fitted) = fitted(&story, &policy(2_000));
    assert!(!fitted.over_budget && fitted.tokens > 1_400, "{fitted:?}");
    let last = draft.items.last().unwrap();
    assert_eq!(last.fate, Fate::Shortened);
    assert!(text_of(last).starts_with("[LATE RESULT]"));
}

/// Deterministic pseudo-random text over the base64 alphabet.
fn encoded(bytes: usize) -> String {
    let mut state = 7_u64;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        char::from(digits[(state >> 58) as usize])
    };
    (0..bytes).map(next).collect()
}

/// Returns the result of a web search.
fn found(pages: usize) -> String {
    let page = |at: usize| {
        serde_json::json!({
            "encrypted_content": encoded(3_000),
            "title": format!("Page {at}"),
            "url": format!("https://host.example/{at}"),
        })
    };
    serde_json::to_string(&(0..pages).map(page).collect::<Vec<_>>()).unwrap()
}

// A late result kept 19,695 tokens of encrypted text. The results before it got 160 bytes each,
// without a title or URL.
#[test]
fn encoded_data_is_dropped_first() {
    let mut story = Story::new().user("what is new?").assistant("").call("late");
    for id in ["a", "b"] {
        story = story.assistant("").call(id).result(id, &found(10));
    }
    let story = story.assistant("so it is").user("and now?");
    let story = story.result("late", &found(10));
    let (draft, fitted) = fitted(&story, &policy(4_000));
    assert!(!fitted.over_budget, "{fitted:?}");
    let mut told = results(&draft);
    let late = draft.items.last().unwrap();
    let Content::Message(late) = &*late.content else {
        panic!("a message")
    };
    told.push(late.parts[1].text().unwrap().to_owned());
    assert_eq!(told.len(), 3);
    for told in told {
        for at in 0..10 {
            let url = format!("https://host.example/{at}\"");
            assert!(
                told.contains(&url) && told.contains(&format!("Page {at}")),
                "{told}"
            );
        }
        assert!(
            !told.contains(&encoded(200)) && told.contains("the whole: #"),
            "{told}"
        );
    }
}

// The user asked for a plan. The two answers with the plan were dropped, but a file read for them
// kept 1,975 tokens. The next message, "put more stuff into that", then made no sense.
#[test]
fn long_answers_are_cut_instead_of_dropped() {
    let plan = |name: &str| {
        format!(
            "{name} begins.\n{}{name} ends.",
            "a step of it\n".repeat(700)
        )
    };
    let story = Story::new().user("analyse it, then give me a plan");
    let story = story
        .assistant("")
        .call("r")
        .result("r", &"word ".repeat(9_000));
    let story = story.assistant(&plan("The analysis")).user("and the plan?");
    let story = story
        .assistant("")
        .call("s")
        .result("s", &"word ".repeat(9_000));
    let story = story
        .assistant(&plan("The plan"))
        .user("can we put more into that?");
    let mut story = story.assistant("We can.").user("ok, create a branch");
    for step in 0..6 {
        let id = format!("c{step}");
        story = story
            .assistant("")
            .call(&id)
            .result(&id, &"word ".repeat(300));
    }
    let (draft, fitted) = fitted(&story, &policy(8_000));
    assert!(!fitted.over_budget && fitted.tokens > 5_600, "{fitted:?}");
    let stays: Vec<String> = draft
        .items
        .iter()
        .filter(|item| item.fate != Fate::Dropped)
        .filter_map(Item::step)
        .map(|step| {
            let texts = step.blocks.iter().filter_map(|block| match block {
                Block::Part(part) => part.text(),
                Block::Call(_) => None,
            });
            texts.collect()
        })
        .collect();
    for name in ["The analysis", "The plan"] {
        let told = stays
            .iter()
            .find(|text| text.starts_with(&format!("{name} begins.")));
        let told = told.unwrap_or_else(|| panic!("{name} is not in {stays:#?}"));
        assert!(told.ends_with(&format!("{name} ends.")), "{told}");
    }
    let is_cut = |text: &String| text.contains("bytes of what was said are left out");
    assert!(stays.iter().any(is_cut), "{stays:#?}");
}

// The same file was read nine times and took its room nine times.
#[test]
fn repeated_results_are_sent_once() {
    let file = |name: &str| format!("// {name}\n{}", "let x = 1;\n".repeat(300));
    let mut story = Story::new().user("mend it");
    for round in 0..9 {
        for name in ["same", "other"] {
            let id = format!("{name}{round}");
            let text = match name {
                "same" => file(name),
                name => file(&format!("{name} {round}")),
            };
            story = story.assistant("").call(&id).result(&id, &text);
        }
    }
    let (draft, fitted) = fitted(&story, &policy(16_000));
    assert!(!fitted.over_budget && fitted.tokens > 11_200, "{fitted:?}");
    let results = results(&draft);
    let again = results
        .iter()
        .filter(|text| text.contains("comes again further on"));
    assert!(again.count() >= 4, "{results:#?}");
    let whole = results.iter().filter(|text| **text == file("same"));
    assert!(whole.count() >= 1);
    // Only results that are repeated later are omitted.
    assert!(notes(&draft).is_empty());
}

// A harness reminder after every file that was read, and a notice before every request, were sent
// at every occurrence.
#[test]
fn repeated_reminders_are_sent_once() {
    let reminder = format!(
        "<system-reminder>\n{}</system-reminder>",
        "Mind this rule of the project.\n".repeat(20)
    );
    let notice = format!(
        "<system-reminder>\n{}</system-reminder>",
        "Be brief.\n".repeat(60)
    );
    let mut story = Story::new().user("mend it");
    for round in 0..20 {
        let id = format!("c{round}");
        let text = format!("// {round}\n{}", "let x = 1;\n".repeat(60));
        story = story.user(&notice).assistant("").call(&id);
        story = story.result(&id, &format!("{text}\n\n{reminder}"));
    }
    let whole = draft(&story.input().digested(), &policy(0), Provider::Neutral).tokens();
    let (draft, fitted) = fitted(&story, &policy(whole * 8 / 10));
    assert!(!fitted.over_budget, "{fitted:?}");
    let results = results(&draft);
    let reminded = |text: &&String| text.contains("Mind this rule");
    let gone = results.iter().filter(|text| !reminded(text)).count();
    assert!(gone > 10, "{gone} {fitted:?}");
    let last = results.iter().rfind(|text| text.contains("// 19\n"));
    assert!(
        last.is_some_and(|text| text.contains("Mind this rule")),
        "{last:?}"
    );
    // No part of the results was removed with the reminders.
    let is_cut = |text: &&String| text.contains("are left out");
    assert_eq!(results.iter().filter(is_cut).count(), 0, "{results:#?}");
    let kept = kept_texts(&draft);
    let noticed = kept
        .iter()
        .filter(|text| text.contains("Be brief."))
        .count();
    assert!((1..10).contains(&noticed), "{noticed}");
}

// A summary of Claude Code was cut in the middle. It kept half of the model's analysis instead of
// the state at its end.
#[test]
fn analysis_of_a_summary_is_left_out_first() {
    let long = |what: &str, lines: usize| -> String {
        (1..=lines)
            .map(|line| format!("{what}, line {line}\n"))
            .collect()
    };
    let summary = format!(
        "It goes on.\n\nAnalysis:\n{}\nSummary:\n{}",
        long("analysis", 200),
        long("state", 60)
    );
    let mut story = Story::new().user("mend it").assistant("yes");
    story = story.then(compacted(3, &summary));
    story = story.user("and now?").assistant("").call("a");
    story = story
        .result("a", &"a word of it\n".repeat(400))
        .assistant("done")
        .user("go on");
    let (draft, fitted) = fitted(&story, &policy(900));
    assert!(!fitted.over_budget, "{fitted:?}");
    let kept = kept_texts(&draft);
    let kept = kept
        .iter()
        .find(|text| text.contains("It goes on."))
        .unwrap();
    assert!(!kept.contains("analysis, line"), "{kept}");
    assert!(kept.contains("\nSummary:\nstate, line 1\n"), "{kept}");
    assert!(
        kept.contains("are left out, lines 3 to 204; the whole:"),
        "{kept}"
    );
    assert!(kept.contains("state, line 60"), "{kept}");
}

// A call that wrote a 30 kB file long ago took half of every request.
#[test]
fn long_arguments_of_old_calls_are_cut() {
    let content = "let x = 1;\n".repeat(3_000);
    let arguments = serde_json::json!({"file_path": "/src/a.rs", "content": content});
    let mut story = Story::new().user("write it").assistant("");
    story = story
        .call_with("w", &arguments.to_string())
        .result("w", "written");
    for step in 0..10 {
        let id = format!("c{step}");
        story = story
            .assistant("")
            .call(&id)
            .result(&id, &"word ".repeat(200));
    }
    for provider in Provider::ALL {
        let window = story.input().digested();
        let mut draft = draft(&window, &policy(6_000), provider);
        let fitted = fit(&window, &policy(6_000), &tally(), &mut draft);
        assert!(!fitted.over_budget, "{fitted:?}");
        assert!(notes(&draft).is_empty(), "{:?}", notes(&draft));
        let mut calls = draft
            .items
            .iter()
            .filter_map(Item::step)
            .flat_map(Step::calls);
        let written = calls.find(|call| call.call_id == "w").unwrap();
        let told: serde_json::Value = serde_json::from_str(written.arguments.as_str()).unwrap();
        assert_eq!(told["file_path"], "/src/a.rs");
        let content = told["content"].as_str().unwrap();
        assert!(
            content.contains("; the whole: #4 …]") && content.len() < 5_000,
            "{content}"
        );
        provider::render(&draft, &policy(6_000)).unwrap();
    }
    // The last call must stay, too. It was dropped because its arguments did not fit.
    let alone = Story::new().user("write it").assistant("");
    let alone = alone
        .call_with("w", &arguments.to_string())
        .result("w", "written");
    let (draft, _) = self::fitted(&alone, &policy(6_000));
    let mut calls = draft
        .items
        .iter()
        .filter_map(Item::step)
        .flat_map(Step::calls);
    assert!(calls.any(|call| call.arguments_shortened));
}

// The note about 96 steps and 43 messages quoted no request, although a fifth of the budget was
// free.
#[test]
fn notes_quote_dropped_questions_and_answers() {
    let mut story = Story::new().user("begin");
    for turn in 0..30 {
        let id = format!("c{turn}");
        story = story
            .assistant("")
            .call(&id)
            .result(&id, &"word ".repeat(300));
        story = story
            .assistant(&format!("Done: part {turn} works now."))
            .user(&format!(
                "now mend part {turn}, {}",
                "and mind the tests ".repeat(12)
            ));
    }
    let (draft, fitted) = fitted(&story, &policy(4_000));
    assert!(!fitted.over_budget && fitted.tokens > 2_800, "{fitted:?}");
    let notes = notes(&draft).join("\n");
    assert!(
        notes.matches("the user: now mend part").count() >= 3,
        "{notes}"
    );
    assert!(notes.contains("the answer: Done: part"), "{notes}");
}

/// Returns a message in the user's role that its harness marked as its own.
pub(super) fn marked(text: &str) -> EventBody {
    let mut message = MessageAppended::text(Role::User, text);
    message.raw = Some(RawMessage {
        origin: "openai-chat".to_owned(),
        provider: String::new(),
        model: String::new(),
        encoding: RawEncoding::JsonPatch,
        data: bytes::Bytes::from_static(br#"[{"op":"add","path":"/x/meta","value":true}]"#),
    });
    EventBody::MessageAppended(message)
}

pub(super) fn kept_texts(draft: &Draft) -> Vec<String> {
    let kept = draft.items.iter().filter(|item| item.fate != Fate::Dropped);
    let texts = kept.map(|item| match &*item.content {
        Content::Step(step) => {
            let parts = step.blocks.iter().filter_map(|block| match block {
                Block::Part(part) => part.text(),
                Block::Call(_) => None,
            });
            parts.collect()
        }
        _ => text_of(item),
    });
    texts.collect()
}

// A skill's text of 2,581 tokens was kept as the last message of the user. The task of 38 tokens
// was dropped for it.
#[test]
fn harness_messages_give_way_before_user_messages() {
    let mut story = Story::new()
        .then(marked(&"be careful ".repeat(40)))
        .user("mend the parser")
        .user("and its tests");
    for step in 0..40 {
        let id = format!("s{step}");
        story = story
            .assistant("")
            .call(&id)
            .result(&id, &"word ".repeat(200));
    }
    let skill = format!("Base directory of this skill\n{}", "rule ".repeat(2_500));
    let (draft, fitted) = fitted(&story.then(marked(&skill)), &policy(4_000));
    assert!(!fitted.over_budget && fitted.tokens > 2_800, "{fitted:?}");
    let kept = kept_texts(&draft);
    for said in ["mend the parser", "and its tests"] {
        assert!(kept.iter().any(|kept| kept == said), "{kept:#?}");
    }
    let skill = draft.items.last().unwrap();
    assert_eq!(skill.fate, Fate::Shortened);
}

// A model read lines 1604 to 1900 of a file. The mark said that lines 13 to 286 were left out, and
// the model then read those lines of the file.
#[test]
fn cut_of_a_file_range_names_the_lines_of_the_file() {
    let text: String = (1604..1900)
        .map(|line| format!("this is line {line}\n"))
        .collect();
    let story = Story::new().user("go").assistant("");
    let story = story.call_with("a", r#"{"command": "sed -n '1604,1900p' src/main.ts"}"#);
    let (draft, _) = fitted(&story.result("a", &text), &policy(500));
    let result = &results(&draft)[0];
    let (head, rest) = result.split_once("\n[… ").unwrap();
    let (mark, tail) = rest.split_once(" …]\n").unwrap();
    let last = head.lines().last().unwrap();
    let next = tail.lines().next().unwrap();
    let number = |line: &str| line["this is line ".len()..].parse::<u64>().unwrap();
    let (from, to) = (number(last) + 1, number(next) - 1);
    let lines = format!(
        "lines {} to {} (of the file: {from} to {to}); the whole: #5",
        from - 1603,
        to - 1603
    );
    assert!(mark.ends_with(&lines), "{result}");
}

// The output of `!find .` counted as the last message of the user, which is never cut. It had
// 27,613 tokens, so no request could be built within 8,000. The message before it is the last one.
#[test]
fn output_of_a_user_command_is_cut_like_a_result() {
    let output = "./src/main.rs\n".repeat(4_000);
    let tagged = format!("<bash-input>find .</bash-input>\n<bash-stdout>{output}</bash-stdout>");
    // As recorded by pi. A command hidden from the model is omitted.
    let record = |hidden: bool| {
        serde_json::json!({"command": "find .", "output": output, "exitCode": 0,
            "cancelled": false, "truncated": false, "excludeFromContext": hidden})
        .to_string()
    };
    for command in [tagged, record(false)] {
        let story = Story::new().user("mend the parser").assistant("Done.");
        let story = story.user(&record(true)).user("and its tests");
        let story = story.assistant("Yes.").user(&command);
        let (draft, fitted) = fitted(&story, &policy(4_000));
        assert!(!fitted.over_budget, "{fitted:?}");
        let kept = kept_texts(&draft);
        let said = ["mend the parser", "Done.", "and its tests", "Yes."];
        assert_eq!(kept[..4], said);
        assert!(kept[4].starts_with("<bash-input>find .</bash-input>"));
        assert!(kept[4].ends_with("</bash-stdout>"), "{}", kept[4]);
    }
}

// The last message of the user was `3`, but the answer with the three choices had been dropped.
#[test]
fn message_answered_by_the_last_user_message_is_kept() {
    let mut story = Story::new().user("make it faster");
    for step in 0..40 {
        let id = format!("s{step}");
        story = story
            .assistant("")
            .call(&id)
            .result(&id, &"word ".repeat(200));
    }
    let options = "Which one?\n1. an index\n2. a cache\n3. both";
    for (said, after) in [
        (options.to_owned(), 0),
        (format!("{}{options}", "so ".repeat(9_000)), 0),
        (options.to_owned(), 30),
    ] {
        let mut story = story.clone().assistant(&said).user("3");
        for step in 0..after {
            let id = format!("t{step}");
            story = story
                .assistant("")
                .call(&id)
                .result(&id, &"word ".repeat(200));
        }
        let (draft, fitted) = fitted(&story, &policy(3_000));
        assert!(!fitted.over_budget, "{fitted:?}");
        let kept = kept_texts(&draft);
        assert!(
            kept.iter().any(|kept| kept.ends_with(options)),
            "{after}: {kept:#?}"
        );
        assert!(kept.iter().any(|kept| kept == "make it faster"));
    }
}

// A last message of 27,000 tokens displaced the summary, although 3,000 tokens were left.
#[test]
fn large_last_message_does_not_displace_the_summary() {
    let summary = format!("Goal: one session for all modes. {}", "done ".repeat(300));
    let mut story = turns(4, 300).then(compacted(13, &summary)).user("go on");
    for step in 0..20 {
        let id = format!("s{step}");
        story = story
            .assistant("")
            .call(&id)
            .result(&id, &"word ".repeat(200));
    }
    let story = story
        .assistant("which files?")
        .user(&"./a/file\n".repeat(1_500));
    let window = story.input().digested();
    let whole = draft(&window, &policy(0), Provider::Neutral);
    let last = whole.items.last().unwrap().tokens;
    let mut draft = whole.clone();
    let is_said = |item: &&Item| {
        let section = item.section;
        section == Section::Compaction
            || section == Section::Messages
            || section == Section::OpenTurn
    };
    let said: u64 = whole
        .items
        .iter()
        .filter(is_said)
        .map(|item| item.tokens)
        .sum();
    let budget = last + whole.tokens() - said + 700;
    let fitted = fit(&window, &policy(budget), &tally(), &mut draft);
    assert!(!fitted.over_budget, "{fitted:?}");
    let kept = draft.items.iter().filter(|item| item.fate == Fate::Kept);
    let kept: Vec<_> = kept.map(text_of).collect();
    assert!(
        kept.iter().any(|kept| kept.contains("Goal: one session")),
        "{fitted:?} {budget}"
    );
}

// A session that began with `/clear` kept that as its task. An interrupted session kept the notice
// of the interruption as the last message.
#[test]
fn task_is_kept_and_command_notices_are_not_tasks() {
    let clear = "<command-name>/clear</command-name>\n<command-args></command-args>";
    let mut story = Story::new().user(clear).user("mend the parser");
    for step in 0..60 {
        let id = format!("s{step}");
        if step == 30 {
            story = story.user("and its tests");
        }
        story = story
            .assistant("")
            .call(&id)
            .result(&id, &"word ".repeat(200));
    }
    let story = story.user("[Request interrupted by user]");
    let (draft, _) = fitted(&story, &policy(3_000));
    let kept = draft.items.iter().filter(|item| item.fate != Fate::Dropped);
    let kept: Vec<_> = kept.map(text_of).collect();
    for said in ["mend the parser", "and its tests"] {
        assert!(kept.iter().any(|kept| kept == said), "{kept:#?}");
    }
}

// The tail of a result was a harness reminder, cut in its middle.
#[test]
fn cut_result_ends_with_tool_output() {
    let lines = "a line of the file\n".repeat(500);
    let text = format!(
        "{lines}the end\n\n<system-reminder>\n{}\n</system-reminder>\n",
        "mind it ".repeat(60)
    );
    let story = Story::new().user("go").assistant("").call("a");
    let (draft, _) = fitted(&story.result("a", &text), &policy(500));
    let result = &results(&draft)[0];
    assert!(
        result.ends_with("the end") && !result.contains("reminder"),
        "{result}"
    );
    let told: usize = result.find("[…").unwrap();
    let (head, rest) = result.split_at(told);
    let (mark, tail) = rest.split_once("]\n").unwrap();
    let left_out = text.len() - (head.len() - 1) - tail.len();
    assert!(
        mark.starts_with(&format!("[… {left_out} of {} bytes", text.len())),
        "{mark}"
    );
}

// The note listed the dropped calls but not the user's messages between them.
#[test]
fn note_keeps_user_requests_before_calls() {
    let mut story = Story::new().user("begin");
    for step in 0..90 {
        let id = format!("s{step}");
        if step == 40 {
            story = story.user("leave the old files alone");
        }
        story = story.assistant("").call(&id).result(&id, "a word");
    }
    let window = story.input().digested();
    for tokens in [120, 160, 400] {
        let text = note_of(&window, tokens);
        assert!(tally().text(&text) <= tokens, "{text}");
        assert!(
            text.contains("#123 the user: leave the old files alone"),
            "{text}"
        );
    }
}

// At the budget, a conversation must not lose its cached prefix at every request. The cut must stay
// in place for many requests.
#[test]
fn cut_stays_in_place_over_many_requests() {
    for (words, budget) in [(60, 2_000), (100, 8_000)] {
        let story = open_turn(160, words);
        let fronts: Vec<_> = (10..160)
            .map(|steps| {
                let window = story.input_at(2 + steps * 3).digested();
                let mut draft = draft(&window, &policy(budget), Provider::Neutral);
                let fitted = fit(&window, &policy(budget), &tally(), &mut draft);
                assert!(!fitted.over_budget);
                (
                    of_fate(&draft, Fate::Dropped),
                    of_fate(&draft, Fate::Shortened),
                )
            })
            .collect();
        let mut moves = fronts.clone();
        moves.dedup();
        assert!(moves.len() * 3 <= fronts.len(), "{} moves", moves.len());
    }
}

// The active context differs in each request. Its size must not move the layout, or no request hits
// the cache.
#[test]
fn active_context_does_not_move_the_cut() {
    let fronts: Vec<_> = (0..20)
        .map(|size| {
            let value = format!(r#"{{"a": "{}"}}"#, "x ".repeat(size));
            let set = EventBody::ContextSet(ContextSet {
                key: "k".to_owned(),
                value: json(&value),
                provider: String::new(),
            });
            let (draft, _) = fitted(&open_turn(40, 300).then(set), &policy(8_000));
            (
                of_fate(&draft, Fate::Dropped),
                of_fate(&draft, Fate::Shortened),
            )
        })
        .collect();
    let mut moves = fronts;
    moves.dedup();
    assert!(moves.len() <= 2, "{moves:?}");
}

// If the items that always stay exceed the budget, a warning must say so, and by how much.
#[test]
fn request_over_the_budget_gives_a_warning() {
    let story = turns(3, 100).user(&"word ".repeat(500));
    let (draft, fitted) = fitted(&story, &policy(100));
    assert!(fitted.over_budget);
    let excess = fitted.tokens - 100;
    assert!(draft.warnings[0].contains(&format!("{excess} tokens over its budget of 100")));
    let kept = draft.items.iter().filter(|item| item.fate != Fate::Dropped);
    assert_eq!(kept.count(), 2, "the prompt and the last question");
}

// A request of 73 tokens was refused for a budget of 100, because room was reserved for an
// explanation of references that it did not have.
#[test]
fn unused_token_reserve_is_given_back() {
    let story = turns(3, 100).user(&"word ".repeat(500));
    let (mut draft, fitted) = fitted(&story, &policy(100));
    let excess = fitted.tokens - 100;
    let less = fitted.without(excess - 1, 100, &mut draft);
    assert!(less.over_budget && less.tokens == 101);
    assert_eq!(draft.warnings.len(), 1);
    assert!(draft.warnings[0].contains("is 1 tokens over its budget of 100"));
    let fits = less.without(1, 100, &mut draft);
    assert!(!fits.over_budget && fits.tokens == 100);
    assert_eq!(draft.warnings, Vec::<String>::new());
}

// Existing policies use an older name of `steps`.
#[test]
fn drop_order_accepts_turns_for_steps() {
    let policy = ContextPolicy::merged("", r#"{"drop_order": ["turns", "steps"]}"#).unwrap();
    assert_eq!(policy.drop_order, [Drop::Steps, Drop::Steps]);
}

fn steps_are_whole(before: &Draft, after: &Draft) -> Result<(), TestCaseError> {
    let told = after.items.iter().filter(|item| item.enhancer != "budget");
    let told: Vec<_> = told.collect();
    prop_assert_eq!(before.items.len(), told.len());
    for (whole, now) in before.items.iter().zip(told) {
        if let (Some(whole), Some(now)) = (whole.step(), now.step()) {
            let calls = |step: &Step| step.calls().map(|call| call.request).collect::<Vec<_>>();
            prop_assert_eq!(calls(whole), calls(now));
        }
        let instruction = matches!(*now.content, Content::Instruction(_));
        prop_assert!(!instruction || now.fate != Fate::Dropped);
        prop_assert_eq!(now.tokens == 0, now.fate == Fate::Dropped);
    }
    Ok(())
}

fn is_said(item: &Item) -> bool {
    let Content::Message(message) = &*item.content else {
        return false;
    };
    let mut texts = message.parts.iter().filter_map(ContentPart::text);
    texts.clone().next().is_none() || texts.any(user_text::is_said)
}

/// Returns the tokens of the items that always stay.
fn stays(draft: &Draft) -> u64 {
    let by_user = |item: &&Item| {
        item.is_of_user() && matches!(item.section, Section::Messages | Section::OpenTurn)
    };
    let system = draft.items.iter();
    let system = system.filter(|item| item.section == Section::System);
    let mut all = draft.items.iter().rev().filter(by_user);
    let newest = all.clone().next();
    // An empty message does not count as the last; the one before it stays.
    let last = all.find(|item| is_said(item)).or(newest);
    draft.tools_tokens
        + system.map(|item| item.tokens).sum::<u64>()
        + last.map_or(0, |item| item.tokens)
}

fn orders() -> impl Strategy<Value = Vec<Drop>> {
    prop_oneof![
        3 => Just(Drop::DEFAULT.to_vec()),
        1 => prop::sample::subsequence(Drop::DEFAULT.to_vec(), 0..=9).prop_shuffle(),
    ]
}

/// Fewer cases than usual, because each takes half a second; `PROPTEST_CASES` sets their number.
fn cases() -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(64),
    }
}

proptest! {
    #![proptest_config(cases())]

    // For any history and budget, the request is within the budget or reports that it is not. No
    // step is split, the numbers add up, and the provider accepts the request.
    #[test]
    fn any_history_fits_the_budget_or_is_reported(
        steps in sample_steps(true),
        budget in prop_oneof![Just(0_u64), 1..3_000_u64],
        drop_order in orders(),
        results in prop_oneof![
            Just(ToolResults::Keep),
            Just(ToolResults::TurnEnd),
            (0..4_u32).prop_map(ToolResults::OlderThanTurns)
        ],
        factor in prop_oneof![Just(1.0), 0.5..2.5_f64],
    ) {
        let window = told(&steps).input().digested();
        let policy = ContextPolicy {
            drop_order,
            tool_results: results,
            ..policy(budget)
        };
        let tally = tally().scaled(factor);
        for provider in Provider::ALL {
            let mut before = draft(&window, &policy, provider);
            tally.scale_counted(&mut before);
            let mut after = before.clone();
            let fitted = fit(&window, &policy, &tally, &mut after);
            prop_assert_eq!(fitted.tokens, after.tokens());
            let fits = budget == 0 || fitted.tokens <= budget;
            prop_assert_eq!(fits, !fitted.over_budget);
            prop_assert_eq!(fits, after.warnings.len() == before.warnings.len());
            if policy.drop_order == Drop::DEFAULT && stays(&before) <= budget {
                prop_assert!(fits, "{} of {budget}", fitted.tokens);
            }
            let mut again = before.clone();
            fit(&window, &policy, &tally, &mut again);
            prop_assert_eq!(&again, &after);
            steps_are_whole(&before, &after)?;
            let lines: u64 = sections(&after, &tally).iter().map(|line| line.tokens).sum();
            prop_assert_eq!(lines, after.tokens());
            let rendered = provider::render(&after, &policy);
            prop_assert!(rendered.is_ok(), "{provider}: {:?}", rendered.err());
        }
    }

    // For any messages and results, a sufficient budget is used, and each gap has a note.
    #[test]
    fn any_history_uses_most_of_the_budget(
        sizes in prop::collection::vec(0..3_000_usize, 1..60),
        asked in prop::collection::vec(any::<bool>(), 60),
        budget in 1_000..20_000_u64,
    ) {
        let mut story = Story::new().user("fix it");
        for (step, size) in sizes.iter().enumerate() {
            let id = format!("c{step}");
            if asked[step] {
                story = story.user("go on");
            }
            story = story.assistant("I look.").call(&id).result(&id, &"word ".repeat(*size));
        }
        let window = story.input().digested();
        let mut draft = draft(&window, &policy(budget), Provider::OpenAiChat);
        let enough = draft.tokens() >= budget;
        let fitted = fit(&window, &policy(budget), &tally(), &mut draft);
        prop_assert!(!fitted.over_budget);
        prop_assert!(!enough || fitted.tokens * 10 >= budget * 7, "{} of {budget}", fitted.tokens);
        let gone = !of_fate(&draft, Fate::Dropped).is_empty();
        prop_assert_eq!(gone, !notes(&draft).is_empty());
    }
}
