use proptest::prelude::*;

use super::*;
use crate::summary::text::is_hidden;
use treering_context::samples::{SampleEvent, window};
use treering_domain::{Compacted, CompactionTrigger, EventBody, RawEncoding, RawMessage, Revision};

fn extract(spoken: &[SampleEvent], max_chars: usize) -> String {
    compaction_extract(&window(spoken).1, None, max_chars)
}

/// A successor needs the exact task, the changes, commands, failures and open tasks, not a clipped
/// line for each turn.
#[test]
fn extract_lists_task_changes_failures_and_open_work() {
    let text = extract(
        &[
            SampleEvent::User("Change the title of content/home.md, please.\nKeep the footer."),
            SampleEvent::Assistant("I look first. It fails because the page moved."),
            SampleEvent::Call("a", "Write", r#"{"file_path":"content/home.md"}"#),
            SampleEvent::Result("a", "File created successfully"),
            SampleEvent::Call("b", "Bash", r#"{"command":"npm test"}"#),
            SampleEvent::Result("b", "ok\n12 passing"),
            SampleEvent::Call("c", "Bash", r#"{"command":"npm run lint"}"#),
            SampleEvent::Failure("c", "error: trailing space in home.md:3"),
            SampleEvent::Assistant("The title is \"Welcome\" now.\n\n- [x] title\n- [ ] footer"),
            SampleEvent::User("Not \"Welcome\": \"Home\"."),
            SampleEvent::Call("d", "Bash", r#"{"command":"rm content/old.md"}"#),
            SampleEvent::Result("d", ""),
        ],
        4_000,
    );
    let expected = format!(
        "{CONTINUATION}\n\n\
         The task, as it was first asked:\n  \
         Change the title of content/home.md, please.\n  Keep the footer.\n\n\
         Asked later, and what the user answered and refused, in order:\n\
         - Not \"Welcome\": \"Home\".\n\n\
         What is next:\n\
         - footer\n\
         - the last request has no answer yet\n\n\
         Files:\n\
         - last changed: content/old.md (deleted)\n\
         - created: content/home.md\n\
         - deleted: content/old.md\n\n\
         Errors that were not corrected:\n\
         - npm run lint: error: trailing space in home.md:3\n\n\
         The last commands that succeeded, with what they printed:\n\
         - npm test → ok … 12 passing\n\
         - rm content/old.md → no output\n\n\
         Said and decided, in order:\n\
         - It fails because the page moved.\n\
         - Last: The title is \"Welcome\" now.\n  - [x] title\n  - [ ] footer"
    );
    assert_eq!(text, expected);
}

// A request of two pages is cut in the middle, where it says which booking it is about and until
// when. Prose about the work took the room instead.
#[test]
fn extract_has_ids_and_dates_of_cut_requests() {
    let prose = "We want this to be done with care, as always. ".repeat(60);
    let asked = format!("Rebook this. {prose} It is OBUT9V, until 2024-05-26. {prose} Thank you.");
    let mut spoken = vec![SampleEvent::User(&asked)];
    for _ in 0..20 {
        spoken.push(SampleEvent::User(
            "Tell me more about how you want to go about it, please",
        ));
        spoken.push(SampleEvent::Assistant(&prose));
    }
    for max_chars in [1_200, 2_000, 4_000] {
        let text = extract(&spoken, max_chars);
        for name in ["OBUT9V", "2024-05-26"] {
            assert_eq!(text.matches(name).count(), 1, "{max_chars}: {text}");
        }
        assert!(text.chars().count() <= max_chars);
    }
    let whole = extract(&spoken, 40_000);
    assert_eq!(whole.matches("OBUT9V").count(), 1, "{whole}");
}

/// The first request has the task, and the last requests have the current state. Short requests
/// stay whole beside long ones, and the oldest are dropped first.
#[test]
fn extract_keeps_first_last_and_short_requests() {
    let long = format!("{} the end of it", "word ".repeat(4_000));
    let mut spoken = vec![
        SampleEvent::User("Paint it blue"),
        SampleEvent::Assistant("Done."),
    ];
    let asked: Vec<String> = (1..=30).map(|n| format!("request {n}")).collect();
    for asked in &asked {
        spoken.extend([SampleEvent::User(asked), SampleEvent::Assistant("done")]);
    }
    spoken.push(SampleEvent::User(&long));
    let text = extract(&spoken, 6_000);
    for n in [1, 15, 30] {
        assert!(text.contains(&format!("- request {n}\n")), "{n}: {text}");
    }
    assert!(text.contains("the end of it"), "{text}");
    assert!(text.chars().count() <= 6_000);
    let short = extract(&spoken, 1_000);
    assert!(short.contains("Paint it blue"), "{short}");
    assert!(short.chars().count() <= 1_000);
}

/// A fixed failure is not open, and a denied call expresses a decision of the user.
#[test]
fn extract_omits_fixed_and_refused_failures() {
    let refused = "The user doesn't want to proceed with this tool use. To tell you how to \
                   proceed, the user said:\nuse the other file";
    let text = extract(
        &[
            SampleEvent::User("Go"),
            SampleEvent::Call("a", "Bash", r#"{"command":"cargo test"}"#),
            SampleEvent::Failure("a", "error: it is broken"),
            SampleEvent::Call("b", "Bash", r#"{"command":"cargo test 2>&1 | tail -3"}"#),
            SampleEvent::Result("b", "test result: ok. 3 passed"),
            SampleEvent::Call("c", "Write", r#"{"file_path":"a.rs"}"#),
            SampleEvent::Failure("c", refused),
            SampleEvent::Assistant("Done."),
        ],
        4_000,
    );
    assert!(!text.contains("it is broken"), "{text}");
    assert!(!text.contains("not corrected"), "{text}");
    let refused = "- refused write a.rs: “use the other file”";
    assert!(text.contains(refused), "{text}");
    assert!(!text.contains("created"), "{text}");
}

// 7 of 24 extracts with open errors listed one that had been fixed in another way: a merge by its
// commit, tests by another run, an edit by rewriting the file.
#[test]
fn extract_omits_failures_fixed_in_another_way() {
    let text = extract(
        &[
            SampleEvent::User("Go"),
            SampleEvent::Call("a", "Bash", r#"{"command":"git merge origin/main"}"#),
            SampleEvent::Failure("a", "CONFLICT (content): a.go"),
            SampleEvent::Call("b", "Bash", r#"{"command":"git commit -m merged"}"#),
            SampleEvent::Result("b", "[main 1] merged"),
            SampleEvent::Call("c", "Bash", r#"{"command":"mise run test:integration"}"#),
            SampleEvent::Failure("c", "--- FAIL: TestShadow"),
            SampleEvent::Call("d", "Bash", r#"{"command":"mise run test:ci"}"#),
            SampleEvent::Result("d", "ok"),
            SampleEvent::Call("e", "Edit", r#"{"file_path":"a.go","old_string":"x"}"#),
            SampleEvent::Failure("e", "String to replace not found in file."),
            SampleEvent::Call("f", "Write", r#"{"file_path":"a.go","content":"x"}"#),
            SampleEvent::Result("f", "File created successfully"),
            SampleEvent::Call("g", "Grepper", "{}"),
            SampleEvent::Failure(
                "g",
                "<tool_use_error>Sibling tool call errored</tool_use_error>",
            ),
            SampleEvent::Call("h", "Bash", r#"{"command":"mise run lint"}"#),
            SampleEvent::Failure("h", "error: unused"),
            SampleEvent::Assistant("Done."),
        ],
        4_000,
    );
    let open = text
        .split("Errors that were not corrected:")
        .nth(1)
        .unwrap();
    let open = open.split("\n\n").next().unwrap();
    assert_eq!(open.trim(), "- mise run lint: error: unused", "{text}");
}

/// The second compaction replaces the summary of the first. Its content must not be lost, and the
/// opening must not be repeated. An imported summary stays whole.
#[test]
fn extract_keeps_the_content_of_an_earlier_summary() {
    let first = extract(
        &[
            SampleEvent::User("Paint it"),
            SampleEvent::Assistant("Blue it is."),
        ],
        2_000,
    );
    let (_, events) = window(&[SampleEvent::User("Darker"), SampleEvent::Assistant("Navy.")]);
    let second = compaction_extract(&events, Some(&first), 2_000);
    assert_eq!(second.matches(CONTINUATION).count(), 1);
    for said in ["Paint it", "Blue it is.", "Darker", "Navy."] {
        assert!(second.contains(said), "{second}");
    }
    let imported = format!(
        "This session is being continued from a previous conversation that ran out of \
         context.\nSummary:\n{}",
        (1..60)
            .map(|n| format!("{n}. fact number {n}\n"))
            .collect::<String>()
    );
    let text = extract(
        &[SampleEvent::User(&imported), SampleEvent::User("Go on")],
        6_000,
    );
    assert!(text.contains(imported.trim()), "{text}");
    // The first request is in the summary. A later answer `1` to a menu was shown as the task.
    assert!(text.contains("refused, in order:\n- Go on"), "{text}");
    assert!(!text.contains("as it was first asked"), "{text}");
}

/// Without messages, the extract is still a text that can be recorded.
#[test]
fn extract_of_an_empty_window_is_not_empty() {
    assert_eq!(
        extract(&[], 500),
        format!("{CONTINUATION}\n\nNothing was said.")
    );
}

// `you have LSP tool access` became `you have … tool access`, and `use Bash("gh pr list")` became
// `use …("gh pr list")`. Quotations must not change.
#[test]
fn extract_quotes_the_user_verbatim() {
    let asked = "remember also you have LSP tool access. Use the Task tool, Bash(\"gh pr \
                 list\") 🤷🏻\u{200d}♂️";
    let text = extract(
        &[
            SampleEvent::User(asked),
            SampleEvent::Call("a", "LSP", "{}"),
            SampleEvent::Result("a", "ok"),
            SampleEvent::Call("b", "Task", r#"{"description":"look"}"#),
            SampleEvent::Result("b", "found"),
            SampleEvent::Assistant("I used `Bash` and the Task tool."),
        ],
        4_000,
    );
    assert!(text.contains(asked), "{text}");
    assert!(
        text.contains("- Last: I used `Bash` and the Task tool."),
        "{text}"
    );
}

// The extract of a booking agent had neither the reservation nor its changes or failures, because
// the agent used no files or commands.
#[test]
fn extract_lists_calls_that_touch_no_files() {
    let get = r#"{"reservation_id":"OBUT9V"}"#;
    let first = r#"{"reservation_id":"OBUT9V","cabin":"economy","payment_id":"gift_card_7480005"}"#;
    let last =
        r#"{"reservation_id":"OBUT9V","cabin":"business","payment_id":"credit_card_9879898"}"#;
    let text = extract(
        &[
            SampleEvent::User("Change my flight back."),
            SampleEvent::Call("a", "get_reservation_details", get),
            SampleEvent::Result("a", r#"{"reservation_id":"OBUT9V","cabin":"economy"}"#),
            SampleEvent::Call("b", "update_reservation_flights", first),
            SampleEvent::Result("b", "Error: gift card balance is not enough"),
            SampleEvent::Call("c", "update_reservation_flights", last),
            SampleEvent::Result("c", r#"{"reservation_id":"OBUT9V","status":"changed"}"#),
            SampleEvent::Assistant("It is changed."),
        ],
        4_000,
    );
    let failed =
        format!("- update reservation flights {first} → Error: gift card balance is not enough\n");
    assert!(text.contains(&failed), "{text}");
    let done = format!(
        "- update reservation flights {last} → reservation_id: \"OBUT9V\", status: \"changed\""
    );
    assert!(text.contains(&done), "{text}");
    assert!(!text.contains("get reservation"), "{text}");
    assert!(text.contains("Used again and again:\n- OBUT9V"), "{text}");
}

// Three decisions of a session were answers to questions, and all of its summaries lacked them.
#[test]
fn extract_quotes_answers_to_questions() {
    let questions = r#"{"questions":[{"question":"Which method?","header":"m"}]}"#;
    let text = extract(
        &[
            SampleEvent::User("Release it"),
            SampleEvent::Call("a", "AskUserQuestion", questions),
            SampleEvent::Result(
                "a",
                "User has answered your questions: \"Which method?\"=\"Pre-built\". You can \
                 now continue with the user's answers in mind.",
            ),
            SampleEvent::Call("b", "Skill", r#"{"skill":"superpowers:brainstorming"}"#),
            SampleEvent::Result("b", "Launching skill: superpowers:brainstorming"),
            SampleEvent::Assistant("Done."),
        ],
        4_000,
    );
    assert!(
        text.contains("- asked “Which method?”: “Pre-built”"),
        "{text}"
    );
    assert!(
        text.contains("used:\n- superpowers:brainstorming"),
        "{text}"
    );
}

// Two fifths of the requests quoted as the user's were harness texts.
#[test]
fn extract_does_not_list_skill_texts_as_requests() {
    let (_, mut events) = window(&[
        SampleEvent::User("Mend it"),
        SampleEvent::Assistant("I use a skill."),
        SampleEvent::User("Base directory for this skill: /plugins/brainstorming"),
        SampleEvent::Assistant("Done."),
    ]);
    let mut event = WindowEvent::clone(&events[2]);
    if let EventBody::MessageAppended(message) = &mut event.body {
        message.raw = Some(RawMessage {
            origin: "openai-chat".to_owned(),
            provider: String::new(),
            model: String::new(),
            encoding: RawEncoding::JsonPatch,
            data: bytes::Bytes::from_static(br#"[{"op":"add","path":"/x/meta","value":true}]"#),
        });
    }
    events[2] = Arc::new(event);
    let text = compaction_extract(&events, None, 4_000);
    assert!(!text.contains("Base directory"), "{text}");
    assert!(text.contains("Mend it"), "{text}");
}

// The task was a plan of 4,193 characters. It was cut in half although twice as much room was left.
#[test]
fn extract_gives_unused_room_to_cut_requests() {
    let plan = format!("Implement the plan: {}the end", "word ".repeat(900));
    let first = format!("Look: {}so", "note ".repeat(900));
    let spoken = [
        SampleEvent::User(&first),
        SampleEvent::Assistant("Here it is."),
        SampleEvent::User(&plan),
        SampleEvent::Assistant("Done."),
    ];
    let text = extract(&spoken, 20_000);
    assert!(
        text.contains(&plan) && text.contains(first.trim()),
        "{text}"
    );
}

// `mise run lint` was listed three times as a successful command: alone, after another command, and
// before a third.
#[test]
fn extract_lists_a_repeated_command_once() {
    let text = extract(
        &[
            SampleEvent::User("Format it"),
            SampleEvent::Call(
                "a",
                "Bash",
                r#"{"command":"mise run lint 2>&1 | head -100"}"#,
            ),
            SampleEvent::Result("a", "0 issues."),
            SampleEvent::Call(
                "b",
                "Bash",
                r#"{"command":"mise run fmt && mise run lint"}"#,
            ),
            SampleEvent::Result("b", "0 issues."),
            SampleEvent::Call("c", "Bash", r#"{"command":"gh api repos/x"}"#),
            SampleEvent::Result(
                "c",
                r#"{"url":"https://example.org/1","id":1,"user":{"a":1}}"#,
            ),
            SampleEvent::Assistant("Done."),
        ],
        4_000,
    );
    assert_eq!(text.matches("mise run lint").count(), 1, "{text}");
    assert!(!text.contains("… {"), "{text}");
}

// Sentences from the whole session followed its final answer, so early plans looked like next
// steps.
#[test]
fn extract_keeps_statements_in_order_without_plans() {
    let text = extract(
        &[
            SampleEvent::User("Why is it slow?"),
            SampleEvent::Assistant("It turns out that the hook runs twice."),
            SampleEvent::Call("a", "Bash", r#"{"command":"make x"}"#),
            SampleEvent::Result("a", "ok"),
            SampleEvent::Assistant("No, let me add a test for the other case instead."),
            SampleEvent::Call("b", "Bash", r#"{"command":"make y"}"#),
            SampleEvent::Result("b", r#"{"url":"https://example.org/1","id":1}"#),
            SampleEvent::Assistant("The hook runs once now."),
            SampleEvent::User("And the tests?"),
            SampleEvent::Assistant("All of them pass."),
        ],
        4_000,
    );
    let expected = "Said and decided, in order:\n\
                    - It turns out that the hook runs twice.\n\
                    - The hook runs once now.\n\
                    - Last: All of them pass.";
    assert!(text.contains(expected), "{text}");
}

proptest! {
    /// For any dialogue: bounded, deterministic, without hidden characters.
    #[test]
    fn any_extract_is_bounded_and_visible(
        said in proptest::collection::vec(
            prop_oneof![any::<String>(), "(get_page|search|`search`|a/b.rs|X-1|[ .\n])*"],
            0..12,
        ),
        max in 1_usize..900,
    ) {
        let spoken: Vec<SampleEvent> = said
            .iter()
            .enumerate()
            .map(|(n, text)| match n % 6 {
                0 => SampleEvent::User(text),
                1 => SampleEvent::Call("c", "Bash", r#"{"command":"make x"}"#),
                2 => SampleEvent::Result("c", text),
                3 => SampleEvent::Call("d", "send_it", r#"{"to":"a"}"#),
                4 => SampleEvent::Result("d", text),
                _ => SampleEvent::Assistant(text),
            })
            .collect();
        let text = extract(&spoken, max);
        prop_assert!(!text.is_empty());
        prop_assert!(text.chars().count() <= max);
        let may_stay = |c: char| matches!(c, '\n' | '\u{200c}' | '\u{200d}');
        prop_assert!(!text.chars().any(|c| is_hidden(c) && !may_stay(c)));
        prop_assert_eq!(&text, &extract(&spoken, max));
    }
}

// After an earlier summary, its instructions were still shown as instructions, its finished tasks
// as open, and requests from before it as later requests.
#[test]
fn extract_marks_tasks_of_an_earlier_summary_as_past() {
    let (_, mut events) = window(&[
        SampleEvent::User("Mend the parser."),
        SampleEvent::Assistant("I look at it."),
        SampleEvent::Noted,
        SampleEvent::User("Now the tests, please."),
        SampleEvent::Assistant("They pass."),
    ]);
    let earlier = "Summary:\n7. Pending Tasks:\n   - mend the parser\n\nPlease continue from \
                   where we left it off without asking the user any further questions.";
    let mut imported = (*events[2]).clone();
    imported.body = EventBody::Compacted(Compacted {
        summary: String::new(),
        cut_revision: Revision(1),
        kept_turns: 0,
        tokens_before: 0,
        tokens_after: 0,
        trigger: CompactionTrigger::Imported,
        raw: None,
    });
    events[2] = Arc::new(imported);
    let text = compaction_extract(&events, Some(earlier), 6_000);
    assert!(!text.contains("any further questions"), "{text}");
    assert!(text.contains("7. Pending Tasks (as of then)\n"), "{text}");
    let before = "- before that summary: “Mend the parser.”\n- Now the tests, please.";
    assert!(text.contains(before), "{text}");
}

// "Now implementing the fix." was listed as a decision although the user refused it. A fix was
// quoted without its cause, praise was listed among requests, and a question lacked its subject.
#[test]
fn extract_separates_decisions_from_announcements() {
    let text = extract(
        &[
            SampleEvent::User("Why does it fail?"),
            SampleEvent::Assistant(
                "The hook runs twice on each commit. The fix is to look at its lock.",
            ),
            SampleEvent::Assistant("Now implementing the fix."),
            SampleEvent::Assistant("Let me try a different approach:"),
            SampleEvent::User("wow, it works"),
            SampleEvent::Assistant("It holds now: one lock for both hooks, as in #10."),
            SampleEvent::User("See #10 and the other one."),
            SampleEvent::Assistant(
                "I could keep both hooks, or drop the older one.\n\nWhat do you think?",
            ),
        ],
        6_000,
    );
    let decided = "- The hook runs twice on each commit. The fix is to look at its lock.";
    assert!(text.contains(decided), "{text}");
    assert!(!text.contains("Now implementing"), "{text}");
    assert!(!text.contains("different approach"), "{text}");
    assert!(!text.contains("wow"), "{text}");
    let offered = "- offered: I could keep both hooks, or drop the older one. What do you think?";
    assert!(text.contains(offered), "{text}");
    assert!(
        text.contains("- “#10” (numbers that the texts name, of no event)"),
        "{text}"
    );
}
