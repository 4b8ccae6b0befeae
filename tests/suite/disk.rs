//! Full disks and read-only folders, on a small tmpfs. The test mounts it itself, or runs again in
//! a user namespace if it may not.

use std::{path::Path, process::Command, time::Duration};

use futures::StreamExt;
use tokio::time::timeout;
use treering::{domain::*, engine::*};

use super::{child, random::Random, store};

/// Set in the process that runs inside its own namespace.
const INSIDE: &str = "TREERING_TEST_MOUNTS";
/// Size of the small disk in MiB.
const DISK_MIB: u64 = 160;
/// Size in bytes of a file that takes most of the disk until it is deleted. Events fill the rest,
/// and take several times their size once they are indexed.
const BALLAST_BYTES: usize = ((DISK_MIB - 12) << 20) as usize;

/// A small disk, unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={DISK_MIB}m");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(dir.path())
            .output();
        let mounted = mounted.is_ok_and(|output| output.status.success());
        mounted.then_some(Self(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn remount(&self, options: &str) -> bool {
        let status = Command::new("mount")
            .args(["-o", &format!("remount,{options}")])
            .arg(self.path())
            .status();
        status.is_ok_and(|status| status.success())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// Returns a small disk. If it cannot be mounted, runs the test again in a namespace that allows
/// it, or skips it.
fn small_disk(test: &str) -> Option<SmallDisk> {
    if let Some(disk) = SmallDisk::mount() {
        return Some(disk);
    }
    if std::env::var_os(INSIDE).is_none() {
        let output = Command::new("unshare")
            .arg("-rm")
            .arg(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(INSIDE, "1")
            .output();
        if let Ok(output) = output {
            let said = String::from_utf8_lossy(&output.stdout);
            if said.contains("running 1 test") {
                assert!(output.status.success(), "{said}");
                return None;
            }
        }
    }
    println!("SKIPPED {test}: no tmpfs can be mounted here, neither as root nor with unshare -rm");
    None
}

/// Fills the disk with batches until one is refused. Returns the number of accepted events.
async fn fill(engine: &Engine, id: ConversationId, bytes: usize) -> (u64, AppendError) {
    let mut random = Random(bytes as u64);
    for taken in 0.. {
        let event = store::message(id, &random.text(bytes));
        let appended = store::append(engine, vec![event]);
        match timeout(child::PATIENCE, appended).await.expect("timed out") {
            Ok(_) => {}
            Err(error) => return (taken, error),
        }
    }
    unreachable!("the disk has no end")
}

/// Checks that everything can be read and found, which needs no space.
async fn assert_readable(engine: &Engine, id: ConversationId, events: u64) {
    let source = EventSource::Conversation(id);
    let read = engine.read_all(ReadQuery::all(store::ns(), source));
    let read = timeout(child::PATIENCE, read).await.expect("a read hangs");
    assert_eq!(read.unwrap().len() as u64, events);
    let state = engine
        .conversation(&BranchAddress::active(store::ns(), id), None)
        .await;
    assert_eq!(state.unwrap().summary.head, Revision(events));
    let search = engine.search(SearchRequest::new(store::ns(), "hello", 5));
    let found = timeout(child::PATIENCE, search)
        .await
        .expect("a search hangs");
    assert_eq!(found.unwrap().hits.len(), 1);
}

// Large events fill the disk, then small ones fill the rest. Appends must report it while reads and
// searches continue. Once there is space, the same engine must accept appends again and be sound.
#[tokio::test(flavor = "multi_thread")]
async fn full_disk_refuses_only_appends() {
    let Some(disk) = small_disk("suite::disk::full_disk_refuses_only_appends") else {
        return;
    };
    // Deleted later to free space.
    std::fs::write(disk.path().join("ballast"), vec![1; BALLAST_BYTES]).unwrap();
    let data = disk.path().join("data");
    let engine = store::open(&data).await;
    let id = store::conversation(&engine).await;
    let request = SearchRequest {
        at_least: Some(engine.head()),
        ..SearchRequest::new(store::ns(), "hello", 5)
    };
    assert_eq!(engine.search(request).await.unwrap().hits.len(), 1);

    let mut events = 2;
    for bytes in [30_000, 200_000, 300] {
        let (taken, error) = fill(&engine, id, bytes).await;
        println!("{taken} messages of {bytes} bytes were taken");
        events += taken;
        assert!(matches!(error, AppendError::NoSpace), "{error:?}");
        assert_readable(&engine, id, events).await;
    }
    assert!(events > 50, "only {events} events were taken");
    // Projections and index are due to be written, too, and find no space.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_readable(&engine, id, events).await;

    std::fs::remove_file(disk.path().join("ballast")).unwrap();
    let again = store::append(&engine, vec![store::message(id, "room again")]);
    timeout(child::PATIENCE, again)
        .await
        .expect("timed out")
        .unwrap();
    events += 1;
    assert_readable(&engine, id, events).await;
    let verified = timeout(child::PATIENCE, store::faults(&engine)).await;
    assert_eq!(verified.expect("a verification hangs"), []);
    engine.close().await;
    drop(engine);

    let engine = store::open(&data).await;
    assert_readable(&engine, id, events).await;
    store::assert_sound(&engine).await;
    engine.close().await;
}

// A store is opened on a full disk. Reads must work, and appends must report the cause until there
// is space.
#[tokio::test(flavor = "multi_thread")]
async fn store_opens_on_a_full_disk() {
    let Some(disk) = small_disk("suite::disk::store_opens_on_a_full_disk") else {
        return;
    };
    let data = disk.path().join("data");
    let engine = store::open(&data).await;
    let id = store::conversation(&engine).await;
    for _ in 0..20 {
        let text = Random(3).text(20_000);
        let events = vec![store::message(id, &text)];
        store::append(&engine, events).await.unwrap();
    }
    engine.close().await;
    drop(engine);
    fill_file(&disk.path().join("ballast"));

    let engine = Engine::open(OpenOptions::new(&data)).await.unwrap();
    assert_readable(&engine, id, 22).await;
    let (taken, error) = fill(&engine, id, 20_000).await;
    assert!(matches!(error, AppendError::NoSpace), "{error:?}");
    assert_readable(&engine, id, 22 + taken).await;
    std::fs::remove_file(disk.path().join("ballast")).unwrap();
    let again = store::append(&engine, vec![store::message(id, "room again")]);
    timeout(child::PATIENCE, again)
        .await
        .expect("timed out")
        .unwrap();
    store::assert_sound(&engine).await;
    engine.close().await;
}

/// Uses up the free space.
fn fill_file(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).unwrap();
    for piece in [vec![1; 64 << 10], vec![1; 512]] {
        while file.write_all(&piece).is_ok() {}
    }
}

/// Adds a hard link to each file, so that removing the file frees no space.
fn keep_room(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let other = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => keep_room(&entry.path(), &other),
            false => std::fs::hard_link(entry.path(), other).unwrap(),
        }
    }
}

/// Erases the events that contain the needle.
async fn erase_needle(engine: &Engine) -> Result<(), EraseError> {
    let mut items = engine.erase(EraseCommand {
        namespace: store::ns(),
        target: EraseTarget::Literal(super::erase::NEEDLE.into()),
        keep_derived: false,
        dry_run: false,
        reason: String::new(),
        actor: String::new(),
    });
    while let Some(item) = items.next().await {
        item?;
    }
    Ok(())
}

// If the disk is nearly full, an erasure may be recorded and not carried out. The store must still
// open, and serve reads.
#[tokio::test(flavor = "multi_thread")]
async fn erasure_on_a_full_disk_leaves_the_store_readable() {
    let Some(disk) = small_disk("suite::disk::erasure_on_a_full_disk_leaves_the_store_readable")
    else {
        return;
    };
    let (data, ballast) = (disk.path().join("data"), disk.path().join("ballast"));
    let engine = store::open(&data).await;
    let id = store::conversation(&engine).await;
    let mut random = Random(5);
    for _ in 0..100 {
        let text = format!("{} {}", super::erase::NEEDLE, random.text(40_000));
        let events = vec![store::message(id, &text)];
        store::append(&engine, events).await.unwrap();
    }
    // Finds just enough space to record the erasure.
    let mut room = 0;
    loop {
        fill_file(&ballast);
        let file = std::fs::OpenOptions::new().write(true).open(&ballast);
        let file = file.unwrap();
        let full = file.metadata().unwrap().len();
        // While the index merges, less space may be free.
        file.set_len(full.saturating_sub(room)).unwrap();
        match erase_needle(&engine).await {
            Err(EraseError::Unfinished { .. }) => break,
            Err(_) if room < 4 << 20 => room += 64 << 10,
            other => panic!("{room} bytes of room: {other:?}"),
        }
        std::fs::remove_file(&ballast).unwrap();
    }
    println!("recorded with {room} bytes of room");
    engine.close().await;
    drop(engine);
    keep_room(&data, &disk.path().join("kept"));
    fill_file(&disk.path().join("more ballast"));

    let engine = Engine::open(OpenOptions::new(&data)).await.unwrap();
    let at_open = engine.erasing_at_open().clone();
    assert!(
        matches!(at_open, ErasureAtOpen::Hidden { why: Some(_) }),
        "{at_open:?}"
    );
    let read = engine.read_all(ReadQuery::all(store::ns(), EventSource::Conversation(id)));
    let read = format!("{:?}", read.await.unwrap());
    assert!(read.contains("hello") && !read.contains(super::erase::NEEDLE));
    engine.close().await;
    drop(engine);

    for name in ["ballast", "more ballast"] {
        std::fs::remove_file(disk.path().join(name)).unwrap();
    }
    let engine = store::open(&data).await;
    assert_eq!(*engine.erasing_at_open(), ErasureAtOpen::Finished);
    store::assert_sound(&engine).await;
    engine.close().await;
    assert_eq!(super::erase::found(&data).await, [""; 0]);
}

// Over gRPC a full disk is RESOURCE_EXHAUSTED, with a reason for programs.
#[tokio::test(flavor = "multi_thread")]
async fn full_disk_is_resource_exhausted_over_grpc() {
    use super::grpc::harness::{TestServer, batch, message, reason};
    let Some(disk) = small_disk("suite::disk::full_disk_is_resource_exhausted_over_grpc") else {
        return;
    };
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![1; BALLAST_BYTES]).unwrap();
    let server = TestServer::start(&disk.path().join("data")).await;
    let id = server.conversation().await;
    let mut random = Random(1);
    let status = loop {
        let request = batch(&id, [message(Role::User, &random.text(100_000))]);
        if let Err(status) = server.events().append(request).await {
            break status;
        }
    };
    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status:?}");
    assert_eq!(reason(&status), "NO_SPACE");
    assert!(server.read_all(&id).await.len() > 5);
    std::fs::remove_file(ballast).unwrap();
    let request = batch(&id, [message(Role::User, "room again")]);
    server.append(request).await;
    server.stop().done().await;
}

// The disk was mounted read-only before the store is opened. The error must name the cause, and not
// report damage. (A disk with open files cannot be made read-only, so that case does not exist.)
#[tokio::test(flavor = "multi_thread")]
async fn read_only_disk_is_named_in_the_error() {
    let Some(disk) = small_disk("suite::disk::read_only_disk_is_named_in_the_error") else {
        return;
    };
    let data = disk.path().join("data");
    let engine = store::open(&data).await;
    let id = store::conversation(&engine).await;
    engine.close().await;
    drop(engine);
    assert!(
        disk.remount("ro"),
        "a disk without open files can be made read-only"
    );
    let error = Engine::open(OpenOptions::new(&data)).await.err().unwrap();
    assert!(matches!(error, OpenError::ReadOnly { .. }), "{error:?}");
    // Read commands need no write permission.
    let data_arg = data.to_str().unwrap();
    for command in super::read_only::READING {
        let arguments = [command, &["--data", data_arg]].concat();
        let output = child::run(&arguments).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {said}");
    }
    let id_text = id.to_string();
    let append = [
        "append", "--data", data_arg, &id_text, "message", "user", "more",
    ];
    let output = child::run(&append).await;
    assert_eq!(output.status.code(), Some(5));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("is not writable"), "{said}");
    assert!(disk.remount("rw"));
    let engine = store::open(&data).await;
    assert_readable(&engine, id, 2).await;
    engine.close().await;
}
