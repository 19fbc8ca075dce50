//! Fleets in virtual time: starts and incidents.

use handfast_sim::fleet::{Incident, Phase, Plan, PlanError, Report};
use sim_tests::assert_budget;
use std::fmt::Write as _;

const NODES: u32 = 60;
const PEERS: u32 = 8;
const SEEDS: u64 = if cfg!(debug_assertions) { 2 } else { 10 };

fn run(incident: Incident, seed: u64) -> Report {
    let plan = Plan { incident, ..Plan::new(NODES, PEERS, seed) };
    plan.run().expect("a plan in range")
}

/// Every demand is met or given up, both halves of each lane agree, no lane between two nodes without
/// an incident ends, and nothing is left over. The figures of one seed may only fall.
#[test]
fn fleets_come_to_rest_after_every_incident() {
    let mut figures = String::from("incident, phase: calls, lifecycles, failed opens\n");
    for incident in Incident::ALL {
        for seed in 0..SEEDS {
            let report = run(incident, seed);
            assert_eq!(report.violation, None, "{incident}, seed {seed}");
            assert!(report.phases.iter().all(|phase| phase.turned_away == 0), "{incident}");
            let lanes = report.phases[0].waits.len();
            assert!(lanes >= (NODES * PEERS) as usize, "{incident}: {lanes} lanes");
            if seed == 0 {
                for (number, phase) in report.phases.iter().enumerate() {
                    let Phase { calls, lifecycles, failures, .. } = phase;
                    let _ = writeln!(
                        figures,
                        "{incident}, {number}: {calls}, {lifecycles}, {failures}"
                    );
                }
            }
        }
    }
    assert_budget("fleet", &figures);
}

/// A plan is one run: its hash covers every event. Another seed is another run.
#[test]
fn fleets_of_equal_plans_have_equal_hashes() {
    let [first, again, other] = [3, 3, 4].map(|seed| run(Incident::Waves, seed).hash);
    assert_eq!(first, again);
    assert_ne!(first, other);
}

/// A store that is away for 10 s costs the time that it is away and one pause of applications, and no
/// node is turned away.
#[test]
fn fleet_without_a_store_warms_when_it_is_back() {
    let report = run(Incident::Outage, 1);
    let settled = report.phases[0].settled.nanos();
    assert!((10_000_000_000..13_000_000_000).contains(&settled), "{settled}");
    assert!(report.phases[0].failures > 0, "applications learn that nothing is to be had");
}

/// A fleet that no ring of nodes has, and the limits.
#[test]
fn fleets_out_of_range_are_refused() {
    let refused = |nodes, peers| Plan::new(nodes, peers, 0).run().err();
    assert_eq!(refused(2, 2), Some(PlanError::Nodes(2)));
    assert_eq!(refused(100_001, 2), Some(PlanError::Nodes(100_001)));
    let lanes = PlanError::Lanes { nodes: 100_000, peers: 82 };
    assert_eq!(refused(100_000, 82), Some(lanes));
    assert!(lanes.to_string().contains("have 8200000"), "{lanes}");
    let peers = |peers, most| Some(PlanError::Peers { nodes: 10, peers, most });
    assert_eq!(refused(10, 0), peers(0, 8));
    assert_eq!(refused(10, 7), peers(7, 8));
    assert_eq!(refused(10, 10), peers(10, 8));
    assert_eq!(refused(10, 8), None);
    assert_eq!(refused(3, 2), None);
}
