//! The checked-in corpora against the checks, without a fuzzer.

use handfast_fuzz_checks::{Check, TARGETS};
use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

#[test]
fn every_checked_in_input_passes_its_check() {
    for &(target, check) in TARGETS {
        let inputs = inputs_of(target);
        assert!(!inputs.is_empty(), "the corpus of {target} is empty");
        let failed: Vec<_> = inputs.iter().filter(|input| !passes(check, input)).collect();
        assert!(failed.is_empty(), "{target} fails on {failed:?}");
    }
}

#[test]
fn a_corpus_stays_small_enough_to_be_checked_in() {
    for &(target, _) in TARGETS {
        let inputs = inputs_of(target);
        let bytes: u64 = inputs.iter().map(|input| fs::metadata(input).unwrap().len()).sum();
        assert!(inputs.len() < 60 && bytes < 300 << 10, "{target}: {} files", inputs.len());
    }
}

#[test]
fn every_target_has_a_corpus_and_a_binary_and_none_is_left_over() {
    let targets: BTreeSet<_> = TARGETS.iter().map(|&(target, _)| target.to_owned()).collect();
    assert_eq!(stems(&fuzz_folder().join("corpus")), targets);
    assert_eq!(stems(&fuzz_folder().join("fuzz_targets")), targets);
}

fn passes(check: Check, input: &Path) -> bool {
    let bytes = fs::read(input).unwrap();
    catch_unwind(|| check(&bytes)).is_ok()
}

fn inputs_of(target: &str) -> Vec<PathBuf> {
    entries(&fuzz_folder().join("corpus").join(target))
}

fn stems(folder: &Path) -> BTreeSet<String> {
    let stem = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    entries(folder).iter().map(stem).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
