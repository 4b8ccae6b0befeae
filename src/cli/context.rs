//! `context`: prints the next request of a conversation, or explains it.

use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use serde_json::{Map, Value, json};

use super::{
    args::tokens,
    branch_args::AsOfArgs,
    connect::Connection,
    error::{ClientError, Exit},
    json,
    output::{Out, Tone},
    pb,
    safe::tell,
    text::{ExplanationText, count, explanation_lines, pretty_json},
    text_arg::text_of,
};
use treering_context::Provider;
use treering_present::explanation::compact_command;

/// Build the next request of an agent, in the format of its provider
///
/// Prints the request body, ready to be sent. With --explain, shows instead what is in it and why:
/// the tokens of each section, what each enhancer did, and every item with its event.
///
/// If the instructions and the user's last message alone exceed the budget, no body is printed and
/// the exit code is 4: see --allow-over.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering context CONVERSATION --explain
  treering context CONVERSATION --provider anthropic --model claude-sonnet-4-5 > body.json
  treering context CONVERSATION --provider openai-chat --budget 16000 --explain
  treering context CONVERSATION --branch retry --as-of 41 --provider gemini
  treering context CONVERSATION --tool-results turn-end --without knowledge
  treering context CONVERSATION --json | jq '.explanation.sections'

One fork, two providers:
  treering fork CONVERSATION --at 41 --name retry
  treering context CONVERSATION -b retry --provider openai-chat --model gpt-4o
  treering context CONVERSATION -b retry --provider anthropic --model claude-sonnet-4-5")]
pub(crate) struct ContextArgs {
    #[command(flatten)]
    place: AsOfArgs,
    /// Provider of the request body
    #[arg(long, short, value_parser = provider(), value_name = "PROVIDER", default_value_t)]
    provider: Provider,
    /// Model of the request [default: the conversation's, else none]
    #[arg(long, short, value_name = "NAME")]
    model: Option<String>,
    /// Token budget of the request: 16000, 16k [default: the conversation's policy, else unlimited]
    #[arg(long, value_name = "TOKENS", value_parser = tokens)]
    budget: Option<u64>,
    /// Print the request even if it exceeds its budget, and exit with 0
    #[arg(long)]
    allow_over: bool,
    /// Wait until the log can be read up to this position, so that the request includes what was
    /// appended there
    #[arg(long, value_name = "POSITION")]
    at_least: Option<u64>,
    /// Explain what is in the request, and why
    #[arg(long, short)]
    explain: bool,
    /// With --explain: show every item on its own line
    #[arg(long, requires = "explain")]
    all: bool,
    /// When results of finished calls become digests: keep, turn-end, or older-than=TURNS
    #[arg(long, value_name = "WHEN", value_parser = tool_results)]
    tool_results: Option<Value>,
    /// Disable an enhancer (may be given again)
    #[arg(long, value_name = "STEP")]
    without: Vec<String>,
    /// Merge this over the conversation's `context` policy: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON")]
    policy: Option<String>,
}

/// Returns the parser of provider names.
fn provider() -> impl TypedValueParser<Value = Provider> {
    let named = |it: Provider| PossibleValue::new(it.as_str()).help(it.title());
    PossibleValuesParser::new(Provider::ALL.map(named)).try_map(|name| name.parse::<Provider>())
}

fn tool_results(text: &str) -> Result<Value, String> {
    if let Some(turns) = text.strip_prefix("older-than=") {
        let turns: u32 = turns
            .parse()
            .map_err(|_| "use a number of turns after older-than=, for example older-than=3")?;
        return Ok(json!({ "older_than_turns": turns }));
    }
    match text {
        "keep" => Ok(json!("keep")),
        "turn-end" => Ok(json!("turn_end")),
        _ => Err("use keep, turn-end or older-than=TURNS".into()),
    }
}

/// Prints the request, its explanation, or both as JSON.
///
/// # Errors
/// Errors of the store or the output; [`ClientError::Usage`] for a policy that is not a JSON
/// object; [`ClientError::Outcome`] for a request above its budget.
pub(crate) async fn run(
    args: ContextArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let policy = policy(&args)?;
    let (explain, allow_over) = (args.explain, args.allow_over);
    let how = ExplanationText {
        paint: out.paint,
        width: out.width,
        all: args.all,
    };
    let place = args.place.find(store).await?;
    let request = pb::BuildRequest {
        conversation_id: place.conversation,
        branch: place.branch,
        as_of_revision: place.revision,
        provider: args.provider.number(),
        model: args.model.unwrap_or_default(),
        policy: policy.into(),
        at_least: args
            .at_least
            .map(|offset| pb::Position { shard: 0, offset }),
        long_term: None,
    };
    if explain && !out.json {
        let answer = store
            .contexts()
            .explain(request.clone())
            .await?
            .into_inner();
        let told = answer.explanation.unwrap_or_default();
        for line in explanation_lines(&told, how) {
            out.row(line)?;
        }
        return within_budget(&told, allow_over, request, store).await;
    }
    let answer = store.contexts().build(request.clone()).await?.into_inner();
    if out.json {
        out.line(json::of(&answer))?;
        let told = answer.explanation.unwrap_or_default();
        return within_budget(&told, allow_over, request, store).await;
    }
    let told = answer.explanation.unwrap_or_default();
    // A body above the budget must not be printed as if it could be sent.
    within_budget(&told, allow_over, request, store).await?;
    out.json(pretty_json(&String::from_utf8_lossy(&answer.request)))?;
    print_warnings(&told, out);
    Ok(())
}

async fn within_budget(
    told: &pb::Explanation,
    allow_over: bool,
    request: pb::BuildRequest,
    store: &Connection,
) -> Result<(), ClientError> {
    if !told.over_budget || allow_over {
        return Ok(());
    }
    let raise = match find_minimum_budget(told, request, store).await? {
        Some(budget) => format!("--budget {budget} suffices"),
        None => "raise --budget".into(),
    };
    Err(ClientError::Outcome {
        what: format!(
            "the request has {} tokens, its budget is {}, and nothing more may be dropped",
            count(told.tokens),
            count(told.budget_tokens)
        ),
        hint: format!(
            "{raise}; or allow more to be dropped in the policy's `drop_order`, or show the \
             request with --allow-over; --explain shows what uses the tokens"
        ),
        exit: Exit::Refused,
    })
}

/// Budgets to try, in percent of the size of the request that exceeds its budget. That size is not
/// enough as a budget, because more optional content stays when the budget is larger.
const TRIED_PERCENT: [u64; 7] = [105, 115, 130, 160, 220, 320, 500];

/// Returns a budget slightly above the smallest one with which the request can be built.
async fn find_minimum_budget(
    told: &pb::Explanation,
    request: pb::BuildRequest,
    store: &Connection,
) -> Result<Option<u64>, ClientError> {
    let given = match &request.policy[..] {
        [] => Map::new(),
        given => object(&String::from_utf8_lossy(given))?,
    };
    for percent in TRIED_PERCENT {
        let budget = round_up(told.tokens.saturating_mul(percent) / 100);
        let mut policy = given.clone();
        policy.insert("budget_tokens".into(), budget.into());
        let request = pb::BuildRequest {
            policy: Value::Object(policy).to_string().into_bytes().into(),
            ..request.clone()
        };
        let answer = store.contexts().explain(request).await?.into_inner();
        if answer.explanation.is_some_and(|told| !told.over_budget) {
            return Ok(Some(budget));
        }
    }
    Ok(None)
}

/// Rounds up to two significant digits, because people type the number.
fn round_up(tokens: u64) -> u64 {
    let digits = tokens.checked_ilog10().unwrap_or(0);
    let unit = 10_u64.pow(digits.saturating_sub(1));
    tokens.div_ceil(unit) * unit
}

/// Prints warnings to standard error, so that they are not part of the body.
fn print_warnings(told: &pb::Explanation, out: &Out) {
    let mut warnings = told.warnings.clone();
    if told.compaction_due {
        let command = compact_command(told);
        warnings.push(format!("a compaction is due: see `{command}`"));
    }
    for warning in warnings {
        let mark = out.paint.text(Tone::Wait, "warning:");
        tell!("{mark} {warning}");
    }
}

/// Returns the policy of the call: `--policy`, with the shorter options merged over it.
fn policy(args: &ContextArgs) -> Result<Vec<u8>, ClientError> {
    let mut policy = merged_policy(args.policy.as_deref(), args.budget)?;
    if let Some(when) = &args.tool_results {
        policy.insert("tool_results".into(), when.clone());
    }
    for step in &args.without {
        let enhancers = policy.entry("enhancers").or_insert_with(|| json!({}));
        let Some(enhancers) = enhancers.as_object_mut() else {
            return Err(not_a_policy("its `enhancers` must be a JSON object"));
        };
        let step = enhancers.entry(step).or_insert_with(|| json!({}));
        step["enabled"] = Value::Bool(false);
    }
    Ok(policy_bytes(policy))
}

/// Returns the policy of `--policy`, with the budget of `--budget`.
pub(super) fn merged_policy(
    said: Option<&str>,
    budget: Option<u64>,
) -> Result<Map<String, Value>, ClientError> {
    let mut policy = match said {
        Some(argument) => object(&text_of(argument)?)?,
        None => Map::new(),
    };
    if let Some(budget) = budget {
        policy.insert("budget_tokens".into(), budget.into());
    }
    Ok(policy)
}

/// Returns the policy as bytes for a request; empty if there is none.
pub(super) fn policy_bytes(policy: Map<String, Value>) -> Vec<u8> {
    if policy.is_empty() {
        return Vec::new();
    }
    Value::Object(policy).to_string().into_bytes()
}

fn object(text: &str) -> Result<Map<String, Value>, ClientError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(policy)) => Ok(policy),
        Ok(_) => Err(not_a_policy("it must be a JSON object")),
        Err(error) => Err(not_a_policy(&error.to_string())),
    }
}

fn not_a_policy(what: &str) -> ClientError {
    ClientError::Usage {
        what: format!("invalid policy: {what}"),
        hint: r#"write it as JSON, for example --policy '{"budget_tokens": 16000}', or use @FILE"#
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Clone)]
    struct Line {
        #[command(flatten)]
        args: ContextArgs,
    }

    fn policy_of(line: &[&str]) -> Result<String, ClientError> {
        let line = ["context", "C"].iter().chain(line);
        let args = Line::try_parse_from(line).unwrap().args;
        policy(&args).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    // People type the budget that an error proposes, so it must never be too small.
    #[test]
    fn proposed_budget_is_rounded_up() {
        for (tokens, budget) in [
            (0, 0),
            (7, 7),
            (99, 99),
            (101, 110),
            (1_307, 1_400),
            (16_000, 16_000),
        ] {
            assert_eq!(round_up(tokens), budget);
        }
    }

    // The short options change the policy and override `--policy`. Options that are not given are
    // not sent.
    #[test]
    fn options_override_the_given_policy() {
        assert_eq!(policy_of(&[]).unwrap(), "");
        assert_eq!(
            policy_of(&["--budget", "9"]).unwrap(),
            r#"{"budget_tokens":9}"#
        );
        let given = r#"{"budget_tokens": 5, "enhancers": {"knowledge": {"params": {"a": 1}}}}"#;
        let line = [
            "--policy",
            given,
            "--budget=7",
            "--tool-results=older-than=2",
            "--without=knowledge",
        ];
        assert_eq!(
            policy_of(&line).unwrap(),
            concat!(
                r#"{"budget_tokens":7,"#,
                r#""enhancers":{"knowledge":{"params":{"a":1},"enabled":false}},"#,
                r#""tool_results":{"older_than_turns":2}}"#
            )
        );
        for bad in ["[1]", "{", r#"{"enhancers": 1}"#] {
            let refused = policy_of(&["--policy", bad, "--without", "x"]);
            assert!(matches!(refused, Err(ClientError::Usage { .. })), "{bad}");
        }
        assert!(Line::try_parse_from(["context", "C", "--tool-results", "never"]).is_err());
    }
}
