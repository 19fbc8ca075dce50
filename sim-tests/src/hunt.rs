//! The hunt for a broken variant: exhaustively and at random, within bounds.

use crate::coverage::Coverage;
use crate::explorer::{Ending, Explorer};
use crate::mutants::Entry;
use crate::sweep::Seeded;
use handfast_transport_sim::Oracle;

/// Most worlds in which an exhaustive search must find a variant.
pub const STATES_MAX: usize = 50_000;

/// Most random schedules in which a sweep must find it.
pub const SCHEDULES_MAX: u64 = 10_000;

/// Most events of a random schedule before its world is left to heal.
const EVENTS_MAX: u32 = 120;

/// How a variant was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catch {
    /// The oracle that broke in the exhaustive search.
    pub oracle: String,
    /// Worlds seen until then.
    pub states: usize,
    /// Events of the shortest schedule, up to the violation or the world that cannot heal.
    pub events: usize,
    /// Random schedules played until one broke an oracle.
    pub schedules: u64,
    /// The shortest schedule in words.
    pub transcript: String,
}

/// Why a variant was not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Escape {
    /// Everything that can happen was tried.
    #[error("nothing is wrong in any of {states} worlds")]
    Fixpoint {
        /// Worlds seen.
        states: usize,
    },
    /// The bound was reached.
    #[error("nothing is wrong in {STATES_MAX} worlds, the bound")]
    StatesMax,
    /// The sweep ended.
    #[error("nothing is wrong in {SCHEDULES_MAX} random schedules, the bound")]
    SchedulesMax,
}

/// Looks for a variant of the handshake in both ways.
///
/// # Errors
/// The search that did not find it.
pub fn hunt(entry: &Entry) -> Result<Catch, Escape> {
    let mut found = explore(entry)?;
    found.schedules = sweep(entry)?;
    Ok(found)
}

/// The exhaustive half; no schedules are counted.
///
/// # Errors
/// How the search ended without finding it.
pub fn explore(entry: &Entry) -> Result<Catch, Escape> {
    let explorer = Explorer {
        states_max: STATES_MAX,
        liveness: entry.oracles.contains(&Oracle::Liveness),
        circles: false,
        oracles: entry.oracles.to_vec(),
        ..Explorer::default()
    };
    let report = explorer.explore(&entry.start());
    match report.ending {
        Ending::Violation(found) => Ok(Catch {
            oracle: format!("{:?}", found.violation.oracle),
            states: report.states,
            events: found.schedule.len(),
            schedules: 0,
            transcript: found.transcript,
        }),
        Ending::Fixpoint => Err(Escape::Fixpoint { states: report.states }),
        Ending::StatesMax => Err(Escape::StatesMax),
    }
}

/// The random half: how many schedules it took.
///
/// # Errors
/// None of [`SCHEDULES_MAX`] schedules broke one of its oracles.
pub fn sweep(entry: &Entry) -> Result<u64, Escape> {
    let start = entry.start();
    let breaks = |seed: &u64| {
        let seeded = Seeded {
            scenario: entry.scenario(),
            seed: *seed,
            events_max: EVENTS_MAX,
            faults_max: entry.faults_max,
        };
        let coverage = &mut Coverage::default();
        seeded.run_asking(start.clone(), entry.oracles, coverage).violation.is_some()
    };
    (0..SCHEDULES_MAX).find(breaks).map(|seed| seed + 1).ok_or(Escape::SchedulesMax)
}
