//! The features that the tests are built with. All of them share one build: a second set of features
//! would compile the workspace, and half of what it depends on, once more.

use crate::command::{Finished, cargo, run as run_command};
use crate::fleet;
use crate::project::Project;
use crate::report::Outcome;
use crate::verbs::{HEADERS, VerbsBuild};
use std::ffi::OsString;
use std::process::Command;
use std::time::Instant;

/// Options of cargo and variables of a build.
pub(crate) struct Features {
    /// Every package is selected, whichever targets are named: the features of common dependencies
    /// add up over the selected packages.
    options: Vec<&'static str>,
    verbs: Option<VerbsBuild>,
    variables: Vec<(&'static str, OsString)>,
}

impl Features {
    /// `verbs` and `etcd`, each where what it is built from was unpacked.
    pub(crate) fn available(project: &Project, deadline: Instant) -> Self {
        Self::with_verbs(project, deadline).unwrap_or_else(|_| Self::without_verbs(project))
    }

    /// The same, or why nothing can be built with the feature `verbs`.
    pub(crate) fn with_verbs(project: &Project, deadline: Instant) -> Result<Self, Outcome> {
        if !HEADERS.is_present(project) {
            let names = HEADERS.packages.join(", ");
            let why = format!("these packages could not be unpacked: {names}");
            return Err(Outcome::Skipped(why));
        }
        let verbs = VerbsBuild::prepare(project, deadline)
            .map_err(|error| Outcome::Skipped(format!("{error:#}")))?;
        let mut features = Self::without_verbs(project);
        features.verbs = Some(verbs);
        features.options.extend(["--features", "verbs"]);
        Ok(features)
    }

    /// `etcd`, where that can be built. Other crates have the features that they have with `verbs`.
    pub(crate) fn without_verbs(project: &Project) -> Self {
        let mut features = Self::default_only();
        if let Some(variables) = fleet::etcd_build(project) {
            variables.into_iter().for_each(|(name, value)| features.set(name, value));
            features.options.extend(["--features", "etcd"]);
        }
        features
    }

    /// None but those that users get unasked.
    pub(crate) fn default_only() -> Self {
        Self { options: vec!["--workspace"], verbs: None, variables: Vec::new() }
    }

    /// Adds a variable.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.variables.push((name, value.into()));
    }

    /// `cargo VERB` of the workspace with these features and `rest`.
    pub(crate) fn cargo(&self, project: &Project, verb: &[&str], rest: &[&str]) -> Command {
        let words = [verb, &self.options, rest].concat();
        let mut command = cargo(project.root(), words);
        if let Some(verbs) = &self.verbs {
            verbs.apply(&mut command);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs it with its output in the log of that name.
    pub(crate) fn run(
        &self,
        project: &Project,
        log: &str,
        (verb, rest): (&[&str], &[&str]),
        deadline: Instant,
    ) -> Finished {
        let log = project.scratch().join(format!("{log}.log"));
        run_command(self.cargo(project, verb, rest), log, deadline)
    }
}
