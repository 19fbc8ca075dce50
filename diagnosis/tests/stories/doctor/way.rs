//! The way between two hosts.

use super::hosts::{LANE_PORT, PEER, beside, other};
use crate::scene::Scene;
use handfast_diagnosis::doctor::{Facts, Half, LaneFailure, LaneStep, ROCE_PORT, encode, half};
use handfast_diagnosis::{Id, Severity, Side, ids};
use std::net::SocketAddr;

/// The MTU of both interfaces, less the headers.
const FULL: usize = 9_000 - 28;

/// Two hosts of which the other answers datagrams.
fn over(ports: &[u16]) -> Scene {
    let other = other();
    let mut scene = beside(&other);
    told_with(&mut scene, &other, |told| told.datagram_ports = ports.to_vec());
    scene.passes(7412, FULL);
    scene
}

/// The report of the other side, with this change.
fn told_with(scene: &mut Scene, other: &Scene, change: impl FnOnce(&mut Half)) {
    let mut told = half(&Facts::read(crate::scene::root_of(other)), &other.report(), 0);
    told.lane_port = Some(LANE_PORT);
    change(&mut told);
    let address = scene.request.peer.as_ref().unwrap().parse().unwrap();
    scene.world.answers = vec![(address, "HFDOCTR1", Ok(encode(&told).unwrap()))];
}

impl Scene {
    fn passes(&mut self, port: u16, bytes: usize) {
        let address: SocketAddr = PEER.parse().unwrap();
        self.world.passes.insert(SocketAddr::new(address.ip(), port), bytes);
    }
}

#[test]
fn packets_of_the_full_size_that_are_lost_on_the_way_are_found() {
    let mut scene = over(&[7412]);
    scene.is_healthy();
    scene.passes(7412, FULL - 1);
    let finding = scene.finding("MTU-BLACKHOLE");
    assert_eq!((finding.severity, finding.side), (Severity::Fatal, Side::Unknown));
    assert_eq!(finding.command(), "ping -M do -s 8972 -c 3 -I ens1f0 10.1.0.8");
    // An MTU known to be smaller at one end is that end's fault.
    scene.interface("ens1f0", 1500);
    scene.passes(7412, 1500 - 28);
    scene.finding("MTU-MISMATCH");
    scene.world.passes.clear();
    scene.interface("ens1f0", 9000);
    assert_eq!(scene.finding("MTU-BLACKHOLE").severity, Severity::CannotTell);
}

#[test]
fn roces_port_that_alone_is_closed_is_found() {
    let mut scene = over(&[7412, ROCE_PORT]);
    let finding = scene.finding("ROCE-UDP-FILTERED");
    assert_eq!(finding.severity, Severity::Fatal);
    assert!(finding.observed.contains("not to UDP 4791"), "{}", finding.observed);
    scene.passes(ROCE_PORT, 100);
    scene.is_healthy();
    scene.world.passes.remove(&"10.1.0.8:4791".parse().unwrap());
    scene.request.wanted = handfast_diagnosis::doctor::Wanted::Tcp;
    scene.is_healthy();
}

#[test]
fn bytes_that_come_far_slower_than_the_links_are_is_told() {
    let mut other = other();
    other.file("sys/class/net/ens1f0/speed", "100000\n");
    other.request.peer = None;
    let mut scene = beside(&other);
    scene.file("sys/class/net/ens1f0/speed", "25000\n");
    told_with(&mut scene, &other, |told| told.loopback_mbps = 9_000);
    scene.world.loopback_mbps = 8_000;
    // A sixteenth of ten gigabits.
    scene.world.rate = Some(625_000_000 / 8);
    scene.is_healthy();
    scene.world.rate = Some(620_000_000 / 8);
    let finding = scene.finding("PERF-LOW");
    assert_eq!(finding.severity, Severity::Degraded);
    for part in ["620 Mb/s come", "8000 Mb/s and more"] {
        assert!(finding.observed.contains(part), "{}", finding.observed);
    }
    // A host that moves little more than that to itself is busy, whichever of the two it is.
    scene.world.loopback_mbps = 4 * 620 - 1;
    let finding = scene.finding("PERF-LOW");
    assert_eq!(finding.severity, Severity::CannotTell);
    assert!(
        finding.observed.contains("node-a moves only 2479 Mb/s to itself"),
        "{}",
        finding.observed
    );
    scene.world.loopback_mbps = 4 * 620;
    assert_eq!(scene.finding("PERF-LOW").severity, Severity::Degraded);
    told_with(&mut scene, &other, |_| {});
    let finding = scene.finding("PERF-LOW");
    assert_eq!(finding.severity, Severity::CannotTell);
    assert!(finding.observed.contains("could not be measured"), "{}", finding.observed);
    // Of a link whose speed is not known nothing can be said, nor if nothing came.
    scene.remove("sys/class/net/ens1f0/speed");
    scene.is_healthy();
    scene.file("sys/class/net/ens1f0/speed", "25000\n");
    scene.world.rate = None;
    scene.is_healthy();
}

/// As the kernel has it: the network, this host's own address, a network that is refused.
const ROUTES: &str = "\
fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001   ens1f0
fd000000000000000000000000000007 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000004 00000000 80200001       lo
fd000000000000000000000000000000 10 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000001 00000400 00000003 00000000 00000003     eth0
";

#[test]
fn packets_that_are_lost_for_their_size_are_found_over_ipv6_too() {
    let other = other();
    let mut scene = beside(&other);
    scene.request.peer = Some("[fd00::8]:7412".into());
    for host in [&scene, &other] {
        host.file("proc/net/ipv6_route", ROUTES);
    }
    told_with(&mut scene, &other, |told| told.datagram_ports = vec![7412]);
    let there: SocketAddr = "[fd00::8]:7412".parse().unwrap();
    scene.world.passes.insert(there, 9_000 - 48);
    scene.is_healthy();
    scene.world.passes.insert(there, 9_000 - 49);
    let finding = scene.finding("MTU-BLACKHOLE");
    assert_eq!(finding.command(), "ping -M do -s 8952 -c 3 -I ens1f0 fd00::8");
}

/// A lane to the other with this outcome.
fn with_lane(failure: Option<(LaneStep, Id, Side)>) -> Scene {
    let other = other();
    let mut scene = beside(&other);
    let failure = failure.map(|(step, id, side)| LaneFailure { step, id, side, text: "x".into() });
    scene.world.lane = Some(failure.map_or(Ok(()), Err));
    scene
}

#[test]
fn a_lane_between_two_nics_is_made_and_written_over() {
    with_lane(None).is_healthy();
    let silent = (LaneStep::Connect, ids::ROCE_UDP_FILTERED, Side::Unknown);
    let finding = with_lane(Some(silent)).finding("ROCE-UDP-FILTERED");
    assert_eq!(finding.severity, Severity::Fatal);
    assert!(finding.command().starts_with("nft insert rule"), "{}", finding.command());
    let mute = with_lane(Some((LaneStep::Short, ids::XFER_DEADLINE, Side::Remote)));
    assert_eq!(mute.finding("ROCE-UDP-FILTERED").side, Side::Unknown, "silence names nobody");
    with_lane(Some((LaneStep::Short, ids::WC_REM_ACCESS, Side::Both))).finding("WC-REM-ACCESS");
    // Of a lane that works for short packets alone.
    let finding = with_lane(Some((LaneStep::Write, ids::WC_RETRY, Side::Remote)));
    let finding = finding.finding("MTU-BLACKHOLE");
    assert_eq!(finding.side, Side::Unknown);
    assert_eq!(finding.command(), "ping -M do -s 8972 -c 3 -I ens1f0 10.1.0.8");
    with_lane(Some((LaneStep::Write, ids::WC_REM_ACCESS, Side::Both))).finding("WC-REM-ACCESS");
    let finding = with_lane(Some((LaneStep::Device, ids::LIM_MEMLOCK, Side::Local)));
    assert_eq!(finding.finding("LIM-MEMLOCK").side, Side::Local);
    // A lane is not tried if RDMA is not wanted, or impossible.
    let mut scene = with_lane(Some(silent));
    scene.request.wanted = handfast_diagnosis::doctor::Wanted::Tcp;
    scene.is_healthy();
    scene.request.wanted = handfast_diagnosis::doctor::Wanted::Rdma;
    scene.world.lane = None;
    assert_eq!(scene.finding("ROCE-UDP-FILTERED").severity, Severity::CannotTell);
    scene.world.lane = Some(Ok(()));
    told_with(&mut scene, &other(), |told| told.lane_port = None);
    let finding = scene.finding("ROCE-UDP-FILTERED");
    assert_eq!(finding.severity, Severity::CannotTell);
    assert!(finding.observed.contains("node-b does not support the test"));
}
