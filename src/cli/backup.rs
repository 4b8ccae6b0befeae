//! `backup`: a copy of the log somewhere else, and what can be said of it. `restore` is a
//! file of its own.

mod remote;

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, Subcommand};
use tokio::task::JoinHandle;
use uuid::Uuid;

pub use self::remote::{Remote, ShipRefusal};
use super::{
    connect::Connection,
    error::{CliError, Exit},
    json::{Array, Object},
    observe::BackupReached,
    output::{Out, Steps, Tone},
    text::{bytes_human, count, things},
};
use treering_backup as backup;
use treering_backup::{
    Backup, BackupError, BackupOptions, BackupOutcome, BackupSource, BackupStep, BackupTarget,
    GenerationInfo, Keep, Key, Pruned, Verified,
};
use treering_domain::with_causes;
use treering_engine::Engine;
use treering_proto::{envelope::timestamp_to_pb, rfc3339};

/// Keep a copy of the store somewhere else, and bring it up to date
///
/// TO is a folder or a bucket: s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH, with
/// the usual variables (AWS_ACCESS_KEY_ID, AWS_ENDPOINT, …). What is new since the last
/// backup to TO is put there, and then a list that names all of it, a generation; until then
/// the generation before is the newest. What was erased since is taken out of the copy, too.
/// It works while a server has the store, and never delays an append. All namespaces of the
/// store are in it. Restore with `treering restore`.
#[derive(Args, Debug, Clone)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  treering backup /mnt/backups --data ./store
  treering backup s3://bucket/treering --server http://127.0.0.1:7171 --follow
  treering backup /mnt/backups --key-file key   (umask 077; openssl rand -hex 32 > key)
  treering backup ls /mnt/backups
  treering backup verify /mnt/backups
  treering backup prune /mnt/backups --keep 7         what would go; --yes removes it
  treering restore /mnt/backups --to ./restored --at '2026-01-31 08:00'")]
pub struct BackupArgs {
    /// Where the copy is kept: a folder, which is made, or a bucket
    #[arg(required = true, value_name = "TO")]
    to: Option<String>,
    /// Go on with what is appended, until it is ended: a second later it is on its way
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    key: KeyArg,
    #[command(subcommand)]
    pub(super) command: Option<About>,
}

/// The key of an encrypted backup.
#[derive(Args, Debug, Clone, Default)]
pub struct KeyArg {
    /// Encrypt with the key in this file (64 hexadecimal digits): without it nobody can read
    /// the copy, and neither can you
    #[arg(long, value_name = "FILE", env = "TREERING_BACKUP_KEY_FILE")]
    key_file: Option<PathBuf>,
}

impl KeyArg {
    /// The key, if one is named.
    ///
    /// # Errors
    /// [`CliError::Outcome`] when it cannot be read.
    pub fn read(&self) -> Result<Option<Key>, CliError> {
        let key = self.key_file.as_deref().map(Key::from_file);
        key.transpose().map_err(|error| refused(&error))
    }
}

/// What is asked of a backup, without a store.
#[derive(Subcommand, Debug, Clone)]
pub enum About {
    /// Show which generations there are, and which still hold what was erased
    Ls(FromArgs),
    /// Read all of it and check it: every object, its records, their chain of hashes
    Verify(CheckArgs),
    /// Remove old generations, and what only they name
    ///
    /// Only tells what would go, without --yes. The newest generation has all that older ones
    /// of the same store have, up to a loss that was accepted: `restore --at` needs no others.
    Prune(PruneArgs),
}

/// A backup that is there.
#[derive(Args, Debug, Clone)]
pub struct FromArgs {
    /// The backup: a folder or a bucket
    #[arg(value_name = "FROM")]
    from: String,
    #[command(flatten)]
    key: KeyArg,
}

impl FromArgs {
    fn open(&self) -> Result<(BackupTarget, Option<Key>), CliError> {
        let target = BackupTarget::to_read(&self.from).map_err(|error| refused(&error))?;
        Ok((target, self.key.read()?))
    }
}

#[derive(Args, Debug, Clone)]
pub struct CheckArgs {
    #[command(flatten)]
    from: FromArgs,
    /// Whose backup, when there are several
    #[arg(long, value_name = "UUID")]
    store: Option<Uuid>,
}

#[derive(Args, Debug, Clone)]
pub struct PruneArgs {
    #[command(flatten)]
    from: FromArgs,
    /// Whose backup, when there are several
    #[arg(long, value_name = "UUID")]
    store: Option<Uuid>,
    /// Keep so many of the newest generations
    #[arg(long, value_name = "N", required_unless_present = "keep_days")]
    keep: Option<u64>,
    /// Keep those of so many days
    #[arg(long, value_name = "D")]
    keep_days: Option<u64>,
    /// Remove them, and do not only tell
    #[arg(long, short)]
    yes: bool,
}

/// Tells of a backup, checks it, or removes what is old.
///
/// # Errors
/// [`CliError::Outcome`].
pub async fn about(about: &About, out: &mut Out) -> Result<(), CliError> {
    match about {
        About::Ls(args) => ls(args, out).await,
        About::Verify(args) => verify(args, out).await,
        About::Prune(args) => prune(args, out).await,
    }
}

/// Backs up a store.
///
/// # Errors
/// [`CliError::Outcome`], and what the store says.
pub async fn run(args: BackupArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let to = args.to.unwrap_or_default();
    if args.follow && store.is_embedded() {
        return Err(CliError::Usage {
            what: "nobody serves this folder, so nothing would come while it is followed".into(),
            hint: format!("start a server that does it: treering serve --backup {to}"),
        });
    }
    let target = BackupTarget::to_write(&to).map_err(|error| refused(&error))?;
    let options = BackupOptions {
        key: args.key.read()?,
        follow: args.follow,
    };
    let source = Remote(store);
    if args.follow {
        let followed = follow(&source, &target, &options, out);
        let end = super::serve::stop_signal();
        return tokio::select! {
            followed = followed => followed,
            () = end => Ok(()),
        };
    }
    let bar = Steps::start("backup");
    let refused = |error: BackupError| refused(&error);
    let mut backup = Backup::start(&source, &target, &options)
        .await
        .map_err(refused)?;
    let ran = backup.run(|step| {
        if let BackupStep::Shipped { done, total } = step {
            bar.reach(done, total);
        }
    });
    let ran = ran.await;
    drop(bar);
    ran.map_err(refused)?;
    tell(&backup.outcome(), &target, out)
}

async fn follow(
    source: &dyn BackupSource,
    target: &BackupTarget,
    options: &BackupOptions,
    out: &mut Out,
) -> Result<(), CliError> {
    if !out.json {
        out.line(format!(
            "Following into {}; Ctrl-C ends it.",
            target.address()
        ))?;
        out.flush()?;
    }
    let mut failed = Ok(());
    let followed = backup::follow(source, target, options, |step| {
        if let (
            BackupStep::Generation {
                number,
                head,
                is_all,
            },
            Ok(()),
        ) = (step, &failed)
        {
            failed = tell_step(number, head, is_all, out);
        }
    });
    let followed = followed.await;
    failed?;
    followed.map_err(|error| refused(&error))
}

fn tell_step(number: u64, head: u64, is_all: bool, out: &mut Out) -> Result<(), CliError> {
    if out.json {
        let mut object = Object::new();
        object
            .number("generation", number)
            .number("head", head)
            .boolean("is_all", is_all);
        out.line(object.finish())?;
        out.flush()?;
    }
    Ok(())
}

fn tell(outcome: &BackupOutcome, target: &BackupTarget, out: &mut Out) -> Result<(), CliError> {
    if out.json {
        let mut object = Object::new();
        object
            .string("target", target.address())
            .string("store", &outcome.store.to_string())
            .number("generation", outcome.generation)
            .boolean("is_new", outcome.is_new)
            .number("head", outcome.head)
            .number("events", outcome.events)
            .number("objects", outcome.objects)
            .number("bytes", outcome.bytes)
            .number("bytes_total", outcome.bytes_total)
            .number("gone", outcome.gone)
            .number("cleaned", outcome.cleaned)
            .raw("removed", &numbers(&outcome.removed))
            .raw("still_hold", &numbers(&outcome.still_hold))
            .raw("unread", &numbers(&outcome.unread));
        return Ok(out.line(object.finish())?);
    }
    let (generation, head) = (outcome.generation, count(outcome.head));
    if outcome.is_new {
        out.line(format!(
            "Generation {generation} in {}: {} in {}, up to position {head}; \
             all of it takes {}",
            target.address(),
            things(outcome.events, "event", "events"),
            bytes_human(outcome.bytes),
            bytes_human(outcome.bytes_total)
        ))?;
    } else {
        out.line(format!(
            "Nothing new: generation {generation} in {} has all, up to position {head}",
            target.address()
        ))?;
    }
    if outcome.gone > 0 {
        let warning = format!(
            "{} gone from {}, or cut off, and put again: find out what removes them.",
            things(outcome.gone, "object was", "objects were"),
            target.address()
        );
        out.line(out.paint.text(Tone::Wait, warning))?;
    }
    if outcome.cleaned > 0 {
        out.line(format!(
            "{} written anew without what was erased",
            things(outcome.cleaned, "object was", "objects were")
        ))?;
    }
    if !outcome.removed.is_empty() {
        let removed = match outcome.removed.as_slice() {
            [one] => format!("Generation {one}, which held what was erased, is removed"),
            several => format!(
                "Generations that held what was erased are removed: {}",
                listed(several)
            ),
        };
        out.line(removed)?;
    }
    if !outcome.still_hold.is_empty() {
        let still = listed(&outcome.still_hold);
        let warning = format!(
            "Generations of before a loss still hold what was erased: {still}. They are all that \
             is left of what was lost; `treering backup prune` removes them."
        );
        out.line(out.paint.text(Tone::Wait, warning))?;
    }
    if !outcome.unread.is_empty() {
        let unread = listed(&outcome.unread);
        let warning = format!(
            "Generations cannot be read, and may hold what was erased: {unread}. `treering backup \
             prune --keep 1` removes them."
        );
        out.line(out.paint.text(Tone::Wait, warning))?;
    }
    Ok(())
}

fn numbers(numbers: &[u64]) -> String {
    let mut array = Array::new();
    for number in numbers {
        array.push_raw(&number.to_string());
    }
    array.finish()
}

fn listed(numbers: &[u64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    numbers.join(", ")
}

async fn ls(args: &FromArgs, out: &mut Out) -> Result<(), CliError> {
    let (target, key) = args.open()?;
    let infos = backup::generations(&target, key.as_ref()).await;
    let infos = infos.map_err(|error| refused(&error))?;
    let mut store = None;
    for info in &infos {
        if out.json {
            out.line(info_json(info))?;
            continue;
        }
        if store.replace(info.store) != Some(info.store) {
            out.line(format!("store {}", info.store))?;
        }
        let line = info_line(info, out);
        out.row(line)?;
    }
    Ok(())
}

fn info_line(info: &GenerationInfo, out: &Out) -> String {
    if let Some(what) = &info.unreadable {
        let what = out.paint.text(Tone::Bad, what);
        return format!("{:>6}  {what}", info.generation);
    }
    let made = out.when(Some(&timestamp_to_pb(info.made_at)));
    let last = info.last_recorded_at.map(timestamp_to_pb);
    let last = match &last {
        Some(last) => format!("the last of {}", out.when(Some(last))),
        None => "no events".to_owned(),
    };
    let holds = match info.holds_erased {
        0 => String::new(),
        events => {
            let holds = format!(
                "  holds {}",
                things(events, "erased event", "erased events")
            );
            out.paint.text(Tone::Bad, holds)
        }
    };
    format!(
        "{:>6}  {made:<16}  {:>10} {}, {last:<28}  {:>9} in {}{holds}",
        info.generation,
        count(info.head),
        if info.head == 1 { "event" } else { "events" },
        bytes_human(info.bytes),
        things(info.objects, "object", "objects"),
    )
}

fn info_json(info: &GenerationInfo) -> String {
    let mut object = Object::new();
    object
        .string("store", &info.store.to_string())
        .number("generation", info.generation);
    if let Some(what) = &info.unreadable {
        object.string("unreadable", what);
        return object.finish();
    }
    object
        .string("made_at", &rfc3339::text(info.made_at).unwrap_or_default())
        .number("head", info.head);
    if let Some(last) = info.last_recorded_at.and_then(rfc3339::text) {
        object.string("last_recorded_at", &last);
    }
    object
        .number("objects", info.objects)
        .number("bytes", info.bytes)
        .number("holds_erased", info.holds_erased);
    object.finish()
}

async fn verify(args: &CheckArgs, out: &mut Out) -> Result<(), CliError> {
    let (target, key) = args.from.open()?;
    let bar = Steps::start("verify");
    let verified = backup::verify(&target, args.store, key.as_ref(), |step| {
        bar.reach(step.done, step.total);
    });
    let verified = verified.await.map_err(|error| refused(&error))?;
    drop(bar);
    tell_verified(&verified, out)?;
    if verified.faults.is_empty() {
        return Ok(());
    }
    Err(CliError::Outcome {
        what: format!(
            "the backup is damaged: {}",
            things(verified.faults.len() as u64, "fault", "faults")
        ),
        hint: "as long as the store is there, back it up to another place; what is whole of a \
               damaged one can be restored up to there with `treering restore --position`"
            .into(),
        exit: Exit::Damaged,
    })
}

fn tell_verified(verified: &Verified, out: &mut Out) -> Result<(), CliError> {
    for fault in &verified.faults {
        if out.json {
            let mut object = Object::new();
            object
                .string("fault", &fault.what)
                .raw("generations", &numbers(&fault.generations));
            out.line(object.finish())?;
        } else {
            let of = listed(&fault.generations);
            out.line(format!(
                "{} (generation {of})",
                out.paint.text(Tone::Bad, &fault.what)
            ))?;
        }
    }
    if out.json {
        let mut object = Object::new();
        object
            .string("store", &verified.store.to_string())
            .boolean("sound", verified.faults.is_empty())
            .number("generations", verified.generations)
            .number("objects", verified.objects)
            .number("bytes", verified.bytes)
            .number("events", verified.events)
            .number("blobs", verified.blobs)
            .number("faults", verified.faults.len() as u64);
        return Ok(out.line(object.finish())?);
    }
    let word = match verified.faults.is_empty() {
        true => out.paint.text(Tone::Good, "sound"),
        false => out.paint.text(Tone::Bad, "not sound"),
    };
    Ok(out.line(format!(
        "{word}: {}, {} of {} read, {} and {} checked",
        things(verified.generations, "generation", "generations"),
        things(verified.objects, "object", "objects"),
        bytes_human(verified.bytes),
        things(verified.events, "event", "events"),
        things(verified.blobs, "large body", "large bodies")
    ))?)
}

async fn prune(args: &PruneArgs, out: &mut Out) -> Result<(), CliError> {
    let (target, key) = args.from.open()?;
    let keep = Keep {
        newest: args.keep,
        days: args.keep_days,
    };
    let pruned = backup::prune(&target, args.store, key.as_ref(), keep, !args.yes).await;
    let pruned = pruned.map_err(|error| refused(&error))?;
    tell_pruned(&pruned, args.yes, out)
}

fn tell_pruned(pruned: &Pruned, is_done: bool, out: &mut Out) -> Result<(), CliError> {
    if out.json {
        let mut object = Object::new();
        object
            .string("store", &pruned.store.to_string())
            .boolean("removed", is_done)
            .raw("generations", &numbers(&pruned.generations))
            .raw("kept", &numbers(&pruned.kept))
            .number("objects", pruned.objects)
            .number("bytes", pruned.bytes);
        return Ok(out.line(object.finish())?);
    }
    let (word, end) = match is_done {
        true => ("Removed", ""),
        false => ("Would remove", "; say --yes to do it"),
    };
    let generations = match pruned.generations.as_slice() {
        [] => "no generation".to_owned(),
        [one] => format!("generation {one}"),
        several => format!("generations {}", listed(several)),
    };
    Ok(out.line(format!(
        "{word} {generations}, and {} of {} that no other one names{end}",
        things(pruned.objects, "object", "objects"),
        bytes_human(pruned.bytes)
    ))?)
}

/// What a person is told, and the exit code.
pub fn refused(error: &BackupError) -> CliError {
    let what = with_causes(error).to_string();
    let (hint, exit) = match error {
        BackupError::Address { .. } => (
            "name a folder, s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH",
            Exit::Usage,
        ),
        BackupError::Key { .. } => (
            "make one with `(umask 077; openssl rand -hex 32 > FILE)`, and keep it where the \
             backup is not",
            Exit::Usage,
        ),
        BackupError::Locked { .. } => ("name the backup's key with --key-file FILE", Exit::Refused),
        BackupError::OtherKey { .. } => ("name another place", Exit::Refused),
        BackupError::Target { .. } => (
            "the generation before is still the newest: check that the target can be reached and \
             has room, then run it again, which goes on from there",
            Exit::Unavailable,
        ),
        BackupError::Missing { .. } | BackupError::Damaged { .. } => (
            "`treering backup ls` and `verify` name all that is damaged. As long as the store is \
             there, the next backup puts again what is gone; else `restore --generation N` takes an \
             older generation, and `--position N` what is before a damaged object",
            Exit::Damaged,
        ),
        BackupError::NoBackup { .. } => ("`treering backup TO` makes one", Exit::NotFound),
        BackupError::OtherStore { .. } => (
            "check that this is the right place: another backup may lie where yours was. \
             `treering backup ls` tells what is there",
            Exit::NotFound,
        ),
        BackupError::Several { .. } => ("say which with --store UUID", Exit::Usage),
        BackupError::Overtaken { .. } => (
            "run it again, which backs up what the other one lacks; let only one backup at a time \
             write to one place (two timers, or `serve --backup` beside a timer)",
            Exit::Refused,
        ),
        BackupError::Gone { .. } => (
            "check who removes files there; then run it again, which puts again what is gone",
            Exit::Refused,
        ),
        BackupError::Source { .. } => (
            "what was put before is kept, and the next run goes on from there; `treering verify` \
             tells whether the store is sound",
            Exit::Unavailable,
        ),
        BackupError::NoSuchPlace { .. } => {
            ("`treering backup ls` tells what there is", Exit::NotFound)
        }
        BackupError::RestoreRuns { .. } => (
            "wait until it has ended, or name another folder with --to DIR",
            Exit::Refused,
        ),
        BackupError::NotEmpty { .. } => ("name another folder with --to DIR", Exit::Usage),
        BackupError::Store { .. } => (
            "check that there is room, then try again with another folder",
            Exit::Failed,
        ),
        BackupError::Internal { .. } => ("this should not be, and wants a report", Exit::Failed),
    };
    CliError::Outcome {
        what,
        hint: hint.into(),
        exit,
    }
}

/// How long a server that ends backs up what came last.
const LAST_WITHIN: Duration = Duration::from_secs(10);

/// A backup that a server is to keep.
#[derive(Debug)]
pub struct Following {
    target: BackupTarget,
    options: BackupOptions,
}

impl Following {
    /// Finds fault before anything is opened.
    ///
    /// # Errors
    /// [`CliError::Outcome`] for an address or a key that cannot be used.
    pub fn prepare(to: &str, key_file: Option<PathBuf>) -> Result<Self, CliError> {
        let key = KeyArg { key_file }.read()?;
        Ok(Self {
            target: BackupTarget::to_write(to).map_err(|error| refused(&error))?,
            options: BackupOptions { key, follow: false },
        })
    }

    /// Follows a store that this process has.
    pub fn start(self, engine: &Engine) -> Followed {
        let (target, options, store) = (self.target.clone(), self.options.clone(), engine.clone());
        let reached = Arc::new(BackupReached::default());
        let told = Arc::clone(&reached);
        let task = tokio::spawn(async move {
            let followed = backup::follow(&store, &target, &options, |step| told.note(step)).await;
            if let Err(error) = followed {
                told.end();
                let (error, to) = (with_causes(&error).to_string(), target.address());
                tracing::error!(
                    error,
                    to,
                    "the copy of the store is not brought up to date any more"
                );
            }
        });
        Followed {
            following: self,
            engine: engine.clone(),
            reached,
            task,
        }
    }
}

/// A backup that is kept.
pub struct Followed {
    following: Following,
    engine: Engine,
    reached: Arc<BackupReached>,
    task: JoinHandle<()>,
}

impl Followed {
    /// How far it is.
    pub fn reached(&self) -> Arc<BackupReached> {
        Arc::clone(&self.reached)
    }

    /// Ends it, with what was appended last if that does not take long.
    pub async fn stop(self) {
        let is_over = self.task.is_finished();
        self.task.abort();
        if is_over {
            return;
        }
        let Following { target, options } = &self.following;
        let last = async {
            let mut backup = Backup::start(&self.engine, target, options).await?;
            backup.run(|_| {}).await
        };
        match tokio::time::timeout(LAST_WITHIN, last).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = with_causes(&error).to_string();
                tracing::warn!(error, "what was appended last is not in the copy");
            }
            Err(_) => tracing::warn!("there was no time to bring the copy up to date"),
        }
    }
}
