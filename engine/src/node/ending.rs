//! Lanes that end with the keys or certificates of their peers.

use crate::command::Peers;
use handfast_core::NicPath;
use handfast_core::node::Node;
use std::collections::BTreeMap;

/// The lanes over a path that end.
#[derive(Default)]
pub(super) struct Ending {
    is_opening: bool,
    is_in_use: bool,
}

impl Ending {
    /// The lanes to nodes, by path.
    pub(super) fn of(node: &Node, of: &Peers) -> BTreeMap<NicPath, Self> {
        let mut paths: BTreeMap<NicPath, Self> = BTreeMap::new();
        for (_, state, path, _) in node.lifecycles().filter(|(_, _, path, _)| of(&path.node)) {
            let ending = paths.entry(path.clone()).or_default();
            ending.is_opening |= !state.is_ending();
            ending.is_in_use |= state.is_in_use();
        }
        paths
    }

    /// Whether a lane is to be demanded again. Work demands another for one that was in use; the demand for
    /// one that is being opened is released by the close, and nobody learns of it.
    pub(super) fn is_demanded_again(&self, has_work: bool) -> bool {
        !self.is_in_use && (self.is_opening || has_work)
    }
}
