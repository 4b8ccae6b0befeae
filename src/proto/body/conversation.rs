//! Conversations, their branches and sub-contexts.

use bytes::Bytes;

use super::fault::{
    BodyProblem, Checked, FieldFault, branch_name, conversation, distinct, hash, keyed, keyed_json,
    optional_json, short,
};
use crate::pb;
use treering_domain::{
    BranchForked, BranchId, BranchName, Config, ContentHash, ConversationChanged,
    ConversationCreated, EventBody, ParentRef, PromptSet, PublicKey, Revision, SubContextReturned,
    SubContextSpawned,
};

fn config(config: pb::Config) -> Checked<Config> {
    Ok(Config {
        model_id: short("model_id", config.model_id)?,
        mode: short("mode", config.mode)?,
        parameters: keyed_json("parameters", config.parameters)?,
    })
}

fn config_pb(config: &Config) -> pb::Config {
    pb::Config {
        model_id: config.model_id.clone(),
        mode: config.mode.clone(),
        parameters: config.parameters.clone().into_iter().collect(),
    }
}

fn parent(parent: pb::ParentRef) -> Checked<ParentRef> {
    Ok(ParentRef {
        conversation: conversation("conversation_id", &parent.conversation_id)?,
        branch: BranchId(parent.branch_id),
        revision: Revision(parent.revision),
        call_id: short("call_id", parent.call_id)?,
    })
}

fn parent_pb(parent: &ParentRef) -> pb::ParentRef {
    pb::ParentRef {
        conversation_id: parent.conversation.to_string(),
        branch_id: parent.branch.0,
        revision: parent.revision.0,
        call_id: parent.call_id.clone(),
    }
}

impl pb::ConversationCreated {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        let config = config(self.config.unwrap_or_default());
        let parent = self.parent.map(parent).transpose();
        let parent = parent.map_err(|fault| fault.within("parent"))?;
        if self.shares_history && parent.is_none() {
            return Err(FieldFault::at("parent", BodyProblem::Missing));
        }
        Ok(EventBody::ConversationCreated(ConversationCreated {
            title: short("title", self.title)?,
            config: config.map_err(|fault| fault.within("config"))?,
            labels: keyed("labels", self.labels)?,
            parent,
            shares_history: self.shares_history,
            policies: keyed_json("policies", self.policies)?,
            source: short("source", self.source)?,
            source_id: short("source_id", self.source_id)?,
            source_meta: optional_json("source_meta", self.source_meta)?,
            metadata: keyed_json("metadata", self.metadata)?,
        }))
    }

    pub(super) fn of(created: &ConversationCreated) -> Self {
        let config = &created.config;
        Self {
            title: created.title.clone(),
            config: (*config != Config::default()).then(|| config_pb(config)),
            labels: created.labels.clone().into_iter().collect(),
            parent: created.parent.as_ref().map(parent_pb),
            shares_history: created.shares_history,
            policies: created.policies.clone().into_iter().collect(),
            source: created.source.clone(),
            source_id: created.source_id.clone(),
            source_meta: created.source_meta.as_bytes().clone(),
            metadata: created.metadata.clone().into_iter().collect(),
        }
    }
}

impl pb::ConversationChanged {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        let names = |field: &str, names: Vec<String>| -> Checked<Vec<String>> {
            names.into_iter().map(|name| short(field, name)).collect()
        };
        let title = self.title.map(|title| short("title", title)).transpose()?;
        Ok(EventBody::ConversationChanged(ConversationChanged {
            title,
            set_labels: keyed("set_labels", self.set_labels)?,
            remove_labels: names("remove_labels", self.remove_labels)?,
            set_metadata: keyed_json("set_metadata", self.set_metadata)?,
            remove_metadata: names("remove_metadata", self.remove_metadata)?,
        }))
    }

    pub(super) fn of(changed: &ConversationChanged) -> Self {
        Self {
            title: changed.title.clone(),
            set_labels: changed.set_labels.clone().into_iter().collect(),
            remove_labels: changed.remove_labels.clone(),
            set_metadata: changed.set_metadata.clone().into_iter().collect(),
            remove_metadata: changed.remove_metadata.clone(),
        }
    }
}

impl pb::ConfigChanged {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        let Some(new) = self.config else {
            return Err(FieldFault::at("config", BodyProblem::Missing));
        };
        let new = config(new).map_err(|fault| fault.within("config"))?;
        Ok(EventBody::ConfigChanged(new))
    }

    pub(super) fn of(new: &Config) -> Self {
        let config = Some(config_pb(new));
        Self { config }
    }
}

impl pb::BranchForked {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        Ok(EventBody::BranchForked(BranchForked {
            name: branch_name("name", &self.name)?,
            parent: BranchId(self.parent_branch_id),
            fork_revision: Revision(self.fork_revision),
            system_prompt: self.system_prompt,
        }))
    }

    pub(super) fn of(forked: &BranchForked) -> Self {
        Self {
            name: forked.name.as_str().to_owned(),
            parent_branch_id: forked.parent.0,
            fork_revision: forked.fork_revision.0,
            system_prompt: forked.system_prompt.clone(),
        }
    }
}

impl pb::BranchActivated {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        Ok(EventBody::BranchActivated)
    }

    pub(super) fn of() -> Self {
        Self {}
    }
}

impl pb::BranchRenamed {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        branch_name("name", &self.name).map(EventBody::BranchRenamed)
    }

    pub(super) fn of(name: &BranchName) -> Self {
        let name = name.as_str().to_owned();
        Self { name }
    }
}

impl pb::BranchArchived {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        let Self { reason } = self;
        Ok(EventBody::BranchArchived { reason })
    }

    pub(super) fn of(reason: &str) -> Self {
        let reason = reason.to_owned();
        Self { reason }
    }
}

fn prompt(id: String, content: String) -> Checked<PromptSet> {
    let id = short("id", id)?;
    Ok(PromptSet { id, content })
}

impl pb::SystemPromptSet {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        prompt(self.id, self.content).map(EventBody::SystemPromptSet)
    }

    pub(super) fn of(prompt: &PromptSet) -> Self {
        Self {
            id: prompt.id.clone(),
            content: prompt.content.clone(),
        }
    }
}

impl pb::UserPromptSet {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        prompt(self.id, self.content).map(EventBody::UserPromptSet)
    }

    pub(super) fn of(prompt: &PromptSet) -> Self {
        Self {
            id: prompt.id.clone(),
            content: prompt.content.clone(),
        }
    }
}

impl pb::SubContextSpawned {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        Ok(EventBody::SubContextSpawned(SubContextSpawned {
            conversation: conversation("conversation_id", &self.conversation_id)?,
            call_id: short("call_id", self.call_id)?,
            purpose: self.purpose,
        }))
    }

    pub(super) fn of(spawned: &SubContextSpawned) -> Self {
        Self {
            conversation_id: spawned.conversation.to_string(),
            call_id: spawned.call_id.clone(),
            purpose: spawned.purpose.clone(),
        }
    }
}

impl pb::SubContextReturned {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        Ok(EventBody::SubContextReturned(SubContextReturned {
            conversation: conversation("conversation_id", &self.conversation_id)?,
            summary: self.summary,
            call_id: short("call_id", self.call_id)?,
        }))
    }

    pub(super) fn of(returned: &SubContextReturned) -> Self {
        Self {
            conversation_id: returned.conversation.to_string(),
            summary: returned.summary.clone(),
            call_id: returned.call_id.clone(),
        }
    }
}

impl pb::ConversationSealed {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        let Self { reason, summary } = self;
        Ok(EventBody::ConversationSealed { reason, summary })
    }

    pub(super) fn of(reason: &str, summary: &str) -> Self {
        Self {
            reason: reason.to_owned(),
            summary: summary.to_owned(),
        }
    }
}

impl pb::ContentErased {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        if self.revisions.is_empty() {
            return Err(FieldFault::at("revisions", BodyProblem::Missing));
        }
        distinct("revisions", &self.revisions, |revision| *revision)?;
        Ok(EventBody::ContentErased {
            revisions: self.revisions.into_iter().map(Revision).collect(),
            reason: self.reason,
            stubs: match self.stubs_hash.is_empty() {
                true => None,
                false => Some(hash("stubs_hash", &self.stubs_hash)?),
            },
            signed_by: match self.signed_by.is_empty() {
                true => None,
                false => Some(PublicKey(hash("signed_by", &self.signed_by)?.0)),
            },
        })
    }

    #[expect(clippy::ref_option, reason = "the table of kinds gives its fields so")]
    pub(super) fn of(
        revisions: &[Revision],
        reason: &str,
        stubs: &Option<ContentHash>,
        signed_by: &Option<PublicKey>,
    ) -> Self {
        let stubs = stubs.as_ref().map_or(&[][..], |hash| &hash.0);
        let signed_by = signed_by.as_ref().map_or(&[][..], |key| &key.0);
        Self {
            revisions: revisions.iter().map(|revision| revision.0).collect(),
            reason: reason.to_owned(),
            stubs_hash: Bytes::copy_from_slice(stubs),
            signed_by: Bytes::copy_from_slice(signed_by),
        }
    }
}
