//! `cargo xtask sweep`: random schedules for as long as one likes.

use crate::command::cargo;
use crate::project::Project;
use anyhow::{Context, Result};
use std::time::{SystemTime, UNIX_EPOCH};

/// Seeds between the first ones of two sweeps that begin a second apart: more than a second plays.
const SEEDS_PER_SECOND: u64 = 100_000;

/// Play random schedules of simulated nodes, each with new seeds, and print the rates
///
/// The same as `handfast sim sweep --from SEED` for a third of the time, with `--fleet` for another, and
/// with the scenarios of rails for the last. The first seed comes from the clock unless it is given, so that every sweep plays others
/// than those before it.
///
/// With `--exhaustive` nothing is random: both sides open at once, and everything that can happen with
/// up to three faults of any kind is tried; then a second rail is opened, with up to two. That takes
/// minutes and some gigabytes.
///
/// Exit code: 0 if every oracle held, 1 if one did not; the last line then replays it.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Try everything that can happen to a simultaneous open with up to three faults, and to a second
    /// rail with up to two
    #[arg(long, conflicts_with_all = ["minutes", "from"])]
    exhaustive: bool,
    /// Duration in minutes
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// The first seed [default: from the clock]
    #[arg(long, value_name = "SEED")]
    from: Option<u64>,
}

/// The program's simulation, built for speed.
const HANDFAST: [&str; 7] = ["run", "--quiet", "--release", "--bin", "handfast", "--", "sim"];

/// Worlds after which `--exhaustive` gives up: several times as many as there are.
const WORLDS_MAX: &str = "40000000";

/// A simultaneous open with three faults of any kind, in every order, and a second rail with two.
const EXHAUSTIVE: [&[&str]; 2] =
    [&["--faults", "3"], &["--scenario", "RailAdded", "--faults", "2", "--apart"]];

/// Sweeps, one after another.
const SWEPT: [&[&str]; 3] =
    [&[], &["--fleet"], &["--scenario", "RailsOpen,RailAdded,RailsUp", "--traffic", "BothWays"]];

/// Runs the program once for each list of options, until one is not well.
fn run_each(project: &Project, options: &[&str], each: &[&[&str]]) -> Result<bool> {
    for more in each {
        let words = HANDFAST.iter().chain(options).chain(*more).copied();
        if !cargo(project.root(), words).status()?.success() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Sweeps, and says whether every oracle held.
pub(crate) fn run(project: Project, arguments: &Arguments) -> Result<bool> {
    if arguments.exhaustive {
        return run_each(&project, &["explore", "--states-max", WORLDS_MAX], &EXHAUSTIVE);
    }
    let from = match arguments.from {
        Some(seed) => seed,
        None => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock")?;
            now.as_secs() * SEEDS_PER_SECOND
        }
    };
    let (time, from) = (format!("{}s", 20 * arguments.minutes), from.to_string());
    run_each(&project, &["sweep", "--time", &time, "--from", &from], &SWEPT)
}
