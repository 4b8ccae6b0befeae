//! `upgrade`: which version a store is of, and making what is derived ahead of the start.

use std::time::Instant;

use clap::Args;
use serde_json::json;

use super::{
    args::Common,
    connect::Waiting,
    embedded::{self, refused},
    error::CliError,
    import::tell_time,
    output::{Out, Tone},
    text::count,
};
use treering_engine::{ErasingAtOpen, OpenOptions, StoreFormats, store_formats};

/// Bring a store to this version, or say whether that is needed
///
/// The log is never rewritten to be read: every 1.x opens every store of an earlier release.
/// Views and index of another version are made anew from it, and an erasing that was interrupted
/// is finished. A server does that by itself when it starts; this does it ahead, so that the
/// start is quick. With --check nothing is changed:
/// it says what the store is, and whether this program opens it (exit code 7: a newer one
/// wrote it; 4: one from before the first release).
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering upgrade --check --data ./store
  treering upgrade --data ./store")]
pub struct UpgradeArgs {
    /// Say only what would be done
    #[arg(long)]
    check: bool,
}

/// Checks or upgrades.
///
/// # Errors
/// [`CliError::Usage`] for a server; what opening the store says.
pub async fn run(args: &UpgradeArgs, common: &Common, out: &mut Out) -> Result<(), CliError> {
    let hint = "end the server, then: treering upgrade --data DIR";
    let dir = common.folder_here("a store is upgraded", hint)?;
    let mut waiting = Waiting::new(common.wait);
    let formats = loop {
        match store_formats(&dir).await {
            Ok(formats) => break formats,
            Err(error) => waiting.for_folder_alone(refused(error)).await?,
        }
    };
    let due = formats.views.is_some() || formats.index.is_some() || formats.erasing;
    if args.check || !due {
        return print(&formats, out);
    }
    let started = Instant::now();
    let engine = embedded::open(OpenOptions::new(&dir).existing()).await?;
    if let ErasingAtOpen::Hidden { .. } = engine.erasing_at_open() {
        engine.close().await;
        return Err(CliError::Outcome {
            what: "the erasing that was interrupted is not finished".into(),
            hint: "see above what keeps it from that".into(),
            exit: super::error::Exit::Failed,
        });
    }
    let indexed = engine.wait_indexed(engine.head()).await;
    engine.close().await;
    indexed.map_err(|error| CliError::Outcome {
        what: format!("the index was not made: {error}"),
        hint: "a server that serves the store tries it again".into(),
        exit: super::error::Exit::Failed,
    })?;
    tell_time("Upgraded", started);
    let now = store_formats(&dir).await.map_err(refused)?;
    print(&now, out)
}

fn print(formats: &StoreFormats, out: &mut Out) -> Result<(), CliError> {
    if out.json {
        return Ok(out.line(json!({
            "opens": true,
            "log": formats.log,
            "log_newest": formats.log_here,
            "events": formats.events,
            "views_made_anew": formats.views,
            "index_made_anew": formats.index,
            "erasing_unfinished": formats.erasing,
        }))?);
    }
    let word = out.paint.text(Tone::Good, "This program opens it");
    out.line(format!(
        "{word}: its log is of format {} (the newest here: {}), with {} events",
        formats.log,
        formats.log_here,
        count(formats.events)
    ))?;
    for (part, why) in [("views", &formats.views), ("index", &formats.index)] {
        match why {
            None => out.line(format!("{part}: used as they are"))?,
            Some(why) => out.line(format!("{part}: made anew from the log ({why})"))?,
        }
    }
    if formats.erasing {
        out.line(
            "erasing: one was interrupted, and what it erased is still in the files; `treering \
             upgrade` finishes it",
        )?;
    }
    Ok(())
}
