//! Development tasks, one command each: `cargo xtask --help`.

mod api;
mod bench;
mod c_library;
mod checks;
mod command;
mod coverage;
mod dashboard;
mod features;
mod fleet;
mod fuzz;
mod gpu;
mod guest;
mod mutation;
mod project;
mod python;
mod rates;
mod release;
mod report;
mod scale;
mod setup;
mod soak;
mod stages;
mod upgrade;
mod variants;
mod verbs;
mod wheel;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Development tasks of handfast, one command each.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Test(stages::Arguments),
    /// Format, lints and the short tests, for daily work
    ///
    /// Takes at most three minutes after a small change. `cargo xtask test` has the rest.
    ///
    /// Exit code: 0 if nothing failed, 1 if something did.
    Check,
    /// The same as `test` with more time: 70 seconds of fuzzing per target, 4096 cases per property
    ///
    /// Exit code: 0 if nothing failed, 1 if something did.
    Nightly(stages::Arguments),
    Api(api::Arguments),
    Bench(bench::Arguments),
    Fuzz(fuzz::Arguments),
    Gpu(gpu::Arguments),
    Guest(guest::Arguments),
    Mutation(mutation::Arguments),
    Coverage(coverage::Arguments),
    Dashboard(dashboard::Arguments),
    Setup(setup::Arguments),
    Variants(variants::Arguments),
    Release(release::Arguments),
    Rates(rates::Arguments),
    Scale(scale::Arguments),
    Soak(soak::Arguments),
    Upgrade(upgrade::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = project::Project::find().and_then(|project| match arguments.task {
        Task::Guest(arguments) => guest::run(&project, &arguments),
        Task::Test(arguments) => {
            stages::run(project, &arguments, stages::Depth::EveryChange).map(passed)
        }
        Task::Check => Ok(passed(stages::check(&project))),
        Task::Nightly(arguments) => {
            stages::run(project, &arguments, stages::Depth::Nightly).map(passed)
        }
        Task::Api(arguments) => api::run(&project, &arguments).map(passed),
        Task::Bench(arguments) => bench::run(project, &arguments).map(passed),
        Task::Fuzz(arguments) => fuzz::run(project, &arguments).map(passed),
        Task::Gpu(arguments) => gpu::run(&project, &arguments).map(passed),
        Task::Mutation(arguments) => mutation::run(project, &arguments).map(passed),
        Task::Coverage(arguments) => Ok(passed(coverage::run(&project, &arguments))),
        Task::Dashboard(_) => Ok(passed(dashboard::run(&project))),
        Task::Variants(arguments) => variants::run(&project, &arguments).map(passed),
        Task::Release(arguments) => release::run(&project, &arguments).map(passed),
        Task::Soak(arguments) => soak::run(&project, &arguments).map(passed),
        Task::Upgrade(arguments) => upgrade::run(&project, &arguments).map(passed),
        Task::Rates(arguments) => rates::run(&project, &arguments).map(passed),
        Task::Scale(arguments) => scale::run(&project, &arguments).map(passed),
        Task::Setup(arguments) => setup::run(project, &arguments).map(passed),
    });
    match result {
        Ok(code) => code,
        Err(error) => {
            anstream::eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn passed(all: bool) -> ExitCode {
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
