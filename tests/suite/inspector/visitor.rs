//! A server with the inspector, and a client that reads its pages. It speaks HTTP directly, so that
//! it sees every byte.

use std::{path::Path, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::suite::child::{PATIENCE, Server, run};

/// Maximum size of a page in bytes.
pub const PAGE_BYTES_MAX: usize = 300 << 10;

/// A client of the inspector.
pub struct Visitor {
    server: Server,
    /// Sent with each request.
    key: Option<String>,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// Returns the value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// Returns the values of an attribute, in order, as text.
    pub fn all(&self, attribute: &str) -> Vec<String> {
        let start = format!("{attribute}=\"");
        let values = self.body.split(&start).skip(1);
        values
            .map(|rest| unescaped(rest.split('"').next().unwrap_or_default()))
            .collect()
    }

    /// Returns the value of a form's hidden field.
    pub fn field(&self, name: &str) -> String {
        let start = format!("name=\"{name}\" value=\"");
        let rest = self.body.split(&start).nth(1);
        let rest = rest.unwrap_or_else(|| panic!("no field {name} in {}", self.body));
        unescaped(rest.split('"').next().unwrap_or_default())
    }
}

impl Answer {
    /// Returns the value of the first field with this text in its tag.
    pub fn field_of(&self, tag: &str) -> String {
        let rest = self.body.split(tag).nth(1);
        let rest = rest.unwrap_or_else(|| panic!("no {tag} in {}", self.body));
        let tag = rest.split('>').next().unwrap_or_default();
        let value = tag.split("value=\"").nth(1).unwrap_or_default();
        unescaped(value.split('"').next().unwrap_or_default())
    }
}

fn unescaped(text: &str) -> String {
    let text = text.replace("&lt;", "<").replace("&gt;", ">");
    text.replace("&quot;", "\"")
        .replace("&#39;", "'")
        .replace("&amp;", "&")
}

impl Visitor {
    /// Starts a server for a folder, and a client without a key.
    pub async fn of(dir: &Path) -> Self {
        Self {
            server: Server::start(dir).await,
            key: None,
        }
    }

    /// Returns this client with a key.
    pub fn with_key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// Runs a command on the server.
    pub async fn cli(&self, arguments: &[&str]) -> std::process::Output {
        run(&[arguments, &["--server", &self.server.url]].concat()).await
    }

    /// Runs a command on the server, which must succeed. Returns its output.
    pub async fn done(&self, arguments: &[&str]) -> String {
        let done = self.cli(arguments).await;
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// Returns a page. Checks that it is within the size limit, and that a browser would run
    /// nothing in it.
    pub async fn page(&self, path: &str) -> Answer {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert!(
            answer.body.len() <= PAGE_BYTES_MAX,
            "{path}: {}",
            answer.body.len()
        );
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.contains("default-src 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        for wrong in [
            " style=\"",
            " onclick",
            "<style",
            "javascript:",
            "\0",
            "\u{202e}",
        ] {
            assert!(!answer.body.contains(wrong), "{path} has {wrong:?}");
        }
        assert_eq!(answer.body.matches("<script").count(), 1, "{path}");
        answer
    }

    /// Returns any answer.
    pub async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "").await
    }

    /// Sends a form.
    pub async fn send(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let encode = |text: &str| -> String {
            let byte = |byte: u8| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
                byte => format!("%{byte:02X}"),
            };
            text.bytes().map(byte).collect()
        };
        let pairs: Vec<_> = fields
            .iter()
            .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
            .collect();
        self.ask("POST", path, &pairs.join("&")).await
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let host = self.server.url.strip_prefix("http://").unwrap();
        let key = self.key.as_ref();
        let key = key.map_or(String::new(), |key| {
            format!("Authorization: Bearer {key}\r\n")
        });
        // The browser does not send the part after `#`.
        let path = path.split('#').next().unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{key}\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(host).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        let read = stream.read_to_end(&mut bytes);
        timeout(PATIENCE, read).await.expect("timed out").unwrap();
        answer_of(&bytes)
    }

    /// Follows a live stream until it contains the word.
    pub async fn wait_for_live(&self, path: &str, word: &str) -> Live {
        let host = self.server.url.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(host).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut live = Live { stream };
        live.until(word).await;
        live
    }
}

/// A live stream.
pub struct Live {
    stream: TcpStream,
}

impl Live {
    /// Reads until the stream contains the word.
    pub async fn until(&mut self, word: &str) {
        let mut text = String::new();
        let read = async {
            let mut piece = [0; 4_096];
            while !text.contains(word) {
                let read = self.stream.read(&mut piece).await.unwrap();
                assert!(read > 0, "it ended: {text}");
                text.push_str(&String::from_utf8_lossy(&piece[..read]));
            }
        };
        timeout(PATIENCE.min(Duration::from_secs(30)), read)
            .await
            .expect("timed out");
    }
}

fn answer_of(bytes: &[u8]) -> Answer {
    let end = bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .expect("a head");
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let body = &bytes[end + 4..];
    let is_chunked = head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked");
    let body = if is_chunked {
        unchunked(body)
    } else {
        body.to_vec()
    };
    Answer {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        head,
        body: String::from_utf8_lossy(&body).into_owned(),
    }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..end]).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        if size == 0 {
            break;
        }
        body.extend_from_slice(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[end + 2 + size + 2..];
    }
    body
}
