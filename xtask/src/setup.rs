//! Programs that the stages use in addition to cargo.

use crate::command::answers;
use crate::fleet;
use crate::guest::{self, Packages};
use crate::project::Project;
use crate::python;
use crate::report::{Outcome, Stage, Step, Summary, as_skipped, skipped};
use crate::verbs;
use anyhow::{Context, Result, bail};
use rustix::fs::statvfs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// cargo-deny takes two minutes to build on two cores.
const BUDGET: Duration = Duration::from_secs(900);
/// Time limit of the setup for a change, which installs none of those and downloads the rest.
const BUDGET_OF_A_CHANGE: Duration = Duration::from_secs(40);
const MB: u64 = 1_000_000;
/// The build folder after all stages of a change: 8,300 MB were measured.
const BUILD_BYTES_MAX: u64 = 9_000 * MB;
/// Room for a run whose build folder is complete, and for one that builds a part.
const FREE_BYTES_MIN: u64 = 1_000 * MB;

/// Install the programs that the other commands use in addition to cargo.
///
/// rustfmt and clippy are installed by `rustup component add`. The rest is installed by `cargo
/// install --locked` and `apt-get install`, and only for root: for other users the commands are
/// printed. Steps that need a missing program are skipped with the reason; nothing fails. The
/// virtual machine of `cargo xtask guest` and the build dependencies of the verbs transport are
/// Debian packages that are unpacked below cargo's target folder, for any user; nothing of them is
/// installed.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only find or unpack the build dependencies of the verbs transport, and print the build
    /// command
    ///
    /// They are the headers of libibverbs and librdmacm, those of the system or else of Debian
    /// packages, and the Python wheel `libclang`. Exit code: 1 if a part is unavailable; the error
    /// names it.
    #[arg(long)]
    verbs: bool,
}

/// A program, with the commands that detect and install it.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// Command that succeeds if it is present.
    present: &'static str,
    install: &'static [&'static str],
    /// The stage that needs it.
    stage: &'static str,
}

const fn tool(
    name: &'static str,
    present: &'static str,
    install: &'static [&'static str],
    stage: &'static str,
) -> Tool {
    Tool { name, present, install, stage }
}

pub(crate) const RUSTFMT: Tool =
    tool("rustfmt", "cargo fmt --version", &["rustup component add rustfmt"], "checks");
pub(crate) const CLIPPY: Tool =
    tool("clippy", "cargo clippy --version", &["rustup component add clippy"], "checks");
const DENY_INSTALL: &str = "cargo install --locked cargo-deny@0.20.2";
pub(crate) const DENY: Tool =
    tool("cargo-deny", "cargo deny --version", &[DENY_INSTALL], "release");
const MUTANTS_INSTALL: &str = "cargo install --locked cargo-mutants@27.1.0";
pub(crate) const MUTANTS: Tool =
    tool("cargo-mutants", "cargo mutants --version", &[MUTANTS_INSTALL], "mutation");
const CARGO_C_INSTALL: &str = "cargo install --locked cargo-c@0.10.24+cargo-0.98.0";
pub(crate) const CARGO_C: Tool =
    tool("cargo-c", "cargo capi --version", &[CARGO_C_INSTALL], "release");
const MIRI_INSTALL: &str =
    "rustup toolchain install nightly --profile minimal --component miri,rust-src";
pub(crate) const MIRI: Tool =
    tool("Miri", "rustup run nightly cargo miri --version", &[MIRI_INSTALL], "sanitizer");
const CPP_INSTALL: [&str; 2] =
    ["apt-get update --quiet", "apt-get install --yes --no-install-recommends g++"];
pub(crate) const CPP: Tool = tool("c++", "c++ --version", &CPP_INSTALL, "libfuzzer");
const TOOLS: [&Tool; 7] = [&RUSTFMT, &CLIPPY, &DENY, &CARGO_C, &CPP, &MUTANTS, &MIRI];

/// `cargo xtask setup`.
pub(crate) fn run(project: Project, arguments: &Arguments) -> Result<bool> {
    if arguments.verbs {
        return verbs::setup(&project);
    }
    let mut stages: Vec<_> = TOOLS.iter().map(|tool| tool.stage).collect();
    stages.extend(["guest", fleet::STAGE]);
    let mut summary = Summary::default();
    summary.run(stage_for(&project, &stages));
    Ok(summary.finish())
}

/// Returns the stage that installs the missing programs of `stages`.
pub(crate) fn stage_for<'a>(project: &'a Project, stages: &[&str]) -> Stage<'a> {
    let tools = TOOLS.iter().filter(|tool| stages.contains(&tool.stage));
    let install = |tool: &&'static Tool| {
        let tool: &'static Tool = tool;
        Step::new(tool.name, move |deadline| tool.ensure(project, deadline))
    };
    let unpack = |packages: &'static Packages| {
        Step::new(packages.name, move |deadline| {
            packages.ensure(project, deadline).map_err(as_skipped)?;
            Ok(String::new())
        })
    };
    let bytes_max = if stages.contains(&"tests") { BUILD_BYTES_MAX } else { FREE_BYTES_MIN };
    let mut steps = vec![Step::new("disk", move |_| disk(project, bytes_max))];
    steps.extend(tools.map(install));
    steps.extend(guest::packages(stages).iter().copied().map(unpack));
    if stages.contains(&"guest") {
        steps.push(Step::new("kernel-sources", |deadline| {
            guest::fetch_sources(project, deadline).map_err(as_skipped)?;
            Ok(String::new())
        }));
    }
    // Tests of the Python package have released nodes as peers too.
    if [fleet::STAGE, python::STAGE].iter().any(|stage| stages.contains(stage)) {
        steps.push(unpack(&fleet::PACKAGES));
        steps.push(unpack(&fleet::PERFTEST));
        steps.extend(fleet::installs(project));
    }
    let budget = if stages.contains(&"release") { BUDGET } else { BUDGET_OF_A_CHANGE };
    Stage { name: "setup", what: "the programs the other stages use", budget, steps }
}

/// Checks that the build folder has room: a linker on a full disk ends by a bus error, which names no cause.
fn disk(project: &Project, bytes_max: u64) -> Outcome {
    let folder = project.target();
    let there = statvfs(folder).with_context(|| folder.display().to_string())?;
    has_room(folder, there.f_bavail * there.f_frsize, bytes_max)
}

/// Checks that what a folder lacks of its full size, at least [`FREE_BYTES_MIN`], is free.
fn has_room(folder: &Path, free: u64, bytes_max: u64) -> Outcome {
    let needed = bytes_max.saturating_sub(bytes_of(folder)).max(FREE_BYTES_MIN);
    if free < needed {
        bail!(
            "{} has {} MB free, and the stages write {} MB more; remove what is old (`cargo clean`), or set \
             CARGO_TARGET_DIR to a folder with more room",
            folder.display(),
            free / MB,
            needed / MB
        );
    }
    Ok(format!("{} MB of disk", free / MB))
}

/// The bytes of the files below a folder. A file that goes away meanwhile counts nothing.
fn bytes_of(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(there) if there.is_dir() => bytes_of(&entry.path()),
        Ok(there) => there.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

impl Tool {
    /// Checks that it is installed and works; an error skips the step that needs it.
    pub(crate) fn check(&self) -> Result<()> {
        if answers(&mut command(self.present)) {
            return Ok(());
        }
        let commands = self.install.join(" && ");
        Err(skipped(format!("{} is missing; `{commands}` installs it", self.name)))
    }

    fn ensure(&self, project: &Project, deadline: Instant) -> Outcome {
        let Err(missing) = self.check() else { return Ok(String::new()) };
        let is_for_the_user_alone = self.install.iter().all(|words| words.starts_with("rustup"));
        if !is_for_the_user_alone && !is_root() {
            return Err(missing);
        }
        for words in self.install {
            let installed = project.run(command(words), &format!("setup-{}", self.name), deadline);
            installed.context(*words).map_err(as_skipped)?;
        }
        self.check()?;
        Ok(format!("installed {}", self.name))
    }
}

fn command(words: &str) -> Command {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Skipped;

    const NOWHERE: Tool = Tool {
        name: "nowhere",
        present: "handfast-no-such-program",
        install: &["false", "first install"],
        stage: "tests",
    };

    /// A folder needs its full size less its present one, and a full disk is named with the folder and the cure.
    #[test]
    fn full_disk_is_named_with_its_cure() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("deps")).unwrap();
        std::fs::write(folder.path().join("deps/file"), vec![0; 5_000_000]).unwrap();
        let whole = FREE_BYTES_MIN + 6 * MB;
        assert!(has_room(folder.path(), whole - 5 * MB, whole).is_ok());
        let error = has_room(folder.path(), whole - 5 * MB - 1, whole).unwrap_err().to_string();
        for part in [&*folder.path().display().to_string(), "1001 MB more", "cargo clean"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(has_room(folder.path(), FREE_BYTES_MIN - 1, 0).is_err(), "a full folder grows too");
    }

    #[test]
    fn missing_tool_is_skipped_with_its_commands() {
        let skipped = NOWHERE.check().unwrap_err().downcast::<Skipped>().unwrap();
        let reason = "nowhere is missing; `false && first install` installs it";
        assert_eq!(skipped.to_string(), reason);
    }

    #[test]
    fn failed_installation_is_skipped() {
        let deadline = Instant::now() + Duration::from_secs(60);
        let error = NOWHERE.ensure(&Project::find().unwrap(), deadline).unwrap_err();
        assert!(error.is::<Skipped>(), "{error:#}");
    }
}
