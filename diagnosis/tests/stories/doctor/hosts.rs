//! Two hosts side by side.

use crate::scene::{NIC, Nic, Scene, root_of};
use handfast_diagnosis::doctor::{AskFailure, Facts, encode, half};
use handfast_diagnosis::{Language, Severity, Side, Style};
use std::net::SocketAddr;

pub(super) const PEER: &str = "10.1.0.8:7412";
/// The other host's NIC.
const OTHER: Nic<'_> = Nic { ip: "10.1.0.8", ..NIC };

pub(super) fn other() -> Scene {
    let mut scene = Scene::empty();
    scene.roce(&OTHER);
    scene.request.host = "node-b".into();
    scene
}

/// The port at which the other accepts lanes.
pub(super) const LANE_PORT: u16 = 7500;

/// A machine whose peer answers as the other would.
pub(super) fn beside(other: &Scene) -> Scene {
    let mut scene = Scene::healthy();
    answers(&mut scene, other, 0);
    scene
}

pub(super) fn answers(scene: &mut Scene, other: &Scene, unix_s: u64) {
    let mut told = half(&Facts::read(root_of(other)), &other.report(), unix_s);
    told.lane_port = Some(LANE_PORT);
    let frame = encode(&told).unwrap();
    scene.request.peer = Some(PEER.to_owned());
    scene.world.answers = vec![(PEER.parse().unwrap(), "HFDOCTR1", Ok(frame))];
    scene.world.lane = Some(Ok(()));
}

#[test]
fn two_healthy_hosts_get_no_complaint() {
    let scene = beside(&other());
    scene.is_healthy();
    assert_eq!(scene.report().peer(), Some("node-b"));
}

#[test]
fn a_peer_that_cannot_be_reached_is_found_by_the_way_it_fails() {
    let address: SocketAddr = PEER.parse().unwrap();
    for (code, id) in [
        (111, "NET-REFUSED"),
        (0, "NET-FILTERED"),
        (113, "NET-UNREACHABLE"),
        (101, "NET-UNREACHABLE"),
    ] {
        let mut scene = beside(&other());
        scene.world.answers = vec![(address, "", Err(AskFailure::Connect(code)))];
        assert!(scene.finding(id).observed.contains(PEER));
        assert_eq!(scene.skipped().get("pair"), Some(&id));
    }
    let mut scene = beside(&other());
    scene.request.peer = Some("nobody:7412".into());
    scene.finding("NET-UNRESOLVED");
}

#[test]
fn a_port_of_something_else_cannot_be_compared_with() {
    for (answer, id) in [
        (Ok(b"HTTP/1.1 400\r\n\r\n".to_vec()), "NET-RESET"),
        (Err(AskFailure::Broken), "NET-RESET"),
        (Err(AskFailure::Silent), "NET-FILTERED"),
    ] {
        let mut scene = beside(&other());
        scene.world.answers = vec![(PEER.parse().unwrap(), "", answer)];
        let finding = scene.finding(id);
        assert_eq!(finding.severity, Severity::Fatal);
        // Its port is not free.
        assert_eq!(finding.command(), "handfast doctor --listen 10.1.0.8:7413");
        assert!(finding.remedy(Language::English).starts_with("Start a doctor"));
        assert_eq!(scene.skipped().get("pair"), Some(&id));
    }
    let mut scene = beside(&other());
    scene.request.peer = Some("10.1.0.8:7411".into());
    scene.world.answers = vec![("10.1.0.8:7411".parse().unwrap(), "", Err(AskFailure::Broken))];
    let command = scene.finding("NET-RESET").command();
    assert_eq!(command, "handfast doctor --listen 10.1.0.8:7412");
}

#[test]
fn where_nobody_listens_a_doctor_is_to_be_started() {
    let mut scene = beside(&other());
    scene.world.answers = Vec::new();
    let finding = scene.finding("NET-REFUSED");
    assert_eq!(finding.command(), format!("handfast doctor --listen {PEER}"));
}

#[test]
fn what_is_no_address_of_another_host_is_not_asked() {
    for peer in ["0.0.0.0:7412", "[::]:7412"] {
        let mut scene = beside(&other());
        scene.request.peer = Some(peer.into());
        assert_eq!(scene.finding("NET-LOOPBACK").command(), "handfast doctor --peer HOST:7412");
    }
    for peer in ["10.1.0.8", "10.1.0.8:99999", "10.1.0.8:", ":7412"] {
        let mut scene = beside(&other());
        scene.request.peer = Some(peer.into());
        assert_eq!(scene.finding("CONFIG-INVALID").severity, Severity::Fatal);
        assert!(scene.world.asked.borrow().is_empty(), "{peer}");
    }
}

#[test]
fn the_side_with_the_smaller_mtu_is_at_fault() {
    let small = other();
    small.interface("ens1f0", 1500);
    let finding = beside(&small).finding("MTU-MISMATCH");
    assert_eq!(finding.side, Side::Remote);
    let mut scene = beside(&other());
    scene.interface("ens1f0", 1500);
    let finding = scene.finding("MTU-MISMATCH");
    assert_eq!((finding.side, &*finding.command()), (Side::Local, "ip link set ens1f0 mtu 9000"));
    scene.interface("ens1f0", 9000);
    scene.is_healthy();
    scene.request.wanted = handfast_diagnosis::doctor::Wanted::Tcp;
    scene.is_healthy();
}

#[test]
fn what_is_fatal_at_the_other_host_is_told_as_its_own() {
    let mut down = other();
    down.file(&format!("{}/state", Scene::port("mlx5_0")), "1: DOWN\n");
    down.request.peer = None;
    let finding = beside(&down)
        .findings()
        .into_iter()
        .find(|finding| finding.id.as_str() == "PORT-DOWN")
        .unwrap();
    assert_eq!(finding.side, Side::Remote);
    assert!(finding.observed.starts_with("at node-b: mlx5_0 port 1: DOWN"), "{}", finding.observed);
}

#[test]
fn sides_of_different_families_cannot_be_joined() {
    let six = other();
    let none = "0000:0000:0000:0000:0000:0000:0000:0000";
    six.gid("mlx5_0", 2, none, "", "");
    six.gid("mlx5_0", 3, "2001:0db8:0000:0000:0000:0000:0000:0008", "RoCE v2", "ens1f0");
    assert_eq!(beside(&six).finding("GID-FAMILY").side, Side::Both);
}

#[test]
fn a_peer_in_a_network_without_a_route_is_found() {
    let mut far = Scene::empty();
    far.roce(&Nic { ip: "10.9.0.8", ..NIC });
    far.request.host = "node-b".into();
    let scene = beside(&far);
    let finding = scene.finding("IP-SUBNET");
    assert_eq!(finding.command(), "ip route add 10.9.0.8 dev ens1f0");
    scene.address("ens1f0", "10.9.0.7");
    scene.is_healthy();
}

#[test]
fn an_address_that_was_asked_for_in_vain_is_a_risk() {
    let scene = beside(&other());
    let table = "IP address HW type Flags HW address Mask Device\n10.1.0.8 0x1 0x0 00:00:00:00:00:00 * ens1f0\n";
    scene.file("proc/net/arp", table);
    assert_eq!(scene.finding("NEIGH-FAILED").command(), "ping -c 3 -I ens1f0 10.1.0.8");
    scene.file("proc/net/arp", &table.replace("0x0", "0x2"));
    scene.is_healthy();
}

#[test]
fn devices_of_different_links_and_clocks_apart_are_found() {
    let mut infiniband = Scene::empty();
    infiniband.request.host = "node-b".into();
    infiniband.card("0000:5e:00.0", "0x15b3", "0x101d", "mlx5_core");
    infiniband.device("mlx5_0", "0000:5e:00.0", "1: CA", "InfiniBand");
    beside(&infiniband).finding("LINK-LAYER");
    let mut scene = Scene::healthy();
    answers(&mut scene, &other(), 6);
    assert!(scene.finding("CLOCK-SKEW").observed.contains("6 s"));
    answers(&mut scene, &other(), 5);
    scene.is_healthy();
}

/// Packets between ports of InfiniBand are led by LIDs: a GID of the link is enough.
#[test]
fn two_infiniband_hosts_need_no_ip_address() {
    let infiniband = |gid: &str| {
        let mut scene = Scene::empty();
        scene.card("0000:5e:00.0", "0x15b3", "0x101d", "mlx5_core");
        scene.device("mlx5_0", "0000:5e:00.0", "1: CA", "InfiniBand");
        scene.gid("mlx5_0", 0, &format!("fe80:0000:0000:0000:506b:4b03:0005:{gid}"), "IB", "");
        scene
    };
    let (mut scene, mut other) = (infiniband("1234"), infiniband("1235"));
    other.request.host = "node-b".into();
    answers(&mut scene, &other, 0);
    scene.is_healthy();
}

#[test]
fn a_host_without_devices_is_the_one_at_fault() {
    let mut none = Scene::empty();
    none.request.host = "node-b".into();
    none.request.wanted = handfast_diagnosis::doctor::Wanted::Auto;
    let finding = beside(&none).finding("DEV-NONE");
    assert_eq!(finding.side, Side::Remote);
    assert!(finding.observed.contains("node-b"), "{}", finding.observed);
}

#[test]
fn what_should_be_alike_and_is_not_is_marked_beside_or_below() {
    let small = other();
    small.interface("ens1f0", 1500);
    for columns in [40, 100] {
        let style = Style { language: Language::English, columns, colour: false };
        let sound = beside(&other()).report().words(&style);
        assert!(sound.contains("node-a") && sound.contains("node-b"), "{sound}");
        assert!(!sound.contains('\u{2260}'), "{sound}");
        let unlike = beside(&small).report().words(&style);
        assert_eq!(unlike.matches('\u{2260}').count(), 1, "{unlike}");
        assert!(unlike.contains("\u{2260} path MTU"), "{unlike}");
        assert!(unlike.contains("the other host, node-b"), "{unlike}");
        let shown = unlike.lines().filter(|line| !line.trim_start().starts_with('$'));
        for line in shown {
            assert!(line.chars().count() <= columns + 2, "{columns}: {line}");
        }
    }
}
