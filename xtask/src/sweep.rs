//! `cargo xtask sweep`: random schedules for as long as one likes.

use crate::command::cargo;
use crate::project::Project;
use anyhow::{Context, Result};
use std::time::{SystemTime, UNIX_EPOCH};

/// Seeds between the first ones of two sweeps that begin a second apart: more than a second plays.
const SEEDS_PER_SECOND: u64 = 100_000;

/// Play random schedules of simulated nodes, each with new seeds, and print the rates
///
/// The same as `handfast sim sweep --from SEED` for one half of the time, and with `--fleet` for the
/// other. The first seed comes from the clock unless it is given, so that every sweep plays others
/// than those before it.
///
/// With `--exhaustive` nothing is random: both sides open at once, and everything that can happen with
/// up to three faults of any kind is tried. That takes minutes and some gigabytes.
///
/// Exit code: 0 if every oracle held, 1 if one did not; the last line then replays it.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Try everything that can happen to a simultaneous open with up to three faults
    #[arg(long, conflicts_with_all = ["minutes", "from"])]
    exhaustive: bool,
    /// How long to go on
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// The first seed [default: from the clock]
    #[arg(long, value_name = "SEED")]
    from: Option<u64>,
}

/// What runs the simulation of the program, built for speed.
const HANDFAST: [&str; 7] = ["run", "--quiet", "--release", "--bin", "handfast", "--", "sim"];

/// Worlds after which `--exhaustive` gives up: several times as many as there are.
const WORLDS_MAX: &str = "40000000";

/// A simultaneous open with three faults of any kind, in every order.
fn explore(project: &Project) -> Result<bool> {
    let options = ["explore", "--faults", "3", "--states-max", WORLDS_MAX];
    let words = HANDFAST.into_iter().chain(options);
    Ok(cargo(project.root(), words).status()?.success())
}

/// Sweeps, and says whether every oracle held.
pub(crate) fn run(project: Project, arguments: &Arguments) -> Result<bool> {
    if arguments.exhaustive {
        return explore(&project);
    }
    let from = match arguments.from {
        Some(seed) => seed,
        None => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock")?;
            now.as_secs() * SEEDS_PER_SECOND
        }
    };
    let (time, from) = (format!("{}s", 30 * arguments.minutes), from.to_string());
    let words = HANDFAST.into_iter().chain(["sweep"]);
    let options = ["--time", time.as_str(), "--from", from.as_str()];
    for fleet in [None, Some("--fleet")] {
        let words = words.clone().chain(options).chain(fleet);
        if !cargo(project.root(), words).status()?.success() {
            return Ok(false);
        }
    }
    Ok(true)
}
