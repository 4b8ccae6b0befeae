//! Going on after a loss, with what views and index know of it.

use std::path::{Path, PathBuf};

use super::{
    catch_up::VIEWS_CACHE_BYTES,
    error::OpenError,
    open::{INDEX_FOLDER, VIEWS_FILE, log_refused},
    witness,
};
use crate::{
    disk,
    domain::{ConversationId, ShardId, TimestampMicros},
    log::{
        EventLog, LogIdentity, LostRange, RedbLog, RedbLogOptions, Repair as LogRepair,
        repair as repair_log,
    },
    search::SearchIndex,
    views::Views,
};

/// What of a store is lost.
#[derive(Clone, Debug, Default)]
pub struct Repair {
    /// The last event that is kept.
    pub head: u64,
    /// Offsets of what is lost.
    pub lost: Vec<LostRange>,
    /// Conversations whose last event is among it, as far as the views know.
    pub conversations: Vec<ConversationId>,
    /// Files that cannot be used, and why.
    pub unusable: Vec<(String, String)>,
    /// The manifest was missing or damaged.
    pub manifest_lost: bool,
    /// Where the unusable files are now; none: nothing was changed.
    pub moved_to: Option<String>,
}

impl Repair {
    /// True when nothing is lost.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.unusable.is_empty() && !self.manifest_lost
    }

    /// How many events are lost.
    #[must_use]
    pub fn events_lost(&self) -> u64 {
        self.lost.iter().map(|lost| lost.to - lost.from + 1).sum()
    }
}

/// Finds out what of the store in a folder is lost; with `accept_loss`, lets it
/// go on without that. Views and index that have seen what is lost are moved
/// aside, and made anew when the store is opened.
///
/// # Errors
/// [`OpenError`]: nothing has changed, or it can be repeated.
pub async fn repair(dir: &Path, accept_loss: bool) -> Result<Repair, OpenError> {
    let dir = dir.to_owned();
    let work = move || repair_now(&dir, accept_loss);
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| {
            Err(OpenError::Failed {
                path: PathBuf::new(),
                message: error.to_string(),
            })
        })
}

fn repair_now(dir: &Path, accept_loss: bool) -> Result<Repair, OpenError> {
    let views_path = dir.join(VIEWS_FILE);
    let index_path = dir.join(INDEX_FOLDER);
    let views = Views::open_unchanged(&views_path, VIEWS_CACHE_BYTES).ok();
    let log = identity_of(dir);
    let views = views.filter(|views| log.is_none_or(|log| witness::are_of(views, log)));
    let seen = views.as_ref().and_then(|views| views.reached().ok());
    let index_counts = log.is_none_or(|log| witness::index_is_of(&index_path, log));
    let indexed = SearchIndex::open_unchanged(&index_path).map(|index| index.reached().offset);
    let indexed = indexed.ok().filter(|_| index_counts);
    let reached = seen.unwrap_or(0).max(indexed.unwrap_or(0));
    let found = repair_log(dir, reached, false).map_err(|error| log_refused(dir, error))?;
    let conversations = views.as_ref().map(|views| touched(views, &found));
    drop(views);
    let mut repair = Repair {
        head: found.head,
        lost: found.lost,
        conversations: conversations.unwrap_or_default(),
        unusable: found.unusable,
        manifest_lost: found.manifest_lost,
        moved_to: None,
    };
    if repair.is_whole() || !accept_loss {
        return Ok(repair);
    }
    let done = repair_log(dir, reached, true).map_err(|error| log_refused(dir, error))?;
    let aside = dir.join(format!("set-aside-{}", TimestampMicros::now().0));
    for path in [&views_path, &index_path] {
        let Some(name) = path.file_name().filter(|_| path.exists()) else {
            continue;
        };
        disk::make_folder(&aside)
            .and_then(|()| disk::rename(path, &aside.join(name)))
            .map_err(|error| OpenError::Failed {
                path: path.clone(),
                message: format!("it could not be moved to {}: {error}", aside.display()),
            })?;
    }
    repair.moved_to = done.moved_to;
    Ok(repair)
}

/// Which log it is, as far as something of it is left: what was made from another
/// one proves nothing about it.
fn identity_of(dir: &Path) -> Option<LogIdentity> {
    let log = RedbLog::open_remains(dir, RedbLogOptions::default()).ok()?;
    let acquired = futures::executor::block_on(log.acquire(ShardId::default())).ok()?;
    (acquired.head > 0).then(|| log.identity())
}

/// Conversations whose last event is lost.
fn touched(views: &Views, found: &LogRepair) -> Vec<ConversationId> {
    let is_lost = |offset: u64| {
        found
            .lost
            .iter()
            .any(|lost| (lost.from..=lost.to).contains(&offset))
    };
    let rows = views.every_conversation().unwrap_or_default();
    rows.into_iter()
        .filter(|row| is_lost(row.last_position.offset))
        .map(|row| row.id)
        .collect()
}
