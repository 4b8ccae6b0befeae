//! Measures which of the user's messages stay in requests of real sessions under a budget. Takes
//! some minutes:
//! `TREERING_TEST_DATA=… cargo test -p treering-digest real_tests -- --ignored --nocapture`
//!
//! `TREERING_PRINT_REQUESTS=ID,…` prints the notes of these sessions.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
};

use super::{
    Digested,
    budget_tests::{draft, notes, policy, tally},
    summary::probe_tests::last_branch,
    user_text,
};
use treering_context::{
    budget::fit,
    draft::{Content, Fate, Item, Outcome},
    provider::Provider,
    samples::window_of,
    text::one_line,
    window::WindowEvent,
};
use treering_domain::{ContentPart, EventBody};

/// Number of characters of a message that must be in the request.
const LOOKED_FOR_CHARS: usize = 120;

/// Returns the messages of the user, and the user's comments on calls.
fn said(events: &[std::sync::Arc<WindowEvent>]) -> [Vec<String>; 2] {
    let mut said = [Vec::new(), Vec::new()];
    for event in events {
        match &event.body {
            EventBody::MessageAppended(message) => said[0].extend(user_text::of_message(message)),
            EventBody::ToolResultRecorded(result) => {
                let mut texts = result.parts.iter().filter_map(ContentPart::text);
                let text = texts.next().unwrap_or(&result.error_message);
                if let Some(reply) = user_text::reply(text) {
                    let told = reply.told("").into_iter();
                    said[1].extend(told.map(|(_, said)| said.to_owned()));
                }
            }
            _ => {}
        }
    }
    let beginning = |said: Vec<String>| {
        let line = |text: String| one_line(&text).chars().take(LOOKED_FOR_CHARS).collect();
        said.into_iter()
            .map(line)
            .filter(|line: &String| !line.is_empty())
            .collect()
    };
    said.map(beginning)
}

/// Returns all texts of a request as one line.
fn request(items: &[Item]) -> String {
    let mut text = String::new();
    for item in items.iter().filter(|item| item.fate != Fate::Dropped) {
        match &*item.content {
            Content::Message(message) => {
                let texts = message.parts.iter().filter_map(ContentPart::text);
                text.push_str(&texts.collect::<Vec<_>>().join("\n"));
            }
            Content::Step(step) => {
                for call in step.calls() {
                    if let Outcome::Result(result) = &call.outcome {
                        let texts = result.parts.iter().filter_map(ContentPart::text);
                        text.extend(texts);
                        text.push_str(&result.error_message);
                    }
                }
            }
            Content::Instruction(_) => {}
        }
        text.push('\n');
    }
    one_line(&text)
}

// 35 of 43 comments with which the user denied a call were missing from requests of 8,000 tokens.
#[test]
#[ignore = "minutes of measurement"]
fn real_requests_keep_what_the_user_said() {
    let Some(data) = std::env::var_os("TREERING_TEST_DATA").map(PathBuf::from) else {
        println!("skipped: TREERING_TEST_DATA names no data folder");
        return;
    };
    let print = std::env::var("TREERING_PRINT_REQUESTS").unwrap_or_default();
    let file = data.join("trajectories/claude-code-entire.jsonl.zst");
    let lines = BufReader::new(zstd::Decoder::new(std::fs::File::open(file).unwrap()).unwrap());
    let lines: Vec<String> = lines.lines().map(Result::unwrap).collect();
    println!("budget, shortened, over, under 70 %, used, words, gone, to calls, gone");
    for budget in [4_000, 8_000, 16_000, 64_000] {
        let (mut shortened, mut over, mut under, mut used) = (0, 0, 0, 0);
        let (mut all, mut gone) = ([0, 0], [0, 0]);
        for line in &lines {
            let mut events = last_branch(line.as_bytes());
            events.retain(|event| !matches!(event.body, EventBody::Compacted(_)));
            let window = window_of(events[0].at.conversation, events).digested();
            let mut draft = draft(&window, &policy(budget), Provider::Neutral);
            let fitted = fit(&window, &policy(budget), &tally(), &mut draft);
            if fitted.tokens_before <= budget {
                continue;
            }
            shortened += 1;
            over += usize::from(fitted.over_budget);
            under += usize::from(fitted.tokens * 10 < budget * 7);
            used += fitted.tokens;
            let request = request(&draft.items);
            for (kind, said) in said(&window.events).iter().enumerate() {
                all[kind] += said.len();
                let lost = said.iter().filter(|said| !request.contains(*said));
                for lost in lost {
                    gone[kind] += 1;
                    if !print.is_empty() {
                        println!("gone: {lost}");
                    }
                }
            }
            let id = line.chars().take(80).collect::<String>();
            if print.split(',').any(|of| !of.is_empty() && id.contains(of)) {
                println!(
                    "\n===== {id} at {budget}: {fitted:?}\n{}",
                    notes(&draft).join("\n")
                );
            }
        }
        let used = used / shortened.max(1);
        println!(
            "{budget}, {shortened}, {over}, {under}, {used}, {}, {}, {}, {}",
            all[0], gone[0], all[1], gone[1]
        );
        assert_eq!(under, 0, "requests of {budget} that use less than 70 %");
    }
}
