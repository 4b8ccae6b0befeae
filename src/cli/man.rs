//! The manual pages, generated from the texts of `--help`.

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use super::{Cli, error::ClientError, output::Out};
use treering_base::disk;

/// Write the manual pages into a folder
///
/// One page for each command, for packages.
#[derive(Args, Debug, Clone)]
#[command(hide = true)]
pub(crate) struct ManArgs {
    /// The folder; created if it does not exist
    dir: PathBuf,
}

/// Writes the pages.
pub(crate) fn run(args: &ManArgs, out: &mut Out) -> Result<(), ClientError> {
    disk::make_folder(&args.dir)?;
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, &args.dir)?;
    Ok(out.line(format!("The manual pages are in {}", args.dir.display()))?)
}
