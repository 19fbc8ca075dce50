//! Schedules of the simulated world: the first bytes choose the case, the others one event each.

use handfast_sim::case::faults_of;
use handfast_sim::{Case, Coverage, Ground, Line, Rules, Scenario, Traffic, play};
use handfast_transport_sim::Operations;
use handfast_transport_sim::verbs::{ERDMA_STANDARD, PROFILES};

/// Events of one input, faults among them included.
const EVENTS_MAX: u32 = 400;
/// Faults of one input.
const FAULTS_MAX: u8 = 4;
/// Bytes that choose the case.
const CASE_BYTES: usize = 8;

/// Panics if an oracle breaks on the way, or in the world that is left to heal.
pub fn check(bytes: &[u8]) {
    let Some((head, events)) = bytes.split_first_chunk::<CASE_BYTES>() else { return };
    let Some(case) = case(head) else { return };
    let mut events = events.iter();
    let rules = Rules::new(EVENTS_MAX, case.oracles());
    let run = play(case.start(), rules, &mut Coverage::default(), |_, choices| {
        let chosen = usize::from(*events.next()?);
        (!choices.is_empty()).then(|| chosen % choices.len())
    });
    if let Some(violation) = &run.violation {
        let line = Line::of_events(case, &run.schedule, 0);
        let line = line.map_or_else(|error| error.to_string(), |line| line.to_string());
        panic!("{violation:?}; handfast sim replay '{line}'");
    }
}

/// Returns the case of eight bytes: scenario, profile, traffic, kinds of fault in three bytes,
/// budget, grain. `None` if the scenario does not carry the traffic.
fn case(head: &[u8; CASE_BYTES]) -> Option<Case> {
    let [scenario, profile, traffic, low, middle, high, faults_max, grain] = *head;
    let scenarios: Vec<Scenario> = Scenario::every().collect();
    let scenario = scenarios[usize::from(scenario) % scenarios.len()];
    // The driver refuses every queue pair that is connected out of band.
    let profiles = PROFILES.into_iter().filter(|profile| profile.name != ERDMA_STANDARD.name);
    let profile = profiles.cycle().nth(usize::from(profile))?;
    let traffic = Traffic::ALL.get(usize::from(traffic)).copied();
    if traffic.is_some_and(|traffic| !scenario.carries(traffic)) {
        return None;
    }
    let mut case = Case::shipping(scenario, u32::from(faults_max % (FAULTS_MAX + 1)));
    let known = faults_of(u32::from_le_bytes([low, middle, high, 0]));
    case.faults = known.unwrap_or(case.faults);
    case.devices = Ground::on(profile, traffic);
    case.operations = if grain & 1 == 0 { Operations::AtOnce } else { Operations::Stepwise };
    Some(case)
}
