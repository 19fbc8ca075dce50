//! A copy of the repository in which one mutant at a time is built and tested, as cheaply as may be.

use super::fates::{Fate, Fates};
use crate::command::{Finished, cargo, run as run_command};
use crate::project::Project;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The mutated files.
const FILES: [&str; 2] = ["core/src/node/*.rs", "core/src/transfer/*.rs"];
/// Profile that builds changed crates quickly and optimises the others.
const PROFILE: &str = "mutation";
/// For what waits and does not compute.
const TEST_SECONDS_MAX: &str = "600";
/// Memory limit of tests, in KiB of address space.
const MEMORY_KIB_MAX: &str = "6291456";
/// For the first build, which is the only whole one.
const BASELINE: Duration = Duration::from_secs(900);

/// Tests that a mutant is put to, unless an earlier stage has noticed it.
struct Stage {
    package: &'static str,
    /// Long-running test modules to skip.
    skip: &'static [&'static str],
    /// A change may make a loop endless. What takes several times the processor time that the tests
    /// need, however busy the machine is otherwise, is endless.
    processor_seconds_max: &'static str,
    noticed: Fate,
}

const STAGES: [Stage; 2] = [
    Stage {
        package: "handfast-core",
        skip: &[],
        processor_seconds_max: "8",
        noticed: Fate::KilledByCore,
    },
    Stage {
        package: "sim-tests",
        skip: &["application::", "replay::", "shipping::", "sweep::"],
        processor_seconds_max: "30",
        noticed: Fate::KilledByExplorer,
    },
];

/// Ends with the processor time of all that it has started.
const TIMED: &str = "cargo \"$@\"; status=$?; times; exit $status";

/// Log lines of a test binary that hit a bound.
const BOUND_HIT: [&str; 2] = ["(signal: 24", "memory allocation of "];

/// One change.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mutant {
    pub(super) name: String,
    file: String,
}

/// A copy of the repository for changes in place, with a separate target folder.
pub(super) struct Bench {
    root: PathBuf,
    pub(super) folder: PathBuf,
    tree: PathBuf,
    /// The files that are mutated, as they were when the run began.
    kept: BTreeMap<PathBuf, Vec<u8>>,
    /// Mutants judged in this run, and their processor time.
    tried: usize,
    processor: Duration,
}

impl Bench {
    pub(super) fn new(project: &Project) -> Self {
        let folder = project.scratch().join("mutation");
        Self {
            root: project.root().to_owned(),
            tree: folder.join("tree"),
            folder,
            kept: BTreeMap::new(),
            tried: 0,
            processor: Duration::ZERO,
        }
    }

    /// Brings the copy up to date with every file that git tracks or would; what is equal keeps its time,
    /// so that only what changed is built again.
    pub(super) fn copy(&self) -> Result<()> {
        let mut git = Command::new("git");
        git.current_dir(&self.root);
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let listing = git.output().context("git ls-files")?;
        ensure!(listing.status.success(), "git lists no files: {}", listing.status);
        let listing = String::from_utf8(listing.stdout).context("names of files")?;
        for file in listing.split('\0').filter(|file| !file.is_empty()) {
            let (from, to) = (self.root.join(file), self.tree.join(file));
            // A file that is gone from the disk is about to be gone from the index.
            let Ok(bytes) = fs::read(&from) else { continue };
            if fs::read(&to).is_ok_and(|kept| kept == bytes) {
                continue;
            }
            fs::create_dir_all(to.parent().context("a file is in a folder")?)?;
            fs::write(&to, bytes).with_context(|| to.display().to_string())?;
        }
        Ok(())
    }

    pub(super) fn keep(&mut self, listed: &[Mutant]) -> Result<()> {
        let files: BTreeSet<PathBuf> =
            listed.iter().map(|mutant| self.tree.join(&mutant.file)).collect();
        for file in files {
            let bytes = fs::read(&file).with_context(|| file.display().to_string())?;
            self.kept.insert(file, bytes);
        }
        Ok(())
    }

    /// The line that a mutant changes, without its indentation.
    pub(super) fn line(&self, name: &str) -> String {
        let mut place = name.splitn(3, ':');
        let file = self.kept.get(&self.tree.join(place.next().unwrap_or_default()));
        let number = place.next().and_then(|number| number.parse::<usize>().ok());
        let text = String::from_utf8_lossy(file.map_or(&[], Vec::as_slice));
        let line = number.and_then(|number| text.lines().nth(number.checked_sub(1)?));
        line.unwrap_or_default().trim().to_owned()
    }

    /// A run that was cut short leaves its change behind.
    fn restore(&self) -> Result<()> {
        for (file, bytes) in &self.kept {
            if fs::read(file).is_ok_and(|found| found != *bytes) {
                fs::write(file, bytes).with_context(|| file.display().to_string())?;
            }
        }
        Ok(())
    }

    pub(super) fn list(&self) -> Result<Vec<Mutant>> {
        let mut command = cargo(&self.root, ["mutants", "--list", "--json"]);
        command.args(FILES.iter().flat_map(|file| ["--file", file]));
        let output = command.output().context("cargo mutants")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        parse_list(&output.stdout)
    }

    /// Of the files that are mutated: when one of them changes, what was found says nothing.
    pub(super) fn digest(&self) -> String {
        let digest = self.kept.values().fold(0, |digest, file| xxh3_64_with_seed(file, digest));
        format!("files {digest:016x}")
    }

    /// The tests pass where nothing is changed.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        for stage in &STAGES {
            let mut command = cargo(&self.tree, ["test", "--profile", PROFILE]);
            command.args(["--package", stage.package]).args(test_arguments(stage));
            self.prepare(&mut command);
            let log = self.folder.join("unchanged.log");
            let finished = run_command(command, log.clone(), Instant::now() + BASELINE);
            if !finished.succeeded() {
                bail!("the tests fail where nothing is changed; see {}", log.display());
            }
        }
        Ok(())
    }

    /// Outcome of each mutant, as far as the time suffices.
    pub(super) fn try_out(&mut self, mutants: &[&Mutant], deadline: Instant) -> Result<Fates> {
        let mut fates = Fates::new();
        let mut left = mutants.to_vec();
        for stage in &STAGES {
            let mut found = self.put_to(stage, &left, deadline)?;
            let endless = |mutant: &&Mutant| found.get(&mutant.name) == Some(&Fate::Endless);
            let twice: Vec<&Mutant> = left.iter().copied().filter(endless).collect();
            for mutant in &twice {
                found.remove(&mutant.name);
            }
            found.extend(self.put_to(stage, &twice, deadline)?);
            let passed = |mutant: &&Mutant| found.get(&mutant.name) == Some(&Fate::Survived);
            left.retain(passed);
            found.retain(|_, fate| *fate != Fate::Survived);
            fates.extend(found);
        }
        self.tried += fates.len() + left.len();
        fates.extend(left.iter().map(|mutant| (mutant.name.clone(), Fate::Survived)));
        Ok(fates)
    }

    /// Cost of one mutant so far.
    pub(super) fn spent(&self) -> String {
        let tenths = (self.processor.as_millis() / 100).checked_div(self.tried as u128);
        let tenths = tenths.unwrap_or(0);
        format!("{}.{} s of a processor each", tenths / 10, tenths % 10)
    }

    fn put_to(&mut self, stage: &Stage, mutants: &[&Mutant], deadline: Instant) -> Result<Fates> {
        if mutants.is_empty() || Instant::now() >= deadline {
            return Ok(Fates::new());
        }
        self.restore()?;
        let outcomes = self.folder.join("mutants.out/outcomes.json");
        if outcomes.exists() {
            fs::remove_file(&outcomes)?;
        }
        let finished = self.run_mutants(stage, mutants, deadline);
        self.processor += processor_time(&finished.output()).unwrap_or_default();
        let Ok(text) = fs::read(&outcomes) else {
            ensure!(Instant::now() >= deadline, "no outcomes:\n{}", finished.output());
            return Ok(Fates::new());
        };
        // It is cut short together with the run that writes it.
        let log = |path: &str| {
            fs::read(self.folder.join("mutants.out").join(path)).with_context(|| path.to_owned())
        };
        let found = parse_outcomes(&text, stage.noticed, log);
        let mut found = found.or_else(|error| match Instant::now() >= deadline {
            true => Ok(Fates::new()),
            false => Err(error),
        })?;
        // cargo-mutants 27.1 also omits fields of expressions outside the requested files.
        found.retain(|name, _| mutants.iter().any(|mutant| mutant.name == *name));
        Ok(found)
    }

    /// Its exit code says whether something survived, which the outcomes say better.
    fn run_mutants(&self, stage: &Stage, mutants: &[&Mutant], deadline: Instant) -> Finished {
        let mut command = Command::new("sh");
        command.args(["-c", TIMED, "sh"]);
        command.current_dir(&self.tree).args(["mutants", "--in-place", "--baseline", "skip"]);
        command.args(["--no-shuffle", "--colors", "never"]);
        command.args(["--profile", PROFILE, "--timeout", TEST_SECONDS_MAX]);
        command.arg("--cargo-arg").arg(bounded(stage));
        command.arg("--output").arg(&self.folder);
        for mutant in mutants {
            command.args(["--file", &mutant.file]);
            command.args(["--re", &format!("^{}$", escape(&mutant.name))]);
        }
        command.args(["--test-package", stage.package]);
        command.arg("--").args(test_arguments(stage));
        self.prepare(&mut command);
        run_command(command, self.folder.join("mutants.log"), deadline)
    }

    fn prepare(&self, command: &mut Command) {
        command.env("CARGO_TARGET_DIR", self.folder.join("target")).env("RUST_BACKTRACE", "0");
        // The same cases every time, and no search for a small one where any failure will do.
        command.env("PROPTEST_RNG_SEED", "1").env("PROPTEST_MAX_SHRINK_ITERS", "1024");
    }
}

/// For cargo: every test binary is run with these bounds, and no compiler is.
fn bounded(stage: &Stage) -> String {
    let (seconds, kib) = (stage.processor_seconds_max, MEMORY_KIB_MAX);
    let shell = format!(r#"ulimit -S -t {seconds} && ulimit -v {kib} && exec "$0" "$@""#);
    format!("--config=target.'cfg(all())'.runner=['sh', '-c', '{shell}']")
}

/// For cargo: of a package the stories alone, without those that take long.
fn test_arguments(stage: &Stage) -> Vec<&'static str> {
    let mut arguments = vec!["--test", "stories", "--"];
    stage.skip.iter().for_each(|module| arguments.extend(["--skip", module]));
    arguments
}

fn parse_list(json: &[u8]) -> Result<Vec<Mutant>> {
    let listed: Value = serde_json::from_slice(json).context("the list of mutants")?;
    let text = |mutant: &Value, key: &str| mutant[key].as_str().map(str::to_owned);
    let listed = listed.as_array().context("the list of mutants is a list")?;
    let mutants: Option<Vec<Mutant>> = listed
        .iter()
        .map(|mutant| Some(Mutant { name: text(mutant, "name")?, file: text(mutant, "file")? }))
        .collect();
    mutants.context("every mutant has a name and a file")
}

fn parse_outcomes(
    json: &[u8],
    noticed: Fate,
    log: impl Fn(&str) -> Result<Vec<u8>>,
) -> Result<Fates> {
    let outcomes: Value = serde_json::from_slice(json).context("outcomes of mutants")?;
    let mut fates = Fates::new();
    for outcome in outcomes["outcomes"].as_array().context("a list of outcomes")? {
        let Some(name) = outcome["scenario"]["Mutant"]["name"].as_str() else { continue };
        let summary = outcome["summary"].as_str().unwrap_or_default();
        let fate = match summary {
            "CaughtMutant" | "Timeout" => {
                let path = outcome["log_path"].as_str().context("a log of the tests")?;
                let text = String::from_utf8_lossy(&log(path)?).into_owned();
                let failed = text.lines().any(|line| line.ends_with("... FAILED"));
                let bound = summary == "Timeout" || BOUND_HIT.iter().any(|it| text.contains(it));
                if bound && !failed { Fate::Endless } else { noticed }
            }
            "MissedMutant" => Fate::Survived,
            "Unviable" => {
                let path = outcome["log_path"].as_str().context("a log of the build")?;
                if String::from_utf8_lossy(&log(path)?).contains("(signal: ") {
                    continue; // The compiler was killed: that says nothing of the mutant.
                }
                Fate::Unviable
            }
            other => bail!("'{other}' is no end of a mutant"),
        };
        fates.insert(name.to_owned(), fate);
    }
    Ok(fates)
}

/// Total processor time from the last line of a shell's `times`.
fn processor_time(output: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    for word in output.lines().last()?.split_whitespace() {
        let (minutes, seconds) = word.strip_suffix('s')?.split_once('m')?;
        let (seconds, fraction) = seconds.split_once('.')?;
        let millis = fraction.get(..3).unwrap_or(fraction).parse::<u64>().ok()?;
        let minutes = minutes.parse::<u64>().ok()?;
        let seconds = seconds.parse::<u64>().ok()?;
        total += Duration::from_millis((60 * minutes + seconds) * 1000 + millis);
    }
    Some(total)
}

/// A regular expression that matches the text and nothing else.
fn escape(text: &str) -> String {
    let special = |letter: char| r"\.+*?()|[]{}^$#&-~".contains(letter);
    let escaped = |letter: char| special(letter).then_some('\\').into_iter().chain([letter]);
    text.chars().flat_map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_is_noticed_by_the_stage_that_was_run_unless_its_tests_did_not_end() {
        let json = r#"{"outcomes": [
            {"scenario": "Baseline", "summary": "Success"},
            {"scenario": {"Mutant": {"name": "a"}}, "summary": "CaughtMutant", "log_path": "1"},
            {"scenario": {"Mutant": {"name": "b"}}, "summary": "MissedMutant", "log_path": "2"},
            {"scenario": {"Mutant": {"name": "c"}}, "summary": "Timeout", "log_path": "3"},
            {"scenario": {"Mutant": {"name": "d"}}, "summary": "CaughtMutant", "log_path": "4"},
            {"scenario": {"Mutant": {"name": "e"}}, "summary": "Unviable", "log_path": "5"},
            {"scenario": {"Mutant": {"name": "f"}}, "summary": "Unviable", "log_path": "6"}]}"#;
        let log = |path: &str| {
            Ok(match path {
                "1" => b"test x ... FAILED\ntest result: FAILED\n(signal: 24)".to_vec(),
                "4" => b"test x ... ok\n(signal: 24)".to_vec(),
                "6" => b"error: could not compile\n(signal: 9)".to_vec(),
                _ => b"test x ... ok\n".to_vec(),
            })
        };
        let fates = parse_outcomes(json.as_bytes(), Fate::KilledByCore, log).unwrap();
        let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(|name| fates[name]);
        assert_eq!((a, b, c), (Fate::KilledByCore, Fate::Survived, Fate::Endless));
        assert_eq!((d, e), (Fate::Endless, Fate::Unviable));
        assert!(!fates.contains_key("f"), "a compiler that was killed says nothing");
        assert!(parse_outcomes(b"{\"outcomes\": [", Fate::KilledByCore, log).is_err());
    }

    #[test]
    fn processor_time_is_that_of_the_children_and_none_if_the_shell_was_killed() {
        let output = "killed\n0m0.00s 0m0.00s\n1m2.345678s 0m0.25s\n";
        assert_eq!(processor_time(output), Some(Duration::from_millis(62_345 + 25)));
        assert_eq!(processor_time("12 mutants tested\n"), None);
        assert_eq!(processor_time(""), None);
    }

    #[test]
    fn a_name_is_matched_letter_by_letter() {
        let name = "x.rs:1:2: replace f -> Option<u8> with Some([0; 1]) | {}";
        assert_eq!(
            escape(name),
            r"x\.rs:1:2: replace f \-> Option<u8> with Some\(\[0; 1\]\) \| \{\}"
        );
    }
}
