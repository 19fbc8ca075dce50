//! The states of a lifecycle and its transitions, as data. The machine looks each change of
//! state up here; `docs/transitions.md` is this table, drawn.

use super::api::Failure;
use super::lane::StateKind;
use serde::{Deserialize, Serialize};

/// Triggers of a state change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Trigger {
    /// A demand or a request needs queue pairs.
    CreateStarted,
    /// Create is done.
    Created,
    /// A peer has echoed it, in a reply, a ready or a second request.
    Echoed,
    /// No earlier lane to the peer is left.
    Fenced,
    /// Connect is done.
    Connected,
    /// The peer has said that it has connected.
    PeerConnected,
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
    /// It was idle and is evicted.
    Evicted,
    /// The peer asked for it to be retired.
    Quiesced,
    /// A legacy node has listed its queue pairs.
    Listed,
    /// A probe of a legacy node was answered.
    Probed,
    /// Posted local work has ended.
    Drained,
    /// The peer has nothing outstanding on it either.
    Agreed,
    /// Retire is done.
    Retired,
    /// Retire failed and is tried once more.
    RetireAgain,
}

/// One transition; the state `None` is a lifecycle that does not exist.
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

const CREATING: Option<StateKind> = Some(StateKind::Creating);
const ANNOUNCED: Option<StateKind> = Some(StateKind::Announced);
const FENCING: Option<StateKind> = Some(StateKind::Fencing);
const CONNECTING: Option<StateKind> = Some(StateKind::Connecting);
const CONNECTED: Option<StateKind> = Some(StateKind::Connected);
const ESTABLISHED: Option<StateKind> = Some(StateKind::Established);
const PROBING: Option<StateKind> = Some(StateKind::Probing);
const LEGACY: Option<StateKind> = Some(StateKind::Legacy);
const DRAINING: Option<StateKind> = Some(StateKind::Draining);
const QUIESCING: Option<StateKind> = Some(StateKind::Quiescing);
const RETIRING: Option<StateKind> = Some(StateKind::Retiring);

/// Every declared transition. At most 128, one per bit of `Counters::transitions`.
pub const TRANSITIONS: &[Transition] = &[
    row(None, Trigger::CreateStarted, CREATING, "H2"),
    row(CREATING, Trigger::Created, ANNOUNCED, "H2"),
    row(CREATING, Trigger::Failed, RETIRING, "H9"),
    row(CREATING, Trigger::Overdue, RETIRING, "H8"),
    row(CREATING, Trigger::Closed, RETIRING, "H11"),
    row(ANNOUNCED, Trigger::Echoed, FENCING, "H3"),
    row(ANNOUNCED, Trigger::Listed, FENCING, "H13"),
    row(ANNOUNCED, Trigger::Failed, RETIRING, "H9"),
    row(ANNOUNCED, Trigger::Refused, RETIRING, "H10"),
    row(ANNOUNCED, Trigger::Silent, RETIRING, "H8"),
    row(ANNOUNCED, Trigger::HalfOpen, RETIRING, "H8"),
    row(ANNOUNCED, Trigger::Superseded, RETIRING, "H5"),
    row(ANNOUNCED, Trigger::Closed, RETIRING, "H11"),
    row(ANNOUNCED, Trigger::Quiesced, RETIRING, "H11"),
    row(FENCING, Trigger::Fenced, CONNECTING, "H6"),
    row(FENCING, Trigger::Failed, RETIRING, "H9"),
    row(FENCING, Trigger::Refused, RETIRING, "H10"),
    row(FENCING, Trigger::Overdue, RETIRING, "H8"),
    row(FENCING, Trigger::Superseded, RETIRING, "H5"),
    row(FENCING, Trigger::Closed, RETIRING, "H11"),
    row(FENCING, Trigger::Quiesced, RETIRING, "H11"),
    row(CONNECTING, Trigger::Connected, CONNECTED, "H2"),
    row(CONNECTING, Trigger::Connected, ESTABLISHED, "H3"),
    row(CONNECTING, Trigger::Connected, PROBING, "H13"),
    row(CONNECTING, Trigger::Failed, RETIRING, "H10"),
    row(CONNECTING, Trigger::Refused, RETIRING, "H10"),
    row(CONNECTING, Trigger::Overdue, RETIRING, "H8"),
    row(CONNECTING, Trigger::Superseded, RETIRING, "H5"),
    row(CONNECTING, Trigger::Closed, RETIRING, "H11"),
    row(CONNECTING, Trigger::Quiesced, RETIRING, "H11"),
    row(CONNECTED, Trigger::PeerConnected, ESTABLISHED, "H3"),
    row(CONNECTED, Trigger::PeerConnected, PROBING, "H13"),
    row(CONNECTED, Trigger::HalfOpen, RETIRING, "H13"),
    row(CONNECTED, Trigger::Failed, RETIRING, "H9"),
    row(CONNECTED, Trigger::Refused, RETIRING, "H10"),
    row(CONNECTED, Trigger::Silent, RETIRING, "H8"),
    row(CONNECTED, Trigger::Superseded, RETIRING, "H5"),
    row(CONNECTED, Trigger::Closed, QUIESCING, "H11"),
    row(CONNECTED, Trigger::Closed, RETIRING, "H13"),
    row(CONNECTED, Trigger::Quiesced, RETIRING, "H11"),
    row(ESTABLISHED, Trigger::Failed, RETIRING, "H12"),
    row(ESTABLISHED, Trigger::Superseded, RETIRING, "H5"),
    row(ESTABLISHED, Trigger::Closed, DRAINING, "H11"),
    row(ESTABLISHED, Trigger::Evicted, DRAINING, "H11"),
    row(ESTABLISHED, Trigger::Quiesced, DRAINING, "H11"),
    row(PROBING, Trigger::Probed, LEGACY, "H13"),
    row(PROBING, Trigger::Failed, RETIRING, "H13"),
    row(PROBING, Trigger::Overdue, RETIRING, "H8"),
    row(PROBING, Trigger::Superseded, RETIRING, "H13"),
    row(PROBING, Trigger::Closed, RETIRING, "H13"),
    row(LEGACY, Trigger::Failed, RETIRING, "H12"),
    row(LEGACY, Trigger::Superseded, RETIRING, "H13"),
    row(LEGACY, Trigger::Closed, DRAINING, "H13"),
    row(LEGACY, Trigger::Evicted, DRAINING, "H13"),
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
