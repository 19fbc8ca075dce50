//! The fuzz targets: by hand, and as a stage.

use crate::command;
use crate::features::Features;
use crate::project::Project;
use crate::report::{Outcome, Step};
use crate::{setup, stages};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, fs};

/// Time limit of one input: thousands of times its usual duration, on a machine that has other work.
const INPUT_SECONDS_MAX: &str = "-timeout=30";
/// Memory limit of a target.
const MEMORY_MIB_MAX: &str = "-rss_limit_mb=2048";
/// The test binary with all targets, and part of the name of its test with new inputs.
const REPLAY: &str = "fuzz/checks/replay";
const MUTATIONS: &str = "mutated_";
/// Variables of that test. A seed in the environment of this program is passed on.
const SECONDS: &str = "HANDFAST_FUZZ_SECONDS";
const SEED: &str = "HANDFAST_FUZZ_SEED";
/// Time for a fuzzer to write its findings after its end.
const GRACE: Duration = Duration::from_secs(60);
/// Flags of the compiler for libFuzzer: failed assertions and overflows end an optimised build too, and
/// there are counters of edges and comparisons.
const FLAGS: &str = "--cfg fuzzing -Cdebug-assertions -Coverflow-checks -Cpasses=sancov-module \
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

/// Returns the step that tries inputs made of the corpus for so many seconds per target: other ones for each
/// commit, and each night. It takes the build of the tests, without counters of coverage, which takes
/// minutes less.
pub(crate) fn mutations(project: &Project, seconds: u64, nightly: bool) -> Step<'_> {
    Step::new("mutations", move |deadline| {
        let features = Features::available(project, deadline);
        let binary = stages::binary(project, &features, (REPLAY, "mutations"), deadline)?;
        let mut command = binary.command(&binary.program, &features);
        command.args([MUTATIONS, "--nocapture"]).env(SECONDS, seconds.to_string());
        let given = env::var(SEED).ok();
        let commit = commit(project.root());
        let seed = seed(given.as_deref(), commit.as_deref().filter(|_| !nightly))?;
        command.env(SEED, seed.to_string());
        let output = project.run(command::modest(command), "mutations", deadline)?;
        let mut inputs = 0;
        let targets = targets(project.root())?;
        for target in &targets {
            inputs += inputs_to(&output, target).with_context(|| format!("{target} has none"))?;
        }
        let many = targets.len();
        Ok(format!("{inputs} inputs to {many} targets, {seconds} s each, {SEED}={seed}"))
    })
}

/// Returns the seed that is given, or that of a commit, or another one each second.
fn seed(given: Option<&str>, commit: Option<&str>) -> Result<u64> {
    if let Some(given) = given {
        return given.parse().with_context(|| format!("{SEED}={given} is no number"));
    }
    let of_commit = commit.and_then(|id| u64::from_str_radix(id.get(..15)?, 16).ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    Ok(of_commit.unwrap_or(now))
}

/// Returns the id of the commit that is checked out; `None` outside of a repository.
fn commit(root: &Path) -> Option<String> {
    let mut git = Command::new("git");
    let output = git.current_dir(root).args(["rev-parse", "HEAD"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the number in the line of a target: `6209 inputs to auth`.
fn inputs_to(output: &str, target: &str) -> Option<u64> {
    let mut counts = output.lines().filter_map(|line| line.split_once(" inputs to "));
    let (count, _) = counts.find(|(_, of)| *of == target)?;
    // The name of the test may precede it.
    count.rsplit(' ').next()?.parse().ok().filter(|count| *count > 0)
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
    let (mut runs, mut reached) = (0, Vec::new());
    for target in &targets {
        let deadline = deadline.min(Instant::now() + Duration::from_secs(seconds) + GRACE);
        let fuzzing = fuzzing(project, &host, target, seconds)?;
        let output = project.run(command::modest(fuzzing), &format!("fuzz-{target}"), deadline)?;
        runs += runs_done(&output).with_context(|| format!("{target} did not count"))?;
        let edges = edges_reached(&output).with_context(|| format!("{target} has no coverage"))?;
        reached.push(format!("{target} {edges}"));
    }
    let (many, reached) = (targets.len(), reached.join(", "));
    Ok(format!("{runs} inputs to {many} targets, {seconds} s each; edges: {reached}"))
}

/// Builds all targets, with the versions of the workspace's lock file. The platform is named so that
/// build scripts go without the counters.
fn build(project: &Project, host: &str) -> Result<Command> {
    let folder = project.root().join("fuzz");
    fs::copy(project.root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let mut command = project.cargo(&["build", "--release", "--target", host]);
    command.arg("--manifest-path").arg(folder.join("Cargo.toml"));
    command.arg("--target-dir").arg(build_folder(project)).env("RUSTFLAGS", FLAGS);
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

/// Returns the edges that the corpus and the new inputs reach, of libFuzzer's last status line.
fn edges_reached(output: &str) -> Option<u64> {
    let status = |line: &str| line.split_once(" cov: ")?.1.split(' ').next()?.parse().ok();
    output.lines().rev().find_map(status)
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

    #[test]
    fn edges_are_read_from_the_last_status() {
        let output = "#2\tINITED cov: 311 ft: 312 corp: 1/1b\n#9\tDONE   cov: 1234 ft: 5\n\
                      Done 9 runs in 1 second(s)\n";
        assert_eq!(edges_reached(output), Some(1234));
        assert_eq!(edges_reached("Done 9 runs in 1 second(s)\n"), None);
    }

    /// An optimised build of its own would let a sum of hostile lengths wrap.
    #[test]
    fn fuzzers_are_built_with_every_check() {
        for flag in ["-Cdebug-assertions", "-Coverflow-checks"] {
            assert!(FLAGS.split_whitespace().any(|word| word == flag), "{flag}");
        }
    }

    /// A commit has its seed, another one has another, and a seed that is given counts in place of both.
    #[test]
    fn seed_is_that_of_the_commit_or_given() {
        let commits = [
            "109a7a6e0000000000000000000000000000000a",
            "109a7a6e1000000000000000000000000000000a",
        ];
        let of = |commit| seed(None, Some(commit)).unwrap();
        assert_eq!(of(commits[0]), of(commits[0]));
        assert_ne!(of(commits[0]), of(commits[1]));
        assert_eq!(seed(Some("7"), Some(commits[0])).unwrap(), 7);
        assert!(
            seed(Some("x"), Some(commits[0]))
                .unwrap_err()
                .to_string()
                .contains("HANDFAST_FUZZ_SEED=x")
        );
        assert!(seed(None, None).unwrap() > 0 && seed(None, Some("")).unwrap() > 0);
    }

    /// Every target must have inputs: none and a missing line are alike.
    #[test]
    fn inputs_of_each_target_are_counted() {
        let output = "test mutated ... 12 inputs to auth\n0 inputs to lanes\n7 inputs to trace\n";
        assert_eq!(inputs_to(output, "auth"), Some(12));
        assert_eq!(inputs_to(output, "trace"), Some(7));
        assert_eq!(inputs_to(output, "lanes"), None);
        assert_eq!(inputs_to(output, "texts"), None);
    }
}
