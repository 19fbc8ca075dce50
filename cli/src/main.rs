//! The program `handfast`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Explorations make and drop worlds all the time; a quarter of their time is saved.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    handfast_cli::main()
}
