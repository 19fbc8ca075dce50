//! Scripted devices behind libibverbs compared with the same devices in the simulated fabric.

use conformance::{record_scripted, record_simulated};
use handfast_fabric_control::{Process, is_scripted};
use handfast_transport_sim::verbs::PROFILES;

/// The name of the profile that a process of [`play`] has.
const PROFILE: &str = "CONFORMANCE_PROFILE";

/// Every scenario has the same observations on scripted and on simulated devices, on every profile
/// that connects out of band.
#[test]
fn scripted_devices_equal_simulated_ones() {
    if is_scripted() {
        return play();
    }
    let mut differing = Vec::new();
    for profile in PROFILES.into_iter().filter(|profile| profile.gid_index.is_some()) {
        let device = |name| format!("{name}={}:queue_pairs=64:regions=128", profile.name);
        let process = Process::new(&format!("{},{}", device("rxe0"), device("rxe1"))).unwrap();
        let name = "scripted::scripted_devices_equal_simulated_ones";
        let mut child = process.again().unwrap();
        let output = child.args([name, "--exact"]).env(PROFILE, profile.name).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || !text.contains("1 passed") {
            differing.push(format!("{}: {text}", profile.name));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

fn play() {
    let name = std::env::var(PROFILE).unwrap();
    let profile = PROFILES.into_iter().find(|profile| profile.name == name).unwrap();
    let simulated = record_simulated(profile).unwrap_or_else(|error| panic!("{error}"));
    let scripted = record_scripted(profile).unwrap_or_else(|error| panic!("{error}"));
    assert!(simulated.played.len() >= 60);
    let mut differing = Vec::new();
    for ((name, expected), (_, seen)) in simulated.played.iter().zip(&scripted.played) {
        for (expected, seen) in expected.iter().zip(seen).filter(|(one, other)| one != other) {
            differing.push(format!("{name}: {expected:?}, scripted {seen:?}"));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    assert_eq!(simulated.played, scripted.played);
}
