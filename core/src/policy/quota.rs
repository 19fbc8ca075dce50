//! The quota of lanes that one peer may hold, whichever NICs it names.

use crate::identity::{Lifecycle, NicPath, Pair};
use crate::node::{Node, StateKind};
use crate::transport::{Side, TransportError};
use crate::wire::{Body, Message, Op, Refusal, RefusalReason};
use alloc::format;
use alloc::string::String;

/// The side that asks for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuotaSide {
    /// This node. Lanes that are ending do not count: they may end to make room for this one.
    Local,
    /// The peer. Lanes that are ending count.
    Peer,
}

/// The most lanes that one peer may hold at once, those on their way up or down included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerQuota {
    lanes_max: usize,
}

/// A peer holds as many lanes as its quota allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("the node has {max} lanes here, the limit lanes_per_peer_max")]
pub struct QuotaExceeded {
    /// Lanes that count.
    pub in_use: usize,
    /// The bound.
    pub max: usize,
}

impl PeerQuota {
    /// A quota of so many lanes.
    pub fn new(lanes_max: usize) -> Self {
        Self { lanes_max }
    }

    /// Whether a lane over a path of a peer's may begin. A lane that has begun already may go on.
    ///
    /// # Errors
    /// The number of lanes that the peer holds.
    pub fn check(self, node: &Node, path: &NicPath, side: QuotaSide) -> Result<(), QuotaExceeded> {
        let (mut in_use, mut begun) = (0, false);
        for (_, state, on) in node.lifecycles_of(&path.node) {
            let ending = StateKind::is_ending(state);
            in_use += usize::from(side == QuotaSide::Peer || !ending);
            begun |= on == path && !ending;
        }
        if begun || in_use < self.lanes_max {
            return Ok(());
        }
        Err(QuotaExceeded { in_use, max: self.lanes_max })
    }
}

impl QuotaExceeded {
    /// The answer to a request past the quota: busy, so that the peer asks again.
    pub fn refusal(self, node: &Node, request: &Message) -> Message {
        let detail = format!("{self}");
        Message {
            op: Op::Refuse,
            from: request.from.seen_from(node.path()),
            to: request.from.clone(),
            sender: Pair { incarnation: node.incarnation(), lifecycle: Lifecycle(0) },
            echo: Some(request.sender),
            body: Body::default(),
            refusal: Some(Refusal { reason: RefusalReason::Busy, detail }),
        }
    }

    /// The failure of a local demand past the quota.
    pub fn failure(self) -> TransportError {
        let Self { in_use, max } = self;
        let detail: String = format!("{in_use} of {max} lanes of this peer are in use");
        TransportError { side: Side::Local, call: "open".into(), code: 0, detail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Incarnation;
    use crate::node::{Input, Limits, NodeConfig, Timing};
    use crate::time::Instant;

    fn path(nic: &str) -> NicPath {
        NicPath::parse(&format!("b:1@{nic}")).unwrap()
    }

    /// A node with a lane on its way up to each of two NICs of one peer, and one of them ending.
    fn node() -> Node {
        let mut node = Node::new(NodeConfig {
            path: NicPath::parse("a:1@nic").unwrap(),
            incarnation: Incarnation(1),
            seed: 7,
            limits: Limits::default(),
            timing: Timing::default(),
        });
        for input in [Input::Open(path("x")), Input::Open(path("y")), Input::Close(path("y"))] {
            node.handle_input(Instant(0), input);
        }
        node
    }

    #[test]
    fn ending_lanes_count_for_the_peer_alone() {
        let (mut node, quota) = (node(), PeerQuota::new(2));
        assert_eq!(quota.check(&node, &path("z"), QuotaSide::Local), Ok(()));
        let exceeded = QuotaExceeded { in_use: 2, max: 2 };
        assert_eq!(quota.check(&node, &path("z"), QuotaSide::Peer), Err(exceeded));
        assert_eq!(exceeded.failure().detail, "2 of 2 lanes of this peer are in use");
        node.handle_input(Instant(0), Input::Open(path("v")));
        assert_eq!(quota.check(&node, &path("z"), QuotaSide::Local), Err(exceeded));
    }

    #[test]
    fn lane_that_has_begun_goes_on() {
        let (node, quota) = (node(), PeerQuota::new(1));
        for side in [QuotaSide::Local, QuotaSide::Peer] {
            assert_eq!(quota.check(&node, &path("x"), side), Ok(()));
            assert!(quota.check(&node, &path("y"), side).is_err(), "an ending lane has not");
        }
    }
}
