use proptest::prelude::*;

use super::*;
use crate::{
    context::{
        draft::{Outcome, Step},
        enhancer,
        explain::sections,
        policy::ToolResults,
        provider::{self, Provider},
        tokens::Counter,
        window::samples::{Story, nexts, told},
    },
    domain::{EventBody, PromptSet},
};

fn tally() -> Tally {
    Tally::new(Counter::for_model(""), None)
}

/// The draft of a story before its budget.
fn draft(window: &WindowInput, policy: &ContextPolicy, provider: Provider) -> Draft {
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

fn policy(budget_tokens: u64) -> ContextPolicy {
    ContextPolicy {
        budget_tokens,
        ..ContextPolicy::default()
    }
}

fn fitted(story: &Story, policy: &ContextPolicy) -> (Draft, Fitted) {
    let window = story.input();
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

fn dropped_turns(draft: &Draft) -> Vec<u32> {
    let mut turns: Vec<_> = draft
        .items
        .iter()
        .filter(|item| item.fate == Fate::Dropped)
        .map(|item| item.turn)
        .collect();
    turns.dedup();
    turns
}

// Nothing gives way without a budget, or within one.
#[test]
fn what_fits_stays_whole() {
    for budget in [0, 1_000_000] {
        let (draft, fitted) = fitted(&turns(5, 100), &policy(budget));
        assert!(draft.items.iter().all(|item| item.fate == Fate::Kept));
        assert_eq!(fitted.tokens, fitted.tokens_before);
        assert!(!fitted.over_budget);
    }
}

// Results can be had back by reference, so they go before what was said.
#[test]
fn results_give_way_before_turns() {
    let (draft, fitted) = fitted(&turns(10, 500).user("and now?"), &policy(3_000));
    assert!(fitted.tokens <= 3_000 && fitted.tokens_before > 5_000);
    assert_eq!(dropped_turns(&draft), Vec::<u32>::new());
    let shortened: Vec<_> = draft
        .items
        .iter()
        .filter(|item| item.fate == Fate::Shortened)
        .map(|item| item.turn)
        .collect();
    // The oldest ones, and the last ones not.
    assert!(
        !shortened.is_empty() && shortened.len() < 10,
        "{shortened:?}"
    );
    let oldest: Vec<u32> = (1..=shortened.len()).map(|turn| turn as u32).collect();
    assert_eq!(shortened, oldest);
}

// At its limit, a conversation must not lose its cached front at every request: the
// cut must stay where it is for many of them.
#[test]
fn the_cut_moves_seldom() {
    let mut policy = policy(2_000);
    policy.drop_order = vec![Drop::Turns];
    let cuts: Vec<_> = (10..60)
        .map(|count| {
            let (draft, fitted) = fitted(&turns(count, 60).user("and now?"), &policy);
            assert!(fitted.tokens <= 2_000);
            dropped_turns(&draft).len()
        })
        .collect();
    let mut moves = cuts.clone();
    moves.dedup();
    assert!(cuts.is_sorted(), "{cuts:?}");
    assert!(moves.len() * 4 <= cuts.len(), "{cuts:?}");
}

// The open turn's results are what the model works on: they are cut to head and
// tail only when all else is gone, and keep their reference.
#[test]
fn long_results_of_the_open_turn_are_cut() {
    let text = format!("first line\n{}last line", "word ".repeat(5_000));
    let story = Story::new()
        .user("go")
        .assistant("")
        .call("a")
        .result("a", &text);
    let (draft, fitted) = fitted(&story, &policy(1_200));
    assert!(!fitted.over_budget, "{fitted:?}");
    let call = draft
        .items
        .iter()
        .filter_map(Item::step)
        .flat_map(Step::calls)
        .next();
    let Outcome::Result(result) = &call.unwrap().outcome else {
        panic!("the result stays");
    };
    let text = result.parts[0].text().unwrap();
    assert!(text.starts_with("first line") && text.ends_with("last line"));
    assert!(
        text.contains("treering:00000000-0000-0000-0000-000000000007/5"),
        "{text}"
    );
    assert!(result.shortened);
}

// What may never go can be too much. Then the request says so, and by how much.
#[test]
fn too_much_is_said() {
    let story = Story::new().user(&"word ".repeat(500));
    let (draft, fitted) = fitted(&story, &policy(100));
    assert!(fitted.over_budget);
    let excess = fitted.tokens - 100;
    assert!(draft.warnings[0].contains(&format!("{excess} tokens over its budget of 100")));
    assert_eq!(draft.items.len(), 1);
}

fn steps_are_whole(before: &Draft, after: &Draft) -> Result<(), TestCaseError> {
    prop_assert_eq!(before.items.len(), after.items.len());
    for (whole, now) in before.items.iter().zip(&after.items) {
        if let (Some(whole), Some(now)) = (whole.step(), now.step()) {
            let calls = |step: &Step| step.calls().map(|call| call.request).collect::<Vec<_>>();
            prop_assert_eq!(calls(whole), calls(now));
        }
        let open = now.section == Section::OpenTurn;
        let instruction = matches!(*now.content, Content::Instruction(_));
        prop_assert!(!(open || instruction) || now.fate != Fate::Dropped);
        prop_assert_eq!(now.tokens == 0, now.fate == Fate::Dropped);
    }
    Ok(())
}

fn orders() -> impl Strategy<Value = Vec<Drop>> {
    prop_oneof![
        3 => Just(Drop::DEFAULT.to_vec()),
        1 => prop::sample::subsequence(Drop::DEFAULT.to_vec(), 0..=9).prop_shuffle(),
    ]
}

proptest! {
    // Whatever the history and the budget: within it, or it says so; no step torn;
    // every line adds up; and each provider takes it.
    #[test]
    fn any_history_fits_or_says_so(
        nexts in nexts(true),
        budget in prop_oneof![Just(0_u64), 1..3_000_u64],
        drop_order in orders(),
        results in prop_oneof![
            Just(ToolResults::Keep),
            Just(ToolResults::TurnEnd),
            (0..4_u32).prop_map(ToolResults::OlderThanTurns)
        ],
        factor in prop_oneof![Just(1.0), 0.5..2.5_f64],
    ) {
        let window = told(&nexts).input();
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
            steps_are_whole(&before, &after)?;
            let lines: u64 = sections(&after, &tally).iter().map(|line| line.tokens).sum();
            prop_assert_eq!(lines, after.tokens());
            let rendered = provider::render(&after, &policy);
            prop_assert!(rendered.is_ok(), "{provider}: {:?}", rendered.err());
        }
    }
}
