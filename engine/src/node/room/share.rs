//! A peer's share of lanes: what one node may hold here, whatever NICs it says that it has.

use handfast_core::NicPath;
use handfast_core::node::{Node, StateKind};
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::{Body, Message, Op, Refusal, RefusalReason};
use handfast_core::{Lifecycle, Pair};
use handfast_transport_rdma::{LimitReached, NicLimit};

/// Lanes that one node may hold at once, those on their way up or down included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) lanes_max: usize,
}

impl Share {
    /// Whether a lane over a path of a peer's may be begun, or is begun already. For a demand of ours
    /// (`is_ours`) lanes that end make room: we may have ended them for it.
    ///
    /// # Errors
    /// How many lanes the peer has.
    pub(crate) fn check(
        self,
        node: &Node,
        path: &NicPath,
        is_ours: bool,
    ) -> Result<(), LimitReached> {
        let ends = |state| {
            matches!(state, StateKind::Draining | StateKind::Quiescing | StateKind::Retiring)
        };
        let (mut held, mut begun) = (0, false);
        for (_, state, on) in node.lifecycles_of(&path.node) {
            held += usize::from(!is_ours || !ends(state));
            begun |= on == path && !ends(state);
        }
        if begun || held < self.lanes_max {
            return Ok(());
        }
        let (in_use, max) = (held as u64, self.lanes_max as u64);
        Err(LimitReached { limit: NicLimit::LanesOfPeer, in_use, max })
    }
}

/// How a request past the share is answered: the peer may come again when lanes of its are gone.
pub(crate) fn refusal(node: &Node, request: &Message, limit: LimitReached) -> Message {
    Message {
        op: Op::Refuse,
        from: request.from.seen_from(node.path()),
        to: request.from.clone(),
        sender: Pair { incarnation: node.incarnation(), lifecycle: Lifecycle(0) },
        echo: Some(request.sender),
        body: Body::default(),
        refusal: Some(Refusal { reason: RefusalReason::Busy, detail: words(limit) }),
    }
}

/// What a peer is told that asks past its share.
pub(crate) fn words(LimitReached { max, .. }: LimitReached) -> String {
    format!("the node has {max} lanes here, the limit lanes_per_peer_max")
}

/// How a demand of ours past the share fails.
pub(crate) fn failure(limit: LimitReached) -> TransportError {
    let LimitReached { in_use, max, .. } = limit;
    let detail = format!("{in_use} of {max} lanes of this peer are in use");
    TransportError { side: Side::Local, call: "open".into(), code: 0, detail }
}
