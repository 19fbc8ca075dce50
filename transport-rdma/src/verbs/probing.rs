//! The reads by which a NIC probes its peers: what each pair of devices answers, found out by the
//! first probes.
//!
//! A refused read breaks its queue pair, so each pair of devices loses a lane for each kind of read
//! that it refuses, and no further one.

use crate::status::{CompletionError, FLUSHED, NO_ANSWER};
use handfast_core::transport::Side;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;

/// Maximum peers' devices of which something is known. One that is forgotten is found out again.
const PEERS_KNOWN_MAX: usize = 1_024;

/// A read that probes a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeKind {
    /// An empty one.
    Empty,
    /// One of a byte that the peer announced.
    Byte,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The peer's device refused an empty read, and perhaps one of a byte.
    refuses_empty: bool,
    refuses_byte: bool,
    /// It answered one of the present kind, which then is never given up: the refusal of a later
    /// one has another cause.
    is_proven: bool,
    /// A lane whose probe of the present kind ended with an error of this side, by serial number.
    doubted_by: Option<u32>,
}

impl Known {
    fn kind(self) -> Option<ProbeKind> {
        match self {
            Self { refuses_empty: false, .. } => Some(ProbeKind::Empty),
            Self { refuses_byte: false, .. } => Some(ProbeKind::Byte),
            _ => None,
        }
    }
}

/// The reads that the devices of a NIC's peers answer, by their addresses.
pub(super) struct Probing {
    peers: BTreeMap<Ipv6Addr, Known>,
    /// The kind of device that a peer is assumed to have.
    assumed: Known,
}

impl Default for Probing {
    fn default() -> Self {
        Self::new(true)
    }
}

impl Probing {
    /// Empty reads are tried first, or never.
    pub(super) fn new(tries_empty: bool) -> Self {
        let assumed = Known { refuses_empty: !tries_empty, ..Known::default() };
        Self { peers: BTreeMap::new(), assumed }
    }

    /// The read to probe a peer with; `None` if its device refused all.
    pub(super) fn kind(&self, peer: Ipv6Addr) -> Option<ProbeKind> {
        self.peers.get(&peer).copied().unwrap_or(self.assumed).kind()
    }

    /// Handles an answer.
    pub(super) fn on_answered(&mut self, peer: Ipv6Addr, kind: ProbeKind) {
        if let Some(known) = self.present(peer, kind) {
            (known.is_proven, known.doubted_by) = (true, None);
        }
    }

    /// Handles the first error of a queue pair, which a probe of a lane had. Returns whether the
    /// pair of devices refuses reads of this kind: from now on another one is used. An error of
    /// this side may have another cause, such as a port that goes down; a second lane's has not.
    pub(super) fn on_failed(
        &mut self,
        peer: Ipv6Addr,
        kind: ProbeKind,
        status: u32,
        lane: u32,
    ) -> bool {
        if status == FLUSHED || NO_ANSWER.contains(&status) {
            return false;
        }
        let is_local = CompletionError { status, vendor: 0 }.side() == Side::Local;
        if let Some(known) = self.present(peer, kind).filter(|known| !known.is_proven) {
            let is_doubted = known.doubted_by.is_some_and(|doubting| doubting != lane);
            if is_local && !is_doubted {
                known.doubted_by = Some(lane);
                return false;
            }
            known.doubted_by = None;
            match kind {
                ProbeKind::Empty => known.refuses_empty = true,
                ProbeKind::Byte => known.refuses_byte = true,
            }
        }
        self.kind(peer) != Some(kind)
    }

    /// The entry of a peer for which this kind is in use.
    fn present(&mut self, peer: Ipv6Addr, kind: ProbeKind) -> Option<&mut Known> {
        if self.peers.len() >= PEERS_KNOWN_MAX && !self.peers.contains_key(&peer) {
            self.peers.pop_first();
        }
        let known = self.peers.entry(peer).or_insert(self.assumed);
        (known.kind() == Some(kind)).then_some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: u32 = 10;
    const SILENT: u32 = 12;
    const LOCAL: u32 = 2;
    const LANE: u32 = 7;

    fn peer(number: u128) -> Ipv6Addr {
        number.into()
    }

    /// Each refusal, whichever its status, leads to the next kind; another peer's device has its
    /// own.
    #[test]
    fn refused_reads_lead_to_the_next_kind() {
        let mut probing = Probing::default();
        assert!(probing.on_failed(peer(1), ProbeKind::Empty, 9, LANE));
        assert!(
            probing.on_failed(peer(1), ProbeKind::Empty, REFUSED, LANE),
            "of a second queue pair"
        );
        assert_eq!(probing.kind(peer(1)), Some(ProbeKind::Byte));
        assert!(probing.on_failed(peer(1), ProbeKind::Byte, 21, LANE));
        assert_eq!(probing.kind(peer(1)), None);
        assert_eq!(probing.kind(peer(2)), Some(ProbeKind::Empty));
    }

    /// The first probe reads a byte on devices that may not answer empty reads.
    #[test]
    fn empty_reads_are_not_tried_on_iwarp() {
        let mut probing = Probing::new(false);
        assert_eq!(probing.kind(peer(1)), Some(ProbeKind::Byte));
        probing.on_answered(peer(1), ProbeKind::Byte);
        assert_eq!(probing.kind(peer(1)), Some(ProbeKind::Byte));
    }

    /// A peer that does not answer, or answered before, refuses nothing.
    #[test]
    fn silence_and_answers_before_keep_the_kind() {
        let mut probing = Probing::default();
        assert!(!probing.on_failed(peer(1), ProbeKind::Empty, SILENT, LANE));
        assert!(!probing.on_failed(peer(1), ProbeKind::Empty, FLUSHED, LANE));
        probing.on_answered(peer(1), ProbeKind::Empty);
        assert!(!probing.on_failed(peer(1), ProbeKind::Empty, REFUSED, LANE));
        assert_eq!(probing.kind(peer(1)), Some(ProbeKind::Empty));
        assert!(probing.on_failed(peer(2), ProbeKind::Empty, REFUSED, LANE));
        probing.on_answered(peer(2), ProbeKind::Byte);
        assert!(!probing.on_failed(peer(2), ProbeKind::Byte, REFUSED, LANE));
        assert_eq!(probing.kind(peer(2)), Some(ProbeKind::Byte));
    }

    /// An error of this side refuses nothing until a second lane has one, without an answer in
    /// between: a peer that announces no byte would be lost for one error of this side.
    #[test]
    fn error_of_this_side_needs_a_second_lane() {
        let mut probing = Probing::default();
        let mut fails = |lane| probing.on_failed(peer(1), ProbeKind::Empty, LOCAL, lane);
        assert!(!fails(LANE));
        assert!(!fails(LANE), "of a second queue pair");
        assert!(fails(LANE + 1));
        assert_eq!(probing.kind(peer(1)), Some(ProbeKind::Byte));
        assert!(!probing.on_failed(peer(2), ProbeKind::Empty, LOCAL, LANE));
        probing.on_answered(peer(2), ProbeKind::Empty);
        assert!(!probing.on_failed(peer(2), ProbeKind::Empty, LOCAL, LANE + 1));
        assert_eq!(probing.kind(peer(2)), Some(ProbeKind::Empty));
    }

    /// At the limit one peer is forgotten for each new one.
    #[test]
    fn known_peers_are_bounded() {
        let mut probing = Probing::default();
        for number in 0..=PEERS_KNOWN_MAX as u128 {
            probing.on_failed(peer(number), ProbeKind::Empty, REFUSED, LANE);
        }
        assert_eq!(probing.peers.len(), PEERS_KNOWN_MAX);
        assert_eq!(probing.kind(peer(0)), Some(ProbeKind::Empty), "it is found out again");
        assert_eq!(probing.kind(peer(PEERS_KNOWN_MAX as u128)), Some(ProbeKind::Byte));
    }
}
