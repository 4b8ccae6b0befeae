//! What is told of what gave way: of notes, of commands and of cuts.

use super::{
    note,
    tests::{draft, fitted, kept_texts, marked, policy, tally, text_of},
};
use crate::{
    context::{
        provider::Provider,
        window::samples::{Story, compacted},
    },
    domain::{Compacted, CompactionTrigger, EventBody},
};

/// A note for all of a story, of so many tokens.
fn note_of(story: &Story, tokens: u64) -> String {
    let window = story.input();
    let draft = draft(&window, &policy(0), Provider::Neutral);
    let gone: Vec<_> = draft.items.iter().collect();
    let note = note::note(
        &gone,
        window.conversation,
        &tally(),
        tokens,
        &Default::default(),
    );
    text_of(&note.unwrap())
}

// 790 of 898 characters of a note were a skill's text as "the user:", before the first thing
// that he really said.
#[test]
fn a_note_quotes_the_user_and_no_harness() {
    let story = Story::new()
        .then(marked("Base directory for this skill: /x"))
        .user("<bash-stdout>From github.com</bash-stdout>")
        .user("mend the parser")
        .assistant("Done.");
    let note = note_of(&story, 400);
    assert_eq!(note.matches("the user: ").count(), 1, "{note}");
    assert!(note.contains("the user: mend the parser"), "{note}");
}

// "The last of it:" was said where all of it followed, and where there was only one.
#[test]
fn a_note_says_whether_it_tells_all() {
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

// A session whose user typed `/github-pr-review` went on with what he had asked for before:
// the command counted as a notice, and its text did, too.
#[test]
fn a_command_that_is_a_prompt_is_a_request() {
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

// Behind a summary stood, whole, a request that had been settled 460 events before, as if it
// were the task. What stays is what was asked for first since.
#[test]
fn a_summary_is_the_task_of_what_it_stands_for() {
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
