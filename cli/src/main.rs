//! The command line of handfast.
#![forbid(unsafe_code)]
// Rates, ratios and percentages are only shown; no decision depends on them.
#![allow(clippy::float_arithmetic)]

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
mod top;
mod topology;
mod tuning;

use arguments::{Arguments, Command};
use clap::Parser;
use failure::Failure;
use handfast_environment::Environment;
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;

/// The level of `MC_LOG_LEVEL`.
fn of_variable(level: Option<&str>) -> LevelFilter {
    match level {
        Some("TRACE") => LevelFilter::TRACE,
        Some("INFO") => LevelFilter::INFO,
        Some("WARNING") => LevelFilter::WARN,
        _ => LevelFilter::ERROR,
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let level = match arguments.verbose {
        // The command that uses a malformed value reports it.
        0 => Environment::read().map_or(LevelFilter::ERROR, |it| of_variable(it.log_level())),
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .init();
    let result = match arguments.command {
        // Before the runtime starts, which has one thread per processor.
        Command::Serve(arguments) => {
            bench::pin(&arguments.cores).and_then(|()| runtime::block_on(serve::run(arguments)))
        }
        Command::Put(arguments) => runtime::block_on(runtime::until_stopped(put::run(arguments))),
        Command::Get(arguments) => runtime::block_on(runtime::until_stopped(get::run(arguments))),
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
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader closed the output on purpose.
        Err(failure @ Failure::ReaderGone) => ExitCode::from(failure.exit_code()),
        Err(failure) => {
            match failure.diagnosis_id() {
                Some(id) => output::note(format_args!(
                    "error: {failure} [{id}]\nhint: `handfast explain {id}` says more"
                )),
                None => output::note(format_args!("error: {failure}")),
            }
            ExitCode::from(failure.exit_code())
        }
    }
}
