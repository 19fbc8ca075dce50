//! Transfers to one peer: tests by hand, and random runs against a small model.

mod bytes;
mod model;
mod names;
mod near;
mod random;
mod split;
mod stories;

use handfast_core::transfer::{
    BatchId, BatchReport, Completion, CompletionStatus, Direction, InputError, LocalSpan,
    RemoteSpan, Request, Sent, SliceId, SubmitError, TransferInput, TransferLimits, TransferOutput,
    Transfers, Work,
};
use handfast_core::transport::{Side, TransportError};
use handfast_core::{Instant, Lifecycle};

/// A slice as it was posted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Posted {
    lane: u64,
    slice: SliceId,
    work: Work,
}

/// The machine, and everything it put out.
struct Bench {
    transfers: Transfers,
    now: Instant,
    posts: Vec<Posted>,
    withdrawn: Vec<SliceId>,
    wants: usize,
    reports: Vec<(BatchId, BatchReport)>,
}

impl Bench {
    fn new(limits: TransferLimits) -> Self {
        Self {
            transfers: Transfers::new(limits),
            now: Instant(1),
            posts: Vec::new(),
            withdrawn: Vec::new(),
            wants: 0,
            reports: Vec::new(),
        }
    }

    fn with_lanes(limits: TransferLimits, lanes: u64, depth: u32) -> Self {
        let mut bench = Self::new(limits);
        for lane in 1..=lanes {
            bench.lane_up(lane, depth).expect("there is room for the lane");
        }
        bench
    }

    fn submit(&mut self, requests: &[Request]) -> BatchId {
        self.try_submit(requests, None).expect("the batch is in order")
    }

    fn submit_until(&mut self, requests: &[Request], deadline: u64) -> BatchId {
        self.try_submit(requests, Some(Instant(deadline))).expect("the batch is in order")
    }

    fn try_submit(
        &mut self,
        requests: &[Request],
        deadline: Option<Instant>,
    ) -> Result<BatchId, SubmitError> {
        let batch = self.transfers.submit(self.now, requests, deadline);
        self.drain();
        batch
    }

    fn cancel(&mut self, batch: BatchId) {
        self.transfers.cancel(self.now, batch);
        self.drain();
    }

    fn time(&mut self, now: u64) {
        self.now = Instant(now);
        self.transfers.handle_timeout(self.now);
        self.drain();
    }

    fn lane_up(&mut self, lane: u64, depth: u32) -> Result<(), InputError> {
        self.try_input(TransferInput::LaneUp { lane: Lifecycle(lane), depth })
    }

    fn lane_down(&mut self, lane: u64, code: i32) {
        self.input(TransferInput::LaneDown { lane: Lifecycle(lane), cause: error(code) });
    }

    fn fence(&mut self, lane: u64) {
        self.input(TransferInput::LaneFenced { lane: Lifecycle(lane) });
    }

    fn complete(&mut self, slice: SliceId, status: CompletionStatus) {
        self.input(TransferInput::Completion(Completion { slice, status }));
    }

    fn release(&mut self, slice: SliceId, sent: Sent) {
        self.complete(slice, CompletionStatus::Released(sent));
    }

    fn input(&mut self, input: TransferInput) {
        self.try_input(input).expect("the input is in order");
    }

    fn try_input(&mut self, input: TransferInput) -> Result<(), InputError> {
        let result = self.transfers.handle_input(self.now, input);
        self.drain();
        result
    }

    /// The report of a batch, which must have ended exactly once.
    fn report(&self, batch: BatchId) -> &BatchReport {
        let mut reports = self.reports.iter().filter(|(id, _)| *id == batch);
        let (_, report) = reports.next().expect("the batch ended");
        assert!(reports.next().is_none(), "and once only");
        report
    }

    fn has_ended(&self, batch: BatchId) -> bool {
        self.reports.iter().any(|(id, _)| *id == batch)
    }

    /// The only post there was since the last call.
    fn take_post(&mut self) -> Posted {
        assert_eq!(self.posts.len(), 1, "{:?}", self.posts);
        self.posts.remove(0)
    }

    /// All posts since the last call.
    fn take_posts(&mut self) -> Vec<Posted> {
        std::mem::take(&mut self.posts)
    }

    fn drain(&mut self) {
        while let Some(output) = self.transfers.poll_output() {
            match output {
                TransferOutput::Post { lane, slice, work } => {
                    self.posts.push(Posted { lane: lane.0, slice, work });
                }
                TransferOutput::Withdraw { slice, .. } => self.withdrawn.push(slice),
                TransferOutput::WantLane => self.wants += 1,
                TransferOutput::Finished { batch, report } => self.reports.push((batch, report)),
            }
        }
    }
}

fn error(code: i32) -> TransportError {
    TransportError { side: Side::Peer, call: "post".into(), code, detail: String::new() }
}

fn request(direction: Direction, length: u64) -> Request {
    Request {
        direction,
        local: LocalSpan { region: 7, offset: 100 },
        remote: RemoteSpan { key: 9, address: 5000 },
        length,
    }
}

fn read(length: u64) -> Request {
    request(Direction::Read, length)
}

fn write(length: u64) -> Request {
    request(Direction::Write, length)
}
