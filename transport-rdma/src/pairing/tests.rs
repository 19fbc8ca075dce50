use super::*;
use crate::gid::{GidKind, GidWanted, usable_gids};
use crate::profile::STRICT;
use handfast_core::{Incarnation, Lifecycle};

fn address(text: &str) -> Ipv6Addr {
    match text.parse().unwrap() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// The usable addresses of a side, in order.
fn side(addresses: &[&str]) -> Vec<GidEntry> {
    let entries: Vec<_> = addresses
        .iter()
        .zip(0..)
        .map(|(text, index)| GidEntry {
            index,
            address: address(text),
            kind: GidKind::RoceV2,
            interface: 2,
        })
        .collect();
    usable_gids(&entries, GidWanted::Automatic, &STRICT).unwrap()
}

/// Addresses reach one another within one subnet of 24 bits, IPv4, or 64 bits.
struct Subnets(Vec<GidEntry>);

fn is_one_subnet(one: Ipv6Addr, other: Ipv6Addr) -> bool {
    let bytes = if one.to_ipv4_mapped().is_some() { 15 } else { 8 };
    one.octets()[..bytes] == other.octets()[..bytes]
}

impl Routes for Subnets {
    fn source_towards(&self, peer: Ipv6Addr) -> Option<Ipv6Addr> {
        self.0.iter().map(|entry| entry.address).find(|own| is_one_subnet(*own, peer))
    }

    fn reaches(&self, own: &GidEntry, peer: Ipv6Addr) -> bool {
        is_one_subnet(own.address, peer)
    }
}

/// Lanes that two sides announce to one another until one can be wired; the count, and both ends.
fn lanes_until_connected(one: &[&str], other: &[&str]) -> Option<(usize, Ipv6Addr, Ipv6Addr)> {
    let (one, other) = (side(one), side(other));
    let (mut ours, mut theirs) = (AddressBook::default(), AddressBook::default());
    for count in 1..=8 {
        let a = ours.announce("b", &one, &Subnets(one.clone())).unwrap().entry.address;
        let b = theirs.announce("a", &other, &Subnets(other.clone())).unwrap().entry.address;
        if is_one_family(a, b) && is_one_subnet(a, b) {
            ours.on_connected("b", a, b);
            theirs.on_connected("a", b, a);
            return Some((count, a, b));
        }
        ours.on_failed("b", a, b);
        theirs.on_failed("a", b, a);
    }
    None
}

#[test]
fn sides_that_fit_wire_the_first_lane() {
    let connected = lanes_until_connected(&["10.0.0.1", "fd00::1"], &["10.0.0.2", "fe80::2"]);
    assert_eq!(connected, Some((1, address("10.0.0.1"), address("10.0.0.2"))));
}

/// The side with both families uses the one that its peer has.
#[test]
fn dual_family_side_follows_its_peer() {
    let connected = lanes_until_connected(&["10.0.0.1", "fd00::1"], &["fd00::2"]);
    assert_eq!(connected, Some((2, address("fd00::1"), address("fd00::2"))));
    let connected = lanes_until_connected(&["fe80::1"], &["2001:db8::2", "fe80::2", "10.0.0.2"]);
    assert_eq!(connected, Some((2, address("fe80::1"), address("fe80::2"))));
}

/// Two sides with two subnets in different order do not swap for ever.
#[test]
fn address_choice_converges_across_subnets() {
    let (one, other) = (["10.0.0.1", "10.0.1.1"], ["10.0.1.2", "10.0.0.2"]);
    let (count, a, b) = lanes_until_connected(&one, &other).unwrap();
    assert!(count <= 3 && is_one_subnet(a, b), "{count} {a} {b}");
    // The side that is to move first cannot; the other follows after its second failure.
    let (count, a, b) = lanes_until_connected(&["10.0.0.1", "10.0.9.1"], &["10.0.9.2"]).unwrap();
    assert!(count <= 4, "{count}");
    assert_eq!((a, b), (address("10.0.9.1"), address("10.0.9.2")));
}

/// A failed address is retried once all have failed, and the reason says so.
#[test]
fn failed_address_is_retried_after_all_failed() {
    let own = side(&["10.0.0.1", "10.0.1.1"]);
    let peer = address("192.168.0.9");
    let mut book = AddressBook::default();
    let routes = Subnets(own.clone());
    let mut announced = Vec::new();
    for _ in 0..6 {
        let chosen = book.announce("far", &own, &routes).unwrap();
        announced.push(chosen.entry.index);
        book.on_failed("far", chosen.entry.address, peer);
    }
    assert!(announced.contains(&0) && announced.contains(&1), "{announced:?}");
    let chosen = book.announce("far", &own, &routes).unwrap();
    assert!(chosen.why.contains("failed"), "{}", chosen.why);
    book.on_connected("far", chosen.entry.address, peer);
    assert_eq!(book.announce("far", &own, &routes).unwrap().entry, chosen.entry);
}

#[test]
fn peers_and_pairs_are_remembered_up_to_their_limits() {
    let own = side(&["10.0.0.1"]);
    let mut book = AddressBook::default();
    for n in 0..=PEERS_REMEMBERED_MAX {
        book.announce(&format!("peer-{n}"), &own, &Subnets(own.clone()));
    }
    assert_eq!(book.announce("nobody", &[], &Subnets(Vec::new())), None);
    assert_eq!(book.peers(), PEERS_REMEMBERED_MAX);
    assert!(!book.peers.contains_key("peer-0"), "the longest unused is forgotten");
    for n in 0..=PAIRS_REMEMBERED_MAX as u16 {
        book.on_failed("peer-7", own[0].address, Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n));
    }
    assert_eq!(book.peers["peer-7"].failed.len(), PAIRS_REMEMBERED_MAX);
}

#[test]
fn the_kernel_tells_its_way_to_this_host_itself() {
    let own = side(&["127.0.0.1"])[0];
    let peer = address("127.0.0.1");
    assert_eq!(KernelRoutes.source_towards(peer), Some(peer));
    assert!(KernelRoutes.reaches(&own, peer));
    let nobodys = GidEntry { address: address("203.0.113.77"), ..own };
    assert!(!KernelRoutes.reaches(&nobodys, peer), "an address that this host does not have");
}

/// A peer address known before the first lane is matched at once.
#[test]
fn known_peer_address_is_matched_at_once() {
    let both = side(&["10.0.0.1", "fd00:1::1"]);
    let routes = Subnets(both.clone());
    let mut book = AddressBook::default();
    book.on_seen("peer", address("fd00:1::9"), None);
    let announced =
        |book: &mut AddressBook| book.announce("peer", &both, &routes).unwrap().entry.address;
    assert_eq!(announced(&mut book), address("fd00:1::1"));
    // Announced before it was known that the peer is of another family.
    let mut book = AddressBook::default();
    assert_eq!(announced(&mut book), address("10.0.0.1"));
    let theirs = address("fd00:1::9");
    for _ in 0..4 {
        // Announced by a descriptor, and by one request sent repeatedly.
        book.on_seen("peer", theirs, None);
        book.on_seen("peer", theirs, request(1));
        assert_eq!(announced(&mut book), address("10.0.0.1"), "that is no failure");
    }
    let seen = (2..6).find(|lifecycle| {
        book.on_seen("peer", theirs, request(*lifecycle));
        announced(&mut book) == address("fd00:1::1")
    });
    assert!(seen.is_some(), "the peer cannot move and sees no failure of ours");
}

/// A connected peer that announces an address of another family has lost its own: the next
/// announcement fits it, without a failed lane in between.
#[test]
fn peer_that_lost_its_address_is_followed_at_once() {
    let both = side(&["10.0.0.1", "fd00:1::1"]);
    let routes = Subnets(both.clone());
    let mut book = AddressBook::default();
    let announced =
        |book: &mut AddressBook| book.announce("peer", &both, &routes).unwrap().entry.address;
    book.on_seen("peer", address("10.0.0.9"), request(1));
    assert_eq!(announced(&mut book), address("10.0.0.1"));
    book.on_connected("peer", address("10.0.0.1"), address("10.0.0.9"));
    book.on_seen("peer", address("fd00:1::9"), request(2));
    assert_eq!(announced(&mut book), address("fd00:1::1"));
    book.on_seen("peer", address("10.0.0.9"), request(3));
    assert_eq!(announced(&mut book), address("fd00:1::1"), "that pair was never connected");
}

fn request(lifecycle: u64) -> Option<Pair> {
    Some(Pair { incarnation: Incarnation(1), lifecycle: Lifecycle(lifecycle) })
}
