//! The commands of `python -m handfast` that look at machines, errors and nodes.

use crate::doctor::{self, Doctor};
use crate::explain::{self, Explain};
use crate::top::{self, Top};
use crate::{ended, log};
use clap::{Parser, Subcommand};
use std::ffi::OsString;

#[derive(Parser)]
#[command(name = "python -m handfast", bin_name = "python -m handfast", version)]
#[command(max_term_width = 100)]
struct Arguments {
    /// Log to standard error: -v in brief, -vv every step, -vvv everything
    #[arg(short, long, action = clap::ArgAction::Count, global = true, display_order = 900)]
    verbose: u8,
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Subcommand)]
enum Tool {
    Doctor(Box<Doctor>),
    Explain(Explain),
    Top(Top),
}

/// Runs `doctor`, `explain` or `top` with the arguments after the program's name, and returns the
/// exit code.
pub fn run_tool(arguments: Vec<OsString>) -> u8 {
    let name = OsString::from("handfast");
    let parsed = Arguments::try_parse_from(std::iter::once(name).chain(arguments));
    let Arguments { verbose, tool } = match parsed {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and usage errors; without a reader only the exit code remains.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    log(verbose);
    ended(match tool {
        Tool::Doctor(arguments) => doctor::run(*arguments),
        Tool::Explain(arguments) => explain::run(arguments),
        Tool::Top(arguments) => top::run(&arguments),
    })
}
