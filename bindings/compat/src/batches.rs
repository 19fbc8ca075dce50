//! Batches by number.

use crate::engine::Request;
use crate::failure::{Cause, Failure};
use crate::handles::Handles;
use handfast::{Direction, RequestStatus};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{Notify, watch};

/// Maximum batches whose results have not been taken.
pub const BATCHES_MAX: usize = 65_536;

/// The number of a batch: more than 0, less than 2^63, and never given again.
pub type BatchId = u64;

/// State of a batch, or of one of its requests.
#[derive(Clone, Debug)]
pub enum BatchState {
    /// Some of it is under way.
    Pending,
    /// Every byte is at its destination.
    Done {
        /// Bytes moved.
        bytes: u64,
    },
    /// It failed. Nothing of the engine touches the local memory any more.
    Failed {
        /// Bytes moved for certain.
        bytes: u64,
        /// The first failure.
        failure: Failure,
    },
}

/// The requests of one call to one peer.
pub(crate) struct Share<'a> {
    pub(crate) peer: &'a str,
    pub(crate) requests: Cow<'a, [Request]>,
    /// The place of each request in the call; `None` for all of them, in order.
    pub(crate) places: Option<Vec<usize>>,
}

impl<'a> Share<'a> {
    /// All requests of a call.
    pub(crate) fn all(peer: &'a str, requests: &'a [Request]) -> Self {
        Self { peer, requests: Cow::Borrowed(requests), places: None }
    }

    /// Sorts the requests of a call by peer.
    pub(crate) fn by_peer(targets: &[(&'a str, Request)]) -> Vec<Self> {
        let (mut shares, mut of_peer) = (Vec::<Self>::new(), BTreeMap::new());
        let mut last: Option<(&str, usize)> = None;
        for (place, (peer, request)) in targets.iter().enumerate() {
            let share = match last {
                Some((known, share)) if std::ptr::eq(known, *peer) => share,
                _ => *of_peer.entry(*peer).or_insert_with(|| {
                    let (requests, places) = (Cow::Owned(Vec::new()), Some(Vec::new()));
                    shares.push(Self { peer, requests, places });
                    shares.len() - 1
                }),
            };
            last = Some((peer, share));
            let Share { requests, places, .. } = &mut shares[share];
            requests.to_mut().push(*request);
            places.get_or_insert_default().push(place);
        }
        shares
    }

    pub(crate) fn has_writes(&self) -> bool {
        self.requests.iter().any(|it| it.direction == Direction::Write)
    }

    fn places(&self) -> impl Iterator<Item = usize> {
        (0..self.requests.len()).map(|it| self.places.as_ref().map_or(it, |places| places[it]))
    }
}

/// Requests that were submitted at once.
struct Part {
    /// The length of each, and the number of requests with bytes that were submitted before it.
    requests: Vec<(u64, usize)>,
    ended: Option<Ended>,
}

struct Ended {
    /// The ends of the requests with bytes, if known.
    statuses: Option<Vec<RequestStatus>>,
    outcome: Result<(), Failure>,
}

impl Part {
    fn new(shares: &[Share<'_>]) -> Self {
        let count = shares.iter().map(|share| share.requests.len()).sum();
        let (mut requests, mut with_bytes) = (vec![(0, 0); count], 0);
        for share in shares {
            for (request, place) in share.requests.iter().zip(share.places()) {
                requests[place] = (request.bytes, with_bytes);
                with_bytes += usize::from(request.bytes > 0);
            }
        }
        Self { requests, ended: None }
    }

    fn state(&self, request: usize) -> BatchState {
        let Some(Ended { statuses, outcome }) = &self.ended else { return BatchState::Pending };
        let (length, place) = self.requests[request];
        let status = statuses.as_ref().and_then(|all| all.get(place));
        match (status, outcome) {
            _ if length == 0 => BatchState::Done { bytes: 0 },
            (Some(RequestStatus::Complete), _) | (_, Ok(())) => BatchState::Done { bytes: length },
            (Some(RequestStatus::ReadIncomplete { bytes }), Err(failure))
            | (Some(RequestStatus::WriteIncomplete { bytes, .. }), Err(failure)) => {
                BatchState::Failed { bytes: *bytes, failure: failure.clone() }
            }
            (None, Err(failure)) => BatchState::Failed { bytes: 0, failure: failure.clone() },
        }
    }

    /// Bytes of each request that are at their destination for certain.
    fn landed(&self) -> impl Iterator<Item = u64> {
        let bytes = |request| match self.state(request) {
            BatchState::Done { bytes } | BatchState::Failed { bytes, .. } => bytes,
            BatchState::Pending => 0,
        };
        (0..self.requests.len()).map(bytes)
    }
}

#[derive(Default)]
struct Progress {
    parts: Vec<Part>,
    /// Requests of the parts, and those that are being started.
    requests: usize,
    /// Parts that have not ended, and those that are being started.
    unfinished: usize,
    bytes: u64,
    failure: Option<Failure>,
}

/// A batch.
pub(crate) struct Batch {
    capacity: usize,
    progress: Mutex<Progress>,
    /// Notified at the end of each part.
    ended: Notify,
    /// True once every part shall be cancelled.
    cancelled: watch::Sender<bool>,
}

impl Batch {
    fn new(capacity: usize) -> Self {
        let (ended, cancelled) = (Notify::new(), watch::Sender::new(false));
        Self { capacity, progress: Mutex::default(), ended, cancelled }
    }

    /// Cancels the parts.
    pub(crate) fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    /// Waits for [`Batch::cancel`].
    pub(crate) async fn cancelled(&self) {
        let mut cancelled = self.cancelled.subscribe();
        // An error means that the batch is gone; it holds the sender.
        let _ = cancelled.wait_for(|is_cancelled| *is_cancelled).await;
    }

    /// Takes room for requests.
    ///
    /// # Errors
    /// More requests than the batch was made for.
    pub(crate) fn reserve(&self, requests: usize) -> Result<(), Failure> {
        let mut progress = self.progress.lock();
        if requests > self.capacity - progress.requests {
            let cure = "allocate a batch for more requests";
            return Err(Cause::Limit { name: "batch capacity", max: self.capacity, cure }.into());
        }
        progress.requests += requests;
        progress.unfinished += 1;
        Ok(())
    }

    /// Gives back the room of a part that was not started.
    pub(crate) fn give_back(&self, requests: usize) {
        let mut progress = self.progress.lock();
        progress.requests -= requests;
        progress.unfinished -= 1;
        drop(progress);
        self.ended.notify_waiters();
    }

    /// Adds a part, whose room is reserved, and returns its place.
    pub(crate) fn add(&self, shares: &[Share<'_>]) -> usize {
        let part = Part::new(shares);
        let mut progress = self.progress.lock();
        progress.parts.push(part);
        progress.parts.len() - 1
    }

    /// Ends a part, by the ends of its requests with bytes.
    pub(crate) fn end(
        &self,
        part: usize,
        statuses: Option<Vec<RequestStatus>>,
        outcome: Result<(), Failure>,
    ) {
        let mut progress = self.progress.lock();
        progress.unfinished -= 1;
        if let Err(failure) = &outcome {
            progress.failure.get_or_insert_with(|| failure.clone());
        }
        progress.parts[part].ended = Some(Ended { statuses, outcome });
        progress.bytes += progress.parts[part].landed().sum::<u64>();
        drop(progress);
        self.ended.notify_waiters();
    }

    /// State of the whole batch. An empty one is done.
    pub(crate) fn state(&self) -> BatchState {
        let progress = self.progress.lock();
        let bytes = progress.bytes;
        match &progress.failure {
            _ if progress.unfinished > 0 => BatchState::Pending,
            Some(failure) => BatchState::Failed { bytes, failure: failure.clone() },
            None => BatchState::Done { bytes },
        }
    }

    /// Waits until no part is under way.
    pub(crate) async fn end_of_all(&self) -> BatchState {
        loop {
            // Before the look at the state, so that no end is missed.
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            match self.state() {
                BatchState::Pending => ended.await,
                state => return state,
            }
        }
    }

    /// Bytes of each request that are at their destination for certain.
    pub(crate) fn landed(&self) -> Vec<u64> {
        self.progress.lock().parts.iter().flat_map(Part::landed).collect()
    }

    /// State of one request, by its place.
    pub(crate) fn request_state(&self, request: usize) -> Result<BatchState, Failure> {
        let progress = self.progress.lock();
        let mut first = 0;
        for part in &progress.parts {
            if request < first + part.requests.len() {
                return Ok(part.state(request - first));
            }
            first += part.requests.len();
        }
        Err(Failure::argument(format!("the batch has no request {request}, only {first}")))
    }
}

/// The batches whose results have not been taken.
pub(crate) struct Batches(Handles<Arc<Batch>>);

impl Default for Batches {
    fn default() -> Self {
        let cure = "take the results of finished batches";
        Self(Handles::new("BATCHES_MAX", BATCHES_MAX, cure))
    }
}

impl Batches {
    /// # Errors
    /// [`BATCHES_MAX`].
    pub(crate) fn allocate(&mut self, capacity: usize) -> Result<(BatchId, Arc<Batch>), Failure> {
        let batch = Arc::new(Batch::new(capacity));
        Ok((self.0.insert(batch.clone())?, batch))
    }

    /// # Errors
    /// [`Cause::NoSuchBatch`].
    pub(crate) fn get(&self, id: BatchId) -> Result<Arc<Batch>, Failure> {
        self.0.get(id).cloned().ok_or(Cause::NoSuchBatch(id).into())
    }

    /// Forgets a finished batch.
    ///
    /// # Errors
    /// [`Cause::NoSuchBatch`], or [`Cause::Unfinished`].
    pub(crate) fn free(&mut self, id: BatchId) -> Result<(), Failure> {
        if matches!(self.get(id)?.state(), BatchState::Pending) {
            return Err(Cause::Unfinished(id).into());
        }
        self.0.remove(id);
        Ok(())
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    /// A number is above 0, below 2^63, and unknown once its batch is freed, also when another
    /// batch has its slot.
    #[test]
    fn number_of_a_freed_batch_is_unknown() {
        let mut batches = Batches::default();
        let (first, _) = batches.allocate(1).unwrap();
        assert!(first > 0 && first < 1 << 63);
        batches.free(first).unwrap();
        let error = batches.free(first).unwrap_err();
        assert!(matches!(error.cause(), Cause::NoSuchBatch(id) if *id == first), "{error}");
        let (second, _) = batches.allocate(1).unwrap();
        assert_ne!(first, second);
        for unknown in [first, 0, 1, u64::MAX, 1 << 63] {
            let error = batches.get(unknown).err().unwrap();
            assert!(matches!(error.cause(), Cause::NoSuchBatch(id) if *id == unknown), "{error}");
        }
    }

    #[test]
    fn batch_past_the_limit_is_refused() {
        let mut batches = Batches::default();
        let (first, _) = batches.allocate(1).unwrap();
        for _ in 1..BATCHES_MAX {
            batches.allocate(1).unwrap();
        }
        let error = batches.allocate(1).err().unwrap();
        assert!(matches!(error.cause(), Cause::Limit { name: "BATCHES_MAX", .. }), "{error}");
        assert_eq!(error.code(), -2);
        batches.free(first).unwrap();
        batches.allocate(1).unwrap();
    }

    fn write(bytes: u64) -> Request {
        Request { direction: handfast::Direction::Write, local: 1, remote: 1, bytes }
    }

    /// The state is of the whole batch: pending while any part is. Requests without bytes are done.
    #[test]
    fn batch_ends_with_its_last_part() {
        let mut batches = Batches::default();
        let (id, batch) = batches.allocate(4).unwrap();
        batch.reserve(1).unwrap();
        batch.reserve(3).unwrap();
        assert!(matches!(batch.reserve(1).unwrap_err().cause(), Cause::Limit { max: 4, .. }));
        let one = batch.add(&[Share::all("a", &[write(10)])]);
        let two = batch.add(&[Share::all("a", &[write(0), write(20), write(30)])]);
        batch.end(one, Some(vec![RequestStatus::Complete]), Ok(()));
        assert!(matches!(batch.state(), BatchState::Pending));
        assert_eq!(batches.free(id).unwrap_err().code(), -4);
        let of = |request| batch.request_state(request).unwrap();
        assert!(matches!(of(0), BatchState::Done { bytes: 10 }));
        assert!(matches!(of(1), BatchState::Pending));
        let remote = handfast::Remote::Fenced;
        let partly = RequestStatus::WriteIncomplete { bytes: 7, remote };
        let ends = vec![RequestStatus::Complete, partly];
        batch.end(two, Some(ends), Err(Failure::argument("gone")));
        assert!(matches!(of(1), BatchState::Done { bytes: 0 }));
        assert!(matches!(of(2), BatchState::Done { bytes: 20 }));
        assert!(matches!(of(3), BatchState::Failed { bytes: 7, .. }));
        assert!(matches!(batch.state(), BatchState::Failed { bytes: 37, .. }));
        assert!(batch.request_state(4).is_err());
        batches.free(id).unwrap();
    }

    /// A request keeps its number, though those of one peer are submitted together.
    #[test]
    fn request_of_several_peers_keeps_its_number() {
        let mut batches = Batches::default();
        let (_, batch) = batches.allocate(5).unwrap();
        let [a, b] = ["a", "b"];
        let targets = [(a, write(1)), (b, write(2)), (a, write(0)), (b, write(4)), (a, write(8))];
        let shares = Share::by_peer(&targets);
        let bytes = |share: &Share<'_>| share.requests.iter().map(|it| it.bytes).collect();
        let split: Vec<(&str, Vec<u64>)> = shares.iter().map(|it| (it.peer, bytes(it))).collect();
        assert_eq!(split, [("a", vec![1, 0, 8]), ("b", vec![2, 4])]);
        batch.reserve(5).unwrap();
        let part = batch.add(&shares);
        let remote = handfast::Remote::Fenced;
        let failed = RequestStatus::WriteIncomplete { bytes: 3, remote };
        let complete = RequestStatus::Complete;
        let ends = vec![complete, complete, complete, failed];
        batch.end(part, Some(ends), Err(Failure::argument("gone")));
        for (request, bytes) in [(0, 1), (1, 2), (2, 0), (4, 8)] {
            let state = batch.request_state(request).unwrap();
            assert!(matches!(state, BatchState::Done { bytes: it } if it == bytes), "{state:?}");
        }
        assert!(matches!(batch.request_state(3).unwrap(), BatchState::Failed { bytes: 3, .. }));
    }
}
