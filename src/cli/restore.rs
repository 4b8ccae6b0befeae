//! `restore`: a store, made of a backup.

use std::path::PathBuf;

use clap::Args;
use uuid::Uuid;

use super::{
    backup::{KeyArg, refused},
    error::CliError,
    json::{Array, Object},
    output::{Out, Steps},
    safe::tell,
    text::{count, things},
    time_arg::Moment,
};
use treering_backup::{BackupTarget, RestoreOptions, RestoreTo, Restored, restore};
use treering_domain::TimestampMicros;
use treering_proto::{
    envelope::{timestamp_from_pb, timestamp_to_pb},
    rfc3339,
};

/// Make a store of a backup, as it was at some time
///
/// The newest generation has the whole history: with --at or --position it is restored up to
/// there, and what was appended at once is there whole or not at all. What was erased later
/// stays erased. The restored store is another one, with an id of its own: it serves at once,
/// and its backups never replace those of the old one. Checksums and the chain of hashes are
/// checked on the way; until all is well, nothing in DIR opens as a store.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering restore /mnt/backups --to ./restored
  treering restore s3://bucket/treering --to ./restored --at '2026-01-31 08:00'
  treering restore /mnt/backups --to ./restored --position 41200
  treering verify --data ./restored && treering serve --data ./restored")]
pub struct RestoreArgs {
    /// The backup: a folder or a bucket
    #[arg(value_name = "FROM")]
    from: String,
    /// Folder of the new store: it is made, or empty
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// As it was then: `2026-01-31 08:00` (UTC), `3h ago`, a day (its end)
    #[arg(long, value_name = "TIME", conflicts_with = "position")]
    at: Option<Moment>,
    /// Up to this position of the log
    #[arg(long, value_name = "N")]
    position: Option<u64>,
    /// Which generation; the newest, unless that is damaged
    #[arg(long, value_name = "N")]
    generation: Option<u64>,
    /// The store whose backup this must be: another one is refused. Needed when there are
    /// several
    #[arg(long, visible_alias = "store-id", value_name = "UUID")]
    store: Option<Uuid>,
    #[command(flatten)]
    key: KeyArg,
}

/// Restores a store.
///
/// # Errors
/// [`CliError::Outcome`] names the object that is missing or changed.
pub async fn run(args: &RestoreArgs, out: &mut Out) -> Result<(), CliError> {
    let target = BackupTarget::to_read(&args.from).map_err(|error| refused(&error))?;
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

/// What a script must not miss goes to standard error.
fn warn(restored: &Restored) {
    if restored.pseudonyms {
        tell!(
            "This store has pseudonyms, and their key is in no backup: copy pseudonyms.key of \
             the old store into the new one. Without it, it can only be read; `treering serve \
             --pseudonyms` makes a new key."
        );
    }
    if restored.unread.is_empty() {
        return;
    }
    let unread: Vec<String> = restored.unread.iter().map(u64::to_string).collect();
    tell!(
        "WARNING: newer generations cannot be read: {}. What was erased since generation {} may \
         be back: erase it again.",
        unread.join(", "),
        restored.generation
    );
}

fn json(restored: &Restored) -> String {
    let mut object = Object::new();
    object
        .string("store", &restored.store.to_string())
        .string("new_store", &restored.new_store.to_string())
        .number("generation", restored.generation)
        .number("events", restored.events)
        .number("events_there", restored.events_there)
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

fn tell(restored: &Restored, args: &RestoreArgs, out: &mut Out) -> Result<(), CliError> {
    let zone = out.zone();
    let last = |time: TimestampMicros| zone.day_clock(Some(&timestamp_to_pb(time)));
    out.line(format!(
        "Restored {} of {} of {} from generation {} of store {} into {}; the last is of {}",
        count(restored.events),
        things(restored.events_there, "event", "events"),
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
            "{} erased later, with content that is not in it",
            things(restored.erased, "event was", "events were")
        ))?;
    }
    Ok(out.line(format!(
        "It is a store of its own, {}, and has no keys: they are no part of a backup. Check it \
         with `treering verify --deep --data {}`",
        restored.new_store,
        args.to.display()
    ))?)
}
