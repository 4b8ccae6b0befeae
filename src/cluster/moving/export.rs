//! Moves a cluster into an embedded store.
//!
//! The events of the shards are merged by the time of recording. Each shard keeps its order, and the
//! events of a batch with an idempotency key stay together. The store is built in a folder beside the
//! target, which gets its name when all of it was checked.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use treering_base::disk;
use treering_domain::{ShardId, with_causes};
use treering_engine::{Engine, OpenOptions};
use treering_log::{EventLog, LogFiller, OpenMode, Record, RecordBody, RedbLog, RedbLogOptions};
use treering_log_postgres::PostgresLog;
use treering_proto::tags;

use super::{
    ChainCheck, MoveError, MoveOutcome, MoveStep, check_stopped, heads, of_log, open_cluster,
    open_store, shard_streams, stream::RecordStream, tell,
};

/// Moves the events of the cluster in the database of a URL into a new embedded store. No node may
/// be live. The cluster is not changed. An export that was interrupted begins again.
///
/// # Errors
/// [`MoveError`]. There is then no store in `dir`.
pub async fn export_store(
    url: &str,
    dir: &Path,
    mut report: impl FnMut(MoveStep) + Send,
) -> Result<MoveOutcome, MoveError> {
    let refused = |what: String| MoveError::Store {
        path: dir.to_owned(),
        what,
    };
    let failed = |error: std::io::Error| refused(error.to_string());
    if std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(refused(
            "the folder is not empty: name a new one".to_owned(),
        ));
    }
    let cluster = open_cluster(url).await?;
    check_stopped(&cluster).await?;
    if cluster.importing().await?.is_some() {
        let what = "a store is being moved into this cluster: finish that first".to_owned();
        return Err(MoveError::Cluster { what });
    }
    let staging = beside(dir);
    if staging.exists() {
        disk::remove(&staging).map_err(failed)?;
    }
    let source = Source {
        heads: heads(&cluster).await?,
        log: cluster,
    };
    copy(&source, &staging, &mut report).await?;
    let conversations = compare(&source, &staging, &mut report).await?;
    open_once(&staging).await?;
    check_stopped(&source.log).await?;
    if heads(&source.log).await? != source.heads {
        let what = "the cluster was changed during the export: export it again".to_owned();
        return Err(MoveError::Cluster { what });
    }
    let _was_empty = std::fs::remove_dir(dir);
    disk::rename(&staging, dir).map_err(failed)?;
    Ok(MoveOutcome {
        events: source.events(),
        conversations,
        ..MoveOutcome::default()
    })
}

/// Returns the folder in which the store is built.
fn beside(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(".exporting");
    dir.with_file_name(name)
}

/// The shards, up to their heads.
struct Source {
    log: Arc<PostgresLog>,
    heads: Vec<u64>,
}

impl Source {
    fn events(&self) -> u64 {
        self.heads.iter().sum()
    }

    fn merged(&self) -> Merged {
        Merged {
            streams: shard_streams(&self.log, &self.heads),
            batch: None,
        }
    }
}

/// The records of all shards in the order of the export.
struct Merged {
    streams: Vec<RecordStream>,
    /// The stream whose batch with an idempotency key is being read, and how many events follow.
    batch: Option<(usize, u32)>,
}

impl Merged {
    /// Returns the next record and the index of its stream.
    async fn next(&mut self) -> Result<Option<(usize, Record)>, MoveError> {
        let index = match self.batch.take() {
            Some((index, left)) => {
                self.batch = Some((index, left - 1)).filter(|(_, left)| *left > 0);
                Some(index)
            }
            None => self.earliest().await?,
        };
        let Some(index) = index else {
            return Ok(None);
        };
        let Some((_, record)) = self.streams[index].next().await? else {
            return Ok(None);
        };
        if let Some(key) = &record.append_key
            && key.events > 1
        {
            self.batch = Some((index, key.events - 1));
        }
        Ok(Some((index, record)))
    }

    async fn earliest(&mut self) -> Result<Option<usize>, MoveError> {
        let mut earliest = None;
        for (index, stream) in self.streams.iter_mut().enumerate() {
            let Some(record) = stream.peek().await? else {
                continue;
            };
            let at = record.header.recorded_at;
            if earliest.is_none_or(|(first, _)| at < first) {
                earliest = Some((at, index));
            }
        }
        Ok(earliest.map(|(_, index)| index))
    }
}

async fn copy(
    source: &Source,
    staging: &Path,
    report: &mut impl FnMut(MoveStep),
) -> Result<(), MoveError> {
    let failed = of_log("writing the new store");
    let log = RedbLog::open(staging, RedbLogOptions::default(), OpenMode::Create);
    let mut filler = LogFiller::start(log.map_err(&failed)?)
        .await
        .map_err(&failed)?;
    let mut merged = source.merged();
    let mut done = 0;
    while let Some((index, record)) = merged.next().await? {
        if let RecordBody::Blob(blob) = &record.body
            && filler.home(&record.header.namespace, blob).is_none()
        {
            let body = merged.streams[index].body(&record).await?;
            let is_like = tags::is_like_another(record.header.kind, &body);
            filler.keep(&record.header, blob, body, is_like);
        }
        filler.push(record).await.map_err(&failed)?;
        done += 1;
        tell(report, "copy", done, source.events());
    }
    filler.close().await.map_err(failed)
}

/// Reads both sides again and compares them. Returns the number of conversations.
async fn compare(
    source: &Source,
    staging: &Path,
    report: &mut impl FnMut(MoveStep),
) -> Result<u64, MoveError> {
    let store = open_store(staging).await?;
    let mut copies = RecordStream::new(Arc::clone(&store) as _, ShardId::default(), store.head());
    let mut check = ChainCheck::default();
    let mut merged = source.merged();
    let mut done = 0;
    while let Some((index, record)) = merged.next().await? {
        done += 1;
        let Some((_, copy)) = copies.next().await? else {
            return Err(MoveError::Differs {
                offset: done,
                what: "it is missing",
            });
        };
        let (one, other) = ((&merged.streams[index], &record), (&copies, &copy));
        check.compare(done, one, other).await?;
        tell(report, "compare", done, source.events());
    }
    store
        .close()
        .await
        .map_err(of_log("closing the new store"))?;
    Ok(check.chains.len() as u64)
}

/// Opens the store, which builds its projections and index, and checks that nothing is damaged.
async fn open_once(staging: &Path) -> Result<(), MoveError> {
    let failed = |what: String| MoveError::Store {
        path: staging.to_owned(),
        what,
    };
    let opened = Engine::open(OpenOptions::new(staging).existing()).await;
    let engine = opened.map_err(|error| failed(with_causes(&error).to_string()))?;
    let is_whole = engine.is_whole();
    engine.close().await;
    match is_whole {
        Ok(true) => Ok(()),
        Ok(false) => Err(failed("it has damaged conversations".to_owned())),
        Err(error) => Err(failed(with_causes(&error).to_string())),
    }
}
