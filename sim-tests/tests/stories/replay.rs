//! Lines that replay a schedule, and what makes it shorter.

use handfast_transport_sim::{Faults, Operations, Oracle};
use sim_tests::line::LINE_MAX;
use sim_tests::mutants::{self, Entry};
use sim_tests::sweep::{Random, Swarm};
use sim_tests::{
    Case, Coverage, Ending, Explorer, Line, LineError, MinimizeError, ReplayError, Scenario,
    Schedule, Scheduler, minimize,
};

#[test]
fn the_line_of_a_counterexample_replays_it() {
    for entry in mutants::ALL {
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
fn the_line_of_a_random_run_replays_it_in_every_build() {
    let swarm = Swarm { variant: mutants::find("SO-1"), ..Swarm::default() };
    let mut lines = String::new();
    for seed in 0..40 {
        let swarmed = swarm.run(seed, &mut Coverage::default());
        let Some(line) = swarmed.line else { continue };
        let again: Line = line.to_string().parse().expect("a line reads back");
        let run = again.play().expect("a line replays");
        assert_eq!(run.trace_hash, swarmed.run.trace_hash);
        assert_eq!(run.violation, swarmed.run.violation);
        lines.push_str(&format!("{line}\n"));
    }
    // Written by one build and read by all others: the lines hold the hashes of the traces.
    sim_tests::assert_snapshot("replay-lines", &lines);
}

#[test]
fn a_schedule_that_goes_round_in_a_circle_has_a_line() {
    let entry = mutants::find("TwoMessagesEqual").expect("a registered variant");
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

#[test]
fn places_past_one_letter_read_back() {
    let places = vec![0, 62, 63, 64, 4095];
    let schedule = Schedule::Events { places, circle: 2 };
    let case = Case::shipping(Scenario::Twins, 3);
    let line = Line { case, schedule, trace: 7 };
    let again: Line = line.to_string().parse().expect("a line reads back");
    assert_eq!(again.schedule, line.schedule);
    assert_eq!((again.case.faults_max, again.trace), (3, 7));
}

#[test]
fn damaged_old_and_strange_lines_are_told_apart() {
    let line = calm().to_string();
    for at in 0..line.len() {
        let mut damaged = line.clone().into_bytes();
        damaged[at] = if damaged[at] == b'q' { b'z' } else { b'q' };
        let damaged = String::from_utf8(damaged).expect("text");
        assert!(damaged.parse::<Line>().is_err(), "{damaged}");
    }
    let damaged = line.replace("SimultaneousOpen", "SimultaneousOpem");
    assert!(matches!(damaged.parse::<Line>(), Err(LineError::Checksum { .. })));
    assert!(matches!(line[..line.len() - 1].parse::<Line>(), Err(LineError::Checksum { .. })));
    for text in ["", "hello", "hf:", "hfx:a:b", "hf1", "http://example.org"] {
        assert_eq!(text.parse::<Line>().expect_err(text), LineError::NotALine, "{text}");
    }
    let newer = line.replacen("hf1", "hf2", 1);
    assert_eq!(
        newer.parse::<Line>().expect_err(&newer),
        LineError::Version { found: "hf2".to_owned() }
    );
}

#[test]
fn a_line_of_another_time_names_what_is_not_there() {
    let line = calm().to_string();
    let unknown = resealed(&line.replace("SimultaneousOpen", "Elsewhere"));
    let error = unknown.parse::<Line>().expect_err("there is no such scenario");
    assert_eq!(error, LineError::UnknownScenario { name: "Elsewhere".to_owned() });
    assert!(error.to_string().contains("version of handfast"), "{error}");
    let unknown = resealed(&line.replace(":-:", ":XX-99:"));
    let error = unknown.parse::<Line>().expect_err("there is no such variant");
    assert_eq!(error, LineError::UnknownVariant { id: "XX-99".to_owned() });
    for (from, to) in [(":0xff:", ":0x1ff:"), (":s:", ":t:"), (":eA", ":e!")] {
        let strange = resealed(&line.replace(from, to));
        assert_ne!(strange, line);
        let error = strange.parse::<Line>().expect_err(&strange);
        assert!(matches!(error, LineError::Part { .. }), "{strange}: {error}");
    }
}

#[test]
fn a_line_that_leads_elsewhere_than_before_says_so() {
    let line = Line { trace: 1, ..calm() };
    assert!(matches!(line.play(), Err(ReplayError::Trace { expected: 1, .. })));
    let schedule = Schedule::Events { places: vec![0, 4_000], circle: 0 };
    let line = Line { schedule, ..calm() };
    assert!(matches!(line.play(), Err(ReplayError::NotPossible { event: 2, .. })));
}

#[test]
fn a_schedule_that_does_not_fit_into_a_line_says_so() {
    let case = Case::shipping(Scenario::OpenAgainstClose, 200);
    let random = Random { seed: 3, events_max: 190, scheduler: Scheduler::FaultEarly };
    let run = random.run(&case, &mut Coverage::default());
    assert!(run.schedule.len() > 150, "{} events", run.schedule.len());
    let error = Line::of_events(case, &run.schedule, 0).expect_err("it does not fit");
    assert_eq!(error, LineError::TooLong { events: run.schedule.len() });
    let line = Line::of_random(case, random, &run).to_string();
    assert!(line.len() <= LINE_MAX, "a seed always fits: {line}");
}

#[test]
fn the_longest_line_of_a_random_run_fits() {
    let scenarios = Scenario::ALL.iter().map(|scenario| format!("{scenario:?}").len());
    let ids = mutants::ALL.iter().map(|entry| entry.id.len());
    let random = Random { seed: u64::MAX, events_max: 100_000, scheduler: Scheduler::Starve(255) };
    let case = Case {
        faults: Faults::ALL,
        faults_max: u32::MAX,
        operations: Operations::AtOnce,
        prune: true,
        ..Case::shipping(Scenario::Twins, 0)
    };
    let line = Line { case, schedule: Schedule::Random(random), trace: u32::MAX }.to_string();
    let names = scenarios.max().unwrap_or(0) + ids.max().unwrap_or(0);
    assert!(line.len() + names <= LINE_MAX, "{line}");
    assert_eq!(line.parse::<Line>().expect("a line reads back").schedule, Schedule::Random(random));
}

#[test]
fn any_failing_random_run_of_any_variant_shrinks_to_a_dozen_events() {
    for entry in mutants::ALL {
        let swarm =
            Swarm { scenarios: entry.scenarios.to_vec(), variant: Some(entry), ..Swarm::default() };
        let mut shrunk = 0;
        for seed in 0..SEEDS_MAX {
            let swarmed = swarm.run(seed, &mut Coverage::default());
            let Some(line) = swarmed.line else { continue };
            let smaller = minimize(&line).expect("a failing line shrinks");
            let events = smaller.run.schedule.len();
            println!(
                "{}: {} events to {events}: {}",
                entry.id, smaller.events_before, smaller.line
            );
            assert!(events <= if entry.id == "SO-1" { 6 } else { 12 }, "{}", smaller.transcript);
            let oracle = smaller.run.violation.map(|found| found.oracle);
            assert_eq!(oracle, swarmed.run.violation.map(|found| found.oracle));
            shrunk += 1;
            if shrunk == 2 {
                break;
            }
        }
        assert!(shrunk > 0, "{} breaks on none of {SEEDS_MAX} seeds", entry.id);
    }
}

/// Random runs in which each variant must break at least once.
const SEEDS_MAX: u64 = 3_000;

#[test]
fn a_schedule_on_which_nothing_breaks_is_not_shrunk() {
    assert!(matches!(minimize(&calm()), Err(MinimizeError::Holds)));
}

/// A line of the shipping rules: one side opens, the other answers.
fn calm() -> Line {
    let case = Case::shipping(Scenario::SimultaneousOpen, 0);
    let schedule = Schedule::Events { places: vec![0; 6], circle: 0 };
    let run = Line { case, schedule: schedule.clone(), trace: 0 }.play();
    let Err(ReplayError::Trace { found, .. }) = run else { panic!("a trace of 0") };
    Line { case, schedule, trace: found }
}

/// With the checksum that its text has.
fn resealed(line: &str) -> String {
    let (body, _) = line.rsplit_once(':').expect("a line");
    match format!("{body}:00000000").parse::<Line>() {
        Err(LineError::Checksum { expected, .. }) => format!("{body}:{expected}"),
        other => panic!("{other:?}"),
    }
}

fn explored(entry: &'static Entry) -> (String, usize, Oracle) {
    let case = Case::of_variant(entry);
    let explorer = Explorer {
        liveness: entry.oracles.contains(&Oracle::Liveness),
        circles: false,
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
