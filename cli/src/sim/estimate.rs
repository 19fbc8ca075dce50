//! The size of an exploration before it begins, by explorations with fewer faults.

use super::show::grouped;
use crate::terminal::Window;
use crate::{output, size};
use handfast_diagnosis::wrapped;
use handfast_sim::{Case, Ending, Explorer};
use std::time::{Duration, Instant};

/// Worlds up to which an exploration with fewer faults is tried.
const TRIED_MAX: usize = 20_000;
/// Growth of the number of worlds by the first fault.
const GROWTH: u64 = 75;
/// Bytes kept of a world.
const WORLD_BYTES: u64 = 64;
/// Shortest exploration of which something is said.
const SHORTEST: Duration = Duration::from_secs(1);

/// An exploration that ended.
struct Tried {
    faults: u32,
    states: u64,
    took: Duration,
}

/// Says on standard error what an exploration will take, if that is more than a second.
pub(super) fn tell(case: &Case, explorer: &Explorer) {
    let (mut last, mut growth): (Option<Tried>, u64) = (None, GROWTH);
    for faults in 0..case.faults_max {
        let expected = last.as_ref().map_or(0, |last| last.states.saturating_mul(growth));
        if expected > TRIED_MAX as u64 {
            break;
        }
        let Some(tried) = explore(&Case { faults_max: faults, ..*case }, explorer) else { break };
        growth = last.map_or(growth, |last| (tried.states / last.states).max(1));
        last = Some(tried);
    }
    let Some(last) = last else { return };
    let factor = growth.saturating_pow(case.faults_max - last.faults);
    let time = last.took.saturating_mul(u32::try_from(factor).unwrap_or(u32::MAX));
    if time >= SHORTEST {
        let states = last.states.saturating_mul(factor);
        let bytes = size::show(states.saturating_mul(WORLD_BYTES));
        let [states, s] = [states, time.as_secs()].map(grouped);
        let [worlds, faults] = [last.states, u64::from(last.faults)].map(grouped);
        let text = format!(
            "roughly {states} worlds, {bytes} and {s} s, by {worlds} worlds with at most {faults} faults"
        );
        let columns = Window::of(std::io::stderr()).map_or(usize::MAX, |window| window.columns);
        output::note(format_args!("{}", wrapped(&text, columns).join("\n")));
    }
}

/// An exploration to its fixpoint, if that is near.
fn explore(case: &Case, explorer: &Explorer) -> Option<Tried> {
    let states_max = explorer.states_max.min(TRIED_MAX);
    let explorer = Explorer { states_max, oracles: explorer.oracles.clone(), ..*explorer };
    let started = Instant::now();
    let report = explorer.explore(&case.start());
    matches!(report.ending, Ending::Fixpoint).then(|| Tried {
        faults: case.faults_max,
        states: report.states as u64,
        took: started.elapsed(),
    })
}
