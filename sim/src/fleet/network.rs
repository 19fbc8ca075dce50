//! The network: what happens at which time, and to which host.

use super::figures::{Phase, Report, Tally};
use super::site::{Power, QueuePair, Site};
use super::{Plan, TIME_MAX};
use handfast_core::node::{CallFailure, CallToken, Limits};
use handfast_core::transport::{Operation, Outcome, Side, TransportError};
use handfast_core::wire::{Body, Message};
use handfast_core::{Duration, Event, Input, Instant, Lifecycle, NicPath, Output, Pair};
use handfast_transport_sim::{Cause, Oracle, Violation};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::Hasher;
use xxhash_rust::xxh3::Xxh3;

/// The nodes whose waits are checked: the first so many. A check reads every lane of a node.
const WATCHED_MAX: u32 = 64;

/// Something that happens.
pub(super) enum Occurrence {
    Started(u32),
    Killed(u32),
    PowerLost(u32),
    /// Its peers want nothing of it any more.
    GivenUp(u32),
    /// The application of a site opens a peer again, in this run of the site.
    Reopened {
        site: u32,
        run: u32,
        peer: u32,
    },
    /// A call arrives.
    Call {
        from: u32,
        run: u32,
        to: u32,
        number: u64,
        message: Box<Message>,
    },
    /// The answer to a call arrives.
    Answer {
        to: u32,
        run: u32,
        number: u64,
        message: Box<Message>,
    },
    /// A call fails, unless it was answered.
    CallFailed {
        site: u32,
        run: u32,
        to: u32,
        number: u64,
        failure: CallFailure,
    },
    /// An operation is over.
    Operated {
        site: u32,
        run: u32,
        operation: Box<Operation>,
    },
    /// A lane breaks, if it is published.
    LaneFailed {
        site: u32,
        run: u32,
        lifecycle: Lifecycle,
    },
    Woken {
        site: u32,
        run: u32,
    },
    /// A node has handled the first input that waits for it.
    Turn {
        site: u32,
        run: u32,
    },
}

impl Occurrence {
    /// The kind and the site, for the hash of a run.
    fn mark(&self) -> (u8, u32) {
        match self {
            Self::Started(site) => (0, *site),
            Self::Killed(site) => (1, *site),
            Self::PowerLost(site) => (2, *site),
            Self::GivenUp(site) => (3, *site),
            Self::Reopened { site, .. } => (4, *site),
            Self::Call { to, .. } => (5, *to),
            Self::Answer { to, .. } => (6, *to),
            Self::CallFailed { site, .. } => (7, *site),
            Self::Operated { site, .. } => (8, *site),
            Self::LaneFailed { site, .. } => (9, *site),
            Self::Woken { site, .. } => (10, *site),
            Self::Turn { site, .. } => (11, *site),
        }
    }
}

/// An occurrence and its time. At equal times the one that was planned first comes first.
struct Planned {
    at: Instant,
    number: u64,
    occurrence: Occurrence,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

pub(super) struct Network {
    pub(super) plan: Plan,
    pub(super) now: Instant,
    pub(super) sites: Vec<Site>,
    pub(super) tally: Tally,
    pub(super) violation: Option<Violation>,
    queue: BinaryHeap<Reverse<Planned>>,
    /// Numbers of what is planned, of calls and of queue pairs.
    next: u64,
    generator: ChaCha8Rng,
    hash: Xxh3,
    events: u64,
}

impl Network {
    pub(super) fn new(plan: Plan) -> Self {
        let mut network = Self {
            plan,
            now: Instant(0),
            sites: Vec::new(),
            tally: Tally::default(),
            violation: None,
            queue: BinaryHeap::new(),
            next: 0,
            generator: ChaCha8Rng::seed_from_u64(plan.seed),
            hash: Xxh3::new(),
            events: 0,
        };
        let paths: Vec<NicPath> = (0..plan.nodes).filter_map(path).collect();
        let offsets = network.draw_offsets();
        for (site, own) in (0..).zip(&paths) {
            let mut peers: Vec<u32> =
                offsets.iter().map(|offset| (site + offset) % plan.nodes).collect();
            peers.sort_unstable();
            let peers =
                peers.into_iter().filter_map(|at| Some((at, paths.get(at as usize)?.clone())));
            network.sites.push(Site::new(site, plan.seed, own.clone(), peers.collect()));
        }
        for site in 0..plan.nodes {
            let at = network.now + network.draw(plan.costs.start);
            network.at(at, Occurrence::Started(site));
        }
        network
    }

    /// Distances around the ring of nodes at which each has its peers: each with its opposite.
    fn draw_offsets(&mut self) -> Vec<u32> {
        let mut offsets: Vec<u32> = (1..=(self.plan.nodes - 1) / 2).collect();
        let count = self.plan.peers as usize / 2;
        for at in 0..count {
            let other = at + self.below(offsets.len() - at);
            offsets.swap(at, other);
        }
        offsets.truncate(count);
        let opposite: Vec<u32> = offsets.iter().map(|offset| self.plan.nodes - offset).collect();
        offsets.extend(opposite);
        offsets
    }

    /// Different sites, in an order by chance.
    pub(super) fn draw_sites(&mut self, count: u32) -> Vec<u32> {
        let mut all: Vec<u32> = (0..self.plan.nodes).collect();
        for at in 0..(count as usize).min(all.len()) {
            let other = at + self.below(all.len() - at);
            all.swap(at, other);
        }
        all.truncate(count as usize);
        all
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.generator.next_u64() % limit.max(1) as u64) as usize
    }

    /// A span shorter than this one.
    fn draw(&mut self, span: Duration) -> Duration {
        Duration(self.generator.next_u64() % span.nanos().max(1))
    }

    fn latency(&mut self) -> Duration {
        let least = self.plan.costs.latency;
        Duration(least.nanos().saturating_add(self.draw(least).nanos()))
    }

    fn is_lost(&mut self) -> bool {
        let lost = self.plan.incident.lost_of_a_million();
        lost > 0 && self.generator.next_u64() % 1_000_000 < lost
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Plans an occurrence.
    pub(super) fn at(&mut self, at: Instant, occurrence: Occurrence) {
        let number = self.number();
        self.queue.push(Reverse(Planned { at, number, occurrence }));
    }

    /// Plays the start of the fleet and its incident.
    pub(super) fn run(mut self) -> Report {
        let mut phases = vec![self.rest()];
        let incident = self.plan.incident;
        if self.violation.is_none() && incident.plan(&mut self) {
            phases.push(self.rest());
        }
        let course = std::mem::take(&mut self.tally.course);
        let hash = self.hash.finish();
        Report { phases, course, events: self.events, hash, violation: self.violation }
    }

    /// Plays until nothing is left to happen.
    pub(super) fn rest(&mut self) -> Phase {
        let until = self.now + TIME_MAX;
        while self.violation.is_none() {
            let Some(Reverse(planned)) = self.queue.pop() else { break };
            if planned.at > until {
                let detail = format!(
                    "the fleet is not at rest after {} s",
                    TIME_MAX.nanos() / 1_000_000_000
                );
                self.violated(Oracle::Liveness, detail);
                break;
            }
            self.now = planned.at;
            self.events += 1;
            let (kind, site) = planned.occurrence.mark();
            self.hash.write(&self.now.0.to_le_bytes());
            self.hash.write(&[kind]);
            self.hash.write(&site.to_le_bytes());
            self.happen(planned.occurrence);
        }
        if self.violation.is_none() {
            self.check_rest();
        }
        self.tally.end_phase(self.now)
    }

    pub(super) fn violated(&mut self, oracle: Oracle, detail: String) {
        let seconds = self.now.0 / 1_000_000_000;
        let millis = self.now.0 / 1_000_000 % 1_000;
        let detail = format!("at {seconds}.{millis:03} s: {detail}");
        self.violation.get_or_insert(Violation { oracle, detail });
    }

    fn happen(&mut self, occurrence: Occurrence) {
        match occurrence {
            Occurrence::Started(site) => self.start(site),
            Occurrence::Killed(site) => self.stop(site, Power::Killed),
            Occurrence::PowerLost(site) => self.stop(site, Power::Off),
            Occurrence::GivenUp(site) => self.give_up(site),
            Occurrence::Reopened { site, run, peer } => {
                if self.sites[site as usize].runs(run) {
                    self.open(site, peer);
                }
            }
            Occurrence::Call { from, run, to, number, message } => {
                self.receive((from, run), to, number, message);
            }
            Occurrence::Answer { to, run, number, message } => {
                let site = &mut self.sites[to as usize];
                if site.runs(run) && site.calls.remove(&number).is_some() {
                    self.hand(to, Some(Input::CallAnswered(*message)));
                }
            }
            Occurrence::CallFailed { site, run, to, number, failure } => {
                self.fail_call((site, run), to, number, failure);
            }
            Occurrence::Operated { site, run, operation } => {
                if self.sites[site as usize].runs(run) {
                    let id = operation.id();
                    let outcome = self.perform(site, *operation);
                    self.hand(site, Some(Input::OperationDone { id, outcome }));
                }
            }
            Occurrence::LaneFailed { site, run, lifecycle } => {
                let at = &self.sites[site as usize];
                let published = at.peers.iter().any(|peer| peer.lane == Some(lifecycle));
                if at.runs(run) && published {
                    let error = TransportError::new(Side::Peer, "lane", "the peer is gone");
                    self.hand(site, Some(Input::LaneFailed { lifecycle, error }));
                }
            }
            Occurrence::Woken { site, run } => {
                let now = self.now;
                let at = &mut self.sites[site as usize];
                if at.runs(run) && at.wake == Some(now) {
                    at.wake = None;
                    self.hand(site, None);
                }
            }
            Occurrence::Turn { site, run } => {
                if self.sites[site as usize].runs(run) {
                    self.turn(site);
                }
            }
        }
    }

    fn start(&mut self, site: u32) {
        self.sites[site as usize].start(site, self.plan.seed);
        for at in 0..self.sites[site as usize].peers.len() {
            let peer = self.sites[site as usize].peers[at].site;
            self.open(site, peer);
        }
    }

    fn stop(&mut self, site: u32, power: Power) {
        let unmet = self.sites[site as usize].unmet();
        self.tally.change_unmet(self.now, -i64::try_from(unmet).unwrap_or(i64::MAX));
        let incarnation = self.sites[site as usize].node.incarnation();
        let lanes: Vec<(Lifecycle, QueuePair)> =
            self.sites[site as usize].queue_pairs.iter().map(|(own, qp)| (*own, *qp)).collect();
        for (lifecycle, queue_pair) in lanes {
            self.break_partner(Pair { incarnation, lifecycle }, queue_pair, power);
        }
        self.sites[site as usize].stop(power);
    }

    /// The other half of a lane fails when it learns that this one is gone.
    fn break_partner(&mut self, own: Pair, queue_pair: QueuePair, power: Power) {
        let Some(remote) = queue_pair.remote else { return };
        let to = queue_pair.peer;
        let partner = &self.sites[to as usize];
        let known = partner.queue_pairs.get(&remote.lifecycle).and_then(|other| other.remote);
        if partner.node.incarnation() != remote.incarnation || known != Some(own) {
            return;
        }
        let run = partner.run;
        let wait = match power {
            Power::Off => self.plan.costs.lane_timeout,
            Power::Running | Power::Killed => self.latency(),
        };
        let lifecycle = remote.lifecycle;
        self.at(self.now + wait, Occurrence::LaneFailed { site: to, run, lifecycle });
    }

    /// The application wants a lane to a peer.
    fn open(&mut self, site: u32, peer: u32) {
        let now = self.now;
        let Some(peer) = self.sites[site as usize].peer_mut(peer) else { return };
        if peer.lane.is_none() {
            if !peer.wanted {
                (peer.wanted, peer.since) = (true, now);
                self.tally.change_unmet(now, 1);
            }
            let path = peer.path.clone();
            self.hand(site, Some(Input::Open(path)));
        }
    }

    /// The peers of a dead node close their lanes to it.
    fn give_up(&mut self, dead: u32) {
        let peers: Vec<u32> =
            self.sites[dead as usize].peers.iter().map(|peer| peer.site).collect();
        for site in peers {
            let at = &mut self.sites[site as usize];
            if at.power != Power::Running {
                continue;
            }
            let Some(peer) = at.peer_mut(dead) else { continue };
            let unmet = peer.wanted && peer.lane.is_none();
            peer.wanted = false;
            let path = peer.path.clone();
            self.tally.change_unmet(self.now, -i64::from(unmet));
            self.hand(site, Some(Input::Close(path)));
        }
    }

    /// A call reaches a host.
    fn receive(&mut self, caller: (u32, u32), to: u32, number: u64, message: Box<Message>) {
        let (now, most) = (self.now, self.plan.costs.calls_served_max);
        let (from, run) = caller;
        let site = &mut self.sites[to as usize];
        let failure = match site.power {
            // The caller waits for its time limit.
            Power::Off => return,
            Power::Killed => CallFailure::Refused,
            Power::Running if site.served.len() >= most => {
                self.tally.phase.turned_away += 1;
                CallFailure::Broken
            }
            Power::Running => {
                let count = site.count_received(now);
                let phase = &mut self.tally.phase;
                phase.calls_received_most = phase.calls_received_most.max(count);
                let token = CallToken(number);
                site.served.insert(token, caller);
                self.hand(to, Some(Input::CallReceived { token, message: *message }));
                return;
            }
        };
        let at = now + self.latency();
        self.at(at, Occurrence::CallFailed { site: from, run, to, number, failure });
    }

    fn fail_call(&mut self, (site, run): (u32, u32), to: u32, number: u64, failure: CallFailure) {
        // The connection of the call is gone, answered or not.
        self.sites[to as usize].served.remove(&CallToken(number));
        let caller = &mut self.sites[site as usize];
        if !caller.runs(run) {
            return;
        }
        if let Some(lifecycle) = caller.calls.remove(&number) {
            self.hand(site, Some(Input::CallFailed { lifecycle, failure }));
        }
    }

    fn perform(&mut self, site: u32, operation: Operation) -> Outcome {
        match operation {
            Operation::Create { lifecycle, peer, .. } => {
                let number = self.number() as u32;
                if let Some(peer) = site_of(&peer) {
                    let created = QueuePair { peer, remote: None };
                    self.sites[site as usize].queue_pairs.insert(lifecycle, created);
                }
                Outcome::Created(Body { queue_pairs: vec![number], ..Body::default() })
            }
            Operation::Connect { local, remote, .. } => {
                self.check_connect(site, local, remote);
                let queue_pairs = &mut self.sites[site as usize].queue_pairs;
                if let Some(queue_pair) = queue_pairs.get_mut(&local.lifecycle) {
                    queue_pair.remote = Some(remote);
                }
                Outcome::Connected
            }
            Operation::Probe { .. } => Outcome::Probed,
            Operation::Drain { .. } => Outcome::Drained,
            Operation::Retire { lifecycle } => {
                let at = &mut self.sites[site as usize];
                let incarnation = at.node.incarnation();
                if let Some(retired) = at.queue_pairs.remove(&lifecycle) {
                    self.break_partner(Pair { incarnation, lifecycle }, retired, Power::Running);
                }
                Outcome::Retired
            }
        }
    }

    /// Queues an input for a node, or `None` for timers that are due.
    pub(super) fn hand(&mut self, site: u32, input: Option<Input>) {
        let at = &mut self.sites[site as usize];
        at.inbox.push_back(input);
        self.tally.phase.queue_most = self.tally.phase.queue_most.max(at.inbox.len());
        if !at.busy {
            at.busy = true;
            let run = at.run;
            self.at(self.now + self.plan.costs.service, Occurrence::Turn { site, run });
        }
    }

    /// A node handles the first input that waits for it.
    fn turn(&mut self, site: u32) {
        let now = self.now;
        let at = &mut self.sites[site as usize];
        let watched = site < WATCHED_MAX;
        let Some(input) = at.inbox.pop_front() else {
            at.busy = false;
            return;
        };
        if watched {
            let cause = input.as_ref().map_or(Cause::Timeout, Cause::of);
            at.waits.begin(now, input.as_ref(), cause, &at.node);
        }
        match input {
            Some(input) => at.node.handle_input(now, input),
            None => at.node.handle_timeout(now),
        }
        let run = at.run;
        while let Some(output) = self.sites[site as usize].node.poll_output() {
            if watched {
                let at = &mut self.sites[site as usize];
                at.waits.observe(&output, &at.node, &Limits::default());
            }
            self.emit(site, run, output);
        }
        if watched {
            self.check_waits(site);
        }
        let at = &mut self.sites[site as usize];
        if let Some((due, _)) = at.node.poll_timeout() {
            let due = due.max(now + Duration(1));
            if at.wake.is_none_or(|wake| due < wake) {
                at.wake = Some(due);
                self.at(due, Occurrence::Woken { site, run });
            }
        }
        let at = &mut self.sites[site as usize];
        at.busy = !at.inbox.is_empty();
        if at.busy {
            self.at(now + self.plan.costs.service, Occurrence::Turn { site, run });
        }
    }

    fn emit(&mut self, site: u32, run: u32, output: Output) {
        match output {
            Output::Call(message) => self.call(site, run, message),
            Output::Answer { token, message } => {
                let Some((to, run)) = self.sites[site as usize].served.remove(&token) else {
                    return;
                };
                if !self.is_lost() {
                    let at = self.now + self.latency();
                    self.at(
                        at,
                        Occurrence::Answer { to, run, number: token.0, message: Box::new(message) },
                    );
                }
            }
            Output::Operate(operation) => {
                if matches!(operation, Operation::Create { .. }) {
                    self.tally.phase.lifecycles += 1;
                }
                let at = self.now + self.plan.costs.operation;
                self.at(at, Occurrence::Operated { site, run, operation: Box::new(operation) });
            }
            Output::Publish { local, remote, peer } => self.publish(site, local, remote, &peer),
            Output::Revoke(lifecycle) => self.revoke(site, lifecycle),
            Output::Event(event) => self.observe(site, run, event),
            // No node of a fleet is a legacy node.
            Output::PlainAnswer { .. } => {}
        }
    }

    fn call(&mut self, site: u32, run: u32, message: Message) {
        let Some(to) = site_of(&message.to) else { return };
        let now = self.now;
        self.tally.called(now);
        let number = self.number();
        let store_answers = now >= self.plan.incident.store_down_until();
        let at = &mut self.sites[site as usize];
        at.calls.insert(number, message.sender.lifecycle);
        let resolved = at.peer_mut(to).is_none_or(|peer| {
            peer.resolved |= store_answers;
            peer.resolved
        });
        let failed = |failure| Occurrence::CallFailed { site, run, to, number, failure };
        if !resolved {
            let at = now + self.latency();
            return self.at(at, failed(CallFailure::Unreachable));
        }
        if !self.is_lost() {
            // A connection is opened first: one packet to the peer and one back.
            let at = now + self.latency() + self.latency() + self.latency();
            self.at(
                at,
                Occurrence::Call { from: site, run, to, number, message: Box::new(message) },
            );
        }
        self.at(now + self.plan.costs.call_timeout, failed(CallFailure::TimedOut));
    }

    fn publish(&mut self, site: u32, local: Pair, remote: Pair, path: &NicPath) {
        let Some(to) = site_of(path) else { return };
        self.check_publish(site, local, to, remote);
        let now = self.now;
        let at = &mut self.sites[site as usize];
        let run = at.run;
        let Some(peer) = at.peer_mut(to) else { return };
        let unmet = peer.wanted && peer.lane.is_none();
        peer.lane = Some(local.lifecycle);
        if unmet {
            self.tally.met(now, peer.since);
        }
        // A lane to a peer that is gone already fails with the first use.
        let partner = &self.sites[to as usize];
        let lives = partner.power == Power::Running
            && partner.node.incarnation() == remote.incarnation
            && partner.queue_pairs.contains_key(&remote.lifecycle);
        if !lives {
            let off = self.sites[to as usize].power == Power::Off;
            let wait = if off { self.plan.costs.lane_timeout } else { self.latency() };
            let lifecycle = local.lifecycle;
            self.at(now + wait, Occurrence::LaneFailed { site, run, lifecycle });
        }
    }

    fn revoke(&mut self, site: u32, lifecycle: Lifecycle) {
        let now = self.now;
        let at = &mut self.sites[site as usize];
        let Some(peer) = at.peers.iter_mut().find(|peer| peer.lane == Some(lifecycle)) else {
            return;
        };
        peer.lane = None;
        let to = peer.site;
        if peer.wanted {
            peer.since = now;
            self.tally.change_unmet(now, 1);
        }
        self.check_revoke(site, to);
    }

    fn observe(&mut self, site: u32, run: u32, event: Event) {
        match event {
            Event::OpenFailed { peer, .. } => {
                let Some(peer) = site_of(&peer) else { return };
                self.tally.phase.failures += 1;
                let wanted = self.sites[site as usize].peer(peer).is_some_and(|it| it.wanted);
                if wanted {
                    let pause = self.plan.costs.reopen;
                    let extra = self.draw(Duration(pause.nanos() / 2));
                    let at = self.now + pause + extra;
                    self.at(at, Occurrence::Reopened { site, run, peer });
                }
            }
            Event::Undeclared { lifecycle, from, trigger } => {
                let detail = format!("{lifecycle:?} of node {site}: {trigger:?} in {from:?}");
                self.violated(Oracle::FabricLaw, detail);
            }
            Event::NameConflict { .. } => {
                self.violated(Oracle::Agreement, format!("node {site} sees two of one name"));
            }
            Event::Ended { .. }
            | Event::PeerRestarted { .. }
            | Event::RetireFailed { .. }
            | Event::RetireOverdue { .. }
            | Event::RetireForced { .. }
            | Event::PeerForgotten { .. } => {}
        }
    }
}

/// The path of a site.
fn path(site: u32) -> Option<NicPath> {
    NicPath::parse(&format!("n{site}@nic")).ok()
}

/// The site of a path.
fn site_of(path: &NicPath) -> Option<u32> {
    path.node.as_str().strip_prefix('n')?.parse().ok()
}
