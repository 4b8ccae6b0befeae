//! `request`: returns the next request of a conversation's agent.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{ToolAnswer, given, shown};
use crate::{
    bounds::{REQUEST_TOKENS, REQUEST_TOKENS_MAX},
    failure::Failure,
    place,
    quote::fence,
};
use treering_client::Connection;
use treering_context::{Provider, tokens::Counter};
use treering_present::{
    explanation::{dropped_tokens, sections_line},
    text::count,
};
use treering_proto::pb;

/// How often a request is built until it fits.
const TRIES: usize = 5;
/// Smallest budget in tokens: nothing fits into less.
const TOKENS_MIN: u64 = 200;

/// Whose request.
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
    let budget = input.budget_tokens.unwrap_or(REQUEST_TOKENS);
    let budget = budget.clamp(TOKENS_MIN, REQUEST_TOKENS_MAX);
    let request = pb::BuildRequest {
        conversation_id: found.id.clone(),
        branch,
        as_of_revision: found.revision.unwrap_or(0),
        provider: provider(given(input.provider.as_deref()))?,
        ..Default::default()
    };
    let counter = Counter::for_model("");
    // The engine counts what a provider receives. Here the body is a text with JSON syntax, which
    // takes more.
    let mut asked = budget;
    for _ in 0..TRIES {
        let answer = build(store, &request, asked).await?;
        let told = answer.explanation.unwrap_or_default();
        if told.over_budget {
            return Err(too_small(told.tokens, budget));
        }
        let body = fence(&String::from_utf8_lossy(&answer.request));
        let head = |tokens| summary(&found.called(), &told, tokens, budget);
        let tokens = counter.count(&format!("{}{body}", head(budget)));
        if tokens <= budget {
            return Ok(ToolAnswer::text(format!("{}{body}", head(tokens))));
        }
        asked = less(asked, tokens, budget);
    }
    Err(too_small(budget, budget))
}

async fn build(
    store: &Connection,
    request: &pb::BuildRequest,
    budget: u64,
) -> Result<pb::BuildResponse, Failure> {
    let policy = json!({"budget_tokens": budget}).to_string();
    let request = pb::BuildRequest {
        policy: policy.into_bytes().into(),
        ..request.clone()
    };
    Ok(store.contexts().build(request).await?.into_inner())
}

/// Returns the budget for the next try, when a try with budget `asked` took `came` tokens: scaled
/// down in proportion, and 4 % less.
fn less(asked: u64, came: u64, budget: u64) -> u64 {
    (asked * budget / came.max(1) * 24 / 25).max(1)
}

fn too_small(needed: u64, budget: u64) -> Failure {
    Failure::new(
        format!(
            "the request does not fit in {} tokens: it needs at least {}",
            count(budget),
            count(needed)
        ),
        match budget < REQUEST_TOKENS_MAX {
            true => format!("set budget_tokens={REQUEST_TOKENS_MAX}"),
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

fn summary(called: &str, told: &pb::Explanation, tokens: u64, budget: u64) -> String {
    let left = match dropped_tokens(told) {
        0 => String::new(),
        left => format!(
            " {} tokens were dropped or shortened: a larger budget_tokens includes more, and \
             `read` returns what references stand for (treering:…; #N is {called}#N), whatever the \
             request says about tools.",
            count(left)
        ),
    };
    format!(
        "The next request of {called} at #{}: {} tokens of a budget of {}.{left}\nTokens: {}.\n",
        told.revision,
        count(tokens),
        count(budget),
        sections_line(told)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    // A request of 4,000 tokens took 5,629: JSON syntax and field names were not counted.
    #[test]
    fn budget_shrinks_until_the_request_fits() {
        let real = |asked: u64| asked * 5_629 / 4_000 + 100;
        let mut asked = 4_000;
        let tries = (0..TRIES).position(|_| {
            let came = real(asked);
            asked = less(asked, came, 4_000);
            came <= 4_000
        });
        assert!(tries.is_some_and(|tries| tries < 3), "{tries:?}");
        assert!(less(1, u64::MAX / 2, 1) == 1);
    }
}
