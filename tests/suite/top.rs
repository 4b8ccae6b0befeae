//! `treering top`: what it says of a real server, on a terminal and without one.
#![cfg(target_os = "linux")]

use std::{
    fs::File,
    io::{Read, Write},
    process::Stdio,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    process::Child,
    time::timeout,
};

use super::{
    child::{self, PATIENCE},
    metrics::Watched,
};

const COLUMNS: u16 = 100;
const ROWS: u16 = 30;
/// The other screen is shown, and is left.
const ENTERED: &str = "\u{1b}[?1049h";
const LEFT: &str = "\u{1b}[?1049l";

/// A terminal that a program has for its own.
struct Terminal {
    keys: File,
    tty: File,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn open(columns: u16, rows: u16) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let tty = File::from(rustix::fs::open(name.as_c_str(), flags, Mode::empty()).unwrap());
        let ours = File::from(ours);
        let terminal = Self {
            keys: ours.try_clone().unwrap(),
            tty,
            shown: Arc::default(),
        };
        terminal.resize(columns, rows);
        let shown = Arc::clone(&terminal.shown);
        let mut ours = ours;
        thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(read) = ours.read(&mut some)
                && read > 0
            {
                shown.lock().unwrap().extend_from_slice(&some[..read]);
            }
        });
        terminal
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.tty, size).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Child {
        let mut command = child::treering();
        let tty = || Stdio::from(self.tty.try_clone().unwrap());
        command
            .args(arguments)
            .env("TERM", "xterm")
            .stdin(tty())
            .stdout(tty())
            .stderr(tty());
        command.spawn().unwrap()
    }

    fn all(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until the screen has a text.
    async fn until(&self, text: &str) -> Vec<String> {
        for _ in 0..PATIENCE.as_millis() / 50 {
            let screen = screen(&self.all());
            if screen.iter().any(|line| line.contains(text)) {
                return screen;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("no {text} in {:#?}", screen(&self.all()));
    }

    /// The program has left the terminal as it found it.
    async fn is_left(&self) {
        for _ in 0..PATIENCE.as_millis() / 50 {
            if self.all().contains(LEFT) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let all = self.all();
        let left = all.rfind(LEFT).unwrap_or_else(|| panic!("{all:?}"));
        assert!(all.find(ENTERED).unwrap() < left);
        assert!(all.contains("\u{1b}[?25h"), "the cursor is there: {all:?}");
        let modes = tcgetattr(&self.tty).unwrap().local_modes;
        assert!(
            modes.contains(LocalModes::ICANON | LocalModes::ECHO),
            "{modes:?}"
        );
    }
}

/// What is on the screen after all that was written to it: texts, moves and clearing.
fn screen(all: &str) -> Vec<String> {
    let blank = || vec![vec![' '; usize::from(COLUMNS)]; usize::from(ROWS)];
    let (mut cells, mut row, mut column) = (blank(), 0, 0);
    let mut chars = all.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            if let Some(cell) = cells
                .get_mut(row)
                .and_then(|row: &mut Vec<char>| row.get_mut(column))
            {
                *cell = c;
            }
            column += 1;
            continue;
        }
        if chars.next_if_eq(&'[').is_none() {
            continue;
        }
        let mut numbers = String::new();
        while let Some(c) = chars.next_if(|c| !c.is_ascii_alphabetic()) {
            numbers.push(c);
        }
        let mut place = numbers
            .split(';')
            .map(|number| number.parse::<usize>().unwrap_or(1));
        match chars.next() {
            Some('H') => {
                row = place.next().unwrap() - 1;
                column = place.next().unwrap_or(1) - 1;
            }
            Some('J') => cells = blank(),
            _ => {}
        }
    }
    cells
        .into_iter()
        .map(|row| row.into_iter().collect())
        .collect()
}

async fn ended(mut process: Child) -> std::process::ExitStatus {
    timeout(PATIENCE, process.wait())
        .await
        .expect("it hangs")
        .unwrap()
}

// What an operator types first, with nothing but the folder: numbers of a server under load,
// as text because nobody looks at it on a terminal, and as JSON.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_under_appends_is_told_in_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap().to_owned();
    let server = Watched::start(dir.path(), &[], &[]).await;
    let made = server
        .cli(&["append", "new", "message", "user", "hello"])
        .await;
    assert!(made.status.success(), "{made:?}");
    let late = [
        "append", "@last", "--expect", "99", "message", "user", "late",
    ];
    assert!(!server.cli(&late).await.status.success());
    let (url, stop) = (server.url.clone(), Arc::new(Mutex::new(false)));
    let stopped = Arc::clone(&stop);
    let appends = tokio::spawn(async move {
        while !*stopped.lock().unwrap() {
            let line = [
                "append", "@last", "message", "user", "more", "--server", &url,
            ];
            assert!(child::run(&line).await.status.success());
        }
    });
    let top = ["top", "--data", &data, "--every", "2s"];
    let text = child::run(&top).await;
    let json = child::run(&[&top[..], &["--json", "--once"]].concat()).await;
    *stop.lock().unwrap() = true;
    appends.await.unwrap();

    assert!(text.status.success(), "{text:?}");
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let line = |begin: &str| {
        let line = text.lines().find(|line| line.starts_with(begin));
        line.unwrap_or_else(|| panic!("no {begin} in {text}"))
            .to_owned()
    };
    let version = format!("treering {}  live  ready", env!("CARGO_PKG_VERSION"));
    assert!(line("treering ").starts_with(&version), "{text}");
    assert!(!line("appends").contains(" 0 appends/s"), "{text}");
    assert!(
        line("commit").contains("p99") && line("commit").contains("fsync p50"),
        "{text}"
    );
    assert!(line("refused").contains("REVISION_MISMATCH 1"), "{text}");
    assert!(line("disk").contains("free"), "{text}");
    assert!(
        line("Events/Append").contains("ms") || line("Events/Append").contains("us"),
        "{text}"
    );

    assert!(json.status.success(), "{json:?}");
    let told: Value = serde_json::from_slice(&json.stdout).unwrap();
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{told:#}"));
    assert!(number(&told["appends_per_second"]) > 0.0, "{told:#}");
    assert!(number(&told["bytes_per_second"]) > number(&told["events_per_second"]));
    let (p50, p99) = (
        &told["commit_seconds"]["p50"],
        &told["commit_seconds"]["p99"],
    );
    assert!(number(p50) > 0.0 && number(p99) >= number(p50));
    let scraped = server.scrape().await;
    assert!(number(&told["head"]) <= scraped.get("treering_head_position"));
    let methods = told["methods"].as_array().unwrap();
    let append = methods
        .iter()
        .find(|it| it["method"] == "Events/Append")
        .unwrap();
    assert_eq!(append["errors"], 1.0);
    assert!(number(&append["per_second"]) > 0.0);
    server.end().await;
    let gone = child::run(&top).await;
    let said = String::from_utf8(gone.stderr).unwrap();
    assert_eq!(gone.status.code(), Some(5), "{said}");
    assert!(
        said.contains("no server can be watched at http://"),
        "{said}"
    );
}

// A server as it is started without a word about metrics: there is a view all the same, and
// it says how to have all of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_metrics_is_told_by_grpc() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let server = child::Server::start(dir.path()).await;
    let append = [
        "append",
        "new",
        "message",
        "user",
        "hello",
        "--server",
        &server.url,
    ];
    assert!(child::run(&append).await.status.success());
    for place in [["--data", data], ["--server", &server.url]] {
        let top = child::run(&[&["top", "--once", "--every", "100ms"][..], &place].concat()).await;
        let text = String::from_utf8(top.stdout).unwrap();
        assert!(
            text.contains("live  ready") && text.contains("head 2"),
            "{text}"
        );
        assert!(text.contains("serve --metrics"), "{text}");
    }
}

// Whoever ends it, by a key, by Ctrl-C or from outside, has the terminal as it was; a server
// that goes away is told while it is away, and comes back by itself.
#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_is_left_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let server = Watched::start(dir.path(), &[], &[]).await;
    let top = ["top", &server.metrics, "--every", "100ms"];
    for key in ["q", "\u{3}", "\u{1b}"] {
        let terminal = Terminal::open(COLUMNS, ROWS);
        let process = terminal.run(&top);
        terminal.until("live").await;
        (&terminal.keys).write_all(key.as_bytes()).unwrap();
        assert!(ended(process).await.success(), "{key:?}");
        terminal.is_left().await;
    }
    let terminal = Terminal::open(COLUMNS, ROWS);
    let process = terminal.run(&top);
    terminal.until("live").await;
    // A smaller terminal, and then this one again: all of it is drawn anew.
    terminal.resize(20, 5);
    (&terminal.keys).write_all(b"\x0c").unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    terminal.resize(COLUMNS, ROWS);
    (&terminal.keys).write_all(b"\x0c").unwrap();
    terminal.until("caches").await;
    let metrics = server.metrics.clone();
    server.end().await;
    let screen = terminal.until("NO ANSWER").await;
    assert!(
        screen[1].contains("no server can be watched"),
        "{screen:#?}"
    );
    let again = Watched::start(dir.path(), &["--metrics", &metrics], &[]).await;
    let screen = terminal.until("live").await;
    assert!(!screen[0].contains("NO ANSWER"), "{screen:#?}");
    let pid = Pid::from_raw(i32::try_from(process.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(ended(process).await.success());
    terminal.is_left().await;
    again.end().await;
}

// A listener that takes the question and says nothing: a key ends it at once all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_heard_while_an_answer_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = Watched::start(dir.path(), &[], &[]).await;
    let (_, body) = server.get("/metrics").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (asked, mut second) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        let mut held = Vec::new();
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut some = [0; 1024];
            let _read = stream.read(&mut some).await.unwrap();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(head.as_bytes()).await.unwrap();
            if number == 0 {
                stream.write_all(body.as_bytes()).await.unwrap();
            } else {
                asked.send(()).await.unwrap();
            }
            held.push(stream);
        }
    });
    let terminal = Terminal::open(COLUMNS, ROWS);
    let process = terminal.run(&["top", &address, "--every", "100ms"]);
    timeout(PATIENCE, second.recv()).await.unwrap().unwrap();
    let pressed = tokio::time::Instant::now();
    (&terminal.keys).write_all(b"q").unwrap();
    assert!(ended(process).await.success());
    // Half of what an answer is waited for.
    assert!(pressed.elapsed() < Duration::from_millis(2_500));
    terminal.is_left().await;
    server.end().await;
}
