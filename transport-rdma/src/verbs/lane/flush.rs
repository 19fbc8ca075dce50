//! Slices that the device has completed and whose bytes an accelerator may not see yet.
//!
//! A write is acknowledged by the NIC at the far side, which passes the bytes on over its bus. A read of
//! the same memory on the same queue pair is answered behind them, so its completion says that they
//! are there. Bytes of a read on this side are behind the bus as well: the accelerator's driver is
//! asked.

use super::{Held, Lane, Purpose, State, WorkRequest, remote_of};
use crate::error::VerbsError;
use crate::verbs::binding::ibv_sge;
use handfast_core::transport::{Side, TransportError};
use handfast_transport::{
    BlockId, Completion, CompletionStatus, Direction, FLUSH_CALL, KEY_NEEDS_FLUSH, MemoryError,
    Posting,
};
use parking_lot::MutexGuard;

/// Slices of one wake-up that wait for a flush.
#[derive(Default)]
pub(super) struct Unseen {
    /// Writes, with their queue pairs.
    writes: Vec<(usize, Posting)>,
    reads: Vec<Posting>,
}

impl Unseen {
    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }

    /// Keeps a slice whose bytes may not be seen yet.
    pub(super) fn keep(&mut self, held: Held) {
        let Purpose::Slice(posting) = held.purpose else { return };
        match posting.direction {
            Direction::Write => self.writes.push((held.pair, posting)),
            Direction::Read => self.reads.push(posting),
        }
    }
}

/// Whether the bytes of a slice may not be seen yet when it has completed.
pub(super) fn is_unseen(posting: &Posting) -> bool {
    match posting.direction {
        Direction::Write => posting.remote.key & KEY_NEEDS_FLUSH != 0,
        Direction::Read => posting.span.memory().needs_flush(),
    }
}

/// A read to post.
pub(super) struct Flush {
    name: u64,
    pair: usize,
    request: WorkRequest,
}

impl Lane {
    /// Sees to it that the bytes of slices are seen, and adds those that end by it to `ended`. Returns the
    /// error of a queue pair that refused a read.
    pub(super) fn show(
        &self,
        mut state: MutexGuard<'_, State>,
        unseen: &mut Unseen,
        ended: &mut Vec<Completion>,
    ) -> Option<VerbsError> {
        let flushes = self.flushes(unseen, &mut state);
        drop(state);
        self.flush(flushes, unseen, ended)
    }

    /// Makes one read for the writes of each queue pair to one region, in the place of one of them. The
    /// region's memory is on one device: a read says nothing of writes on their way to others.
    fn flushes(&self, unseen: &mut Unseen, state: &mut State) -> Vec<Flush> {
        let mut flushes = Vec::new();
        while let Some(&(pair, Posting { remote, .. })) = unseen.writes.last() {
            let of_region = unseen
                .writes
                .extract_if(.., |(of, posting)| *of == pair && posting.remote.key == remote.key);
            let postings = of_region.map(|(_, posting)| posting).collect();
            // A write with this key was posted.
            let Some(remote) = remote_of(remote) else { continue };
            let held = Held { purpose: Purpose::Flush(postings), pair };
            // The writes have left their slots.
            let Ok(name) = state.in_flight.insert(held) else { continue };
            state.outstanding[pair] += 1;
            let scratch = &self.setup.scratch;
            let (addr, lkey) = (scratch.span().address(), scratch.key().local);
            let piece = ibv_sge { addr, length: 1, lkey };
            let request = WorkRequest::new(Direction::Read, piece, remote, name);
            flushes.push(Flush { name, pair, request });
        }
        flushes
    }

    /// Posts the reads, and lets the accelerators of this side see what was read. Slices that end by it
    /// are added to `ended`. Returns the error of a queue pair that refused a read.
    fn flush(
        &self,
        flushes: Vec<Flush>,
        unseen: &mut Unseen,
        ended: &mut Vec<Completion>,
    ) -> Option<VerbsError> {
        let mut failure = None;
        if !flushes.is_empty() {
            let ticket = self.gate.enter();
            // Not for the one who destroys them, which waits for this thread.
            let objects = ticket.and_then(|ticket| Some((self.objects.try_read()?, ticket)));
            for mut flush in flushes {
                let pairs = objects.as_ref().and_then(|(objects, _)| objects.as_ref());
                match pairs.and_then(|objects| objects.queue_pairs.get(flush.pair)) {
                    // Counts as posted even if refused: the driver may hold it.
                    Some(pair) => {
                        let posted = pair.post(std::slice::from_mut(&mut flush.request));
                        failure = failure.or(posted.err());
                    }
                    None => self.give_up(&flush, ended),
                }
            }
        }
        self.show_reads(unseen, ended);
        failure
    }

    /// Ends the writes of a read that the ending lane does not post. Their bytes may not be seen.
    fn give_up(&self, flush: &Flush, ended: &mut Vec<Completion>) {
        let mut state = self.state.lock();
        let Some(held) = state.in_flight.remove(flush.name) else { return };
        state.outstanding[flush.pair] -= 1;
        drop(state);
        self.setup.counts.lock().slices_flushed += held.slices().len() as u64;
        let flushed = |posting: &Posting| Completion {
            slice: posting.slice,
            status: CompletionStatus::Flushed,
        };
        ended.extend(held.slices().iter().map(flushed));
    }

    /// Ends reads into memory of this side, once for each block.
    fn show_reads(&self, unseen: &mut Unseen, ended: &mut Vec<Completion>) {
        let mut shown: Option<(BlockId, Result<(), TransportError>)> = None;
        for posting in unseen.reads.drain(..) {
            let memory = posting.span.memory();
            let known = shown.take().filter(|(block, _)| *block == memory.id());
            let (block, result) = known.unwrap_or_else(|| {
                let failed = |error: MemoryError| {
                    TransportError::new(Side::Local, FLUSH_CALL, error.to_string())
                };
                (memory.id(), memory.flush().map_err(failed))
            });
            ended.push(match &result {
                Ok(()) => Completion::done(posting.slice),
                Err(error) => Completion::refused(posting.slice, error.clone()),
            });
            shown = Some((block, result));
        }
    }
}
