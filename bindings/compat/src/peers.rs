//! Peers by name.

use crate::failure::{Cause, Failure};
use handfast::Segment;
use std::collections::BTreeMap;

/// Maximum names of peers.
pub const PEERS_MAX: usize = 65_536;

/// Peers below which unused ones stay.
const UNUSED_KEPT_MAX: usize = 1_024;

/// A known peer.
pub(crate) trait Known: Clone {
    /// Whether the peer can be forgotten: the next use opens it again.
    fn is_unused(&self) -> bool;
}

impl Known for Segment {
    fn is_unused(&self) -> bool {
        Segment::is_unused(self)
    }
}

/// The known peers. Unused ones make room whenever there are twice as many as the last time left, so that
/// peers that never come back cost no memory for ever.
pub(crate) struct Peers<T = Segment> {
    known: BTreeMap<String, T>,
    left: usize,
    max: usize,
}

impl Default for Peers {
    fn default() -> Self {
        Self::new(PEERS_MAX)
    }
}

impl<T: Known> Peers<T> {
    fn new(max: usize) -> Self {
        Self { known: BTreeMap::new(), left: 0, max }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&T> {
        self.known.get(name)
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Adds a peer, unless another call has, and returns the known one. Forgotten peers are added to
    /// `unused`.
    ///
    /// # Errors
    /// [`PEERS_MAX`] peers are in use.
    pub(crate) fn insert(
        &mut self,
        name: &str,
        opened: T,
        unused: &mut Vec<T>,
    ) -> Result<T, Failure> {
        if let Some(known) = self.known.get(name) {
            return Ok(known.clone());
        }
        if !self.make_room(unused) {
            let cure = "close peers that are gone, or restart the engine";
            return Err(Cause::Limit { name: "PEERS_MAX", max: self.max, cure }.into());
        }
        self.known.insert(name.to_owned(), opened.clone());
        Ok(opened)
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<T> {
        self.known.remove(name)
    }

    fn make_room(&mut self, unused: &mut Vec<T>) -> bool {
        if self.known.len() < (2 * self.left).max(UNUSED_KEPT_MAX).min(self.max) {
            return true;
        }
        self.known.retain(|_, peer| {
            let is_unused = peer.is_unused();
            unused.extend(is_unused.then(|| peer.clone()));
            !is_unused
        });
        self.left = self.known.len();
        self.left < self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct Peer {
        is_unused: bool,
    }

    impl Known for Peer {
        fn is_unused(&self) -> bool {
            self.is_unused
        }
    }

    fn insert(peers: &mut Peers<Peer>, number: usize, is_unused: bool) -> Result<Peer, Failure> {
        peers.insert(&format!("h:{number}"), Peer { is_unused }, &mut Vec::new())
    }

    /// Peers that come once, such as those that restart at another port, cost no memory for ever. One in
    /// use stays.
    #[test]
    fn unused_peers_make_room() {
        let mut peers = Peers::new(PEERS_MAX);
        insert(&mut peers, 0, false).unwrap();
        for number in 1..200_000 {
            insert(&mut peers, number, true).unwrap();
        }
        assert!(peers.len() <= UNUSED_KEPT_MAX, "{}", peers.len());
        assert!(peers.get("h:0").is_some());
    }

    #[test]
    fn peer_past_the_limit_is_refused() {
        let mut peers = Peers::new(PEERS_MAX);
        for number in 0..PEERS_MAX {
            insert(&mut peers, number, false).unwrap();
        }
        let error = insert(&mut peers, PEERS_MAX, false).err().unwrap();
        assert!(matches!(error.cause(), Cause::Limit { name: "PEERS_MAX", .. }), "{error}");
        insert(&mut peers, 0, false).unwrap();
        assert!(peers.remove("h:7").is_some());
        insert(&mut peers, PEERS_MAX, false).unwrap();
    }
}
