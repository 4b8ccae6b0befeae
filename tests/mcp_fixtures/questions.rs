//! Tools and a prompt that ask their client for input before they answer. The first answer is a
//! list of questions, and the client calls again with its replies.

use std::sync::LazyLock;

use rmcp::{
    ErrorData,
    model::{ClientCapabilities, InputRequiredResult, InputResponses},
};
use serde_json::{Map, Value, json};

/// The tools that ask for input.
pub const TOOLS: [&str; 8] = [
    "test_input_required_result_elicitation",
    "test_input_required_result_sampling",
    "test_input_required_result_list_roots",
    "test_input_required_result_request_state",
    "test_input_required_result_multiple_inputs",
    "test_input_required_result_multi_round",
    "test_input_required_result_tampered_state",
    "test_input_required_result_capabilities",
];
/// The prompt that asks for input.
pub const PROMPT: &str = "test_input_required_result_prompt";

/// What a client has answered so far, and what it can be asked.
#[derive(Debug)]
pub struct ClientState {
    /// Its answers by the key of the question.
    pub answers: Option<InputResponses>,
    /// The state that it received with the questions.
    pub state: Option<String>,
    /// Its capabilities.
    pub client: ClientCapabilities,
}

/// Returns the next questions, or `None` when all are answered.
///
/// # Errors
/// If the state was not issued by this process.
pub fn next(name: &str, said: &ClientState) -> Result<Option<InputRequiredResult>, ErrorData> {
    let (rounds, has_state) = rounds(name);
    let now = match (&said.state, has_state) {
        (Some(state), true) => Some(opened(state)?),
        (None, true) => None,
        (_, false) => Some(0),
    };
    let is_answered = |round: usize| {
        let answers = said.answers.as_ref();
        let is_given = |key: &str| answers.and_then(|answers| answers.get(key)?.as_object());
        asked(&rounds, round, &said.client)
            .keys()
            .all(|key| is_given(key).is_some())
    };
    let next = match now {
        None => 0,
        Some(round) if is_answered(round) => round + 1,
        Some(round) => round,
    };
    if next >= rounds.len() {
        return Ok(None);
    }
    let mut result = json!({
        "resultType": "input_required",
        "inputRequests": asked(&rounds, next, &said.client),
    });
    if has_state {
        result["requestState"] = sealed(next).into();
    }
    let result = serde_json::from_value(result);
    result
        .map(Some)
        .map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

/// Returns the rounds of questions by key, and whether a state is sent with them.
fn rounds(name: &str) -> (Vec<Value>, bool) {
    let name_of_user = || question("What is your name?", "name", "string");
    let confirm = || json!({"confirm": question("Is that right?", "ok", "boolean")});
    let greeting = || sampling("Greet somebody.");
    let roots = || json!({"method": "roots/list", "params": {}});
    match name {
        "test_input_required_result_sampling" => {
            let asked = json!({"capital_question": sampling("What is the capital of France?")});
            (vec![asked], false)
        }
        "test_input_required_result_list_roots" => (vec![json!({"client_roots": roots()})], false),
        "test_input_required_result_request_state"
        | "test_input_required_result_tampered_state" => (vec![confirm()], true),
        "test_input_required_result_multiple_inputs" => {
            let asked = json!({
                "user_name": name_of_user(), "greeting": greeting(), "client_roots": roots(),
            });
            (vec![asked], true)
        }
        "test_input_required_result_multi_round" => {
            let colour = question("Which colour do you like?", "color", "string");
            let rounds = vec![json!({"step1": name_of_user()}), json!({"step2": colour})];
            (rounds, true)
        }
        "test_input_required_result_capabilities" => {
            let asked = json!({"elicit_input": name_of_user(), "sample_input": greeting()});
            (vec![asked], false)
        }
        PROMPT => {
            let asked = question("What is it about?", "context", "string");
            (vec![json!({"user_context": asked})], false)
        }
        _ => (vec![json!({"user_name": name_of_user()})], false),
    }
}

/// Returns the questions of a round that this client can answer.
fn asked(rounds: &[Value], round: usize, client: &ClientCapabilities) -> Map<String, Value> {
    let all = rounds.get(round).and_then(Value::as_object);
    let can = |method: &str| match method {
        "elicitation/create" => client.elicitation.is_some(),
        "sampling/createMessage" => client.sampling.is_some(),
        _ => client.roots.is_some(),
    };
    let all = all.into_iter().flatten();
    let possible = all.filter(|(_, asked)| asked["method"].as_str().is_some_and(can));
    possible
        .map(|(key, asked)| (key.clone(), asked.clone()))
        .collect()
}

fn question(message: &str, field: &str, kind: &str) -> Value {
    json!({"method": "elicitation/create", "params": {
        "message": message,
        "requestedSchema": {
            "type": "object", "properties": {field: {"type": kind}}, "required": [field],
        },
    }})
}

fn sampling(text: &str) -> Value {
    json!({"method": "sampling/createMessage", "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": text}}],
        "maxTokens": 100,
    }})
}

/// The key that seals states, new in each process.
static KEY: LazyLock<[u8; 32]> =
    LazyLock::new(|| *blake3::hash(uuid::Uuid::new_v4().as_bytes()).as_bytes());

/// Returns a round as a state that the client cannot change unnoticed.
fn sealed(round: usize) -> String {
    let round = round.to_string();
    let seal = blake3::keyed_hash(&KEY, round.as_bytes()).to_hex();
    format!("{round}.{seal}")
}

fn opened(state: &str) -> Result<usize, ErrorData> {
    let (round, seal) = state.split_once('.').unwrap_or_default();
    let is_ours = blake3::Hash::from_hex(seal)
        .is_ok_and(|seal| seal == blake3::keyed_hash(&KEY, round.as_bytes()));
    let round = round.parse().ok().filter(|_| is_ours);
    round.ok_or_else(|| ErrorData::invalid_params("this state was not given here", None))
}
