//! Finds a broken variant out: by exploration, and by random schedules.

use crate::case::Case;
use crate::coverage::Coverage;
use crate::explorer::{Counterexample, Ending, Explorer};
use crate::mutants::Entry;
use crate::scheduler::Scheduler;
use crate::sweep::Random;
use handfast_transport_sim::Oracle;

/// Most events of a random schedule.
const EVENTS_MAX: u32 = 400;

/// How a variant was found out.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// Where.
    pub case: Case,
    /// Worlds seen until then.
    pub states: usize,
    /// Events tried until then.
    pub transitions: u64,
    /// The shortest schedule; `None` if nothing broke.
    pub found: Option<Counterexample>,
    /// Whether every world was seen.
    pub fixpoint: bool,
    /// Random schedules on which an oracle that is asked broke.
    pub random_broken: u64,
    /// Random schedules tried.
    pub random_tried: u64,
}

impl Hunt {
    /// Whether the variant broke as it should, within the events that it may take.
    pub fn succeeded(&self) -> bool {
        let (Some(found), Some(entry)) = (&self.found, self.case.variant) else { return false };
        found.schedule.len() <= entry.events_max
    }
}

/// Explores a variant up to a number of worlds, and tries random schedules.
pub fn hunt(entry: &'static Entry, states_max: usize, random_schedules: u64) -> Hunt {
    let case = Case::of_variant(entry);
    let explorer = Explorer {
        states_max,
        liveness: entry.oracles.contains(&Oracle::Liveness),
        circles: false,
        oracles: entry.oracles.to_vec(),
        ..Explorer::default()
    };
    let report = explorer.explore(&case.start());
    let fixpoint = matches!(report.ending, Ending::Fixpoint);
    let found = match report.ending {
        Ending::Violation(found) => Some(*found),
        Ending::Fixpoint | Ending::StatesMax => None,
    };
    let breaks = |seed: &u64| {
        let random = Random { seed: *seed, events_max: EVENTS_MAX, scheduler: Scheduler::Uniform };
        random.run(&case, &mut Coverage::default()).violation.is_some()
    };
    Hunt {
        case,
        states: report.states,
        transitions: report.transitions,
        found,
        fixpoint,
        random_broken: (0..random_schedules).filter(breaks).count() as u64,
        random_tried: random_schedules,
    }
}
