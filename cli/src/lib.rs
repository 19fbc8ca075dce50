//! The command line of handfast: of the program, and of the Python package.
#![forbid(unsafe_code)]
// Rates, ratios and percentages are only shown; no decision depends on them.
#![allow(clippy::float_arithmetic)]

mod administer;
mod arguments;
mod bench;
mod config;
mod copy;
mod cure;
mod doctor;
mod explain;
#[cfg(target_os = "linux")]
mod fabric;
mod failure;
mod files;
mod get;
mod grants;
mod help;
mod lanes;
mod metadata;
mod output;
mod place;
mod progress;
mod put;
mod record;
mod runtime;
mod serve;
mod sim;
mod size;
mod smoke;
mod terminal;
mod tools;
mod top;
mod topology;
mod tuning;

pub use tools::run_tool;

use arguments::{Arguments, Command};
use clap::Parser;
use failure::{Failure, Outcome};
use handfast_environment::Environment;
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The log target of refused peers.
const AUDIT: &str = "handfast::audit";

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    log(arguments.verbose);
    ExitCode::from(ended(run(arguments.command)))
}

fn all(level: LevelFilter) -> Targets {
    Targets::new().with_default(level)
}

/// The log by `MC_LOG_LEVEL`. Without it errors and refused peers.
fn of_variable(level: Option<&str>) -> Targets {
    match level {
        Some("TRACE") => all(LevelFilter::TRACE),
        Some("INFO") => all(LevelFilter::INFO),
        Some("WARNING") => all(LevelFilter::WARN),
        Some(_) => all(LevelFilter::ERROR),
        None => all(LevelFilter::ERROR).with_target(AUDIT, LevelFilter::WARN),
    }
}

/// Logs to standard error, from the first call on.
fn log(verbose: u8) {
    let shown = match verbose {
        // The command that uses a malformed value reports it.
        0 => {
            Environment::read().map_or_else(|_| of_variable(None), |it| of_variable(it.log_level()))
        }
        1 => all(LevelFilter::INFO),
        2 => all(LevelFilter::DEBUG),
        _ => all(LevelFilter::TRACE),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    let logged = tracing_subscriber::registry().with(shown).with(lines).try_init();
    // An error means that an earlier call did.
    let _ = logged;
}

fn run(command: Command) -> Outcome {
    match command {
        // Before the runtime starts, which has one thread per processor.
        Command::Serve(arguments) => {
            bench::pin(&arguments.cores).and_then(|()| runtime::block_on(serve::run(arguments)))
        }
        Command::Put(arguments) => runtime::block_on(runtime::until_stopped(put::run(arguments))),
        Command::Get(arguments) => runtime::block_on(runtime::until_stopped(get::run(arguments))),
        Command::Grants(arguments) => {
            runtime::block_on(runtime::until_stopped(administer::run(arguments)))
        }
        Command::Bench(arguments) => bench::run(arguments),
        Command::Smoke(arguments) => {
            runtime::block_on(runtime::until_stopped(smoke::run(arguments)))
        }
        Command::Config(arguments) => config::run(&arguments),
        Command::Metadata(arguments) => runtime::block_on(metadata::run(arguments)),
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::Explain(arguments) => explain::run(arguments),
        #[cfg(target_os = "linux")]
        Command::Fabric(arguments) => fabric::run(arguments),
        Command::Sim(arguments) => sim::run(arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Topology(arguments) => topology::run(arguments),
        Command::BenchPeers(arguments) => bench::serve_peers(arguments),
        Command::RawSink { cores } => bench::raw_sink(&cores),
    }
}

/// Reports the failure of a command, and returns the exit code.
fn ended(outcome: Outcome) -> u8 {
    match outcome {
        Ok(()) => 0,
        // The reader closed the output on purpose.
        Err(failure @ Failure::ReaderGone) => failure.exit_code(),
        Err(failure) => {
            match failure.diagnosis_id() {
                Some(id) => output::note(format_args!(
                    "error: {failure} [{id}]\nhint: `handfast explain {id}` says more"
                )),
                None => output::note(format_args!("error: {failure}")),
            }
            failure.exit_code()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn refused_peers_are_shown_unless_a_level_is_chosen() {
        for (level, audit, other) in [
            (None, true, false),
            (Some("ERROR"), false, false),
            (Some("WARNING"), true, true),
            (Some("INFO"), true, true),
        ] {
            let shown = of_variable(level);
            assert_eq!(shown.would_enable(AUDIT, &Level::WARN), audit, "{level:?}");
            assert_eq!(shown.would_enable("handfast", &Level::WARN), other, "{level:?}");
            assert!(shown.would_enable("handfast", &Level::ERROR), "{level:?}");
        }
    }
}
