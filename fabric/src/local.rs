//! Memory of single requests: inline data and lists of pieces.

use crate::protocol::{LocalMemory, Piece};
use crate::state::State;
use handfast_transport_sim::verbs::{Access, Bytes, Keys, Mapped, Region};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Ranges of registered memory, one after the other.
#[derive(Debug)]
struct Pieces(Vec<(Arc<dyn Mapped>, Range<usize>)>);

impl Pieces {
    /// For each piece that a range of the whole touches: its memory, the place there, and the part of
    /// the range.
    fn parts(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (&dyn Mapped, usize, Range<usize>)> {
        let mut at = 0;
        self.0.iter().filter_map(move |(memory, piece)| {
            let start = at;
            at += piece.len();
            let (from, to) = (range.start.max(start), range.end.min(at));
            (from < to).then(|| {
                let part = from - range.start..to - range.start;
                (memory.as_ref(), piece.start + from - start, part)
            })
        })
    }
}

impl Mapped for Pieces {
    fn length(&self) -> usize {
        self.0.iter().map(|(_, piece)| piece.len()).sum()
    }

    fn read(&self, range: Range<usize>) -> Vec<u8> {
        let parts = self.parts(range);
        parts.flat_map(|(memory, at, part)| memory.read(at..at + part.len())).collect()
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        for (memory, at, part) in self.parts(offset..offset + bytes.len()) {
            memory.write(at, &bytes[part]);
        }
    }
}

/// Requests with memory of their own, for each queue pair: sends and receives, oldest first.
pub(crate) type Local = BTreeMap<(usize, u32), [VecDeque<Keys>; 2]>;

/// The two queues of [`Local`].
#[derive(Clone, Copy)]
pub(crate) enum Half {
    Send,
    Receive,
}

impl State {
    /// Makes the memory of a request.
    ///
    /// # Errors
    /// The first piece that is not registered memory: the device fails on it.
    pub(crate) fn local_memory(
        &self,
        (nic, domain): (usize, u32),
        memory: LocalMemory,
    ) -> Result<(Bytes, Access), Piece> {
        let pieces = match memory {
            LocalMemory::Inline(bytes) => return Ok((bytes.into(), Access::LOCAL)),
            LocalMemory::Pieces(pieces) => pieces,
        };
        let mut access = Access::ALL;
        let mut found = Vec::new();
        for piece in pieces {
            let mut regions = self.fabric.nic(nic).regions();
            let region =
                regions.find(|region| region.keys.lkey == piece.lkey && region.is_of(domain));
            let place = region.and_then(|region| Some((region, place(region, piece)?)));
            let (region, place) = place.ok_or(piece)?;
            access.local_write &= region.access.local_write;
            access.remote_write &= region.access.remote_write;
            found.push(place);
        }
        access.remote_read = false;
        Ok((Bytes::Mapped(Arc::new(Pieces(found))), access))
    }

    /// Keeps the memory of a request that was posted.
    pub(crate) fn keep_local(&mut self, pair: (usize, u32), half: Half, keys: Keys) {
        self.local.entry(pair).or_default()[half as usize].push_back(keys);
    }

    /// Returns the requests of a queue that the device has not ended.
    pub(crate) fn queued(&self, (nic, number): (usize, u32), half: Half) -> usize {
        self.fabric.queue_pair(nic, number).map_or(0, |qp| qp.queued()[half as usize])
    }

    /// Removes the memory of requests that have ended: all but the youngest that the device can still
    /// have.
    pub(crate) fn trim_local(&mut self, (nic, number): (usize, u32)) {
        let Some(halves) = self.local.get_mut(&(nic, number)) else { return };
        let queued = self.fabric.queue_pair(nic, number).map_or([0, 0], |qp| qp.queued());
        for (half, live) in halves.iter_mut().zip(queued) {
            let ended = half.len().saturating_sub(live);
            half.drain(..ended).for_each(|keys| self.fabric.remove_local(nic, keys));
        }
        if halves.iter().all(VecDeque::is_empty) {
            self.local.remove(&(nic, number));
        }
    }
}

/// The memory of a piece, if it is within a region.
fn place(region: &Region, piece: Piece) -> Option<(Arc<dyn Mapped>, Range<usize>)> {
    let Bytes::Mapped(memory) = &region.bytes else { return None };
    let start = usize::try_from(piece.address.checked_sub(region.address)?).ok()?;
    let end = start.checked_add(piece.length as usize)?;
    (end <= memory.length()).then(|| (Arc::clone(memory), start..end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Debug)]
    struct Known(Mutex<Vec<u8>>);

    impl Mapped for Known {
        fn length(&self) -> usize {
            self.0.lock().unwrap().len()
        }

        fn read(&self, range: Range<usize>) -> Vec<u8> {
            self.0.lock().unwrap()[range].to_vec()
        }

        fn write(&self, offset: usize, bytes: &[u8]) {
            self.0.lock().unwrap()[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Every range of three pieces is read and written where its bytes are.
    #[test]
    fn pieces_are_read_and_written_in_place() {
        let known = |bytes: Range<u8>| Arc::new(Known(Mutex::new(bytes.collect())));
        let (one, two) = (known(0..10), known(100..110));
        let pieces = Pieces(vec![(one.clone(), 2..5), (two.clone(), 0..4), (one.clone(), 8..10)]);
        let whole = [2, 3, 4, 100, 101, 102, 103, 8, 9];
        assert_eq!(pieces.length(), whole.len());
        for start in 0..=whole.len() {
            for end in start..=whole.len() {
                assert_eq!(pieces.read(start..end), whole[start..end]);
            }
        }
        pieces.write(2, &[50, 51, 52, 53, 54, 55]);
        assert_eq!(one.read(0..10), [0, 1, 2, 3, 50, 5, 6, 7, 55, 9]);
        assert_eq!(two.read(0..5), [51, 52, 53, 54, 104]);
    }
}
