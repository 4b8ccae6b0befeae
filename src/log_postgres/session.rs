//! Sessions: connecting, running a statement within a deadline, and the server's warnings.

use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, NoTls, Row, Statement,
    error::{DbError, Severity},
    types::ToSql,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{
    error::{PostgresError, is_rejection, is_unknown_host, with_causes},
    settings::PREPARE_SESSION,
    target::ServerTarget,
};

/// A parameter of a statement.
pub(crate) type SqlParam<'a> = &'a (dyn ToSql + Sync);

/// How a statement failed.
#[derive(Debug)]
pub(crate) enum QueryFailure {
    /// It did nothing.
    Refused(PostgresError),
    /// It may have been committed, on the primary alone or on the standby too.
    Unknown(String),
}

impl From<QueryFailure> for PostgresError {
    fn from(failure: QueryFailure) -> Self {
        match failure {
            QueryFailure::Refused(error) => error,
            QueryFailure::Unknown(what) => Self::Unconfirmed { what },
        }
    }
}

/// Warnings of the server. A commit that did not wait for its standby also returns success; only a
/// warning reports it.
#[derive(Default)]
struct Warnings {
    count: AtomicU64,
    last: Mutex<String>,
}

impl Warnings {
    fn note(&self, notice: &DbError) {
        // The SQLSTATE does not matter: a cancellation by an administrator and one by a user have
        // different ones.
        if !matches!(notice.parsed_severity(), Some(Severity::Warning) | None) {
            return;
        }
        tracing::warn!(
            code = notice.code().code(),
            message = notice.message(),
            "PostgreSQL warns"
        );
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = notice.message().to_owned();
        self.count.fetch_add(1, Ordering::SeqCst);
    }
}

/// A connection that runs one statement at a time.
pub(crate) struct PostgresSession {
    client: Client,
    warnings: Arc<Warnings>,
    statements: HashMap<&'static str, Statement>,
    /// How long a statement may take.
    deadline: Duration,
    /// A statement is running, or was abandoned: the connection cannot be used for another one.
    in_use: bool,
}

impl PostgresSession {
    /// Connects to the primary. Each server gets the same part of the time: one that does not
    /// answer, because its machine is gone, leaves time for the others.
    pub(crate) async fn connect(
        target: &ServerTarget,
        deadline: Duration,
    ) -> Result<Self, PostgresError> {
        let servers = target.servers();
        let part = deadline / u32::try_from(servers.len().max(1)).unwrap_or(u32::MAX);
        let mut what = "it names no server".to_owned();
        let mut rejected = None;
        let mut are_unknown = true;
        let mut connected = None;
        for (index, server) in servers {
            match timeout(part, connect_to(server, target.tls.as_ref())).await {
                Ok(Ok(found)) => {
                    target.note_primary(index);
                    connected = Some(found);
                    break;
                }
                Ok(Err(error)) => {
                    what = with_causes(&error);
                    rejected = rejected.or_else(|| is_rejection(&error).then(|| what.clone()));
                }
                Err(_) => what = "no server answered in time".to_owned(),
            }
            are_unknown &= is_unknown_host(&what);
        }
        let Some((client, warnings)) = connected else {
            let target = target.name.clone();
            let unknown = are_unknown.then(|| what.clone());
            return Err(match rejected.or(unknown) {
                Some(what) => PostgresError::Rejected { target, what },
                None => PostgresError::Connect { target, what },
            });
        };
        let mut session = Self {
            client,
            warnings,
            statements: HashMap::new(),
            deadline,
            in_use: false,
        };
        // A wait for a lock ends with an error before this side gives up, so the connection stays
        // usable and no statement lingers. A commit that waits for its standby has no such limit.
        let half = (deadline / 2).as_millis();
        session
            .batch(&format!(
                "{PREPARE_SESSION}; set lock_timeout = {half}; set statement_timeout = {half}"
            ))
            .await?;
        Ok(session)
    }

    /// Runs statements without parameters.
    pub(crate) async fn batch(&mut self, sql: &str) -> Result<(), QueryFailure> {
        self.in_use = true;
        let before = self.warnings.count.load(Ordering::SeqCst);
        let answer = timeout(self.deadline, self.client.batch_execute(sql)).await;
        self.judge(before, answer.ok())
    }

    /// Runs a statement. Its result counts only when the server did not warn about its commit.
    pub(crate) async fn query(
        &mut self,
        sql: &'static str,
        params: &[SqlParam<'_>],
    ) -> Result<Vec<Row>, QueryFailure> {
        self.query_within(self.deadline, sql, params).await
    }

    /// Runs a statement without a deadline. It may wait for the standby until the connection ends.
    pub(crate) async fn query_patiently(
        &mut self,
        sql: &'static str,
        params: &[SqlParam<'_>],
    ) -> Result<Vec<Row>, QueryFailure> {
        self.query_within(Duration::MAX, sql, params).await
    }

    async fn query_within(
        &mut self,
        deadline: Duration,
        sql: &'static str,
        params: &[SqlParam<'_>],
    ) -> Result<Vec<Row>, QueryFailure> {
        self.in_use = true;
        // This executes nothing, so a lost answer loses nothing.
        let prepared = timeout(self.deadline, self.prepared(sql)).await;
        let statement = match prepared {
            Ok(Ok(statement)) => statement,
            Ok(Err(error)) => return Err(QueryFailure::Refused(not_prepared(&error))),
            Err(_) => {
                let what = late(self.deadline);
                return Err(QueryFailure::Refused(PostgresError::Lost { what }));
            }
        };
        let before = self.warnings.count.load(Ordering::SeqCst);
        let answer = timeout(deadline, self.client.query(&statement, params)).await;
        self.judge(before, answer.ok())
    }

    async fn prepared(&mut self, sql: &'static str) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.insert(sql, statement.clone());
        Ok(statement)
    }

    /// Classifies an answer; `None` means that none came in time.
    fn judge<T>(
        &mut self,
        warnings_before: u64,
        answer: Option<Result<T, tokio_postgres::Error>>,
    ) -> Result<T, QueryFailure> {
        let answer = match answer {
            None => return Err(QueryFailure::Unknown(late(self.deadline))),
            Some(Err(error)) => match error.as_db_error() {
                // An ERROR aborts the transaction. A severity that ends the session leaves the
                // outcome unknown.
                Some(refused) if refused.parsed_severity() == Some(Severity::Error) => {
                    self.in_use = false;
                    return Err(QueryFailure::Refused(PostgresError::from_server(refused)));
                }
                _ => return Err(QueryFailure::Unknown(with_causes(&error))),
            },
            Some(Ok(answer)) => answer,
        };
        self.in_use = false;
        if self.warnings.count.load(Ordering::SeqCst) != warnings_before {
            let last = self.warnings.last.lock();
            let last = last.unwrap_or_else(PoisonError::into_inner);
            return Err(QueryFailure::Unknown(last.clone()));
        }
        Ok(answer)
    }

    fn is_usable(&self) -> bool {
        !self.in_use && !self.client.is_closed()
    }
}

async fn connect_to(
    server: &Config,
    tls: Option<&MakeRustlsConnect>,
) -> Result<(Client, Arc<Warnings>), tokio_postgres::Error> {
    match tls {
        Some(tls) => {
            let (client, connection) = server.connect(tls.clone()).await?;
            Ok((client, drive(connection)))
        }
        None => {
            let (client, connection) = server.connect(NoTls).await?;
            Ok((client, drive(connection)))
        }
    }
}

fn not_prepared(error: &tokio_postgres::Error) -> PostgresError {
    error.as_db_error().map_or_else(
        || PostgresError::Lost {
            what: with_causes(error),
        },
        PostgresError::from_server,
    )
}

fn late(deadline: Duration) -> String {
    format!("no answer within {} ms", deadline.as_millis())
}

/// Drives a connection. The driver delivers a warning before the end of the answer that it belongs
/// to. This task therefore counts the warning before the caller gets the answer.
fn drive<S, T>(mut connection: Connection<S, T>) -> Arc<Warnings>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let warnings = Arc::new(Warnings::default());
    let noted = Arc::clone(&warnings);
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notice(notice) = message {
                noted.note(&notice);
            }
        }
    });
    warnings
}

/// Idle sessions, and how many may be in use.
pub(crate) struct SessionPool {
    target: ServerTarget,
    deadline: Duration,
    connections_max: usize,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<PostgresSession>>,
}

impl SessionPool {
    pub(crate) fn new(target: ServerTarget, deadline: Duration, connections_max: usize) -> Self {
        let connections_max = connections_max.max(1);
        Self {
            target,
            deadline,
            connections_max,
            permits: Arc::new(Semaphore::new(connections_max)),
            idle: Mutex::default(),
        }
    }

    pub(crate) fn target_name(&self) -> &str {
        &self.target.name
    }

    /// Runs a statement that may take long and must not be in a transaction, on a connection of its
    /// own. After `wait`, the statement continues without this process.
    pub(crate) async fn run_apart(
        &self,
        sql: &'static str,
        wait: Duration,
    ) -> Result<(), QueryFailure> {
        let session = PostgresSession::connect(&self.target, self.deadline).await;
        let mut session = session.map_err(QueryFailure::Refused)?;
        session
            .batch("set statement_timeout = 0; set lock_timeout = 0")
            .await?;
        session.deadline = wait;
        session.batch(sql).await
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns a session, and whether it is new.
    pub(crate) async fn lease(self: &Arc<Self>) -> Result<(Lease, bool), PostgresError> {
        let permits = Arc::clone(&self.permits).acquire_owned();
        let Ok(Ok(permit)) = timeout(self.deadline, permits).await else {
            return Err(PostgresError::Busy {
                what: format!("all {} connections are in use", self.connections_max),
            });
        };
        let idle = std::iter::from_fn(|| self.idle().pop()).find(PostgresSession::is_usable);
        let is_new = idle.is_none();
        let session = match idle {
            Some(session) => session,
            None => PostgresSession::connect(&self.target, self.deadline).await?,
        };
        let lease = Lease {
            session,
            pool: Arc::clone(self),
            permit: Some(permit),
        };
        Ok((lease, is_new))
    }

    /// Closes all idle sessions, and leases no more.
    pub(crate) fn close(&self) {
        self.permits.close();
        self.idle().clear();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<PostgresSession>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session in use.
pub(crate) struct Lease {
    pub(crate) session: PostgresSession,
    pool: Arc<SessionPool>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Lease {
    /// Frees this session's slot in the pool for another session, because a statement on this one
    /// may never end.
    pub(crate) fn release_slot(&mut self) {
        self.permit = None;
    }

    /// Returns the session to the pool. A session with an abandoned statement is dropped instead;
    /// its connection closes when the server has answered the statement. All idle sessions are
    /// dropped with it: they use the same server, which may be gone.
    pub(crate) fn give_back(self) {
        let mut idle = self.pool.idle();
        if !self.session.is_usable() || self.pool.permits.is_closed() {
            idle.clear();
        } else if idle.len() < self.pool.connections_max {
            idle.push(self.session);
        }
    }
}
