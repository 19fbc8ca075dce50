//! The way between two hosts.

use super::hosts::{PEER, beside, other};
use crate::scene::Scene;
use handfast_diagnosis::doctor::{Facts, Half, ROCE_PORT, encode, half};
use handfast_diagnosis::{Severity, Side};
use std::net::SocketAddr;

/// What both interfaces take, less the headers.
const FULL: usize = 9_000 - 28;

/// Two hosts of which the other answers datagrams.
fn over(ports: &[u16]) -> Scene {
    let other = other();
    let mut scene = beside(&other);
    let told = half(&Facts::read(crate::scene::root_of(&other)), &other.report(), 0);
    let told = Half { datagram_ports: ports.to_vec(), ..told };
    scene.world.answers = vec![(PEER.parse().unwrap(), "HFDOCTR1", Ok(encode(&told).unwrap()))];
    scene.passes(7412, FULL);
    scene
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
    // What is known to be smaller at one end is that end's fault.
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
    // A sixteenth of ten gigabits.
    scene.world.rate = Some(625_000_000 / 8);
    scene.is_healthy();
    scene.world.rate = Some(620_000_000 / 8);
    let finding = scene.finding("PERF-LOW");
    assert_eq!(finding.severity, Severity::Degraded);
    assert!(finding.observed.contains("620 Mb/s come"), "{}", finding.observed);
    // Of a link whose speed is not known nothing can be said, nor if nothing came.
    scene.remove("sys/class/net/ens1f0/speed");
    scene.is_healthy();
    scene.file("sys/class/net/ens1f0/speed", "25000\n");
    scene.world.rate = None;
    scene.is_healthy();
}
