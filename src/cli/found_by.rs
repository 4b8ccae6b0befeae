//! What events are found by: the options that give it, and those that look for it.

use clap::Args;

use super::{args::pair, pb};

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
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = pair)]
    attributes: Vec<(String, String)>,
}

impl FilterArgs {
    /// What a read wants of events; none: all of them.
    pub fn filter(&self) -> Option<pb::EventFilter> {
        let filter = pb::EventFilter {
            key: self.key.clone().unwrap_or_default(),
            key_prefix: self.key_prefix.clone().unwrap_or_default(),
            types: self.types.clone(),
            actor: self.by.clone().unwrap_or_default(),
            attributes: self.attributes.iter().cloned().collect(),
            ..Default::default()
        };
        (filter != pb::EventFilter::default()).then_some(filter)
    }
}

/// Options that give an event what it is found by.
#[derive(Args, Debug, Clone, Default)]
pub struct TagsArgs {
    /// A key to find the event by, see `log --key`; erased with it
    #[arg(long, value_name = "KEY", global = true)]
    event_key: Option<String>,
    /// More to find it by; may be given several times
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = pair, global = true)]
    attributes: Vec<(String, String)>,
}

impl TagsArgs {
    /// Gives it to an event.
    pub fn give(&self, event: &mut pb::NewEvent) {
        event.key = self.event_key.clone().unwrap_or_default();
        event.attributes = self.attributes.iter().cloned().collect();
    }
}
