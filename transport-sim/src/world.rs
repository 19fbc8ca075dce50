//! A world: nodes, the messages in flight between them, and the fabric.

use crate::copy::copied;
use crate::data::Data;
use crate::effects::Told;
use crate::encoded::Encoded;
use crate::fabric::{Fabric, QueuePair, Target};
use crate::history::History;
use crate::journal::JournalEntry;
use crate::letter::Letter;
use crate::managed::Managed;
use crate::old::{OldNode, OldState, plain_token};
use crate::oracle::{Oracle, Violation};
use crate::setup::{Command, CommandKind, Faults, Setup};
use crate::shared::Channels;
use crate::waits::Waits;
use handfast_core::node::{CallFailure, CallToken, StateKind, TimerKind};
use handfast_core::transport::{Operation, OperationKind, Side, TransportError};
use handfast_core::wire::{Message, Op, RefusalReason};
use handfast_core::{
    Event, Incarnation, Input, Instant, Lifecycle, NicPath, Node, NodeConfig, Pair,
};
use std::sync::Arc;

/// Maximum counted restarts of a process; the rest of an incarnation names the process.
pub(crate) const RUNS_MAX: u128 = 256;

/// Maximum numbered lifecycles of one NIC of a process; the rest of a number names the NIC.
pub(crate) const NUMBERS_PER_NIC: u64 = 1 << 32;

/// Demand of a site's application for a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Demand {
    /// No demand.
    #[default]
    None,
    /// A lane is wanted.
    Wanted,
    /// The application wanted a lane and learned that none is possible.
    Reported,
}

/// One node and the demands of its application.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) path: NicPath,
    pub(crate) process: usize,
    pub(crate) node: Node,
    /// The legacy Mooncake node at this site; `node` receives no input then.
    pub(crate) old: Option<OldNode>,
    pub(crate) incarnation: Incarnation,
    pub(crate) demands: Vec<Demand>,
    pub(crate) encoded: Encoded,
    pub(crate) waits: Waits,
}

/// A pending operation of a transport.
#[derive(Clone)]
pub(crate) struct Pending {
    pub(crate) site: usize,
    pub(crate) operation: Operation,
}

/// A call that a node has accepted and not answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldCall {
    pub(crate) site: usize,
    pub(crate) token: CallToken,
    pub(crate) sender: Pair,
    pub(crate) from: usize,
}

/// Effects of one action.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Oracles that this step broke.
    pub violations: Vec<Violation>,
    /// Events that nodes reported to their applications.
    pub events: Vec<(usize, Event)>,
    /// Refusals sent.
    pub refusals: Vec<RefusalReason>,
    /// One bit per row of `TRANSITIONS` that a node has taken in this step, or before it.
    pub transitions: u128,
    /// Sites whose nodes refused a message on its arrival, or ignored one.
    pub(crate) turned_away: Vec<usize>,
    /// The timer that fired.
    pub timer: Option<TimerKind>,
    /// Description of every output; only with [`Step::traced`].
    pub notes: Option<Vec<String>>,
    /// Operations that began or ended; only with [`Step::journaled`].
    pub journal: Option<Vec<JournalEntry>>,
}

impl Step {
    /// Creates a step that also records a description of every output.
    pub fn traced() -> Self {
        Self { notes: Some(Vec::new()), ..Self::default() }
    }

    /// Forgets what it holds, for another action.
    pub fn clear(&mut self) {
        let Self { violations, events, refusals, transitions, turned_away, timer, notes, journal } =
            self;
        violations.clear();
        events.clear();
        refusals.clear();
        turned_away.clear();
        (*transitions, *timer) = (0, None);
        notes.iter_mut().for_each(Vec::clear);
        journal.iter_mut().for_each(Vec::clear);
    }

    pub(crate) fn note(&mut self, words: impl FnOnce() -> String) {
        if let Some(notes) = &mut self.notes {
            notes.push(words());
        }
    }
}

/// Nodes, the messages in flight between them, and the fabric. `clone_from` uses memory again.
pub struct World {
    pub(crate) setup: Arc<Setup>,
    pub(crate) sites: Vec<Arc<Site>>,
    pub(crate) calls: Vec<Arc<Letter>>,
    pub(crate) answers: Vec<(Incarnation, Arc<Letter>)>,
    pub(crate) operations: Vec<Arc<Pending>>,
    pub(crate) held: Vec<HeldCall>,
    pub(crate) fabric: Fabric,
    pub(crate) commands: Vec<Command>,
    /// A command may be in the list twice.
    pub(crate) repeats_commands: bool,
    /// Lifecycles whose retire never ends: they exist until their node restarts.
    pub(crate) stuck: Vec<(usize, Lifecycle)>,
    /// Sites whose process is stopped.
    pub(crate) mute: Vec<usize>,
    pub(crate) data: Option<Arc<Data>>,
    pub(crate) channels: Channels,
    pub(crate) managed: Managed,
    pub(crate) history: History,
    pub(crate) faults_spent: u32,
    pub(crate) now: Instant,
    /// Sites that the action changes, as bits; those from 64 on share bits.
    pub(crate) touched: u64,
    /// Every call in flight was looked at, to drop those without an effect.
    pub(crate) is_pruned: bool,
}

copied!(World {
    shared: setup;
    lists: sites, calls, operations;
    rest: answers, held, fabric, commands, repeats_commands, stuck, mute, data, channels, managed, history,
        faults_spent, now, touched, is_pruned
});

impl World {
    /// Creates a world in its initial state.
    pub fn new(setup: Setup) -> Self {
        let setup = Arc::new(setup);
        let sites: Vec<_> =
            (0..setup.sites.len()).map(|site| Arc::new(fresh(&setup, site, 0))).collect();
        let runs = sites.iter().map(|site: &Arc<Site>| site.incarnation);
        let mut world = Self {
            managed: Managed::new(&setup, runs),
            sites,
            calls: Vec::new(),
            answers: Vec::new(),
            operations: Vec::new(),
            held: Vec::new(),
            fabric: Fabric::new(&setup),
            commands: setup.commands.clone(),
            repeats_commands: setup.repeats_commands(),
            stuck: Vec::new(),
            mute: Vec::new(),
            data: None,
            channels: Channels::default(),
            history: History::default(),
            faults_spent: 0,
            now: Instant(0),
            touched: 0,
            is_pruned: false,
            setup,
        };
        world.begin_data();
        world
    }

    /// Returns a copy with other faults of nodes and messages.
    #[must_use]
    pub fn with_faults(&self, faults: Faults, faults_max: u32) -> Self {
        let setup = Setup { faults, faults_max, ..Setup::clone(&self.setup) };
        debug_assert_eq!(self.setup.devices_differ(), setup.devices_differ());
        Self { setup: Arc::new(setup), ..self.clone() }
    }

    /// Returns the node of a site. If another site holds the node of this NIC, the returned one
    /// receives no input.
    pub fn node(&self, site: usize) -> &Node {
        &self.sites[site].node
    }

    /// Returns the NIC of a site.
    pub fn path(&self, site: usize) -> &NicPath {
        &self.sites[site].path
    }

    /// Returns the present incarnation of a site.
    pub fn incarnation(&self, site: usize) -> Incarnation {
        self.sites[site].incarnation
    }

    /// Returns the number of sites.
    pub fn sites(&self) -> usize {
        self.sites.len()
    }

    /// Returns the application's demand, as far as the application knows.
    pub fn demand(&self, site: usize, peer: usize) -> Demand {
        self.sites[site].demands[peer]
    }

    /// Returns the queue pairs of all sites.
    pub fn queue_pairs(&self) -> &[QueuePair] {
        &self.fabric.table
    }

    /// Returns lifecycles that no transport will ever retire; only a restart removes them.
    pub fn stuck(&self) -> &[(usize, Lifecycle)] {
        &self.stuck
    }

    /// Returns the faults spent so far.
    pub fn faults_spent(&self) -> u32 {
        self.faults_spent
    }

    /// Whether a site has an established lane to a peer on which bytes flow in both directions.
    pub fn connected(&self, site: usize, peer: usize) -> bool {
        let path = &self.way(site, peer);
        if let Some(old) = &self.sites[site].old {
            return old.endpoint(path).is_some_and(|known| {
                let qp = self.fabric.of(site, known.own);
                known.state == OldState::Connected && qp.is_some_and(|qp| self.fabric.intact(qp))
            });
        }
        self.sites[self.host(site)].node.lifecycles().any(|(lifecycle, state, to, _)| {
            let qp = self.fabric.of(site, lifecycle);
            state.is_in_use() && to == path && qp.is_some_and(|qp| self.fabric.intact(qp))
        })
    }

    /// Returns the time of the nodes.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Whether nothing that can arrive is in flight, and no operation is pending.
    pub fn quiet(&self) -> bool {
        self.nothing_arrives()
            && self.operations.iter().all(|pending| self.waits_for_peer(pending))
            && !self.data_moves()
            && !self.channels_move()
            && !self.connections_move()
    }

    /// Whether an operation waits for a process that may never act.
    fn waits_for_peer(&self, pending: &Pending) -> bool {
        let id = pending.operation.id();
        id.kind == OperationKind::Retire && self.is_kept_waiting((pending.site, id.lifecycle))
    }

    /// Whether no call or answer can arrive before another action.
    pub(crate) fn nothing_arrives(&self) -> bool {
        self.answers.is_empty() && self.calls.iter().all(|call| self.waits_outside(call))
    }

    /// Returns the pair of a site's lifecycle in its current incarnation.
    pub fn pair(&self, site: usize, lifecycle: Lifecycle) -> Pair {
        Pair { incarnation: self.sites[site].incarnation, lifecycle }
    }

    /// Returns the site that accepts calls and never answers.
    pub fn mute(&self) -> Option<usize> {
        self.setup.mute
    }

    /// Whether two processes share a name.
    pub fn has_twins(&self) -> bool {
        (0..self.sites.len()).any(|site| self.twinned(site))
    }

    /// Whether there are more nodes than a table of peers holds.
    pub fn is_crowded(&self) -> bool {
        let first =
            |site: &usize| (0..*site).all(|at| self.sites[at].path != self.sites[*site].path);
        let nodes = (0..self.sites.len()).filter(first).count();
        nodes > self.setup.limits.peers_max + 1
    }

    pub(crate) fn twinned(&self, site: usize) -> bool {
        self.sites.iter().filter(|other| other.path == self.sites[site].path).count() > 1
    }

    pub(crate) fn process_of(incarnation: Incarnation) -> usize {
        let process = (incarnation.0 / RUNS_MAX).checked_sub(1);
        process.and_then(|process| usize::try_from(process).ok()).unwrap_or(usize::MAX)
    }

    /// Returns the first site of the process that an incarnation belongs to.
    pub(crate) fn site_of(&self, incarnation: Incarnation) -> usize {
        let process = Self::process_of(incarnation);
        self.sites.iter().position(|site| site.process == process).unwrap_or(usize::MAX)
    }

    /// Returns the site of the process with this path.
    pub(crate) fn site_at(&self, incarnation: Incarnation, path: &NicPath) -> usize {
        let process = Self::process_of(incarnation);
        let unknown = incarnation == Incarnation::UNKNOWN;
        let here = |site: &Arc<Site>| (unknown || site.process == process) && site.bears(path);
        self.sites.iter().position(here).unwrap_or(usize::MAX)
    }

    /// Whether the site is the first of its process.
    pub(crate) fn leads(&self, site: usize) -> bool {
        self.sites[..site].iter().all(|other| other.process != self.sites[site].process)
    }

    /// Returns the peer's NIC, or the rail, of a lifecycle.
    pub(crate) fn peer_of(&self, site: usize, lifecycle: Lifecycle) -> Option<&NicPath> {
        self.sites[self.host(site)].node.lifecycle(lifecycle).map(|(_, peer, _)| peer)
    }

    pub(crate) fn command(&mut self, index: usize, step: &mut Step) {
        let command = self.commands.remove(index);
        self.ask(command, step);
    }

    pub(crate) fn ask(&mut self, command: Command, step: &mut Step) {
        let Command { site, peer, kind } = command;
        let path = self.way(site, peer);
        self.remember_command(command, &path);
        let (demand, input) = match kind {
            CommandKind::Open => (Demand::Wanted, Input::Open(path)),
            CommandKind::Close => (Demand::None, Input::Close(path)),
            CommandKind::Release => (Demand::None, Input::Release(path)),
            CommandKind::Restart => {
                self.restart(site);
                return;
            }
        };
        self.set_demand(site, peer, demand);
        if self.is_old(site) {
            if let Input::Open(path) = input {
                self.old_open(site, &path);
            }
            return;
        }
        let is_demanded_again =
            matches!(&input, Input::Close(path) if self.target_awaits(site, path));
        self.tell(self.host(site), input, step);
        if is_demanded_again {
            self.ask(Command { site, peer, kind: CommandKind::Open }, step);
        }
    }

    pub(crate) fn deliver_call(&mut self, index: usize, site: usize, keep: bool, step: &mut Step) {
        let site = self.host(site);
        let message = match keep {
            true => self.calls[index].clone(),
            false => self.calls.remove(index),
        };
        if self.mute.contains(&site) {
            // The socket of a legacy Mooncake node has a time limit; a handfast node has a timer.
            if let Some(caller) = self.old_site(&message.from).filter(|_| !keep) {
                let what = (message.sender, message.op == Op::Request);
                self.call_failed(caller, what, CallFailure::Broken, step);
            }
            return;
        }
        if self.is_old(site) {
            return self.old_receives(site, message);
        }
        let old = self.old_site(&message.from);
        let token = CallToken(match old {
            None => message.sender.incarnation.0 as u64,
            Some(_) => plain_token(&message),
        });
        let from = self.host(self.site_at(message.sender.incarnation, &message.from));
        self.hear_request(site, &message);
        let (sender, asks_end) = (message.sender, message.op == Op::Quiesce);
        let waiting = self.held.iter().filter(|held| (held.site, held.from) == (site, from));
        let (waiting, answered) = (waiting.count(), self.answers.len());
        self.held.push(HeldCall { site, token, sender, from });
        let told = match old {
            None => Told::Call(token, message),
            Some(old) => {
                Input::PlainCallReceived { token, message: self.plain(old, &message) }.into()
            }
        };
        self.deliver(site, told, step);
        if asks_end {
            self.check_quiesce_held(site, sender, waiting, answered, step);
        }
    }

    pub(crate) fn deliver_answer(&mut self, index: usize, step: &mut Step) {
        let (run, message) = self.answers.remove(index);
        let site = self.host(self.site_at(run, &message.to));
        if self.is_old(site) {
            return self.old_answered(site, &message);
        }
        let told = match (self.old_site(&message.from), message.echo) {
            (Some(old), Some(echo)) => {
                let lifecycle = echo.lifecycle;
                Input::PlainCallAnswered { lifecycle, message: self.plain(old, &message) }.into()
            }
            _ => Told::Answer(message.clone()),
        };
        self.remember_answer(site, &message);
        self.deliver(site, told, step);
        if self.old_site(&message.from).is_none() {
            self.check_refusal(site, &message, step);
        }
    }

    /// Checks that a permanent refusal ends its subject (rule H10), unless that is in use by now or
    /// ending.
    fn check_refusal(&self, site: usize, message: &Message, step: &mut Step) {
        use RefusalReason::{Busy, Starting, Unproven};
        let Some(refusal) = &message.refusal else { return };
        let own = message.echo.filter(|echo| echo.incarnation == self.sites[site].incarnation);
        let state = own.and_then(|own| self.sites[site].node.state_of(own.lifecycle));
        let lives = |state: StateKind| !state.is_in_use() && !state.is_ending();
        let excused = matches!(refusal.reason, Busy | Starting | Unproven);
        if !excused && state.is_some_and(lives) {
            let detail = format!("{} changes nothing", self.describe_message(message));
            step.violations.push(Violation::new(Oracle::RefusalSwallowed, detail));
        }
    }

    /// Delivers a message. A refused or ignored one must leave the node unchanged (O4).
    fn deliver(&mut self, site: usize, told: Told, step: &mut Step) {
        // A site that another world has too is copied by its change anyway; of one that is this world's alone
        // the digest is taken in advance.
        let before = Some(&self.sites[site]).filter(|site| Arc::strong_count(site) > 1).cloned();
        let digest = before.is_none().then(|| self.sites[site].plain_fingerprint());
        let earlier = step.turned_away.len();
        self.tell(site, told, step);
        if !step.turned_away[earlier..].contains(&site) {
            return;
        }
        let digest = digest.or_else(|| before.map(|before| before.plain_fingerprint()));
        if digest != Some(self.sites[site].plain_fingerprint()) {
            let detail = format!("site {site} refused or ignored a message and changed");
            step.violations.push(Violation::new(Oracle::RefusalChanged, detail));
        }
    }

    pub(crate) fn lose_call(&mut self, index: usize, told: bool, step: &mut Step) {
        let message = self.calls.remove(index);
        if told || self.old_site(&message.from).is_some() {
            let site = self.host(self.site_at(message.sender.incarnation, &message.from));
            let what = (message.sender, message.op == Op::Request);
            self.call_failed(site, what, CallFailure::Refused, step);
        }
    }

    pub(crate) fn lose_answer(&mut self, index: usize, told: bool, step: &mut Step) {
        let (_, message) = self.answers.remove(index);
        let told = told || self.old_site(&message.to).is_some();
        if let Some(echo) = message.echo.filter(|_| told) {
            let site = self.host(self.site_at(echo.incarnation, &message.to));
            let what = (echo, message.op == Op::Reply);
            self.call_failed(site, what, CallFailure::Broken, step);
        }
    }

    /// Reports the failure of a call to its caller; `request` distinguishes requests.
    fn call_failed(
        &mut self,
        site: usize,
        (caller, request): (Pair, bool),
        failure: CallFailure,
        step: &mut Step,
    ) {
        if self.sites[site].incarnation == caller.incarnation {
            if self.is_old(site) {
                return self.old_call_failed(site, caller.lifecycle, request);
            }
            self.tell(site, Input::CallFailed { lifecycle: caller.lifecycle, failure }, step);
        }
    }

    pub(crate) fn operate(&mut self, index: usize, succeeds: bool, step: &mut Step) {
        if succeeds && self.begin_connect(index, step) {
            return;
        }
        let pending = self.operations.remove(index);
        let (site, id) = (pending.site, pending.operation.id());
        let outcome = if succeeds {
            self.perform(site, &pending.operation, step)
        } else {
            self.fail(site, id, step)
        };
        let performed = succeeds;
        step.record(|| JournalEntry::Ended { site, id, performed, outcome: outcome.clone() });
        let before = step.refusals.len();
        self.tell(site, Input::OperationDone { id, outcome }, step);
        let gone = step.refusals[before..].contains(&RefusalReason::Gone);
        if gone && !succeeds && id.kind == OperationKind::Create {
            let detail = format!("site {site} failed, and answered its peer that it is gone");
            step.violations.push(Violation::new(Oracle::PeerBlamed, detail));
        }
    }

    pub(crate) fn stall(&mut self, index: usize, step: &mut Step) {
        let pending = self.operations.remove(index);
        let id = pending.operation.id();
        step.record(|| JournalEntry::Stalled { site: pending.site, id });
        if id.kind == OperationKind::Retire {
            self.stuck.push((pending.site, id.lifecycle));
        }
    }

    pub(crate) fn lane_error(&mut self, site: usize, lifecycle: Lifecycle, step: &mut Step) {
        if self.is_old(site) {
            return self.old_failed(site, lifecycle);
        }
        self.fabric.break_down(site, lifecycle);
        let error = error(Side::Peer, "simulated lane");
        self.tell(site, Input::LaneFailed { lifecycle, error }, step);
    }

    /// Ends a lane by a refused access: the demand must be reported as failed (rule H9). A legacy
    /// Mooncake node keeps no such rule.
    pub(crate) fn protection_error(&mut self, site: usize, lifecycle: Lifecycle, step: &mut Step) {
        if self.is_old(site) {
            return self.old_failed(site, lifecycle);
        }
        self.fabric.break_down(site, lifecycle);
        self.tell_refused(site, lifecycle, error(Side::Protection, "simulated access"), step);
    }

    pub(crate) fn restart(&mut self, site: usize) {
        let process = self.sites[site].process;
        for nic in 0..self.sites.len() {
            if self.sites[nic].process == process {
                self.restart_nic(nic);
            }
        }
    }

    fn restart_nic(&mut self, site: usize) {
        self.remember_restart(site);
        let old = self.sites[site].clone();
        let run = old.incarnation.0 % RUNS_MAX + 1;
        self.touch(site);
        self.sites[site] = self.shared(site, Arc::new(fresh(&self.setup, site, run)));
        self.operations.retain(|pending| pending.site != site);
        self.answers.retain(|(to, message)| *to != old.incarnation || !old.bears(&message.to));
        let (broken, held) = self.held.iter().partition(|held| held.site == site);
        self.held = held;
        self.channels_die(site, old.incarnation);
        self.fabric.forget_site(site, self.setup.devices.rebirth);
        self.connections_die(site, old.incarnation);
        self.stuck.retain(|(owner, _)| *owner != site);
        self.mute.retain(|mute| *mute != site);
        self.restart_data(site);
        self.old_calls_broke(broken);
        if !self.setup.reopen {
            return;
        }
        for peer in 0..self.sites.len() {
            let again = Command { site, peer, kind: CommandKind::Open };
            if old.demands[peer] != Demand::None && !self.commands.contains(&again) {
                self.commands.push(again);
            }
        }
    }

    /// Returns a site to change.
    pub(crate) fn site_mut(&mut self, site: usize) -> &mut Site {
        self.touch(site);
        let site = Arc::make_mut(&mut self.sites[site]);
        site.encoded.forget();
        site
    }

    pub(crate) fn check_operation(&self, site: usize, operation: &Operation, step: &mut Step) {
        if let Operation::Connect { local, remote, .. } = operation {
            self.check_stale(site, *local, *remote, step);
        }
    }

    /// Checks that no earlier queue pair to the peer remains (rule H6).
    pub(crate) fn check_stale(&self, site: usize, local: Pair, remote: Pair, step: &mut Step) {
        let Some(peer) = self.peer_of(site, local.lifecycle) else { return };
        let stale = |qp: &QueuePair, target: Target| {
            let path = self.way(qp.site, target.site);
            let reborn = target.believed.incarnation != remote.incarnation;
            path == *peer || (path.node == peer.node && reborn)
        };
        let earlier = self.fabric.table.iter().find(|qp| {
            let towards = |target: Target| stale(qp, target) && !self.is_unused(qp, target);
            qp.host == site && qp.lifecycle != local.lifecycle && qp.target.is_some_and(towards)
        });
        if let Some(earlier) = earlier {
            let detail = format!(
                "{} wires towards {} while {} is still connected towards that node",
                self.describe_own(site, local.lifecycle),
                self.describe_pair(remote),
                self.describe_own(site, earlier.lifecycle)
            );
            step.violations.push(Violation::new(Oracle::StaleLane, detail));
        }
    }

    pub(crate) fn publish(
        &mut self,
        site: usize,
        local: Pair,
        remote: Pair,
        path: &NicPath,
        step: &mut Step,
    ) {
        let Some(qp) = self.fabric.of_mut(site, local.lifecycle) else {
            let detail = format!("{local:?} is published and has no queue pair");
            step.violations.push(Violation::new(Oracle::FabricLaw, detail));
            return;
        };
        qp.published = true;
        let nic = qp.site;
        self.check_first_frame(nic, local.lifecycle, step);
        self.remember_success(site, path);
        if remote.is_legacy() && !self.flows(site, local.lifecycle) {
            let own = self.describe_own(site, local.lifecycle);
            let detail = format!("{own} is usable, and what is posted is taken for repeated");
            step.violations.push(Violation::new(Oracle::Swallowed, detail));
        }
        let Some(&QueuePair { site, number: own_number, .. }) =
            self.fabric.of(site, local.lifecycle)
        else {
            return;
        };
        let peer = self.site_at(remote.incarnation, path);
        let alive = self.sites[peer].incarnation == remote.incarnation && !self.is_old(peer);
        let earlier = |qp: &&QueuePair| {
            let towards_us = qp.target.is_some_and(|target| target.site == site);
            qp.site == peer && qp.lifecycle != remote.lifecycle && qp.published && towards_us
        };
        if let Some(earlier) = self.fabric.table.iter().find(earlier).filter(|_| alive) {
            let detail = format!(
                "{} is published while {} can still write to its site",
                self.describe_pair(local),
                self.describe_pair(self.pair(peer, earlier.lifecycle))
            );
            step.violations.push(Violation::new(Oracle::Fence, detail));
        }
        let Some(theirs) = self.fabric.of(peer, remote.lifecycle).filter(|_| alive) else { return };
        if theirs.target.is_none_or(|to| (to.site, to.number) != (site, own_number)) {
            let detail = format!(
                "{} is published towards {}, which is not connected back",
                self.describe_pair(local),
                self.describe_pair(remote)
            );
            step.violations.push(Violation::new(Oracle::PublishedUnconnected, detail));
        }
    }

    pub(crate) fn observe(&mut self, site: usize, event: Event, step: &mut Step) {
        if let Event::OpenFailed { peer, failure } = &event {
            self.remember_given_up(site, peer);
            self.check_justified(site, peer, failure, step);
            let own = self.nic_of(site, peer);
            let peers: Vec<usize> =
                (0..self.sites.len()).filter(|site| self.sites[*site].bears(peer)).collect();
            for peer in peers {
                self.set_demand(own, peer, Demand::Reported);
            }
        }
        if let Event::Ended { peer, lifecycle, failure, .. } = &event {
            self.remember_end(site, *lifecycle, (peer, failure));
            if self.setup.lasting {
                let name = self.describe_pair(self.pair(site, *lifecycle));
                let detail = format!("{name} ends: {failure}");
                step.violations.push(Violation::new(Oracle::Lasting, detail));
            }
            let forced = |(at, event): &(usize, Event)| {
                let of = |event: &Event| match event {
                    Event::RetireForced { lifecycle, .. } => Some(*lifecycle),
                    _ => None,
                };
                *at == site && of(event) == Some(*lifecycle)
            };
            if !step.events.iter().any(forced) {
                self.check_cut_off(site, *lifecycle, failure, step);
            }
        }
        if let Event::RetireFailed { lifecycle, .. } = &event {
            self.stuck.push((site, *lifecycle));
        }
        if let Event::Undeclared { lifecycle, from, trigger } = &event {
            let detail = format!("{lifecycle:?} left {from:?} by {trigger:?}, undeclared");
            step.violations.push(Violation::new(Oracle::Undeclared, detail));
        }
        self.data_event(site, &event, step);
        step.events.push((site, event));
    }
}

fn fresh(setup: &Setup, site: usize, run: u128) -> Site {
    let process = setup.process(site);
    let nic = (0..site).filter(|other| setup.process(*other) == process).count() as u64;
    let incarnation = Incarnation((process as u128 + 1) * RUNS_MAX + run);
    let config = NodeConfig {
        path: setup.sites[site].clone(),
        incarnation,
        seed: 7,
        limits: setup.limits,
        timing: setup.timing,
    };
    Site {
        path: setup.sites[site].clone(),
        process,
        old: setup.old.filter(|old| old.site == site).map(OldNode::new),
        node: (setup.build)(config).numbering_from(Lifecycle(nic * NUMBERS_PER_NIC + 1)),
        incarnation,
        demands: vec![Demand::None; setup.sites.len()],
        encoded: Encoded::default(),
        waits: Waits::default(),
    }
}

pub(crate) fn error(side: Side, call: &'static str) -> TransportError {
    TransportError { side, call: call.into(), code: 0, detail: "injected".into() }
}
