//! `handfast doctor --prove` on devices of a kernel: soft-iWARP in a virtual machine (`cargo xtask guest --nics siw`).

use crate::helpers::{run, skipped};
use serde_json::Value;

/// Facts that the connection manager decides by itself: nothing can be measured.
const OF_MANAGER: [&str; 8] = [
    "reset",
    "psn",
    "stale_read",
    "link_local",
    "ipv6",
    "silent_peer",
    "seven_retries",
    "larger_mtu",
];
/// Figures, of which no profile assumes any.
const FIGURES: [&str; 4] = ["active_mtu", "small_writes", "large_write", "large_read"];

/// The profile of soft-iWARP is as the kernel's devices are: each fact is equal to the profile's, or has the reason for
/// which it cannot be measured.
#[test]
fn profile_of_soft_iwarp_is_proven() {
    if std::env::var("HANDFAST_NICS").is_ok_and(|nics| nics == "siw") {
        prove("siw0,siw1");
    } else {
        skipped("it needs siw0 and siw1 of a guest");
    }
}

fn prove(devices: &str) {
    let proof = run(&["doctor", "--prove", "--device", devices, "--json"]);
    let report: Value = serde_json::from_str(&proof.done().output).unwrap();
    let text =
        |measured: &Value, part: &str| measured[part].as_str().unwrap_or_default().to_owned();
    for measured in report["assumptions"].as_array().unwrap() {
        let (key, verdict) = (text(measured, "key"), text(measured, "verdict"));
        let expected = match () {
            () if OF_MANAGER.contains(&&*key) => "not_measured",
            () if FIGURES.contains(&&*key) => "no_assumption",
            () => "agrees",
        };
        assert_eq!(verdict, expected, "{key}: {measured:#}");
        println!("{key}: {verdict}");
    }
}
