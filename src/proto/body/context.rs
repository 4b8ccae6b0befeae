//! Context events: active context, discoveries, summaries, compactions, annotations,
//! and custom events.

use super::{
    fault::{
        BodyProblem, Checked, FieldFault, chosen, distinct, each, event_key, json, name,
        optional_revision, short, unspecified,
    },
    message,
};
use crate::pb;
use treering_domain::{
    AnnotationAdded, Compacted, CompactionTrigger, ContextSet, Custom, Entity, EventBody, Guidance,
    Revision, SummaryRecorded,
};

impl pb::ContextSet {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        Ok(EventBody::ContextSet(ContextSet {
            key: name("key", self.key)?,
            value: json("value", self.value)?,
            provider: short("provider", self.provider)?,
        }))
    }

    pub(super) fn of(set: &ContextSet) -> Self {
        Self {
            key: set.key.clone(),
            value: set.value.as_bytes().clone(),
            provider: set.provider.clone(),
        }
    }
}

impl pb::ContextRemoved {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        let key = name("key", self.key)?;
        Ok(EventBody::ContextRemoved { key })
    }

    pub(super) fn of(key: &str) -> Self {
        let key = key.to_owned();
        Self { key }
    }
}

impl pb::ToolsDiscovered {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        let in_list = |text| name("", text);
        let names = each("names", self.names, in_list)?;
        distinct("names", &names, Clone::clone)?;
        Ok(EventBody::ToolsDiscovered { names })
    }

    pub(super) fn of(names: &[String]) -> Self {
        let names = names.to_vec();
        Self { names }
    }
}

impl pb::GuidanceGiven {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        let guidance = each("guidance", self.guidance, |item| {
            let tool = name("tool", item.tool)?;
            let text = item.text;
            Ok(Guidance { tool, text })
        })?;
        Ok(EventBody::GuidanceGiven { guidance })
    }

    pub(super) fn of(guidance: &[Guidance]) -> Self {
        let guidance = guidance.iter().map(|item| pb::Guidance {
            tool: item.tool.clone(),
            text: item.text.clone(),
        });
        Self {
            guidance: guidance.collect(),
        }
    }
}

impl pb::EntitiesNoted {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        let entities = each("entities", self.entities, |entity| {
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

    pub(super) fn of(entities: &[Entity]) -> Self {
        let entities = entities.iter().map(|entity| pb::Entity {
            id: entity.id.clone(),
            kind: entity.kind.clone(),
            name: entity.name.clone(),
        });
        Self {
            entities: entities.collect(),
        }
    }
}

impl pb::SummaryRecorded {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        Ok(EventBody::SummaryRecorded(SummaryRecorded {
            content: self.content,
            from_revision: Revision(self.from_revision),
            to_revision: Revision(self.to_revision),
        }))
    }

    pub(super) fn of(summary: &SummaryRecorded) -> Self {
        Self {
            content: summary.content.clone(),
            from_revision: summary.from_revision.0,
            to_revision: summary.to_revision.0,
        }
    }
}

impl pb::Compacted {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        Ok(EventBody::Compacted(Compacted {
            summary: self.summary,
            cut_revision: Revision(self.cut_revision),
            kept_turns: self.kept_turns,
            tokens_before: self.tokens_before,
            tokens_after: self.tokens_after,
            trigger: match chosen("trigger", self.trigger)? {
                pb::CompactionTrigger::Unspecified => return unspecified("trigger"),
                pb::CompactionTrigger::Threshold => CompactionTrigger::Threshold,
                pb::CompactionTrigger::Manual => CompactionTrigger::Manual,
                pb::CompactionTrigger::Imported => CompactionTrigger::Imported,
            },
            raw: message::raw(self.raw)?,
        }))
    }

    pub(super) fn of(compacted: &Compacted) -> Self {
        let trigger = match compacted.trigger {
            CompactionTrigger::Threshold => pb::CompactionTrigger::Threshold,
            CompactionTrigger::Manual => pb::CompactionTrigger::Manual,
            CompactionTrigger::Imported => pb::CompactionTrigger::Imported,
        };
        Self {
            summary: compacted.summary.clone(),
            cut_revision: compacted.cut_revision.0,
            kept_turns: compacted.kept_turns,
            tokens_before: compacted.tokens_before,
            tokens_after: compacted.tokens_after,
            trigger: trigger.into(),
            raw: compacted.raw.as_ref().map(message::raw_pb),
        }
    }
}

impl pb::AnnotationAdded {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        if self.score.is_some_and(|score| !score.is_finite()) {
            return Err(FieldFault::at("score", BodyProblem::NotFinite));
        }
        Ok(EventBody::AnnotationAdded(AnnotationAdded {
            target: optional_revision(self.target_revision),
            whole_turn: self.whole_turn,
            score: self.score,
            label: short("label", self.label)?,
            comment: self.comment,
        }))
    }

    pub(super) fn of(added: &AnnotationAdded) -> Self {
        Self {
            target_revision: added.target.map_or(0, |revision| revision.0),
            whole_turn: added.whole_turn,
            score: added.score,
            label: added.label.clone(),
            comment: added.comment.clone(),
        }
    }
}

impl pb::Custom {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        Ok(EventBody::Custom(Custom {
            type_name: name("type_name", self.type_name)?,
            content_type: short("content_type", self.content_type)?,
            data: self.data,
            text: self.text,
            delta_of: event_key("delta_of", self.delta_of)?,
        }))
    }

    pub(super) fn of(custom: &Custom) -> Self {
        Self {
            type_name: custom.type_name.clone(),
            content_type: custom.content_type.clone(),
            data: custom.data.clone(),
            text: custom.text.clone(),
            delta_of: custom.delta_of.clone(),
        }
    }
}
