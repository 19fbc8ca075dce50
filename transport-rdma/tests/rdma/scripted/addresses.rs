//! Stories of the address at which the connection manager of a NIC listens, and of its places.

use super::managed::{MANAGED, another_lane_works, meeting, nothing_is_left};
use super::{on, sites};
use crate::support::{LANE, Site, config, connect_lane};
use handfast_core::Lifecycle;
use handfast_core::transport::Side;
use handfast_transport::NicLimit;
use handfast_transport_rdma::{DeviceEvent, Nic, NicConfig};
use std::net::IpAddr;

const EADDRINUSE: i32 = 98;
const EADDRNOTAVAIL: i32 = 99;
/// Source ports of a dial beyond its first.
const SOURCE_PORTS: u32 = 8;
/// The call that looks for an address.
const BIND: &str = "rdma_bind_addr";
/// A port that an administrator has chosen, and one that the driver erdma takes.
const PORT: u16 = 18_515;
const PORT_OF_ERDMA: u16 = 30_610;

/// The address of IPv6 of a scripted device, by its place in the list.
fn ipv6_of(place: u16) -> IpAddr {
    [0x2001, 0xdb8, 0, 0, 0, 0, 0, place + 1].into()
}

/// A NIC that listens at its device's address of IPv6.
fn at_ipv6(place: u16) -> Site {
    let config = config(&format!("rxe{place}"));
    Site::new(NicConfig { manager_address: Some(ipv6_of(place)), ..config })
}

/// Once the address has left at which a NIC listens, its next lane is not created, for this side's reason, and the NIC is
/// lost: a device of iWARP has no event of it. Opened again at the address that it has then, it connects.
#[test]
fn nic_whose_address_left_is_lost_at_its_next_lane() {
    let name = "addresses::nic_whose_address_left_is_lost_at_its_next_lane";
    on(&MANAGED, name, |fabric| {
        let (one, other) = sites();
        another_lane_works(&one, &other, LANE);
        fabric.run("manager address rxe0 ipv4 leaves");
        let error = one.nic.create(Lifecycle(8), &[1]).unwrap_err();
        assert_eq!((error.side, error.call), (Side::Local, BIND), "{error}");
        assert!(error.detail.contains("10.0.0.1"), "{error}");
        assert!(one.nic.lost().is_some_and(|lost| lost.call == BIND));
        one.told.wait("the loss", |told| told.events.contains(&DeviceEvent::DeviceLost));
        assert_eq!((one.nic.lanes(), one.nic.load().queue_pairs), (0, 0));
        drop((one, other));
        let (one, other) = (at_ipv6(0), at_ipv6(1));
        let body = one.nic.create(Lifecycle(9), &[1]).unwrap();
        let announced = body.connection_manager.unwrap_or_default();
        assert!(announced.starts_with("[2001:db8::1]:"), "{announced}");
        one.nic.retire(Lifecycle(9)).unwrap();
        another_lane_works(&one, &other, Lifecycle(10));
        assert!(one.nic.lost().is_none());
    });
}

/// A NIC listens at the port that was chosen, which another device has at its own address too. A second NIC at that address
/// is refused by the port and the option, and one at a port that the driver erdma takes before the device is asked.
#[test]
fn chosen_port_is_listened_at_by_one_nic() {
    on(&MANAGED, "addresses::chosen_port_is_listened_at_by_one_nic", |fabric| {
        let at = |device, manager_port| NicConfig { manager_port, ..config(device) };
        let (one, other) = (Site::new(at("rxe0", PORT)), Site::new(at("rxe1", PORT)));
        for (site, address) in [(&one, "10.0.0.1"), (&other, "10.0.0.2")] {
            let body = site.nic.create(LANE, &[1]).unwrap();
            let announced = body.connection_manager.unwrap_or_default();
            assert!(announced.starts_with(&format!("{address}:{PORT} ")), "{address}");
            site.nic.retire(LANE).unwrap();
        }
        another_lane_works(&one, &other, Lifecycle(8));
        let refused = |config| Nic::open(config, one.told.clone()).err().expect("it is refused");
        let error = refused(at("rxe0", PORT));
        assert_eq!((error.side, error.call), (Side::Configuration, BIND), "{error}");
        for part in [&*format!("10.0.0.1:{PORT}"), "--rdma-cm-port", "in use"] {
            assert!(error.detail.contains(part), "{part}: {error}");
        }
        let error = refused(at("rxe0", PORT_OF_ERDMA));
        assert_eq!((error.side, error.call), (Side::Configuration, "open"), "{error}");
        assert!(error.detail.contains("manager_port"), "{error}");
        drop(one);
        another_lane_works(&Site::new(at("rxe0", PORT)), &other, Lifecycle(9));
        nothing_is_left(fabric);
    });
}

/// A dial from an address that has left is this side's failure: it says nothing of the peer.
#[test]
fn dial_from_an_address_that_left_blames_this_side() {
    let name = "addresses::dial_from_an_address_that_left_blames_this_side";
    on(&MANAGED, name, |fabric| {
        let (one, other) = sites();
        let met = meeting(&one, &other, LANE);
        fabric.run(&format!("manager address {} ipv4 leaves", met.dials.nic.device()));
        let error = met.dial(LANE, &met.waits_body).unwrap_err();
        assert_eq!((error.side, error.call), (Side::Local, BIND), "{error}");
        assert!(met.dials.nic.lost().is_some());
        assert!(met.waits.nic.lost().is_none());
        met.retire(LANE);
    });
}

/// The source port that the kernel chose for a dial has a connection of TCP: others are tried, and the same lane
/// connects.
#[test]
fn taken_source_port_costs_no_lane() {
    on(&MANAGED, "addresses::taken_source_port_costs_no_lane", |fabric| {
        let (one, other) = sites();
        for (lane, code) in [(LANE, EADDRINUSE), (Lifecycle(8), EADDRNOTAVAIL)] {
            let met = meeting(&one, &other, lane);
            let device = met.dials.nic.device();
            fabric.run(&format!("fail call {device} rdma_connect {code} times {SOURCE_PORTS}"));
            met.dial(lane, &met.waits_body).unwrap();
            met.retire(lane);
        }
        another_lane_works(&one, &other, Lifecycle(9));
        nothing_is_left(fabric);
    });
}

/// A dial whose source port TCP has is this side's failure. It names the port and the range of such ports, costs one lane,
/// and asks the peer for nothing.
#[test]
fn source_port_that_tcp_has_is_named() {
    on(&MANAGED, "addresses::source_port_that_tcp_has_is_named", |fabric| {
        let (one, other) = sites();
        for (lane, code) in [(LANE, EADDRINUSE), (Lifecycle(8), EADDRNOTAVAIL)] {
            let met = meeting(&one, &other, lane);
            // The first, and those that are tried in its place.
            let device = met.dials.nic.device();
            fabric
                .run(&format!("fail call {device} rdma_connect {code} times {}", SOURCE_PORTS + 1));
            let error = met.dial(lane, &met.waits_body).unwrap_err();
            let expected = (Side::Local, "rdma_connect", code);
            assert_eq!((error.side, error.call, error.code), expected, "{error}");
            assert!(error.detail.contains("ip_local_port_range"), "{error}");
            let named = error.detail.split_once("TCP holds port ").map(|(_, rest)| rest);
            let (port, rest) = named.and_then(|rest| rest.split_once(' ')).unwrap();
            assert!(port.parse::<u16>().is_ok_and(|port| port != 0), "{error}");
            assert!(rest.starts_with("of 10.0.0."), "{error}");
            assert!(met.dials.nic.lost().is_none());
            met.retire(lane);
        }
        another_lane_works(&one, &other, Lifecycle(9));
        nothing_is_left(fabric);
    });
}

/// On RoCE the event of the addresses is the notice: the NIC is lost with its lanes, and its next opening takes the
/// address that is left.
#[test]
fn changed_addresses_lose_a_nic_that_listens_there() {
    let name = "addresses::changed_addresses_lose_a_nic_that_listens_there";
    on(&["rxe:ipv6"], name, |fabric| {
        let forced = |device| {
            let chosen = NicConfig { connection_manager: true, ..config(device) };
            Site::new(NicConfig { manager_address: None, ..chosen })
        };
        let (one, other) = (forced("rxe0"), forced("rxe1"));
        connect_lane(&one, &other, LANE, 1);
        assert_eq!(one.nic.fail_unaddressed(), Ok(0));
        for (device, site) in [("rxe0", &one), ("rxe1", &other)] {
            fabric.run(&format!("gid {device} remove {}", site.nic.gid().entry.index));
            let error = site.nic.fail_unaddressed().unwrap_err();
            assert_eq!((error.side, error.call), (Side::Local, BIND), "{error}");
            assert!(site.nic.lost().is_some());
            let failures = site.told.failures();
            assert!(failures.iter().any(|(lane, error)| {
                *lane == LANE && error.side == Side::Local && &*error.call == BIND
            }));
        }
        for site in [&one, &other] {
            site.nic.retire(LANE).unwrap();
        }
        drop((one, other));
        let (one, other) = (forced("rxe0"), forced("rxe1"));
        let body = one.nic.create(Lifecycle(8), &[1]).unwrap();
        let announced = body.connection_manager.unwrap_or_default();
        assert!(announced.starts_with("[2001:db8::1]:"), "{announced}");
        one.nic.retire(Lifecycle(8)).unwrap();
        another_lane_works(&one, &other, Lifecycle(9));
    });
}

/// NICs that listen at addresses of different families do not connect: before a dial both sides name the two addresses and
/// the option that cures it, and none is retried. At addresses of one family they connect.
#[test]
fn addresses_of_two_families_are_a_configuration_error() {
    let name = "addresses::addresses_of_two_families_are_a_configuration_error";
    on(&MANAGED, name, |fabric| {
        let (one, other) = (Site::new(config("rxe0")), at_ipv6(1));
        let first = one.nic.create(LANE, &[1]).unwrap();
        let second = other.nic.create(LANE, &[2]).unwrap();
        for (site, peer, [own, of_peer]) in [
            (&one, &second, ["10.0.0.1 here", "2001:db8::2 on the peer"]),
            (&other, &first, ["2001:db8::2 here", "10.0.0.1 on the peer"]),
        ] {
            let error = site.nic.connect(LANE, peer).unwrap_err();
            assert_eq!((error.side, error.call), (Side::Configuration, "wire"), "{error}");
            for part in [own, of_peer, "--gid"] {
                assert!(error.detail.contains(part), "{part}: {error}");
            }
            site.nic.retire(LANE).unwrap();
        }
        nothing_is_left(fabric);
        drop(one);
        another_lane_works(&at_ipv6(0), &other, Lifecycle(8));
    });
}

/// A lane that the connection manager does not take leaves nothing behind: its queue pair is destroyed, and its places
/// and its lifecycle are free. The error names the limit, so that another lane can make room.
#[test]
fn refused_announcement_leaves_nothing() {
    on(&MANAGED, "addresses::refused_announcement_leaves_nothing", |fabric| {
        let one = Site::new(NicConfig { connections_max: 2, ..config("rxe0") });
        let lanes = [Lifecycle(1), Lifecycle(2)];
        for lane in lanes {
            one.nic.create(lane, &[1]).unwrap();
        }
        let pairs = fabric.run("pairs rxe0");
        for _ in 0..2 {
            let error = one.nic.create(Lifecycle(3), &[1]).unwrap_err();
            let limit = error.limit.expect("a limit");
            assert!(matches!(limit.limit, NicLimit::QueuePairs), "{error}");
            assert_eq!((limit.in_use, limit.max), (2, 2), "{error}");
            assert_eq!(fabric.run("pairs rxe0"), pairs);
            assert_eq!((one.nic.lanes(), one.nic.load().queue_pairs), (2, 2));
        }
        for lane in lanes {
            one.nic.retire(lane).unwrap();
        }
        assert_eq!(one.nic.load().queue_pairs, 0);
        one.nic.create(Lifecycle(3), &[1, 2]).unwrap();
        one.nic.retire(Lifecycle(3)).unwrap();
    });
}
