//! Served regions, by name.

use crate::data::local::LocalRegion;
use crate::error::{Cause, Error, Stage};
use crate::time::Entropy;
use crate::topology::Location;
use handfast_core::wire::{REGION_NAME_BYTES_MAX, RegionDescriptor};
use handfast_transport::{
    Access, Direction, Region, RegionError, RegionTable, RegistrationError, Span,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use tokio::sync::Notify;

/// Maximum draws of a key before registration fails: even two collisions in a row do not happen by chance.
const KEY_DRAWS_MAX: usize = 4;

pub(crate) struct Regions {
    pub(crate) table: Arc<RegionTable>,
    named: Mutex<NamedRegions>,
    regions_max: usize,
    /// Notified of every change.
    pub(crate) changed: Arc<Notify>,
}

/// The served regions.
#[derive(Default)]
struct NamedRegions {
    /// In the order of registration.
    by_order: BTreeMap<u64, Named>,
    names: BTreeSet<Arc<str>>,
    /// Address and order of the regions that peers reach by address.
    by_address: BTreeSet<(u64, u64)>,
    /// Order of the next region.
    next: u64,
}

impl NamedRegions {
    fn insert(&mut self, named: Named) -> u64 {
        let order = self.next;
        self.next += 1;
        self.names.insert(named.name.clone());
        if named.reach == Reach::ByAddress {
            self.by_address.insert((named.region.address(), order));
        }
        self.by_order.insert(order, named);
        order
    }

    fn remove(&mut self, order: u64) -> Option<Named> {
        let named = self.by_order.remove(&order)?;
        self.names.remove(&named.name);
        self.by_address.remove(&(named.region.address(), order));
        Some(named)
    }
}

/// A served region.
struct Named {
    name: Arc<str>,
    region: Region,
    /// Its registration with the RDMA devices.
    registered: Option<Arc<LocalRegion>>,
    reach: Reach,
    /// Location of its memory, if known.
    location: Option<Location>,
}

/// A region to be served.
pub(crate) struct ServedRegion {
    pub(crate) span: Span,
    pub(crate) access: Access,
    /// Its registration with the RDMA devices.
    pub(crate) registered: Option<Arc<LocalRegion>>,
    pub(crate) reach: Reach,
    /// Location of its memory, if the user gave one.
    pub(crate) location: Option<Location>,
}

/// Requirements for a peer to reach a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Its key.
    ByKey,
    /// Its address alone, as in Mooncake's TCP data protocol.
    ByAddress,
}

/// Failures to reach bytes by address alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReachError {
    #[error("no region reachable by address contains {length} bytes at {address:#x}")]
    Nowhere { address: u64, length: u64 },
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// Memory that peers may reach until this is dropped. A running transfer then ends early on the
/// peer's side. The piece being copied at that moment is still copied, so reuse the bytes only once
/// [`Memory::holders`](crate::Memory::holders) shows no holder; the memory stays mapped until then.
pub struct Registration {
    regions: Arc<Regions>,
    name: Arc<str>,
    region: Region,
    order: u64,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("name", &self.name)
            .field("bytes", &self.region.bytes())
            .field("access", &self.region.access())
            .finish_non_exhaustive()
    }
}

impl Registration {
    /// Returns the name of the segment.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the registered memory.
    pub fn span(&self) -> &Span {
        self.region.span()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.regions.table.unregister(self.region.key());
        let gone = self.regions.named.lock().remove(self.order);
        // Here peers lose the device's key. The lock is not held, since this releases pages.
        drop(gone);
        self.regions.changed.notify_one();
    }
}

impl Regions {
    pub(crate) fn new(regions_max: usize) -> Arc<Self> {
        let table = Arc::new(RegionTable::new());
        let changed = Arc::new(Notify::new());
        Arc::new(Self { table, named: Mutex::default(), regions_max, changed })
    }

    /// Returns the number of served regions.
    pub(crate) fn len(&self) -> usize {
        self.named.lock().by_order.len()
    }

    pub(crate) fn register(
        self: &Arc<Self>,
        name: &str,
        served: ServedRegion,
        entropy: &dyn Entropy,
    ) -> Result<Registration, Error> {
        let ServedRegion { span, access, registered, reach, location } = served;
        let failed = |cause| Error::local(Stage::Registration, cause);
        let plain = |c: char| !c.is_control() && !matches!(c, '/' | ':' | ',');
        if name.is_empty() || name.len() > REGION_NAME_BYTES_MAX || !name.chars().all(plain) {
            let text = format!(
                "a segment's name has 1 to {REGION_NAME_BYTES_MAX} bytes, and none of '/', \
                 ':', ',' and control characters"
            );
            return Err(failed(Cause::Invalid(text)));
        }
        if span.is_empty() {
            return Err(failed(Cause::Invalid("a segment has at least one byte".into())));
        }
        let mut named = self.named.lock();
        if named.names.contains(name) {
            return Err(failed(Cause::Invalid(format!("the segment '{name}' is served already"))));
        }
        if named.by_order.len() >= self.regions_max {
            return Err(failed(Cause::Limit { name: "regions_max", value: self.regions_max }));
        }
        let mut draws = (0..KEY_DRAWS_MAX)
            .map(|_| self.table.register(span.clone(), access, entropy.next_u64()));
        let region = draws
            .find(|drawn| !matches!(drawn, Err(RegistrationError::KeyTaken)))
            .unwrap_or(Err(RegistrationError::KeyTaken))
            .map_err(|error| failed(error.into()))?;
        let name: Arc<str> = name.into();
        let found = || registered.as_ref().map(|known| known.location().clone());
        let location = location.or_else(found).filter(|place| *place != Location::Anywhere);
        let order = named.insert(Named {
            name: name.clone(),
            region: region.clone(),
            registered,
            reach,
            location,
        });
        drop(named);
        self.changed.notify_one();
        Ok(Registration { regions: self.clone(), name, region, order })
    }

    /// Describes the regions that `reach` permits; access by key reaches all.
    pub(crate) fn describe(&self, reach: Reach) -> Vec<RegionDescriptor> {
        let reached = |named: &&Named| reach == Reach::ByKey || named.reach == reach;
        let describe =
            |Named { name, region, registered, location, .. }: &Named| RegionDescriptor {
                name: name.to_string(),
                key: region.key(),
                remote_keys: registered.as_ref().map_or_else(Vec::new, |known| known.remote_keys()),
                cut: registered.as_ref().and_then(|known| known.cut()),
                address: region.address(),
                bytes: region.bytes(),
                readable: region.access().remote_read,
                writable: region.access().remote_write,
                location: location.as_ref().map(Location::to_string),
                needs_flush: region.span().memory().needs_flush(),
            };
        self.named.lock().by_order.values().filter(reached).map(describe).collect()
    }

    /// Finds bytes by their address alone, in one region that allows it.
    pub(crate) fn reach(
        &self,
        address: u64,
        length: u64,
        direction: Direction,
    ) -> Result<Span, ReachError> {
        let nowhere = ReachError::Nowhere { address, length };
        let end = address.checked_add(length).filter(|_| length > 0).ok_or(nowhere)?;
        let holds = |named: &&Named| end - named.region.address() <= named.region.bytes();
        let named = self.named.lock();
        // Regions may overlap: the nearest one that begins before need not hold the bytes.
        let before = named.by_address.range(..=(address, u64::MAX)).rev();
        let found = before.filter_map(|(_, order)| named.by_order.get(order)).find(holds);
        let key = found.map(|named| named.region.key()).ok_or(nowhere)?;
        drop(named);
        Ok(self.table.lookup(key, address, length, direction)?)
    }
}
