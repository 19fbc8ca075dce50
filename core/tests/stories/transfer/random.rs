//! Random runs: the machine agrees with the model.

use super::model::Model;
use super::*;
use handfast_core::transfer::TransferLoad;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Clone, Debug)]
enum Step {
    Submit {
        requests: Vec<(Direction, u64)>,
        time_left: Option<u64>,
    },
    Cancel(Index),
    Wait(u64),
    LaneUp {
        depth: u32,
    },
    LaneDown(Index),
    Fence(Index),
    Answer(Index, Answer),
    /// An answer to a slice that was answered before.
    StaleAnswer(Index, Answer),
    PeerLost,
    PeerRestarted,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Done,
    Refused,
    Failed,
    Flushed,
    Released(Sent),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_machine_does_what_the_model_says(limits in limits(), steps in vec(step(), 1..120)) {
        let mut run = Run::new(limits);
        for step in &steps {
            run.step(step);
        }
        run.wind_down();
    }
}

struct Run {
    transfers: Transfers,
    model: Model,
    now: Instant,
    answered: Vec<SliceId>,
    names: u32,
}

impl Run {
    fn new(limits: TransferLimits) -> Self {
        let (transfers, model) = (Transfers::new(limits), Model::new(limits));
        Self { transfers, model, now: Instant(1), answered: Vec::new(), names: 0 }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Submit { requests, time_left } => self.submit(requests, *time_left),
            Step::Cancel(index) => {
                if let Some(batch) = pick(index, &self.model.live_batches()) {
                    self.transfers.cancel(self.now, batch);
                    self.model.on_cancel(batch);
                }
            }
            Step::Wait(span) => {
                self.now = Instant(self.now.0 + span);
                self.transfers.handle_timeout(self.now);
                self.model.on_time(self.now);
            }
            Step::LaneUp { depth } => self.lane_up(*depth),
            Step::LaneDown(index) => {
                if let Some(lane) = pick(index, &self.model.lanes_up()) {
                    self.lane_down(lane);
                }
            }
            Step::Fence(index) => {
                if let Some(lane) = pick(index, &self.model.lanes()) {
                    self.fence(lane);
                }
            }
            Step::Answer(index, answer) => {
                if let Some(slice) = pick(index, &self.model.posted()) {
                    self.answer(slice, *answer);
                }
            }
            Step::StaleAnswer(index, answer) => {
                if let Some(slice) = pick(index, &self.answered) {
                    let stale = self.transfers.counters().stale;
                    let error = self.next_error();
                    let status = answer.status(error);
                    self.input(TransferInput::Completion(Completion { slice, status }));
                    assert_eq!(self.transfers.counters().stale, stale + 1);
                }
            }
            Step::PeerLost => {
                let cause = self.next_error();
                self.input(TransferInput::PeerLost { cause: cause.clone() });
                self.model.on_peer_lost(&cause);
            }
            Step::PeerRestarted => {
                self.input(TransferInput::PeerRestarted);
                self.model.on_peer_restarted();
            }
        }
        self.drain();
    }

    fn submit(&mut self, requests: &[(Direction, u64)], time_left: Option<u64>) {
        let mut new = |(direction, length): &(Direction, u64)| {
            self.names += 1;
            Model::request(self.names, *direction, *length)
        };
        let requests: Vec<Request> = requests.iter().map(&mut new).collect();
        let deadline = time_left.map(|span| Instant(self.now.0 + span));
        let result = self.transfers.submit(self.now, &requests, deadline);
        self.model.on_submit(&requests, deadline, result);
    }

    fn lane_up(&mut self, depth: u32) {
        self.names += 1;
        let lane = u64::from(self.names);
        let up = TransferInput::LaneUp { lane: Lifecycle(lane), depth };
        let result = self.transfers.handle_input(self.now, up);
        self.model.on_lane_up(lane, depth, result);
    }

    fn lane_down(&mut self, lane: u64) {
        let cause = self.next_error();
        self.answered.extend(self.model.posted_on(lane));
        self.input(TransferInput::LaneDown { lane: Lifecycle(lane), cause: cause.clone() });
        self.model.on_lane_down(lane, &cause);
    }

    fn fence(&mut self, lane: u64) {
        self.input(TransferInput::LaneFenced { lane: Lifecycle(lane) });
        self.model.on_fence(lane);
    }

    fn answer(&mut self, slice: SliceId, answer: Answer) {
        let error = self.next_error();
        let status = answer.status(error);
        self.input(TransferInput::Completion(Completion { slice, status: status.clone() }));
        self.model.on_completion(slice, &status);
        self.answered.push(slice);
    }

    /// Every error is distinct, so that a report shows which one it kept.
    fn next_error(&mut self) -> TransportError {
        self.names += 1;
        error(self.names as i32)
    }

    fn input(&mut self, input: TransferInput) {
        self.transfers.handle_input(self.now, input).expect("the input is in order");
    }

    fn drain(&mut self) {
        while let Some(output) = self.transfers.poll_output() {
            self.model.on_output(self.now, output);
        }
        self.model.check(&self.transfers);
    }

    /// Every lane goes, the peer is given up, and nothing is left. Before that, what can succeed
    /// does.
    fn wind_down(&mut self) {
        for lane in self.model.lanes_up() {
            self.lane_down(lane);
            self.drain();
        }
        for lane in self.model.lanes() {
            self.fence(lane);
            self.drain();
        }
        let undecided = self.model.undecided();
        let successes = self.model.successes;
        self.lane_up(3);
        self.drain();
        while let Some(slice) = self.model.posted().first().copied() {
            self.answer(slice, Answer::Done);
            self.drain();
        }
        assert_eq!(self.model.successes, successes + undecided, "a good lane finishes all");
        let lane = self.model.lanes_up()[0];
        self.lane_down(lane);
        self.drain();
        assert_eq!(self.transfers.load(), TransferLoad::default());
        assert_eq!(self.transfers.poll_timeout(), None);
    }
}

impl Answer {
    fn status(self, error: TransportError) -> CompletionStatus {
        match self {
            Self::Released(sent) => CompletionStatus::Released(sent),
            Self::Done => CompletionStatus::Done,
            Self::Refused => CompletionStatus::Refused(error.into()),
            Self::Failed => CompletionStatus::Failed(error.into()),
            Self::Flushed => CompletionStatus::Flushed,
        }
    }
}

pub(super) fn pick<T: Copy>(index: &Index, from: &[T]) -> Option<T> {
    (!from.is_empty()).then(|| *index.get(from))
}

fn limits() -> impl Strategy<Value = TransferLimits> {
    (1..8u32, 1..4u32, 1..6u32, 0..3u32, 1..5u32).prop_map(
        |(slice_bytes_max, slices_per_lane_max, batches_max, retries_max, lanes_max)| {
            TransferLimits {
                slice_bytes_max,
                slices_per_lane_max,
                batches_max,
                requests_per_batch_max: 3,
                retries_max,
                lanes_max,
            }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<Index>;
    let direction = prop_oneof![1 => Just(Direction::Read), 2 => Just(Direction::Write)];
    let requests = vec((direction, 0..20u64), 1..=3);
    let submit = (requests, proptest::option::of(1..40u64))
        .prop_map(|(requests, time_left)| Step::Submit { requests, time_left });
    prop_oneof![
        6 => submit,
        1 => index().prop_map(Step::Cancel),
        3 => (0..6u64).prop_map(Step::Wait),
        6 => (1..5u32).prop_map(|depth| Step::LaneUp { depth }),
        3 => index().prop_map(Step::LaneDown),
        3 => index().prop_map(Step::Fence),
        24 => (index(), answer()).prop_map(|(index, answer)| Step::Answer(index, answer)),
        1 => (index(), answer()).prop_map(|(index, answer)| Step::StaleAnswer(index, answer)),
        1 => Just(Step::PeerLost),
        1 => Just(Step::PeerRestarted),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        20 => Just(Answer::Done),
        1 => Just(Answer::Refused),
        3 => Just(Answer::Failed),
        2 => Just(Answer::Flushed),
        2 => Just(Answer::Released(Sent::None)),
        2 => Just(Answer::Released(Sent::Partly)),
        1 => Just(Answer::Released(Sent::All)),
    ]
}
