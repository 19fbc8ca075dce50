//! Lines of broken variants replay and shrink.

use crate::replay::{SEEDS_MAX, shrinks};
use handfast_sim::line::LINE_MAX;
use handfast_sim::sweep::{Random, Swarm};
use handfast_sim::variants::{self, Entry};
use handfast_sim::{Case, Coverage, Ending, Explorer, Line, Scenario, Schedule, Scheduler};
use handfast_transport_sim::Oracle;

#[test]
fn the_line_of_a_counterexample_replays_it() {
    for entry in variants::ALL {
        let (line, events, oracle) = explored(entry);
        assert!(line.len() <= LINE_MAX, "{} characters: {line}", line.len());
        let again: Line = line.parse().expect("a line reads back");
        assert_eq!(again.to_string(), line);
        let run = again.play().expect("a line replays");
        assert_eq!(run.schedule.len(), events, "{line}");
        assert_eq!(run.violation.map(|found| found.oracle), Some(oracle), "{line}");
    }
}

#[test]
fn the_line_of_a_random_run_replays_it() {
    let swarm = Swarm { variant: variants::find("SO-1"), ..Swarm::default() };
    let mut replayed = 0;
    for seed in 0..40 {
        let swarmed = swarm.run(seed, &mut Coverage::default());
        let Some(line) = swarmed.line else { continue };
        let again: Line = line.to_string().parse().expect("a line reads back");
        let run = again.play().expect("a line replays");
        assert_eq!(run.trace_hash, swarmed.run.trace_hash);
        assert_eq!(run.violation, swarmed.run.violation);
        replayed += 1;
    }
    assert!(replayed > 0);
}

#[test]
fn a_schedule_that_goes_round_in_a_circle_has_a_line() {
    let entry = variants::find("TwoMessagesEqual").expect("a registered variant");
    let explorer = Explorer {
        liveness: false,
        states_max: 3_000,
        oracles: vec![Oracle::Liveness],
        ..Explorer::default()
    };
    let case = Case { faults_max: 0, ..Case::of_variant(entry) };
    let Ending::Violation(found) = explorer.explore(&case.start()).ending else {
        panic!("nothing recurs")
    };
    let line = found.line(&case).expect("it fits");
    let Schedule::Events { circle, .. } = &line.schedule else { panic!("{line}") };
    assert_eq!(*circle, found.healing.len());
    let parsed: Line = line.to_string().parse().expect("a line reads back");
    assert_eq!(parsed.schedule, line.schedule);
    let violation = parsed.play().expect("it replays").violation.expect("it recurs");
    assert_eq!(violation.oracle, Oracle::Liveness, "{}", violation.detail);
}

/// A failing random run of any variant shrinks to a dozen events.
#[test]
fn random_failures_shrink_to_a_dozen_events() {
    for entry in variants::ALL {
        let case = Case::of_variant(entry);
        let failing = (0..SEEDS_MAX).find_map(|seed| {
            let random = Random { seed, events_max: 120, scheduler: Scheduler::Uniform };
            let run = random.run(&case, &mut Coverage::default());
            run.violation.is_some().then(|| Line::of_random(case, random, &run))
        });
        let line = failing.unwrap_or_else(|| panic!("{} breaks on no seed", entry.id));
        shrinks(&line);
    }
}

/// The original bug, found by any swarm, shrinks to six events.
#[test]
fn original_bug_shrinks_to_six_events() {
    let swarm = Swarm { variant: variants::find("SO-1"), ..Swarm::default() };
    let failing = (0..100).filter_map(|seed| swarm.run(seed, &mut Coverage::default()).line);
    let mut shrunk = 0;
    for line in failing.take(10) {
        shrinks(&line);
        shrunk += 1;
    }
    assert_eq!(shrunk, 10);
}

fn explored(entry: &'static Entry) -> (String, usize, Oracle) {
    let case = Case::of_variant(entry);
    let explorer = Explorer {
        liveness: entry.oracles.contains(&Oracle::Liveness),
        cycles: false,
        oracles: entry.oracles.to_vec(),
        ..Explorer::default()
    };
    match explorer.explore(&case.start()).ending {
        Ending::Violation(found) => {
            let line = found.line(&case).expect("the shortest way fits");
            (line.to_string(), found.schedule.len(), found.violation.oracle)
        }
        other => panic!("{} was not found out: {other:?}", entry.id),
    }
}

#[test]
fn a_line_that_was_printed_long_ago_still_reads() {
    let text = "hf2:SimultaneousOpen:-:SO-1:0xf8:a:eAABA:e55e53e5:ab9f62be";
    let line: Line = text.parse().expect("the first line ever shrunk reads back");
    assert_eq!(line.to_string(), text);
    assert_eq!(line.schedule, Schedule::Events { places: vec![0, 0, 1, 0], circle: 0 });
    assert_eq!((line.case.scenario, line.case.faults_max), (Scenario::SimultaneousOpen, 0));
    assert_eq!(line.trace, 0xe55e_53e5);
}
