//! Devices that answer a post at once, to measure the programs on them.
//!
//! While a device is instant, the library carries out its writes and reads within the call that
//! posts them, without the lock and the tables of the devices. A request that the tables would not
//! complete at once goes to them: its queue pair or its peer's is not connected, a key or a range
//! is wrong, a path is cut, or a test holds or fails something. The depth of a queue pair is not
//! checked.

use crate::devices::DEVICES_MAX;
use crate::state::{State, lock, wait};
use handfast_transport_sim::verbs::{Access, QpState};
use parking_lot::{RwLock, RwLockReadGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bits of a mode. The interval of a device's requests in nanoseconds stands above them.
const ON: u64 = 1;
const COPIES: u64 = 1 << 1;
const HOLDS: u64 = 1 << 2;
const INTERVAL_SHIFT: u32 = 3;
/// Longest interval between the completions of a device.
const INTERVAL_NS_MAX: u64 = 1_000_000_000;

static MODES: [AtomicU64; DEVICES_MAX] = [const { AtomicU64::new(0) }; DEVICES_MAX];
/// Calls that posted to each instant device.
static POSTS: [AtomicU64; DEVICES_MAX] = [const { AtomicU64::new(0) }; DEVICES_MAX];
/// Completions that the tables have added to the queues of each device.
static ADDED: [AtomicU64; DEVICES_MAX] = [const { AtomicU64::new(0) }; DEVICES_MAX];
/// Posts of each device whose copy is held, and calls at the end of its regions that wait for
/// copies.
static HELD: [AtomicU64; DEVICES_MAX] = [const { AtomicU64::new(0) }; DEVICES_MAX];
static ENDING: [AtomicU64; DEVICES_MAX] = [const { AtomicU64::new(0) }; DEVICES_MAX];
/// Read-locked while bytes are copied. The memory of a region stays in use until they are.
static COPYING: RwLock<()> = RwLock::new(());
/// Calls and commands that may have changed what a [`Path`] or a [`Region`] says.
static CHANGES: AtomicU64 = AtomicU64::new(0);
/// A test holds or fails something.
static SCRIPTED: AtomicBool = AtomicBool::new(false);
/// The devices are those of other processes.
static SHARED: AtomicBool = AtomicBool::new(false);

/// The mode of an instant device.
#[derive(Clone, Copy, Debug)]
pub struct Mode(u64);

impl Mode {
    /// The mode of a device; `None` if it is not instant.
    pub fn of(nic: usize) -> Option<Self> {
        let mode = MODES.get(nic)?.load(Ordering::Relaxed);
        (mode & ON != 0).then_some(Self(mode))
    }

    /// Whether bytes are copied.
    pub fn copies(self) -> bool {
        self.0 & COPIES != 0
    }

    /// Whether copies wait until another mode is set.
    pub fn holds(self) -> bool {
        self.0 & HOLDS != 0
    }

    /// Nanoseconds that the device takes for each request; 0 is at once.
    pub fn interval_ns(self) -> u64 {
        self.0 >> INTERVAL_SHIFT
    }
}

/// A connected queue pair whose requests complete at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Path {
    /// Its number.
    pub number: u32,
    /// The device of its peer.
    pub peer: usize,
    /// Whether every request completes with an entry.
    pub signals_all: bool,
    /// Its protection domain, and that of its peer.
    pub domains: (u32, u32),
}

/// Registered memory of this process.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Its first address, as requests name it.
    first: u64,
    bytes: u64,
    /// Its first address in this process.
    place: usize,
    access: Access,
}

/// The access of a request to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reads it, at the side that posts.
    Source,
    /// Writes it, at the side that posts.
    Sink,
    /// Reads it, at the peer's side.
    RemoteRead,
    /// Writes it, at the peer's side.
    RemoteWrite,
}

impl Region {
    /// The place of a range in this process; `None` if the region does not have the range or does
    /// not permit the use.
    pub fn place(&self, address: u64, length: u32, purpose: Use) -> Option<usize> {
        let permitted = match purpose {
            Use::Source => true,
            Use::Sink => self.access.local_write,
            Use::RemoteRead => self.access.remote_read,
            Use::RemoteWrite => self.access.remote_write,
        };
        let offset = address.checked_sub(self.first)?;
        let fits = offset.checked_add(u64::from(length)).is_some_and(|end| end <= self.bytes);
        (permitted && fits).then(|| self.place.wrapping_add(offset as usize))
    }
}

/// Counts what may have changed since a [`path`] or a [`region`] was asked for.
pub fn changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// Counts completions that the tables added to the queues of a device.
pub fn added(nic: usize) -> u64 {
    ADDED.get(nic).map_or(0, |added| added.load(Ordering::Acquire))
}

/// Whether a test holds or fails something.
pub fn is_scripted() -> bool {
    SCRIPTED.load(Ordering::Relaxed)
}

/// Counts a call that posted.
pub fn count_post(nic: usize) {
    if let Some(posts) = POSTS.get(nic) {
        posts.fetch_add(1, Ordering::Relaxed);
    }
}

/// The path of a queue pair, if its requests complete at once.
pub fn path(pair: u64) -> Option<Path> {
    let state = lock();
    let pair = state.pairs.get(&pair)?;
    let own = state.fabric.queue_pair(pair.nic, pair.number)?;
    let (peer, peer_number) = own.bond()?;
    let theirs = state.fabric.queue_pair(peer, peer_number)?;
    let is_ready = own.state() == QpState::Rts
        && matches!(theirs.state(), QpState::Rtr | QpState::Rts)
        && theirs.bond() == Some((pair.nic, pair.number))
        && state.is_alive(pair.context)
        && state.fabric.reaches(pair.nic, peer)
        && state.fabric.reaches(peer, pair.nic)
        && state.fabric.has_own_address(pair.nic, pair.number)
        && state.fabric.has_own_address(peer, peer_number);
    // Its work in the tables is completed first.
    let queue = state.queues.get(&pair.send_queue)?;
    let is_empty = pair.posted.is_empty()
        && !queue.has_overrun
        && queue.entries.iter().all(|entry| entry.number != pair.number);
    (is_ready && is_empty && !state.faults.has_any()).then_some(Path {
        number: pair.number,
        peer,
        signals_all: pair.signals_all,
        domains: (own.domain(), theirs.domain()),
    })
}

/// The region of a local or a remote key at a device, for a queue pair of a protection domain.
pub fn region((nic, domain): (usize, u32), key: u32, is_remote: bool) -> Option<Region> {
    let state = lock();
    let has_key = |known: &crate::state::Registered| {
        key == if is_remote { known.keys.rkey } else { known.keys.lkey }
    };
    let mut of_nic = state.regions.range((nic, 0)..=(nic, u32::MAX)).map(|(_, known)| known);
    let known = of_nic.find(|known| has_key(known))?;
    let mut regions = state.fabric.nic(nic).regions();
    let region = regions.find(|region| region.keys == known.keys && region.is_of(domain))?;
    Some(Region {
        first: region.address,
        bytes: region.bytes.length() as u64,
        place: known.place?,
        access: region.access,
    })
}

/// Begins to copy. What a [`path`] and a [`region`] say at the present [`changes`] holds until the
/// returned guard is dropped.
pub fn copying() -> RwLockReadGuard<'static, ()> {
    COPYING.read()
}

/// Waits while the mode of a device holds its copies.
pub fn wait_while_held(nic: usize) {
    let mut state = lock();
    HELD[nic].fetch_add(1, Ordering::Relaxed);
    while Mode::of(nic).is_some_and(Mode::holds) {
        wait(&mut state);
    }
    HELD[nic].fetch_sub(1, Ordering::Relaxed);
}

/// Notes that regions of a device have ended, and waits for the copies that may use them.
pub(crate) fn on_regions_ended(nic: usize) {
    on_change();
    if COPYING.try_write().is_none() {
        ENDING[nic].fetch_add(1, Ordering::Relaxed);
        drop(COPYING.write());
        ENDING[nic].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Calls of a device that wait: posts whose copy is held, and calls at the end of a region.
pub(crate) fn waiting(nic: usize, call: &str) -> u64 {
    match call {
        "ibv_post_send" => HELD[nic].load(Ordering::Relaxed),
        "ibv_dereg_mr" => ENDING[nic].load(Ordering::Relaxed),
        _ => 0,
    }
}

/// Signals a queue that was armed.
pub fn signal(queue: u64) {
    lock().signal(queue);
}

/// Makes a queue that is full lose every completion from now on.
pub fn overrun(queue: u64) {
    lock().overrun(queue);
    on_change();
}

/// Notes a call or a command.
pub(crate) fn on_change() {
    CHANGES.fetch_add(1, Ordering::Release);
}

/// Notes a command, which may have planted or removed faults.
pub(crate) fn on_command(state: &State) {
    SCRIPTED.store(state.faults.has_any(), Ordering::Relaxed);
    on_change();
}

/// Notes that a completion was added to a queue of the tables.
pub(crate) fn on_added(nic: usize) {
    ADDED[nic].fetch_add(1, Ordering::Release);
}

/// Notes that the devices are those of other processes.
pub(crate) fn on_shared() {
    SHARED.store(true, Ordering::Relaxed);
}

/// Ends the mode of every device.
pub(crate) fn reset() {
    MODES.iter().for_each(|mode| mode.store(0, Ordering::Relaxed));
}

/// Calls that posted to a device while it was instant.
pub(crate) fn posts(nic: usize) -> u64 {
    POSTS[nic].load(Ordering::Relaxed)
}

/// Sets the mode of a device by the words of a command.
pub(crate) fn set(nic: usize, words: &[&str]) -> Result<(), String> {
    if SHARED.load(Ordering::Relaxed) {
        return Err("devices of other processes cannot be instant: the bytes are not here".into());
    }
    MODES[nic].store(mode_of(words)?, Ordering::Relaxed);
    Ok(())
}

/// The mode that the words of a command name; 0 ends it.
fn mode_of(words: &[&str]) -> Result<u64, String> {
    let mut mode = ON;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "off" => mode = 0,
            "copying" => mode |= COPIES,
            "held" => mode |= HOLDS,
            "every" => {
                let interval = words.next().and_then(|word| word.parse::<u64>().ok());
                let interval = interval.filter(|interval| *interval <= INTERVAL_NS_MAX);
                let wanted = || format!("'every' needs at most {INTERVAL_NS_MAX} nanoseconds");
                mode |= interval.ok_or_else(wanted)? << INTERVAL_SHIFT;
            }
            other => {
                return Err(format!("'{other}' is none of off, copying, held, every NANOSECONDS"));
            }
        }
    }
    Ok(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mode is read from its words; wrong ones are named.
    #[test]
    fn mode_is_read_from_its_words() {
        let mode = Mode(mode_of(&["copying", "every", "1000000000"]).unwrap());
        assert!(mode.copies() && !mode.holds() && mode.interval_ns() == INTERVAL_NS_MAX);
        assert_eq!(mode_of(&["off"]), Ok(0));
        assert_eq!(mode_of(&[]), Ok(ON));
        for (words, part) in [
            (&["fast"][..], "'fast' is none of off, copying"),
            (&["every"], "at most 1000000000"),
            (&["every", "1000000001"], "at most 1000000000"),
        ] {
            let error = mode_of(words).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert!(Mode::of(DEVICES_MAX).is_none());
    }

    /// A range is within its region, and its use permitted.
    #[test]
    fn range_is_placed_within_its_region() {
        let access = Access { local_write: true, remote_read: true, remote_write: false };
        let region = Region { first: 1 << 32, bytes: 64, place: 4_096, access };
        let place = |offset: u64, length| {
            region.place((1u64 << 32).wrapping_add(offset), length, Use::RemoteRead)
        };
        assert_eq!((place(0, 64), place(60, 4)), (Some(4_096), Some(4_156)));
        assert_eq!((place(60, 5), place(u64::MAX, 1), place(65, 0)), (None, None, None));
        assert_eq!(region.place(1 << 32, 1, Use::RemoteWrite), None);
    }
}
