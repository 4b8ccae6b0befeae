//! Signed heads with the built program: what they prove, who signed them, and a server that writes
//! them.

use std::{fs, path::Path, sync::Arc};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::{Duration, sleep, timeout},
};

use super::{
    child::{self, PATIENCE, Server},
    metrics::MetricsServer,
    read_only::copying::copy_folder,
    terminal::{CommandOutput, Shell, USAGE},
};

const REFUSED: i32 = 4;
const DAMAGED: i32 = 6;

/// Appends a message to the first conversation of a store.
async fn say(shell: &Shell, folder: &str, text: &str) {
    let said = ["append", "7ad31c26", "message", "user", text];
    let ended = shell.on(folder, &said).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
}

/// Signs a head of the folder `store` into a file. Returns its path.
async fn signed(shell: &Shell, name: &str) -> String {
    let path = shell.path(name);
    let said = shell.ok(&["heads", "--out", &path]).await;
    assert!(said.starts_with("Signed by "), "{said}");
    path
}

async fn since(shell: &Shell, folder: &str, head: &str) -> CommandOutput {
    shell.on(folder, &["verify", "--since", head]).await
}

/// Checks the exit code, and that only standard error contains these words.
fn told(ended: &CommandOutput, code: i32, words: &str) {
    assert_eq!(ended.code, Some(code), "{}{}", ended.out, ended.err);
    assert!(ended.err.contains(words), "{}", ended.err);
    assert_eq!(ended.out, "");
}

// An honest store must always pass: after any appends, and after erasures with a receipt, before or
// behind the head.
#[tokio::test(flavor = "multi_thread")]
async fn signed_head_holds_after_appends_and_erasures() {
    let shell = Shell::filled().await;
    let head = signed(&shell, "head.json").await;
    let text: Value = serde_json::from_str(&fs::read_to_string(&head).unwrap()).unwrap();
    assert_eq!(text["conversations"], 2);
    let position = text["position"].as_u64().unwrap();
    let ended = since(&shell, "store", &head).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let expected =
        format!("as signed: 2 conversations up to position {position}, and 0 events since\n");
    assert_eq!(ended.out, expected);

    say(&shell, "store", "more").await;
    shell.ok(&["append", "new", "message", "user", "new"]).await;
    let ended = since(&shell, "store", &head).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.ends_with("and 3 events since\n"), "{}", ended.out);

    let receipt = shell.path("receipt.json");
    let erase = ["erase", "7ad31c26#2", "--yes", "--receipt", &receipt];
    shell.ok(&erase).await;
    shell.ok(&["verify", "--erased", &receipt]).await;
    let ended = since(&shell, "store", &head).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let json = ["verify", "--since", &head, "--json"];
    let json: Value = serde_json::from_str(&shell.ok(&json).await).unwrap();
    assert_eq!(json["as_signed"], true);
    assert!(json["erased"].as_u64().unwrap() >= 1, "{json}");
    // Also for a head that was signed after that.
    let head = signed(&shell, "later.json").await;
    let ended = since(&shell, "store", &head).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
}

// An older copy of the whole folder, with its keys, is sound, and `verify` accepts it. A head that
// was stored elsewhere reveals it, also after the copy has continued.
#[tokio::test(flavor = "multi_thread")]
async fn older_copy_of_the_folder_fails_the_head_check() {
    let shell = Shell::filled().await;
    let early = signed(&shell, "early.json").await;
    copy_folder(
        Path::new(&shell.path("store")),
        Path::new(&shell.path("old")),
    );
    say(&shell, "store", "what somebody regrets").await;
    let head = signed(&shell, "head.json").await;
    fs::remove_dir_all(shell.path("store")).unwrap();
    fs::rename(shell.path("old"), shell.path("store")).unwrap();

    assert!(shell.ok(&["verify", "--deep"]).await.starts_with("sound"));
    let ended = since(&shell, "store", &head).await;
    told(&ended, DAMAGED, "rolled back to an older copy");
    let json = shell.run(&["verify", "--since", &head, "--json"]).await;
    assert_eq!(json.code, Some(DAMAGED));
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["as_signed"], false);
    // Events signed earlier are still there.
    let ended = since(&shell, "store", &early).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);

    say(&shell, "store", "something harmless").await;
    say(&shell, "store", "and more of it").await;
    let ended = since(&shell, "store", &head).await;
    told(&ended, DAMAGED, "differs from the signed one");
}

// An attacker with the folder can recompute checksums and hash chains. The store is then sound,
// with the same ids and number of events, but one event differs.
#[tokio::test(flavor = "multi_thread")]
async fn changed_history_of_equal_length_fails_the_head_check() {
    let shell = Shell::filled().await;
    // Both have the same key.
    signed(&shell, "first.json").await;
    copy_folder(
        Path::new(&shell.path("store")),
        Path::new(&shell.path("other")),
    );
    say(&shell, "store", "pay ann 10").await;
    say(&shell, "other", "pay bob 90").await;
    let head = signed(&shell, "head.json").await;
    let sound = shell.on("other", &["verify", "--deep"]).await;
    assert!(sound.out.starts_with("sound"), "{}", sound.out);
    let ended = since(&shell, "other", &head).await;
    told(&ended, DAMAGED, "differs from the signed one");
    let ended = since(&shell, "store", &head).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
}

// The end of the log is lost, or only the log was replaced by an older copy, and the loss was
// accepted. The store is sound again, and new events take the places of the lost ones.
#[tokio::test(flavor = "multi_thread")]
async fn lost_end_of_the_log_fails_the_head_check() {
    let shell = Shell::filled().await;
    let (log, old) = (shell.path("store/log"), shell.path("old"));
    copy_folder(Path::new(&log), Path::new(&old));
    say(&shell, "store", "what gets lost").await;
    let head = signed(&shell, "head.json").await;
    fs::remove_dir_all(&log).unwrap();
    fs::rename(&old, &log).unwrap();
    shell.ok(&["repair", "--accept-loss"]).await;
    assert!(shell.ok(&["verify"]).await.starts_with("sound"));
    let ended = since(&shell, "store", &head).await;
    told(&ended, DAMAGED, "the store ends at position");
    say(&shell, "store", "what came instead").await;
    let ended = since(&shell, "store", &head).await;
    told(&ended, DAMAGED, "A loss was accepted since");
}

// A store with unreadable events does not match its head, even if the loss was accepted. No head of
// it can be signed.
#[tokio::test(flavor = "multi_thread")]
async fn lost_segment_fails_the_head_check() {
    let shell = Shell::filled().await;
    let head = signed(&shell, "head.json").await;
    for entry in fs::read_dir(shell.path("store/log")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "redb") {
            fs::remove_file(path).unwrap();
        }
    }
    shell.ok(&["repair", "--accept-loss"]).await;
    shell.ok(&["append", "new", "message", "user", "new"]).await;
    let ended = since(&shell, "store", &head).await;
    told(
        &ended,
        DAMAGED,
        "this segment is lost, and `treering repair --accept-loss` accepted that",
    );
    let refused = shell.run(&["heads"]).await;
    told(
        &refused,
        DAMAGED,
        "this segment is lost, and `treering repair --accept-loss` accepted that",
    );
}

// A head proves something only if it is unchanged, of this store, and signed by a trusted key.
#[tokio::test(flavor = "multi_thread")]
async fn changed_or_foreign_heads_are_refused() {
    let shell = Shell::filled().await;
    let head = signed(&shell, "head.json").await;
    let text = fs::read_to_string(&head).unwrap();
    let changed = shell.path("changed.json");
    let mut fields: Value = serde_json::from_str(&text).unwrap();
    fields["position"] = 1.into();
    fs::write(&changed, fields.to_string()).unwrap();
    let ended = since(&shell, "store", &changed).await;
    told(&ended, REFUSED, "the signature does not match");
    for nothing in ["", "{}", "[1]", "no head"] {
        fs::write(&changed, nothing).unwrap();
        let ended = since(&shell, "store", &changed).await;
        assert_ne!(ended.code, Some(0), "{nothing}");
    }
    // A receipt is signed with the same key, in the same way.
    let receipt = shell.path("receipt.json");
    shell
        .ok(&["erase", "7ad31c26#2", "--yes", "--receipt", &receipt])
        .await;
    let ended = since(&shell, "store", &receipt).await;
    told(&ended, USAGE, "not a signed head");

    // Its own key, and that of another signer.
    let key = shell.path("head.key");
    let public = shell.ok(&["heads", "--make-key", &key]).await;
    let again = shell.run(&["heads", "--make-key", &key]).await;
    told(&again, 1, "no key was created");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(
            fs::metadata(&key).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
    let mine = shell.path("mine.json");
    let line = ["heads", "--key", &key, "--out", &mine];
    assert!(shell.ok(&line).await.contains(public.trim()));
    let ended = since(&shell, "store", &mine).await;
    told(&ended, REFUSED, &format!("signed by {}", public.trim()));
    let named = ["verify", "--since", &mine, "--signer", public.trim()];
    assert!(shell.ok(&named).await.starts_with("as signed"));
    let named = ["verify", "--since", &head, "--signer", public.trim()];
    told(
        &shell.run(&named).await,
        REFUSED,
        &format!("expected {}", public.trim()),
    );

    // Another store, with the same key.
    let other = Shell::filled().await;
    let here = Path::new(&shell.path("store")).join("receipts.key");
    let there = Path::new(&other.path("store")).join("receipts.key");
    fs::copy(here, there).unwrap();
    let ended = since(&other, "store", &head).await;
    told(&ended, REFUSED, "the head belongs to store");
    let restored = ["verify", "--since", &head, "--restored"];
    told(
        &other.run(&restored).await,
        DAMAGED,
        "differs from the signed one",
    );
}

// After a disaster there are a backup and a head. The restored store has another id, and the
// history that was signed.
#[tokio::test(flavor = "multi_thread")]
async fn restored_store_passes_the_head_check() {
    let shell = Shell::filled().await;
    let key = shell.path("head.key");
    let public = shell.ok(&["heads", "--make-key", &key]).await;
    let head = shell.path("head.json");
    shell.ok(&["heads", "--key", &key, "--out", &head]).await;
    let copy = shell.path("copy");
    shell.ok(&["backup", &copy]).await;
    let restore = ["restore", &copy, "--to", &shell.path("again")];
    assert_eq!(shell.run(&restore).await.code, Some(0));
    let line = ["verify", "--since", &head, "--signer", public.trim()];
    told(&shell.on("again", &line).await, REFUSED, "add --restored");
    let line = [&line[..], &["--restored"]].concat();
    let ended = shell.on("again", &line).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
}

// While a server uses the folder, heads are made and checked through it, by admins of the store,
// and with a key that the server never sees.
#[tokio::test(flavor = "multi_thread")]
async fn heads_are_signed_and_checked_through_a_server() {
    let shell = Shell::filled().await;
    let server = Server::start(Path::new(&shell.path("store"))).await;
    let on = async |line: &[&str]| {
        let output = child::run(&[&["--server", &server.url], line].concat()).await;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        CommandOutput {
            code: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    };
    told(
        &on(&["heads"]).await,
        USAGE,
        "does not leave its data folder",
    );
    told(&shell.run(&["heads"]).await, USAGE, "has no key yet");
    let key = shell.path("head.key");
    let public = shell.ok(&["heads", "--make-key", &key]).await;
    let made = on(&["heads", "--key", &key]).await;
    assert_eq!(made.code, Some(0), "{}", made.err);
    let head = shell.path("head.json");
    fs::write(&head, &made.out).unwrap();
    told(
        &on(&["verify", "--since", &head]).await,
        USAGE,
        "--signer PUBLIC_KEY",
    );
    let line = ["verify", "--since", &head, "--signer", public.trim()];
    let ended = on(&line).await;
    assert!(ended.out.starts_with("as signed"), "{}", ended.err);
    // With the folder's path, which leads to the server.
    assert!(shell.ok(&line).await.starts_with("as signed"));
    let small = ["keys", "create", "small", "--role", "reader:default"];
    let token = shell.ok(&small).await;
    let reads = on(&[&line[..], &["--token", token.trim()]].concat()).await;
    assert_eq!(reads.code, Some(REFUSED), "{}{}", reads.out, reads.err);
    server.kill().await;
}

/// Returns the head with the highest position in a folder.
fn newest(dir: &Path) -> Option<(u64, String)> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let heads = entries.filter(|path| path.to_string_lossy().ends_with(".json"));
    let path = heads.max()?;
    let head: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let position = head["position"].as_u64().unwrap();
    Some((position, path.to_str().unwrap().to_owned()))
}

// A server writes heads as the log grows, and the last one when it ends, so that nobody must
// remember it.
#[tokio::test(flavor = "multi_thread")]
async fn server_writes_heads_into_a_folder() {
    let shell = Shell::filled().await;
    let (store, heads) = (shell.path("store"), shell.path("heads"));
    let inside = format!("{store}/heads");
    let line = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--heads",
        "1s",
        "--heads-to",
    ];
    let refused = shell.run(&[&line[..], &[&inside]].concat()).await;
    told(&refused, USAGE, "is in the data folder");
    let more = ["--heads", "1s", "--heads-to", &heads];
    let server = MetricsServer::start(Path::new(&store), &more, &[]).await;
    let reached = async |position: u64| {
        let wait = async {
            while newest(Path::new(&heads)).is_none_or(|(at, _)| at < position) {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(PATIENCE, wait).await.expect("a head comes");
    };
    reached(1).await;
    let (before, first) = newest(Path::new(&heads)).unwrap();
    let said = ["append", "7ad31c26", "message", "user", "more"];
    assert!(server.cli(&said).await.status.success());
    reached(before + 1).await;
    server.end().await;
    let (_, last) = newest(Path::new(&heads)).unwrap();
    assert_ne!(first, last);
    for head in [&first, &last] {
        let ended = since(&shell, "store", head).await;
        assert_eq!(ended.code, Some(0), "{}", ended.err);
    }
    // A single file holds only the newest head. The head at the server's end includes events of the
    // last second.
    let one = shell.path("newest.json");
    let more = ["--heads", "10min", "--heads-to", &one];
    let server = MetricsServer::start(Path::new(&store), &more, &[]).await;
    assert!(server.cli(&said).await.status.success());
    server.end().await;
    let ended = since(&shell, "store", &one).await;
    assert!(ended.out.ends_with("and 0 events since\n"), "{}", ended.err);
}

/// Reads a request, and answers it with a status.
async fn answer(stream: &mut TcpStream, status: &str) -> String {
    let mut request = Vec::new();
    let body_at = loop {
        stream.read_buf(&mut request).await.unwrap();
        let text = String::from_utf8_lossy(&request).to_lowercase();
        let Some((head, _)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let (_, length) = head.split_once("content-length: ").expect("a length");
        let length: usize = length.lines().next().unwrap().trim().parse().unwrap();
        if request.len() >= head.len() + 4 + length {
            break head.len() + 4;
        }
    };
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).await.unwrap();
    assert!(request.starts_with(b"POST /hook?key=s3cret "));
    String::from_utf8(request.split_off(body_at)).unwrap()
}

// The receiver of heads may be unavailable. The server continues, reports it, and delivers the head
// later. Its log does not reveal the secret in the address.
#[tokio::test(flavor = "multi_thread")]
async fn failed_webhook_gets_its_heads_later() {
    let shell = Shell::filled().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook?key=s3cret", listener.local_addr().unwrap());
    let (is_up, got) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (up, tell) = (Arc::clone(&is_up), Arc::clone(&got));
    let taken = tokio::spawn(async move {
        // Unavailable: connections break.
        loop {
            tokio::select! {
                accepted = listener.accept() => drop(accepted.unwrap()),
                () = up.notified() => break,
            }
        }
        // Available, with an error at first.
        let (mut stream, _) = listener.accept().await.unwrap();
        let first = answer(&mut stream, "503 Service Unavailable").await;
        let (mut stream, _) = listener.accept().await.unwrap();
        let second = answer(&mut stream, "204 No Content").await;
        tell.notify_one();
        (first, second)
    });
    let more = ["--heads", "1s", "--heads-to", &url];
    let server = MetricsServer::start(Path::new(&shell.path("store")), &more, &[]).await;
    let failures = async |at_least: f64| {
        let wait = async {
            while server.scrape().await.get("treering_heads_failures_total") < at_least {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(PATIENCE, wait).await.expect("failures are counted");
    };
    failures(1.0).await;
    let said = ["append", "7ad31c26", "message", "user", "meanwhile"];
    assert!(server.cli(&said).await.status.success());
    assert_eq!(server.scrape().await.get("treering_heads_position"), 0.0);
    is_up.notify_one();
    timeout(PATIENCE, got.notified())
        .await
        .expect("it is sent again");
    let (first, second) = taken.await.unwrap();
    let position = |text: &str| {
        let head: Value = serde_json::from_str(text).unwrap();
        head["position"].as_u64().unwrap()
    };
    assert_eq!(position(&first), position(&second));
    let wait = async {
        while server.scrape().await.get("treering_heads_lag_events") > 0.0 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, wait)
        .await
        .expect("the lag never reaches zero");
    let log = server.end().await;
    assert!(log.contains("storing a signed head failed"), "{log}");
    assert!(!log.contains("s3cret"), "{log}");
    let head = shell.path("head.json");
    fs::write(&head, second).unwrap();
    let ended = since(&shell, "store", &head).await;
    assert!(
        ended.out.contains("and 0 events since"),
        "{}{}",
        ended.out,
        ended.err
    );
}
