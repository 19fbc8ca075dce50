//! Stories over RDMA on scripted devices: several processes in a network of their own share them.

use crate::helpers::{Folder, PROGRAM, again, run, skipped};
use handfast_fabric_control::{Process, passed};
use std::process::Command;

/// The devices, their addresses on the loopback of the network, and the tests.
const SCRIPT: &str = "ip link set lo up && for host in $(seq 1 42); do \
                      ip address add 10.0.0.$host/8 dev lo || exit; done && exec \"$0\" \"$@\"";
/// Links of stories, each with two devices.
const LINKS: u32 = 21;
/// Stories of the program over the two devices of the first link.
const PROGRAM_STORIES: [&str; 1] = ["rdma::"];
/// Stories of engines and of processes on links of their own.
const LINK_STORIES: [&str; 4] = ["held::", "rdma_engine::", "rdma_loss::", "rdma_rails::"];
/// A story of IPv6, for drivers without addresses of it.
const FAMILIES: &str = "first_lane_announces_address_of_the_peers_family";
/// Set in the process that has a test's devices.
const STORIES: &str = "HANDFAST_STORIES";
/// Stories that look at the kernel's files, or hide the library.
const KERNEL: [&str; 5] = [
    "mooncake_rdma::",
    "rdma::doctor::",
    "missing_library_fails_rdma_and_auto_falls_back",
    "auto_falls_back_between_unreachable_nics",
    "smoke_without_device_or_library_names_the_lack",
];

/// Runs stories on two devices of a profile for each link, which a process of their own shares, with
/// variables; at least `enough` pass.
fn stories_pass(
    (test, profile): (&str, &str),
    links: u32,
    (stories, except): (&[&str], &[&str]),
    variables: &[(&str, &str)],
    enough: usize,
) {
    if !Command::new("unshare").args(["-rn", "true"]).status().is_ok_and(|ended| ended.success()) {
        return skipped("it needs a network of its own");
    }
    if std::env::var_os(STORIES).is_none() {
        let ended = again(&format!("native::{test}"), STORIES, profile).output().unwrap();
        let text = String::from_utf8_lossy(&ended.stdout);
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && text.contains("1 passed"), "{text}\n{errors}");
        return;
    }
    let device = |number| {
        // Equal numbers would hide a mix-up of both ends.
        let from = if number % 2 == 1 { ":numbers_from=500" } else { "" };
        format!("rxe{number}={profile}{from}")
    };
    let devices: Vec<String> = (0..2 * links).map(device).collect();
    let process = Process::shared(&devices.join(",")).unwrap();
    let mut command = process.program("unshare".as_ref());
    command.args(["-rn", "sh", "-c", SCRIPT]).arg(std::env::current_exe().unwrap());
    command.args(stories).arg("--test-threads=1").envs(variables.iter().copied());
    let passed = passed(&mut command, &[&KERNEL, except].concat());
    let passed = passed.unwrap_or_else(|why| panic!("{profile}:\n{why}"));
    assert!(passed >= enough, "{profile}: {passed}");
}

/// A command runs on scripted devices of a profile, and its exit code is that of the program.
#[test]
fn command_runs_on_scripted_devices() {
    let smoke = ["--", PROGRAM, "smoke", "--loopback"];
    let ended = run(&[&["fabric", "run", "--profile", "mlx5"], &smoke[..]].concat()).done();
    assert!(
        ended.output.contains("mlx5") && ended.output.contains("pass     restart"),
        "{ended:?}"
    );
    let skipped = ended.output.lines().find(|line| line.starts_with("skipped  rdma-cm")).unwrap();
    assert!(skipped.ends_with("rxe0 and rxe1 connect out of band"), "{skipped}");
    run(&["fabric", "run", "--", "sh", "-c", "exit 7"]).failed(7, &["exit status: 7"]);
    run(&["fabric", "run", "--", "sh", "-c", "kill -9 $$"]).failed(137, &["signal: 9"]);
    run(&["fabric", "run", "--profile", "none", "--", "true"]).failed(2, &["no profile 'none'"]);
}

/// A script acts on the devices of a command; a line that they refuse is named.
#[test]
fn script_acts_on_the_devices_of_a_command() {
    let folder = Folder::new();
    let script = folder.name("script");
    let command = |script: &str| {
        let smoke = ["--", PROGRAM, "smoke", "--loopback"];
        run(&[&["fabric", "run", "--script", script], &smoke[..]].concat())
    };
    std::fs::write(&script, "# the device cannot be opened\nfail call rxe0 ibv_open_device 13\n")
        .unwrap();
    command(&script).failed(13, &["ibv_open_device", "os error 13"]);
    std::fs::write(&script, "\ncut rxe0\n").unwrap();
    command(&script).failed(2, &["line 2 of the script, 'cut rxe0': no such command"]);
    std::fs::write(&script, "wait count rxe9 ibv_open_device is 1\n").unwrap();
    command(&script)
        .failed(2, &["line 1 of the script", "no device 'rxe9'; there are: rxe0, rxe1"]);
}

/// The program's stories pass on soft-RoCE, as a table.
#[test]
fn program_stories_pass_on_rxe() {
    let test = ("program_stories_pass_on_rxe", "rxe");
    stories_pass(test, 1, (&PROGRAM_STORIES, &[]), &[], 8);
}

/// On soft-RoCE that connects through the connection manager, as at night in a guest, smoke tests take that way:
/// two NICs, one to itself, and one against a server.
#[test]
fn smoke_stories_pass_on_rxe_through_the_manager() {
    let test = ("smoke_stories_pass_on_rxe_through_the_manager", "rxe");
    let managed = [("HANDFAST_RDMA_CM", "1")];
    stories_pass(test, 1, (&["rdma::smoke_of_"], &[]), &managed, 2);
}

/// Runs the stories on links of a profile, except those named.
fn link_stories_pass(test: &str, profile: &str, except: &[&str]) {
    let enough = 14 - except.len();
    stories_pass((test, profile), LINKS, (&LINK_STORIES, except), &[], enough);
}

/// The reference NIC.
#[test]
fn link_stories_pass_on_mlx5() {
    link_stories_pass("link_stories_pass_on_mlx5", "mlx5:ipv6", &[]);
}

/// eRDMA that ignores RESET and PSNs, and flushes no late post.
#[test]
fn link_stories_pass_on_erdma_compat() {
    let test = "link_stories_pass_on_erdma_compat";
    // Nothing stays registered with a driver that lets peers write to it.
    let except = ["block_stays_registered_until_it_is_freed", FAMILIES];
    link_stories_pass(test, "erdma-compat:retry_ms=2", &except);
}

/// eRDMA in its standard mode, through the connection manager. It has one address, of no family.
#[test]
fn link_stories_pass_on_erdma_standard() {
    let test = "link_stories_pass_on_erdma_standard";
    link_stories_pass(test, "erdma-standard:retry_ms=2", &[FAMILIES]);
}

/// Soft-iWARP, as a table, through the connection manager.
#[test]
fn link_stories_pass_on_siw() {
    link_stories_pass("link_stories_pass_on_siw", "siw", &[FAMILIES]);
}

/// Other NICs of iWARP, through the connection manager.
#[test]
fn link_stories_pass_on_iwarp() {
    link_stories_pass("link_stories_pass_on_iwarp", "iwarp", &[FAMILIES]);
}

/// Two nodes meet both ways at once, move bytes and restart through the connection manager.
#[test]
fn smoke_passes_through_the_connection_manager() {
    if !Command::new("unshare").args(["-rn", "true"]).status().is_ok_and(|ended| ended.success()) {
        return skipped("it needs a network of its own");
    }
    smoke_passes_managed("erdma-standard", &[PROGRAM, "smoke", "--loopback"]);
}

/// RoCE devices connect through the connection manager in every step, with the option and with its variable.
#[test]
fn smoke_of_roce_connects_through_the_manager_if_forced() {
    if !Command::new("unshare").args(["-rn", "true"]).status().is_ok_and(|ended| ended.success()) {
        return skipped("it needs a network of its own");
    }
    smoke_passes_managed("rxe", &[PROGRAM, "smoke", "--loopback", "--rdma-cm"]);
    smoke_passes_managed("rxe", &["env", "HANDFAST_RDMA_CM=1", PROGRAM, "smoke", "--loopback"]);
}

/// Two nodes connect through the connection manager, by all that a smoke test prints.
#[track_caller]
fn smoke_passes_managed(profile: &str, words: &[&str]) {
    let (text, errors) = managed(profile, words);
    for part in ["connects through the connection manager", "pass     bytes", "pass     restart"] {
        assert!(text.contains(part), "{part}: {text}\n{errors}");
    }
    let step = text.lines().find(|line| line.starts_with("pass     rdma-cm"));
    let step = step.unwrap_or_else(|| panic!("no such step: {text}\n{errors}"));
    for part in ["10.0.0.1:", " and 10.0.0.2:", "bytes moved each way, and both disconnected"] {
        assert!(step.contains(part), "{part}: {step}");
    }
}

/// The output and the errors of a command on two devices of a profile, in a network of their own.
fn managed(profile: &str, words: &[&str]) -> (String, String) {
    let fabric = [PROGRAM, "fabric", "run", "--profile", profile, "--"];
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", SCRIPT]).args(fabric).args(words);
    let ended = command.output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (text(&ended.stdout), text(&ended.stderr))
}

/// A library of the connection manager that cannot be loaded is fatal where every device needs it: to
/// the doctor, and to the steps of a smoke test, which names the same problem.
#[test]
fn missing_librdmacm_is_found_by_doctor_and_smoke() {
    if !Command::new("unshare").args(["-rn", "true"]).status().is_ok_and(|ended| ended.success()) {
        return skipped("it needs a network of its own");
    }
    let folder = Folder::new();
    let place = folder.name("root");
    std::fs::create_dir_all(format!("{place}/proc")).unwrap();
    let doctor = format!(
        "rm -rf {place}/sys && cp -r $SYSFS_PATH {place} && mkdir -p {place}/sys/module/ib_uverbs && \
         {PROGRAM} doctor --root {place} --transport rdma --json --lang en"
    );
    let (sound, errors) = managed("erdma-standard", &["sh", "-c", &doctor]);
    assert!(sound.contains(r#""ERDMA-STANDARD-MODE""#), "{sound}\n{errors}");
    assert!(!sound.contains(r#""CM-MISSING""#), "{sound}\n{errors}");
    // No library: an empty file of its name comes first.
    std::fs::write(folder.join("librdmacm.so.1"), "").unwrap();
    let hide = format!("LD_LIBRARY_PATH={}:$LD_LIBRARY_PATH; ", folder.name("."));
    let (found, errors) = managed("erdma-standard", &["sh", "-c", &(hide.clone() + &doctor)]);
    let report: serde_json::Value = serde_json::from_str(&found).unwrap();
    let text = report.to_string();
    for part in [r#""id":"CM-MISSING""#, "librdmacm1", "file too short"] {
        assert!(text.contains(part), "{part}: {found}\n{errors}");
    }
    let (text, errors) =
        managed("erdma-standard", &["sh", "-c", &format!("{hide}{PROGRAM} smoke --loopback")]);
    assert!(text.contains("fail     devices") && errors.contains("librdmacm1"), "{text}\n{errors}");
    let why = "there is no device to use";
    let skipped =
        text.lines().any(|line| line.starts_with("skipped  rdma-cm") && line.ends_with(why));
    assert!(skipped, "{text}\n{errors}");
}

/// The other profiles; nightly.
mod every_profile {
    use super::{FAMILIES, link_stories_pass};

    /// The specification's device.
    #[test]
    fn link_stories_pass_on_strict() {
        link_stories_pass("every_profile::link_stories_pass_on_strict", "strict:ipv6", &[]);
    }

    /// Soft-RoCE, as a table.
    #[test]
    fn link_stories_pass_on_rxe() {
        link_stories_pass("every_profile::link_stories_pass_on_rxe", "rxe:ipv6", &[]);
    }

    /// A NIC on which RESET is an error.
    #[test]
    fn link_stories_pass_on_irdma() {
        link_stories_pass("every_profile::link_stories_pass_on_irdma", "irdma:ipv6", &[]);
    }

    /// eRDMA whose RESET breaks the ring of the queue pair.
    #[test]
    fn link_stories_pass_on_erdma_rocev2() {
        let test = "every_profile::link_stories_pass_on_erdma_rocev2";
        link_stories_pass(test, "erdma-rocev2:retry_ms=2", &[FAMILIES]);
    }
}
