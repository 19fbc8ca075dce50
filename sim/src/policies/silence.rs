//! A target with one lane to a peer that answers or is silent: the time after which the lane counts as
//! unresponsive.

use super::oracle::{PolicyOracle, path, violation};
use crate::machine_world::{MachineWorld, Violation};
use handfast_core::target::{Target, TargetConfig, TargetOutput, TargetTimer};
use handfast_core::transfer::{
    BatchId, Completion, CompletionStatus, Direction, LocalSpan, RemoteSpan, Request, Sent,
    SliceId, TransferLimits,
};
use handfast_core::transport::{Side, TransportError};
use handfast_core::{Duration, Instant, Lifecycle};
use handfast_transport_sim::Encoder;
use std::hash::Hash;

/// The time with work and without an answer.
const LIMIT: Duration = Duration(10);
/// Steps of time, the second one longer than half of the limit.
const SPANS: [Duration; 2] = [Duration(1), Duration(6)];
const STEPS_MAX: u32 = 5;
/// Batches of one slice in a schedule.
const BATCHES_MAX: u32 = 3;
/// Lanes in a schedule.
const LANES_MAX: u64 = 2;

/// The configuration of the target.
pub(super) fn config() -> TargetConfig {
    TargetConfig {
        path: path(0, 0),
        limits: TransferLimits::default(),
        lane_timeout: LIMIT,
        legacy: false,
    }
}

/// The end of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It is done.
    Done,
    /// The peer refuses the access.
    Refused,
    /// It fails, and its lane with it.
    Failed,
    /// It was posted on a lane that had failed.
    Flushed,
    /// It was asked back, and none or all of it was sent.
    Released(Sent),
}

impl End {
    /// Whether it shows that the peer lives.
    fn answers(self) -> bool {
        matches!(self, Self::Done | Self::Refused)
    }

    fn status(self) -> CompletionStatus {
        match self {
            Self::Done => CompletionStatus::Done,
            Self::Refused => {
                let error = TransportError::new(Side::Protection, "access", "injected");
                CompletionStatus::Refused(error.into())
            }
            Self::Failed => CompletionStatus::Failed(
                TransportError::new(Side::Peer, "write", "injected").into(),
            ),
            Self::Flushed => CompletionStatus::Flushed,
            Self::Released(sent) => CompletionStatus::Released(sent),
        }
    }
}

/// A posted slice, with its batch; one that is tried again has none that an event names.
#[derive(Clone, Copy, Debug)]
struct Posted {
    slice: SliceId,
    batch: Option<BatchId>,
    asked_back: bool,
}

/// Something that may happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A batch is submitted.
    Submit,
    /// The batch of a posted slice is given up.
    Cancel(usize),
    /// A posted slice ends.
    End(usize, End),
    /// The lane is gone, and another one is up.
    Replaced,
    /// Time passes.
    Pass(Duration),
}

/// The target and the truth.
#[derive(Clone)]
pub(super) struct SilenceWorld {
    target: Target,
    now: Instant,
    lane: Lifecycle,
    /// The lane has failed.
    failing: bool,
    posted: Vec<Posted>,
    batches: u32,
    submitted: Option<BatchId>,
    steps: u32,
    /// Time with work since the peer was heard.
    silent: Duration,
    /// Slices that wait for the next lane.
    waiting: usize,
    violation: Option<Violation<PolicyOracle>>,
}

impl SilenceWorld {
    pub(super) fn new(target: Target) -> Self {
        let mut world = Self {
            target,
            now: Instant(0),
            lane: Lifecycle(1),
            failing: false,
            posted: Vec::new(),
            batches: 0,
            submitted: None,
            steps: 0,
            silent: Duration(0),
            waiting: 0,
            violation: None,
        };
        world.target.handle_lane_up(world.now, world.lane, path(0, 0), 4);
        world.drain();
        world
    }

    fn submit(&mut self) {
        self.batches += 1;
        let place = u64::from(self.batches);
        let request = Request {
            direction: Direction::Write,
            local: LocalSpan { region: 0, offset: place },
            remote: RemoteSpan { key: 1, address: place },
            length: 1,
        };
        self.submitted = self.target.submit(self.now, &[request], &[], None).ok();
    }

    fn end(&mut self, index: usize, end: End) {
        let Posted { slice, asked_back, .. } = self.posted.remove(index);
        if end.answers() {
            self.silent = Duration(0);
        }
        if matches!(end, End::Failed | End::Flushed) {
            self.failing = true;
            // One that was given up is not tried again.
            self.waiting += usize::from(!asked_back);
        }
        let completion = Completion { slice, status: end.status() };
        self.target.handle_completion(self.now, completion);
    }

    fn replace(&mut self) {
        let cause = TransportError::new(Side::Peer, "write", "injected");
        self.target.handle_lane_ending(self.lane, cause, true);
        self.target.handle_lane_down(self.now, self.lane);
        self.drain();
        self.lane = Lifecycle(self.lane.0 + 1);
        (self.failing, self.waiting, self.silent) = (false, 0, Duration(0));
        self.target.handle_lane_up(self.now, self.lane, path(0, 0), 4);
    }

    fn pass(&mut self, span: Duration) {
        self.steps += 1;
        self.now = self.now + span;
        if self.works() {
            self.silent = Duration(self.silent.0 + span.0);
        }
        let due = self.silent >= LIMIT;
        self.target.handle_timeout(self.now);
        let unresponsive = self.drain();
        if unresponsive != due {
            let detail = format!("silence of {:?}: unresponsive is {unresponsive}", self.silent);
            self.violation.get_or_insert(violation(PolicyOracle::Silence, detail));
        }
        if due {
            self.silent = Duration(0);
        }
    }

    fn works(&self) -> bool {
        !self.posted.is_empty() || self.waiting > 0
    }

    /// Returns whether a lane counts as unresponsive.
    fn drain(&mut self) -> bool {
        let mut unresponsive = false;
        while let Some(output) = self.target.poll_output(self.now) {
            match output {
                TargetOutput::Post { slice, .. } => {
                    let batch = self.submitted;
                    self.posted.push(Posted { slice, batch, asked_back: false });
                }
                TargetOutput::Withdraw { slice, .. } => {
                    let mut posted = self.posted.iter_mut();
                    if let Some(posted) = posted.find(|posted| posted.slice == slice) {
                        posted.asked_back = true;
                    }
                }
                TargetOutput::Unresponsive(_) => unresponsive = true,
                _ => {}
            }
        }
        self.submitted = None;
        unresponsive
    }

    /// The watchdog is due when the silence reaches the limit.
    fn check(&mut self) {
        let left = Duration(LIMIT.0 - self.silent.0);
        let expected = self.works().then(|| self.now + left);
        let mut timers = self.target.timers();
        let found = timers.find(|(timer, _)| *timer == TargetTimer::Watchdog).map(|(_, at)| at);
        if found != expected {
            let detail = format!("the watchdog is due at {found:?}, and not at {expected:?}");
            self.violation.get_or_insert(violation(PolicyOracle::Silence, detail));
        }
    }
}

impl MachineWorld for SilenceWorld {
    type Event = Event;
    type Oracle = PolicyOracle;

    const NO_END: PolicyOracle = PolicyOracle::Liveness;

    fn events(&self) -> Vec<(Event, u32)> {
        let mut events = Vec::new();
        if self.batches < BATCHES_MAX && !self.failing {
            events.push((Event::Submit, 0));
        }
        for (index, posted) in self.posted.iter().enumerate() {
            if self.failing {
                events.push((Event::End(index, End::Flushed), 0));
                continue;
            }
            events.extend([End::Done, End::Refused].map(|end| (Event::End(index, end), 0)));
            if self.lane.0 < LANES_MAX {
                events.push((Event::End(index, End::Failed), 0));
            }
            if posted.asked_back {
                let ends = [Sent::None, Sent::All].map(End::Released);
                events.extend(ends.map(|end| (Event::End(index, end), 0)));
            } else if posted.batch.is_some() {
                events.push((Event::Cancel(index), 0));
            }
        }
        if self.failing && self.posted.is_empty() {
            events.push((Event::Replaced, 0));
        }
        if self.steps < STEPS_MAX {
            events.extend(SPANS.map(|span| (Event::Pass(span), 0)));
        }
        events
    }

    fn happen(&mut self, (event, _): (Event, u32)) {
        match event {
            Event::Submit => self.submit(),
            Event::Cancel(index) => {
                let batch = self.posted[index].batch;
                batch.into_iter().for_each(|batch| self.target.cancel(self.now, batch));
            }
            Event::End(index, end) => self.end(index, end),
            Event::Replaced => self.replace(),
            Event::Pass(span) => self.pass(span),
        }
        self.drain();
        self.check();
    }

    fn violation(&self) -> Option<&Violation<PolicyOracle>> {
        self.violation.as_ref()
    }

    fn unsettled(&self) -> Option<Violation<PolicyOracle>> {
        None
    }

    fn fingerprint(&self) -> u128 {
        let mut encoder = Encoder::default();
        let hasher = &mut encoder;
        self.target.fingerprint(hasher);
        (self.now, self.lane, self.failing, self.batches, self.steps).hash(hasher);
        (self.silent, self.waiting).hash(hasher);
        for posted in &self.posted {
            (posted.slice.to_bits(), posted.asked_back, posted.batch).hash(hasher);
        }
        encoder.digest()
    }

    fn describe(&self, event: Event) -> String {
        match event {
            Event::Submit => "a batch is submitted".into(),
            Event::Cancel(index) => format!("the batch of slice {index} is given up"),
            Event::End(index, end) => format!("slice {index} ends: {end:?}"),
            Event::Replaced => "the lane is gone, and another one is up".into(),
            Event::Pass(span) => format!("{} ns pass", span.0),
        }
    }
}
