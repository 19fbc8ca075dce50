//! Possible events in a world of transfers, and their cost in faults.

use super::oracle::{TransferOracle, TransferViolation};
use super::world::{Attempt, DEADLINE, LaneTruth, Stage, TransferWorld, error};
use crate::machine_world::MachineWorld;
use handfast_core::transfer::{Completion, CompletionStatus, Direction, Sent, TransferInput};
use handfast_core::transport::Side;

/// Something that may happen. Indices point into the world it was listed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferEvent {
    /// The next batch is submitted.
    Submit,
    /// The application cancels a batch.
    Cancel(usize),
    /// A lane comes up.
    LaneUp,
    /// An attempt completes.
    Done(usize),
    /// The peer refuses an attempt.
    Refused(usize),
    /// An attempt fails, and its lane with it.
    Failed(usize),
    /// An attempt is flushed.
    Flushed(usize),
    /// An attempt is released.
    Released(usize, Sent),
    /// A lane is drained and retired.
    LaneDown(usize),
    /// A lane is fenced.
    Fenced(usize),
    /// The fence of a failed or retiring lane is lost for good.
    FenceLost(usize),
    /// An attempt completes after its lane is gone.
    LateAnswer(usize),
    /// The deadline passes.
    Deadline,
    /// The peer is lost.
    PeerLost,
    /// The peer has restarted.
    PeerRestarted,
}

impl MachineWorld for TransferWorld {
    type Event = TransferEvent;
    type Oracle = TransferOracle;

    const NO_END: TransferOracle = TransferOracle::Liveness;

    fn events(&self) -> Vec<(TransferEvent, u32)> {
        let mut events = Vec::new();
        self.push_commands(&mut events);
        self.push_answers(&mut events);
        self.push_lanes(&mut events);
        let deadlines = self.batches.iter().zip(&self.setup.batches);
        let waits = deadlines.filter(|(batch, plan)| !batch.finished && plan.deadline).count() > 0;
        if self.now < DEADLINE && waits {
            events.push((TransferEvent::Deadline, u32::from(!events.is_empty())));
        }
        // The peer is given up when no further lane comes up, or at any time by the application.
        // After that, what comes to wait is given up, too.
        let stuck = self.lane_wanted && self.lanes.len() >= self.setup.lanes_max
            || self.lost && (self.lane_wanted || self.machine.has_waiting());
        if stuck || !self.lost && self.batches.iter().any(|batch| !batch.finished) {
            events.push((TransferEvent::PeerLost, u32::from(!stuck)));
        }
        if !self.restarted {
            events.push((TransferEvent::PeerRestarted, 1));
        }
        let left = self.setup.faults_max - self.faults_spent;
        events.retain(|(_, price)| *price <= left);
        events
    }

    fn happen(&mut self, (event, price): (TransferEvent, u32)) {
        self.faults_spent += price;
        match event {
            TransferEvent::Submit => self.submit(),
            TransferEvent::Cancel(number) => {
                self.batches[number].cancelled = true;
                if let Some(id) = self.batches[number].id {
                    self.machine.cancel(self.now, id);
                }
                self.drain();
            }
            TransferEvent::LaneUp => {
                self.lane_wanted = false;
                let lane = Self::lane_name(self.lanes.len());
                self.lanes.push(LaneTruth::default());
                self.tell(TransferInput::LaneUp { lane, depth: self.setup.depth });
            }
            TransferEvent::Done(at) => self.complete(at, CompletionStatus::Done),
            TransferEvent::Refused(at) => {
                let refused = CompletionStatus::Refused(error(Side::Protection, "access").into());
                self.complete(at, refused);
            }
            TransferEvent::Failed(at) => {
                self.complete(at, CompletionStatus::Failed(error(Side::Peer, "write").into()));
            }
            TransferEvent::Flushed(at) => self.complete(at, CompletionStatus::Flushed),
            TransferEvent::Released(at, sent) => {
                self.complete(at, CompletionStatus::Released(sent));
            }
            TransferEvent::LaneDown(lane) => self.lane_down(lane),
            TransferEvent::Fenced(lane) => {
                self.lanes[lane].fenced = true;
                self.tell(TransferInput::LaneFenced { lane: Self::lane_name(lane) });
            }
            TransferEvent::FenceLost(lane) => self.lose_fence(lane),
            TransferEvent::LateAnswer(at) => {
                let slice = self.attempts[at].slice;
                self.attempts[at].stage = Stage::Late { silent: false };
                let status = CompletionStatus::Done;
                self.tell(TransferInput::Completion(Completion { slice, status }));
            }
            TransferEvent::Deadline => {
                self.now = DEADLINE;
                self.machine.handle_timeout(DEADLINE);
                self.drain();
            }
            TransferEvent::PeerLost => {
                self.lost = true;
                self.lane_wanted = false;
                self.tell(TransferInput::PeerLost { cause: error(Side::Peer, "open") });
            }
            TransferEvent::PeerRestarted => self.restart(),
        }
        self.forget_landed();
        self.check();
        if event == TransferEvent::PeerLost {
            self.check_loss();
        }
        self.check_fence_losses();
    }

    fn violation(&self) -> Option<&TransferViolation> {
        self.violations.first()
    }

    fn unsettled(&self) -> Option<TransferViolation> {
        self.check_rest()
    }

    fn fingerprint(&self) -> u128 {
        self.digest()
    }

    fn describe(&self, event: TransferEvent) -> String {
        let attempt = |at: usize| {
            let it = &self.attempts[at];
            let (batch, lane) = (it.batch, it.lane + 1);
            format!("byte {} of request {} of batch {batch} on lane {lane}", it.offset, it.request)
        };
        match event {
            TransferEvent::Submit => format!("batch {} is submitted", self.batches.len()),
            TransferEvent::Cancel(number) => format!("batch {number} is cancelled"),
            TransferEvent::LaneUp => format!("lane {} comes up", self.lanes.len() + 1),
            TransferEvent::Done(at) => format!("{} is done", attempt(at)),
            TransferEvent::Refused(at) => format!("{} is refused", attempt(at)),
            TransferEvent::Failed(at) => format!("{} fails", attempt(at)),
            TransferEvent::Flushed(at) => format!("{} is flushed", attempt(at)),
            TransferEvent::Released(at, sent) => format!("{} is given back, {sent:?}", attempt(at)),
            TransferEvent::LaneDown(lane) => format!("lane {} is down", lane + 1),
            TransferEvent::Fenced(lane) => format!("lane {} is fenced", lane + 1),
            TransferEvent::FenceLost(lane) => {
                format!("nothing will prove lane {} fenced", lane + 1)
            }
            TransferEvent::LateAnswer(at) => format!("{} is done, answered late", attempt(at)),
            TransferEvent::Deadline => "the deadline passes".into(),
            TransferEvent::PeerLost => "the peer is given up".into(),
            TransferEvent::PeerRestarted => "the peer has restarted".into(),
        }
    }
}

impl TransferWorld {
    fn push_commands(&self, events: &mut Vec<(TransferEvent, u32)>) {
        let next = self.setup.batches.get(self.batches.len());
        // Nothing is submitted to a peer that was given up.
        if !self.lost && next.is_some_and(|plan| !plan.deadline || self.now < DEADLINE) {
            events.push((TransferEvent::Submit, 0));
        }
        for (number, batch) in self.batches.iter().enumerate() {
            if self.setup.batches[number].cancel && !batch.cancelled && !batch.finished {
                events.push((TransferEvent::Cancel(number), 0));
            }
        }
        if self.lane_wanted && !self.lost && self.lanes.len() < self.setup.lanes_max {
            events.push((TransferEvent::LaneUp, 0));
        }
    }

    fn push_answers(&self, events: &mut Vec<(TransferEvent, u32)>) {
        for (at, attempt) in self.attempts.iter().enumerate() {
            let ending = self.lanes[attempt.lane].ending;
            match attempt.stage {
                Stage::Posted { asked_back } => {
                    events.push((TransferEvent::Done(at), 0));
                    events.push((TransferEvent::Refused(at), 1));
                    if ending {
                        events.push((TransferEvent::Flushed(at), 0));
                    } else {
                        events.push((TransferEvent::Failed(at), 1));
                        events.push((TransferEvent::Released(at, Sent::Partly), 1));
                    }
                    if ending || asked_back {
                        events.push((TransferEvent::Released(at, Sent::None), 0));
                        events.push((TransferEvent::Released(at, Sent::All), 0));
                    }
                }
                Stage::Late { silent: true } => events.push((TransferEvent::LateAnswer(at), 1)),
                Stage::Late { silent: false } => {}
            }
        }
    }

    fn push_lanes(&self, events: &mut Vec<(TransferEvent, u32)>) {
        for (number, lane) in self.lanes.iter().enumerate() {
            if !lane.down {
                events.push((TransferEvent::LaneDown(number), u32::from(!lane.ending)));
            }
            if !lane.fenced && !lane.unprovable && lane.ending {
                events.push((TransferEvent::Fenced(number), 0));
                events.push((TransferEvent::FenceLost(number), 1));
            }
        }
    }

    fn complete(&mut self, at: usize, status: CompletionStatus) {
        let attempt = self.attempts[at];
        let slice = attempt.slice;
        match &status {
            CompletionStatus::Done => {
                self.attempts.remove(at);
                let part = self.part(&attempt);
                part.done |= attempt.bits();
                part.touched = true;
            }
            CompletionStatus::Refused(_) => {
                self.attempts.remove(at);
                self.part(&attempt).touched = true;
                self.batches[attempt.batch].refused = true;
            }
            CompletionStatus::Failed(_) => {
                self.charge(&attempt);
                self.expose(at);
            }
            CompletionStatus::Flushed => self.expose(at),
            CompletionStatus::Released(sent) => self.release(at, *sent),
        }
        self.tell(TransferInput::Completion(Completion { slice, status }));
    }

    fn release(&mut self, at: usize, sent: Sent) {
        let attempt = self.attempts[at];
        let asked = attempt.stage == Stage::Posted { asked_back: true };
        if sent == Sent::None {
            self.attempts.remove(at);
        } else {
            self.expose(at);
        }
        if !asked {
            self.lanes[attempt.lane].ending = true;
            if sent != Sent::None {
                self.charge(&attempt);
            }
        }
    }

    fn charge(&mut self, attempt: &Attempt) {
        self.lanes[attempt.lane].ending = true;
        let slice = (attempt.request, attempt.offset);
        *self.batches[attempt.batch].charges.entry(slice).or_default() += 1;
    }

    /// Releases an attempt's local memory; its bytes may still land at the peer.
    fn expose(&mut self, at: usize) {
        let attempt = self.attempts[at];
        self.part(&attempt).touched = true;
        self.attempts[at].stage = Stage::Late { silent: false };
        if attempt.direction == Direction::Write && self.lanes[attempt.lane].unprovable {
            self.batches[attempt.batch].unprovable = true;
        }
    }

    fn lane_down(&mut self, lane: usize) {
        self.lanes[lane].ending = true;
        self.lanes[lane].down = true;
        for at in 0..self.attempts.len() {
            if self.attempts[at].lane == lane && self.attempts[at].is_posted() {
                self.expose(at);
                self.attempts[at].stage = Stage::Late { silent: true };
            }
        }
        let cause = error(Side::Peer, "lane");
        self.tell(TransferInput::LaneDown { lane: Self::lane_name(lane), cause });
    }

    fn lose_fence(&mut self, lane: usize) {
        self.lanes[lane].unprovable = true;
        for number in 0..self.batches.len() {
            if !self.batches[number].finished && self.owes(number, lane) {
                self.batches[number].unprovable = true;
            }
        }
        let cause = error(Side::Peer, "fence");
        self.tell(TransferInput::FenceLost { lane: Self::lane_name(lane), cause });
    }

    fn restart(&mut self) {
        self.restarted = true;
        self.lane_wanted = false;
        for lane in &mut self.lanes {
            (lane.ending, lane.fenced) = (true, true);
        }
        self.batches.iter_mut().filter(|batch| !batch.finished).for_each(|it| it.outlived = true);
        self.tell(TransferInput::PeerRestarted);
    }

    /// Attempts that cannot affect the future.
    fn forget_landed(&mut self) {
        let lanes = &self.lanes;
        self.attempts.retain(|attempt| match attempt.stage {
            Stage::Posted { .. } | Stage::Late { silent: true } => true,
            Stage::Late { silent: false } => {
                attempt.direction == Direction::Write && !lanes[attempt.lane].fenced
            }
        });
    }
}
