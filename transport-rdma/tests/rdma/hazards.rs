//! Surprising behaviour of drivers, and the guards against it.

use crate::links::Link;
use crate::support::{
    LANE, PATIENCE, Site, config, connect_lane, connected, exponent, pattern, sites_at,
};
use handfast_core::Lifecycle;
use handfast_core::transport::Side;
use handfast_core::wire::Body;
use handfast_transport::{CompletionStatus, Direction, RemoteSpan, Sent};
use handfast_transport_rdma::{NicConfig, StepLimits, StepPool};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const RETRY_EXCEEDED: i32 = 12;
/// The path MTU of the guest's wires.
const PACKET: usize = 1024;
/// Packets that an earlier life wrote.
const WRITTEN: usize = 8;
/// The first packet's number in every life, as with peers that know no other.
const FIRST: u32 = 0;

/// A site that has died, and come back with the same queue-pair number and first packet number
/// before its peer noticed. Its earlier life wrote `WRITTEN` packets.
fn restarted(wire: &Link, other: &Site, peer: &Body, earlier: u32) -> Site {
    wire.restart_device(0);
    let one = Site::new(quick(config(&wire.device(0))));
    let mine = one.nic.create(LANE, &[FIRST]).unwrap();
    assert_eq!(mine.queue_pairs, [earlier], "a restarted device counts from the start again");
    one.nic.connect(LANE, peer).unwrap();
    one.memory.copy_in(0, &pattern(9)).unwrap();
    assert_eq!(other.told.failures(), [], "the peer noticed nothing");
    one
}

fn quick(config: NicConfig) -> NicConfig {
    NicConfig { timeout_exponent: exponent(14, 12), ..config }
}

fn place(site: &Site) -> RemoteSpan {
    site.registration.remote_span()
}

/// The question of rule H13, put to the kernel's driver.
#[test]
fn an_old_pairing_is_seen_by_a_read_and_not_by_a_write() {
    let wire = Link::new(8);
    let (one, other) = sites_at(&wire, quick);
    let mine = one.nic.create(LANE, &[FIRST]).unwrap();
    let theirs = other.nic.create(LANE, &[0x0020_0000]).unwrap();
    other.nic.connect(LANE, &mine).unwrap();
    one.nic.connect(LANE, &theirs).unwrap();
    let packet = |n| one.posting(&other, n as u64, Direction::Write, n * PACKET, PACKET);
    one.nic.post(LANE, &mut (0..WRITTEN).map(packet).collect());
    assert!(one.told.ends(WRITTEN).iter().all(|end| *end == CompletionStatus::Done));
    let (number, before) = (mine.queue_pairs[0], other.bytes());
    drop(one);

    let one = restarted(&wire, &other, &theirs, number);
    one.nic.post(LANE, &mut vec![one.posting(&other, 1, Direction::Write, 0, PACKET)]);
    assert_eq!(one.told.ends(1), [CompletionStatus::Done], "the hazard: success is reported");
    assert!(other.bytes() == before, "and not a byte was written");
    let seen = one.nic.probe(LANE, Some(place(&other)), PATIENCE).unwrap_err();
    assert_eq!((seen.side, seen.code), (Side::Peer, RETRY_EXCEEDED), "{seen}");
    one.told.wait("a lane that is not proven to break", |told| told.failures.len() == 1);
    assert!(one.nic.recognised().profile.drops_stale_reads);
    drop(one);

    let one = restarted(&wire, &other, &theirs, number);
    let seen = one.nic.probe(LANE, None, PATIENCE).unwrap_err();
    assert_eq!(seen.code, RETRY_EXCEEDED, "an empty read tells as much: {seen}");
}

#[test]
fn a_fresh_pairing_is_proven_and_then_used() {
    let (one, other) = connected(config("rxe0"), config("rxe1"), 3);
    one.nic.probe(LANE, Some(place(&other)), PATIENCE).unwrap();
    one.nic.probe(LANE, None, PATIENCE).unwrap();
    one.post_all(&other, Direction::Write, 8);
    assert!(one.told.ends(8).iter().all(|end| *end == CompletionStatus::Done));
    one.nic.revoke(LANE);
    assert!(one.nic.drain(LANE, PATIENCE));
    assert!(one.nic.probe(LANE, None, PATIENCE).is_err(), "nothing is posted on a revoked lane");
    assert_eq!(other.told.failures(), []);
}

/// A lane without work notices that its peer is gone: by a probe, or by the connection manager's report.
#[test]
fn a_peer_that_dies_on_an_idle_lane_is_noticed_by_a_probe() {
    let probed = NicConfig {
        idle_probe: Some(Duration::from_millis(100)),
        timeout_exponent: 14,
        ..config("rxe0")
    };
    let (one, other) = connected(probed, config("rxe1"), 2);
    let started = Instant::now();
    while one.nic.counters().probes < 4 {
        assert!(started.elapsed() < PATIENCE, "an idle lane is not probed");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(one.told.failures(), [], "a peer that lives answers");
    let died = Instant::now();
    other.nic.retire(LANE).unwrap();
    one.told.wait("the death of a peer", |told| !told.failures.is_empty());
    let (lane, error) = one.told.failures().remove(0);
    let is_reported = one.nic.uses_connection_manager();
    assert_eq!(&*error.call == "connection", is_reported, "{error}");
    let code = if is_reported { 0 } else { RETRY_EXCEEDED };
    assert_eq!((lane, error.side, error.code), (LANE, Side::Peer, code));
    println!("an idle lane's peer was missed after {} ms", died.elapsed().as_millis());
    assert_eq!(one.told.ends(0), [], "probes are nobody's slices");
}

/// A slice that was posted before the lane was connected is given back, and the device never sends it.
#[test]
fn what_was_posted_before_the_lane_was_wired_never_runs_later() {
    let (one, other) = (Site::new(config("rxe0")), Site::new(config("rxe1")));
    one.memory.copy_in(0, &pattern(2)).unwrap();
    let mine = one.nic.create(LANE, &[1]).unwrap();
    let theirs = other.nic.create(LANE, &[2]).unwrap();
    one.nic.post(LANE, &mut vec![one.posting(&other, 1, Direction::Write, 0, 4096)]);
    other.nic.note_request(None, &mine);
    one.nic.note_request(None, &theirs);
    other.nic.connect(LANE, &mine).unwrap();
    one.nic.connect(LANE, &theirs).unwrap();
    one.nic.post(LANE, &mut vec![one.posting(&other, 2, Direction::Write, 8192, 4096)]);
    assert_eq!(one.told.ends(2), [CompletionStatus::Released(Sent::None), CompletionStatus::Done]);
    let bytes = other.bytes();
    assert!(bytes[..8192] == [0; 8192], "the driver ran what it had refused");
    assert!(bytes[8192..8192 + 4096] == pattern(2)[8192..8192 + 4096]);
}

#[test]
fn a_peer_whose_address_is_silent_delays_no_other_peers_wiring() {
    const SILENT_LANES: u64 = 3;
    let (one, other) = (Site::new(config("rxe0")), Site::new(config("rxe1")));
    let nic = Arc::new(one.nic);
    let steps = StepPool::start(StepLimits { threads: 2, ..StepLimits::default() }).unwrap();
    let (done, told) = channel();
    let wire = |peer: &'static str, lane, body| {
        let (nic, done) = (Arc::clone(&nic), done.clone());
        let step = move |turn: Result<(), _>| {
            turn.unwrap();
            done.send((peer, nic.connect(lane, &body).is_ok())).unwrap();
        };
        steps.submit(peer, step).unwrap();
    };
    for lane in (0..SILENT_LANES).map(Lifecycle) {
        let mut nobody = nic.create(lane, &[1]).unwrap();
        nobody.gid = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:4e".to_owned();
        wire("silent", lane, nobody);
    }
    for lane in (10..14).map(Lifecycle) {
        nic.create(lane, &[1]).unwrap();
        let theirs = other.nic.create(lane, &[2]).unwrap();
        wire("other", lane, theirs);
    }
    let order: Vec<_> = (0..7).map(|_| told.recv_timeout(PATIENCE).unwrap()).collect();
    let place = |peer| order.iter().rposition(|(who, _)| *who == peer).unwrap();
    assert!(place("other") < place("silent"), "{order:?}");
    assert!(order.iter().all(|(who, connected)| (*who == "other") == *connected), "{order:?}");
}

/// A side that is connected first posts at once: its slices wait, or are sent again, until the peer is connected.
#[test]
fn a_lane_wired_late_by_its_peer_loses_a_wait_and_no_byte() {
    let (one, other) = (Site::new(config("rxe0")), Site::new(config("rxe1")));
    let mine = one.nic.create(LANE, &[1]).unwrap();
    let theirs = other.nic.create(LANE, &[2]).unwrap();
    other.nic.note_request(None, &mine);
    one.nic.note_request(None, &theirs);
    one.nic.connect(LANE, &theirs).unwrap();
    one.memory.copy_in(0, &pattern(3)).unwrap();
    one.post_all(&other, Direction::Write, 4);
    other.nic.connect(LANE, &mine).unwrap();
    assert!(one.told.ends(4).iter().all(|end| *end == CompletionStatus::Done));
    assert!(other.bytes() == pattern(3));
    let next = Lifecycle(8);
    one.nic.retire(LANE).unwrap();
    one.told.forget();
    connect_lane(&one, &other, next, 1);
}

/// The experiment of `handfast smoke`, and when it is refused.
#[test]
fn reset_is_for_idle_connected_lanes_alone() {
    let wire = Link::new(10);
    let (one, other) = sites_at(&wire, quick);
    let mine = one.nic.create(LANE, &[0x0001_0000]).unwrap();
    let theirs = other.nic.create(LANE, &[0x0002_0000]).unwrap();
    let again = || one.nic.connect_again_after_reset(LANE, &theirs);
    assert_eq!(again().unwrap_err().call, "reset", "it was not wired");
    other.nic.connect(LANE, &mine).unwrap();
    one.nic.connect(LANE, &theirs).unwrap();
    again().unwrap();
    other.nic.connect_again_after_reset(LANE, &mine).unwrap();
    one.post_all(&other, Direction::Write, 4);
    assert!(one.told.ends(4).iter().all(|end| *end == CompletionStatus::Done));
    one.nic.retire(LANE).unwrap();
    assert!(again().is_err(), "it was retired");
}
