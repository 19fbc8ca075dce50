//! Programs that the stages use in addition to cargo.

use crate::command::{answers, run as run_command};
use crate::fleet;
use crate::guest::{self, Packages};
use crate::project::Project;
use crate::report::{Outcome, Stage, Step, Summary};
use crate::verbs;
use anyhow::Result;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// cargo-deny takes two minutes to build on two cores, cargo-fuzz half a minute.
const BUDGET: Duration = Duration::from_secs(900);
/// Every change installs none of those, and downloads the rest.
const BUDGET_OF_A_CHANGE: Duration = Duration::from_secs(40);

/// Install what the other commands use beside cargo.
///
/// rustfmt and clippy come with `rustup component add`. The rest comes with `cargo install
/// --locked` and `apt-get install`, and only for root: any other user is told the commands. What is
/// missing makes the steps that need it be skipped, with the reason, and nothing fail. The virtual
/// machine of `cargo xtask guest` and what builds the verbs backend are Debian packages that are
/// unpacked below cargo's target folder, by any user; nothing of them is installed.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Also install what nothing needs: cargo-nextest (faster tests)
    #[arg(long)]
    optional: bool,
    /// Only find or unpack what builds the verbs backend, and print the command that builds it
    ///
    /// That is the headers of libibverbs and librdmacm, and a libclang 13 to 15: those of the
    /// system, else Debian packages, else the Python wheel `libclang`. Exit code: 1 if a part cannot
    /// be had; the error names it.
    #[arg(long, conflicts_with = "optional")]
    verbs: bool,
}

/// A program, how to see that it is there and how to get it.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    present: &'static [&'static str],
    install: &'static [&'static [&'static str]],
    /// The stage that needs it, if one does.
    stage: Option<&'static str>,
}

const APT_UPDATE: &[&str] = &["apt-get", "update", "--quiet"];

pub(crate) const RUSTFMT: Tool = Tool {
    name: "rustfmt",
    present: &["cargo", "fmt", "--version"],
    install: &[&["rustup", "component", "add", "rustfmt"]],
    stage: Some("checks"),
};
pub(crate) const CLIPPY: Tool = Tool {
    name: "clippy",
    present: &["cargo", "clippy", "--version"],
    install: &[&["rustup", "component", "add", "clippy"]],
    stage: Some("checks"),
};
pub(crate) const DENY: Tool = Tool {
    name: "cargo-deny",
    present: &["cargo", "deny", "--version"],
    install: &[&["cargo", "install", "--locked", "cargo-deny@0.20.2"]],
    stage: Some("release"),
};
pub(crate) const NEXTEST: Tool = Tool {
    name: "cargo-nextest",
    present: &["cargo", "nextest", "--version"],
    install: &[&["cargo", "install", "--locked", "cargo-nextest"]],
    stage: None,
};
pub(crate) const FUZZ: Tool = Tool {
    name: "cargo-fuzz",
    present: &["cargo", "fuzz", "--version"],
    install: &[&["cargo", "install", "--locked", "cargo-fuzz@0.13.2"]],
    stage: Some("fuzz"),
};
pub(crate) const MUTANTS: Tool = Tool {
    name: "cargo-mutants",
    present: &["cargo", "mutants", "--version"],
    install: &[&["cargo", "install", "--locked", "cargo-mutants@27.1.0"]],
    stage: Some("mutation"),
};
pub(crate) const CPP: Tool = Tool {
    name: "c++",
    present: &["c++", "--version"],
    install: &[APT_UPDATE, &["apt-get", "install", "--yes", "--no-install-recommends", "g++"]],
    stage: Some("fuzz"),
};
const TOOLS: [&Tool; 7] = [&RUSTFMT, &CLIPPY, &DENY, &CPP, &FUZZ, &MUTANTS, &NEXTEST];

/// `cargo xtask setup`.
pub(crate) fn run(project: Project, arguments: &Arguments) -> Result<bool> {
    if arguments.verbs {
        return verbs::setup(&project);
    }
    let mut summary = Summary::default();
    let unpacked = guest::packages(&["guest"]);
    summary.run(stage(&project, |tool| tool.stage.is_some() || arguments.optional, unpacked, true));
    Ok(summary.finish())
}

/// The stage that installs what one of `stages` needs and is missing.
pub(crate) fn stage_for<'a>(project: &'a Project, stages: &[&str]) -> Stage<'a> {
    let wanted = |tool: &Tool| tool.stage.is_some_and(|stage| stages.contains(&stage));
    let unpacked = guest::packages(stages);
    let mut stage = stage(project, wanted, unpacked, stages.contains(&fleet::STAGE));
    if !stages.contains(&"release") {
        stage.budget = BUDGET_OF_A_CHANGE;
    }
    stage
}

fn stage<'a>(
    project: &'a Project,
    wanted: impl Fn(&Tool) -> bool,
    unpacked: &'static [&'static Packages],
    fleet: bool,
) -> Stage<'a> {
    let wanted = TOOLS.iter().filter(|tool| wanted(tool));
    let step = |tool: &&'static Tool| {
        let tool: &'static Tool = tool;
        Step::new(tool.name, move |deadline| tool.ensure(&project.scratch(), deadline))
    };
    let unpacking = |packages: &'static Packages| {
        Step::new(packages.name, move |deadline| match packages.ensure(project, deadline) {
            Ok(_) => Outcome::Passed(String::new()),
            Err(error) => Outcome::Skipped(format!("{error:#}")),
        })
    };
    let of_fleet = [&fleet::PACKAGES].into_iter().filter(|_| fleet);
    let unpacked = unpacked.iter().copied().chain(of_fleet);
    let releases = if fleet { fleet::installs(project) } else { Vec::new() };
    let steps = wanted.map(step).chain(unpacked.map(unpacking)).chain(releases).collect();
    Stage { name: "setup", what: "the programs the other stages use", budget: BUDGET, steps }
}

impl Tool {
    /// It is installed and works.
    pub(crate) fn is_present(&self) -> bool {
        answers(&mut command(self.present))
    }

    /// Reason for skipping a step that needs it.
    pub(crate) fn missing(&self) -> Outcome {
        Outcome::Skipped(format!("{} is missing; `{}` installs it", self.name, self.commands()))
    }

    fn ensure(&self, scratch: &Path, deadline: Instant) -> Outcome {
        if self.is_present() {
            return Outcome::Passed(String::new());
        }
        let is_for_the_user_alone = self.install.iter().all(|command| command[0] == "rustup");
        if !is_for_the_user_alone && !is_root() {
            return self.missing();
        }
        for words in self.install {
            let log = scratch.join(format!("setup-{}.log", self.name));
            let installed = run_command(command(words), log.clone(), deadline);
            if !installed.succeeded() {
                let log = log.display();
                return Outcome::Skipped(format!("`{}` failed; see {log}", words.join(" ")));
            }
        }
        if self.is_present() {
            Outcome::Passed(format!("installed {}", self.name))
        } else {
            Outcome::Skipped(format!("`{}` brought no working program", self.commands()))
        }
    }

    fn commands(&self) -> String {
        let commands: Vec<_> = self.install.iter().map(|words| words.join(" ")).collect();
        commands.join(" && ")
    }
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_is_skipped_with_the_command_that_installs_it() {
        let tool = Tool {
            name: "nowhere",
            present: &["handfast-no-such-program"],
            install: &[&["first", "update"], &["first", "install", "nowhere"]],
            stage: None,
        };
        assert!(!tool.is_present());
        let reason = "nowhere is missing; `first update && first install nowhere` installs it";
        assert_eq!(tool.missing(), Outcome::Skipped(reason.to_owned()));
    }

    #[test]
    fn an_installation_that_fails_is_a_skip_and_not_a_failure() {
        let scratch = tempfile::tempdir().unwrap();
        let tool = Tool {
            name: "nowhere",
            present: &["handfast-no-such-program"],
            install: &[&["false"]],
            stage: None,
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        assert!(matches!(tool.ensure(scratch.path(), deadline), Outcome::Skipped(_)));
    }
}
