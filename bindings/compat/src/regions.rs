//! Local memory by raw address.

use crate::failure::{Cause, Failure};
use handfast::{Memory, Registration, Span};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum registered pieces of memory, those that no peer can reach among them.
pub const LOCAL_REGIONS_MAX: usize = 131_072;

/// Memory that the caller registered.
pub(crate) struct LocalRegion {
    pub(crate) memory: Memory,
    /// Absent before peers may reach it, and once they may not any more.
    served: Option<Arc<Registration>>,
    /// Whether the engine allocated it.
    is_managed: bool,
    /// Its registration has ended, and something may still use it. No new transfer does.
    is_ending: bool,
}

impl LocalRegion {
    pub(crate) fn new(memory: Memory) -> Self {
        Self { memory, served: None, is_managed: false, is_ending: false }
    }

    pub(crate) fn managed(self) -> Self {
        Self { is_managed: true, ..self }
    }

    fn address(&self) -> u64 {
        self.memory.address()
    }

    fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    fn end(&self) -> u64 {
        // A block never exceeds the address space.
        self.address() + self.bytes()
    }
}

/// Registered memory without overlaps, by address.
#[derive(Default)]
pub(crate) struct LocalRegions {
    regions: BTreeMap<u64, LocalRegion>,
}

impl LocalRegions {
    /// The last region that begins at `address` or before.
    fn before(&self, address: u64) -> Option<&LocalRegion> {
        self.regions.range(..=address).next_back().map(|(_, region)| region)
    }

    /// # Errors
    /// [`Cause::Overlap`].
    fn check_free(&self, address: u64, bytes: u64) -> Result<(), Failure> {
        let last = address.saturating_add(bytes.saturating_sub(1));
        match self.before(last) {
            Some(known) if known.end() > address => Err(Cause::Overlap {
                address,
                bytes,
                registered: known.address(),
                registered_bytes: known.bytes(),
            }
            .into()),
            _ => Ok(()),
        }
    }

    pub(crate) fn insert(&mut self, region: LocalRegion) -> Result<(), Failure> {
        if self.regions.len() >= LOCAL_REGIONS_MAX {
            let cure = "register larger pieces";
            let max = LOCAL_REGIONS_MAX;
            return Err(Cause::Limit { name: "LOCAL_REGIONS_MAX", max, cure }.into());
        }
        self.check_free(region.address(), region.bytes())?;
        self.regions.insert(region.address(), region);
        Ok(())
    }

    /// Keeps the registration of the region at `address`; returns it if the region has ended
    /// meanwhile.
    #[must_use]
    pub(crate) fn set_served(
        &mut self,
        address: u64,
        served: Registration,
    ) -> Option<Arc<Registration>> {
        let served = Arc::new(served);
        match self.regions.get_mut(&address).filter(|region| !region.is_ending) {
            Some(region) => region.served.replace(served),
            None => Some(served),
        }
    }

    /// Returns the registration of the region at `address`, which peers reach.
    pub(crate) fn served(&self, address: u64) -> Result<Arc<Registration>, Failure> {
        let missing = Cause::NotRegistered { address, bytes: 0 };
        let region = self.regions.get(&address).ok_or(missing)?;
        region.served.clone().ok_or_else(|| {
            Failure::argument(format!("peers do not reach the memory at {address:#x}"))
        })
    }

    /// Begins the end of the caller's region at `address`: no new transfer uses it. Returns its
    /// registration, whose drop takes the region from peers.
    pub(crate) fn begin_end(&mut self, address: u64) -> Result<Option<Arc<Registration>>, Failure> {
        let missing = Cause::NotRegistered { address, bytes: 0 };
        let region = self.regions.get_mut(&address).ok_or(missing)?;
        if region.is_managed {
            let text = format!("the memory at {address:#x} is managed: free the managed buffers");
            return Err(Failure::argument(text));
        }
        region.is_ending = true;
        Ok(region.served.take())
    }

    /// Removes the region at `address`, whose end has begun, if nothing uses it. Returns whether it
    /// is gone.
    pub(crate) fn remove_unused(&mut self, address: u64) -> bool {
        let Some(region) = self.regions.get(&address).filter(|region| region.is_ending) else {
            return true;
        };
        let is_unused = region.memory.holders() == 1;
        if is_unused {
            self.regions.remove(&address);
        }
        is_unused
    }

    /// Removes the region at `address` that could not be served.
    pub(crate) fn discard(&mut self, address: u64) {
        if self.regions.get(&address).is_some_and(|region| region.served.is_none()) {
            self.regions.remove(&address);
        }
    }

    /// Begins the end of all regions, and returns their registrations.
    pub(crate) fn begin_end_of_all(&mut self) -> Vec<Arc<Registration>> {
        self.regions.values_mut().for_each(|region| region.is_ending = true);
        self.regions.values_mut().filter_map(|region| region.served.take()).collect()
    }

    /// The address of a region that something uses.
    pub(crate) fn in_use(&self) -> Option<u64> {
        let used = |region: &&LocalRegion| region.memory.holders() > 1;
        self.regions.values().find(used).map(LocalRegion::address)
    }

    pub(crate) fn len(&self) -> usize {
        self.regions.len()
    }

    /// Returns a finder of spans, which remembers the last region: requests of a batch mostly lie
    /// in one.
    pub(crate) fn finder(&self) -> Finder<'_> {
        Finder { regions: self, last: None }
    }
}

/// Finds spans of registered memory.
pub(crate) struct Finder<'a> {
    regions: &'a LocalRegions,
    last: Option<&'a LocalRegion>,
}

impl Finder<'_> {
    /// # Errors
    /// [`Cause::NotRegistered`].
    pub(crate) fn find(&mut self, address: u64, bytes: u64) -> Result<Span, Failure> {
        let missing = || Failure::from(Cause::NotRegistered { address, bytes });
        let holds = |known: &&LocalRegion| {
            !known.is_ending && known.address() <= address && address < known.end()
        };
        let again = self.last.filter(holds);
        let region = again.or_else(|| self.regions.before(address).filter(holds));
        self.last = region;
        let region = region.ok_or_else(missing)?;
        let (offset, length) = (address - region.address(), usize::try_from(bytes));
        let length = length.map_err(|_| missing())?;
        region.memory.span(offset as usize, length).map_err(|_| missing())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_past_the_limit_is_refused() {
        let block = Memory::zeroed(1).unwrap();
        let region = || LocalRegion::new(block.clone());
        let mut regions = LocalRegions::default();
        regions.insert(region()).unwrap();
        assert_eq!(regions.insert(region()).unwrap_err().code(), -7);
        let others = (1..LOCAL_REGIONS_MAX as u64).map(|address| (address, region()));
        regions.regions.extend(others);
        let error = regions.insert(region()).unwrap_err();
        assert!(matches!(error.cause(), Cause::Limit { name: "LOCAL_REGIONS_MAX", .. }), "{error}");
    }
}
