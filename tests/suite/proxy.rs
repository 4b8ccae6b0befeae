//! `treering proxy` as a process, between a client, a scripted provider and a server.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{
    io::AsyncBufReadExt,
    process::{Child, ChildStdout},
    time::{sleep, timeout},
};

use super::child::{PATIENCE, Server, run, treering};

/// Reads an HTTP message with a length. Returns its first line and its body.
fn read(stream: &TcpStream) -> (String, Vec<u8>) {
    let mut reader = BufReader::new(stream);
    let (mut start, mut length) = (String::new(), 0);
    reader.read_line(&mut start).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim().to_ascii_lowercase();
        if let Some(text) = line.strip_prefix("content-length:") {
            length = text.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (start, body)
}

/// Starts a provider that answers every Anthropic Messages request with the request's last text.
fn provider() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (_, body) = read(&stream);
            let request: Value = serde_json::from_slice(&body).unwrap();
            let last = request["messages"].as_array().unwrap().last().unwrap();
            let text = format!("you said {}", last["content"].as_str().unwrap());
            let body = json!({"id": "msg_1", "role": "assistant", "model": "claude-x",
                "content": [{"type": "text", "text": text}], "stop_reason": "end_turn",
                "usage": {"input_tokens": 1, "output_tokens": 1}})
            .to_string();
            let length = body.len();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
            let answer = format!("{head}content-length: {length}\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    url
}

/// A running proxy.
struct Proxy {
    process: Child,
    _out: tokio::io::Lines<tokio::io::BufReader<ChildStdout>>,
    address: String,
}

impl Proxy {
    async fn start(provider: &str, store: [&str; 2]) -> Self {
        let mut process = treering()
            .args(["proxy", "--json", "--listen", "127.0.0.1:0"])
            .args(["--until-stdin-closes", "--anthropic", provider])
            .args(store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = tokio::io::BufReader::new(process.stdout.take().unwrap()).lines();
        let first = timeout(PATIENCE, out.next_line()).await.expect("timed out");
        let first: Value = serde_json::from_str(&first.unwrap().unwrap()).unwrap();
        let address = first["proxy"].as_str().unwrap().strip_prefix("http://");
        Self {
            address: address.unwrap().to_owned(),
            process,
            _out: out,
        }
    }

    /// Sends a text. Returns the text of the answer.
    async fn say(&self, text: &str) -> String {
        let body = json!({"model": "claude-x", "max_tokens": 9, "messages":
            [{"role": "user", "content": text}]})
        .to_string();
        let length = body.len();
        let head = format!("POST /v1/messages HTTP/1.1\r\nhost: p\r\ncontent-length: {length}");
        let request = format!("{head}\r\nx-api-key: sk-secret\r\nconnection: close\r\n\r\n{body}");
        let address = self.address.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            read(&stream)
        });
        let (start, body) = timeout(PATIENCE, asked).await.expect("timed out").unwrap();
        assert!(start.contains("200"), "{start}");
        let answer: Value = serde_json::from_slice(&body).unwrap();
        answer["content"][0]["text"].as_str().unwrap().to_owned()
    }

    /// Stops the proxy. Returns its exit code.
    async fn stop(mut self) -> Option<i32> {
        drop(self.process.stdin.take());
        let ended = timeout(PATIENCE, self.process.wait()).await;
        ended.expect("timed out").unwrap().code()
    }
}

async fn titles(store: [&str; 2]) -> Vec<String> {
    let listed = run(&["ls", "--json", store[0], store[1]]).await;
    let lines = String::from_utf8(listed.stdout).unwrap();
    let title = |line: &str| {
        let one: Value = serde_json::from_str(line).unwrap();
        one["title"].as_str().unwrap().to_owned()
    };
    let mut titles: Vec<_> = lines.lines().map(title).collect();
    titles.sort();
    titles
}

// An agent uses the proxy while the server restarts. It must not notice, and every call must be
// recorded afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn calls_are_recorded_when_the_server_is_back() {
    let provider = provider();
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let url = server.url.clone();
    let store = ["--server", url.as_str()];
    let proxy = Proxy::start(&provider, store).await;
    assert_eq!(proxy.say("first").await, "you said first");
    let began = Instant::now();
    while titles(store).await != ["first"] {
        assert!(began.elapsed() < PATIENCE);
        sleep(Duration::from_millis(50)).await;
    }
    server.kill().await;
    assert_eq!(proxy.say("second").await, "you said second");
    sleep(Duration::from_millis(500)).await;
    let listen = url.strip_prefix("http://").unwrap();
    let again = Server::start_with(dir.path(), &["--listen", listen]).await;
    assert_eq!(proxy.stop().await, Some(0));
    assert_eq!(titles(store).await, ["first", "second"]);
    again.kill().await;
}

fn holds(dir: &Path, text: &[u8]) -> bool {
    std::fs::read_dir(dir).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => holds(&path, text),
            false => std::fs::read(path)
                .unwrap()
                .windows(text.len())
                .any(|part| part == text),
        }
    })
}

// A proxy on the default folder must not block other commands from it, must record everything
// before it ends, and must not store the caller's key.
#[tokio::test(flavor = "multi_thread")]
async fn proxy_shares_its_folder_and_records_to_the_end() {
    let provider = provider();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = ["--data", path.to_str().unwrap()];
    let proxy = Proxy::start(&provider, store).await;
    assert_eq!(titles(store).await, Vec::<String>::new());
    for text in ["a", "b", "c"] {
        proxy.say(text).await;
    }
    assert_eq!(proxy.stop().await, Some(0));
    assert_eq!(titles(store).await, ["a", "b", "c"]);
    assert!(!holds(&path, b"sk-secret"));
}

// Everyone who reaches the port can write to the store, and keys are sent there unencrypted.
#[tokio::test]
async fn other_addresses_need_the_insecure_flag() {
    for (arguments, said) in [
        (["--listen", "0.0.0.0:0"], "loopback"),
        (["--openai", "api.openai.com"], "not a URL"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().to_str().unwrap();
        let all = [&["proxy", "--data", data][..], &arguments].concat();
        let refused = run(&all).await;
        let told = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{told}");
        assert!(told.contains(said), "{told}");
    }
}
