//! Erasing with the built program: its output, its question, the receipt, and a process that is
//! killed while it erases.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use treering::{
    domain::*,
    engine::{Engine, EventSource, OpenOptions, ReadQuery, VerifyItem},
    log::{EventLog, OpenMode, RecordBody, RedbLog, RedbLogOptions, frame},
};

use futures::StreamExt;

use super::{
    child,
    random::Random,
    terminal::{CommandOutput, Shell, USAGE},
};

pub(super) const NEEDLE: &str = "qzxneedle7f31";
/// Kills in a test run.
const ROUNDS: u64 = 12;

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(files_below(&path)),
            false => files.push(path),
        }
    }
    files
}

fn holds(bytes: &[u8]) -> bool {
    let mut windows = bytes.windows(NEEDLE.len());
    windows.any(|window| window == NEEDLE.as_bytes())
}

/// Returns where the needle is: in files, also compressed, in records and dictionaries of the log,
/// and in large bodies.
pub(super) async fn found(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for path in files_below(dir) {
        let bytes = fs::read(&path).unwrap();
        if holds(&bytes) || holds(&unpacked(&bytes)) {
            found.push(path.display().to_string());
        }
    }
    let log = RedbLog::open(dir, RedbLogOptions::default(), OpenMode::Read).unwrap();
    let (shard, mut next) = (ShardId::default(), 1);
    loop {
        let frames = log.read(shard, next, 1 << 20).await.unwrap();
        let Some(last) = frames.last() else { break };
        next = last.last_offset() + 1;
        for stored in &frames {
            if stored
                .dictionary
                .as_ref()
                .is_some_and(|of| holds(of.bytes()))
            {
                found.push("a dictionary".to_owned());
            }
            for record in frame::decode(stored).unwrap().records {
                let bytes = match &record.body {
                    RecordBody::Inline(bytes) => bytes.clone(),
                    RecordBody::Stub(stub) => stub.bytes.clone(),
                    RecordBody::Blob(blob) => log.blob(shard, blob).await.unwrap(),
                };
                if holds(&bytes) {
                    found.push("a record".to_owned());
                }
            }
        }
    }
    log.close().await.unwrap();
    found
}

/// Returns the uncompressed content: rows of projections and large bodies are compressed.
fn unpacked(bytes: &[u8]) -> Vec<u8> {
    const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    const BYTES_MAX: u64 = 1 << 20;
    let mut all = Vec::new();
    for at in (0..bytes.len()).filter(|at| bytes[*at..].starts_with(&MAGIC)) {
        let packed = zstd::stream::read::Decoder::new(&bytes[at..]).unwrap();
        // The bytes after the compressed frame do not belong to it.
        let _ends = packed.single_frame().take(BYTES_MAX).read_to_end(&mut all);
    }
    all
}

async fn on_needle(shell: &Shell, line: &[&str]) -> CommandOutput {
    let secret = shell.path("secret.txt");
    fs::write(&secret, format!("{NEEDLE}\n")).unwrap();
    shell
        .run(&[&["erase", "--literal-from", &secret], line].concat())
        .await
}

// Erasing cannot be undone. The user must see what will be erased, and a script must confirm it
// explicitly.
#[tokio::test(flavor = "multi_thread")]
async fn erase_lists_the_events_and_asks_for_consent() {
    let shell = Shell::filled().await;
    let say = ["append", "7ad31c26", "message", "user"];
    shell
        .ok(&[&say[..], &[&format!("the key is {NEEDLE}")]].concat())
        .await;
    let asked = on_needle(&shell, &[]).await;
    assert_eq!(asked.code, Some(USAGE), "{}", asked.err);
    let dry = on_needle(&shell, &["--dry-run"]).await;
    assert!(dry.out.contains("1 event would be erased") && dry.out.contains("message_appended"));
    assert!(!found(Path::new(&shell.path("store"))).await.is_empty());

    let receipt = shell.path("receipt.json");
    let done = on_needle(
        &shell,
        &["--yes", "--receipt", &receipt, "--reason", "a key"],
    )
    .await;
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.out.contains("1 event is erased"), "{}", done.out);
    assert_eq!(found(Path::new(&shell.path("store"))).await, [""; 0]);
    let checked = shell.ok(&["verify", "--erased", &receipt]).await;
    assert!(
        checked.starts_with("erased: 1 event is a stub"),
        "{checked}"
    );
    assert!(shell.ok(&["verify", "--deep"]).await.starts_with("sound"));
    let log = shell.ok(&["--json", "log", "7ad31c26"]).await;
    assert!(
        log.contains(r#""erased":true"#) && log.contains("a key"),
        "{log}"
    );
    // Erasing it again finds nothing, which is no error.
    let again = on_needle(&shell, &["--yes"]).await;
    assert_eq!(
        (again.code, again.out.as_str()),
        (Some(0), "0 events are erased\n")
    );
    // A changed receipt is not accepted, nor one of another store.
    let text = std::fs::read_to_string(&receipt).unwrap();
    let changed = shell.path("changed.json");
    std::fs::write(&changed, text.replace("a key", "a cat")).unwrap();
    let wrong = shell.run(&["verify", "--erased", &changed]).await;
    assert!(
        wrong.err.contains("the signature does not match"),
        "{}",
        wrong.err
    );
    assert_ne!(wrong.code, Some(0));
    let other = Shell::filled().await;
    let data = other.path("store");
    let wrong = child::run(&["--data", &data, "verify", "--erased", &receipt]).await;
    assert_ne!(wrong.status.code(), Some(0));
    // A range, and a whole conversation with its annotations.
    let range = shell
        .run(&["erase", "7ad31c26#1-2", "7ad31c26#4", "--yes"])
        .await;
    assert_eq!(range.code, Some(0), "{}", range.err);
    let whole = shell.run(&["erase", "tau/3-0", "--yes", "--json"]).await;
    assert!(whole.out.contains(r#""why":"asked""#), "{}", whole.out);
    assert_eq!(shell.ok(&["search", "boats"]).await, "Nothing found.\n");
    assert!(shell.ok(&["verify", "--deep"]).await.starts_with("sound"));
}

/// Creates a store with the needle in a text, a title and a large body, among others.
async fn planted(dir: &Path) {
    let engine = Engine::open(OpenOptions::new(dir)).await.unwrap();
    let noise = |seed: u64| {
        let hash = |part: u64| blake3::hash(&(seed << 8 | part).to_le_bytes()).to_hex();
        (0..32)
            .map(|part| hash(part).to_string())
            .collect::<String>()
    };
    for number in 0..6_u64 {
        let id = ConversationId::generate();
        let created = ConversationCreated {
            title: format!("{NEEDLE} {number}"),
            ..ConversationCreated::default()
        };
        let mut bodies = vec![EventBody::ConversationCreated(created)];
        for at in 0..60 {
            let text = match at % 20 {
                7 => format!("{NEEDLE} {}", noise(number << 32 | at).repeat(60)),
                3 => format!("and {NEEDLE}"),
                _ => noise(number << 32 | at),
            };
            bodies.push(EventBody::MessageAppended(MessageAppended::text(
                Role::User,
                &text,
            )));
        }
        let events = bodies.into_iter().map(|body| NewEvent::new(id, body));
        let command = AppendCommand::new(Namespace::default(), events.collect());
        engine.append(command).await.unwrap();
        if number == 3 {
            engine.pack_log().await.unwrap();
        }
    }
    engine.close().await;
}

// The process is killed at random moments while it erases. Once the erasure is recorded, the next
// start completes it, whatever was done before. Before that, nothing has changed.
#[tokio::test(flavor = "multi_thread")]
async fn erasure_survives_kill() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut random = Random(seed);
    let (mut recorded, mut longest) = (0, Duration::from_millis(400));
    for _ in 0..ROUNDS {
        let shell = Shell::new();
        let dir = PathBuf::from(shell.path("store"));
        planted(&dir).await;
        let secret = shell.path("secret.txt");
        fs::write(&secret, NEEDLE).unwrap();
        let began = std::time::Instant::now();
        let mut process = child::treering()
            .args(["--data", dir.to_str().unwrap(), "erase", "--yes"])
            .args(["--literal-from", &secret])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let span = u64::try_from(longest.as_micros()).unwrap();
        let after = Duration::from_micros(random.next() % span);
        match tokio::time::timeout(after, process.wait()).await {
            // It ended first: the next ones are killed sooner.
            Ok(ended) => {
                assert!(ended.unwrap().success());
                longest = began.elapsed();
            }
            Err(_) => {
                process.kill().await.unwrap();
                longest = longest.max(after * 2).min(Duration::from_secs(8));
            }
        }
        let engine = Engine::open(OpenOptions::new(&dir)).await.unwrap();
        let all = ReadQuery::all(Namespace::default(), EventSource::Log);
        let events = engine.read_all(all).await.unwrap();
        let said = events
            .iter()
            .filter(|event| event.event.header.kind() == Some(EventKind::ContentErased));
        let said = said.count();
        // One event records all that is erased from a conversation.
        let erased = events.iter().filter(|event| event.event.erased).count();
        assert_eq!(erased, said * 7, "{said} said");
        let mut items = engine.verify(&Namespace::default(), true);
        while let Some(item) = items.next().await {
            if let VerifyItem::Fault(fault) = item.unwrap() {
                panic!("{fault:?}");
            }
        }
        engine.close().await;
        if said == 6 {
            recorded += 1;
            assert_eq!(found(&dir).await, [""; 0]);
        }
    }
    assert!(recorded > 1, "{recorded} were recorded");
}

/// Marks an erasure as unfinished in the manifest, as a killed process leaves it.
fn interrupt(store: &str) {
    let path = Path::new(store).join("log/MANIFEST");
    let text = fs::read_to_string(&path).unwrap();
    let mut manifest: serde_json::Value =
        serde_json::from_str(text.lines().next().unwrap()).unwrap();
    manifest["erasing"] = 1.into();
    let json = manifest.to_string();
    let sum = blake3::hash(json.as_bytes()).to_hex();
    fs::write(&path, format!("{json}\n{sum}\n")).unwrap();
}

// After a killed erasure, `repair` must not report a sound store, nor read commands blame
// permissions. Each must report the unfinished erasure, and how to complete it.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_erasure_is_reported() {
    let shell = Shell::filled().await;
    let store = shell.path("store");
    let done = shell.run(&["erase", "7ad31c26#4", "--yes"]).await;
    assert_eq!(done.code, Some(0), "{}", done.err);
    interrupt(&store);
    for command in [
        &["ls"][..],
        &["stats"],
        &["verify"],
        &["log", "7ad31c26"],
        &["erase", "7ad31c26#5", "--dry-run"],
    ] {
        let told = shell.run(command).await;
        assert_eq!(told.code, Some(0), "{command:?}: {}", told.err);
        let how = format!("`treering upgrade --data {store}` finishes it");
        assert!(told.err.contains(&how), "{command:?}: {}", told.err);
    }
    let told = shell.ok(&["repair"]).await;
    assert!(told.contains("An erase was interrupted"), "{told}");
    let told = shell.ok(&["upgrade", "--check"]).await;
    assert!(told.contains("`treering upgrade` finishes it"), "{told}");
    let told = shell.run(&["upgrade"]).await;
    assert_eq!(told.code, Some(0), "{}", told.err);
    assert!(told.err.contains("is now finished"), "{}", told.err);
    assert!(!told.out.contains("interrupted"), "{}", told.out);
    let told = shell.run(&["ls"]).await;
    assert_eq!(told.err, "");
    assert!(shell.ok(&["verify", "--deep"]).await.starts_with("sound"));
}

fn write_session(path: &str, messages: &[&str]) {
    let messages: Vec<_> = messages
        .iter()
        .enumerate()
        .map(|(at, text)| {
            let role = ["user", "assistant"][at % 2];
            serde_json::json!({"role": role, "content": text})
        })
        .collect();
    let line = serde_json::json!({"id": "boats", "source": "test", "messages": messages});
    fs::write(path, format!("{line}\n")).unwrap();
}

// The next import of a growing session must not restore what was erased from it. The title from the
// first import must be erased, too.
#[tokio::test(flavor = "multi_thread")]
async fn import_does_not_restore_erased_content() {
    let shell = Shell::new();
    let source = shell.path("session.jsonl");
    let first = format!("The key of the boat house is {NEEDLE}");
    let mut messages = vec![first.as_str(), "Noted", "Where was it?", "By the quay"];
    write_session(&source, &messages);
    shell.ok(&["import", &source]).await;
    let dry = on_needle(&shell, &["--dry-run"]).await;
    assert!(dry.out.contains("conversation_created"), "{}", dry.out);
    let erased = on_needle(&shell, &["--yes"]).await;
    assert_eq!(erased.code, Some(0), "{}", erased.err);
    messages.extend(["And the tide?", "At six"]);
    write_session(&source, &messages);
    shell.ok(&["import", &source]).await;
    assert_eq!(found(Path::new(&shell.path("store"))).await, [""; 0]);
    let log = shell.ok(&["log", "@last"]).await;
    assert!(
        log.contains("At six") && log.contains("And the tide?"),
        "{log}"
    );
    let log = shell.ok(&["--json", "log", "@last"]).await;
    assert!(!log.contains("changed-after"), "{log}");
    assert_eq!(shell.ok(&["--json", "log", "@last"]).await, log);
    shell.ok(&["import", &source]).await;
    assert_eq!(shell.ok(&["--json", "log", "@last"]).await, log);
}

// A literal file with several lines must give a warning, and a byte order mark must be ignored.
#[tokio::test(flavor = "multi_thread")]
async fn literal_file_skips_byte_order_mark_and_warns_of_lines() {
    let shell = Shell::filled().await;
    let say = ["append", "7ad31c26", "message", "user"];
    shell
        .ok(&[&say[..], &[&format!("the key is {NEEDLE}")]].concat())
        .await;
    let secret = shell.path("marked.txt");
    let dry = ["erase", "--literal-from", &secret, "--dry-run"];
    fs::write(&secret, format!("\u{feff}{NEEDLE}\r\n\n")).unwrap();
    let told = shell.run(&dry).await;
    assert!(told.out.contains("1 event would be erased"), "{}", told.out);
    fs::write(&secret, format!("{NEEDLE}\nanother\n")).unwrap();
    let told = shell.run(&dry).await;
    assert!(
        told.out.contains("0 events would be erased"),
        "{}",
        told.out
    );
    assert!(told.err.contains("2 lines"), "{}", told.err);
}

// A restored store with pseudonyms must not continue in plain text: its key is in no backup.
#[tokio::test(flavor = "multi_thread")]
async fn restored_store_needs_its_pseudonym_key() {
    let shell = Shell::new();
    let store = shell.path("store");
    let options = OpenOptions {
        pseudonyms: true,
        ..OpenOptions::new(&store)
    };
    let engine = Engine::open(options).await.unwrap();
    let id = ConversationId::generate();
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let first = AppendCommand::new(Namespace::default(), vec![NewEvent::new(id, created)]);
    engine.append(first).await.unwrap();
    engine.close().await;
    let id = id.to_string();
    let said = ["append", &id, "message", "user", "hello"];
    let appended = |data: &str| {
        let line = [&["--data", data][..], &said[..]].concat();
        let line: Vec<String> = line.into_iter().map(str::to_owned).collect();
        async move {
            let line: Vec<&str> = line.iter().map(String::as_str).collect();
            child::run(&line).await
        }
    };
    let (backup, restored) = (shell.path("backup"), shell.path("restored"));
    shell.ok(&["backup", &backup]).await;
    let told = shell.run(&["restore", &backup, "--to", &restored]).await;
    assert_eq!(told.code, Some(0), "{}", told.err);
    assert!(told.err.contains("copy pseudonyms.key"), "{}", told.err);
    let refused = appended(&restored).await;
    let err = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(4), "{err}");
    assert!(err.contains("put pseudonyms.key back"), "{err}");
    let read = child::run(&["--data", &restored, "ls"]).await;
    assert!(read.status.success());
    fs::copy(
        Path::new(&store).join("pseudonyms.key"),
        Path::new(&restored).join("pseudonyms.key"),
    )
    .unwrap();
    let done = appended(&restored).await;
    let err = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{err}");
}
