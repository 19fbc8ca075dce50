//! A batch and its slices: what is cut, what is done, and what is known of the peer's memory.

use super::affinity::QueueIndex;
use super::slab::{Link, Linked, List};
use super::types::*;
use crate::identity::Lifecycle;
use crate::time::Instant;
use crate::transport::TransportError;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Shares with bytes no slice was cut for, in the order of submission.
pub(super) const UNCUT: usize = 0;
/// The slices of one batch.
pub(super) const OF_BATCH: usize = 0;
/// Slices that wait to be tried again, or the slices of one lane.
pub(super) const OF_PLACE: usize = 1;

/// A request and how far it got.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    pub(super) request: Request,
    /// Queue of its waiting slices.
    pub(super) queue: QueueIndex,
    /// Bytes moved and acknowledged.
    pub(super) bytes: u64,
    /// An attempt without acknowledgement may have reached the peer.
    pub(super) touched: bool,
}

/// An attempt of a write may still land: until this lane is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Debt {
    pub(super) request: u32,
    pub(super) lane: u32,
}

/// Spare lists kept for further batches.
const SPARES_MAX: usize = 4;
/// Requests of the longest spare list; that of a larger batch is freed with it.
const SPARE_REQUESTS_MAX: usize = 256;

/// Lists of finished batches, for the next ones. They are empty, and no fingerprint has them.
#[derive(Clone, Debug, Default)]
pub(super) struct Spares(Vec<(Vec<Progress>, Vec<u32>)>);

impl Spares {
    fn take(&mut self) -> (Vec<Progress>, Vec<u32>) {
        self.0.pop().unwrap_or_default()
    }

    /// Keeps the lists of a batch that has ended.
    pub(super) fn keep(&mut self, batch: Batch) {
        let Batch { mut requests, mut shares, .. } = batch;
        if self.0.len() < SPARES_MAX && requests.capacity() <= SPARE_REQUESTS_MAX {
            requests.clear();
            shares.clear();
            self.0.push((requests, shares));
        }
    }
}

/// A batch that has not ended.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) requests: Vec<Progress>,
    pub(super) slices: List<OF_BATCH>,
    pub(super) debts: BTreeSet<Debt>,
    pub(super) deadline: Option<Instant>,
    /// The decided outcome: from then on the batch only waits for its posted slices.
    pub(super) outcome: Option<BatchOutcome>,
    pub(super) submitted: Instant,
    first_error: Option<Arc<TransportError>>,
    /// Bytes not yet cut into slices, one share per queue.
    pub(super) shares: Vec<u32>,
}

/// The requests of a batch whose slices wait in one queue, and the first byte of them that no slice
/// was cut for.
#[derive(Clone, Debug)]
pub(super) struct Share {
    pub(super) batch: u32,
    pub(super) queue: QueueIndex,
    next_request: u32,
    next_offset: u64,
    link: Link,
}

impl Batch {
    /// A batch none of whose shares exists yet; `queue` says where the slices of a request wait.
    pub(super) fn new(
        now: Instant,
        requests: &[Request],
        deadline: Option<Instant>,
        spares: &mut Spares,
        mut queue: impl FnMut(usize) -> QueueIndex,
    ) -> Self {
        let (mut progress, shares) = spares.take();
        let start = |(place, request): (usize, &Request)| {
            let queue = queue(place);
            Progress { request: *request, queue, bytes: 0, touched: false }
        };
        progress.extend(requests.iter().enumerate().map(start));
        Self {
            requests: progress,
            slices: List::new(),
            debts: BTreeSet::new(),
            deadline,
            outcome: None,
            submitted: now,
            first_error: None,
            shares,
        }
    }

    /// Every byte is or was in a slice.
    pub(super) fn is_cut(&self) -> bool {
        self.shares.is_empty()
    }

    /// Keeps the first error.
    pub(super) fn note(&mut self, error: &Arc<TransportError>) {
        self.first_error.get_or_insert_with(|| error.clone());
    }

    pub(super) fn work(&self, piece: SliceRange) -> Work {
        let request = self.requests[piece.request as usize].request;
        let (local, remote) = (request.local, request.remote);
        Work {
            direction: request.direction,
            local: LocalSpan { offset: local.offset + piece.offset, ..local },
            remote: RemoteSpan { address: remote.address + piece.offset, ..remote },
            length: piece.length,
        }
    }

    pub(super) fn report(&self, now: Instant, outcome: BatchOutcome) -> BatchReport {
        let statuses =
            (0..).zip(&self.requests).map(|(index, progress)| self.status(index, progress));
        BatchReport {
            outcome,
            requests: statuses.collect(),
            first_error: self.first_error.clone(),
            submitted: self.submitted,
            finished: now,
        }
    }

    fn status(&self, index: u32, progress: &Progress) -> RequestStatus {
        let bytes = progress.bytes;
        let lanes = Debt { request: index, lane: 0 }..=Debt { request: index, lane: u32::MAX };
        let indebted = self.debts.range(lanes).next().is_some();
        match progress.request.direction {
            _ if bytes == progress.request.length && !indebted => RequestStatus::Complete,
            Direction::Read => RequestStatus::ReadIncomplete { bytes },
            Direction::Write => {
                let remote = match (indebted, progress.touched || bytes > 0) {
                    (true, _) => Remote::Indeterminate,
                    (false, true) => Remote::Fenced,
                    (false, false) => Remote::Untouched,
                };
                RequestStatus::WriteIncomplete { bytes, remote }
            }
        }
    }
}

impl Share {
    /// The share of a batch in one queue; `None` if it is empty.
    pub(super) fn new(batch: u32, requests: &[Progress], queue: QueueIndex) -> Option<Self> {
        let mut share = Self { batch, queue, next_request: 0, next_offset: 0, link: Link::LOOSE };
        share.skip(requests);
        (!share.is_cut(requests)).then_some(share)
    }

    /// Every byte is or was in a slice.
    pub(super) fn is_cut(&self, requests: &[Progress]) -> bool {
        self.next_request as usize == requests.len()
    }

    /// The request and the offset of the first byte no slice was cut for.
    pub(super) fn uncut_from(&self) -> (u32, u64) {
        (self.next_request, self.next_offset)
    }

    /// Cuts the next piece, of at most so many bytes.
    pub(super) fn cut(&mut self, requests: &[Progress], bytes_max: u32) -> SliceRange {
        let length = self.next_length(requests, bytes_max);
        let piece = SliceRange { request: self.next_request, offset: self.next_offset, length };
        self.next_offset += u64::from(length);
        self.skip(requests);
        piece
    }

    /// Length of the next piece.
    pub(super) fn next_length(&self, requests: &[Progress], bytes_max: u32) -> u32 {
        let left = requests[self.next_request as usize].request.length - self.next_offset;
        u32::try_from(left).unwrap_or(u32::MAX).min(bytes_max)
    }

    /// Moves on to the next request of the share with bytes that are not cut.
    fn skip(&mut self, requests: &[Progress]) {
        while let Some(progress) = requests.get(self.next_request as usize)
            && (progress.queue != self.queue || progress.request.length == self.next_offset)
        {
            self.next_request += 1;
            self.next_offset = 0;
        }
    }
}

impl Linked<UNCUT> for Share {
    fn link(&self) -> &Link {
        &self.link
    }
    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// The bytes of a request that a slice moves.
#[derive(Clone, Copy, Debug)]
pub(super) struct SliceRange {
    pub(super) request: u32,
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// State of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// To be tried again.
    Waiting,
    /// Posted on this lane, and not answered.
    Posted(u32),
    /// Given back by this lane after bytes may have been sent; the lane's end will tell the cause.
    Lost(u32),
}

/// A piece that was posted at least once.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    pub(super) batch: u32,
    pub(super) piece: SliceRange,
    pub(super) place: Place,
    pub(super) retries: u32,
    /// Times that it was tried again without a charge.
    pub(super) uncharged: u16,
    pub(super) first_failure: Option<Arc<TransportError>>,
    /// The lane that gave it back last without a charge, and the cause of the last end of such a lane, if it is
    /// known: words of an error, left out of fingerprints.
    pub(super) given_back_by: Option<Lifecycle>,
    pub(super) lane_end: Option<Arc<TransportError>>,
    links: [Link; 2],
}

impl Slice {
    pub(super) fn new(batch: u32, piece: SliceRange) -> Self {
        Self {
            batch,
            piece,
            place: Place::Waiting,
            retries: 0,
            uncharged: 0,
            first_failure: None,
            given_back_by: None,
            lane_end: None,
            links: [Link::LOOSE; 2],
        }
    }
}

impl<const CHAIN: usize> Linked<CHAIN> for Slice {
    fn link(&self) -> &Link {
        &self.links[CHAIN]
    }
    fn link_mut(&mut self) -> &mut Link {
        &mut self.links[CHAIN]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::types::Direction;

    fn batch(requests: usize, spares: &mut Spares) -> Batch {
        let (local, remote) =
            (LocalSpan { region: 0, offset: 0 }, RemoteSpan { key: 0, address: 1 });
        let request = Request { direction: Direction::Write, local, remote, length: 1 };
        Batch::new(Instant(0), &alloc::vec![request; requests], None, spares, |_| 0)
    }

    /// The lists of a few batches are kept, and are empty; those of a large one are freed.
    #[test]
    fn spare_lists_are_few_and_short() {
        let mut spares = Spares::default();
        let batches: Vec<_> =
            (0..=SPARES_MAX).map(|_| batch(SPARE_REQUESTS_MAX, &mut spares)).collect();
        for (kept, batch) in (1..).zip(batches) {
            spares.keep(batch);
            assert_eq!(spares.0.len(), kept.min(SPARES_MAX));
        }
        assert!(spares.0.iter().all(|(requests, shares)| requests.is_empty() && shares.is_empty()));
        let again = batch(1, &mut spares);
        assert_eq!((again.requests.len(), spares.0.len()), (1, SPARES_MAX - 1));
        let mut spares = Spares::default();
        let large = batch(SPARE_REQUESTS_MAX + 1, &mut spares);
        spares.keep(large);
        assert!(spares.0.is_empty());
    }
}
