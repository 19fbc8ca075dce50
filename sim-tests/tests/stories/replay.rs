//! Lines that replay a schedule, and what makes it shorter.

use handfast_sim::line::LINE_MAX;
use handfast_sim::sweep::{Random, Swarm};
use handfast_sim::variants;
use handfast_sim::{
    Case, Coverage, Ground, Line, LineError, MinimizeError, Record, ReplayError, Scenario,
    Schedule, Scheduler, Traffic, minimize,
};
use handfast_transport_sim::verbs::{ERDMA_ROCEV2, ERDMA_STANDARD, PROFILES, Rebirth};
use handfast_transport_sim::{Faults, Operations};

#[test]
fn devices_and_traffic_are_a_part_of_a_line() {
    let traffic = Traffic::ALL.into_iter().map(Some).chain([None]);
    for (profile, traffic) in PROFILES.into_iter().zip(traffic.cycle()) {
        let usual = Ground::on(profile, traffic);
        for (rebirth, random_psns) in [(Rebirth::Anew, false), (Rebirth::GoesOn, true)] {
            let devices = Ground { rebirth, random_psns, ..usual };
            let case = Case { devices, ..Case::shipping(Scenario::Transfers, 1) };
            let schedule = Schedule::Events { places: vec![0], circle: 0 };
            let line = Line { case, schedule, trace: 7 };
            let again: Line = line.to_string().parse().expect("a line reads back");
            assert_eq!(again.case.devices, devices);
            assert_eq!(again.case.start().fingerprint(), case.start().fingerprint());
        }
    }
    let bare = Case::shipping(Scenario::Transfers, 1).devices;
    assert_eq!((bare, bare.to_string().as_str()), (Ground::BARE, "-"));
}

/// A finding on devices replays, shrinks and draws from its line.
#[test]
fn device_findings_replay_shrink_and_draw() {
    let swarm = Swarm {
        grounds: vec![Ground {
            random_psns: false,
            ..Ground::on(&ERDMA_ROCEV2, Some(Traffic::Write))
        }],
        scenarios: vec![Scenario::Transfers],
        ..Swarm::default()
    };
    let mut seeds = (0..SEEDS_MAX).map(|seed| swarm.run(seed, &mut Coverage::default()));
    let found = seeds.find(|swarmed| swarmed.line.is_some()).expect("a late write gets in");
    let line: Line = found.line.expect("it broke").to_string().parse().expect("it reads back");
    assert_eq!(line.play().expect("it replays").violation, found.run.violation);
    shrinks(&line);
    let record = Record::of(&line).expect("it is drawn");
    assert_eq!(record.picture.violation, found.run.violation);
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
    for text in ["", "hello", "hf:", "hfx:a:b", "hf2", "http://example.org"] {
        assert_eq!(text.parse::<Line>().expect_err(text), LineError::NotALine, "{text}");
    }
    for version in ["hf1", "hf3", "hf20"] {
        let other = line.replacen("hf2", version, 1);
        let error = other.parse::<Line>().expect_err(&other);
        assert_eq!(error, LineError::Version { found: version.to_owned() });
        assert!(error.to_string().contains("the version of handfast that printed it"), "{error}");
    }
}

#[test]
fn a_line_of_another_time_names_what_is_not_there() {
    let line = calm().to_string();
    let unknown = resealed(&line.replace("SimultaneousOpen", "Elsewhere"));
    let error = unknown.parse::<Line>().expect_err("there is no such scenario");
    assert_eq!(error, LineError::UnknownScenario { name: "Elsewhere".to_owned() });
    assert!(error.to_string().contains("version of handfast"), "{error}");
    let unknown = resealed(&line.replace(":-:-:", ":-:XX-99:"));
    let error = unknown.parse::<Line>().expect_err("there is no such variant");
    assert_eq!(error, LineError::UnknownVariant { id: "XX-99".to_owned() });
    let grounds = ["", "strict", "strict,Write", "elan4,Write,ax", "strict,Letters,ax", "rxe,-,xx"];
    let grounds = grounds.map(|devices| format!(":{devices}:-:"));
    let others = [(":0xff:", ":0xffffffff:"), (":s:", ":t:"), (":eA", ":e!")];
    for (from, to) in grounds.iter().map(|to| (":-:-:", to.as_str())).chain(others) {
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
    let ids = variants::ALL.iter().map(|entry| entry.id.len());
    let random = Random { seed: u64::MAX, events_max: 100_000, scheduler: Scheduler::Starve(255) };
    let case = Case {
        devices: Ground::on(&ERDMA_STANDARD, Some(Traffic::WriteAndRead)),
        faults: Faults::ALL,
        faults_max: u32::MAX,
        operations: Operations::AtOnce,
        prune: true,
        ..Case::shipping(Scenario::Crowd, 0)
    };
    let line = Line { case, schedule: Schedule::Random(random), trace: u32::MAX }.to_string();
    let names = scenarios.max().unwrap_or(0) + ids.max().unwrap_or(0);
    assert!(line.len() + names <= LINE_MAX, "{line}");
    assert_eq!(line.parse::<Line>().expect("a line reads back").schedule, Schedule::Random(random));
}

pub(crate) fn shrinks(line: &Line) {
    let id = line.case.variant.map(|entry| entry.id);
    let smaller = minimize(line).expect("a failing line shrinks");
    let events = smaller.run.schedule.len();
    println!("{} events to {events}: {}", smaller.events_before, smaller.line);
    let most = match id {
        Some("SO-1") => 6,
        // A grant, a copy, and the end of a process on both sides.
        Some("SHM-3-L") => 24,
        // No schedule is shorter: a grant, its map, a copy of each of two batches, and the drop.
        Some("SHM-12-L") => 13,
        // None of the events can be left out; the shorter schedules have others.
        Some("TIME-10") => 13,
        _ => 12,
    };
    assert!(events <= most, "{events} events:\n{}{line}", smaller.transcript);
    let oracle = |run: &handfast_sim::Run| run.violation.as_ref().map(|found| found.oracle);
    assert_eq!(oracle(&smaller.run), oracle(&line.play().expect("it replays")), "{line}");
}

/// Random runs in which each variant must break at least once.
pub(crate) const SEEDS_MAX: u64 = 10_000;

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
