//! `cargo xtask mutation`: cargo-mutants over the core, in passes.

use crate::project::Project;
use crate::report::Summary;
use crate::setup;
use anyhow::{Context, Result, bail};
use std::fs;

/// Packages whose tests run against a change, in sequence, each with its targets and the modules to skip. The quick
/// tests come first: most changes need no others.
const PASSES: [(&str, &[&str], &[&str]); 3] = [
    (
        CORE,
        &["--lib", "--test", "stories"],
        &["alike::", "bytes::", "clocks::", "random::", "saved::"],
    ),
    (CORE, &["--test", "stories"], &[]),
    ("sim-tests", &["--test", "stories"], &["application::", "replay::", "shipping::", "sweep::"]),
];
const CORE: &str = "handfast-core";
/// Time limit of the tests of a change. Tests wait more than they compute.
const TEST_SECONDS_MAX: &str = "600";
/// Exit codes of cargo-mutants: no change was missed; some were; tests of some timed out.
const NONE_MISSED: i32 = 0;
const MISSED: i32 = 2;
const TIMED_OUT: i32 = 3;

/// Change the core in many small ways, and list the changes that no test detects
///
/// cargo-mutants changes core/src in a copy of the repository, as configured in
/// .cargo/mutants.toml. The quick tests of handfast-core run first, then, for the changes that they
/// miss, all of them, then the short ones of sim-tests. Results are kept below cargo's target
/// folder: the next run omits the changes that a test has detected.
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
    for (package, targets, skipped) in PASSES {
        let mut command = project.cargo(&["mutants", "--iterate", "--no-shuffle"]);
        command.args(["--test-package", package, "--timeout", TEST_SECONDS_MAX]).arg("--output");
        command.arg(&folder).args(&arguments.options).arg("--").args(targets).arg("--");
        command.args(skipped.iter().flat_map(|module| ["--skip", module]));
        // The same cases every time, and no shrinking, since any failure suffices.
        command.env("PROPTEST_RNG_SEED", "1").env("PROPTEST_MAX_SHRINK_ITERS", "1024");
        command.env("CARGO_TARGET_DIR", folder.join("target"));
        missed = match command.status().context("cargo mutants")?.code() {
            Some(NONE_MISSED | TIMED_OUT) => false,
            Some(MISSED) => true,
            code => bail!("cargo mutants ended with {code:?}"),
        };
    }
    Ok(!missed)
}
