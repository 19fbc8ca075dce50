//! Transcripts that a broken variant must not play to their ends.

use crate::transcripts::files;
use handfast_core::Node;
use handfast_core::node::Variant::{self, *};
use handfast_sim::script::{Reason, Script};
use handfast_transport_sim::Oracle;
use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

/// A transcript and a variant it must not play to its end with.
struct Pair(&'static str, Variant, Fails);

/// Expected failure of a variant.
#[derive(Debug, PartialEq)]
enum Fails {
    /// An oracle does not hold.
    At(Oracle),
    /// An expectation does not hold.
    Otherwise,
}

const MUST_FAIL: [Pair; 25] = [
    Pair("acknowledgement-lost-after-the-peer-accepted", EstablishedOnFirstSight, UNWIRED),
    Pair("both-hold-their-lock-while-they-wait-for-each-other", TwoMessagesEqual, UNWIRED),
    Pair("clients-that-come-and-go-use-up-the-queue-pairs", OfferedUnfenced, GHOST),
    Pair("connect-returns-before-the-last-message", EstablishedOnFirstSight, UNWIRED),
    Pair("crossing-request-is-dropped", ReplacedByRequest, UNWIRED),
    Pair("duplicate-request-resets-a-live-connection", ConnectedOnFirstSight, GHOST),
    Pair("duplicate-request-resets-a-live-connection", ReplacedByRequest, UNWIRED),
    Pair("each-side-waits-for-the-other-to-begin", LowerInitiates, Fails::Otherwise),
    Pair("given-up-attempt-is-answered-in-place-of-the-next", ReusedNumbers, Fails::Otherwise),
    Pair("handshake-is-sent-once-and-lost", OfferedUnfenced, GHOST),
    Pair(
        "name-of-a-process-that-died-before-its-first-request-arrived",
        SupersededSet,
        Fails::Otherwise,
    ),
    Pair("opener-dies-before-its-last-message", TwoMessagesOrdered, UNWIRED),
    Pair("own-failed-call-wipes-what-the-peer-has-set-up", TwoMessagesEqual, UNWIRED),
    Pair(
        "passive-side-posts-before-the-active-side-can-receive",
        TwoMessagesOrdered,
        Fails::Otherwise,
    ),
    Pair("peer-exits-between-two-steps", ReusedNumbers, Fails::At(Oracle::Liveness)),
    Pair("peer-restarts-in-the-middle-of-our-first-handshake", ReusedNumbers, Fails::Otherwise),
    Pair(
        "queue-pairs-are-made-in-two-places-at-once",
        ReplacedByRequest,
        Fails::At(Oracle::Undeclared),
    ),
    Pair("rejected-attempt-takes-the-accepted-one-along", ConnectedOnFirstSight, Fails::Otherwise),
    Pair("reply-resurrects-a-retired-endpoint", ReplacedByRequest, Fails::Otherwise),
    Pair("request-is-answered-by-an-endpoint-that-dies", OfferedUnfenced, Fails::Otherwise),
    Pair("request-of-a-dead-process-locks-the-live-one-out", SupersededSet, Fails::Otherwise),
    Pair("restarted-peer-comes-back-while-writes-are-in-flight", SupersededSet, Fails::Otherwise),
    Pair("restarted-peer-has-the-same-queue-pair-numbers", OfferedUnfenced, Fails::Otherwise),
    Pair("three-nodes-ask-each-other-in-a-circle", RebuiltByWaiter, UNWIRED),
    Pair("waiter-cleans-up-the-attempt-of-another", RebuiltByWaiter, Fails::Otherwise),
];

const UNWIRED: Fails = Fails::At(Oracle::PublishedUnconnected);
const GHOST: Fails = Fails::At(Oracle::GhostHit);

#[test]
fn broken_variants_do_not_get_to_the_end_of_a_transcript() {
    let files = files();
    for Pair(race, variant, expected) in &MUST_FAIL {
        let (variant, name) = (*variant, format!("{race}.txt"));
        let (_, path) = files.iter().find(|(file, _)| *file == name).expect("it is there");
        let script = Script::new(&name, &fs::read_to_string(path).expect("it is text"));
        let played = script.play(Arc::new(move |config| Node::with_variant(config, variant)));
        let fault = played.err().unwrap_or_else(|| panic!("{variant:?} gets through {name}"));
        let fails = match &fault.reason {
            Reason::Violated(violation) => Some(Fails::At(violation.oracle)),
            Reason::Unmet(_) => Some(Fails::Otherwise),
            _ => None,
        };
        assert_eq!(fails.as_ref(), Some(expected), "{variant:?}: {fault}");
    }
    let shown: BTreeSet<Variant> = MUST_FAIL.iter().map(|Pair(_, variant, _)| *variant).collect();
    assert_eq!(shown.len(), 10, "{shown:?}");
}
