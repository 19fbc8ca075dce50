//! Which rails are near which memory, by the matrices of both nodes.

use crate::topology::{Ends, Location, PriorityMatrix};
use handfast_core::transfer::Affinity;
use std::sync::Arc;

/// Pairs of places whose affinity is remembered; of others it is found anew.
pub(super) const PAIRS_KNOWN_MAX: usize = 64;

/// What a slice's rail depends on beside its memory. Asked once for each request.
pub(crate) struct Near {
    own: Arc<PriorityMatrix>,
    peer: PriorityMatrix,
    /// Our NIC and the peer's of each rail, by name.
    rails: Vec<(String, String)>,
    pub(super) known: Vec<(Location, Location, Affinity)>,
}

impl Near {
    /// By the matrices of both sides; one that says nothing prefers all of its NICs alike.
    pub(crate) fn new<'a>(
        own: Arc<PriorityMatrix>,
        peer: PriorityMatrix,
        rails: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let rails = rails.map(|(own, peer)| (own.to_owned(), peer.to_owned())).collect();
        Self { own, peer, rails, known: Vec::new() }
    }

    /// How near the rails are to memory at these places.
    pub(crate) fn affinity(&mut self, own: &Location, peer: &Location) -> Affinity {
        let same = |(of, to, _): &&(Location, Location, Affinity)| of == own && to == peer;
        if let Some((.., affinity)) = self.known.iter().find(same) {
            return *affinity;
        }
        let (own_location, peer_location) = (own, peer);
        let ends = Ends { own: &self.own, own_location, peer: &self.peer, peer_location };
        let ranks: Vec<u8> = self.rails.iter().map(|(own, peer)| ends.rank(own, peer)).collect();
        let affinity = Affinity::of(&ranks);
        if self.known.len() < PAIRS_KNOWN_MAX {
            self.known.push((own.clone(), peer.clone(), affinity));
        }
        affinity
    }
}
