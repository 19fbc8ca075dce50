//! Slices that the device has completed and whose bytes may not have arrived, or that an accelerator may not
//! see yet.
//!
//! On iWARP a write completes once TCP has its bytes, also one that the peer will refuse. The answer to a read
//! of the byte that the peer announced comes behind the writes of its queue pair, and proves them.
//!
//! Elsewhere a write is acknowledged by the NIC at the far side, which passes the bytes on over its bus. A read of
//! the same memory on the same queue pair is answered behind them, so its completion says that they
//! are there. Bytes of a read on this side are behind the bus as well: the accelerator's driver is
//! asked.

use super::{Held, Lane, Purpose, State, WorkRequest, remote_of};
use crate::error::VerbsError;
use crate::verbs::binding::ibv_sge;
use crate::verbs::in_flight::InFlight;
use handfast_core::transport::{Side, TransportError};
use handfast_core::visibility::{self, ShowingRead};
use handfast_transport::{
    BlockId, Completion, Direction, FLUSH_CALL, KEY_NEEDS_FLUSH, MemoryError, Posting, RemoteSpan,
};
use parking_lot::MutexGuard;

/// In place of the key of a region: that of the byte which the peer announced.
const ANNOUNCED: u64 = u64::MAX;

/// Slices of one wake-up that wait for a flush.
#[derive(Default)]
pub(super) struct Unseen {
    writes: visibility::Unseen<Posting>,
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
            Direction::Write => {
                let key = posting.remote.key;
                let region = if key & KEY_NEEDS_FLUSH != 0 { key } else { ANNOUNCED };
                self.writes.on_written(held.pair, region, posting);
            }
            Direction::Read => self.reads.push(posting),
        }
    }

    /// Makes the reads that show the writes, in the place of one of them each. Those that cannot be made are
    /// added to `lost`: the bytes of their writes may not be seen.
    fn flushes(
        &mut self,
        in_flight: &mut InFlight<Held>,
        (piece, announced): (ibv_sge, Option<RemoteSpan>),
        lost: &mut Vec<Held>,
    ) -> Vec<Flush> {
        let mut flushes = Vec::new();
        while let Some(ShowingRead { pair, region, writes }) = self.writes.poll_read() {
            let remote = match region {
                ANNOUNCED => announced,
                _ => writes.last().map(|posting| posting.remote),
            };
            let held = Held { purpose: Purpose::Flush(writes), pair };
            let named = match remote.and_then(remote_of) {
                Some(remote) => in_flight.insert(held).map(|name| (name, remote)),
                None => Err(held),
            };
            match named {
                Ok((name, remote)) => {
                    let request = WorkRequest::new(Direction::Read, piece, remote, name);
                    flushes.push(Flush { name, pair, request });
                }
                Err(held) => lost.push(held),
            }
        }
        flushes
    }
}

/// Whether the bytes of a slice may not have arrived, or not be seen yet, when it has completed.
/// `completes_early`: the device completes writes before they have arrived.
pub(super) fn is_unseen(posting: &Posting, completes_early: bool) -> bool {
    match posting.direction {
        Direction::Write => completes_early || posting.remote.key & KEY_NEEDS_FLUSH != 0,
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
        let (flushes, lost) = self.flushes(unseen, &mut state, ended);
        drop(state);
        // Without the lock: the last holder of a registration deregisters it.
        drop(lost);
        self.flush(flushes, unseen, ended)
    }

    fn flushes(
        &self,
        unseen: &mut Unseen,
        state: &mut State,
        ended: &mut Vec<Completion>,
    ) -> (Vec<Flush>, Vec<Held>) {
        let scratch = &self.setup.scratch;
        let (addr, lkey) = (scratch.span().address(), scratch.key().local);
        let piece = ibv_sge { addr, length: 1, lkey };
        let announced = state.peer.and_then(|peer| peer.byte);
        let mut lost = Vec::new();
        let flushes = unseen.flushes(&mut state.in_flight, (piece, announced), &mut lost);
        for held in &lost {
            self.setup.counts.lock().slices_flushed += held.slices().len() as u64;
            self.lose(held, (&mut state.end, state.is_apart), ended);
        }
        flushes.iter().for_each(|flush| state.outstanding[flush.pair] += 1);
        (flushes, lost)
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
                    // Counts as posted even if refused: the driver may hold it. A driver that completes
                    // writes early may never complete it, and it names none of their memory.
                    Some(pair) => {
                        let posted = pair.post(std::slice::from_mut(&mut flush.request));
                        if posted.is_err() && self.setup.completes_early {
                            self.give_up(&flush, ended);
                        }
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
        self.setup.counts.lock().slices_flushed += held.slices().len() as u64;
        let is_apart = state.is_apart;
        self.lose(&held, (&mut state.end, is_apart), ended);
        // Without the lock: the last holder of a registration deregisters it.
        drop(state);
        drop(held);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::in_flight::SLOTS_MAX;
    use handfast_transport::{Memory, RemoteSpan, SliceId};

    fn write(slice: u64, key: u64, memory: &Memory) -> Held {
        let posting = Posting {
            slice: SliceId::from_bits(slice),
            direction: Direction::Write,
            span: memory.whole(),
            remote: RemoteSpan { key, address: 0 },
            memory: None,
            region_key: None,
        };
        Held { purpose: Purpose::Slice(posting), pair: 0 }
    }

    /// Writes for which no read can be made are lost, each once: with a key that no device has, and while every
    /// place is taken.
    #[test]
    fn writes_without_a_flush_are_lost() {
        let memory = Memory::zeroed(1).unwrap();
        let no_piece = ibv_sge { addr: 0, length: 1, lkey: 0 };
        let slices = |lost: &[Held]| {
            let slices = lost.iter().flat_map(Held::slices);
            let mut slices: Vec<_> = slices.map(|posting| posting.slice.to_bits()).collect();
            slices.sort_unstable();
            slices
        };
        let (mut unseen, mut lost) = (Unseen::default(), Vec::new());
        let mut in_flight = InFlight::new(1);
        let (known, none) = (KEY_NEEDS_FLUSH | 7, KEY_NEEDS_FLUSH | 1 << 40);
        for (slice, key) in [(1, known), (2, none), (3, known), (4, none)] {
            unseen.keep(write(slice, key, &memory));
        }
        let flushes = unseen.flushes(&mut in_flight, (no_piece, None), &mut lost);
        assert_eq!((flushes.len(), slices(&lost)), (1, vec![2, 4]));
        let held = in_flight.remove(flushes[0].name).unwrap();
        assert_eq!(held.slices().len(), 2, "the read is for both");
        for slice in 0..SLOTS_MAX as u64 {
            assert!(in_flight.insert(write(slice, known, &memory)).is_ok());
        }
        lost.clear();
        unseen.keep(write(5, known, &memory));
        assert!(unseen.flushes(&mut in_flight, (no_piece, None), &mut lost).is_empty());
        assert_eq!((slices(&lost), unseen.is_empty()), (vec![5], true));
    }

    /// A device completes writes early: one read of the announced byte proves all of a queue pair, whatever
    /// their regions; without such a byte none of them is a success.
    #[test]
    fn early_writes_are_proven_by_the_announced_byte() {
        let memory = Memory::zeroed(1).unwrap();
        let piece = ibv_sge { addr: 0, length: 1, lkey: 0 };
        let byte = RemoteSpan { key: 9, address: 77 };
        let (mut unseen, mut lost) = (Unseen::default(), Vec::new());
        let mut in_flight = InFlight::new(1);
        for (slice, key) in [(1, 7), (2, 8), (3, 7)] {
            let held = write(slice, key, &memory);
            let Purpose::Slice(posting) = &held.purpose else { unreachable!() };
            assert!(is_unseen(posting, true) && !is_unseen(posting, false));
            unseen.keep(held);
        }
        let flushes = unseen.flushes(&mut in_flight, (piece, Some(byte)), &mut lost);
        let [flush] = &flushes[..] else { panic!("{} reads", flushes.len()) };
        assert_eq!(lost.len(), 0);
        assert_eq!(in_flight.remove(flush.name).unwrap().slices().len(), 3);
        unseen.keep(write(4, 7, &memory));
        assert!(unseen.flushes(&mut in_flight, (piece, None), &mut lost).is_empty());
        assert_eq!(lost.len(), 1);
    }
}
