//! The completion queues of a NIC, and the entries that lanes have reserved in them.
//!
//! A queue that overflows loses completions silently. So a lane reserves entries for all that
//! its queue pairs can complete before they exist, and they are free again only when the poller
//! has seen the queue empty after they were destroyed: some drivers leave their completions there.

use super::objects::{Channel, CompletionQueue};
use super::sweeper::Sweep;
use crate::error::VerbsError;
use handfast_core::transport::Side;
use handfast_transport::{LimitReached, NicLimit};
use parking_lot::{Condvar, Mutex};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Maximum completion queues of one NIC. One suffices unless the device's queues are small.
pub const COMPLETION_QUEUES_MAX: usize = 16;
/// Time limit of a reservation's wait for entries that are about to be freed.
const RECLAIM_WAIT: Duration = Duration::from_millis(500);

/// State that a poller shares with other threads.
pub(super) struct PollerShared {
    /// Its place among the pollers of the NIC.
    pub(super) number: usize,
    /// The channel that its queues signal.
    pub(super) channel: Arc<Channel>,
    /// It polls, and does not wait for events.
    pub(super) polls: AtomicBool,
    wake: File,
}

impl PollerShared {
    pub(super) fn new(number: usize, channel: Channel, wake: File) -> Self {
        Self { number, channel: Arc::new(channel), polls: AtomicBool::new(false), wake }
    }

    /// Wakes the poller, which checks its queues again.
    pub(super) fn wake(&self) {
        // Fails only if the counter is at its maximum, and then the poller is about to wake.
        let _ = (&self.wake).write_all(&1u64.to_ne_bytes());
    }
}

/// One queue and its reservations.
pub(super) struct Shard {
    pub(super) queue: Arc<CompletionQueue>,
    entries: u32,
    /// Its name in events.
    pub(super) number: usize,
    /// The poller of the queue.
    pub(super) poller: Arc<PollerShared>,
    /// Held by the thread that takes completions, so that those of a lane stay in order.
    pub(super) sweep: Mutex<Sweep>,
    /// A waiting thread has looked for completions.
    pub(super) is_busy_polled: AtomicBool,
    /// Time of its failure: it has lost completions, and takes no more lanes.
    failed_since: OnceLock<Instant>,
}

impl Shard {
    /// Notes its failure; returns whether it is the first.
    pub(super) fn on_failed(&self) -> bool {
        self.failed_since.set(Instant::now()).is_ok()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed_since.get().is_some()
    }

    pub(super) fn failed_since(&self) -> Option<Instant> {
        self.failed_since.get().copied()
    }
}

#[derive(Clone, Copy, Default)]
struct Books {
    reserved: u32,
    /// Reserved entries whose queue pairs are destroyed.
    leaving: u32,
}

#[derive(Default)]
struct Table {
    shards: Vec<Arc<Shard>>,
    books: Vec<Books>,
}

/// Limits of a NIC's queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueLimits {
    /// Entries of a queue, unless one lane needs more.
    pub(super) entries: u32,
    /// The device's limit.
    pub(super) entries_max: u32,
}

pub(super) struct CompletionQueues {
    /// At least one.
    pollers: Vec<Arc<PollerShared>>,
    limits: QueueLimits,
    table: Mutex<Table>,
    reclaimed: Condvar,
    /// Number of queues, and whether any entries are leaving; read by the pollers on each poll.
    made: AtomicUsize,
    any_leaving: AtomicBool,
}

/// Reserved entries of one lane, released when dropped, after the lane's queue pairs.
pub(super) struct Reservation {
    queues: Arc<CompletionQueues>,
    pub(super) shard: Arc<Shard>,
    entries: u32,
}

impl CompletionQueues {
    pub(super) fn new(pollers: Vec<Arc<PollerShared>>, limits: QueueLimits) -> Self {
        Self {
            pollers,
            limits,
            table: Mutex::default(),
            reclaimed: Condvar::new(),
            made: AtomicUsize::new(0),
            any_leaving: AtomicBool::new(false),
        }
    }

    pub(super) fn pollers(&self) -> &[Arc<PollerShared>] {
        &self.pollers
    }

    /// Reserves entries, in a new queue if the existing ones are full. Waits for entries that are
    /// about to be freed.
    pub(super) fn reserve(self: &Arc<Self>, entries: u32) -> Result<Reservation, VerbsError> {
        self.reserve_until(entries, Instant::now() + RECLAIM_WAIT)
    }

    /// Like [`CompletionQueues::reserve`], but does not wait.
    pub(super) fn try_reserve(self: &Arc<Self>, entries: u32) -> Result<Reservation, VerbsError> {
        self.reserve_until(entries, Instant::now())
    }

    fn reserve_until(
        self: &Arc<Self>,
        entries: u32,
        deadline: Instant,
    ) -> Result<Reservation, VerbsError> {
        let mut table = self.table.lock();
        loop {
            if let Some(number) = self.place(&mut table, entries)? {
                table.books[number].reserved += entries;
                let shard = Arc::clone(&table.shards[number]);
                return Ok(Reservation { queues: Arc::clone(self), shard, entries });
            }
            let leaving = table.books.iter().any(|books| books.leaving > 0);
            if !leaving || Instant::now() >= deadline {
                return Err(self.full(&table, entries));
            }
            self.reclaimed.wait_until(&mut table, deadline);
        }
    }

    /// Finds a queue with that many free entries: one of the poller with the fewest in use, else a
    /// new one for it, else one of another poller.
    fn place(&self, table: &mut Table, entries: u32) -> Result<Option<usize>, VerbsError> {
        let poller = least_used(self.pollers.len(), table);
        if let Some(number) = first_fit(table.free(Some(poller)), entries) {
            return Ok(Some(number));
        }
        let number = table.shards.len();
        if entries <= self.limits.entries_max && number < COMPLETION_QUEUES_MAX {
            match self.add(table, poller, entries) {
                Ok(()) => return Ok(Some(number)),
                Err(error) if table.free(None).all(|free| free.is_none_or(|it| it < entries)) => {
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        Ok(first_fit(table.free(None), entries))
    }

    /// Creates a queue with at least so many entries.
    fn add(&self, table: &mut Table, poller: usize, entries: u32) -> Result<(), VerbsError> {
        let (number, entries) = (table.shards.len(), entries.max(self.limits.entries));
        let poller = Arc::clone(&self.pollers[poller]);
        let name = u64::try_from(number).unwrap_or(u64::MAX);
        let queue =
            CompletionQueue::new(Arc::clone(&poller.channel), poller.number, entries, name)?;
        table.shards.push(Arc::new(Shard {
            queue: Arc::new(queue),
            entries,
            number,
            poller: Arc::clone(&poller),
            sweep: Mutex::default(),
            is_busy_polled: AtomicBool::new(false),
            failed_since: OnceLock::new(),
        }));
        table.books.push(Books::default());
        self.made.store(table.shards.len(), Ordering::Release);
        poller.wake();
        Ok(())
    }

    fn full(&self, table: &Table, entries: u32) -> VerbsError {
        let max = u64::from(self.limits.entries_max);
        let reserved = table.books.iter().map(|books| u64::from(books.reserved)).sum();
        let detail = if u64::from(entries) > max {
            format!(
                "a lane's completions need {entries} entries, and queues of this device hold {max}"
            )
        } else {
            let failed = table.shards.iter().filter(|shard| shard.has_failed()).count();
            format!(
                "{COMPLETION_QUEUES_MAX} completion queues, {failed} of which have failed, have no \
                 room for {entries} more"
            )
        };
        let context = &self.pollers[0].channel.context;
        let error = context.error(Side::Local, "reserve", 0, detail);
        let max = table.shards.iter().map(|shard| u64::from(shard.entries)).sum();
        let limit = LimitReached { limit: NicLimit::CompletionEntries, in_use: reserved, max };
        VerbsError { limit: Some(limit), ..error }
    }

    /// Returns the reserved entries and all entries.
    pub(super) fn load(&self) -> (u64, u64) {
        let table = self.table.lock();
        let reserved = table.books.iter().map(|books| u64::from(books.reserved)).sum();
        (reserved, table.shards.iter().map(|shard| u64::from(shard.entries)).sum())
    }

    /// Returns the queue of this number.
    pub(super) fn shard(&self, number: usize) -> Option<Arc<Shard>> {
        self.table.lock().shards.get(number).cloned()
    }

    /// All queues.
    pub(super) fn shards(&self) -> Vec<Arc<Shard>> {
        self.table.lock().shards.clone()
    }

    /// Returns the queues of a poller that were made after the first `seen` of all; queues are only
    /// added.
    pub(super) fn made_since(&self, seen: &mut usize, poller: usize) -> Vec<Arc<Shard>> {
        if *seen == self.made.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut shards = self.shards();
        let fresh = shards.split_off(*seen);
        *seen += fresh.len();
        fresh.into_iter().filter(|shard| shard.poller.number == poller).collect()
    }

    /// Entries leaving the queue now; free once the queue is seen empty after this.
    pub(super) fn leaving(&self, shard: &Shard) -> u32 {
        if !self.any_leaving.load(Ordering::Acquire) {
            return 0;
        }
        self.table.lock().books[shard.number].leaving
    }

    /// Frees `entries`, which were leaving before the queue was seen empty.
    pub(super) fn on_empty(&self, shard: &Shard, entries: u32) {
        let mut table = self.table.lock();
        let books = &mut table.books[shard.number];
        books.leaving -= entries;
        books.reserved -= entries;
        let any = table.books.iter().any(|books| books.leaving > 0);
        self.any_leaving.store(any, Ordering::Release);
        self.reclaimed.notify_all();
    }

    /// Wakes the pollers, which check all queues again.
    pub(super) fn wake(&self) {
        self.pollers.iter().for_each(|poller| poller.wake());
    }
}

impl Table {
    /// Free entries of each queue, or of those of one poller; none of others and of failed queues.
    fn free(&self, poller: Option<usize>) -> impl Iterator<Item = Option<u32>> {
        self.shards.iter().zip(&self.books).map(move |(shard, books)| {
            let is_its = poller.is_none_or(|poller| shard.poller.number == poller);
            (is_its && !shard.has_failed()).then(|| shard.entries - books.reserved)
        })
    }
}

/// The poller whose queues have the fewest reserved entries, the first of several.
fn least_used(pollers: usize, table: &Table) -> usize {
    let reserved = |poller: &usize| -> u64 {
        let of_all = table.shards.iter().zip(&table.books);
        let its = of_all.filter(|(shard, _)| shard.poller.number == *poller);
        its.map(|(_, books)| u64::from(books.reserved)).sum()
    };
    (0..pollers).min_by_key(reserved).unwrap_or(0)
}

/// The first queue with room; `free` are the free entries of each, none of a failed one.
fn first_fit(mut free: impl Iterator<Item = Option<u32>>, entries: u32) -> Option<usize> {
    free.position(|free| free.is_some_and(|free| free >= entries))
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut table = self.queues.table.lock();
        table.books[self.shard.number].leaving += self.entries;
        self.queues.any_leaving.store(true, Ordering::Release);
        drop(table);
        self.shard.poller.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failed queue takes no lanes, however much room it has.
    #[test]
    fn failed_queue_takes_no_lanes() {
        let fit = |free: &[Option<u32>], entries| first_fit(free.iter().copied(), entries);
        assert_eq!(fit(&[None, Some(8), Some(9)], 8), Some(1));
        assert_eq!(fit(&[None, Some(8), Some(9)], 9), Some(2));
        assert_eq!(fit(&[None, Some(8)], 9), None);
        assert_eq!(fit(&[None], 0), None);
    }
}
