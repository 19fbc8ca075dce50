//! Waits in virtual time: their durations, their beginnings and their ends.

use handfast_core::Duration;
use handfast_core::node::Timing;
use handfast_sim::{Case, Scenario, play_timed};
use handfast_transport_sim::{DECLARED, Oracle, Setup};

const SEEDS: u64 = if cfg!(debug_assertions) { 40 } else { 1_000 };

const EVENTS_MAX: u32 = 200;

/// A duration of a node.
type Field = fn(&mut Timing) -> &mut Duration;

/// The durations that ship are the declared ones.
#[test]
fn durations_are_declared() {
    assert_eq!(Timing::default(), DECLARED);
}

/// No oracle breaks in any scenario while operations are slow, messages late, and drivers wake late.
#[test]
fn waits_have_their_declared_durations() {
    let (mut events, mut wakes, mut seconds) = (0_u64, 0_u64, 0_u64);
    let idle = |scenario: &Scenario| Scenario::OF_TRAFFIC.contains(scenario);
    for scenario in Scenario::every().filter(|scenario| !idle(scenario)) {
        for seed in 0..SEEDS {
            let start = Case::shipping(scenario, 6).start();
            let run = play_timed(&start, seed, EVENTS_MAX, false);
            if let Some(violation) = run.violation {
                let words = play_timed(&start, seed, EVENTS_MAX, true).transcript;
                panic!("{scenario:?}, seed {seed}: {violation:?}\n{words}");
            }
            events += u64::from(run.events);
            wakes += u64::from(run.wakes);
            seconds += run.elapsed.nanos() / 1_000_000_000;
        }
    }
    println!("{events} events, {wakes} wakes, {seconds} s of virtual time");
    assert!(wakes > SEEDS && seconds > SEEDS, "{wakes} {seconds}");
}

/// A duration that is half of the declared one, or twice as long, breaks oracle `Time`.
#[test]
fn another_duration_breaks_time() {
    let fields: [(&str, Field, Scenario); 8] = [
        ("request_retry", |it| &mut it.request_retry, Scenario::LowerOpens),
        ("ready_retry", |it| &mut it.ready_retry, Scenario::LowerOpens),
        ("half_open", |it| &mut it.half_open, Scenario::LowerOpens),
        ("operation", |it| &mut it.operation, Scenario::LowerOpens),
        ("quiesce_retry", |it| &mut it.quiesce_retry, Scenario::Established),
        ("drain", |it| &mut it.drain, Scenario::Established),
        ("capacity_wait", |it| &mut it.capacity_wait, Scenario::EvictAgainstOpen),
        ("backoff", |it| &mut it.backoff, Scenario::LowerOpens),
    ];
    for (name, field, scenario) in fields {
        for (factor, divisor) in [(1, 2), (2, 1)] {
            let mut timing = DECLARED;
            let span = field(&mut timing);
            span.0 = span.0 * factor / divisor;
            let start = scenario.begin(Setup { timing, ..scenario.setup(3) });
            let runs = (0..200).map(|seed| play_timed(&start, seed, EVENTS_MAX, false));
            let found = runs.filter_map(|run| run.violation).next();
            let oracle = found.map(|violation| violation.oracle);
            assert_eq!(oracle, Some(Oracle::Time), "{name} times {factor}, over {divisor}");
        }
    }
}
