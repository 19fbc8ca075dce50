//! The operations of a world in their order, for a replay on other devices.

use crate::verbs::Fabric;
use crate::world::{Step, World};
use handfast_core::transport::{Operation, OperationId, Outcome};

/// The begin or the end of an operation on queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalEntry {
    /// A node asks for an operation.
    Asked {
        /// The site.
        site: usize,
        /// The operation.
        operation: Operation,
    },
    /// An operation ends.
    Ended {
        /// The site.
        site: usize,
        /// The operation.
        id: OperationId,
        /// Whether the device was asked; otherwise the failure is injected in its place.
        performed: bool,
        /// The report to the node.
        outcome: Outcome,
    },
    /// An operation never ends, and later ones of its lifecycle do not wait for it.
    Stalled {
        /// The site.
        site: usize,
        /// The operation.
        id: OperationId,
    },
}

impl Step {
    /// Creates a step that also records its operations.
    pub fn journaled() -> Self {
        Self { journal: Some(Vec::new()), ..Self::default() }
    }

    pub(crate) fn record(&mut self, entry: impl FnOnce() -> JournalEntry) {
        if let Some(journal) = &mut self.journal {
            journal.push(entry());
        }
    }
}

impl World {
    /// Returns the devices of the sites, each with the site's index. They have no queue pairs where the setup
    /// asks for nothing that devices would add to the table, [`World::queue_pairs`].
    pub fn devices(&self) -> &Fabric {
        &self.fabric.verbs
    }
}
