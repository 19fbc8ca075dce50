//! Scenarios of the connection manager: the simulated one compared with that behind librdmacm.

#[cfg(feature = "verbs")]
use conformance::record_managed_kernel;
use conformance::{Recording, managed_chapter, record_managed_simulated};

/// The recording of the simulated connection manager is current.
#[test]
fn recorded_connections_are_current() {
    let recorded = include_str!("../../recorded/managed-simulated.txt");
    let played = record_managed_simulated().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(played.played.len(), managed_chapter().scenarios.len());
    assert!(played.played.len() >= 20);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/recorded/managed-simulated.txt");
        std::fs::write(path, played.to_string()).unwrap();
        return;
    }
    assert_eq!(Recording::of_text(recorded).played, played.played, "UPDATE_SNAPSHOTS=1 writes it");
}

/// Every scenario has the same observations behind librdmacm on scripted devices: those that connect through
/// it alone, and soft-RoCE.
#[cfg(feature = "verbs")]
#[test]
fn scripted_connections_equal_simulated_ones() {
    use handfast_fabric_control::{Process, is_scripted};
    if is_scripted() {
        return play();
    }
    let mut differing = Vec::new();
    for profile in ["erdma-standard", "siw", "iwarp", "rxe", "mlx5"] {
        let process = Process::new(&format!("rxe0={profile},rxe1={profile}")).unwrap();
        let name = "managed::scripted_connections_equal_simulated_ones";
        let output = process.again().unwrap().args([name, "--exact"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || !text.contains("1 passed") {
            differing.push(format!("{profile}: {text}"));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[cfg(feature = "verbs")]
fn play() {
    let simulated = record_managed_simulated().unwrap_or_else(|error| panic!("{error}"));
    let devices = [("rxe0", [10, 0, 0, 1].into()), ("rxe1", [10, 0, 0, 2].into())];
    let scripted =
        record_managed_kernel("the scripted connection manager".to_owned(), &[], devices);
    let scripted = scripted.unwrap_or_else(|error| panic!("{error}"));
    let mut differing = Vec::new();
    for ((name, expected), (_, seen)) in simulated.played.iter().zip(&scripted.played) {
        for (expected, seen) in expected.iter().zip(seen).filter(|(one, other)| one != other) {
            differing.push(format!("{name}: {expected:?}, scripted {seen:?}"));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    assert_eq!(simulated.played, scripted.played);
}
