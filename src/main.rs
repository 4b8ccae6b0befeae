//! The `treering` command. Everything is in [`treering::cli`].

use std::process::ExitCode;

/// Events are made on one thread and dropped on another, again and again, which
/// the system's allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    treering::cli::main()
}
