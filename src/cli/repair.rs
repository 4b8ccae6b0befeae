//! `repair`: what of a store is lost, and going on without it.

use clap::Args;

use super::{
    args::Common,
    embedded::refused,
    error::{CliError, Exit},
    output::{Out, Tone},
    text::count,
};
use crate::engine::{self, Repair};

/// Conversations that are named one by one; of more, the number is said.
const CONVERSATIONS_SHOWN_MAX: usize = 20;

/// Tell what is lost of a store whose log is not what it was
///
/// A store is not opened when something that must be in it is missing: a segment
/// of the log, the manifest, or the last events that views and index have seen.
/// Put back what is missing and it opens again. This says what that is. Only with
/// --accept-loss anything changes: the log goes on behind what is left, in a new
/// timeline; what cannot be used is moved into a folder beside, nothing is
/// deleted. Exits with 6 when something is lost, and with 0 once that is accepted.
#[derive(Args, Debug)]
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
    if common.server.is_some() {
        return Err(CliError::Usage {
            what: "a store is repaired where its folder is, and not through a server".into(),
            hint: "stop the server, then: treering repair --data DIR".into(),
        });
    }
    let dir = common.data_dir()?;
    let repair = engine::repair(&dir, args.accept_loss)
        .await
        .map_err(refused)?;
    print(&repair, out)?;
    if repair.is_whole() || repair.moved_to.is_some() {
        return Ok(());
    }
    Err(CliError::Outcome {
        what: format!("{} events are lost", count(repair.events_lost())),
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
    if repair.is_whole() {
        let good = out.paint.text(Tone::Good, "whole");
        return Ok(out.line(format!(
            "{good}: the log ends with event {}, and nothing of it is missing",
            count(repair.head)
        ))?);
    }
    if repair.manifest_lost {
        out.line("the manifest is missing or damaged; the segments say what it said")?;
    }
    for (file, why) in &repair.unusable {
        out.line(format!("cannot be used: {file}: {why}"))?;
    }
    for lost in &repair.lost {
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
    out.line(format!("kept: events up to {}", count(repair.head)))?;
    if let Some(place) = &repair.moved_to {
        out.line(format!(
            "The log goes on behind event {}, in a new timeline. What cannot be used is in {place}; \
             views and index are made anew when the store is opened.",
            repair.head
        ))?;
    }
    Ok(())
}

fn json(repair: &Repair) -> String {
    let lost = repair
        .lost
        .iter()
        .map(|lost| serde_json::json!({"from": lost.from, "to": lost.to}));
    let unusable = repair
        .unusable
        .iter()
        .map(|(file, why)| serde_json::json!({"file": file, "why": why}));
    let conversations = repair.conversations.iter().map(ToString::to_string);
    serde_json::json!({
        "whole": repair.is_whole(),
        "head": repair.head,
        "events_lost": repair.events_lost(),
        "lost": lost.collect::<Vec<_>>(),
        "conversations": conversations.collect::<Vec<_>>(),
        "unusable": unusable.collect::<Vec<_>>(),
        "manifest_lost": repair.manifest_lost,
        "moved_to": repair.moved_to,
    })
    .to_string()
}
