//! The features with which the tests are built. They all share one build: a second set of features
//! would compile the workspace, and half of its dependencies, once more.

use crate::fleet;
use crate::project::Project;
use crate::report::{as_skipped, skipped};
use crate::verbs::{HEADERS, VerbsBuild};
use anyhow::Result;
use std::ffi::OsString;
use std::process::Command;
use std::time::Instant;

/// Options of cargo and variables of a build.
pub(crate) struct Features {
    /// Every package is selected, even with other targets: features of common dependencies are
    /// unified over the selected packages.
    options: Vec<&'static str>,
    verbs: Option<VerbsBuild>,
    variables: Vec<(&'static str, OsString)>,
}

impl Features {
    /// `redis`, and `verbs` and `etcd`, each if its build dependencies were unpacked.
    pub(crate) fn available(project: &Project, deadline: Instant) -> Self {
        Self::with_verbs(project, deadline).unwrap_or_else(|_| Self::without_verbs(project))
    }

    /// Returns the same, or the reason why nothing can be built with the feature `verbs`.
    pub(crate) fn with_verbs(project: &Project, deadline: Instant) -> Result<Self> {
        if !HEADERS.is_present(project) {
            return Err(skipped(HEADERS.missing()));
        }
        let verbs = VerbsBuild::prepare(project, deadline).map_err(as_skipped)?;
        let mut features = Self::without_verbs(project);
        features.verbs = Some(verbs);
        features.options.extend(["--features", "verbs"]);
        Ok(features)
    }

    /// `redis`, and `etcd` if it can be built. Other crates have the same features as with `verbs`.
    pub(crate) fn without_verbs(project: &Project) -> Self {
        let mut features = Self::default_only();
        features.options.extend(["--features", "redis"]);
        if let Some(variables) = fleet::etcd_build(project) {
            variables.into_iter().for_each(|(name, value)| features.set(name, value));
            features.options.extend(["--features", "etcd"]);
        }
        features
    }

    /// Only the default features.
    pub(crate) fn default_only() -> Self {
        Self { options: vec!["--workspace"], verbs: None, variables: Vec::new() }
    }

    /// Returns the options for a single package, without the choice of packages.
    pub(crate) fn words(&self) -> impl Iterator<Item = &'static str> {
        self.options.iter().copied().filter(|option| *option != "--workspace")
    }

    /// Adds a variable.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.variables.push((name, value.into()));
    }

    /// Sets the variables of the build for a command.
    pub(crate) fn apply(&self, command: &mut Command) {
        if let Some(verbs) = &self.verbs {
            verbs.apply(command);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }

    /// Runs cargo with `verb`, these features and `rest`, with its output in the log of that name.
    pub(crate) fn run(
        &self,
        project: &Project,
        log: &str,
        (verb, rest): (&str, &[&str]),
        deadline: Instant,
    ) -> Result<String> {
        let mut command = project.cargo(&[&[verb], &self.options[..], rest].concat());
        self.apply(&mut command);
        project.run(command, log, deadline)
    }
}
