//! The tests other than the sweeps, with each broken variant of the engine's input and output.

use super::engine::{NONE, PLAIN, PLANTED, Row, UNMEASURED, VARIANTS, table};
use super::{cargo_with, folder};
use crate::features::Features;
use crate::project::Project;
use crate::report::{Outcome, of_findings};
use crate::stages::TestBinary;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

/// The test programs, by the folder of their package and their name: those of the crates that the patches
/// change, of the stores and of the program. Those that end early come first.
const OTHERS: [&str; 10] = [
    "transport-tcp/handfast_transport_tcp",
    "transport-tcp/lanes",
    "engine/handfast",
    "engine/slices",
    "engine/stories",
    "metadata/handfast_metadata",
    "metadata/stores",
    OF_VERBS,
    "engine/every_failure",
    "cli/program",
];
/// The one that only a build with the feature `verbs` has.
const OF_VERBS: &str = "engine/verbs";
const MESSAGES: &str = "--message-format=json-render-diagnostics";
const BUILD_TIMEOUT: Duration = Duration::from_secs(3_600);
/// Time for the tests of one program.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(1_200);

/// Builds the tests once with every variant, and runs them for variants of these names, or all. A test
/// notices a variant if it fails twice with it, the second time alone, and passes without.
///
/// # Errors
/// A variant is not noticed by the test that the table names, or is noticed although the table says
/// `none`; a test fails without a variant.
pub(super) fn others(project: &Project, names: &[String]) -> Outcome {
    let rows = table(project)?;
    let rows: Vec<&Row> =
        rows.iter().filter(|row| names.is_empty() || names.contains(&row.variant)).collect();
    let tests = Tests::build(project)?;
    if rows.iter().any(|row| [NONE, UNMEASURED].contains(&&*row.other)) {
        for program in &tests.programs {
            let failed = tests.run(program, PLAIN, None)?;
            ensure!(failed.is_empty(), "{} without a variant: {failed:?}", program.name);
        }
    }
    let (mut passing, mut wrong) = (0, Vec::new());
    for Row { variant, other, .. } in rows {
        let found = match &**other {
            NONE | UNMEASURED => tests.search(variant)?,
            listed => Some(listed.to_owned()).filter(|_| tests.notices(listed, variant)),
        };
        let found = found.unwrap_or_else(|| NONE.to_owned());
        anstream::println!("{variant}\t{found}");
        passing += usize::from(found == NONE);
        if *other != UNMEASURED && *other != found {
            wrong.push(format!("{variant}: '{other}' in the table, and '{found}' here"));
        }
    }
    of_findings(&wrong, format!("{passing} variants of the engine pass every other test"))
}

struct Tests<'a> {
    project: &'a Project,
    features: Features,
    programs: Vec<TestBinary>,
}

impl<'a> Tests<'a> {
    /// Builds every test program, with the features of the other stages.
    fn build(project: &'a Project) -> Result<Self> {
        let deadline = Instant::now() + BUILD_TIMEOUT;
        let features = Features::available(project, deadline);
        let words = ["test", "--workspace", "--no-run", MESSAGES];
        let words: Vec<&str> = words.into_iter().chain(features.words()).collect();
        let mut command = cargo_with(project, &VARIANTS, &words)?;
        features.apply(&mut command);
        let output = project.run(command, "engine-variant-others-build", deadline)?;
        let mut built = TestBinary::all(&folder(project, &VARIANTS), &output)?;
        let has_verbs = features.words().any(|word| word == "verbs");
        let mut programs = Vec::new();
        for name in OTHERS.iter().filter(|name| has_verbs || **name != OF_VERBS) {
            let place = built.iter().position(|binary| binary.name == **name);
            programs.push(built.swap_remove(place.with_context(|| format!("no tests {name}"))?));
        }
        Ok(Self { project, features, programs })
    }

    /// Returns the first test that notices a variant, by program and name.
    fn search(&self, variant: &str) -> Result<Option<String>> {
        for program in &self.programs {
            for test in self.run(program, variant, None)? {
                let listed = format!("{} {test}", program.name);
                if self.notices(&listed, variant) {
                    return Ok(Some(listed));
                }
            }
        }
        Ok(None)
    }

    /// Whether a test alone fails with the variant, and passes without.
    fn notices(&self, listed: &str, variant: &str) -> bool {
        let Some((name, test)) = listed.split_once(' ') else { return false };
        let Some(program) = self.programs.iter().find(|it| it.name == name) else { return false };
        let fails =
            |variant| self.run(program, variant, Some(test)).map(|failed| !failed.is_empty());
        matches!((fails(variant), fails(PLAIN)), (Ok(true), Ok(false)))
    }

    /// Runs the tests of a program, or one of them, and returns those that fail.
    fn run(
        &self,
        program: &TestBinary,
        variant: &str,
        test: Option<&str>,
    ) -> Result<BTreeSet<String>> {
        let mut command = program.command(&program.program, &self.features);
        command.env(PLANTED, variant);
        command.args(test.into_iter().flat_map(|test| ["--exact", test]));
        let log = format!("engine-variant-others-{variant}");
        let deadline = Instant::now() + PROGRAM_TIMEOUT;
        let Err(error) = self.project.run(command, &log, deadline) else {
            let is_there = test.is_none() || self.text(&log)?.contains("1 passed");
            ensure!(is_there, "{} has no test {}", program.name, test.unwrap_or_default());
            return Ok(BTreeSet::new());
        };
        let failed = red(&self.text(&log)?);
        if failed.is_empty() {
            return Err(error.context(format!("{} with {variant}", program.name)));
        }
        Ok(failed)
    }

    fn text(&self, log: &str) -> Result<String> {
        Ok(fs::read_to_string(self.project.scratch().join(format!("{log}.log")))?)
    }
}

/// The names of the tests that failed, or had not ended when their program was killed.
fn red(output: &str) -> BTreeSet<String> {
    let lines = || output.lines().filter_map(|line| line.strip_prefix("test "));
    let ended = |end: &'static str| lines().filter_map(move |line| line.strip_suffix(end));
    let passed: BTreeSet<&str> = ended(" ... ok").collect();
    let slow = ended(" has been running for over 60 seconds");
    let hung = slow.filter(|test| !passed.contains(test));
    ended(" ... FAILED").chain(hung).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_read_from_output() {
        let slow = "has been running for over 60 seconds";
        let output = format!(
            "test b ... ok\ntest a::c ... FAILED\ntest d {slow}\ntest e {slow}\ntest e ... ok\n\
             test result: FAILED. 1 passed\n"
        );
        assert_eq!(red(&output).into_iter().collect::<Vec<_>>(), ["a::c", "d"]);
    }
}
