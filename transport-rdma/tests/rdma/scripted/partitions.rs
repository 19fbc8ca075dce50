//! Stories of InfiniBand that connects through the connection manager: addresses are resolved, and lie in partitions.

use super::managed::{another_lane_works, connect_at_once, meeting, nothing_is_left, with};
use super::{on, on_devices};
use crate::support::{LANE, Site, config};
use handfast_core::Lifecycle;
use handfast_core::connection::Announcement;
use handfast_core::transport::Side;
use handfast_core::wire::Body;
use handfast_transport_rdma::{GidWanted, NicConfig};
use std::net::Ipv4Addr;
use std::time::Instant;

/// The time of a dial, and a margin for a busy machine.
const DIAL_SECONDS: u64 = 4 + 10;

/// Two NICs that connect through the connection manager by choice, at an address that is named as `--gid` does.
fn forced() -> (Site, Site) {
    let site = |device: &str, ip: Ipv4Addr| {
        let gid = GidWanted::Address(ip.to_ipv6_mapped());
        Site::new(NicConfig { connection_manager: true, gid, ..config(device) })
    };
    (site("rxe0", [10, 0, 0, 1].into()), site("rxe1", [10, 0, 0, 2].into()))
}

/// The partition that a message announces.
fn partition(body: &Body) -> Option<u16> {
    let announced = body.connection_manager.as_ref().expect("an announcement");
    announced.parse::<Announcement>().unwrap().partition
}

/// InfiniBand devices connect in the partition of their addresses, which they announce. A GRH changes nothing, and
/// devices of Ethernet announce none.
#[test]
fn lanes_connect_in_the_partition_of_their_addresses() {
    let profiles = [
        ("mlx5:infiniband", Some(0xffff)),
        ("mlx5:infiniband:partition=0x8001", Some(0x8001)),
        ("mlx5:infiniband:grh:partition=0x8001", Some(0x8001)),
        ("mlx5", None),
    ];
    let name = "partitions::lanes_connect_in_the_partition_of_their_addresses";
    on(&profiles.map(|(profile, _)| profile), name, |fabric| {
        let devices = std::env::var("HANDFAST_FABRIC").unwrap();
        let profile = |(profile, _): &&(&str, _)| devices.starts_with(&format!("rxe0={profile},"));
        let (_, expected) = profiles.iter().find(profile).expect("a profile of the story");
        let (one, other) = forced();
        assert_eq!(partition(&one.nic.create(LANE, &[1]).unwrap()), *expected);
        one.nic.retire(LANE).unwrap();
        connect_at_once(&one, &other, 20);
        another_lane_works(&one, &other, Lifecycle(100));
        nothing_is_left(fabric);
    });
}

/// A limited member of a partition has lanes to its full members.
#[test]
fn limited_member_connects_to_a_full_one() {
    let devices = "rxe0=mlx5:infiniband:partition=0x0001,\
                   rxe1=mlx5:infiniband:partition=0x8001:numbers_from=500";
    on_devices(devices, "partitions::limited_member_connects_to_a_full_one", |fabric| {
        let (one, other) = forced();
        another_lane_works(&one, &other, LANE);
        another_lane_works(&other, &one, Lifecycle(8));
        nothing_is_left(fabric);
    });
}

/// Addresses of two partitions are a configuration error of both sides before a dial, which names both partitions and
/// the cure. So are two limited members of one partition.
#[test]
fn partitions_apart_are_a_configuration_error() {
    let name = "partitions::partitions_apart_are_a_configuration_error";
    for [first, second] in [["0x8001", "0x8002"], ["0x0001", "0x0001"]] {
        let devices = format!(
            "rxe0=mlx5:infiniband:partition={first},\
             rxe1=mlx5:infiniband:partition={second}:numbers_from=500"
        );
        on_devices(&devices, name, |fabric| {
            let (one, other) = forced();
            let bodies =
                [one.nic.create(LANE, &[1]).unwrap(), other.nic.create(LANE, &[2]).unwrap()];
            let keys = bodies.each_ref().map(|body| format!("{:#06x}", partition(body).unwrap()));
            for (site, peer) in [(&one, &bodies[1]), (&other, &bodies[0])] {
                let error = site.nic.connect(LANE, peer).unwrap_err();
                assert_eq!((error.side, error.call), (Side::Configuration, "wire"), "{error}");
                for part in [&*keys[0], &keys[1], "10.0.0.1", "10.0.0.2", "--gid", "full member"] {
                    assert!(error.detail.contains(part), "{part}: {error}");
                }
                site.nic.retire(LANE).unwrap();
            }
            nothing_is_left(fabric);
        });
    }
}

/// A peer that announces no partition is dialled. Its address does not resolve, which ends the dial in time and names
/// the partition here.
#[test]
fn unresolved_address_names_the_partition() {
    let devices = "rxe0=mlx5:infiniband:partition=0x8001,\
                   rxe1=mlx5:infiniband:partition=0x8002:numbers_from=500";
    on_devices(devices, "partitions::unresolved_address_names_the_partition", |fabric| {
        let (one, other) = forced();
        let met = meeting(&one, &other, LANE);
        let own = partition(&met.dials_body).unwrap();
        let of_old_release = with(&met.waits_body, |it| it.partition = None);
        let begun = Instant::now();
        let error = met.dial(LANE, &of_old_release).unwrap_err();
        assert!(begun.elapsed().as_secs() < DIAL_SECONDS, "{:?}", begun.elapsed());
        assert_eq!((error.side, error.call), (Side::Peer, "rdma_connect"), "{error}");
        let words = ["cannot be reached".to_owned(), format!("partition, here {own:#06x}")];
        for part in words {
            assert!(error.detail.contains(&part), "{part}: {error}");
        }
        met.retire(LANE);
        nothing_is_left(fabric);
    });
}
