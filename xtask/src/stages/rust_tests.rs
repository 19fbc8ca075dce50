//! Steps that run Rust tests and count them.

use crate::command::{add_processor_time, modest, take_processor_time};
use crate::features::Features;
use crate::project::Project;
use crate::report::{Outcome, Step};
use crate::variants;
use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::{Artifact, Message};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// The tests of the explorer and the sweeps, optimised.
const STORIES: [&str; 6] = ["test", "--release", "--package", "sim-tests", "--test", "stories"];
/// Part of the names of that package's tests whose output is a function of their seeds.
const SEEDED: &str = "seeds";
/// Part of the paths of that package's tests that need the broken variants.
const VARIANTS: &str = "variants::";
/// Part of the paths of that package's explorations with a bound of time.
const DEEP: &str = "deep::";
/// Their bound, in seconds; the one with four faults has three times as many.
const DEEP_SECONDS: (&str, u64) = ("HANDFAST_DEEP_SECONDS", 10 * 60);
/// Explorations of a bounded time at once, by the memory of a machine.
const DEEP_THREADS: &str = "--test-threads=2";
/// Enables tests that take minutes: explorations of that package, and tests with released nodes.
pub(crate) const NIGHTLY: &str = "HANDFAST_NIGHTLY";

/// Makes arithmetic overflow a failure in an optimised build, as it is in debug builds.
pub(super) const CHECKED: (&str, &str) = ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true");

/// The test binaries of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    All,
    /// All but the explorations, which the stage `explorer` runs optimised.
    WithoutExplorations,
    /// Tests that take seconds and start no process.
    Short,
}

/// Additional arguments of binaries, by folder and name: tests that need a kernel's RDMA devices run in
/// the stage `guest`, and the others start themselves again with scripted ones.
const ARGUMENTS: [(&str, &[&str]); 2] = [
    ("transport-rdma/rdma", &["discovery::", "program::", "native::", "scripted::"]),
    ("sim-tests/conformance/conformance", &["--skip", "guest::"]),
];
const EXPLORATIONS: &str = "sim-tests/stories";
/// The program's tests, and those of them that run nightly.
const PROGRAM: &str = "cli/program";
const OF_PROGRAM_NIGHTLY: &str = "every_profile::";
/// The stories in which each call of the system fails.
const EVERY_FAILURE: &str = "engine/every_failure";
/// The stories of the engine.
const ENGINE: &str = "engine/stories";
/// Whole engines in a simulated network; the second need the feature `etcd`.
const SWEEPS: [&str; 2] = ["engine/sweeps", "metadata/simulated"];
const LONG: [&str; 8] = [
    EVERY_FAILURE,
    SWEEPS[0],
    SWEEPS[1],
    PROGRAM,
    "metadata/stores",
    "sim-tests/lane-gate/lane_gate",
    "transport-tcp/lanes",
    "xtask/xtask",
];

/// Binaries whose tests wait for sockets, timers and processes more than for a processor, the longest
/// first.
const WAITING: [&str; 3] = [PROGRAM, "transport-rdma/rdma", "diagnosis/stories"];

/// Every test of the workspace.
pub(super) fn workspace(project: &Project, property_cases: Option<u32>) -> Vec<Step<'_>> {
    let mut steps = vec![
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
            // `--doc` selects the libraries alone, whose dependencies have fewer features: half of them
            // would be compiled again. The name of an example has its line, that of a test has none.
            let words: (_, &[&str]) = ("test", &["--no-fail-fast", "--", "(line "]);
            let output = features.run(project, "examples", words, deadline)?;
            Ok(format!("{} examples", count(&output)))
        }),
    ];
    if property_cases.is_some() {
        steps.push(every_failure(project));
        steps.push(sweeps(project));
        steps.push(crowd(project));
    }
    steps
}

/// Every turn of every call of the system that can fail, of which `tests` has a sample.
fn every_failure(project: &Project) -> Step<'_> {
    Step::new("every-failure", |deadline| {
        let features = Features::available(project, deadline);
        let binary = binary(project, &features, (EVERY_FAILURE, "every-failure"), deadline)?;
        let mut command = binary.command(&binary.program, &features);
        command.env(NIGHTLY, "1").args(["--nocapture"]);
        let output = project.run(command, "every-failure", deadline)?;
        let counts: Vec<_> = output.lines().filter(|line| line.starts_with("failed ")).collect();
        ensure!(!counts.is_empty(), "it counts its failures");
        Ok(counts.join("; "))
    })
}

/// Every seed of simulated engines, of which `tests` has a few.
fn sweeps(project: &Project) -> Step<'_> {
    Step::new("sweeps", |deadline| {
        let features = Features::available(project, deadline);
        let built = build(project, &features, "sweeps-build", deadline)?;
        let mut counts = Vec::new();
        for binary in built.iter().filter(|binary| SWEEPS.contains(&&*binary.name)) {
            let mut command = binary.command(&binary.program, &features);
            command.env(NIGHTLY, "1").args(["--nocapture"]);
            let log = binary.name.replace('/', "-");
            let output = project.run(command, &log, deadline)?;
            let seeds: Vec<_> = output.lines().filter(|line| line.ends_with(" seeds")).collect();
            ensure!(!seeds.is_empty(), "{} counts its seeds", binary.name);
            counts.push(format!("{}: {}", binary.name, seeds.join("; ")));
        }
        ensure!(!counts.is_empty(), "there are no sweeps");
        Ok(counts.join("; "))
    })
}

/// The times of peers with a crowd of slow connections, judged: stages of the night run alone.
fn crowd(project: &Project) -> Step<'_> {
    Step::new("crowd", |deadline| {
        let features = Features::available(project, deadline);
        let binary = binary(project, &features, (ENGINE, "crowd"), deadline)?;
        let mut command = binary.command(&binary.program, &features);
        command.env(NIGHTLY, "1").args(["crowd::", "--nocapture"]);
        let output = project.run(command, "crowd", deadline)?;
        let ratios = output.lines().find(|line| line.starts_with("p99 "));
        Ok(ratios.context("it prints its ratios")?.into())
    })
}

/// The tests that take seconds, with the default features.
pub(super) fn short(project: &Project) -> Step<'_> {
    Step::new("tests", |deadline| {
        tests(project, &Features::default_only(), Choice::Short, deadline)
    })
}

/// Builds all test binaries and examples. Each step that runs one of them builds all of them: with fewer
/// targets cargo gives dependencies other features, and compiles them again.
pub(crate) fn build(
    project: &Project,
    features: &Features,
    log: &str,
    deadline: Instant,
) -> Result<Vec<TestBinary>> {
    let build: (_, &[&str]) = ("test", &["--no-run", "--message-format=json-render-diagnostics"]);
    let built = features.run(project, log, build, deadline)?;
    TestBinary::all(project.root(), &built)
}

/// Builds all test binaries and returns the one of this folder and name.
pub(crate) fn binary(
    project: &Project,
    features: &Features,
    (name, log): (&str, &str),
    deadline: Instant,
) -> Result<TestBinary> {
    let built = build(project, features, &format!("{log}-build"), deadline)?;
    let found = built.into_iter().find(|binary| binary.name == name);
    found.with_context(|| format!("no test binary {name}"))
}

/// Builds the test binaries at once and runs each of the chosen ones, two at a time.
fn tests(project: &Project, features: &Features, choice: Choice, deadline: Instant) -> Outcome {
    let built = build(project, features, "tests-build", deadline)?;
    let chosen = |binary: TestBinary| Some((chosen(features, choice, &binary)?, binary.name));
    let mut runs: Vec<_> = built.into_iter().filter_map(chosen).collect();
    // From its end: what waits longest begins first, and the others run meanwhile.
    runs.sort_by_key(|(_, name)| std::cmp::Reverse(place(name)));
    let runs = Mutex::new(runs);
    let ended = side_by_side(|| {
        let (mut passed, mut failed) = (0, Vec::new());
        loop {
            let next = runs.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some((command, name)) = next else { break };
            match project.run(command, &format!("tests-{}", name.replace('/', "-")), deadline) {
                Ok(output) => passed += count(&output),
                Err(error) => failed.push(format!("{name}: {error:#}")),
            }
        }
        (passed, failed)
    });
    let passed: u64 = ended.iter().map(|(passed, _)| passed).sum();
    let failed: Vec<_> = ended.into_iter().flat_map(|(_, failed)| failed).collect();
    if !failed.is_empty() {
        bail!("{} test binaries failed\n{}", failed.len(), failed.join("\n"));
    }
    ensure!(passed > 0, "no test ran");
    Ok(format!("{passed} tests"))
}

/// The place of a binary in the order of the runs.
fn place(name: &str) -> usize {
    WAITING.iter().position(|waiting| *waiting == name).unwrap_or(WAITING.len())
}

/// Runs a function on two threads, and counts the processor time of its programs for this one.
fn side_by_side<T: Send>(run: impl Fn() -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(|| (run(), take_processor_time())));
        let joined = threads.map(|thread| match thread.join() {
            Ok((ended, took)) => {
                add_processor_time(took);
                ended
            }
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.into()
    })
}

/// Ends the name of the test binary of a library.
const LIBRARY: &str = " (library)";

/// A test binary.
pub(crate) struct TestBinary {
    /// The folder of its package, and its name there.
    pub(crate) name: String,
    pub(crate) package: PathBuf,
    pub(crate) program: PathBuf,
}

impl TestBinary {
    /// Reads those of the workspace at `root` in cargo's messages.
    pub(crate) fn all(root: &Path, messages: &str) -> Result<Vec<Self>> {
        let mut binaries = Vec::new();
        for message in Message::parse_stream(messages.as_bytes()) {
            if let Message::CompilerArtifact(artifact) = message? {
                binaries.extend(Self::of(root, &artifact)?);
            }
        }
        Ok(binaries)
    }

    fn of(root: &Path, artifact: &Artifact) -> Result<Option<Self>> {
        let Some(program) = artifact.executable.as_ref().filter(|_| artifact.profile.test) else {
            return Ok(None);
        };
        let package = artifact.manifest_path.parent().context("a package has a folder")?;
        let folder = package.strip_prefix(root).context("a package of the workspace")?;
        let mut name = format!("{folder}/{}", artifact.target.name);
        if artifact.target.is_lib() {
            // A test target may have the name of its package's library.
            name += LIBRARY;
        }
        Ok(Some(Self { name, package: package.into(), program: program.into() }))
    }

    /// Returns a command with the folder and the variables that cargo gives the tests of a package.
    pub(crate) fn command(&self, program: &Path, features: &Features) -> Command {
        let mut command = Command::new(program);
        features.apply(&mut command);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        command
    }
}

/// Returns the command that runs a binary, if it is chosen.
fn chosen(features: &Features, choice: Choice, binary: &TestBinary) -> Option<Command> {
    let name = &*binary.name;
    let is_left_out = match choice {
        Choice::All => false,
        Choice::WithoutExplorations => name == EXPLORATIONS,
        Choice::Short => name == EXPLORATIONS || LONG.contains(&name),
    };
    if is_left_out {
        return None;
    }
    let mut command = binary.command(&binary.program, features);
    let arguments = ARGUMENTS.iter().find(|(binary, _)| *binary == name);
    command.args(arguments.map_or(&[][..], |(_, arguments)| arguments));
    if choice != Choice::All && name == PROGRAM {
        command.args(["--skip", OF_PROGRAM_NIGHTLY]);
    }
    Some(command)
}

/// Tests with only the default features.
pub(super) fn default_features(project: &Project, deadline: Instant) -> Outcome {
    let words: (_, &[&str]) = ("test", &["--test", "program", "--test", "rdma"]);
    judged(&Features::default_only().run(project, "default-features", words, deadline)?)
}

/// The explorer and the sweeps, optimised; some explorations run only nightly.
pub(super) fn explorer(project: &Project, nightly: bool) -> Step<'_> {
    Step::new("explorer", move |deadline| {
        let mut command = project.cargo(&STORIES);
        command.envs([CHECKED]);
        if nightly {
            // Tests that pass print their output only with this option.
            command.env(NIGHTLY, "1").args(["--", "--show-output"]);
        }
        let output = project.run(modest(command), "explorer", deadline)?;
        Ok(judged(&output)? + &bounds(&output))
    })
}

/// Explorations that end at a bound of time, if not before. The note says how far each came.
pub(super) fn deep(project: &Project, deadline: Instant) -> Outcome {
    let mut command = project.cargo(&STORIES);
    command.args(["--", DEEP, "--show-output", DEEP_THREADS]);
    command.env(DEEP_SECONDS.0, DEEP_SECONDS.1.to_string());
    let output = project.run(modest(command), "deep", deadline)?;
    let ended = output.lines().filter(|line| line.starts_with("exhausted: ")).count();
    let note = judged(&output)? + &bounds(&output);
    Ok(format!("{note}; {ended} exhausted"))
}

/// The tests of the broken variants: a minute of a processor, which does not justify a second optimised
/// build.
pub(super) fn with_variants(project: &Project, nightly: bool) -> Step<'_> {
    Step::new("variants", move |deadline| {
        let words =
            ["test", "--package", "sim-tests", "--features", "variants", "--test", "stories"];
        let mut command = variants::cargo_with_variants(project, &words)?;
        command.args(["--", VARIANTS]).envs(nightly.then_some((NIGHTLY, "1")));
        // Few of its crates have the features of the other builds, which would wait for the folder.
        command.env("CARGO_TARGET_DIR", project.scratch().join("variants"));
        judged(&project.run(modest(command), "variants", deadline)?)
    })
}

/// Returns the explorations that ended at their bound, for the note.
fn bounds(output: &str) -> String {
    let rests = output.lines().filter(|line| line.starts_with("not exhausted: "));
    let rests: Vec<&str> = rests.collect();
    if rests.is_empty() {
        return String::new();
    }
    format!("; {} explorations {}", rests.len(), rests.join("; "))
}

/// Runs the seeded tests twice; their output must not differ.
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

/// Returns the first lines that differ, without the times printed by cargo and the test harness.
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

/// Returns the number of passed tests.
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

    /// A test target and the library of its package may have one name: the binaries are not taken for each other.
    #[test]
    fn binary_of_a_library_has_another_name() {
        let project = Project::find().unwrap();
        let name = |kind: &str| {
            let manifest = project.root().join("sim-tests/conformance/Cargo.toml");
            let artifact = serde_json::json!({
                "reason": "compiler-artifact", "package_id": "p", "manifest_path": manifest,
                "target": {
                    "kind": [kind], "crate_types": ["bin"], "name": "conformance", "src_path": "/x",
                    "edition": "2024", "doc": true, "doctest": false, "test": true,
                },
                "profile": {
                    "opt_level": "0", "debuginfo": 0, "debug_assertions": true, "test": true,
                    "overflow_checks": true,
                },
                "features": [], "filenames": [], "executable": "/x/conformance-1", "fresh": true,
            });
            let artifact: Artifact = serde_json::from_value(artifact).unwrap();
            TestBinary::of(project.root(), &artifact).unwrap().unwrap().name
        };
        assert_eq!(name("test"), "sim-tests/conformance/conformance");
        assert_eq!(name("lib"), "sim-tests/conformance/conformance (library)");
    }

    /// Two programs run at the same time, and the processor time of both counts.
    #[test]
    fn programs_run_side_by_side() {
        let barrier = std::sync::Barrier::new(2);
        take_processor_time();
        let ended = side_by_side(|| {
            add_processor_time(std::time::Duration::from_secs(1));
            // Neither of them passes alone.
            barrier.wait();
            7
        });
        assert_eq!((ended, take_processor_time().as_secs()), (vec![7, 7], 2));
        assert!(place(PROGRAM) < place("diagnosis/stories") && place("core/any") == WAITING.len());
    }

    /// A renamed binary would run without its arguments, or would no longer be excluded.
    #[test]
    fn binary_with_a_choice_exists() {
        let root = Project::find().unwrap().root().to_owned();
        let named = ARGUMENTS
            .iter()
            .map(|(name, _)| *name)
            .chain(LONG)
            .chain(WAITING)
            .chain([EXPLORATIONS]);
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
