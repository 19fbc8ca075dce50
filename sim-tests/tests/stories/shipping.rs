//! The shipping rules, explored to a fixpoint: every interleaving up to a number of faults.

use crate::nightly;
use handfast_core::node::{Limits, StateKind, TRANSITIONS, TimerKind, Transition, Trigger};
use handfast_core::wire::RefusalReason;
use handfast_core::{Node, NodeConfig};
use handfast_sim::sweep::Random;
use handfast_sim::{Case, Coverage, Ending, Explorer, Healer, Line, Report, Scenario, Schedule};
use handfast_transport_sim::{Demand, Faults, Operations, Oracle, Setup, Step};
use sim_tests::{assert_document, assert_snapshot};
use std::fmt::Write as _;
use std::sync::Arc;

#[test]
fn both_open_and_every_operation_is_an_event_of_its_own() {
    holds(Scenario::SimultaneousOpen, Scenario::SimultaneousOpen.setup(0));
    holds(Scenario::SimultaneousOpen, pruned(Scenario::SimultaneousOpen.setup(budget(1))));
}

#[test]
fn both_open_and_two_faults_of_any_kind_happen() {
    holds(Scenario::SimultaneousOpen, pruned(at_once(Scenario::SimultaneousOpen.setup(budget(2)))));
}

/// The largest exploration of every change, on two threads: 104 s of two idle processors.
#[test]
fn both_open_and_three_faults_of_any_kind_happen() {
    if cfg!(debug_assertions) {
        println!("skipped: three million worlds are too many for a debug build");
        return;
    }
    let explorer = Explorer { states_max: 20_000_000, threads: 2, ..Explorer::default() };
    let setup = pruned(at_once(Scenario::SimultaneousOpen.setup(3)));
    holds_by(&explorer, Scenario::SimultaneousOpen, setup);
}

#[test]
fn one_side_opens_and_the_other_only_answers() {
    for scenario in [Scenario::LowerOpens, Scenario::HigherOpens] {
        holds(scenario, scenario.setup(budget(2)));
        holds(scenario, pruned(at_once(scenario.setup(budget(3)))));
    }
}

#[test]
fn a_node_opens_towards_itself() {
    holds(Scenario::SelfConnection, Scenario::SelfConnection.setup(budget(2)));
}

#[test]
fn an_established_pair_sees_restarts_and_closes() {
    holds(Scenario::Established, pruned(Scenario::Established.setup(budget(1))));
    let setup = |faults| pruned(at_once(Scenario::Established.setup(faults)));
    holds(Scenario::Established, setup(1));
    holds_at_night(&Explorer::default(), Scenario::Established, setup(2));
}

#[test]
fn two_waiters_open_the_same_lane() {
    holds(Scenario::OpenTwice, Scenario::OpenTwice.setup(budget(1)));
    holds(Scenario::OpenTwice, pruned(at_once(Scenario::OpenTwice.setup(budget(3)))));
}

#[test]
fn one_side_closes_while_both_open() {
    holds(Scenario::OpenAgainstClose, Scenario::OpenAgainstClose.setup(0));
    let setup = |faults| pruned(at_once(Scenario::OpenAgainstClose.setup(faults)));
    holds(Scenario::OpenAgainstClose, setup(1));
    holds_at_night(&Explorer::default(), Scenario::OpenAgainstClose, setup(2));
}

#[test]
fn both_sides_close_and_nothing_is_cut_off() {
    holds(Scenario::CloseAgainstClose, Scenario::CloseAgainstClose.setup(0));
    holds(Scenario::CloseAgainstClose, pruned(Scenario::CloseAgainstClose.setup(budget(1))));
    let setup = |faults| pruned(at_once(Scenario::CloseAgainstClose.setup(faults)));
    holds(Scenario::CloseAgainstClose, setup(1));
    holds_at_night(&Explorer::default(), Scenario::CloseAgainstClose, setup(2));
}

#[test]
fn an_idle_lane_makes_way_while_its_peer_opens() {
    holds(Scenario::EvictAgainstOpen, Scenario::EvictAgainstOpen.setup(0));
    let setup = |faults| pruned(at_once(Scenario::EvictAgainstOpen.setup(faults)));
    holds(Scenario::EvictAgainstOpen, setup(1));
    holds_at_night(&Explorer::default(), Scenario::EvictAgainstOpen, setup(2));
    if nightly() {
        holds(Scenario::EvictAgainstOpen, pruned(Scenario::EvictAgainstOpen.setup(1)));
    }
}

#[test]
fn one_side_opens_while_the_other_is_restarted() {
    holds(Scenario::OpenAgainstRestart, Scenario::OpenAgainstRestart.setup(budget(1)));
    let setup = pruned(at_once(Scenario::OpenAgainstRestart.setup(budget(2))));
    holds(Scenario::OpenAgainstRestart, setup);
}

/// Both processes of an established pair are restarted, in any order, and connect again.
#[test]
fn both_sides_restart_and_connect_again() {
    let setup = |faults| pruned(at_once(Scenario::BothRestart.setup(faults)));
    holds(Scenario::BothRestart, setup(0));
    holds(Scenario::BothRestart, setup(1));
    holds_at_night(&Explorer::default(), Scenario::BothRestart, setup(2));
    holds(Scenario::BothRestart, pruned(Scenario::BothRestart.setup(0)));
}

/// An operation that outlasts all calls of a lane excuses the report that a peer is unreachable: the clock of an
/// exploration stands still, and its limits are small.
#[test]
fn operation_that_outlasts_calls_excuses_a_report() {
    // Both are restarted. A Connect of the second one's first lane ends after the calls of its demand.
    let places = b"ABBBBCDAACBBAABACAACAACEEABE".map(|letter| usize::from(letter - b'A'));
    let mut world = Scenario::BothRestart.world(0);
    let mut choices = Vec::new();
    let outlasted = places.map(|place| {
        world.actions(&mut choices);
        world.apply(&choices[place], &mut Step::default());
        world.outlasted(1, 0)
    });
    let first = outlasted.iter().position(|outlasted| *outlasted);
    assert_eq!(first, Some(22), "the second timer of the second lane");
    assert!(!world.outlasted(0, 1), "the other side has a reply");
    let healing = Healer::once(&[]).settle(&world);
    assert!(healing.is_ok(), "{healing:?}");
}

/// So does a call that outlasts them, at both sides: its receiver has given its lane up, and refuses it.
#[test]
fn call_that_outlasts_calls_excuses_a_report() {
    // Both are restarted. The second one's lane ends by its timers before a ready reaches it.
    let places = b"ABBBCEBAACBBBCDBBBADAAABAAAA".map(|letter| usize::from(letter - b'A'));
    let mut world = Scenario::BothRestart.begin(pruned(at_once(Scenario::BothRestart.setup(1))));
    let mut choices = Vec::new();
    let outlasted = places.map(|place| {
        world.actions(&mut choices);
        world.apply(&choices[place], &mut Step::default());
        (world.outlasted(0, 1), world.outlasted(1, 0))
    });
    let first = outlasted.iter().position(|both| *both == (true, true));
    assert_eq!(first, Some(19), "the last timer of the lane");
    assert_eq!(outlasted[18], (false, false));
    assert_eq!(world.demand(0, 1), Demand::Reported);
    let healing = Healer::once(&[]).settle(&world);
    assert!(healing.is_ok(), "{healing:?}");
}

/// An answer to a process that has died is lost: its sender cannot tell it from a slow one, and repeats its own
/// call by its timer. Promptness of all other lanes is judged after it, too.
#[test]
fn answer_to_a_dead_process_excuses_its_lane_alone() {
    // Both are restarted; a call of the second one's dead process arrives last.
    const PLACES: [usize; 9] = [0, 1, 1, 1, 1, 2, 3, 0, 1];
    let mut world = Scenario::BothRestart.world(0);
    let mut choices = Vec::new();
    for place in PLACES {
        world.actions(&mut choices);
        world.apply(&choices[place], &mut Step::default());
    }
    assert!(world.judges_promptness());
    let healing = Healer::once(&[]).settle(&world);
    assert!(healing.is_ok(), "{healing:?}");
}

/// A node that gives a demand up opens nothing after its last lifecycle. A lane of the peer that was offered to that
/// lifecycle, and whose own call an earlier one has answered, repeats the call by its timer. Promptness of all
/// other lanes is judged after it, too.
#[test]
fn given_up_demand_excuses_the_lane_offered_to_it() {
    // Slices of the first to the second are lost until the first has given up twice; the devices report it.
    const LINE: &str = "hf2:SimultaneousOpen:strict,Write,ax:-:3x1200:a:\
                        eEDBBBBBBBBBBBBBBAAAAAAAAAAC:2d0b7e55:c4c2f67a";
    let line: Line = LINE.parse().unwrap();
    let Schedule::Events { places, .. } = &line.schedule else { panic!("no events") };
    let mut world = line.case.start();
    let mut choices = Vec::new();
    let mut step = Step::default();
    for place in places {
        world.actions(&mut choices);
        world.apply(&choices[*place], &mut step);
    }
    assert_eq!(world.demand(0, 1), Demand::Reported);
    assert!(world.node(1).timers().any(|(.., kind)| kind == TimerKind::RequestRetry));
    assert!(world.judges_promptness());
    world.check(&mut step.violations);
    assert!(step.violations.is_empty(), "{:?}", step.violations);
    let healing = Healer::once(&[]).settle(&world);
    assert!(healing.is_ok(), "{healing:?}");
}

/// A restarted node with two NICs has both lanes fenced.
#[test]
fn restart_of_two_nics_fences_both_lanes() {
    holds(Scenario::TwoNics, pruned(Scenario::TwoNics.setup(budget(1))));
    holds(Scenario::TwoNics, pruned(at_once(Scenario::TwoNics.setup(1))));
    holds_at_night(&apart(), Scenario::TwoNics, pruned(at_once(Scenario::TwoNics.setup(2))));
}

/// Handfast and legacy nodes pair in every order and use no unproven lane.
#[test]
fn mixed_pairs_use_no_unproven_lane() {
    for scenario in [Scenario::NewToOld, Scenario::OldToNew, Scenario::NewAgainstOld] {
        holds(scenario, scenario.setup(budget(1)));
        holds(scenario, at_once(scenario.setup(budget(2))));
    }
}

#[test]
fn a_ring_of_three_nodes_waits_for_no_timer() {
    holds(Scenario::Ring, at_once(Scenario::Ring.setup(0)));
    holds(Scenario::Ring, pruned(Scenario::Ring.setup(0)));
    holds(Scenario::Ring, pruned(at_once(Scenario::Ring.setup(1))));
    holds_at_night(&apart(), Scenario::Ring, pruned(at_once(Scenario::Ring.setup(2))));
}

#[test]
fn a_mute_peer_delays_nobody_else() {
    holds(Scenario::RingWithMute, at_once(Scenario::RingWithMute.setup(0)));
    holds(Scenario::RingWithMute, pruned(at_once(Scenario::RingWithMute.setup(budget(1)))));
    let setup = pruned(at_once(Scenario::RingWithMute.setup(2)));
    holds_at_night(&apart(), Scenario::RingWithMute, setup);
}

#[test]
fn two_nodes_crowd_into_a_table_of_one() {
    let setup = |faults| pruned(at_once(Scenario::Crowd.setup(faults)));
    holds(Scenario::Crowd, setup(1));
    holds_at_night(&Explorer::default(), Scenario::Crowd, setup(2));
}

/// Full tables of one entry leave nothing stuck or forgotten.
#[test]
fn full_tables_leave_nothing_stuck() {
    holds(Scenario::TightLimits, pruned(Scenario::TightLimits.setup(budget(1))));
    let setup = |faults| pruned(at_once(Scenario::TightLimits.setup(faults)));
    holds(Scenario::TightLimits, setup(1));
    holds_at_night(&Explorer::default(), Scenario::TightLimits, setup(2));
}

/// A table that takes one entry more than its limit breaks oracle `Bounds`.
#[test]
fn table_past_its_limit_breaks_bounds() {
    let lanes: fn(&mut Limits) = |limits| limits.lifecycles_max += 1;
    let peers: fn(&mut Limits) = |limits| limits.peers_max += 1;
    for (scenario, grow) in [(Scenario::TightLimits, lanes), (Scenario::Crowd, peers)] {
        let build = move |mut config: NodeConfig| {
            grow(&mut config.limits);
            Node::new(config)
        };
        let setup = Setup { build: Arc::new(build), ..pruned(at_once(scenario.setup(1))) };
        let explorer = Explorer { oracles: vec![Oracle::Bounds], ..Explorer::default() };
        let report = explorer.explore(&scenario.begin(setup));
        assert!(matches!(report.ending, Ending::Violation(_)), "{scenario:?}: {:?}", report.ending);
    }
}

/// Worlds rebuilt from their paths give the figures of stored worlds.
#[test]
fn rebuilt_worlds_match_stored_worlds() {
    for (scenario, faults) in reductions() {
        let figures = |whole_max| {
            let explorer = Explorer { whole_max, ..Explorer::default() };
            let report = explorer.explore(&scenario.begin(at_once(scenario.setup(faults))));
            assert_fixpoint(&report, scenario, &at_once(scenario.setup(faults)));
            (report.states, report.transitions, report.depth, report.coverage.state_pairs)
        };
        assert_eq!(figures(0), figures(usize::MAX), "{scenario:?} K={faults}");
    }
}

/// Dropping ignored and refused messages hides no pair of states and no transition.
#[test]
fn pruning_hides_no_state_pair_or_transition() {
    for (scenario, faults) in reductions() {
        let reached = |setup: Setup| {
            let report = Explorer::default().explore(&scenario.begin(setup.clone()));
            assert_fixpoint(&report, scenario, &setup);
            let pairs: Vec<_> = report.coverage.state_pairs.into_keys().collect();
            (pairs, report.coverage.transitions)
        };
        let full = at_once(scenario.setup(faults));
        assert_eq!(reached(pruned(full.clone())), reached(full), "{scenario:?} K={faults}");
    }
}

/// After the last fault, pairs explored in sequence reach every outcome of all orders.
#[test]
fn sequential_pairs_reach_every_interleaving() {
    let scenarios = [
        Scenario::Ring,
        Scenario::RingWithMute,
        Scenario::TwoNics,
        Scenario::RailAdded,
        Scenario::SimultaneousOpen,
    ];
    for scenario in scenarios {
        if scenario == Scenario::Ring && !nightly() {
            println!("skipped: the ring, nightly only: it takes ten seconds");
            continue;
        }
        let setup = pruned(at_once(scenario.setup(1)));
        let reached = |explorer: Explorer| {
            let report = explorer.explore(&scenario.begin(setup.clone()));
            assert_fixpoint(&report, scenario, &setup);
            let marks = report.coverage;
            let states: Vec<_> = marks.states.into_keys().collect();
            let refusals: Vec<_> = marks.refusals.into_keys().collect();
            let timers: Vec<_> = marks.timers.into_keys().collect();
            let lengths = (report.longest_free, report.worst_healing);
            ((states, refusals, timers, marks.transitions, lengths), report.states)
        };
        let (every, worlds) = reached(Explorer::default());
        let (one, fewer) = reached(apart());
        assert_eq!(every, one, "{scenario:?}");
        assert_eq!(fewer < worlds, scenario != Scenario::SimultaneousOpen, "{scenario:?}");
    }
}

/// Worlds small enough to be explored without a reduction too.
fn reductions() -> impl Iterator<Item = (Scenario, u32)> {
    let small = [
        Scenario::SimultaneousOpen,
        Scenario::LowerOpens,
        Scenario::HigherOpens,
        Scenario::OpenTwice,
        Scenario::CloseAgainstClose,
        Scenario::OpenAgainstRestart,
        Scenario::TwoNics,
        Scenario::RailAdded,
        Scenario::Crowd,
    ];
    small.into_iter().flat_map(|scenario| [(scenario, 0), (scenario, 1)])
}

#[test]
fn a_bound_on_states_that_is_reached_is_said() {
    let explorer = Explorer { states_max: 50, ..Explorer::default() };
    let report = explorer.explore(&Scenario::SimultaneousOpen.world(0));
    assert!(matches!(report.ending, Ending::StatesMax), "64 worlds do not fit into 50");
    assert_eq!(report.states, 50);
}

/// A scenario in which little happens shows here.
#[test]
fn what_each_scenario_reaches_with_few_faults_is_written_down() {
    let mut text = String::new();
    for scenario in Scenario::ALL.into_iter().filter(|scenario| *scenario != Scenario::Twins) {
        // Two NICs are about a restart, and little happens without one.
        let faults = u32::from(scenario == Scenario::TwoNics);
        let report = Explorer::default().explore(&scenario.begin(at_once(scenario.setup(faults))));
        assert!(matches!(report.ending, Ending::Fixpoint), "{scenario:?}: {:?}", report.ending);
        let _ = writeln!(
            text,
            "{scenario:?}, faults {faults}: {} worlds, {} transitions, depth {}\n  states {:?}\n  refusals {:?}\n  \
             timers {:?}",
            report.states,
            report.transitions,
            report.depth,
            report.coverage.states,
            report.coverage.refusals,
            report.coverage.timers
        );
    }
    assert_snapshot("reached", &text);
}

#[test]
fn every_declared_transition_timer_and_refusal_is_reached() {
    let mut reached = Coverage::default();
    for scenario in Scenario::ALL {
        for seed in 0..SEEDS {
            let (case, random) = (Case::shipping(scenario, 10), Random::uniform(seed, 300));
            let run = random.run(&case, &mut reached);
            assert_eq!(run.violation, None, "{}", Line::of_random(case, random, &run));
        }
    }
    // Random schedules seldom close a weak lane while it stands; a small exploration always does.
    let closes = Explorer::default().explore(&Scenario::NewToOld.world(0));
    reached.merge(&closes.coverage);
    let missed: Vec<&Transition> = TRANSITIONS
        .iter()
        .enumerate()
        .filter(|(index, row)| reached.transitions & 1 << index == 0 && !EXCUSED.contains(row))
        .map(|(_, row)| row)
        .collect();
    assert!(missed.is_empty(), "declared and never taken: {missed:#?}");
    for kind in [
        TimerKind::Operation,
        TimerKind::RequestRetry,
        TimerKind::HalfOpen,
        TimerKind::ReadyRetry,
        TimerKind::Backoff,
        TimerKind::RetireRetry,
        TimerKind::Drain,
        TimerKind::QuiesceRetry,
        TimerKind::Capacity,
    ] {
        assert!(reached.timers.contains_key(&kind), "{kind:?} never fired");
    }
    for reason in [
        RefusalReason::Gone,
        RefusalReason::Superseded,
        RefusalReason::Busy,
        RefusalReason::Unproven,
        RefusalReason::NameConflict,
    ] {
        assert!(reached.refusals.contains_key(&reason), "{reason:?} was never given");
    }
}

/// Enough for every mark; a debug build needs as many.
const SEEDS: u64 = 1_000;

/// Declared and unreachable here. A lane waits in Fencing only if its request carried no echo; no
/// peer has bound it then, and the peer refuses such a request for good only by configuration,
/// protection or name conflict, which have no cause in the simulated world. No peer has connected
/// to it either, so none retires it gracefully. No scenario has both a full table and a legacy
/// node; a test of the node alone evicts a weak lane.
const EXCUSED: [Transition; 4] = [
    Transition {
        from: Some(StateKind::Fencing),
        trigger: Trigger::Refused,
        to: Some(StateKind::Retiring),
        rule: "H10",
    },
    Transition {
        from: Some(StateKind::Fencing),
        trigger: Trigger::Quiesced,
        to: Some(StateKind::Retiring),
        rule: "H11",
    },
    Transition {
        from: Some(StateKind::Legacy),
        trigger: Trigger::Evicted,
        to: Some(StateKind::Draining),
        rule: "H13",
    },
    Transition {
        from: Some(StateKind::Draining),
        trigger: Trigger::Evicted,
        to: Some(StateKind::Retiring),
        rule: "H13",
    },
];

#[test]
fn the_table_of_transitions_is_the_one_in_the_documents() {
    let name = |state: Option<StateKind>| match state {
        Some(state) => format!("{state:?}"),
        None => "[*]".into(),
    };
    let mut text = String::from(
        "# The transitions of a lifecycle\n\nWritten by a test from `core/src/node/transitions.rs`; \
         `UPDATE_SNAPSHOTS=1 cargo test -p sim-tests` rewrites\nit. `[*]` is a lifecycle that does \
         not exist. Rules are those of [`handshake.md`](handshake.md).\n\n| state | trigger | next | \
         rule |\n| --- | --- | --- | --- |\n",
    );
    for row in TRANSITIONS {
        let (from, to) = (name(row.from), name(row.to));
        let _ = writeln!(text, "| {from} | {:?} | {to} | {} |", row.trigger, row.rule);
    }
    text.push_str("\n```mermaid\nstateDiagram-v2\n");
    for row in TRANSITIONS {
        let _ = writeln!(text, "    {} --> {}: {:?}", name(row.from), name(row.to), row.trigger);
    }
    text.push_str("```\n");
    assert_document("docs/transitions.md", &text);
}

/// A debug build has a fraction of the speed: it spends one fault less where there are several, and
/// says so.
pub(crate) fn budget(faults: u32) -> u32 {
    if cfg!(debug_assertions) && faults > 1 {
        println!("a debug build explores {} faults instead of {faults}", faults - 1);
        return faults - 1;
    }
    faults
}

pub(crate) fn at_once(setup: Setup) -> Setup {
    Setup { operations: Operations::AtOnce, ..setup }
}

pub(crate) fn pruned(setup: Setup) -> Setup {
    Setup { prune: true, ..setup }
}

/// After the last fault, one pair of nodes after the other.
pub(crate) fn apart() -> Explorer {
    Explorer { apart: true, states_max: 12_000_000, ..Explorer::default() }
}

pub(crate) fn holds(scenario: Scenario, setup: Setup) {
    holds_by(&Explorer::default(), scenario, setup);
}

pub(crate) fn holds_by(explorer: &Explorer, scenario: Scenario, setup: Setup) {
    let all = setup.faults == Faults::ALL;
    let (faults, operations) = (setup.faults_max, setup.operations);
    let report = explorer.explore(&scenario.begin(setup.clone()));
    println!(
        "{scenario:?} K={faults} all faults: {all} {operations:?}: {} states, {} transitions, depth {}, longest \
         free {:?}, worst healing {:?}, {} bytes kept of a state, refusals {:?}",
        report.states,
        report.transitions,
        report.depth,
        report.longest_free,
        report.worst_healing,
        report.kept_bytes / report.states.max(1),
        report.coverage.refusals
    );
    match exhaustion(&report, scenario, &setup, &NOT_EXHAUSTED) {
        Ok(None) => assert!(report.longest_free.is_some(), "circles were not looked for"),
        Ok(Some(rest)) => println!("{rest}"),
        Err(found) => panic!("{found}"),
    }
}

/// An exploration that ends at its bound on worlds: scenario, grain, faults, worlds.
type Bounded = (Scenario, Operations, u32, usize);

/// The explorations that end at their bound; `cargo xtask nightly` reports each.
const NOT_EXHAUSTED: [Bounded; 4] = [
    (Scenario::NewToReplacing, Operations::Stepwise, 1, 5_000_000),
    (Scenario::NewToReplacing, Operations::AtOnce, 2, 5_000_000),
    (Scenario::BothRestart, Operations::AtOnce, 2, 5_000_000),
    (Scenario::NewAgainstReady, Operations::AtOnce, 2, 5_000_000),
];

/// The part of an exploration that its bound left out, in words; nothing at a fixpoint. A violation
/// is an error, and so is an ending that differs from the list.
fn exhaustion(
    report: &Report,
    scenario: Scenario,
    setup: &Setup,
    listed: &[Bounded],
) -> Result<Option<String>, String> {
    let Report { states, depth, .. } = *report;
    let Setup { operations, faults_max, .. } = *setup;
    let name = format!("{scenario:?} {operations:?} K={faults_max}");
    let bound =
        listed.iter().find(|row| (row.0, row.1, row.2) == (scenario, operations, faults_max));
    match (&report.ending, bound) {
        (Ending::Violation(found), _) => Err(found.report(&Case::of_setup(scenario, setup))),
        (Ending::Fixpoint, None) => Ok(None),
        (Ending::StatesMax, Some((.., worlds))) if states == *worlds => {
            Ok(Some(format!("not exhausted: {name}, {states} worlds, up to {depth} events")))
        }
        (Ending::StatesMax, _) => Err(format!("{name} ends at {states} worlds, unlisted")),
        (Ending::Fixpoint, Some(_)) => Err(format!("{name} is exhausted: take it off the list")),
    }
}

#[test]
fn bound_on_worlds_is_reported_if_listed_and_fails_otherwise() {
    let (scenario, setup) = (Scenario::SimultaneousOpen, Scenario::SimultaneousOpen.setup(0));
    let explored = |states_max| {
        let explorer = Explorer { states_max, ..Explorer::default() };
        explorer.explore(&scenario.begin(setup.clone()))
    };
    let ends = |states_max, listed: &[Bounded]| {
        exhaustion(&explored(states_max), scenario, &setup, listed)
    };
    let listed = [(scenario, Operations::Stepwise, 0, 50)];
    let rest = ends(50, &listed).expect("listed").expect("64 worlds do not fit into 50");
    assert!(rest.starts_with("not exhausted: SimultaneousOpen Stepwise K=0, 50 worlds, up to "));
    assert!(ends(50, &[]).is_err(), "unlisted");
    assert!(ends(40, &listed).is_err(), "another bound than the one listed");
    assert!(ends(1_000, &listed).is_err(), "listed, and exhausted");
    assert_eq!(ends(1_000, &[]), Ok(None));
}

/// Worlds of an exploration for the night that are explored on every change.
const NEAREST: usize = if cfg!(debug_assertions) { 5_000 } else { 100_000 };

/// A fixpoint at night; on every change the nearest worlds of the same exploration: all that
/// schedules of fewer events than are printed lead to.
pub(crate) fn holds_at_night(explorer: &Explorer, scenario: Scenario, setup: Setup) {
    if nightly() {
        return holds_by(explorer, scenario, setup);
    }
    let Explorer { apart, whole_max, .. } = *explorer;
    let nearest = Explorer {
        apart,
        whole_max,
        states_max: NEAREST,
        heal_at_once: NEAREST,
        ..Explorer::default()
    };
    let report = nearest.explore(&scenario.begin(setup.clone()));
    println!(
        "{scenario:?} K={} {:?}: the nearest {} states, {} transitions, all of fewer than {} events",
        setup.faults_max, setup.operations, report.states, report.transitions, report.depth
    );
    if let Ending::Violation(found) = report.ending {
        panic!("{}", found.report(&Case::of_setup(scenario, &setup)));
    }
    assert!(report.depth >= NEAREST_EVENTS_MIN, "only {} events", report.depth);
}

/// Without schedules of that many events there is little to see.
const NEAREST_EVENTS_MIN: u32 = 5;

fn assert_fixpoint(report: &Report, scenario: Scenario, setup: &Setup) {
    match &report.ending {
        Ending::Fixpoint => {}
        Ending::Violation(found) => panic!("{}", found.report(&Case::of_setup(scenario, setup))),
        Ending::StatesMax => panic!("the bound on states was reached at {}", report.states),
    }
}
