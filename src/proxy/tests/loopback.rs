//! The scripted provider, the client and the store.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use treering_client::{ConnectOptions, Connection, ConversationWriter, Credentials, Target};
use treering_domain::{EventKind, StoredEvent};
use treering_import::exporter;
use treering_proto::pb;

use crate::{FOLDER, RunningProxy, Upstreams};

/// No test step takes this long unless it hangs.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// An answer of the provider: the bytes of each write.
#[derive(Clone, Debug)]
pub(super) struct Reply(pub(super) Vec<Vec<u8>>);

/// An HTTP message, in its parts.
#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    /// The first line.
    pub(super) start: String,
    /// Name in lower case, and value.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// The other side closed the connection before the end.
    pub(super) is_broken: bool,
}

impl Message {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(super) fn status(&self) -> u16 {
        self.start.split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// A provider that gives the scripted answers in order.
pub(super) struct Provider {
    pub(super) url: String,
    pub(super) requests: Arc<Mutex<Vec<Message>>>,
    replies: Arc<Mutex<VecDeque<Reply>>>,
}

impl Provider {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let replies: Arc<Mutex<VecDeque<Reply>>> = Arc::default();
        let (asked, script) = (Arc::clone(&requests), Arc::clone(&replies));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (asked, script) = (Arc::clone(&asked), Arc::clone(&script));
                tokio::spawn(async move {
                    let request = read(&mut stream).await;
                    asked.lock().unwrap().push(request);
                    let reply = script.lock().unwrap().pop_front();
                    for piece in reply.expect("a scripted answer").0 {
                        stream.write_all(&piece).await.unwrap();
                        stream.flush().await.unwrap();
                    }
                });
            }
        });
        Self {
            url,
            requests,
            replies,
        }
    }

    pub(super) fn will(&self, reply: Reply) {
        self.replies.lock().unwrap().push_back(reply);
    }

    pub(super) fn last_request(&self) -> Message {
        self.requests.lock().unwrap().last().unwrap().clone()
    }
}

/// Reads a message with its body.
async fn read(stream: &mut TcpStream) -> Message {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = find(&bytes, b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return Message {
                is_broken: true,
                ..Message::default()
            };
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let mut lines = head.split("\r\n");
    let mut message = Message {
        start: lines.next().unwrap().to_owned(),
        headers: lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect(),
        ..Message::default()
    };
    let mut rest = bytes.split_off(head_end + 4);
    let length = message
        .header("content-length")
        .map(|it| it.parse().unwrap());
    let is_chunked = message.header("transfer-encoding") == Some("chunked");
    loop {
        let (body, is_whole) = match (length, is_chunked) {
            (Some(length), _) => (rest.clone(), rest.len() >= length),
            (None, true) => dechunked(&rest),
            (None, false) => (rest.clone(), true),
        };
        message.body = body;
        if is_whole {
            return message;
        }
        if stream.read_buf(&mut rest).await.unwrap_or(0) == 0 {
            message.is_broken = true;
            return message;
        }
    }
}

fn dechunked(mut bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(at) = find(bytes, b"\r\n") else {
            return (body, false);
        };
        let size = String::from_utf8_lossy(&bytes[..at]).into_owned();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let rest = &bytes[at + 2..];
        if size == 0 {
            return (body, true);
        }
        if rest.len() < size + 2 {
            return (body, false);
        }
        body.extend_from_slice(&rest[..size]);
        bytes = &rest[size + 2..];
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// An answer with this body and more header lines.
pub(super) fn with_body(status: &str, more: &str, body: &[u8]) -> Reply {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{more}\r\n");
    Reply(vec![head.into_bytes(), body.to_vec()])
}

pub(super) fn whole(answer: &Value) -> Reply {
    let more = "content-type: application/json\r\nx-request-id: r1\r\n";
    with_body("200 OK", more, answer.to_string().as_bytes())
}

/// The text of a stream of events, as a provider writes it.
pub(super) fn stream_text(events: &[Value]) -> String {
    let event = |event: &Value| match event {
        Value::String(text) => format!("data: {text}\n\n"),
        event => match event["type"].as_str() {
            Some(kind) => format!("event: {kind}\ndata: {event}\n\n"),
            None => format!("data: {event}\n\n"),
        },
    };
    events.iter().map(event).collect()
}

/// A stream of events, each in its own write.
pub(super) fn streamed(events: &[Value]) -> Reply {
    let mut reply = cut_off(events);
    reply.0.push(b"0\r\n\r\n".to_vec());
    reply
}

/// A stream whose connection closes before its end.
pub(super) fn cut_off(events: &[Value]) -> Reply {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                transfer-encoding: chunked\r\n\r\n";
    let mut pieces = vec![head.as_bytes().to_vec()];
    for event in events {
        let text = stream_text(std::slice::from_ref(event));
        pieces.push(format!("{:x}\r\n{text}\r\n", text.len()).into_bytes());
    }
    Reply(pieces)
}

/// A proxy, its provider and its store.
pub(super) struct Setup {
    pub(super) provider: Provider,
    pub(super) dir: tempfile::TempDir,
    pub(super) proxy: RunningProxy,
}

pub(super) fn store_in(dir: &Path) -> ConnectOptions {
    ConnectOptions {
        target: Target::Data(dir.to_owned()),
        wait: Duration::ZERO,
        namespace: "default".into(),
        credentials: Credentials::default(),
    }
}

impl Setup {
    pub(super) async fn start() -> Self {
        Self::start_on(tempfile::tempdir().unwrap()).await
    }

    pub(super) async fn start_on(dir: tempfile::TempDir) -> Self {
        let provider = Provider::start().await;
        let openai = format!("{}/v1", provider.url);
        let upstreams = Upstreams::new(&openai, &provider.url).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = RunningProxy::start(listener, upstreams, store_in(dir.path())).unwrap();
        Self {
            provider,
            dir,
            proxy,
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.proxy.address()
    }

    /// Sends a request and returns the answer.
    pub(super) async fn send(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Message {
        let mut head = format!("POST {path} HTTP/1.1\r\nhost: proxy\r\nconnection: close\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        let mut stream = TcpStream::connect(self.address()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        timeout(PATIENCE, read(&mut stream))
            .await
            .expect("it hangs")
    }

    /// Sends a call, to which the provider replies with `reply`.
    pub(super) async fn call(&self, path: &str, request: &Value, reply: Reply) -> Message {
        self.call_with(path, &[], request, reply).await
    }

    pub(super) async fn call_with(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        request: &Value,
        reply: Reply,
    ) -> Message {
        self.provider.will(reply);
        let json = [("content-type", "application/json")];
        let headers = [&json[..], headers].concat();
        self.send(path, &headers, request.to_string().as_bytes())
            .await
    }

    /// Stops the proxy, and returns the contents of the store.
    pub(super) async fn stop(self) -> Stored {
        let counts = timeout(PATIENCE, self.proxy.stop())
            .await
            .expect("it hangs");
        assert_eq!(counts.dropped(), 0);
        Stored::read(self.dir).await
    }
}

/// The contents of a store.
pub(super) struct Stored {
    /// The events of each conversation, in order of creation.
    pub(super) conversations: Vec<Vec<StoredEvent>>,
    pub(super) dir: tempfile::TempDir,
}

impl Stored {
    pub(super) async fn read(dir: tempfile::TempDir) -> Self {
        let store = Connection::open(&store_in(dir.path()), FOLDER)
            .await
            .unwrap();
        let request = pb::ListConversationsRequest {
            ascending: true,
            ..Default::default()
        };
        let listed = store.conversations().list(request).await.unwrap();
        let mut conversations = Vec::new();
        for one in listed.into_inner().conversations {
            let writer = ConversationWriter::new(&store);
            conversations.push(writer.stored(&one.conversation_id).await.unwrap());
        }
        store.close().await.unwrap();
        Self { conversations, dir }
    }

    /// The only conversation, as an OpenAI chat line without times.
    pub(super) fn only(&self) -> Value {
        assert_eq!(self.conversations.len(), 1);
        self.line(0)
    }

    pub(super) fn line(&self, index: usize) -> Value {
        let line = exporter::export_line(&self.conversations[index]).unwrap();
        let mut line: Value = serde_json::from_str(&line).unwrap();
        for message in line["messages"].as_array_mut().unwrap() {
            let x = message["x"].as_object_mut().unwrap();
            x.remove("ts").expect("each message has a time");
            if x.is_empty() {
                message.as_object_mut().unwrap().remove("x");
            }
        }
        line
    }

    /// A conversation in short form: role and text, call or result.
    pub(super) fn talk(&self, index: usize) -> Vec<String> {
        let line = self.line(index);
        let mut talk = Vec::new();
        for message in line["messages"].as_array().unwrap() {
            let role = message["role"].as_str().unwrap();
            match &message["content"] {
                Value::Null => {}
                Value::String(text) => talk.push(format!("{role}: {text}")),
                parts => talk.push(format!("{role}: {parts}")),
            }
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                let function = &call["function"];
                talk.push(format!(
                    "call {} {}",
                    function["name"].as_str().unwrap(),
                    function["arguments"].as_str().unwrap()
                ));
            }
        }
        talk
    }

    pub(super) fn count(&self, index: usize, kind: EventKind) -> usize {
        let events = self.conversations[index].iter();
        events
            .filter(|event| event.header.kind() == Some(kind))
            .count()
    }
}

/// A request of Chat Completions.
pub(super) fn chat(messages: Value) -> Value {
    json!({"model": "gpt-4o", "messages": messages})
}

/// An answer of Chat Completions.
pub(super) fn chat_answer(id: &str, message: Value) -> Value {
    let reason = match message["tool_calls"].is_array() {
        true => "tool_calls",
        false => "stop",
    };
    json!({
        "id": id, "object": "chat.completion", "model": "gpt-4o-2024-08-06",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 2}},
    })
}

pub(super) fn said(text: &str) -> Value {
    json!({"role": "assistant", "content": text, "refusal": null})
}

pub(super) fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}
