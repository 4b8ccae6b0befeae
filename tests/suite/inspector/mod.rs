//! The inspector of the built program, used as by a browser: HTTP/1 on the port of the services.

mod access;
mod approvals;
mod calls;
mod crawl;
mod diff;
mod pages;
mod request;
mod tree;
mod usage;
mod visitor;

use std::{
    env,
    path::{Path, PathBuf},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Child,
    time::timeout,
};

use super::child::{self, PATIENCE, run};

/// A server, and a browser that uses it.
struct Browser {
    _process: Child,
    /// HOST:PORT
    address: String,
    cookie: Option<String>,
}

/// The answer to a request.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    /// Returns the value of a header.
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim())
    }

    /// Returns the text between this text and the next quote.
    fn after(&self, text: &str) -> &str {
        let at = self.body.find(text);
        let at = at.unwrap_or_else(|| panic!("no {text} in {}", self.body)) + text.len();
        self.body[at..].split('"').next().unwrap()
    }
}

impl Browser {
    async fn start(dir: &Path, more: &[&str]) -> Self {
        let (first, process) = child::named(dir, more).await;
        let url = first["inspector"].as_str().unwrap();
        let address = url.strip_prefix("http://").unwrap();
        Self {
            address: address.strip_suffix('/').unwrap().to_owned(),
            _process: process,
            cookie: None,
        }
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "").await
    }

    /// Returns a page, which must exist and be within the size limit.
    async fn page(&self, path: &str) -> Answer {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert!(
            answer.body.len() <= 300 << 10,
            "{path}: {}",
            answer.body.len()
        );
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.contains("script-src 'self'") && !policy.contains("unsafe"));
        answer
    }

    async fn post(&self, path: &str, headers: &[(&str, &str)], form: &str) -> Answer {
        let kind = ("Content-Type", "application/x-www-form-urlencoded");
        self.ask("POST", path, &[&[kind], headers].concat(), form)
            .await
    }

    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let host = headers.iter().find(|(name, _)| *name == "Host");
        let host = host.map_or(self.address.as_str(), |(_, host)| host);
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\n",
            body.len()
        );
        if let Some(cookie) = &self.cookie {
            request.push_str(&format!("Cookie: other=1; {cookie}\r\n"));
        }
        for (name, value) in headers.iter().filter(|(name, _)| *name != "Host") {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let request = format!("{request}\r\n{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        read.expect("timed out").unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no answer: {answer}"));
        let body = match head
            .to_ascii_lowercase()
            .contains("transfer-encoding: chunked")
        {
            true => unchunked(body),
            false => body.to_owned(),
        };
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_owned(),
            body,
        }
    }
}

impl Browser {
    /// Returns an answer that is not text.
    async fn ask_bytes(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let host = &self.address;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        read.expect("timed out").unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        whole.push_str(&rest[..size]);
        body = rest.get(size + 2..).unwrap_or_default();
        if size == 0 {
            break;
        }
    }
    whole
}

fn trajectories() -> Option<PathBuf> {
    let Some(folder) = env::var_os("TREERING_TEST_DATA") else {
        println!("skipped: TREERING_TEST_DATA names no folder");
        return None;
    };
    Some(Path::new(&folder).join("trajectories"))
}

/// Creates a store with real trajectories.
async fn real_store() -> Option<tempfile::TempDir> {
    let folder = trajectories()?;
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().display().to_string();
    for file in ["swe-agent.jsonl.zst", "claude-code-entire.jsonl.zst"] {
        let file = folder.join(file).display().to_string();
        let done = run(&["import", "--data", &data, &file]).await;
        assert!(done.status.success(), "{done:?}");
    }
    Some(dir)
}

async fn key(data: &Path, name: &str, role: &str) -> String {
    let data = data.display().to_string();
    let made = run(&["keys", "create", name, "--role", role, "--data", &data]).await;
    assert!(made.status.success(), "{made:?}");
    let text = String::from_utf8(made.stdout).unwrap();
    let at = text.find("tr_live_").unwrap_or_else(|| panic!("{text}"));
    text[at..].split_whitespace().next().unwrap().to_owned()
}
