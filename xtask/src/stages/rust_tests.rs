//! Steps that run Rust tests and count them.

use crate::command::modest;
use crate::features::Features;
use crate::project::Project;
use crate::report::{Outcome, Step};
use crate::{guest, variants};
use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::{Artifact, Message};
use std::process::Command;
use std::time::Instant;

/// The stories of the explorer and the sweeps, optimised.
const STORIES: [&str; 6] = ["test", "--release", "--package", "sim-tests", "--test", "stories"];
/// Tests of that package whose output is a function of their seeds have this in their name.
const SEEDED: &str = "seeds";
/// Tests of that package that need the broken variants have this in their path.
const VARIANTS: &str = "variants::";
/// Set for tests that take minutes: explorations of that package, and stories of released nodes.
pub(crate) const NIGHTLY: &str = "HANDFAST_NIGHTLY";

/// Makes arithmetic of an optimised build that overflows a failure, as it is in debug builds.
pub(super) const CHECKED: (&str, &str) = ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true");

/// The test binaries of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    All,
    /// Without the explorations, which the stage `explorer` runs optimised.
    WithoutExplorations,
    /// Those that take seconds and start no process.
    Short,
}

/// Binaries, by folder and name, with arguments of their own: tests that need RDMA devices run in the
/// stage `guest`.
const ARGUMENTS: [(&str, &[&str]); 2] = [
    ("transport-rdma/rdma", &["discovery::", "program::"]),
    ("sim-tests/conformance/conformance", &["--skip", "guest::"]),
];
const EXPLORATIONS: &str = "sim-tests/stories";
const LONG: [&str; 5] = [
    "cli/program",
    "metadata/stores",
    "sim-tests/lane-gate/lane_gate",
    "transport-tcp/lanes",
    "xtask/xtask",
];

/// Every test of the workspace.
pub(super) fn workspace(project: &Project, property_cases: Option<u32>) -> Vec<Step<'_>> {
    vec![
        Step::new("tests", move |deadline| {
            let mut features = Features::available(project, deadline);
            let Some(cases) = property_cases else {
                return tests(project, &features, Choice::WithoutExplorations, deadline);
            };
            features.set("PROPTEST_CASES", cases.to_string());
            tests(project, &features, Choice::All, deadline)
        }),
        Step::new("examples", |deadline| {
            let features = Features::available(project, deadline);
            let words: (_, &[&str]) = ("test", &["--doc", "--no-fail-fast"]);
            let output = features.run(project, "examples", words, deadline)?;
            Ok(format!("{} examples", count(&output)))
        }),
        guest::builds(project),
    ]
}

/// The tests that take seconds, of the default features.
pub(super) fn short(project: &Project) -> Step<'_> {
    Step::new("tests", |deadline| {
        tests(project, &Features::default_only(), Choice::Short, deadline)
    })
}

/// Builds the test binaries at once and runs each of the chosen ones.
fn tests(project: &Project, features: &Features, choice: Choice, deadline: Instant) -> Outcome {
    let build: (_, &[&str]) = ("test", &["--no-run", "--message-format=json-render-diagnostics"]);
    let built = features.run(project, "tests-build", build, deadline)?;
    let (mut passed, mut failed) = (0, Vec::new());
    for message in Message::parse_stream(built.as_bytes()) {
        let Message::CompilerArtifact(artifact) = message? else { continue };
        let Some((name, command)) = test_binary(project, features, choice, &artifact)? else {
            continue;
        };
        match project.run(command, &format!("tests-{}", name.replace('/', "-")), deadline) {
            Ok(output) => passed += count(&output),
            Err(error) => failed.push(format!("{name}: {error:#}")),
        }
    }
    if !failed.is_empty() {
        bail!("{} test binaries failed\n{}", failed.len(), failed.join("\n"));
    }
    ensure!(passed > 0, "no test ran");
    Ok(format!("{passed} tests"))
}

/// The name of a test binary and the command that runs it, unless it is not chosen.
fn test_binary(
    project: &Project,
    features: &Features,
    choice: Choice,
    artifact: &Artifact,
) -> Result<Option<(String, Command)>> {
    let Some(program) = artifact.executable.as_ref().filter(|_| artifact.profile.test) else {
        return Ok(None);
    };
    let package = artifact.manifest_path.parent().context("a package has a folder")?;
    let folder = package.strip_prefix(project.root()).context("a package of the workspace")?;
    let name = format!("{folder}/{}", artifact.target.name);
    let is_left_out = match choice {
        Choice::All => false,
        Choice::WithoutExplorations => name == EXPLORATIONS,
        Choice::Short => name == EXPLORATIONS || LONG.contains(&&*name),
    };
    if is_left_out {
        return Ok(None);
    }
    let mut command = Command::new(program);
    features.apply(&mut command);
    command.current_dir(package).env("CARGO_MANIFEST_DIR", package);
    let arguments = ARGUMENTS.iter().find(|(binary, _)| *binary == name);
    command.args(arguments.map_or(&[][..], |(_, arguments)| arguments));
    Ok(Some((name, command)))
}

/// Tests of the default features alone.
pub(super) fn default_features(project: &Project, deadline: Instant) -> Outcome {
    let words: (_, &[&str]) = ("test", &["--test", "program", "--test", "rdma"]);
    judged(&Features::default_only().run(project, "default-features", words, deadline)?)
}

/// The explorer and the sweeps, optimised; some explorations are for the night only.
pub(super) fn explorer(project: &Project, nightly: bool) -> Step<'_> {
    Step::new("explorer", move |deadline| {
        let mut command = project.cargo(&STORIES);
        command.envs([CHECKED]);
        if nightly {
            // Tests that pass print only then.
            command.env(NIGHTLY, "1").args(["--", "--show-output"]);
        }
        let output = project.run(modest(command), "explorer", deadline)?;
        Ok(judged(&output)? + &bounds(&output))
    })
}

/// The tests of the broken variants: some on every change, all at night. A few seconds of a processor do
/// not pay for a second optimised build.
pub(super) fn with_variants(project: &Project, nightly: bool) -> Step<'_> {
    Step::new("variants", move |deadline| {
        let words =
            ["test", "--package", "sim-tests", "--features", "variants", "--test", "stories"];
        let mut command = variants::cargo_with_variants(project, &words)?;
        command.args(["--", VARIANTS]).envs(nightly.then_some((NIGHTLY, "1")));
        judged(&project.run(modest(command), "variants", deadline)?)
    })
}

/// The explorations of a run that ended at their bound, for its note.
fn bounds(output: &str) -> String {
    let rests = output.lines().filter(|line| line.starts_with("not exhausted: "));
    let rests: Vec<&str> = rests.collect();
    if rests.is_empty() {
        return String::new();
    }
    format!("; {} explorations {}", rests.len(), rests.join("; "))
}

/// The seeded tests twice: what they print must not differ.
pub(super) fn seeds(project: &Project) -> Step<'_> {
    Step::new("same-output", |deadline| {
        let output = |name: &str, options: &[&str]| {
            let mut command = project.cargo(&[&STORIES, &["--", SEEDED][..], options].concat());
            command.envs([CHECKED]);
            project.run(modest(command), &format!("seeds-{name}"), deadline)
        };
        let options = ["--nocapture", "--test-threads=1"];
        let (first, second) = (output("first", &options)?, output("second", &options)?);
        if let Some((one, other)) = first_difference(&first, &second) {
            bail!("the same seeds gave different output\nfirst run:  {one}\nsecond run: {other}");
        }
        Ok(judged(&first)?.replace("tests", "seeded tests"))
    })
}

/// Returns the note of a test run; fails if no test ran.
pub(crate) fn judged(output: &str) -> Outcome {
    let count = count(output);
    ensure!(count > 0, "no test ran");
    Ok(format!("{count} tests"))
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

/// Tests that passed.
fn count(output: &str) -> u64 {
    let results = output.lines().filter_map(|line| {
        let passed = line.trim_start().strip_prefix("test result: ok. ")?;
        passed.split_once(" passed")?.0.parse::<u64>().ok()
    });
    results.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_over_all_binaries() {
        let output = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s\n";
        assert_eq!(judged(output).unwrap(), "43 tests");
        assert!(judged("no tests\n").is_err());
    }

    /// A binary that is renamed would be run without its arguments, or be no longer left out.
    #[test]
    fn binary_with_a_choice_exists() {
        let root = Project::find().unwrap().root().to_owned();
        let named = ARGUMENTS.iter().map(|(name, _)| *name).chain(LONG).chain([EXPLORATIONS]);
        for name in named.filter(|name| *name != "xtask/xtask") {
            let (folder, binary) = name.rsplit_once('/').unwrap();
            let manifest = std::fs::read_to_string(root.join(folder).join("Cargo.toml")).unwrap();
            let is_named = manifest.contains(&format!("name = \"{binary}\""));
            assert!(is_named || root.join(folder).join("tests").join(binary).is_dir(), "{name}");
        }
    }

    #[test]
    fn explorations_that_ended_at_their_bound_are_named() {
        let output = "---- a stdout ----\nnot exhausted: A K=1, 5 worlds, up to 3 events\n\n\
            ---- b stdout ----\nnot exhausted: B K=2, 6 worlds, up to 4 events\n";
        let note = "; 2 explorations not exhausted: A K=1, 5 worlds, up to 3 events; \
                    not exhausted: B K=2, 6 worlds, up to 4 events";
        assert_eq!(bounds(output), note);
        assert_eq!(bounds("2 tests\n"), "");
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
