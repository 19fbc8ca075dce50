//! Oracles: the invariants of every world.

use crate::fabric::QueuePair;
use crate::letter::Letter;
use crate::spare::Spare;
use crate::world::{Demand, HeldCall, Step, World};
use handfast_core::node::{Failure, StateKind};
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::RefusalReason;
use handfast_core::{Event, Input, Lifecycle, Pair};

/// The oracles, numbered as in `docs/testing.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Oracle {
    /// O1: both established means each is connected to the other's live lifecycle.
    Agreement,
    /// O1: a published lane's peer has connected towards it.
    PublishedUnconnected,
    /// O2: no queue pair is connected twice, or before it exists, or after it is gone.
    FabricLaw,
    /// O4: refused or ignored input changes nothing.
    RefusalChanged,
    /// O5: when faults stop, every demand is met or reported within a bound.
    Liveness,
    /// O5: faults that a lane must survive end no lifecycle; enabled by [`Setup::lasting`].
    ///
    /// [`Setup::lasting`]: crate::Setup::lasting
    Lasting,
    /// H6: no Connect while an earlier queue pair to that peer remains.
    StaleLane,
    /// H6: no published queue pair targets a number that another lifecycle has connected since.
    GhostHit,
    /// H12: an established lane proves that the peer's earlier lanes to this node are gone.
    Fence,
    /// O3: a transfer ends exactly once with a true outcome, and returns its buffer only then.
    Transfer,
    /// O7: no protected byte changes.
    GhostByte,
    /// H3: no message permits a connection to queue pairs that are ending.
    DeadOffer,
    /// H7: in a quiet world no call waits for its answer.
    Unanswered,
    /// H9: a local failure ends no lifecycle of a peer.
    PeerBlamed,
    /// H9: a protection error is reported, and only a batch with other accesses asks again.
    Reconnected,
    /// H10: a permanent refusal ends the lifecycle that it concerns.
    RefusalSwallowed,
    /// H11: no work is cut off by the end of a lane if both sides could have waited for it.
    CutOff,
    /// O8: an unresponsive peer delays no other, and no peers wait in a cycle.
    Isolation,
    /// H13: a lane is usable only if the peer's queue pair is connected to this one. An earlier one
    /// of the same number would take posted packets for duplicates.
    Swallowed,
    /// A failed rail pauses while another carries bytes, is retried afterwards while there are
    /// transfers, and carries bytes only after a probe.
    Breaker,
    /// H8: with nothing lost, nothing waits for a timer to be sent again.
    Promptness,
    /// H9: a demand fails for a lasting cause, or after as many failures in a row as its limit says.
    Unjustified,
    /// H6, H11: no lane is in use to a run that was replaced, or after a close.
    Belonging,
    /// H8: every wait has its timer with the declared duration, and retries are bounded.
    Time,
    /// H7: no lane holds more calls, and no node has more lifecycles or peers, than its limits say; no quiesce is
    /// refused for a limit that is not reached.
    Bounds,
    /// The machine made an undeclared transition.
    Undeclared,
    /// Equal fingerprints had unequal outputs.
    Fingerprint,
}

/// A violated oracle, with the observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The violated oracle.
    pub oracle: Oracle,
    /// The observation.
    pub detail: String,
}

impl Violation {
    pub(crate) fn new(oracle: Oracle, detail: String) -> Self {
        Self { oracle, detail }
    }
}

/// An established lane: local NIC, lane, remote NIC, and the pair there.
type Established = (usize, Lifecycle, usize, Pair);

thread_local! {
    static ALL: Spare<Established> = const { Spare::new() };
    static BY_RAIL: Spare<usize> = const { Spare::new() };
}

impl World {
    /// Checks the invariants of a single world, independent of its history: agreement, and that no
    /// published queue pair can hit a later one of the same number.
    ///
    /// Call it after every event: what only a change of a node can break is checked after such a change.
    pub fn check(&self, violations: &mut Vec<Violation>) {
        let changed = self.touched != 0 || self.setup.old.is_some();
        if changed {
            self.check_agreement(violations);
            self.check_ghosts(violations);
            self.check_tables(violations);
        }
        self.check_held(violations);
        self.check_isolation(violations);
        self.check_promptness(violations);
        if changed {
            self.check_belonging(violations);
        }
    }

    /// Reports to a node that a refused access has ended its lane, and checks what it does (rule H9): a demand
    /// is reported as failed, and only for a batch without such an access a lane is asked for again.
    pub(crate) fn tell_refused(
        &mut self,
        host: usize,
        lifecycle: Lifecycle,
        error: TransportError,
        step: &mut Step,
    ) {
        let ends = self.ends_of_lane(host, lifecycle);
        let is_wanted = |world: &Self, (site, peer)| world.demand(site, peer) == Demand::Wanted;
        let was_wanted = ends.is_some_and(|ends| is_wanted(self, ends));
        let events = step.events.len();
        self.tell(host, Input::LaneFailed { lifecycle, error }, step);
        let Some((site, peer)) = ends.filter(|ends| is_wanted(self, *ends)) else { return };
        let is_report = |(at, event): &(usize, Event)| match event {
            Event::OpenFailed { peer: path, .. } => {
                *at == host && self.rail_by(host, path) == Some((site, peer))
            }
            _ => false,
        };
        let is_reported = !was_wanted || step.events[events..].iter().any(is_report);
        if !is_reported || !self.has_allowed_batch(host, self.host(peer)) {
            let detail = format!("site {site} goes on after an access that is not allowed");
            step.violations.push(Violation::new(Oracle::Reconnected, detail));
        }
    }

    /// Checks that no peer is blamed for a failure of the local port (rule H9).
    pub(crate) fn check_blame(&self, site: usize, blamed: Side, step: &mut Step) {
        if blamed == Side::Peer && !self.port_is_up(site) {
            let own = self.describe_site(site);
            let detail = format!("the port of {own} is down, and a peer is blamed for it");
            step.violations.push(Violation::new(Oracle::PeerBlamed, detail));
        }
    }

    /// Checks that a lane that ends deliberately, and not by a failure or by force, has no
    /// outstanding work in either direction (H11).
    pub(crate) fn check_cut_off(
        &self,
        site: usize,
        own: Lifecycle,
        failure: &Failure,
        step: &mut Step,
    ) {
        if !matches!(failure, Failure::Closed | Failure::Evicted | Failure::Quiesced) {
            return;
        }
        let qp = self.fabric.of(site, own).filter(|qp| self.fabric.intact(qp));
        let Some((qp, target)) = qp.and_then(|qp| Some((qp, qp.target?))) else { return };
        let ends = [Some(qp), self.fabric.at(target.site, target.number)];
        // A lane retired by its own node is not charged here.
        let given_up = |qp: &QueuePair| {
            let state = self.sites[qp.host].node.state_of(qp.lifecycle);
            (qp.host, qp.lifecycle) != (site, own)
                && state.is_none_or(|state| state == StateKind::Retiring)
        };
        // A legacy Mooncake node cannot be asked for consent.
        let asked = |qp: &QueuePair| !self.is_old(qp.site);
        let busy = |qp: &&QueuePair| qp.published && !qp.drained && !given_up(qp) && asked(qp);
        if let Some(busy) = ends.into_iter().flatten().find(busy) {
            let detail = format!(
                "{} ends while work posted on {} may be under way",
                self.describe_pair(self.pair(site, own)),
                self.describe_pair(self.pair(busy.site, busy.lifecycle))
            );
            step.violations.push(Violation::new(Oracle::CutOff, detail));
        }
    }

    /// Checks that a call waits only for operations of its receiver, and not for another node's
    /// answer.
    fn check_held(&self, violations: &mut Vec<Violation>) {
        if self.held.is_empty() {
            return;
        }
        let busy = |site: usize| {
            self.sites[site].node.lifecycles().any(|(_, state, ..)| {
                use StateKind::{Connecting, Creating, Draining, Fencing, Probing, Retiring};
                matches!(state, Creating | Fencing | Connecting | Probing | Draining | Retiring)
            })
        };
        self.check_held_bound(violations);
        let is_quiet = self.quiet();
        for held in self.held.iter().filter(|held| is_quiet && !busy(held.site)) {
            let detail = format!(
                "{} has not answered {}, and nothing is under way",
                self.describe_site(held.site),
                self.describe_pair(held.sender)
            );
            violations.push(Violation::new(Oracle::Unanswered, detail));
        }
    }

    /// Checks that a node holds at most `answers_held_max` calls of a peer for each lane to it (rule H7). The node
    /// counts calls of a legacy node by another list, with the same limit.
    fn check_held_bound(&self, violations: &mut Vec<Violation>) {
        let most = self.setup.limits.answers_held_max;
        if self.held.len() <= most {
            return;
        }
        for held in &self.held {
            let of_peer = |other: &&HeldCall| (other.site, other.from) == (held.site, held.from);
            let count = self.held.iter().filter(of_peer).count();
            let Some(from) = self.sites.get(held.from).filter(|_| count > most) else { continue };
            let path = &from.path;
            let node = &self.sites[held.site].node;
            let lanes = node.lifecycles_of(&path.node).count().max(1);
            if count > most * lanes {
                let own = self.describe_site(held.site);
                let detail =
                    format!("{own} holds {count} calls of {path} and has {lanes} lanes to it");
                violations.push(Violation::new(Oracle::Bounds, detail));
                return;
            }
        }
    }

    /// Checks that a quiesce is refused as busy only if `answers_held_max` calls of the peer wait already: its
    /// answer comes with the end of the work, and one that is refused waits for a timer.
    pub(crate) fn check_quiesce_held(
        &self,
        site: usize,
        sender: Pair,
        waiting: usize,
        answered: usize,
        step: &mut Step,
    ) {
        let most = self.setup.limits.answers_held_max;
        let is_busy = |answer: &Letter| {
            let reason = answer.refusal.as_ref().map(|refusal| refusal.reason);
            answer.echo == Some(sender) && reason == Some(RefusalReason::Busy)
        };
        let mut answers = self.answers.iter().skip(answered);
        if waiting < most && answers.any(|(_, answer)| is_busy(answer)) {
            let (own, sender) = (self.describe_site(site), self.describe_pair(sender));
            let detail =
                format!("{own} is too busy to end {sender}, and {waiting} of {most} calls wait");
            step.violations.push(Violation::new(Oracle::Bounds, detail));
        }
    }

    /// Checks that a node has at most `lifecycles_max` lifecycles, and lanes to at most `peers_max` peers.
    fn check_tables(&self, violations: &mut Vec<Violation>) {
        let limits = self.setup.limits;
        for site in (0..self.sites.len()).filter(|site| !self.is_old(*site)) {
            let node = &self.sites[site].node;
            let lanes = node.lifecycles().count();
            // Few worlds have more lanes than peers may be known.
            let peers = if lanes > limits.peers_max {
                let mut peers: Vec<_> = node.lifecycles().map(|(_, _, peer, _)| peer).collect();
                peers.sort_unstable();
                peers.dedup();
                peers.len()
            } else {
                lanes
            };
            if lanes > limits.lifecycles_max || peers > limits.peers_max {
                let own = self.describe_site(site);
                let detail = format!(
                    "{own} has {lanes} lifecycles to {peers} peers, the limits are {} and {}",
                    limits.lifecycles_max, limits.peers_max
                );
                violations.push(Violation::new(Oracle::Bounds, detail));
            }
        }
    }

    /// Checks that with nothing in flight every wait ends by a timer, and that without a fault only
    /// peers of an unresponsive site wait.
    fn check_isolation(&self, violations: &mut Vec<Violation>) {
        if !self.setup.prompt || self.faults_spent > 0 || !self.quiet() {
            return;
        }
        for site in 0..self.sites.len() {
            for peer in (0..self.sites.len()).filter(|peer| self.setup.mute != Some(*peer)) {
                if self.demand(site, peer) == Demand::Wanted && !self.connected(site, peer) {
                    let (site, peer) = (self.describe_site(site), self.describe_site(peer));
                    let detail = format!("{site} has to wait for {peer}, which answers");
                    violations.push(Violation::new(Oracle::Isolation, detail));
                }
            }
        }
    }

    /// Whether the last action has changed the node of a site. With a legacy node every site counts as changed.
    pub(crate) fn is_judged(&self, site: usize) -> bool {
        self.setup.old.is_some() || self.has_touched(self.host(site))
    }

    /// Adds the established lanes between nodes of which the last action has changed one: local NIC, lane,
    /// remote NIC, and the pair there.
    fn push_established(&self, all: &mut Vec<Established>) {
        for site in 0..self.sites.len() {
            let is_judged = self.is_judged(site);
            for (own, state, to, remote) in self.sites[site].node.lifecycles() {
                let Some(remote) = remote.filter(|_| state == StateKind::Established) else {
                    continue;
                };
                let mut peers = (0..self.sites.len()).filter(|peer| self.sites[*peer].bears(to));
                let Some(peer) = peers.next() else { continue };
                if is_judged || self.is_judged(peer) {
                    all.push((self.nic_of(site, to), own, peer, remote));
                }
            }
        }
    }

    fn check_agreement(&self, violations: &mut Vec<Violation>) {
        let (mut all, mut by_rail) = (ALL.with(Spare::take), BY_RAIL.with(Spare::take));
        self.push_established(&mut all);
        self.compare_ends(&all, &mut by_rail, violations);
        ALL.with(|spare| spare.keep(all));
        BY_RAIL.with(|spare| spare.keep(by_rail));
    }

    /// Checks both ends of every rail.
    fn compare_ends(
        &self,
        all: &[Established],
        by_rail: &mut Vec<usize>,
        violations: &mut Vec<Violation>,
    ) {
        let rail = |at: usize| (all[at].0, all[at].2);
        by_rail.extend(0..all.len());
        by_rail.sort_by_key(|at| rail(*at));
        for &(site, own, peer, remote) in all.iter().filter(|(site, _, peer, _)| peer >= site) {
            let first = by_rail.partition_point(|at| rail(*at) < (peer, site));
            let back = by_rail[first..].iter().take_while(|at| rail(**at) == (peer, site));
            for &(_, theirs, _, back) in back.map(|at| &all[*at]) {
                let agreed = remote == self.pair(peer, theirs) && back == self.pair(site, own);
                let connected = |owner: usize, of: Lifecycle, to: usize, number: Lifecycle| {
                    let target = self.fabric.of(owner, of).and_then(|qp| qp.target);
                    let there = self.fabric.of(to, number).map(|qp| (qp.site, qp.number));
                    target.map(|target| (target.site, target.number)) == there && there.is_some()
                };
                let connected =
                    connected(site, own, peer, theirs) && connected(peer, theirs, site, own);
                if (!agreed || !connected) && !self.twinned(site) && !self.twinned(peer) {
                    let name = |pair: Pair| self.describe_pair(pair);
                    let detail = format!(
                        "{} is established towards {}, and {} towards {}",
                        name(self.pair(site, own)),
                        name(remote),
                        name(self.pair(peer, theirs)),
                        name(back)
                    );
                    violations.push(Violation::new(Oracle::Agreement, detail));
                }
            }
        }
    }

    fn check_ghosts(&self, violations: &mut Vec<Violation>) {
        // A legacy Mooncake node keeps no such rule.
        let ours = |qp: &&QueuePair| qp.published && !qp.broken && !self.is_old(qp.site);
        for stale in self.fabric.table.iter().filter(ours) {
            let Some(target) = stale.target else { continue };
            let is_judged = self.is_judged(stale.site) || self.is_judged(target.site);
            if !is_judged || self.is_old(target.site) {
                // A legacy node pairs with any lister of a number, and no rule prevents that.
                continue;
            }
            let Some(hit) = self.fabric.at(target.site, target.number) else { continue };
            let reborn = self.pair(hit.site, hit.lifecycle) != target.believed;
            // A queue pair accepts packets only from the address to which it is connected.
            let taken = hit.target.is_some_and(|to| to.site == stale.site);
            if reborn && taken && !hit.broken {
                let detail = format!(
                    "queue pair {} of {} was published towards {}; its number, {}, now belongs to \
                     {}, which is connected",
                    stale.number,
                    self.describe_pair(self.pair(stale.site, stale.lifecycle)),
                    self.describe_pair(target.believed),
                    target.number,
                    self.describe_pair(self.pair(hit.site, hit.lifecycle))
                );
                violations.push(Violation::new(Oracle::GhostHit, detail));
            }
        }
    }
}
