//! The tests other than the sweeps, with each broken variant of the engine's input and output.

use super::built::{Built, Run};
use super::engine::{NONE, PLAIN, Row, UNMEASURED, table};
use crate::project::Project;
use crate::report::{Outcome, of_findings};
use anyhow::{Result, ensure};
use std::collections::BTreeSet;
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
/// The package whose programs have nothing of the engine.
const TRANSPORT: &str = "transport-tcp";
const BUILD_TIMEOUT: Duration = Duration::from_secs(3_600);
/// Time for the tests of one program.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(1_200);

/// Builds the tests once with every variant, and runs them for variants of these names, or all. A test
/// notices a variant if it fails twice with it, the second time alone, and passes without.
///
/// # Errors
/// A variant is not noticed by the test that the table names, or is noticed although the table says
/// `none`; a program fails with a variant, and none of its tests does.
pub(super) fn others(project: &Project, names: &[String]) -> Outcome {
    let rows = table(project)?;
    for name in names {
        ensure!(rows.iter().any(|row| row.variant == *name), "no variant {name}");
    }
    let is_chosen = |row: &&Row| names.is_empty() || names.contains(&row.variant);
    let tests = Tests { built: Built::new(project, Instant::now() + BUILD_TIMEOUT)? };
    let (mut passing, mut wrong) = (0, Vec::new());
    for Row { variant, other, changes, .. } in rows.iter().filter(is_chosen) {
        let found = match &**other {
            NONE | UNMEASURED => tests.search(variant, changes)?,
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
    built: Built<'a>,
}

impl Tests<'_> {
    /// Returns the first test that notices a variant of these crates, by program and name.
    fn search(&self, variant: &str, changes: &BTreeSet<String>) -> Result<Option<String>> {
        let is_of_transport = changes.iter().any(|name| name.starts_with("transport"));
        let has_it = |name: &&&str| {
            (**name != OF_VERBS || self.built.has_verbs)
                && (is_of_transport || !name.starts_with(TRANSPORT))
        };
        for program in OTHERS.iter().filter(has_it) {
            for test in self.run(program, variant, None)? {
                let listed = format!("{program} {test}");
                if self.notices(&listed, variant) {
                    return Ok(Some(listed));
                }
            }
        }
        Ok(None)
    }

    /// Whether a test alone fails with the variant, and passes without.
    fn notices(&self, listed: &str, variant: &str) -> bool {
        let Some((program, test)) = listed.split_once(' ') else { return false };
        let fails =
            |variant| self.run(program, variant, Some(test)).map(|failed| !failed.is_empty());
        matches!((fails(variant), fails(PLAIN)), (Ok(true), Ok(false)))
    }

    /// Runs the tests of a program, or one of them, and returns those that fail.
    fn run(&self, program: &str, variant: &str, test: Option<&str>) -> Result<BTreeSet<String>> {
        let arguments: Vec<&str> = test.into_iter().flat_map(|test| ["--exact", test]).collect();
        let ended = self.built.run(Run {
            program,
            variant,
            arguments: &arguments,
            variable: None,
            log: format!("engine-variant-others-{variant}-{}", program.replace('/', "-")),
            deadline: Instant::now() + PROGRAM_TIMEOUT,
        })?;
        let is_there = test.is_none() || !ended.output.contains("running 0 tests");
        ensure!(is_there, "{program} has no test {}", test.unwrap_or_default());
        Ok(ended.failed)
    }
}
