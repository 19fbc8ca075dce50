//! Stories of the side that a connection which does not come about is charged to.

use super::managed::{MANAGED, Meeting, another_lane_works, meeting, nothing_is_left};
use super::on;
#[cfg(feature = "bare")]
use crate::stranger::answers_are_not_the_peers;
use crate::support::{LANE, PATIENCE, Site, config, connect_lane};
use handfast_core::connection::Announcement;
use handfast_core::transport::Side;
use handfast_core::wire::Body;
use handfast_core::{Lifecycle, NicPath};
use handfast_fabric_control::Fabric;
use handfast_transport::{CompletionStatus, Direction};
use handfast_transport_rdma::NicConfig;
use std::thread::yield_now;
use std::time::Instant;

/// The profiles that connect through the connection manager alone, and soft-RoCE that is forced to.
const EACH: [&str; 4] = [MANAGED[0], MANAGED[1], MANAGED[2], "rxe"];
const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;
const ETIMEDOUT: i32 = 110;
const EHOSTUNREACH: i32 = 113;
/// The status of an event of a step of librdmacm's own.
const OWN_STEP: i32 = -1;

/// Two sites whose dials no slow machine ends.
fn sites() -> (Site, Site) {
    let site = |device| {
        let config = config(device);
        let (dial, timeout_exponent) = (PATIENCE, 20);
        Site::new(NicConfig { dial, timeout_exponent, connection_manager: true, ..config })
    };
    (site("rxe0"), site("rxe1"))
}

/// A step of the dialler's own that fails is this side's failure, and the next lane does not ask the peer to dial. An
/// address, a route or an answer that the network withholds is the peer's, and the next lane asks.
#[test]
fn failed_step_of_a_dial_is_charged_by_its_status() {
    let name = "blame::failed_step_of_a_dial_is_charged_by_its_status";
    on(&EACH, name, |fabric| {
        let (one, other) = sites();
        let peer = NicPath::parse("peer@nic").unwrap();
        for (lane, (event, status, call, asks)) in (10..).step_by(10).zip([
            ("CONNECT_ERROR", OWN_STEP, "rdma_connect", false),
            ("CONNECT_ERROR", -EHOSTUNREACH, "rdma_connect", true),
            ("ADDR_ERROR", -ENOMEM, "rdma_resolve_addr", false),
            ("ADDR_ERROR", -ETIMEDOUT, "rdma_connect", true),
            ("ROUTE_ERROR", OWN_STEP, "rdma_resolve_route", false),
            ("ROUTE_ERROR", -EINVAL, "rdma_connect", true),
        ]) {
            let [mine, second] = bodies(&one, &other, (&peer, lane));
            let (dials, told, waits, dialled) = match pair(&mine) < pair(&second) {
                true => (&one, &second, &other, &mine),
                false => (&other, &mine, &one, &second),
            };
            waits.nic.note_request(Some(&peer), dialled);
            fabric.run(&format!("manager fail {} {event} {status}", dials.nic.device()));
            let error = dials.nic.connect(Lifecycle(lane), told).unwrap_err();
            let side = if asks { Side::Peer } else { Side::Local };
            assert_eq!((error.side, error.call), (side, call), "{event} {status}: {error}");
            let code = if status == OWN_STEP { 0 } else { status.abs() };
            assert_eq!(error.code.abs(), code, "{event} {status}: {error}");
            retire([&one, &other], lane);
            let [mine, second] = bodies(&one, &other, (&peer, lane + 1));
            let next = if std::ptr::eq(dials, &one) { mine } else { second };
            assert_eq!(announcement(&next).asks, asks, "{event} {status}");
            retire([&one, &other], lane + 1);
        }
        another_lane_works(&one, &other, Lifecycle(100));
        nothing_is_left(fabric);
    });
}

/// A request whose dialler is gone by the accept is the peer's end: the accept fails, and this side has no part in it.
#[test]
fn accept_after_the_dialler_is_gone_is_the_peers() {
    let name = "blame::accept_after_the_dialler_is_gone_is_the_peers";
    on(&EACH, name, |fabric| {
        let (one, other) = sites();
        let met = meeting(&one, &other, LANE);
        give_up_dial(fabric, &met);
        met.dials.nic.retire(LANE).unwrap();
        // Its events come behind that of the end, which is known by then.
        another_lane_works(&one, &other, Lifecycle(8));
        let error = met.waits.nic.connect(LANE, &met.dials_body).unwrap_err();
        assert_eq!(error.side, Side::Peer, "{error}");
        assert!(error.detail.contains("was disconnected"), "{error}");
        met.waits.nic.retire(LANE).unwrap();
        another_lane_works(&one, &other, Lifecycle(9));
        nothing_is_left(fabric);
    });
}

/// A program at the peer's address that accepts a dial and does not prove that it is the peer is refused.
#[cfg(feature = "bare")]
#[test]
fn answer_of_a_stranger_is_not_the_peers() {
    on(&EACH, "blame::answer_of_a_stranger_is_not_the_peers", |fabric| {
        let (one, other) = sites();
        answers_are_not_the_peers(&one, &other);
        nothing_is_left(fabric);
    });
}

/// A queue pair whose number is in timewait at the peer is rejected, which costs its lifecycle: the next one has another
/// number, or the same one after the timewait, and asks nobody. The end of a timewait changes nothing of a lane.
#[test]
fn number_in_timewait_costs_one_lifecycle() {
    on(&EACH, "blame::number_in_timewait_costs_one_lifecycle", |fabric| {
        let (one, other) = sites();
        let met = meeting(&one, &other, LANE);
        let (device, number) = (met.dials.nic.device(), met.dials_body.queue_pairs[0]);
        fabric.run(&format!("manager stale {device} {number}"));
        let error = met.dial(LANE, &met.waits_body).unwrap_err();
        assert_eq!((error.side, error.call), (Side::Peer, "rdma_connect"), "{error}");
        for part in ["rejected the connection", "(reason 10, the number of the queue pair"] {
            assert!(error.detail.contains(part), "{error}");
        }
        assert!(!error.detail.contains("more requests wait"), "{error}");
        met.retire(LANE);
        fabric.run(&format!("manager timewait {device} {number}"));
        [&one, &other].into_iter().for_each(|site| site.told.forget());
        let met = meeting(&one, &other, Lifecycle(8));
        assert!(!announcement(&met.dials_body).asks);
        met.dial(Lifecycle(8), &met.waits_body).unwrap();
        fabric.run(&format!("manager timewait {device} {}", met.dials_body.queue_pairs[0]));
        met.waits.nic.connect(Lifecycle(8), &met.dials_body).unwrap();
        let slice = met.dials.posting(met.waits, 0, Direction::Write, 0, 64);
        met.dials.nic.post(Lifecycle(8), &mut vec![slice]);
        assert_eq!(met.dials.told.ends(1), [CompletionStatus::Done]);
        assert_eq!(met.dials.told.failures(), []);
        met.retire(Lifecycle(8));
        nothing_is_left(fabric);
    });
}

/// A disconnect that fails, such as on iWARP a queue pair that takes no step to SQD, leaves nothing: the lane retires, and
/// the end of its identifier reaches the peer.
#[test]
fn failed_disconnect_ends_with_the_identifier() {
    on(&EACH, "blame::failed_disconnect_ends_with_the_identifier", |fabric| {
        let (one, other) = sites();
        connect_lane(&one, &other, LANE, 2);
        fabric.run(&format!("fail call rxe0 rdma_disconnect {EINVAL} times 2"));
        one.nic.retire(LANE).unwrap();
        other.told.wait("the failure", |told| !told.failures.is_empty());
        let (lane, error) = other.told.failures().remove(0);
        assert_eq!((lane, error.side), (LANE, Side::Peer), "{error}");
        assert!(error.detail.contains("was disconnected"), "{error}");
        other.nic.retire(LANE).unwrap();
        another_lane_works(&one, &other, Lifecycle(8));
        nothing_is_left(fabric);
    });
}

/// A lane that this side retires while its dial waits for the address, for the route or for the answer ends the dial, and
/// its event finds nobody later: nothing is left, and the next lane works.
#[test]
fn retired_dial_ends_in_each_state() {
    on(&EACH, "blame::retired_dial_ends_in_each_state", |fabric| {
        let (one, other) = sites();
        for (number, (event, stage)) in (10..).step_by(10).zip([
            ("ADDR_RESOLVED", "resolved"),
            ("ROUTE_RESOLVED", "routed"),
            ("ESTABLISHED", "dialling"),
        ]) {
            let lane = Lifecycle(number);
            let met = meeting(&one, &other, lane);
            let device = met.dials.nic.device();
            fabric.run(&format!("manager hold {device} {event}"));
            std::thread::scope(|scope| {
                let dialled = scope.spawn(|| met.dial(lane, &met.waits_body));
                wait_for(fabric, device, stage);
                met.dials.nic.retire(lane).unwrap();
                let error = dialled.join().unwrap().unwrap_err();
                assert!(!error.detail.contains("in time"), "{event}: {error}");
            });
            fabric.run(&format!("manager release {device} {event}"));
            met.waits.nic.retire(lane).unwrap();
            [&one, &other].into_iter().for_each(|site| site.told.forget());
            another_lane_works(&one, &other, Lifecycle(number + 1));
            nothing_is_left(fabric);
        }
    });
}

/// A connection that the accepting side ends before the dialler has the answer fails the dial, for the peer.
#[test]
fn accepted_connection_that_ends_fails_its_dial() {
    on(&EACH, "blame::accepted_connection_that_ends_fails_its_dial", |fabric| {
        let (one, other) = sites();
        let met = meeting(&one, &other, LANE);
        let (dialler, device) = (met.dials.nic.device(), met.waits.nic.device());
        fabric.run(&format!("manager hold {dialler} ESTABLISHED"));
        std::thread::scope(|scope| {
            let dialled = scope.spawn(|| met.dial(LANE, &met.waits_body));
            // The answer of iWARP establishes the side that sends it.
            let accepted = if met.waits.nic.recognised().profile.name == "rxe" {
                "accepted"
            } else {
                "connected"
            };
            wait_for(fabric, device, accepted);
            let number = met.waits_body.queue_pairs[0];
            fabric.run(&format!("manager disconnect {device} {number}"));
            let error = dialled.join().unwrap().unwrap_err();
            assert_eq!(error.side, Side::Peer, "{error}");
            assert!(!error.detail.contains("in time"), "{error}");
        });
        fabric.run(&format!("manager release {dialler} ESTABLISHED"));
        met.retire(LANE);
        [&one, &other].into_iter().for_each(|site| site.told.forget());
        another_lane_works(&one, &other, Lifecycle(8));
        nothing_is_left(fabric);
    });
}

/// Waits until a connection of a device is in this stage.
fn wait_for(fabric: &Fabric, device: &str, stage: &str) {
    let begun = Instant::now();
    while !fabric.run(&format!("manager list {device}")).contains(stage) {
        assert!(begun.elapsed() < PATIENCE, "no connection of {device} is {stage}");
        yield_now();
    }
}

/// Dials, and ends the dial once its request waits for the peer's connect.
fn give_up_dial(fabric: &Fabric, met: &Meeting<'_>) {
    std::thread::scope(|scope| {
        let dialled = scope.spawn(|| met.dials.nic.connect(LANE, &met.waits_body).unwrap_err());
        let begun = Instant::now();
        let waits = format!("manager list {}", met.waits.nic.device());
        while !fabric.run(&waits).contains("requested") {
            assert!(begun.elapsed() < PATIENCE, "no request");
            yield_now();
        }
        let (device, number) = (met.dials.nic.device(), met.dials_body.queue_pairs[0]);
        fabric.run(&format!("manager disconnect {device} {number}"));
        let error = dialled.join().unwrap();
        assert!(error.detail.contains("cannot be reached"), "{error}");
    });
}

/// A lane of both sites to a peer of one name.
fn bodies(one: &Site, other: &Site, (peer, lane): (&NicPath, u64)) -> [Body; 2] {
    let body = |site: &Site, psn| site.nic.create_for(peer, Lifecycle(lane), &[psn]).unwrap();
    [body(one, 1), body(other, 2)]
}

fn retire(sites: [&Site; 2], lane: u64) {
    sites.into_iter().for_each(|site| site.nic.retire(Lifecycle(lane)).unwrap());
}

fn announcement(body: &Body) -> Announcement {
    body.connection_manager.as_ref().expect("an announcement").parse().unwrap()
}

fn pair(body: &Body) -> handfast_core::Pair {
    announcement(body).pair
}
