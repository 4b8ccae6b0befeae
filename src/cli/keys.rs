//! `keys`: manages the API keys of a server, in its data folder, or those of a cluster.

use std::{env, path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use prost_types::Timestamp;

use super::{
    approve::person,
    args::Common,
    cluster,
    error::{ClientError, Exit},
    json::{Array, Object, rfc3339},
    output::{Out, Tone},
    safe::tell,
    text::Zone,
    time_arg::term,
};
use treering_access as access;
use treering_access::{
    CertificateSubject, Grant, GrantScope, IssuedKey, KeyFile, KeyFileError, KeyLimits, KeyRecord,
    KeyRole, KeyStore, NewKey,
};
use treering_domain::{TimestampMicros, with_causes};
use treering_engine::Engine;
use treering_proto::envelope::timestamp_to_pb;
use treering_server::audit;

/// Environment variable for the default of `--cluster`.
const CLUSTER_ENV: &str = "TREERING_CLUSTER";

/// Create and revoke the keys that a server requires
///
/// Before the first key is created, everyone who reaches the server has full access. After that,
/// each call needs a key (TREERING_TOKEN, --token). Its roles apply to their namespaces: a reader
/// reads, a writer also appends, an approver decides on calls, and an admin does all of that and
/// erases. Keys are stored as hashes in the data folder (keys.json). This command works on that
/// folder, also while a server has it open, and the server applies every change at once. Commands
/// on the folder itself need no key.
///
/// The keys of a cluster are in its database: with --cluster, this command works from anywhere, and
/// every node applies a change within seconds.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering keys create ops --role 'admin:*'
  treering keys create agent --role writer --namespace team-a --expires 90d
  treering keys create worker-7 --role writer:team-a --certificate-subject CN=worker-7,O=Acme
  treering keys create console --role approver:team-a --role reader:team-b
  export TREERING_TOKEN=$(treering keys create ci --role writer)
  treering keys ls
  treering keys rotate agent --grace 24h
  treering keys revoke agent
  treering keys revoke agent --cluster postgres://node@db/treering")]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    what: KeysCommand,
    /// Manage the keys of the cluster in this PostgreSQL database
    ///
    /// Default: $TREERING_CLUSTER, unless --data is given.
    #[arg(long, global = true, value_name = "URL", help_heading = "Store")]
    #[arg(conflicts_with_all = ["data", "server"])]
    cluster: Option<String>,
}

/// Where keys are.
enum KeyPlace {
    Folder(PathBuf),
    /// In the database of this URL.
    Cluster(String),
}

impl KeyPlace {
    fn of(cluster: Option<String>, common: &Common) -> Result<Self, ClientError> {
        let of_env = || env::var(CLUSTER_ENV).ok().filter(|url| !url.is_empty());
        let unnamed = common.data.is_none() && common.server.is_none();
        if let Some(url) = cluster.or_else(|| of_env().filter(|_| unnamed)) {
            return Ok(Self::Cluster(url));
        }
        let hint =
            "run on the server's machine: treering keys ls --data DIR (the server may be running)";
        Ok(Self::Folder(common.folder_here("keys are managed", hint)?))
    }

    async fn change<T>(
        &self,
        change: impl FnMut(&mut KeyFile) -> Result<T, KeyFileError>,
    ) -> Result<T, ClientError> {
        match self {
            Self::Folder(dir) => access::change(dir, change).map_err(refused),
            Self::Cluster(url) => cluster::change_keys(url, change).await,
        }
    }

    async fn read(&self) -> Result<KeyFile, ClientError> {
        match self {
            Self::Folder(dir) => access::read(dir).map_err(refused),
            Self::Cluster(url) => cluster::read_keys(url).await,
        }
    }
}

#[derive(Subcommand, Debug, Clone)]
enum KeysCommand {
    Create(CreateArgs),
    /// List the keys with their roles and last use
    Ls,
    Revoke(KeyIdArgs),
    Rotate(RotateArgs),
}

/// Create a key and show it; it is shown only once
///
/// Standard output has only the key itself; its description goes to standard error. With --json,
/// both are one object.
#[derive(Args, Debug, Clone)]
struct CreateArgs {
    /// Who it is for: the actor of all events appended with it
    name: String,
    /// Role of the key: reader, writer, approver or admin, in --namespace or in the namespace after
    /// a colon (`*` for all); may be given several times
    #[arg(long = "role", value_name = "ROLE[:NAMESPACE]", required = true)]
    roles: Vec<String>,
    /// Subject of a client certificate: the key has no secret. A client has the key if it shows a
    /// certificate with this subject, signed by a CA of `serve --client-ca`, and sends no other
    /// key. Give the complete subject as printed by `openssl x509 -noout -subject -nameopt RFC2253
    /// -in FILE`
    #[arg(long, value_name = "SUBJECT", value_parser = subject)]
    certificate_subject: Option<CertificateSubject>,
    /// Refuse the key after this time: 90d, 12h
    #[arg(long, value_name = "TIME", value_parser = term)]
    expires: Option<Duration>,
    /// Maximum number of calls per second
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    requests_per_second: u32,
    /// Maximum number of bytes of requests per second
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    bytes_per_second: u32,
}

/// Revoke a key at once
#[derive(Args, Debug, Clone)]
struct KeyIdArgs {
    /// Name or id of the key
    key: String,
}

/// Give a key a new secret and show it; it is shown only once
#[derive(Args, Debug, Clone)]
struct RotateArgs {
    /// Name or id of the key
    key: String,
    /// How long the old secret still works
    #[arg(long, value_name = "TIME", value_parser = term, default_value = "24h")]
    grace: Duration,
}

/// Lists or changes keys.
///
/// # Errors
/// [`ClientError::Usage`] if the target is a server or an argument is invalid; the error of
/// [`refused`] if the keys cannot be read or changed.
pub(crate) async fn run(args: KeysArgs, common: &Common, out: &mut Out) -> Result<(), ClientError> {
    let place = KeyPlace::of(args.cluster, common)?;
    let by = person(None);
    match args.what {
        KeysCommand::Create(args) => {
            let new = NewKey {
                name: args.name,
                roles: grants(&args.roles, &common.namespace)?,
                expires_in: args.expires,
                limits: KeyLimits {
                    requests_per_second: args.requests_per_second,
                    bytes_per_second: args.bytes_per_second,
                },
                by,
            };
            if let Some(subject) = args.certificate_subject {
                let made = place
                    .change(|keys| keys.create_for_certificate(new.clone(), subject.clone()))
                    .await?;
                return show_of_certificate(&made, out);
            }
            show(&place.change(|keys| keys.create(new.clone())).await?, out)
        }
        KeysCommand::Ls => list(&place, out).await,
        KeysCommand::Revoke(args) => {
            let key = place.change(|keys| keys.revoke(&args.key, &by)).await?;
            if out.json {
                return Ok(out.line(json(&key, None, None))?);
            }
            let name = out.paint.text(Tone::Name, &key.name);
            Ok(out.line(format!("The key {name} ({}) is revoked", key.id))?)
        }
        KeysCommand::Rotate(args) => {
            let rotated = place.change(|keys| keys.rotate(&args.key, args.grace, &by));
            show(&rotated.await?, out)
        }
    }
}

/// Parses roles such as `writer`, `writer:team-a`, `admin:*`.
fn grants(roles: &[String], namespace: &str) -> Result<Vec<Grant>, ClientError> {
    let usage = |role: &str, why: String| ClientError::Usage {
        what: format!("--role {role}: {why}"),
        hint: "for example --role writer:team-a, or --role 'admin:*'".into(),
    };
    let one = |text: &String| {
        let (role, namespace) = text.split_once(':').unwrap_or((text, namespace));
        let role: KeyRole = role
            .parse()
            .map_err(|error| usage(text, format!("{error}")))?;
        let namespace = GrantScope::try_from(namespace.to_owned());
        let namespace = namespace.map_err(|error| usage(text, error.to_string()))?;
        Ok(Grant { role, namespace })
    };
    roles.iter().map(one).collect()
}

fn subject(text: &str) -> Result<CertificateSubject, String> {
    CertificateSubject::parse(text).map_err(|error| error.to_string())
}

/// Prints a key for a certificate, which has no secret to show.
fn show_of_certificate(key: &KeyRecord, out: &mut Out) -> Result<(), ClientError> {
    if out.json {
        return Ok(out.line(json(key, None, None))?);
    }
    tell!(
        "The key {} ({}) may: {}{}. It applies to calls with a client certificate of subject {} \
         and without a key; the server needs `--client-ca`.",
        key.name,
        key.id,
        roles_of(key),
        until(key, out.zone()),
        key.certificate_subject
            .as_ref()
            .map_or("", CertificateSubject::as_str),
    );
    Ok(())
}

fn until(key: &KeyRecord, zone: Zone) -> String {
    match key.expires_at {
        Some(end) => format!(" until {}", zone.moment(&timestamp_to_pb(end))),
        None => String::new(),
    }
}

/// Prints the key to standard output for scripts, and its description to standard error.
fn show(made: &IssuedKey, out: &mut Out) -> Result<(), ClientError> {
    if out.json {
        return Ok(out.line(json(&made.record, None, Some(made.token.reveal())))?);
    }
    out.line(made.token.reveal())?;
    out.flush()?;
    let key = &made.record;
    tell!(
        "The key {} ({}) may: {}{}.",
        key.name,
        key.id,
        roles_of(key),
        until(key, out.zone())
    );
    let old = key.secrets.iter().filter_map(|secret| secret.ends_at).max();
    if let Some(end) = old {
        let end = out.zone().moment(&timestamp_to_pb(end));
        tell!("The previous secret is valid until {end}.");
    }
    tell!("The key is shown only once. Clients send it with TREERING_TOKEN or --token @FILE.");
    Ok(())
}

fn roles_of(key: &KeyRecord) -> String {
    let roles: Vec<String> = key.roles.iter().map(ToString::to_string).collect();
    roles.join(" ")
}

async fn list(place: &KeyPlace, out: &mut Out) -> Result<(), ClientError> {
    let keys = place.read().await?.keys;
    let uses = match place {
        KeyPlace::Folder(dir) => Some(access::last_uses(dir)),
        // Each node records the uses through it.
        KeyPlace::Cluster(_) => None,
    };
    let now = TimestampMicros::now();
    for key in &keys {
        let used = uses.as_ref().and_then(|uses| uses.get(&key.id).copied());
        if out.json {
            out.line(json(key, used, None))?;
            continue;
        }
        let (tone, state) = match (key.revoked_at, key.expires_at) {
            (Some(_), _) => (Tone::Dim, "revoked".to_owned()),
            (None, Some(end)) if end <= now => (Tone::Dim, "expired".to_owned()),
            (None, Some(end)) => {
                let end = out.zone().day_clock(Some(&timestamp_to_pb(end)));
                (Tone::Good, format!("until {end}"))
            }
            (None, None) => (Tone::Good, "good".to_owned()),
        };
        let used = match used.map(timestamp_to_pb) {
            Some(time) => format!("  used {}", out.zone().ago(Some(&time))),
            None if uses.is_some() => "  never used".to_owned(),
            None => String::new(),
        };
        let name = out.paint.text(Tone::Name, &key.name);
        let state = out.paint.text(tone, state);
        let roles = roles_of(key);
        let subject = match &key.certificate_subject {
            Some(subject) => format!("  {subject}"),
            None => String::new(),
        };
        out.row(format!(
            "{}  {name}  {state}  {roles}{used}{subject}",
            key.id
        ))?;
    }
    if keys.is_empty() && !out.json {
        out.line("This store has no keys: anybody who can reach its server has full access.")?;
    }
    Ok(())
}

fn json(key: &KeyRecord, used: Option<TimestampMicros>, token: Option<&str>) -> String {
    let mut object = Object::new();
    object
        .string("id", key.id.as_str())
        .string("name", &key.name);
    if let Some(token) = token {
        object.string("key", token);
    }
    if let Some(subject) = &key.certificate_subject {
        object.string("certificate_subject", subject.as_str());
    }
    let roles = Array::of(&key.roles, |grant| {
        let mut role = Object::new();
        role.string("role", grant.role.as_str());
        role.string("namespace", &grant.namespace.to_string());
        role.finish()
    });
    object.raw("roles", &roles);
    let mut time = |name: &str, time: Option<TimestampMicros>| {
        let time: Option<Timestamp> = time.map(timestamp_to_pb);
        match time.as_ref().and_then(rfc3339) {
            Some(time) => object.string(name, &time),
            None => object.raw(name, "null"),
        };
    };
    time("made_at", Some(key.made_at));
    time("expires_at", key.expires_at);
    time("revoked_at", key.revoked_at);
    time("last_used", used);
    object.number("requests_per_second", key.limits.requests_per_second.into());
    object.number("bytes_per_second", key.limits.bytes_per_second.into());
    object.finish()
}

/// Refuses to serve a store that has no keys but had some before. Either it was restored from a
/// backup, or its key file is missing.
///
/// # Errors
/// [`ClientError::Outcome`], also if this cannot be determined.
pub(crate) async fn check_are_there(
    engine: &Engine,
    keys: &KeyStore,
    opens_all_the_same: bool,
) -> Result<(), ClientError> {
    if !keys.is_open() {
        // The keys may be older than the file that records their existence.
        if let Err(error) = access::note_made(keys.dir()) {
            tracing::warn!(%error, "it could not be recorded that this store has keys");
        }
        return Ok(());
    }
    if opens_all_the_same {
        return Ok(());
    }
    // After a restore, only the audit log records that there were keys.
    let had_keys = access::had_keys(keys.dir()) || {
        let noted = audit::has_begun(engine).await;
        noted.map_err(|error| ClientError::Outcome {
            what: format!(
                "it is unknown whether this store had keys: {}",
                with_causes(&error)
            ),
            hint: "`treering verify` shows what is damaged; --insecure serves without keys".into(),
            exit: Exit::Damaged,
        })?
    };
    if !had_keys {
        return Ok(());
    }
    let dir = keys.dir().display();
    Err(ClientError::Outcome {
        what: format!(
            "this store had keys, but {dir} has none: without keys, anybody who can reach the \
             server could read and erase everything"
        ),
        hint: format!(
            "backups have no keys: put keys.json back, or create new keys (treering keys create \
             NAME --role 'admin:*' --data {dir}); --insecure serves without keys"
        ),
        exit: Exit::Refused,
    })
}

/// The error for keys that cannot be read or changed, with advice.
pub(crate) fn refused(error: KeyFileError) -> ClientError {
    let what = error.to_string();
    let outcome = |hint: &str, exit| ClientError::Outcome {
        what: what.clone(),
        hint: hint.into(),
        exit,
    };
    match error {
        KeyFileError::File { .. } => outcome(
            "check the folder's name, owner and mode, and the disk's free space: keys stay \
             unchanged until keys.json can be replaced (to revoke a key at once, stop the server)",
            Exit::Failed,
        ),
        KeyFileError::Damaged { .. } => outcome(
            "put an intact copy of keys.json back, or move it away and create the keys again: the \
             server does not start with unreadable keys",
            Exit::Damaged,
        ),
        KeyFileError::NotFound(_) => ClientError::NotFound {
            what,
            hint: "`treering keys ls` lists them".into(),
        },
        KeyFileError::IsCopy(_) => outcome(
            "change the cluster's keys, with --cluster URL (or $TREERING_CLUSTER) in place of --data; \
             if the folder is no node's any more, remove keys.cluster from it",
            Exit::Refused,
        ),
        KeyFileError::NameTaken(_) => outcome(
            "use another name, revoke that key first, or give it a new secret with `treering keys \
             rotate`",
            Exit::Refused,
        ),
        KeyFileError::SubjectTaken { .. } => outcome(
            "a subject belongs to one key: revoke that key first, or use another subject",
            Exit::Refused,
        ),
        KeyFileError::NoSecret(_) => outcome(
            "renew the certificate at its CA; to end its access, use `treering keys revoke`",
            Exit::Refused,
        ),
        KeyFileError::Ended(_) => outcome(
            "create a new one with `treering keys create`",
            Exit::Refused,
        ),
        KeyFileError::Invalid(_) => ClientError::Usage {
            what,
            hint: "`treering keys create --help` shows examples".into(),
        },
        KeyFileError::Random(_) => outcome("check the system's log", Exit::Failed),
    }
}
