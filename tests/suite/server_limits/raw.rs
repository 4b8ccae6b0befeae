//! A server under limits of the system, and calls with arbitrary bytes.

use std::{
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};
use tonic::{Code, Status, body::Body, transport::Channel};
use tower::Service;

use crate::suite::child::PATIENCE;

/// A server process.
pub struct LimitedServer {
    pub process: Child,
    pub address: std::net::SocketAddr,
    /// Its standard error.
    pub said: Arc<Mutex<String>>,
}

impl LimitedServer {
    /// Starts a server under limits of the shell, for example `ulimit -n 64`.
    pub async fn start(dir: &Path, limits: &str) -> Self {
        Self::listening(dir, limits, "127.0.0.1:0").await
    }

    pub async fn listening(dir: &Path, limits: &str, listen: &str) -> Self {
        let mut process = Command::new("sh")
            .arg("-c")
            .arg(format!("{limits}; exec \"$0\" \"$@\""))
            .arg(env!("CARGO_BIN_EXE_treering"))
            .args(["serve", "--insecure", "--listen", listen, "--data"])
            .arg(dir)
            .env_remove("TREERING_DATA")
            .env_remove("TREERING_SERVER")
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let mut errors = BufReader::new(process.stderr.take().unwrap()).lines();
        let hear = Arc::clone(&said);
        tokio::spawn(async move {
            while let Ok(Some(line)) = errors.next_line().await {
                hear.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let first = timeout(PATIENCE, lines.next_line()).await;
        let first = first.expect("timed out").unwrap().expect("an address");
        let (_, url) = first.rsplit_once("http://").expect("an address");
        let address = url.parse().unwrap();
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self {
            process,
            address,
            said,
        }
    }

    pub fn pid(&self) -> u32 {
        self.process.id().expect("it runs")
    }

    /// Returns a line of `/proc/PID/status`, in bytes.
    fn memory(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        let kibibytes = line.split_whitespace().nth(1).unwrap();
        kibibytes.parse::<u64>().unwrap() << 10
    }

    /// Returns the resident bytes, and resets the maximum.
    pub fn mark(&self) -> u64 {
        std::fs::write(format!("/proc/{}/clear_refs", self.pid()), "5").unwrap();
        self.memory("VmRSS")
    }

    /// Returns the maximum of resident bytes since [`LimitedServer::mark`].
    pub fn most(&self) -> u64 {
        self.memory("VmHWM")
    }

    /// Returns the processor time so far, in ticks of 10 ms.
    pub fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let fields: Vec<_> = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_whitespace()
            .collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// Sends SIGTERM, and waits for the end.
    pub async fn terminate(mut self) -> std::process::ExitStatus {
        let kill = Command::new("kill").arg(self.pid().to_string()).status();
        assert!(kill.await.unwrap().success());
        timeout(PATIENCE, self.process.wait())
            .await
            .expect("timed out")
            .unwrap()
    }

    pub async fn channel(&self) -> Channel {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", self.address));
        endpoint.unwrap().connect().await.unwrap()
    }
}

/// Returns a message with gRPC's prefix.
pub fn framed(content: &[u8], compressed: bool) -> Bytes {
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    [&[u8::from(compressed)], &length[..], content]
        .concat()
        .into()
}

/// Makes a call with any body. Returns its outcome.
pub async fn call(
    channel: &mut Channel,
    path: &str,
    encoding: Option<&str>,
    body: Body,
) -> Result<Status, tonic::transport::Error> {
    let mut request = http::Request::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(encoding) = encoding {
        request = request.header("grpc-encoding", encoding);
    }
    futures::future::poll_fn(|cx| channel.poll_ready(cx)).await?;
    let response = channel.call(request.body(body).unwrap()).await?;
    if let Some(status) = Status::from_header_map(response.headers()) {
        return Ok(status);
    }
    let status = |code, what: String| Ok(Status::new(code, what));
    match timeout(Duration::from_secs(60), response.into_body().collect()).await {
        Ok(Ok(all)) => match all.trailers().and_then(Status::from_header_map) {
            Some(end) => Ok(end),
            None => status(Code::Unknown, "no status".into()),
        },
        Ok(Err(error)) => status(Code::Unknown, error.to_string()),
        Err(_) => status(Code::Unknown, "no end".into()),
    }
}

pub fn full(bytes: Bytes) -> Body {
    Body::new(Full::new(bytes))
}
