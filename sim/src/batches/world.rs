//! A transfer machine with the actual state of its batches and posted slices.

use super::oracle::{TransferOracle, TransferViolation};
use super::setup::TransferSetup;
use handfast_core::transfer::{
    BatchId, Direction, LocalSpan, RemoteSpan, Request, SliceId, TransferInput, TransferOutput,
    Transfers, Work,
};
use handfast_core::transport::{Side, TransportError};
use handfast_core::{Instant, Lifecycle};
use handfast_transport_sim::Encoder;
use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;

/// Time of every deadline.
pub(super) const DEADLINE: Instant = Instant(10);

/// Regions of one batch: its number times this, and the request.
const REGIONS: u32 = 16;

/// Bitmap of one request, one bit per byte.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Part {
    pub(super) direction: Option<Direction>,
    pub(super) length: u64,
    pub(super) done: u64,
    /// Whether bytes may have reached the peer.
    pub(super) touched: bool,
}

/// Actual state of a batch.
#[derive(Clone, Debug, Default)]
pub(super) struct BatchTruth {
    pub(super) id: Option<BatchId>,
    pub(super) parts: Vec<Part>,
    pub(super) finished: bool,
    pub(super) cancelled: bool,
    pub(super) refused: bool,
    /// The peer restarted before it completed.
    pub(super) outlived: bool,
    /// It wrote on a lane whose fence is lost.
    pub(super) unprovable: bool,
    /// Failures charged to a slice, by request and offset.
    pub(super) charges: BTreeMap<(u32, u64), u32>,
}

/// Actual state of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct LaneTruth {
    /// It has failed and accepts no further slices.
    pub(super) ending: bool,
    pub(super) down: bool,
    pub(super) fenced: bool,
    /// Its fence is lost.
    pub(super) unprovable: bool,
}

/// Progress of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Stage {
    /// It holds local memory and awaits its completion.
    Posted { asked_back: bool },
    /// Over here, but it may still land at the peer; and if its lane went down under it, an answer
    /// may still come.
    Late { silent: bool },
}

/// One attempt to transfer one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    pub(super) slice: SliceId,
    pub(super) lane: usize,
    pub(super) batch: usize,
    pub(super) request: u32,
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) direction: Direction,
    pub(super) stage: Stage,
}

impl Attempt {
    pub(super) fn is_posted(&self) -> bool {
        matches!(self.stage, Stage::Posted { .. })
    }

    pub(super) fn bits(&self) -> u64 {
        ((1 << self.length) - 1) << self.offset
    }
}

/// A machine and the actual state.
#[derive(Clone)]
pub struct TransferWorld {
    pub(super) setup: Arc<TransferSetup>,
    pub(super) machine: Transfers,
    pub(super) batches: Vec<BatchTruth>,
    pub(super) lanes: Vec<LaneTruth>,
    pub(super) attempts: Vec<Attempt>,
    pub(super) lane_wanted: bool,
    pub(super) lost: bool,
    pub(super) restarted: bool,
    pub(super) faults_spent: u32,
    pub(super) now: Instant,
    pub(super) violations: Vec<TransferViolation>,
}

impl TransferWorld {
    /// Creates the initial world.
    pub fn new(setup: TransferSetup) -> Self {
        Self {
            machine: (setup.build)(setup.limits),
            batches: Vec::new(),
            lanes: Vec::new(),
            attempts: Vec::new(),
            lane_wanted: false,
            lost: false,
            restarted: false,
            faults_spent: 0,
            now: Instant(0),
            violations: Vec::new(),
            setup: Arc::new(setup),
        }
    }

    /// Digest of all state that can affect future events.
    pub(super) fn digest(&self) -> u128 {
        let mut encoder = Encoder::default();
        let hasher = &mut encoder;
        (self.faults_spent, self.now, self.lane_wanted, self.lost, self.restarted).hash(hasher);
        for batch in &self.batches {
            (batch.finished, batch.cancelled, batch.refused, batch.outlived).hash(hasher);
            (&batch.parts, batch.id.is_some(), batch.unprovable).hash(hasher);
            batch.charges.iter().for_each(|charge| charge.hash(hasher));
        }
        self.lanes.hash(hasher);
        let mut attempts: Vec<_> = self
            .attempts
            .iter()
            .map(|attempt| {
                let slot = attempt.slice.to_bits() & 0xff_ffff;
                let place = (attempt.lane, attempt.batch, attempt.request, attempt.offset);
                (slot, self.machine.awaits(attempt.slice), place, attempt.length, attempt.stage)
            })
            .collect();
        attempts.sort_unstable();
        attempts.hash(hasher);
        self.machine.fingerprint(hasher);
        encoder.digest()
    }

    pub(super) fn violate(&mut self, oracle: TransferOracle, detail: String) {
        self.violations.push(TransferViolation { oracle, detail });
    }

    pub(super) fn submit(&mut self) {
        let number = self.batches.len();
        let plan = &self.setup.batches[number];
        let region = |request: usize| number as u32 * REGIONS + request as u32;
        let requests: Vec<Request> = plan
            .requests
            .iter()
            .enumerate()
            .map(|(index, (direction, length))| Request {
                direction: *direction,
                local: LocalSpan { region: region(index), offset: 0 },
                remote: RemoteSpan { key: u64::from(region(index)), address: 0 },
                length: *length,
            })
            .collect();
        let parts = plan.requests.iter().map(|(direction, length)| Part {
            direction: Some(*direction),
            length: *length,
            ..Part::default()
        });
        let parts = parts.collect();
        let deadline = plan.deadline.then_some(DEADLINE);
        let id = self.machine.submit(self.now, &requests, deadline).ok();
        self.check_name(id);
        self.batches.push(BatchTruth { id, parts, finished: id.is_none(), ..Default::default() });
        self.drain();
    }

    pub(super) fn tell(&mut self, input: TransferInput) {
        if let Err(error) = self.machine.handle_input(self.now, input) {
            self.violate(TransferOracle::LaneLaw, error.to_string());
        }
        self.drain();
    }

    pub(super) fn drain(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                TransferOutput::Post { lane, slice, work } => self.post(lane, slice, work),
                TransferOutput::Withdraw { slice, .. } => {
                    let asked = |attempt: &&mut Attempt| attempt.slice == slice;
                    let attempt = self.attempts.iter_mut().filter(|it| it.is_posted()).find(asked);
                    if let Some(attempt) = attempt {
                        attempt.stage = Stage::Posted { asked_back: true };
                    }
                }
                TransferOutput::WantLane => self.lane_wanted = true,
                TransferOutput::Finished { batch, report } => self.finished(batch, &report),
            }
        }
    }

    fn post(&mut self, lane: Lifecycle, slice: SliceId, work: Work) {
        let lane = lane.0 as usize - 1;
        let region = work.local.region;
        let attempt = Attempt {
            slice,
            lane,
            batch: (region / REGIONS) as usize,
            request: region % REGIONS,
            offset: work.local.offset,
            length: work.length,
            direction: work.direction,
            stage: Stage::Posted { asked_back: false },
        };
        self.check_post(&attempt);
        self.attempts.push(attempt);
    }

    pub(super) fn lane_name(lane: usize) -> Lifecycle {
        Lifecycle(lane as u64 + 1)
    }
}

pub(super) fn error(side: Side, call: &'static str) -> TransportError {
    TransportError::new(side, call, "injected")
}
