//! `repair`: what of a store is lost, and going on without it.

use clap::Args;

use super::{
    args::Common,
    connect::Waiting,
    embedded::refused,
    error::{CliError, Exit},
    output::{Out, Tone},
    text::count,
};
use treering_engine as engine;
use treering_engine::{LogRepair, Repair};

/// Conversations that are named one by one; of more, the number is said.
const CONVERSATIONS_SHOWN_MAX: usize = 20;

/// Tell what is lost of a store whose log is not what it was
///
/// A store is not opened when something that must be in it is missing: a segment
/// of the log, the manifest, or the last events that views and index have seen.
/// Put back what is missing and it opens again. This says what that is. When only
/// the manifest is lost and the segments prove what it said, it is written anew,
/// which loses nothing. With --accept-loss the log goes on behind what is left, in
/// a new timeline. What cannot be used, and the manifest of before, are put into a
/// folder beside; nothing is deleted. Exits with 6 when something is lost, and with
/// 0 once that is accepted or nothing is.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering repair --data ./store                  # what is lost
  treering repair --data ./store --accept-loss    # go on without it")]
pub struct RepairArgs {
    /// Go on without what is lost. Keep a copy of the folder first
    #[arg(long)]
    accept_loss: bool,
}

/// Looks at a folder, and repairs it if told to.
///
/// # Errors
/// [`CliError::Usage`] for a server; [`CliError::Outcome`] when something is lost
/// and that was not accepted.
pub async fn run(args: &RepairArgs, common: &Common, out: &mut Out) -> Result<(), CliError> {
    let hint = "end the server, then: treering repair --data DIR";
    let dir = common.folder_here("a store is repaired", hint)?;
    let mut waiting = Waiting::new(common.wait);
    let repair = loop {
        match engine::repair(&dir, args.accept_loss).await {
            Ok(repair) => break repair,
            Err(error) => waiting.for_folder_alone(refused(error)).await?,
        }
    };
    print(&repair, out)?;
    if repair.erasing && !out.json {
        out.line(format!(
            "An erasing was interrupted: what it erased is still in the files. `treering upgrade \
             --data {}` finishes it.",
            dir.display()
        ))?;
    }
    let log = &repair.log;
    if log.is_whole() || log.went_on {
        return Ok(());
    }
    let what = match log.events_lost() {
        0 if log.contradiction.is_some() => "the log is not the one that it was".to_owned(),
        0 if log.manifest_lost => "what the log must hold is not known any more".to_owned(),
        0 => "a part of the log cannot be used".to_owned(),
        lost => format!("{} events are lost", count(lost)),
    };
    Err(CliError::Outcome {
        what,
        hint: "keep a copy of the folder; put back what is missing, or go on without it with \
               --accept-loss"
            .into(),
        exit: Exit::Damaged,
    })
}

fn print(repair: &Repair, out: &mut Out) -> Result<(), CliError> {
    if out.json {
        return Ok(out.line(json(repair))?);
    }
    let log = &repair.log;
    if log.is_whole() {
        return print_whole(log, out);
    }
    if log.manifest_lost {
        out.line("the manifest is missing or damaged; the segments say what follows")?;
    }
    for why in log.unproven.iter().chain(&log.contradiction) {
        out.line(why)?;
    }
    for (file, why) in &log.unusable {
        out.line(format!("cannot be used: {file}: {why}"))?;
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
            "The log goes on behind event {}, in a new timeline; views and index are made anew when \
             the store is opened.",
            log.head
        ))?;
    }
    if let Some(place) = &log.moved_to {
        out.line(format!("What cannot be used is in {place}."))?;
    }
    Ok(())
}

fn print_whole(log: &LogRepair, out: &mut Out) -> Result<(), CliError> {
    let good = out.paint.text(Tone::Good, "whole");
    out.line(format!(
        "{good}: the log ends with event {}, and nothing of it is missing",
        count(log.head)
    ))?;
    if log.manifest_rebuilt {
        out.line(
            "The manifest was lost, and the segments said all of it again: they follow each other \
             without a gap, and views and index have seen nothing that they do not have. Events of \
             a last second that were in a further segment, which is gone too, would not show.",
        )?;
    }
    if let Some(place) = &log.moved_to {
        out.line(format!("What it was before is in {place}."))?;
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
