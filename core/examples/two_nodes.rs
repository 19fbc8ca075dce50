//! Two nodes built from the public core alone: they connect, move bytes, lose a lane in the middle of
//! a write, finish it over the next lane, and part.
//!
//! The program simulates the network, the queue pairs and the memory; [`Node`] and [`Transfers`]
//! decide. Nothing sleeps and nothing blocks, so a run takes milliseconds and always prints the
//! same lines.
//!
//! ```text
//! cargo run -p handfast-core --example two_nodes
//! ```

use handfast_core::node::{CallToken, Limits, Timing};
use handfast_core::transfer::{
    BatchOutcome, Completion, Direction, LocalSpan, RemoteSpan, Request, SliceId, TransferInput,
    TransferLimits, TransferOutput, Transfers, Work,
};
use handfast_core::transport::{Operation, Outcome, Side, TransportError};
use handfast_core::wire::{Body, Message};
use handfast_core::{
    Duration, Incarnation, Input, Instant, Lifecycle, NicPath, Node, NodeConfig, Output,
};
use std::collections::{BTreeSet, VecDeque};
use std::error::Error;

const ALICE: usize = 0;
const BOB: usize = 1;
const NAMES: [&str; 2] = ["alice", "bob"];
/// Maximum bytes of a slice.
const SLICE: u32 = 4;
const MESSAGE: &[u8] = b"one-sided writes need no receiver";

/// One process: its node, its transfers to the peer, its memory, and its established lanes.
struct Process {
    node: Node,
    transfers: Transfers,
    memory: Vec<u8>,
    lanes: BTreeSet<Lifecycle>,
}

/// A posted slice without a completion.
struct Posted {
    lane: Lifecycle,
    slice: SliceId,
    work: Work,
}

/// Both processes and all messages and operations between them.
struct World {
    now: Instant,
    processes: [Process; 2],
    calls: VecDeque<(usize, Message)>,
    answers: VecDeque<(usize, Message)>,
    operations: VecDeque<(usize, Operation)>,
    posted: VecDeque<Posted>,
    outcome: Option<BatchOutcome>,
    lines: Vec<String>,
}

fn main() -> Result<(), Box<dyn Error>> {
    run()?.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// Runs the scenario and returns its lines.
pub(crate) fn run() -> Result<Vec<String>, Box<dyn Error>> {
    let mut world = World::new()?;
    let bob = path(BOB)?;

    world.say("1. alice opens a lane to bob");
    world.input(ALICE, Input::Open(bob.clone()));
    world.settle()?;

    world.say(&format!("2. alice writes {} bytes to bob", MESSAGE.len()));
    world.write()?;
    world.complete(2);

    world.say("3. the lane breaks with slices posted");
    world.break_lane();
    world.settle()?;
    world.complete(usize::MAX);
    let written = world.processes[BOB].memory[..MESSAGE.len()].to_vec();
    assert_eq!((&*written, &world.outcome), (MESSAGE, &Some(BatchOutcome::Success)));
    world.say(&format!("   bob's memory holds {:?}", String::from_utf8_lossy(&written)));

    world.say("4. alice closes");
    world.input(ALICE, Input::Close(bob));
    world.settle()?;
    assert!(world.processes.iter().all(|process| process.node.lifecycles().next().is_none()));
    world.say("   no lifecycle is left on either side");
    Ok(world.lines)
}

fn path(side: usize) -> Result<NicPath, Box<dyn Error>> {
    Ok(NicPath::parse(&format!("{}:1@nic", NAMES[side]))?)
}

impl World {
    fn new() -> Result<Self, Box<dyn Error>> {
        let process = |side: usize| -> Result<Process, Box<dyn Error>> {
            let limits = TransferLimits { slice_bytes_max: SLICE, ..TransferLimits::default() };
            Ok(Process {
                node: Node::new(NodeConfig {
                    path: path(side)?,
                    // A real incarnation is 128 random bits.
                    incarnation: Incarnation(side as u128 + 1),
                    seed: side as u64,
                    limits: Limits::default(),
                    timing: Timing::default(),
                }),
                transfers: Transfers::new(limits),
                memory: vec![0; 64],
                lanes: BTreeSet::new(),
            })
        };
        Ok(Self {
            now: Instant(0),
            processes: [process(ALICE)?, process(BOB)?],
            calls: VecDeque::new(),
            answers: VecDeque::new(),
            operations: VecDeque::new(),
            posted: VecDeque::new(),
            outcome: None,
            lines: Vec::new(),
        })
    }

    fn say(&mut self, line: &str) {
        self.lines.push(line.to_owned());
    }

    /// Gives a node an input, then drains its outputs.
    fn input(&mut self, side: usize, input: Input) {
        self.processes[side].node.handle_input(self.now, input);
        self.drain_node(side);
    }

    fn drain_node(&mut self, side: usize) {
        while let Some(output) = self.processes[side].node.poll_output() {
            let name = NAMES[side];
            match output {
                Output::Call(message) => self.calls.push_back((1 - side, message)),
                Output::Answer { message, .. } => self.answers.push_back((1 - side, message)),
                Output::Operate(operation) => self.operations.push_back((side, operation)),
                Output::Publish { local, .. } => {
                    self.say(&format!("   {name}: lane {} is up", local.lifecycle.0));
                    let lane = local.lifecycle;
                    self.processes[side].lanes.insert(lane);
                    // A lane to a peer that follows the rules proves that nothing posted on an
                    // earlier one can land any more.
                    for earlier in (1..lane.0).map(Lifecycle) {
                        self.transfer(side, TransferInput::LaneFenced { lane: earlier });
                    }
                    self.transfer(side, TransferInput::LaneUp { lane, depth: 4 });
                }
                Output::Revoke(lane) => {
                    self.say(&format!("   {name}: lane {} is revoked", lane.0));
                    self.transfer(side, TransferInput::LaneRevoked { lane });
                }
                Output::Event(event) => self.say(&format!("   {name}: {event:?}")),
                // Every node in this example has a handfast key.
                Output::PlainAnswer { .. } => {}
            }
        }
    }

    /// Gives a process's transfers an input, then drains their outputs.
    fn transfer(&mut self, side: usize, input: TransferInput) {
        let accepted = self.processes[side].transfers.handle_input(self.now, input);
        accepted.expect("fewer lanes than the limit");
        self.drain_transfers(side);
    }

    fn drain_transfers(&mut self, side: usize) {
        while let Some(output) = self.processes[side].transfers.poll_output() {
            match output {
                TransferOutput::Post { lane, slice, work } => {
                    self.posted.push_back(Posted { lane, slice, work });
                }
                TransferOutput::Withdraw { .. } => {}
                TransferOutput::WantLane => {
                    self.say(&format!("   {}: a lane is wanted", NAMES[side]))
                }
                TransferOutput::Finished { report, .. } => {
                    self.say(&format!("   {}: the batch ends: {:?}", NAMES[side], report.outcome));
                    self.outcome = Some(report.outcome);
                }
            }
        }
    }

    /// Delivers messages, performs operations and fires timers until nothing is under way.
    fn settle(&mut self) -> Result<(), Box<dyn Error>> {
        for _ in 0..1_000 {
            if let Some((side, operation)) = self.operations.pop_front() {
                self.operate(side, &operation);
            } else if let Some((side, message)) = self.answers.pop_front() {
                self.input(side, Input::CallAnswered(message));
            } else if let Some((side, message)) = self.calls.pop_front() {
                self.say(&format!("   {} -> {}: {:?}", NAMES[1 - side], NAMES[side], message.op));
                self.input(side, Input::CallReceived { token: CallToken(0), message });
            } else if !self.pass_time() {
                return Ok(());
            }
        }
        Err("two nodes over a perfect network did not settle".into())
    }

    /// Performs an operation as a transport would, and reports its outcome.
    fn operate(&mut self, side: usize, operation: &Operation) {
        let outcome = match operation {
            Operation::Create { .. } => Outcome::Created(Body::default()),
            Operation::Connect { .. } => Outcome::Connected,
            Operation::Probe { .. } => Outcome::Probed,
            Operation::Drain { .. } => Outcome::Drained,
            Operation::Retire { .. } => Outcome::Retired,
        };
        let id = operation.id();
        if outcome == Outcome::Retired && self.processes[side].lanes.remove(&id.lifecycle) {
            // The queue pairs are gone: nothing posted on them touches local memory any more.
            let lane = id.lifecycle;
            self.posted.retain(|posted| posted.lane != lane);
            self.transfer(side, TransferInput::LaneDown { lane, cause: broken() });
        }
        self.input(side, Input::OperationDone { id, outcome });
    }

    /// Moves the clock to the next timer; false if none is armed.
    fn pass_time(&mut self) -> bool {
        let next = |process: &Process| process.node.poll_timeout().map(|(at, _)| at);
        let Some(at) = self.processes.iter().filter_map(next).min() else { return false };
        self.say(&format!(
            "   {} ms pass",
            (at.0 - self.now.0).div_ceil(Duration::from_millis(1).nanos())
        ));
        self.now = at;
        for side in [ALICE, BOB] {
            self.processes[side].node.handle_timeout(at);
            self.drain_node(side);
        }
        true
    }

    fn write(&mut self) -> Result<(), Box<dyn Error>> {
        self.processes[ALICE].memory[..MESSAGE.len()].copy_from_slice(MESSAGE);
        let request = Request {
            direction: Direction::Write,
            local: LocalSpan { region: 0, offset: 0 },
            remote: RemoteSpan { key: 0, address: 0 },
            length: MESSAGE.len() as u64,
        };
        self.processes[ALICE].transfers.submit(self.now, &[request], None)?;
        self.drain_transfers(ALICE);
        Ok(())
    }

    /// Completes posted slices as a device would: the bytes first, then the completion.
    fn complete(&mut self, slices_max: usize) {
        for _ in 0..slices_max {
            let Some(Posted { lane, slice, work }) = self.posted.pop_front() else { break };
            let (from, to) = (work.local.offset as usize, work.remote.address as usize);
            let length = work.length as usize;
            let bytes = self.processes[ALICE].memory[from..from + length].to_vec();
            self.processes[BOB].memory[to..to + length].copy_from_slice(&bytes);
            self.say(&format!("   {length} bytes land over lane {}", lane.0));
            self.transfer(ALICE, TransferInput::Completion(Completion::done(slice)));
        }
    }

    fn break_lane(&mut self) {
        for side in [ALICE, BOB] {
            let lane = self.processes[side].lanes.last().copied();
            let lifecycle = lane.expect("a lane is up");
            self.input(side, Input::LaneFailed { lifecycle, error: broken() });
        }
    }
}

fn broken() -> TransportError {
    let detail = "the cable was pulled".to_owned();
    TransportError { side: Side::Peer, call: "completion".into(), code: 12, detail }
}
