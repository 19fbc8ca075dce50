//! Rails near to memory, by the priority matrices of both nodes.

use crate::topology::{Location, PriorityMatrix, TransferLocations};
use handfast_core::transfer::Affinity;
use std::sync::Arc;

/// Maximum location pairs whose affinity is cached; others are computed each time.
const PAIRS_KNOWN_MAX: usize = 64;

/// Ranks of rails by memory location. Consulted once per request.
pub(crate) struct Near {
    own: Arc<PriorityMatrix>,
    peer: PriorityMatrix,
    /// Local and remote NIC of each rail, by name.
    rails: Vec<(String, String)>,
    known: Vec<(Location, Location, Affinity)>,
}

impl Near {
    /// Creates the ranks from the matrices of both sides. An empty matrix prefers all NICs of its
    /// side alike.
    pub(crate) fn new<'a>(
        own: Arc<PriorityMatrix>,
        peer: PriorityMatrix,
        rails: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let rails = rails.map(|(own, peer)| (own.to_owned(), peer.to_owned())).collect();
        Self { own, peer, rails, known: Vec::new() }
    }

    /// Returns the affinity of memory at these locations.
    pub(crate) fn affinity(&mut self, own: &Location, peer: &Location) -> Affinity {
        let same = |(of, to, _): &&(Location, Location, Affinity)| of == own && to == peer;
        if let Some((.., affinity)) = self.known.iter().find(same) {
            return *affinity;
        }
        let (own_location, peer_location) = (own, peer);
        let ends =
            TransferLocations { own: &self.own, own_location, peer: &self.peer, peer_location };
        let ranks: Vec<u8> = self.rails.iter().map(|(own, peer)| ends.rank(own, peer)).collect();
        let affinity = Affinity::of(&ranks);
        if self.known.len() < PAIRS_KNOWN_MAX {
            self.known.push((own.clone(), peer.clone(), affinity));
        }
        affinity
    }
}

#[cfg(test)]
mod tests {
    use super::{Near, PAIRS_KNOWN_MAX};
    use crate::topology::{Location, PriorityMatrix};
    use handfast_core::transfer::Affinity;
    use std::sync::Arc;

    const MATRIX: &str = r#"{"cpu:0": [["a"], ["b"]], "cpu:1": [["b"], ["a"]]}"#;

    fn near() -> Near {
        let matrix = PriorityMatrix::parse(MATRIX).unwrap();
        Near::new(Arc::new(matrix.clone()), matrix, [("a", "a"), ("b", "b")].into_iter())
    }

    fn affinity(near: &mut Near, places: [&str; 2]) -> Affinity {
        let [own, peer] = places.map(|text| text.parse::<Location>().unwrap());
        near.affinity(&own, &peer)
    }

    #[test]
    fn rails_are_ranked_by_our_memory_and_then_by_the_peers() {
        let mut near = near();
        for _ in 0..2 {
            assert_eq!(affinity(&mut near, ["cpu:0", "cpu:0"]), Affinity::of(&[0, 4]));
            assert_eq!(affinity(&mut near, ["cpu:0", "cpu:1"]), Affinity::of(&[1, 3]));
            assert_eq!(affinity(&mut near, ["cuda:0", "cpu:1"]), Affinity::of(&[1, 0]));
            assert_eq!(affinity(&mut near, ["*", "*"]), Affinity::ANY);
        }
    }

    #[test]
    fn more_pairs_of_places_than_are_remembered_are_ranked_alike() {
        let mut near = near();
        for number in 0..200 {
            let own = format!("cuda:{number}");
            assert_eq!(affinity(&mut near, [&own, "cpu:1"]), Affinity::of(&[1, 0]));
        }
        assert_eq!(near.known.len(), PAIRS_KNOWN_MAX);
    }

    #[test]
    fn a_peer_that_says_nothing_of_its_nics_has_no_say() {
        let own = PriorityMatrix::parse(MATRIX).unwrap();
        let rails = [("a", "x"), ("b", "y")].into_iter();
        let mut near = Near::new(Arc::new(own), PriorityMatrix::default(), rails);
        assert_eq!(affinity(&mut near, ["*", "*"]), Affinity::ANY);
        assert_eq!(affinity(&mut near, ["cpu:1", "*"]), Affinity::of(&[5, 2]));
    }
}
