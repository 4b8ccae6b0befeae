//! `bench`: a program of its own, so that nobody builds SQLite who does not measure.

use std::{
    env::{self, consts::EXE_SUFFIX},
    ffi::OsString,
    io::ErrorKind,
    process::Command,
};

use clap::Args;

use super::{
    args::Common,
    error::{CliError, Exit},
};

/// Measure speed, size and search quality on this machine
///
/// Runs `treering-bench`, which is built beside this program.
#[derive(Args, Debug, Clone)]
#[command(disable_help_flag = true)]
pub struct BenchArgs {
    /// What `treering-bench` takes; `treering bench --help` says
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    args: Vec<OsString>,
}

/// Runs the program that measures.
///
/// # Errors
/// [`CliError::Usage`] with a store named, [`CliError::NotFound`] when that program is
/// not there, [`CliError::Outcome`] when it fails.
pub fn run(args: BenchArgs, common: &Common) -> Result<(), CliError> {
    if common.data.is_some() || common.server.is_some() {
        return Err(CliError::Usage {
            what: "bench makes stores of its own and touches no other".into(),
            hint: "--dir says where it makes them, --trajectories where real conversations are"
                .into(),
        });
    }
    let name = format!("treering-bench{EXE_SUFFIX}");
    let beside = env::current_exe().map(|program| program.with_file_name(&name));
    let program = beside.ok().filter(|path| path.is_file());
    let mut command = Command::new(program.unwrap_or_else(|| name.into()));
    if common.json {
        command.arg("--json");
    }
    match command.args(args.args).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(CliError::Outcome {
            what: format!("the bench ended with {status}"),
            hint: "what it said stands above".into(),
            exit: Exit::Failed,
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(CliError::NotFound {
            what: "treering-bench is neither beside this program nor on the PATH".into(),
            hint: "in a clone of Treering: `cargo run --release -p treering-bench -- --quick`"
                .into(),
        }),
        Err(error) => Err(CliError::Output(error)),
    }
}
