//! Measures what a budget does to requests. Real conversations are replayed; before each answer of
//! the model its request is built at several budgets. The rows report how much of the budget the
//! request uses, and how much of the request is a prefix of the previous one, which a provider's
//! prompt cache can serve. The provider checker reads every body.
//! what a provider's prompt cache can serve. Every body is read by the checker.

use std::collections::HashMap;

use super::{
    Setup, failed,
    row::{Row, Target, Unit},
    stores,
    turns::{answers, source_files, spread},
};
use treering::{
    context::{Explanation, Provider, Section},
    domain::{BranchName, Limits, Namespace},
    engine::{BranchAddress, BuildQuery, BuiltRequest, Engine},
    import::ImportedConversation,
};
use treering_client::error::ClientError;
use treering_provider_check as provider_check;

/// Budgets, in tokens.
const BUDGETS: [u64; 4] = [4_000, 8_000, 16_000, 64_000];
/// Providers that bodies are built for.
const PROVIDERS: [Provider; 4] = [
    Provider::Anthropic,
    Provider::OpenAiChat,
    Provider::OpenAiResponses,
    Provider::Gemini,
];
/// Conversations that are taken from each file, spread evenly.
const CONVERSATIONS: usize = 40;
const QUICK_CONVERSATIONS: usize = 6;
/// Requests of one conversation that are built for each budget.
const REQUESTS_MAX: usize = 200;
/// One in this many requests is built for every provider; the others only for the first one.
const EVERY_PROVIDER: usize = 8;
/// A request uses its budget well if it uses at least this share.
const WELL: f64 = 0.7;
/// A request uses far too little of its budget below this share.
const CLIFF: f64 = 0.25;

const IDS: [&str; 4] = ["budget.4k", "budget.8k", "budget.16k", "budget.64k"];

/// Counts at one budget.
#[derive(Clone, Debug, Default)]
struct Sum {
    requests: u64,
    /// Requests with enough content, before the budget applies, to use the budget well.
    enough: u64,
    well: u64,
    cliff: u64,
    /// Requests above the budget, although the instructions and the last message of the user fit.
    over: u64,
    /// Requests above the budget because these alone do not fit.
    over_alone: u64,
    /// Requests that the checker refused.
    illegal: u64,
    /// Bytes of bodies that have a predecessor, and the bytes of their common prefix with it.
    later_bytes: u64,
    shared_bytes: u64,
    shares: Vec<f64>,
}

/// Measures the rows of this group. Returns none if there are no real conversations.
///
/// # Errors
/// When a conversation cannot be replayed.
pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    let files = source_files(setup);
    if files.is_empty() {
        setup.left_out("budget", "real conversations");
        return Ok(Vec::new());
    }
    let take = setup.or_quick(CONVERSATIONS, QUICK_CONVERSATIONS);
    let mut sums = vec![Sum::default(); BUDGETS.len()];
    let mut conversations = 0;
    for file in &files {
        for conversation in spread(file, take)? {
            conversations += 1;
            setup.doing("budget");
            live(&conversation, &mut sums).await?;
        }
    }
    Ok(rows(&mut sums, conversations))
}

/// The last body for each branch and budget.
type LastBodies = HashMap<(Option<BranchName>, usize), Vec<u8>>;

async fn live(conversation: &ImportedConversation, sums: &mut [Sum]) -> Result<(), ClientError> {
    let engine = Engine::in_memory(Limits::default())
        .await
        .map_err(|error| failed("opening a store in memory", error))?;
    let mut last = LastBodies::new();
    let all = conversation.events.iter().filter(|event| answers(event));
    // Takes the last requests, since the windows are largest there.
    let passed_over = all.count().saturating_sub(REQUESTS_MAX);
    let mut requests = 0;
    for event in &conversation.events {
        if answers(event) {
            requests += 1;
            if requests > passed_over {
                let providers = match (requests - passed_over).is_multiple_of(EVERY_PROVIDER) {
                    true => &PROVIDERS[..],
                    false => &PROVIDERS[..1],
                };
                let at = (conversation, event.branch.as_ref());
                build(&engine, at, providers, &mut last, sums).await?;
            }
        }
        stores::append(&engine, vec![event.clone()]).await?;
    }
    if let Some(event) = conversation.events.last() {
        let at = (conversation, event.branch.as_ref());
        build(&engine, at, &PROVIDERS, &mut last, sums).await?;
    }
    engine.close().await;
    Ok(())
}

async fn build(
    engine: &Engine,
    (conversation, branch): (&ImportedConversation, Option<&BranchName>),
    providers: &[Provider],
    last: &mut LastBodies,
    sums: &mut [Sum],
) -> Result<(), ClientError> {
    for (place, budget) in BUDGETS.into_iter().enumerate() {
        for provider in providers {
            let id = conversation.conversation;
            let query = BuildQuery {
                policy: format!(r#"{{"budget_tokens":{budget}}}"#),
                ..BuildQuery::new(
                    BranchAddress {
                        namespace: Namespace::default(),
                        conversation: id,
                        branch: branch.cloned(),
                    },
                    *provider,
                )
            };
            let built = engine
                .build(query)
                .await
                .map_err(|error| failed("building a request", error))?;
            let sum = &mut sums[place];
            sum.count(&built, budget);
            let broken = provider_check::check(provider.as_str(), &built.request);
            sum.illegal += u64::from(!broken.is_empty());
            if *provider == PROVIDERS[0] {
                let body = without_breakpoints(&built.request);
                let before = last.insert((branch.cloned(), place), body.clone());
                if let Some(before) = before {
                    sum.later_bytes += body.len() as u64;
                    sum.shared_bytes += common(&before, &body);
                }
            }
        }
    }
    Ok(())
}

/// Returns the body as a cache compares it, without cache breakpoints.
fn without_breakpoints(body: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(body);
    let text = text.replace(r#","cache_control":{"type":"ephemeral"}"#, "");
    text.into_bytes()
}

fn common(before: &[u8], now: &[u8]) -> u64 {
    let equal = before.iter().zip(now).take_while(|(then, now)| then == now);
    equal.count() as u64
}

impl Sum {
    #[allow(clippy::cast_precision_loss)]
    fn count(&mut self, built: &BuiltRequest, budget: u64) {
        let told = &built.explanation;
        self.requests += 1;
        let share = told.tokens as f64 / budget as f64;
        if told.tokens > budget {
            match stays(told) > budget {
                true => self.over_alone += 1,
                false => self.over += 1,
            }
            return;
        }
        if told.tokens_before_budget as f64 >= WELL * budget as f64 {
            self.enough += 1;
            self.well += u64::from(share >= WELL);
            self.cliff += u64::from(share < CLIFF);
            self.shares.push(share);
        }
    }
}

/// Tokens of the parts that are never dropped: the instructions, the tools, and the last message of
/// the user.
fn stays(told: &Explanation) -> u64 {
    let of_user = |item: &&treering::context::ExplainedItem| {
        item.label.starts_with("user")
            // A late result is sent as a message of the user.
            && !item.head.starts_with("[LATE RESULT]")
            && !item.head.starts_with("[TOOL RESULT]")
            && matches!(item.section, Section::Messages | Section::OpenTurn)
    };
    let last = told.items.iter().rev().find(of_user);
    let last = last.map_or(0, |item| item.whole_tokens);
    let fixed = told
        .sections
        .iter()
        .filter(|line| matches!(line.section, Section::System | Section::Tools));
    last + fixed.map(|line| line.tokens).sum::<u64>()
}

#[allow(clippy::cast_precision_loss)]
fn rows(sums: &mut [Sum], conversations: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for (sum, (id, budget)) in sums.iter_mut().zip(IDS.into_iter().zip(BUDGETS)) {
        sum.shares.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = (sum.shares.len() as f64 * share) as usize;
            sum.shares.get(place).copied().unwrap_or_default() * 100.0
        };
        let row = Row::new(
            id,
            format!("requests that use {:.0} % of {budget} tokens", WELL * 100.0),
            sum.well as f64 / sum.enough.max(1) as f64,
            Unit::Plain,
        );
        rows.push(row.aim(Target::AtLeast(1.0)).note(format!(
            "of {} with enough to fill it; minimum use {:.0} %, first percentile {:.0} %, \
             median {:.0} %; {} use less than {:.0} %; {} are above it, and {} more because the \
             instructions and the last message of the user are; {} are refused by the checker; \
             the request before it is the front of {:.1} % of what is sent; {} requests of \
             {conversations} real conversations",
            sum.enough,
            at(0.0),
            at(0.01),
            at(0.5),
            sum.cliff,
            CLIFF * 100.0,
            sum.over,
            sum.over_alone,
            sum.illegal,
            100.0 * sum.shared_bytes as f64 / sum.later_bytes.max(1) as f64,
            sum.requests,
        )));
    }
    rows
}
