//! Devices whose queue pairs connect through the kernel's connection manager.

use super::hosts::answers;
use crate::scene::{NIC, Scene};
use handfast_diagnosis::doctor::{Check, Finding, LaneFailure, LaneStep, Outcome, Wanted};
use handfast_diagnosis::{Id, Severity, Side, ids};
use handfast_transport_rdma::{ManagerUnavailable, RdmaUnavailable};

const NAME: &str = "irdma0";
/// Its network interface, and another one above it.
const NETDEV: &str = "ens2f0";
const VLAN: &str = "ens2f0.100";

/// A machine with an iWARP device.
fn iwarp(mut scene: Scene) -> Scene {
    scene.card("0000:18:00.0", "0x8086", "0x37d2", "i40e");
    scene.file(&format!("sys/bus/pci/devices/0000:18:00.0/infiniband/{NAME}/node"), "");
    scene.device(NAME, "0000:18:00.0", "4: RNIC", "Ethernet");
    scene
}

/// A machine with an iWARP device, whose GID is the link address of its network interface.
fn iwarp_on_interface() -> Scene {
    let scene = iwarp(Scene::empty());
    interface(&scene, NETDEV);
    scene.gid(NAME, 0, "0200:0000:0007:0000:0000:0000:0000:0000", "IB/RoCE v1", "");
    scene
}

fn interface(scene: &Scene, name: &str) {
    scene.interface(name, 9000);
    scene.file(&format!("sys/class/net/{name}/address"), "02:00:00:00:00:07\n");
}

/// The same with an address.
fn iwarp_at(ip: &str) -> Scene {
    let scene = iwarp_on_interface();
    scene.address(NETDEV, ip);
    scene
}

fn node_b(mut scene: Scene) -> Scene {
    scene.request.host = "node-b".into();
    scene
}

/// The machine, whose peer answers as the other would.
fn beside(other: &Scene, mut scene: Scene) -> Scene {
    answers(&mut scene, other, 0);
    scene
}

/// Its findings, without the remark on each device of the kind.
fn findings(scene: &Scene) -> Vec<Finding> {
    let is_remark = |finding: &Finding| finding.id.as_str() == "IWARP-NO-OOB";
    scene.findings().into_iter().filter(|finding| !is_remark(finding)).collect()
}

/// Its one finding apart from that.
#[track_caller]
fn only(scene: &Scene, id: &str) -> Finding {
    let findings = findings(scene);
    let ids: Vec<_> = findings.iter().map(|finding| finding.id.as_str()).collect();
    assert_eq!(ids, [id], "{findings:#?}");
    findings.into_iter().next().unwrap()
}

/// The findings of the lane between the two.
fn of_lane(scene: &Scene) -> Vec<Id> {
    let of = |check: &Check| match &check.outcome {
        Outcome::Found(findings) if check.name == "lane" => findings.clone(),
        _ => Vec::new(),
    };
    scene.report().checks.iter().flat_map(of).map(|finding| finding.id).collect()
}

fn no_library() -> ManagerUnavailable {
    let detail = "librdmacm.so.1: cannot open shared object file".to_owned();
    RdmaUnavailable::NoLibrary { library: "librdmacm.so.1", detail }.into()
}

fn found(scene: &Scene) -> Vec<Finding> {
    let is_it = |finding: &Finding| finding.id.as_str() == "CM-MISSING";
    scene.findings().into_iter().filter(is_it).collect()
}

/// Without a device that connects out of band no lane is possible, and later probes say why they are
/// skipped.
#[test]
fn missing_connection_manager_is_fatal_if_every_device_needs_it() {
    let mut scene = iwarp(Scene::empty());
    scene.world.manager = Some(no_library());
    let [finding] = &found(&scene)[..] else { panic!("{:?}", scene.findings()) };
    assert_eq!((finding.severity, finding.device.as_deref()), (Severity::Fatal, Some(NAME)));
    assert_eq!(finding.command(), "apt-get install -y librdmacm1");
    assert!(finding.observed.contains("librdmacm.so.1: cannot open"), "{}", finding.observed);
    assert_eq!(scene.skipped().get("ports"), Some(&"CM-MISSING"));
    scene.request.wanted = Wanted::Auto;
    assert_eq!(found(&scene)[0].severity, Severity::Degraded, "lanes go over TCP");

    scene.world.manager = Some(ManagerUnavailable::NoChannel { code: 13 });
    let [finding] = &found(&scene)[..] else { panic!("{:?}", scene.findings()) };
    assert!(finding.command().starts_with("modprobe rdma_ucm"), "{}", finding.command());
    assert!(finding.observed.contains("/dev/infiniband/rdma_cm"), "{}", finding.observed);
}

/// A device that connects out of band takes the place of one that cannot.
#[test]
fn missing_connection_manager_degrades_beside_another_device() {
    let mut scene = iwarp(Scene::healthy());
    scene.world.manager = Some(no_library());
    assert_eq!(found(&scene)[0].severity, Severity::Degraded);
    // With the option it needs the connection manager as well.
    scene.request.connection_manager = true;
    let severities: Vec<_> = found(&scene).iter().map(|finding| finding.severity).collect();
    assert_eq!(severities, [Severity::Fatal; 2]);
}

/// Opening the channel may load a kernel module, and happens only for a device that needs it.
#[test]
fn connection_manager_is_asked_where_a_device_needs_it() {
    let scene = iwarp(Scene::empty());
    assert!(found(&scene).is_empty() && scene.world.asked_manager.get());
    let mut scene = Scene::healthy();
    scene.world.manager = Some(no_library());
    scene.is_healthy();
    assert!(!scene.world.asked_manager.get());
    scene.request.connection_manager = true;
    scene.finding("CM-MISSING");
}

/// The addresses of iWARP devices are those of their network interfaces: two hosts with them are compared
/// without a complaint, and a lane between them is tried.
#[test]
fn two_healthy_iwarp_hosts_get_no_complaint() {
    let other = node_b(iwarp_at("10.2.0.8"));
    let scene = beside(&other, iwarp_at("10.2.0.7"));
    assert_eq!(findings(&scene), []);
    assert!(!scene.skipped().contains_key("lane"), "{:?}", scene.skipped());
    // Its interface is unknown, as with a doctor of an earlier version: its address may be any of its host.
    other.remove(&format!("sys/class/net/{NETDEV}/address"));
    assert_eq!(findings(&beside(&other, iwarp_at("10.2.0.7"))), []);
}

/// A dial joins two addresses of one family.
#[test]
fn iwarp_hosts_of_different_families_cannot_be_joined() {
    let other = node_b(iwarp_on_interface());
    let line = format!("20010db8000000000000000000000008 02 40 00 80 {NETDEV}\n");
    other.file("proc/net/if_inet6", &line);
    let finding = only(&beside(&other, iwarp_at("10.2.0.7")), "GID-FAMILY");
    assert_eq!(finding.side, Side::Both);
    for part in ["10.2.0.7", "2001:db8::8"] {
        assert!(finding.observed.contains(part), "{}", finding.observed);
    }
}

/// The host without an address is named, also where it has not looked for RDMA itself.
#[test]
fn iwarp_host_without_an_address_is_named() {
    let mut other = node_b(iwarp_on_interface());
    for wanted in [Wanted::Rdma, Wanted::Tcp] {
        other.request.wanted = wanted;
        let finding = only(&beside(&other, iwarp_at("10.2.0.7")), "IP-MISSING");
        assert_eq!((finding.side, finding.severity), (Side::Remote, Severity::Fatal));
        assert!(finding.observed.contains("node-b"), "{}", finding.observed);
    }
    let finding = only(&beside(&other, iwarp_at("10.2.0.7")), "IP-MISSING");
    assert_eq!(finding.command(), "ip address add ADDRESS/PREFIX dev ens2f0");
}

/// Without an IP address there is none to listen at. Where the interface, or the one with the address,
/// is unknown, nothing is said.
#[test]
fn iwarp_device_without_an_address_is_found() {
    let scene = iwarp_on_interface();
    let finding = only(&scene, "IP-MISSING");
    assert_eq!((finding.severity, finding.device.as_deref()), (Severity::Fatal, Some(NAME)));
    assert_eq!(finding.command(), "ip address add ADDRESS/PREFIX dev ens2f0");
    assert!(finding.observed.contains("ens2f0 has no address"), "{}", finding.observed);
    let line = format!("fe800000000000000000000000000007 02 40 20 80 {NETDEV}\n");
    scene.file("proc/net/if_inet6", &line);
    only(&scene, "IP-MISSING");
    scene.file("proc/net/fib_trie", "     |-- 10.9.9.9\n        /32 host LOCAL\n");
    assert_eq!(findings(&scene), [], "an address without a network");
    let scene = iwarp_on_interface();
    scene.address("eth0", "10.4.0.7");
    only(&scene, "IP-MISSING");
    interface(&scene, VLAN);
    scene.address(VLAN, "10.3.0.7");
    assert_eq!(findings(&scene), [], "a VLAN has the link address as well");
    assert_eq!(findings(&iwarp_at("10.2.0.7")), []);
}

/// The address of `--gid` is one of the network interface.
#[test]
fn wanted_address_of_an_iwarp_device_is_checked() {
    let mut scene = iwarp_at("10.2.0.7");
    scene.request.gid = Some("10.9.9.9".parse().unwrap());
    let finding = only(&scene, "GID-ZERO");
    assert!(finding.observed.contains("irdma0: 10.2.0.7"), "{}", finding.observed);
    scene.request.gid = Some("10.2.0.7".parse().unwrap());
    assert_eq!(findings(&scene), []);
}

/// Lanes of iWARP devices are TCP connections: silence on one is not laid on the UDP port of RoCE.
#[test]
fn silence_on_an_iwarp_lane_is_no_filter_of_roce() {
    let mut scene = beside(&node_b(iwarp_at("10.2.0.8")), iwarp_at("10.2.0.7"));
    for (step, id) in [
        (LaneStep::Short, ids::PEER_LOST),
        (LaneStep::Short, ids::XFER_DEADLINE),
        (LaneStep::Connect, ids::CM_UNREACHED),
    ] {
        let (side, text) = (Side::Unknown, "silence".to_owned());
        scene.world.lane = Some(Err(LaneFailure { step, id, side, text }));
        assert!(only(&scene, id.as_str()).observed.contains("silence"));
    }
    scene.world.lane = None;
    assert_eq!(only(&scene, "CM-UNREACHED").severity, Severity::CannotTell);
}

/// Adds a device to a scene.
type Add = fn(&mut Scene);

/// Devices that cannot be used leave the judgement of a lane as it is: silence on iWARP is no filter of RoCE.
#[test]
fn unusable_device_beside_iwarp_is_no_filter_of_roce() {
    let efa = |scene: &mut Scene| {
        scene.card("0000:00:06.0", "0x1d0f", "0xefa1", "efa");
        scene.device("efa_0", "0000:00:06.0", "7: unspecified", "Unspecified");
    };
    let down = |scene: &mut Scene| {
        scene.roce(&NIC);
        scene.file(&format!("{}/state", Scene::port(NIC.name)), "1: DOWN\n");
    };
    let without_port = |scene: &mut Scene| {
        scene.roce(&NIC);
        scene.remove(&format!("sys/class/infiniband/{}/ports", NIC.name));
    };
    let cases: [(&str, Add); 3] = [("efa", efa), ("down", down), ("without a port", without_port)];
    for (name, add) in cases {
        let mut own = iwarp_at("10.2.0.7");
        add(&mut own);
        let mut scene = beside(&node_b(iwarp_at("10.2.0.8")), own);
        let (step, id, side) = (LaneStep::Short, ids::PEER_LOST, Side::Unknown);
        scene.world.lane = Some(Err(LaneFailure { step, id, side, text: "silence".into() }));
        let found = of_lane(&scene);
        assert_eq!(found, [ids::PEER_LOST], "{name}");
    }
}

/// The device that a failure names decides, of two kinds that can be used.
#[test]
fn silence_is_that_of_the_device_that_is_named() {
    let mut own = iwarp_at("10.2.0.7");
    own.roce(&NIC);
    let mut scene = beside(&node_b(iwarp_at("10.2.0.8")), own);
    for (name, expected) in [
        (NAME, ids::PEER_LOST),
        (NIC.name, ids::ROCE_UDP_FILTERED),
        ("mlx5_00", ids::ROCE_UDP_FILTERED),
        ("another", ids::ROCE_UDP_FILTERED),
    ] {
        let (step, id, side) = (LaneStep::Short, ids::PEER_LOST, Side::Unknown);
        let path = format!("node-b@{}", NIC.name);
        let text = format!("transfer failed for {path} (the peer's side): {name}: silence");
        scene.world.lane = Some(Err(LaneFailure { step, id, side, text }));
        assert_eq!(of_lane(&scene), [expected], "{name}");
    }
}
