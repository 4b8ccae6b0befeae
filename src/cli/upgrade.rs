//! `upgrade`: shows the version of a store, and rebuilds derived state before a server starts.

use std::time::Instant;

use clap::Args;
use serde_json::json;

use super::{
    args::Common,
    connect::FolderWait,
    embedded::{self, refused},
    error::ClientError,
    import::print_time,
    output::{Out, Tone},
    text::count,
};
use treering_engine::{ErasureAtOpen, OpenOptions, StoreFormats, store_formats};

/// Upgrade a store to this version, or check whether that is needed
///
/// The log is never rewritten for a new version: every 1.x opens every store of an earlier release.
/// Views and index of another version are rebuilt from the log, and an interrupted erasure is
/// finished. A server does this itself when it starts; this command does it in advance, so that the
/// start is quick. With --check nothing is changed: it reports the version of the store, and
/// whether this program opens it (exit code 7: a newer version wrote it; 4: it is from before the
/// first release).
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering upgrade --check --data ./store
  treering upgrade --data ./store")]
pub(crate) struct UpgradeArgs {
    /// Only report what would be done
    #[arg(long)]
    check: bool,
}

/// Checks or upgrades.
///
/// # Errors
/// [`ClientError::Usage`] if a server is named instead of a folder; [`ClientError::Outcome`] if an
/// erasure or the index cannot be finished; errors of opening the store.
pub(crate) async fn run(
    args: &UpgradeArgs,
    common: &Common,
    out: &mut Out,
) -> Result<(), ClientError> {
    let hint = "stop the server, then run: treering upgrade --data DIR";
    let dir = common.folder_here("upgrades run", hint)?;
    let mut waiting = FolderWait::new(common.wait);
    let formats = loop {
        match store_formats(&dir).await {
            Ok(formats) => break formats,
            Err(error) => waiting.for_folder_alone(refused(error)).await?,
        }
    };
    let due = formats.projections.is_some() || formats.index.is_some() || formats.erasing;
    if args.check || !due {
        return print(&formats, out);
    }
    let started = Instant::now();
    let engine = embedded::open(OpenOptions::new(&dir).existing()).await?;
    if let ErasureAtOpen::Hidden { .. } = engine.erasing_at_open() {
        engine.close().await;
        return Err(ClientError::Outcome {
            what: "the interrupted erase is not finished".into(),
            hint: "see the warning above for the reason".into(),
            exit: super::error::Exit::Failed,
        });
    }
    let indexed = engine.wait_indexed(engine.head()).await;
    engine.close().await;
    indexed.map_err(|error| ClientError::Outcome {
        what: format!("the index was not built: {error}"),
        hint: "a server that serves the store retries".into(),
        exit: super::error::Exit::Failed,
    })?;
    print_time("Upgraded", started);
    let now = store_formats(&dir).await.map_err(refused)?;
    print(&now, out)
}

fn print(formats: &StoreFormats, out: &mut Out) -> Result<(), ClientError> {
    if out.json {
        return Ok(out.line(json!({
            "opens": true,
            "log": formats.log,
            "log_newest": formats.log_here,
            "events": formats.events,
            "views_made_anew": formats.projections,
            "index_made_anew": formats.index,
            "erasing_unfinished": formats.erasing,
        }))?);
    }
    let word = out.paint.text(Tone::Good, "This program opens it");
    out.line(format!(
        "{word}: its log has format {} (newest supported: {}) and {} events",
        formats.log,
        formats.log_here,
        count(formats.events)
    ))?;
    for (part, why) in [("views", &formats.projections), ("index", &formats.index)] {
        match why {
            None => out.line(format!("{part}: used as is"))?,
            Some(why) => out.line(format!("{part}: rebuilt from the log ({why})"))?,
        }
    }
    if formats.erasing {
        out.line(
            "erase: one was interrupted, and the erased content is still in the files; `treering \
             upgrade` finishes it",
        )?;
    }
    Ok(())
}
