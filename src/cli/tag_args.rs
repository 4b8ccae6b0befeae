//! Options to filter events by key and attributes, and to set these on an event.

use clap::Args;

use super::{args::pair, pb};

/// Options that filter events.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Key and attributes")]
pub(crate) struct FilterArgs {
    /// Only events with this event key
    #[arg(long, value_name = "KEY", conflicts_with = "key_prefix")]
    key: Option<String>,
    /// Only events whose event key has this prefix
    #[arg(long, value_name = "TEXT")]
    key_prefix: Option<String>,
    /// Only custom events of these types, separated by commas
    #[arg(long = "type", value_delimiter = ',', value_name = "TYPE")]
    types: Vec<String>,
    /// Only events of this actor
    #[arg(long, value_name = "ACTOR")]
    by: Option<String>,
    /// Only events with this attribute (may be given again)
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = pair)]
    attributes: Vec<(String, String)>,
}

impl FilterArgs {
    /// Returns the filter of a read, or `None` for all events.
    pub(crate) fn filter(&self) -> Option<pb::EventFilter> {
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

/// Options that set an event's key and attributes.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct TagsArgs {
    /// Event key to find the event by (see `log --key`); it is erased with the event
    #[arg(long, value_name = "KEY", global = true)]
    event_key: Option<String>,
    /// Attribute to find the event by (may be given again)
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = pair, global = true)]
    attributes: Vec<(String, String)>,
}

impl TagsArgs {
    /// Sets them on an event.
    pub(crate) fn give(&self, event: &mut pb::NewEvent) {
        event.key = self.event_key.clone().unwrap_or_default();
        event.attributes = self.attributes.iter().cloned().collect();
    }
}
