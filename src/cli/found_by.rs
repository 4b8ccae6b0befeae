//! What events are found by: the options that give it, and those that look for it.

use std::collections::BTreeMap;

use clap::Args;

use super::{error::CliError, pb};

/// Options that look for events.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Found by")]
pub struct FilterArgs {
    /// Only events with this key
    #[arg(long, value_name = "KEY", conflicts_with = "key_prefix")]
    key: Option<String>,
    /// Only events whose key begins so
    #[arg(long, value_name = "TEXT")]
    key_prefix: Option<String>,
    /// Only events of frameworks of these types, separated by commas
    #[arg(long = "type", value_delimiter = ',', value_name = "TYPE")]
    types: Vec<String>,
    /// Only events that this one appended
    #[arg(long, value_name = "ACTOR")]
    by: Option<String>,
    /// Only events with this attribute; may be given several times
    #[arg(long = "attribute", value_name = "NAME=VALUE")]
    attributes: Vec<String>,
}

impl FilterArgs {
    /// What a read wants of events; none: all of them.
    ///
    /// # Errors
    /// [`CliError::Usage`] for an attribute without a name.
    pub fn filter(&self) -> Result<Option<pb::EventFilter>, CliError> {
        let filter = pb::EventFilter {
            key: self.key.clone().unwrap_or_default(),
            key_prefix: self.key_prefix.clone().unwrap_or_default(),
            types: self.types.clone(),
            actor: self.by.clone().unwrap_or_default(),
            attributes: attributes(&self.attributes)?,
            ..Default::default()
        };
        Ok((filter != pb::EventFilter::default()).then_some(filter))
    }
}

/// Options that give an event what it is found by.
#[derive(Args, Debug, Clone, Default)]
pub struct TagsArgs {
    /// A key to find the event by, see `log --key`; erased with it
    #[arg(long, value_name = "KEY", global = true)]
    event_key: Option<String>,
    /// More to find it by; may be given several times
    #[arg(long = "attribute", value_name = "NAME=VALUE", global = true)]
    attributes: Vec<String>,
}

impl TagsArgs {
    /// Gives it to an event.
    ///
    /// # Errors
    /// [`CliError::Usage`] for an attribute without a name.
    pub fn give(&self, event: &mut pb::NewEvent) -> Result<(), CliError> {
        event.key = self.event_key.clone().unwrap_or_default();
        event.attributes = attributes(&self.attributes)?;
        Ok(())
    }
}

fn attributes(given: &[String]) -> Result<BTreeMap<String, String>, CliError> {
    let pair = |text: &String| {
        let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty())?;
        Some((name.to_owned(), value.to_owned()))
    };
    let pairs: Option<_> = given.iter().map(pair).collect();
    pairs.ok_or_else(|| CliError::Usage {
        what: "an attribute has no name".to_owned(),
        hint: "write it as NAME=VALUE".into(),
    })
}
