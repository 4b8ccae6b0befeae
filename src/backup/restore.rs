//! Restores a store from a backup, up to a chosen point, without anything that was erased later.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use uuid::Uuid;

use super::{
    content::ParsedObject,
    error::BackupError,
    manifest::{ErasureEntry, Generation, Manifest, Object, generations, one_store},
    seal::EncryptionKey,
    walk::{Objects, Walk},
};
use treering_base::disk;
use treering_domain::{
    BranchId, ConversationKey, EventBody, EventHeader, EventId, EventKind, Revision,
    TimestampMicros,
};
use treering_engine::{Engine, OpenOptions, Progress, hash_of_stubs, last_batch};
use treering_log::{
    EventLog, LOG_FOLDER, LogError, LogFiller, OpenMode, Record, RecordBody, RedbLog,
    RedbLogOptions, Salt,
};
use treering_objects::ObjectStorage;
use treering_proto::{self, tags};

/// Subfolder of the restored folder in which the store is built.
pub const STAGING: &str = ".restoring";
/// Lock file that is held during a restore, to keep out other restores and programs that open
/// stores. It remains as the lock file of the store.
const LOCK: &str = "LOCK";
/// File in the staging folder that lists the entries to be moved into place. Written when the move
/// begins.
const MOVING: &str = "moving";

/// The point up to which a store is restored. A batch is restored completely or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestoreTo {
    /// Everything in the generation.
    #[default]
    End,
    /// Everything that was recorded up to this time.
    Time(TimestampMicros),
    /// Up to a log position.
    Position(u64),
}

/// Options of a restore.
#[derive(Clone, Debug, Default)]
pub struct RestoreOptions {
    /// The key of an encrypted backup.
    pub key: Option<EncryptionKey>,
    /// The store that was backed up; `None`: the only one in the target.
    pub store: Option<Uuid>,
    /// The generation; `None`: the newest.
    pub generation: Option<u64>,
    /// The point up to which to restore.
    pub cut: RestoreTo,
}

/// The outcome of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreOutcome {
    /// The store that was backed up.
    pub store: Uuid,
    /// The new store.
    pub new_store: Uuid,
    /// The generation.
    pub generation: u64,
    /// Records of the old store that were restored.
    pub events: u64,
    /// Records in the generation.
    pub events_in_generation: u64,
    /// Conversations that were restored.
    pub conversations: u64,
    /// When the last restored record was recorded.
    pub last_recorded_at: Option<TimestampMicros>,
    /// Events that were erased after the restored point, and whose content was left out.
    pub erased: u64,
    /// Newer generations that cannot be read: their erasures are unknown.
    pub unread: Vec<u64>,
    /// Whether the store has pseudonyms. Backups do not contain their key; without it, the store
    /// opens only for reading.
    pub pseudonyms: bool,
}

/// Restores a store from a backup into a missing or empty folder. The new store has its own id, and
/// its backups are separate. Until it is complete, nothing in the folder opens as a store.
///
/// # Errors
/// [`BackupError`] names the object that is missing or damaged.
pub async fn restore(
    target: &ObjectStorage,
    to: &Path,
    options: &RestoreOptions,
    mut report: impl FnMut(Progress),
) -> Result<RestoreOutcome, BackupError> {
    let chosen = choose(target, options).await?;
    let alone = lock_folder(to)?;
    let staging = prepare_folder(to)?;
    let made = make(target, &staging, &chosen, options, &mut report).await;
    match made {
        Ok(restored) => {
            finish(to, &staging).map_err(|error| BackupError::store(to, error))?;
            drop(alone);
            Ok(restored)
        }
        Err(error) => {
            // An incomplete store is of no use and takes space.
            let _ = disk::remove(&staging);
            Err(error)
        }
    }
}

/// The generation to restore, and the known erasures.
struct RestoreSource {
    manifest: Manifest,
    erasures: Vec<ErasureEntry>,
    unread: Vec<u64>,
}

async fn choose(
    target: &ObjectStorage,
    options: &RestoreOptions,
) -> Result<RestoreSource, BackupError> {
    let store = one_store(target, options.store).await?;
    let there = generations(target, store).await?;
    let key = options.key.as_ref();
    let Some(newest) = there.last() else {
        return Err(BackupError::NoBackup {
            address: target.address().to_owned(),
        });
    };
    let number = options.generation.unwrap_or(newest.number);
    if !there.iter().any(|generation| generation.number == number) {
        let what = format!(
            "no generation {number} of store {store} in {}; `treering backup ls` lists the \
             generations",
            target.address()
        );
        return Err(BackupError::NoSuchPlace { what });
    }
    let manifest = Manifest::get(target, store, number, key).await?;
    let mut chosen = RestoreSource {
        erasures: manifest.erasures.clone(),
        unread: Vec::new(),
        manifest,
    };
    chosen.collect_newer_erasures(target, key, &there).await?;
    Ok(chosen)
}

impl RestoreSource {
    /// Collects erasures: the newest readable generation lists all of them.
    async fn collect_newer_erasures(
        &mut self,
        target: &ObjectStorage,
        key: Option<&EncryptionKey>,
        there: &[Generation],
    ) -> Result<(), BackupError> {
        let newer = there.iter().rev();
        let newer = newer.take_while(|generation| generation.number > self.manifest.generation);
        for generation in newer {
            let read = Manifest::get(target, self.manifest.store, generation.number, key).await;
            match read {
                Ok(newer) => {
                    self.erasures = newer.erasures;
                    return Ok(());
                }
                Err(BackupError::Damaged { .. } | BackupError::Missing { .. }) => {
                    self.unread.push(generation.number);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Locks a folder against other restores; creates it if it is missing.
fn lock_folder(to: &Path) -> Result<File, BackupError> {
    let failed = |error: io::Error| BackupError::store(to, error);
    // Nothing is written into a folder with other contents.
    check_folder(to)?;
    disk::make_folder(to).map_err(failed)?;
    let mut lock = disk::file_options().open(to.join(LOCK)).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(BackupError::RestoreRuns {
                path: to.to_owned(),
            });
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    // Records who holds the lock, for other processes that want it.
    lock.set_len(0).map_err(failed)?;
    writeln!(lock, "pid {}", std::process::id()).map_err(failed)?;
    Ok(lock)
}

/// Returns the entries that an interrupted restore has moved into the folder. Errors if the folder
/// has other contents.
fn check_folder(to: &Path) -> Result<Vec<PathBuf>, BackupError> {
    let failed = |error: io::Error| BackupError::store(to, error);
    let moved = find_interrupted_moves(&to.join(STAGING)).map_err(failed)?;
    let mut left = Vec::new();
    match fs::read_dir(to) {
        Ok(entries) => {
            for entry in entries {
                let name = entry.map_err(failed)?.file_name();
                if moved.iter().any(|moved| name == **moved) {
                    left.push(to.join(name));
                } else if name != STAGING && name != LOCK {
                    return Err(BackupError::NotEmpty {
                        path: to.to_owned(),
                    });
                }
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    Ok(left)
}

/// Creates the folder in which the store is built. Removes the entries that an interrupted restore
/// moved into place. They are not a store, since the log is moved last.
fn prepare_folder(to: &Path) -> Result<PathBuf, BackupError> {
    let failed = |error: io::Error| BackupError::store(to, error);
    let staging = to.join(STAGING);
    for path in check_folder(to)? {
        disk::remove(&path).map_err(failed)?;
    }
    disk::remove(&staging).map_err(failed)?;
    disk::make_folder(&staging).map_err(failed)?;
    Ok(staging)
}

/// Returns the names of the entries that an interrupted restore moved or was about to move.
fn find_interrupted_moves(staging: &Path) -> io::Result<Vec<String>> {
    let names = match fs::read_to_string(staging.join(MOVING)) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let names = names.lines().filter(|name| *name != LOG_FOLDER);
    Ok(names.map(str::to_owned).collect())
}

/// Moves the store to its place. The log is moved last, because it makes a folder a store.
fn finish(to: &Path, staging: &Path) -> io::Result<()> {
    for name in to_move(staging)? {
        disk::rename(&staging.join(&name), &to.join(&name))?;
    }
    move_log(to, staging)
}

/// Records the entries to be moved, for the next restore if this one is interrupted.
fn to_move(staging: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(staging)? {
        let name = entry?.file_name().into_string();
        let name = name.map_err(|_| io::Error::other("a file name is not valid UTF-8"))?;
        if ![LOG_FOLDER, LOCK, MOVING].contains(&&*name) {
            names.push(name);
        }
    }
    disk::write(&staging.join(MOVING), names.join("\n").as_bytes())?;
    Ok(names)
}

fn move_log(to: &Path, staging: &Path) -> io::Result<()> {
    disk::rename(&staging.join(LOG_FOLDER), &to.join(LOG_FOLDER))?;
    disk::remove(staging)
}

async fn make(
    target: &ObjectStorage,
    staging: &Path,
    chosen: &RestoreSource,
    options: &RestoreOptions,
    report: &mut impl FnMut(Progress),
) -> Result<RestoreOutcome, BackupError> {
    let manifest = &chosen.manifest;
    let objects = Objects {
        target,
        store: manifest.store,
        key: options.key.as_ref(),
    };
    let mut making = LogBuilder::start(staging, &chosen.erasures).await?;
    check_cut(manifest, options.cut)?;
    for object in &manifest.objects {
        if matches!(options.cut, RestoreTo::Position(position) if position < object.first) {
            break;
        }
        let read = objects.read(object).await?;
        let records = read.records(object.first, object.last.offset);
        let mut records = records.map_err(|what| objects.damaged(object, what))?;
        let is_cut = cut_off(&mut records, options.cut);
        making.object(&objects, object, records, read).await?;
        report(Progress {
            what: "events",
            done: making.events,
            total: manifest.head(),
        });
        if is_cut {
            break;
        }
    }
    if making.events == 0 && manifest.head() > 0 {
        return Err(check_unmoved(manifest, options.cut));
    }
    let erased = making.record_erasures(&chosen.erasures).await?;
    let restored = making.end(manifest, erased, chosen.unread.clone()).await?;
    let pseudonyms = check(staging).await?;
    Ok(RestoreOutcome {
        pseudonyms,
        ..restored
    })
}

fn check_cut(manifest: &Manifest, cut: RestoreTo) -> Result<(), BackupError> {
    match cut {
        RestoreTo::Position(position) if position > manifest.head() => {
            Err(BackupError::NoSuchPlace {
                what: format!(
                    "generation {} ends at position {}, before {position}",
                    manifest.generation,
                    manifest.head()
                ),
            })
        }
        _ => Ok(()),
    }
}

fn check_unmoved(manifest: &Manifest, cut: RestoreTo) -> BackupError {
    let what = match cut {
        RestoreTo::Position(position) => format!(
            "no batch ends at or before position {position}: the first batch is longer, and \
             batches are restored only as a whole"
        ),
        RestoreTo::Time(_) | RestoreTo::End => format!(
            "generation {} has no events recorded by then",
            manifest.generation
        ),
    };
    BackupError::NoSuchPlace { what }
}

/// Drops the records after the cut, and the batch that the cut divides. Returns true if there were
/// any.
fn cut_off(records: &mut Vec<(u64, Record)>, cut: RestoreTo) -> bool {
    let kept = match cut {
        RestoreTo::End => return false,
        RestoreTo::Time(time) => {
            let behind = |(_, record): &(u64, Record)| record.header.recorded_at > time;
            records.iter().position(behind).unwrap_or(records.len())
        }
        RestoreTo::Position(position) => {
            let kept = records.partition_point(|(offset, _)| *offset <= position);
            let time = |at: usize| records[at].1.header.recorded_at;
            match kept {
                0 => 0,
                _ if kept == records.len() || time(kept) != time(kept - 1) => kept,
                _ => last_batch(&records[..kept]),
            }
        }
    };
    let is_cut = kept < records.len();
    records.truncate(kept);
    is_cut
}

/// Checks that the new store opens and is sound. Returns true if it has pseudonyms.
async fn check(staging: &Path) -> Result<bool, BackupError> {
    let options = OpenOptions {
        // Backups do not contain the key of the pseudonyms.
        only_checked: true,
        ..OpenOptions::new(staging).existing()
    };
    let opened = Engine::open(options).await;
    let engine = opened.map_err(|error| BackupError::store(staging, error))?;
    let (is_whole, pseudonyms) = (engine.is_whole(), engine.has_pseudonyms());
    engine.close().await;
    let pseudonyms = pseudonyms.map_err(|error| BackupError::store(staging, error))?;
    match is_whole {
        Ok(true) => Ok(pseudonyms),
        Ok(false) => Err(BackupError::store(staging, "it has damaged conversations")),
        Err(error) => Err(BackupError::store(staging, error)),
    }
}

/// The new log under construction. Its records have the same positions as in the old log.
struct LogBuilder {
    folder: PathBuf,
    filler: LogFiller<RedbLog>,
    walk: Walk,
    /// Events to erase.
    erase: HashMap<ConversationKey, BTreeSet<Revision>>,
    /// Stubs of these events, and of those that were erased earlier.
    stubs: HashMap<ConversationKey, BTreeMap<Revision, Bytes>>,
    /// For each large body, by home offset: the object that holds it.
    held_by: HashMap<u64, Arc<Object>>,
    events: u64,
    erased: u64,
    last_recorded_at: Option<TimestampMicros>,
}

impl LogBuilder {
    async fn start(folder: &Path, erasures: &[ErasureEntry]) -> Result<Self, BackupError> {
        let failed = |error: LogError| BackupError::store(folder, error);
        let log = RedbLog::open(folder, RedbLogOptions::default(), OpenMode::Create);
        let log = log.map_err(failed)?;
        let filler = LogFiller::start(log).await.map_err(failed)?;
        let mut erase: HashMap<_, BTreeSet<_>> = HashMap::new();
        for erased in erasures {
            let of = erase.entry(erased.key()?).or_default();
            of.extend(erased.revisions());
        }
        Ok(Self {
            folder: folder.to_owned(),
            filler,
            walk: Walk::default(),
            erase,
            stubs: HashMap::new(),
            held_by: HashMap::new(),
            events: 0,
            erased: 0,
            last_recorded_at: None,
        })
    }

    fn failed(&self, error: LogError) -> BackupError {
        BackupError::store(&self.folder, error)
    }

    /// Adds the records of an object. No batch spans two objects.
    async fn object(
        &mut self,
        objects: &Objects<'_>,
        object: &Object,
        records: Vec<(u64, Record)>,
        read: ParsedObject,
    ) -> Result<(), BackupError> {
        for (offset, record) in &records {
            let checked = self.walk.record(*offset, record, &read);
            checked.map_err(|what| objects.damaged(object, what))?;
        }
        if !read.blobs.is_empty() {
            let holder = Arc::new(object.clone());
            let homes = read.blobs.keys();
            self.held_by
                .extend(homes.map(|home| (*home, Arc::clone(&holder))));
        }
        let unsalted = self.keys_to_unsalt(&records);
        for ((offset, record), unsalt) in records.into_iter().zip(unsalted) {
            self.last_recorded_at = Some(record.header.recorded_at);
            let record = if unsalt {
                record.without_key_salt()
            } else {
                record
            };
            let record = self.without_erased(objects, object, &read, record).await?;
            self.take(objects, offset, record, &read).await?;
        }
        Ok(())
    }

    fn is_erased(&self, record: &Record) -> bool {
        let of = self.erase.get(&record.header.key());
        of.is_some_and(|revisions| revisions.contains(&record.header.revision))
    }

    /// For each record, returns whether the batch of its idempotency key has an erased event.
    fn keys_to_unsalt(&self, records: &[(u64, Record)]) -> Vec<bool> {
        let all = records.iter().enumerate();
        let unsalt = all.map(|(at, (_, record))| {
            let Some(key) = &record.append_key else {
                return false;
            };
            let mut batch = records[at..].iter().take(key.events as usize);
            batch.any(|(_, record)| self.is_erased(record))
        });
        unsalt.collect()
    }

    /// Returns the record, or its stub if it is to be erased.
    async fn without_erased(
        &mut self,
        objects: &Objects<'_>,
        object: &Object,
        read: &ParsedObject,
        record: Record,
    ) -> Result<Record, BackupError> {
        if !self.is_erased(&record) {
            return Ok(record);
        }
        let (conversation, revision) = (record.header.key(), record.header.revision);
        let stub = match &record.body {
            RecordBody::Stub(stub) => stub.bytes.clone(),
            RecordBody::Inline(bytes) => self.stub(objects, object, &record, bytes)?,
            RecordBody::Blob(blob) => {
                let home = blob.home_offset;
                let bytes = self.large_body(objects, home, read).await?;
                self.stub(objects, object, &record, &bytes)?
            }
        };
        let of = self.stubs.entry(conversation).or_default();
        of.insert(revision, stub.clone());
        if record.is_erased() {
            return Ok(record);
        }
        self.erased += 1;
        Ok(record.erased(stub))
    }

    fn stub(
        &self,
        objects: &Objects<'_>,
        object: &Object,
        record: &Record,
        bytes: &Bytes,
    ) -> Result<Bytes, BackupError> {
        let header = &record.header;
        let kind = header.kind().ok_or_else(|| {
            objects.damaged(
                object,
                "it has an event of a newer version of treering that must be erased: restore it \
                 with that version",
            )
        })?;
        let body = treering_proto::body::decode(kind, bytes);
        let body = body.map_err(|fault| objects.damaged(object, fault.to_string()))?;
        Ok(treering_proto::body::stub(&body, header.branch))
    }

    /// Returns a large body from this object or an earlier one.
    async fn large_body(
        &self,
        objects: &Objects<'_>,
        home: u64,
        read: &ParsedObject,
    ) -> Result<Bytes, BackupError> {
        if let Some(bytes) = read.blobs.get(&home) {
            return Ok(bytes.clone());
        }
        let missing = || {
            BackupError::store(
                &self.folder,
                format!("no object has the large body with home offset {home}"),
            )
        };
        let earlier = self.held_by.get(&home).ok_or_else(missing)?;
        let read = objects.read(earlier).await?;
        read.blobs.get(&home).cloned().ok_or_else(missing)
    }

    async fn take(
        &mut self,
        objects: &Objects<'_>,
        offset: u64,
        record: Record,
        read: &ParsedObject,
    ) -> Result<(), BackupError> {
        debug_assert_eq!(offset, self.filler.next());
        if let RecordBody::Blob(blob) = &record.body {
            let namespace = &record.header.namespace;
            if self.filler.home(namespace, blob).is_none() {
                let bytes = self.large_body(objects, blob.home_offset, read).await?;
                let is_like = tags::is_like_another(record.header.kind, &bytes);
                self.filler.keep(&record.header, blob, bytes, is_like);
            }
        }
        self.events += 1;
        self.push(record).await
    }

    async fn push(&mut self, record: Record) -> Result<(), BackupError> {
        let pushed = self.filler.push(record).await;
        pushed.map_err(|error| self.failed(error))
    }

    /// Appends events for the erasures after the cut. Returns how many events were erased.
    async fn record_erasures(&mut self, erasures: &[ErasureEntry]) -> Result<u64, BackupError> {
        let mut now = TimestampMicros::now();
        for erased in erasures {
            if erased.position <= self.events {
                continue;
            }
            now = TimestampMicros(now.0.max(self.last_recorded_at.map_or(0, |last| last.0)) + 1);
            if let Some(record) = self.erasure(erased, now)? {
                self.push(record).await?;
            }
        }
        Ok(self.erased)
    }

    fn erasure(
        &mut self,
        erased: &ErasureEntry,
        now: TimestampMicros,
    ) -> Result<Option<Record>, BackupError> {
        let id = erased.key()?;
        let (Some(known), Some(stubs)) =
            (self.walk.conversations.get_mut(&id), self.stubs.get(&id))
        else {
            return Ok(None);
        };
        let of_it = erased.revisions();
        let of_it = of_it.filter_map(|revision| Some((revision, stubs.get(&revision)?)));
        let (revisions, stubs): (Vec<Revision>, Vec<&Bytes>) = of_it.unzip();
        if revisions.is_empty() {
            return Ok(None);
        }
        let body = treering_proto::body::encode(&EventBody::ContentErased {
            revisions,
            reason: erased.reason.clone(),
            stubs: Some(hash_of_stubs(stubs.into_iter().map(|stub| &stub[..]))),
            // An erasure that a restore repeats has no receipt.
            signed_by: None,
        });
        // A branch id is the revision of the event that forked it.
        let has_branch = erased.branch <= known.head.0;
        let header = EventHeader {
            id: EventId::generate(),
            namespace: erased.namespace()?,
            conversation: id.id,
            branch: if has_branch {
                BranchId(erased.branch)
            } else {
                BranchId::MAIN
            },
            revision: known.head.next(),
            kind: EventKind::ContentErased.number(),
            recorded_at: now,
            occurred_at: Some(TimestampMicros(erased.recorded_at)),
            actor: erased.actor.clone(),
            causation_id: None,
            correlation_id: String::new(),
        };
        let hash = Salt::random().hash(Record::hash_body(&body));
        let record = Record::seal(known.chain, header, RecordBody::Inline(body), hash, None);
        let record = record.map_err(|error| BackupError::store(&self.folder, error))?;
        known.head = known.head.next();
        known.chain = record.chain_hash();
        Ok(Some(record))
    }

    async fn end(
        mut self,
        manifest: &Manifest,
        erased: u64,
        unread: Vec<u64>,
    ) -> Result<RestoreOutcome, BackupError> {
        let closed = self.filler.close().await;
        closed.map_err(|error| self.failed(error))?;
        Ok(RestoreOutcome {
            store: manifest.store,
            new_store: self.filler.log().identity().store,
            generation: manifest.generation,
            events: self.events,
            events_in_generation: manifest.head(),
            conversations: self.walk.conversations.len() as u64,
            last_recorded_at: self.last_recorded_at,
            erased,
            unread,
            pseudonyms: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    // A restore that is killed before it has moved the log leaves a folder that is not a store. The
    // next restore must accept this folder, wherever the first was killed. A folder with foreign
    // files must be refused and left unchanged.
    #[tokio::test]
    async fn killed_restore_can_be_run_again() {
        let dir = tempfile::tempdir().unwrap();
        for moved in 0.. {
            let to = dir.path().join(format!("to{moved}"));
            let staging = prepare_folder(&to).unwrap();
            let engine = Engine::open(OpenOptions::new(&staging)).await.unwrap();
            engine.close().await;
            let parts = to_move(&staging).unwrap();
            assert!(!parts.is_empty() && !parts.contains(&LOG_FOLDER.to_owned()));
            for name in parts.iter().take(moved) {
                disk::rename(&staging.join(name), &to.join(name)).unwrap();
            }
            let theirs = to.join("notes.txt");
            fs::write(&theirs, "mine").unwrap();
            let refused = prepare_folder(&to).unwrap_err();
            assert!(matches!(refused, BackupError::NotEmpty { .. }), "{refused}");
            assert_eq!(names(&to).len(), moved.min(parts.len()) + 2);
            fs::remove_file(theirs).unwrap();

            prepare_folder(&to).unwrap();
            assert_eq!(names(&to), [STAGING]);
            assert!(names(&staging).is_empty());
            if moved >= parts.len() {
                break;
            }
        }
    }

    // Once its log is in place, the folder is a store, and no later restore may remove it.
    #[tokio::test]
    async fn restore_refuses_a_folder_with_a_log() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to");
        let staging = prepare_folder(&to).unwrap();
        let engine = Engine::open(OpenOptions::new(&staging)).await.unwrap();
        engine.close().await;
        for name in to_move(&staging).unwrap() {
            disk::rename(&staging.join(&name), &to.join(&name)).unwrap();
        }
        disk::rename(&staging.join(LOG_FOLDER), &to.join(LOG_FOLDER)).unwrap();
        let refused = prepare_folder(&to).unwrap_err();
        assert!(matches!(refused, BackupError::NotEmpty { .. }), "{refused}");
        let opened = Engine::open(OpenOptions::new(&to).existing()).await;
        opened.unwrap().close().await;
    }
}
