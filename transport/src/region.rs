//! Regions that peers may reach, by key.

use crate::block::{Memory, Span};
use handfast_core::transfer::Direction;
use parking_lot::RwLock;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Maximum registered regions.
pub const REGIONS_MAX: usize = 131_072;

/// Leading bits of a key that choose its part of the table. A change copies one part, and a
/// reference to each other one.
const PART_BITS: u32 = 8;

/// A peer's permissions in a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// A peer may read it.
    pub remote_read: bool,
    /// A peer may write it.
    pub remote_write: bool,
}

impl Access {
    /// A peer may read only.
    pub const READ: Self = Self { remote_read: true, remote_write: false };
    /// A peer may write only.
    pub const WRITE: Self = Self { remote_read: false, remote_write: true };
    /// A peer may read and write.
    pub const READ_WRITE: Self = Self { remote_read: true, remote_write: true };

    fn allows(self, direction: Direction) -> bool {
        match direction {
            Direction::Read => self.remote_read,
            Direction::Write => self.remote_write,
        }
    }
}

/// A registered region, as announced to peers.
#[derive(Clone)]
pub struct Region {
    key: u64,
    span: Span,
    access: Access,
}

impl Region {
    /// The random key.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.span.address()
    }

    /// Bytes in the region.
    pub fn bytes(&self) -> u64 {
        self.span.len() as u64
    }

    /// Permissions of peers.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the memory of the region.
    pub fn span(&self) -> &Span {
        &self.span
    }

    fn reach(&self, address: u64, length: u64, direction: Direction) -> Result<Span, RegionError> {
        let bounds = RegionError::OutOfBounds { address, length, region: self.bytes() };
        let offset = address.checked_sub(self.address()).ok_or(bounds)?;
        match offset.checked_add(length) {
            Some(end) if end <= self.bytes() => {}
            _ => return Err(bounds),
        }
        if !self.access.allows(direction) {
            return Err(RegionError::Permission(direction));
        }
        let (offset, length) = (offset as usize, length as usize);
        self.span.slice(offset, length).map_err(|_| bounds)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes, {:?})", self.bytes(), self.access)
    }
}

/// Reasons to refuse a peer's access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// No region has the key: it was never registered or has been removed.
    #[error("no region has the key")]
    UnknownKey,
    /// The range exceeds the region.
    #[error("{length} bytes at {address:#x} are not inside the region of {region} bytes")]
    OutOfBounds {
        /// First byte of the range.
        address: u64,
        /// Length of the range in bytes.
        length: u64,
        /// Bytes in the region.
        region: u64,
    },
    /// The region does not allow the direction.
    #[error("the region does not allow a remote {0:?}")]
    Permission(Direction),
}

/// Reasons to refuse a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationError {
    /// [`REGIONS_MAX`] regions are registered.
    #[error("{REGIONS_MAX} regions are registered already")]
    Full,
    /// The key is in use by another region; retry with another random key.
    #[error("the key is taken")]
    KeyTaken,
    /// Remote write access to memory that is mapped read-only.
    #[error("read-only memory cannot accept remote writes")]
    ReadOnly,
}

/// One state of the table.
struct Snapshot {
    version: u64,
    count: usize,
    /// By the leading bits of keys, which are drawn at random; each sorted by key.
    parts: Vec<Part>,
}

type Part = Arc<Vec<Region>>;

fn part_of(key: u64) -> usize {
    (key >> (u64::BITS - PART_BITS)) as usize
}

fn find(part: &[Region], key: u64) -> Result<usize, usize> {
    part.binary_search_by_key(&key, |region| region.key)
}

impl Snapshot {
    fn find(&self, key: u64) -> Option<&Region> {
        let part = &self.parts[part_of(key)];
        find(part, key).ok().map(|place| &part[place])
    }
}

/// Maximum watches of a table.
pub const WATCHES_MAX: usize = 8;

/// Learns about regions that are no longer registered.
pub trait RegionWatch: Send + Sync {
    /// Handles the end of a region, on the thread that ended it and before its memory is returned.
    /// It must not block. A watch that gave the region to peers holds its memory until they have let
    /// it go.
    fn on_unregistered(&self, key: u64);
}

/// The registered regions. Readers work on a snapshot through a [`RegionCache`] and take no lock
/// while the table is unchanged.
pub struct RegionTable {
    version: AtomicU64,
    current: RwLock<Arc<Snapshot>>,
    watches: RwLock<Vec<Weak<dyn RegionWatch>>>,
}

impl Default for RegionTable {
    fn default() -> Self {
        Self::new()
    }
}

impl RegionTable {
    /// Creates an empty table.
    pub fn new() -> Self {
        let parts = vec![Part::default(); 1 << PART_BITS];
        let snapshot = Snapshot { version: 0, count: 0, parts };
        Self {
            version: AtomicU64::new(0),
            current: RwLock::new(Arc::new(snapshot)),
            watches: RwLock::default(),
        }
    }

    /// Adds a watch; returns false at [`WATCHES_MAX`]. One that was dropped leaves its place.
    pub fn watch(&self, watch: Weak<dyn RegionWatch>) -> bool {
        let mut watches = self.watches.write();
        watches.retain(|watch| watch.strong_count() > 0);
        let has_room = watches.len() < WATCHES_MAX;
        if has_room {
            watches.push(watch);
        }
        has_room
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        // A poisoned lock still holds a whole snapshot: the only write replaces the pointer.
        Arc::clone(&self.current.read())
    }

    /// Replaces the part of a key, and the number of regions.
    fn change<T, E>(
        &self,
        key: u64,
        edit: impl FnOnce(&mut Vec<Region>, &mut usize) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut current = self.current.write();
        let (place, mut count) = (part_of(key), current.count);
        let mut part = Vec::clone(&current.parts[place]);
        let result = edit(&mut part, &mut count)?;
        let mut parts = current.parts.clone();
        parts[place] = Arc::new(part);
        let version = current.version + 1;
        *current = Arc::new(Snapshot { version, count, parts });
        self.version.store(version, Ordering::Release);
        Ok(result)
    }

    /// Registers `span` under the key `entropy`, drawn at random by the caller: the key alone
    /// protects the region from a peer that guesses. Costs a copy of a part of the table.
    ///
    /// # Errors
    /// [`RegistrationError`]; the table is unchanged.
    pub fn register(
        &self,
        span: Span,
        access: Access,
        entropy: u64,
    ) -> Result<Region, RegistrationError> {
        if access.remote_write && !span.is_writable() {
            return Err(RegistrationError::ReadOnly);
        }
        self.change(entropy, |part, count| {
            if *count >= REGIONS_MAX {
                return Err(RegistrationError::Full);
            }
            match find(part, entropy) {
                Ok(_) => Err(RegistrationError::KeyTaken),
                Err(place) => {
                    let region = Region { key: entropy, span, access };
                    part.insert(place, region.clone());
                    *count += 1;
                    Ok(region)
                }
            }
        })
    }

    /// Removes the region with `key` and returns its memory, or `None` if there is none.
    ///
    /// A running transfer checks again before its next copy and holds the memory until then;
    /// [`Memory::holders`] counts the holders.
    pub fn unregister(&self, key: u64) -> Option<Memory> {
        let removed = self.change(key, |part, count| {
            let place = find(part, key).map_err(|_| ())?;
            *count -= 1;
            Ok::<_, ()>(part.remove(place).span.memory().clone())
        });
        let memory = removed.ok()?;
        let watches: Vec<_> = self.watches.read().iter().filter_map(Weak::upgrade).collect();
        watches.iter().for_each(|watch| watch.on_unregistered(key));
        Some(memory)
    }

    /// Finds the region with `key`.
    pub fn region(&self, key: u64) -> Option<Region> {
        self.snapshot().find(key).cloned()
    }

    /// Returns the number of registered regions.
    pub fn len(&self) -> usize {
        self.snapshot().count
    }

    /// Returns true if no region is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks that a peer may move `length` bytes at `address` under `key`, and returns the bytes.
    /// Takes the lock for a moment; a lane uses a [`RegionCache`].
    ///
    /// # Errors
    /// [`RegionError`], in the order unknown key, bounds, permission.
    pub fn lookup(
        &self,
        key: u64,
        address: u64,
        length: u64,
        direction: Direction,
    ) -> Result<Span, RegionError> {
        lookup(&self.snapshot(), key, address, length, direction)
    }
}

fn lookup(
    snapshot: &Snapshot,
    key: u64,
    address: u64,
    length: u64,
    direction: Direction,
) -> Result<Span, RegionError> {
    let region = snapshot.find(key).ok_or(RegionError::UnknownKey)?;
    region.reach(address, length, direction)
}

/// A reader's view of the table: it takes the lock only when the table has changed. It holds no
/// memory between lookups, so an idle reader does not keep an unregistered region mapped.
pub struct RegionCache {
    table: Arc<RegionTable>,
    version: u64,
    snapshot: Weak<Snapshot>,
}

impl RegionCache {
    /// Creates a reader of `table`.
    pub fn new(table: Arc<RegionTable>) -> Self {
        let snapshot = table.snapshot();
        Self { table, version: snapshot.version, snapshot: Arc::downgrade(&snapshot) }
    }

    /// Number of changes to the table so far: an earlier lookup remains valid while this is
    /// unchanged. One atomic load.
    pub fn version(&self) -> u64 {
        self.table.version.load(Ordering::Acquire)
    }

    /// As [`RegionTable::lookup`], without a lock unless the table has changed.
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn lookup(
        &mut self,
        key: u64,
        address: u64,
        length: u64,
        direction: Direction,
    ) -> Result<Span, RegionError> {
        let current = (self.version == self.version()).then(|| self.snapshot.upgrade()).flatten();
        let snapshot = current.unwrap_or_else(|| {
            let snapshot = self.table.snapshot();
            self.version = snapshot.version;
            self.snapshot = Arc::downgrade(&snapshot);
            snapshot
        });
        lookup(&snapshot, key, address, length, direction)
    }
}
