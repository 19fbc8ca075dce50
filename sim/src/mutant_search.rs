//! The hunt for broken variants: each exhaustively and at random, within bounds that are checked in.

use crate::batches::{TransferEntry, VARIANTS};
use crate::case::Case;
use crate::connection::{CONNECTION_VARIANTS, ConnectionEntry};
use crate::coverage::Coverage;
use crate::explorer::{Counterexample, Ending, Explorer};
use crate::machine_world::{self, MachineWorld, Searched, Violation};
use crate::play::Rules;
use crate::policies::{POLICY_VARIANTS, PolicyEntry, PolicyMachines};
use crate::sharing::{SHARING_VARIANTS, SharingEntry};
use crate::sweep::Random;
use crate::variants::{ALL, CANARY, Entry};
use handfast_transport_sim::Oracle;
use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most worlds in which an exhaustive search must find a variant.
pub const STATES_MAX: usize = 50_000;

/// Most random schedules in which a sweep must find it.
pub const SCHEDULES_MAX: u64 = 10_000;

/// Most events of a random schedule before its world is left to heal.
const EVENTS_MAX: u32 = 120;

/// A control gets this multiple of the worlds and of the random schedules that the variant took.
const CONTROL_FACTOR: usize = 2;

/// Fewest worlds of a control, unless there are fewer.
const CONTROL_STATES_MIN: usize = 2_000;

/// Fewest random schedules of a control.
const CONTROL_SCHEDULES_MIN: u64 = 64;

/// Hunts that go on at a time.
const THREADS: usize = 2;

/// The finding of a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catch {
    /// The race or rule it is named after.
    pub id: &'static str,
    /// The rule that it breaks.
    pub breaks: &'static str,
    /// The oracle that broke in the exhaustive search.
    pub oracle: String,
    /// Faults that were needed.
    pub faults_max: u32,
    /// Worlds seen until then.
    pub states: usize,
    /// Events of the shortest schedule, up to the violation or the world that cannot heal.
    pub events: usize,
    /// Random schedules played until one broke an oracle.
    pub schedules: u64,
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
    /// Something else is wrong than what the variant is known for.
    #[error("{found} broke, and {expected} was to break")]
    Oracle {
        /// The oracle that broke.
        found: String,
        /// The one of the registry.
        expected: String,
    },
    /// The finding says nothing about the variant: the shipping rules show it too.
    #[error("the shipping rules break {oracle} in the same world: {detail}")]
    Control {
        /// The oracle that broke.
        oracle: String,
        /// The observation.
        detail: String,
    },
}

/// Hunts for the canary and then for every variant, two at a time, in the order of the registries. If the
/// canary is not found, the searches see nothing, and that alone is reported.
pub fn hunt_all() -> Vec<(&'static str, Result<Catch, Escape>)> {
    if let Err(escape) = mutant_search(&CANARY) {
        return vec![(CANARY.id, Err(escape))];
    }
    let searches = searches();
    let next = AtomicUsize::new(0);
    let caught = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(search) = searches.get(at) else { break };
                    let found = (at, search.id(), search.run());
                    caught.lock().unwrap_or_else(|broken| broken.into_inner()).push(found);
                }
            });
        }
    });
    let mut caught = caught.into_inner().unwrap_or_else(|broken| broken.into_inner());
    caught.sort_by_key(|(at, ..)| *at);
    caught.into_iter().map(|(_, id, found)| (id, found)).collect()
}

/// A search for one variant.
#[derive(Clone, Copy)]
pub enum VariantSearch {
    /// Of the handshake, a target or a backend.
    Handshake(&'static Entry),
    /// Of transfers.
    Transfers(&'static TransferEntry),
    /// Of policies.
    Policy(&'static PolicyEntry),
    /// Of same-host channels.
    Sharing(&'static SharingEntry),
    /// Of connections through the connection manager.
    Connection(&'static ConnectionEntry),
}

/// The searches for every variant, in the order of the registries.
pub fn searches() -> Vec<VariantSearch> {
    let transfers = VARIANTS.iter().map(VariantSearch::Transfers);
    let policies = POLICY_VARIANTS.iter().map(VariantSearch::Policy);
    let sharing = SHARING_VARIANTS.iter().map(VariantSearch::Sharing);
    let connection = CONNECTION_VARIANTS.iter().map(VariantSearch::Connection);
    let handshake = ALL.iter().map(VariantSearch::Handshake);
    handshake.chain(transfers).chain(policies).chain(sharing).chain(connection).collect()
}

impl VariantSearch {
    /// The id of the variant.
    pub fn id(self) -> &'static str {
        match self {
            Self::Handshake(entry) => entry.id,
            Self::Transfers(entry) => entry.id,
            Self::Policy(entry) => entry.id,
            Self::Sharing(entry) => entry.id,
            Self::Connection(entry) => entry.id,
        }
    }

    /// The name of the variant in the code.
    pub fn name(self) -> &'static str {
        match self {
            Self::Handshake(entry) => entry.name,
            Self::Transfers(entry) => entry.name,
            Self::Policy(entry) => entry.name,
            Self::Sharing(entry) => entry.name,
            Self::Connection(entry) => entry.name,
        }
    }

    /// Looks for the variant in both ways, and for its finding under the shipping rules.
    ///
    /// # Errors
    /// The search that did not find it, or the control that shows the same.
    pub fn run(self) -> Result<Catch, Escape> {
        match self {
            Self::Handshake(entry) => mutant_search(entry),
            Self::Transfers(entry) => search_transfers(entry),
            Self::Policy(entry) => search_policy(entry),
            Self::Sharing(entry) => search_sharing(entry),
            Self::Connection(entry) => search_connection(entry),
        }
    }
}

/// Looks for a variant of the handshake in both ways, and for its finding under the shipping rules.
///
/// # Errors
/// The search that did not find it, or the control that shows the same.
pub fn mutant_search(entry: &'static Entry) -> Result<Catch, Escape> {
    let (found, states) = explore(entry)?;
    let oracle = format!("{:?}", found.violation.oracle);
    let expected = entry.oracles.first().map(|expected| format!("{expected:?}"));
    expect(&oracle, expected.unwrap_or_default())?;
    let schedules = sweep(entry)?;
    control(entry, states)?;
    control_sweep(entry, schedules)?;
    let (id, breaks, faults_max) = (entry.id, entry.breaks, entry.faults_max);
    Ok(Catch { id, breaks, oracle, faults_max, states, events: found.schedule.len(), schedules })
}

fn expect(found: &str, expected: String) -> Result<(), Escape> {
    if found == expected {
        return Ok(());
    }
    Err(Escape::Oracle { found: found.to_owned(), expected })
}

/// The exhaustive half: the shortest way to the violation, and the worlds seen until then.
///
/// # Errors
/// The end of a search without a finding.
pub fn explore(entry: &'static Entry) -> Result<(Counterexample, usize), Escape> {
    let report = explorer(entry, STATES_MAX).explore(&Case::of_variant(entry).start());
    match report.ending {
        Ending::Violation(found) => Ok((*found, report.states)),
        Ending::Fixpoint => Err(Escape::Fixpoint { states: report.states }),
        Ending::StatesMax => Err(Escape::StatesMax),
    }
}

fn explorer(entry: &Entry, states_max: usize) -> Explorer {
    Explorer {
        states_max,
        liveness: entry.oracles.contains(&Oracle::Liveness),
        cycles: false,
        oracles: entry.oracles.to_vec(),
        heal_at_once: usize::MAX,
        ..Explorer::default()
    }
}

/// Explores the world of a variant under the shipping rules, further than the `states` that the
/// variant took.
///
/// # Errors
/// [`Escape::Control`] if an oracle of the variant breaks there too.
pub fn control(entry: &'static Entry, states: usize) -> Result<(), Escape> {
    let report = explorer(entry, control_states(states)).explore(&entry.control());
    match report.ending {
        Ending::Violation(found) => Err(shown(found.violation.oracle, found.violation.detail)),
        Ending::Fixpoint | Ending::StatesMax => Ok(()),
    }
}

/// Plays more random schedules than the `schedules` that a variant took, under the shipping rules.
fn control_sweep(entry: &'static Entry, schedules: u64) -> Result<(), Escape> {
    let start = entry.control();
    for seed in 0..control_schedules(schedules) {
        let random = Random::uniform(seed, EVENTS_MAX);
        let rules = Rules::new(EVENTS_MAX, entry.oracles);
        let run = random.run_in(start.clone(), rules, &mut Coverage::default());
        if let Some(found) = run.violation {
            return Err(shown(found.oracle, found.detail));
        }
    }
    Ok(())
}

fn control_states(states: usize) -> usize {
    (states * CONTROL_FACTOR).max(CONTROL_STATES_MIN)
}

fn control_schedules(schedules: u64) -> u64 {
    (schedules * CONTROL_FACTOR as u64).max(CONTROL_SCHEDULES_MIN)
}

fn shown(oracle: impl Debug, detail: String) -> Escape {
    Escape::Control { oracle: format!("{oracle:?}"), detail }
}

/// The random half: how many schedules it took.
///
/// # Errors
/// None of [`SCHEDULES_MAX`] schedules broke one of its oracles.
pub fn sweep(entry: &'static Entry) -> Result<u64, Escape> {
    let case = Case::of_variant(entry);
    first_seed(|seed| {
        let random = Random::uniform(seed, EVENTS_MAX);
        random.run(&case, &mut Coverage::default()).violation.is_some()
    })
}

fn first_seed(breaks: impl Fn(u64) -> bool) -> Result<u64, Escape> {
    let seed = (0..SCHEDULES_MAX).find(|seed| breaks(*seed));
    seed.map(|seed| seed + 1).ok_or(Escape::SchedulesMax)
}

fn search_transfers(entry: &TransferEntry) -> Result<Catch, Escape> {
    let known = Known::new(entry.id, entry.breaks, entry.oracle, entry.faults_max);
    search_world(known, &entry.start(), &entry.control())
}

fn search_sharing(entry: &SharingEntry) -> Result<Catch, Escape> {
    let known = Known::new(entry.id, entry.breaks, entry.oracle, entry.faults_max);
    search_world(known, &entry.start(), &entry.control())
}

fn search_connection(entry: &ConnectionEntry) -> Result<Catch, Escape> {
    let known = Known::new(entry.id, entry.breaks, entry.oracle, entry.faults_max);
    search_world(known, &entry.start(), &entry.control())
}

fn search_world<W: MachineWorld>(known: Known, start: &W, control: &W) -> Result<Catch, Escape> {
    search_machine(
        known,
        (|states| machine_world::explore(start, states), |seed| machine_world::play(start, seed)),
        (
            |states| machine_world::explore(control, states),
            |seed| machine_world::play(control, seed),
        ),
    )
}

fn search_policy(entry: &PolicyEntry) -> Result<Catch, Escape> {
    let (scenario, faults_max) = (entry.scenario, entry.faults_max);
    let (machines, control) = (entry.machines(), PolicyMachines::shipping());
    let known = Known::new(entry.id, entry.breaks, entry.oracle, faults_max);
    search_machine(
        known,
        (
            |states| scenario.explore(&machines, faults_max, states),
            |seed| scenario.play(&machines, faults_max, seed),
        ),
        (
            |states| scenario.explore(&control, faults_max, states),
            |seed| scenario.play(&control, faults_max, seed),
        ),
    )
}

/// The registry's words on a variant of one machine.
struct Known {
    id: &'static str,
    breaks: &'static str,
    oracle: String,
    faults_max: u32,
}

impl Known {
    fn new(id: &'static str, breaks: &'static str, oracle: impl Debug, faults_max: u32) -> Self {
        Self { id, breaks, oracle: format!("{oracle:?}"), faults_max }
    }
}

/// Looks for a variant of one machine, by the exploration and the random schedules of its world, and
/// for its finding by those of its control.
fn search_machine<O: Copy + Debug>(
    known: Known,
    (explore, play): (impl Fn(usize) -> Searched<O>, impl Fn(u64) -> Option<Violation<O>>),
    control: (impl Fn(usize) -> Searched<O>, impl Fn(u64) -> Option<Violation<O>>),
) -> Result<Catch, Escape> {
    let searched = explore(STATES_MAX);
    let states = searched.states;
    let Some(found) = searched.finding else {
        let escape = Escape::Fixpoint { states };
        return Err(if searched.cut_short { Escape::StatesMax } else { escape });
    };
    let Known { id, breaks, oracle: expected, faults_max } = known;
    let oracle = format!("{:?}", found.violation.oracle);
    expect(&oracle, expected)?;
    let schedules = first_seed(|seed| play(seed).is_some())?;
    let explored = control.0(control_states(states)).finding.map(|found| found.violation);
    let played = || (0..control_schedules(schedules)).find_map(control.1);
    if let Some(found) = explored.or_else(played) {
        return Err(shown(found.oracle, found.detail));
    }
    Ok(Catch { id, breaks, oracle, faults_max, states, events: found.events, schedules })
}
