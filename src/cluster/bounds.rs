//! All limits and intervals of a node, with units.

use std::time::Duration;

/// How long a node may answer reads after its last heartbeat, and after which others take its
/// shards, unless the options say otherwise.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(10);
/// Minimum lease. A shorter one would end while the database commits a heartbeat.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
/// Heartbeats in the time of a lease: two may be lost.
pub const HEARTBEATS_PER_LEASE: u32 = 3;
/// How often nodes and owners are read in the time of a lease. A shard that was handed over waits
/// this long for its new owner.
pub const VIEWS_PER_LEASE: u32 = 10;
/// The part of the lease, one in this many, that a node does not use. It covers the difference in
/// speed between the node's clock and the database's, and the difference between the clocks of a
/// primary and its successor.
pub const MARGIN_PER_LEASE: u32 = 10;
/// Maximum number of shards that a node opens at a time.
pub const OPENING_MAX: usize = 4;
/// Pause between two looks of a follower at its shard. A take-over reads what was appended since.
pub const FOLLOW_PAUSE: Duration = Duration::from_secs(2);
/// Maximum number of shards that a node brings up to date at a time as their follower.
pub const FOLLOWING_MAX: usize = 2;
/// A shard with more events than this moves to another live node only after that node has followed
/// it. Reading as many events takes a moment.
pub const UNFOLLOWED_EVENTS_MAX: u64 = 10_000;
/// How often a change of keys is made again when others change them meanwhile.
pub const KEY_CHANGES_MAX: u32 = 20;
/// Pause before a node that is starting tries again to reach the database.
pub const START_PAUSE: Duration = Duration::from_secs(1);
/// Maximum length of a node's name and of its address, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// How long `close` waits for the shards to be handed over.
pub const DRAIN_MAX: Duration = Duration::from_secs(60);
