//! Lanes that end with the keys or certificates of their peers, or for a fence.

use crate::command::Peers;
use handfast_core::node::Input;
use handfast_core::{Instant, Lifecycle, NicPath};
use handfast_trace::Recorded;
use std::collections::BTreeMap;

/// The users of lanes.
pub(super) struct Users<'a> {
    /// Whether a lane was in use at any time.
    pub(super) has_been_used: &'a dyn Fn(Lifecycle) -> bool,
    /// Whether work, a fence or a caller of `warm` waits for a lane over a path.
    pub(super) is_awaited: &'a dyn Fn(&NicPath) -> bool,
}

/// Ends every lane to some nodes, with their consent.
///
/// The close releases the demand for a lane that is not up yet, and nobody who waits for it learns of that, so
/// it is demanded again. A lane in use is not: its work demands another once it has ended.
pub(super) fn end_lanes(node: &mut Recorded, now: Instant, of: &Peers, users: &Users<'_>) {
    let mut paths: BTreeMap<NicPath, bool> = BTreeMap::new();
    for (lane, _, path, _) in node.lifecycles().filter(|(_, _, path, _)| of(&path.node)) {
        *paths.entry(path.clone()).or_default() |= (users.has_been_used)(lane);
    }
    for (path, has_been_used) in paths {
        // The demand for a lane in use outlasts its work.
        let is_awaited = || !has_been_used || (users.is_awaited)(&path);
        let is_demanded_again = node.awaits_lane(&path) && is_awaited();
        node.handle_input(now, Input::Close(path.clone()));
        if is_demanded_again {
            node.handle_input(now, Input::Open(path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_core::node::{CallToken, Limits, Node, NodeConfig, StateKind, Timing};
    use handfast_core::transport::{OperationKind, Outcome, Side, TransportError};
    use handfast_core::wire::{Body, Message, Op};
    use handfast_core::{Incarnation, Output, Pair};

    /// A lane that is being opened ends, and its demand opens another, whether work waits for it or a caller.
    #[test]
    fn demand_for_a_lane_that_is_opened_is_kept() {
        let mut story = Story::open();
        assert_eq!(story.end_lanes(false, false), [StateKind::Retiring, StateKind::Creating]);
    }

    /// A lane that failed is retired while its demand pauses: the end of it keeps the demand.
    #[test]
    fn demand_that_pauses_is_kept() {
        let mut story = Story::open();
        let error = TransportError::new(Side::Local, "create", "it fails");
        story.operate(OperationKind::Create, Outcome::Failed(error));
        assert_eq!(story.end_lanes(false, false), [StateKind::Retiring, StateKind::Creating]);
    }

    /// A lane in use ends, and another one is demanded by its work alone.
    #[test]
    fn lane_in_use_is_not_demanded_again() {
        let mut story = Story::open();
        story.establish();
        assert_eq!(story.end_lanes(true, true), [StateKind::Draining]);
        assert!(!story.node.awaits_lane(&peer()));
    }

    /// A lane that ends for the peer has the demand from before its use. Nobody needs another, as a lane over
    /// TCP while the devices work, unless somebody waits for one over its path.
    #[test]
    fn lane_that_the_peer_ends_is_demanded_for_waiters_alone() {
        for is_awaited in [false, true] {
            let mut story = Story::open();
            let reply = story.establish();
            let call = Message { op: Op::Quiesce, body: Body::default(), ..reply };
            story.tell(Input::CallReceived { token: CallToken(1), message: call });
            assert_eq!(story.end_lanes(true, is_awaited), [StateKind::Draining]);
            assert_eq!(story.node.awaits_lane(&peer()), is_awaited);
        }
    }

    /// Lanes to other nodes stay.
    #[test]
    fn lanes_to_other_nodes_stay() {
        let mut story = Story::open();
        let nobody: Peers = Box::new(|_| false);
        let users = Users { has_been_used: &|_| false, is_awaited: &|_| true };
        end_lanes(&mut story.node, Instant(0), &nobody, &users);
        assert_eq!(story.states(), [StateKind::Creating]);
    }

    struct Story {
        node: Recorded,
    }

    impl Story {
        /// A node that opens a lane.
        fn open() -> Self {
            let node = Node::new(NodeConfig {
                path: NicPath::parse("a:1@nic").unwrap(),
                incarnation: Incarnation(1),
                seed: 7,
                limits: Limits::default(),
                timing: Timing::default(),
            });
            let mut story = Self { node: Recorded::new(node, None) };
            story.tell(Input::Open(peer()));
            story
        }

        fn tell(&mut self, input: Input) {
            self.node.handle_input(Instant(0), input);
        }

        /// Ends the operation of a kind that is under way.
        fn operate(&mut self, kind: OperationKind, outcome: Outcome) {
            while let Some(output) = self.node.poll_output() {
                if let Output::Operate(operation) = output
                    && operation.id().kind == kind
                {
                    return self.tell(Input::OperationDone { id: operation.id(), outcome });
                }
            }
            panic!("no {kind:?} is under way");
        }

        /// Takes the lane into use; returns the reply of the peer.
        fn establish(&mut self) -> Message {
            self.operate(OperationKind::Create, Outcome::Created(Body::default()));
            let own = self.node.lifecycles().next().unwrap().0;
            let pair = |incarnation, lifecycle| Pair { incarnation, lifecycle };
            let reply = Message {
                op: Op::Reply,
                from: peer(),
                to: NicPath::parse("a:1@nic").unwrap(),
                sender: pair(Incarnation(2), Lifecycle(1)),
                echo: Some(pair(Incarnation(1), own)),
                body: Body::default(),
                refusal: None,
            };
            self.tell(Input::CallAnswered(reply.clone()));
            self.operate(OperationKind::Connect, Outcome::Connected);
            self.tell(Input::CallAnswered(Message { op: Op::Ack, ..reply.clone() }));
            assert_eq!(self.states(), [StateKind::Established]);
            reply
        }

        /// Ends the lanes to the peer; returns the states of what is left.
        fn end_lanes(&mut self, has_been_used: bool, is_awaited: bool) -> Vec<StateKind> {
            let all: Peers = Box::new(|_| true);
            let users = Users { has_been_used: &|_| has_been_used, is_awaited: &|_| is_awaited };
            end_lanes(&mut self.node, Instant(0), &all, &users);
            self.states()
        }

        fn states(&self) -> Vec<StateKind> {
            self.node.lifecycles().map(|(_, state, ..)| state).collect()
        }
    }

    fn peer() -> NicPath {
        NicPath::parse("b:1@nic").unwrap()
    }
}
