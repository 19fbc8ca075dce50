//! Registrations with the RDMA devices of this node.
//!
//! Memory that peers may reach has registrations of its own, which transfers of this node never use:
//! they would keep the peers' key after the end of a segment.

mod recent;
mod renewal;
#[cfg(test)]
mod tests;

use super::cache::{Block, Cache, CacheLimits, Cover, Decision, Registered};
use crate::data::local::LocalRegion;
use crate::data::transport::Purpose;
use crate::observe::counters::MemoryCounters;
use crate::topology::Location;
use handfast_core::transport::{Side, TransportError};
use handfast_transport::{BlockId, Cut, DeviceId, DeviceKey, Memory, RenewedKeys, Span};
use parking_lot::{Condvar, Mutex};
use recent::Recent;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use tokio::runtime::Handle;

/// Maximum registrations for single transfers, and of those that are kept with their memory. Devices
/// support some hundred thousand, shared by all processes.
pub(crate) const REGISTRATIONS_MAX: usize = 16_384;
/// Largest block that is registered as a whole for any of its bytes; a larger one is registered in
/// multiples of this. A device takes a tenth of a second to pin it.
const WHOLE_BYTES_MAX: u64 = 1 << 30;
/// Equal parts of a block whose NUMA node is asked for if they are not all on one.
const PARTS_LOCATED: usize = 16;
/// Bytes of a page in the location of a block on several nodes.
const LOCATED_PAGE_BYTES: u64 = 4 << 10;
/// Errors of a device, or of a limit of the process, that has no room for another registration.
const EXHAUSTED: [i32; 3] = [libc::ENOMEM, libc::ENOSPC, libc::EAGAIN];
/// Length of the list of regions at which those that have ended are first removed.
const LIVE_MIN: usize = 64;
/// The devices, as registration needs them.
pub(super) trait Devices {
    /// A registration with one device, which holds its span.
    type Held: Held;

    /// The device at each place of the keys of such a registration; `None` for one that is lost.
    fn present(&self, purpose: Purpose) -> Vec<Option<DeviceId>>;

    /// Registers bytes with every device. Blocks while their pages are pinned.
    fn register(
        &self,
        span: &Span,
        purpose: Purpose,
    ) -> Result<OnDevices<Self::Held>, TransportError>;

    /// Registers bytes with the device at a place, in the pieces of a cut. Blocks as above.
    fn register_at(
        &self,
        place: usize,
        span: &Span,
        purpose: Purpose,
        cut: Cut,
    ) -> InPieces<Self::Held>;
}

/// The keys and the registrations of the pieces with one device.
pub(super) type InPieces<H> = Result<(Vec<DeviceKey>, Vec<H>), TransportError>;

/// A registration with one device. Dropping it ends it.
pub(super) trait Held: Send + Sync + 'static {
    /// Ends it. False if the device still has the memory, and will for ever.
    fn end(self) -> bool;
}

/// The registrations of a span with all devices.
pub(super) struct OnDevices<H> {
    /// As [`DeviceMemory::in_pieces`](handfast_transport::DeviceMemory::in_pieces) takes them.
    pub(super) keys: Vec<DeviceKey>,
    pub(super) cut: Cut,
    /// The registrations of the pieces with each device; none with one that is lost.
    pub(super) held: Vec<Vec<H>>,
}

/// The registrations of a region. They end with their holder, also while they are renewed.
struct Registrations<H: Held> {
    places: Mutex<Places<H>>,
    /// Held during a renewal.
    renewing: Mutex<()>,
    /// A lost device did not let go of some of it.
    kept: AtomicBool,
    span: Span,
    purpose: Purpose,
    cut: Cut,
}

/// The registrations with each device.
struct Places<H> {
    all: Vec<Place<H>>,
    /// No others are to be added.
    has_ended: bool,
}

/// The registrations of the pieces with one device.
struct Place<H> {
    device: Option<DeviceId>,
    held: Vec<H>,
}

/// Holds the registrations of a region.
struct Holder<H: Held> {
    registrations: Arc<Registrations<H>>,
    /// The budget that they count in, once they are kept.
    counted: OnceLock<Counted<H>>,
    /// Runtime for releasing pages in the background: the last holder may be the device's own
    /// thread.
    background: Option<Handle>,
}

impl<H: Held> Drop for Holder<H> {
    fn drop(&mut self) {
        let mut places = self.registrations.places.lock();
        places.has_ended = true;
        let all = places.all.drain(..).flat_map(|place| place.held).collect();
        drop(places);
        // Memory that a device keeps counts for ever.
        let is_kept = self.registrations.kept.load(Ordering::Relaxed);
        let counted = self.counted.take().filter(|_| !is_kept);
        let ending = Ending { all, counted };
        if let Some(background) = self.background.take() {
            background.spawn_blocking(move || drop(ending));
        }
    }
}

/// A budget, and the bytes that count in it.
type Counted<H> = (Weak<Shared<H>>, u64);

/// Ends registrations when it is dropped, and gives their bytes back to the budget that they count
/// in.
struct Ending<H: Held> {
    all: Vec<H>,
    counted: Option<Counted<H>>,
}

impl<H: Held> Drop for Ending<H> {
    fn drop(&mut self) {
        let held = self.all.drain(..);
        let kept = held.filter_map(|held| (!held.end()).then_some(())).count();
        // As above.
        if kept == 0
            && let Some((shared, bytes)) = self.counted.take()
            && let Some(shared) = shared.upgrade()
        {
            shared.state.lock().kept.on_ended(bytes);
        }
    }
}

/// A registration that stays with its block.
struct Kept<H: Held> {
    region: Arc<LocalRegion>,
    holder: Arc<Holder<H>>,
}

impl<H: Held> Registered for Kept<H> {
    /// Neither a request has it nor a slice in flight.
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.region) > 1 || Arc::strong_count(self.region.memory()) > 1
    }
}

impl<H: Held> Kept<H> {
    /// Ends it before returning, unless it is in use again. Blocks.
    fn end(self) {
        drop(self.region);
        if let Some(mut last) = Arc::into_inner(self.holder) {
            last.background = None;
        }
    }
}

/// The registrations for local use, and how more are made.
pub(super) struct LocalRegions<H: Held>(Arc<Shared<H>>);

struct Shared<H: Held> {
    state: Mutex<State<H>>,
    recent: Recent,
    /// Notified when a registration ends or fails.
    finished: Condvar,
    /// Registrations made with a device.
    made: AtomicU64,
    live: Mutex<Live<H>>,
}

/// All regions, for devices that are lost or opened again.
struct Live<H: Held> {
    regions: Vec<Region<H>>,
    /// Length of the list at which those that have ended are removed.
    prune_at: usize,
}

struct Region<H: Held> {
    registrations: Weak<Registrations<H>>,
    keys: RenewedKeys,
}

impl<H: Held> Clone for Region<H> {
    fn clone(&self) -> Self {
        Self { registrations: self.registrations.clone(), keys: self.keys.clone() }
    }
}

struct State<H: Held> {
    kept: Cache<Kept<H>>,
    passing: Passing,
    /// Blocks that tell their end.
    watched: BTreeSet<BlockId>,
}

/// Reports the end of a block, which holds it.
struct Farewell<H: Held> {
    shared: Weak<Shared<H>>,
    block: BlockId,
}

impl<H: Held> Drop for Farewell<H> {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut state = shared.state.lock();
        state.watched.remove(&self.block);
        let gone = state.kept.forget(self.block);
        drop(state);
        drop(gone);
    }
}

/// Registrations that end with their last user: those at a location of the user's, and those past the
/// budget.
#[derive(Default)]
struct Passing {
    blocks: BTreeMap<BlockId, Vec<Weak<LocalRegion>>>,
    /// Number of entries in all lists, stale ones included.
    entries: usize,
}

/// Ends a registration that the cache waits for, with what came of it.
struct Making<'a, H: Held> {
    shared: &'a Shared<H>,
    block: BlockId,
    range: Range<u64>,
    result: Option<Kept<H>>,
}

impl<H: Held> Drop for Making<'_, H> {
    fn drop(&mut self) {
        let (range, result) = (self.range.clone(), self.result.take());
        self.shared.state.lock().kept.finish(self.block, range, result);
        self.shared.finished.notify_all();
    }
}

impl<H: Held> LocalRegions<H> {
    /// Keeps registrations of at most `kept_bytes_max` bytes with their memory.
    pub(super) fn new(kept_bytes_max: u64) -> Self {
        let limits = CacheLimits {
            bytes_max: kept_bytes_max,
            entries_max: REGISTRATIONS_MAX,
            whole_max: WHOLE_BYTES_MAX,
        };
        let state = State {
            kept: Cache::new(limits),
            passing: Passing::default(),
            watched: BTreeSet::new(),
        };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            recent: Recent::new(),
            finished: Condvar::new(),
            made: AtomicU64::new(0),
            live: Mutex::new(Live { regions: Vec::new(), prune_at: LIVE_MIN }),
        }))
    }

    /// Finds a registration for local use that has the bytes. Takes no lock where the last transfer from
    /// the block found it too.
    pub(super) fn find(&self, span: &Span) -> Option<Arc<LocalRegion>> {
        if let Some(region) = self.0.recent.find(span) {
            return Some(region);
        }
        let block = span.memory().id();
        let mut state = self.0.state.lock();
        let State { kept, passing, .. } = &mut *state;
        if let Some(region) = passing.find(span) {
            return Some(region);
        }
        let found = Arc::clone(&kept.find(block, &range_of(span))?.region);
        if !passing.blocks.contains_key(&block) {
            self.0.recent.note(span, &found);
        }
        Some(found)
    }

    /// Registers memory that peers may reach until the result is dropped, and transfers of this node
    /// may not. Blocks while its pages are pinned.
    pub(super) fn serve(
        &self,
        devices: &impl Devices<Held = H>,
        span: &Span,
        purpose: impl Into<Purpose>,
        location: Option<Location>,
    ) -> Result<Arc<LocalRegion>, TransportError> {
        let purpose = purpose.into();
        let made = self.register_with_room(devices, span, purpose)?;
        let location = location.unwrap_or_else(|| node_of(span));
        // A dropped segment must lock peers out at once.
        Ok(self.region(devices, span, purpose, made, location, None)?.region)
    }

    /// Registers memory for transfers of this node, or finds it registered. It stays registered with
    /// its block while the budget has room, else until the result is dropped; at a location of the
    /// user's always the latter. Blocks while its pages are pinned.
    pub(super) fn prepare(
        &self,
        devices: &impl Devices<Held = H>,
        span: &Span,
        location: Option<Location>,
    ) -> Result<Arc<LocalRegion>, TransportError> {
        if location.is_some() {
            return self.pass(devices, span, location);
        }
        self.watch(span.memory());
        self.keep(devices, span, Cover::Whole)
    }

    /// Counters.
    pub(super) fn counters(&self) -> MemoryCounters {
        let state = self.0.state.lock();
        MemoryCounters {
            registrations: self.0.made.load(Ordering::Relaxed),
            evictions: state.kept.evictions(),
            kept_bytes: state.kept.bytes(),
        }
    }

    /// Registers bytes, or what covers them, so that they stay with their block.
    fn keep(
        &self,
        devices: &impl Devices<Held = H>,
        span: &Span,
        cover: Cover,
    ) -> Result<Arc<LocalRegion>, TransportError> {
        let memory = span.memory();
        let asked = range_of(span);
        let Some((range, evicted)) = self.decide(memory, &asked, cover) else {
            return self.find(span).map_or_else(|| self.pass(devices, span, None), Ok);
        };
        let is_exact = range == asked;
        let mut making = Making { shared: &self.0, block: memory.id(), range, result: None };
        evicted.into_iter().for_each(Kept::end);
        // Held by the block, which it must not hold.
        let bytes = (making.range.end - making.range.start) as usize;
        let part = memory.span(making.range.start as usize, bytes);
        let part = part.map_err(|error| failed(error.to_string()))?.uncounted();
        let made = match is_exact {
            true => self.register_with_room(devices, &part, Purpose::Own),
            false => self.register(devices, &part, Purpose::Own),
        };
        let made = match made {
            Ok(made) => made,
            Err(error) if is_exact => return Err(error),
            Err(_) => {
                self.0.state.lock().kept.on_whole_refused(memory.id());
                drop(making);
                // The device may have room for the bytes alone.
                return self.keep(devices, span, Cover::Exact);
            }
        };
        let background = Handle::try_current().ok();
        let kept = self.region(devices, &part, Purpose::Own, made, places_of(&part), background)?;
        // Not before: `making` gives the bytes of a failure back.
        let _ = kept.holder.counted.set((Arc::downgrade(&self.0), bytes as u64));
        let region = Arc::clone(&kept.region);
        making.result = Some(kept);
        Ok(region)
    }

    /// Returns the bytes to register, and the registrations that make room; `None` if there is one
    /// that has the bytes, or none is to be kept. Blocks while another thread registers the block.
    fn decide(
        &self,
        memory: &Memory,
        asked: &Range<u64>,
        cover: Cover,
    ) -> Option<(Range<u64>, Vec<Kept<H>>)> {
        let block = Block { id: memory.id(), bytes: memory.len() as u64 };
        let mut state = self.0.state.lock();
        self.0.recent.take_uses(|block, range| {
            state.kept.find(block, range);
        });
        loop {
            match state.kept.decide(block, asked, cover) {
                Decision::Found | Decision::Pass => return None,
                Decision::Wait => self.0.finished.wait(&mut state),
                Decision::Keep { range, evicted } => return Some((range, evicted)),
            }
        }
    }

    /// Registers bytes until the result is dropped.
    fn pass(
        &self,
        devices: &impl Devices<Held = H>,
        span: &Span,
        location: Option<Location>,
    ) -> Result<Arc<LocalRegion>, TransportError> {
        let made = self.register_with_room(devices, span, Purpose::Own)?;
        let location = location.unwrap_or_else(|| node_of(span));
        let background = Handle::try_current().ok();
        let region = self.region(devices, span, Purpose::Own, made, location, background)?.region;
        let mut state = self.0.state.lock();
        state.passing.insert(span.memory().id(), &region)?;
        // It is found before one that stays.
        self.0.recent.forget(span.memory().id());
        drop(state);
        Ok(region)
    }

    /// Registers with the devices; if they are exhausted, once more without the registrations that are
    /// kept and not in use.
    fn register_with_room(
        &self,
        devices: &impl Devices<Held = H>,
        span: &Span,
        purpose: Purpose,
    ) -> Result<OnDevices<H>, TransportError> {
        let made = self.register(devices, span, purpose);
        let Err(error) = made else { return made };
        if !EXHAUSTED.contains(&error.code) {
            return Err(error);
        }
        let unused = self.0.state.lock().kept.evict_unused();
        if unused.is_empty() {
            return Err(error);
        }
        unused.into_iter().for_each(Kept::end);
        self.register(devices, span, purpose)
    }

    fn register(
        &self,
        devices: &impl Devices<Held = H>,
        span: &Span,
        purpose: Purpose,
    ) -> Result<OnDevices<H>, TransportError> {
        let made = devices.register(span, purpose)?;
        self.count(made.held.iter().map(Vec::len).sum());
        Ok(made)
    }

    fn count(&self, registrations: usize) {
        self.0.made.fetch_add(registrations as u64, Ordering::Relaxed);
    }

    /// Lets the block tell its end.
    fn watch(&self, memory: &Memory) {
        let block = memory.id();
        if self.0.state.lock().watched.insert(block) {
            memory.drop_with_block(Farewell { shared: Arc::downgrade(&self.0), block });
        }
    }
}

impl Passing {
    /// Finds the latest that has the bytes.
    fn find(&self, span: &Span) -> Option<Arc<LocalRegion>> {
        let of_block = self.blocks.get(&span.memory().id())?;
        let mut live = of_block.iter().rev().filter_map(Weak::upgrade);
        live.find(|region| region.memory().covers(span))
    }

    fn insert(&mut self, block: BlockId, region: &Arc<LocalRegion>) -> Result<(), TransportError> {
        if self.entries >= REGISTRATIONS_MAX {
            self.forget_gone();
        }
        if self.entries >= REGISTRATIONS_MAX {
            let cure = "end transfers, or raise the bytes of memory that stay registered";
            return Err(failed(format!(
                "the limit of {REGISTRATIONS_MAX} registrations for single transfers is reached: {cure}"
            )));
        }
        let of_block = self.blocks.entry(block).or_default();
        let before = of_block.len();
        of_block.retain(|region| region.strong_count() > 0);
        of_block.push(Arc::downgrade(region));
        self.entries = self.entries + of_block.len() - before;
        Ok(())
    }

    fn forget_gone(&mut self) {
        self.blocks.retain(|_, regions| {
            regions.retain(|region| region.strong_count() > 0);
            !regions.is_empty()
        });
        self.entries = self.blocks.values().map(Vec::len).sum();
    }
}

fn range_of(span: &Span) -> Range<u64> {
    let start = span.offset() as u64;
    start..start + span.len() as u64
}

/// The accelerator that has registered bytes, or the NUMA node of their pages, which stay there.
fn node_of(span: &Span) -> Location {
    let node = || span.numa_node().map_or(Location::Anywhere, Location::Numa);
    Location::of_kind(span.kind()).unwrap_or_else(node)
}

/// Like [`node_of`], for each part of the bytes if they are on several nodes.
fn places_of(span: &Span) -> Location {
    let part =
        span.len() / PARTS_LOCATED / LOCATED_PAGE_BYTES as usize * LOCATED_PAGE_BYTES as usize;
    match node_of(span) {
        Location::Anywhere if part > 0 => {
            let node = |place| span.slice(place * part, part).ok()?.numa_node();
            let nodes: Option<Vec<u32>> = (0..PARTS_LOCATED).map(node).collect();
            nodes.map_or(Location::Anywhere, |nodes| Location::Striped {
                page_bytes: LOCATED_PAGE_BYTES,
                nodes,
            })
        }
        location => location,
    }
}

fn failed(detail: String) -> TransportError {
    TransportError::new(Side::Local, "register", detail)
}
