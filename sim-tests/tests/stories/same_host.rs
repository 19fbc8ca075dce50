//! The life cycle over lanes through shared memory: processes that map memory of each other, are
//! stopped with a copy under way, die, restart, and lose a connection.

use super::transfers::holds;
use crate::nightly;
use handfast_sim::{Case, Ground, Scenario, Traffic};
use handfast_transport_sim::verbs::SHM;
use handfast_transport_sim::{Faults, Operations};
use sim_tests::assert_snapshot;

/// Restarts, lost and doubled calls, failing lanes, stopped processes and broken connections.
const HARSH: Faults = Faults {
    loss: true,
    duplication: true,
    crash: true,
    lane_error: true,
    mute: true,
    channel: true,
    ..Faults::NONE
};

/// Traffic through shared memory; operations happen at once.
fn case(scenario: Scenario, traffic: Option<Traffic>, faults_max: u32) -> Case {
    Case {
        devices: Ground::on(&SHM, traffic),
        faults: HARSH,
        operations: Operations::AtOnce,
        prune: true,
        ..Case::shipping(scenario, faults_max)
    }
}

/// Every oracle holds in every world of processes that copy, are stopped, die and come back.
#[test]
fn lanes_through_shared_memory_keep_every_oracle() {
    let mut kept = String::from("scenario, traffic, faults: worlds, events tried, depth\n");
    let traffics = [Traffic::Write, Traffic::Read, Traffic::GivenUp, Traffic::Dropped];
    let with_bytes = traffics.map(|traffic| (Scenario::Transfers, Some(traffic)));
    let without = [Scenario::SimultaneousOpen, Scenario::OpenAgainstClose].map(|it| (it, None));
    for (scenario, traffic) in with_bytes.into_iter().chain(without) {
        for faults in 0..=if nightly() { 2 } else { 1 } {
            let report = holds(&case(scenario, traffic, faults));
            if faults < 2 {
                let (states, depth) = (report.states, report.depth);
                let traffic = traffic.map_or("-".to_owned(), |it| format!("{it:?}"));
                let row = format!("{states}, {}, {depth}", report.transitions);
                kept.push_str(&format!("{scenario:?}, {traffic}, {faults}: {row}\n"));
            }
        }
    }
    assert_snapshot("same-host", &kept);
}
