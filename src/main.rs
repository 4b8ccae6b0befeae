//! The `treering` command. Everything is in [`treering::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    treering::cli::main()
}
