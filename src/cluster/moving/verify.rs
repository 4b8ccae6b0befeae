//! Verifies the log of a cluster as it is in the database, without a node.

use std::{collections::HashMap, sync::Arc};

use treering_domain::{ContentHash, ConversationKey, Revision, ShardId};
use treering_engine::ShardMap;
use treering_log::{LogError, LogReader, Record};
use treering_log_postgres::PostgresLog;

use super::{MoveError, MoveStep, open_cluster, stream::RecordStream, tell};

/// What a verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterVerification {
    /// Shards.
    pub shards: u32,
    /// Sound events.
    pub events: u64,
    /// Conversations with a sound event.
    pub conversations: u64,
    /// The first damage of each damaged shard. What follows it in the shard was not read.
    pub damaged: Vec<ClusterDamage>,
}

/// Damage in a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDamage {
    /// The shard.
    pub shard: ShardId,
    /// The offset of the first event that is not sound.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

/// Reads every event and body of the cluster in the database of a URL, and checks hashes, chains,
/// revisions and shards. Nodes may run; what they append meanwhile is not read.
///
/// # Errors
/// [`MoveError`] if the database cannot be read. Damage is no error.
pub async fn verify_cluster(
    url: &str,
    mut report: impl FnMut(MoveStep) + Send,
) -> Result<ClusterVerification, MoveError> {
    let log = open_cluster(url).await?;
    let map = ShardMap::new(log.shards(), log.moved().await?);
    let ends = log.ends().await?;
    let total = ends.iter().map(|end| end.head).sum();
    let mut found = ClusterVerification {
        shards: log.shards(),
        ..ClusterVerification::default()
    };
    for end in ends {
        let mut check = ShardCheck {
            log: Arc::clone(&log),
            shard: end.shard,
            map: map.clone(),
            chains: HashMap::new(),
            offset: 1,
        };
        let before = found.events;
        let checked = check
            .run(end.head, |offset| {
                tell(&mut report, "verify", before + offset, total);
            })
            .await;
        found.events += check.offset - 1;
        found.conversations += check.chains.len() as u64;
        if let Err(error) = checked {
            found.damaged.push(check.damage(error)?);
        }
    }
    Ok(found)
}

/// The check of one shard.
struct ShardCheck {
    log: Arc<PostgresLog>,
    shard: ShardId,
    map: ShardMap,
    chains: HashMap<ConversationKey, (Revision, ContentHash)>,
    /// The offset of the next event.
    offset: u64,
}

impl ShardCheck {
    async fn run(&mut self, head: u64, mut report: impl FnMut(u64)) -> Result<(), MoveError> {
        let mut records = RecordStream::new(Arc::clone(&self.log) as _, self.shard, head);
        while let Some((offset, record)) = records.next().await? {
            self.offset = offset;
            self.record(&record)?;
            if let Err(error) = records.body(&record).await {
                self.check_erased(error).await?;
            }
            self.offset = offset + 1;
            report(offset);
        }
        Ok(())
    }

    fn record(&mut self, record: &Record) -> Result<(), MoveError> {
        let damaged = |what| {
            Err(MoveError::Differs {
                offset: self.offset,
                what,
            })
        };
        let header = &record.header;
        if self.map.of(header.conversation) != self.shard {
            return damaged("its conversation belongs to another shard");
        }
        let first = (Revision::NONE, ContentHash::default());
        let (head, chain) = self.chains.get(&header.key()).copied().unwrap_or(first);
        if header.revision != head.next() {
            return damaged("its revision does not follow the one before it");
        }
        if !record.verify_chain(chain) {
            return damaged("its chain hash does not follow the event before it");
        }
        let now = (header.revision, record.chain_hash());
        self.chains.insert(header.key(), now);
        Ok(())
    }

    /// A body that is missing was erased since its record was read, or is lost.
    async fn check_erased(&self, error: MoveError) -> Result<(), MoveError> {
        let reader = LogReader::new(Arc::clone(&self.log) as _, self.shard, 0);
        match reader.record(self.offset).await {
            Ok(record) if record.is_erased() => Ok(()),
            _ => Err(error),
        }
    }

    /// Returns the damage that an error reports.
    fn damage(&self, error: MoveError) -> Result<ClusterDamage, MoveError> {
        let (offset, what) = match error {
            MoveError::Differs { what, .. } => (self.offset, what.to_owned()),
            MoveError::Log {
                source: LogError::Damaged { offset, what },
                ..
            } => (offset.max(self.offset), what),
            other => return Err(other),
        };
        Ok(ClusterDamage {
            shard: self.shard,
            offset,
            what,
        })
    }
}
