//! A recorded node with random inputs, and queries of its trace.

use handfast_core::node::{CallToken, Limits, Timing};
use handfast_core::transport::{Operation, Outcome, Side, TransportError};
use handfast_core::wire::{Body, Message, Op};
use handfast_core::{
    Incarnation, Input, Instant, Lifecycle, NicPath, Node, NodeConfig, Output, Pair,
};
use handfast_trace::{
    BYTES_MIN, Edge, Ending, RecordOptions, Recorded, Recorder, ReplayError, Replayed, Step, Trace,
    TraceReader, replay,
};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Time between two steps.
const STEP_NANOS: u64 = 3_000_000;

/// A folder with one recording in it.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.path().join("run.trace")
    }
}

pub(crate) fn options(path: &Path) -> RecordOptions {
    RecordOptions { bytes_max: BYTES_MIN, ..RecordOptions::new(path) }
}

pub(crate) fn path(text: &str) -> NicPath {
    NicPath::parse(text).unwrap()
}

/// A running node, with the operations that its transport has yet to perform.
pub(crate) struct Run {
    pub(crate) node: Recorded,
    pub(crate) trace: Trace,
    now: Instant,
    random: u64,
    operations: Vec<Operation>,
    calls: u64,
    peers: Vec<NicPath>,
}

impl Run {
    /// The caller names the peers, because redaction must keep their order.
    pub(crate) fn new(file: &Path, seed: u64, peers: &[&str]) -> Self {
        let trace = Trace::new(Recorder::create(options(file)).unwrap());
        let limits = Limits { peers_max: 3, lifecycles_max: 4, ..Limits::default() };
        let node = Node::new(NodeConfig {
            path: path("here.example:7411@tcp"),
            incarnation: Incarnation(1),
            seed,
            limits,
            timing: Timing::default(),
        });
        Self {
            node: Recorded::new(node, Some(trace.clone())),
            trace,
            now: Instant(STEP_NANOS),
            random: seed,
            operations: Vec::new(),
            calls: 0,
            peers: peers.iter().map(|peer| path(peer)).collect(),
        }
    }

    /// An xorshift generator: inputs need variety, not quality.
    fn draw(&mut self, below: usize) -> usize {
        self.random = (self.random | 1) ^ (self.random << 13);
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % below
    }

    fn peer(&mut self) -> NicPath {
        let at = self.draw(self.peers.len());
        self.peers[at].clone()
    }

    pub(crate) fn live(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
        }
    }

    fn step(&mut self) {
        self.now = self.now + handfast_core::Duration(STEP_NANOS);
        match self.draw(12) {
            0 => {
                let peer = self.peer();
                self.tell(Input::Open(peer));
            }
            1 => {
                let peer = self.peer();
                self.tell(Input::Close(peer));
            }
            2 | 3 => self.call(),
            4 => self.answer(),
            5 => {
                let lifecycle = self.some_lifecycle();
                self.tell(Input::LaneFailed { lifecycle, error: error() });
            }
            6 => {
                self.now = self.now + handfast_core::Duration::from_millis(700);
                self.node.handle_timeout(self.now);
                self.drain();
            }
            7 => self.transfer(),
            _ => self.operate(),
        }
    }

    fn some_lifecycle(&mut self) -> Lifecycle {
        let known: Vec<_> = self.node.lifecycles().map(|(lifecycle, ..)| lifecycle).collect();
        match known.len() {
            0 => Lifecycle(1),
            count => known[self.draw(count)],
        }
    }

    fn call(&mut self) {
        self.calls += 1;
        let token = CallToken(self.calls);
        let message = self.message([Op::Request, Op::Request, Op::Ready, Op::Quiesce]);
        self.tell(Input::CallReceived { token, message });
    }

    fn answer(&mut self) {
        let message = self.message([Op::Reply, Op::Reply, Op::Ack, Op::Retired]);
        self.tell(Input::CallAnswered(message));
    }

    fn message(&mut self, ops: [Op; 4]) -> Message {
        let echo = self.some_lifecycle();
        let known = self.node.lifecycles().find(|(lifecycle, ..)| *lifecycle == echo);
        let peer = known.map(|(_, _, peer, _)| peer.clone());
        let from = peer.unwrap_or(self.peer());
        let run = Incarnation(7 + self.draw(2) as u128);
        let sender = Pair { incarnation: run, lifecycle: Lifecycle(1 + self.draw(3) as u64) };
        let token = format!("{:016x}", 0x00c0_ffee + self.draw(5));
        let address = format!("10.1.2.{}:7411", self.draw(9));
        Message {
            op: ops[self.draw(4)],
            from,
            to: path("here.example:7411@tcp"),
            sender,
            echo: Some(Pair { incarnation: Incarnation(1), lifecycle: echo }),
            body: Body { gid: "fe80::c0de".into(), token, address, ..Body::default() },
            refusal: None,
        }
    }

    fn operate(&mut self) {
        if self.operations.is_empty() {
            return;
        }
        let at = self.draw(self.operations.len());
        let operation = self.operations.remove(at);
        let outcome = match operation {
            _ if self.draw(8) == 0 => Outcome::Failed(error()),
            Operation::Create { .. } => {
                Outcome::Created(Body { token: "badc0de".into(), ..Body::default() })
            }
            Operation::Connect { .. } => Outcome::Connected,
            Operation::Probe { .. } => Outcome::Probed,
            Operation::Drain { .. } => Outcome::Drained,
            Operation::Retire { .. } => Outcome::Retired,
        };
        self.tell(Input::OperationDone { id: operation.id(), outcome });
    }

    fn transfer(&mut self) {
        let (peer, batch) = (self.peer(), self.calls);
        let ending = if self.draw(4) == 0 { Ending::TimedOut } else { Ending::Success };
        let edges =
            [Edge::Submitted { batch, requests: 1, bytes: 4096 }, Edge::Ended { batch, ending }];
        let now = self.now;
        if self.trace.edges(&peer, Incarnation(7), edges.map(|edge| (now, edge)).into_iter()) {
            self.node.begin_segment();
        }
    }

    pub(crate) fn tell(&mut self, input: Input) {
        self.node.handle_input(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.node.poll_output() {
            if let Output::Operate(operation) = output {
                self.operations.push(operation);
            }
        }
    }

    pub(crate) fn end(self) {
        assert_eq!(self.trace.status().failure, None);
        self.node.end(self.now);
    }
}

pub(crate) fn error() -> TransportError {
    let detail = "10.1.2.3 hung up".to_owned();
    TransportError { side: Side::Peer, call: "receive".into(), code: 104, detail }
}

pub(crate) const PEERS: [&str; 5] =
    ["b.example:1@tcp", "a.example:1@mlx5_0", "a.example:1@tcp", "c.example:1@tcp", "a@tcp"];

pub(crate) fn replayed(bytes: &[u8]) -> Result<Replayed, ReplayError> {
    replay(TraceReader::new(bytes, false)?, &mut |_| {})
}

/// The numbers of the entries that are there, in order.
pub(crate) fn numbers(bytes: &[u8]) -> Vec<u64> {
    let mut numbers = Vec::new();
    let read = replay(TraceReader::new(bytes, false).unwrap(), &mut |step| {
        if let Step::Entry { entry, .. } = step {
            numbers.push(entry.number);
        }
    });
    read.unwrap();
    numbers
}
