//! Random schedules of broken variants.

use handfast_core::Node;
use handfast_core::node::Variant;
use handfast_sim::line::LINE_MAX;
use handfast_sim::sweep::{Swarm, events_to_settle};
use handfast_sim::{Coverage, Line, Scenario, variants};
use handfast_transport_sim::Oracle;
use std::sync::Arc;

const EVENTS_MAX: u32 = 2_000;

/// A fleet finds a broken backend, and the finding replays from one line.
#[test]
fn fleet_finds_broken_backend_and_replays_it() {
    let swarm = Swarm { variant: variants::find("WorkForgotten"), ..Swarm::fleet() };
    let found = (0..50).find_map(|seed| swarm.run(seed, &mut Coverage::default()).line);
    let line: Line = found.expect("a transfer never ends").to_string().parse().expect("it reads");
    assert!(line.to_string().len() <= LINE_MAX, "{line}");
    let violation = line.play().expect("it replays").violation.expect("it breaks again");
    assert_eq!(violation.oracle, Oracle::Liveness, "{}", violation.detail);
}

/// Connecting on first sight storms where the shipping rule does not.
#[test]
fn connecting_on_first_sight_storms() {
    let average = |variant: Option<Variant>| {
        let (mut total, mut unsettled) = (0u64, 0u64);
        for seed in 0..500 {
            let mut setup = Scenario::SimultaneousOpen.setup(0);
            setup.limits.opens_max = 1_000;
            if let Some(variant) = variant {
                setup.build = Arc::new(move |config| Node::with_variant(config, variant));
            }
            match events_to_settle(setup, seed, EVENTS_MAX) {
                Some(events) => total += u64::from(events),
                None => (total, unsettled) = (total + u64::from(EVENTS_MAX), unsettled + 1),
            }
        }
        println!("{variant:?}: {} events on average, {unsettled} of 500 unsettled", total / 500);
        total / 500
    };
    let (shipping, first_sight) = (average(None), average(Some(Variant::ConnectedOnFirstSight)));
    assert!(shipping <= 14, "{shipping}");
    assert!(2 * first_sight >= 3 * shipping, "{first_sight} against {shipping}");
}
