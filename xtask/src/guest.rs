//! `cargo xtask guest`: a virtual machine with two soft-RoCE NICs, for machines that have none.

mod kernel;
mod machine;
mod packages;
mod siw;
mod start;

pub(crate) use packages::{Packages, files_of};

use crate::features::Features;
use crate::fleet;
use crate::project::Project;
use crate::python;
use crate::report::{Outcome, Step, as_skipped, skipped};
use crate::stages::{NIGHTLY, binary, build, judged};
use crate::verbs::HEADERS;
use anyhow::{Context, Result};
use machine::{DRIVERS, MACHINE, Machine, NEWER_KERNEL, WhichKernel};
use start::{GuestCommand, WhichNics};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Stages that build the features with the unpacked packages.
const OF_FEATURES: [&str; 7] =
    ["checks", "tests", "seeds", "sanitizer", "release", fleet::STAGE, python::STAGE];
/// The program's name as a command.
const COMMAND: &str = "handfast";
/// Tests of the program and of the engine, by parts of their names.
const ONE_HOST: [&str; 6] =
    ["rdma::", "rdma_engine::", "rdma_limits::", "rdma_rails::", "--skip", FLEET];
/// Stories of the verbs transport that run in the guest at every change: they ask for the answers, the
/// lists or the network of a kernel. All others run on scripted devices.
const KERNEL_STORIES: [&str; 13] = [
    CONNECTIONS,
    "disturbances::link_down_fails_posts_until_it_returns",
    "disturbances::moved_address_breaks_lanes_and_is_refound",
    "ends::queue_pair_churn_leaks_nothing",
    "hazards::an_old_pairing_is_seen_by_a_read_and_not_by_a_write",
    "lanes::a_new_address_of_the_port_is_told",
    "lanes::packets_have_traffic_class_and_mtu_of_sender",
    "lanes::sides_of_different_families_meet_at_the_second_lane",
    "lanes::silent_address_fails_in_bounded_time",
    "lanes::what_is_written_is_there_and_what_is_read_comes_back",
    "limits::a_machine_without_the_library_is_told_so",
    "limits::memlock_error_names_limit_and_cure",
    "limits::the_ipv4_address_is_chosen_and_explained",
];
/// Stories of connections through the kernel's connection manager, over both drivers.
const CONNECTIONS: &str = "connections::";
/// Stories of the verbs transport over soft-iWARP at every change: connections, and of those that run on
/// soft-RoCE too some that need no queue pair connected out of band.
const SIW_STORIES: [&str; 5] = [
    CONNECTIONS,
    "ends::queue_pair_churn_leaks_nothing",
    "lanes::both_sides_write_at_once_over_one_lane",
    "lanes::unequal_queue_pair_counts_use_the_fewer",
    "lanes::what_is_written_is_there_and_what_is_read_comes_back",
];
/// Stories of the verbs transport over soft-iWARP at night: every one but these, for these reasons.
const NOT_ON_SIW: [(&str, &[&str]); 7] = [
    (
        "soft-iWARP ends its connections when an interface goes down",
        &["disturbances::a_link_that_returns_within_the_retries_costs_nothing"],
    ),
    (
        "one side wires alone, or its peer ends unnoticed: the connection manager joins both or none",
        &[
            "disturbances::both_sides_wire_at_the_same_instant_two_hundred_times",
            "ends::destroyed_peer_is_the_first_error",
            "ends::retire_ends_every_slice_once",
            "hazards::a_lane_wired_late_by_its_peer_loses_a_wait_and_no_byte",
            "hazards::a_peer_that_dies_on_an_idle_lane_is_noticed_by_a_probe",
            "hazards::an_old_pairing_is_seen_by_a_read_and_not_by_a_write",
            "hazards::what_was_posted_before_the_lane_was_wired_never_runs_later",
            "lanes::completions_of_lanes_that_share_a_queue_go_to_their_own",
            "limits::a_lane_is_wired_once_and_only_towards_what_can_be_wired",
            "limits::full_lane_returns_the_next_slice",
            "transport::withdrawn_slice_waits_for_the_device",
        ],
    ),
    (
        "GIDs of RoCE, which the connection manager chooses, and events of their table",
        &[
            "disturbances::moved_address_breaks_lanes_and_is_refound",
            "lanes::a_new_address_of_the_port_is_told",
            "lanes::sides_of_different_families_meet_at_the_second_lane",
            "limits::the_ipv4_address_is_chosen_and_explained",
        ],
    ),
    (
        "a step of the queue pair asks for the address of a peer",
        &[
            "hazards::a_peer_whose_address_is_silent_delays_no_other_peers_wiring",
            "lanes::silent_address_fails_in_bounded_time",
        ],
    ),
    (
        "settings and packets of RoCE, its local failure of a port, and RESET",
        &[
            "disturbances::link_down_fails_posts_until_it_returns",
            "hazards::reset_is_for_idle_connected_lanes_alone",
            "lanes::packets_have_traffic_class_and_mtu_of_sender",
        ],
    ),
    (
        "a completion names the cause: a write completes before the peer has accepted it",
        &[
            "disturbances::cut_lane_is_reported_by_the_peers_device",
            "disturbances::cut_nic_leaves_the_other_undisturbed",
            "ends::an_access_the_peer_does_not_allow_is_nobodys_to_retry",
            "lanes::memory_registered_for_reading_is_not_written",
        ],
    ),
    (
        "short completion queues: those of libsiw are long",
        &[
            "limits::completion_queue_limit_is_freed_by_retire",
            "limits::lane_past_the_cq_limit_is_refused",
        ],
    ),
];
/// Stories of the program and of its engine over soft-iWARP at every change.
const SIW_PROGRAM: [&str; 4] = [
    "rdma_engine::block_stays_registered_until_it_is_freed",
    "rdma_rails::peers_memory_decides_between_equally_near_nics",
    "siw::",
    "proven::",
];
/// The same at night. Stories that cannot run there say why.
const SIW_PROGRAM_NIGHTLY: [&str; 11] = [
    "rdma::",
    "rdma_engine::",
    "rdma_limits::",
    "rdma_rails::",
    "siw::",
    "proven::",
    "--skip",
    FLEET,
    "--skip",
    DOCTOR,
    "--test-threads=1",
];
/// Stories of the verbs transport between two guests, which play the same one at a time.
const TWO_KERNELS: [&str; 2] = ["two_kernels::", "--test-threads=1"];
/// Stories of the program in two guests that connect through the connection manager. They end with a host cut off.
const MANAGED_HOSTS: [&str; 2] = ["hosts::hosts_exchange", "--test-threads=1"];
/// Stories of the program on soft-RoCE that connects through the connection manager, at night.
const MANAGED_PROGRAM: [&str; 8] = [
    "rdma::",
    "rdma_engine::",
    "rdma_rails::",
    "--skip",
    FLEET,
    "--skip",
    DOCTOR,
    "--test-threads=1",
];
/// Stories of faults that are planted into soft-RoCE.
const DOCTOR: &str = "rdma::doctor::";
/// The variable by which soft-RoCE connects through the connection manager.
const MANAGED: &str = "HANDFAST_RDMA_CM";
/// The refusal of queue pairs that are connected out of band; the scenarios of the connection manager take two minutes.
const OUT_OF_BAND: &str = "siw::a_queue_pair_that_is_wired_out_of_band_is_refused_at_rts";
/// Stories of the program that run in the guest at every change.
const PROGRAM_STORIES: [&str; 3] = [
    "rdma::files_of_every_size_are_put_and_come_back_the_same",
    "rdma_engine::cut_nic_ends_its_transfers_in_time_and_no_others",
    "rdma_limits::exhausted_device_evicts_the_longest_idle_lane",
];
/// Stories of the verbs transport at night: all.
const EVERY_STORY: [&str; 6] =
    ["--skip", "native::", "--skip", "scripted::", "--skip", TWO_KERNELS[0]];
/// Tests with released nodes as peers. Their names contain one of the above, and two of them at
/// once need more memory than the guest has.
const FLEET: &str = "mooncake_rdma::";
/// Time limit of the tests in one guest, on one slow processor.
const ONE_HOST_SECONDS_MAX: &str = "1800";
/// Time limit of all of them in sequence.
const FLEET_SECONDS_MAX: &str = "3600";
/// Fifty rounds of each of six kinds, and their time limit.
const CONTRACT_ROUNDS: &str = "300";
const CONTRACT_SECONDS_MAX: &str = "3600";
/// Makes the numbers of the two NICs differ; built by the stage, then used by every guest.
const EXAMPLE: &str = "numbers_apart";
/// Moves bytes between two hosts.
const TWO_HOSTS: &str = "two_hosts";
/// Maximum length of a log's name.
const LOG_NAME_MAX: usize = 100;
/// Exit code of a guest that does not boot, distinct from the command's.
const NOT_RUN: u8 = 125;
/// Time limit for downloading and unpacking a hundred megabytes.
const PACKAGES_MAX: Duration = Duration::from_secs(600);

/// Run a command in a virtual machine with RDMA devices
///
/// Boots the distribution's kernel in QEMU, with KVM if it works and by emulation otherwise,
/// creates two soft-RoCE NICs (rxe0 at 10.0.0.1, rxe1 at 10.0.0.2, connected by a link), and runs
/// the command in the current folder. The guest sees the host's files; its changes stay in its
/// memory and end with it. The command `handfast` is this workspace's program, built with RDMA
/// first. Queue-pair numbers of the two NICs differ. A boot takes seven seconds on two idle
/// processors.
///
/// QEMU, the kernel and the user-space drivers are Debian packages, unpacked below cargo's target
/// folder at the first use: nothing is installed, and root is not required.
///
/// Exit code: the command's; 125 if the guest did not start or did not answer in time.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Time limit of the command, in seconds; the guest ends then
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    limit: u64,
    /// Guests to boot, 1 or 2. Two have a kernel and one NIC each (rxe0, at 10.0.0.1 and 10.0.0.2)
    /// and a link between them; each runs the command, with HANDFAST_HOST 0 or 1, once both have
    /// booted. If one creates the file /run/guest/destroy-other, the other's power is cut; it boots
    /// and runs the command again, with HANDFAST_BOOT one higher
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    hosts: u8,
    /// The kernel to boot
    #[arg(long, value_enum, default_value_t)]
    kernel: WhichKernel,
    /// Driver of the guest's NICs. `siw` is built first, once, from the distribution's sources of its
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

/// Builds the program with RDMA if the command is its bare name, and returns its folder.
fn program_folder(project: &Project, command: &[OsString]) -> Result<Option<PathBuf>> {
    if command.first().is_none_or(|word| word != COMMAND) {
        return Ok(None);
    }
    let deadline = Instant::now() + PACKAGES_MAX;
    HEADERS.ensure(project, deadline)?;
    let build: (_, &[&str]) = ("build", &["--bin", COMMAND]);
    Features::with_verbs(project, deadline)
        .and_then(|features| features.run(project, "verbs-program", build, deadline))
        .context("handfast cannot be built with RDMA")?;
    Ok(Some(project.target().join("debug")))
}

/// Returns the packages to unpack during the setup of these stages.
pub(crate) fn packages(stages: &[&str]) -> &'static [&'static Packages] {
    let any = |names: &[&str]| names.iter().any(|name| stages.contains(name));
    match (any(&["guest"]), any(&OF_FEATURES)) {
        (true, _) => &[&HEADERS, &fleet::PROTOC, &MACHINE, &DRIVERS],
        (false, true) => &[&HEADERS, &fleet::PROTOC],
        (false, false) => &[],
    }
}

/// The stage `guest`: the tests of the verbs transport, and of the program over it, on soft-RoCE.
///
/// Two guests with soft-iWARP run the stories of two kernels. Nightly also the doctors of two hosts, a host that is destroyed
/// and returns, and every test with released Mooncake nodes.
pub(crate) fn steps(project: &Project, nightly: bool) -> Vec<Step<'_>> {
    let mut steps = vec![
        Step::new("soft-roce", move |deadline| soft_roce(project, nightly, deadline)),
        Step::new("soft-iwarp", move |deadline| soft_iwarp(project, nightly, deadline)),
        Step::new("soft-iwarp-two-hosts", move |deadline| {
            prepare_siw(project, deadline)?;
            two_kernels(project, SOFT_IWARP, nightly, deadline)
        }),
    ];
    if nightly {
        steps.push(Step::new("program", |deadline| {
            Tests { words: &ONE_HOST, nightly: true, ..PROGRAM }.run(project, deadline)
        }));
        steps.push(Step::new("two-hosts", |deadline| two_hosts(project, deadline)));
        steps.push(Step::new("program-two-hosts", |deadline| {
            // One of them ends with a host cut off.
            let words = &["hosts::", "--test-threads=1"];
            Tests { words, ..TWO_PROGRAMS }.run(project, deadline)
        }));
        steps.push(Step::new("soft-roce-managed", |deadline| managed_soft_roce(project, deadline)));
        steps.push(Step::new("soft-roce-managed-two-hosts", move |deadline| {
            two_kernels(project, MANAGED_SOFT_ROCE, nightly, deadline)
        }));
        steps.push(Step::new("soft-iwarp-reborn-host", |deadline| {
            prepare_siw(project, deadline)?;
            let options = &["--hosts", "2", "--nics", "siw"];
            Tests { options, words: &["reborn::"], ..PROGRAM }.run(project, deadline)
        }));
        steps.push(Step::new("soft-roce-managed-reborn-host", |deadline| {
            Tests { words: &["reborn::"], managed: true, ..TWO_PROGRAMS }.run(project, deadline)
        }));
        steps.push(Step::new("conformance-backports", |deadline| {
            NEWER_KERNEL.ensure(project, deadline).map_err(as_skipped)?;
            Tests { options: &["--kernel", "backports"], ..CONFORMANCE }.run(project, deadline)
        }));
        steps.push(Step::new("program-reborn-host", |deadline| {
            Tests { words: &["reborn::"], ..TWO_PROGRAMS }.run(project, deadline)
        }));
        steps.push(Step::new("fleet-over-rdma", |deadline| fleet(project, deadline)));
        steps.push(Step::new("python-contract-rdma", |deadline| contract(project, deadline)));
    }
    steps
}

/// NICs of a guest, or of two.
#[derive(Clone, Copy)]
struct Nics {
    driver: &'static str,
    /// Whether those connect through the connection manager that need not.
    managed: bool,
    /// Guests, each of which runs the tests.
    hosts: u8,
}

const SOFT_ROCE: Nics = Nics { driver: "rxe", managed: false, hosts: 1 };
const MANAGED_SOFT_ROCE: Nics = Nics { managed: true, ..SOFT_ROCE };
const SOFT_IWARP: Nics = Nics { driver: "siw", ..SOFT_ROCE };

/// Runs tests of several binaries in sequence in one boot, which takes twelve seconds of a processor for each guest.
fn in_one_boot(
    project: &Project,
    Nics { driver, managed, hosts }: Nics,
    chosen: &[Tests<'_>],
    deadline: Instant,
) -> Outcome {
    check(project)?;
    let features = Features::with_verbs(project, deadline)?;
    let built = build(project, &features, "guest-build", deadline)?;
    let mut script = String::from("failed=0\n");
    for tests in chosen {
        let found = built.iter().find(|binary| binary.name == tests.binary);
        let found = found.with_context(|| format!("no test binary {}", tests.binary))?;
        let (folder, program) = (found.package.display(), found.program.display());
        let words: Vec<_> = tests.words.iter().map(|word| format!("'{word}'")).collect();
        script += &format!("cd '{folder}'\nexport CARGO_MANIFEST_DIR='{folder}'\n");
        script += &format!("'{program}' {} || failed=1\n", words.join(" "));
    }
    script += "exit $failed\n";
    let mut command = Command::new(std::env::current_exe()?);
    features.apply(&mut command);
    command.current_dir(project.root());
    let mut log = format!("guest-{driver}");
    if managed {
        command.env(MANAGED, "1");
        log += "-managed";
    }
    if hosts > 1 {
        log += "-two-hosts";
    }
    // Two boots of a step have a log each.
    if chosen.iter().all(|tests| tests.binary == PROGRAM.binary) {
        log += "-program";
    }
    command.args(["guest", "--hosts", &hosts.to_string(), "--nics", driver]);
    command.args(["--limit", ONE_HOST_SECONDS_MAX]);
    command.args(["--", "sh", "-c", &script]);
    judged(&project.run(command, &log, deadline)?)
}

fn two_hosts(project: &Project, deadline: Instant) -> Outcome {
    check(project)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["guest", "--hosts", "2", "--limit", "60", "--"]);
    command.arg(project.target().join("debug/examples").join(TWO_HOSTS));
    project.run(command, "two-hosts", deadline)?;
    Ok("two hosts".to_owned())
}

/// Tests on soft-RoCE. All of the program, at night, have a guest of their own: they make devices of the same names.
fn soft_roce(project: &Project, nightly: bool, deadline: Instant) -> Outcome {
    let words = if nightly { &EVERY_STORY[..] } else { &KERNEL_STORIES };
    let stories = Tests { words, ..Tests::of("transport-rdma/rdma") };
    let program = Tests { words: &PROGRAM_STORIES, ..PROGRAM };
    let chosen = [stories, CONFORMANCE, program];
    let chosen = if nightly { &chosen[..2] } else { &chosen };
    in_one_boot(project, SOFT_ROCE, chosen, deadline)
}

/// Tests of two kernels with a NIC each; those of the program at night, in a boot of their own.
fn two_kernels(project: &Project, nics: Nics, nightly: bool, deadline: Instant) -> Outcome {
    let nics = Nics { hosts: 2, ..nics };
    if nightly {
        in_one_boot(project, nics, &[Tests { words: &MANAGED_HOSTS, ..PROGRAM }], deadline)?;
    }
    let stories = Tests { words: &TWO_KERNELS, ..Tests::of("transport-rdma/rdma") };
    in_one_boot(project, nics, &[stories], deadline)
}

/// Tests on soft-iWARP, whose queue pairs connect through the connection manager alone, in one guest. The
/// driver is built first, once for each kernel.
fn soft_iwarp(project: &Project, nightly: bool, deadline: Instant) -> Outcome {
    prepare_siw(project, deadline)?;
    let every = nightly_on_siw();
    let words = if nightly { &every[..] } else { &SIW_STORIES };
    let stories = Tests { words, ..Tests::of("transport-rdma/rdma") };
    let words = if nightly { &["siw::"] } else { &[OUT_OF_BAND] };
    let conformance = Tests { words, ..CONFORMANCE };
    let words = if nightly { &SIW_PROGRAM_NIGHTLY[..] } else { &SIW_PROGRAM };
    let program = Tests { words, ..PROGRAM };
    in_one_boot(project, SOFT_IWARP, &[stories, conformance, program], deadline)
}

/// Arguments of the verbs transport's stories over soft-iWARP at night.
fn nightly_on_siw() -> Vec<&'static str> {
    let names = NOT_ON_SIW.iter().flat_map(|(_, names)| names.iter().copied());
    EVERY_STORY.into_iter().chain(names.flat_map(|name| ["--skip", name])).collect()
}

/// Builds soft-iWARP. Without its packages, or the programs that build it, the step is skipped; every other
/// failure is one.
fn prepare_siw(project: &Project, deadline: Instant) -> Result<()> {
    check(project)?;
    fetch_sources(project, deadline).map_err(as_skipped)?;
    Machine::ensure_siw(project, deadline)
}

/// Unpacks the sources of soft-iWARP for the kernel that is unpacked, unless it is built, and checks that there
/// are programs to build it.
///
/// # Errors
/// A package or a program is unavailable.
pub(crate) fn fetch_sources(project: &Project, deadline: Instant) -> Result<()> {
    let release = Machine::release(project, deadline)?;
    if siw::kept(project, &release).is_some() {
        return Ok(());
    }
    siw::sources(&release).ensure(project, deadline)?;
    siw::check_programs()
}

/// The stories of lanes and of the program, and the scenarios of connections, on soft-RoCE that connects
/// through the connection manager.
fn managed_soft_roce(project: &Project, deadline: Instant) -> Outcome {
    let stories = Tests { words: &SIW_STORIES, ..Tests::of("transport-rdma/rdma") };
    let conformance = Tests { words: &["soft_roce::"], ..CONFORMANCE };
    let program = Tests { words: &MANAGED_PROGRAM, ..PROGRAM };
    in_one_boot(project, MANAGED_SOFT_ROCE, &[stories, conformance, program], deadline)
}

/// Runs the tests with released Mooncake nodes as peers, in one guest with two NICs; those with a store
/// if etcd can be built.
fn fleet(project: &Project, deadline: Instant) -> Outcome {
    fleet::check(project)?;
    let tests = Tests {
        options: &["--limit", FLEET_SECONDS_MAX],
        words: &[FLEET, "--test-threads=1"],
        nightly: true,
        ..PROGRAM
    };
    fleet::unless_skipped(&tests.output(project, deadline)?)
}

/// Plays the rounds of `contract.py` between the two NICs, fifty of each kind of failure.
fn contract(project: &Project, deadline: Instant) -> Outcome {
    check(project)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.current_dir(project.root().join(python::TESTS));
    command
        .args(["guest", "--limit", CONTRACT_SECONDS_MAX, "--"])
        .arg(python::interpreter(project)?);
    command.args(["-B", "contract.py", "--devices", "rxe0,rxe1", "--workers", "1"]);
    command.args(["--rounds", CONTRACT_ROUNDS]);
    python::rounds_of(&project.run(command, "guest-python-contract", deadline)?)
}

/// Scenarios played on the simulated fabric, compared with a kernel's soft-RoCE.
const CONFORMANCE: Tests<'_> =
    Tests { words: &["guest::"], ..Tests::of("sim-tests/conformance/conformance") };
/// Tests of the program, in one guest.
const PROGRAM: Tests<'_> = Tests::of("cli/program");
/// Tests of the program in two guests, each of which runs them.
const TWO_PROGRAMS: Tests<'_> = Tests { options: &["--hosts", "2"], ..PROGRAM };

/// Tests to run in a guest.
struct Tests<'a> {
    /// The test binary, by folder and name.
    binary: &'a str,
    /// Options of `cargo xtask guest`.
    options: &'a [&'a str],
    /// Arguments of the test binary.
    words: &'a [&'a str],
    /// Sets the variable for long runs.
    nightly: bool,
    /// Whether queue pairs connect through the connection manager that need not.
    managed: bool,
}

impl<'a> Tests<'a> {
    const fn of(binary: &'a str) -> Self {
        Self { binary, options: &[], words: &[], nightly: false, managed: false }
    }

    fn run(&self, project: &Project, deadline: Instant) -> Outcome {
        judged(&self.output(project, deadline)?)
    }

    fn output(&self, project: &Project, deadline: Instant) -> Result<String> {
        check(project)?;
        let mut features = Features::with_verbs(project, deadline)?;
        features.set(fleet::FOLDER, project.scratch());
        if self.nightly {
            features.set(NIGHTLY, "1");
        }
        let mut parts = [&[self.binary][..], self.options, self.words].concat();
        if self.managed {
            features.set(MANAGED, "1");
            parts.push("managed");
        }
        let log = parts.concat().replace(|c: char| !c.is_alphanumeric(), "-");
        let log: String = "guest-".chars().chain(log.chars()).take(LOG_NAME_MAX).collect();
        let binary = binary(project, &features, (self.binary, &log), deadline)?;
        let mut command = binary.command(&std::env::current_exe()?, &features);
        command.arg("guest").args(self.options).arg("--").arg(&binary.program).args(self.words);
        project.run(command, &log, deadline)
    }
}

/// Checks that the packages of the guest are present; an error skips the step.
fn check(project: &Project) -> Result<()> {
    let missing = packages(&["guest"]).iter().find(|packages| !packages.is_present(project));
    missing.map_or(Ok(()), |packages| Err(skipped(packages.missing())))
}

/// Returns the file that records whether KVM works here.
fn verdict(project: &Project) -> PathBuf {
    project.scratch().join("guest-accelerator")
}

/// Returns the program that makes the NICs' numbers differ, if it was built.
fn numbers_apart(project: &Project) -> Option<PathBuf> {
    let program = project.target().join("debug/examples").join(EXAMPLE);
    program.is_file().then_some(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A story that soft-iWARP leaves out exists, is left out once, and is none of those that run at every change.
    #[test]
    fn story_that_is_left_out_on_siw_exists() {
        let words = nightly_on_siw();
        assert_eq!(words[..EVERY_STORY.len()], EVERY_STORY);
        let names: Vec<_> = NOT_ON_SIW.iter().flat_map(|(_, names)| names.iter()).collect();
        assert_eq!(words.len(), EVERY_STORY.len() + 2 * names.len());
        let folder = Project::find().unwrap().root().join("transport-rdma/tests/rdma");
        for name in &names {
            let (module, test) = name.split_once("::").unwrap();
            let text = fs::read_to_string(folder.join(module).with_extension("rs")).unwrap();
            assert!(text.contains(&format!("fn {test}()")), "no story is named {name}");
            assert_eq!(names.iter().filter(|other| other.contains(**name)).count(), 1, "{name}");
            assert!(!SIW_STORIES.contains(*name), "{name} runs at every change");
        }
    }

    #[test]
    fn test_that_is_named_exists() {
        let project = Project::find().unwrap();
        let folders = ["cli/tests/stories", "transport-rdma/tests/rdma"];
        let [program, transport] = folders.map(|folder| project.root().join(folder));
        let of = |folder: PathBuf, names: &[&'static str]| {
            names.iter().map(|name| (folder.clone(), *name)).collect::<Vec<_>>()
        };
        let kernel = [&KERNEL_STORIES[..], &SIW_STORIES, &TWO_KERNELS[..1]]
            .map(|names| of(transport.clone(), names))
            .concat();
        let programs =
            [&PROGRAM_STORIES[..], &SIW_PROGRAM, &SIW_PROGRAM_NIGHTLY[..6], &MANAGED_PROGRAM[..3]];
        let program = programs.map(|names| of(program.clone(), names));
        let named = [program.concat(), kernel].concat();
        for (stories, name) in named {
            let (module, name) = name.rsplit_once("::").unwrap();
            let file = stories.join(module.replace("::", "/")).with_extension("rs");
            let text = fs::read_to_string(file).unwrap();
            // A name that ends there is a whole module's.
            let is_there = name.is_empty() || text.contains(&format!("fn {name}()"));
            assert!(is_there, "no test is named {name}");
        }
    }
}
