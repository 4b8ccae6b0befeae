use std::collections::{BTreeMap, BTreeSet, HashMap};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::merge::Start;
use treering_domain::{
    BranchId, BranchName, ConversationId, EventBody, EventHeader, EventId, Namespace, NewEvent,
    Position, Revision, StoredEvent,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn span(start: i64, attributes: Value) -> Span {
    let Value::Object(attributes) = attributes else {
        panic!("attributes are an object");
    };
    Span {
        trace_id: TRACE.into(),
        span_id: format!("{start:016x}"),
        is_root: false,
        start: TimestampMicros(start),
        end: TimestampMicros(start + 5_000),
        error: None,
        attributes,
        events: Vec::new(),
    }
}

fn seen(span: &Span) -> SpanMeaning {
    read(span, &mut ValueAllowance::new(1 << 20)).unwrap()
}

fn chat_of(span: &Span) -> Chat {
    match seen(span) {
        SpanMeaning::Chat(chat) => *chat,
        other => panic!("{other:?}"),
    }
}

/// A store of one conversation.
struct Store {
    events: Vec<StoredEvent>,
    branches: HashMap<BranchName, BranchId>,
    start: Start,
}

impl Store {
    fn new() -> Self {
        Self {
            events: Vec::new(),
            branches: HashMap::new(),
            start: Start {
                conversation: ConversationId::generate(),
                source_id: TRACE.into(),
                service: "tests".into(),
            },
        }
    }

    /// Processes an export as the receiver does, and returns how many events it added.
    fn export(&mut self, spans: &[Span]) -> usize {
        let mut known = MergeState::default();
        self.events.iter().for_each(|event| known.add(event));
        let mut seen: Vec<_> = spans.iter().map(seen).collect();
        seen.sort_by_key(|seen| match seen {
            SpanMeaning::Chat(chat) if chat.is_agent => (2, chat.start.0),
            SpanMeaning::Chat(chat) => (0, chat.start.0),
            SpanMeaning::Tool(run) => (1, run.end.0),
            _ => (3, 0),
        });
        let runs = seen.iter().filter_map(|seen| match seen {
            SpanMeaning::Tool(run) => Some((**run).clone()),
            _ => None,
        });
        let start = self.start.clone();
        let mut merge = Merge::new(&mut known, &start, runs);
        for (number, seen) in seen.iter().enumerate() {
            merge.of_span(number, TRACE);
            match seen {
                SpanMeaning::Chat(chat) => merge.chat(chat),
                SpanMeaning::Tool(run) => merge.tool(run),
                SpanMeaning::WithoutContent | SpanMeaning::Other => {}
            }
        }
        let units = merge.finish();
        let before = self.events.len();
        for unit in units {
            for event in unit.events {
                self.append(event);
            }
        }
        assert_eq!(known.last().0, self.events.len() as u64);
        self.events.len() - before
    }

    fn append(&mut self, event: NewEvent) {
        let revision = Revision(self.events.len() as u64 + 1);
        let name = event.branch.clone().unwrap_or_default();
        if matches!(event.body, EventBody::BranchForked(_)) {
            let id = BranchId(revision.0);
            assert!(self.branches.insert(name.clone(), id).is_none());
        }
        let branch = self.branches.get(&name).copied().unwrap_or_default();
        self.events.push(StoredEvent {
            header: EventHeader {
                id: EventId(uuid::Uuid::from_u128(u128::from(revision.0))),
                namespace: Namespace::default(),
                conversation: event.conversation,
                branch,
                revision,
                kind: event.body.kind().number(),
                recorded_at: TimestampMicros(0),
                occurred_at: event.occurred_at,
                actor: String::new(),
                causation_id: None,
                correlation_id: event.correlation_id,
            },
            position: Position::local(revision.0),
            chain_hash: Default::default(),
            body: treering_proto::body::encode(&event.body),
            erased: false,
        });
    }

    fn bodies(&self) -> Vec<EventBody> {
        let decode = |event: &StoredEvent| {
            treering_proto::body::decode(event.header.kind().unwrap(), &event.body).unwrap()
        };
        self.events.iter().map(decode).collect()
    }

    /// Returns the history of each branch, read as the engine reads it, without those that are the
    /// beginning of others.
    fn histories(&self) -> BTreeSet<Vec<String>> {
        let bodies = self.bodies();
        let mut forks = HashMap::new();
        for (event, body) in self.events.iter().zip(&bodies) {
            if let EventBody::BranchForked(forked) = body {
                forks.insert(event.header.branch, (forked.parent, forked.fork_revision));
            }
        }
        let branches: BTreeSet<_> = self
            .events
            .iter()
            .map(|event| event.header.branch)
            .collect();
        let all: Vec<_> = branches
            .into_iter()
            .map(|branch| {
                let mut bounds = HashMap::from([(branch, Revision(u64::MAX))]);
                let (mut at, mut bound) = (branch, Revision(u64::MAX));
                while let Some((parent, upto)) = forks.get(&at) {
                    bound = bound.min(*upto);
                    bounds.insert(*parent, bound);
                    at = *parent;
                }
                let own = self.events.iter().zip(&bodies).filter(|(event, _)| {
                    let header = &event.header;
                    bounds
                        .get(&header.branch)
                        .is_some_and(|bound| header.revision <= *bound)
                });
                told(own.map(|(_, body)| body))
            })
            .collect();
        let begins = |one: &Vec<String>| {
            all.iter()
                .any(|other| other.len() > one.len() && other.starts_with(one))
        };
        all.iter().filter(|one| !begins(one)).cloned().collect()
    }

    fn usages(&self) -> u64 {
        let of = |body: &EventBody| match body {
            EventBody::MessageAppended(said) => {
                said.usage.as_ref().map_or(0, |usage| usage.output_tokens)
            }
            EventBody::AnnotationAdded(added) if added.label == USAGE_LABEL => {
                let usage: Value = serde_json::from_str(&added.comment).unwrap();
                usage["output_tokens"].as_u64().unwrap()
            }
            _ => 0,
        };
        self.bodies().iter().map(of).sum()
    }
}

/// Returns what a branch's events say: messages with their calls and results, in whatever order
/// results came.
fn told<'a>(events: impl Iterator<Item = &'a EventBody>) -> Vec<String> {
    let mut said: Vec<(String, BTreeMap<String, String>)> = Vec::new();
    for event in events {
        match event {
            EventBody::MessageAppended(message) => {
                let text = message::text_of(&message.parts);
                let who = message.role.as_str();
                said.push((format!("{who}: {text}"), BTreeMap::new()));
            }
            EventBody::ToolCallRequested(call) => {
                let asked = canonical_text(call.arguments.as_str());
                let calls = &mut said.last_mut().unwrap().1;
                let before = calls.insert(call.call_id.clone(), format!("{}{asked}", call.tool));
                assert_eq!(before, None, "asked twice");
            }
            EventBody::ToolResultRecorded(result) => {
                let mut all = said.iter_mut().rev();
                let of = all.find(|(_, calls)| calls.contains_key(&result.call_id));
                let call = of.unwrap().1.get_mut(&result.call_id).unwrap();
                assert!(!call.contains("=>"), "two results of one call");
                let text = canonical_text(&message::text_of(&result.parts));
                *call = format!("{call} => {text}");
            }
            _ => {}
        }
    }
    let line = |(text, calls): (String, BTreeMap<_, _>)| format!("{text} {calls:?}");
    said.into_iter().map(line).collect()
}

/// An agent at work: every request has the history, and tools run in between.
#[derive(Default)]
struct Agent {
    history: Vec<Value>,
    spans: Vec<Span>,
    clock: i64,
    calls: usize,
}

impl Agent {
    fn tick(&mut self) -> i64 {
        self.clock += 10_000;
        self.clock
    }

    fn asks(&mut self, text: &str) {
        let parts = json!([{"type": "text", "content": text}]);
        self.history.push(json!({"role": "user", "parts": parts}));
    }

    /// The model answers and requests this many tools, which run.
    fn answers(&mut self, text: &str, tools: usize) {
        let mut parts = vec![json!({"type": "text", "content": text})];
        let calls: Vec<_> = (0..tools).map(|at| self.calls + at).collect();
        self.calls += tools;
        for call in &calls {
            // Some instrumentations write arguments as text, others as JSON.
            let arguments = match call % 2 {
                0 => json!({"city": "Lisbon", "n": call}),
                _ => json!(format!("{{\"n\": {call}, \"city\": \"Lisbon\"}}")),
            };
            parts.push(json!({"type": "tool_call", "id": format!("call_{call}"),
                "name": "weather", "arguments": arguments}));
        }
        let start = self.tick();
        let answer = json!({"role": "assistant", "parts": parts, "finish_reason": "stop"});
        let mut input = vec![json!({"role": "system",
            "parts": [{"type": "text", "content": "Be brief."}]})];
        input.extend(self.history.clone());
        self.spans.push(span(
            start,
            json!({
                "gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o",
                "gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 1,
                "gen_ai.response.id": format!("resp_{start}"),
                "gen_ai.input.messages": Value::from(input).to_string(),
                "gen_ai.output.messages": json!([answer]).to_string(),
            }),
        ));
        self.history.push(answer);
        for call in calls {
            let start = self.tick();
            self.spans.push(span(
                start,
                json!({
                    "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weather",
                    "gen_ai.tool.call.id": format!("call_{call}"),
                    "gen_ai.tool.call.result": format!("{{\"degrees\": {call}, \"a\": 1}}"),
                }),
            ));
            self.history.push(
                json!({"role": "tool", "parts": [{"type": "tool_call_response",
                "id": format!("call_{call}"), "response": {"a": 1, "degrees": call}}]}),
            );
        }
    }
}

// A second answer with a known id must be added unless it is the same answer: Ollama has only 999
// ids, and spans without a question are matched by the id.
#[test]
fn different_answer_with_a_known_id_is_added() {
    let answered = |start: i64, text: &str| {
        let said = json!([{"role": "assistant", "parts": [{"type": "text", "content": text}]}]);
        span(
            start,
            json!({
                "gen_ai.operation.name": "chat", "gen_ai.request.model": "llama",
                "gen_ai.response.id": "chatcmpl-7",
                "gen_ai.output.messages": said.to_string(),
            }),
        )
    };
    let spans = [answered(10_000, "one"), answered(20_000, "two")];
    let mut store = Store::new();
    store.export(&spans[..1]);
    store.export(&spans[1..]);
    let expected = BTreeSet::from([vec!["assistant: one {}".into(), "assistant: two {}".into()]]);
    assert_eq!(store.histories(), expected);
    // An export that was sent twice.
    assert_eq!(store.export(&spans), 0);
}

/// A session with tools, an answer requested again, and a rephrased question.
fn session() -> Agent {
    let mut agent = Agent::default();
    agent.asks("What is the weather?");
    agent.answers("I look.", 2);
    agent.answers("Look again.", 1);
    agent.answers("Warm.", 0);
    let again = agent.history.clone();
    agent.asks("continue");
    agent.answers("Warmer.", 0);
    agent.asks("continue");
    agent.answers("Warmer.", 1);
    agent.answers("Done.", 0);
    // Retried from before the last answer.
    agent.history.pop();
    agent.answers("Really done.", 0);
    agent.history = again;
    agent.asks("And tomorrow?");
    agent.answers("Rain.", 0);
    agent
}

/// The expected histories, from the input of the spans.
fn expected() -> BTreeSet<Vec<String>> {
    let weather = |n: usize| {
        format!(
            "\"call_{n}\": \"weather{{\\\"city\\\":\\\"Lisbon\\\",\\\"n\\\":{n}}} => {{\\\"a\\\":1,\\\"degrees\\\":{n}}}\""
        )
    };
    let begin = vec![
        "user: What is the weather? {}".to_owned(),
        format!("assistant: I look. {{{}, {}}}", weather(0), weather(1)),
        format!("assistant: Look again. {{{}}}", weather(2)),
        "assistant: Warm. {}".to_owned(),
    ];
    let with = |more: &[&str]| {
        let mut all = begin.clone();
        all.extend(more.iter().map(|line| (*line).to_owned()));
        all
    };
    let last = format!("assistant: Warmer. {{{}}}", weather(3));
    let on = [
        "user: continue {}",
        "assistant: Warmer. {}",
        "user: continue {}",
        &last,
    ];
    BTreeSet::from([
        with(&[&on[..], &["assistant: Done. {}"]].concat()),
        with(&[&on[..], &["assistant: Really done. {}"]].concat()),
        with(&["user: And tomorrow? {}", "assistant: Rain. {}"]),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    // Exporters send in batches, retry, and there may be several: in any order and repetition the
    // conversation must be the same, each message once.
    #[test]
    fn any_span_order_and_repetition_gives_one_conversation(
        spans in Just(session().spans).prop_shuffle(),
        cuts in proptest::collection::vec(1_usize..6, 1..20),
        again in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let count = spans.iter().filter(|span| {
            span.attributes["gen_ai.operation.name"] == "chat"
        }).count() as u64;
        let mut store = Store::new();
        let mut left = &spans[..];
        for cut in cuts.into_iter().cycle() {
            let (now, rest) = left.split_at(cut.min(left.len()));
            store.export(now);
            prop_assert_eq!(store.export(now), 0, "sent twice");
            left = rest;
            if left.is_empty() {
                break;
            }
        }
        for index in again {
            prop_assert_eq!(store.export(&[index.get(&spans).clone()]), 0);
        }
        prop_assert_eq!(store.histories(), expected());
        prop_assert_eq!(store.usages(), count);
        let titled = store.bodies().into_iter().filter_map(|body| match body {
            EventBody::ConversationCreated(created) => Some(created.title),
            EventBody::ConversationChanged(changed) => changed.title,
            _ => None,
        }).next_back();
        prop_assert_eq!(titled.as_deref(), Some("What is the weather?"));
    }
}

// The usual case, one request after another: each message must be appended with the first request
// that has it, and nothing else.
#[test]
fn each_request_appends_only_its_new_messages() {
    let mut agent = Agent::default();
    let mut store = Store::new();
    let mut sent = 0;
    for turn in 0..50 {
        agent.asks(&format!("Question {turn}"));
        agent.answers("I look.", 1);
        agent.answers("Here.", 0);
        let added = store.export(&agent.spans[sent..]);
        sent = agent.spans.len();
        // The first request adds the created event, prompt and model; each one adds question,
        // answer, call, result, answer.
        let first = usize::from(turn == 0) * 2;
        assert_eq!(added, 5 + first, "turn {turn}");
    }
    assert_eq!(store.histories().len(), 1);
}

// A history whose front was cut off to save tokens must not become a branch for each request.
#[test]
fn truncated_history_continues_without_a_branch() {
    let mut agent = Agent::default();
    for turn in 0..6 {
        agent.asks(&format!("Question {turn}"));
        agent.answers(&format!("Answer {turn}"), 0);
        if turn >= 2 {
            agent.history.drain(..2);
        }
    }
    let mut store = Store::new();
    store.export(&agent.spans);
    let histories = store.histories();
    assert_eq!(histories.len(), 1, "{histories:#?}");
    assert_eq!(histories.first().unwrap().len(), 12);
}

// An agent's own span has its question and last answer without the steps between; it must not
// become a branch in which the model answered at once.
#[test]
fn span_of_an_agent_opens_no_branch() {
    let mut agent = Agent::default();
    agent.asks("What is the weather?");
    agent.answers("I look.", 1);
    agent.answers("Warm.", 0);
    let work = json!({
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.input.messages": [agent.history[0].clone()],
        "gen_ai.output.messages": [{"role": "assistant",
            "parts": [{"type": "text", "content": "Warm."}]}],
    });
    let mut store = Store::new();
    let at = agent.tick();
    agent.spans.push(span(at, work.clone()));
    store.export(&agent.spans);
    assert_eq!(store.histories().len(), 1);
    // If the steps have no content, the agent's span is the only source.
    let mut alone = Store::new();
    alone.export(&[span(1, work)]);
    assert_eq!(alone.histories().first().unwrap().len(), 2);
}

// The same exchange in the form of each known convention.
#[test]
fn all_conventions_give_the_same_messages() {
    let of = |attributes: Value| chat_of(&span(1, attributes));
    let parts = of(json!({"gen_ai.operation.name": "chat",
        "gen_ai.system_instructions": "[{\"type\":\"text\",\"content\":\"Be brief.\"}]",
        "gen_ai.input.messages": json!([
            {"role": "user", "parts": [{"type": "text", "content": "Weather?"}]},
            {"role": "assistant", "parts": [
                {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Lisbon"}}]},
            {"role": "user", "parts": [
                {"type": "tool_call_response", "id": "c1", "result": {"deg": 21}}]},
        ]).to_string(),
        "gen_ai.output.messages": json!([{"role": "assistant",
            "parts": [{"type": "text", "content": "Warm."}], "finish_reason": "stop"}]),
    }));
    let flat = of(json!({"llm.request.type": "chat",
        "gen_ai.prompt.0.role": "system", "gen_ai.prompt.0.content": "Be brief.",
        "gen_ai.prompt.1.role": "user", "gen_ai.prompt.1.content": "Weather?",
        "gen_ai.prompt.2.role": "assistant",
        "gen_ai.prompt.2.tool_calls.0.id": "c1",
        "gen_ai.prompt.2.tool_calls.0.name": "weather",
        "gen_ai.prompt.2.tool_calls.0.arguments": "{\"city\":\"Lisbon\"}",
        "gen_ai.prompt.3.role": "tool", "gen_ai.prompt.3.tool_call_id": "c1",
        "gen_ai.prompt.3.content": "{\"deg\":21}",
        "gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "Warm.",
        "gen_ai.completion.0.finish_reason": "stop",
    }));
    let inference = of(json!({"openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "system",
        "llm.input_messages.0.message.content": "Be brief.",
        "llm.input_messages.1.message.role": "user",
        "llm.input_messages.1.message.contents.0.message_content.type": "text",
        "llm.input_messages.1.message.contents.0.message_content.text": "Weather?",
        "llm.input_messages.2.message.role": "assistant",
        "llm.input_messages.2.message.tool_calls.0.tool_call.id": "c1",
        "llm.input_messages.2.message.tool_calls.0.tool_call.function.name": "weather",
        "llm.input_messages.2.message.tool_calls.0.tool_call.function.arguments":
            "{\"city\":\"Lisbon\"}",
        "llm.input_messages.3.message.role": "tool",
        "llm.input_messages.3.message.tool_call_id": "c1",
        "llm.input_messages.3.message.content": "{\"deg\":21}",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "Warm.",
    }));
    let mut by_events = span(1, json!({"gen_ai.operation.name": "chat"}));
    let event = |name: &str, fields: Value| match fields {
        Value::Object(fields) => (name.to_owned(), fields),
        _ => panic!(),
    };
    by_events.events = vec![
        event("gen_ai.system.message", json!({"content": "Be brief."})),
        event("gen_ai.user.message", json!({"content": "Weather?"})),
        event(
            "gen_ai.assistant.message",
            json!({"tool_calls": json!([{"id": "c1",
            "type": "function", "function": {"name": "weather",
            "arguments": "{\"city\":\"Lisbon\"}"}}]).to_string()}),
        ),
        event(
            "gen_ai.tool.message",
            json!({"id": "c1", "content": "{\"deg\":21}"}),
        ),
        event(
            "gen_ai.choice",
            json!({"index": 0, "finish_reason": "stop",
            "message": "{\"role\":\"assistant\",\"content\":\"Warm.\"}"}),
        ),
    ];
    let mut exports = Vec::new();
    for chat in [parts, flat, inference, chat_of(&by_events)] {
        assert_eq!(chat.system.as_deref(), Some("Be brief."));
        exports.push(chat);
    }
    // None may add anything to a conversation that another one recorded.
    for first in &exports {
        let mut known = MergeState::default();
        let start = Store::new().start;
        let mut merge = Merge::new(&mut known, &start, std::iter::empty());
        merge.of_span(0, TRACE);
        merge.chat(first);
        assert!(!merge.finish().is_empty());
        for other in &exports {
            let mut merge = Merge::new(&mut known, &start, std::iter::empty());
            merge.of_span(1, TRACE);
            merge.chat(other);
            assert_eq!(merge.finish(), []);
        }
    }
}

// Parts other than text must be kept, whatever their form.
#[test]
fn parts_other_than_text_are_kept() {
    let chat = chat_of(&span(
        1,
        json!({"gen_ai.operation.name": "chat",
            "gen_ai.input.messages": [{"role": "user", "parts": [
                {"type": "blob", "mime_type": "image/png", "content": "AAAA", "modality": "image"},
                {"type": "uri", "uri": "https://x/y.wav", "mime_type": "audio/wav"},
                {"type": "text", "content": "What is it?"},
                {"type": "else", "x": [1]}]}],
            "gen_ai.output.messages": [{"role": "assistant", "parts": [
                {"type": "reasoning", "content": "Hm."}, {"type": "text", "content": "A dot."}]}],
        }),
    ));
    let SpanItem::Said(said) = &chat.input[0] else {
        panic!()
    };
    use ContentPart as Part;
    assert!(matches!(
        &said.parts[..],
        [Part::Image(_), Part::Audio(_), Part::Text(_), Part::Json(_)]
    ));
    assert!(matches!(
        &chat.output[0].parts[..],
        [Part::Reasoning(_), Part::Text(_)]
    ));
}

// Instrumentations capture no content by default: that is no fault, and must not look like a
// conversation.
#[test]
fn spans_without_content_are_distinguished() {
    let without = span(
        1,
        json!({"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 3}),
    );
    assert_eq!(seen(&without), SpanMeaning::WithoutContent);
    let other = span(1, json!({"gen_ai.operation.name": "embeddings"}));
    assert_eq!(seen(&other), SpanMeaning::Other);
    let broken = span(
        1,
        json!({"gen_ai.operation.name": "chat", "gen_ai.input.messages": "[{"}),
    );
    let fault = read(&broken, &mut ValueAllowance::new(1 << 20)).unwrap_err();
    assert!(
        fault.to_string().contains("gen_ai.input.messages"),
        "{fault}"
    );
    let many = span(
        1,
        json!({"gen_ai.operation.name": "chat",
        "gen_ai.input.messages": "[1,2,3,4,5]"}),
    );
    assert!(read(&many, &mut ValueAllowance::new(4)).is_err());
}

// The conventions count cached tokens as part of the input, and some instrumentations do not: their
// sum must not count a token twice, nor be negative.
#[test]
fn cached_tokens_are_beside_the_input() {
    for (input, cached, wanted) in [(100, 40, 60), (60, 400, 60), (100, 0, 100)] {
        let chat = chat_of(&span(
            1,
            json!({
                "gen_ai.operation.name": "chat", "gen_ai.request.model": "claude-sonnet-4-5",
                "gen_ai.usage.input_tokens": input, "gen_ai.usage.output_tokens": 1,
                "gen_ai.usage.cache_read.input_tokens": cached,
                "gen_ai.output.messages": json!([{"role": "assistant",
                    "parts": [{"type": "text", "content": "So"}]}]).to_string(),
            }),
        ));
        let usage = chat.usage.unwrap();
        assert_eq!(usage.input_tokens, wanted);
        assert_eq!(usage.cache_read_input_tokens, cached);
    }
}

// An erased message must not return with the next request, whose history contains it.
#[test]
fn erased_message_is_not_recorded_again() {
    let mut agent = Agent::default();
    let mut store = Store::new();
    agent.asks("My number is 42.");
    agent.answers("Noted.", 1);
    store.export(&agent.spans);
    for event in &mut store.events {
        let body = treering_proto::body::decode(event.header.kind().unwrap(), &event.body).unwrap();
        if !matches!(body, EventBody::ConversationCreated(_)) {
            event.body = treering_proto::body::stub(&body, event.header.branch);
            event.erased = true;
        }
    }
    agent.answers("What was it?", 0);
    store.export(&agent.spans);
    let text = format!("{:?}", store.bodies().split_off(1));
    assert!(!text.contains("42"), "{text}");
    assert_eq!(store.histories().len(), 1);
}
