//! Connections through the kernel's connection manager, over the guest's soft-iWARP or soft-RoCE. The
//! stories of `scripted::managed` are the same on scripted devices.

#[cfg(feature = "bare")]
use crate::scripted::managed::announcement;
use crate::scripted::managed::{
    another_lane_works, charge_refused, connect_at_once, meeting, with,
};
#[cfg(feature = "bare")]
use crate::stranger::{answers_are_not_the_peers, initialised};
use crate::support::{LANE, PATIENCE, Site, config, connect_lane, pattern};
use crate::wires::Wire;
#[cfg(feature = "bare")]
use crate::wires::{driver, nics};
use handfast_core::Lifecycle;
use handfast_core::transport::Side;
#[cfg(feature = "bare")]
use handfast_core::wire::Body;
#[cfg(feature = "bare")]
use handfast_fabric_control::MANAGER_EVENTS;
use handfast_transport::{CompletionStatus, Direction, Sent};
use handfast_transport_rdma::NicConfig;
#[cfg(feature = "bare")]
use handfast_transport_rdma::{BareIdentifier, BareManager, BareNic, Nic};
#[cfg(feature = "bare")]
use std::net::{IpAddr, Ipv4Addr};
#[cfg(feature = "bare")]
use std::ops::Range;
#[cfg(feature = "bare")]
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Simultaneous opens of the story.
pub(crate) const AT_ONCE: u64 = 100;
/// Lanes at the same time.
const SIDE_BY_SIDE: u64 = 32;
/// Port of the protocol `discard`, at which nobody listens.
pub(crate) const NOBODY: u16 = 9;
/// An address without a neighbour's answer, and one without a route.
pub(crate) const NOWHERE: [[u8; 4]; 2] = [[10, 0, 0, 77], [192, 0, 2, 1]];
/// Interval of looks.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// The silence of a network.
const SILENCE: Duration = Duration::from_secs(2);
/// Slices of a batch.
pub(crate) const SLICES: usize = 16;
/// Requests that a full listener keeps, and the dials to it.
#[cfg(feature = "bare")]
pub(crate) const KEPT: usize = 2;
#[cfg(feature = "bare")]
pub(crate) const DIALS: u64 = 8;
/// Time of one of these dials.
#[cfg(feature = "bare")]
pub(crate) const DIAL: Duration = Duration::from_secs(2);
/// Interval of these dials: together less than the time of one.
#[cfg(feature = "bare")]
const APART: Duration = Duration::from_millis(100);

/// Addresses of the guest's two devices, for bare identifiers.
#[cfg(feature = "bare")]
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
#[cfg(feature = "bare")]
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Longest look for the address, and for the route.
#[cfg(feature = "bare")]
const RESOLVE_MS: i32 = 2_000;
/// Entries of a completion queue that covers the offset whose queue pair libsiw refuses.
#[cfg(feature = "bare")]
const COMPLETIONS: u32 = 18_433;
/// Dials to a listener beyond its backlog.
#[cfg(feature = "bare")]
const PAST: usize = 8;

/// A device that connects through the connection manager, whichever driver it has.
pub(crate) fn managed(device: &str) -> NicConfig {
    NicConfig { connection_manager: true, ..config(device) }
}

/// Whether the guest's devices are soft-iWARP's.
#[cfg(feature = "bare")]
pub(crate) fn is_soft_iwarp() -> bool {
    driver() == "siw"
}

fn sites() -> (Site, Site) {
    (Site::new(managed("rxe0")), Site::new(managed("rxe1")))
}

/// Slices of both directions move both ways over a lane of two queue pairs.
#[test]
fn batches_move_both_ways_through_the_kernels_manager() {
    let (one, other) = sites();
    connect_lane(&one, &other, LANE, 2);
    for (seed, [from, to]) in [[&one, &other], [&other, &one]].into_iter().enumerate() {
        let seed = 2 * seed as u8;
        from.told.forget();
        from.memory.copy_in(0, &pattern(seed)).unwrap();
        from.post_all(to, Direction::Write, 32);
        assert!(from.told.ends(32).iter().all(|end| *end == CompletionStatus::Done));
        assert!(to.bytes() == pattern(seed), "other bytes were written");
        from.told.forget();
        to.memory.copy_in(0, &pattern(seed + 1)).unwrap();
        from.post_all(to, Direction::Read, 16);
        assert!(from.told.ends(16).iter().all(|end| *end == CompletionStatus::Done));
        assert!(from.bytes() == pattern(seed + 1), "other bytes were read");
    }
    one.nic.retire(LANE).unwrap();
    other.nic.retire(LANE).unwrap();
}

/// A write that the peer refuses is charged, and none of those before and behind it, also where the device completes
/// it before it has arrived. Nothing is written by it.
#[test]
fn refused_write_alone_is_charged_by_the_kernel() {
    let (one, other) = sites();
    for (lane, refused) in [(20, 0), (30, 2), (40, 7)] {
        charge_refused(&one, &other, (lane, 8, refused));
    }
    another_lane_works(&one, &other, Lifecycle(10));
}

/// Both sides open at the same instant, a hundred times.
#[test]
fn a_hundred_opens_at_the_same_instant() {
    let (one, other) = sites();
    connect_at_once(&one, &other, AT_ONCE);
    one.wait_for_room();
    other.wait_for_room();
}

/// As many lanes stand side by side as are opened, and each moves bytes.
#[test]
fn many_lanes_stand_side_by_side() {
    let (one, other) = sites();
    let lanes = (0..SIDE_BY_SIDE).map(Lifecycle);
    lanes.clone().for_each(|lane| connect_lane(&one, &other, lane, 1));
    for lane in lanes.clone() {
        one.nic.post(lane, &mut vec![one.posting(&other, lane.0, Direction::Write, 0, 64)]);
    }
    let ends = one.told.ends(SIDE_BY_SIDE as usize);
    assert!(ends.iter().all(|end| *end == CompletionStatus::Done), "{ends:?}");
    for lane in lanes {
        one.nic.retire(lane).unwrap();
        other.nic.retire(lane).unwrap();
    }
}

/// A wrong token and an ended lifecycle are refused by the peer with the reason, and a port at which
/// nobody listens by its kernel. The next lane works.
#[test]
fn refusals_come_with_their_reason() {
    let (one, other) = sites();
    let met = meeting(&one, &other, LANE);
    let wrong = with(&met.waits_body, |it| it.token.0 ^= 1);
    let error = met.dial(LANE, &wrong).unwrap_err();
    assert_eq!((error.side, error.call), (Side::Peer, "rdma_connect"), "{error}");
    assert!(error.detail.contains("the token is not that of the queue pair"), "{error}");
    met.retire(LANE);
    let met = meeting(&one, &other, Lifecycle(8));
    met.waits.nic.retire(Lifecycle(8)).unwrap();
    let error = met.dial(Lifecycle(8), &met.waits_body).unwrap_err();
    assert!(error.detail.contains("the lifecycle has ended"), "{error}");
    met.retire(Lifecycle(8));
    let met = meeting(&one, &other, Lifecycle(9));
    let nobody = with(&met.waits_body, |it| it.address.set_port(NOBODY));
    let error = met.dial(Lifecycle(9), &nobody).unwrap_err();
    assert!(error.detail.contains("nobody listens"), "{error}");
    met.retire(Lifecycle(9));
    another_lane_works(&one, &other, Lifecycle(10));
}

/// A program at the peer's address that accepts a dial and does not prove that it is the peer is refused.
#[cfg(feature = "bare")]
#[test]
fn answer_of_a_stranger_is_not_the_peers() {
    let (one, other) = sites();
    answers_are_not_the_peers(&one, &other);
}

/// An address without a neighbour's answer, and one without a route, are the peer's failure in
/// bounded time. The next lane works.
#[test]
fn address_that_does_not_resolve_fails_in_time() {
    let (one, other) = sites();
    for (lane, nowhere) in (7..).map(Lifecycle).zip(NOWHERE) {
        let met = meeting(&one, &other, lane);
        let told = with(&met.waits_body, |it| it.address.set_ip(nowhere.into()));
        let begun = Instant::now();
        let error = met.dial(lane, &told).unwrap_err();
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        assert_eq!(error.side, Side::Peer, "{error}");
        assert!(error.detail.contains("cannot be reached"), "{error}");
        met.retire(lane);
    }
    another_lane_works(&one, &other, Lifecycle(10));
}

/// A dial to a machine that drops every packet ends by its time, and so does its lane, though the kernel's TCP calls for
/// two minutes. The next lane works once packets pass.
#[test]
fn dial_to_a_machine_that_drops_packets_ends_in_time() {
    let wire = Wire::new(22);
    let dial = Duration::from_secs(1);
    let site = |side| Site::new(NicConfig { dial, ..managed(&wire.device(side)) });
    let (one, other) = (site(0), site(1));
    wire.loses_packets();
    let met = meeting(&one, &other, LANE);
    let begun = Instant::now();
    let error = met.dial(LANE, &met.waits_body).unwrap_err();
    println!("a dial ended within {} ms", begun.elapsed().as_millis());
    assert_eq!(error.side, Side::Peer, "{error}");
    assert!(error.detail.contains("not established in time"), "{error}");
    met.retire(LANE);
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    wire.passes_packets();
    let patient = |side| Site::new(managed(&wire.device(side)));
    another_lane_works(&patient(0), &patient(1), Lifecycle(8));
}

/// A network that loses every packet for two seconds, and so less long than the device repeats them, costs neither a
/// slice nor the lane.
#[test]
fn silence_within_the_retries_costs_no_lane() {
    let wire = Wire::new(24);
    let patient = |side| NicConfig { timeout_exponent: 18, ..managed(&wire.device(side)) };
    let (one, other) = (Site::new(patient(0)), Site::new(patient(1)));
    connect_lane(&one, &other, LANE, 1);
    one.memory.copy_in(0, &pattern(9)).unwrap();
    wire.loses_packets();
    one.post_all(&other, Direction::Write, SLICES);
    sleep(SILENCE);
    assert!(other.bytes() != pattern(9), "packets were lost");
    wire.passes_packets();
    let ends = one.told.ends(SLICES);
    assert!(ends.iter().all(|end| *end == CompletionStatus::Done), "{ends:?}");
    // Soft-iWARP completes a write before it has arrived.
    let begun = Instant::now();
    while other.bytes() != pattern(9) {
        assert!(begun.elapsed() < PATIENCE, "the writes have not arrived");
        sleep(LOOK_AGAIN);
    }
    assert_eq!((one.told.failures(), other.told.failures()), (vec![], vec![]));
    one.nic.retire(LANE).unwrap();
    other.nic.retire(LANE).unwrap();
}

/// A side whose peer never dials gives back its slices once it is retired, and a dial to a side that
/// does not know the lane's peer ends in time.
#[test]
fn lanes_that_nobody_completes_end_in_time() {
    let dial = Duration::from_secs(1);
    let short = |device| Site::new(NicConfig { dial, ..managed(device) });
    let (one, other) = (short("rxe0"), short("rxe1"));
    let met = meeting(&one, &other, LANE);
    let begun = Instant::now();
    let error = met.dials.nic.connect(LANE, &met.waits_body).unwrap_err();
    assert!(error.detail.contains("not established in time"), "{error}");
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    met.retire(LANE);
    let met = meeting(&one, &other, Lifecycle(8));
    met.waits.nic.connect(Lifecycle(8), &met.dials_body).unwrap();
    let slice = met.waits.posting(met.dials, 1, Direction::Write, 0, 64);
    met.waits.nic.post(Lifecycle(8), &mut vec![slice]);
    met.retire(Lifecycle(8));
    assert_eq!(met.waits.told.ends(1), [CompletionStatus::Released(Sent::None)]);
    another_lane_works(&one, &other, Lifecycle(9));
}

/// A listener whose program takes no request keeps as many as its backlog, whose dials end by their time. Soft-iWARP
/// refuses the others; over soft-RoCE the kernel answers none of them, and they end by their time too. Nothing is left of
/// either: the next lane works.
#[cfg(feature = "bare")]
#[test]
fn dials_to_a_full_listener_end_by_name() {
    let short = |device| Site::new(NicConfig { dial: DIAL, ..managed(device) });
    let (one, other) = (short("rxe0"), short("rxe1"));
    let met: Vec<_> = (10..10 + DIALS)
        .map(|lane| (Lifecycle(lane), meeting(&one, &other, Lifecycle(lane))))
        .collect();
    let listener = FullListener::new(&met[0].1.waits_body);
    let told = met
        .iter()
        .map(|(lane, met)| (*lane, with(&met.waits_body, |it| it.address.set_port(listener.port))));
    // Soft-iWARP accepts one connection more before it asks.
    let is_late = if is_soft_iwarp() { KEPT..KEPT + 2 } else { met.len()..met.len() + 1 };
    dials_end_by_name(&met[0].1.dials.nic, told.collect(), is_late);
    drop(listener);
    met.iter().for_each(|(lane, met)| met.retire(*lane));
    another_lane_works(&one, &other, LANE);
}

/// A listener at the address of an announcement, whose program takes no request.
#[cfg(feature = "bare")]
pub(crate) struct FullListener {
    pub(crate) port: u16,
    _listener: BareIdentifier,
    _manager: BareManager,
}

#[cfg(feature = "bare")]
impl FullListener {
    pub(crate) fn new(body: &Body) -> Self {
        let manager = BareManager::open().unwrap();
        let listener = manager.identifier().unwrap();
        let port = listener.bind((announcement(body).address.ip(), 0).into()).unwrap();
        listener.listen(KEPT as i32).unwrap();
        Self { port, _listener: listener, _manager: manager }
    }
}

/// Dials to a full listener: as many as `is_late` has end by their time, those that it keeps among them, and the kernel
/// refuses the others.
#[cfg(feature = "bare")]
pub(crate) fn dials_end_by_name(nic: &Nic, told: Vec<(Lifecycle, Body)>, is_late: Range<usize>) {
    let (begun, count) = (Instant::now(), told.len());
    let errors: Vec<_> = std::thread::scope(|scope| {
        let dialled = told.into_iter().map(|(lane, told)| {
            let dialled = scope.spawn(move || nic.connect(lane, &told).unwrap_err());
            // The driver forgets connections of one instant beyond its backlog.
            sleep(APART);
            dialled
        });
        let dialled: Vec<_> = dialled.collect();
        dialled.into_iter().map(|dialled| dialled.join().unwrap()).collect()
    });
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    let says = |words| errors.iter().filter(|error| error.detail.contains(words)).count();
    let (late, refused) = (says("not established in time"), says("more requests wait"));
    println!("{}: {late} of {count} dials end by their time, {refused} are refused", driver());
    assert!(is_late.contains(&late), "{late}: {errors:?}");
    assert_eq!(late + refused, errors.len(), "{errors:?}");
    assert!(errors.iter().all(|error| error.side == Side::Peer), "{errors:?}");
}

/// A listener with the backlog of a NIC's keeps as many requests while its program takes none, and soft-iWARP refuses
/// the others. The kept ones come to the program once it looks, and are accepted. Over soft-RoCE the kernel refuses none of
/// the others: they wait for an answer.
#[cfg(feature = "bare")]
#[test]
fn backlog_of_a_nic_is_kept_and_no_more() {
    let manager = BareManager::open().unwrap();
    let [one, other] = nics().map(|name| BareNic::open(name, COMPLETIONS).unwrap());
    let listener = manager.identifier().unwrap();
    let port = listener.bind((THERE, 0).into()).unwrap();
    listener.listen(BareManager::BACKLOG).unwrap();
    let mut dialler = Dialler { manager: BareManager::open().unwrap(), refused: 0 };
    let kept = BareManager::BACKLOG as usize;
    let dial = |_| {
        let mut dial = dialler.manager.identifier().unwrap();
        dial.resolve(HERE, (THERE, port).into(), RESOLVE_MS).unwrap();
        dialler.until("ADDR_RESOLVED");
        dial.resolve_route(RESOLVE_MS).unwrap();
        dialler.until("ROUTE_RESOLVED");
        dial.connect(Arc::new(initialised(&one)), b"backlog").unwrap();
        // The driver forgets connections of one instant beyond its backlog.
        sleep(LOOK_AGAIN);
        dial
    };
    let _dials: Vec<_> = (0..kept + PAST).map(dial).collect();
    // Soft-iWARP accepts one connection more before it asks.
    while is_soft_iwarp() && dialler.refused < PAST - 1 {
        dialler.until("REJECTED");
    }
    let mut taken: Vec<BareIdentifier> = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while taken.len() < kept {
        assert!(Instant::now() < deadline, "{} of {kept} are taken", taken.len());
        match manager.event().unwrap() {
            Some(event) => taken.extend(event.request),
            None => sleep(LOOK_AGAIN),
        }
    }
    println!("{}: {kept} are kept, {} are refused", driver(), dialler.refused);
    let mut last = taken.pop().unwrap();
    last.accept(Arc::new(initialised(&other)), b"taken").unwrap();
    dialler.until("ESTABLISHED");
    assert!(is_soft_iwarp() || dialler.refused == 0, "{} are refused", dialler.refused);
}

/// The events of dials, of which some are refused.
#[cfg(feature = "bare")]
struct Dialler {
    manager: BareManager,
    refused: usize,
}

#[cfg(feature = "bare")]
impl Dialler {
    /// Takes events until one of this kind, and counts refusals.
    #[track_caller]
    fn until(&mut self, kind: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "no {kind}, {} are refused", self.refused);
            let Some(event) = self.manager.event().unwrap() else {
                sleep(LOOK_AGAIN / 10);
                continue;
            };
            let seen = MANAGER_EVENTS[event.kind as usize];
            self.refused += usize::from(seen == "REJECTED");
            assert!([kind, "REJECTED"].contains(&seen), "{seen} instead of {kind}");
            if seen == kind {
                return;
            }
        }
    }
}

/// A device that is removed during a batch is lost: each slice of it ends once, and those of the peer fail. The removal
/// ends once the device is closed, for the kernel waits for that. Both work again once it is back.
#[test]
fn device_removed_under_a_batch_is_lost_and_returns() {
    let wire = Wire::new(21);
    let site = |side| Site::new(managed(&wire.device(side)));
    let (one, other) = (site(0), site(1));
    connect_lane(&one, &other, LANE, 1);
    one.post_all(&other, Direction::Write, SLICES);
    let mut removal = wire.removal(0);
    let begun = Instant::now();
    let until = |what: &str, is_so: &mut dyn FnMut() -> bool| {
        while !is_so() {
            assert!(begun.elapsed() < PATIENCE, "{what}");
            sleep(LOOK_AGAIN);
        }
    };
    until("the device is not lost", &mut || one.nic.lost().is_some());
    // Until its owner gives the device up, the kernel may carry out writes of the peer.
    let late = other.posting(&one, 0, Direction::Write, 0, 4096);
    one.nic.retire(LANE).unwrap();
    one.told.ends(SLICES);
    // With the memory, whose registration holds the device.
    drop(one);
    until("the kernel waits with the removal", &mut || removal.try_wait().unwrap().is_some());
    println!("removed within {} ms", begun.elapsed().as_millis());
    other.nic.post(LANE, &mut vec![late]);
    assert_ne!(other.told.ends(1), [CompletionStatus::Done], "written to a removed device");
    other.nic.retire(LANE).unwrap();
    other.told.forget();
    wire.device_returns(0);
    another_lane_works(&site(0), &other, Lifecycle(8));
}
