//! The states of a lifecycle and every way between them, as data. The machine looks each change of
//! state up here; `docs/transitions.md` is this table, drawn.

use super::api::Failure;
use super::lane::StateKind;
use serde::{Deserialize, Serialize};

/// Triggers of a state change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Trigger {
    /// A demand or a request needs queue pairs.
    Raised,
    /// BringUp is done.
    BroughtUp,
    /// A peer has echoed it, in a reply, a ready or a second request.
    Echoed,
    /// No earlier lane to the peer is left.
    Fenced,
    /// Wire is done.
    Wired,
    /// The peer has said that it has wired.
    PeerWired,
    /// Our transport failed, or the lane did.
    Failed,
    /// The peer refused.
    Refused,
    /// The bounded number of attempts brought no answer.
    Silent,
    /// No peer echoed it in time.
    HalfOpen,
    /// A local operation is overdue.
    Overdue,
    /// A newer lifecycle or incarnation took its place.
    Superseded,
    /// The application closed it.
    Closed,
    /// It was idle and room was needed.
    Evicted,
    /// The peer asked for it to be retired.
    Quiesced,
    /// A node without our key has listed its queue pairs.
    Listed,
    /// Bytes flow to a node without our key.
    Proven,
    /// Posted local work has ended.
    Drained,
    /// The peer has nothing outstanding on it either.
    Agreed,
    /// Retire is done.
    Retired,
    /// Retire failed and is tried once more.
    RetireAgain,
}

/// One way from a state to a state; `None` is a lifecycle that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transition {
    /// Before.
    pub from: Option<StateKind>,
    /// The trigger.
    pub trigger: Trigger,
    /// After.
    pub to: Option<StateKind>,
    /// The rule of `docs/handshake.md` that asks for it.
    pub rule: &'static str,
}

const fn row(
    from: Option<StateKind>,
    trigger: Trigger,
    to: Option<StateKind>,
    rule: &'static str,
) -> Transition {
    Transition { from, trigger, to, rule }
}

const RAISING: Option<StateKind> = Some(StateKind::Raising);
const ANNOUNCED: Option<StateKind> = Some(StateKind::Announced);
const FENCING: Option<StateKind> = Some(StateKind::Fencing);
const WIRING: Option<StateKind> = Some(StateKind::Wiring);
const WIRED: Option<StateKind> = Some(StateKind::Wired);
const ESTABLISHED: Option<StateKind> = Some(StateKind::Established);
const PROVING: Option<StateKind> = Some(StateKind::Proving);
const WEAK: Option<StateKind> = Some(StateKind::Weak);
const DRAINING: Option<StateKind> = Some(StateKind::Draining);
const QUIESCING: Option<StateKind> = Some(StateKind::Quiescing);
const RETIRING: Option<StateKind> = Some(StateKind::Retiring);

/// Every declared transition. At most 128, one per bit of `Counters::transitions`.
pub const TRANSITIONS: &[Transition] = &[
    row(None, Trigger::Raised, RAISING, "H2"),
    row(RAISING, Trigger::BroughtUp, ANNOUNCED, "H2"),
    row(RAISING, Trigger::Failed, RETIRING, "H9"),
    row(RAISING, Trigger::Overdue, RETIRING, "H8"),
    row(RAISING, Trigger::Closed, RETIRING, "H11"),
    row(ANNOUNCED, Trigger::Echoed, FENCING, "H3"),
    row(ANNOUNCED, Trigger::Listed, FENCING, "H13"),
    row(ANNOUNCED, Trigger::Failed, RETIRING, "H9"),
    row(ANNOUNCED, Trigger::Refused, RETIRING, "H10"),
    row(ANNOUNCED, Trigger::Silent, RETIRING, "H8"),
    row(ANNOUNCED, Trigger::HalfOpen, RETIRING, "H8"),
    row(ANNOUNCED, Trigger::Superseded, RETIRING, "H5"),
    row(ANNOUNCED, Trigger::Closed, RETIRING, "H11"),
    row(ANNOUNCED, Trigger::Quiesced, RETIRING, "H11"),
    row(FENCING, Trigger::Fenced, WIRING, "H6"),
    row(FENCING, Trigger::Failed, RETIRING, "H9"),
    row(FENCING, Trigger::Refused, RETIRING, "H10"),
    row(FENCING, Trigger::Overdue, RETIRING, "H8"),
    row(FENCING, Trigger::Superseded, RETIRING, "H5"),
    row(FENCING, Trigger::Closed, RETIRING, "H11"),
    row(FENCING, Trigger::Quiesced, RETIRING, "H11"),
    row(WIRING, Trigger::Wired, WIRED, "H2"),
    row(WIRING, Trigger::Wired, ESTABLISHED, "H3"),
    row(WIRING, Trigger::Wired, PROVING, "H13"),
    row(WIRING, Trigger::Failed, RETIRING, "H10"),
    row(WIRING, Trigger::Refused, RETIRING, "H10"),
    row(WIRING, Trigger::Overdue, RETIRING, "H8"),
    row(WIRING, Trigger::Superseded, RETIRING, "H5"),
    row(WIRING, Trigger::Closed, RETIRING, "H11"),
    row(WIRING, Trigger::Quiesced, RETIRING, "H11"),
    row(WIRED, Trigger::PeerWired, ESTABLISHED, "H3"),
    row(WIRED, Trigger::PeerWired, PROVING, "H13"),
    row(WIRED, Trigger::HalfOpen, RETIRING, "H13"),
    row(WIRED, Trigger::Failed, RETIRING, "H9"),
    row(WIRED, Trigger::Refused, RETIRING, "H10"),
    row(WIRED, Trigger::Silent, RETIRING, "H8"),
    row(WIRED, Trigger::Superseded, RETIRING, "H5"),
    row(WIRED, Trigger::Closed, QUIESCING, "H11"),
    row(WIRED, Trigger::Closed, RETIRING, "H13"),
    row(WIRED, Trigger::Quiesced, RETIRING, "H11"),
    row(ESTABLISHED, Trigger::Failed, RETIRING, "H12"),
    row(ESTABLISHED, Trigger::Superseded, RETIRING, "H5"),
    row(ESTABLISHED, Trigger::Closed, DRAINING, "H11"),
    row(ESTABLISHED, Trigger::Evicted, DRAINING, "H11"),
    row(ESTABLISHED, Trigger::Quiesced, DRAINING, "H11"),
    row(PROVING, Trigger::Proven, WEAK, "H13"),
    row(PROVING, Trigger::Failed, RETIRING, "H13"),
    row(PROVING, Trigger::Overdue, RETIRING, "H8"),
    row(PROVING, Trigger::Superseded, RETIRING, "H13"),
    row(PROVING, Trigger::Closed, RETIRING, "H13"),
    row(WEAK, Trigger::Failed, RETIRING, "H12"),
    row(WEAK, Trigger::Superseded, RETIRING, "H13"),
    row(WEAK, Trigger::Closed, DRAINING, "H13"),
    row(WEAK, Trigger::Evicted, DRAINING, "H13"),
    row(DRAINING, Trigger::Closed, RETIRING, "H13"),
    row(DRAINING, Trigger::Evicted, RETIRING, "H13"),
    row(DRAINING, Trigger::Drained, QUIESCING, "H11"),
    row(DRAINING, Trigger::Agreed, RETIRING, "H11"),
    row(DRAINING, Trigger::Overdue, RETIRING, "H8"),
    row(DRAINING, Trigger::Failed, RETIRING, "H12"),
    row(DRAINING, Trigger::Superseded, RETIRING, "H5"),
    row(QUIESCING, Trigger::Agreed, RETIRING, "H11"),
    row(QUIESCING, Trigger::Silent, RETIRING, "H8"),
    row(QUIESCING, Trigger::Failed, RETIRING, "H12"),
    row(QUIESCING, Trigger::Superseded, RETIRING, "H5"),
    row(RETIRING, Trigger::RetireAgain, RETIRING, "H6"),
    row(RETIRING, Trigger::Retired, None, "H6"),
];

const _: () = assert!(TRANSITIONS.len() <= 128);

impl Trigger {
    pub(super) fn of(failure: &Failure) -> Self {
        match failure {
            Failure::Call(_) | Failure::Silent => Self::Silent,
            Failure::Refused(_) => Self::Refused,
            Failure::Transport(_) | Failure::Limit(_) => Self::Failed,
            Failure::HalfOpen => Self::HalfOpen,
            Failure::OperationOverdue | Failure::DrainOverdue => Self::Overdue,
            Failure::Superseded => Self::Superseded,
            Failure::Closed => Self::Closed,
            Failure::Evicted => Self::Evicted,
            Failure::Quiesced => Self::Quiesced,
        }
    }
}
