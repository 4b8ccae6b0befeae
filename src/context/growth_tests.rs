//! Tests that work grows no faster than n log n with the size of the window, for any input.
//!
//! A request for an open turn of 300,000 messages never finished, because each cut recounted all
//! items. The tests count steps instead of seconds.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{
    cancellation::CancellationToken,
    draft::{Draft, Item},
    enhancer, enhancers,
    names::tool_names_in,
    policy::ContextPolicy,
    provider::{self, Provider, RenderError},
    steps,
    tokens::{Counter, Tally},
    window::{
        self, WindowInput,
        samples::{Story, call, tool},
    },
};
use treering_domain::{
    ContentPart, EventBody, MessageAppended, Reasoning, Role, ToolCallRequested, ToolDefinition,
};

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

/// One answer of the model with `calls` calls, and then their results.
fn one_step(calls: usize) -> Story {
    let mut story = Story::new().user("go").assistant("I look.");
    for call in 0..calls {
        story = story.call(&format!("c{call}"));
    }
    for call in 0..calls {
        story = story.result(&format!("c{call}"), "there");
    }
    story
}

// The client may disconnect while the tokens of a large request are counted. The count must stop.
#[test]
fn token_counting_stops_when_cancelled() {
    let text = "a ".repeat(1_300);
    assert!(tally().text(&text) > 1_000);
    assert_eq!(
        tally().until(CancellationToken::new(|| true)).text(&text),
        0
    );
    assert!(tally().until(CancellationToken::new(|| false)).text(&text) > 1_000);
}

// The client may disconnect while the window is folded or the body is rendered. A request of
// 300,000 messages still ran to its end, using a core and its memory.
#[test]
fn folding_and_rendering_stop_when_cancelled() {
    /// Maximum number of steps: those between two checks (see `cancellation`) and before the first.
    const MOST_STEPS: usize = 2 * 1_024;
    const MESSAGES: usize = 20_000;
    let mut story = Story::new();
    for _ in 0..MESSAGES / 2 {
        story = story.user("go").assistant("gone");
    }
    let window = story.input();
    let (steps, items) = steps::of(|| window::fold(&window));
    assert!(steps >= MESSAGES && items.len() == MESSAGES);
    // Reports cancellation at the second check.
    let second = || {
        let looks = AtomicUsize::new(0);
        CancellationToken::new(move || looks.fetch_add(1, Ordering::Relaxed) > 0)
    };
    let mut cancelled = window.clone();
    cancelled.cancellation = second();
    let fold = || window::fold(&cancelled);
    let (steps, _) = steps::of(fold);
    assert!(steps <= MOST_STEPS, "folding took {steps} steps");
    let policy = ContextPolicy::default();
    for provider in Provider::ALL {
        let draft = drafted(&window, provider);
        let render = || provider::render(&draft, &policy);
        let (whole, rendered) = steps::of(render);
        assert!(whole >= MESSAGES && rendered.is_ok(), "{provider}");
        let (steps, rendered) = steps::of(|| provider::render_until(&draft, &policy, &second()));
        assert_eq!(rendered.err(), Some(RenderError::Stopped), "{provider}");
        assert!(steps <= MOST_STEPS, "{provider}: {steps} steps");
    }
}

#[test]
fn folding_many_calls_scales_as_n_log_n() {
    grows_gently("folding", 50, |n| {
        let window = one_step(n).input();
        steps::of(|| window::fold(&window)).0
    });
}

// The adapters count what they omit. One message may omit thousands of parts.
#[test]
fn rendering_many_calls_scales_as_n_log_n() {
    for provider in Provider::ALL {
        grows_gently(provider.as_str(), 50, |n| {
            let mut story = Story::new().user("go").assistant("I look.");
            for number in (0..n).rev() {
                story = story.then(oddly_named(&format!("c{number}")));
            }
            for number in 0..n {
                story = story.result(&format!("c{number}"), "there");
            }
            let draft = drafted(&story.input(), provider);
            let policy = ContextPolicy::default();
            steps::of(|| provider::render(&draft, &policy).unwrap()).0
        });
    }
}

/// A call of a tool with a name that no provider accepts.
fn oddly_named(call_id: &str) -> EventBody {
    let EventBody::ToolCallRequested(requested) = call(call_id, false) else {
        unreachable!("it makes a call")
    };
    EventBody::ToolCallRequested(ToolCallRequested {
        tool: format!("look up, {call_id}"),
        ..requested
    })
}

// Text and calls alternate within one message, and all reasoning has the same signature. Each item
// needs its own id in OpenAI's format.
#[test]
fn item_ids_of_a_step_scale_as_n_log_n() {
    grows_gently("naming", 50, |n| {
        let mut message = MessageAppended::text(Role::Assistant, "");
        message.message_id = "m".to_owned();
        let mut story = Story::new().user("go");
        for number in 0..n {
            let id = format!("c{number}");
            message.parts = vec![thought(), ContentPart::Text(format!("now {number}"))];
            let body = EventBody::MessageAppended(message.clone());
            story = story.then(body).call(&id);
        }
        for number in 0..n {
            story = story.result(&format!("c{number}"), "there");
        }
        let draft = drafted(&story.input(), Provider::OpenAiResponses);
        assert_eq!(draft.items.iter().filter_map(Item::step).count(), 1);
        let policy = ContextPolicy::default();
        steps::of(|| provider::render(&draft, &policy).unwrap()).0
    });
}

fn thought() -> ContentPart {
    ContentPart::Reasoning(Reasoning {
        text: String::new(),
        signature: b"c2lnbmVk".as_slice().into(),
        redacted: false,
        provider: "openai".to_owned(),
        model: "gpt-5".to_owned(),
        id: String::new(),
    })
}

#[test]
fn finding_tool_names_scales_as_n_log_n() {
    grows_gently("finding", 50, |n| {
        let names = |count: usize| (0..count).map(|number| format!("get_{number}"));
        let tools: BTreeSet<String> = names(n).collect();
        let text = names(n).collect::<Vec<_>>().join(" ");
        steps::of(|| tool_names_in(&text, &tools)).0
    });
    grows_gently("finding after blanks", 50, |n| {
        let tools = BTreeSet::from(["read"]);
        let text = " ".repeat(n) + &"read it ".repeat(n);
        steps::of(|| tool_names_in(&text, &tools)).0
    });
}

#[test]
fn discovered_tools_scale_as_n_log_n() {
    grows_gently("offering", 50, |n| {
        let names = || (0..n).map(|number| format!("tool_{number}"));
        let tools: Vec<ToolDefinition> = names().map(|name| tool(&name, true, "")).collect();
        let story =
            Story::new()
                .then(EventBody::ToolsDefined { tools })
                .then(EventBody::ToolsDiscovered {
                    names: names().collect(),
                });
        let window = story.input();
        let tell = || {
            let draft = drafted(&window, Provider::Neutral);
            assert_eq!(draft.tools.len(), n);
            assert_eq!(enhancers::guidance_missing(&window).len(), n);
        };
        steps::of(tell).0
    });
}
