//! The checked-in corpora and inputs made of them against the checks, without a fuzzer.

use handfast_fuzz_checks::mutate::Mutator;
use handfast_fuzz_checks::{Check, TARGETS};
use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, fs, thread};
use xxhash_rust::xxh3::xxh3_64;

/// Seconds for the inputs of each target; without it there are [`INPUTS`] of each.
const SECONDS: &str = "HANDFAST_FUZZ_SECONDS";
/// The only target to try.
const TARGET: &str = "HANDFAST_FUZZ_TARGET";
/// Determines the inputs.
const SEED: &str = "HANDFAST_FUZZ_SEED";
/// Inputs of each target in a usual run of the tests.
const INPUTS: u64 = 100;
/// Time limit of one input: thousands of times its usual duration, on a machine that has other work.
const INPUT_TIME_MAX: Duration = Duration::from_secs(30);
/// Memory limit of all targets together.
const MEMORY_KIB_MAX: u64 = 2 << 20;
/// Targets that are tried at a time.
const THREADS: usize = 2;

#[test]
fn every_checked_in_input_passes_its_check() {
    for &(target, check) in TARGETS {
        let inputs = inputs_of(target);
        assert!(!inputs.is_empty(), "the corpus of {target} is empty");
        let failed: Vec<_> = inputs.iter().filter(|input| !passes(check, input)).collect();
        assert!(failed.is_empty(), "{target} fails on {failed:?}");
    }
}

/// Inputs made of the corpus pass as well: some of each target, or as many as fit into the seconds that
/// `HANDFAST_FUZZ_SECONDS` names. One that does not pass is kept in `fuzz/artifacts`.
#[test]
fn mutated_inputs_pass_their_checks() {
    let (seconds, seed) = (number_of(SECONDS), number_of(SEED).unwrap_or(1));
    let mut targets = TARGETS.to_vec();
    if let Ok(only) = env::var(TARGET) {
        targets.retain(|(target, _)| *target == only);
        assert!(!targets.is_empty(), "there is no target {only}");
    }
    let (left, failed) = (Mutex::new(targets), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some((target, check)) = pop(&left) {
                    match try_mutations(target, check, seconds, seed) {
                        Ok(inputs) => println!("{inputs} inputs to {target}"),
                        Err(why) => failed.lock().unwrap().push(why),
                    }
                }
            });
        }
    });
    assert_eq!(failed.into_inner().unwrap(), Vec::<String>::new(), "with {SEED}={seed}");
    let peak = memory_kib_peak();
    assert!(peak.is_none_or(|peak| peak < MEMORY_KIB_MAX), "{peak:?} KiB of memory");
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

/// Takes a target; the lock is free again while it is tried.
fn pop(left: &Mutex<Vec<(&'static str, Check)>>) -> Option<(&'static str, Check)> {
    left.lock().unwrap().pop()
}

/// Returns how many inputs passed, or where the one is that did not.
fn try_mutations(
    target: &str,
    check: Check,
    seconds: Option<u64>,
    seed: u64,
) -> Result<u64, String> {
    let corpus = inputs_of(target).iter().map(|input| fs::read(input).unwrap()).collect();
    let mut mutator = Mutator::new(corpus, words_of(target), seed);
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut inputs = 0;
    while end.map_or(inputs < INPUTS, |end| Instant::now() < end) {
        let input = mutator.next_input();
        let began = Instant::now();
        let passed = catch_unwind(|| check(input)).is_ok();
        if !passed || began.elapsed() > INPUT_TIME_MAX {
            let folder = fuzz_folder().join("artifacts").join(target);
            let kept = folder.join(format!("mutated-{:016x}", xxh3_64(input)));
            fs::create_dir_all(&folder).and_then(|()| fs::write(&kept, input)).unwrap();
            let what = if passed { "takes too long" } else { "does not pass" };
            return Err(format!("{target}: input {inputs} {what}: {}", kept.display()));
        }
        inputs += 1;
    }
    Ok(inputs)
}

/// The words of a target's dictionary.
fn words_of(target: &str) -> Vec<Vec<u8>> {
    let path = fuzz_folder().join("dictionaries").join(format!("{target}.dict"));
    let text = if path.exists() { fs::read_to_string(&path).unwrap() } else { String::new() };
    let quoted = text.lines().filter_map(|line| line.strip_prefix('"')?.strip_suffix('"'));
    quoted.map(|word| word.replace("\\\"", "\"").into_bytes()).collect()
}

/// The number in a variable of the environment.
fn number_of(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// The peak memory of this process, where the system reports it.
fn memory_kib_peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
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
