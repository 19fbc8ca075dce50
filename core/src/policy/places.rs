//! Places of connections at a port: the connection that makes room for a newcomer.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::{IpAddr, Ipv6Addr};

/// A connection that has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placed {
    /// Its number; a later connection has a greater one.
    pub id: u64,
    /// The address that it comes from.
    pub from: IpAddr,
    /// Whether it is within a call.
    pub is_busy: bool,
    /// Whether a call of it has ended.
    pub has_called: bool,
    /// Bytes moved and calls answered since it began.
    pub progress: u64,
}

/// Room for a newcomer at a port whose places are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Room {
    /// The connection with this number is closed.
    Displace(u64),
    /// None: the newcomer's network holds more than half of the places.
    Share,
    /// None: connections are within calls, and no network holds more than half of the places.
    Busy,
}

/// Returns the network that a connection comes from: the address of IPv4, the first 64 bits of IPv6.
/// A host may choose any address of the network, and a rack may share one.
pub fn network_of(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)))
        }
        address => address,
    }
}

/// Finds room for a connection from `newcomer`; without one, for any.
///
/// A quiet connection makes room first: of the network with the most of them the oldest of the address
/// with the most. A newcomer of a network with more than half of the places displaces quiet ones of its
/// own network alone. For one of another network, and without quiet ones, the network with more than half
/// of the places loses the busy connection with the least progress of the older half of its own.
pub fn room(places_max: usize, placed: &[Placed], newcomer: Option<IpAddr>) -> Room {
    let newcomer = newcomer.map(network_of);
    let holder = holder(places_max, placed);
    let is_of_holder = newcomer.is_some() && newcomer == holder;
    let quiet = placed.iter().filter(|it| !it.is_busy);
    let quiet = quiet.filter(|it| !is_of_holder || Some(network_of(it.from)) == holder);
    if let Some(id) = choose(places_max, &quiet.copied().collect::<Vec<_>>()) {
        return Room::Displace(id);
    }
    match (newcomer, holder) {
        (Some(_), Some(_)) if is_of_holder => Room::Share,
        (Some(_), Some(network)) => laggard(placed, network).map_or(Room::Busy, Room::Displace),
        _ => Room::Busy,
    }
}

/// The network with more than half of the places.
fn holder(places_max: usize, placed: &[Placed]) -> Option<IpAddr> {
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for it in placed {
        *counts.entry(network_of(it.from)).or_default() += 1;
    }
    counts.into_iter().find(|(_, count)| *count > places_max / 2).map(|(network, _)| network)
}

/// The busy connection of a network with the least progress. The younger half had less time for it.
fn laggard(placed: &[Placed], network: IpAddr) -> Option<u64> {
    let of_network = placed.iter().filter(|it| it.is_busy && network_of(it.from) == network);
    let mut busy: Vec<_> = of_network.map(|it| (it.id, it.progress)).collect();
    busy.sort_unstable();
    let older = &busy[..busy.len().div_ceil(2)];
    older.iter().min_by_key(|(id, progress)| (*progress, *id)).map(|(id, _)| *id)
}

/// Returns the source with the most connections, and its oldest; among equals the one with the oldest.
fn largest(connections: impl Iterator<Item = (u64, IpAddr)>) -> Option<(IpAddr, u64)> {
    let mut sources: BTreeMap<IpAddr, (usize, Reverse<u64>)> = BTreeMap::new();
    for (id, source) in connections {
        sources.entry(source).or_insert((0, Reverse(id))).0 += 1;
    }
    let (source, (_, oldest)) = sources.into_iter().max_by_key(|(_, count)| *count)?;
    Some((source, oldest.0))
}

/// Chooses among quiet connections, so that a crowd displaces its own. Those without a call go first, as
/// long as the others fill no more than half of the places.
fn choose(places_max: usize, quiet: &[Placed]) -> Option<u64> {
    let have_called = quiet.iter().filter(|it| it.has_called).count();
    let are_spared = have_called <= places_max / 2 && quiet.len() > have_called;
    let chosen = || quiet.iter().filter(|it| !(are_spared && it.has_called));
    let (network, _) = largest(chosen().map(|it| (it.id, network_of(it.from))))?;
    let of_network = chosen().filter(|it| network_of(it.from) == network);
    largest(of_network.map(|it| (it.id, it.from))).map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the fault of a choice among quiet connections, of which a port has `MAX`.
    fn fault(quiet: &[Placed], chosen: Option<u64>) -> Option<&'static str> {
        let called = quiet.iter().filter(|it| it.has_called).count();
        let spares = called <= MAX / 2 && called < quiet.len();
        let may_go: Vec<_> = quiet.iter().filter(|it| !spares || !it.has_called).collect();
        let Some(id) = chosen else {
            return (!may_go.is_empty()).then_some("no connection is closed");
        };
        let Some(chosen) = may_go.iter().find(|it| it.id == id) else {
            return Some("one that has called, or is none of them");
        };
        let of_network =
            |from| may_go.iter().filter(move |it| network_of(it.from) == network_of(from)).count();
        let of_address = |from| may_go.iter().filter(move |it| it.from == from);
        let shares = |it: &&&Placed| network_of(it.from) == network_of(chosen.from);
        if may_go.iter().any(|it| of_network(it.from) > of_network(chosen.from)) {
            return Some("another network has more");
        }
        let own = of_address(chosen.from).count();
        if may_go.iter().filter(shares).any(|it| of_address(it.from).count() > own) {
            return Some("another address of the network has more");
        }
        let is_oldest = of_address(chosen.from).all(|it| it.id >= id);
        (!is_oldest).then_some("an older one of the address stays")
    }

    const MAX: usize = 4;

    /// Two addresses of one network, and one of another.
    fn addresses() -> [IpAddr; 3] {
        ["2001:db8::1", "2001:db8::2", "10.0.0.1"].map(|it| it.parse().unwrap())
    }

    /// The addresses of a host under IPv6 share 64 bits; those of IPv4 are networks of one.
    #[test]
    fn network_is_half_of_an_address() {
        let of = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }

    /// Every set of up to five quiet connections from three addresses, two of one network.
    fn sets() -> impl Iterator<Item = Vec<Placed>> {
        let addresses = addresses();
        (0..=5u32).flat_map(move |count| {
            (0..6u32.pow(count)).map(move |number| {
                let of = |id: u32| {
                    let kind = number / 6u32.pow(id) % 6;
                    let (from, has_called) = (addresses[kind as usize / 2], kind % 2 == 1);
                    Placed { id: id.into(), from, is_busy: false, has_called, progress: 0 }
                };
                (0..count).map(of).collect()
            })
        })
    }

    /// The choice keeps every rule in every small set of connections, and three wrong choices do not.
    #[test]
    fn choice_is_right_in_every_small_set() {
        let oldest = |quiet: &[Placed]| quiet.first().map(|it| it.id);
        let newest = |quiet: &[Placed]| quiet.last().map(|it| it.id);
        let spares_all = |quiet: &[Placed]| {
            let not_called: Vec<_> = quiet.iter().filter(|it| !it.has_called).copied().collect();
            choose(MAX, &not_called)
        };
        let mut wrong = [0; 3];
        for quiet in sets() {
            assert_eq!(fault(&quiet, choose(MAX, &quiet)), None, "{quiet:?}");
            let others = [oldest(&quiet), newest(&quiet), spares_all(&quiet)];
            for (count, chosen) in wrong.iter_mut().zip(others) {
                *count += u32::from(fault(&quiet, chosen).is_some());
            }
        }
        assert!(wrong.iter().all(|count| *count > 100), "{wrong:?}");
    }

    /// Returns the fault of room at a full port.
    fn fault_of_room(placed: &[Placed], newcomer: IpAddr, room: Room) -> Option<&'static str> {
        let held = |from| {
            let shares = |it: &&Placed| network_of(it.from) == network_of(from);
            placed.iter().filter(shares).count()
        };
        let is_crowd = held(newcomer) > MAX / 2;
        let is_crowded = placed.iter().any(|it| held(it.from) > MAX / 2);
        let has_quiet = placed.iter().any(|it| !it.is_busy);
        let id = match room {
            Room::Share if !is_crowd => return Some("a newcomer of a small network has no share"),
            Room::Share => None,
            Room::Busy if has_quiet && !is_crowd => return Some("a quiet one stays"),
            Room::Busy if is_crowded => return Some("a crowd keeps a newcomer out"),
            Room::Busy => None,
            Room::Displace(id) => Some(id),
        };
        let Some(displaced) = id.and_then(|id| placed.iter().find(|it| it.id == id)) else {
            return id.map(|_| "it is none of them");
        };
        let is_own = network_of(displaced.from) == network_of(newcomer);
        let others = placed.iter().filter(|it| network_of(it.from) == network_of(displaced.from));
        let mut busy: Vec<_> = others.filter(|it| it.is_busy).collect();
        busy.sort_unstable_by_key(|it| it.id);
        let older = &busy[..busy.len().div_ceil(2)];
        match displaced.is_busy {
            _ if is_crowd && !is_own => Some("a crowd displaces another network"),
            false => None,
            true if has_quiet => Some("a busy one goes, and a quiet one stays"),
            true if is_own => Some("a crowd displaces a call"),
            true if held(displaced.from) <= MAX / 2 => Some("a small network loses a call"),
            true if !older.iter().any(|it| it.id == displaced.id) => Some("a young one goes"),
            true => {
                let moved_less = older.iter().any(|it| it.progress < displaced.progress);
                moved_less.then_some("one with less progress stays")
            }
        }
    }

    /// In every full set of connections a crowd within its calls keeps out its own network alone, and
    /// displaces no other.
    #[test]
    fn busy_crowd_keeps_no_other_network_out() {
        let addresses = addresses();
        let (mut calls_lost, mut refused, mut wrong) = (0, 0, [0; 2]);
        // Each of four connections: three addresses, quiet, or busy without or with progress.
        for number in 0..9u32.pow(4) {
            let of = |id: u32| {
                let kind = number / 9u32.pow(id) % 9;
                let (from, rest) = (addresses[kind as usize / 3], kind % 3);
                let (is_busy, progress) = (rest > 0, u64::from(rest / 2));
                Placed { id: id.into(), from, is_busy, has_called: false, progress }
            };
            let placed: Vec<_> = (0..4).map(of).collect();
            for newcomer in addresses {
                let room = room(MAX, &placed, Some(newcomer));
                assert_eq!(fault_of_room(&placed, newcomer, room), None, "{room:?}: {placed:?}");
                let is_call = |id| placed.iter().any(|it| it.id == id && it.is_busy);
                calls_lost += u32::from(matches!(room, Room::Displace(id) if is_call(id)));
                refused += u32::from(room == Room::Share);
                let quiet: Vec<_> = placed.iter().filter(|it| !it.is_busy).copied().collect();
                let quiet_alone = choose(MAX, &quiet).map_or(Room::Busy, Room::Displace);
                for (count, room) in wrong.iter_mut().zip([quiet_alone, Room::Displace(0)]) {
                    *count += u32::from(fault_of_room(&placed, newcomer, room).is_some());
                }
            }
        }
        assert!(calls_lost > 100 && refused > 100, "{calls_lost} {refused}");
        assert!(wrong.iter().all(|count| *count > 100), "{wrong:?}");
    }

    /// Without a newcomer, as for a shortage of descriptors, no call is lost.
    #[test]
    fn shortage_costs_no_call() {
        let from = addresses()[0];
        let busy = Placed { id: 0, from, is_busy: true, has_called: true, progress: 0 };
        let crowd: Vec<_> = (0..MAX as u64).map(|id| Placed { id, ..busy }).collect();
        assert_eq!(room(MAX, &crowd, None), Room::Busy);
        assert_eq!(room(MAX, &crowd, Some(addresses()[2])), Room::Displace(0));
        assert_eq!(room(0, &[], Some(from)), Room::Busy);
    }
}
