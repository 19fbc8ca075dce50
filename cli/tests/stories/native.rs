//! Stories over RDMA on scripted devices: several processes in a network of their own share them.

use crate::helpers::{Folder, PROGRAM, run, skipped};
use handfast_fabric_control::{Process, passed};
use std::process::Command;

/// The devices, their addresses on the loopback of the network, and the tests.
const SCRIPT: &str = "ip link set lo up && ip address add 10.0.0.1/8 dev lo && \
                      ip address add 10.0.0.2/8 dev lo && exec \"$0\" \"$@\"";
/// Stories that look at the kernel's files, or hide the library.
const KERNEL: [&str; 5] = [
    "mooncake_rdma::",
    "rdma::doctor::",
    "missing_library_fails_rdma_and_auto_falls_back",
    "auto_falls_back_between_unreachable_nics",
    "smoke_without_device_or_library_names_the_lack",
];

/// Runs the stories of the program on two devices of a profile.
fn stories_pass(profile: &str, except: &[&str], enough: usize) {
    if !Command::new("unshare").args(["-rn", "true"]).status().is_ok_and(|ended| ended.success()) {
        return skipped("it needs a network of its own");
    }
    let devices = format!("rxe0={profile},rxe1={profile}:numbers_from=500");
    let process = Process::shared(&devices).unwrap();
    let mut command = process.program("unshare".as_ref());
    command.args(["-rn", "sh", "-c", SCRIPT]).arg(std::env::current_exe().unwrap());
    command.args(["rdma::", "--test-threads=1"]);
    let passed = passed(&mut command, &[&KERNEL, except].concat());
    let passed = passed.unwrap_or_else(|failed| panic!("{profile}:\n{failed}"));
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
    let refused = [&["fabric", "run", "--profile", "erdma-standard"], &smoke[..]].concat();
    run(&refused).failed(13, &["modprobe erdma compat_mode=Y"]);
    run(&["fabric", "run", "--", "sh", "-c", "exit 7"]).failed(7, &["exit status: 7"]);
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
    stories_pass("rxe", &[], 8);
}
