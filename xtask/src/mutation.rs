//! `cargo xtask mutation`: cargo-mutants over the core, in passes.

use crate::project::Project;
use crate::report::Summary;
use crate::setup;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Tests that run against a change.
struct Pass {
    package: &'static str,
    targets: &'static [&'static str],
    skipped: &'static [&'static str],
    opt_level: &'static str,
    /// Limit of a test binary. A change may make a loop endless, and a busy machine does not make a
    /// finite loop look endless.
    processor_seconds_max: u32,
}

/// In sequence. Most changes need no more than the first. An optimised build of the core takes longer
/// than it saves.
const PASSES: [Pass; 3] = [
    Pass {
        package: CORE,
        targets: &["--lib"],
        skipped: &[],
        opt_level: "0",
        processor_seconds_max: 30,
    },
    Pass {
        package: CORE,
        targets: &["--test=stories", "--test=gate"],
        skipped: &[],
        opt_level: "0",
        processor_seconds_max: 60,
    },
    Pass {
        package: "sim-tests",
        targets: &["--test=stories"],
        skipped: &SLOW_EXPLORATIONS,
        opt_level: "1",
        processor_seconds_max: 300,
    },
];
const CORE: &str = "handfast-core";
/// Those that take more than twenty seconds of a processor, or run other programs.
const SLOW_EXPLORATIONS: [&str; 5] =
    ["application::", "connection_joins_what_it_is_meant_for", "replay::", "shipping::", "sweep::"];
/// Address space of a test binary.
const MEMORY_BYTES_MAX: u64 = 6 << 30;
/// Time limit of the tests of a change. Tests wait more than they compute.
const TEST_SECONDS_MAX: &str = "600";
/// Exit codes of cargo-mutants: no change was missed; some were; tests of some timed out.
const NONE_MISSED: i32 = 0;
const MISSED: i32 = 2;
const TIMED_OUT: i32 = 3;

/// Change the core in many small ways, and list the changes that no test detects
///
/// cargo-mutants changes core/src in a copy of the repository, as configured in .cargo/mutants.toml.
/// The unit tests of handfast-core run first, then its stories for the changes that they miss, and
/// most stories of sim-tests for the changes that these miss too. Results are kept below cargo's
/// target folder: the next run omits the changes that a test has detected.
///
/// Exit code: 0 if every change was detected, 1 otherwise.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Forget the results of earlier runs
    #[arg(long)]
    fresh: bool,
    /// Options of cargo-mutants, such as `--re node/peers`, the changes of one file. Not `--shard`:
    /// it counts the remaining changes, which differ between the passes
    #[arg(last = true, value_name = "OPTION")]
    options: Vec<String>,
}

/// `cargo xtask mutation`.
pub(crate) fn run(project: Project, arguments: &Arguments) -> Result<bool> {
    let mut summary = Summary::default();
    summary.run(setup::stage_for(&project, &["mutation"]));
    setup::MUTANTS.check()?;
    let folder = project.scratch().join("mutation");
    if arguments.fresh && folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let mut missed = true;
    for pass in PASSES {
        pass.check(&project, &folder)?;
        let mut command = project.cargo(&["mutants", "--iterate", "--no-shuffle"]);
        command.args(["--test-package", pass.package, "--timeout", TEST_SECONDS_MAX]);
        command.arg("--output").arg(&folder).args(&arguments.options);
        // In this form they choose what is built, too.
        command.args(pass.options().iter().map(|option| format!("--cargo-arg={option}")));
        command.args(["--", "--"]).args(pass.skips());
        pass.set_environment(&mut command, &folder);
        missed = match command.status().context("cargo mutants")?.code() {
            Some(NONE_MISSED | TIMED_OUT) => false,
            Some(MISSED) => true,
            code => bail!("cargo mutants ended with {code:?}"),
        };
    }
    Ok(!missed)
}

impl Pass {
    /// Runs the tests without a change: cargo-mutants does not do so for another package.
    fn check(&self, project: &Project, folder: &Path) -> Result<()> {
        let mut command = project.cargo(&["test", "--quiet", "--profile", "mutation"]);
        command.args(["--package", self.package]).args(self.options()).arg("--").args(self.skips());
        self.set_environment(&mut command, folder);
        if !command.status().context("cargo test")?.success() {
            bail!("the tests of {} fail without a change", self.package);
        }
        Ok(())
    }

    fn options(&self) -> Vec<String> {
        let limits = format!("'--cpu={}', '--as={MEMORY_BYTES_MAX}'", self.processor_seconds_max);
        let runner = format!("--config=target.'cfg(all())'.runner=['prlimit', {limits}]");
        self.targets.iter().map(|target| (*target).to_owned()).chain([runner]).collect()
    }

    fn skips(&self) -> impl Iterator<Item = &'static str> {
        self.skipped.iter().flat_map(|test| ["--skip", test])
    }

    fn set_environment(&self, command: &mut Command, folder: &Path) {
        // The same cases every time, and no shrinking, since any failure suffices.
        command.env("PROPTEST_RNG_SEED", "1").env("PROPTEST_MAX_SHRINK_ITERS", "1024");
        command.env("CARGO_PROFILE_MUTATION_OPT_LEVEL", self.opt_level);
        command.env("CARGO_TARGET_DIR", folder.join("target"));
    }
}
