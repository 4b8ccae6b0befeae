//! Tests of the texts that replace dropped content: notes, commands and cuts.

use super::{
    Digested, TextHeuristics,
    budget_tests::{draft, fitted, kept_texts, marked, policy, tally, text_of},
};
use treering_context::{
    draft::Fate,
    heuristics::{Gap, Heuristics},
    provider::Provider,
    window::{
        WindowInput,
        samples::{Story, compacted},
    },
};
use treering_domain::{Compacted, CompactionTrigger, EventBody, ToolResultRecorded};

/// Returns a note of at most `tokens` tokens about a whole story.
fn note_of(story: &Story, tokens: u64) -> String {
    note_in(&story.input().digested(), tokens)
}

/// Returns a note of at most `tokens` tokens about a whole window.
pub(super) fn note_in(window: &WindowInput, tokens: u64) -> String {
    let draft = draft(window, &policy(0), Provider::Neutral);
    let gone: Vec<_> = draft.items.iter().collect();
    let steps = gone.iter().filter_map(|item| item.step());
    let gap = Gap {
        conversation: window.conversation,
        items: &draft.items,
        range: 0..0,
        gone: &gone,
        steps: steps.filter(|step| step.calls().next().is_some()).count(),
        head: "[Some steps and messages are left out here: the request has a budget.",
    };
    let tally = tally();
    let fits = |text: &str| tally.text(text) <= tokens;
    TextHeuristics.notes().write(&gap, &fits).unwrap()
}

// 790 of 898 characters of a note were a skill's text, quoted as the user's and placed before the
// user's first message.
#[test]
fn note_quotes_the_user_and_skips_harness_text() {
    let story = Story::new()
        .then(marked("Base directory for this skill: /x"))
        .user("<bash-stdout>From github.com</bash-stdout>")
        .user("mend the parser")
        .assistant("Done.");
    let note = note_of(&story, 400);
    assert_eq!(note.matches("the user: ").count(), 1, "{note}");
    assert!(note.contains("the user: mend the parser"), "{note}");
}

// A note said "The last of it:" although it listed everything.
#[test]
fn note_says_whether_it_is_complete() {
    let mut story = Story::new().user("mend the parser").assistant("");
    story = story.call("a").result("a", "x");
    let note = note_of(&story, 400);
    assert!(note.contains(" In short:\n#2 the user: "), "{note}");
    for step in 0..60 {
        let id = format!("s{step}");
        let path = format!(r#"{{"path": "src/{step}.rs"}}"#);
        story = story.assistant("").call_with(&id, &path).result(&id, "x");
    }
    let note = note_of(&story, 400);
    assert!(note.contains(" The last of it:\n"), "{note}");
}

// The user typed `/github-pr-review`, but the request kept an earlier message as the task, because
// the command and its text both counted as notices.
#[test]
fn prompt_command_counts_as_a_user_request() {
    let command = "<command-message>github-pr-review</command-message>\n\
                   <command-name>/github-pr-review</command-name>";
    let mut story = Story::new().user("we have conflicts").assistant("Solved.");
    story = story.user(command).then(marked(&"rule ".repeat(900)));
    for step in 0..40 {
        let id = format!("s{step}");
        story = story
            .assistant("")
            .call(&id)
            .result(&id, &"word ".repeat(200));
    }
    let (draft, fitted) = fitted(&story, &policy(3_000));
    assert!(!fitted.over_budget, "{fitted:?}");
    let kept = kept_texts(&draft);
    assert!(kept.iter().any(|kept| kept == command), "{kept:#?}");
}

// After a summary, the request kept a message from 460 events before as if it were the task. Only
// the first message after the summary counts.
#[test]
fn requests_before_an_imported_summary_are_not_the_task() {
    let EventBody::Compacted(summary) = compacted(3, "It was mended.") else {
        unreachable!("what it makes");
    };
    let summary = EventBody::Compacted(Compacted {
        trigger: CompactionTrigger::Imported,
        ..summary
    });
    let mut story = Story::new().user("old").assistant("Done.");
    story = story.user("ENOENT package.json").assistant("I look.");
    story = story
        .then(summary)
        .user("where were we?")
        .assistant("Here.");
    for step in 0..40 {
        let id = format!("s{step}");
        story = story
            .assistant("")
            .call(&id)
            .result(&id, &"word ".repeat(200));
    }
    let (draft, fitted) = fitted(&story.user("ok"), &policy(2_500));
    assert!(!fitted.over_budget, "{fitted:?}");
    let kept = kept_texts(&draft);
    let is_kept = |text: &str| kept.iter().any(|kept| kept == text);
    assert!(is_kept("where were we?") && is_kept("ok"), "{kept:#?}");
    assert!(!is_kept("ENOENT package.json"), "{kept:#?}");
}

// 35 of 43 comments with which the user denied a call were missing from requests of 8,000 tokens
// and their notes. So were the user's answers to questions. All of these are decisions.
#[test]
fn note_quotes_refusals_and_answers_of_the_user() {
    let refused = "The user doesn't want to proceed with this tool use. The tool use was \
                   rejected. To tell you how to proceed, the user said:\nrebase from main first";
    let answered = "User has answered your questions: \"Which method?\"=\"Pre-built\". You can now \
                    continue with the user's answers in mind.";
    let story = Story::new().user("release it").assistant("");
    let story = story
        .call_with("a", r#"{"command":"git push"}"#)
        .result("a", refused);
    let story = story.assistant("").call("b").result("b", answered);
    let note = note_of(&story, 400);
    assert!(note.contains("git push: rebase from main first"), "{note}");
    assert!(note.contains("the user refused "), "{note}");
    assert!(
        note.contains("the user asked “Which method?”: Pre-built"),
        "{note}"
    );
}

// A request of 8,000 tokens had 2,000 tokens left, but quoted eight lines of the user, each cut at
// 160 characters.
#[test]
fn note_quotes_the_user_in_full_if_the_budget_allows() {
    let long = format!("look at it again {}and say why", "so ".repeat(100));
    let mut story = Story::new();
    for number in 0..40 {
        let asked = format!("and what about number {number}?");
        story = story.user(&asked).assistant("Done.");
    }
    let note = note_of(&story.user(&long).assistant("Done."), 1_800);
    assert!(note.contains(&long), "{note}");
    for number in 0..40 {
        let asked = format!("the user: and what about number {number}?");
        assert!(note.contains(&asked), "{number}: {note}");
    }
}

// `…ev/workspace/cli/docs/plan.md` cannot be opened, and `mise run lint` does not show its outcome.
#[test]
fn note_gives_full_paths_and_call_outcomes() {
    let mut story = Story::new().user("mend the parser");
    for step in 0..6 {
        let id = format!("s{step}");
        let path = format!(r#"{{"path": "/Users/dev/workspace/cli/docs/plans/{step}.md"}}"#);
        story = story.assistant("").call_with(&id, &path).result(&id, "x");
    }
    let story =
        story.assistant("The parser takes a blank for the end of a line, so the last one is lost.");
    let story = story
        .call("t")
        .then(EventBody::ToolResultRecorded(ToolResultRecorded::failure(
            "t",
            "running 3 tests\n2 passed; 1 failed",
        )));
    let note = note_of(&story, 600);
    assert!(
        note.contains("Paths are from /Users/dev/workspace/cli/docs/plans."),
        "{note}"
    );
    assert!(note.contains(" 5.md"), "{note}");
    assert!(!note.contains('…'), "{note}");
    assert!(note.contains("(failed) → 2 passed; 1 failed"), "{note}");
    assert!(
        note.contains("the model: The parser takes a blank"),
        "{note}"
    );
}

// The note counted ten calls that created and changed tasks, but did not list the open tasks.
#[test]
fn budget_note_lists_open_tasks() {
    let todos = |lint: &str| {
        format!(
            r#"{{"todos":[{{"content":"format","status":"completed"}},{{"content":"lint it","status":"{lint}"}}]}}"#
        )
    };
    let mut story = Story::new().user("mend the parser").assistant("");
    story = story.call_with("t", &todos("pending")).result("t", "ok");
    for step in 0..120 {
        let id = format!("s{step}");
        story = story
            .assistant("")
            .call(&id)
            .result(&id, &"word ".repeat(200));
    }
    let (draft, fitted) = fitted(&story, &policy(3_000));
    assert!(!fitted.over_budget, "{fitted:?}");
    let kept = kept_texts(&draft);
    let told = "To do then, of 2 tasks: lint it (pending).";
    assert!(kept.iter().any(|kept| kept.contains(told)), "{kept:#?}");
}

// An interrupted command stayed as the task. The actual task, sent when the command was repeated,
// was dropped.
#[test]
fn aborted_command_is_not_the_task() {
    let command = |arguments: &str| {
        format!(
            "<command-message>debug</command-message>\n<command-name>/debug</command-name>{arguments}"
        )
    };
    let asked = command("\n<command-args>the hooks run slowly; why?</command-args>");
    let mut story = Story::new()
        .user(&command(""))
        .then(marked("Base directory: /x"));
    story = story.user("[Request interrupted by user]").user(&asked);
    for step in 0..40 {
        let id = format!("s{step}");
        story = story
            .assistant("")
            .call(&id)
            .result(&id, &"word ".repeat(200));
    }
    let story = story.assistant("It is mended.").user("and the tests?");
    let (draft, fitted) = fitted(&story, &policy(2_500));
    assert!(!fitted.over_budget, "{fitted:?}");
    let kept = kept_texts(&draft);
    assert!(kept.contains(&asked), "{kept:#?}");
    assert!(!kept.contains(&command("")), "{kept:#?}");
}

// A 51 KB listing that the user ran at the prompt took half of every request, so the user's own
// messages were cut.
#[test]
fn output_of_a_user_command_takes_at_most_an_eighth() {
    let mut story = Story::new().user("mend the parser");
    for step in 0..40 {
        let id = format!("s{step}");
        story = story
            .assistant("")
            .call(&id)
            .result(&id, &"word ".repeat(200));
    }
    let listing = "./.git/objects/2d/aa\n".repeat(2_000);
    let printed = format!("<bash-input>find .</bash-input>\n<bash-stdout>{listing}</bash-stdout>");
    let story = story
        .assistant("It is mended.")
        .user("and the tests?")
        .user(&printed);
    let (draft, fitted) = fitted(&story, &policy(4_000));
    assert!(!fitted.over_budget, "{fitted:?}");
    let kept = draft
        .items
        .iter()
        .filter(|item| item.fate != Fate::Dropped && text_of(item).contains("find ."));
    let tokens: u64 = kept.map(|item| item.tokens).sum();
    assert!(tokens > 0 && tokens <= 4_000 / 8, "{tokens}");
}

// A third of the room was free, but the newest step was dropped because its arguments were long,
// while older steps stayed. A necessary result of 190 bytes was dropped with its command, which the
// model then repeated.
#[test]
fn newest_step_is_shortened_before_it_is_dropped() {
    let mut story = Story::new().user("mend the parser");
    for step in 0..12 {
        let id = format!("s{step}");
        story = story.assistant("").call(&id).result(&id, "no such file");
    }
    let written = format!(
        r#"{{"path":"/a.rs","text":"{}"}}"#,
        "let a = 1; ".repeat(120)
    );
    let said = "I decode it: 0110 1001 ".repeat(60);
    let story = story.assistant(&said).call_with("w", &written);
    let story = story.result("w", "flag{found}");
    for budget in [800, 1_000] {
        let (draft, fitted) = fitted(&story, &policy(budget));
        assert!(!fitted.over_budget, "{fitted:?}");
        let newest = draft.items.iter().rfind(|item| item.step().is_some());
        let newest = newest.unwrap();
        assert_eq!(newest.fate, Fate::Shortened, "{budget}: {}", newest.reason);
        let step = newest.step().unwrap();
        let call = step.calls().next().unwrap();
        assert!(call.arguments_shortened, "{call:?}");
        assert!(
            format!("{:?}", call.outcome).contains("flag{found}"),
            "{call:?}"
        );
    }
}
