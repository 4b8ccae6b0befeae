//! Converts fields and answers of the Contexts service.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    append_request,
    from_proto::{self, InvalidField},
    to_proto,
};
use treering_context::{
    EnhancerReport, ExplainedItem, Explanation, Fate, LongTermEntry, Provider, Section,
    SectionTokens, SharedPrefix, TokenBasis,
};
use treering_domain::{CompactionTrigger, Config, ContextSet, ConversationId, EventRef, Revision};
use treering_engine::{CompactOutcome, CompactionPlan, ContextChange, ContextEntry, ContextValues};
use treering_proto::pb;

/// Parses a provider; unspecified means neutral.
pub(super) fn provider(number: i32) -> Result<Provider, InvalidField> {
    if number == 0 {
        return Ok(Provider::Neutral);
    }
    Provider::of_number(number).ok_or_else(|| {
        let message = format!("{number} is not a known provider");
        InvalidField::new("provider", message)
    })
}

/// Parses a policy as text; the engine checks it together with the conversation's.
pub(super) fn policy(bytes: Bytes) -> Result<String, InvalidField> {
    if bytes.is_empty() {
        return Ok(String::new());
    }
    Ok(from_proto::json("policy", bytes)?.as_str().to_owned())
}

/// Checks a key of an active context.
pub(super) fn check_key(field: &str, key: &str) -> Result<(), InvalidField> {
    from_proto::required(field, key)?;
    from_proto::check_short(field, key)
}

/// Parses a key with its new value.
pub(super) fn context_set(index: usize, set: pb::ContextSet) -> Result<ContextSet, InvalidField> {
    let field = |name: &str| format!("set[{index}].{name}");
    check_key(&field("key"), &set.key)?;
    from_proto::check_short(&field("provider"), &set.provider)?;
    Ok(ContextSet {
        key: set.key,
        value: from_proto::json(&field("value"), set.value)?,
        provider: set.provider,
    })
}

/// Parses the long-term context of a namespace.
pub(super) fn long_term(
    context: pb::GetContextResponse,
) -> Result<Vec<LongTermEntry>, InvalidField> {
    let entries = context.entries.into_iter().enumerate();
    let entries = entries.map(|(index, entry)| {
        let field = |name: &str| format!("long_term.entries[{index}].{name}");
        check_key(&field("key"), &entry.key)?;
        let at = entry.event.unwrap_or_default();
        let conversation = at
            .conversation_id
            .parse()
            .map_err(|_| InvalidField::new(field("event.conversation_id"), "must be a UUID"))?;
        Ok(LongTermEntry {
            key: entry.key,
            value: from_proto::json(&field("value"), entry.value)?,
            at: EventRef {
                conversation,
                revision: Revision(at.revision),
            },
        })
    });
    entries.collect()
}

/// Parses model settings.
pub(super) fn config(config: pb::Config) -> Result<Config, InvalidField> {
    from_proto::check_short("config.model_id", &config.model_id)?;
    from_proto::check_short("config.mode", &config.mode)?;
    let parameters = json_values("config.parameters", config.parameters)?;
    Ok(Config {
        model_id: config.model_id,
        mode: config.mode,
        parameters,
    })
}

/// Parses policies by name.
pub(super) fn policies(
    policies: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, InvalidField> {
    json_values("policies", policies)
}

fn json_values(
    field: &str,
    values: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, InvalidField> {
    for (name, value) in &values {
        let field = format!("{field}[{name}]");
        from_proto::check_short(&field, name)?;
        from_proto::json(&field, Bytes::copy_from_slice(value.as_bytes()))?;
    }
    Ok(values)
}

/// Parses the id of a new child; empty means none.
pub(super) fn child_id(text: &str) -> Result<Option<ConversationId>, InvalidField> {
    if text.is_empty() {
        return Ok(None);
    }
    let message = "must be a UUID, or empty";
    let id = text
        .parse()
        .map_err(|_| InvalidField::new("child_id", message))?;
    append_request::chosen("child_id", id).map(Some)
}

pub(super) fn context_change(change: ContextChange) -> pb::WatchContextResponse {
    use pb::watch_context_response::Item;
    let item = match change {
        ContextChange::Set(entry) => Item::Entry(context_entry(entry)),
        ContextChange::Removed { key, .. } => Item::RemovedKey(key),
        ContextChange::CaughtUp(revision) => Item::CaughtUp(pb::CaughtUpContext {
            revision: revision.0,
        }),
    };
    pb::WatchContextResponse { item: Some(item) }
}

/// Converts values of an active context.
pub(super) fn context_values(values: ContextValues) -> pb::GetContextResponse {
    pb::GetContextResponse {
        entries: values.entries.into_iter().map(context_entry).collect(),
        left_out: values.left_out,
        revision: values.revision.0,
    }
}

fn context_entry(entry: ContextEntry) -> pb::ContextEntry {
    pb::ContextEntry {
        key: entry.key,
        value: entry.value.as_bytes().clone(),
        provider: entry.provider,
        event: Some(to_proto::event_ref(entry.at)),
    }
}

/// Parses the trigger of a compaction; unspecified means manual.
pub(super) fn trigger(number: i32) -> Result<CompactionTrigger, InvalidField> {
    let known = pb::CompactionTrigger::try_from(number).map_err(|_| {
        let message = format!("{number} is not a known trigger");
        InvalidField::new("trigger", message)
    })?;
    Ok(match known {
        pb::CompactionTrigger::Unspecified | pb::CompactionTrigger::Manual => {
            CompactionTrigger::Manual
        }
        pb::CompactionTrigger::Threshold => CompactionTrigger::Threshold,
        pb::CompactionTrigger::Imported => CompactionTrigger::Imported,
    })
}

pub(super) fn compaction_plan(plan: CompactionPlan) -> pb::CompactionPlan {
    pb::CompactionPlan {
        conversation_id: plan.conversation.to_string(),
        branch: plan.branch.to_string(),
        head_revision: plan.head.0,
        cut_revision: plan.cut.map_or(0, |cut| cut.0),
        kept_turns: plan.kept_turns,
        summarised_turns: plan.summarised_turns,
        summarised_events: plan.summarised_events,
        tokens_before: plan.tokens_before,
        tokens_kept: plan.tokens_kept,
        due: plan.due,
        threshold_tokens: plan.threshold_tokens,
        instruction: plan.instruction,
        material: plan.material,
        extract: plan.extract,
        reason: plan.reason,
    }
}

pub(super) fn compacted(outcome: CompactOutcome) -> pb::CompactResponse {
    pb::CompactResponse {
        event: Some(to_proto::appended(&outcome.event)),
        repeated_key: outcome.repeated_key,
        cut_revision: outcome.cut.0,
        tokens_before: outcome.tokens_before,
        tokens_after: outcome.tokens_after,
        warnings: outcome.warnings,
    }
}

pub(super) fn explanation(told: Explanation) -> pb::Explanation {
    pb::Explanation {
        conversation_id: told.conversation.to_string(),
        branch: told.branch.to_string(),
        revision: told.revision.0,
        provider: told.provider.number(),
        model: told.model,
        basis: Some(basis(&told.basis)),
        tokens: told.tokens,
        budget_tokens: told.budget_tokens,
        over_budget: told.over_budget,
        compaction_due: told.compaction_due,
        tokens_before_budget: told.tokens_before_budget,
        sections: told.sections.iter().map(section_tokens).collect(),
        items: told.items.into_iter().map(item).collect(),
        enhancers: told.enhancers.into_iter().map(enhancer).collect(),
        shared_prefix: told.shared_prefix.as_ref().map(shared_prefix),
        warnings: told.warnings,
        guidance_missing: told.guidance_missing,
    }
}

fn basis(basis: &TokenBasis) -> pb::TokenBasis {
    pb::TokenBasis {
        encoding: basis.encoding.to_owned(),
        estimate: basis.estimate,
        factor: basis.factor,
        offset: basis.offset,
        calibrated_on: basis.calibrated_on,
    }
}

fn section_tokens(line: &SectionTokens) -> pb::SectionTokens {
    pb::SectionTokens {
        section: section(line.section).into(),
        tokens: line.tokens,
        dropped_tokens: line.dropped_tokens,
        items: line.items,
    }
}

fn section(section: Section) -> pb::Section {
    match section {
        Section::System => pb::Section::System,
        Section::Tools => pb::Section::Tools,
        Section::Compaction => pb::Section::Compaction,
        Section::Messages => pb::Section::Messages,
        Section::ToolResults => pb::Section::ToolResults,
        Section::OpenTurn => pb::Section::OpenTurn,
        Section::Guidance => pb::Section::Guidance,
        Section::DialogueSummary => pb::Section::DialogueSummary,
        Section::Knowledge => pb::Section::Knowledge,
        Section::ActiveContext => pb::Section::ActiveContext,
        Section::LongTermContext => pb::Section::LongTermContext,
        Section::Other => pb::Section::Other,
    }
}

fn item(item: ExplainedItem) -> pb::ExplainedItem {
    let fate = match item.fate {
        Fate::Kept => pb::Fate::Kept,
        Fate::Shortened => pb::Fate::Shortened,
        Fate::Dropped => pb::Fate::Dropped,
    };
    pb::ExplainedItem {
        section: section(item.section).into(),
        events: item.events.into_iter().map(to_proto::event_ref).collect(),
        enhancer: item.enhancer.into_owned(),
        label: item.label,
        head: item.head,
        tokens: item.tokens,
        whole_tokens: item.whole_tokens,
        fate: fate.into(),
        reason: item.reason.into_owned(),
        is_volatile: item.is_volatile,
        turn: item.turn,
    }
}

fn enhancer(report: EnhancerReport) -> pb::EnhancerReport {
    pb::EnhancerReport {
        name: report.name,
        enabled: report.enabled,
        did: report.did,
        items: report.items,
    }
}

fn shared_prefix(shared: &SharedPrefix) -> pb::SharedPrefix {
    pb::SharedPrefix {
        bytes: shared.bytes,
        tokens: shared.tokens,
        previous_bytes: shared.previous_bytes,
        previous_tokens: shared.previous_tokens,
        previous_revision: shared.previous_revision.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The provider table and the protocol must use the same numbers, or a request is built for the
    /// wrong provider.
    #[test]
    fn provider_numbers_equal_the_protocol() {
        for told in Provider::ALL {
            let on_wire = pb::Provider::try_from(told.number()).unwrap();
            let name = told.as_str().replace('-', "_").to_uppercase();
            assert_eq!(on_wire.as_str_name(), format!("PROVIDER_{name}"));
            assert_eq!(provider(told.number()).ok(), Some(told));
        }
        let most = Provider::ALL
            .map(Provider::number)
            .into_iter()
            .max()
            .unwrap();
        assert!(pb::Provider::try_from(most + 1).is_err());
        assert!(provider(most + 1).is_err());
        assert_eq!(provider(0).ok(), Some(Provider::Neutral));
    }
}
