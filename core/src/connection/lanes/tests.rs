//! Tests of lanes at their limits, and of requests before a lane's connect.

use super::*;
use alloc::format;
use alloc::string::String;
use core::net::Ipv4Addr;

const LANE: Lifecycle = Lifecycle(7);

fn address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// A lane of one queue pair of the peer with this incarnation.
fn lane_of(incarnation: u128, lifecycle: u64) -> AnnouncedLane {
    let pair = Pair { incarnation: Incarnation(incarnation), lifecycle: Lifecycle(lifecycle) };
    let token = Token(incarnation + 100);
    let (asks, is_iwarp, partition) = (false, false, None);
    let announcement = Announcement { address: address(1), pair, token, asks, is_iwarp, partition };
    AnnouncedLane { announcement, queue_pairs: Vec::from([3]), rd_atomic: 1, byte: None }
}

/// A node of incarnation 20 with a lane to `peer`, and its announcement.
fn node(peer: &str) -> (LaneConnections, Announcement) {
    let mut node = LaneConnections::new(Incarnation(20));
    let own = node.announce(LANE, &[5], Some(peer), (address(2), Token(50))).unwrap();
    (node, own)
}

/// The request of a peer's queue pair for that of an announcement.
fn request(from: &AnnouncedLane, to: &Announcement) -> PrivateData {
    let from = from.announcement.queue_pair(0, from.queue_pairs[0]);
    PrivateData::new(&from, &to.queue_pair(0, 5), Content::Request)
}

/// The outputs, with each preparation done.
fn outputs(node: &mut LaneConnections) -> Vec<LaneOutput> {
    let mut outputs = Vec::new();
    while let Some(output) = node.poll_output() {
        if let LaneOutput::Prepare { lifecycle } = output {
            node.handle_prepared(lifecycle);
        }
        outputs.push(output);
    }
    outputs
}

fn accepts(outputs: &[LaneOutput]) -> bool {
    let is_accept =
        |it: &LaneOutput| matches!(it, LaneOutput::Connection(ConnectionOutput::Accept { .. }));
    outputs.iter().any(is_accept)
}

/// A request of the noted peer is accepted before the connect, which then changes nothing.
#[test]
fn noted_peer_is_accepted_before_the_connect() {
    let (mut node, own) = node("peer");
    let peer = lane_of(10, 1);
    node.handle_announcement(Some("peer"), peer.clone());
    node.handle_request(RequestId(1), &request(&peer, &own).encode());
    assert!(accepts(&outputs(&mut node)));
    assert_eq!(node.connect(LANE, &peer), Ok(()));
    assert_eq!(outputs(&mut node), []);
    node.handle_announcement(Some("peer"), peer.clone());
    assert!(node.noted.is_empty(), "a repeated request of the bound pair displaces nothing");
    assert_eq!(node.connect(LANE, &lane_of(10, 2)), Err(LaneConnectError::Bound));
    assert_eq!(node.progress(LANE), Ok(LaneProgress::Awaiting));
}

/// A request of another peer, of another pair, without the token, or of a peer that is not the one to dial
/// waits for the connect or is rejected, and binds the lane to nobody.
#[test]
fn request_of_nobody_noted_binds_no_lane() {
    let (peer, later, higher) = (lane_of(10, 1), lane_of(10, 2), lane_of(30, 1));
    let cases = [("stranger", &peer, &peer), ("peer", &later, &peer), ("peer", &higher, &higher)];
    for (name, noted, dials) in cases {
        let (mut node, own) = node("peer");
        node.handle_announcement(Some(name), noted.clone());
        node.handle_request(RequestId(1), &request(dials, &own).encode());
        assert_eq!(outputs(&mut node), [], "{name}: parked");
        assert_eq!(node.bound_to(LANE), None);
    }
    let (mut node, own) = node("peer");
    node.handle_announcement(Some("peer"), peer.clone());
    let forged = Announcement { token: Token(51), ..own };
    let before = node.clone();
    node.handle_request(RequestId(1), &request(&peer, &forged).encode());
    assert_eq!(outputs(&mut node).len(), 1, "rejected");
    assert_eq!(node, before);
}

/// The failure of a lane that was accepted before its connect is the lane's: no connect returns it. Once
/// the connect has begun, it returns the failure.
#[test]
fn early_lane_that_fails_says_so() {
    let id = ConnectionId { lifecycle: LANE, place: 0 };
    let accepted = || {
        let (mut node, own) = node("peer");
        let peer = lane_of(10, 1);
        node.handle_announcement(Some("peer"), peer.clone());
        node.handle_request(RequestId(1), &request(&peer, &own).encode());
        assert!(accepts(&outputs(&mut node)));
        (node, peer)
    };
    let says = |node: &mut LaneConnections| outputs(node).contains(&LaneOutput::LaneFailed { id });

    let (mut refused, _) = accepted();
    refused.handle_failed(id, Cause::Local);
    assert!(says(&mut refused), "the accept failed");

    let (mut ended, _) = accepted();
    ended.handle_established(id, &[]);
    ended.handle_disconnected(id);
    assert!(says(&mut ended), "the peer disconnected");

    let (mut bound, peer) = accepted();
    assert_eq!(bound.connect(LANE, &peer), Ok(()));
    bound.handle_failed(id, Cause::Local);
    assert!(!says(&mut bound), "the connect returns it");
    assert_eq!(bound.progress(LANE), Err(Cause::Local));
}

/// A lane that cannot be prepared accepts nobody, and says why.
#[test]
fn unprepared_lane_fails_and_rejects_the_request() {
    let (mut node, own) = node("peer");
    let peer = lane_of(10, 1);
    node.handle_announcement(Some("peer"), peer.clone());
    node.handle_request(RequestId(1), &request(&peer, &own).encode());
    assert_eq!(node.poll_output(), Some(LaneOutput::Prepare { lifecycle: LANE }));
    node.handle_unprepared(LANE);
    let rest = outputs(&mut node);
    let is_reject =
        |it: &LaneOutput| matches!(it, LaneOutput::Connection(ConnectionOutput::Reject { .. }));
    assert!(!accepts(&rest) && rest.iter().any(is_reject), "{rest:?}");
    let id = ConnectionId { lifecycle: LANE, place: 0 };
    assert!(rest.contains(&LaneOutput::LaneFailed { id }), "{rest:?}");
    assert_eq!(node.progress(LANE), Err(Cause::Local));
}

/// A lane that ends before its connect rejects the request of a noted peer, and stays unbound.
#[test]
fn ending_lane_rejects_an_early_request() {
    let (mut node, own) = node("peer");
    let peer = lane_of(10, 1);
    node.handle_announcement(Some("peer"), peer.clone());
    node.retire(LANE);
    outputs(&mut node);
    node.handle_request(RequestId(1), &request(&peer, &own).encode());
    let data = request(&peer, &own).refused(Incarnation(20), crate::connection::Refusal::NotMeant);
    let reject = ConnectionOutput::Reject { request: RequestId(1), data: Some(data) };
    assert_eq!(outputs(&mut node), [LaneOutput::Connection(reject)]);
    assert_eq!(node.bound_to(LANE), None);
}

/// Announcements of a peer take the place of its own oldest, and at the limit of peers that of one without a lane.
#[test]
fn announcements_displace_none_that_a_lane_waits_for() {
    let (mut node, own) = node("peer");
    for lifecycle in 0..=ANNOUNCEMENTS_PER_PEER_MAX as u64 {
        node.handle_announcement(Some("peer"), lane_of(10, lifecycle));
    }
    assert_eq!(node.noted[0].1.len(), ANNOUNCEMENTS_PER_PEER_MAX);
    node.handle_announcement(Some("peer"), lane_of(10, 1));
    assert_eq!(node.noted[0].1.len(), ANNOUNCEMENTS_PER_PEER_MAX, "repeated, not added");
    node.handle_announcement(Some("peer"), lane_of(10, ANNOUNCEMENTS_PER_PEER_MAX as u64));
    let name = |number: usize| -> String { format!("other {number}") };
    for number in 0..ANNOUNCING_PEERS_MAX + 1 {
        node.handle_announcement(Some(&name(number)), lane_of(11, 1));
    }
    assert_eq!(node.noted.len(), ANNOUNCING_PEERS_MAX);
    let oldest = &node.noted[1].0;
    assert_eq!(oldest.as_deref(), Some(&*name(2)), "two have given way");
    let last = lane_of(10, ANNOUNCEMENTS_PER_PEER_MAX as u64);
    let first = request(&lane_of(10, 0), &own);
    node.handle_request(RequestId(1), &first.encode());
    assert_eq!(outputs(&mut node), [], "the oldest of the peer is forgotten");
    node.handle_request(RequestId(2), &request(&last, &own).encode());
    assert!(accepts(&outputs(&mut node)), "in the place of the one that waits");
    assert_eq!(node.bound_to(LANE), Some(&last));
    let mut full = LaneConnections::new(Incarnation(20)).with_peers_max(0);
    full.handle_announcement(Some("peer"), lane_of(10, 1));
    assert!(full.noted.is_empty(), "without a peer that gives way nothing is noted");
}

/// Dials a peer of the higher incarnation once, which ends in this way, and returns whether the
/// announcement asked the peer to dial.
fn dial(
    node: &mut LaneConnections,
    peer: &str,
    lifecycle: u64,
    end: fn(&mut LaneConnections, ConnectionId),
) -> bool {
    let lifecycle = Lifecycle(lifecycle);
    let own = node.announce(lifecycle, &[5], Some(peer), (address(2), Token(50))).unwrap();
    node.connect(lifecycle, &lane_of(30, lifecycle.0)).unwrap();
    outputs(node);
    end(node, ConnectionId { lifecycle, place: 0 });
    node.handle_drained(lifecycle);
    outputs(node);
    own.asks
}

fn unreached(node: &mut LaneConnections, id: ConnectionId) {
    node.handle_failed(id, Cause::Unreachable);
}

/// A network that drops the packets of one direction answers no dial: the peer is asked to dial then too. A
/// side that awaits the peer's dial asks for nothing.
#[test]
fn peer_of_a_dial_that_timed_out_is_asked() {
    let mut node = LaneConnections::new(Incarnation(20));
    assert!(!dial(&mut node, "peer", 0, |node, id| node.handle_timeout(id.lifecycle)));
    assert!(dial(&mut node, "peer", 1, |node, id| node.handle_timeout(id.lifecycle)));
    assert!(!dial(&mut node, "peer", 2, |node, id| node.handle_timeout(id.lifecycle)));
}

/// Queue pairs of iWARP are joined with no others, whichever side is which.
#[test]
fn kinds_of_both_sides_are_compared() {
    for is_iwarp in [false, true] {
        let mut node = LaneConnections::new(Incarnation(20)).on_iwarp(is_iwarp);
        let own = node.announce(LANE, &[5], Some("peer"), (address(2), Token(50))).unwrap();
        assert_eq!(own.is_iwarp, is_iwarp);
        let mut peer = lane_of(10, 1);
        peer.announcement.is_iwarp = !is_iwarp;
        node.handle_announcement(Some("peer"), peer.clone());
        assert!(node.noted.is_empty(), "no request of it is accepted");
        assert_eq!(node.connect(LANE, &peer), Err(LaneConnectError::Kinds));
        assert_eq!(outputs(&mut node), []);
        peer.announcement.is_iwarp = is_iwarp;
        assert_eq!(node.connect(LANE, &peer), Ok(()));
    }
}

/// A peer that a dial did not reach is asked to dial once; the oldest is forgotten at the limit.
#[test]
fn unreached_peer_is_asked_once() {
    let mut node = LaneConnections::new(Incarnation(20));
    let mut dial = |peer: &str, lifecycle| dial(&mut node, peer, lifecycle, unreached);
    assert!(!dial("peer", 0));
    assert!(dial("peer", 1), "it asks, and the peer does not ask: nobody is dialled");
    let others = 2..=UNREACHED_MAX as u64 + 2;
    others.for_each(|lifecycle| assert!(!dial(&format!("other {lifecycle}"), lifecycle)));
    assert_eq!(node.unreached.len(), UNREACHED_MAX);
    assert!(node.lanes.is_empty() && node.unbound.is_empty());
}

/// A lane opens once every queue pair with a counterpart is connected, and not before.
#[test]
fn lane_opens_with_its_last_queue_pair() {
    let mut node = LaneConnections::new(Incarnation(20));
    let own = node.announce(LANE, &[5, 6, 7], Some("peer"), (address(2), Token(50))).unwrap();
    let peer = AnnouncedLane { queue_pairs: Vec::from([3, 4]), ..lane_of(30, 1) };
    node.connect(LANE, &peer).unwrap();
    let dials =
        |it: &&LaneOutput| matches!(it, LaneOutput::Connection(ConnectionOutput::Dial { .. }));
    assert_eq!(outputs(&mut node).iter().filter(dials).count(), 2);
    for place in 0..2 {
        assert_eq!(node.progress(LANE), Ok(LaneProgress::Pending));
        let from = peer.announcement.queue_pair(place, peer.queue_pairs[usize::from(place)]);
        let to = own.queue_pair(place, 5 + u32::from(place));
        let id = ConnectionId { lifecycle: LANE, place };
        node.handle_established(id, &PrivateData::new(&from, &to, Content::Accept).encode());
        let opens = outputs(&mut node).contains(&LaneOutput::Open { lifecycle: LANE });
        assert_eq!(opens, place == 1);
    }
    assert_eq!(node.progress(LANE), Ok(LaneProgress::Connected));
    assert_eq!(node.bound_to(LANE), Some(&peer));
    let connected = ConnectionId { lifecycle: LANE, place: 1 };
    assert_eq!(node.peer(connected), Some(peer.announcement.queue_pair(1, 4)));
    assert_eq!(node.peer(ConnectionId { place: 2, ..connected }), None);

    node.handle_wired(LANE);
    node.handle_failed(connected, Cause::Local);
    assert!(outputs(&mut node).contains(&LaneOutput::LaneFailed { id: connected }));
    node.handle_drained(LANE);
    outputs(&mut node);
    assert_eq!(node.progress(LANE), Err(Cause::Local), "the other queue pairs are left");
    node.retire(LANE);
    assert_ne!(outputs(&mut node), [], "what is left of it is drained");
    node.handle_drained(LANE);
    outputs(&mut node);
    assert_eq!(node.progress(LANE), Err(Cause::Disconnected), "it is gone");
}

/// A peer that rejects a dial is reached: the next announcement does not ask it to dial.
#[test]
fn rejected_dial_has_reached_the_peer() {
    let mut node = LaneConnections::new(Incarnation(20));
    for lifecycle in 0..2 {
        assert!(!dial(&mut node, "peer", lifecycle, |node, id| node.handle_rejected(id, &[])));
    }
}

/// A dial that is rejected fails the lane.
#[test]
fn rejected_dial_fails_the_lane() {
    let (mut node, _) = node("peer");
    node.connect(LANE, &lane_of(30, 1)).unwrap();
    outputs(&mut node);
    node.handle_rejected(ConnectionId { lifecycle: LANE, place: 0 }, &[]);
    assert!(node.progress(LANE).is_err());
}

/// An output names its lane, except for the rejection of a request, which has none.
#[test]
fn output_names_its_lane() {
    let id = ConnectionId { lifecycle: LANE, place: 1 };
    for output in [
        LaneOutput::Prepare { lifecycle: LANE },
        LaneOutput::Open { lifecycle: LANE },
        LaneOutput::LaneFailed { id },
        LaneOutput::Connection(ConnectionOutput::Established { id }),
        LaneOutput::Connection(ConnectionOutput::Destroy { id }),
    ] {
        assert_eq!(output.lifecycle(), Some(LANE), "{output:?}");
    }
    let (mut node, own) = node("peer");
    let peer = lane_of(10, 1);
    let forged = Announcement { token: Token(51), ..own };
    node.handle_request(RequestId(1), &request(&peer, &forged).encode());
    let rejection = node.poll_output().expect("it has no token");
    assert_eq!(rejection.lifecycle(), None, "{rejection:?}");
}

/// A message announces a lane with its queue pairs and reads, none, or what cannot be connected.
#[test]
fn announced_lane_has_queue_pairs_and_reads() {
    let lane = lane_of(10, 1);
    let text = |text: &str| Some(text.into());
    let body = Body {
        queue_pairs: lane.queue_pairs.clone(),
        rd_atomic: 1,
        connection_manager: text(&format!("{}", lane.announcement)),
        ..Body::default()
    };
    assert_eq!(AnnouncedLane::of(&body), Some(Ok(lane)));
    assert_eq!(AnnouncedLane::of(&Body { connection_manager: None, ..body.clone() }), None);
    let refused = |body: Body| AnnouncedLane::of(&body).and_then(Result::err);
    let without = Body { queue_pairs: Vec::new(), ..body.clone() };
    assert_eq!(refused(without), Some(AnnouncedLaneError::NoQueuePair));
    let without = Body { rd_atomic: 0, ..body.clone() };
    assert_eq!(refused(without), Some(AnnouncedLaneError::NoRead));
    let broken = refused(Body { connection_manager: text("?"), ..body });
    assert!(matches!(broken, Some(AnnouncedLaneError::Text(_))), "{broken:?}");
}
