//! PostgreSQL servers in temporary folders: one, or a primary and its synchronous standby. Tests start
//! them, and `treering-bench`.

use std::{
    env, fs,
    io::{self, Write},
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;
use tokio_postgres::{NoTls, SimpleQueryMessage};

/// Returns the folder of PostgreSQL's programs.
fn binaries() -> Option<PathBuf> {
    let named = env::var_os("TREERING_POSTGRES_BIN").map(PathBuf::from);
    let versions = ["/usr/lib/postgresql", "/opt/postgresql", "/usr/local/pgsql"];
    let installed = versions.iter().flat_map(|folder| {
        let mut found: Vec<_> = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
            .collect();
        found.sort();
        found.into_iter().rev()
    });
    let in_path = env::var_os("PATH").unwrap_or_default();
    let in_path: Vec<_> = env::split_paths(&in_path).collect();
    named
        .into_iter()
        .chain(installed)
        .chain(in_path)
        .find(|folder| folder.join("initdb").exists() && folder.join("postgres").exists())
}

/// Returns a user and group for PostgreSQL, which refuses to run as root; `None` if we are not
/// root.
fn unprivileged() -> Option<(u32, u32)> {
    if !geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    ["postgres:", "nobody:"].iter().find_map(|user| {
        let line = users.lines().find(|line| line.starts_with(user))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    if let Some((user, group)) = unprivileged() {
        command.uid(user).gid(group);
    }
    command.current_dir("/").stdin(Stdio::null());
    command
}

/// A server, and its folder.
pub struct Server {
    folder: TempDir,
    bin: PathBuf,
    process: Option<Child>,
    /// Its port, which also names its socket. TCP is off without `listen`.
    port: u16,
}

/// Settings of a server besides those that the log needs.
pub type Settings<'a> = &'a [(&'a str, &'a str)];

const COMMON: Settings = &[
    ("listen_addresses", ""),
    ("shared_buffers", "16MB"),
    ("wal_keep_size", "256MB"),
    ("autovacuum", "off"),
];

impl Server {
    /// Creates a server's folder. Returns `None`, and prints that, if PostgreSQL is not installed.
    fn create(settings: Settings, initdb: &[&str]) -> Option<Self> {
        let Some(bin) = binaries() else {
            assert!(
                env::var_os("TREERING_REQUIRE_POSTGRES").is_none(),
                "PostgreSQL is not installed, and TREERING_REQUIRE_POSTGRES is set"
            );
            // Not with a macro: its text would be shown only when a test fails.
            let text =
                "SKIPPED: PostgreSQL is not installed (TREERING_POSTGRES_BIN names its folder)\n";
            io::stderr().write_all(text.as_bytes()).unwrap();
            return None;
        };
        let server = Self {
            folder: Self::folder(),
            bin,
            process: None,
            port: 5432,
        };
        let made = command(&server.bin.join("initdb"))
            .args(["--auth=trust", "--username=treering", "--no-sync", "-D"])
            .arg(server.data())
            .args(initdb)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        server.configure(COMMON);
        server.configure(&[("unix_socket_directories", &server.sockets())]);
        server.configure(settings);
        Some(server)
    }

    fn folder() -> TempDir {
        let folder = tempfile::Builder::new().prefix("tr-pg").tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        if let Some((user, group)) = unprivileged() {
            chown(folder.path(), Some(user), Some(group)).unwrap();
        }
        folder
    }

    /// Starts a server without a standby.
    pub async fn single(settings: Settings<'_>) -> Option<Self> {
        let mut server = Self::create(settings, &["--data-checksums"])?;
        server.start().await;
        Some(server)
    }

    /// Starts a server without page checksums.
    pub async fn without_checksums() -> Option<Self> {
        let mut server = Self::create(&[], &[])?;
        server.start().await;
        Some(server)
    }

    /// Starts a primary and its synchronous standby.
    pub async fn pair() -> Option<(Self, Self)> {
        let mut primary = Self::create(&[], &["--data-checksums"])?;
        let mut standby = Self {
            folder: Self::folder(),
            bin: primary.bin.clone(),
            process: None,
            port: 5432,
        };
        // A server that never ran can be backed up by copying its folder.
        let copied = Command::new("cp")
            .arg("-a")
            .arg(primary.data())
            .arg(standby.data())
            .status()
            .unwrap();
        assert!(copied.success());
        let primary_is = format!(
            "host={} user=treering application_name=standby",
            primary.sockets()
        );
        standby.configure(&[
            ("unix_socket_directories", &standby.sockets()),
            ("primary_conninfo", &primary_is),
        ]);
        standby.write("standby.signal", "");
        primary.configure(&[("synchronous_standby_names", "standby")]);
        primary.start().await;
        standby.start().await;
        primary
            .wait_for(
                "select count(*) from pg_stat_replication where sync_state = 'sync'",
                "1",
            )
            .await;
        Some((primary, standby))
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn sockets(&self) -> String {
        self.folder.path().display().to_string()
    }

    /// Writes a file of the server.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.data().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        if let Some((user, group)) = unprivileged() {
            chown(&path, Some(user), Some(group)).unwrap();
        }
    }

    /// Adds settings, which take effect at the next start or reload.
    pub fn configure(&self, settings: Settings) {
        let path = self.data().join("postgresql.conf");
        let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
        for (name, value) in settings {
            writeln!(file, "{name} = '{value}'").unwrap();
        }
    }

    /// Changes a setting of a running server.
    pub async fn set(&self, name: &str, value: &str) {
        self.configure(&[(name, value)]);
        self.sql("select pg_reload_conf()").await;
        self.wait_for(&format!("show {name}"), value).await;
        // Every backend reads it between two statements, a moment later.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    pub async fn start(&mut self) {
        for attempt in 0..20 {
            let log = fs::File::create(self.folder.path().join(format!("log{attempt}"))).unwrap();
            let mut process = command(&self.bin.join("postgres"))
                .arg("-D")
                .arg(self.data())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .unwrap();
            for _ in 0..600 {
                tokio::time::sleep(Duration::from_millis(50)).await;
                // Processes of a killed server may still be running: then it refuses to start.
                if process.try_wait().unwrap().is_some() {
                    break;
                }
                if self.client("postgres").await.is_ok() {
                    self.process = Some(process);
                    return;
                }
            }
            let _ = process.kill();
            let _ = process.wait();
        }
        let log = fs::read_to_string(self.folder.path().join("log19")).unwrap();
        panic!("PostgreSQL does not start: {log}");
    }

    fn end(&mut self, signal: Signal) {
        if let Some(mut process) = self.process.take() {
            kill_process(Pid::from_child(&process), signal).unwrap();
            process.wait().unwrap();
        }
    }

    /// Kills the server: it writes nothing more and does not notify its clients.
    pub fn kill(&mut self) {
        self.end(Signal::KILL);
    }

    /// Stops the server without waiting for its clients.
    pub fn stop(&mut self) {
        self.end(Signal::QUIT);
    }

    pub fn url(&self, database: &str) -> String {
        self.url_of("treering", database)
    }

    pub fn url_of(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@{}/{database}", self.address())
    }

    /// Returns a URL that leads to whichever server is the primary.
    pub fn url_with(&self, other: &Self, database: &str) -> String {
        let (one, other) = (self.address(), other.address());
        format!("postgres://treering@{one},{other}/{database}")
    }

    fn address(&self) -> String {
        format!("{}:{}", self.sockets().replace('/', "%2F"), self.port)
    }

    /// Listens for TCP with TLS from the next start on.
    pub fn listen(&mut self, port: u16) {
        self.port = port;
        let port = port.to_string();
        self.configure(&[
            ("ssl", "on"),
            ("listen_addresses", "127.0.0.1"),
            ("port", &port),
        ]);
    }

    pub async fn client(
        &self,
        database: &str,
    ) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(&self.url(database), NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Runs SQL in the database `postgres` and returns the first value of its first row.
    pub async fn sql(&self, sql: &str) -> String {
        self.sql_in("postgres", sql).await
    }

    pub async fn sql_in(&self, database: &str, sql: &str) -> String {
        let client = self.client(database).await.unwrap();
        let answer = client.simple_query(sql).await.unwrap();
        let row = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        row.unwrap_or_default().to_owned()
    }

    pub async fn wait_for(&self, sql: &str, wanted: &str) {
        for _ in 0..600 {
            if self.sql(sql).await == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{sql} never gave {wanted}");
    }

    /// Ends the wait for the standby with this function, as a client or an administrator can.
    pub async fn end_wait(&self, function: &str) {
        let waiting = "from pg_stat_activity where wait_event = 'SyncRep'";
        self.wait_for(&format!("select count(*) > 0 {waiting}"), "t")
            .await;
        self.sql(&format!("select {function}(pid) {waiting}")).await;
        self.wait_for(&format!("select count(*) {waiting}"), "0")
            .await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Signal::QUIT);
    }
}
