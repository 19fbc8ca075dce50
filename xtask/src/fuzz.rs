//! The fuzz targets: by hand, and as a stage.

use crate::command;
use crate::project::Project;
use crate::report::{Outcome, Step};
use crate::setup;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Time limit of one input: thousands of times its usual duration, on a machine that has other work.
const INPUT_SECONDS_MAX: &str = "-timeout=30";
/// Memory limit of a target.
const MEMORY_MIB_MAX: &str = "-rss_limit_mb=2048";
/// Time for a fuzzer to write its findings after its end.
const GRACE: Duration = Duration::from_secs(60);
/// Flags of the compiler for libFuzzer: counters of edges and comparisons.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1";

/// Fuzz one target, or all of them in sequence, until one fails or the time is up.
///
/// Works on stable Rust, without a sanitizer: failures are panics and failed assertions. New inputs of
/// interest go to cargo's target folder; the checked-in corpus in fuzz/corpus is only read. A
/// failing input is kept in fuzz/artifacts: fix the cause, then move the input to fuzz/corpus/TARGET
/// under a descriptive name.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The target, a file name in fuzz/fuzz_targets without its extension; all if none is named
    target: Option<String>,
    /// Seconds of fuzzing per target
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

/// `cargo xtask fuzz`.
pub(crate) fn run(project: Project, arguments: &Arguments) -> Result<bool> {
    setup::CPP.check()?;
    let known = targets(project.root())?;
    let chosen = match &arguments.target {
        Some(target) => {
            ensure!(
                known.contains(target),
                "no target '{target}'; there are: {}",
                known.join(", ")
            );
            vec![target.clone()]
        }
        None => known,
    };
    let host = command::compiler_host()?;
    if !build(&project, &host)?.status()?.success() {
        return Ok(false);
    }
    for target in chosen {
        let status = fuzzing(&project, &host, &target, arguments.seconds)?.status()?;
        if !status.success() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the step that fuzzes every target for so many seconds.
pub(crate) fn step(project: &Project, seconds: u64) -> Step<'_> {
    Step::new("fuzzing", move |deadline| fuzz_all(project, seconds, deadline))
}

fn fuzz_all(project: &Project, seconds: u64, deadline: Instant) -> Outcome {
    setup::CPP.check()?;
    let host = command::compiler_host()?;
    project.run(command::modest(build(project, &host)?), "fuzz-build", deadline)?;
    let targets = targets(project.root())?;
    let mut runs = 0;
    for target in &targets {
        let deadline = deadline.min(Instant::now() + Duration::from_secs(seconds) + GRACE);
        let fuzzing = fuzzing(project, &host, target, seconds)?;
        let output = project.run(command::modest(fuzzing), &format!("fuzz-{target}"), deadline)?;
        runs += runs_done(&output).with_context(|| format!("{target} did not count"))?;
    }
    Ok(format!("{runs} inputs to {} targets, {seconds} s each", targets.len()))
}

/// Builds all targets, with the versions of the workspace's lock file. The platform is named so that
/// build scripts go without the counters.
fn build(project: &Project, host: &str) -> Result<Command> {
    let folder = project.root().join("fuzz");
    fs::copy(project.root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let mut command = project.cargo(&["build", "--release", "--target", host]);
    command.arg("--manifest-path").arg(folder.join("Cargo.toml"));
    command.arg("--target-dir").arg(build_folder(project)).env("RUSTFLAGS", COVERAGE);
    Ok(command)
}

fn build_folder(project: &Project) -> PathBuf {
    project.scratch().join("fuzz")
}

fn fuzzing(project: &Project, host: &str, target: &str, seconds: u64) -> Result<Command> {
    let (found, root) = (project.scratch().join("corpus").join(target), project.root());
    let failed = root.join("fuzz/artifacts").join(target);
    fs::create_dir_all(&found)?;
    fs::create_dir_all(&failed)?;
    let mut command = Command::new(build_folder(project).join(host).join("release").join(target));
    // A backtrace would hide the target's output.
    command.env("RUST_BACKTRACE", "0").current_dir(root);
    // libFuzzer writes to the first folder and only reads the others.
    command.arg(found).arg(root.join("fuzz/corpus").join(target));
    command.args([INPUT_SECONDS_MAX, MEMORY_MIB_MAX, &format!("-max_total_time={seconds}")]);
    command.arg(format!("-artifact_prefix={}/", failed.display()));
    let words = root.join("fuzz/dictionaries").join(format!("{target}.dict"));
    command.args(words.exists().then(|| format!("-dict={}", words.display())));
    Ok(command)
}

fn targets(root: &Path) -> Result<Vec<String>> {
    let folder = root.join("fuzz/fuzz_targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    ensure!(!names.is_empty(), "{} has no targets", folder.display());
    names.sort();
    Ok(names)
}

/// Returns the number of runs in libFuzzer's last line: `Done 6209778 runs in 41 second(s)`.
fn runs_done(output: &str) -> Option<u64> {
    let done = output.lines().rev().find_map(|line| line.strip_prefix("Done "))?;
    done.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_runs_is_read_from_the_last_line() {
        let output = "#12 DONE cov: 3\nDone 12 runs in 1 second(s)\nDone 34 runs in 2 second(s)\n";
        assert_eq!(runs_done(output), Some(34));
        assert_eq!(runs_done("==1== ERROR: libFuzzer: deadly signal\n"), None);
    }
}
