//! Generations. Each backup run ends by writing one: a manifest that names the objects of the whole
//! log, from its first record on, and lists the erasures.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    error::BackupError,
    seal::{self, EncryptionKey, ObjectIdentity, ObjectKind},
};
use treering_domain::{
    ContentHash, ConversationId, ConversationKey, Namespace, Revision, TimestampMicros, unhex,
};
use treering_engine::{ShipMark, ShippedErasure};
use treering_objects::{ObjectEntry, ObjectStorage, PutOutcome, WriteMode};

/// The format that this program writes, and the newest that it reads.
const FORMAT: u32 = 1;

/// A generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(crate) format: u32,
    /// Number within the store's backups, from 1.
    pub(crate) generation: u64,
    pub(crate) store: Uuid,
    /// See [`treering_log::LogIdentity`].
    pub(crate) timeline: Uuid,
    /// All history lines; the last one is this generation's. Records are only added to a line: if
    /// two generations have the same last line, the later one contains everything in the earlier
    /// one. A new line begins when the log has regressed.
    pub(crate) lines: Vec<HistoryLine>,
    /// Microseconds since 1970-01-01 UTC, like all times here.
    pub(crate) made_at: i64,
    /// Version of the program that wrote it.
    pub(crate) made_by: String,
    /// The last record; `None`: the log was empty.
    pub(crate) mark: Option<RecordMark>,
    /// In order and without gaps, from offset 1.
    pub(crate) objects: Vec<Object>,
    /// All recorded erasures, in order.
    pub(crate) erasures: Vec<ErasureEntry>,
    /// Whether the target may still have earlier generations with erased content. If true, the next
    /// backup looks for them.
    #[serde(default)]
    pub(crate) to_clean: bool,
}

/// A history to which records were only added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HistoryLine {
    pub(crate) id: Uuid,
    /// Its last offset in this generation; `None`: it is still growing.
    pub(crate) to: Option<u64>,
}

impl HistoryLine {
    fn new() -> Self {
        Self {
            id: Uuid::new_v4(),
            to: None,
        }
    }
}

/// A record's position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordMark {
    pub(crate) offset: u64,
    pub(crate) chain_hash: String,
    pub(crate) recorded_at: i64,
}

/// An object that holds records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Object {
    pub(crate) first: u64,
    /// Its last record, which ends a batch.
    pub(crate) last: RecordMark,
    /// BLAKE3 of the stored bytes except the last 32, which are this hash.
    pub(crate) blake3: String,
    /// Stored size.
    pub(crate) bytes: u64,
    /// Size before compression.
    pub(crate) raw_bytes: u64,
    /// Home offsets of large bodies that its records refer to and that earlier objects hold. See
    /// `content.rs` for homes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) needs: Vec<u64>,
}

/// An event that records an erasure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ErasureEntry {
    pub(crate) position: u64,
    pub(crate) recorded_at: i64,
    pub(crate) namespace: String,
    pub(crate) conversation: Uuid,
    pub(crate) branch: u64,
    /// First and last revision of each range.
    pub(crate) revisions: Vec<[u64; 2]>,
    /// First and last log offset of each range.
    pub(crate) offsets: Vec<[u64; 2]>,
    pub(crate) reason: String,
    pub(crate) actor: String,
}

impl RecordMark {
    pub(crate) fn new(mark: ShipMark, recorded_at: TimestampMicros) -> Self {
        Self {
            offset: mark.offset,
            chain_hash: mark.chain.to_string(),
            recorded_at: recorded_at.0,
        }
    }

    pub(crate) fn is(&self, mark: &ShipMark) -> bool {
        self.offset == mark.offset && self.chain_hash == mark.chain.to_string()
    }

    pub(crate) fn chain(&self) -> Option<ContentHash> {
        unhex(self.chain_hash.as_bytes()).map(ContentHash)
    }
}

impl Object {
    pub(crate) fn name(&self, store: Uuid) -> String {
        let (first, last) = (self.first, self.last.offset);
        format!("{store}/records/{first:016x}-{last:016x}-{}", self.blake3)
    }

    pub(crate) fn place(&self, store: Uuid) -> ObjectIdentity {
        ObjectIdentity {
            kind: ObjectKind::Records,
            store,
            range: (self.first, self.last.offset),
        }
    }

    /// True when it holds any of these offsets, or refers to a large body whose home is among them.
    pub(crate) fn is_touched(&self, offsets: &[[u64; 2]]) -> bool {
        let holds = |first: u64, last: u64| {
            let mut ranges = offsets.iter();
            ranges.any(|[from, to]| *from <= last && first <= *to)
        };
        holds(self.first, self.last.offset) || self.needs.iter().any(|home| holds(*home, *home))
    }
}

impl ErasureEntry {
    pub(crate) fn new(erasure: ShippedErasure) -> Self {
        let revisions = erasure.revisions.iter().map(|revision| revision.0);
        Self {
            position: erasure.position,
            recorded_at: erasure.recorded_at.0,
            namespace: erasure.namespace.to_string(),
            conversation: erasure.conversation.0,
            branch: erasure.branch.0,
            revisions: ranges(revisions),
            offsets: ranges(erasure.offsets.into_iter()),
            reason: erasure.reason,
            actor: erasure.actor,
        }
    }

    /// Returns the namespace.
    ///
    /// # Errors
    /// [`BackupError`] when the name is not a valid namespace.
    pub(crate) fn namespace(&self) -> Result<Namespace, BackupError> {
        Namespace::new(&self.namespace)
            .map_err(|error| BackupError::internal("reading erased content", error))
    }

    /// Returns the key of the conversation.
    ///
    /// # Errors
    /// As [`Self::namespace`].
    pub(crate) fn key(&self) -> Result<ConversationKey, BackupError> {
        Ok(self.namespace()?.key(ConversationId(self.conversation)))
    }

    pub(crate) fn revisions(&self) -> impl Iterator<Item = Revision> {
        let ranges = self.revisions.iter();
        ranges.flat_map(|[first, last]| (*first..=*last).map(Revision))
    }
}

/// Combines consecutive numbers into ranges.
fn ranges(numbers: impl Iterator<Item = u64>) -> Vec<[u64; 2]> {
    let mut sorted: Vec<u64> = numbers.collect();
    sorted.sort_unstable();
    let mut ranges: Vec<[u64; 2]> = Vec::new();
    for number in sorted {
        match ranges.last_mut() {
            Some([_, last]) if *last + 1 == number => *last = number,
            _ => ranges.push([number, number]),
        }
    }
    ranges
}

impl Manifest {
    pub(crate) fn first(store: Uuid, timeline: Uuid) -> Self {
        Self {
            format: FORMAT,
            generation: 0,
            store,
            timeline,
            lines: vec![HistoryLine::new()],
            made_at: 0,
            made_by: String::new(),
            mark: None,
            objects: Vec::new(),
            erasures: Vec::new(),
            to_clean: false,
        }
    }

    /// Returns the last offset; 0 if there is none.
    pub(crate) fn head(&self) -> u64 {
        self.mark.as_ref().map_or(0, |mark| mark.offset)
    }

    /// Returns the offset of the last event that records an erasure.
    pub(crate) fn clean_to(&self) -> u64 {
        self.erasures.last().map_or(0, |erased| erased.position)
    }

    /// Begins a new line. The earlier lines end at the current head, the last record that the
    /// histories share.
    pub(crate) fn begin_timeline(&mut self) {
        let head = self.head();
        for line in &mut self.lines {
            line.to = Some(line.to.map_or(head, |to| to.min(head)));
        }
        self.lines.push(HistoryLine::new());
    }

    /// True when this contains everything of an older generation.
    pub(crate) fn contains(&self, older: &Self) -> bool {
        let of = older.lines.last().map(|line| line.id);
        let mut lines = self.lines.iter().filter(|line| Some(line.id) == of);
        lines.any(|line| line.to.is_none_or(|to| older.head() <= to))
    }

    fn place(store: Uuid, generation: u64) -> ObjectIdentity {
        ObjectIdentity {
            kind: ObjectKind::Manifest,
            store,
            range: (generation, generation),
        }
    }

    /// Returns the erasures in a newer generation whose content this one may still hold.
    pub(crate) fn holds_of<'a>(
        &'a self,
        newest: &'a Self,
    ) -> impl Iterator<Item = &'a ErasureEntry> {
        let known = self.clean_to();
        newest.erasures.iter().filter(move |erased| {
            erased.position > known
                && self
                    .objects
                    .iter()
                    .any(|object| object.is_touched(&erased.offsets))
        })
    }

    /// Writes the manifest if the previous generation is still the newest. A number is never
    /// reused: only generations older than an existing one are removed, so the newest one has the
    /// highest number ever used. Returns its size in bytes, and its entry in a listing.
    pub(crate) async fn put(
        &self,
        target: &ObjectStorage,
        key: Option<&EncryptionKey>,
    ) -> Result<(u64, ObjectEntry), BackupError> {
        let overtaken = |generation| BackupError::Overtaken {
            address: target.address().to_owned(),
            generation,
        };
        let before = self.generation - 1;
        let there = generations_from(target, self.store, before).await?;
        if let Some(newer) = there.iter().rfind(|one| one.number > before) {
            return Err(overtaken(newer.number));
        }
        if before > 0 && there.is_empty() {
            return Err(BackupError::Gone {
                address: target.address().to_owned(),
                generation: before,
            });
        }
        let text = serde_json::to_vec(self);
        let text = text.map_err(|error| BackupError::internal("writing a manifest", error))?;
        let place = Self::place(self.store, self.generation);
        let sealed = seal::seal(place, &text, key)?;
        let bytes = sealed.bytes.len() as u64;
        let name = name_of(self.store, self.generation);
        match target.put(&name, sealed.bytes, WriteMode::Once).await? {
            PutOutcome::Written => {}
            PutOutcome::WasThere => return Err(overtaken(self.generation)),
        }
        // Meanwhile, another generation may have been written and the previous one removed.
        let there = generations_from(target, self.store, self.generation).await?;
        match there.last() {
            Some(last) if last.number == self.generation => Ok((bytes, last.object.clone())),
            Some(newer) => {
                target.remove(&name).await?;
                Err(overtaken(newer.number))
            }
            None => Err(BackupError::Gone {
                address: target.address().to_owned(),
                generation: self.generation,
            }),
        }
    }

    /// Reads a generation.
    pub(crate) async fn get(
        target: &ObjectStorage,
        store: Uuid,
        generation: u64,
        key: Option<&EncryptionKey>,
    ) -> Result<Self, BackupError> {
        let name = name_of(store, generation);
        let bytes = target.get(&name).await?;
        let damaged = |what: String| BackupError::Damaged {
            object: target.address_of(&name),
            what,
        };
        let text = seal::open(Self::place(store, generation), &bytes, key);
        let text = text.map_err(|error| error.of(target.address_of(&name)))?;
        let read: Self =
            serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        if read.format != FORMAT || read.store != store || read.generation != generation {
            return Err(damaged(
                "it belongs to another format, store or generation".to_owned(),
            ));
        }
        read.check().map_err(damaged)?;
        Ok(read)
    }

    /// Checks that the objects cover the offsets from 1 to the mark without gaps.
    fn check(&self) -> Result<(), String> {
        let mut next = 1;
        for object in &self.objects {
            if object.first != next || object.last.offset < next {
                return Err(format!("no object has offset {next}"));
            }
            next = object.last.offset + 1;
        }
        match next == self.head() + 1 {
            true => Ok(()),
            false => Err(format!("its objects do not reach the end, {}", self.head())),
        }
    }
}

/// Returns the first and the last offset of an object from its name.
pub(super) fn range_of(name: &str) -> Option<[u64; 2]> {
    let mut parts = name.rsplit('/').next()?.split('-');
    let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
    Some([number()?, number()?])
}

/// A generation in a listing.
#[derive(Clone, Debug)]
pub(super) struct Generation {
    pub(crate) number: u64,
    pub(crate) object: ObjectEntry,
}

fn folder_of(store: Uuid) -> String {
    format!("{store}/generations")
}

/// Returns the name of a generation's object.
pub(super) fn name_of(store: Uuid, generation: u64) -> String {
    format!("{}/{generation:016x}", folder_of(store))
}

/// Returns the generations of a store, the oldest first.
pub(super) async fn generations(
    target: &ObjectStorage,
    store: Uuid,
) -> Result<Vec<Generation>, BackupError> {
    Ok(numbered(target.list(&folder_of(store)).await?))
}

/// Returns the generations from a number on.
async fn generations_from(
    target: &ObjectStorage,
    store: Uuid,
    first: u64,
) -> Result<Vec<Generation>, BackupError> {
    let after = first.checked_sub(1).map(|number| name_of(store, number));
    let folder = folder_of(store);
    let listed = target.list_after(&folder, after.as_deref()).await?;
    Ok(numbered(listed))
}

fn numbered(listed: Vec<ObjectEntry>) -> Vec<Generation> {
    let number =
        |listed: &ObjectEntry| u64::from_str_radix(listed.name.rsplit('/').next()?, 16).ok();
    let found = listed.into_iter().filter_map(|object| {
        let number = number(&object)?;
        Some(Generation { number, object })
    });
    found.collect()
}

/// Returns the stores that have backups in the target.
pub(super) async fn stores(target: &ObjectStorage) -> Result<Vec<Uuid>, BackupError> {
    let names = target.folders().await?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

/// Returns the store to use: the given one, or the only one.
pub(super) async fn one_store(
    target: &ObjectStorage,
    named: Option<Uuid>,
) -> Result<Uuid, BackupError> {
    let stores = stores(target).await?;
    match (named, stores.as_slice()) {
        (Some(named), stores) if stores.contains(&named) => Ok(named),
        (Some(named), [_, ..]) => Err(other_store(target, named, &stores)),
        (None, [store]) => Ok(*store),
        (None, [_, _, ..]) => Err(BackupError::Several {
            address: target.address().to_owned(),
            stores: listed(&stores),
        }),
        _ => Err(BackupError::NoBackup {
            address: target.address().to_owned(),
        }),
    }
}

/// Returns the error for a target that has only backups of other stores.
pub(super) fn other_store(target: &ObjectStorage, wanted: Uuid, stores: &[Uuid]) -> BackupError {
    BackupError::OtherStore {
        address: target.address().to_owned(),
        wanted,
        stores: listed(stores),
    }
}

fn listed(stores: &[Uuid]) -> String {
    let stores: Vec<String> = stores.iter().map(Uuid::to_string).collect();
    stores.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    // Erased events are found by these ranges: none may be missing.
    #[test]
    fn offsets_are_merged_into_ranges() {
        let of = |numbers: &[u64]| ranges(numbers.iter().copied());
        assert_eq!(of(&[]), [] as [[u64; 2]; 0]);
        assert_eq!(of(&[5, 3, 4, 9]), [[3, 5], [9, 9]]);
    }

    // An object must be rewritten when it holds erased content, and also when it refers to a large
    // body whose home was erased: it may have to hold that body itself from now on.
    #[test]
    fn object_is_affected_by_erased_records_and_needed_bodies() {
        let mark = RecordMark {
            offset: 20,
            chain_hash: String::new(),
            recorded_at: 0,
        };
        let object = Object {
            first: 10,
            last: mark,
            blake3: String::new(),
            bytes: 0,
            raw_bytes: 0,
            needs: vec![4],
        };
        for (offsets, touched) in [
            ([[9, 9]], false),
            ([[1, 10]], true),
            ([[20, 30]], true),
            ([[21, 30]], false),
            ([[4, 4]], true),
            ([[12, 13]], true),
        ] {
            assert_eq!(object.is_touched(&offsets), touched, "{offsets:?}");
        }
    }
}
