//! A link, its target, its connections, and the peer that executes the requests.

use super::oracle::LinkOracle;
use super::rule::{LinkRule, RequestEnd};
use crate::machine_world::Violation;
use handfast_core::mooncake::{DataLink, Exchange, LinkLimits, ProtocolVersion, Withdrawn};
use handfast_core::target::{Target, TargetConfig, TargetOutput};
use handfast_core::transfer::{
    BatchId, Completion, CompletionStatus, Direction, LocalSpan, RemoteSpan, Request, Sent,
    SliceId, TransferLimits, Work,
};
use handfast_core::transport::{Side, TransportError};
use handfast_core::{Duration, Instant, Lifecycle, NicPath};
use handfast_transport_sim::Encoder;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hash;

/// Most regions of one batch: its number times this, and the request.
const REGIONS: u32 = 8;
/// Deeper than the requests of every setup.
pub(super) const DEPTH: u32 = 4;

/// The shape of a world.
#[derive(Clone, Debug)]
pub struct LinkSetup {
    /// The requests of each batch.
    pub batches: Vec<Vec<Direction>>,
    /// Connections of a lane.
    pub connections: usize,
    /// Version of the data protocol.
    pub version: ProtocolVersion,
    /// Faults that may happen.
    pub faults: u32,
    /// The target takes the peer for a legacy node, as the engine does.
    pub legacy: bool,
}

impl LinkSetup {
    /// The shipping link of this setup.
    pub fn link(&self) -> DataLink {
        let requests_max = DEPTH as usize;
        DataLink::new(LinkLimits { connections_max: self.connections, requests_max })
    }
}

/// A batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Batch {
    pub(super) is_ended: bool,
    pub(super) is_cancelled: bool,
}

/// The bytes of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Progress {
    /// Its connection has them, or the peer, or nobody needs them.
    Settled,
    /// Their connection is gone, and the peer may still execute them.
    MayLand,
}

/// A request on a connection. Its index is its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    pub(super) batch: usize,
    pub(super) request: usize,
    pub(super) direction: Direction,
    /// Any byte was sent.
    pub(super) is_sent: bool,
    pub(super) is_executed: bool,
    /// The peer's answer has come.
    pub(super) is_answered: bool,
    pub(super) progress: Progress,
}

/// A message of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reply {
    Done,
    Refused,
    Foreign,
    /// Bytes of a read, or the proof of a write.
    Bytes,
}

/// A connection of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Connection {
    /// The exchange under way, and the sequence number of its request.
    pub(super) exchange: Option<(Exchange, usize)>,
    pub(super) taken: u64,
    /// The request was sent as a whole.
    pub(super) is_sent: bool,
    /// The peer has taken it up.
    pub(super) is_served: bool,
    /// Messages on their way, each with the sequence number of its request.
    pub(super) inbox: VecDeque<(Reply, usize)>,
    /// A request that was sent as a whole, and that the link has no more; the peer answers it first.
    pub(super) former: Option<usize>,
    /// The last request that was answered.
    pub(super) last: Option<usize>,
    pub(super) is_closed: bool,
}

/// An output of the target on its way to the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Handed {
    Post { lane: Lifecycle, slice: SliceId, direction: Direction },
    Withdraw { lane: Lifecycle, slice: SliceId },
}

/// A link and the truth around it.
#[derive(Clone)]
pub struct LinkWorld<R> {
    pub(super) setup: LinkSetup,
    pub(super) rule: R,
    pub(super) target: Target,
    pub(super) now: Instant,
    pub(super) batches: Vec<Batch>,
    pub(super) ids: Vec<BatchId>,
    /// Postings without a completion, with their lane.
    pub(super) posted: BTreeMap<SliceId, (Lifecycle, Work)>,
    pub(super) outbox: VecDeque<Handed>,
    pub(super) withdrawn: BTreeSet<SliceId>,
    pub(super) attempts: Vec<Attempt>,
    pub(super) connections: Vec<Option<Connection>>,
    /// Workers with a request that connect.
    pub(super) connecting: Vec<Option<SliceId>>,
    /// Workers whose request is withdrawn.
    pub(super) cancelled: Vec<bool>,
    pub(super) missing: Vec<bool>,
    pub(super) is_wanted: bool,
    /// A write was sent on the lane and not answered, is under way, or is on its way to the link.
    pub(super) is_in_doubt: bool,
    pub(super) is_answered: bool,
    pub(super) unanswered: u32,
    /// The event may cost the peer.
    pub(super) loses_peer: bool,
    pub(super) faults_left: u32,
    pub(super) violation: Option<Violation<LinkOracle>>,
}

impl<R: LinkRule> LinkWorld<R> {
    /// The initial world.
    pub fn new(setup: LinkSetup, rule: R) -> Self {
        let limits = TransferLimits {
            slice_bytes_max: 1,
            slices_per_lane_max: DEPTH,
            batches_max: 8,
            requests_per_batch_max: REGIONS,
            retries_max: 1,
            lanes_max: 8,
        };
        let path = peer();
        let lane_timeout = Duration::from_millis(1_000_000);
        let config = TargetConfig { path, limits, lane_timeout, legacy: setup.legacy };
        Self {
            target: Target::new(config, Instant(0)),
            rule,
            now: Instant(0),
            batches: Vec::new(),
            ids: Vec::new(),
            posted: BTreeMap::new(),
            outbox: VecDeque::new(),
            withdrawn: BTreeSet::new(),
            attempts: Vec::new(),
            connections: vec![None; setup.connections],
            connecting: vec![None; setup.connections],
            cancelled: vec![false; setup.connections],
            missing: vec![false; setup.connections],
            is_wanted: false,
            is_in_doubt: false,
            is_answered: false,
            unanswered: 0,
            loses_peer: false,
            faults_left: setup.faults,
            violation: None,
            setup,
        }
    }

    pub(super) fn target_path(&self) -> NicPath {
        peer()
    }

    pub(super) fn is_write(&self, batch: usize, request: usize) -> bool {
        self.setup.batches[batch][request] == Direction::Write
    }

    pub(super) fn submit(&mut self) {
        let number = self.batches.len();
        let request = |(index, direction): (usize, &Direction)| {
            let region = number as u32 * REGIONS + index as u32;
            let local = LocalSpan { region, offset: 0 };
            let remote = RemoteSpan { key: 0, address: u64::from(region) };
            Request { direction: *direction, local, remote, length: 1 }
        };
        let requests: Vec<_> = self.setup.batches[number].iter().enumerate().map(request).collect();
        self.batches.push(Batch::default());
        match self.target.submit(self.now, &requests, &[], None) {
            Ok(id) => self.ids.push(id),
            Err(error) => self.violate(LinkOracle::Bounded, error.to_string()),
        }
        self.drain();
    }

    /// Takes the outputs of the target as the engine does.
    pub(super) fn drain(&mut self) {
        while let Some(output) = self.target.poll_output(self.now) {
            match output {
                TargetOutput::Post { lane, slice, work } => {
                    self.posted.insert(slice, (lane, work));
                    self.outbox.push_back(Handed::Post { lane, slice, direction: work.direction });
                }
                TargetOutput::Withdraw { lane, slice } => {
                    self.outbox.push_back(Handed::Withdraw { lane, slice });
                }
                TargetOutput::Finished { batch, report } => {
                    let Some(number) = self.ids.iter().position(|id| *id == batch) else {
                        continue;
                    };
                    self.batches[number].is_ended = true;
                    self.check_report(number, &report);
                }
                TargetOutput::Open(_) => self.is_wanted = true,
                TargetOutput::Refused(error) => {
                    self.violate(LinkOracle::EndsOnce, error.to_string());
                }
                _ => {}
            }
        }
    }

    /// Hands postings and withdrawals to the link, perhaps after the end of their lane.
    pub(super) fn dispatch(&mut self) {
        for handed in std::mem::take(&mut self.outbox) {
            match handed {
                Handed::Post { lane, slice, direction } => {
                    let is_up = self.rule.link().lane() == Some(lane);
                    if !self.rule.post(lane, slice, direction) && is_up {
                        self.violate(LinkOracle::Bounded, format!("{slice:?} has no room"));
                    }
                }
                Handed::Withdraw { lane, slice } => {
                    self.withdrawn.insert(slice);
                    match self.rule.withdraw(lane, slice) {
                        Withdrawn::Unsent => {
                            self.complete(Some(Completion::released(slice, Sent::None)));
                        }
                        Withdrawn::Cancelling => self.cancel_worker(slice),
                        Withdrawn::Ended => {}
                    }
                }
            }
        }
    }

    fn cancel_worker(&mut self, slice: SliceId) {
        let of = self.worker_of(slice);
        if let Some(worker) = of {
            self.cancelled[worker] = true;
        }
    }

    /// The worker that has a posting.
    fn worker_of(&self, slice: SliceId) -> Option<usize> {
        let (_, work) = self.posted.get(&slice)?;
        let (batch, request) = of_region(work);
        (0..self.connections.len()).find(|worker| {
            let exchanging = self.connections[*worker].as_ref().and_then(|it| it.exchange.as_ref());
            let is_exchanging = exchanging.is_some_and(|(_, number)| {
                let attempt = self.attempts[*number];
                (attempt.batch, attempt.request) == (batch, request)
            });
            is_exchanging || self.connecting[*worker] == Some(slice)
        })
    }

    /// Reports a completion to the target.
    pub(super) fn complete(&mut self, completion: Option<Completion>) {
        let Some(completion) = completion else { return };
        if self.posted.remove(&completion.slice).is_none() {
            let detail = format!("{:?} ends, and is not posted", completion.slice);
            self.violate(LinkOracle::EndsOnce, detail);
        }
        self.is_answered |=
            matches!(completion.status, CompletionStatus::Done | CompletionStatus::Refused(_));
        self.target.handle_completion(self.now, completion);
        self.drain();
    }

    /// Begins a request on the connection of a worker.
    pub(super) fn begin(&mut self, worker: usize, slice: SliceId) {
        let Some((_, work)) = self.posted.get(&slice) else {
            return self
                .violate(LinkOracle::EndsOnce, format!("{slice:?} begins, and is not posted"));
        };
        let (batch, request) = of_region(work);
        let direction = work.direction;
        if self.withdrawn.contains(&slice) && !self.cancelled[worker] {
            let detail = format!("{slice:?} begins after its withdrawal");
            self.violate(LinkOracle::EndsOnce, detail);
        }
        let number = self.attempts.len();
        self.attempts.push(Attempt {
            batch,
            request,
            direction,
            is_sent: false,
            is_executed: false,
            is_answered: false,
            progress: Progress::Settled,
        });
        let exchange = Exchange::new(direction, self.setup.version, 1);
        let Some(connection) = &mut self.connections[worker] else { return };
        connection.exchange = Some((exchange, number));
        (connection.taken, connection.is_sent, connection.is_served) = (0, false, false);
    }

    /// Ends the request of a worker.
    pub(super) fn end_request(&mut self, worker: usize, end: RequestEnd) {
        self.cancelled[worker] = false;
        let Some(mut connection) = self.connections[worker].take() else { return };
        let Some((exchange, number)) = connection.exchange.take() else { return };
        let attempt = self.attempts[number];
        if matches!(end, RequestEnd::Withdrawn(_) | RequestEnd::Broken(_)) {
            self.is_in_doubt |= attempt.direction == Direction::Write && attempt.is_sent;
        }
        let is_kept = match end {
            RequestEnd::Withdrawn(sent) => self.rule.keeps_connection(&exchange, sent),
            _ => exchange.is_done(),
        };
        if is_kept {
            connection.former = Some(number).filter(|_| !connection.is_served);
            connection.last = Some(number).filter(|_| connection.is_served);
            self.connections[worker] = Some(connection);
        } else {
            self.lose(connection.is_served, number);
        }
        let completion = self.rule.handle_ended(worker, end);
        self.complete(completion);
    }

    /// The connection of a request is gone.
    fn lose(&mut self, is_served: bool, number: usize) {
        let attempt = &mut self.attempts[number];
        if attempt.is_sent && !is_served {
            attempt.progress = Progress::MayLand;
        }
    }

    /// Ends the lane as the task of a link does, after every worker was stopped.
    pub(super) fn end_lane(&mut self) {
        let Some(lane) = self.rule.link().lane() else { return };
        for worker in 0..self.connections.len() {
            if let Some(Connection { exchange: Some((_, number)), is_served, .. }) =
                self.connections[worker].take()
            {
                self.is_in_doubt |= self.attempts[number].direction == Direction::Write;
                self.lose(is_served, number);
            }
            (self.connecting[worker], self.cancelled[worker]) = (None, false);
            self.missing[worker] = false;
        }
        // A post on its way counts as perhaps sent.
        let is_posted = |handed: &Handed| match handed {
            Handed::Post { lane: of, direction, .. } => {
                *of == lane && *direction == Direction::Write
            }
            Handed::Withdraw { .. } => false,
        };
        self.is_in_doubt |= self.outbox.iter().any(is_posted);
        let end = self.rule.handle_lane_down(true);
        self.unanswered =
            if std::mem::take(&mut self.is_answered) { 0 } else { self.unanswered + 1 };
        let gives_up = self.unanswered >= handfast_core::mooncake::LANES_UNANSWERED_MAX;
        if end.gives_up != gives_up {
            let detail = format!("{} lanes without an answer: {end:?}", self.unanswered);
            self.violate(LinkOracle::Justified, detail);
        }
        if gives_up {
            self.unanswered = 0;
        }
        self.loses_peer = std::mem::take(&mut self.is_in_doubt) || gives_up;
        let cause = TransportError::new(Side::Peer, "data connection", "broken");
        self.target.handle_lane_revoked(self.now, lane);
        self.drain();
        for slice in end.unsent {
            let sent = Sent::None;
            self.complete(Some(Completion::released(slice, sent)));
        }
        self.target.handle_lane_ending(lane, cause.clone(), true);
        self.posted.retain(|_, (of, _)| *of != lane);
        self.target.handle_lane_down(self.now, lane);
        self.drain();
        if gives_up {
            self.target.handle_peer_lost(self.now, cause);
            self.drain();
        }
    }

    /// Digest of all state that can affect future events.
    pub(super) fn digest(&self) -> u128 {
        let mut encoder = Encoder::default();
        let hasher = &mut encoder;
        (&self.rule, self.now, &self.batches, &self.attempts).hash(hasher);
        (&self.connections, &self.connecting, &self.cancelled, &self.missing).hash(hasher);
        let posted: BTreeSet<_> = self.posted.iter().collect();
        (posted, &self.outbox, &self.withdrawn).hash(hasher);
        (self.is_wanted, self.is_in_doubt, self.is_answered, self.unanswered).hash(hasher);
        self.faults_left.hash(hasher);
        self.target.fingerprint(hasher);
        encoder.digest()
    }
}

fn of_region(work: &Work) -> (usize, usize) {
    ((work.local.region / REGIONS) as usize, (work.local.region % REGIONS) as usize)
}

fn peer() -> NicPath {
    NicPath::parse("b:1@tcp").expect("a path")
}
