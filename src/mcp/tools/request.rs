//! `request`: returns the next request of a conversation's agent.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{ToolAnswer, given, shown};
use crate::{
    bounds::{REQUEST_BYTES_MAX, REQUEST_TOKENS, REQUEST_TOKENS_MAX},
    failure::Failure,
    place,
    quote::fence,
};
use treering_client::Connection;
use treering_context::Provider;
use treering_present::{
    explanation::{dropped_tokens, sections_line},
    text::count,
};
use treering_proto::pb;

/// Smallest budget in tokens: nothing fits into less.
const TOKENS_MIN: u64 = 200;

/// Input of `request`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestInput {
    /// The conversation (id, its beginning, "@last", words of its title), or
    /// CONVERSATION#REVISION for its state at that event
    conversation: String,
    /// The branch [the active one]
    branch: Option<String>,
    /// Maximum number of tokens [4000, at most 12000]
    budget_tokens: Option<u64>,
    /// The form of the body: neutral, openai-chat, openai-responses, anthropic, gemini [neutral]
    provider: Option<String>,
}

/// Returns the body, and a summary of its content.
///
/// # Errors
/// Those of the store, and when the request does not fit.
pub(crate) async fn call(input: RequestInput, store: &Connection) -> Result<ToolAnswer, Failure> {
    let found = place::conversation(store, &input.conversation).await?;
    let branch = given(input.branch.as_deref());
    place::check_branch(&found, branch)?;
    let branch = match found.revision {
        Some(revision) => place::branch_of(store, &found, branch, revision).await?,
        None => branch.unwrap_or_default().to_owned(),
    };
    let wanted = input.budget_tokens.unwrap_or(REQUEST_TOKENS);
    let budget = wanted.clamp(TOKENS_MIN, REQUEST_TOKENS_MAX);
    let policy = json!({"budget_tokens": budget}).to_string();
    let request = pb::BuildRequest {
        conversation_id: found.id.clone(),
        branch,
        as_of_revision: found.revision.unwrap_or(0),
        provider: provider(given(input.provider.as_deref()))?,
        policy: policy.into_bytes().into(),
        ..Default::default()
    };
    let answer = store.contexts().build(request).await?.into_inner();
    let told = answer.explanation.unwrap_or_default();
    if told.over_budget {
        return Err(too_small(told.tokens, budget));
    }
    let body = fence(&String::from_utf8_lossy(&answer.request));
    if body.len() > REQUEST_BYTES_MAX {
        return Err(Failure::new(
            format!(
                "the request has {} bytes; an answer may have {}",
                count(body.len() as u64),
                count(REQUEST_BYTES_MAX as u64)
            ),
            "set a smaller budget_tokens",
        ));
    }
    let text = format!("{}{body}", summary(&found.called(), &told, wanted, budget));
    Ok(ToolAnswer::whole(text))
}

fn too_small(needed: u64, budget: u64) -> Failure {
    Failure::new(
        format!(
            "the request does not fit in {} tokens: it needs at least {}",
            count(budget),
            count(needed)
        ),
        match needed <= REQUEST_TOKENS_MAX {
            true => format!("set budget_tokens={needed}"),
            false => "it is too large for an answer: use `search`, `around` and `read`".into(),
        },
    )
}

fn provider(name: Option<&str>) -> Result<i32, Failure> {
    let Some(name) = name else {
        return Ok(Provider::Neutral.number());
    };
    let name = name.replace('_', "-");
    let known = Provider::ALL
        .iter()
        .find(|provider| provider.as_str() == name);
    known.map(|provider| provider.number()).ok_or_else(|| {
        let names: Vec<_> = Provider::ALL
            .iter()
            .map(|provider| provider.as_str())
            .collect();
        Failure::new(
            format!("no provider {}", shown(&name)),
            format!("use one of: {}", names.join(", ")),
        )
    })
}

fn summary(called: &str, told: &pb::Explanation, wanted: u64, budget: u64) -> String {
    let limit = match wanted == budget {
        true => String::new(),
        false => format!(
            " (asked for {}; from {} to {} are possible)",
            count(wanted),
            count(TOKENS_MIN),
            count(REQUEST_TOKENS_MAX)
        ),
    };
    let larger = match budget < REQUEST_TOKENS_MAX {
        true => "a larger budget_tokens includes more, and ",
        false => "",
    };
    let left = match dropped_tokens(told) {
        0 => String::new(),
        left => format!(
            " {} tokens were dropped or shortened: {larger}`read` returns what references stand \
             for (treering:…; #N is {called}#N), whatever the request says about tools.",
            count(left)
        ),
    };
    format!(
        "The next request of {called} at #{}: {} tokens of a budget of {}{limit}.{left}\nTokens: \
         {}.\n",
        told.revision,
        count(told.tokens),
        count(budget),
        sections_line(told)
    )
}
