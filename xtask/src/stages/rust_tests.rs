//! Steps that run Rust tests and count them.

use crate::command::{Finished, cargo, modest, run as run_command};
use crate::features::Features;
use crate::guest;
use crate::project::Project;
use crate::report::{Outcome, Step};
use crate::setup;
use crate::variants;
use std::time::Instant;

/// The package with the explorer and the sweeps.
const EXPLORER: &str = "sim-tests";
/// Its stories, optimised. Its few other tests are among those of the workspace.
const STORIES: [&str; 6] = ["test", "--release", "--package", EXPLORER, "--test", "stories"];
/// Tests of that package whose output is a function of their seeds have this in their name.
const SEEDED: &str = "seeds";
/// Tests of that package that need the broken variants have this in their path.
const VARIANTS: &str = "variants::";
/// Set for tests that take minutes: explorations of that package, and stories of released nodes.
pub(crate) const NIGHTLY: &str = "HANDFAST_NIGHTLY";

/// Makes arithmetic of an optimised build that overflows a failure, as it is in debug builds.
pub(super) const CHECKED: (&str, &str) = ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true");

/// Stories that the stage `explorer` runs optimised. (A filter of cargo-nextest: cargo has none of the
/// kind.)
const EXPLORATIONS: &str = "(package(sim-tests) & binary(stories))";
/// Tests that need RDMA devices, which the stage `guest` runs.
const WITH_DEVICES: &str = "((binary(rdma) & not test(/^(discovery|program)::/)) \
    | (binary(conformance) & test(/^guest::/)))";
/// Tests that take longer than a few seconds, or start processes.
const LONG: &str = "(binary(program) | binary(stores) | binary(lanes) | package(xtask))";

/// Every test of the workspace, with cargo-nextest where it is installed.
pub(super) fn workspace(project: &Project, property_cases: Option<u32>) -> Vec<Step<'_>> {
    let filter = match property_cases {
        Some(_) => format!("not {WITH_DEVICES}"),
        None => format!("not ({EXPLORATIONS} | {WITH_DEVICES})"),
    };
    vec![
        Step::new("tests", move |deadline| {
            // Without cargo-nextest, nothing leaves out the tests that need devices.
            let mut features = match setup::NEXTEST.is_present() {
                true => Features::available(project, deadline),
                false => Features::default_only(),
            };
            if let Some(cases) = property_cases {
                features.set("PROPTEST_CASES", cases.to_string());
            }
            judged(&tests(project, features, ("tests", &filter), deadline))
        }),
        Step::new("examples", |deadline| {
            let features = Features::available(project, deadline);
            let words: (&[&str], &[&str]) = (&["test"], &["--doc", "--no-fail-fast"]);
            let finished = features.run(project, "examples", words, deadline);
            finished.outcome(|output| format!("{} examples", count(output)))
        }),
        guest::builds(project),
    ]
}

/// The tests of the broken variants: some on every change, all at night. A few seconds of a processor do
/// not pay for a second optimised build.
fn with_variants(project: &Project, nightly: bool, deadline: Instant) -> Outcome {
    let words = ["test", "--package", EXPLORER, "--features", "variants", "--test", "stories"];
    match variants::cargo_with_variants(project, &words) {
        Ok(mut command) => {
            command.args(["--", VARIANTS]).envs(nightly.then_some((NIGHTLY, "1")));
            let log = project.scratch().join("variants.log");
            judged(&run_command(modest(command), log, deadline))
        }
        Err(error) => variants::not_made(&error),
    }
}

/// The tests that take seconds, of the default features.
pub(super) fn short(project: &Project) -> Step<'_> {
    Step::new("tests", |deadline| {
        let filter = format!("not ({EXPLORATIONS} | {LONG})");
        judged(&tests(project, Features::default_only(), ("short-tests", &filter), deadline))
    })
}

/// Tests of the default features alone.
pub(super) fn default_features(project: &Project, deadline: Instant) -> Outcome {
    let words: (&[&str], &[&str]) = (&["test"], &["--test", "program", "--test", "rdma"]);
    judged(&Features::default_only().run(project, "default-features", words, deadline))
}

/// The tests of the workspace that a filter of cargo-nextest leaves, or all where that is missing.
fn tests(
    project: &Project,
    features: Features,
    (log, filter): (&str, &str),
    deadline: Instant,
) -> Finished {
    let words: (&[&str], &[&str]) = match setup::NEXTEST.is_present() {
        true => (&["nextest", "run"], &["--no-fail-fast", "-E", filter]),
        false => (&["test"], &["--all-targets", "--no-fail-fast"]),
    };
    features.run(project, log, words, deadline)
}

/// The explorer and the sweeps, optimised; some explorations are for the night only.
pub(super) fn explorer(project: &Project, nightly: bool) -> Vec<Step<'_>> {
    if !project.has_package(EXPLORER) {
        return vec![without_explorer("explorer")];
    }
    let run = move |deadline| {
        let mut command = cargo(project.root(), STORIES);
        command.envs([CHECKED]);
        if nightly {
            // Tests that pass print only then.
            command.env(NIGHTLY, "1").args(["--", "--show-output"]);
        }
        let log = project.scratch().join("explorer.log");
        let finished = run_command(modest(command), log, deadline);
        with_bounds(judged(&finished), &finished.output())
    };
    let mut steps = vec![
        Step::new("explorer", run),
        Step::new("variants", move |deadline| with_variants(project, nightly, deadline)),
    ];
    if nightly {
        steps.push(Step::new("variants-lints", |deadline| variants::lints(project, deadline)));
        steps.push(Step::new("variants-program", |deadline| variants::program(project, deadline)));
    }
    steps
}

/// Adds to the note of a run the explorations in it that ended at their bound.
fn with_bounds(outcome: Outcome, output: &str) -> Outcome {
    let rests: Vec<&str> =
        output.lines().filter(|line| line.starts_with("not exhausted: ")).collect();
    match outcome {
        Outcome::Passed(note) if !rests.is_empty() => {
            let count = rests.len();
            Outcome::Passed(format!("{note}; {count} explorations {}", rests.join("; ")))
        }
        outcome => outcome,
    }
}

/// The seeded tests twice: what they print must not differ.
pub(super) fn seeds(project: &Project) -> Vec<Step<'_>> {
    if !project.has_package(EXPLORER) {
        return vec![without_explorer("same-output")];
    }
    let run = |deadline| seeds_twice(project, deadline).unwrap_or_else(|outcome| outcome);
    vec![Step::new("same-output", run)]
}

/// Outcome of a run of tests; a run without any is a failure.
pub(crate) fn judged(finished: &Finished) -> Outcome {
    match finished.outcome(|output| format!("{} tests", count(output))) {
        Outcome::Passed(_) if count(&finished.output()) == 0 => Outcome::failed("no test ran", ""),
        outcome => outcome,
    }
}

fn without_explorer(name: &'static str) -> Step<'static> {
    let reason = format!("the workspace has no package {EXPLORER}");
    Step::new(name, |_| Outcome::Skipped(reason))
}

fn seeds_twice(project: &Project, deadline: Instant) -> Result<Outcome, Outcome> {
    let seeded = ["--", SEEDED];
    let output = |name: &str, options: &[&str]| {
        let words = STORIES.iter().chain(&seeded).chain(options);
        let mut command = cargo(project.root(), words.copied());
        command.envs([CHECKED]);
        let log = project.scratch().join(format!("seeds-{name}.log"));
        let finished = run_command(modest(command), log, deadline);
        if finished.succeeded() {
            Ok(finished.output())
        } else {
            Err(finished.outcome(str::to_owned))
        }
    };
    let listed = output("list", &["--list"])?;
    let tests = listed.lines().filter(|line| line.ends_with(": test")).count();
    if tests == 0 {
        return Ok(Outcome::Skipped(format!("{EXPLORER} has no test with '{SEEDED}' in its name")));
    }
    let options = ["--nocapture", "--test-threads=1"];
    let (first, second) = (output("first", &options)?, output("second", &options)?);
    Ok(match first_difference(&first, &second) {
        None => Outcome::Passed(format!("{tests} seeded tests")),
        Some((one, other)) => Outcome::failed(
            "the same seeds gave different output",
            format!("first run:  {one}\nsecond run: {other}"),
        ),
    })
}

/// The first lines that differ, leaving out what cargo and the test harness say about time.
fn first_difference<'a>(first: &'a str, second: &'a str) -> Option<(&'a str, &'a str)> {
    const CARGO: [&str; 6] =
        ["Blocking ", "Compiling ", "Downloaded ", "Downloading ", "Finished ", "Running "];
    fn lines(output: &str) -> impl Iterator<Item = &str> {
        let said = |line: &&str| !CARGO.iter().any(|verb| line.trim_start().starts_with(verb));
        output.lines().filter(said).map(|line| match line.split_once("; finished in ") {
            Some((result, _)) if line.starts_with("test result: ") => result,
            _ => line,
        })
    }
    let (mut first, mut second) = (lines(first), lines(second));
    loop {
        match (first.next(), second.next()) {
            (None, None) => return None,
            (one, other) if one == other => {}
            (one, other) => return Some((one.unwrap_or("(end)"), other.unwrap_or("(end)"))),
        }
    }
}

/// Tests that passed, from libtest's results or cargo-nextest's summary.
fn count(output: &str) -> u64 {
    let results = output.lines().filter_map(|line| {
        let line = line.trim_start();
        let passed = line.strip_prefix("test result: ok. ").or_else(|| {
            line.strip_prefix("Summary [")?.split_once("tests run: ").map(|(_, counts)| counts)
        })?;
        passed.split_once(" passed")?.0.parse::<u64>().ok()
    });
    results.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_over_all_binaries_of_cargo_test() {
        let output = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s\n";
        assert_eq!(count(output), 43);
        assert_eq!(count("no tests\n"), 0);
    }

    #[test]
    fn explorations_that_ended_at_their_bound_are_counted_and_named() {
        let output = "---- a stdout ----\nnot exhausted: A K=1, 5 worlds, up to 3 events\n\n\
            ---- b stdout ----\nnot exhausted: B K=2, 6 worlds, up to 4 events\n";
        let passed = || Outcome::Passed("2 tests".to_owned());
        let note = "2 tests; 2 explorations not exhausted: A K=1, 5 worlds, up to 3 events; \
                    not exhausted: B K=2, 6 worlds, up to 4 events";
        assert_eq!(with_bounds(passed(), output), Outcome::Passed(note.to_owned()));
        assert_eq!(with_bounds(passed(), "2 tests\n"), passed());
    }

    #[test]
    fn tests_are_counted_from_the_summary_of_nextest() {
        let output = "------------\n     Summary [   0.171s] 24 tests run: 24 passed, 0 skipped\n";
        assert_eq!(count(output), 24);
        let slow = "     Summary [  61.2s] 24 tests run: 20 passed (1 slow), 4 failed, 0 skipped\n";
        assert_eq!(count(slow), 20);
    }

    #[test]
    fn times_and_build_lines_are_no_difference_and_a_hash_is() {
        let first = "   Compiling a v1\n    Finished `release` in 3s\nhash 1\n\
                     test result: ok. 1 passed; 0 filtered out; finished in 0.10s\n";
        let second = "    Finished `release` in 0s\nhash 1\n\
                      test result: ok. 1 passed; 0 filtered out; finished in 0.20s\n";
        assert_eq!(first_difference(first, second), None);
        let other = second.replace("hash 1", "hash 2");
        assert_eq!(first_difference(first, &other), Some(("hash 1", "hash 2")));
        assert_eq!(first_difference("a\n", "a\nb\n"), Some(("(end)", "b")));
    }
}
