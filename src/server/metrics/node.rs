//! Metrics of the shards of a node.

use std::fmt;

use prometheus_client::metrics::MetricType;

use super::text::{Lines, NONE};
use crate::{ShardDirectory, ShardRole};
use treering_engine::StoreReach;

/// A shard that the node has something to do with.
#[derive(Debug)]
pub(super) struct ShardScrape {
    role: ShardRole,
    /// `None`: the node may not serve it right now.
    reach: Option<StoreReach>,
}

/// Reads the metrics of all shards of a node.
pub(super) fn read(directory: &dyn ShardDirectory) -> Vec<ShardScrape> {
    let roles = directory.roles().into_iter();
    roles
        .map(|role| ShardScrape {
            reach: directory
                .shard(role.shard)
                .ok()
                .map(|shard| shard.engine().reach()),
            role,
        })
        .collect()
}

/// Returns why the node should be restarted.
pub(super) fn live(directory: &dyn ShardDirectory) -> Result<(), String> {
    for shard in directory.served() {
        if let Ok(open) = directory.shard(shard) {
            let live = open.engine().health().live;
            live.map_err(|why| format!("shard {}: {why}", shard.0))?;
        }
    }
    Ok(())
}

/// Returns why the node takes no calls.
pub(super) fn ready(directory: &dyn ShardDirectory) -> Result<(), String> {
    match directory.is_ready() {
        true => Ok(()),
        false => Err("it has not joined its cluster: the database cannot be reached".to_owned()),
    }
}

/// Writes a number of each shard.
fn of_shards(
    lines: &mut Lines,
    (name, help): (&str, &str),
    shards: &[ShardScrape],
    value: impl Fn(&ShardScrape) -> Option<u64>,
) -> fmt::Result {
    let mut family = lines.family(name, help, MetricType::Gauge)?;
    for shard in shards {
        if let Some(value) = value(shard) {
            let number = shard.role.shard.0.to_string();
            let labels = [("shard", number.as_str())];
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
    }
    Ok(())
}

/// Writes the metrics of all shards.
pub(super) fn encode(lines: &mut Lines, shards: &[ShardScrape]) -> fmt::Result {
    let mut roles = lines.family(
        "treering_shard_role",
        "What this node does with a shard: owner, opening, handing_over, follower, emptying, failed. Always 1.",
        MetricType::Gauge,
    )?;
    for shard in shards {
        let number = shard.role.shard.0.to_string();
        let labels = [("shard", number.as_str()), ("role", shard.role.role)];
        roles.encode_family(&labels)?.encode_gauge(&1_u64)?;
    }
    let epoch = (
        "treering_shard_epoch",
        "Epoch in which this node owns the shard. It grows with each change of the owner.",
    );
    of_shards(lines, epoch, shards, |shard| {
        Some(shard.role.epoch).filter(|epoch| *epoch > 0)
    })?;
    let head = (
        "treering_shard_head_position",
        "Log position of the last event of the shard that is visible to reads.",
    );
    of_shards(lines, head, shards, |shard| Some(shard.reach?.head))?;
    let lag = (
        "treering_shard_index_lag_events",
        "Visible events of the shard that are not yet indexed.",
    );
    of_shards(lines, lag, shards, |shard| {
        let reach = shard.reach?;
        Some(reach.head.saturating_sub(reach.index_reached))
    })?;
    let behind = (
        "treering_shard_follower_lag_events",
        "Events of a shard of another node that this follower has not read and indexed.",
    );
    of_shards(lines, behind, shards, |shard| shard.role.follower_lag)?;
    let mut appended = lines.family(
        "treering_shard_events_appended",
        "Events appended to the shard since this node opened it.",
        MetricType::Counter,
    )?;
    for shard in shards {
        if let Some(reach) = shard.reach {
            let number = shard.role.shard.0.to_string();
            let labels = [("shard", number.as_str())];
            let mut line = appended.encode_family(&labels)?;
            line.encode_counter(&reach.events_appended, NONE)?;
        }
    }
    Ok(())
}
