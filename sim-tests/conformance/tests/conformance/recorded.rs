//! The simulated fabric compared with recordings of kernels.

use conformance::{Recording, chapters, differences, findings, page, record_simulated};
use handfast_transport_sim::verbs::RXE;
use std::fs;
use std::path::{Path, PathBuf};

/// Fewer would leave out something that was asked for.
const SCENARIOS_MIN: usize = 60;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded")
}

/// Recordings of kernels, by name.
pub(crate) fn kernels() -> Vec<Recording> {
    let entries = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let is_kernel = |path: &PathBuf| path.to_string_lossy().contains("/linux-");
    let mut paths: Vec<_> = entries.filter(is_kernel).collect();
    paths.sort();
    paths.iter().map(|path| Recording::of_text(&fs::read_to_string(path).unwrap())).collect()
}

pub(crate) fn simulated() -> Recording {
    record_simulated(&RXE).unwrap_or_else(|error| panic!("{error}"))
}

/// Compares with a file that is kept; `UPDATE_SNAPSHOTS=1` rewrites it.
fn assert_kept(path: &Path, text: &str) {
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(path, text).unwrap();
        return;
    }
    let kept = fs::read_to_string(path).unwrap_or_default();
    let name = path.display();
    assert!(kept == text, "{name} is not what is observed now; UPDATE_SNAPSHOTS=1 writes it");
}

#[test]
fn every_scenario_can_be_played_and_shows_what_it_showed() {
    let count: usize = chapters().iter().map(|chapter| chapter.scenarios.len()).sum();
    assert!(count >= SCENARIOS_MIN, "{count} scenarios");
    let names = chapters().into_iter().flat_map(|chapter| chapter.scenarios);
    let mut names: Vec<_> = names.map(|scenario| scenario.name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count, "a name twice");
    assert_kept(&folder().join("simulated.txt"), &simulated().to_string());
}

/// The simulated device matches recorded kernels except for the listed differences.
#[test]
fn simulated_device_matches_recorded_kernels() {
    let kernels = kernels();
    assert!(!kernels.is_empty());
    let findings = findings(&simulated(), &kernels, &differences());
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn the_page_is_current() {
    let text = page(&chapters(), &simulated(), &kernels(), &differences());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/conformance.md");
    assert_kept(&path, &text);
}
