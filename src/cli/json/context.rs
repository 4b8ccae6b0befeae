//! Requests and their explanations, compactions, active context, sub-contexts.

use super::{Array, Object, answers::reference};
use crate::cli::pb;

/// A section's name in snake case.
#[must_use]
pub fn section_name(section: pb::Section) -> String {
    snake(section.as_str_name(), "SECTION_")
}

fn snake(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_ascii_lowercase()
}

/// A share in whole percent; `<1%` for what is there and does not make one.
#[must_use]
pub fn token_share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return String::new();
    }
    let percent = u128::from(part) * 100 / u128::from(whole);
    match (percent, part) {
        (0, 1..) => "<1%".to_owned(),
        (percent, _) => format!("{percent}%"),
    }
}

/// `{"request": …, "explanation": …}`. The request is the body as it was built.
#[must_use]
pub fn built(answer: &pb::BuildResponse) -> String {
    let mut object = Object::new();
    object.bytes("request", &answer.request);
    if let Some(told) = &answer.explanation {
        object.raw("explanation", &explanation(told));
    }
    object.finish()
}

fn explanation(told: &pb::Explanation) -> String {
    let mut object = Object::new();
    object
        .string("conversation", &told.conversation_id)
        .string("branch", &told.branch)
        .number("revision", told.revision)
        .string("provider", crate::cli::text::provider_name(told.provider()))
        .string("model", &told.model)
        .number("tokens", told.tokens)
        .number("budget_tokens", told.budget_tokens)
        .boolean("over_budget", told.over_budget)
        .boolean("compaction_due", told.compaction_due)
        .number("tokens_before_budget", told.tokens_before_budget);
    if let Some(basis) = &told.basis {
        object.raw("basis", &token_basis(basis));
    }
    object
        .raw("sections", &Array::of(&told.sections, section))
        .raw("items", &Array::of(&told.items, item))
        .raw("enhancers", &Array::of(&told.enhancers, enhancer));
    match &told.shared_prefix {
        Some(shared) => object.raw("shared_prefix", &shared_prefix(shared)),
        None => object.raw("shared_prefix", "null"),
    };
    object
        .raw("warnings", &Array::of_strings(&told.warnings))
        .raw(
            "guidance_missing",
            &Array::of_strings(&told.guidance_missing),
        );
    object.finish()
}

fn token_basis(basis: &pb::TokenBasis) -> String {
    let mut object = Object::new();
    object
        .string("encoding", &basis.encoding)
        .boolean("estimate", basis.estimate)
        .float("factor", basis.factor)
        .raw("offset", &basis.offset.to_string())
        .number("calibrated_on", u64::from(basis.calibrated_on));
    object.finish()
}

fn section(line: &pb::SectionTokens) -> String {
    let mut object = Object::new();
    object
        .string("section", &section_name(line.section()))
        .number("tokens", line.tokens)
        .number("dropped_tokens", line.dropped_tokens)
        .number("items", u64::from(line.items));
    object.finish()
}

fn item(item: &pb::ExplainedItem) -> String {
    let events = Array::of(&item.events, |event| reference(Some(event)));
    let mut object = Object::new();
    object
        .string("section", &section_name(item.section()))
        .string("label", &item.label)
        .number("turn", u64::from(item.turn))
        .raw("events", &events)
        .string("fate", &snake(item.fate().as_str_name(), "FATE_"))
        .number("tokens", item.tokens)
        .number("whole_tokens", item.whole_tokens)
        .string_if("reason", &item.reason)
        .string("enhancer", &item.enhancer)
        .boolean("volatile", item.is_volatile)
        .string("head", &item.head);
    object.finish()
}

fn enhancer(report: &pb::EnhancerReport) -> String {
    let mut object = Object::new();
    object
        .string("name", &report.name)
        .boolean("enabled", report.enabled)
        .number("items", u64::from(report.items))
        .string("did", &report.did);
    object.finish()
}

fn shared_prefix(shared: &pb::SharedPrefix) -> String {
    let mut object = Object::new();
    object
        .number("bytes", shared.bytes)
        .number("tokens", shared.tokens)
        .number("previous_bytes", shared.previous_bytes)
        .number("previous_tokens", shared.previous_tokens)
        .number("previous_revision", shared.previous_revision);
    object.finish()
}

/// Where a compaction would cut.
#[must_use]
pub fn compaction_plan(plan: &pb::CompactionPlan) -> String {
    let mut object = Object::new();
    object
        .string("conversation", &plan.conversation_id)
        .string("branch", &plan.branch)
        .number("head_revision", plan.head_revision)
        .number("cut_revision", plan.cut_revision)
        .number("kept_turns", u64::from(plan.kept_turns))
        .number("summarised_turns", u64::from(plan.summarised_turns))
        .number("summarised_events", u64::from(plan.summarised_events))
        .number("tokens_before", plan.tokens_before)
        .number("tokens_kept", plan.tokens_kept)
        .boolean("due", plan.due)
        .number("threshold_tokens", plan.threshold_tokens)
        .string_if("reason", &plan.reason)
        .string("instruction", &plan.instruction)
        .string("material", &plan.material)
        .string("extract", &plan.extract);
    object.finish()
}

/// A compaction that was appended.
#[must_use]
pub fn compacted(answer: &pb::CompactResponse) -> String {
    let mut object = Object::new();
    if let Some(event) = &answer.event {
        object
            .string("conversation", &event.conversation_id)
            .number("revision", event.revision);
    }
    object
        .number("cut_revision", answer.cut_revision)
        .number("tokens_before", answer.tokens_before)
        .number("tokens_after", answer.tokens_after)
        .boolean("repeated_key", answer.repeated_key)
        .raw("warnings", &Array::of_strings(&answer.warnings));
    object.finish()
}

/// What was appended: one entry an event.
#[must_use]
pub fn appended(
    events: &[pb::Appended],
    repeated_key: bool,
    warnings: &[String],
    mut object: Object,
) -> String {
    let events = Array::of(events, |event| {
        let mut object = Object::new();
        object
            .string("conversation", &event.conversation_id)
            .number("branch_id", event.branch_id)
            .number("revision", event.revision)
            .string("event", &event.event_id);
        object.finish()
    });
    object
        .raw("events", &events)
        .boolean("repeated_key", repeated_key)
        .raw("warnings", &Array::of_strings(warnings));
    object.finish()
}

/// A change of an active context.
#[must_use]
pub fn context_change(change: &pb::WatchContextResponse) -> String {
    use pb::watch_context_response::Item;
    let mut object = Object::new();
    match &change.item {
        Some(Item::Entry(entry)) => {
            object
                .string("key", &entry.key)
                .bytes("value", &entry.value)
                .string_if("provider", &entry.provider)
                .raw("event", &reference(entry.event.as_ref()));
        }
        Some(Item::RemovedKey(key)) => {
            object.string("removed", key);
        }
        Some(Item::CaughtUp(caught_up)) => {
            object.number("caught_up", caught_up.revision);
        }
        None => {}
    }
    object.finish()
}
