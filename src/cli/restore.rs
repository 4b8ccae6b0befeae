//! `restore`: creates a store from a backup.

use std::path::PathBuf;

use clap::Args;
use uuid::Uuid;

use super::{
    backup::{KeyArg, refused},
    error::ClientError,
    json::{Array, Object},
    output::{Out, Steps},
    safe::tell,
    text::{count, things},
    time_arg::TimeRange,
};
use treering_backup::{BackupTarget, RestoreOptions, RestoreOutcome, RestoreTo, restore};
use treering_domain::TimestampMicros;
use treering_proto::{
    envelope::{timestamp_from_pb, timestamp_to_pb},
    rfc3339,
};

/// Create a store from a backup, as of some time
///
/// The newest generation has the whole history. With --at or --position, the store is restored up
/// to there; each batch is restored completely or not at all. Later erasures still apply. The
/// restored store has its own id: it can be served at once, and its backups never replace those of
/// the original store. Checksums and hash chains are checked, and DIR opens as a store only when
/// everything is complete.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering restore /mnt/backups --to ./restored
  treering restore s3://bucket/treering --to ./restored --at '2026-01-31 08:00'
  treering restore /mnt/backups --to ./restored --position 41200
  treering verify --data ./restored && treering serve --data ./restored")]
pub(crate) struct RestoreArgs {
    /// The backup: a folder or a bucket
    #[arg(value_name = "FROM")]
    from: String,
    /// Folder of the new store: it is created, or must be empty
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Restore as of this time: `2026-01-31 08:00` (UTC), `3h ago`, a day (its end)
    #[arg(long, value_name = "TIME", conflicts_with = "position")]
    at: Option<TimeRange>,
    /// Restore up to this log position
    #[arg(long, value_name = "N")]
    position: Option<u64>,
    /// Generation to restore; default: the newest
    #[arg(long, value_name = "N")]
    generation: Option<u64>,
    /// Id of the store; the backup of another one is refused. Required if there are backups of
    /// several
    #[arg(long, visible_alias = "store-id", value_name = "UUID")]
    store: Option<Uuid>,
    #[command(flatten)]
    key: KeyArg,
}

/// Restores a store.
///
/// # Errors
/// [`ClientError::Outcome`] names the object that is missing or changed.
pub(crate) async fn run(args: &RestoreArgs, out: &mut Out) -> Result<(), ClientError> {
    let target = BackupTarget::to_read(&args.from).map_err(|error| refused(&error.into()))?;
    let options = RestoreOptions {
        key: args.key.read()?,
        store: args.store,
        generation: args.generation,
        cut: cut(args),
    };
    let bar = Steps::start("restore");
    let restored = restore(&target, &args.to, &options, |step| {
        bar.reach(step.done, step.total);
    });
    let restored = restored.await.map_err(|error| refused(&error))?;
    drop(bar);
    warn(&restored);
    if out.json {
        return Ok(out.line(json(&restored))?);
    }
    tell(&restored, args, out)
}

fn cut(args: &RestoreArgs) -> RestoreTo {
    let time = args.at.and_then(|at| timestamp_from_pb(&at.end()));
    match (time, args.position) {
        (Some(time), _) => RestoreTo::Time(time),
        (None, Some(position)) => RestoreTo::Position(position),
        (None, None) => RestoreTo::End,
    }
}

/// Prints warnings to standard error, even with `--json`.
fn warn(restored: &RestoreOutcome) {
    if restored.pseudonyms {
        tell!(
            "This store has pseudonyms, but backups do not contain their key: copy pseudonyms.key \
             from the old store into the new one. Without it, the store is read-only; `treering \
             serve --pseudonyms` makes a new key."
        );
    }
    if restored.unread.is_empty() {
        return;
    }
    let unread: Vec<String> = restored.unread.iter().map(u64::to_string).collect();
    tell!(
        "WARNING: newer generations cannot be read: {}. Content that was erased since generation \
         {} may be back: erase it again.",
        unread.join(", "),
        restored.generation
    );
}

fn json(restored: &RestoreOutcome) -> String {
    let mut object = Object::new();
    object
        .string("store", &restored.store.to_string())
        .string("new_store", &restored.new_store.to_string())
        .number("generation", restored.generation)
        .number("events", restored.events)
        .number("events_there", restored.events_in_generation)
        .number("conversations", restored.conversations)
        .number("erased", restored.erased);
    if let Some(last) = restored.last_recorded_at.and_then(rfc3339::text) {
        object.string("last_recorded_at", &last);
    }
    object.boolean("pseudonyms", restored.pseudonyms);
    let unread = Array::of(&restored.unread, ToString::to_string);
    object.raw("unread_generations", &unread);
    object.finish()
}

fn tell(restored: &RestoreOutcome, args: &RestoreArgs, out: &mut Out) -> Result<(), ClientError> {
    let zone = out.zone();
    let last = |time: TimestampMicros| zone.day_clock(Some(&timestamp_to_pb(time)));
    out.line(format!(
        "Restored {} of {} of {} from generation {} of store {} into {}; the last event is of {}",
        count(restored.events),
        things(restored.events_in_generation, "event", "events"),
        things(restored.conversations, "conversation", "conversations"),
        restored.generation,
        restored.store,
        args.to.display(),
        restored
            .last_recorded_at
            .map_or_else(|| "never".to_owned(), last)
    ))?;
    if restored.erased > 0 {
        out.line(format!(
            "{} erased later; the restored store does not have their content",
            things(restored.erased, "event was", "events were")
        ))?;
    }
    Ok(out.line(format!(
        "The restored store has its own id, {}, and no keys: backups do not contain them. Check it \
         with `treering verify --deep --data {}`",
        restored.new_store,
        args.to.display()
    ))?)
}
