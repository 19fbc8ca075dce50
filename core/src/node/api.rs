//! The types that cross the border of a [`Node`](super::Node).

use super::lane::StateKind;
use super::transitions::Trigger;
use crate::identity::{Incarnation, Lifecycle, NicPath, Pair};
use crate::time::Duration;
use crate::transport::{Operation, OperationId, Outcome, Side, TransportError};
use crate::wire::{Message, PlainMessage, Refusal, RefusalReason};
use alloc::borrow::Cow;
use alloc::string::ToString;
use serde::{Deserialize, Serialize};

/// Configuration of a node. All its randomness derives from `seed`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeConfig {
    /// Our NIC, and with it our name.
    pub path: NicPath,
    /// The incarnation: 128 random bits, drawn at the node's start.
    pub incarnation: Incarnation,
    /// Source of jitter.
    pub seed: u64,
    /// Limits.
    pub limits: Limits,
    /// Timeouts.
    pub timing: Timing,
}

/// The bounds of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Peers remembered.
    pub peers_max: usize,
    /// Lifecycles that exist at once, retiring ones included.
    pub lifecycles_max: usize,
    /// Unanswered calls that one lifecycle holds during an operation.
    pub answers_held_max: usize,
    /// Requests sent in one lifecycle before it ends.
    pub requests_max: u32,
    /// Ready messages sent in one lifecycle before it ends.
    pub readies_max: u32,
    /// Times one lifecycle is retired before it is reported as never to be gone.
    pub retires_max: u32,
    /// Quiesce messages sent in one lifecycle before it ends without the peer's consent.
    pub quiesces_max: u32,
    /// Lifecycles that may fail in a row before the demand is reported as failed.
    pub opens_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            peers_max: 65_536,
            lifecycles_max: 131_072,
            answers_held_max: 4,
            requests_max: 4,
            readies_max: 4,
            retires_max: 4,
            quiesces_max: 4,
            opens_max: 3,
        }
    }
}

/// The timeouts of a node (rule H8). Retries double up to six times and carry up to half of jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// First wait for a reply.
    pub request_retry: Duration,
    /// First wait for an acknowledgement.
    pub ready_retry: Duration,
    /// Longest time of an announced lifecycle without local demand before its echo: from its
    /// Create, and again from its first offer to a pair.
    pub half_open: Duration,
    /// Time limit of an operation of the transport.
    pub operation: Duration,
    /// First wait for the answer to a quiesce.
    pub quiesce_retry: Duration,
    /// Time for the posted work of a lane to end before the lane retires.
    pub drain: Duration,
    /// Time that a demand waits for capacity in the table of lifecycles.
    pub capacity_wait: Duration,
    /// First pause before reopening after a failed lifecycle.
    pub backoff: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            request_retry: Duration::from_millis(500),
            ready_retry: Duration::from_millis(500),
            half_open: Duration::from_millis(5_000),
            operation: Duration::from_millis(5_000),
            quiesce_retry: Duration::from_millis(500),
            drain: Duration::from_millis(5_000),
            capacity_wait: Duration::from_millis(5_000),
            backoff: Duration::from_millis(10),
        }
    }
}

/// Identifies an incoming call, so that its answer can be routed. Chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CallToken(pub u64);

/// Failures of an outgoing call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CallFailure {
    /// The address refuses connections.
    Refused,
    /// The name does not resolve, or there is no route.
    Unreachable,
    /// No answer in time.
    TimedOut,
    /// The connection ended before an answer, or the answer was not a handshake message.
    Broken,
    /// One side requires a key that the other did not prove.
    Unproven,
}

/// Inputs of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// The application wants a lane to this NIC of a peer.
    Open(NicPath),
    /// The application no longer wants one; what exists ends (rule H11).
    Close(NicPath),
    /// The application has no work for this NIC; its lane stays, and may be evicted.
    Release(NicPath),
    /// A peer called.
    CallReceived {
        /// Returned with the answer.
        token: CallToken,
        /// The message.
        message: Message,
    },
    /// A peer answered a call.
    CallAnswered(Message),
    /// A legacy node called (rule H13).
    PlainCallReceived {
        /// Returned with the answer.
        token: CallToken,
        /// The message.
        message: PlainMessage,
    },
    /// A legacy node answered a call (rule H13).
    PlainCallAnswered {
        /// The lifecycle that called.
        lifecycle: Lifecycle,
        /// The answer.
        message: PlainMessage,
    },
    /// A call failed; its effect is unknown.
    CallFailed {
        /// The lifecycle that called.
        lifecycle: Lifecycle,
        /// The failure.
        failure: CallFailure,
    },
    /// An operation ended.
    OperationDone {
        /// The operation.
        id: OperationId,
        /// The outcome.
        outcome: Outcome,
    },
    /// A published lane saw its first error.
    LaneFailed {
        /// The lane.
        lifecycle: Lifecycle,
        /// The error.
        error: TransportError,
    },
}

/// Outputs of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// Call the peer that `message.to` names.
    Call(Message),
    /// Answer a call.
    Answer {
        /// The call.
        token: CallToken,
        /// The answer.
        message: Message,
    },
    /// Answer a call of a legacy node.
    PlainAnswer {
        /// The call.
        token: CallToken,
        /// The answer.
        message: PlainMessage,
    },
    /// Perform a queue-pair operation. Operations of one lifecycle are performed in order.
    Operate(Operation),
    /// The lane is usable.
    Publish {
        /// Our pair.
        local: Pair,
        /// The peer's.
        remote: Pair,
        /// The peer's NIC.
        peer: NicPath,
    },
    /// The lane must not be posted to any more. What is posted goes on if a drain is asked for next.
    Revoke(Lifecycle),
    /// Something the application may want to know.
    Event(Event),
}

/// Causes of a failed attempt or demand.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error, Serialize, Deserialize,
)]
pub enum Failure {
    /// The peer could not be called.
    #[error("the peer cannot be called: {0:?}")]
    Call(CallFailure),
    /// The peer refused.
    #[error("the peer refused ({:?}): {}", .0.reason, .0.detail)]
    Refused(Refusal),
    /// Our transport failed.
    #[error("{0}")]
    Transport(TransportError),
    /// The peer did not answer in the bounded number of attempts.
    #[error("the peer did not answer")]
    Silent,
    /// No peer echoed an announced lifecycle in time.
    #[error("the announced queue pairs were not echoed in time")]
    HalfOpen,
    /// Our transport did not finish an operation in time.
    #[error("a queue-pair operation did not finish in time")]
    OperationOverdue,
    /// A newer lifecycle or incarnation of the peer took its place.
    #[error("the peer opened anew")]
    Superseded,
    /// The application closed it.
    #[error("closed by the application")]
    Closed,
    /// It was idle and was evicted.
    #[error("it was idle and made way")]
    Evicted,
    /// The peer asked for it to be retired.
    #[error("the peer retired the lane")]
    Quiesced,
    /// Posted work did not end in time.
    #[error("what was posted did not end in time")]
    DrainOverdue,
    /// A local bound is reached.
    #[error("the limit '{0}' is reached")]
    Limit(Cow<'static, str>),
}

impl Failure {
    /// The failure as a transport would have seen it: that of the handshake where it saw none.
    pub fn to_transport_error(&self) -> TransportError {
        let side = match self {
            Self::Transport(error) => return error.clone(),
            Self::OperationOverdue
            | Self::DrainOverdue
            | Self::Closed
            | Self::Evicted
            | Self::Limit(_) => Side::Local,
            Self::Refused(refusal) if refusal.reason == RefusalReason::Encryption => {
                Side::Configuration
            }
            _ => Side::Peer,
        };
        TransportError { side, call: "handshake".into(), code: 0, detail: self.to_string() }
    }
}

/// Observations for the application.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Event {
    /// A demand could not be met; it is dropped.
    OpenFailed {
        /// The peer.
        peer: NicPath,
        /// The first cause.
        failure: Failure,
    },
    /// A lifecycle ended.
    Ended {
        /// The peer.
        peer: NicPath,
        /// The lifecycle.
        lifecycle: Lifecycle,
        /// The cause.
        failure: Failure,
    },
    /// A new incarnation of the peer has proven that it is alive (rule H5).
    PeerRestarted {
        /// The peer.
        peer: NicPath,
        /// The incarnation considered live until now.
        old: Incarnation,
        /// The incarnation proven live.
        new: Incarnation,
    },
    /// Queue pairs could not be retired in the bounded number of attempts. They may still touch
    /// memory, so no further lane to that peer is connected (rule H6).
    RetireFailed {
        /// The peer.
        peer: NicPath,
        /// The lifecycle.
        lifecycle: Lifecycle,
        /// The last error.
        error: TransportError,
    },
    /// Our transport has not finished a retire in time. It is waited for, without a bound: nothing
    /// else is safe (rule H6).
    RetireOverdue {
        /// The peer.
        peer: NicPath,
        /// The lifecycle.
        lifecycle: Lifecycle,
    },
    /// A lane was to be retired with the peer's consent and none came in the bounded number of
    /// attempts; it is retired without. Work of the peer's may be cut off (rule H11).
    RetireForced {
        /// The peer.
        peer: NicPath,
        /// The lifecycle.
        lifecycle: Lifecycle,
    },
    /// An idle peer was evicted from the table of peers.
    PeerForgotten {
        /// The peer.
        peer: NicPath,
    },
    /// A lifecycle changed its state in a way that `TRANSITIONS` does not declare: a bug in the
    /// node.
    Undeclared {
        /// The lifecycle.
        lifecycle: Lifecycle,
        /// Its state before.
        from: Option<StateKind>,
        /// The trigger.
        trigger: Trigger,
    },
    /// Two incarnations of one name have both proven life (rule H5).
    NameConflict {
        /// The peer.
        peer: NicPath,
        /// The one that holds the name here.
        live: Incarnation,
        /// The other.
        other: Incarnation,
    },
}

/// Counters since the start; left out of fingerprints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Messages ignored because they concern no current pair (rule H4).
    pub ignored: u64,
    /// Calls refused.
    pub refused: u64,
    /// Calls refused on arrival; the others were taken first and refused when their lifecycle ended.
    pub rejected: u64,
    /// Lanes published.
    pub published: u64,
    /// Lifecycles ended.
    pub ended: u64,
    /// State changes that no row of `TRANSITIONS` declares: bugs in the node.
    pub undeclared: u64,
    /// One bit per row of `TRANSITIONS` that was taken.
    #[serde(with = "crate::identity::hex")]
    pub transitions: u128,
}

/// The kinds of timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TimerKind {
    /// A transport operation is overdue.
    Operation,
    /// A reply is overdue.
    RequestRetry,
    /// An announced lifecycle was not echoed.
    HalfOpen,
    /// An acknowledgement is overdue.
    ReadyRetry,
    /// The pause before reopening is over.
    Backoff,
    /// The pause before retiring once more is over.
    RetireRetry,
    /// The posted work of a retiring lane is overdue.
    Drain,
    /// The answer to a quiesce is overdue.
    QuiesceRetry,
    /// No capacity for a lifecycle was made in time.
    Capacity,
}

/// Identifies one armed timer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimerId {
    /// A lifecycle's.
    Lifecycle(Lifecycle),
    /// A peer's: backoff, or a wait for room.
    Peer(NicPath),
}
