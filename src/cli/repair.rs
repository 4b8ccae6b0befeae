//! `repair`: reports the data that a store has lost, and lets it continue without them.

use clap::Args;

use super::{
    args::Common,
    connect::FolderWait,
    embedded::refused,
    error::{ClientError, Exit},
    output::{Out, Tone},
    text::count,
};
use treering_engine as engine;
use treering_engine::{LogRepair, Repair};

/// Maximum number of conversations that are listed. The others are counted.
const CONVERSATIONS_SHOWN_MAX: usize = 20;

/// Report what is missing from a store whose log is incomplete
///
/// A store is not opened if something is missing: a segment of the log, the manifest, or the last
/// events that views and index include. Put it back, and the store opens again. This command
/// reports what is missing. If only the manifest is lost and the segments determine its content, it
/// is rewritten without loss. With --accept-loss, the log continues after what is left, in a new
/// timeline. Unusable files and the old manifest are moved to a folder beside; nothing is deleted.
/// Exits with 6 if something is lost, and with 0 if nothing is lost or the loss is accepted.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering repair --data ./store                  # show what is lost
  treering repair --data ./store --accept-loss    # continue without it")]
pub(crate) struct RepairArgs {
    /// Continue without what is lost. Keep a copy of the folder first
    #[arg(long)]
    accept_loss: bool,
}

/// Examines a folder, and repairs it if requested.
///
/// # Errors
/// [`ClientError::Usage`] for a server; [`ClientError::Outcome`] for a loss that was not accepted.
pub(crate) async fn run(
    args: &RepairArgs,
    common: &Common,
    out: &mut Out,
) -> Result<(), ClientError> {
    let hint = "stop the server, then run: treering repair --data DIR";
    let dir = common.folder_here("repairs run", hint)?;
    let mut waiting = FolderWait::new(common.wait);
    let repair = loop {
        match engine::repair(&dir, args.accept_loss).await {
            Ok(repair) => break repair,
            Err(error) => waiting.for_folder_alone(refused(error)).await?,
        }
    };
    print(&repair, out)?;
    if repair.erasing && !out.json {
        out.line(format!(
            "An erase was interrupted: the erased content is still in the files. `treering upgrade \
             --data {}` finishes it.",
            dir.display()
        ))?;
    }
    let log = &repair.log;
    if log.is_whole() || log.went_on {
        return Ok(());
    }
    let what = match log.events_lost() {
        0 if log.contradiction.is_some() => "the log was replaced by another one".to_owned(),
        0 if log.manifest_lost => "it is unknown what the log must contain".to_owned(),
        0 => "a part of the log is unusable".to_owned(),
        lost => format!("{} events are lost", count(lost)),
    };
    Err(ClientError::Outcome {
        what,
        hint: "keep a copy of the folder; put the missing files back, or continue without them \
               with --accept-loss"
            .into(),
        exit: Exit::Damaged,
    })
}

fn print(repair: &Repair, out: &mut Out) -> Result<(), ClientError> {
    if out.json {
        return Ok(out.line(json(repair))?);
    }
    let log = &repair.log;
    if log.is_whole() {
        return print_whole(log, out);
    }
    if log.manifest_lost {
        out.line("the manifest is missing or damaged; the following is derived from the segments")?;
    }
    for why in log.unproven.iter().chain(&log.contradiction) {
        out.line(why)?;
    }
    for (file, why) in &log.unusable {
        out.line(format!("unusable: {file}: {why}"))?;
    }
    for lost in &log.lost {
        let events = count(lost.to - lost.from + 1);
        out.line(format!(
            "lost: events {} to {} ({events})",
            lost.from, lost.to
        ))?;
    }
    for id in repair.conversations.iter().take(CONVERSATIONS_SHOWN_MAX) {
        out.line(format!("  of conversation {id}"))?;
    }
    if repair.conversations.len() > CONVERSATIONS_SHOWN_MAX {
        let more = repair.conversations.len() - CONVERSATIONS_SHOWN_MAX;
        out.line(format!("  and of {} more", count(more as u64)))?;
    }
    out.line(format!("kept: events up to {}", count(log.head)))?;
    if log.went_on {
        out.line(format!(
            "The log continues after event {}, in a new timeline; the next open rebuilds \
             projections and index.",
            log.head
        ))?;
    }
    if let Some(place) = &log.moved_to {
        out.line(format!("The unusable files are in {place}."))?;
    }
    Ok(())
}

fn print_whole(log: &LogRepair, out: &mut Out) -> Result<(), ClientError> {
    let good = out.paint.text(Tone::Good, "whole");
    out.line(format!(
        "{good}: the log ends at event {}, and nothing is missing",
        count(log.head)
    ))?;
    if log.manifest_rebuilt {
        out.line(
            "The manifest was lost and was rebuilt from the segments: they are consecutive, and \
             projections and index have no events that the segments lack. Events of the last \
             second would be missing unnoticed if they were in a further, lost segment.",
        )?;
    }
    if let Some(place) = &log.moved_to {
        out.line(format!("The old manifest is in {place}."))?;
    }
    Ok(())
}

fn json(repair: &Repair) -> String {
    let log = &repair.log;
    let lost = log
        .lost
        .iter()
        .map(|lost| serde_json::json!({"from": lost.from, "to": lost.to}));
    let unusable = log
        .unusable
        .iter()
        .map(|(file, why)| serde_json::json!({"file": file, "why": why}));
    let conversations = repair.conversations.iter().map(ToString::to_string);
    serde_json::json!({
        "whole": log.is_whole(),
        "head": log.head,
        "events_lost": log.events_lost(),
        "lost": lost.collect::<Vec<_>>(),
        "conversations": conversations.collect::<Vec<_>>(),
        "unusable": unusable.collect::<Vec<_>>(),
        "manifest_lost": log.manifest_lost,
        "manifest_rebuilt": log.manifest_rebuilt,
        "unproven": log.unproven,
        "contradiction": log.contradiction,
        "went_on": log.went_on,
        "moved_to": log.moved_to,
        "erasing_unfinished": repair.erasing,
    })
    .to_string()
}
