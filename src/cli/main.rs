//! The `treering` command. The code is in the library.

use std::process::ExitCode;

/// Requests, records and pages are allocated by one thread and freed by another. With the system's
/// allocator, threads wait for each other, and freed memory stays with the allocating thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    treering_cli::main()
}
