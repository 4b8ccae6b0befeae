//! `keys`: who may use a server, made and ended where the data folder is.

use std::time::Duration;

use clap::{Args, Subcommand};
use prost_types::Timestamp;

use super::{
    approve::person,
    args::Common,
    error::{CliError, Exit},
    json::{Array, Object, rfc3339},
    output::{Out, Tone},
    safe::tell,
    text::Zone,
    time_arg::term,
};
use treering_access as access;
use treering_access::{
    CertificateSubject, Grant, GrantReach, KeyFileError, KeyLimits, KeyRecord, KeyRing, KeyRole,
    MadeKey, NewKey,
};
use treering_domain::{TimestampMicros, with_causes};
use treering_engine::Engine;
use treering_proto::envelope::timestamp_to_pb;
use treering_server::audit;

/// Make and end the keys that a server asks for
///
/// While no key was ever made, whoever reaches the server may do everything. From the first
/// one on, each call needs a key (TREERING_TOKEN, --token), and a key may do what its roles
/// say, in their namespaces: a reader reads, a writer appends, too, an approver decides on
/// calls, an admin does all of that and erases. Keys are in the data folder (keys.json), as
/// hashes; this command works there, while a server has the folder, too, which takes every
/// change at once. Who has the folder needs no key.
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
  treering keys revoke agent")]
pub struct KeysArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug, Clone)]
enum What {
    Create(CreateArgs),
    /// Show the keys: what each may do, and when it was used last
    Ls,
    Revoke(WhichArgs),
    Rotate(RotateArgs),
}

/// Make a key, and show it: it is shown once
///
/// The key itself is all that is on standard output; what it may do is said on standard
/// error. With --json both are one object.
#[derive(Args, Debug, Clone)]
struct CreateArgs {
    /// Who it is for: the actor of all that is appended with it
    name: String,
    /// What it may do: reader, writer, approver or admin, in --namespace or in the one
    /// behind a colon (`*`: in all); several times for several
    #[arg(long = "role", value_name = "ROLE[:NAMESPACE]", required = true)]
    roles: Vec<String>,
    /// It has no secret: whoever shows a certificate with this subject, signed by a CA of
    /// `serve --client-ca`, and sends no key, has it. As `openssl x509 -noout -subject
    /// -nameopt RFC2253 -in FILE` shows it, all of it
    #[arg(long, value_name = "SUBJECT", value_parser = subject)]
    certificate_subject: Option<CertificateSubject>,
    /// It is refused after so long: 90d, 12h
    #[arg(long, value_name = "TIME", value_parser = term)]
    expires: Option<Duration>,
    /// Calls a second that it may make
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    requests_per_second: u32,
    /// Bytes of requests a second that it may send
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    bytes_per_second: u32,
}

/// End a key at once
#[derive(Args, Debug, Clone)]
struct WhichArgs {
    /// The key's name or id
    key: String,
}

/// Give a key a new secret, and show it: it is shown once
#[derive(Args, Debug, Clone)]
struct RotateArgs {
    /// The key's name or id
    key: String,
    /// The secret that it has goes on for so long
    #[arg(long, value_name = "TIME", value_parser = term, default_value = "24h")]
    grace: Duration,
}

/// Changes or lists keys.
///
/// # Errors
/// [`CliError::Usage`] for a server, and what cannot be done.
pub fn run(args: KeysArgs, common: &Common, out: &mut Out) -> Result<(), CliError> {
    let hint = "on the server's machine: treering keys ls --data DIR (the server may run)";
    let dir = common.folder_here("keys are made and ended", hint)?;
    let by = person(None);
    match args.what {
        What::Create(args) => {
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
                let made = access::create_for_certificate(&dir, new, subject);
                return show_of_certificate(&made.map_err(refused)?, out);
            }
            let made = access::create(&dir, new).map_err(refused)?;
            show(&made, out)
        }
        What::Ls => list(&dir, out),
        What::Revoke(args) => {
            let key = access::revoke(&dir, &args.key, &by).map_err(refused)?;
            if out.json {
                return Ok(out.line(json(&key, None, None))?);
            }
            let name = out.paint.text(Tone::Name, &key.name);
            Ok(out.line(format!("The key {name} ({}) is revoked", key.id))?)
        }
        What::Rotate(args) => {
            let made = access::rotate(&dir, &args.key, args.grace, &by).map_err(refused)?;
            show(&made, out)
        }
    }
}

/// `writer`, `writer:team-a`, `admin:*`.
fn grants(roles: &[String], namespace: &str) -> Result<Vec<Grant>, CliError> {
    let usage = |role: &str, why: String| CliError::Usage {
        what: format!("--role {role}: {why}"),
        hint: "for example --role writer:team-a, or --role 'admin:*'".into(),
    };
    let one = |text: &String| {
        let (role, namespace) = text.split_once(':').unwrap_or((text, namespace));
        let role: KeyRole = role
            .parse()
            .map_err(|error| usage(text, format!("{error}")))?;
        let namespace = GrantReach::try_from(namespace.to_owned());
        let namespace = namespace.map_err(|error| usage(text, error.to_string()))?;
        Ok(Grant { role, namespace })
    };
    roles.iter().map(one).collect()
}

fn subject(text: &str) -> Result<CertificateSubject, String> {
    CertificateSubject::parse(text).map_err(|error| error.to_string())
}

/// A key without a secret has nothing to show but what it is.
fn show_of_certificate(key: &KeyRecord, out: &mut Out) -> Result<(), CliError> {
    if out.json {
        return Ok(out.line(json(key, None, None))?);
    }
    tell!(
        "The key {} ({}) may: {}{}. Whoever shows a certificate with the subject {} and sends no \
         key has it; the server wants `--client-ca`.",
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

/// The key on standard output, for scripts; what it is beside it.
fn show(made: &MadeKey, out: &mut Out) -> Result<(), CliError> {
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
        tell!("The one before goes on until {end}.");
    }
    tell!("It is shown this once. Clients send it: TREERING_TOKEN, or --token @FILE.");
    Ok(())
}

fn roles_of(key: &KeyRecord) -> String {
    let roles: Vec<String> = key.roles.iter().map(ToString::to_string).collect();
    roles.join(" ")
}

fn list(dir: &std::path::Path, out: &mut Out) -> Result<(), CliError> {
    let keys = access::read(dir).map_err(refused)?.keys;
    let uses = access::last_uses(dir);
    let now = TimestampMicros::now();
    for key in &keys {
        let used = uses.get(&key.id).copied();
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
            Some(time) => format!("used {}", out.zone().ago(Some(&time))),
            None => "never used".to_owned(),
        };
        let name = out.paint.text(Tone::Name, &key.name);
        let state = out.paint.text(tone, state);
        let roles = roles_of(key);
        let subject = match &key.certificate_subject {
            Some(subject) => format!("  {subject}"),
            None => String::new(),
        };
        out.row(format!(
            "{}  {name}  {state}  {roles}  {used}{subject}",
            key.id
        ))?;
    }
    if keys.is_empty() && !out.json {
        out.line(
            "No key was ever made: whoever reaches a server of this store may do everything.",
        )?;
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

/// Refuses to open a store to everybody that had keys once: it was restored, or their file is
/// gone.
///
/// # Errors
/// [`CliError::Outcome`], also when it cannot be known.
pub async fn check_are_there(
    engine: &Engine,
    keys: &KeyRing,
    opens_all_the_same: bool,
) -> Result<(), CliError> {
    if !keys.is_open() {
        // They may be older than the file that says so.
        if let Err(error) = access::note_made(keys.dir()) {
            tracing::warn!(%error, "that this store has keys could not be written down");
        }
        return Ok(());
    }
    if opens_all_the_same {
        return Ok(());
    }
    // A restored store has only the audit to say it.
    let had_keys = access::had_keys(keys.dir()) || {
        let noted = audit::has_begun(engine).await;
        noted.map_err(|error| CliError::Outcome {
            what: format!(
                "it cannot be known whether this store had keys: {}",
                with_causes(&error)
            ),
            hint: "`treering verify` tells what is damaged; --insecure serves it without keys"
                .into(),
            exit: Exit::Damaged,
        })?
    };
    if !had_keys {
        return Ok(());
    }
    let dir = keys.dir().display();
    Err(CliError::Outcome {
        what: format!(
            "callers of this store needed keys, and {dir} has none: as it is, whoever reaches the \
             server could read and erase everything"
        ),
        hint: format!(
            "a backup has no keys: put keys.json back, or make new ones (treering keys create NAME \
             --role 'admin:*' --data {dir}); --insecure serves it without"
        ),
        exit: Exit::Refused,
    })
}

/// What a person does about keys that cannot be read or changed.
pub fn refused(error: KeyFileError) -> CliError {
    let what = error.to_string();
    let outcome = |hint: &str, exit| CliError::Outcome {
        what: what.clone(),
        hint: hint.into(),
        exit,
    };
    match error {
        KeyFileError::File { .. } => outcome(
            "check the folder's name, owner and mode, and that its disk has room: until keys.json \
             can be replaced, keys stay what they are (to end one at once, end the server)",
            Exit::Failed,
        ),
        KeyFileError::Damaged { .. } => outcome(
            "put a sound copy of keys.json back, or move it away and make the keys anew: nothing \
             is served with keys that cannot be read",
            Exit::Damaged,
        ),
        KeyFileError::NotFound(_) => CliError::NotFound {
            what,
            hint: "`treering keys ls` lists them".into(),
        },
        KeyFileError::NameTaken(_) => outcome(
            "take another name, revoke that key first, or give it a new secret with `treering \
             keys rotate`",
            Exit::Refused,
        ),
        KeyFileError::SubjectTaken { .. } => outcome(
            "one certificate stands for one key: revoke that key first, or take another subject",
            Exit::Refused,
        ),
        KeyFileError::NoSecret(_) => outcome(
            "renew the certificate at its CA; to end what it may do, `treering keys revoke`",
            Exit::Refused,
        ),
        KeyFileError::Ended(_) => {
            outcome("make a new one with `treering keys create`", Exit::Refused)
        }
        KeyFileError::Invalid(_) => CliError::Usage {
            what,
            hint: "`treering keys create --help` has examples".into(),
        },
        KeyFileError::Random(_) => outcome("look at the system's log", Exit::Failed),
    }
}
