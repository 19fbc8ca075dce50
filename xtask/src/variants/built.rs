//! The tests of the engine, built once with every broken variant; a variable of the environment names the
//! variant of a process.

use super::engine::VARIANTS;
use super::{cargo_with, folder};
use crate::features::Features;
use crate::project::Project;
use crate::stages::TestBinary;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;

/// The variable that names the variant of a process.
const PLANTED: &str = "HANDFAST_PLANTED";
const MESSAGES: &str = "--message-format=json-render-diagnostics";
/// The test programs that are not of a library.
const PROGRAMS: [&str; 8] =
    ["sweeps", "lanes", "slices", "stories", "stores", "verbs", "every_failure", "program"];
/// Ends the name of the test program of a library.
const LIBRARY: &str = " (library)";
/// cargo's line about a test program in which a test failed.
const RED: &str = "test result: FAILED";

/// The built test programs.
pub(super) struct Built<'a> {
    project: &'a Project,
    features: Features,
    /// Whether the feature `verbs` is built.
    pub(super) has_verbs: bool,
    programs: Vec<TestBinary>,
}

/// A run of a test program.
pub(super) struct Run<'a> {
    /// The folder of its package, and its name there.
    pub(super) program: &'a str,
    pub(super) variant: &'a str,
    pub(super) arguments: &'a [&'a str],
    /// A further variable.
    pub(super) variable: Option<(&'a str, String)>,
    /// Name of the log.
    pub(super) log: String,
    pub(super) deadline: Instant,
}

/// The end of a run.
pub(super) struct Ended {
    pub(super) output: String,
    /// Names of the tests that failed, or had not ended when their program was killed.
    pub(super) failed: BTreeSet<String>,
}

impl<'a> Built<'a> {
    /// Builds [`PROGRAMS`] and the tests of every library: dependencies have the features that they have in
    /// the other stages, and are not compiled again.
    pub(super) fn new(project: &'a Project, deadline: Instant) -> Result<Self> {
        let features = Features::available(project, deadline);
        let words = ["test", "--workspace", "--no-run", "--lib", MESSAGES];
        let words: Vec<&str> = words.into_iter().chain(features.words()).collect();
        let has_verbs = features.words().any(|word| word == "verbs");
        let programs = PROGRAMS.iter().filter(|program| has_verbs || **program != "verbs");
        let programs = programs.flat_map(|program| ["--test", program]);
        let words: Vec<&str> = words.into_iter().chain(programs).collect();
        let mut command = cargo_with(project, &VARIANTS, &words)?;
        features.apply(&mut command);
        let output = project.run(command, "engine-variants-build", deadline)?;
        let programs = TestBinary::all(&folder(project, &VARIANTS), &output)?;
        Ok(Self { project, features, has_verbs, programs })
    }

    /// Returns the program of a name.
    fn program(&self, name: &str) -> Result<&TestBinary> {
        let named = |it: &&TestBinary| it.name.strip_suffix(LIBRARY).unwrap_or(&it.name) == name;
        self.programs.iter().find(named).with_context(|| format!("no tests {name}"))
    }

    /// Runs a program.
    ///
    /// # Errors
    /// It does not run, or fails without a failed test.
    pub(super) fn run(&self, run: Run<'_>) -> Result<Ended> {
        let Run { program, variant, arguments, variable, log, deadline } = run;
        let built = self.program(program)?;
        let mut command = built.command(&built.program, &self.features);
        command.env(PLANTED, variant).envs(variable).args(arguments);
        let ended = self.project.run(command, &log, deadline);
        let error = match ended {
            Ok(output) => return Ok(Ended { output, failed: BTreeSet::new() }),
            Err(error) => error,
        };
        let output = fs::read_to_string(self.project.scratch().join(format!("{log}.log")))?;
        let failed = red(&output);
        if failed.is_empty() || !(output.contains(RED) || Instant::now() >= deadline) {
            return Err(error.context(format!("{program} with {variant}")));
        }
        Ok(Ended { output, failed })
    }
}

/// The names of the tests that failed, or have begun and not ended.
fn red(output: &str) -> BTreeSet<String> {
    let lines = || output.lines().filter_map(|line| line.strip_prefix("test "));
    let ended = |end: &'static str| lines().filter_map(move |line| line.strip_suffix(end));
    let passed: BTreeSet<&str> = ended(" ... ok").collect();
    let slow = ended(" has been running for over 60 seconds");
    let hung = slow.filter(|test| !passed.contains(test));
    // Output of a test may tear the line of its end; the list after the last `failures:` is whole.
    let listed = output.rsplit_once("\nfailures:\n").map_or("", |(_, after)| after);
    let listed = listed.lines().map_while(|line| line.strip_prefix("    "));
    ended(" ... FAILED").chain(hung).chain(listed).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_read_from_output() {
        let slow = "has been running for over 60 seconds";
        let output = format!(
            "test b ... ok\ntest a::c ... FAILED\ntest d {slow}\ntest e {slow}\ntest e ... ok\n\
             test f ... skipped: no device\nFAILED\n\nfailures:\n\n---- a::c stdout ----\n    g\n\n\
             failures:\n    a::c\n    f\n\ntest result: FAILED. 1 passed\n"
        );
        assert_eq!(red(&output).into_iter().collect::<Vec<_>>(), ["a::c", "d", "f"]);
    }
}
