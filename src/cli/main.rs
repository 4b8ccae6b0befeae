//! The `treering` command. Everything is in the library beside it.

use std::process::ExitCode;

/// What one thread makes, another drops (requests, records, pages): with the
/// system's allocator they wait for each other, and what was freed stays with the
/// thread that made it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    treering_cli::main()
}
