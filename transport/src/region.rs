//! Regions that peers may reach, by key.

use crate::block::{Memory, Span};
use handfast_core::NodeName;
use handfast_core::policy::{Access, AccessMemo, Grants, Requester};
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

/// A registered region, as announced to peers.
#[derive(Clone)]
pub struct Region {
    key: u64,
    span: Span,
    grants: Arc<Grants>,
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
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Permissions of a requester.
    pub fn access_of(&self, requester: Requester<'_>) -> Access {
        self.grants.access_of(requester)
    }

    /// Returns the memory of the region.
    pub fn span(&self) -> &Span {
        &self.span
    }

    fn reach(
        &self,
        (address, length): (u64, u64),
        direction: Direction,
        access: impl FnOnce(&Self) -> Access,
    ) -> Result<Span, RegionError> {
        let is_for_everybody = self.grants.access_of_everybody().allows(direction);
        let access = (!is_for_everybody).then(|| access(self));
        if access.is_some_and(Access::is_none) {
            return Err(RegionError::NotGranted);
        }
        let bounds = RegionError::OutOfBounds { address, length, region: self.bytes() };
        let offset = address.checked_sub(self.address()).ok_or(bounds)?;
        match offset.checked_add(length) {
            Some(end) if end <= self.bytes() => {}
            _ => return Err(bounds),
        }
        if access.is_some_and(|access| !access.allows(direction)) {
            return Err(RegionError::Permission(direction));
        }
        let (offset, length) = (offset as usize, length as usize);
        self.span.slice(offset, length).map_err(|_| bounds)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes, {:?})", self.bytes(), self.grants.union())
    }
}

/// Reasons to refuse a peer's access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// No region has the key: it was never registered or has been removed.
    #[error("no region has the key")]
    UnknownKey,
    /// The peer may do nothing in the region. Its answer is that of an unknown key.
    #[error("no region has the key")]
    NotGranted,
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
    /// No region has the key.
    #[error("the region is no longer registered")]
    Gone,
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

/// A refused access.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// The side that asked.
    pub requester: Requester<'a>,
    /// The presented key.
    pub key: u64,
    /// Whether it was a read or a write. A request for the memory itself is a read.
    pub direction: Direction,
    /// The reason.
    pub error: RegionError,
}

/// Learns about regions that peers may no longer reach, and about refusals.
pub trait RegionWatch: Send + Sync {
    /// Handles the end of a region, or of permissions in it, on the thread that ended them and before
    /// its memory is returned. A watch that gave the region to peers takes it back, and holds its
    /// memory until they have let it go.
    fn on_revoked(&self, _key: u64) {}

    /// Handles a refused access, on the thread that refused it. It must not block.
    fn on_refused(&self, _refused: &Refused<'_>) {}
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

    /// Registers `span` under the key `entropy`, drawn at random by the caller: the key
    /// protects the region from a peer that guesses, and the grants from one that knows the key.
    /// Costs a copy of a part of the table.
    ///
    /// # Errors
    /// [`RegistrationError`]; the table is unchanged.
    pub fn register(
        &self,
        span: Span,
        grants: impl Into<Grants>,
        entropy: u64,
    ) -> Result<Region, RegistrationError> {
        let grants = Arc::new(grants.into());
        check_writable(&span, &grants)?;
        self.change(entropy, |part, count| {
            if *count >= REGIONS_MAX {
                return Err(RegistrationError::Full);
            }
            match find(part, entropy) {
                Ok(_) => Err(RegistrationError::KeyTaken),
                Err(place) => {
                    let region = Region { key: entropy, span, grants };
                    part.insert(place, region.clone());
                    *count += 1;
                    Ok(region)
                }
            }
        })
    }

    /// Replaces the grants of a region. In force on return: a running transfer checks again before its
    /// next piece.
    ///
    /// # Errors
    /// [`RegistrationError::ReadOnly`] and [`RegistrationError::Gone`]; the table is unchanged.
    pub fn regrant(&self, key: u64, grants: Grants) -> Result<Region, RegistrationError> {
        let grants = Arc::new(grants);
        let region = self.change(key, |part, _| {
            let place = find(part, key).map_err(|_| RegistrationError::Gone)?;
            check_writable(&part[place].span, &grants)?;
            part[place].grants = grants;
            Ok(part[place].clone())
        })?;
        self.tell(|watch| watch.on_revoked(key));
        Ok(region)
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
        self.tell(|watch| watch.on_revoked(key));
        Some(memory)
    }

    fn tell(&self, what: impl FnMut(&Arc<dyn RegionWatch>)) {
        let watches: Vec<_> = self.watches.read().iter().filter_map(Weak::upgrade).collect();
        watches.iter().for_each(what);
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

    /// Checks that a requester may move `length` bytes at `address` under `key`, and returns the bytes.
    /// Takes the lock for a moment; a lane uses a [`RegionCache`].
    ///
    /// # Errors
    /// [`RegionError`], in the order unknown key, no grant, bounds, permission.
    pub fn lookup(
        &self,
        key: u64,
        (address, length): (u64, u64),
        direction: Direction,
        requester: Requester<'_>,
    ) -> Result<Span, RegionError> {
        let snapshot = self.snapshot();
        let found = snapshot.find(key).ok_or(RegionError::UnknownKey);
        let access = |region: &Region| region.access_of(requester);
        let reached = found.and_then(|it| it.reach((address, length), direction, access));
        reached.inspect_err(|error| self.refuse(key, direction, requester, *error))
    }

    /// Finds the region that a requester asks for as a whole, and its permissions. The caller reports a
    /// refusal to the watches, without its locks ([`RegionTable::report_refused`]).
    ///
    /// # Errors
    /// [`RegionError::UnknownKey`] and [`RegionError::NotGranted`].
    pub fn whole(
        &self,
        key: u64,
        requester: Requester<'_>,
    ) -> Result<(Region, Access), RegionError> {
        let region = self.region(key).ok_or(RegionError::UnknownKey)?;
        let access = region.access_of(requester);
        if access.is_none() {
            return Err(RegionError::NotGranted);
        }
        Ok((region, access))
    }

    /// Reports a refused access to the watches.
    pub fn report_refused(&self, refused: &Refused<'_>) {
        self.tell(|watch| watch.on_refused(refused));
    }

    #[cold]
    fn refuse(&self, key: u64, direction: Direction, requester: Requester<'_>, error: RegionError) {
        self.report_refused(&Refused { requester, key, direction, error });
    }
}

fn check_writable(span: &Span, grants: &Grants) -> Result<(), RegistrationError> {
    match grants.union().remote_write && !span.is_writable() {
        true => Err(RegistrationError::ReadOnly),
        false => Ok(()),
    }
}

/// The table as the peer of one lane may use it. It takes the lock only when the table has changed,
/// and holds no memory between lookups, so an idle lane does not keep an unregistered region mapped.
pub struct RegionCache {
    table: Arc<RegionTable>,
    peer: Option<NodeName>,
    version: u64,
    snapshot: Weak<Snapshot>,
    memo: AccessMemo,
}

impl RegionCache {
    /// Creates a view for a peer by its proven name, or for any peer.
    pub fn new(table: Arc<RegionTable>, peer: Option<NodeName>) -> Self {
        let snapshot = table.snapshot();
        let (version, snapshot) = (snapshot.version, Arc::downgrade(&snapshot));
        Self { table, peer, version, snapshot, memo: AccessMemo::default() }
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
        let Self { table, peer, version, memo, .. } = self;
        let requester = peer.as_ref().map_or(Requester::Anybody, Requester::Peer);
        let access = |region: &Region| memo.access((*version, key), &region.grants, requester);
        let found = snapshot.find(key).ok_or(RegionError::UnknownKey);
        let reached = found.and_then(|it| it.reach((address, length), direction, access));
        reached.inspect_err(|error| table.refuse(key, direction, requester, *error))
    }
}
