//! Servers in their own processes, so that they can be measured from outside and killed.

use std::{env, ffi::OsStr, fs, path::Path, process::Stdio};

use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{ChildStdin, ChildStdout, Command},
};

use super::failed;
use treering_client::{connect::Connection, error::ClientError};

/// Clock ticks per second in `/proc`, on every supported platform.
const TICKS_PER_SECOND: f64 = 100.0;

/// A server process. It is killed when this is dropped. If this process is killed, the server ends
/// too, because its standard input closes.
#[derive(Debug)]
pub struct Child {
    process: tokio::process::Child,
    /// Kept open, since a server that cannot print would end.
    _said: Lines<BufReader<ChildStdout>>,
    _alive: Option<ChildStdin>,
    /// The URL of the server.
    pub url: String,
}

impl Child {
    /// Serves the store in a folder.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn serve(data: &Path) -> Result<Self, ClientError> {
        Self::serve_with(data, &[]).await
    }

    /// Serves the store in a folder, with more flags.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn serve_with(data: &Path, flags: &[&OsStr]) -> Result<Self, ClientError> {
        Self::serve_at("127.0.0.1:0", data, flags).await
    }

    /// Serves at an address, with more flags.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn serve_at(
        address: &str,
        data: &Path,
        flags: &[&OsStr],
    ) -> Result<Self, ClientError> {
        let mut command = this_program()?;
        command.args(["serve", "--listen", address, "--until-stdin-closes"]);
        command.arg("--data").arg(data).args(flags);
        Self::start(command).await
    }

    /// Serves the empty call; see `empty`.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn empty() -> Result<Self, ClientError> {
        let mut command = this_program()?;
        command.arg("--serve-empty");
        Self::start(command).await
    }

    async fn start(mut command: Command) -> Result<Self, ClientError> {
        const STARTING: &str = "starting a server";
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(STARTING, error))?;
        let stdout = process
            .stdout
            .take()
            .ok_or_else(|| failed(STARTING, "it has no standard output"))?;
        let mut said = BufReader::new(stdout).lines();
        while let Some(line) = said.next_line().await? {
            let words = line.split_whitespace();
            if let Some(url) = words.rev().find(|word| word.contains("://")) {
                let url = url.to_owned();
                let alive = process.stdin.take();
                return Ok(Self {
                    process,
                    _alive: alive,
                    _said: said,
                    url,
                });
            }
        }
        Err(failed(STARTING, "it ended at once"))
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn connect(&self) -> Result<Connection, ClientError> {
        Connection::to_server(&self.url, "default").await
    }

    /// Kills the process without warning, and waits for its end.
    ///
    /// # Errors
    /// When the system refuses to kill it.
    pub async fn kill(mut self) -> Result<(), ClientError> {
        self.process
            .kill()
            .await
            .map_err(|error| failed("killing a server", error))
    }

    /// Returns the processor time that the process has used, in microseconds, or `None` if the
    /// system does not report it.
    #[must_use]
    pub fn cpu_micros(&self) -> Option<f64> {
        let stat = self.proc("stat")?;
        // The process name may contain anything, so parsing starts after its closing bracket.
        let fields: Vec<_> = stat.rsplit(')').next()?.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
        Some((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND * 1e6)
    }

    /// Returns the resident memory in MiB, or `None` if the system does not report it.
    #[must_use]
    pub fn resident_mib(&self) -> Option<f64> {
        self.status_mib("VmRSS:")
    }

    /// Returns the resident memory that no file backs, in MiB, or `None` if the system does not
    /// report it.
    #[must_use]
    pub fn anonymous_mib(&self) -> Option<f64> {
        self.status_mib("RssAnon:")
    }

    fn status_mib(&self, field: &str) -> Option<f64> {
        let status = self.proc("status")?;
        let line = status.lines().find(|line| line.starts_with(field))?;
        let kib = line.split_whitespace().nth(1)?.parse::<f64>().ok()?;
        Some(kib / 1024.0)
    }

    fn proc(&self, file: &str) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/{file}", self.process.id()?)).ok()
    }
}

fn this_program() -> Result<Command, ClientError> {
    let program = env::current_exe().map_err(|error| failed("finding this program", error))?;
    let mut command = Command::new(program);
    // Servers of the bench must not use the stores of the user's environment.
    for name in [
        "TREERING_CLUSTER",
        "TREERING_DATA",
        "TREERING_SERVER",
        "TREERING_NAMESPACE",
        "TREERING_CONFIG",
    ] {
        command.env_remove(name);
    }
    Ok(command)
}
