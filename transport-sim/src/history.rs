//! Oracles about the way to a world: promptness, justified failures, and lanes that belong to nobody.
//!
//! The history is not a part of fingerprints. Of two ways to one world, the oracles judge the first.

use crate::action::Action;
use crate::copy::copied;
use crate::oracle::{Oracle, Violation};
use crate::setup::{Command, CommandKind};
use crate::shared::LaneId;
use crate::world::{Demand, Step, World};
use handfast_core::node::{Failure, StateKind, TimerId, TimerKind};
use handfast_core::transport::Side;
use handfast_core::wire::{Message, RefusalReason};
use handfast_core::{Lifecycle, NicPath};

/// Faults with which promptness is judged. With more, a lane may rightly wait for one that another
/// fault has ended.
const PROMPT_FAULTS_MAX: u32 = 1;

/// The cost of a run, all nodes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Calls, whether they arrive or not.
    pub calls: u32,
    /// Lifecycles that began.
    pub lifecycles: u32,
    /// Timers that fired.
    pub timers: u32,
}

/// Events before a world that oracles need.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// A message was lost, or will never be answered.
    pub(crate) lost: bool,
    /// Lanes that may repeat their last call by a timer: the peer has asked for that, their answer met
    /// nobody that it is for, or the peer has closed the lifecycle that they are offered to, or given up after it.
    /// Their next call ends the excuse.
    deferred: Vec<LaneId>,
    /// The lifecycles that failed since the last success, or since the demand began: how many, and the last.
    failures: Vec<(usize, NicPath, Failures)>,
    /// Lanes that existed when the application closed their path.
    closed: Vec<LaneId>,
    /// Sites and their peers, an operation or call of which outlasted all calls of a lane.
    outlasted: Vec<(usize, NicPath)>,
    pub(crate) spent: Spent,
}

/// Lifecycles of a demand that failed in a row.
#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Lifecycle,
}

copied!(History { shared: ; lists: ; rest: lost, deferred, failures, closed, outlasted, spent });

impl History {
    fn failures(&self, site: usize, peer: &NicPath) -> Option<Failures> {
        let of = self.failures.iter().find(|(at, path, _)| (*at, path) == (site, peer));
        of.map(|(.., failures)| *failures)
    }

    fn forget_failures(&mut self, site: usize, peer: &NicPath) {
        self.failures.retain(|(at, path, _)| (*at, path) != (site, peer));
    }

    fn count_failure(&mut self, site: usize, peer: &NicPath, last: Lifecycle) {
        let count = self.failures(site, peer).map_or(1, |failures| failures.count + 1);
        self.forget_failures(site, peer);
        self.failures.push((site, peer.clone(), Failures { count, last }));
    }

    fn remember_outlasted(&mut self, site: usize, peer: &NicPath) {
        let demand = (site, peer.clone());
        if !self.outlasted.contains(&demand) {
            self.outlasted.push(demand);
        }
    }
}

impl World {
    /// The cost of the run so far.
    pub fn spent(&self) -> Spent {
        self.history.spent
    }

    /// Records what an action takes away.
    pub(crate) fn remember(&mut self, action: &Action) {
        let swallowed = |site: &usize| self.mute.contains(&self.host(*site));
        self.history.lost |= match action {
            Action::LoseCall(..)
            | Action::LoseAnswer(..)
            | Action::StallOperation(_)
            | Action::LoseNotice(..)
            | Action::ForgeAnswer(_)
            | Action::LosePacket(_) => true,
            Action::Call(_, site) | Action::DuplicateCall(_, site) => swallowed(site),
            _ => false,
        };
    }

    /// Records the end of a process, with the calls that it has accepted and the answers to it.
    pub(crate) fn remember_restart(&mut self, site: usize) {
        let run = self.sites[site].incarnation;
        self.history.lost |= self.held.iter().any(|held| held.site == site);
        self.history.lost |= self.answers.iter().any(|(to, _)| *to == run);
        self.history.failures.retain(|(at, ..)| *at != site);
        self.history.closed.retain(|(at, _)| *at != site);
        self.history.deferred.retain(|(at, _)| *at != site);
    }

    /// Records an answer whose receiver has died before it was given: the lifecycle that it offers waits for
    /// nobody.
    pub(crate) fn remember_dead_caller(&mut self, site: usize, message: &Message) {
        self.history.deferred.push((site, message.sender.lifecycle));
    }

    /// Records a command before it is given.
    pub(crate) fn remember_command(&mut self, command: Command, path: &NicPath) {
        let Command { site, peer, kind } = command;
        let host = self.host(site);
        match kind {
            CommandKind::Open if self.demand(site, peer) != Demand::Wanted => {
                self.history.forget_failures(host, path);
            }
            CommandKind::Close => {
                let lanes = self.sites[host].node.lifecycles().filter(|(_, _, to, _)| *to == path);
                let lanes: Vec<LaneId> = lanes.map(|(own, ..)| (host, own)).collect();
                self.history.closed.extend(lanes);
                self.remember_ended_offers(host, path, |_, state| {
                    matches!(state, StateKind::Fencing | StateKind::Connecting)
                });
            }
            _ => {}
        }
    }

    /// Records the offers that end with some lifecycles. A close before the end of Connect retires at
    /// once, without a message (rule H11), as a Connect that fails does. A lane that has offered itself to such a
    /// lifecycle, and has no call under way, waits for its timer.
    fn remember_ended_offers(
        &mut self,
        site: usize,
        path: &NicPath,
        ends: impl Fn(Lifecycle, StateKind) -> bool,
    ) {
        let ending = self.sites[site]
            .node
            .lifecycles()
            .filter(|(own, state, to, _)| *to == path && ends(*own, *state))
            .filter_map(|(.., remote)| remote);
        let offers = ending.filter_map(|remote| {
            let mut sites = self.sites.iter();
            let peer = self.host(sites.position(|at| at.incarnation == remote.incarnation)?);
            let state = self.sites[peer].node.state_of(remote.lifecycle);
            (state == Some(StateKind::Announced)).then_some((peer, remote.lifecycle))
        });
        let offers: Vec<LaneId> = offers.collect();
        self.history.deferred.extend(offers);
    }

    /// Records that a node gives a demand up. It opens nothing after the lifecycle that has failed last.
    pub(crate) fn remember_given_up(&mut self, site: usize, path: &NicPath) {
        let Some(Failures { last, .. }) = self.history.failures(site, path) else { return };
        self.remember_ended_offers(site, path, |own, _| own == last);
    }

    /// Records a call of a node.
    pub(crate) fn remember_call(&mut self, site: usize, message: &Message) {
        self.history.spent.calls += 1;
        let lane = (site, message.sender.lifecycle);
        self.history.deferred.retain(|known| *known != lane);
    }

    /// Records an answer that asks its receiver to come again.
    pub(crate) fn remember_answer(&mut self, site: usize, message: &Message) {
        let reason = message.refusal.as_ref().map(|refusal| refusal.reason);
        let own = message.echo.and_then(|echo| self.sites[site].node.state_of(echo.lifecycle));
        // The peer takes the sender's lifecycle for offered.
        self.history.lost |= own.is_none_or(StateKind::is_ending);
        let defers = matches!(reason, Some(RefusalReason::Busy | RefusalReason::Starting));
        if let Some(echo) = message.echo.filter(|_| defers) {
            self.history.deferred.push((site, echo.lifecycle));
        }
    }

    /// Records that a lane is usable.
    pub(crate) fn remember_success(&mut self, site: usize, peer: &NicPath) {
        self.history.forget_failures(site, peer);
    }

    /// Records the end of a lifecycle.
    pub(crate) fn remember_end(
        &mut self,
        site: usize,
        own: Lifecycle,
        (peer, failure): (&NicPath, &Failure),
    ) {
        if !matches!(failure, Failure::Closed | Failure::Evicted) {
            self.history.count_failure(site, peer, own);
        }
        if *failure != Failure::Silent {
            return;
        }
        let is_called = self.calls.iter().any(|call| call.echo == Some(self.pair(site, own)));
        if is_called || self.operates_between(site, peer) {
            self.history.remember_outlasted(site, peer);
        }
        // Its own lane ends too, by an answer to the call that is too late.
        let caller = self.sites.iter().position(|at| at.bears(peer)).filter(|_| is_called);
        if let Some(caller) = caller.map(|caller| self.host(caller)) {
            let path = self.sites[site].path.clone();
            self.history.remember_outlasted(caller, &path);
        }
    }

    /// Whether an operation on a lane between a site and a peer is under way at either.
    fn operates_between(&self, site: usize, peer: &NicPath) -> bool {
        let own = &self.sites[site].path;
        self.operations.iter().any(|pending| {
            let node = &self.sites[pending.site].node;
            let lane = node.lifecycle(pending.operation.id().lifecycle);
            let to = lane.map(|(_, to, _)| to);
            pending.site == site && to == Some(peer)
                || self.sites[pending.site].bears(peer) && to == Some(own)
        })
    }

    /// Whether an operation between a site and its peer, or a call of one of them, outlasted all calls of a lane.
    /// The calls of a demand last longer than either under the limits that ship, and not under those of an
    /// exploration, whose clock stands still.
    pub fn outlasted(&self, site: usize, peer: usize) -> bool {
        let (site, path) = (self.host(site), self.way(site, peer));
        self.history.outlasted.iter().any(|(at, to)| (*at, to) == (site, &path))
    }

    /// Checks that a demand fails for a lasting cause, for want of capacity, or after as many
    /// failures in a row as the limits say.
    pub(crate) fn check_justified(
        &mut self,
        site: usize,
        peer: &NicPath,
        failure: &Failure,
        step: &mut Step,
    ) {
        let count = self.history.failures(site, peer).map_or(0, |failures| failures.count);
        self.history.forget_failures(site, peer);
        let opens_max = self.setup.limits.opens_max;
        if is_lasting(failure) || matches!(failure, Failure::Limit(_)) || count > opens_max {
            return;
        }
        let own = self.describe_site(site);
        let detail = format!(
            "{own} gives {peer} up after {count} failures in a row, and not {}: {failure}",
            opens_max + 1
        );
        step.violations.push(Violation::new(Oracle::Unjustified, detail));
    }

    /// Checks that with nothing lost and at most [`PROMPT_FAULTS_MAX`] faults, no node waits for a timer
    /// to repeat a call.
    pub(crate) fn check_promptness(&self, violations: &mut Vec<Violation>) {
        if !self.quiet() || !self.judges_promptness() {
            return;
        }
        let Some(((site, own), kind)) = self.repeated() else { return };
        if !self.pauses() && self.only_time_passes() {
            let own = self.describe_own(site, own);
            let detail = format!("{own} waits for {kind:?}, and no message was lost");
            violations.push(Violation::new(Oracle::Promptness, detail));
        }
    }

    /// Whether no node may wait for a timer to repeat a call.
    pub fn judges_promptness(&self) -> bool {
        let judged = !self.history.lost && self.setup.mute.is_none() && self.setup.old.is_none();
        let judged = judged && self.faults_spent <= PROMPT_FAULTS_MAX;
        judged && self.mute.is_empty() && !self.has_twins()
    }

    /// Returns a lane that waits to repeat a call, and was not asked to.
    fn repeated(&self) -> Option<(LaneId, TimerKind)> {
        let of_site = |site: usize| {
            self.sites[site].node.timers().filter_map(move |(timer, _, kind)| match timer {
                TimerId::Lifecycle(own) => Some(((site, own), kind)),
                TimerId::Peer(_) => None,
            })
        };
        let mut waiting = (0..self.sites.len()).flat_map(of_site);
        waiting.find(|(lane, kind)| repeats(*kind) && !self.history.deferred.contains(lane))
    }

    /// Whether a node pauses after a failure. Pauses end before any call is repeated.
    fn pauses(&self) -> bool {
        let pause = |kind| {
            matches!(kind, TimerKind::Backoff | TimerKind::RetireRetry | TimerKind::Capacity)
        };
        let mut timers = self.sites.iter().flat_map(|site| site.node.timers());
        !self.stuck.is_empty() || timers.any(|(.., kind)| pause(kind))
    }

    /// Whether nothing but a timer or an application can act.
    fn only_time_passes(&self) -> bool {
        let mut choices = Vec::new();
        self.free_actions(&mut choices);
        choices.iter().all(|choice| {
            matches!(
                choice.action,
                Action::Timer(..)
                    | Action::DialOverdue(..)
                    | Action::TargetTimer(..)
                    | Action::Command(_)
                    | Action::Submit(_)
                    | Action::Cancel(_)
                    | Action::Deadline(_)
                    | Action::Unregister(_)
            )
        })
    }

    /// Checks that no lane is in use to a run of the peer that its successor has replaced, and none
    /// that the application has closed.
    pub(crate) fn check_belonging(&self, violations: &mut Vec<Violation>) {
        for qp in self.fabric.table.iter().filter(|qp| qp.published && !qp.revoked) {
            if self.is_old(qp.site) || !self.is_judged(qp.host) {
                continue;
            }
            let lane: (usize, Lifecycle) = (qp.host, qp.lifecycle);
            let own = || self.describe_own(qp.host, qp.lifecycle);
            if self.history.closed.contains(&lane) {
                let detail = format!("{} is in use after its application has closed it", own());
                violations.push(Violation::new(Oracle::Belonging, detail));
            }
            let Some(peer) = self.peer_of(qp.host, qp.lifecycle) else { continue };
            let holder = self.sites[qp.host].node.holder_of(&peer.node);
            let remote = self.remote_of(lane).filter(|remote| !remote.is_legacy());
            let run = remote.map(|remote| remote.incarnation);
            if holder.is_some() && run.is_some() && holder != run {
                let detail = format!("{} is in use to a run that another has replaced", own());
                violations.push(Violation::new(Oracle::Belonging, detail));
            }
        }
    }

    fn remote_of(&self, (site, own): LaneId) -> Option<handfast_core::Pair> {
        self.sites[site].node.lifecycle(own).and_then(|(.., remote)| remote)
    }
}

/// Whether trying again cannot help.
fn is_lasting(failure: &Failure) -> bool {
    match failure {
        Failure::Refused(refusal) => matches!(
            refusal.reason,
            RefusalReason::Configuration
                | RefusalReason::Encryption
                | RefusalReason::Protection
                | RefusalReason::NameConflict
        ),
        Failure::Transport(error) => matches!(error.side, Side::Configuration | Side::Protection),
        _ => false,
    }
}

fn repeats(kind: TimerKind) -> bool {
    matches!(kind, TimerKind::RequestRetry | TimerKind::ReadyRetry | TimerKind::QuiesceRetry)
}

#[cfg(test)]
mod tests {
    use crate::setup::{Command, CommandKind, Devices, Faults, Operations, Setup};
    use crate::world::{Step, World};
    use handfast_core::node::{Limits, Timing};
    use handfast_core::sharing::Sharing;
    use handfast_core::target::Target;
    use handfast_core::{NicPath, Node};
    use std::sync::Arc;

    const CLOSE: Command = Command { site: 1, peer: 0, kind: CommandKind::Close };

    /// A close ends the offer that its lifecycle waits to connect to, and none once that is connected: the
    /// peer hears of it.
    #[test]
    fn closed_offer_is_excused_until_it_is_connected() {
        let mut world = offered();
        let path = world.path(0).clone();
        let mut closed = world.clone();
        closed.remember_command(CLOSE, &path);
        let offer = closed.node(0).lifecycles().map(|(own, ..)| (0, own)).next();
        assert_eq!(closed.history.deferred, Vec::from_iter(offer));
        play(&mut world, "Connect of B#1 is done");
        world.remember_command(CLOSE, &path);
        assert_eq!(world.history.deferred, []);
        assert!(!world.history.closed.is_empty());
    }

    /// The next call of the lane ends the excuse.
    #[test]
    fn excuse_ends_with_the_next_call() {
        let mut world = offered();
        let path = world.path(0).clone();
        world.remember_command(CLOSE, &path);
        assert_eq!(world.history.deferred.len(), 1);
        play(&mut world, "timer RequestRetry of A#1");
        assert_eq!(world.history.deferred, []);
    }

    /// A has offered its lifecycle in a reply to B, which connects to it.
    fn offered() -> World {
        let mut world = World::new(setup());
        for words in [
            "A opens",
            "B opens",
            "Create of A#1 is done",
            "Create of B#1 is done",
            "A receives request of B#1",
            "B gets reply of A#1",
        ] {
            play(&mut world, words);
        }
        world
    }

    /// Applies the first event with these words.
    fn play(world: &mut World, words: &str) {
        let mut choices = Vec::new();
        world.actions(&mut choices);
        let known: Vec<_> = choices.iter().map(|choice| world.describe(&choice.action)).collect();
        let place = known.iter().position(|event| event.contains(words));
        let place = place.unwrap_or_else(|| panic!("no '{words}' in {known:?}"));
        world.apply(&choices[place], &mut Step::default());
    }

    fn setup() -> Setup {
        let open = |site, peer| Command { site, peer, kind: CommandKind::Open };
        let path = |name| NicPath::parse(name).expect("a well-formed path");
        Setup {
            sites: vec![path("a:1@nic"), path("b:1@nic")],
            processes: Vec::new(),
            rails: false,
            mute: None,
            without_gid: None,
            old: None,
            prompt: false,
            limits: Limits::default(),
            timing: Timing::default(),
            commands: vec![open(0, 1), open(1, 0)],
            reopen: false,
            faults: Faults { early_timer: true, ..Faults::NONE },
            faults_max: 1,
            operations: Operations::Stepwise,
            prune: false,
            transfers: None,
            devices: Devices::default(),
            lasting: false,
            build: Arc::new(Node::new),
            build_target: Target::new,
            build_sharing: Sharing::new,
            build_connections: None,
        }
    }
}
