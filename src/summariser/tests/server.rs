//! A model server over HTTP that misbehaves as a test requires.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinHandle,
};

/// The response to a request.
#[derive(Clone)]
pub(crate) enum Behaviour {
    /// Answers with a text.
    Says(&'static str),
    /// Answers with a text when notified.
    SaysLater(&'static str, Arc<Notify>),
    /// Answers with a status and a body.
    Status(u16, &'static str),
    /// Starts to answer and breaks off.
    BreaksOff,
    /// Never answers.
    Hangs,
}

/// The server.
pub(crate) struct Model {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
    serving: JoinHandle<()>,
}

struct State {
    /// Request bodies, with their authorization.
    requests: Vec<(Value, String)>,
    script: VecDeque<Behaviour>,
    always: Behaviour,
}

impl Model {
    /// Starts a server that follows the script, then repeats `always`.
    pub(crate) async fn start(script: Vec<Behaviour>, always: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State {
            requests: Vec::new(),
            script: script.into(),
            always,
        }));
        let shared = Arc::clone(&state);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        Self {
            url,
            state,
            serving,
        }
    }

    /// Returns the number of requests.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().unwrap().requests.len()
    }

    /// Returns the request bodies.
    pub(crate) fn requests(&self) -> Vec<(Value, String)> {
        self.state.lock().unwrap().requests.clone()
    }

    /// Sets the behaviour from now on.
    pub(crate) fn always(&self, behaviour: Behaviour) {
        self.state.lock().unwrap().always = behaviour;
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    let Some((body, authorization)) = request(&mut stream).await else {
        return;
    };
    let behaviour = {
        let mut state = state.lock().unwrap();
        state.requests.push((body, authorization));
        let next = state.script.pop_front();
        next.unwrap_or_else(|| state.always.clone())
    };
    let (status, body) = match behaviour {
        Behaviour::Says(text) => (200, completion(text)),
        Behaviour::SaysLater(text, told) => {
            told.notified().await;
            (200, completion(text))
        }
        Behaviour::Status(status, body) => (status, body.to_owned()),
        Behaviour::BreaksOff => {
            let half = "HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{\"choices\":[";
            let _ = stream.write_all(half.as_bytes()).await;
            return;
        }
        Behaviour::Hangs => return std::future::pending().await,
    };
    let answer = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

fn completion(text: &str) -> String {
    json!({"choices": [{"message": {"role": "assistant", "content": text}}]}).to_string()
}

/// Reads the body and the authorization of one request.
async fn request(stream: &mut TcpStream) -> Option<(Value, String)> {
    let mut bytes = Vec::new();
    let (mut head_end, mut length) = (None, 0);
    let mut authorization = String::new();
    loop {
        if head_end.is_none()
            && let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n")
        {
            let head = String::from_utf8_lossy(&bytes[..at]).into_owned();
            assert!(head.starts_with("POST /v1/chat/completions "), "{head}");
            for line in head.lines() {
                let (name, value) = line.split_once(": ").unwrap_or_default();
                match name.to_ascii_lowercase().as_str() {
                    "content-length" => length = value.parse().ok()?,
                    "authorization" => authorization = value.to_owned(),
                    _ => {}
                }
            }
            head_end = Some(at + 4);
        }
        if let Some(start) = head_end
            && bytes.len() >= start + length
        {
            return Some((serde_json::from_slice(&bytes[start..]).ok()?, authorization));
        }
        let mut part = [0; 16 << 10];
        match stream.read(&mut part).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&part[..count]),
        }
    }
}
