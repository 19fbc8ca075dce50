//! Batches by number.

use crate::engine::Request;
use crate::failure::{Cause, Failure};
use handfast::RequestStatus;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::{Notify, watch};

/// Maximum batches whose results have not been taken.
pub const BATCHES_MAX: usize = 65_536;

/// Bits of a number that are the slot.
const SLOT_BITS: u32 = 20;

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

/// Requests that were submitted at once.
struct Part {
    /// The length of each, and the number of requests with bytes before it.
    requests: Vec<(u64, usize)>,
    ended: Option<Ended>,
}

struct Ended {
    /// The ends of the requests with bytes, if known.
    statuses: Option<Vec<RequestStatus>>,
    outcome: Result<(), Failure>,
}

impl Part {
    fn new(requests: &[Request]) -> Self {
        let mut with_bytes = 0;
        let request = |it: &Request| {
            let before = with_bytes;
            with_bytes += usize::from(it.bytes > 0);
            (it.bytes, before)
        };
        Self { requests: requests.iter().map(request).collect(), ended: None }
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
    requests: usize,
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

    /// Adds a part, and returns its place.
    ///
    /// # Errors
    /// More requests than the batch was made for.
    pub(crate) fn add(&self, requests: &[Request]) -> Result<usize, Failure> {
        let mut progress = self.progress.lock();
        if progress.requests + requests.len() > self.capacity {
            let cure = "allocate a batch for more requests";
            return Err(Cause::Limit { name: "batch capacity", max: self.capacity, cure }.into());
        }
        progress.requests += requests.len();
        progress.unfinished += 1;
        progress.parts.push(Part::new(requests));
        Ok(progress.parts.len() - 1)
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

struct Slot {
    /// Number of batches that had the slot.
    generation: u64,
    batch: Option<Arc<Batch>>,
}

/// The batches whose results have not been taken.
#[derive(Default)]
pub(crate) struct Batches {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

impl Batches {
    /// # Errors
    /// [`BATCHES_MAX`].
    pub(crate) fn allocate(&mut self, capacity: usize) -> Result<(BatchId, Arc<Batch>), Failure> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.slots.len() == BATCHES_MAX => {
                let cure = "take the results of finished batches";
                let limit = Cause::Limit { name: "BATCHES_MAX", max: BATCHES_MAX, cure };
                return Err(limit.into());
            }
            None => {
                self.slots.push(Slot { generation: 0, batch: None });
                self.slots.len() - 1
            }
        };
        let slot = &mut self.slots[place];
        slot.generation += 1;
        let batch = Arc::new(Batch::new(capacity));
        slot.batch = Some(batch.clone());
        Ok((slot.generation << SLOT_BITS | place as u64, batch))
    }

    /// # Errors
    /// [`Cause::NoSuchBatch`].
    pub(crate) fn get(&self, id: BatchId) -> Result<Arc<Batch>, Failure> {
        let place = (id & ((1 << SLOT_BITS) - 1)) as usize;
        let slot = self.slots.get(place).filter(|slot| slot.generation == id >> SLOT_BITS);
        slot.and_then(|slot| slot.batch.clone()).ok_or(Cause::NoSuchBatch(id).into())
    }

    /// Forgets a finished batch.
    ///
    /// # Errors
    /// [`Cause::NoSuchBatch`], or [`Cause::Unfinished`].
    pub(crate) fn free(&mut self, id: BatchId) -> Result<(), Failure> {
        if matches!(self.get(id)?.state(), BatchState::Pending) {
            return Err(Cause::Unfinished(id).into());
        }
        let place = (id & ((1 << SLOT_BITS) - 1)) as usize;
        self.slots[place].batch = None;
        self.free.push(place);
        Ok(())
    }
}

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
        let one = batch.add(&[write(10)]).unwrap();
        let two = batch.add(&[write(0), write(20), write(30)]).unwrap();
        assert!(matches!(batch.add(&[write(1)]).unwrap_err().cause(), Cause::Limit { max: 4, .. }));
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
}
