//! Local memory registered with RDMA devices.

use crate::topology::Location;
use handfast_transport::{Cut, DeviceMemory, Span};
use std::sync::Arc;

/// Memory registered with this node's devices for as long as this is held.
pub(crate) struct LocalRegion {
    /// The memory, with a key for each device.
    memory: Arc<DeviceMemory>,
    /// Location of the memory.
    location: Location,
}

impl LocalRegion {
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "of use with RDMA alone"))]
    pub(crate) fn new(memory: DeviceMemory, location: Location) -> Self {
        Self { memory: Arc::new(memory), location }
    }

    /// Returns the memory in the form that postings hold.
    pub(crate) fn memory(&self) -> &Arc<DeviceMemory> {
        &self.memory
    }

    /// The pieces, if there are several.
    pub(crate) fn cut(&self) -> Option<Cut> {
        Some(self.memory.cut()).filter(|cut| cut.count() > 1)
    }

    /// Keys for a peer, one per device, of each piece in turn.
    pub(crate) fn remote_keys(&self) -> Vec<u32> {
        self.memory.remote_keys()
    }

    /// Location.
    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    /// Location of the first byte of a part.
    pub(crate) fn place(&self, span: &Span) -> Location {
        let offset = span.address().saturating_sub(self.memory.address());
        self.location.at(offset, self.memory.bytes())
    }
}
