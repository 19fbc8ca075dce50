//! Posts and polls of instant devices, see `handfast_fabric::instant`.
#![allow(unsafe_code)]

use crate::abi::{Context, Cq, Qp, SEND_INLINE, SEND_SIGNALED, SendWr, Sge};
use crate::objects::{DeviceObject, PairObject, QueueObject};
use handfast_fabric::instant::{self, Mode, Path, Region, Use};
use handfast_fabric::protocol::{Completed, READ, WRITE};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Operations in the numbers of `ibv_wc_opcode`.
const WRITTEN: u32 = 1;
const HAS_READ: u32 = 2;
/// Devices of a process.
const DEVICES_MAX: usize = 64;

/// The time from which each device takes requests again, in nanoseconds.
static FREE_AT: [AtomicU64; DEVICES_MAX] = [const { AtomicU64::new(0) }; DEVICES_MAX];

/// The cached path of a queue pair, until something changes.
#[derive(Default)]
pub(crate) struct Pair {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The count of changes at which it was asked.
    changes: u64,
    path: Option<Path>,
    local: Option<(u32, Region)>,
    remote: Option<(u32, Region)>,
}

/// Completions of a queue that were posted to an instant device.
#[derive(Default)]
pub(crate) struct Queue {
    entries: Mutex<VecDeque<Entry>>,
    /// Their number.
    count: AtomicUsize,
    is_armed: AtomicBool,
    /// The count of completions of the tables after which their queue was seen empty.
    seen: AtomicU64,
}

struct Entry {
    completed: Completed,
    /// Earliest time at which it is taken; 0 is any.
    due_ns: u64,
}

/// The place of an open device in the list.
///
/// # Safety
/// It is open.
pub(crate) unsafe fn nic_of(context: *mut Context) -> usize {
    // SAFETY: by the function's own condition.
    unsafe { (*(*context).device.cast::<DeviceObject>()).nic }
}

fn now_ns() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Carries out the requests of a chain that complete at once; returns the first of the others,
/// which may be null.
///
/// # Safety
/// As for `ibv_post_send`.
pub(crate) unsafe fn post(pair: *mut Qp, first: *mut SendWr) -> *mut SendWr {
    // SAFETY: by the rules of the interface, the queue pair, its device and its queue exist.
    let (pair, nic) = unsafe { (&*pair.cast::<PairObject>(), nic_of((*pair).context)) };
    let Some(mode) = Mode::of(nic) else { return first };
    // Before a path or a region is looked at: they stay as they are until the bytes are copied.
    let _copying = mode.copies().then(instant::copying);
    let mut known = pair.instant.known.lock();
    let Some(path) = known.path(pair.id) else { return first };
    let (mut next, mut count) = (first, 0);
    // SAFETY: the chain and its pieces are the caller's through the call.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        if !unsafe { known.carry_out(request, nic, path, mode) } {
            break;
        }
        count += 1;
        next = request.next;
    }
    if count > 0 {
        instant::count_post(nic);
        // SAFETY: the queue exists as long as its queue pair, and the requests are as above.
        unsafe { complete(pair.raw.send_cq, first, count, path, due(nic, mode, count)) };
    }
    next
}

/// The times of the first of `count` requests and between two.
fn due(nic: usize, mode: Mode, count: u64) -> (u64, u64) {
    let interval = mode.interval_ns();
    if interval == 0 {
        return (0, 0);
    }
    let now = now_ns();
    let ends = |free: u64| Some(free.max(now) + count * interval);
    let free = FREE_AT[nic].fetch_update(Ordering::Relaxed, Ordering::Relaxed, ends);
    (free.unwrap_or_else(|free| free).max(now) + interval, interval)
}

/// Adds the completions of `count` requests.
///
/// # Safety
/// The queue exists, and the chain has as many requests.
unsafe fn complete(
    queue: *mut Cq,
    mut next: *mut SendWr,
    count: u64,
    path: Path,
    (mut due_ns, interval_ns): (u64, u64),
) {
    // SAFETY: by the function's own condition.
    let (queue, room) = unsafe { (&*queue.cast::<QueueObject>(), (*queue).cqe as usize) };
    let mut entries = queue.instant.entries.lock();
    let mut overruns = false;
    for _ in 0..count {
        // SAFETY: by the function's own condition.
        let request = unsafe { &*next };
        next = request.next;
        if path.signals_all || request.send_flags & SEND_SIGNALED != 0 {
            overruns |= entries.len() >= room;
            if !overruns {
                entries.push_back(Entry { completed: completed(request, path), due_ns });
            }
        }
        due_ns += interval_ns;
    }
    queue.instant.count.store(entries.len(), Ordering::Release);
    drop(entries);
    if overruns {
        instant::overrun(queue.id);
    }
    // A load first, since a queue that is polled is not armed.
    if queue.instant.is_armed.load(Ordering::SeqCst)
        && queue.instant.is_armed.swap(false, Ordering::SeqCst)
    {
        instant::signal(queue.id);
    }
}

fn completed(request: &SendWr, path: Path) -> Completed {
    // SAFETY: of a request that was carried out.
    let bytes = unsafe { piece(request) }.map_or(0, |piece| piece.length);
    let opcode = if request.opcode == READ { HAS_READ } else { WRITTEN };
    let (wr_id, number) = (request.wr_id, path.number);
    Completed { wr_id, status: 0, opcode, bytes, vendor_error: 0, number }
}

/// The piece of a request; `None` if it has several.
///
/// # Safety
/// Its pieces live.
unsafe fn piece(request: &SendWr) -> Option<Sge> {
    match request.num_sge {
        0 => Some(Sge { addr: 0, length: 0, lkey: 0 }),
        // SAFETY: by the function's own condition.
        1 => Some(unsafe { *request.sg_list }),
        _ => None,
    }
}

impl Known {
    fn path(&mut self, pair: u64) -> Option<Path> {
        let changes = instant::changes();
        if self.changes != changes || self.path.is_none() {
            *self = Self { changes, path: instant::path(pair), local: None, remote: None };
        }
        self.path
    }

    /// Moves the bytes of a request; false if it does not complete at once.
    ///
    /// # Safety
    /// The request's pieces live.
    unsafe fn carry_out(&mut self, request: &SendWr, nic: usize, path: Path, mode: Mode) -> bool {
        let is_read = request.opcode == READ;
        if !(is_read || request.opcode == WRITE) || request.send_flags & SEND_INLINE != 0 {
            return false;
        }
        // SAFETY: by the function's own condition.
        let Some(Sge { addr, length, lkey }) = (unsafe { piece(request) }) else { return false };
        if length == 0 {
            return true;
        }
        let (here, there) =
            if is_read { (Use::Sink, Use::RemoteRead) } else { (Use::Source, Use::RemoteWrite) };
        let own = known(&mut self.local, (nic, path.domains.0), lkey, false);
        let own = own.and_then(|region| region.place(addr, length, here));
        let peers = known(&mut self.remote, (path.peer, path.domains.1), request.rkey, true);
        let peers = peers.and_then(|region| region.place(request.remote_addr, length, there));
        let Some((own, peers)) = own.zip(peers) else { return false };
        if mode.copies() {
            let (from, to) = if is_read { (peers, own) } else { (own, peers) };
            let from = std::ptr::with_exposed_provenance::<u8>(from);
            let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
            if mode.holds() {
                instant::wait_while_held(nic);
            }
            // SAFETY: both ranges are within registered memory of this process, which stays mapped
            // until its deregistration returns, and that waits for `copying`; both may be the same.
            unsafe { to.copy_from(from, length as usize) };
        }
        true
    }
}

/// The region of a key, asked for again only where it is another than the last.
fn known(
    last: &mut Option<(u32, Region)>,
    place: (usize, u32),
    key: u32,
    is_remote: bool,
) -> Option<Region> {
    if last.is_none_or(|(known, _)| known != key) {
        *last = instant::region(place, key, is_remote).map(|region| (key, region));
    }
    last.map(|(_, region)| region)
}

impl Queue {
    /// Takes at most `room` completions, and returns their number.
    pub(crate) fn take(&self, room: usize, mut to: impl FnMut(usize, &Completed)) -> usize {
        if self.count.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut entries = self.entries.lock();
        let is_shaped = entries.front().is_some_and(|entry| entry.due_ns > 0);
        let now = if is_shaped { now_ns() } else { 0 };
        let are_due = |entry: &&Entry| entry.due_ns <= now;
        let taken = entries.iter().take(room).take_while(are_due).count();
        for (at, entry) in entries.drain(..taken).enumerate() {
            to(at, &entry.completed);
        }
        self.count.store(entries.len(), Ordering::Release);
        taken
    }

    /// Whether the tables may have completions; `changes` are those of the device.
    pub(crate) fn may_have_more(&self, nic: usize) -> bool {
        Mode::of(nic).is_none()
            || instant::is_scripted()
            || self.seen.load(Ordering::Relaxed) != instant::added(nic)
    }

    /// Notes that the queue of the tables was empty after so many completions of its device.
    pub(crate) fn on_empty(&self, added: u64) {
        self.seen.store(added, Ordering::Relaxed);
    }

    /// Notes that the queue was armed. One with completions that are not due is signalled at once.
    pub(crate) fn on_armed(&self, queue: u64) {
        self.is_armed.store(true, Ordering::SeqCst);
        let waits = self.count.load(Ordering::SeqCst) > 0;
        if waits && self.is_armed.swap(false, Ordering::SeqCst) {
            instant::signal(queue);
        }
    }
}
