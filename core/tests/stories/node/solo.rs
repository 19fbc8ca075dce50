//! One node, and a test that plays everybody else.

use handfast_core::node::{CallToken, Limits, StateKind, TimerKind, Timing};
use handfast_core::transport::{Operation, OperationKind, Outcome, Side, TransportError};
use handfast_core::wire::{Body, Message, Op, PlainMessage, RefusalReason};
use handfast_core::{
    Duration, Event, Incarnation, Input, Instant, Lifecycle, NicPath, Node, NodeConfig, Output,
    Pair,
};

const RUN: Incarnation = Incarnation(1);

pub(crate) struct Solo {
    pub(crate) node: Node,
    pub(crate) events: Vec<Event>,
    now: Instant,
    /// Queue pairs skipped by each Create.
    pub(crate) skips: Vec<u32>,
    operations: Vec<Operation>,
    calls: Vec<Message>,
    answers: Vec<Message>,
    plain_answers: Vec<PlainMessage>,
}

impl Solo {
    pub(crate) fn new(limits: Limits) -> Self {
        Self::timed(limits, Timing::default())
    }

    pub(crate) fn timed(limits: Limits, timing: Timing) -> Self {
        let node = Node::new(NodeConfig {
            path: NicPath::parse("a:1@nic").unwrap(),
            incarnation: RUN,
            seed: 7,
            limits,
            timing,
        });
        let (events, skips, operations) = Default::default();
        let (calls, answers, plain_answers) = Default::default();
        Self { node, events, now: Instant(0), skips, operations, calls, answers, plain_answers }
    }

    pub(crate) fn error() -> TransportError {
        TransportError {
            side: Side::Local,
            call: "a call".into(),
            code: 5,
            detail: "it failed".into(),
        }
    }

    pub(crate) fn pair(&self, lifecycle: Lifecycle) -> Pair {
        Pair { incarnation: RUN, lifecycle }
    }

    pub(crate) fn newest(&self) -> Lifecycle {
        self.node.lifecycles().last().expect("a lifecycle").0
    }

    pub(crate) fn tell(&mut self, input: Input) {
        self.node.handle_input(self.now, input);
        self.drain();
    }

    pub(crate) fn call(&mut self, message: Message) {
        self.tell(Input::CallReceived { token: CallToken(0), message });
    }

    /// Time until the earliest timer.
    pub(crate) fn wait(&self) -> Option<(Duration, TimerKind)> {
        let (at, kind) = self.node.poll_timeout()?;
        Some((Duration(at.0 - self.now.0), kind))
    }

    /// Lets time pass without a look at the timers.
    pub(crate) fn let_pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// Lets time pass to the earliest timer.
    pub(crate) fn pass_time(&mut self) {
        let Some((at, _)) = self.node.poll_timeout() else { return };
        self.now = at;
        self.node.handle_timeout(at);
        self.drain();
    }

    /// Ends every operation of a kind that is under way, and says how many.
    pub(crate) fn operate(
        &mut self,
        kind: OperationKind,
        outcome: impl Fn(&Operation) -> Outcome,
    ) -> usize {
        let all = std::mem::take(&mut self.operations);
        let (now, later): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|operation| operation.id().kind == kind);
        self.operations = later;
        for operation in &now {
            let outcome = outcome(operation);
            self.tell(Input::OperationDone { id: operation.id(), outcome });
        }
        now.len()
    }

    /// Lets everything that is under way succeed, and what that leads to.
    pub(crate) fn operate_all(&mut self) {
        while !self.operations.is_empty() {
            self.operate(OperationKind::Create, |_| Outcome::Created(Body::default()));
            self.operate(OperationKind::Connect, |_| Outcome::Connected);
            self.operate(OperationKind::Probe, |_| Outcome::Probed);
            self.operate(OperationKind::Drain, |_| Outcome::Drained);
            self.operate(OperationKind::Retire, |_| Outcome::Retired);
        }
    }

    /// Opens towards the first NIC of a peer and wires, as far as one side can.
    pub(crate) fn connect_to(&mut self, peer: u8, run: u128, lifecycle: u64) -> Lifecycle {
        self.connect(far(peer), run, lifecycle)
    }

    pub(crate) fn connect(&mut self, peer: NicPath, run: u128, lifecycle: u64) -> Lifecycle {
        self.tell(Input::Open(peer.clone()));
        self.operate_all();
        let own = self.newest();
        let mut reply = message(Op::Reply, 1, run, lifecycle, Some(own));
        reply.from = peer;
        self.calls.clear();
        self.tell(Input::CallAnswered(reply));
        self.operate_all();
        assert_eq!(self.node.state_of(own), Some(StateKind::Connected));
        own
    }

    /// Opens towards the first NIC of a peer and lets the peer acknowledge.
    pub(crate) fn establish(&mut self, peer: u8, run: u128, lifecycle: u64) -> Lifecycle {
        let own = self.connect_to(peer, run, lifecycle);
        self.tell(Input::CallAnswered(message(Op::Ack, peer, run, lifecycle, Some(own))));
        assert_eq!(self.node.state_of(own), Some(StateKind::Established));
        self.calls.clear();
        own
    }

    pub(crate) fn take_calls(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.calls)
    }

    pub(crate) fn take_plain_answers(&mut self) -> Vec<PlainMessage> {
        std::mem::take(&mut self.plain_answers)
    }

    pub(crate) fn take_refusals(&mut self) -> Vec<RefusalReason> {
        let refusals = self.answers.iter().filter_map(|answer| answer.refusal.as_ref());
        let reasons = refusals.map(|refusal| refusal.reason).collect();
        self.answers.retain(|answer| answer.refusal.is_none());
        reasons
    }

    pub(crate) fn take_messages(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.answers)
    }

    pub(crate) fn take_answers(&mut self, op: Op) -> usize {
        let before = self.answers.len();
        self.answers.retain(|answer| answer.op != op);
        before - self.answers.len()
    }

    fn drain(&mut self) {
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Call(message) => self.calls.push(message),
                Output::Answer { message, .. } => self.answers.push(message),
                Output::Operate(operation) => {
                    if let Operation::Create { skip, .. } = &operation {
                        self.skips.push(*skip);
                    }
                    self.operations.push(operation);
                }
                Output::Event(event) => self.events.push(event),
                Output::PlainAnswer { message, .. } => self.plain_answers.push(message),
                Output::Publish { .. } | Output::Revoke(_) => {}
            }
        }
    }
}

/// The first NIC of peer number `peer`.
pub(crate) fn far(peer: u8) -> NicPath {
    nic(peer, 1)
}

/// A NIC of peer number `peer`.
pub(crate) fn nic(peer: u8, nic: u8) -> NicPath {
    NicPath::parse(&format!("peer-{peer}:1@nic-{nic}")).unwrap()
}

/// A request of run `run` of a peer.
pub(crate) fn request(peer: u8, run: u128, lifecycle: u64) -> Message {
    message(Op::Request, peer, run, lifecycle, None)
}

/// A message of incarnation `run` of a peer that echoes a local lifecycle.
pub(crate) fn message(
    op: Op,
    peer: u8,
    run: u128,
    lifecycle: u64,
    echo: Option<Lifecycle>,
) -> Message {
    Message {
        op,
        from: far(peer),
        to: NicPath::parse("a:1@nic").unwrap(),
        sender: Pair { incarnation: Incarnation(run), lifecycle: Lifecycle(lifecycle) },
        echo: echo.map(|lifecycle| Pair { incarnation: RUN, lifecycle }),
        body: Body::default(),
        refusal: None,
    }
}
