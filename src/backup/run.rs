//! Makes backups: writes new records as objects, then a manifest that names them. If content was
//! erased after it was backed up, the objects that hold it are rewritten.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use futures::StreamExt;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use super::{
    content::ObjectContent,
    error::BackupError,
    manifest::{
        self, ErasureEntry, Generation, Manifest, Object, RecordMark, generations, other_store,
        stores,
    },
    seal::EncryptionKey,
    source::BackupSource,
    uploads::Uploads,
};
use treering_domain::{TimestampMicros, with_causes};
use treering_engine::{BackupNote, ShipMark, ShipQuery, ShipmentItem};
use treering_objects::{ObjectEntry, ObjectStorage};

/// Size in bytes, before compression, at which an object is complete.
const OBJECT_BYTES: usize = 16 << 20;
/// While following, delay between seeing new records and writing them.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// A long backup writes a manifest this often, so that it can continue from there after a failure.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);
/// A backup that follows the log writes small objects; this many are joined into one.
const SMALL_MAX: usize = 32;
/// Size in bytes, before compression, below which an object is small.
const SMALL_BYTES: u64 = OBJECT_BYTES as u64 / 2;
/// Delay before removing small objects that were joined: a restore may be reading them.
const REMOVE_AFTER: Duration = Duration::from_secs(3_600);
/// While following, one generation is kept for each interval of this length, in microseconds.
const KEPT_EVERY_MICROS: i64 = 3_600_000_000;
/// While following, interval at which the store is told what its backup contains.
const NOTE_EVERY: Duration = Duration::from_secs(60);
/// While following, interval of the search for objects that no generation names and that may hold
/// erased content.
const LOOK_FOR_STRAYS_EVERY: Duration = Duration::from_secs(3_600);
/// An offset past the end of any log, to ask only for the log's identity.
const PAST_ANY_OFFSET: u64 = u64::MAX;

/// Options of a backup.
#[derive(Clone, Debug, Default)]
pub struct BackupOptions {
    /// Key that encrypts all objects.
    pub key: Option<EncryptionKey>,
    /// Continue with records that are appended later.
    pub follow: bool,
}

/// Progress of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupStep {
    /// The target already has a backup.
    Found {
        /// The last offset in it.
        head: u64,
    },
    /// Records were sent.
    Shipped {
        /// The last offset.
        done: u64,
        /// The log's last offset.
        total: u64,
    },
    /// A generation was written.
    Generation {
        /// Its number.
        number: u64,
        /// The last offset in it.
        head: u64,
        /// Whether there is nothing more to back up now.
        is_all: bool,
    },
}

/// The outcome of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupOutcome {
    /// The store.
    pub store: Uuid,
    /// The newest generation.
    pub generation: u64,
    /// Whether this backup wrote it.
    pub is_new: bool,
    /// The last offset in it.
    pub head: u64,
    /// Offset of the last event that records an erasure.
    pub clean_to: u64,
    /// Records that were written.
    pub events: u64,
    /// Objects that were written, rewritten ones included.
    pub objects: u64,
    /// Bytes that were written, as stored.
    pub bytes: u64,
    /// Size of the generation in bytes, as stored.
    pub bytes_total: u64,
    /// Objects that were rewritten because they held erased content.
    pub cleaned: u64,
    /// Generations that were removed because they held erased content.
    pub removed: Vec<u64>,
    /// Generations of another timeline of the log that hold erased content and cannot be rewritten.
    pub still_hold: Vec<u64>,
    /// Unreadable generations, whose content is unknown.
    pub unread: Vec<u64>,
    /// Objects that were missing or truncated, and were written again.
    pub gone: u64,
}

/// A backup of a store to a target.
pub struct Backup<'a> {
    source: &'a dyn BackupSource,
    target: &'a ObjectStorage,
    options: &'a BackupOptions,
    /// The generation under construction.
    next: Manifest,
    /// The newest existing generation.
    base: Option<ObjectEntry>,
    /// The highest existing number.
    last_number: u64,
    /// Whether `next` differs from the newest generation.
    is_changed: bool,
    /// Whether objects that the newest generation does not name may hold erased content.
    has_strays: bool,
    /// When such objects were last searched for.
    strays_at: Instant,
    /// Erasures whose content some objects may still hold.
    to_erase: Vec<ErasureEntry>,
    /// For each object that this backup wrote, by hash: the log offset up to which erasures are
    /// applied.
    clean_to: HashMap<String, u64>,
    /// The last generation that this backup wrote.
    own: Option<Manifest>,
    /// Names of objects in generations that are kept.
    pinned: HashSet<String>,
    /// Objects that were replaced, and when.
    replaced: Vec<(String, Instant)>,
    noted: Option<Instant>,
    outcome: BackupOutcome,
}

impl<'a> Backup<'a> {
    /// Finds the store's newest generation, and the last position that it has in common with the
    /// log.
    ///
    /// # Errors
    /// [`BackupError`].
    pub async fn start(
        source: &'a dyn BackupSource,
        target: &'a ObjectStorage,
        options: &'a BackupOptions,
    ) -> Result<Self, BackupError> {
        let was_there = source.was_backed_up_to(target.address()).await;
        Self::start_at(source, target, options, was_there).await
    }

    /// Like `start`; `was_there` tells whether the target is known to have had a backup of this
    /// store.
    pub(super) async fn start_at(
        source: &'a dyn BackupSource,
        target: &'a ObjectStorage,
        options: &'a BackupOptions,
        was_there: bool,
    ) -> Result<Self, BackupError> {
        let start = ask(source, PAST_ANY_OFFSET).await?;
        let store = start.identity.store;
        let mut there = generations(target, store).await?;
        if there.is_empty() && was_there {
            let others = stores(target).await?;
            if !others.is_empty() && !others.contains(&store) {
                return Err(other_store(target, store, &others));
            }
        }
        let (next, unread) = newest_readable(target, store, &there, options.key.as_ref()).await?;
        let next = next.unwrap_or_else(|| Manifest::first(store, start.identity.timeline));
        let has_unread = !unread.is_empty();
        let newest = there.pop();
        let mut backup = Self {
            source,
            target,
            options,
            outcome: BackupOutcome {
                store,
                generation: next.generation,
                unread,
                ..BackupOutcome::default()
            },
            pinned: names(&next),
            is_changed: has_unread,
            has_strays: false,
            strays_at: Instant::now(),
            last_number: newest.as_ref().map_or(0, |newest| newest.number),
            base: newest.map(|newest| newest.object),
            to_erase: Vec::new(),
            clean_to: HashMap::new(),
            own: None,
            replaced: Vec::new(),
            noted: None,
            next,
        };
        backup.find_strays().await?;
        backup.drop_missing_objects().await?;
        backup.find_common().await?;
        if backup.next.timeline != start.identity.timeline {
            backup.next.timeline = start.identity.timeline;
            backup.is_changed = true;
        }
        Ok(backup)
    }

    /// Finds objects that the newest generation does not name and that may hold erased content,
    /// because their writer died or was overtaken. If one of them is not older than the newest
    /// generation, a new generation is written, and the object is then removed.
    async fn find_strays(&mut self) -> Result<(), BackupError> {
        self.strays_at = Instant::now();
        if self.next.erasures.is_empty() {
            return Ok(());
        }
        let below = records_of(self.next.store);
        let mut there = self.target.list(&below).await?;
        there.extend(self.target.unfinished(&below)?);
        let named = names(&self.next);
        let is_stray = |object: &&ObjectEntry| {
            let mut erasures = self.next.erasures.iter();
            !named.contains(&object.name)
                && manifest::range_of(&object.name).is_some_and(|[first, last]| {
                    let within = |[from, to]: &[u64; 2]| *from <= last && first <= *to;
                    erasures.any(|erased| erased.offsets.iter().any(within))
                })
        };
        let newest = self.base.as_ref().map(|base| base.modified);
        let is_late = |object: &ObjectEntry| newest.is_none_or(|newest| object.modified >= newest);
        let strays: Vec<&ObjectEntry> = there.iter().filter(is_stray).collect();
        self.has_strays |= !strays.is_empty();
        self.is_changed |= strays.into_iter().any(is_late);
        Ok(())
    }

    /// Drops from the next generation the objects that the target no longer has, or has only in
    /// part, so that they are written again.
    async fn drop_missing_objects(&mut self) -> Result<(), BackupError> {
        let store = self.next.store;
        let listed = self.target.list(&records_of(store)).await?;
        let there: HashMap<_, _> = listed.iter().map(|o| (o.name.as_str(), o.bytes)).collect();
        let is_gone =
            |object: &Object| there.get(object.name(store).as_str()) != Some(&object.bytes);
        let gone = self
            .next
            .objects
            .iter()
            .filter(|object| is_gone(object))
            .count();
        let Some(first) = self.next.objects.iter().position(is_gone) else {
            return Ok(());
        };
        self.outcome.gone = gone as u64;
        self.keep_objects(first);
        // Drop the erasures after the remaining records: they are reported again when the later
        // records are read again.
        let head = self.next.head();
        self.next.erasures.retain(|erased| erased.position <= head);
        Ok(())
    }

    /// Drops records that the log no longer has, because their loss was accepted or the store is an
    /// older copy.
    async fn find_common(&mut self) -> Result<(), BackupError> {
        let Some(mark) = self.next.mark.clone() else {
            return Ok(());
        };
        if self.log_has(&mark).await? {
            return Ok(());
        }
        let (mut has, mut lacks) = (0, self.next.objects.len());
        while has < lacks {
            let middle = usize::midpoint(has, lacks);
            let last = self.next.objects[middle].last.clone();
            match self.log_has(&last).await? {
                true => has = middle + 1,
                false => lacks = middle,
            }
        }
        self.keep_objects(has);
        self.next.begin_timeline();
        let head = self.next.head();
        for erased in &mut self.next.erasures {
            erased.position = erased.position.min(head);
        }
        Ok(())
    }

    fn keep_objects(&mut self, count: usize) {
        self.next.objects.truncate(count);
        self.next.mark = self.next.objects.last().map(|object| object.last.clone());
        self.is_changed = true;
    }

    async fn log_has(&self, mark: &RecordMark) -> Result<bool, BackupError> {
        let start = ask(self.source, mark.offset + 1).await?;
        Ok(start.before.is_some_and(|before| mark.is(&before)))
    }

    /// Backs up all records. With [`BackupOptions::follow`], continues with later ones until an
    /// error. [`outcome`](Self::outcome) returns what was done so far.
    ///
    /// # Errors
    /// [`BackupError`]. The newest existing generation stays unchanged.
    pub async fn run(&mut self, mut report: impl FnMut(BackupStep)) -> Result<(), BackupError> {
        let key = self.options.key.as_ref();
        let mut uploads = Uploads::new(self.target, self.next.store, key);
        let query = ShipQuery {
            from: self.next.head() + 1,
            to: None,
            follow: self.options.follow,
        };
        let mut items = self.source.ship(query).await?;
        report(BackupStep::Found {
            head: self.next.head(),
        });
        let mut gathering = PendingObject::new(self.next.head() + 1, self.every());
        loop {
            let item = tokio::select! {
                item = items.next() => item,
                () = gathering.is_due() => {
                    self.put_rest(&mut gathering, &mut uploads).await?;
                    self.commit(&mut gathering, &mut report).await?;
                    continue;
                }
            };
            let Some(item) = item else { break };
            gathering.take(item?);
            if gathering.is_at_end && gathering.content.raw.len() >= OBJECT_BYTES {
                gathering.put(&mut uploads).await?;
            }
            if gathering.is_at_end {
                report(BackupStep::Shipped {
                    done: gathering.next - 1,
                    total: gathering.total.max(gathering.next - 1),
                });
            }
        }
        self.put_rest(&mut gathering, &mut uploads).await?;
        self.commit(&mut gathering, &mut report).await
    }

    /// Returns what was done so far.
    #[must_use]
    pub fn outcome(&self) -> BackupOutcome {
        BackupOutcome {
            head: self.next.head(),
            clean_to: self.next.clean_to(),
            bytes_total: self.next.objects.iter().map(|object| object.bytes).sum(),
            ..self.outcome.clone()
        }
    }

    fn every(&self) -> Duration {
        match self.options.follow {
            true => FOLLOW_EVERY,
            false => CHECKPOINT_EVERY,
        }
    }

    /// Writes the gathered records and adds them to the next generation.
    async fn put_rest(
        &mut self,
        gathering: &mut PendingObject,
        uploads: &mut Uploads,
    ) -> Result<(), BackupError> {
        gathering.put(uploads).await?;
        for object in uploads.take().await? {
            self.outcome.events += object.last.offset + 1 - object.first;
            self.count(&object);
            self.clean_to
                .insert(object.blake3.clone(), gathering.log_at_start);
            self.next.mark = Some(object.last.clone());
            self.next.objects.push(object);
            self.is_changed = true;
        }
        let erasures = std::mem::take(&mut gathering.erasures);
        self.to_erase.extend(erasures.iter().cloned());
        self.next.erasures.extend(erasures);
        Ok(())
    }

    fn count(&mut self, object: &Object) {
        self.outcome.objects += 1;
        self.outcome.bytes += object.bytes;
    }

    /// Writes a generation if anything changed.
    async fn commit(
        &mut self,
        gathering: &mut PendingObject,
        report: &mut impl FnMut(BackupStep),
    ) -> Result<(), BackupError> {
        gathering.due = None;
        if self.strays_at.elapsed() >= LOOK_FOR_STRAYS_EVERY {
            self.find_strays().await?;
        }
        self.rewrite_erased().await?;
        self.join_small().await?;
        let is_new = self.is_changed || self.base.is_none();
        if is_new {
            // The number of an unreadable generation must not be reused.
            self.next.generation = self.next.generation.max(self.last_number) + 1;
            self.next.made_at = TimestampMicros::now().0;
            self.next.made_by = env!("CARGO_PKG_VERSION").to_owned();
            self.next.to_clean = self.next.to_clean || !self.to_erase.is_empty();
            let key = self.options.key.as_ref();
            let (bytes, listed) = self.next.put(self.target, key).await?;
            self.base = Some(listed);
            self.outcome.bytes += bytes;
            self.outcome.generation = self.next.generation;
            self.outcome.is_new = true;
            self.is_changed = false;
        }
        if self.next.to_clean || self.has_strays {
            self.remove_unclean().await?;
            self.next.to_clean = false;
            self.has_strays = false;
        }
        self.to_erase.clear();
        if is_new {
            self.remove_previous().await?;
            self.own = Some(self.next.clone());
            report(BackupStep::Generation {
                number: self.next.generation,
                head: self.next.head(),
                is_all: gathering.is_all,
            });
        }
        self.note().await;
        Ok(())
    }

    /// Rewrites objects that hold erased content.
    async fn rewrite_erased(&mut self) -> Result<(), BackupError> {
        if self.to_erase.is_empty() {
            return Ok(());
        }
        let touched = |object: &Object| {
            let clean_to = self.clean_to.get(&object.blake3).copied().unwrap_or(0);
            let mut erased = self.to_erase.iter();
            erased.any(|erased| erased.position > clean_to && object.is_touched(&erased.offsets))
        };
        let which: Vec<bool> = self.next.objects.iter().map(touched).collect();
        let objects = std::mem::take(&mut self.next.objects);
        for (object, is_touched) in objects.into_iter().zip(which) {
            if !is_touched {
                self.next.objects.push(object);
                continue;
            }
            let anew = self.reread_range(object.first, object.last.offset).await?;
            self.outcome.cleaned += anew.len() as u64;
            self.next.objects.extend(anew);
            self.is_changed = true;
        }
        Ok(())
    }

    /// Reads a range from the store again and writes it.
    async fn reread_range(&mut self, first: u64, last: u64) -> Result<Vec<Object>, BackupError> {
        let key = self.options.key.as_ref();
        let mut uploads = Uploads::new(self.target, self.next.store, key);
        let query = ShipQuery {
            from: first,
            to: Some(last),
            follow: false,
        };
        let mut items = self.source.ship(query).await?;
        let mut gathering = PendingObject::new(first, CHECKPOINT_EVERY);
        while let Some(item) = items.next().await {
            gathering.take(item?);
            if gathering.is_at_end && gathering.content.raw.len() >= OBJECT_BYTES {
                gathering.put(&mut uploads).await?;
            }
        }
        gathering.put(&mut uploads).await?;
        let objects = uploads.take().await?;
        if objects.last().map(|object| object.last.offset) != Some(last) {
            return Err(BackupError::internal(
                "rereading records",
                format!("the store no longer returns records {first} to {last}"),
            ));
        }
        for object in &objects {
            self.count(object);
            self.clean_to
                .insert(object.blake3.clone(), gathering.log_at_start);
        }
        Ok(objects)
    }

    /// Joins the small objects at the end when there are many.
    async fn join_small(&mut self) -> Result<(), BackupError> {
        let objects = self.next.objects.iter().rev();
        let small = objects.take_while(|object| object.raw_bytes < SMALL_BYTES);
        let small = small.count();
        if small < SMALL_MAX {
            return self.remove_replaced().await;
        }
        let from = self.next.objects.len() - small;
        let (first, last) = (self.next.objects[from].first, self.next.head());
        let anew = self.reread_range(first, last).await?;
        let store = self.next.store;
        let replaced = self.next.objects.drain(from..);
        let now = Instant::now();
        self.replaced
            .extend(replaced.map(|object| (object.name(store), now)));
        self.next.objects.extend(anew);
        self.is_changed = true;
        self.remove_replaced().await
    }

    async fn remove_replaced(&mut self) -> Result<(), BackupError> {
        while let Some((name, since)) = self.replaced.first() {
            if since.elapsed() < REMOVE_AFTER {
                break;
            }
            if !self.pinned.contains(name) {
                self.target.remove(name).await?;
            }
            self.replaced.remove(0);
        }
        Ok(())
    }

    /// Removes generations that hold erased content, then their objects.
    async fn remove_unclean(&mut self) -> Result<(), BackupError> {
        let (store, key) = (self.next.store, self.options.key.as_ref());
        let mut named = names(&self.next);
        self.outcome.still_hold.clear();
        self.outcome.unread.clear();
        let mut unnamed = HashSet::new();
        for generation in generations(self.target, store).await? {
            if generation.number >= self.next.generation {
                continue;
            }
            let older = match Manifest::get(self.target, store, generation.number, key).await {
                Ok(older) => older,
                // An unreadable generation must not prevent the removal of others.
                Err(BackupError::Damaged { .. } | BackupError::Missing { .. }) => {
                    self.outcome.unread.push(generation.number);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let holds = older.holds_of(&self.next).next().is_some();
            let is_contained = self.next.contains(&older);
            match (holds, is_contained) {
                (true, true) => {
                    self.target.remove(&generation.object.name).await?;
                    self.outcome.removed.push(generation.number);
                    unnamed.extend(names(&older));
                }
                (true, false) => {
                    self.outcome.still_hold.push(generation.number);
                    named.extend(names(&older));
                }
                (false, _) => named.extend(names(&older)),
            }
        }
        // Unnamed objects older than the newest generation are useless: the backup that wrote them
        // was overtaken. Newer ones may become part of the next generation.
        let newest = self.base.as_ref().map(|base| base.modified);
        for object in self.target.list(&records_of(store)).await? {
            let was_named = unnamed.contains(&object.name);
            let is_old = newest.is_some_and(|newest| object.modified < newest);
            let is_over = is_old || was_named || self.is_own_object(&object.name);
            // Unnamed objects may belong to an unreadable generation.
            let may_go = self.outcome.unread.is_empty() || was_named;
            if is_over && may_go && !named.contains(&object.name) {
                self.target.remove(&object.name).await?;
            }
        }
        if let Some(newest) = newest {
            self.target.remove_unfinished(&records_of(store), newest)?;
        }
        self.pinned = named;
        Ok(())
    }

    /// Returns true for an object that this backup wrote.
    fn is_own_object(&self, name: &str) -> bool {
        let sum = name.rsplit('-').next();
        sum.is_some_and(|sum| self.clean_to.contains_key(sum))
    }

    /// Removes the previous generation if this backup wrote it, because the next one contains all
    /// of it. While following, one per hour is kept.
    async fn remove_previous(&mut self) -> Result<(), BackupError> {
        let Some(own) = &self.own else { return Ok(()) };
        let hour = |manifest: &Manifest| manifest.made_at.div_euclid(KEPT_EVERY_MICROS);
        if self.options.follow && hour(own) != hour(&self.next) {
            self.pinned.extend(names(own));
            return Ok(());
        }
        let name = manifest::name_of(own.store, own.generation);
        Ok(self.target.remove(&name).await?)
    }

    /// Reports the backup to the store. A failure is only logged: the backup is valid anyway.
    async fn note(&mut self) {
        let is_told = self.noted.is_some_and(|noted| noted.elapsed() < NOTE_EVERY);
        if is_told && self.options.follow && self.outcome.removed.is_empty() {
            return;
        }
        let note = BackupNote {
            target: self.target.address().to_owned(),
            generation: self.next.generation,
            head: self.next.head(),
            made_at: TimestampMicros::now().0,
            clean_to: self.next.clean_to(),
        };
        if let Err(error) = self.source.note(note).await {
            let error = with_causes(&error).to_string();
            tracing::warn!(error, "the store could not record the backup");
        }
        self.noted = Some(Instant::now());
    }
}

/// Returns the names of a generation's objects.
fn names(manifest: &Manifest) -> HashSet<String> {
    let objects = manifest.objects.iter();
    objects.map(|object| object.name(manifest.store)).collect()
}

/// Returns the folder of a store's objects.
pub(super) fn records_of(store: Uuid) -> String {
    format!("{store}/records")
}

/// Returns the newest readable generation, and the newer unreadable ones.
async fn newest_readable(
    target: &ObjectStorage,
    store: Uuid,
    there: &[Generation],
    key: Option<&EncryptionKey>,
) -> Result<(Option<Manifest>, Vec<u64>), BackupError> {
    let mut unread = Vec::new();
    for generation in there.iter().rev() {
        check_key(target, &generation.object, key).await?;
        match Manifest::get(target, store, generation.number, key).await {
            Ok(manifest) => return Ok((Some(manifest), unread)),
            Err(error @ (BackupError::Damaged { .. } | BackupError::Missing { .. })) => {
                let error = with_causes(&error).to_string();
                tracing::warn!(
                    error,
                    "a generation cannot be read; continuing from an earlier one"
                );
                unread.push(generation.number);
            }
            Err(error) => return Err(error),
        }
    }
    Ok((None, unread))
}

/// Refuses a key if a generation is not encrypted. The opposite case, an encrypted generation
/// without a key, is an error when its manifest is read.
async fn check_key(
    target: &ObjectStorage,
    newest: &ObjectEntry,
    key: Option<&EncryptionKey>,
) -> Result<(), BackupError> {
    let bytes = target.get(&newest.name).await?;
    if key.is_some() && !super::seal::is_encrypted(&bytes) {
        return Err(BackupError::OtherKey {
            what: format!(
                "the generations in {} are not encrypted, but a key was given: use another target, \
                 so that no unencrypted data of this store stays there",
                target.address()
            ),
        });
    }
    Ok(())
}

struct BackupStart {
    identity: treering_log::LogIdentity,
    before: Option<ShipMark>,
}

/// Asks for the identity of the log, and for the record before an offset.
async fn ask(source: &dyn BackupSource, from: u64) -> Result<BackupStart, BackupError> {
    let query = ShipQuery {
        from,
        to: Some(from.saturating_sub(1)),
        follow: false,
    };
    let first = source.ship(query).await?.next().await;
    match first.transpose()? {
        Some(ShipmentItem::Start {
            identity, before, ..
        }) => Ok(BackupStart { identity, before }),
        _ => Err(BackupError::internal(
            "asking for the log's identity",
            "the store sent no identity",
        )),
    }
}

/// Records that are gathered for an object.
struct PendingObject {
    /// The first offset of the object.
    first: u64,
    /// The next expected offset.
    next: u64,
    content: ObjectContent,
    last: Option<RecordMark>,
    erasures: Vec<ErasureEntry>,
    /// Whether this is the end of a batch.
    is_at_end: bool,
    is_all: bool,
    /// The log's last offset when the read began.
    log_at_start: u64,
    total: u64,
    every: Duration,
    /// When a generation is due.
    due: Option<Instant>,
}

impl PendingObject {
    fn new(first: u64, every: Duration) -> Self {
        Self {
            first,
            next: first,
            content: ObjectContent::default(),
            last: None,
            erasures: Vec::new(),
            is_at_end: true,
            is_all: false,
            log_at_start: 0,
            total: 0,
            every,
            due: None,
        }
    }

    fn take(&mut self, item: ShipmentItem) {
        self.is_at_end = false;
        match item {
            ShipmentItem::Start { head, .. } => {
                (self.log_at_start, self.total) = (head, head);
                self.is_at_end = true;
            }
            ShipmentItem::Block(block) => {
                self.content.block(&block);
                self.due.get_or_insert(Instant::now() + self.every);
            }
            ShipmentItem::Blob { home, bytes } => self.content.blob(home, &bytes),
            ShipmentItem::Erasure(erasure) => self.erasures.push(ErasureEntry::new(erasure)),
            ShipmentItem::Reached {
                mark,
                recorded_at,
                is_all,
            } => {
                self.next = mark.offset + 1;
                self.last = Some(RecordMark::new(mark, recorded_at));
                (self.is_at_end, self.is_all) = (true, is_all);
            }
        }
    }

    /// Waits until a generation is due; pending while a batch is incomplete.
    async fn is_due(&self) {
        match self.due {
            Some(due) if self.is_at_end => sleep_until(due).await,
            _ => std::future::pending().await,
        }
    }

    async fn put(&mut self, uploads: &mut Uploads) -> Result<(), BackupError> {
        let Some(last) = self.last.take().filter(|_| !self.content.is_empty()) else {
            return Ok(());
        };
        let content = std::mem::take(&mut self.content);
        let first = std::mem::replace(&mut self.first, self.next);
        uploads.put(first, last, content).await
    }
}
