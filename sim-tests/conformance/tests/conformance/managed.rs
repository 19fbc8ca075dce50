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

/// Every scenario that needs no cut has the same observations on the two devices of a guest, of this driver, except for the
/// declared differences, each of which is there.
#[cfg(feature = "verbs")]
pub(crate) fn kernel_connections_equal_simulated_ones(driver: &str) {
    use conformance::MANAGED_DIFFERENCES;
    let simulated = record_managed_simulated().unwrap_or_else(|error| panic!("{error}"));
    let names = [format!("{driver}0"), format!("{driver}1")];
    let devices = [(&*names[0], [10, 0, 0, 1].into()), (&*names[1], [10, 0, 0, 2].into())];
    let needs_cut = |steps: &[String]| steps.iter().any(|step| step == "cut");
    let mut declared: Vec<_> =
        MANAGED_DIFFERENCES.iter().filter(|it| it.driver == driver).collect();
    let (mut count, mut differing) = (0, Vec::new());
    for scenario in managed_chapter().scenarios {
        if needs_cut(&scenario.steps) {
            continue;
        }
        let name = &scenario.name;
        println!("{name}");
        let seen = record_managed_kernel(driver.to_owned(), std::slice::from_ref(name), devices);
        let seen = match &seen {
            Ok(seen) => seen.lines(name).unwrap_or_default(),
            Err(error) => {
                differing.push(error.to_string());
                continue;
            }
        };
        let expected = simulated.lines(name).unwrap_or_default();
        count += expected.len();
        for (seen, expected) in seen.iter().zip(expected).filter(|(seen, it)| seen != it) {
            let known = declared.iter().position(|it| it.scenario == *name && it.line == *seen);
            match known {
                Some(known) => drop(declared.remove(known)),
                None => differing.push(format!("{name}: {seen:?}, simulated {expected:?}")),
            }
        }
    }
    println!("{driver}: {count} observations");
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    assert!(declared.is_empty(), "no longer different: {declared:?}");
}
