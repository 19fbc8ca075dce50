//! Exploration of the shipping [`Unseen`]: writes over two queue pairs into the memory of two devices, which
//! see a write some time after the NIC has acknowledged it.
//!
//! A read of a region pushes the acknowledged writes of its own queue pair to that region before it, and
//! no others.

use crate::machine_world::{MachineWorld, Violation};
use handfast_core::visibility::{ShowingRead, Unseen};
use handfast_transport_sim::Encoder;
use std::collections::VecDeque;
use std::hash::Hash;

const PAIRS: usize = 2;

/// A rule that says when writes end.
pub trait ShowingRule: Clone + Hash {
    /// A write has completed. Returns the writes that end by it.
    fn on_written(&mut self, pair: usize, region: u64, write: usize) -> Vec<usize>;

    /// The next read to post.
    fn poll_read(&mut self) -> Option<ShowingRead<usize>>;
}

impl ShowingRule for Unseen<usize> {
    fn on_written(&mut self, pair: usize, region: u64, write: usize) -> Vec<usize> {
        Self::on_written(self, pair, region, write);
        Vec::new()
    }

    fn poll_read(&mut self) -> Option<ShowingRead<usize>> {
        Self::poll_read(self)
    }
}

/// The oracles of visibility, numbered as in `docs/testing.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisibilityOracle {
    /// O3: a write that has succeeded is seen by the owner of the memory.
    Seen,
    /// O3: a write ends once.
    EndsOnce,
    /// O5: every write ends.
    Liveness,
}

/// Something that may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisibilityEvent {
    /// The next write is posted.
    Post,
    /// The peer performs the next request of a queue pair.
    Perform(usize),
    /// A write reaches its device by itself.
    Land(usize),
    /// The poller handles all completions.
    Wake,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Write {
    pair: usize,
    region: u64,
    is_acknowledged: bool,
    is_seen: bool,
    is_ended: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Request {
    Write(usize),
    Read(ShowingRead<usize>),
}

/// Two nodes, of which one writes.
#[derive(Clone, Debug)]
pub struct VisibilityWorld<R> {
    rule: R,
    writes: Vec<Write>,
    posted: usize,
    queues: [VecDeque<Request>; PAIRS],
    /// Requests that have completed, in order.
    completed: VecDeque<Request>,
    violation: Option<Violation<VisibilityOracle>>,
}

impl<R: ShowingRule> VisibilityWorld<R> {
    /// Writes to be posted in this order, by their queue pair and their region.
    pub fn new(rule: R, writes: &[(usize, u64)]) -> Self {
        let write = |&(pair, region): &(usize, u64)| {
            let (is_acknowledged, is_seen, is_ended) = (false, false, false);
            Write { pair, region, is_acknowledged, is_seen, is_ended }
        };
        let (writes, queues) = (writes.iter().map(write).collect(), Default::default());
        Self { rule, writes, posted: 0, queues, completed: VecDeque::new(), violation: None }
    }

    fn perform(&mut self, pair: usize) {
        let Some(request) = self.queues[pair].pop_front() else { return };
        match &request {
            Request::Write(number) => self.writes[*number].is_acknowledged = true,
            Request::Read(read) => {
                let of_read = |it: &&mut Write| {
                    (it.pair, it.region) == (read.pair, read.region) && it.is_acknowledged
                };
                self.writes.iter_mut().filter(of_read).for_each(|it| it.is_seen = true);
            }
        }
        self.completed.push_back(request);
    }

    fn wake(&mut self) {
        for request in std::mem::take(&mut self.completed) {
            let ended = match request {
                Request::Write(number) => {
                    let Write { pair, region, .. } = self.writes[number];
                    self.rule.on_written(pair, region, number)
                }
                Request::Read(read) => read.writes,
            };
            ended.into_iter().for_each(|number| self.end(number));
        }
        while let Some(read) = self.rule.poll_read() {
            self.queues[read.pair].push_back(Request::Read(read));
        }
    }

    fn end(&mut self, number: usize) {
        let write = &mut self.writes[number];
        let oracle = match (write.is_seen, write.is_ended) {
            (_, true) => Some(VisibilityOracle::EndsOnce),
            (false, _) => Some(VisibilityOracle::Seen),
            _ => None,
        };
        write.is_ended = true;
        if let Some(oracle) = oracle {
            let detail = format!("write {number} ends: {write:?}");
            self.violation.get_or_insert(Violation { oracle, detail });
        }
    }
}

impl<R: ShowingRule> MachineWorld for VisibilityWorld<R> {
    type Event = VisibilityEvent;
    type Oracle = VisibilityOracle;

    const NO_END: VisibilityOracle = VisibilityOracle::Liveness;

    fn events(&self) -> Vec<(VisibilityEvent, u32)> {
        let mut events = Vec::new();
        if self.posted < self.writes.len() {
            events.push(VisibilityEvent::Post);
        }
        let busy = (0..PAIRS).filter(|pair| !self.queues[*pair].is_empty());
        events.extend(busy.map(VisibilityEvent::Perform));
        let is_on_its_way = |number: &usize| {
            let write = &self.writes[*number];
            write.is_acknowledged && !write.is_seen
        };
        events.extend((0..self.writes.len()).filter(is_on_its_way).map(VisibilityEvent::Land));
        if !self.completed.is_empty() {
            events.push(VisibilityEvent::Wake);
        }
        events.into_iter().map(|event| (event, 0)).collect()
    }

    fn happen(&mut self, (event, _): (VisibilityEvent, u32)) {
        match event {
            VisibilityEvent::Post => {
                let pair = self.writes[self.posted].pair;
                self.queues[pair].push_back(Request::Write(self.posted));
                self.posted += 1;
            }
            VisibilityEvent::Perform(pair) => self.perform(pair),
            VisibilityEvent::Land(number) => self.writes[number].is_seen = true,
            VisibilityEvent::Wake => self.wake(),
        }
    }

    fn violation(&self) -> Option<&Violation<VisibilityOracle>> {
        self.violation.as_ref()
    }

    fn unsettled(&self) -> Option<Violation<VisibilityOracle>> {
        let number = self.writes.iter().position(|write| !write.is_ended)?;
        let detail = format!("write {number} never ends: {:?}", self.writes[number]);
        Some(Violation { oracle: VisibilityOracle::Liveness, detail })
    }

    fn fingerprint(&self) -> u128 {
        let mut encoder = Encoder::default();
        let state = (&self.rule, &self.writes, self.posted, &self.queues, &self.completed);
        state.hash(&mut encoder);
        encoder.digest()
    }

    fn describe(&self, event: VisibilityEvent) -> String {
        match event {
            VisibilityEvent::Post => {
                let Write { pair, region, .. } = self.writes[self.posted];
                format!("write {} to region {region} is posted on pair {pair}", self.posted)
            }
            VisibilityEvent::Perform(pair) => match self.queues[pair].front() {
                Some(Request::Write(number)) => format!("write {number} is acknowledged"),
                Some(Request::Read(read)) => {
                    format!("region {} is read on pair {pair}", read.region)
                }
                None => "nothing happens".to_owned(),
            },
            VisibilityEvent::Land(number) => format!("write {number} reaches its device"),
            VisibilityEvent::Wake => "the poller handles the completions".to_owned(),
        }
    }
}
