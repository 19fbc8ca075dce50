//! Determinism: the same seeds in different processes and builds lead to the same worlds, event by
//! event.

use super::rust_tests;
use crate::command::modest;
use crate::features::Features;
use crate::project::Project;
use crate::report::{Outcome, Step};
use anyhow::{Result, bail};
use std::process::Command;
use std::time::Instant;

/// Prints a hash after every event of every seed.
const EXAMPLE: &str = "prefix_hashes";
/// Seeds of handshakes compared.
const SEEDS: &str = "1000";
/// Number of fleet seeds compared in addition.
const FLEETS: usize = 10;
/// Number of recorded runs replayed in addition.
const TRACES: usize = 1;
/// The seed with deliberate randomness, to check that it is detected.
const PLANTED: &str = "7";

/// The first event after which two runs of a seed differ.
#[derive(Debug, PartialEq, Eq)]
struct Difference {
    seed: String,
    /// Number from 1; one past the last if one run has more events.
    event: usize,
}

pub(super) fn steps(project: &Project) -> Vec<Step<'_>> {
    vec![
        Step::new("same-prefixes", |deadline| same_prefixes(project, deadline)),
        Step::new("planted-difference", |deadline| planted(project, deadline)),
    ]
}

fn same_prefixes(project: &Project, deadline: Instant) -> Outcome {
    build_release(project, deadline)?;
    let features = Features::available(project, deadline);
    rust_tests::build(project, &features, "prefixes-build-debug", deadline)?;
    let first = prefixes(project, "release", &[], deadline)?;
    let runs = [
        ("two processes", prefixes(project, "release", &[], deadline)?),
        ("a release and a debug build", prefixes(project, "debug", &[], deadline)?),
    ];
    for (between, other) in runs {
        if let Some(Difference { seed, event }) = first_difference(&first, &other) {
            let replay = replayed(&seed);
            bail!("seed {seed} differs between {between} from event {event} on\n{replay}");
        }
    }
    let lines = first.lines().count();
    let seeds = lines.saturating_sub(FLEETS + TRACES);
    if seeds.to_string() != SEEDS {
        bail!("{lines} seeds were run instead of {SEEDS}, {FLEETS} of fleets and {TRACES} traces");
    }
    let events: usize = first.lines().map(|line| line.split(' ').count() - 1).sum();
    let fleets = format!("{FLEETS} fleets, {TRACES} trace");
    Ok(format!("{seeds} seeds, {fleets}, {events} events, three times"))
}

/// Returns the command that replays a seed of the comparison.
fn replayed(seed: &str) -> String {
    match seed.split_once('-') {
        Some(("trace", name)) => format!("handfast sim replay sim-tests/traces/{name}.trace"),
        Some((_, seed)) => format!("handfast sim sweep --fleet --from {seed} --seeds 1"),
        None => format!("handfast sim sweep --from {seed} --seeds 1"),
    }
}

fn planted(project: &Project, deadline: Instant) -> Outcome {
    build_release(project, deadline)?;
    let run = || prefixes(project, "release", &["plant", PLANTED], deadline);
    match first_difference(&run()?, &run()?) {
        Some(Difference { seed, event }) if seed == PLANTED => {
            Ok(format!("planted chance is found at seed {seed}, event {event}"))
        }
        found => bail!("planted chance was not found\n{found:?}"),
    }
}

fn build_release(project: &Project, deadline: Instant) -> Outcome {
    let words = ["build", "--example", EXAMPLE, "--release", "--package", "sim-tests"];
    let mut command = project.cargo(&words);
    command.envs([rust_tests::CHECKED]);
    project.run(modest(command), "prefixes-build", deadline)
}

/// Returns the output of one process of a build.
fn prefixes(project: &Project, build: &str, options: &[&str], deadline: Instant) -> Result<String> {
    let mut command = Command::new(project.target().join(build).join("examples").join(EXAMPLE));
    command.arg(SEEDS).args(options);
    project.run(modest(command), &format!("prefixes-{build}"), deadline)
}

/// Compares lines of `SEED HASH HASH …`.
fn first_difference(first: &str, second: &str) -> Option<Difference> {
    let (mut first, mut second) = (first.lines(), second.lines());
    loop {
        let (one, other) = match (first.next(), second.next()) {
            (None, None) => return None,
            (one, other) => (one.unwrap_or_default(), other.unwrap_or_default()),
        };
        if one == other {
            continue;
        }
        let (mut ones, mut others) = (one.split(' '), other.split(' '));
        let (seed, other_seed) = (ones.next().unwrap_or_default(), others.next());
        let seed = if seed.is_empty() { other_seed.unwrap_or_default() } else { seed };
        let same = ones.zip(others).take_while(|(one, other)| one == other).count();
        return Some(Difference { seed: seed.to_owned(), event: same + 1 });
    }
}

#[cfg(test)]
mod tests {
    use super::{Difference, first_difference};

    #[test]
    fn the_first_event_that_differs_is_named_with_its_seed() {
        let difference = |seed: &str, event| Some(Difference { seed: seed.to_owned(), event });
        let first = "0 aa bb\n1 cc dd ee\n2 ff\n";
        assert_eq!(first_difference(first, first), None);
        assert_eq!(first_difference(first, "0 aa bb\n1 cc d0 ee\n2 ff\n"), difference("1", 2));
        assert_eq!(first_difference(first, "0 aa bb\n1 cc dd\n2 ff\n"), difference("1", 3));
        assert_eq!(first_difference(first, "0 aa bb\n1 cc dd ee\n"), difference("2", 1));
        assert_eq!(first_difference("", "0 aa\n"), difference("0", 1));
    }
}
