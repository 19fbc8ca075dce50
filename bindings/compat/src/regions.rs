//! Local memory by raw address.

use crate::failure::{Cause, Failure};
use handfast::{Memory, Registration, Span};

/// Maximum registered pieces of memory, those that no peer can reach among them.
pub const LOCAL_REGIONS_MAX: usize = 131_072;

/// Memory that the caller registered.
pub(crate) struct LocalRegion {
    pub(crate) memory: Memory,
    /// Absent once peers may not reach it any more.
    pub(crate) served: Option<Registration>,
}

impl LocalRegion {
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

/// Registered memory, without overlaps, in the order of addresses.
#[derive(Default)]
pub(crate) struct LocalRegions {
    regions: Vec<LocalRegion>,
}

impl LocalRegions {
    /// # Errors
    /// [`Cause::Overlap`].
    pub(crate) fn check_free(&self, address: u64, bytes: u64) -> Result<usize, Failure> {
        let place = self.regions.partition_point(|known| known.end() <= address);
        match self.regions.get(place) {
            Some(known) if known.address() < address.saturating_add(bytes) => Err(Cause::Overlap {
                address,
                bytes,
                registered: known.address(),
                registered_bytes: known.bytes(),
            }
            .into()),
            _ => Ok(place),
        }
    }

    pub(crate) fn insert(&mut self, region: LocalRegion) -> Result<(), Failure> {
        if self.regions.len() >= LOCAL_REGIONS_MAX {
            let cure = "register larger pieces";
            let max = LOCAL_REGIONS_MAX;
            return Err(Cause::Limit { name: "LOCAL_REGIONS_MAX", max, cure }.into());
        }
        let place = self.check_free(region.address(), region.bytes())?;
        self.regions.insert(place, region);
        Ok(())
    }

    /// Keeps the registration of the region at `address`, unless it has been removed meanwhile.
    pub(crate) fn set_served(&mut self, address: u64, served: Registration) {
        if let Ok(place) = self.regions.binary_search_by_key(&address, LocalRegion::address) {
            self.regions[place].served = Some(served);
        }
    }

    /// Takes the region that begins at `address`.
    pub(crate) fn remove(&mut self, address: u64) -> Result<LocalRegion, Failure> {
        match self.regions.binary_search_by_key(&address, LocalRegion::address) {
            Ok(place) => Ok(self.regions.remove(place)),
            Err(_) => Err(Cause::NotRegistered { address, bytes: 0 }.into()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.regions.len()
    }

    /// Returns a finder of spans, which remembers the last region: requests of a batch mostly lie
    /// in one.
    pub(crate) fn finder(&self) -> Finder<'_> {
        Finder { regions: &self.regions, last: 0 }
    }
}

/// Finds spans of registered memory.
pub(crate) struct Finder<'a> {
    regions: &'a [LocalRegion],
    last: usize,
}

impl Finder<'_> {
    /// # Errors
    /// [`Cause::NotRegistered`].
    pub(crate) fn find(&mut self, address: u64, bytes: u64) -> Result<Span, Failure> {
        let missing = || Failure::from(Cause::NotRegistered { address, bytes });
        let holds = |known: &LocalRegion| known.address() <= address && address < known.end();
        if !self.regions.get(self.last).is_some_and(holds) {
            self.last = self.regions.partition_point(|known| known.end() <= address);
        }
        let region = self.regions.get(self.last).filter(|it| holds(it)).ok_or_else(missing)?;
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
        let region = || LocalRegion { memory: block.clone(), served: None };
        let mut regions = LocalRegions::default();
        regions.insert(region()).unwrap();
        assert_eq!(regions.insert(region()).unwrap_err().code(), -7);
        regions.regions.resize_with(LOCAL_REGIONS_MAX, region);
        let error = regions.insert(region()).unwrap_err();
        assert!(matches!(error.cause(), Cause::Limit { name: "LOCAL_REGIONS_MAX", .. }), "{error}");
    }
}
