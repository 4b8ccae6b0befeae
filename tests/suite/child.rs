//! Runs the built `treering` as a process.

use std::{
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

/// No start and no end takes this long: beyond it, something hangs.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Writes a file with a secret, which other users cannot read.
pub fn write_secret(path: &Path, secret: impl AsRef<[u8]>) {
    std::fs::write(path, secret).unwrap();
    set_mode(path, 0o600);
}

/// Sets the mode of a file, on systems that have modes.
pub fn set_mode(path: &Path, mode: u32) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    #[cfg(not(unix))]
    let _ = (path, mode);
}

/// Returns the command, without the environment variables that the program reads.
pub fn treering() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_treering"));
    command
        .env_remove("TREERING_DATA")
        .env_remove("TREERING_SERVER")
        .env_remove("TREERING_TOKEN")
        .env_remove("TREERING_CONFIG")
        .env_remove("OTEL_EXPORTER_OTLP_ENDPOINT")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Runs a command to its end.
pub async fn run(arguments: &[&str]) -> Output {
    run_with(arguments, &[]).await
}

/// Runs a command with additional environment variables.
pub async fn run_with(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = treering();
    let output = command
        .args(arguments)
        .envs(variables.iter().copied())
        .output();
    timeout(PATIENCE, output).await.expect("timed out").unwrap()
}

/// Starts a server, and does not wait until it serves.
pub fn start_server(dir: &Path) -> Child {
    start_server_with(dir, &["--listen", "127.0.0.1:0"])
}

fn start_server_with(dir: &Path, arguments: &[&str]) -> Child {
    treering()
        .arg("serve")
        .arg("--data")
        .arg(dir)
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A process that serves a folder.
pub struct Server {
    process: Child,
    pub url: String,
}

impl Server {
    /// Starts a server, and waits until it serves.
    pub async fn start(dir: &Path) -> Self {
        Self::start_with(dir, &["--listen", "127.0.0.1:0"]).await
    }

    /// Starts a server with other arguments, and waits until it serves.
    pub async fn start_with(dir: &Path, arguments: &[&str]) -> Self {
        let mut process = start_server_with(dir, arguments);
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let first = timeout(PATIENCE, lines.next_line())
            .await
            .expect("timed out");
        let first = first.unwrap().expect("the server prints its address");
        let (_, url) = first.rsplit_once(" at ").expect("an address");
        let url = url.to_owned();
        // The server goes on writing, and must not find the pipe closed.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { process, url }
    }

    pub fn pid(&self) -> u32 {
        self.process.id().unwrap()
    }

    /// Kills the server with SIGKILL.
    pub async fn kill(mut self) {
        self.process.kill().await.unwrap();
    }
}

/// Starts a server with these arguments. Returns its first line of output, as JSON, and the
/// process.
pub async fn named(dir: &Path, more: &[&str]) -> (serde_json::Value, Child) {
    let mut command = treering();
    command
        .args(["serve", "--json", "--listen", "127.0.0.1:0", "--data"])
        .arg(dir)
        .args(more);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let first = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
    let first = serde_json::from_str(&first.expect("it serves")).unwrap();
    (first, process)
}

/// Sends an HTTP/2 request that is not gRPC. Returns the status and the body.
pub async fn asked(
    channel: &tonic::transport::Channel,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String) {
    let mut request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("accept", "application/json, text/event-stream");
    if !headers.iter().any(|(name, _)| *name == "content-type") {
        request = request.header("content-type", "application/json");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = http_body_util::Full::new(bytes::Bytes::from(body.to_owned()));
    let request = request.body(tonic::body::Body::new(body)).unwrap();
    let answer = timeout(
        PATIENCE,
        tower::ServiceExt::oneshot(channel.clone(), request),
    )
    .await;
    let answer = answer.expect("timed out").unwrap();
    let status = answer.status().as_u16();
    let body = http_body_util::BodyExt::collect(answer.into_body());
    let body = body.await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}
