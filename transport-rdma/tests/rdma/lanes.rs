//! Bytes over lanes.

use crate::sniffer::Sniffer;
use crate::support::{BYTES, LANE, PATIENCE, Site, config, connect_lane, connected, pattern};
use crate::wires::{Wire, run};
use handfast_core::transport::Side;
use handfast_core::{Lifecycle, NicPath};
use handfast_transport::{Access, CompletionStatus, Direction, Memory, Sent};
use handfast_transport_rdma::{DeviceEvent, GidWanted, NicConfig, Polling, RegisterOptions};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Names the first byte that differs.
fn assert_equal(present: &[u8], wanted: &[u8]) {
    let differing = (0..wanted.len()).filter(|at| present[*at] != wanted[*at]);
    let first = differing.clone().next();
    assert!(first.is_none(), "{} bytes differ, the first at {first:?}", differing.count());
}

#[test]
fn what_is_written_is_there_and_what_is_read_comes_back() {
    let (one, other) = connected(config("rxe0"), config("rxe1"), 2);
    one.memory.copy_in(0, &pattern(1)).unwrap();
    one.post_all(&other, Direction::Write, 32);
    assert!(one.told.ends(32).iter().all(|end| *end == CompletionStatus::Done));
    assert_equal(&other.bytes(), &pattern(1));

    other.memory.copy_in(0, &pattern(2)).unwrap();
    one.told.forget();
    one.post_all(&other, Direction::Read, 32);
    assert!(one.told.ends(32).iter().all(|end| *end == CompletionStatus::Done));
    assert!(one.bytes() == pattern(2));
    assert_eq!(one.told.failures(), []);
}

#[test]
fn completions_come_however_they_are_waited_for() {
    let spin = Duration::from_millis(5);
    for polling in [Polling::Busy, Polling::Adaptive { spin }, Polling::Event] {
        let polled = |name| NicConfig { polling, ..config(name) };
        let (one, other) = connected(polled("rxe0"), polled("rxe1"), 1);
        for seed in 0..3 {
            one.told.forget();
            one.memory.copy_in(0, &pattern(seed)).unwrap();
            one.post_all(&other, Direction::Write, 4);
            assert!(
                one.told.ends(4).iter().all(|end| *end == CompletionStatus::Done),
                "{polling:?}"
            );
            assert!(other.bytes() == pattern(seed));
            // Longer than an adaptive poller looks: it is asleep for the next.
            std::thread::sleep(4 * spin);
        }
    }
}

/// Lanes are spread over the queues of several pollers, of which each reports its own.
#[test]
fn completions_come_from_several_pollers() {
    const LANES: u64 = 4;
    for polling in [Polling::Event, Polling::Busy] {
        let polled = |name| NicConfig { polling, pollers: 2, ..config(name) };
        let (one, other) = (Site::new(polled("rxe0")), Site::new(polled("rxe1")));
        connect_lane(&one, &other, Lifecycle(0), 2);
        let each = one.nic.load().completion_entries_made;
        for lane in (1..LANES).map(Lifecycle) {
            connect_lane(&one, &other, lane, 2);
        }
        assert_eq!(one.nic.load().completion_entries_made, 2 * each, "a queue of each poller");
        for round in 1..=3 {
            one.told.forget();
            for lane in (0..LANES).map(Lifecycle) {
                let slice = round * LANES + lane.0;
                let posting = one.posting(&other, slice, Direction::Write, 0, 4096);
                one.nic.post(lane, &mut vec![posting]);
            }
            let ends = one.told.ends(LANES as usize);
            assert!(ends.iter().all(|end| *end == CompletionStatus::Done), "{polling:?}");
        }
        assert_eq!(one.told.failures(), []);
    }
}

/// Lanes share a completion queue. The end of one lane's peer disturbs none of the others.
#[test]
fn completions_of_lanes_that_share_a_queue_go_to_their_own() {
    const LANES: u64 = 8;
    const GONE: Lifecycle = Lifecycle(3);
    let (one, other) = (Site::new(config("rxe0")), Site::new(config("rxe1")));
    connect_lane(&one, &other, Lifecycle(0), 2);
    let made = one.nic.load().completion_entries_made;
    for lane in (1..LANES).map(Lifecycle) {
        connect_lane(&one, &other, lane, 2);
    }
    assert_eq!(one.nic.load().completion_entries_made, made, "one queue for all");
    // One lane's peer is gone; the others' slices end as ever, in the same queue.
    other.nic.retire(GONE).unwrap();
    let is_reported = one.nic.uses_connection_manager();
    if is_reported {
        one.told.wait("the end of the lane", |told| !told.failures.is_empty());
    }
    for lane in (0..LANES).map(Lifecycle) {
        one.nic.post(lane, &mut vec![one.posting(&other, lane.0, Direction::Write, 0, 4096)]);
    }
    if !is_reported {
        one.nic.cut(GONE).unwrap();
    }
    for (lane, end) in (0..).map(Lifecycle).zip(one.told.ends(LANES as usize)) {
        let expected = match (lane == GONE, is_reported) {
            (true, true) => CompletionStatus::Released(Sent::None),
            (true, false) => CompletionStatus::Flushed,
            (false, _) => CompletionStatus::Done,
        };
        assert_eq!(end, expected, "{lane:?}");
    }
    assert_eq!(one.nic.counters().completions_stale, 0);
    let failed: Vec<_> = one.told.failures().into_iter().map(|(lane, _)| lane).collect();
    assert_eq!(failed, if is_reported { vec![GONE] } else { vec![] });
}

#[test]
fn sides_of_different_families_meet_at_the_second_lane() {
    let wire = Wire::new(9);
    wire.ipv6("fd00:9::");
    let peer = NicPath::parse("other@nic").unwrap();
    let only: std::net::Ipv6Addr = "fd00:9::2".parse().unwrap();
    let one = Site::new(config(&wire.device(0)));
    let other = Site::new(NicConfig { gid: GidWanted::Address(only), ..config(&wire.device(1)) });
    other.nic.skip_numbers(64).unwrap();
    let announce = |lane| {
        let mine = one.nic.create_for(&peer, lane, &[1]).unwrap();
        (mine, other.nic.create(lane, &[2]).unwrap())
    };
    let (mine, theirs) = announce(LANE);
    assert!(mine.gid.ends_with("0a:09:00:01"), "{}", mine.gid);
    let error = one.nic.connect(LANE, &theirs).unwrap_err();
    assert!(error.detail.contains("different families; the next lane announces"), "{error}");
    assert_eq!(error.side, Side::Peer, "another lane is worth it");
    let error = other.nic.connect(LANE, &mine).unwrap_err();
    assert_eq!(error.side, Side::Peer, "the peer has the better family, so it moves: {error}");

    // The kernel's first look-up of a new address may go unanswered; another lane asks again.
    let next = (8..12).map(Lifecycle).find(|next| {
        let (mine, theirs) = announce(*next);
        assert!(next.0 > 8 || mine.gid.starts_with("fd:00:00:09"), "{}", mine.gid);
        let connected =
            other.nic.connect(*next, &mine).and_then(|()| one.nic.connect(*next, &theirs));
        assert!(
            connected.as_ref().err().is_none_or(|error| error.side == Side::Peer),
            "{connected:?}"
        );
        connected.is_ok()
    });
    let next = next.unwrap();
    one.memory.copy_in(0, &pattern(8)).unwrap();
    one.nic.post(next, &mut vec![one.posting(&other, 1, Direction::Write, 0, BYTES)]);
    assert_eq!(one.told.ends(1), [CompletionStatus::Done]);
    assert!(other.bytes() == pattern(8));
}

/// Packets have the traffic class of their sender and at most its MTU.
#[test]
fn packets_have_traffic_class_and_mtu_of_sender() {
    let wire = Wire::new(11);
    let one = Site::new(NicConfig {
        traffic_class: 0x68,
        service_level: 3,
        mtu_max: 1024,
        ..config(&wire.device(0))
    });
    let other = Site::new(config(&wire.device(1)));
    other.nic.skip_numbers(64).unwrap();
    let seen = Sniffer::of(&wire);
    connect_lane(&one, &other, LANE, 1);
    one.memory.copy_in(0, &pattern(6)).unwrap();
    one.post_all(&other, Direction::Write, 4);
    assert!(one.told.ends(4).iter().all(|end| *end == CompletionStatus::Done));
    let packets = seen.towards(1);
    assert!(packets.len() >= BYTES / 1024, "{}", packets.len());
    assert!(packets.iter().all(|packet| packet.class == 0x68), "{:x?}", packets[0]);
    // IP, UDP, the transport's header with that of a write, and its check.
    let longest = packets.iter().map(|packet| packet.bytes).max().unwrap();
    assert_eq!(longest, 1024 + 20 + 8 + 12 + 16 + 4);
    assert!(seen.towards(0).iter().all(|packet| packet.class == 0), "the other asked for none");
}

#[test]
fn both_sides_write_at_once_over_one_lane() {
    let (one, other) = connected(config("rxe0"), config("rxe1"), 2);
    one.memory.copy_in(0, &pattern(3)[..BYTES / 2]).unwrap();
    other.memory.copy_in(BYTES / 2, &pattern(4)[BYTES / 2..]).unwrap();
    let start = Arc::new(Barrier::new(2));
    let half = |site: &Site, peer: &Site, first: usize| {
        let length = BYTES / 2 / 16;
        let slice = |n: usize| {
            let offset = first + n * length;
            site.posting(peer, n as u64, Direction::Write, offset, length)
        };
        start.wait();
        site.nic.post(LANE, &mut (0..16).map(slice).collect());
        assert!(site.told.ends(16).iter().all(|end| *end == CompletionStatus::Done));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| half(&one, &other, 0));
        scope.spawn(|| half(&other, &one, BYTES / 2));
    });
    assert!(one.bytes() == other.bytes());
}

/// With fewer queue pairs on one side a lane uses those that both have.
#[test]
fn unequal_queue_pair_counts_use_the_fewer() {
    let (one, other) = (Site::new(config("rxe0")), Site::new(config("rxe1")));
    let mine = one.nic.create(LANE, &[1, 2, 3]).unwrap();
    let theirs = other.nic.create(LANE, &[4]).unwrap();
    other.nic.note_request(None, &mine);
    one.nic.note_request(None, &theirs);
    other.nic.connect(LANE, &mine).unwrap();
    one.nic.connect(LANE, &theirs).unwrap();
    one.memory.copy_in(0, &pattern(5)).unwrap();
    one.post_all(&other, Direction::Write, 16);
    assert!(one.told.ends(16).iter().all(|end| *end == CompletionStatus::Done));
    assert!(other.bytes() == pattern(5));
}

/// A registration may outlive its NIC, and memory its registration.
#[test]
fn registration_outlives_its_nic() {
    let site = Site::new(config("rxe0"));
    let Site { nic, registration, memory, .. } = site;
    drop(nic);
    assert_ne!(registration.span().len(), 0);
    drop(registration);
    memory.copy_in(0, &pattern(6)).unwrap();
}

/// Memory registered for relaxed ordering is written like any other.
#[test]
fn relaxed_ordering_memory_is_written() {
    let (one, other) = connected(config("rxe0"), config("rxe1"), 1);
    let relaxed = RegisterOptions { relaxed_ordering: true, ..RegisterOptions::default() };
    let memory = Memory::zeroed(4096).unwrap();
    let registered = other.nic.register_with(memory.whole(), Access::READ_WRITE, relaxed).unwrap();
    one.memory.copy_in(0, &pattern(9)).unwrap();
    let mut posting = one.posting(&other, 1, Direction::Write, 0, 4096);
    posting.remote = registered.remote_span();
    one.nic.post(LANE, &mut vec![posting]);
    assert_eq!(one.told.ends(1), [CompletionStatus::Done]);
    let mut bytes = [0; 4096];
    memory.copy_out(0, &mut bytes).unwrap();
    assert!(bytes == pattern(9)[..4096]);
}

#[test]
fn memory_registered_for_reading_is_not_written() {
    let (one, other) = connected(config("rxe0"), config("rxe1"), 1);
    let guarded = Memory::zeroed(4096).unwrap();
    let guarded_key = other.nic.register(guarded.whole(), Access::READ).unwrap();
    one.memory.copy_in(0, &pattern(7)).unwrap();
    let mut posting = one.posting(&other, 1, Direction::Write, 0, 4096);
    posting.remote = guarded_key.remote_span();
    one.nic.post(LANE, &mut vec![posting]);
    let ends = one.told.ends(1);
    let CompletionStatus::Refused(error) = &ends[0] else { panic!("{ends:?}") };
    let hidden = one.nic.recognised().profile.hidden_refusals;
    let side = if hidden.is_empty() { Side::Protection } else { Side::Peer };
    assert_eq!(error.side, side, "{error}");
    let mut bytes = [1; 4096];
    guarded.copy_out(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4096]);
}

#[test]
fn a_new_address_of_the_port_is_told() {
    let site = Site::new(config("rxe1"));
    run("ip address add 10.9.9.9/32 dev veth1");
    let changed = DeviceEvent::AddressesChanged { port: 1 };
    site.told.wait("a change of addresses", |told| told.events.contains(&changed));
    run("ip address del 10.9.9.9/32 dev veth1");
    assert!(site.nic.counters().events >= 1);
}

/// An address without an answer is the peer's failure and takes bounded time.
#[test]
fn silent_address_fails_in_bounded_time() {
    let one = Site::new(config("rxe0"));
    let mut nobody = one.nic.create(LANE, &[1]).unwrap();
    nobody.gid = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:4d".to_owned();
    let started = Instant::now();
    let error = one.nic.connect(LANE, &nobody).unwrap_err();
    assert!(started.elapsed() < PATIENCE);
    assert_eq!(error.side, Side::Peer, "{error}");
    assert_eq!(error.call, "ibv_modify_qp(RTR)");
    assert!(error.to_string().contains("10.0.0.77"), "{error}");
    one.nic.retire(LANE).unwrap();
}
