//! Fences owed by a peer: lanes on which a write may still land.
//!
//! A write that was posted and did not complete can land until the peer has retired its side of the
//! lane. The next lane over the same NICs proves that (rule H12).

use crate::identity::{Lifecycle, NicPath};
use alloc::vec::Vec;

/// The lanes to one incarnation of a peer that carry, or carried, a write that may still land.
///
/// Bounded by the lanes of the peer that are up or owe a fence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FenceLedger {
    /// Lanes that are up and gave back a slice of which bytes were sent.
    sent: Vec<Lifecycle>,
    /// Lanes that are down, with their paths, in the order of their end.
    down: Vec<(NicPath, Lifecycle)>,
}

impl FenceLedger {
    /// Takes a slice that a lane gave back after some of its bytes, or all, were sent.
    pub fn handle_sent_unanswered(&mut self, lane: Lifecycle) {
        if !self.sent.contains(&lane) {
            self.sent.push(lane);
        }
    }

    /// Takes the end of a lane; `path` if it was in use, so that it owes a fence.
    pub fn handle_lane_down(&mut self, lane: Lifecycle, path: Option<&NicPath>) {
        self.sent.retain(|sent| *sent != lane);
        if let Some(path) = path {
            self.down.push((path.clone(), lane));
        }
    }

    /// Takes the proof that nothing posted before over a path, or over any path, can land. Returns the
    /// lanes that are fenced by it, in the order of their end.
    pub fn handle_fence(&mut self, path: Option<&NicPath>) -> Vec<Lifecycle> {
        let fenced = |(on, _): &mut (NicPath, Lifecycle)| path.is_none_or(|path| on == path);
        self.down.extract_if(.., fenced).map(|(_, lane)| lane).collect()
    }

    /// The lanes over a path that are down and owe a fence, in the order of their end.
    pub fn owed_on<'a>(&'a self, path: &'a NicPath) -> impl Iterator<Item = Lifecycle> + 'a {
        self.down.iter().filter(move |(on, _)| on == path).map(|(_, lane)| *lane)
    }

    /// The paths of lanes that are down and owe a fence, one for each lane.
    pub fn paths(&self) -> impl Iterator<Item = &NicPath> {
        self.down.iter().map(|(path, _)| path)
    }

    /// Whether a lane that is up gave back a slice of which bytes were sent.
    pub fn has_sent_unanswered(&self) -> bool {
        !self.sent.is_empty()
    }

    /// The lanes on which a write may still land, first those that are up.
    pub fn lanes_in_doubt(&self) -> impl Iterator<Item = Lifecycle> {
        self.sent.iter().copied().chain(self.down.iter().map(|(_, lane)| *lane))
    }

    /// Whether a write may still land, as far as lanes tell.
    pub fn is_in_doubt(&self) -> bool {
        self.lanes_in_doubt().next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(nic: &str) -> NicPath {
        NicPath::parse(&alloc::format!("b:1@{nic}")).unwrap()
    }

    /// A fence counts for the lanes over its path, a fence without a path for all.
    #[test]
    fn fence_counts_for_its_path() {
        let mut ledger = FenceLedger::default();
        let lanes = [(1, "x"), (2, "y"), (3, "x")];
        for (lane, nic) in lanes {
            ledger.handle_lane_down(Lifecycle(lane), Some(&path(nic)));
        }
        assert_eq!(ledger.owed_on(&path("x")).collect::<Vec<_>>(), [Lifecycle(1), Lifecycle(3)]);
        assert_eq!(ledger.handle_fence(Some(&path("x"))), [Lifecycle(1), Lifecycle(3)]);
        assert!(ledger.is_in_doubt(), "the other path owes its own");
        assert_eq!(ledger.paths().collect::<Vec<_>>(), [&path("y")]);
        assert_eq!(ledger.handle_fence(None), [Lifecycle(2)]);
        assert!(!ledger.is_in_doubt());
    }

    /// A slice given back half sent leaves doubt until its lane is down and fenced.
    #[test]
    fn sent_slice_leaves_doubt_until_the_fence() {
        let mut ledger = FenceLedger::default();
        ledger.handle_sent_unanswered(Lifecycle(1));
        ledger.handle_sent_unanswered(Lifecycle(1));
        assert!(ledger.has_sent_unanswered() && ledger.is_in_doubt());
        assert_eq!(ledger.handle_fence(None), [], "the lane is still up");
        ledger.handle_lane_down(Lifecycle(1), Some(&path("x")));
        assert!(!ledger.has_sent_unanswered() && ledger.is_in_doubt());
        ledger.handle_sent_unanswered(Lifecycle(2));
        assert_eq!(ledger.lanes_in_doubt().collect::<Vec<_>>(), [Lifecycle(2), Lifecycle(1)]);
        ledger.handle_lane_down(Lifecycle(2), None);
        assert_eq!(ledger.handle_fence(Some(&path("x"))), [Lifecycle(1)]);
        assert!(!ledger.is_in_doubt());
    }

    #[test]
    fn lane_that_was_not_used_owes_nothing() {
        let mut ledger = FenceLedger::default();
        ledger.handle_sent_unanswered(Lifecycle(1));
        ledger.handle_lane_down(Lifecycle(1), None);
        assert!(!ledger.is_in_doubt());
    }
}
