//! `cargo xtask coverage`: the lines of the core that its own tests do not run.

use crate::guest::Packages;
use crate::project::Project;
use crate::report::{Outcome, Stage, Step, Summary, as_skipped, of_findings, skipped};
use anyhow::Result;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Find the lines of the core that its tests do not run, and compare them with the explained ones
///
/// `core/uncovered.tsv` has the number of such lines of each file, and the reason. Further lines are a
/// failure and are named; fewer are counted, since a race of a test may run one. The explorer runs most
/// of them; this counts the tests of the core alone, which say what a line does. LLVM's tools are Debian
/// packages that are unpacked below cargo's target folder. Without them, or with a compiler whose profiles
/// they cannot read, the step is skipped.
///
/// Exit code: 0 if every line is run or explained, 1 if one is not.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Write the numbers of lines into the table; reasons stay, and a new file has none
    #[arg(long)]
    write: bool,
}

static TOOLS: Packages = Packages::of_system("coverage", &["llvm-19"]);
const TABLE: &str = "core/uncovered.tsv";
const SOURCES: &str = "core/src/";
const HEAD: &str = "file\tlines\treason\n";
const BUDGET: Duration = Duration::from_secs(600);

/// Times that each line of each file ran.
type Runs = BTreeMap<String, BTreeMap<u32, u64>>;
/// Lines of each file that no test runs.
type Uncovered = BTreeMap<String, BTreeSet<u32>>;
/// Explained lines of each file, and the reason.
type Explained = BTreeMap<String, (usize, String)>;

pub(crate) fn run(project: &Project, arguments: &Arguments) -> bool {
    let writes = arguments.write;
    let step = Step::new("core", move |deadline| lines(project, writes, deadline));
    let mut summary = Summary::default();
    let what = "lines of the core that its tests do not run";
    summary.run(Stage { name: "coverage", what, budget: BUDGET, steps: vec![step] });
    summary.finish()
}

fn lines(project: &Project, writes: bool, deadline: Instant) -> Outcome {
    let unpacked = TOOLS.ensure(project, deadline).map_err(as_skipped)?;
    let (programs, profiles) = tested(project, deadline)?;
    let merged = profiles.join("merged");
    let inputs = crate::guest::files_of(&profiles, ".profraw")?;
    let mut merge = tool(&unpacked, "llvm-profdata");
    merge.args(["merge", "--sparse", "--output"]).arg(&merged).args(inputs);
    project.run(merge, "coverage-merge", deadline).map_err(as_skipped)?;
    let mut runs = Runs::new();
    for program in programs {
        let mut export = tool(&unpacked, "llvm-cov");
        export.args(["export", "--format=lcov", "--instr-profile"]).arg(&merged).arg(program);
        let report = project.run(export, "coverage-export", deadline).map_err(as_skipped)?;
        count(&report, project.root(), &mut runs);
    }
    if runs.is_empty() {
        return Err(skipped("llvm-cov does not read the profiles of this compiler"));
    }
    let found = uncovered(&runs);
    let table = project.root().join(TABLE);
    let explained = explained(&fs::read_to_string(&table).unwrap_or_default());
    if writes {
        fs::write(table, text(&found, &explained))?;
    }
    let count: usize = found.values().map(BTreeSet::len).sum();
    let all: usize = runs.values().map(BTreeMap::len).sum();
    let fewer = explained
        .iter()
        .filter(|(file, (known, _))| found.get(*file).map_or(0, BTreeSet::len) < *known);
    let fewer = fewer.count();
    let note = format!(
        "{all} lines, {count} of them explained and the others run; {fewer} rows of {TABLE} say more"
    );
    of_findings(&compare(&found, &explained), note)
}

/// Builds and runs the tests; returns the programs and the folder of their profiles.
fn tested(project: &Project, deadline: Instant) -> Result<(Vec<PathBuf>, PathBuf)> {
    let (target, profiles) =
        (project.scratch().join("coverage"), project.scratch().join("coverage/profiles"));
    if profiles.exists() {
        fs::remove_dir_all(&profiles)?;
    }
    let cargo = |words: &[&str]| {
        let mut command =
            project.cargo(&["test", "--package", "handfast-core", "--lib", "--tests"]);
        command.args(words).env("RUSTFLAGS", "-Cinstrument-coverage");
        command.env("CARGO_TARGET_DIR", &target);
        command.env("LLVM_PROFILE_FILE", profiles.join("%p-%m.profraw"));
        command
    };
    let build = cargo(&["--no-run", "--message-format=json-render-diagnostics"]);
    let built = project.run(build, "coverage-build", deadline)?;
    project.run(cargo(&[]), "coverage-tests", deadline)?;
    let messages = built.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let program = |message: Value| message["executable"].as_str().map(PathBuf::from);
    Ok((messages.filter_map(program).collect(), profiles))
}

fn tool(unpacked: &Path, name: &str) -> Command {
    let mut command = Command::new(unpacked.join("usr/lib/llvm-19/bin").join(name));
    command.env("LD_LIBRARY_PATH", unpacked.join("usr/lib/x86_64-linux-gnu"));
    command
}

/// Adds the runs of the lines of the sources, without those of tests. Each program has copies of its own of
/// most functions.
fn count(report: &str, root: &Path, runs: &mut Runs) {
    let (mut file, mut end) = (None, u32::MAX);
    for line in report.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            let path = path.strip_prefix(&format!("{}/", root.display())).unwrap_or(path);
            let is_source = path.starts_with(SOURCES) && !path.contains("tests");
            file = is_source.then(|| path.to_owned());
            end = file.as_ref().map_or(u32::MAX, |path| tests_from(&root.join(path)));
        } else if let (Some(path), Some(data)) = (&file, line.strip_prefix("DA:")) {
            let mut numbers = data.split(',').map(str::parse::<u64>);
            if let (Some(Ok(number)), Some(Ok(times))) = (numbers.next(), numbers.next())
                && let Ok(number) = u32::try_from(number)
                && number < end
            {
                *runs.entry(path.clone()).or_default().entry(number).or_default() += times;
            }
        }
    }
}

fn uncovered(runs: &Runs) -> Uncovered {
    let never = |lines: &BTreeMap<u32, u64>| {
        let never = lines.iter().filter(|(_, times)| **times == 0);
        never.map(|(number, _)| *number).collect::<BTreeSet<_>>()
    };
    let files = runs.iter().map(|(file, lines)| (file.clone(), never(lines)));
    files.filter(|(_, lines)| !lines.is_empty()).collect()
}

/// The first line of the tests within a file.
fn tests_from(file: &Path) -> u32 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let begins = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].ends_with('{');
    let at = lines.windows(2).position(begins);
    at.and_then(|at| u32::try_from(at).ok()).map_or(u32::MAX, |at| at + 1)
}

fn explained(table: &str) -> Explained {
    let row = |line: &str| {
        let mut cells = line.split('\t');
        let (file, lines) = (cells.next()?, cells.next()?.parse().ok()?);
        Some((file.to_owned(), (lines, cells.next().unwrap_or_default().to_owned())))
    };
    table.lines().skip(1).filter_map(row).collect()
}

fn text(found: &Uncovered, explained: &Explained) -> String {
    let mut text = HEAD.to_owned();
    for (file, lines) in found {
        let reason = explained.get(file).map_or("", |(_, reason)| reason);
        let _ = writeln!(text, "{file}\t{}\t{reason}", lines.len());
    }
    text
}

fn compare(found: &Uncovered, explained: &Explained) -> Vec<String> {
    let mut findings = Vec::new();
    for (file, lines) in found {
        let (known, reason) = explained.get(file).cloned().unwrap_or_default();
        if lines.len() > known {
            let (count, ranges) = (lines.len(), ranges(lines));
            findings.push(format!(
                "{file}: no test runs {count} lines, {known} are explained: {ranges}"
            ));
        } else if reason.is_empty() {
            findings.push(format!("{file}: {TABLE} gives no reason"));
        }
    }
    findings
}

fn ranges(lines: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for line in lines {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *line => *last = *line,
            _ => ranges.push((*line, *line)),
        }
    }
    let range = |(first, last): (u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.into_iter().map(range).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that ran never count, of sources alone and before their tests.
    #[test]
    fn lines_are_those_of_the_sources() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("core/src");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a.rs"), "fn a() {}\n\n#[cfg(test)]\nmod tests {\n}\n").unwrap();
        let at = root.path().display();
        let report = format!(
            "SF:{at}/core/src/a.rs\nDA:1,0\nDA:2,7\nDA:4,0\nSF:{at}/core/src/tests.rs\nDA:1,0\n\
             SF:/elsewhere/core.rs\nDA:1,0\n"
        );
        let mut runs = Runs::new();
        count(&report, root.path(), &mut runs);
        let found = uncovered(&runs);
        assert_eq!(found, Uncovered::from([("core/src/a.rs".into(), BTreeSet::from([1]))]));
        let other = format!("SF:{at}/core/src/a.rs\nDA:1,2\n");
        count(&other, root.path(), &mut runs);
        assert_eq!(uncovered(&runs), Uncovered::new(), "another program runs it");
    }

    /// More lines than are explained are named, and a row without a reason.
    #[test]
    fn unexplained_lines_are_named() {
        let found = Uncovered::from([("a".into(), BTreeSet::from([3, 4, 5, 9]))]);
        let table = |row: &str| explained(&format!("{HEAD}{row}\n"));
        assert_eq!(
            compare(&found, &table("a\t3\tof the device")),
            ["a: no test runs 4 lines, 3 are explained: 3-5, 9"]
        );
        assert_eq!(compare(&found, &table("a\t4\tof the device")), [""; 0]);
        assert_eq!(compare(&found, &table("a\t4\t")).len(), 1, "no reason");
        assert_eq!(compare(&found, &table("a\t5\tof the device")), [""; 0], "a race may run one");
        let written = text(&found, &table("a\t9\tof the device"));
        assert_eq!(written, format!("{HEAD}a\t4\tof the device\n"));
    }
}
