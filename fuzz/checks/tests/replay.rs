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

/// Seconds for the inputs of each target.
const SECONDS: &str = "HANDFAST_FUZZ_SECONDS";
/// Inputs of each target; without it and seconds there are [`INPUTS_USUAL`].
const INPUTS: &str = "HANDFAST_FUZZ_INPUTS";
/// The only target to try.
const TARGET: &str = "HANDFAST_FUZZ_TARGET";
/// Determines the inputs.
const SEED: &str = "HANDFAST_FUZZ_SEED";
/// Inputs of each target in a usual run of the tests.
const INPUTS_USUAL: u64 = 100;
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
/// `HANDFAST_FUZZ_SECONDS` names. One that does not pass is kept in `fuzz/artifacts`, and made again by the
/// variables that are printed with it.
#[test]
fn mutated_inputs_pass_their_checks() {
    let limits = (number_of(SECONDS), number_of(INPUTS));
    let seed = number_of(SEED).unwrap_or(1);
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
                    match try_mutations((target, check), limits, seed) {
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

/// A dictionary has words in the form of libFuzzer, and every one of a target that is there.
#[test]
fn words_of_dictionaries_are_read() {
    assert_eq!(unescaped(r#"a\\x\"\x00\xfF"#), Ok(b"a\\x\"\x00\xff".to_vec()));
    for wrong in ["\\", r"\n", r"\x", r"\x1", r"\xgg"] {
        assert!(unescaped(wrong).is_err(), "{wrong}");
    }
    let targets: BTreeSet<_> = TARGETS.iter().map(|&(target, _)| target.to_owned()).collect();
    for target in stems(&fuzz_folder().join("dictionaries")) {
        assert!(targets.contains(&target) && !words_of(&target).is_empty(), "{target}");
    }
}

/// Takes a target; the lock is free again while it is tried.
fn pop(left: &Mutex<Vec<(&'static str, Check)>>) -> Option<(&'static str, Check)> {
    left.lock().unwrap().pop()
}

/// Returns how many inputs passed, or where the one is that did not.
fn try_mutations(
    (target, check): (&str, Check),
    (seconds, inputs_max): (Option<u64>, Option<u64>),
    seed: u64,
) -> Result<u64, String> {
    let corpus = inputs_of(target).iter().map(|input| fs::read(input).unwrap()).collect();
    let mut mutator = Mutator::new(corpus, words_of(target), seed);
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let usual = if end.is_some() { u64::MAX } else { INPUTS_USUAL };
    let inputs_max = inputs_max.unwrap_or(usual);
    let mut inputs = 0;
    while inputs < inputs_max && end.is_none_or(|end| Instant::now() < end) {
        let input = mutator.next_input();
        let began = Instant::now();
        let passed = catch_unwind(|| check(input)).is_ok();
        if !passed || began.elapsed() > INPUT_TIME_MAX {
            let folder = fuzz_folder().join("artifacts").join(target);
            let kept = folder.join(format!("mutated-{:016x}", xxh3_64(input)));
            fs::create_dir_all(&folder).and_then(|()| fs::write(&kept, input)).unwrap();
            let what = if passed { "takes too long" } else { "does not pass" };
            let again = format!("{TARGET}={target} {SEED}={seed} {INPUTS}={}", inputs + 1);
            return Err(format!("{target}: input {inputs} {what}: {}; {again}", kept.display()));
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
    quoted.map(|word| unescaped(word).unwrap()).collect()
}

/// The bytes of a quoted word, in which a backslash precedes itself, a quote, or `x` and two digits.
fn unescaped(word: &str) -> Result<Vec<u8>, String> {
    let (mut bytes, mut rest) = (Vec::new(), word.as_bytes());
    while let Some((byte, after)) = rest.split_first() {
        let (byte, left) = match (byte, after) {
            (b'\\', [b'x', digits @ ..]) => {
                let digits = digits.get(..2).and_then(|digits| str::from_utf8(digits).ok());
                let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                (byte.ok_or_else(|| format!("no byte in {word}"))?, &after[3..])
            }
            (b'\\', [escaped @ (b'\\' | b'"'), left @ ..]) => (*escaped, left),
            (b'\\', _) => return Err(format!("another escape in {word}")),
            (byte, left) => (*byte, left),
        };
        bytes.push(byte);
        rest = left;
    }
    Ok(bytes)
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
