//! `cargo xtask guest`: a virtual machine with two soft-RoCE NICs, for machines that have none.

mod kernel;
mod machine;
mod packages;
mod siw;
mod start;

pub(crate) use packages::{Archive, Packages, files_of};

use crate::command::{Finished, run as run_command};
use crate::features::Features;
use crate::fleet;
use crate::project::Project;
use crate::report::{Outcome, Step};
use crate::stages::{self, NIGHTLY, judged};
use crate::verbs::HEADERS;
use anyhow::Result;
use machine::{DRIVERS, MACHINE, Machine, NEWER_KERNEL, WhichKernel};
use start::{GuestCommand, WhichNics};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Tests of the verbs backend.
const BACKEND: [&str; 2] = ["--test", "rdma"];
/// Tests of the program; those over RDMA run in the guest.
const STORIES: [&str; 2] = ["--test", "program"];
/// Scenarios that are played on the simulated fabric and on the kernel's.
const CONFORMANCE: [&str; 2] = ["--test", "conformance"];
/// Its name as a command.
const COMMAND: &str = "handfast";
/// Stories of the program and of the engine in one guest, by what their names contain.
const ONE_HOST: [&str; 7] =
    ["rdma::", "rdma_engine::", "rdma_limits::", "rdma_loss::", "rdma_rails::", "--skip", FLEET];
/// Those with released nodes as peers. Their names contain one of the above, and two of them at once
/// want more memory than the guest has.
const FLEET: &str = "mooncake_rdma::";
/// Those of them that every change has: both ways, of both releases.
const FLEET_SHORT: [&str; 3] =
    ["mooncake_rdma::file_", "mooncake_rdma::released_", "mooncake_rdma::older_"];
/// Time limit of all of them, one after another.
const FLEET_SECONDS_MAX: &str = "3600";
/// Makes the numbers of the two NICs differ; built by the stage, used by every guest then.
const EXAMPLE: &str = "numbers_apart";
/// Moves bytes between two hosts.
const TWO_HOSTS: &str = "two_hosts";
/// The step that plays the scenarios on the backports' kernel.
const NEWER: &str = "conformance-backports";
/// Of a failure to boot, as opposed to one of the command.
const NOT_RUN: u8 = 125;
/// Downloading and unpacking a hundred megabytes.
const PACKAGES_MAX: Duration = Duration::from_secs(600);

/// Run a command in a virtual machine that has RDMA devices
///
/// Boots the distribution's kernel in QEMU, with KVM where that works and in software elsewhere,
/// makes two soft-RoCE NICs in it (rxe0 at 10.0.0.1, rxe1 at 10.0.0.2, joined by a wire), and runs
/// the command in the folder where you are. The guest sees the host's files as they are; what it
/// writes is in its memory and gone with it. The command `handfast` is this workspace's program, built
/// with RDMA first. Queue-pair numbers of the two NICs differ. A boot takes seven seconds on two idle
/// processors.
///
/// QEMU, the kernel and the user-space drivers are Debian packages, unpacked below cargo's target
/// folder at the first use: nothing is installed, and no root is needed.
///
/// Exit code: the command's; 125 if the guest could not be had or did not answer in time.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Time limit of the command, in seconds; the guest ends then
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    limit: u64,
    /// Guests to boot, 1 or 2. Two have a kernel and one NIC each (rxe0, at 10.0.0.1 and 10.0.0.2) and
    /// a wire in between; each runs the command, with HANDFAST_HOST 0 or 1, once both are up. One
    /// that makes the file /run/guest/destroy-other has the other's power cut, and has it booted and
    /// run the command again, with HANDFAST_BOOT one higher
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    hosts: u8,
    /// The kernel to boot
    #[arg(long, value_enum, default_value_t)]
    kernel: WhichKernel,
    /// Driver of the guest's NICs. `siw` is built first, from the distribution's sources of its
    /// kernel: that takes a minute, a compiler and make
    #[arg(long, value_enum, default_value_t)]
    nics: WhichNics,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// `cargo xtask guest`.
pub(crate) fn run(project: &Project, arguments: &Arguments) -> Result<ExitCode> {
    let (kernel, nics) = (arguments.kernel, arguments.nics);
    let machine = Machine::prepare(project, kernel, nics, Instant::now() + PACKAGES_MAX);
    let code = machine.and_then(|machine| {
        let programs = program_folder(project, &arguments.command)?;
        let command = GuestCommand {
            words: arguments.command.clone(),
            limit: Duration::from_secs(arguments.limit),
            numbers_apart: numbers_apart(project),
            hosts: arguments.hosts,
            nics,
            programs,
        };
        machine.run(&command, &verdict(project))
    });
    Ok(ExitCode::from(code.unwrap_or_else(|error| {
        anstream::eprintln!("error: {error:#}");
        NOT_RUN
    })))
}

/// Builds the program with RDMA where the command is its bare name, and says where it is.
fn program_folder(project: &Project, command: &[OsString]) -> Result<Option<PathBuf>> {
    if command.first().is_none_or(|word| word != COMMAND) {
        return Ok(None);
    }
    let deadline = Instant::now() + PACKAGES_MAX;
    HEADERS.ensure(project, deadline)?;
    let words: Words<'_> = (&["build"], &["--bin", COMMAND]);
    let built = Features::with_verbs(project, deadline)
        .map(|features| features.run(project, "verbs-program", words, deadline));
    let why = match built {
        Ok(done) if done.succeeded() => return Ok(Some(project.target().join("debug"))),
        Ok(done) => done.output(),
        Err(Outcome::Failed { why, tail }) => format!("{why}\n{tail}"),
        Err(Outcome::Skipped(why) | Outcome::Passed(why)) => why,
    };
    anyhow::bail!("{COMMAND} cannot be built with RDMA: {why}")
}

/// Packages that the setup of these stages unpacks.
pub(crate) fn packages(stages: &[&str]) -> &'static [&'static Packages] {
    let any = |names: &[&str]| names.iter().any(|name| stages.contains(name));
    match (any(&["guest"]), any(&["checks", "tests", "seeds", fleet::STAGE])) {
        (true, _) => &[&HEADERS, &fleet::PROTOC, &MACHINE, &DRIVERS],
        (false, true) => &[&HEADERS, &fleet::PROTOC],
        (false, false) => &[],
    }
}

/// The stage `guest`: the tests of the verbs backend, and of the program over it, on soft-RoCE.
///
/// Nightly, a host of two is destroyed and comes back as well, and released Mooncake nodes are peers.
pub(crate) fn steps(project: &Project, nightly: bool) -> Vec<Step<'_>> {
    let conformance = |kernel| move |deadline| either(scenarios(project, kernel, deadline));
    let mut steps = vec![
        Step::new("soft-roce", |deadline| either(tests(project, deadline))),
        Step::new("conformance", conformance("release")),
        Step::new("soft-iwarp", move |deadline| either(soft_iwarp(project, nightly, deadline))),
        Step::new("two-hosts", |deadline| either(two_hosts(project, deadline))),
        Step::new("program", |deadline| either(program(project, 1, &ONE_HOST, deadline))),
        Step::new("program-two-hosts", |deadline| {
            // One ends with a host cut off.
            either(program(project, 2, &["hosts::", "--test-threads=1"], deadline))
        }),
    ];
    if nightly {
        steps.push(Step::new(NEWER, conformance("backports")));
        let reborn = |deadline| either(program(project, 2, &["reborn::"], deadline));
        steps.push(Step::new("program-reborn-host", reborn));
    }
    // The nightly run includes those of every change.
    steps.push(if nightly {
        Step::new("fleet-over-rdma", |deadline| either(fleet(project, true, deadline)))
    } else {
        Step::new("released-nodes-over-rdma", |deadline| either(fleet(project, false, deadline)))
    });
    steps
}

/// Lints with the feature that the workspace's lints leave out.
pub(crate) fn lints(project: &Project) -> Step<'_> {
    Step::new("verbs-lints", |deadline| match Features::with_verbs(project, deadline) {
        Ok(features) => stages::lints(project, &features, deadline),
        Err(outcome) => outcome,
    })
}

/// Builds the guest's programs together with the tests, so that its stage spends its time in the
/// guest.
pub(crate) fn builds(project: &Project) -> Step<'_> {
    Step::new("guest-builds", |deadline| either(examples(project, deadline)))
}

fn examples(project: &Project, deadline: Instant) -> Result<Outcome, Outcome> {
    let words: Words<'_> = (&["build"], &["--example", EXAMPLE, "--example", TWO_HOSTS]);
    let features = Features::with_verbs(project, deadline)?;
    let done = features.run(project, "guest-builds", words, deadline);
    Ok(done.outcome(|_| String::new()))
}

fn tests(project: &Project, deadline: Instant) -> Result<Outcome, Outcome> {
    let built = examples(project, deadline)?;
    if !matches!(built, Outcome::Passed(_)) {
        return Ok(built);
    }
    in_guest(project, "verbs-tests", &[], &BACKEND, deadline)
}

fn two_hosts(project: &Project, deadline: Instant) -> Result<Outcome, Outcome> {
    if let Some(skipped) = missing(project, &["guest"]) {
        return Err(skipped);
    }
    let failed = |error: std::io::Error| Outcome::failed(error.to_string(), "");
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["guest", "--hosts", "2", "--limit", "60", "--"]);
    command.arg(project.target().join("debug/examples").join(TWO_HOSTS));
    let done = run_command(command, project.scratch().join("two-hosts.log"), deadline);
    Ok(done.outcome(|_| "two hosts".to_owned()))
}

/// Plays the scenarios on a kernel's soft-RoCE, and compares them with its recording.
fn scenarios(project: &Project, kernel: &str, deadline: Instant) -> Result<Outcome, Outcome> {
    if kernel == "backports" {
        NEWER_KERNEL.ensure(project, deadline).map_err(not_to_be_had)?;
    }
    let stories = [&CONFORMANCE[..], &["--", "guest::"]].concat();
    in_guest(project, &format!("conformance-{kernel}"), &["--kernel", kernel], &stories, deadline)
}

/// A requirement that cannot be downloaded or built here.
fn not_to_be_had(error: anyhow::Error) -> Outcome {
    Outcome::Skipped(format!("{error:#}"))
}

/// Stories on soft-iWARP, which no queue pair can be wired on: where the driver was built before, or
/// at night.
fn soft_iwarp(project: &Project, nightly: bool, deadline: Instant) -> Result<Outcome, Outcome> {
    if nightly {
        Machine::ensure_siw(project, deadline).map_err(not_to_be_had)?;
    } else if !Machine::has_siw(project) {
        let why = "siw was not built for this kernel; `cargo xtask nightly` builds it, and so does \
                   `cargo xtask guest --nics siw -- true`";
        return Err(Outcome::Skipped(why.to_owned()));
    }
    let options = ["--nics", "siw"];
    let driver = [&CONFORMANCE[..], &["--", "siw::"]].concat();
    let driver = in_guest(project, "siw-driver", &options, &driver, deadline)?;
    if !matches!(driver, Outcome::Passed(_)) {
        return Ok(driver);
    }
    let program = [&STORIES[..], &["--", "siw::"]].concat();
    in_guest(project, "siw-program", &options, &program, deadline)
}

/// Runs tests in a guest.
fn in_guest(
    project: &Project,
    name: &str,
    options: &[&str],
    tests: &[&str],
    deadline: Instant,
) -> Result<Outcome, Outcome> {
    let told = Told { name, options, tests, nightly: false };
    Ok(judged(&told.in_guest(project, deadline)?))
}

/// Options of `cargo test` before and after the features.
type Words<'a> = (&'a [&'a str], &'a [&'a str]);

/// Tests to run in a guest.
struct Told<'a> {
    /// Of the log.
    name: &'a str,
    /// Of `cargo xtask guest`.
    options: &'a [&'a str],
    tests: &'a [&'a str],
    /// Sets the variable for long runs.
    nightly: bool,
}

impl Told<'_> {
    fn in_guest(&self, project: &Project, deadline: Instant) -> Result<Finished, Outcome> {
        if let Some(skipped) = missing(project, &["guest"]) {
            return Err(skipped);
        }
        let runner = start::runner(self.options);
        let runner = runner.map_err(|error| Outcome::failed(error.to_string(), ""))?;
        // Cargo's own options come before those of the tests.
        let end = self.tests.iter().position(|word| *word == "--");
        let (own, rest) = self.tests.split_at(end.unwrap_or(self.tests.len()));
        let tests = [own, &["--config", &runner], rest].concat();
        let mut features = Features::with_verbs(project, deadline)?;
        features.set(fleet::FOLDER, project.scratch());
        if self.nightly {
            features.set(NIGHTLY, "1");
        }
        Ok(features.run(project, self.name, (&["test"], &tests), deadline))
    }
}

/// Stories of the program, in one guest or in two that each tell them.
fn program(
    project: &Project,
    hosts: u8,
    stories: &[&str],
    deadline: Instant,
) -> Result<Outcome, Outcome> {
    let tests = [&STORIES[..], &["--"], stories].concat();
    let name = format!("verbs-program-{}", stories[0].trim_end_matches(':'));
    in_guest(project, &name, &["--hosts", &hosts.to_string()], &tests, deadline)
}

/// Stories with released Mooncake nodes as peers, in one guest with both, and with stores in an etcd
/// where that can be built: at night all of them, else those that need no store.
fn fleet(project: &Project, nightly: bool, deadline: Instant) -> Result<Outcome, Outcome> {
    if let Some(why) = fleet::absent(project) {
        return Err(Outcome::Skipped(why));
    }
    let stories: &[&str] = if nightly { &[FLEET] } else { &FLEET_SHORT };
    let told = Told {
        name: "verbs-program-fleet",
        options: &["--limit", FLEET_SECONDS_MAX],
        tests: &[&STORIES[..], &["--"], stories, &["--test-threads=1"]].concat(),
        nightly,
    };
    Ok(fleet::unless_skipped(&told.in_guest(project, deadline)?))
}

fn either(outcome: Result<Outcome, Outcome>) -> Outcome {
    outcome.unwrap_or_else(|outcome| outcome)
}

/// Reason for skipping a step, if packages of these stages are missing.
fn missing(project: &Project, stages: &[&str]) -> Option<Outcome> {
    let missing = packages(stages).iter().find(|packages| !packages.is_present(project))?;
    let names = missing.packages.join(", ");
    Some(Outcome::Skipped(format!("these packages could not be unpacked: {names}")))
}

/// File that records whether KVM works here.
fn verdict(project: &Project) -> PathBuf {
    project.scratch().join("guest-accelerator")
}

/// The program that makes the NICs' numbers differ, where it could be built.
fn numbers_apart(project: &Project) -> Option<PathBuf> {
    let program = project.target().join("debug/examples").join(EXAMPLE);
    program.is_file().then_some(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn every_chosen_test_of_released_nodes_exists() {
        let project = Project::find().unwrap();
        let path = project.root().join("cli/tests/stories/mooncake_rdma.rs");
        let text = fs::read_to_string(path).unwrap();
        for name in FLEET_SHORT {
            let name = name.strip_prefix(FLEET).unwrap();
            assert!(text.contains(&format!("fn {name}")), "no test's name begins with {name}");
        }
    }
}
