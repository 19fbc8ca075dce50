//! Registrations with the RDMA devices of this node.

use crate::data::local::LocalRegion;
use crate::topology::Location;
use handfast_core::transport::{Side, TransportError};
use handfast_transport::{Access, DeviceMemory, Span};
use handfast_transport_rdma::{Nic, Registration};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use tokio::runtime::Handle;

/// Maximum registrations of segments and transfers together. Devices support some hundred
/// thousand, shared by all processes.
pub(crate) const REGISTRATIONS_MAX: usize = 16_384;

/// The registrations of a region, one for each device.
struct Registrations {
    all: Vec<Registration>,
    /// Runtime for releasing pages in the background: the last holder may be the device's own
    /// thread.
    background: Option<Handle>,
}

impl Drop for Registrations {
    fn drop(&mut self) {
        if let Some(background) = self.background.take() {
            let all = std::mem::take(&mut self.all);
            background.spawn_blocking(move || drop(all));
        }
    }
}

/// The live registrations, by the address of their block. Holds weak references only, so
/// a region is deregistered when its last user drops it.
#[derive(Default)]
pub(super) struct LocalRegions(Mutex<Known>);

#[derive(Default)]
struct Known {
    blocks: BTreeMap<u64, Vec<Weak<LocalRegion>>>,
    /// Number of entries in all lists, stale ones included.
    entries: usize,
}

impl LocalRegions {
    /// Finds a registration that covers the bytes.
    pub(super) fn find(&self, span: &Span) -> Option<Arc<LocalRegion>> {
        let known = self.0.lock();
        let of_block = known.blocks.get(&span.memory().address())?;
        of_block.iter().filter_map(Weak::upgrade).find(|region| region.memory().covers(span))
    }

    /// Registers bytes with every device. Blocks while their pages are pinned.
    pub(super) fn register<'a>(
        &self,
        nics: impl Iterator<Item = &'a Nic>,
        span: &Span,
        access: Access,
        location: Option<Location>,
    ) -> Result<Arc<LocalRegion>, TransportError> {
        let block = span.memory().address();
        let is_served = access.remote_read || access.remote_write;
        let registrations = nics.map(|nic| nic.register(span.clone(), access));
        let all = registrations.collect::<Result<Vec<_>, _>>()?;
        // Its pages are there now, and stay where they are.
        let found = || span.numa_node().map_or(Location::Anywhere, Location::Numa);
        let keys = all.iter().map(Registration::key).collect();
        // A dropped segment must lock peers out at once.
        let background = (!is_served).then(Handle::try_current).and_then(Result::ok);
        let memory = DeviceMemory::new(span, keys, Registrations { all, background });
        let region = Arc::new(LocalRegion::new(memory, location.unwrap_or_else(found)));
        let mut known = self.0.lock();
        if known.entries >= REGISTRATIONS_MAX {
            known.forget_gone();
        }
        if known.entries >= REGISTRATIONS_MAX {
            let detail = format!("the limit of {REGISTRATIONS_MAX} registrations is reached");
            return Err(TransportError::new(Side::Local, "register", detail));
        }
        let of_block = known.blocks.entry(block).or_default();
        let before = of_block.len();
        of_block.retain(|region| region.strong_count() > 0);
        of_block.push(Arc::downgrade(&region));
        let after = of_block.len();
        known.entries = known.entries + after - before;
        Ok(region)
    }
}

impl Known {
    fn forget_gone(&mut self) {
        self.blocks.retain(|_, regions| {
            regions.retain(|region| region.strong_count() > 0);
            !regions.is_empty()
        });
        self.entries = self.blocks.values().map(Vec::len).sum();
    }
}
