//! Two nodes with several NICs: a lane per rail, each an endpoint, all of one node.

use super::{Pair as Two, node, path};
use handfast_core::node::{CallToken, StateKind};
use handfast_core::wire::{Message, Op, RefusalReason};
use handfast_core::{Event, Incarnation, Input, Instant, NicPath, Output, Pair};

fn over(side: usize, theirs: &str, ours: &str) -> NicPath {
    NicPath::over_rail(&path(side).node, theirs, ours).unwrap()
}

/// Every lane of a side that is in use, by the path of the peer.
fn lanes(two: &Two, side: usize) -> Vec<String> {
    let lanes = two.nodes[side].lifecycles();
    let used = lanes.filter(|(_, state, ..)| *state == StateKind::Established);
    let mut paths: Vec<String> = used.map(|(_, _, peer, _)| peer.to_string()).collect();
    paths.sort();
    paths
}

/// A rail's path names both NICs, the peer's first.
#[test]
fn rail_path_names_both_nics() {
    let there = over(1, "rxe1", "rxe0");
    assert_eq!(there.to_string(), "b:2@rxe1~rxe0");
    assert_eq!(there.rail(), Some(("rxe1", "rxe0")));
    assert_eq!(there.seen_from(&path(0)).to_string(), "a:1@rxe0~rxe1");
    assert_eq!(path(1).rail(), None);
    assert_eq!(path(1).seen_from(&path(0)), path(0), "a plain path leads to the one NIC of each");
    assert!(NicPath::over_rail(&path(1).node, "rx~e", "rxe0").is_err());
    assert!(NicPath::over_rail(&path(1).node, "", "rxe0").is_err());
}

#[test]
fn both_open_every_rail_at_once_and_each_rail_has_one_lane() {
    let mut two = Two::new();
    for side in [0, 1] {
        for nic in ["rxe0", "rxe1"] {
            two.tell(side, Input::Open(over(1 - side, nic, nic)));
        }
    }
    two.settle();
    assert_eq!(lanes(&two, 0), ["b:2@rxe0~rxe0", "b:2@rxe1~rxe1"]);
    assert_eq!(lanes(&two, 1), ["a:1@rxe0~rxe0", "a:1@rxe1~rxe1"]);
}

#[test]
fn a_rail_that_fails_ends_alone_and_a_restart_ends_all_of_them() {
    let mut two = Two::new();
    let rails = [over(1, "rxe0", "rxe0"), over(1, "rxe0", "rxe1")];
    rails.iter().for_each(|rail| two.tell(0, Input::Open(rail.clone())));
    two.settle();
    two.tell(0, Input::Close(rails[0].clone()));
    two.settle();
    assert_eq!(lanes(&two, 0), ["b:2@rxe0~rxe1"]);
    two.tell(0, Input::Open(rails[0].clone()));
    two.settle();
    two.restart(1);
    two.tell(1, Input::Open(over(0, "rxe1", "rxe0")));
    two.settle();
    assert!(two.events[0].iter().any(|event| matches!(event, Event::PeerRestarted { .. })));
    let run = two.nodes[1].incarnation();
    let live = |(_, _, _, to): (_, _, _, Option<Pair>)| to.is_none_or(|to| to.incarnation == run);
    assert!(two.nodes[0].lifecycles().all(live), "nothing leads to the run before");
    assert_eq!(lanes(&two, 1).len(), lanes(&two, 0).len());
}

#[test]
fn a_call_that_names_another_rail_than_its_sender_is_refused() {
    let mut node = node(0, 1);
    let message = Message {
        op: Op::Request,
        from: over(1, "rxe1", "rxe0"),
        to: over(0, "rxe1", "rxe1"),
        sender: Pair { incarnation: Incarnation(2), lifecycle: handfast_core::Lifecycle(1) },
        echo: None,
        body: Default::default(),
        refusal: None,
    };
    node.handle_input(Instant(0), Input::CallReceived { token: CallToken(0), message });
    let Some(Output::Answer { message, .. }) = node.poll_output() else { panic!("no answer") };
    let refusal = message.refusal.unwrap();
    assert_eq!(refusal.reason, RefusalReason::Configuration);
    assert_eq!(refusal.detail, "this is a:1@rxe0~rxe1, not a:1@rxe1~rxe1");
    assert_eq!(message.from, over(0, "rxe0", "rxe1"));
}
