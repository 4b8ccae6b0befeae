//! Inspects the backups in a target: lists them, verifies them, and removes old ones.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::{
    error::BackupError,
    manifest::{self, Generation, Manifest, Object, one_store, stores},
    run::records_of,
    seal::EncryptionKey,
    walk::{Objects, Walk},
};
use treering_domain::{TimestampMicros, with_causes};
use treering_engine::Progress;
use treering_objects::ObjectStorage;

/// A day, in microseconds.
const DAY_MICROS: i64 = 86_400_000_000;

/// A generation, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenerationInfo {
    /// The store.
    pub store: Uuid,
    /// Its number.
    pub generation: u64,
    /// When it was written.
    pub made_at: TimestampMicros,
    /// Its last log position; 0 if it is empty.
    pub head: u64,
    /// When the record at that position was recorded.
    pub last_recorded_at: Option<TimestampMicros>,
    /// Number of objects that it names.
    pub objects: u64,
    /// Size of these objects in bytes.
    pub bytes: u64,
    /// Number of events that were erased later, but whose content the generation may still hold.
    pub holds_erased: u64,
    /// Why the generation cannot be read; then the other fields are zero or empty.
    pub unreadable: Option<String>,
}

/// Returns the generations in a target, store by store, the oldest first.
///
/// # Errors
/// [`BackupError`]. An unreadable generation is not an error: it is listed as unreadable.
pub async fn generations(
    target: &ObjectStorage,
    key: Option<&EncryptionKey>,
) -> Result<Vec<GenerationInfo>, BackupError> {
    let stores = stores(target).await?;
    if stores.is_empty() {
        return Err(BackupError::NoBackup {
            address: target.address().to_owned(),
        });
    }
    let mut infos = Vec::new();
    for store in stores {
        let read = read_all(target, store, key).await?;
        let newest = read.iter().rev().find_map(|(_, read)| read.as_ref().ok());
        for (generation, read) in &read {
            infos.push(match read {
                Ok(manifest) => info(manifest, newest),
                Err(what) => unreadable(store, generation.number, what),
            });
        }
    }
    Ok(infos)
}

type ReadGeneration = (Generation, Result<Manifest, String>);

/// Reads all generations of a store. Without the right key, none can be read.
async fn read_all(
    target: &ObjectStorage,
    store: Uuid,
    key: Option<&EncryptionKey>,
) -> Result<Vec<ReadGeneration>, BackupError> {
    let mut all = Vec::new();
    for generation in manifest::generations(target, store).await? {
        let read = match Manifest::get(target, store, generation.number, key).await {
            Ok(manifest) => Ok(manifest),
            Err(error @ (BackupError::Damaged { .. } | BackupError::Missing { .. })) => {
                Err(with_causes(&error).to_string())
            }
            Err(error) => return Err(error),
        };
        all.push((generation, read));
    }
    Ok(all)
}

fn info(manifest: &Manifest, newest: Option<&Manifest>) -> GenerationInfo {
    let held = newest.map(|newest| manifest.holds_of(newest));
    let held = held.map_or(0, |held| {
        held.flat_map(super::manifest::ErasureEntry::revisions)
            .count()
    });
    let mark = manifest.mark.as_ref();
    GenerationInfo {
        store: manifest.store,
        generation: manifest.generation,
        made_at: TimestampMicros(manifest.made_at),
        head: manifest.head(),
        last_recorded_at: mark.map(|mark| TimestampMicros(mark.recorded_at)),
        objects: manifest.objects.len() as u64,
        bytes: manifest.objects.iter().map(|object| object.bytes).sum(),
        holds_erased: held as u64,
        unreadable: None,
    }
}

fn unreadable(store: Uuid, generation: u64, what: &str) -> GenerationInfo {
    GenerationInfo {
        store,
        generation,
        made_at: TimestampMicros(0),
        head: 0,
        last_recorded_at: None,
        objects: 0,
        bytes: 0,
        holds_erased: 0,
        unreadable: Some(what.to_owned()),
    }
}

/// A fault in a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFault {
    /// The object's address and what is wrong.
    pub what: String,
    /// Generations that cannot be restored completely because of it.
    pub generations: Vec<u64>,
}

/// The outcome of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// The store of the backups.
    pub store: Uuid,
    /// Generations that were verified.
    pub generations: u64,
    /// Objects that were read.
    pub objects: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Records of the newest generation whose chain was verified.
    pub events: u64,
    /// Large bodies of these records.
    pub blobs: u64,
    /// The faults.
    pub faults: Vec<BackupFault>,
}

/// Reads every object that a generation names, and verifies its BLAKE3 hash, its records, their
/// chain, and large bodies. Faults are collected and do not end the verification.
///
/// # Errors
/// [`BackupError`] when the target cannot be read, or the key is wrong.
pub async fn verify(
    target: &ObjectStorage,
    store: Option<Uuid>,
    key: Option<&EncryptionKey>,
    mut report: impl FnMut(Progress),
) -> Result<VerifyReport, BackupError> {
    let store = one_store(target, store).await?;
    let all = read_all(target, store, key).await?;
    let mut checking = BackupVerifier::of(store, &all);
    let total = checking.names.len() as u64;
    let objects = Objects { target, store, key };
    let mut done = HashSet::new();
    // Start with the newest generation, so that its chain is verified from the first record.
    for (_, read) in all.iter().rev() {
        let Ok(manifest) = read else { continue };
        let mut walk = Some(Walk::default());
        for object in &manifest.objects {
            let name = object.name(store);
            if !done.insert(name) {
                // A newer generation names this object too: its records have been checked.
                walk = None;
                continue;
            }
            if let Err(error) = checking.object(&objects, object, &mut walk).await? {
                checking.fault(object, &error);
                walk = None;
            }
            report(Progress {
                what: "objects",
                done: done.len() as u64,
                total,
            });
        }
    }
    Ok(checking.verified)
}

struct BackupVerifier {
    verified: VerifyReport,
    /// For each object, the generations that name it.
    names: HashMap<String, Vec<u64>>,
}

impl BackupVerifier {
    fn of(store: Uuid, all: &[ReadGeneration]) -> Self {
        let mut names: HashMap<String, Vec<u64>> = HashMap::new();
        let mut verified = VerifyReport {
            store,
            generations: all.len() as u64,
            ..VerifyReport::default()
        };
        for (generation, read) in all {
            match read {
                Ok(manifest) => {
                    for object in &manifest.objects {
                        let of = names.entry(object.name(store)).or_default();
                        of.push(generation.number);
                    }
                }
                Err(what) => verified.faults.push(BackupFault {
                    what: what.clone(),
                    generations: vec![generation.number],
                }),
            }
        }
        Self { verified, names }
    }

    /// Verifies an object; an outer error ends the verification.
    async fn object(
        &mut self,
        objects: &Objects<'_>,
        object: &Object,
        walk: &mut Option<Walk>,
    ) -> Result<Result<(), BackupError>, BackupError> {
        let read = match objects.read(object).await {
            Ok(read) => read,
            Err(error @ (BackupError::Damaged { .. } | BackupError::Missing { .. })) => {
                return Ok(Err(error));
            }
            Err(error) => return Err(error),
        };
        self.verified.objects += 1;
        self.verified.bytes += object.bytes;
        let records = match read.records(object.first, object.last.offset) {
            Ok(records) => records,
            Err(what) => return Ok(Err(objects.damaged(object, what))),
        };
        if let Some(walk) = walk {
            for (offset, record) in &records {
                if let Err(what) = walk.record(*offset, record, &read) {
                    return Ok(Err(objects.damaged(object, what)));
                }
            }
            self.verified.events += records.len() as u64;
            self.verified.blobs += read.blobs.len() as u64;
        }
        let ends = records.last().map(|(_, record)| record.chain_hash());
        match ends == object.last.chain() {
            true => Ok(Ok(())),
            false => Ok(Err(objects.damaged(
                object,
                "its last record is not the one that its generation names",
            ))),
        }
    }

    fn fault(&mut self, object: &Object, error: &BackupError) {
        let name = object.name(self.verified.store);
        self.verified.faults.push(BackupFault {
            what: with_causes(error).to_string(),
            generations: self.names.get(&name).cloned().unwrap_or_default(),
        });
    }
}

/// Which generations to keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionRule {
    /// Keep this many of the newest generations.
    pub newest: Option<u64>,
    /// Keep the generations of this many past days.
    pub days: Option<u64>,
}

/// What a prune removed, or what a dry run would remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneOutcome {
    /// The store.
    pub store: Uuid,
    /// Generations that are removed.
    pub generations: Vec<u64>,
    /// Generations that are kept.
    pub kept: Vec<u64>,
    /// Objects that no remaining generation names.
    pub objects: u64,
    /// Size of these objects in bytes.
    pub bytes: u64,
}

/// Removes all generations except those to keep, then the objects that no remaining generation
/// names. The newest readable generation and all newer ones always stay. A dry run removes nothing.
///
/// # Errors
/// [`BackupError`]; if no generation can be read, nothing is removed.
pub async fn prune(
    target: &ObjectStorage,
    store: Option<Uuid>,
    key: Option<&EncryptionKey>,
    keep: RetentionRule,
    dry_run: bool,
) -> Result<PruneOutcome, BackupError> {
    let store = one_store(target, store).await?;
    let there = manifest::generations(target, store).await?;
    let mut manifests = HashMap::new();
    for (generation, read) in read_all(target, store, key).await? {
        if let Ok(manifest) = read {
            manifests.insert(generation.number, manifest);
        }
    }
    let mut readable = there
        .iter()
        .filter(|one| manifests.contains_key(&one.number));
    let Some(newest) = readable.next_back() else {
        // No generation can be read: read the last one again to return the reason.
        return match there.last() {
            Some(last) => Manifest::get(target, store, last.number, key)
                .await
                .map(|_| PruneOutcome::default()),
            None => Ok(PruneOutcome::default()),
        };
    };
    let mut pruned = PruneOutcome {
        store,
        ..PruneOutcome::default()
    };
    let mut named = HashSet::new();
    let before = usize::try_from(keep.newest.unwrap_or(1).max(1) - 1).unwrap_or(usize::MAX);
    let oldest_kept = match before {
        0 => newest.number,
        before => readable.nth_back(before - 1).map_or(0, |one| one.number),
    };
    let since = keep.days.map(|days| {
        let length = i64::try_from(days)
            .unwrap_or(i64::MAX)
            .saturating_mul(DAY_MICROS);
        TimestampMicros::now().0.saturating_sub(length)
    });
    for generation in &there {
        let is_recent = since.is_some_and(|since| generation.object.modified.0 >= since);
        let is_kept = generation.number >= oldest_kept || is_recent;
        match manifests.get(&generation.number) {
            Some(manifest) if is_kept => {
                named.extend(manifest.objects.iter().map(|object| object.name(store)));
                pruned.kept.push(generation.number);
            }
            // The next backup may still use it.
            None if generation.number > newest.number => pruned.kept.push(generation.number),
            _ => pruned.generations.push(generation.number),
        }
    }
    if !dry_run {
        for number in &pruned.generations {
            target.remove(&manifest::name_of(store, *number)).await?;
        }
    }
    for object in target.list(&records_of(store)).await? {
        // Objects newer than the newest generation may belong to a running backup.
        if named.contains(&object.name) || object.modified > newest.object.modified {
            continue;
        }
        pruned.objects += 1;
        pruned.bytes += object.bytes;
        if !dry_run {
            target.remove(&object.name).await?;
        }
    }
    if !dry_run {
        target.remove_unfinished(&records_of(store), newest.object.modified)?;
    }
    Ok(pruned)
}
