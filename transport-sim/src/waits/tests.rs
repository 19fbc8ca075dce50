//! Edges of the oracle: what each exemption permits, and what it does not.

use super::{Cause, DECLARED, Waits};
use crate::oracle::{Oracle, Violation};
use handfast_core::node::{Failure, Limits, TimerId, TimerKind};
use handfast_core::transport::{OperationKind, Outcome, Side, TransportError};
use handfast_core::wire::{Body, Op};
use handfast_core::{Incarnation, Input, Instant, Lifecycle, NicPath, Node, NodeConfig};

const OWN: Lifecycle = Lifecycle(1);
const EARLY: Instant = Instant(1);

/// A node that waits, and the oracle.
struct Watched {
    node: Node,
    waits: Waits,
    limits: Limits,
}

impl Watched {
    /// A node that has sent its first request.
    fn asking() -> Self {
        let limits = Limits::default();
        let config = NodeConfig {
            path: path("a:1@nic"),
            incarnation: Incarnation(1),
            seed: 7,
            limits,
            timing: DECLARED,
        };
        let mut watched = Self { node: Node::new(config), waits: Waits::default(), limits };
        watched.holds(Input::Open(path("b:1@nic")));
        watched.holds(done(OperationKind::Create, Outcome::Created(Body::default())));
        watched
    }

    /// A node whose demand pauses after a failed Create.
    fn pausing() -> Self {
        let mut watched = Self::asking();
        let error = TransportError::new(Side::Local, "simulated", "a failure");
        watched.holds(Input::LaneFailed { lifecycle: OWN, error });
        watched
    }

    fn holds(&mut self, input: Input) {
        let cause = Cause::of(&input);
        let found = self.judge(EARLY, cause, input);
        assert_eq!(found, None);
    }

    /// The violation of a node that handles `input`, if that is taken for `cause`.
    fn judge(&mut self, now: Instant, cause: Cause, input: Input) -> Option<Violation> {
        self.waits.begin(now, Some(&input), cause, &self.node);
        self.node.handle_input(now, input);
        self.end()
    }

    /// The violation of a node whose timer fires, if that is taken for `cause`.
    fn fire(&mut self, cause: Cause) -> Option<Violation> {
        self.waits.begin(EARLY, None, cause, &self.node);
        self.node.handle_timer(EARLY, &TimerId::Lifecycle(OWN));
        self.end()
    }

    fn end(&mut self) -> Option<Violation> {
        while let Some(output) = self.node.poll_output() {
            self.waits.observe(&output, &self.node, &self.limits);
        }
        self.waits.end(&self.node)
    }
}

fn path(name: &str) -> NicPath {
    NicPath::parse(name).expect("a well-formed path")
}

fn done(kind: OperationKind, outcome: Outcome) -> Input {
    let id = handfast_core::transport::OperationId { lifecycle: OWN, kind };
    Input::OperationDone { id, outcome }
}

fn breaks(found: Option<Violation>) -> bool {
    found.is_some_and(|violation| violation.oracle == Oracle::Time)
}

/// A request is repeated by its timer, for a refusal, or after a retire, and for nothing else.
#[test]
fn request_is_repeated_for_its_reasons_alone() {
    let peer = || Some(path("b:1@nic"));
    let fires = |cause: Cause| breaks(Watched::asking().fire(cause));
    assert!(!fires(Cause::Timer(TimerId::Lifecycle(OWN))));
    assert!(!fires(Cause::Heard(peer(), Some(Op::Refuse))));
    assert!(!fires(Cause::Operated(OperationKind::Retire, Lifecycle(2), true)));
    assert!(fires(Cause::Timer(TimerId::Peer(path("b:1@nic")))));
    assert!(fires(Cause::Heard(peer(), Some(Op::Reply))));
    assert!(fires(Cause::Heard(None, None)));
    assert!(fires(Cause::Operated(OperationKind::Retire, Lifecycle(2), false)));
    assert!(fires(Cause::Operated(OperationKind::Create, Lifecycle(2), true)));
    assert!(fires(Cause::Opened));
    assert!(fires(Cause::LaneFailed));
    assert!(fires(Cause::Timeout), "it is not due");
}

/// A pause ends early for its peer, for the application, and for an operation that succeeds.
#[test]
fn pause_ends_early_for_its_reasons_alone() {
    let ends = |cause: Cause| {
        let mut watched = Watched::pausing();
        assert_eq!(watched.node.poll_timeout().map(|(_, kind)| kind), Some(TimerKind::Backoff));
        breaks(watched.judge(EARLY, cause, Input::Release(path("b:1@nic"))))
    };
    assert!(!ends(Cause::Released(path("b:1@nic"))));
    assert!(!ends(Cause::Heard(Some(path("b:1@nic")), Some(Op::Request))));
    assert!(!ends(Cause::Heard(None, None)));
    assert!(!ends(Cause::Operated(OperationKind::Create, Lifecycle(2), true)));
    assert!(!ends(Cause::Timer(TimerId::Peer(path("b:1@nic")))));
    assert!(ends(Cause::Released(path("c:1@nic"))));
    assert!(ends(Cause::Heard(Some(path("c:1@nic")), Some(Op::Request))));
    assert!(ends(Cause::Operated(OperationKind::Create, Lifecycle(2), false)));
    assert!(ends(Cause::Opened));
    assert!(ends(Cause::Timeout), "it is not due");
}

/// A node that is not asked when a timer is due leaves it.
#[test]
fn timer_that_is_left_is_found() {
    let mut watched = Watched::asking();
    let (due, kind) = watched.node.poll_timeout().expect("a request has a timer");
    assert_eq!(kind, TimerKind::RequestRetry);
    watched.waits.begin(due, None, Cause::Timeout, &watched.node);
    assert!(breaks(watched.end()));
    let early = Instant(due.0 - 1);
    watched.waits.begin(early, None, Cause::Timeout, &watched.node);
    assert_eq!(watched.end(), None);
}

/// A silent peer is given up after the last request that the limits permit, and not before.
#[test]
fn silent_peer_is_given_up_after_its_last_request() {
    let mut watched = Watched::asking();
    for _ in 1..watched.limits.requests_max {
        assert_eq!(watched.fire(Cause::Timer(TimerId::Lifecycle(OWN))), None);
    }
    let mut early = Watched::asking();
    early.limits.requests_max += 1;
    early.waits = watched.waits.clone();
    early.node = watched.node.clone();
    assert!(breaks(early.fire(Cause::Timer(TimerId::Lifecycle(OWN)))));
    assert_eq!(watched.fire(Cause::Timer(TimerId::Lifecycle(OWN))), None);
    let mut late = Watched::asking();
    late.limits.requests_max = 1;
    assert!(breaks(late.fire(Cause::Timer(TimerId::Lifecycle(OWN)))), "one request too many");
}

/// An input that a node gets while its outputs are acted on is not judged, nor is the one around it.
#[test]
fn input_within_outputs_is_not_judged() {
    let mut watched = Watched::asking();
    watched.waits.begin(EARLY, None, Cause::Opened, &watched.node);
    assert_eq!(watched.fire(Cause::Opened), None);
    assert_eq!(watched.end(), None);
    assert!(breaks(watched.fire(Cause::Opened)), "the next one is");
}

/// A demand that fails for want of room has met a full table.
#[test]
fn want_of_room_needs_a_full_table() {
    let mut watched = Watched::asking();
    let (peer, failure) = (path("b:1@nic"), Failure::Limit("lifecycles_max".into()));
    let failed = handfast_core::Event::OpenFailed { peer, failure };
    let failed = handfast_core::Output::Event(failed);
    watched.waits.begin(EARLY, None, Cause::Opened, &watched.node);
    watched.waits.observe(&failed, &watched.node, &Limits { lifecycles_max: 1, ..watched.limits });
    assert_eq!(watched.end(), None);
    watched.waits.begin(EARLY, None, Cause::Opened, &watched.node);
    watched.waits.observe(&failed, &watched.node, &Limits { lifecycles_max: 2, ..watched.limits });
    assert!(breaks(watched.end()));
}
