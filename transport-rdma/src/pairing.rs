//! Choice of the local address to announce to a peer.
//!
//! A message carries one GID, and a queue pair takes packets only from the announced one. The
//! address of a lane is therefore fixed by its announcement; a mismatch shows at the connect, and
//! the next lane to that peer uses another address.

use crate::gid::{ChosenGid, GidEntry, rank};
use handfast_core::Pair;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

/// Maximum remembered peers; at the limit the least recently used one is forgotten.
pub const PEERS_REMEMBERED_MAX: usize = 1_024;
/// Maximum remembered failed pairs of a peer; at the limit the oldest is forgotten.
pub const PAIRS_REMEMBERED_MAX: usize = 16;
/// Failures after which the second side changes its address too.
const FAILURES_MAX: u32 = 2;
/// RoCE's UDP port: used for route look-ups, never sent to.
const ROCE_PORT: u16 = 4791;

/// The kernel's routing.
pub trait Routes {
    /// The source address that the kernel would choose towards `peer`: one of the peer's
    /// subnet, or of the route there.
    fn source_towards(&self, peer: Ipv6Addr) -> Option<Ipv6Addr>;

    /// Whether a route leads from the address to the peer's.
    fn reaches(&self, own: &GidEntry, peer: Ipv6Addr) -> bool;
}

/// The routes of this host, looked up without sending packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelRoutes;

impl Routes for KernelRoutes {
    fn source_towards(&self, peer: Ipv6Addr) -> Option<Ipv6Addr> {
        let any = if peer.to_ipv4_mapped().is_some() {
            IpAddr::from([0, 0, 0, 0])
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((peer.to_canonical(), ROCE_PORT)).ok()?;
        match socket.local_addr().ok()?.ip() {
            IpAddr::V4(address) => Some(address.to_ipv6_mapped()),
            IpAddr::V6(address) => Some(address),
        }
    }

    fn reaches(&self, own: &GidEntry, peer: Ipv6Addr) -> bool {
        let end = |address: Ipv6Addr, port| match address.to_canonical() {
            IpAddr::V4(address) => SocketAddr::from((address, port)),
            // A link-local address needs its interface.
            IpAddr::V6(address) => SocketAddrV6::new(address, port, 0, own.interface).into(),
        };
        UdpSocket::bind(end(own.address, 0))
            .is_ok_and(|socket| socket.connect(end(peer, ROCE_PORT)).is_ok())
    }
}

/// Addresses of different families cannot be connected.
pub(crate) fn is_one_family(own: Ipv6Addr, peer: Ipv6Addr) -> bool {
    own.to_ipv4_mapped().is_some() == peer.to_ipv4_mapped().is_some()
}

/// Tried pairs of addresses, by peer.
#[derive(Debug, Default)]
pub struct AddressBook {
    peers: BTreeMap<String, Known>,
    uses: u64,
}

#[derive(Debug, Default)]
struct Known {
    used: u64,
    /// The address announced last.
    own: Option<Ipv6Addr>,
    /// The peer's address seen last.
    peer: Option<Ipv6Addr>,
    /// The peer's last request that announced it.
    request: Option<Pair>,
    /// Both addresses were connected since either changed.
    is_connected: bool,
    failed: Vec<Failed>,
}

#[derive(Debug)]
struct Failed {
    own: Ipv6Addr,
    peer: Ipv6Addr,
    times: u32,
}

impl Known {
    fn failures(&self, own: Ipv6Addr, peer: Ipv6Addr) -> u32 {
        let pair = |failed: &&Failed| (failed.own, failed.peer) == (own, peer);
        self.failed.iter().find(pair).map_or(0, |failed| failed.times)
    }

    /// Whether this side should change its address.
    fn is_left(&self, own: &GidEntry, peer: Ipv6Addr) -> bool {
        let enough = if moves_first(own, peer) { 1 } else { FAILURES_MAX };
        self.failures(own.address, peer) >= enough
    }
}

/// The side that leaves its address first when both know both, so that they do not swap for ever:
/// the one of the better class, since the other would have announced that class if it had any;
/// within one class the higher address.
pub(crate) fn moves_first(own: &GidEntry, peer: Ipv6Addr) -> bool {
    let class = |entry: &GidEntry| rank(entry).map_or(u8::MAX, |(class, _)| class);
    let theirs = GidEntry { address: peer, interface: own.interface.max(1), ..*own };
    match class(own).cmp(&class(&theirs)) {
        std::cmp::Ordering::Less => true,
        std::cmp::Ordering::Equal => own.address > peer,
        std::cmp::Ordering::Greater => false,
    }
}

impl AddressBook {
    /// The address to announce to `peer`, of `candidates`, which are in order; `None` if there are
    /// none. Stays with what was announced before until that has failed; then: the peer's family,
    /// pairs that failed less, the source that the kernel would take, what has a route, the order
    /// given.
    pub fn announce(
        &mut self,
        peer: &str,
        candidates: &[GidEntry],
        routes: &dyn Routes,
    ) -> Option<ChosenGid> {
        let default = candidates.first()?;
        let known = self.known(peer);
        let announced = known.own.and_then(|own| candidates.iter().find(|c| c.address == own));
        let chosen = match (known.peer, announced) {
            (None, _) => ChosenGid { entry: *default, why: first(default) },
            (Some(theirs), Some(entry)) if !known.is_left(entry, theirs) => {
                ChosenGid { entry: *entry, why: format!("{entry}: announced to {peer} before") }
            }
            (Some(theirs), _) => best(known, candidates, theirs, routes)?,
        };
        known.own = Some(chosen.entry.address);
        Some(chosen)
    }

    /// Records a peer's announced address before any connect; the next announcement to it fits
    /// that. A peer that answers our announcement with a new `request` from the other family has no
    /// fitting address or sees no failure itself, which counts as a failure of the pair. A repeated
    /// request, or an address from another source, says nothing new. A peer that leaves an address
    /// that was connected for one of another family has lost it, and is followed at once.
    pub fn on_seen(&mut self, peer: &str, theirs: Ipv6Addr, request: Option<Pair>) {
        let known = self.known(peer);
        let same = known.peer.replace(theirs) == Some(theirs);
        if !same && std::mem::take(&mut known.is_connected) {
            known.own = known.own.filter(|own| is_one_family(*own, theirs));
        }
        let last = known.request;
        known.request = request.or(last);
        let again = same && last.is_some() && known.request != last;
        let foreign = known.own.filter(|own| again && !is_one_family(*own, theirs));
        if let Some(own) = foreign {
            self.on_failed(peer, own, theirs);
        }
    }

    /// Records a pair that failed because no route connects its addresses, as far as this side sees.
    pub fn on_failed(&mut self, peer: &str, own: Ipv6Addr, theirs: Ipv6Addr) {
        let known = self.known(peer);
        known.peer = Some(theirs);
        let same = |failed: &&mut Failed| (failed.own, failed.peer) == (own, theirs);
        if let Some(failed) = known.failed.iter_mut().find(same) {
            failed.times = failed.times.saturating_add(1);
            return;
        }
        if known.failed.len() == PAIRS_REMEMBERED_MAX {
            known.failed.remove(0);
        }
        known.failed.push(Failed { own, peer: theirs, times: 1 });
    }

    /// Records a connected pair, which clears its earlier failures.
    pub fn on_connected(&mut self, peer: &str, own: Ipv6Addr, theirs: Ipv6Addr) {
        let known = self.known(peer);
        (known.own, known.peer, known.is_connected) = (Some(own), Some(theirs), true);
        known.failed.retain(|failed| (failed.own, failed.peer) != (own, theirs));
    }

    /// Number of remembered peers.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    fn known(&mut self, peer: &str) -> &mut Known {
        self.uses += 1;
        if !self.peers.contains_key(peer) && self.peers.len() >= PEERS_REMEMBERED_MAX {
            let oldest = self.peers.iter().min_by_key(|(_, known)| known.used);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.peers.remove(&oldest);
            }
        }
        let known = self.peers.entry(peer.to_owned()).or_default();
        known.used = self.uses;
        known
    }
}

fn first(entry: &GidEntry) -> String {
    let words = rank(entry).map_or("", |(_, words)| words);
    format!("{entry}: {words}, the first of ours, for nothing is known of the peer's")
}

fn best(
    known: &Known,
    candidates: &[GidEntry],
    peer: Ipv6Addr,
    routes: &dyn Routes,
) -> Option<ChosenGid> {
    let source = routes.source_towards(peer);
    let order = |entry: &GidEntry| {
        let own = entry.address;
        let foreign = !is_one_family(own, peer);
        let failures = known.failures(own, peer);
        let is_source = source == Some(own);
        let routed = !foreign && (is_source || routes.reaches(entry, peer));
        (foreign, failures, !is_source, !routed)
    };
    let ordered = candidates.iter().map(|entry| (order(entry), entry));
    // The first of equal candidates, so their order decides.
    let ((foreign, failures, not_source, not_routed), entry) =
        ordered.reduce(|least, next| if next.0 < least.0 { next } else { least })?;
    let words = match (foreign, not_source, not_routed) {
        (true, ..) => "none of ours is of the peer's family",
        (_, false, _) => "the kernel's own choice towards the peer",
        (_, _, false) => "has a route to the peer",
        _ => "no route to the peer is known from any of ours",
    };
    let failed = if failures == 0 {
        String::new()
    } else {
        format!("; failed {failures} times before, as all others did as often")
    };
    Some(ChosenGid { entry: *entry, why: format!("{entry}: {words} at {peer}{failed}") })
}

#[cfg(test)]
mod tests;
