//! `cargo xtask mutation`: small changes to the handshake and transfer files, each of which some
//! test should notice.

use crate::command::{cargo, run as run_command};
use crate::project::Project;
use crate::report::Summary;
use crate::setup;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What is changed. The broken variants beside the rules are changes themselves.
const FILES: [&str; 2] = ["core/src/node/*.rs", "core/src/transfer/*.rs"];
const VARIANTS: &str = "core/src/node/mutants.rs";
/// What has to notice: every story of the core, and of the explorer's package all but these.
const TESTS: [&str; 2] = ["handfast-core", "sim-tests"];
const TOO_LONG: [&str; 3] = ["shipping::", "variants::", "sweep::"];
/// The survivors that are known, and why they are let live.
const EXPLAINED: &str = "docs/mutation.md";
/// Mutants per run of cargo-mutants: what is lost at most when the time is up.
const CHUNK: usize = 12;
/// A change may make a loop endless; the tests take a few seconds.
const TEST_SECONDS_MAX: u64 = 40;
/// For the first build, which is the only whole one.
const BASELINE: Duration = Duration::from_secs(600);

/// Change the handshake and transfer code in many small ways and see which change no test notices
///
/// Takes a seeded sample of what cargo-mutants can do to core/src/node and core/src/transfer,
/// applies one change at a time to a copy of the repository, and runs the tests of handfast-core
/// and the short ones of sim-tests against it. What was found is kept in cargo's target folder: the
/// next run goes on where this one stops, until a changed file makes it begin anew.
///
/// Exit code: 0 if every survivor so far is explained in docs/mutation.md, 1 otherwise. What has not
/// been run is counted and is no failure.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many changes to try
    #[arg(long, default_value_t = 300)]
    count: usize,
    /// Which of all possible changes to try
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Stop after so long; a later run goes on
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Try those again that survived
    #[arg(long)]
    again: bool,
}

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Killed,
    /// Killed, by a test that did not end.
    TimedOut,
    Survived,
    /// It does not build.
    Unviable,
}

impl Fate {
    const ALL: [(Self, &'static str, &'static str); 4] = [
        (Self::Killed, "killed", "CaughtMutant"),
        (Self::TimedOut, "timed-out", "Timeout"),
        (Self::Survived, "survived", "MissedMutant"),
        (Self::Unviable, "unviable", "Unviable"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(fate, ..)| *fate == self).map_or("", |(_, name, _)| name)
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known, _)| *known == name).map(|(fate, ..)| *fate)
    }

    fn of_summary(summary: &str) -> Option<Self> {
        Self::ALL.iter().find(|(.., known)| *known == summary).map(|(fate, ..)| *fate)
    }
}

type Fates = BTreeMap<String, Fate>;

/// `cargo xtask mutation`.
pub(crate) fn run(project: Project, arguments: &Arguments) -> Result<bool> {
    let mut summary = Summary::default();
    summary.run(setup::stage_for(&project, &["mutation"]));
    ensure!(setup::MUTANTS.is_present(), "{} is missing", setup::MUTANTS.name);
    let deadline = Instant::now() + Duration::from_secs(60 * arguments.minutes);
    let bench = Bench::new(&project);
    bench.copy()?;
    let listed = bench.list()?;
    let names: Vec<&str> = listed.iter().map(|mutant| mutant.name.as_str()).collect();
    let sample = sample(&names, arguments.seed, arguments.count);
    let mut record = Record::read(&bench.folder.join("fates.txt"), &bench.digest(&listed)?)?;
    if arguments.again {
        record.fates.retain(|_, fate| *fate != Fate::Survived);
    }
    let mut left: Vec<&Mutant> = listed
        .iter()
        .filter(|mutant| sample.contains(mutant.name.as_str()))
        .filter(|mutant| !record.fates.contains_key(&mutant.name))
        .collect();
    anstream::println!("{} possible, {} sampled, {} to go", names.len(), sample.len(), left.len());
    if !left.is_empty() {
        bench.check_unchanged()?;
    }
    // Neighbours rebuild the same file.
    left.sort_by(|one, other| one.name.cmp(&other.name));
    for chunk in left.chunks(CHUNK) {
        if Instant::now() >= deadline {
            break;
        }
        let found = bench.try_out(chunk, deadline)?;
        record.fates.extend(found);
        record.write()?;
        anstream::println!("{}", tally(&record.fates, &sample));
    }
    report(&project, &record.fates, &sample)
}

/// Prints what is known of the sample, and says whether every survivor is explained.
fn report(project: &Project, fates: &Fates, sample: &BTreeSet<&str>) -> Result<bool> {
    let path = project.root().join(EXPLAINED);
    let explained = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let survivors: Vec<&str> =
        sample.iter().copied().filter(|name| fates.get(*name) == Some(&Fate::Survived)).collect();
    let (known, unknown): (Vec<&str>, Vec<&str>) =
        survivors.into_iter().partition(|name| is_explained(&explained, name));
    known.iter().for_each(|name| anstream::println!("survived, as explained: {name}"));
    unknown.iter().for_each(|name| anstream::println!("SURVIVED: {name}"));
    anstream::println!("{}", tally(fates, sample));
    Ok(unknown.is_empty())
}

/// Whether a page names the mutant, in backquotes and without the place, which moves.
fn is_explained(page: &str, name: &str) -> bool {
    page.contains(&format!("`{}`", without_place(name)))
}

/// `file:line:column: what` as `file: what`.
fn without_place(name: &str) -> String {
    match name.split_once(':') {
        Some((file, rest)) => {
            let what = rest.split_once(": ").map_or(rest, |(_, what)| what);
            format!("{file}: {what}")
        }
        None => name.to_owned(),
    }
}

fn tally(fates: &Fates, sample: &BTreeSet<&str>) -> String {
    let count = |fate| sample.iter().filter(|name| fates.get(**name) == Some(&fate)).count();
    let [killed, timed_out] = [Fate::Killed, Fate::TimedOut].map(count);
    let [survived, unviable] = [Fate::Survived, Fate::Unviable].map(count);
    let viable = killed + timed_out + survived;
    let run = viable + unviable;
    let per_mille = (1000 * (killed + timed_out)).checked_div(viable).unwrap_or(0);
    format!(
        "{run} of {} run: {killed} killed, {timed_out} timed out, {survived} survived, {unviable} \
         unviable; {}.{} % of the viable killed",
        sample.len(),
        per_mille / 10,
        per_mille % 10
    )
}

/// The `count` names that come first in the order of their hashes.
fn sample<'a>(names: &[&'a str], seed: u64, count: usize) -> BTreeSet<&'a str> {
    let mut ordered = names.to_vec();
    ordered.sort_by_key(|name| xxh3_64_with_seed(name.as_bytes(), seed));
    ordered.into_iter().take(count).collect()
}

/// One change.
#[derive(Debug, PartialEq, Eq)]
struct Mutant {
    name: String,
    file: String,
}

/// What was found, in a file: the digest of what is mutated, then one fate and name per line.
struct Record {
    path: PathBuf,
    digest: String,
    fates: Fates,
}

impl Record {
    fn read(path: &Path, digest: &str) -> Result<Self> {
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut lines = text.lines();
        let mut fates = Fates::new();
        if lines.next() == Some(digest) {
            for line in lines {
                let (fate, name) = line.split_once(' ').context("a line of the state file")?;
                let fate = Fate::named(fate).with_context(|| format!("'{fate}' is no fate"))?;
                fates.insert(name.to_owned(), fate);
            }
        }
        Ok(Self { path: path.to_owned(), digest: digest.to_owned(), fates })
    }

    fn write(&self) -> Result<()> {
        let mut text = format!("{}\n", self.digest);
        for (name, fate) in &self.fates {
            text.push_str(&format!("{} {name}\n", fate.name()));
        }
        fs::write(&self.path, text).with_context(|| self.path.display().to_string())
    }
}

/// A copy of the repository that is changed in place, with a target folder of its own.
struct Bench {
    root: PathBuf,
    folder: PathBuf,
    tree: PathBuf,
}

impl Bench {
    fn new(project: &Project) -> Self {
        let folder = project.scratch().join("mutation");
        Self { root: project.root().to_owned(), tree: folder.join("tree"), folder }
    }

    /// Brings the copy up to date with every file that git tracks; what is equal keeps its time,
    /// so that only what changed is built again.
    fn copy(&self) -> Result<()> {
        let mut git = Command::new("git");
        git.current_dir(&self.root).args(["ls-files", "-z"]);
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

    fn list(&self) -> Result<Vec<Mutant>> {
        let mut command = cargo(&self.root, ["mutants", "--list", "--json", "--exclude", VARIANTS]);
        command.args(FILES.iter().flat_map(|file| ["--file", file]));
        let output = command.output().context("cargo mutants")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        parse_list(&output.stdout)
    }

    /// Of the files that are mutated: when one of them changes, what was found says nothing.
    fn digest(&self, listed: &[Mutant]) -> Result<String> {
        let files: BTreeSet<&str> = listed.iter().map(|mutant| mutant.file.as_str()).collect();
        let mut digest = 0;
        for file in files {
            let bytes = fs::read(self.root.join(file)).with_context(|| file.to_owned())?;
            digest = xxh3_64_with_seed(&bytes, digest);
        }
        Ok(format!("files {digest:016x}"))
    }

    /// The tests pass where nothing is changed.
    fn check_unchanged(&self) -> Result<()> {
        let mut command = cargo(&self.tree, ["test"]);
        command.args(TESTS.iter().flat_map(|package| ["--package", package]));
        command.args(test_arguments());
        self.prepare(&mut command);
        let log = self.folder.join("unchanged.log");
        let finished = run_command(command, log.clone(), Instant::now() + BASELINE);
        if !finished.succeeded() {
            bail!("the tests fail where nothing is changed; see {}", log.display());
        }
        Ok(())
    }

    fn try_out(&self, mutants: &[&Mutant], deadline: Instant) -> Result<Fates> {
        // A run that was cut short leaves its change behind.
        self.copy()?;
        let outcomes = self.folder.join("mutants.out/outcomes.json");
        if outcomes.exists() {
            fs::remove_file(&outcomes)?;
        }
        let mut command = cargo(&self.tree, ["mutants", "--in-place", "--baseline", "skip"]);
        command.args(["--no-shuffle", "--colors", "never", "--exclude", VARIANTS]);
        command.args(["--timeout", &TEST_SECONDS_MAX.to_string()]);
        command.arg("--output").arg(&self.folder);
        for mutant in mutants {
            command.args(["--file", &mutant.file]);
            command.args(["--re", &format!("^{}$", escape(&mutant.name))]);
        }
        command.args(TESTS.iter().flat_map(|package| ["--test-package", package]));
        command.arg("--").args(test_arguments());
        self.prepare(&mut command);
        let log = self.folder.join("mutants.log");
        // Its exit code says whether something survived, which the outcomes say better.
        let finished = run_command(command, log, deadline);
        let Ok(text) = fs::read(&outcomes) else {
            ensure!(Instant::now() >= deadline, "no outcomes:\n{}", finished.output());
            return Ok(Fates::new());
        };
        // It is cut short together with the run that writes it.
        parse_outcomes(&text).or_else(|error| match Instant::now() >= deadline {
            true => Ok(Fates::new()),
            false => Err(error),
        })
    }

    /// Little is compiled again and again: time to build counts, speed of the tests hardly.
    fn prepare(&self, command: &mut Command) {
        command.env("CARGO_TARGET_DIR", self.folder.join("target"));
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "false");
        command.env("CARGO_INCREMENTAL", "1").env("RUST_BACKTRACE", "0");
    }
}

/// For cargo: of each package the stories alone, without those that take long.
fn test_arguments() -> Vec<&'static str> {
    let mut arguments = vec!["--test", "stories", "--"];
    TOO_LONG.iter().for_each(|module| arguments.extend(["--skip", module]));
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

fn parse_outcomes(json: &[u8]) -> Result<Fates> {
    let outcomes: Value = serde_json::from_slice(json).context("outcomes of mutants")?;
    let outcomes = outcomes["outcomes"].as_array().context("a list of outcomes")?;
    let fate = |outcome: &Value| {
        let name = outcome["scenario"]["Mutant"]["name"].as_str()?;
        Some((name.to_owned(), Fate::of_summary(outcome["summary"].as_str()?)?))
    };
    Ok(outcomes.iter().filter_map(fate).collect())
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
    fn a_sample_is_a_function_of_its_seed_and_a_larger_one_has_the_smaller_in_it() {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        assert_eq!(sample(&names, 1, 3), sample(&names, 1, 3));
        assert!(sample(&names, 1, 5).is_superset(&sample(&names, 1, 3)));
        assert!((2..20).any(|seed| sample(&names, seed, 3) != sample(&names, 1, 3)));
        assert_eq!(sample(&names, 1, 100).len(), names.len());
    }

    #[test]
    fn outcomes_are_read_and_the_unchanged_build_is_none() {
        let json = r#"{"outcomes": [
            {"scenario": "Baseline", "summary": "Success"},
            {"scenario": {"Mutant": {"name": "a"}}, "summary": "CaughtMutant"},
            {"scenario": {"Mutant": {"name": "b"}}, "summary": "MissedMutant"},
            {"scenario": {"Mutant": {"name": "c"}}, "summary": "Timeout"},
            {"scenario": {"Mutant": {"name": "d"}}, "summary": "Unviable"}]}"#;
        let fates = parse_outcomes(json.as_bytes()).unwrap();
        let sampled = ["a", "b", "c", "d", "e"].into_iter().collect();
        assert_eq!(
            tally(&fates, &sampled),
            "4 of 5 run: 1 killed, 1 timed out, 1 survived, 1 unviable; 66.6 % of the viable killed"
        );
        assert!(parse_outcomes(b"{\"outcomes\": [").is_err());
    }

    #[test]
    fn a_record_goes_on_until_a_mutated_file_changes() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("fates.txt");
        let mut record = Record::read(&path, "files 1").unwrap();
        record.fates.insert("x.rs:1:2: replace < with > in f".into(), Fate::Survived);
        record.write().unwrap();
        assert_eq!(Record::read(&path, "files 1").unwrap().fates, record.fates);
        assert_eq!(Record::read(&path, "files 2").unwrap().fates, Fates::new());
    }

    #[test]
    fn a_survivor_is_explained_by_its_name_wherever_the_line_moves() {
        let page = "| `core/src/node/lane.rs: replace A::b with ()` | it is only counted |";
        assert!(is_explained(page, "core/src/node/lane.rs:3:4: replace A::b with ()"));
        assert!(is_explained(page, "core/src/node/lane.rs:30:4: replace A::b with ()"));
        assert!(!is_explained(page, "core/src/node/lane.rs:3:4: replace A::c with ()"));
        assert!(!is_explained(page, "core/src/node/peers.rs:3:4: replace A::b with ()"));
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
