//! Conversations, their branches and sub-contexts.

use super::fault::{
    BodyProblem, Checked, FieldFault, branch_name, conversation, distinct, keyed, keyed_json,
    optional_json, short,
};
use crate::{
    codec::pb,
    domain::{
        BranchForked, BranchId, BranchName, Config, ConversationCreated, EventBody, ParentRef,
        PromptSet, Revision, SubContextReturned, SubContextSpawned,
    },
};

pub(super) fn config(config: pb::Config) -> Checked<Config> {
    Ok(Config {
        model_id: short("model_id", config.model_id)?,
        mode: short("mode", config.mode)?,
        parameters: keyed_json("parameters", config.parameters)?,
    })
}

pub(super) fn config_pb(config: &Config) -> pb::Config {
    pb::Config {
        model_id: config.model_id.clone(),
        mode: config.mode.clone(),
        parameters: config.parameters.clone().into_iter().collect(),
    }
}

pub(super) fn config_changed(changed: pb::ConfigChanged) -> Checked<Config> {
    let Some(new) = changed.config else {
        return Err(FieldFault::at("config", BodyProblem::Missing));
    };
    config(new).map_err(|fault| fault.within("config"))
}

pub(super) fn config_changed_pb(new: &Config) -> pb::ConfigChanged {
    pb::ConfigChanged {
        config: Some(config_pb(new)),
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

pub(super) fn created(created: pb::ConversationCreated) -> Checked<ConversationCreated> {
    let config = config(created.config.unwrap_or_default());
    let parent = created.parent.map(parent).transpose();
    let parent = parent.map_err(|fault| fault.within("parent"))?;
    if created.shares_history && parent.is_none() {
        return Err(FieldFault::at("parent", BodyProblem::Missing));
    }
    Ok(ConversationCreated {
        title: short("title", created.title)?,
        config: config.map_err(|fault| fault.within("config"))?,
        labels: keyed("labels", created.labels)?,
        parent,
        shares_history: created.shares_history,
        policies: keyed_json("policies", created.policies)?,
        source: short("source", created.source)?,
        source_id: short("source_id", created.source_id)?,
        source_meta: optional_json("source_meta", created.source_meta)?,
    })
}

pub(super) fn created_pb(created: &ConversationCreated) -> pb::ConversationCreated {
    let config = &created.config;
    pb::ConversationCreated {
        title: created.title.clone(),
        config: (*config != Config::default()).then(|| config_pb(config)),
        labels: created.labels.clone().into_iter().collect(),
        parent: created.parent.as_ref().map(parent_pb),
        shares_history: created.shares_history,
        policies: created.policies.clone().into_iter().collect(),
        source: created.source.clone(),
        source_id: created.source_id.clone(),
        source_meta: created.source_meta.as_bytes().clone(),
    }
}

pub(super) fn forked(forked: pb::BranchForked) -> Checked<BranchForked> {
    Ok(BranchForked {
        name: branch_name("name", &forked.name)?,
        parent: BranchId(forked.parent_branch_id),
        fork_revision: Revision(forked.fork_revision),
        system_prompt: forked.system_prompt,
    })
}

pub(super) fn forked_pb(forked: &BranchForked) -> pb::BranchForked {
    pb::BranchForked {
        name: forked.name.as_str().to_owned(),
        parent_branch_id: forked.parent.0,
        fork_revision: forked.fork_revision.0,
        system_prompt: forked.system_prompt.clone(),
    }
}

pub(super) fn renamed(renamed: &pb::BranchRenamed) -> Checked<BranchName> {
    branch_name("name", &renamed.name)
}

pub(super) fn prompt(id: String, content: String) -> Checked<PromptSet> {
    let id = short("id", id)?;
    Ok(PromptSet { id, content })
}

pub(super) fn spawned(spawned: pb::SubContextSpawned) -> Checked<SubContextSpawned> {
    Ok(SubContextSpawned {
        conversation: conversation("conversation_id", &spawned.conversation_id)?,
        call_id: short("call_id", spawned.call_id)?,
        purpose: spawned.purpose,
    })
}

pub(super) fn spawned_pb(spawned: &SubContextSpawned) -> pb::SubContextSpawned {
    pb::SubContextSpawned {
        conversation_id: spawned.conversation.to_string(),
        call_id: spawned.call_id.clone(),
        purpose: spawned.purpose.clone(),
    }
}

pub(super) fn returned(returned: pb::SubContextReturned) -> Checked<SubContextReturned> {
    Ok(SubContextReturned {
        conversation: conversation("conversation_id", &returned.conversation_id)?,
        summary: returned.summary,
        call_id: short("call_id", returned.call_id)?,
    })
}

pub(super) fn returned_pb(returned: &SubContextReturned) -> pb::SubContextReturned {
    pb::SubContextReturned {
        conversation_id: returned.conversation.to_string(),
        summary: returned.summary.clone(),
        call_id: returned.call_id.clone(),
    }
}

pub(super) fn erased(erased: pb::ContentErased) -> Checked<EventBody> {
    if erased.revisions.is_empty() {
        return Err(FieldFault::at("revisions", BodyProblem::Missing));
    }
    distinct("revisions", &erased.revisions, |revision| *revision)?;
    Ok(EventBody::ContentErased {
        revisions: erased.revisions.into_iter().map(Revision).collect(),
        reason: erased.reason,
    })
}
