//! Links, addresses and queue pairs that fail and come back.

use crate::links::Link;
use crate::support::{BYTES, LANE, PATIENCE, Site, connect_lane, exponent, pattern, sites_at};
use handfast_core::Lifecycle;
use handfast_core::transport::Side;
use handfast_fabric_control::is_scripted;
use handfast_transport::{CompletionStatus, Direction, Sent};
use handfast_transport_rdma::{DeviceEvent, NicConfig};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// From the return of what was lost to bytes that arrived, on emulated processors that others use.
const REPAIRED_WITHIN: Duration = Duration::from_secs(5);
/// Time of the kernel's own look-up of an address that just returned: its first request goes
/// unanswered, the next comes a second later.
const LOOK_UP_MAX: Duration = Duration::from_millis(1_200);
/// Of a local failure on the kernel's 6.1: the port or the address is gone.
const LOCAL_QUEUE_PAIR_ERROR: i32 = 2;
const RETRY_EXCEEDED: i32 = 12;

/// Gives up after about a second: earlier, a busy machine could be late with an answer.
fn impatient(config: NicConfig) -> NicConfig {
    NicConfig { timeout_exponent: exponent(15, 12), ..config }
}

/// Moves everything from one to the other over a new lane in place of the old.
fn repair(one: &Site, other: &Site, lane: Lifecycle, seed: u8) {
    for site in [one, other] {
        site.nic.retire(LANE).unwrap();
        site.told.forget();
    }
    connect_lane(one, other, lane, 1);
    one.memory.copy_in(0, &pattern(seed)).unwrap();
    one.nic.post(lane, &mut vec![one.posting(other, 1, Direction::Write, 0, BYTES)]);
    assert_eq!(one.told.ends(1), [CompletionStatus::Done]);
    assert!(other.bytes() == pattern(seed));
}

/// A link going down is reported, fails posted work, and is used again soon after it returns.
#[test]
fn link_down_fails_posts_until_it_returns() {
    let wire = Link::new(1);
    let (one, other) = sites_at(&wire, impatient);
    connect_lane(&one, &other, LANE, 1);
    wire.down(0);
    for site in [&one, &other] {
        let down = DeviceEvent::PortDown { port: 1 };
        site.told.wait("a port that went down", |told| told.events.contains(&down));
    }
    one.post_all(&other, Direction::Write, 2);
    let ends = one.told.ends(2);
    let CompletionStatus::Failed(first) = &ends[0] else { panic!("{ends:?}") };
    assert_eq!((first.side, first.code), (Side::Local, LOCAL_QUEUE_PAIR_ERROR), "{first}");
    let lane = Lifecycle(8);
    let mut theirs = other.nic.create(lane, &[1]).unwrap();
    one.nic.create(lane, &[2]).unwrap();
    theirs.psns = vec![1];
    let error = one.nic.connect(lane, &theirs).unwrap_err();
    assert_eq!(error.side, Side::Local, "our own port is nobody else's fault: {error}");
    for site in [&one, &other] {
        site.nic.retire(lane).unwrap();
    }

    wire.up();
    let returned = Instant::now();
    for site in [&one, &other] {
        let up = DeviceEvent::PortActive { port: 1 };
        site.told.wait("a port that came up", |told| told.events.contains(&up));
    }
    repair(&one, &other, Lifecycle(9), 1);
    let took = returned.elapsed();
    println!("used again {} ms after the link returned", took.as_millis());
    assert!(took < REPAIRED_WITHIN + LOOK_UP_MAX, "{took:?}");
}

#[test]
fn a_link_that_returns_within_the_retries_costs_nothing() {
    let wire = Link::new(2);
    let patient = |config| NicConfig { timeout_exponent: exponent(17, 15), ..config };
    let (one, other) = sites_at(&wire, patient);
    connect_lane(&one, &other, LANE, 1);
    one.memory.copy_in(0, &pattern(2)).unwrap();
    // The far end: our own port stays able to send.
    wire.down(1);
    one.post_all(&other, Direction::Write, 16);
    std::thread::sleep(Duration::from_millis(if is_scripted() { 50 } else { 300 }));
    wire.up();
    let ends = one.told.ends(16);
    assert!(ends.iter().all(|end| *end == CompletionStatus::Done), "{ends:?}");
    assert!(other.bytes() == pattern(2));
    assert_eq!(one.told.failures(), []);
}

/// An address that leaves breaks its lanes, and new lanes find it at its new index.
#[test]
fn moved_address_breaks_lanes_and_is_refound() {
    let wire = Link::new(5);
    let (one, other) = sites_at(&wire, impatient);
    connect_lane(&one, &other, LANE, 1);
    let before = one.nic.gid().entry;
    wire.address_leaves(0);
    let changed = DeviceEvent::AddressesChanged { port: 1 };
    one.told.wait("an address that left", |told| told.events.contains(&changed));
    one.post_all(&other, Direction::Write, 1);
    let ends = one.told.ends(1);
    assert!(
        matches!(&ends[0], CompletionStatus::Failed(error) if error.side == Side::Local),
        "{ends:?}"
    );
    // The other end is of another family than what is left, and both are named.
    let (mine, theirs) = (Lifecycle(8), Lifecycle(8));
    let body = one.nic.create(mine, &[1]).unwrap();
    assert!(body.gid.starts_with("fe:80"), "{body:?}");
    let peer = other.nic.create(theirs, &[2]).unwrap();
    let error = one.nic.connect(mine, &peer).unwrap_err();
    assert!(
        error.detail.contains("different families") && error.detail.contains("fe80"),
        "{error}"
    );
    [(&one, mine), (&other, theirs)].iter().for_each(|(s, lane)| s.nic.retire(*lane).unwrap());

    let returned = Instant::now();
    wire.address_returns(0);
    let place = || {
        let entries = one.nic.gids().unwrap();
        entries.iter().find(|entry| entry.address == before.address).map(|entry| entry.index)
    };
    while place().is_none() {
        assert!(returned.elapsed() < PATIENCE, "the address did not return");
    }
    // The broken lane holds the old place until it is retired.
    assert_ne!(place(), Some(before.index));
    repair(&one, &other, Lifecycle(9), 3);
    let took = returned.elapsed();
    println!("used again {} ms after the address returned", took.as_millis());
    assert!(took < REPAIRED_WITHIN + LOOK_UP_MAX, "{took:?}");
}

/// A lane cut by one side takes no more work, and the other side's device reports it.
#[test]
fn cut_lane_is_reported_by_the_peers_device() {
    let wire = Link::new(4);
    let (one, other) = sites_at(&wire, impatient);
    connect_lane(&one, &other, LANE, 2);
    other.nic.cut(LANE).unwrap();
    one.memory.copy_in(0, &pattern(4)).unwrap();
    one.post_all(&other, Direction::Write, 8);
    let ends = one.told.ends(8);
    let told = |end: &&CompletionStatus| matches!(end, CompletionStatus::Failed(e) if e.code == RETRY_EXCEEDED);
    assert_eq!(ends.iter().filter(told).count(), 2, "one for each queue pair: {ends:?}");
    assert!(other.bytes() == vec![0; BYTES]);
    other.post_all(&one, Direction::Write, 1);
    assert_eq!(other.told.ends(1), [CompletionStatus::Released(Sent::None)]);
    assert_eq!(other.told.failures(), [], "who cuts a lane knows");
    repair(&one, &other, Lifecycle(8), 5);
}

/// A NIC that is cut off disturbs no lane of the other.
#[test]
fn cut_nic_leaves_the_other_undisturbed() {
    let (cut, whole) = (Link::new(3), Link::new(6));
    let (a, b) = sites_at(&cut, impatient);
    let (c, d) = sites_at(&whole, |config| config);
    connect_lane(&a, &b, LANE, 1);
    connect_lane(&c, &d, LANE, 1);
    cut.down(1);
    // Few packets: what waits for a link layer address holds the software device's timers up.
    let write = |n| a.posting(&b, n, Direction::Write, 0, 1024);
    a.nic.post(LANE, &mut (0..4).map(write).collect());
    let mut rounds = 0;
    // The whole lane works all the while that the other's device tries.
    while rounds == 0 || a.told.failures().is_empty() {
        c.told.forget();
        c.nic.post(LANE, &mut vec![c.posting(&d, 1, Direction::Write, 0, 16_384)]);
        assert_eq!(c.told.ends(1), [CompletionStatus::Done]);
        rounds += 1;
        // Software devices share the processors; a pause lets the other's timers run.
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((c.told.failures(), d.told.failures()), (vec![], vec![]));
    assert_eq!(a.told.failures()[0].1.code, RETRY_EXCEEDED);
}

/// Both sides connect at once, again and again: each lane moves its bytes.
#[test]
fn both_sides_wire_at_the_same_instant_two_hundred_times() {
    const LANES: u64 = 200;
    let wire = Link::new(7);
    let (one, other) = sites_at(&wire, |config| NicConfig { depth: 8, ..config });
    one.memory.copy_in(0, &pattern(6)).unwrap();
    let start = Barrier::new(2);
    for number in 0..LANES {
        let lane = Lifecycle(number);
        let psn = number as u32;
        let mine = one.nic.create(lane, &[psn]).unwrap();
        let theirs = other.nic.create(lane, &[0x0070_0000 + psn]).unwrap();
        let wire = |site: &Site, peer| {
            start.wait();
            site.nic.connect(lane, peer).unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| wire(&one, &theirs));
            scope.spawn(|| wire(&other, &mine));
        });
        let length = BYTES / LANES as usize;
        let offset = number as usize * length;
        one.nic
            .post(lane, &mut vec![one.posting(&other, number, Direction::Write, offset, length)]);
        one.told.ends(number as usize + 1);
        for site in [&one, &other] {
            site.nic.retire(lane).unwrap();
        }
    }
    assert!(one.told.ends(LANES as usize).iter().all(|end| *end == CompletionStatus::Done));
    let moved = BYTES / LANES as usize * LANES as usize;
    assert!(other.bytes()[..moved] == pattern(6)[..moved]);
    assert_eq!(one.told.failures(), []);
    // The connection manager may report the retirement of the first side before that of the second.
    let is_managed = one.nic.uses_connection_manager();
    let is_reported = |call: &str| is_managed && call == "connection";
    let failures = other.told.failures();
    assert!(failures.iter().all(|(_, error)| is_reported(&error.call)), "{failures:?}");
}
