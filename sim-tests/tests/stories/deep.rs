//! Explorations that may be too large for a night: each ends by itself or at its bound of time, and prints
//! how far it came. Each runs on one thread.
#![expect(clippy::disallowed_types, reason = "the bound of an exploration is a time")]

use crate::shipping::{apart, at_once, pruned};
use handfast_sim::{Case, Ending, Explorer, Progress, Scenario};
use handfast_transport_sim::{Operations, Setup};
use std::time::{Duration, Instant};

/// The longest time of an exploration, in seconds. Without it they are skipped.
const SECONDS: &str = "HANDFAST_DEEP_SECONDS";
/// Worlds of an exploration at most, by the memory of a machine for two of them: 64 bytes of each are kept.
const STATES_MAX: usize = 100_000_000;
/// The share of the time of an exploration with four faults; the others have one.
const FOUR_FAULTS: u32 = 3;

#[test]
fn two_rails_with_two_faults() {
    for scenario in [Scenario::RailsUp, Scenario::RailsOpen] {
        explore(&apart(), scenario, pruned(at_once(scenario.setup(2))), 1);
    }
}

/// The mixed fleets that the other explorations of a night do not exhaust.
#[test]
fn mixed_fleets_past_the_bound_of_the_others() {
    let (crossing, replacing) = (Scenario::NewAgainstReady, Scenario::NewToReplacing);
    explore(&Explorer::default(), crossing, pruned(at_once(crossing.setup(2))), 1);
    explore(&Explorer::default(), replacing, pruned(at_once(replacing.setup(2))), 1);
    explore(&Explorer::default(), replacing, pruned(replacing.setup(1)), 1);
}

#[test]
fn both_restart_with_two_faults() {
    let scenario = Scenario::BothRestart;
    explore(&Explorer::default(), scenario, pruned(at_once(scenario.setup(2))), 1);
}

/// Every operation is an event.
#[test]
fn stepwise_pairs_with_two_faults() {
    for scenario in [Scenario::SimultaneousOpen, Scenario::Established, Scenario::BothRestart] {
        explore(&Explorer::default(), scenario, pruned(scenario.setup(2)), 1);
    }
}

#[test]
fn both_open_with_four_faults() {
    let scenario = Scenario::SimultaneousOpen;
    explore(&Explorer::default(), scenario, pruned(at_once(scenario.setup(4))), FOUR_FAULTS);
}

#[test]
fn bound_of_time_ends_an_exploration() {
    let scenario = Scenario::SimultaneousOpen;
    let explored = |limit| advance(&Explorer::default(), scenario, &scenario.setup(0), limit);
    let (ending, progress) = explored(Duration::ZERO);
    assert!(ending.is_none() && progress.left > 0, "{progress:?}");
    let (ending, progress) = explored(Duration::from_secs(600));
    assert!(matches!(ending, Some(Ending::Fixpoint)) && progress.left == 0, "{progress:?}");
}

/// Explores up to so many shares of the time, and prints the result as a line of the nightly report.
fn explore(explorer: &Explorer, scenario: Scenario, setup: Setup, shares: u32) {
    let seconds = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok());
    let Some(seconds) = seconds else {
        println!("skipped: {scenario:?} K={}, without {SECONDS}", setup.faults_max);
        return;
    };
    // A world whose healing is found at the end would not be judged at the bound of time.
    let explorer = Explorer {
        apart: explorer.apart,
        states_max: STATES_MAX,
        heal_at_once: STATES_MAX,
        ..Explorer::default()
    };
    let limit = Duration::from_secs(seconds) * shares;
    let started = Instant::now();
    let (ending, progress) = advance(&explorer, scenario, &setup, limit);
    if let Some(Ending::Violation(found)) = ending {
        panic!("{}", found.report(&Case::of_setup(scenario, &setup)));
    }
    let Progress { states, transitions, depth, left, kept_bytes } = progress;
    let grain = if setup.operations == Operations::AtOnce { "at once" } else { "stepwise" };
    let exhausted =
        if matches!(ending, Some(Ending::Fixpoint)) { "exhausted" } else { "not exhausted" };
    println!(
        "{exhausted}: {scenario:?} K={} {grain}, {states} worlds, {left} of them to be explored, {transitions} \
         transitions, up to {depth} events, {} MB, {} s",
        setup.faults_max,
        kept_bytes / 1_000_000,
        started.elapsed().as_secs()
    );
}

/// Explores for a time; without an end if that is over first.
fn advance(
    explorer: &Explorer,
    scenario: Scenario,
    setup: &Setup,
    limit: Duration,
) -> (Option<Ending>, Progress) {
    let start = scenario.begin(setup.clone());
    let mut exploration = explorer.begin(&start);
    let started = Instant::now();
    loop {
        if let Some(ending) = exploration.advance() {
            let progress = exploration.progress();
            return (Some(exploration.report(ending).ending), progress);
        }
        if started.elapsed() >= limit {
            return (None, exploration.progress());
        }
    }
}
