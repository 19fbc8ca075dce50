//! The program `handfast`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    handfast_cli::main()
}
