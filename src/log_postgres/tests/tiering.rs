//! Sealed segments in a folder, beside a real server.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tempfile::TempDir;
use tokio::{runtime::Handle, task::block_in_place, time::sleep};
use treering_log::{
    BlobRef, Erasure, EventLog, LogError, NewBlob, Record, RecordBody, SaltSource,
    testkit::{conformance, samples},
};
use treering_log_postgres::{PostgresError, PostgresLog, create_role, set_objects};

use crate::server::{SHARD, Server, acquire, open, read_all, single_copy};

/// A log with a folder for segments.
struct Tiered {
    log: Arc<PostgresLog>,
    database: String,
    objects: TempDir,
}

impl Tiered {
    async fn new(server: &Server, hot_bytes: u64) -> Self {
        let database = server.new_log().await;
        let url = server.url(&database);
        let objects = tempfile::tempdir().unwrap();
        let address = objects.path().to_str().unwrap();
        set_objects(&url, address, Some(hot_bytes)).await.unwrap();
        Self {
            log: Arc::new(open(&url, single_copy()).await),
            database,
            objects,
        }
    }

    /// Appends records one batch each, and returns them.
    async fn append(&self, batches: usize, records: usize, bytes: usize) -> Vec<Record> {
        let mut owned = acquire(&*self.log).await;
        let mut all = Vec::new();
        for _ in 0..batches {
            let records: Vec<_> = (0..records).map(|_| samples::noisy_record(bytes)).collect();
            let batch = samples::batch(owned.head + 1, &records);
            owned.head = self
                .log
                .append(SHARD, owned.epoch, owned.head, batch)
                .await
                .unwrap();
            all.extend(records);
        }
        all
    }

    async fn number(&self, server: &Server, sql: &str) -> u64 {
        server.sql_in(&self.database, sql).await.parse().unwrap()
    }

    /// Waits until the query returns true.
    async fn wait_for(&self, server: &Server, sql: &str) {
        for _ in 0..600 {
            if server.sql_in(&self.database, sql).await == "t" {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("not so after 30 s: {sql}");
    }

    async fn sealed_all(&self, server: &Server) {
        self.wait_for(server, "select not exists (select from treering_frame)")
            .await;
    }

    /// The files of segments.
    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        files_below(self.objects.path(), &mut found);
        found.retain(|path| path.extension().is_none());
        found.sort();
        found
    }
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Frames cannot be deleted, so no sealing ends.
const REFUSE_SEALING: &str = "create function refuse() returns trigger language plpgsql as
        $$ begin raise exception 'not now'; end $$;
    create trigger refuse before delete on treering_frame
        for each row execute function refuse()";

const LIVE: &str = "select count(*) from treering_segment where is_live";

// Everything that the port promises must hold while frames move to objects at any moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_seals_everything_passes_the_conformance_suite() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let folders = std::sync::Mutex::new(Vec::new());
    let new_log = || {
        let tiered = block_in_place(|| Handle::current().block_on(Tiered::new(&server, 0)));
        folders.lock().unwrap().push(tiered.objects);
        Arc::into_inner(tiered.log).unwrap()
    };
    conformance::run_whatever_the_frames(new_log).await;
    conformance::run_erasing(new_log).await;
    conformance::an_earlier_owner_cannot_erase(new_log()).await;
}

// The database stays small while history grows. Every process reads the same events as before, also
// one that was started before the operator named a bucket, and one that starts later.
#[tokio::test(flavor = "multi_thread")]
async fn the_newest_frames_stay_and_the_rest_can_be_read() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let tiered = Tiered::new(&server, 1 << 20).await;
    let url = server.url(&tiered.database);
    let earlier = open(&url, single_copy()).await;
    let mut records = tiered.append(30, 10, 20_000).await;
    // With more, the next segment may be on its way.
    tiered
        .wait_for(
            &server,
            "select sum(octet_length(bytes)) <= 2 * 1024 * 1024 from treering_frame",
        )
        .await;
    records.extend(tiered.append(1, 3, 500).await);
    let hot = "select coalesce(sum(octet_length(bytes)), 0) from treering_frame";
    assert!(tiered.number(&server, hot).await >= 1 << 20);
    let live = tiered.number(&server, LIVE).await;
    assert!(live >= 3, "{live} segments");
    assert_eq!(tiered.files().len() as u64, live);
    let later = open(&url, single_copy()).await;
    for log in [&*tiered.log, &earlier, &later] {
        log.tail(SHARD, records.len() as u64 - 1).await.unwrap();
        assert!(read_all(log).await == records);
        let mut begins = 0;
        let mut at = 0;
        while let Some(next) = log.next_frame(SHARD, at).await.unwrap() {
            assert!(next > at);
            let read = log.read(SHARD, next, 1).await.unwrap();
            assert_eq!((read[0].first_offset, read.len()), (next, 1));
            at = next;
            begins += 1;
        }
        assert!(begins > live, "{begins} frames");
    }
    let tiers = later.tiers().await.unwrap();
    assert_eq!(tiers.segments, live);
    let sizes = tiered
        .files()
        .iter()
        .map(|path| fs::metadata(path).unwrap().len())
        .sum::<u64>();
    assert_eq!(tiers.segment_bytes, sizes);
}

// A node dies between putting an object and naming it. The frames stay where they are, the next owner
// seals them, and the object that nobody names is removed.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_sealing_leaves_nothing_behind() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let tiered = Tiered::new(&server, 0).await;
    server.sql_in(&tiered.database, REFUSE_SEALING).await;
    let records = tiered.append(1, 20, 5_000).await;
    tiered
        .wait_for(&server, "select exists (select from treering_segment)")
        .await;
    for _ in 0..100 {
        if !tiered.files().is_empty() {
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    let orphans = tiered.files();
    assert!(!orphans.is_empty());
    assert_eq!(tiered.number(&server, LIVE).await, 0);
    assert_eq!(read_all(&*tiered.log).await, records);
    tiered.log.close().await.unwrap();
    server
        .sql_in(&tiered.database, "drop trigger refuse on treering_frame")
        .await;
    let next = open(&server.url(&tiered.database), single_copy()).await;
    acquire(&next).await;
    tiered.sealed_all(&server).await;
    assert_eq!(read_all(&next).await, records);
    // An upload of the dead node may end only now. The next look removes it, and later its row.
    fs::write(&orphans[0], "late").unwrap();
    let mut files = tiered.files();
    for attempt in 0..600 {
        if files.len() as u64 == tiered.number(&server, LIVE).await {
            break;
        }
        // A look that is still running fails if the epoch changes, and is repeated after a pause.
        if attempt % 100 == 0 {
            acquire(&next).await;
        }
        sleep(Duration::from_millis(50)).await;
        files = tiered.files();
    }
    assert_eq!(files.len() as u64, tiered.number(&server, LIVE).await);
    assert!(orphans.iter().all(|orphan| !files.contains(orphan)));
    let later = "update treering_segment set reserved_at = reserved_at - interval '2 hours'";
    server.sql_in(&tiered.database, later).await;
    acquire(&next).await;
    tiered
        .wait_for(&server, "select bool_and(is_live) from treering_segment")
        .await;
    assert_eq!(read_all(&next).await, records);
}

// The commit of a sealing did not reach the standby, and a fail-over undid it after this process had
// read from the segment. Frames and large bodies are in the database again, and must be found there.
#[tokio::test(flavor = "multi_thread")]
async fn a_sealing_that_a_fail_over_undid_loses_nothing() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let tiered = Tiered::new(&server, 0).await;
    server.sql_in(&tiered.database, REFUSE_SEALING).await;
    let owned = acquire(&*tiered.log).await;
    let (record, blob) = large(1, samples::noise(90_000));
    let mut batch = samples::batch(1, std::slice::from_ref(&record));
    batch.blobs.push(blob.clone());
    tiered
        .log
        .append(SHARD, owned.epoch, 0, batch)
        .await
        .unwrap();
    let keep = "create table frames as select * from treering_frame;
                create table bodies as select * from treering_blob;
                drop trigger refuse on treering_frame";
    server.sql_in(&tiered.database, keep).await;
    acquire(&*tiered.log).await;
    tiered.sealed_all(&server).await;
    let read = async || tiered.log.blob(SHARD, &blob.reference()).await.unwrap();
    assert_eq!(read().await, blob.bytes);
    let undo = "insert into treering_frame select * from frames;
                insert into treering_blob select * from bodies;
                update treering_segment set is_live = false";
    server.sql_in(&tiered.database, undo).await;
    assert_eq!(read().await, blob.bytes);
    assert_eq!(read_all(&*tiered.log).await, [record]);
}

/// Returns a record whose body is stored separately under its offset, and that body.
fn large(offset: u64, bytes: bytes::Bytes) -> (Record, NewBlob) {
    let hash = Record::hash_body(&bytes);
    let salted = SaltSource::default().at(offset).hash(hash);
    let body = RecordBody::Blob(BlobRef {
        hash,
        bytes_len: bytes.len() as u64,
        home_offset: offset,
    });
    let header = samples::header(1);
    let record = Record::seal(Default::default(), header, body, salted, None).unwrap();
    let blob = NewBlob {
        namespace: record.header.namespace.clone(),
        hash,
        home_offset: offset,
        bytes,
        patch: None,
    };
    (record, blob)
}

// Somebody asks for the erasure of what was sealed long ago. No object may have it afterwards, and
// its neighbours, the large body of another event among them, stay as they were.
#[tokio::test(flavor = "multi_thread")]
async fn erased_content_leaves_the_objects() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let tiered = Tiered::new(&server, 0).await;
    let mut owned = acquire(&*tiered.log).await;
    let mut salts = SaltSource::default();
    let mut records = Vec::new();
    let mut blobs = Vec::new();
    let mut secrets = Vec::new();
    for number in 0..6 {
        let offset = owned.head + 1;
        // Noise is stored as it is, so it can be searched for.
        let bytes = samples::noise(if number < 4 { 4_000 } else { 90_000 });
        let (record, blob) = if number < 4 {
            let salted = salts.at(offset).hash(Record::hash_body(&bytes));
            let body = RecordBody::Inline(bytes.clone());
            let header = samples::header(1);
            let record = Record::seal(Default::default(), header, body, salted, None);
            (record.unwrap(), None)
        } else {
            let (record, blob) = large(offset, bytes.clone());
            blobs.push(blob.reference());
            (record, Some(blob))
        };
        let mut batch = samples::batch(offset, std::slice::from_ref(&record));
        batch.blobs.extend(blob);
        owned.head = tiered
            .log
            .append(SHARD, owned.epoch, owned.head, batch)
            .await
            .unwrap();
        records.push(record);
        secrets.push(bytes);
    }
    tiered.sealed_all(&server).await;
    let has = |secret: &[u8]| {
        let middle = &secret[1_000..1_040];
        let has = |path: &PathBuf| {
            let bytes = fs::read(path).unwrap();
            bytes.windows(middle.len()).any(|window| window == middle)
        };
        tiered.files().iter().any(has)
    };
    assert!(secrets.iter().all(|secret| has(secret)));
    let stub = |offset| (offset, bytes::Bytes::from_static(b"a stub"));
    let erasure = Arc::new(Erasure {
        stubs: [stub(2), stub(5)].into(),
        blobs: [5].into(),
        ..Erasure::default()
    });
    let port = Arc::clone(&tiered.log)
        .erasable(SHARD, owned.epoch)
        .unwrap();
    Arc::clone(&port).mark_begun().await.unwrap();
    for replaced in [true, false] {
        let removed = Arc::clone(&port).remove(Arc::clone(&erasure), Box::new(|_, _| {}));
        let removed = removed.await.unwrap();
        assert_eq!(removed.segments > 0, replaced);
        assert!(
            removed
                .may_remain
                .iter()
                .any(|it| it.contains("object storage"))
        );
        for (offset, secret) in (1..).zip(&secrets) {
            assert_eq!(
                has(secret),
                !erasure.stubs.contains_key(&offset),
                "{offset}"
            );
        }
        let after = read_all(&*tiered.log).await;
        for (offset, (before, after)) in (1..).zip(records.iter().zip(&after)) {
            assert_eq!(before.chain_hash(), after.chain_hash());
            assert_eq!(after.is_erased(), erasure.stubs.contains_key(&offset));
        }
        assert!(tiered.log.blob(SHARD, &blobs[0]).await.is_err());
        assert_eq!(tiered.log.blob(SHARD, &blobs[1]).await.unwrap(), secrets[5]);
        assert_eq!(
            tiered.files().len() as u64,
            tiered.number(&server, LIVE).await
        );
    }
    // A process that had read the old segments finds the new ones.
    port.mark_done(owned.head).await.unwrap();
}

// A file of a segment is deleted, or the file system of all segments is not mounted. Only the first
// is damage, which names the file and leaves what follows readable; the second must not look like it.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_object_is_damage_and_a_missing_folder_is_not() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let tiered = Tiered::new(&server, 0).await;
    tiered.append(1, 5, 5_000).await;
    tiered.sealed_all(&server).await;
    tiered.append(1, 5, 5_000).await;
    tiered.sealed_all(&server).await;
    let away = tiered.objects.path().with_extension("away");
    fs::rename(tiered.objects.path(), &away).unwrap();
    fs::create_dir(tiered.objects.path()).unwrap();
    // The second one has never read anything.
    let fresh = open(&server.url(&tiered.database), single_copy()).await;
    fresh.tail(SHARD, 9).await.unwrap();
    for log in [&*tiered.log, &fresh] {
        let error = log.read(SHARD, 1, 1).await.unwrap_err();
        assert!(matches!(error, LogError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("mounted"), "{error}");
    }
    fs::remove_dir_all(tiered.objects.path()).unwrap();
    fs::rename(&away, tiered.objects.path()).unwrap();
    for log in [&*tiered.log, &fresh] {
        assert_eq!(read_all(log).await.len(), 10);
    }
    let first = &tiered.files()[0];
    fs::remove_file(first).unwrap();
    let fresh = open(&server.url(&tiered.database), single_copy()).await;
    fresh.tail(SHARD, 9).await.unwrap();
    for log in [&*tiered.log, &fresh] {
        let error = log.read(SHARD, 1, 1).await.unwrap_err();
        let name = first.file_name().unwrap().to_str().unwrap();
        assert!(matches!(error, LogError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
        assert!(!log.read(SHARD, 6, 1).await.unwrap().is_empty());
    }
}

// An object was damaged on its disk. The read fails, and never returns other content.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_object_is_never_read_as_something_else() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let tiered = Tiered::new(&server, 0).await;
    let records = tiered.append(1, 3, 2_000).await;
    tiered.sealed_all(&server).await;
    let file = &tiered.files()[0];
    let content = fs::read(file).unwrap();
    for at in (0..content.len()).step_by(content.len() / 60 + 1) {
        let mut changed = content.clone();
        changed[at] ^= 0x10;
        fs::write(file, &changed).unwrap();
        let log = open(&server.url(&tiered.database), single_copy()).await;
        log.tail(SHARD, 2).await.unwrap();
        let reader = treering_log::LogReader::new(Arc::new(log), SHARD, 1 << 20);
        match reader.records(1, usize::MAX, usize::MAX).await {
            Err(LogError::Damaged { .. } | LogError::NewerFormat { .. }) => {}
            Ok(read) => assert!(
                read.into_iter()
                    .map(|(_, it)| it)
                    .eq(records.iter().cloned())
            ),
            Err(error) => panic!("{error}"),
        }
    }
    fs::write(file, &content[..content.len() - 1]).unwrap();
    let log = open(&server.url(&tiered.database), single_copy()).await;
    log.tail(SHARD, 2).await.unwrap();
    assert!(log.read(SHARD, 1, 1 << 20).await.is_err());
}

// Another node took the shard. The earlier owner still has frames to seal, and must change nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_owner_seals_nothing() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let database = server.new_log().await;
    let url = server.url(&database);
    let objects = tempfile::tempdir().unwrap();
    let log = open(&url, single_copy()).await;
    let owned = acquire(&log).await;
    let records = samples::records(5, 3_000);
    let batch = samples::batch(1, &records);
    log.append(SHARD, owned.epoch, 0, batch).await.unwrap();
    let epoch = "update treering_shard set epoch = epoch + 1";
    server.sql_in(&database, epoch).await;
    let address = objects.path().to_str().unwrap();
    set_objects(&url, address, Some(0)).await.unwrap();
    // Looks for the storage, as every minute.
    let refused = log
        .append(SHARD, owned.epoch, 5, samples::batch(6, &records))
        .await;
    assert!(matches!(refused, Err(LogError::NotOwner { .. })));
    let other = open(&url, single_copy()).await;
    other.tail(SHARD, 4).await.unwrap();
    sleep(Duration::from_millis(500)).await;
    let untouched = "select not exists (select from treering_segment)";
    assert_eq!(server.sql_in(&database, untouched).await, "t");
    acquire(&other).await;
    for _ in 0..200 {
        if server.sql_in(&database, untouched).await == "f" {
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(read_all(&other).await, records);
}

// An operator moves the bucket, and forgets to copy it first; or grants the role nothing.
#[tokio::test(flavor = "multi_thread")]
async fn storage_is_replaced_only_by_a_copy() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let tiered = Tiered::new(&server, 0).await;
    let url = server.url(&tiered.database);
    let records = tiered.append(1, 5, 5_000).await;
    tiered.sealed_all(&server).await;
    let other = tempfile::tempdir().unwrap();
    let address = other.path().to_str().unwrap();
    let refused = set_objects(&url, address, None).await.unwrap_err();
    assert!(
        matches!(refused, PostgresError::Objects { .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains("Copy"), "{refused}");
    copy(tiered.objects.path(), other.path());
    let (set, hot) = set_objects(&url, address, None).await.unwrap();
    assert_eq!((Path::new(&set), hot), (other.path(), 0));
    fs::remove_dir_all(tiered.objects.path()).unwrap();
    let log = open(&url, single_copy()).await;
    log.tail(SHARD, 4).await.unwrap();
    assert_eq!(read_all(&log).await, records);

    // A role of the time before can read, and seals once it is granted.
    server
        .sql_in(&tiered.database, "create role tiering_node login")
        .await;
    let grants = treering_log_postgres::grants("tiering_node", false);
    server.sql_in(&tiered.database, &grants).await;
    let as_role = server.url_of("tiering_node", &tiered.database);
    let log = open(&as_role, single_copy()).await;
    let owned = acquire(&log).await;
    let batch = samples::batch(6, &records);
    log.append(SHARD, owned.epoch, 5, batch).await.unwrap();
    assert_eq!(read_all(&log).await.len(), 10);
    create_role(&url, "tiering_node").await.unwrap();
    acquire(&log).await;
    tiered.sealed_all(&server).await;
    assert_eq!(read_all(&log).await.len(), 10);
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            fs::create_dir_all(&to).unwrap();
            copy(&path, &to);
        } else {
            fs::copy(&path, &to).unwrap();
        }
    }
}
