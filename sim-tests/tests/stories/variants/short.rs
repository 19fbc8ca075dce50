//! The short exploration still finds a broken variant.

use crate::short::explore;
use handfast_core::Node;
use handfast_core::node::Variant;
use handfast_sim::{Ending, Scenario};
use handfast_transport_sim::Setup;
use std::sync::Arc;

/// A short exploration still separates the rules from broken variants.
#[test]
fn short_exploration_still_finds_variants() {
    let build = Arc::new(|config| Node::with_variant(config, Variant::OfferedUnfenced));
    let scenario = Scenario::SimultaneousOpen;
    let ending = explore(Setup { build, ..scenario.setup(1) }, scenario);
    assert!(matches!(ending, Ending::Violation(_)), "{ending:?}");
}
