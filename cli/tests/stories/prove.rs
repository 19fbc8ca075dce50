//! `handfast doctor --prove` on scripted devices, each in a process of its own.

use crate::helpers::{Folder, PROGRAM, skipped};
use handfast_fabric_control::Process;
use serde_json::Value;
use std::path::Path;
use std::process::Output;

/// The profiles of devices that connect out of band.
const PROFILES: [&str; 6] = ["strict", "rxe", "mlx5", "irdma", "erdma-compat", "erdma-rocev2"];

/// Each lie, with a device whose profile assumes otherwise.
const LIES: [(&str, &str); 17] = [
    ("connects", "mlx5"),
    ("reset", "mlx5"),
    ("read_sink", "mlx5"),
    ("empty_read", "mlx5"),
    ("byte_read", "mlx5"),
    ("late_post", "mlx5"),
    ("wrong_key", "mlx5"),
    ("local_key", "mlx5"),
    ("psn", "mlx5"),
    ("stale_read", "mlx5"),
    ("link_local", "mlx5"),
    ("ipv6", "erdma-compat"),
    ("silent_peer", "mlx5"),
    ("seven_retries", "mlx5"),
    ("larger_mtu", "mlx5"),
    ("error_event", "mlx5"),
    ("numbers", "irdma"),
];

/// Starts the program on devices of a list.
fn prove(devices: &str, arguments: &[&str]) -> Output {
    let process = Process::new(devices).unwrap();
    let mut command = process.program(Path::new(PROGRAM));
    command.args(["doctor", "--prove"]).args(arguments).output().unwrap()
}

/// Its report, and its exit code.
fn report(devices: &str, arguments: &[&str]) -> (Value, Option<i32>) {
    let output = prove(devices, &[arguments, &["--json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout);
    (report.unwrap_or_else(|_| panic!("{devices}: {error}")), output.status.code())
}

/// The measurements of a verdict, by key.
fn of<'a>(report: &'a Value, verdict: &str) -> Vec<&'a str> {
    let measured = report["assumptions"].as_array().unwrap().iter();
    let measured = measured.filter(|measured| measured["verdict"] == verdict);
    measured.map(|measured| measured["key"].as_str().unwrap()).collect()
}

fn measured<'a>(report: &'a Value, key: &str) -> &'a Value {
    let mut all = report["assumptions"].as_array().unwrap().iter();
    all.find(|measured| measured["key"] == key).unwrap()
}

/// A device that is as its profile says differs in nothing, and everything is measured.
#[test]
fn each_profile_proves_itself() {
    for profile in PROFILES {
        let devices = format!("nic0={profile}:ipv6,nic1={profile}:ipv6:numbers_from=500");
        for named in [&["--device", "nic0,nic1"][..], &["--device", "nic1"], &[]] {
            let (report, code) = report(&devices, named);
            assert_eq!(code, Some(0), "{profile}: {report:#}");
            assert_eq!(report["devices"]["requester"]["profile"], *profile);
            assert_eq!(of(&report, "differs"), [""; 0], "{profile}");
            assert_eq!(of(&report, "not_measured"), [""; 0], "{profile}: {report:#}");
            let rate = measured(&report, "small_writes")["figure"].as_u64();
            assert!(rate.is_some_and(|rate| rate > 0), "{report:#}");
            if profile != "mlx5" {
                break;
            }
        }
    }
}

/// A device that differs in one assumption is reported with that one and no other.
#[test]
fn one_lie_is_reported_and_nothing_else() {
    for (lie, profile) in LIES {
        let devices = format!("nic0={profile}:ipv6:lies={lie}");
        let (report, code) = report(&devices, &[]);
        assert_eq!(code, Some(1), "{lie}: {report:#}");
        assert_eq!(of(&report, "differs"), [lie], "{report:#}");
        let differing = measured(&report, lie);
        assert_ne!(differing["observed"], differing["expected"], "{differing:#}");
        // Without connections nothing else can be seen.
        let is_blind = lie == "connects";
        assert_eq!(!of(&report, "not_measured").is_empty(), is_blind, "{lie}: {report:#}");
    }
}

/// Every assumption that a profile makes has a lie above.
#[test]
fn every_assumption_has_a_lie() {
    let (report, _) = report("nic0=rxe:ipv6", &[]);
    let assumed: Vec<&str> = of(&report, "agrees");
    let lies: Vec<&str> = LIES.iter().map(|(lie, _)| *lie).collect();
    assert_eq!(assumed, lies);
}

/// A device that the connection manager alone connects needs an IP address of the machine: without one
/// nothing else is measured, with the reason. Soft-iWARP of a kernel has one (`siw.rs`).
#[test]
fn device_of_the_manager_needs_an_address() {
    // The scripted device has this one.
    if std::net::UdpSocket::bind("10.0.0.1:0").is_ok() {
        return skipped("this machine has the address 10.0.0.1");
    }
    let (report, code) = report("nic0=erdma-standard", &[]);
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(of(&report, "agrees"), ["connects"]);
    assert_eq!(measured(&report, "connects")["observed"], "by the kernel alone");
    let why_not = &measured(&report, "byte_read")["why_not"];
    assert!(why_not.as_str().unwrap().contains("no IP address of this machine"), "{why_not}");
}

/// A port without IPv6 addresses is no difference: what needs one is not measured, with the reason.
#[test]
fn missing_address_is_not_measured() {
    let (report, code) = report("nic0=mlx5", &[]);
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(of(&report, "not_measured"), ["ipv6"]);
    assert!(measured(&report, "ipv6")["why_not"].as_str().unwrap().contains("no global"));
}

/// The file has the versions, the device and each measurement with its method, and is not replaced.
#[test]
fn file_names_versions_device_and_methods() {
    let folder = Folder::new();
    let name = folder.name("proof.json");
    let file = name.as_str();
    let output = prove("nic0=mlx5:lies=wrong_key", &["--output", file]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("DIFFERS        wrong_key      status 21, vendor 0x0"), "{text}");
    assert!(text.contains("1 differ, "), "{text}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(report["format"], 1);
    assert_eq!(report["handfast"], env!("CARGO_PKG_VERSION"));
    assert!(report["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()));
    let device = &report["devices"]["requester"];
    assert_eq!((&device["driver"], &device["vendor"]), (&"mlx5_core".into(), &0x15b3.into()));
    assert_eq!(device["firmware"], "0.0.0");
    let key = measured(&report, "wrong_key");
    assert_eq!(key["completion"]["status"], 21);
    assert_eq!(key["expected"], "status 10");
    assert!(key["method"].as_str().unwrap().contains("deregistered"));
    assert!(key["limit_ms"].as_u64() >= key["took_ms"].as_u64());
    let output = prove("nic0=mlx5", &["--output", file]);
    assert_eq!(output.status.code(), Some(5), "an existing file is kept");
}

/// The table fits narrow and wide terminals, and names every measurement.
#[test]
fn table_fits_narrow_and_wide_terminals() {
    for columns in ["40", "80", "110"] {
        let process = Process::new("nic0=mlx5:lies=reset").unwrap();
        let mut command = process.program(Path::new(PROGRAM));
        let command = command.args(["doctor", "--prove"]).env("COLUMNS", columns);
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(text.contains("moves to ERR") && text.contains("clears, usable again"), "{text}");
        assert!(text.contains("seven_retries") && text.contains("large_read"), "{text}");
        let columns = columns.parse().unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{text}");
    }
}

/// An obstacle to measuring is an error with side, stage, cause and cure, and exit code 2.
#[test]
fn what_prevents_measuring_has_exit_code_2() {
    for (devices, arguments, parts) in [
        ("", &[][..], ["side local", "stage ibv_get_device_list", "no RDMA device", "rdma link"]),
        (
            "nic0=mlx5",
            &["--device", "nic7"],
            ["side configuration", "stage ibv_get_device_list", "nic7", "--device"],
        ),
        (
            "nic0=mlx5,nic1=irdma",
            &["--device", "nic0,nic1"],
            ["side configuration", "one is mlx5, the other irdma", "nic0", "two of one kind"],
        ),
        ("nic0=mlx5", &["--device", "a,b,c"], ["--prove", "one device or two", "--device", "NAME"]),
        ("nic0=mlx5", &["--peer", "127.0.0.1:1"], ["--prove", "--peer", "cannot", "used"]),
    ] {
        let output = prove(devices, arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
