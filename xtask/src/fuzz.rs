//! The fuzz targets: by hand, and as a stage.

use crate::project::Project;
use crate::report::{Outcome, Step};
use crate::setup;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time limit of one input, a thousand times its usual duration.
const INPUT_SECONDS_MAX: &str = "-timeout=5";
/// Time for a fuzzer to write its findings after its end.
const GRACE: Duration = Duration::from_secs(30);

/// Fuzz one target, or all of them in sequence, until one fails or the time is up.
///
/// Works on stable Rust: cargo-fuzz runs without a sanitizer, and failures are panics and failed
/// assertions. New inputs of interest go to cargo's target folder; the checked-in corpus in
/// fuzz/corpus is only read. A failing input is kept in fuzz/artifacts: fix the cause, then move
/// the input to fuzz/corpus/TARGET under a descriptive name.
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
    setup::FUZZ.check()?;
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
    for target in chosen {
        let status = fuzzing(&project, &target, arguments.seconds)?.status()?;
        if !status.success() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the step that fuzzes every target for a share of `seconds`.
pub(crate) fn step(project: &Project, seconds: u64) -> Step<'_> {
    Step::new("fuzzing", move |deadline| fuzz_all(project, seconds, deadline))
}

fn fuzz_all(project: &Project, seconds: u64, deadline: Instant) -> Outcome {
    setup::FUZZ.check()?;
    setup::CPP.check()?;
    let build = project.cargo(&["fuzz", "build", "--sanitizer", "none"]);
    project.run(build, "fuzz-build", deadline)?;
    let targets = targets(project.root())?;
    let share = (seconds / targets.len() as u64).max(1);
    let mut runs = 0;
    for target in &targets {
        let deadline = deadline.min(Instant::now() + Duration::from_secs(share) + GRACE);
        let fuzzing = fuzzing(project, target, share)?;
        let output = project.run(fuzzing, &format!("fuzz-{target}"), deadline)?;
        runs += runs_done(&output).with_context(|| format!("{target} did not count"))?;
    }
    Ok(format!("{runs} inputs to {} targets", targets.len()))
}

fn fuzzing(project: &Project, target: &str, seconds: u64) -> Result<Command> {
    let found = project.scratch().join("corpus").join(target);
    fs::create_dir_all(&found)?;
    let mut command = project.cargo(&["fuzz", "run", "--sanitizer", "none", target]);
    // cargo-fuzz's own backtrace would hide the target's output.
    command.env("RUST_LIB_BACKTRACE", "0");
    // libFuzzer writes to the first folder and only reads the others.
    command.arg(found).arg(project.root().join("fuzz/corpus").join(target));
    command.args(["--", INPUT_SECONDS_MAX, &format!("-max_total_time={seconds}")]);
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
