//! Generations: what a backup had when it ended. A generation is a manifest, which names
//! the objects that hold the log from its first record on, and what was erased of them.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    error::BackupError,
    seal::{self, Key, Kind, Place},
    target::{BackupTarget, Became, Listed, Put},
};
use crate::{
    domain::{ContentHash, ConversationId, Revision, TimestampMicros, unhex},
    engine::{ShipMark, ShippedErasure},
};

/// The newest format that this program reads, and the one it writes.
const FORMAT: u32 = 1;

/// A generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub format: u32,
    /// 1, 2, 3 …, in a store's backups.
    pub generation: u64,
    pub store: Uuid,
    /// See [`crate::log::LogIdentity`].
    pub timeline: Uuid,
    /// Of generations of one line, a later one has all that an earlier one has. Another one
    /// begins when the log is found to have gone back; these are all, the last one is this
    /// generation's.
    pub lines: Vec<Line>,
    /// Microseconds since 1970-01-01 UTC, as all times here.
    pub made_at: i64,
    /// Version of the program.
    pub made_by: String,
    /// The last record; none: the log was empty.
    pub mark: Option<Mark>,
    /// In order, without gaps from offset 1 on.
    pub objects: Vec<Object>,
    /// All that was recorded as erased, in order.
    pub erasures: Vec<Erased>,
    /// Earlier generations may hold some of that, and may still be there: whoever comes
    /// next looks.
    #[serde(default)]
    pub to_clean: bool,
}

/// A history that only grew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Line {
    pub id: Uuid,
    /// The last offset that the generation has of it; none: it goes on.
    pub to: Option<u64>,
}

impl Line {
    fn new() -> Self {
        Self {
            id: Uuid::new_v4(),
            to: None,
        }
    }
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    pub offset: u64,
    pub chain_hash: String,
    pub recorded_at: i64,
}

/// An object that holds records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Object {
    pub first: u64,
    /// Its last record, which ends a batch.
    pub last: Mark,
    /// BLAKE3 of what is stored, but its last 32 bytes, which are this.
    pub blake3: String,
    /// As stored.
    pub bytes: u64,
    /// Before compression.
    pub raw_bytes: u64,
    /// Homes of large bodies that its records name and that earlier objects hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<u64>,
}

/// An event that says what was erased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Erased {
    pub position: u64,
    pub recorded_at: i64,
    pub namespace: String,
    pub conversation: Uuid,
    pub branch: u64,
    /// First and last of each range.
    pub revisions: Vec<[u64; 2]>,
    /// The same of their places in the log.
    pub offsets: Vec<[u64; 2]>,
    pub reason: String,
    pub actor: String,
}

impl Mark {
    pub fn new(mark: ShipMark, recorded_at: TimestampMicros) -> Self {
        Self {
            offset: mark.offset,
            chain_hash: mark.chain.to_string(),
            recorded_at: recorded_at.0,
        }
    }

    pub fn is(&self, mark: &ShipMark) -> bool {
        self.offset == mark.offset && self.chain_hash == mark.chain.to_string()
    }

    pub fn chain(&self) -> Option<ContentHash> {
        unhex(self.chain_hash.as_bytes()).map(ContentHash)
    }
}

impl Object {
    pub fn name(&self, store: Uuid) -> String {
        let (first, last) = (self.first, self.last.offset);
        format!("{store}/records/{first:016x}-{last:016x}-{}", self.blake3)
    }

    pub fn place(&self, store: Uuid) -> Place {
        Place {
            kind: Kind::Records,
            store,
            range: (self.first, self.last.offset),
        }
    }

    /// True when it holds any of these offsets, or large bodies that were kept there.
    pub fn is_touched(&self, offsets: &[[u64; 2]]) -> bool {
        let holds = |first: u64, last: u64| {
            let mut ranges = offsets.iter();
            ranges.any(|[from, to]| *from <= last && first <= *to)
        };
        holds(self.first, self.last.offset) || self.needs.iter().any(|home| holds(*home, *home))
    }
}

impl Erased {
    pub fn new(erasure: ShippedErasure) -> Self {
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

    pub fn conversation(&self) -> ConversationId {
        ConversationId(self.conversation)
    }

    pub fn revisions(&self) -> impl Iterator<Item = Revision> {
        let ranges = self.revisions.iter();
        ranges.flat_map(|[first, last]| (*first..=*last).map(Revision))
    }
}

/// Numbers that follow each other as one range.
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
    pub fn first(store: Uuid, timeline: Uuid) -> Self {
        Self {
            format: FORMAT,
            generation: 0,
            store,
            timeline,
            lines: vec![Line::new()],
            made_at: 0,
            made_by: String::new(),
            mark: None,
            objects: Vec::new(),
            erasures: Vec::new(),
            to_clean: false,
        }
    }

    /// The last offset; 0: there is none.
    pub fn head(&self) -> u64 {
        self.mark.as_ref().map_or(0, |mark| mark.offset)
    }

    /// The offset of the last event that says what was erased.
    pub fn clean_to(&self) -> u64 {
        self.erasures.last().map_or(0, |erased| erased.position)
    }

    /// Begins another line: of this one, only what is still there counts.
    pub fn begin_line(&mut self) {
        let head = self.head();
        for line in &mut self.lines {
            line.to = Some(line.to.map_or(head, |to| to.min(head)));
        }
        self.lines.push(Line::new());
    }

    /// True when this has all that an older one has.
    pub fn contains(&self, older: &Self) -> bool {
        let of = older.lines.last().map(|line| line.id);
        let mut lines = self.lines.iter().filter(|line| Some(line.id) == of);
        lines.any(|line| line.to.is_none_or(|to| older.head() <= to))
    }

    fn place(store: Uuid, generation: u64) -> Place {
        Place {
            kind: Kind::Manifest,
            store,
            range: (generation, generation),
        }
    }

    /// Of what newer generations know to be erased, what this one may still hold.
    pub fn holds_of<'a>(&'a self, newest: &'a Self) -> impl Iterator<Item = &'a Erased> {
        let known = self.clean_to();
        newest.erasures.iter().filter(move |erased| {
            erased.position > known
                && self
                    .objects
                    .iter()
                    .any(|object| object.is_touched(&erased.offsets))
        })
    }

    /// Puts it last, if the generation before is still the newest. A number is used once: what
    /// is removed is always older than one that is there, so the newest that is there has the
    /// highest number that ever was. Gives its bytes, and how it is listed.
    pub async fn put(
        &self,
        target: &BackupTarget,
        key: Option<&Key>,
    ) -> Result<(u64, Listed), BackupError> {
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
        match target.put(&name, sealed.bytes, Put::Once).await? {
            Became::Written => {}
            Became::WasThere => return Err(overtaken(self.generation)),
        }
        // Another one may have been put, and the one before it removed, between the two.
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
    pub async fn get(
        target: &BackupTarget,
        store: Uuid,
        generation: u64,
        key: Option<&Key>,
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
                "it is of another format, store or generation".to_owned(),
            ));
        }
        read.check().map_err(damaged)?;
        Ok(read)
    }

    /// Objects follow each other from offset 1 to the mark.
    fn check(&self) -> Result<(), String> {
        let mut next = 1;
        for object in &self.objects {
            if object.first != next || object.last.offset < next {
                return Err(format!("it has no object for offset {next}"));
            }
            next = object.last.offset + 1;
        }
        match next == self.head() + 1 {
            true => Ok(()),
            false => Err(format!("its objects do not reach its end, {}", self.head())),
        }
    }
}

/// The first and the last offset of an object, as its name says them.
pub(super) fn range_of(name: &str) -> Option<[u64; 2]> {
    let mut parts = name.rsplit('/').next()?.split('-');
    let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
    Some([number()?, number()?])
}

/// A generation that is there.
#[derive(Clone, Debug)]
pub(super) struct Generation {
    pub number: u64,
    pub object: Listed,
}

fn folder_of(store: Uuid) -> String {
    format!("{store}/generations")
}

/// Where an object of this name is kept.
pub(super) fn name_of(store: Uuid, generation: u64) -> String {
    format!("{}/{generation:016x}", folder_of(store))
}

/// The generations of a store that are there, the oldest first.
pub(super) async fn generations(
    target: &BackupTarget,
    store: Uuid,
) -> Result<Vec<Generation>, BackupError> {
    Ok(numbered(target.list(&folder_of(store)).await?))
}

/// Those from a number on.
async fn generations_from(
    target: &BackupTarget,
    store: Uuid,
    first: u64,
) -> Result<Vec<Generation>, BackupError> {
    let after = first.checked_sub(1).map(|number| name_of(store, number));
    let folder = folder_of(store);
    let listed = target.list_after(&folder, after.as_deref()).await?;
    Ok(numbered(listed))
}

fn numbered(listed: Vec<Listed>) -> Vec<Generation> {
    let number = |listed: &Listed| u64::from_str_radix(listed.name.rsplit('/').next()?, 16).ok();
    let found = listed.into_iter().filter_map(|object| {
        let number = number(&object)?;
        Some(Generation { number, object })
    });
    found.collect()
}

/// The stores that have backups here.
pub(super) async fn stores(target: &BackupTarget) -> Result<Vec<Uuid>, BackupError> {
    let names = target.folders().await?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

/// The store whose backups are meant: the one that is named, or the only one.
pub(super) async fn one_store(
    target: &BackupTarget,
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

/// The target has backups, and none of the store that is meant.
pub(super) fn other_store(target: &BackupTarget, wanted: Uuid, stores: &[Uuid]) -> BackupError {
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

    // What is erased is found again by these ranges: none may be forgotten.
    #[test]
    fn numbers_become_ranges() {
        let of = |numbers: &[u64]| ranges(numbers.iter().copied());
        assert_eq!(of(&[]), [] as [[u64; 2]; 0]);
        assert_eq!(of(&[5, 3, 4, 9]), [[3, 5], [9, 9]]);
    }

    // An object must be written anew when it holds what was erased, and also when it names
    // a large body that was kept there: it may have to hold that one itself from now on.
    #[test]
    fn an_object_is_touched_by_what_it_holds_and_needs() {
        let mark = Mark {
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
