//! Measures the cost of API keys, TLS, a continuous backup, and erasing.

use std::{ffi::OsStr, fs, path::Path, sync::Arc, time::Instant};

use futures::StreamExt;
use rcgen::{CertifiedKey, generate_simple_self_signed};

use super::{
    Setup,
    child::Child,
    failed,
    grpc::{self, Peer},
    payload::created,
    rounds::{median, ratio},
    row::{Row, Unit},
    stores,
};
use treering::{
    access::{self, Grant, GrantScope, KeyLimits, KeyRole, NewKey},
    domain::{ConversationId, EventBody, MessageAppended, Namespace, NewEvent, Role},
    engine::{Engine, EraseCommand, EraseItem, EraseTarget},
};
use treering_base::disk;
use treering_client::{Credentials, KeyArgument, error::ClientError};

/// Appends in flight.
const IN_FLIGHT: usize = 64;
/// Events in the conversation that is erased.
const ERASED_EVENTS: usize = 100;
/// A text that is erased in every event that contains it.
const SECRET: &str = "bench-5f0c6a51e8d24b7d";
/// Largest file that a quick run imports, in bytes.
const QUICK_FILES_BYTES: u64 = 3 << 20;

/// Measures the rows of this group.
///
/// # Errors
/// When a server, an append or an erasing fails.
pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    let mut rows = appends(setup).await?;
    rows.extend(erasing(setup).await?);
    Ok(rows)
}

/// A server, and the conversations that the bench appends to.
struct TrustServer {
    peer: Peer,
    ids: Arc<[ConversationId]>,
    per_second: Vec<f64>,
}

impl TrustServer {
    async fn start(
        data: &Path,
        flags: &[&OsStr],
        credentials: Credentials,
    ) -> Result<Self, ClientError> {
        let child = Child::serve_with(data, flags).await?;
        let peer = Peer::to_as(child, &credentials).await?;
        let ids = grpc::conversations(&peer, IN_FLIGHT).await?;
        Ok(Self {
            peer,
            ids,
            per_second: Vec::new(),
        })
    }
}

/// Appends to each server in turn. The first one is the baseline, without keys, TLS or backup.
async fn appends(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    const CASES: [(&str, &str); 3] = [
        ("trust.keys", "durable append with a key"),
        ("trust.tls", "durable append with a key, over TLS"),
        ("trust.backup", "durable append while a backup follows"),
    ];
    setup.doing("trust: starting servers");
    let folder = setup.folder()?;
    let dir = |name: &str| -> Result<_, ClientError> {
        let dir = folder.path().join(name);
        fs::create_dir(&dir).map_err(|error| failed("making a folder", error))?;
        Ok(dir)
    };
    let (keys, tls) = (dir("keys")?, dir("tls")?);
    let (cert, key) = certificate(folder.path())?;
    let flags: [&OsStr; 4] = [
        "--tls-cert".as_ref(),
        cert.as_ref(),
        "--tls-key".as_ref(),
        key.as_ref(),
    ];
    let over_tls = Credentials {
        ca: Some(cert.clone()),
        ..with_key(&tls)?
    };
    let copy = folder.path().join("copy");
    let mut servers = [
        TrustServer::start(&dir("plain")?, &[], Credentials::default()).await?,
        TrustServer::start(&keys, &[], with_key(&keys)?).await?,
        TrustServer::start(&tls, &flags, over_tls).await?,
        TrustServer::start(
            &dir("followed")?,
            &["--backup".as_ref(), copy.as_ref()],
            Credentials::default(),
        )
        .await?,
    ];
    for round in 0..=setup.rounds() {
        setup.doing("trust: appends");
        for served in &mut servers {
            let ids = Arc::clone(&served.ids);
            let done = grpc::call_append(setup, &served.peer, ids, IN_FLIGHT).await?;
            if round > 0 {
                served.per_second.push(done.per_second);
            }
        }
    }
    let [plain, others @ ..] = servers;
    let rows = CASES.into_iter().zip(&others).map(|((id, what), served)| {
        let (ours, theirs) = (&served.per_second, &plain.per_second);
        Row::new(id, what, median(ours), Unit::PerSecond)
            .beside("without", median(theirs), ratio(ours, theirs))
            .note("1 KiB events, unary, 64 in flight, each server a process on loopback")
    });
    Ok(rows.collect())
}

/// Creates a key in a folder, with all permissions.
fn with_key(dir: &Path) -> Result<Credentials, ClientError> {
    let new = NewKey {
        name: "bench".to_owned(),
        roles: vec![Grant {
            role: KeyRole::Admin,
            namespace: GrantScope::Every,
        }],
        expires_in: None,
        limits: KeyLimits::default(),
        by: "bench".to_owned(),
    };
    let made = access::create(dir, new).map_err(|error| failed("making a key", error))?;
    Ok(Credentials {
        token: Some(KeyArgument::from(made.token.reveal().to_owned())),
        ..Credentials::default()
    })
}

/// Creates a self-signed certificate for this machine. Returns its path and that of its key.
fn certificate(dir: &Path) -> Result<(std::path::PathBuf, std::path::PathBuf), ClientError> {
    const MAKING: &str = "making a certificate";
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(names).map_err(|error| failed(MAKING, error))?;
    let (cert_path, key_path) = (dir.join("cert.pem"), dir.join("key.pem"));
    fs::write(&cert_path, cert.pem()).map_err(|error| failed(MAKING, error))?;
    let key = signing_key.serialize_pem();
    disk::write(&key_path, key.as_bytes()).map_err(|error| failed(MAKING, error))?;
    Ok((cert_path, key_path))
}

/// Erases one of many real conversations. Returns no rows if there are none.
async fn erasing(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    let mut files = setup.trajectory_files();
    if setup.quick {
        files.retain(|file| fs::metadata(file).is_ok_and(|meta| meta.len() <= QUICK_FILES_BYTES));
    }
    if files.is_empty() {
        setup.left_out("trust: erasing", "real conversations");
        return Ok(Vec::new());
    }
    let folder = setup.folder()?;
    setup.doing("trust: importing");
    let engine = stores::open_dense(folder.path()).await?;
    let gone = setup.payloads.conversation(ERASED_EVENTS - 1);
    let conversation = gone[0].conversation;
    stores::append(&engine, gone).await?;
    let imported = stores::import(&engine, &files).await?;
    stores::append(&engine, secret()).await?;
    stores::indexed(&engine).await?;
    setup.doing("trust: making views and index anew");
    let started = Instant::now();
    stores::rebuilt(&engine, true, true).await?;
    let anew = started.elapsed().as_secs_f64();
    let mut rows = Vec::new();
    for (id, what, target) in [
        (
            "trust.erase",
            "erasing a conversation of 100 events",
            EraseTarget::Conversation(conversation),
        ),
        (
            "trust.literal",
            "erasing a secret that is found in the log",
            EraseTarget::Literal(SECRET.into()),
        ),
    ] {
        setup.doing("trust: erasing");
        let (seconds, events) = erase(&engine, target).await?;
        rows.push(
            Row::new(id, what, seconds, Unit::Seconds)
                .beside("views and index anew", anew, seconds / anew)
                .note(format!(
                    "{events} events of {}; reads go on meanwhile, appends wait only while it is \
                     recorded and the views are replaced",
                    imported.events + ERASED_EVENTS as u64
                )),
        );
    }
    engine.close().await;
    Ok(rows)
}

/// Returns a conversation into which a user pasted a secret.
fn secret() -> Vec<NewEvent> {
    let first = created(ConversationId::generate());
    let said = MessageAppended::text(Role::User, format!("the key is {SECRET}"));
    let second = NewEvent::new(first.conversation, EventBody::MessageAppended(said));
    vec![first, second]
}

/// Returns the seconds that it took, and the number of erased events.
async fn erase(engine: &Engine, target: EraseTarget) -> Result<(f64, u64), ClientError> {
    let started = Instant::now();
    let mut items = engine.erase(EraseCommand {
        namespace: Namespace::default(),
        target,
        keep_derived: false,
        dry_run: false,
        reason: String::new(),
        actor: "bench".to_owned(),
    });
    let mut events = 0;
    while let Some(item) = items.next().await {
        match item.map_err(|error| failed("erasing", error))? {
            EraseItem::Event(_) => events += 1,
            EraseItem::Outcome(_) => return Ok((started.elapsed().as_secs_f64(), events)),
            _ => {}
        }
    }
    Err(failed("erasing", "it ended without an outcome"))
}
