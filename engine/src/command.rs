//! Commands to the driver's task.

use crate::observe::lifecycles::LifecyclesState;
use handfast_core::node::CallFailure;
use handfast_core::transport::{OperationId, Outcome, TransportError};
use handfast_core::wire::{Message, PlainMessage};
use handfast_core::{Incarnation, Lifecycle, NicPath, NodeName};
use handfast_transport_rdma::LimitReached;
use tokio::sync::{mpsc, oneshot};

/// Whether a peer is one of those that a command is about.
pub(crate) type Peers = Box<dyn Fn(&NodeName) -> bool + Send>;

pub(crate) enum Command {
    /// Requests a lane to this incarnation of `path`; `address` is its control address.
    Open { path: NicPath, incarnation: Incarnation, address: String },
    /// A peer called; the answer goes to `reply`.
    CallReceived { message: Message, reply: oneshot::Sender<Message> },
    /// A peer answered a call.
    CallAnswered(Message),
    /// A Mooncake node called; the answer goes to `reply`.
    PlainCallReceived { message: PlainMessage, reply: oneshot::Sender<PlainMessage> },
    /// A Mooncake node answered a call.
    PlainCallAnswered { lifecycle: Lifecycle, message: PlainMessage },
    /// A call failed.
    CallFailed { lifecycle: Lifecycle, failure: CallFailure },
    /// An operation ended.
    OperationDone { id: OperationId, outcome: Outcome },
    /// A lane broke, or is unresponsive.
    LaneFailed { lifecycle: Lifecycle, error: TransportError },
    /// Lists the lifecycles.
    ListLifecycles { reply: oneshot::Sender<LifecyclesState> },
    /// Writes the node's state to the recording.
    BeginSegment,
    /// A limit prevents a lane; `made` resolves when another lane is gone or none can be evicted.
    CapacityWanted { made: oneshot::Sender<()> },
    /// A limit prevented a lane to `peer`; this attempt fails.
    NoCapacity { peer: NicPath, error: TransportError, limit: LimitReached },
    /// Closes the lanes to some peers with their consent; new lanes may be requested at once.
    EndLanes { of: Peers },
    /// Closes the lane over one path of a peer with its consent, without replacement.
    EndLane { peer: NicPath },
    /// Shuts down the engine; `done` resolves when no lane is left.
    Shutdown { done: Option<oneshot::Sender<()>> },
}

/// Sender of commands to the driver. The queue itself is unbounded because its writers are bounded:
/// calls by `control_connections_max`, operations and lane edges by `lifecycles_max`, demands by
/// one per peer until the machine demands again, requests for lists by the `connections_max` of
/// each server.
#[derive(Clone)]
pub(crate) struct Commands(mpsc::UnboundedSender<Command>);

impl Commands {
    pub(crate) fn channel() -> (Self, mpsc::UnboundedReceiver<Command>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Sends a command. Returns false if the driver has exited.
    pub(crate) fn send(&self, command: Command) -> bool {
        self.0.send(command).is_ok()
    }

    /// Returns true if the driver has exited.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}
