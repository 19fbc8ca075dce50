//! `cargo xtask guest`: a virtual machine with two soft-RoCE NICs, for machines that have none.

mod kernel;
mod machine;
mod packages;

pub(crate) use packages::Packages;

use crate::command::run as run_command;
use crate::project::Project;
use crate::report::{Outcome, Step};
use anyhow::Result;
use machine::{DRIVERS, GuestCommand, MACHINE, Machine};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Of a failure to boot, as opposed to one of the command.
const NOT_RUN: u8 = 125;
/// Downloading and unpacking a hundred megabytes.
const PACKAGES_MAX: Duration = Duration::from_secs(600);

/// Run a command in a virtual machine that has RDMA devices
///
/// Boots the distribution's kernel in QEMU, with KVM where that works and in software elsewhere,
/// makes two soft-RoCE NICs in it (rxe0 at 10.0.0.1, rxe1 at 10.0.0.2, joined by a wire), and runs
/// the command in the folder where you are. The guest sees the host's files as they are; what it
/// writes is in its memory and gone with it. Queue-pair numbers of the two NICs differ. A boot takes
/// seven seconds on two idle processors.
///
/// QEMU, the kernel and the user-space drivers are Debian packages, unpacked below cargo's target
/// folder at the first use: nothing is installed, and no root is needed.
///
/// Exit code: the command's; 125 if the guest could not be had or did not answer in time.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long the command may take, in seconds; the guest is ended then
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    limit: u64,
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
    let code = Machine::prepare(project, Instant::now() + PACKAGES_MAX).and_then(|machine| {
        let command = GuestCommand {
            words: arguments.command.clone(),
            limit: Duration::from_secs(arguments.limit),
            numbers_apart: numbers_apart(project),
        };
        machine.run(&command, Stdio::inherit(), &verdict(project))
    });
    Ok(ExitCode::from(code.unwrap_or_else(|error| {
        anstream::eprintln!("error: {error:#}");
        NOT_RUN
    })))
}

/// What the setup of these stages unpacks.
pub(crate) fn packages(stages: &[&str]) -> &'static [&'static Packages] {
    if stages.contains(&"guest") { &[&MACHINE, &DRIVERS] } else { &[] }
}

/// The stage `guest`.
pub(crate) fn steps(project: &Project) -> Vec<Step<'_>> {
    vec![Step::new("devices", |deadline| {
        if let Some(skipped) = missing(project) {
            return skipped;
        }
        let listed = match itself(&["guest", "--limit", "20", "--", "rdma", "link"]) {
            Ok(command) => run_command(command, project.scratch().join("devices.log"), deadline),
            Err(error) => {
                return Outcome::failed("this program cannot be started", error.to_string());
            }
        };
        let active = |device| {
            let ports = listed.output();
            ports.lines().any(|line| line.contains(device) && line.contains("state ACTIVE"))
        };
        match listed.outcome(|_| "soft-RoCE on a kernel of its own".to_owned()) {
            Outcome::Passed(_) if !(active("rxe0/1") && active("rxe1/1")) => {
                Outcome::failed("the guest's NICs are not active", listed.output())
            }
            outcome => outcome,
        }
    })]
}

/// Why the stage's steps are skipped, if they are.
fn missing(project: &Project) -> Option<Outcome> {
    let missing = packages(&["guest"]).iter().find(|packages| !packages.is_present(project))?;
    let names = missing.packages.join(", ");
    Some(Outcome::Skipped(format!("no virtual machine: {names} could not be unpacked")))
}

/// This program, to be started again.
fn itself(arguments: &[&str]) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments);
    Ok(command)
}

/// Where it is kept whether KVM works here.
fn verdict(project: &Project) -> PathBuf {
    project.scratch().join("guest-accelerator")
}

/// The program that makes the NICs' numbers differ, where it could be built.
fn numbers_apart(project: &Project) -> Option<PathBuf> {
    let program = project.target().join(Path::new("debug/examples/numbers_apart"));
    program.is_file().then_some(program)
}
