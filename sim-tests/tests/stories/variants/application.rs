//! The model of an application's view notices broken variants.

use crate::application::{PREAMBLE_LINES, config, search};
use handfast_core::Node;
use handfast_core::node::Variant;
use handfast_sim::script::Script;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::sync::Arc;

/// A lane that opens too early is found in a few events.
#[test]
fn early_lane_is_found_in_few_events() {
    let (why, transcript) = finds(Variant::EstablishedOnFirstSight);
    assert!(why.contains("does not listen"), "{why}\n{transcript}");
    assert!(transcript.lines().count() <= PREAMBLE_LINES + 6, "{why}\n{transcript}");
}

#[test]
fn a_side_that_waits_for_the_other_to_begin_is_noticed() {
    let (why, transcript) = finds(Variant::LowerInitiates);
    assert!(why.contains("failed though nothing happened"), "{why}\n{transcript}");
    assert!(transcript.lines().count() <= 16, "{why}\n{transcript}");
}

#[test]
fn a_lane_that_comes_back_under_its_old_number_is_noticed() {
    let (why, transcript) = finds(Variant::ReusedNumbers);
    assert!(why.contains("once more"), "{why}\n{transcript}");
}

#[test]
fn what_is_left_of_a_failure_plays_as_a_transcript() {
    let variant = Variant::EstablishedOnFirstSight;
    let (_, transcript) = finds(variant);
    let script = Script::new("shrunk", &transcript);
    let fault = script.play(Arc::new(move |config| Node::with_variant(config, variant)));
    let fault = fault.expect_err("it fails there too").to_string();
    assert!(fault.contains("PublishedUnconnected"), "{fault}");
    script.play(Arc::new(Node::new)).expect("the rules get to its end");
}

/// The model's finding for a variant, shrunk; deterministic.
fn finds(variant: Variant) -> (String, String) {
    let runner =
        TestRunner::new_with_rng(config(3_000), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let found = search(runner, Arc::new(move |config| Node::with_variant(config, variant)));
    found.err().unwrap_or_else(|| panic!("{variant:?} does what the model says"))
}
