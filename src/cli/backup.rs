//! `backup`: makes, follows and inspects copies of the log. See `restore` to restore one.

mod remote;

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, Subcommand};
use tokio::task::JoinHandle;
use uuid::Uuid;

pub(crate) use self::remote::{Remote, ShipRefusal};
use super::{
    connect::Connection,
    error::{ClientError, Exit},
    json::{Array, Object},
    observe::BackupProgress,
    output::{Out, Steps, Tone},
    text::{bytes_human, count, things},
};
use treering_backup as backup;
use treering_backup::{
    Backup, BackupError, BackupOptions, BackupOutcome, BackupSource, BackupStep, BackupTarget,
    EncryptionKey, GenerationInfo, PruneOutcome, RetentionRule, VerifyReport,
};
use treering_domain::with_causes;
use treering_engine::Engine;
use treering_proto::{envelope::timestamp_to_pb, rfc3339};

/// Keep a copy of the store somewhere else, and keep it up to date
///
/// TO is a folder or a bucket: s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH, with the
/// usual variables (AWS_ACCESS_KEY_ID, AWS_ENDPOINT, …). The command uploads what is new since the
/// last backup to TO, and then a list of everything, a generation. Until then, the previous
/// generation is the newest. Content that was erased since is removed from the copy as well. Works
/// while a server has the store open, and never delays an append. The backup has all namespaces of
/// the store. Restore it with `treering restore`.
#[derive(Args, Debug, Clone)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  treering backup /mnt/backups --data ./store
  treering backup s3://bucket/treering --server http://127.0.0.1:7171 --follow
  treering backup /mnt/backups --key-file key   (umask 077; openssl rand -hex 32 > key)
  treering backup ls /mnt/backups
  treering backup verify /mnt/backups
  treering backup prune /mnt/backups --keep 7         show what would be removed; --yes removes it
  treering restore /mnt/backups --to ./restored --at '2026-01-31 08:00'")]
pub(crate) struct BackupArgs {
    /// Where to keep the copy: a folder, which is created, or a bucket
    #[arg(required = true, value_name = "TO")]
    to: Option<String>,
    /// Continue with new events until the command is stopped; each is uploaded about a second later
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    key: KeyArg,
    #[command(subcommand)]
    pub(super) command: Option<BackupQuery>,
}

/// The key of an encrypted backup.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct KeyArg {
    /// Encrypt with the key in this file (64 hexadecimal digits). Without the key, nobody can read
    /// the copy, including you
    #[arg(long, value_name = "FILE", env = "TREERING_BACKUP_KEY_FILE")]
    key_file: Option<PathBuf>,
}

impl KeyArg {
    /// Returns the key, if a file is given.
    ///
    /// # Errors
    /// [`ClientError::Outcome`] if it cannot be read.
    pub(crate) fn read(&self) -> Result<Option<EncryptionKey>, ClientError> {
        let key = self.key_file.as_deref().map(EncryptionKey::from_file);
        key.transpose().map_err(|error| refused(&error))
    }
}

/// Commands on a backup, without a store.
#[derive(Subcommand, Debug, Clone)]
pub(crate) enum BackupQuery {
    /// List the generations, and show which of them still hold erased content
    Ls(FromArgs),
    /// Read and check all of it: every object, its records and their hash chain
    Verify(CheckArgs),
    /// Remove old generations, and objects that only they use
    ///
    /// Without --yes, only lists what would be removed. The newest generation includes everything
    /// in older ones of the same store, up to an accepted loss, so `restore --at` needs no others.
    Prune(PruneArgs),
}

/// An existing backup.
#[derive(Args, Debug, Clone)]
pub(crate) struct FromArgs {
    /// The backup: a folder or a bucket
    #[arg(value_name = "FROM")]
    from: String,
    #[command(flatten)]
    key: KeyArg,
}

impl FromArgs {
    fn open(&self) -> Result<(BackupTarget, Option<EncryptionKey>), ClientError> {
        let target = BackupTarget::to_read(&self.from).map_err(|error| refused(&error.into()))?;
        Ok((target, self.key.read()?))
    }
}

#[derive(Args, Debug, Clone)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    from: FromArgs,
    /// Id of the store, if there are backups of several
    #[arg(long, value_name = "UUID")]
    store: Option<Uuid>,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct PruneArgs {
    #[command(flatten)]
    from: FromArgs,
    /// Id of the store, if there are backups of several
    #[arg(long, value_name = "UUID")]
    store: Option<Uuid>,
    /// Keep this many of the newest generations
    #[arg(long, value_name = "N", required_unless_present = "keep_days")]
    keep: Option<u64>,
    /// Keep the generations of this many days
    #[arg(long, value_name = "D")]
    keep_days: Option<u64>,
    /// Remove them instead of only listing them
    #[arg(long, short)]
    yes: bool,
}

/// Lists, checks or prunes a backup.
///
/// # Errors
/// [`ClientError::Outcome`].
pub(crate) async fn about(about: &BackupQuery, out: &mut Out) -> Result<(), ClientError> {
    match about {
        BackupQuery::Ls(args) => ls(args, out).await,
        BackupQuery::Verify(args) => verify(args, out).await,
        BackupQuery::Prune(args) => prune(args, out).await,
    }
}

/// Backs up a store.
///
/// # Errors
/// [`ClientError::Outcome`]; errors of the store.
pub(crate) async fn run(
    args: BackupArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let to = args.to.unwrap_or_default();
    if args.follow && store.is_embedded() {
        return Err(ClientError::Usage {
            what: "no server is using this folder, so there would be nothing to follow".into(),
            hint: format!("start a server with a backup: treering serve --backup {to}"),
        });
    }
    let target = BackupTarget::to_write(&to).map_err(|error| refused(&error.into()))?;
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
) -> Result<(), ClientError> {
    if !out.json {
        out.line(format!(
            "Backing up new records to {} continuously; Ctrl-C ends it.",
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
            failed = print_step(number, head, is_all, out);
        }
    });
    let followed = followed.await;
    failed?;
    followed.map_err(|error| refused(&error))
}

fn print_step(number: u64, head: u64, is_all: bool, out: &mut Out) -> Result<(), ClientError> {
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

fn tell(outcome: &BackupOutcome, target: &BackupTarget, out: &mut Out) -> Result<(), ClientError> {
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
            "Generation {generation} in {}: {} in {}, up to position {head}; the backup takes {}",
            target.address(),
            things(outcome.events, "event", "events"),
            bytes_human(outcome.bytes),
            bytes_human(outcome.bytes_total)
        ))?;
    } else {
        out.line(format!(
            "Nothing new: generation {generation} in {} is complete, up to position {head}",
            target.address()
        ))?;
    }
    if outcome.gone > 0 {
        let warning = format!(
            "{} missing or truncated in {} and written again: find out what removes objects there.",
            things(outcome.gone, "object was", "objects were"),
            target.address()
        );
        out.line(out.paint.text(Tone::Wait, warning))?;
    }
    if outcome.cleaned > 0 {
        out.line(format!(
            "{} rewritten without erased content",
            things(outcome.cleaned, "object was", "objects were")
        ))?;
    }
    if !outcome.removed.is_empty() {
        let removed = match outcome.removed.as_slice() {
            [one] => format!("Removed generation {one}, which had erased content"),
            several => format!(
                "Removed generations that had erased content: {}",
                listed(several)
            ),
        };
        out.line(removed)?;
    }
    if !outcome.still_hold.is_empty() {
        let still = listed(&outcome.still_hold);
        let warning = format!(
            "Generations from before a loss still have erased content: {still}. They are the only \
             copy of the lost events; `treering backup prune` removes them."
        );
        out.line(out.paint.text(Tone::Wait, warning))?;
    }
    if !outcome.unread.is_empty() {
        let unread = listed(&outcome.unread);
        let warning = format!(
            "Generations that cannot be read may have erased content: {unread}. `treering backup \
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

async fn ls(args: &FromArgs, out: &mut Out) -> Result<(), ClientError> {
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

async fn verify(args: &CheckArgs, out: &mut Out) -> Result<(), ClientError> {
    let (target, key) = args.from.open()?;
    let bar = Steps::start("verify");
    let verified = backup::verify(&target, args.store, key.as_ref(), |step| {
        bar.reach(step.done, step.total);
    });
    let verified = verified.await.map_err(|error| refused(&error))?;
    drop(bar);
    print_verified(&verified, out)?;
    if verified.faults.is_empty() {
        return Ok(());
    }
    Err(ClientError::Outcome {
        what: format!(
            "the backup is damaged: {}",
            things(verified.faults.len() as u64, "fault", "faults")
        ),
        hint: "if the store still exists, back it up to another target; `treering restore \
               --position` restores the intact part of a damaged backup"
            .into(),
        exit: Exit::Damaged,
    })
}

fn print_verified(verified: &VerifyReport, out: &mut Out) -> Result<(), ClientError> {
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

async fn prune(args: &PruneArgs, out: &mut Out) -> Result<(), ClientError> {
    let (target, key) = args.from.open()?;
    let keep = RetentionRule {
        newest: args.keep,
        days: args.keep_days,
    };
    let pruned = backup::prune(&target, args.store, key.as_ref(), keep, !args.yes).await;
    let pruned = pruned.map_err(|error| refused(&error))?;
    print_pruned(&pruned, args.yes, out)
}

fn print_pruned(pruned: &PruneOutcome, is_done: bool, out: &mut Out) -> Result<(), ClientError> {
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
        false => ("Would remove", "; use --yes to remove them"),
    };
    let generations = match pruned.generations.as_slice() {
        [] => "no generation".to_owned(),
        [one] => format!("generation {one}"),
        several => format!("generations {}", listed(several)),
    };
    Ok(out.line(format!(
        "{word} {generations}, and {} of {} that no other generation uses{end}",
        things(pruned.objects, "object", "objects"),
        bytes_human(pruned.bytes)
    ))?)
}

/// Returns the error as users see it, with a hint and an exit code.
pub(crate) fn refused(error: &BackupError) -> ClientError {
    let what = with_causes(error).to_string();
    let (hint, exit) = match error {
        BackupError::Address { .. } => (
            "use a folder, s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH",
            Exit::Usage,
        ),
        BackupError::Key { .. } => (
            "create one with `(umask 077; openssl rand -hex 32 > FILE)`, and keep it away from the \
             backup",
            Exit::Usage,
        ),
        BackupError::Locked { .. } => ("give the backup's key with --key-file FILE", Exit::Refused),
        BackupError::OtherKey { .. } => ("use another target", Exit::Refused),
        BackupError::Target { .. } => (
            "the previous generation is still the newest: check that the target is reachable and \
             has space, then run the backup again; it resumes",
            Exit::Unavailable,
        ),
        BackupError::Missing { .. } | BackupError::Damaged { .. } => (
            "`treering backup ls` and `verify` list all damage. If the store still exists, the \
             next backup writes missing objects again; otherwise use `restore --generation N` for \
             an older generation, or `--position N` for what precedes a damaged object",
            Exit::Damaged,
        ),
        BackupError::NoBackup { .. } => ("`treering backup TO` creates one", Exit::NotFound),
        BackupError::OtherStore { .. } => (
            "check that this is the right target: another backup may have replaced yours. \
             `treering backup ls` shows what is there",
            Exit::NotFound,
        ),
        BackupError::Several { .. } => ("choose one with --store UUID", Exit::Usage),
        BackupError::Overtaken { .. } => (
            "run it again to back up what the other one lacks; run only one backup at a time per \
             target (check for two timers, or `serve --backup` beside a timer)",
            Exit::Refused,
        ),
        BackupError::Gone { .. } => (
            "check who removes files there; then run it again to write the missing objects",
            Exit::Refused,
        ),
        BackupError::Source { .. } => (
            "what was written is kept, and the next run resumes; `treering verify` checks the store",
            Exit::Unavailable,
        ),
        BackupError::NoSuchPlace { .. } => {
            ("`treering backup ls` lists the generations", Exit::NotFound)
        }
        BackupError::RestoreRuns { .. } => (
            "wait until it ends, or use another folder with --to DIR",
            Exit::Refused,
        ),
        BackupError::NotEmpty { .. } => ("use another folder with --to DIR", Exit::Usage),
        BackupError::Store { .. } => (
            "check for free space, then try another folder",
            Exit::Failed,
        ),
        BackupError::Internal { .. } => ("this is a bug; please report it", Exit::Failed),
    };
    ClientError::Outcome {
        what,
        hint: hint.into(),
        exit,
    }
}

/// Maximum time that a stopping server spends on backing up the last events.
const LAST_WITHIN: Duration = Duration::from_secs(10);

/// A backup that a server is to keep up to date.
#[derive(Debug)]
pub(crate) struct BackupJob {
    target: BackupTarget,
    options: BackupOptions,
}

impl BackupJob {
    /// Checks the address and the key before anything is opened.
    ///
    /// # Errors
    /// [`ClientError::Outcome`] for an unusable address or key.
    pub(crate) fn prepare(to: &str, key_file: Option<PathBuf>) -> Result<Self, ClientError> {
        let key = KeyArg { key_file }.read()?;
        Ok(Self {
            target: BackupTarget::to_write(to).map_err(|error| refused(&error.into()))?,
            options: BackupOptions { key, follow: false },
        })
    }

    /// Starts to back up a store in this process continuously.
    pub(crate) fn start(self, engine: &Engine) -> RunningBackup {
        let (target, options, store) = (self.target.clone(), self.options.clone(), engine.clone());
        let reached = Arc::new(BackupProgress::default());
        let told = Arc::clone(&reached);
        let task = tokio::spawn(async move {
            let followed = backup::follow(&store, &target, &options, |step| told.note(step)).await;
            if let Err(error) = followed {
                told.end();
                let (error, to) = (with_causes(&error).to_string(), target.address());
                tracing::error!(error, to, "the backup has stopped following the store");
            }
        });
        RunningBackup {
            following: self,
            engine: engine.clone(),
            reached,
            task,
        }
    }
}

/// A running backup that is kept up to date.
pub(crate) struct RunningBackup {
    following: BackupJob,
    engine: Engine,
    reached: Arc<BackupProgress>,
    task: JoinHandle<()>,
}

impl RunningBackup {
    /// Returns the progress of the backup.
    pub(crate) fn reached(&self) -> Arc<BackupProgress> {
        Arc::clone(&self.reached)
    }

    /// Stops the backup. First backs up the last events, for at most [`LAST_WITHIN`].
    pub(crate) async fn stop(self) {
        let is_over = self.task.is_finished();
        self.task.abort();
        if is_over {
            return;
        }
        let BackupJob { target, options } = &self.following;
        let last = async {
            let mut backup = Backup::start(&self.engine, target, options).await?;
            backup.run(|_| {}).await
        };
        match tokio::time::timeout(LAST_WITHIN, last).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = with_causes(&error).to_string();
                tracing::warn!(error, "the last events are not in the backup");
            }
            Err(_) => tracing::warn!("the last events were not backed up in time"),
        }
    }
}
