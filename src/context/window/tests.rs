use std::collections::{BTreeMap, BTreeSet, HashSet};

use proptest::prelude::*;

use super::{sample_steps::sample_steps, samples::*, *};
use crate::draft::{Block, Call, Content, Item, Message, Outcome, Section, Step};
use treering_domain::*;

/// Describes each item in a word or two, and each call with its outcome.
fn shown(story: &Story) -> Vec<String> {
    fold(&story.input()).iter().map(show).collect()
}

fn show(item: &Item) -> String {
    match &*item.content {
        Content::Instruction(text) => format!("instruction {text}"),
        Content::Message(message) => format!("{:?}: {}", message.speaker, text(message)),
        Content::Step(step) => {
            let blocks = step.blocks.iter().map(|block| match block {
                Block::Part(part) => part.text().unwrap_or("…").to_owned(),
                Block::Call(call) => format!("{} → {}", call.wire_id, outcome(call)),
            });
            format!("step: {}", blocks.collect::<Vec<_>>().join(" | "))
        }
    }
}

fn text(message: &Message) -> String {
    let texts = message.parts.iter().filter_map(ContentPart::text);
    texts.collect::<Vec<_>>().join(" ")
}

fn outcome(call: &Call) -> String {
    match &call.outcome {
        Outcome::Result(result) if result.success => {
            result.parts[0].text().unwrap_or_default().to_owned()
        }
        Outcome::Result(result) => format!("failed {}", result.error_message),
        Outcome::Snapshot(snapshot) => format!("short {}", snapshot.summary),
        Outcome::Missing { why, open, .. } => {
            format!("{}({why})", if *open { "open " } else { "" })
        }
    }
}

// Results of parallel calls arrive in any order. Each must go to its own call, and the step must
// stay one item.
#[test]
fn results_out_of_order_join_their_calls() {
    let story = Story::new()
        .user("go")
        .assistant("both")
        .call("a")
        .call("b");
    let story = story.result("b", "two").result("a", "one");
    assert_eq!(
        shown(&story),
        ["User: go", "step: both | a → one | b → two"]
    );
}

// A user message during a call must not come between the call and its result, because every
// provider refuses that.
#[test]
fn user_message_during_a_call_follows_the_step() {
    let story = Story::new()
        .user("go")
        .assistant("")
        .call("a")
        .user("hurry");
    let waiting = fold(&story.input());
    assert_eq!(
        show(&waiting[1]),
        "step:  | a → open (no result yet: the call has not ended)"
    );
    assert!(!waiting[0].is_volatile && waiting[1].is_volatile && waiting[2].is_volatile);
    let story = story.result("a", "one");
    assert_eq!(
        shown(&story),
        ["User: go", "step:  | a → one", "User: hurry"]
    );
    assert!(fold(&story.input()).iter().all(|item| !item.is_volatile));
}

// A crash leaves a call without a result, and the conversation continues. The call must have an
// outcome, and the sent prefix must not change if the result arrives later.
#[test]
fn late_result_is_a_note_and_keeps_earlier_items() {
    let story = Story::new()
        .user("go")
        .assistant("")
        .call("a")
        .user("still there?");
    let story = story.assistant("yes");
    let before = fold(&story.input());
    let frozen = "step:  | a → (no result: the call had not ended when the conversation went on)";
    assert_eq!(show(&before[1]), frozen);
    let story = story.result("a", "one");
    let after = fold(&story.input());
    assert_eq!(after[..before.len()], before);
    assert_eq!(
        show(&after[before.len()]),
        "User: [LATE RESULT] of tool_a (call a), which came after the conversation had gone on: one"
    );
}

// Only some calls of a parallel batch have results. The other calls need an outcome, too.
#[test]
fn unanswered_calls_of_a_batch_get_an_outcome() {
    let story = Story::new().user("go").assistant("").call("a").call("b");
    let story = story.result("b", "two").user("stop").assistant("well");
    assert_eq!(
        shown(&story)[1],
        "step:  | a → (no result: the call had not ended when the conversation went on) | b → two"
    );
}

// The model must see who denied a call and why, even if the call was cancelled afterwards.
#[test]
fn denied_call_names_who_and_why() {
    let denied = Story::new()
        .user("go")
        .assistant("")
        .then(call("a", true))
        .then(decided("a", Decision::Denied, "not on Fridays"));
    let why = "denied by alice: not on Fridays";
    assert_eq!(shown(&denied)[1], format!("step:  | a → open ({why})"));
    let ended = denied.then(cancelled("a", CancelReason::Denied, "the user said no"));
    assert_eq!(shown(&ended)[1], format!("step:  | a → ({why})"));
    assert_eq!(fold(&ended.input())[1].events, [at(3), at(4), at(5)]);
}

// Each state of an open call has its own text.
#[test]
fn open_call_says_what_it_waits_for() {
    let pending = Story::new().user("go").assistant("").then(call("a", true));
    let approved = pending.clone().then(decided("a", Decision::Approved, ""));
    let expired = pending.clone().then(decided("a", Decision::Expired, ""));
    let started = approved
        .clone()
        .then(EventBody::ToolCallStarted(ToolCallStarted {
            call_id: "a".to_owned(),
            executor: "bob".to_owned(),
        }));
    let timed_out = started
        .clone()
        .then(cancelled("a", CancelReason::TimedOut, "60 s"));
    for (story, why) in [
        (pending, "open (no result yet: the call waits for approval)"),
        (
            approved,
            "open (no result yet: the call is approved and has not begun)",
        ),
        (expired, "open (the approval expired)"),
        (started, "open (no result yet: bob is running the call)"),
        (timed_out, "(timed out: 60 s)"),
    ] {
        assert_eq!(shown(&story)[1], format!("step:  | a → {why}"));
    }
}

// Real sessions reuse call ids. The request must distinguish the calls. The first call must keep
// its id, because it was sent.
#[test]
fn repeated_call_id_gets_a_revision_suffix() {
    let story = Story::new()
        .user("go")
        .assistant("")
        .call("a")
        .result("a", "one");
    let story = story.assistant("again").call("a").result("a", "two");
    assert_eq!(
        shown(&story),
        ["User: go", "step:  | a → one", "step: again | a-r7 → two"]
    );
}

// Imported histories have results without a recorded call, with a wrong id or none. They must not
// be lost or look like the result of a call.
#[test]
fn result_without_a_call_is_a_note() {
    let answer = |call_id: &str| {
        let mut message = MessageAppended::text(Role::Tool, "found");
        message.tool_call_id = call_id.to_owned();
        message.tool_name = "grep".to_owned();
        EventBody::MessageAppended(message)
    };
    let story = Story::new().user("go").assistant("").call("a");
    let story = story.then(answer("b")).then(answer("a"));
    assert_eq!(
        shown(&story),
        [
            "User: go",
            "step:  | a → found",
            "User: [TOOL RESULT] of grep, for a call that is not in this conversation: found",
        ]
    );
}

fn piece(id: &str, text: &str) -> MessageAppended {
    let mut message = MessageAppended::text(Role::Assistant, text);
    message.message_id = id.to_owned();
    message
}

// One provider message arrives as several events. They must become one step, because its reasoning
// belongs to its calls. A different message must not join it.
#[test]
fn events_with_one_message_id_are_one_step() {
    let part = |id: &str, text: &str| EventBody::MessageAppended(piece(id, text));
    let story = Story::new().user("go").then(part("m1", "think"));
    let story = story.then(part("m1", "more")).call("a").call("b");
    let story = story.result("a", "one").result("b", "two");
    let story = story.then(part("m2", "done"));
    assert_eq!(
        shown(&story),
        [
            "User: go",
            "step: think | more | a → one | b → two",
            "step: done"
        ]
    );
    // After a user message no message joins the step, because it was sent.
    let story = Story::new()
        .user("go")
        .then(part("m1", "one"))
        .user("go on");
    let story = story.then(part("m1", "two"));
    assert_eq!(shown(&story).len(), 4);
}

// Some servers have only a thousand ids, so two answers sometimes have the same id. The final
// answer was then placed before the result that it used. A message with content must not join a
// step with an outcome: a result, a cancellation or a denial.
#[test]
fn message_id_does_not_join_across_an_outcome() {
    let part = |text: &str| EventBody::MessageAppended(piece("chatcmpl-7", text));
    let asked = Story::new().user("go").then(part("I look.")).call("a");
    let story = asked.clone().result("a", "one").then(part("One."));
    assert_eq!(
        shown(&story),
        ["User: go", "step: I look. | a → one", "step: One."]
    );
    grown(&story, 1, 1).unwrap();
    // Another call of the answer is still open.
    let story = asked.clone().call("b").result("a", "one");
    let story = story.then(part("One."));
    let frozen = "no result: the call had not ended when the conversation went on";
    assert_eq!(
        shown(&story)[1..],
        [
            format!("step: I look. | a → one | b → ({frozen})"),
            "step: One.".to_owned()
        ]
    );
    let story = asked.then(cancelled("a", CancelReason::TimedOut, ""));
    assert_eq!(shown(&story.then(part("Too late.")))[2], "step: Too late.");
    let story = Story::new().user("go").then(part("I ask."));
    let story = story
        .then(call("a", true))
        .then(decided("a", Decision::Denied, "no"));
    assert_eq!(shown(&story.then(part("Well.")))[2], "step: Well.");
}

// The user interrupted an open call, and the next answer had the same id. The answer was placed
// before the user's message.
#[test]
fn message_id_does_not_join_across_a_user_message() {
    let part = |text: &str| EventBody::MessageAppended(piece("chatcmpl-7", text));
    let story = Story::new().user("go").then(part("I look.")).call("a");
    let story = story.user("stop").then(part("I stop."));
    let shown = shown(&story);
    assert_eq!(shown[2..], ["User: stop", "step: I stop."], "{shown:?}");
}

// Claude Code runs a call while its answer still continues, and records each block as a message
// with the answer's id. Until the finish reason is recorded, the calls must join one step.
#[test]
fn calls_join_their_answer_until_it_has_a_finish_reason() {
    let part = |finish: &str| {
        let mut message = piece("m1", "");
        message.parts.clear();
        message.finish_reason = finish.to_owned();
        EventBody::MessageAppended(message)
    };
    let asked = |finish: &str| {
        let story = Story::new().user("go").then(part(finish)).call("a");
        let story = story.result("a", "one").then(part(finish));
        shown(&story.call("b").result("b", "two"))
    };
    assert_eq!(asked(""), ["User: go", "step: a → one | b → two"]);
    assert_eq!(
        asked("tool_calls"),
        ["User: go", "step: a → one", "step: b → two"]
    );
}

// With two consecutive calls and no message in between, the second joined the first answer, which
// had been sent. The cached prefix was lost.
#[test]
fn call_after_results_starts_a_new_step() {
    let story = Story::new().user("go").call("a").result("a", "one");
    let story = story.call("b").result("b", "two").call("c").call("d");
    let story = story.result("d", "four").call("e");
    let open = "open (no result yet: the call has not ended)";
    assert_eq!(
        shown(&story),
        [
            "User: go".to_owned(),
            "step: a → one".to_owned(),
            "step: b → two".to_owned(),
            // Calls of one answer: the second was made before the first had a result.
            format!("step: c → {open} | d → four | e → {open}"),
        ]
    );
    let items = fold(&story.input());
    let volatile: Vec<_> = items.iter().map(|item| item.is_volatile).collect();
    assert_eq!(volatile, [false, false, false, true]);
}

// A batch whose calls run one by one names its message, so it is one answer.
#[test]
fn call_joins_the_message_it_names() {
    let of = |call_id: &str, revision: u64| {
        let EventBody::ToolCallRequested(mut requested) = call(call_id, false) else {
            unreachable!("it makes a call")
        };
        requested.message_revision = Some(Revision(revision));
        EventBody::ToolCallRequested(requested)
    };
    let story = Story::new().user("go").assistant("both");
    let story = story.then(of("a", 3)).result("a", "one");
    let story = story.then(of("b", 3)).result("b", "two");
    let story = story.call("c").result("c", "three").then(of("d", 3));
    assert_eq!(
        shown(&story),
        [
            "User: go",
            "step: both | a → one | b → two",
            "step: c → three",
            "step: d → open (no result yet: the call has not ended)",
        ]
    );
}

fn thought(model: &str) -> MessageAppended {
    let mut message = MessageAppended::text(Role::Assistant, "");
    message.parts = vec![ContentPart::Reasoning(Reasoning {
        text: "hm".to_owned(),
        signature: "sig".into(),
        model: model.to_owned(),
        ..Reasoning::default()
    })];
    message
}

// Reasoning in its own message was dropped unless the next message had the same id, but providers
// give them different ids. It belongs to the next item.
#[test]
fn reasoning_message_joins_the_next_message() {
    let mut first = thought("");
    first.message_id = "rs_1".to_owned();
    let mut second = MessageAppended::text(Role::Assistant, "so");
    second.message_id = "msg_1".to_owned();
    let story = Story::new()
        .user("go")
        .then(EventBody::MessageAppended(first));
    let before = fold(&story.input());
    assert!(before[1].is_volatile, "it may still grow: {before:?}");
    let story = story.then(EventBody::MessageAppended(second)).call("a");
    let items = fold(&story.input());
    let [_, step] = items.as_slice() else {
        panic!("{items:?}")
    };
    let step = step.step().unwrap();
    assert_eq!((step.blocks.len(), step.message_id.as_str()), (3, "msg_1"));
    // Reasoning of a different model belongs to a different answer.
    let mut other = thought("gpt-5");
    other.message_id = "rs_2".to_owned();
    let story = Story::new()
        .user("go")
        .then(EventBody::MessageAppended(thought("claude-opus-4")))
        .then(EventBody::MessageAppended(other));
    assert_eq!(fold(&story.input()).len(), 3);
}

// Reasoning without a model was dropped although the conversation has one.
#[test]
fn reasoning_without_a_model_gets_the_conversation_model() {
    let config = |model: &str| {
        EventBody::ConfigChanged(Config {
            model_id: model.to_owned(),
            ..Config::default()
        })
    };
    let say = EventBody::MessageAppended;
    let story = Story::new()
        .then(config("claude-opus-4"))
        .user("go")
        .then(say(thought("")))
        .user("on")
        .then(config("gpt-5"))
        .then(say(thought("")))
        .user("on")
        .then(say(thought("o3")));
    let items = fold(&story.input());
    let steps = items.iter().filter_map(Item::step);
    let models: Vec<_> = steps.map(|step| step.maker.model.as_str()).collect();
    assert_eq!(models, ["claude-opus-4", "gpt-5", "o3"]);
    grown(&story, 1, 1).unwrap();
}

// The maker of a step decides whether its reasoning is sent. Each source records the maker in a
// different field.
#[test]
fn model_of_a_step_is_read_from_usage_or_reasoning() {
    let mut message = MessageAppended::text(Role::Assistant, "x");
    message.usage = Some(Usage {
        model: "claude-opus-4".to_owned(),
        ..Usage::default()
    });
    message.parts.push(ContentPart::Reasoning(Reasoning {
        provider: "anthropic".to_owned(),
        model: "another".to_owned(),
        ..Reasoning::default()
    }));
    let story = Story::new().then(EventBody::MessageAppended(message));
    let items = fold(&story.input());
    let maker = &items[0].step().unwrap().maker;
    assert_eq!(
        (maker.provider.as_str(), maker.model.as_str()),
        ("anthropic", "claude-opus-4")
    );
}

// The preamble is sent as instructions and must not be repeated as messages. Later system messages
// stay in place.
#[test]
fn leading_system_messages_are_not_sent_twice() {
    let story = Story::new().then(say(Role::System, "be brief")).user("go");
    let story = story
        .assistant("ok")
        .then(say(Role::Developer, "now in French"));
    assert_eq!(
        shown(&story),
        ["User: go", "step: ok", "Developer: now in French"]
    );
}

// A sub-context's summary must reach its parent once: as the call's result, or as a message if no
// call asked for it.
#[test]
fn sub_context_summary_is_sent_once() {
    let returned = |call_id: &str| {
        EventBody::SubContextReturned(SubContextReturned {
            conversation: conversation(),
            summary: "found it".to_owned(),
            call_id: call_id.to_owned(),
        })
    };
    let open = Story::new().user("go").assistant("").call("a");
    let before = open.clone().then(returned("a")).result("a", "found it");
    let after = open.clone().result("a", "found it").then(returned("a"));
    for story in [before, after] {
        assert_eq!(shown(&story), ["User: go", "step:  | a → found it"]);
    }
    let alone = Story::new().user("go").then(returned(""));
    assert_eq!(shown(&alone)[1], "User: [SUB-CONTEXT RESULT]\nfound it");
}

// Finished turns may be dropped, and their results replaced by digests. An open turn must never
// look finished.
#[test]
fn open_turn_has_its_own_section() {
    let sections = |story: &Story| {
        let items = fold(&story.input());
        items
            .iter()
            .map(|item| (item.turn, item.section))
            .collect::<Vec<_>>()
    };
    let story = Story::new()
        .user("a")
        .assistant("b")
        .user("c")
        .assistant("")
        .call("d");
    let (done, open) = (Section::Messages, Section::OpenTurn);
    assert_eq!(
        sections(&story),
        [(1, done), (1, done), (2, open), (2, open)]
    );
    let story = story.result("d", "e").assistant("f");
    let finished: Vec<_> = sections(&story)
        .iter()
        .map(|(turn, section)| (*turn, *section == done))
        .collect();
    assert_eq!(finished, [1, 1, 2, 2, 2].map(|turn| (turn, true)));
}

fn messages_of(body: &EventBody) -> bool {
    matches!(
        body,
        EventBody::MessageAppended(_)
            | EventBody::ToolCallRequested(_)
            | EventBody::ToolResultRecorded(_)
    )
}

fn calls(items: &[Item]) -> Vec<&Call> {
    items
        .iter()
        .filter_map(Item::step)
        .flat_map(Step::calls)
        .collect()
}

/// Checks that sent items stay equal, except that the last step may grow.
fn stays(before: &[Item], after: &[Item]) -> Result<(), TestCaseError> {
    let fixed = before.iter().take_while(|item| !item.is_volatile).count();
    prop_assert!(fixed <= after.len());
    for (index, (then, now)) in before[..fixed].iter().zip(after).enumerate() {
        if index + 1 == before.len()
            && let (Some(then), Some(now)) = (then.step(), now.step())
        {
            // The step may not have been complete.
            prop_assert!(now.blocks.starts_with(&then.blocks), "{then:?}\n{now:?}");
            continue;
        }
        prop_assert_eq!(&then.content, &now.content);
    }
    Ok(())
}

/// Checks the windows of a growing story, each fold extended from the previous one.
fn grown(story: &Story, from: usize, step: usize) -> Result<(), TestCaseError> {
    let first = story.input_at(from.min(story.len()));
    let mut folded = FoldedWindow::of(
        &first.branch,
        &first.events,
        &first.heuristics,
        &first.cancellation,
    );
    for count in (from..=story.len()).step_by(step.max(1)) {
        let input = story.input_at(count);
        folded = folded.grown(&input.branch, &input.events, &input.cancellation);
        // When an item changes, its cached values must be cleared.
        for item in folded.items() {
            let told = || crate::shared::Caption {
                label: format!("{:?}", *item.content),
                head: String::new(),
            };
            prop_assert_eq!(&item.content.told(told).label, &told().label);
        }
        prop_assert_eq!(folded.items(), fold(&input), "{} of {}", count, story.len());
        let kept = WindowInput {
            folded: Some(Arc::new(folded.clone())),
            ..input.clone()
        };
        prop_assert_eq!(fold(&kept), fold(&input));
    }
    Ok(())
}

proptest! {
    // An extended fold must equal a full fold, for late results, closed calls, compactions and all
    // other events.
    #[test]
    fn extended_window_equals_a_full_fold(steps in sample_steps(true), from in 0_usize..20, step in 1_usize..6) {
        grown(&told(&steps), from, step)?;
    }
}

// A sub-context returns for an abandoned call, and then the call's result arrives too. The text of
// the return must stay in place.
#[test]
fn late_result_keeps_an_earlier_sub_context_return() {
    let story = told(&[
        SampleStep::Call(59, false),
        SampleStep::Assistant(0, 0),
        SampleStep::Returned(27),
        SampleStep::Result(0, 0),
    ]);
    let windows: Vec<_> = (1..=story.len())
        .map(|count| fold(&story.input_at(count)))
        .collect();
    for pair in windows.windows(2) {
        stays(&pair[0], &pair[1]).unwrap();
    }
}

proptest! {
    // Prompt caches hold the prefix of a request. Only a compaction may change it, whatever the
    // order of events.
    #[test]
    fn new_events_keep_the_sent_prefix(steps in sample_steps(false)) {
        let story = told(&steps);
        let windows: Vec<_> = (1..=story.len()).map(|count| fold(&story.input_at(count))).collect();
        for (number, before) in windows.iter().enumerate() {
            for after in [number + 1, number + 3, windows.len() - 1] {
                if let Some(after) = windows.get(after) {
                    stays(before, after)?;
                }
            }
        }
    }

    // If a call is duplicated or missing, every provider refuses the request. A lost message
    // changes the conversation.
    #[test]
    fn every_event_is_in_the_window_once(steps in sample_steps(true)) {
        let story = told(&steps);
        let input = story.input();
        let items = fold(&input);
        let mut seen: BTreeMap<EventRef, usize> = BTreeMap::new();
        for at in items.iter().flat_map(|item| &item.events) {
            *seen.entry(*at).or_default() += 1;
        }
        for event in input.events.iter().filter(|event| messages_of(&event.body)) {
            let in_preamble = input.branch.preamble.contains(&event.at);
            let count = seen.get(&event.at).copied().unwrap_or_default();
            prop_assert_eq!(count, usize::from(!in_preamble), "{:?}", event);
        }
        let calls = calls(&items);
        let requests: BTreeSet<_> = calls.iter().map(|call| call.request).collect();
        prop_assert_eq!(requests.len(), calls.len());
        let wire_ids: HashSet<_> = calls.iter().map(|call| &call.wire_id).collect();
        prop_assert_eq!(wire_ids.len(), calls.len());
    }

    // Turns must have the same numbers as in the branch.
    #[test]
    fn turn_numbers_equal_those_of_the_branch(steps in sample_steps(false)) {
        let story = told(&steps);
        let input = story.input();
        let turns = fold(&input).iter().map(|item| item.turn).max().unwrap_or_default();
        let turn = input.branch.turn;
        prop_assert_eq!(u64::from(turns), turn.finished + u64::from(turn.open_since.is_some()));
    }

    // A call that is open in a request is open in the branch. Volatile items start with it.
    #[test]
    fn open_calls_equal_those_of_the_branch(steps in sample_steps(true)) {
        let story = told(&steps);
        let input = story.input();
        let items = fold(&input);
        for call in calls(&items) {
            let open = matches!(call.outcome, Outcome::Missing { open: true, .. });
            let of_branch = input.branch.open_calls.get(&call.call_id);
            if open {
                prop_assert_eq!(of_branch.map(|open| open.request), Some(call.request));
            }
        }
        let first = items.iter().position(|item| item.is_volatile);
        let has_open = |item: &Item| item.step().is_some_and(|step| {
            step.calls().any(|call| matches!(call.outcome, Outcome::Missing { open: true, .. }))
        });
        prop_assert_eq!(first, items.iter().position(has_open));
    }
}
