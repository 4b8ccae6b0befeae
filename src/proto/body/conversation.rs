//! Rules over several fields of conversations and branches, and bodies that are a single value.

use super::{
    convert::{branch_name, distinct},
    fault::{BodyProblem, FieldFault, FieldResult},
};
use crate::pb;
use treering_domain::{BranchName, Config};

impl pb::ConversationCreated {
    pub(super) fn check(&self) -> FieldResult<()> {
        match self.shares_history && self.parent.is_none() {
            true => Err(FieldFault::at("parent", BodyProblem::Missing)),
            false => Ok(()),
        }
    }
}

impl pb::ConfigChanged {
    pub(super) fn into_domain(self) -> FieldResult<Config> {
        let Some(config) = self.config else {
            return Err(FieldFault::at("config", BodyProblem::Missing));
        };
        config.into_domain().map_err(|fault| fault.within("config"))
    }

    pub(super) fn of(config: &Config) -> Self {
        let config = Some(pb::Config::of(config));
        Self { config }
    }
}

impl pb::BranchRenamed {
    pub(super) fn into_domain(self) -> FieldResult<BranchName> {
        branch_name("name", &self.name)
    }

    pub(super) fn of(name: &BranchName) -> Self {
        let name = name.as_str().to_owned();
        Self { name }
    }
}

impl pb::EntitiesNoted {
    pub(super) fn check(&self) -> FieldResult<()> {
        distinct("entities", &self.entities, |entity| {
            (entity.id.clone(), entity.kind.clone())
        })
    }
}

impl pb::ContentErased {
    pub(super) fn check(&self) -> FieldResult<()> {
        if self.revisions.is_empty() {
            return Err(FieldFault::at("revisions", BodyProblem::Missing));
        }
        distinct("revisions", &self.revisions, |revision| *revision)
    }
}
