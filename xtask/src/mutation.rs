//! `cargo xtask mutation`: small changes to the handshake and transfer files, each of which some
//! test should notice.

mod bench;
mod fates;

use crate::project::Project;
use crate::report::Summary;
use crate::setup;
use anyhow::{Context, Result, ensure};
use bench::{Bench, Mutant};
use fates::{Fate, Fates, Record, tally};
use std::fs;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The survivors that are known, and why they are let live.
const EXPLAINED: &str = "docs/mutation.md";
/// Mutants tried at a time: what is lost at most when a run is cut short.
const CHUNK: usize = 12;

/// Change the handshake and transfer code in many small ways and see which change no test notices
///
/// Takes a seeded sample of the mutants that cargo-mutants generates for core/src/node and
/// core/src/transfer and applies one at a time to a copy of the repository. The tests of
/// handfast-core run first, then, for survivors, the short ones of sim-tests. Results are kept in
/// cargo's target folder: the next run continues after this one, until a changed file restarts it.
///
/// Exit code: 0 if every survivor so far is explained in docs/mutation.md, 1 otherwise. Mutants
/// that were not run are counted and are no failure.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of mutants
    #[arg(long, default_value_t = 300)]
    count: usize,
    /// Seed of the sample
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Stop after so long; a later run goes on
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Try those again that survived or timed out
    #[arg(long)]
    again: bool,
}

/// `cargo xtask mutation`.
pub(crate) fn run(project: Project, arguments: &Arguments) -> Result<bool> {
    let mut summary = Summary::default();
    summary.run(setup::stage_for(&project, &["mutation"]));
    ensure!(setup::MUTANTS.is_present(), "{} is missing", setup::MUTANTS.name);
    let deadline = Instant::now() + Duration::from_secs(60 * arguments.minutes);
    let mut bench = Bench::new(&project);
    bench.copy()?;
    let listed = bench.list()?;
    bench.keep(&listed)?;
    let names: Vec<&str> = listed.iter().map(|mutant| mutant.name.as_str()).collect();
    let sample = sample(&names, arguments.seed, arguments.count);
    let mut record = Record::read(&bench.folder.join("fates.txt"), &bench.digest())?;
    if arguments.again {
        record.fates.retain(|_, fate| !matches!(fate, Fate::Survived | Fate::Endless));
    }
    let left: Vec<&Mutant> = sample
        .iter()
        .filter(|name| !record.fates.contains_key(**name))
        .filter_map(|name| listed.iter().find(|mutant| mutant.name == *name))
        .collect();
    anstream::println!("{} possible, {} sampled, {} to go", names.len(), sample.len(), left.len());
    if !left.is_empty() {
        bench.check_unchanged()?;
    }
    for chunk in left.chunks(CHUNK) {
        if Instant::now() >= deadline {
            break;
        }
        record.fates.extend(bench.try_out(chunk, deadline)?);
        record.write()?;
        anstream::println!("{}; {}", tally(&record.fates, &sample), bench.spent());
    }
    report(&project, &bench, &record.fates, &sample)
}

/// Prints what is known of the sample, and says whether every survivor is explained.
fn report(project: &Project, bench: &Bench, fates: &Fates, sample: &[&str]) -> Result<bool> {
    let path = project.root().join(EXPLAINED);
    let explained = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let of = |fate| sample.iter().copied().filter(move |name| fates.get(*name) == Some(&fate));
    let (known, unknown): (Vec<&str>, Vec<&str>) =
        of(Fate::Survived).partition(|name| is_explained(&explained, name, &bench.line(name)));
    of(Fate::Endless).for_each(|name| anstream::println!("made endless: {name}"));
    known.iter().for_each(|name| anstream::println!("survived, as explained: {name}"));
    unknown.iter().for_each(|name| anstream::println!("SURVIVED: {name}"));
    anstream::println!("{}", tally(fates, sample));
    Ok(unknown.is_empty())
}

/// A row of a page names the mutant and the line it changes, each in backquotes; the line number,
/// which moves, is left out.
fn is_explained(page: &str, name: &str, line: &str) -> bool {
    let (name, line) = (format!("`{}`", without_place(name)), format!("`{line}`"));
    page.lines()
        .map(|row| row.replace(r"\|", "|"))
        .any(|row| row.contains(&name) && row.contains(&line))
}

/// `file:line:column: what` as `file: what`.
fn without_place(name: &str) -> String {
    match name.split_once(':') {
        Some((file, rest)) => {
            let what = rest.split_once(": ").map_or(rest, |(_, what)| what);
            format!("{file}: {what}")
        }
        None => name.to_owned(),
    }
}

/// The `count` names that come first in the order of their hashes, in that order: what has been run
/// when a run stops is a sample as well.
fn sample<'a>(names: &[&'a str], seed: u64, count: usize) -> Vec<&'a str> {
    let mut ordered = names.to_vec();
    ordered.sort_by_key(|name| xxh3_64_with_seed(name.as_bytes(), seed));
    ordered.truncate(count);
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_a_function_of_its_seed_and_a_larger_one_begins_with_a_smaller() {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        assert_eq!(sample(&names, 1, 3), sample(&names, 1, 3));
        assert!(sample(&names, 1, 5).starts_with(&sample(&names, 1, 3)));
        assert!((2..20).any(|seed| sample(&names, seed, 3) != sample(&names, 1, 3)));
        assert_eq!(sample(&names, 1, 100).len(), names.len());
    }

    #[test]
    fn a_survivor_is_explained_by_its_name_and_line_wherever_the_line_moves() {
        let page =
            r"| `core/src/node/lane.rs: replace \|\| with && in A::b` | `if c \|\| d {` | why |";
        let explained = |name: &str, line: &str| is_explained(page, name, line);
        let name = "core/src/node/lane.rs:3:4: replace || with && in A::b";
        assert!(explained(name, "if c || d {"));
        assert!(explained(&name.replace(":3:", ":30:"), "if c || d {"));
        assert!(!explained(name, "if e || f {"), "another line of the same function");
        assert!(!explained(&name.replace("A::b", "A::c"), "if c || d {"));
        assert!(!explained(&name.replace("lane", "peers"), "if c || d {"));
    }
}
