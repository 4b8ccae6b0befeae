//! Context: active values, discoveries, summaries, compactions, annotations,
//! and events of frameworks.

use super::{
    fault::{
        BodyProblem, Checked, FieldFault, chosen, distinct, each, json, name, optional_revision,
        short, unspecified,
    },
    message,
};
use crate::{
    codec::pb,
    domain::{
        AnnotationAdded, Compacted, CompactionTrigger, ContextSet, Custom, Entity, EventBody,
        Guidance, Revision, SummaryRecorded,
    },
};

pub(super) fn set(set: pb::ContextSet) -> Checked<ContextSet> {
    Ok(ContextSet {
        key: name("key", set.key)?,
        value: json("value", set.value)?,
        provider: short("provider", set.provider)?,
    })
}

pub(super) fn removed(removed: pb::ContextRemoved) -> Checked<EventBody> {
    let key = name("key", removed.key)?;
    Ok(EventBody::ContextRemoved { key })
}

pub(super) fn discovered(discovered: pb::ToolsDiscovered) -> Checked<EventBody> {
    let in_list = |text| name("", text);
    let names = each("names", discovered.names, in_list)?;
    distinct("names", &names, Clone::clone)?;
    Ok(EventBody::ToolsDiscovered { names })
}

pub(super) fn guidance(given: pb::GuidanceGiven) -> Checked<EventBody> {
    let guidance = each("guidance", given.guidance, |item| {
        let tool = name("tool", item.tool)?;
        let text = item.text;
        Ok(Guidance { tool, text })
    })?;
    Ok(EventBody::GuidanceGiven { guidance })
}

pub(super) fn entities(noted: pb::EntitiesNoted) -> Checked<EventBody> {
    let entities = each("entities", noted.entities, |entity| {
        Ok(Entity {
            id: name("id", entity.id)?,
            kind: short("kind", entity.kind)?,
            name: short("name", entity.name)?,
        })
    })?;
    distinct("entities", &entities, |entity| {
        (entity.id.clone(), entity.kind.clone())
    })?;
    Ok(EventBody::EntitiesNoted { entities })
}

pub(super) fn summary(summary: pb::SummaryRecorded) -> SummaryRecorded {
    SummaryRecorded {
        content: summary.content,
        from_revision: Revision(summary.from_revision),
        to_revision: Revision(summary.to_revision),
    }
}

pub(super) fn compacted(compacted: pb::Compacted) -> Checked<Compacted> {
    Ok(Compacted {
        summary: compacted.summary,
        cut_revision: Revision(compacted.cut_revision),
        kept_turns: compacted.kept_turns,
        tokens_before: compacted.tokens_before,
        tokens_after: compacted.tokens_after,
        trigger: match chosen("trigger", compacted.trigger)? {
            pb::CompactionTrigger::Unspecified => return unspecified("trigger"),
            pb::CompactionTrigger::Threshold => CompactionTrigger::Threshold,
            pb::CompactionTrigger::Manual => CompactionTrigger::Manual,
            pb::CompactionTrigger::Imported => CompactionTrigger::Imported,
        },
        raw: message::raw(compacted.raw)?,
    })
}

pub(super) fn compacted_pb(compacted: &Compacted) -> pb::Compacted {
    let trigger = match compacted.trigger {
        CompactionTrigger::Threshold => pb::CompactionTrigger::Threshold,
        CompactionTrigger::Manual => pb::CompactionTrigger::Manual,
        CompactionTrigger::Imported => pb::CompactionTrigger::Imported,
    };
    pb::Compacted {
        summary: compacted.summary.clone(),
        cut_revision: compacted.cut_revision.0,
        kept_turns: compacted.kept_turns,
        tokens_before: compacted.tokens_before,
        tokens_after: compacted.tokens_after,
        trigger: trigger.into(),
        raw: compacted.raw.as_ref().map(message::raw_pb),
    }
}

pub(super) fn annotation(added: pb::AnnotationAdded) -> Checked<AnnotationAdded> {
    if added.score.is_some_and(|score| !score.is_finite()) {
        return Err(FieldFault::at("score", BodyProblem::NotFinite));
    }
    Ok(AnnotationAdded {
        target: optional_revision(added.target_revision),
        whole_turn: added.whole_turn,
        score: added.score,
        label: short("label", added.label)?,
        comment: added.comment,
    })
}

pub(super) fn custom(custom: pb::Custom) -> Checked<Custom> {
    Ok(Custom {
        type_name: name("type_name", custom.type_name)?,
        content_type: short("content_type", custom.content_type)?,
        data: custom.data,
    })
}

pub(super) fn set_pb(set: &ContextSet) -> pb::ContextSet {
    pb::ContextSet {
        key: set.key.clone(),
        value: set.value.as_bytes().clone(),
        provider: set.provider.clone(),
    }
}

pub(super) fn guidance_pb(guidance: &[Guidance]) -> pb::GuidanceGiven {
    let guidance = guidance.iter().map(|item| pb::Guidance {
        tool: item.tool.clone(),
        text: item.text.clone(),
    });
    pb::GuidanceGiven {
        guidance: guidance.collect(),
    }
}

pub(super) fn entities_pb(entities: &[Entity]) -> pb::EntitiesNoted {
    let entities = entities.iter().map(|entity| pb::Entity {
        id: entity.id.clone(),
        kind: entity.kind.clone(),
        name: entity.name.clone(),
    });
    pb::EntitiesNoted {
        entities: entities.collect(),
    }
}

pub(super) fn summary_pb(summary: &SummaryRecorded) -> pb::SummaryRecorded {
    pb::SummaryRecorded {
        content: summary.content.clone(),
        from_revision: summary.from_revision.0,
        to_revision: summary.to_revision.0,
    }
}

pub(super) fn annotation_pb(added: &AnnotationAdded) -> pb::AnnotationAdded {
    pb::AnnotationAdded {
        target_revision: added.target.map_or(0, |revision| revision.0),
        whole_turn: added.whole_turn,
        score: added.score,
        label: added.label.clone(),
        comment: added.comment.clone(),
    }
}

pub(super) fn custom_pb(custom: &Custom) -> pb::Custom {
    pb::Custom {
        type_name: custom.type_name.clone(),
        content_type: custom.content_type.clone(),
        data: custom.data.clone(),
    }
}
