//! Possible actions of a world: their cost in faults, their effect, their description.

use crate::device::Disturbance;
use crate::fabric::Target;
use crate::letter::Letter;
use crate::setup::{Command, CommandKind};
use crate::shared::LaneId;
use crate::spare::Spare;
use crate::verbs::Call;
use crate::world::{Pending, Site, Step, World};
use handfast_core::node::{StateKind, TimerId, TimerKind};
use handfast_core::target::TargetTimer;
use handfast_core::transport::{Operation, OperationKind};
use handfast_core::wire::Message;
use handfast_core::{Instant, Lifecycle, NicPath, Pair};
use std::cell::LazyCell;
use std::sync::Arc;

thread_local! {
    static LANES: Spare<LaneId> = const { Spare::new() };
    static CALLERS: Spare<u64> = const { Spare::new() };
}

/// A possible action. Indices refer to the world for which it was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The application gives a command of the scenario.
    Command(usize),
    /// The application gives a command that no scenario lists.
    Ask(Command),
    /// A call arrives at a site.
    Call(usize, usize),
    /// An answer arrives.
    Answer(usize),
    /// An operation succeeds.
    Operation(usize),
    /// A timer fires.
    Timer(usize, TimerId),
    /// A published lane whose peer is not connected back reports its first error.
    Broken(usize, Lifecycle),
    /// A call arrives at a site and another copy stays in flight.
    DuplicateCall(usize, usize),
    /// A call is lost. The flag reports the loss to the caller.
    LoseCall(usize, bool),
    /// An answer is lost. The flag reports the loss to the caller.
    LoseAnswer(usize, bool),
    /// An operation fails.
    FailOperation(usize),
    /// An operation never ends.
    StallOperation(usize),
    /// A node crashes and restarts under its name.
    Restart(usize),
    /// A working queue pair goes to error.
    LaneError(usize, Lifecycle),
    /// A forbidden access ends a published queue pair.
    ProtectionError(usize, Lifecycle),
    /// One verbs step of an operation fails.
    FailStep(usize, Call),
    /// A device, a path or a process is disturbed, or a disturbance ends.
    Disturb(Disturbance),
    /// The application submits a transfer.
    Submit(usize),
    /// The application cancels a transfer.
    Cancel(usize),
    /// The deadline of a transfer passes.
    Deadline(usize),
    /// A packet arrives.
    Packet(usize),
    /// A packet arrives, and a copy of it stays in flight.
    DuplicatePacket(usize),
    /// A packet is lost.
    LosePacket(usize),
    /// A site polls the oldest completion of its device.
    Completion(usize),
    /// The retries of a site's queue pair are exhausted.
    Exhaust(usize, u32),
    /// A probe of a site's lane is answered, or fails.
    Probe(usize, Lifecycle),
    /// A timer of a site's target fires; the target is given by its index.
    TargetTimer(usize, usize, TargetTimer),
    /// A side of a same-host lane reads the next frame of its channel.
    Frame(usize, Lifecycle),
    /// A thread copies the next piece of a slice on a same-host lane.
    Piece(usize, Lifecycle, usize),
    /// A side of a same-host lane reads the end of its connection.
    ReadEnd(usize, Lifecycle),
    /// A side of a same-host lane learns of the death of its peer.
    SeeDeath(usize, Lifecycle),
    /// The connection of a same-host lane breaks between two live processes.
    BreakChannel(usize, Lifecycle),
    /// A retirement fails, since the peer does not let memory go.
    HeldRetire(usize),
    /// A message or an event of the connection manager reaches a side of a connection.
    Notice(u64, usize),
    /// A message of the connection manager is lost.
    LoseNotice(u64, usize),
    /// A connect request arrives, and a copy of it stays in flight.
    RepeatRequest(u64),
    /// A stranger dials a lane of a NIC.
    ForgeRequest(usize, Lifecycle),
    /// A stranger answers a dial.
    ForgeAnswer(u64),
    /// The time of a dial, or of the wait for the peer's, is over.
    DialOverdue(usize, Lifecycle),
    /// The application of a site unregisters the memory that peers may access.
    Unregister(usize),
}

/// An action and its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The action.
    pub action: Action,
    /// Cost in faults.
    pub cost: u32,
}

impl World {
    /// Lists all possible actions in a fixed order, except those that the budget does not cover.
    ///
    /// A timer is free if only time can pass: in a quiet world; if it is a pause that nothing ends
    /// early; or if the awaited answer was lost. Otherwise it overtakes a pending event, the answer
    /// or the capacity that a peer with a full table is freeing, and costs a fault.
    pub fn actions(&self, choices: &mut Vec<Choice>) {
        let paid = self.faults_spent < self.setup.faults_max;
        self.push_actions(paid, choices);
    }

    /// Lists all possible actions that cost no fault.
    pub fn free_actions(&self, choices: &mut Vec<Choice>) {
        self.push_actions(false, choices);
    }

    /// Lists, of the actions that cost no fault and in their order, those of devices and transports: ends of
    /// operations and disturbances, packets, completions and frames.
    pub fn prompt_actions(&self, choices: &mut Vec<Choice>) {
        choices.clear();
        let free = |at: usize| Choice { action: Action::Operation(at), cost: 0 };
        choices.extend(self.first_operations().map(free));
        self.push_disturbances(true, choices);
        self.push_data(false, choices);
        self.push_channels(false, choices);
        self.push_connections(false, choices);
        if !self.mute.is_empty() {
            choices.retain(|choice| !self.stopped(&choice.action));
        }
    }

    /// Returns the first arrival in the list of actions: of an answer, or else of a call.
    pub fn first_arrival(&self) -> Option<Choice> {
        let goes_on = |action: &Action| self.mute.is_empty() || !self.stopped(action);
        let answers = (0..self.answers.len()).map(Action::Answer);
        let calls = self.distinct_calls().map(|(at, to)| Action::Call(at, to));
        let action = answers.chain(calls).find(goes_on)?;
        Some(Choice { action, cost: 0 })
    }

    fn push_actions(&self, paid: bool, choices: &mut Vec<Choice>) {
        choices.clear();
        let faults = self.setup.faults;
        let free = |action: Action| Choice { action, cost: 0 };
        let is_first = |at: &usize| !self.commands[..*at].contains(&self.commands[*at]);
        let commands = (0..self.commands.len())
            .filter(|at| !self.repeats_commands || is_first(at))
            .filter(|at| self.is_given(&self.commands[*at]));
        choices.extend(commands.map(|at| free(Action::Command(at))));
        let calls = choices.len();
        choices.extend(self.distinct_calls().map(|(at, to)| free(Action::Call(at, to))));
        let answers = choices.len();
        choices.extend(self.distinct_answers().map(|at| free(Action::Answer(at))));
        let operations = choices.len();
        choices.extend(self.first_operations().map(|at| free(Action::Operation(at))));
        let listed = [calls, answers, operations, choices.len()];
        let mut sound = LANES.with(Spare::take);
        for (site, lifecycle, is_sound) in self.live_lanes() {
            if is_sound {
                sound.push((site, lifecycle));
            } else {
                choices.push(free(Action::Broken(site, lifecycle)));
            }
        }
        self.push_timers(paid && faults.early_timer, choices);
        if paid {
            self.push_faults(&sound, listed, choices);
            self.push_disturbances(false, choices);
        }
        self.push_disturbances(true, choices);
        self.push_data(paid, choices);
        self.push_channels(paid, choices);
        self.push_connections(paid, choices);
        LANES.with(|spare| spare.keep(sound));
        if !self.mute.is_empty() {
            choices.retain(|choice| !self.stopped(&choice.action));
        }
    }

    fn push_timers(&self, early: bool, choices: &mut Vec<Choice>) {
        let quiet = self.quiet();
        let callers = self.callers(quiet);
        // The retries of a device are exhausted before a lane counts as unresponsive.
        let is_tried = LazyCell::new(|| self.unanswered().next().is_some());
        let mut push = |action: Action, cost: u32| {
            if cost == 0 || early {
                choices.push(Choice { action, cost });
            }
        };
        for site in 0..self.sites.len() {
            let node = &self.sites[site].node;
            for (own, at, kind) in node.lifecycle_timers() {
                if self.setup.lasting && kind == TimerKind::HalfOpen && self.has_timer_before(at) {
                    continue;
                }
                let cost = u32::from(!quiet && !self.is_due(site, own, kind, &callers));
                push(Action::Timer(site, TimerId::Lifecycle(own)), cost);
            }
            for (peer, _, kind) in node.peer_timers() {
                let cost = u32::from(!quiet && kind != TimerKind::Backoff);
                if cost == 0 || early {
                    push(Action::Timer(site, TimerId::Peer(peer.clone())), cost);
                }
            }
            // Otherwise each costs a fault, and none may be early.
            let targets = Some(self.target_timers(site)).filter(|_| quiet || early);
            for (at, timer, _) in targets.into_iter().flatten() {
                let comes_late = timer == TargetTimer::Watchdog && *is_tried;
                push(Action::TargetTimer(site, at, timer), u32::from(!quiet || comes_late));
            }
        }
        CALLERS.with(|spare| spare.keep(callers));
    }

    /// Returns a digest of each pair that [`World::awaits`] finds; none in a quiet world, which asks for no
    /// pair.
    fn callers(&self, quiet: bool) -> Vec<u64> {
        let mut callers = CALLERS.with(Spare::take);
        if !quiet {
            callers
                .extend(self.calls.iter().chain(self.being_served()).map(|it| digest(it.sender)));
            let echoes = self.answers.iter().filter_map(|(_, answer)| answer.echo);
            callers.extend(echoes.chain(self.held.iter().map(|held| held.sender)).map(digest));
        }
        callers
    }

    fn has_timer_before(&self, at: Instant) -> bool {
        self.sites.iter().any(|site| site.node.timers().any(|(_, earlier, _)| earlier < at))
    }

    /// Whether the timer of a lifecycle is free, since nothing that it waits for is under way.
    fn is_due(&self, site: usize, own: Lifecycle, kind: TimerKind, callers: &[u64]) -> bool {
        use TimerKind::{Backoff, QuiesceRetry, ReadyRetry, RequestRetry};
        if !matches!(kind, RequestRetry | ReadyRetry | QuiesceRetry) {
            return kind == Backoff;
        }
        let is_caller = callers.contains(&digest(self.pair(site, own)));
        debug_assert!(is_caller || !self.awaits(site, own), "a digest of {own:?} is missing");
        if is_caller && self.awaits(site, own) {
            return false;
        }
        !self.peer_of(site, own).is_some_and(|peer| self.makes_room(peer))
    }

    /// Adds the faults of lanes that work, and of the messages and operations, which are listed from these
    /// places on.
    fn push_faults(
        &self,
        sound: &[LaneId],
        [calls, answers, operations, end]: [usize; 4],
        choices: &mut Vec<Choice>,
    ) {
        let faults = self.setup.faults;
        for place in calls..answers {
            let Action::Call(at, to) = choices[place].action else { continue };
            let mut charged = |action: Action| choices.push(Choice { action, cost: 1 });
            if faults.duplication {
                charged(Action::DuplicateCall(at, to));
            }
            if faults.loss {
                charged(Action::LoseCall(at, false));
            }
            if faults.call_failure {
                charged(Action::LoseCall(at, true));
            }
        }
        for place in answers..operations {
            let Action::Answer(at) = choices[place].action else { continue };
            let mut charged = |action: Action| choices.push(Choice { action, cost: 1 });
            if faults.loss {
                charged(Action::LoseAnswer(at, false));
            }
            if faults.call_failure {
                charged(Action::LoseAnswer(at, true));
            }
        }
        for place in operations..end {
            let Action::Operation(at) = choices[place].action else { continue };
            let mut charged = |action: Action| choices.push(Choice { action, cost: 1 });
            if faults.operation_failure {
                charged(Action::FailOperation(at));
            }
            if faults.operation_stall {
                charged(Action::StallOperation(at));
            }
            if faults.step_failure {
                let kind = self.operations[at].operation.id().kind;
                // The kernel connects them.
                let is_managed = kind == OperationKind::Connect && self.is_managed();
                for call in Self::steps_of(kind).iter().filter(|_| !is_managed) {
                    charged(Action::FailStep(at, *call));
                }
            }
        }
        let mut charged = |action: Action| choices.push(Choice { action, cost: 1 });
        if faults.lane_error {
            sound.iter().for_each(|(site, lane)| charged(Action::LaneError(*site, *lane)));
        }
        if faults.protection {
            let published = self.fabric.table.iter().filter(|qp| qp.published && !qp.revoked);
            published.for_each(|qp| charged(Action::ProtectionError(qp.host, qp.lifecycle)));
        }
        if faults.crash {
            let processes = (0..self.sites.len()).filter(|site| self.leads(*site));
            processes.for_each(|site| charged(Action::Restart(site)));
        }
    }

    fn distinct_calls(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let first = |at: &usize| !self.calls[..*at].contains(&self.calls[*at]);
        (0..self.calls.len()).filter(first).flat_map(move |at| {
            let sites = self.sites_of(&self.calls[at]);
            let reached = move |site: &usize| match sites {
                Some(sites) => sites >> site & 1 == 1,
                None => self.sites[*site].bears(&self.calls[at].to),
            };
            let reached = (0..self.sites.len()).filter(reached);
            reached.filter(|site| self.listens(*site)).map(move |site| (at, site))
        })
    }

    /// Returns the sites that a message leads to, as bits, if there are bits for all sites.
    fn sites_of(&self, letter: &Letter) -> Option<u64> {
        let bit = |(at, site): (usize, &Arc<Site>), to: &NicPath| u64::from(site.bears(to)) << at;
        let find =
            |message: &Message| self.sites.iter().enumerate().map(|it| bit(it, &message.to)).sum();
        (self.sites.len() <= u64::BITS as usize).then(|| letter.sites(find))
    }

    fn distinct_answers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.answers.len()).filter(|at| !self.answers[..*at].contains(&self.answers[*at]))
    }

    /// Returns the first operation of each lifecycle, since operations of a lifecycle are performed
    /// in order.
    fn first_operations(&self) -> impl Iterator<Item = usize> + '_ {
        let owner = |at: usize| {
            let pending = &self.operations[at];
            (pending.site, pending.operation.id().lifecycle)
        };
        (0..self.operations.len())
            .filter(move |at| (0..*at).all(|earlier| owner(earlier) != owner(*at)))
            .filter(|at| self.can_end(&self.operations[*at]))
    }

    /// Whether an operation can end. A probe does not end before the peer has connected, as long as
    /// that may still happen: the device retries. A drain ends once all postings have completed and
    /// were polled.
    pub(crate) fn can_end(&self, pending: &Pending) -> bool {
        let lifecycle = match pending.operation {
            Operation::Probe { lifecycle } => lifecycle,
            Operation::Connect { local, .. } if self.is_managed() => {
                return self.can_end_connect(pending.site, local.lifecycle);
            }
            Operation::Drain { lifecycle } => return self.is_drained(pending.site, lifecycle),
            Operation::Retire { lifecycle } if self.is_shared() => {
                return self.is_apart(pending.site, lifecycle);
            }
            Operation::Retire { .. } if self.setup.devices.backend.retires_on_insert() => {
                let made = |other: &Arc<Pending>| {
                    let kind = other.operation.id().kind;
                    other.site == pending.site && kind == OperationKind::Create
                };
                return self.operations.iter().any(made);
            }
            _ => return true,
        };
        let target = self.fabric.of(pending.site, lifecycle).and_then(|qp| qp.target);
        let there = target.and_then(|target| self.fabric.at(target.site, target.number));
        let unconnected = there.is_some_and(|there| there.target.is_none() && !there.broken);
        !unconnected || self.nothing_arrives()
    }

    /// Returns queue pairs that may fail: (site, lifecycle, whether the failure is spontaneous). A
    /// published lane is posted to, and so detects at no cost that its peer is not connected back.
    fn live_lanes(&self) -> impl Iterator<Item = (usize, Lifecycle, bool)> + '_ {
        self.fabric.table.iter().filter(|qp| !qp.broken).filter_map(|qp| {
            let state = self.sites[qp.host].node.state_of(qp.lifecycle);
            let old = self.is_old(qp.site) && qp.published;
            let alive = old || state.is_some_and(|state| state != StateKind::Retiring);
            let posted = qp.published && !qp.revoked;
            // A legacy node posts before the other side may have connected, and the device retries.
            let tried_on = |to: Target| {
                let there = self.fabric.at(to.site, to.number);
                there.is_some_and(|there| there.target.is_none() && !there.broken)
            };
            let tried_on = old && qp.target.is_some_and(tried_on);
            let unprovoked = !posted || self.fabric.intact(qp) || tried_on;
            alive.then_some((qp.host, qp.lifecycle, unprovoked))
        })
    }

    /// Whether a call of this lifecycle, its answer, or the peer's pending answer is still in
    /// flight.
    pub(crate) fn awaits(&self, site: usize, lifecycle: Lifecycle) -> bool {
        let caller = self.pair(site, lifecycle);
        let ours = |path: &NicPath| self.host(self.site_at(caller.incarnation, path)) == site;
        let under_way = |call: &Arc<Letter>| call.sender == caller && ours(&call.from);
        self.calls.iter().any(|call| under_way(call) && !self.is_kept_out(call))
            || self.being_served().any(under_way)
            || self.answers.iter().any(|(_, to)| to.echo == Some(caller) && ours(&to.to))
            || self.held.iter().any(|held| held.sender == caller && held.from == site)
    }

    /// Whether the table is full, and an event that ends one of its lifecycles is pending.
    pub(crate) fn makes_room(&self, path: &NicPath) -> bool {
        let sites = (0..self.sites.len()).filter(|site| self.sites[*site].bears(path));
        sites.map(|site| self.host(site)).any(|site| {
            let node = &self.sites[site].node;
            let under_way = |own: Lifecycle| {
                let operated = |pending: &Arc<Pending>| {
                    pending.site == site && pending.operation.id().lifecycle == own
                };
                self.awaits(site, own) || self.operations.iter().any(operated)
            };
            node.lifecycles().count() >= self.setup.limits.lifecycles_max
                && node.lifecycles().any(|(own, state, ..)| state.is_ending() && under_way(own))
        })
    }

    /// Applies an action.
    pub fn apply(&mut self, choice: &Choice, step: &mut Step) {
        self.faults_spent += choice.cost;
        self.touched = 0;
        let arrived = self.receiver(&choice.action);
        self.remember(&choice.action);
        match &choice.action {
            Action::Command(at) => self.command(*at, step),
            Action::Ask(command) => self.ask(*command, step),
            Action::Call(at, site) => self.deliver_call(*at, *site, false, step),
            Action::DuplicateCall(at, site) => self.deliver_call(*at, *site, true, step),
            Action::Answer(at) => self.deliver_answer(*at, step),
            Action::Operation(at) => self.operate(*at, true, step),
            Action::FailOperation(at) => self.operate(*at, false, step),
            Action::StallOperation(at) => self.stall(*at, step),
            Action::Timer(site, timer) => self.fire(*site, timer, step),
            Action::Broken(site, lifecycle) | Action::LaneError(site, lifecycle) => {
                self.lane_error(*site, *lifecycle, step);
            }
            Action::ProtectionError(site, lifecycle) => {
                self.protection_error(*site, *lifecycle, step);
            }
            Action::LoseCall(at, told) => self.lose_call(*at, *told, step),
            Action::LoseAnswer(at, told) => self.lose_answer(*at, *told, step),
            Action::Restart(site) => self.restart(*site),
            Action::FailStep(at, call) => self.fail_step(*at, *call, step),
            Action::Disturb(disturbance) => self.disturb(*disturbance),
            Action::Submit(index) => self.submit(*index, step),
            Action::Cancel(index) => self.give_up(*index, false, step),
            Action::Deadline(index) => self.give_up(*index, true, step),
            Action::Packet(at) => self.deliver_packet(*at, false),
            Action::DuplicatePacket(at) => self.deliver_packet(*at, true),
            Action::LosePacket(at) => self.fabric.verbs.lose(*at),
            Action::Completion(site) => self.poll_completion(*site, step),
            Action::Exhaust(site, number) => self.fabric.verbs.exhaust(*site, *number),
            Action::Probe(site, lane) => self.end_probe(*site, *lane, step),
            Action::TargetTimer(site, at, timer) => self.fire_target(*site, *at, *timer, step),
            Action::Frame(site, lane) => self.receive_frame(*site, *lane, step),
            Action::Piece(site, lane, at) => self.copy_piece(*site, *lane, *at, step),
            Action::ReadEnd(site, lane) => self.read_end(*site, *lane, step),
            Action::SeeDeath(site, lane) => self.see_death(*site, *lane, step),
            Action::BreakChannel(site, lane) => self.break_channel(*site, *lane),
            Action::HeldRetire(at) => self.fail_held_retire(*at, step),
            Action::Unregister(site) => self.unregister(*site, step),
            Action::Notice(link, side) => self.deliver_notice(*link, *side, step),
            Action::LoseNotice(link, side) => self.lose_notice(*link, *side),
            Action::RepeatRequest(link) => self.repeat_request(*link, step),
            Action::ForgeRequest(nic, lane) => self.forge_request(*nic, *lane, step),
            Action::ForgeAnswer(link) => self.forge_answer(*link),
            Action::DialOverdue(site, lane) => {
                self.check_overdue((*site, *lane), choice.cost, step);
                self.dial_overdue(*site, *lane, step);
            }
        }
        self.settle_connections(step);
        self.settle_data(arrived, step);
        self.prune();
    }

    /// Describes an action before it is applied.
    pub fn describe(&self, action: &Action) -> String {
        let site = |site: &usize| self.describe_site(*site);
        let call = |at: &usize| self.describe_message(&self.calls[*at]);
        let answer = |at: &usize| self.describe_message(&self.answers[*at].1);
        let operation = |at: &usize| {
            let id = self.operations[*at].operation.id();
            let of = self.describe_own(self.operations[*at].site, id.lifecycle);
            format!("{:?} of {of}", id.kind)
        };
        let lane = |site: &usize, lifecycle: &Lifecycle| self.describe_own(*site, *lifecycle);
        let noticed =
            |noticed: &bool| if *noticed { "the caller notices" } else { "nobody notices" };
        match action {
            Action::Command(at) => self.describe_command(self.commands[*at]),
            Action::Ask(command) => self.describe_command(*command),
            Action::Call(at, to) => format!("{} receives {}", site(to), call(at)),
            Action::DuplicateCall(at, to) => {
                format!("{} receives one copy of {}", site(to), call(at))
            }
            Action::Answer(at) => {
                let (run, message) = &self.answers[*at];
                format!("{} gets {}", site(&self.site_at(*run, &message.to)), answer(at))
            }
            Action::Operation(at) => format!("{} is done", operation(at)),
            Action::FailOperation(at) => format!("{} fails", operation(at)),
            Action::StallOperation(at) => format!("{} never ends", operation(at)),
            Action::Timer(at, timer) => self.describe_timer(*at, timer),
            Action::Broken(at, lifecycle) => {
                format!("{} sees an error: its peer is not connected back", lane(at, lifecycle))
            }
            Action::LaneError(at, lifecycle) => format!("{} sees an error", lane(at, lifecycle)),
            Action::ProtectionError(at, lifecycle) => {
                format!("{} was used for an access that is not allowed", lane(at, lifecycle))
            }
            Action::LoseCall(at, is_told) => format!("{} is lost, {}", call(at), noticed(is_told)),
            Action::LoseAnswer(at, is_told) => {
                format!("{} is lost, {}", answer(at), noticed(is_told))
            }
            Action::Restart(at) => format!("{} crashes and restarts", site(at)),
            Action::FailStep(at, call) => format!("{} fails at {call}", operation(at)),
            Action::Disturb(disturbance) => self.describe_disturbance(*disturbance),
            Action::Submit(index) => format!("transfer {index} is submitted"),
            Action::Cancel(index) => format!("transfer {index} is cancelled"),
            Action::Deadline(index) => format!("the deadline of transfer {index} passes"),
            Action::Packet(at) => format!("{} arrives", self.describe_packet(*at)),
            Action::DuplicatePacket(at) => {
                format!("one copy of {} arrives", self.describe_packet(*at))
            }
            Action::LosePacket(at) => format!("{} is lost", self.describe_packet(*at)),
            Action::Completion(at) => format!("{} polls a completion", site(at)),
            Action::Exhaust(at, number) => {
                format!("queue pair {number} of {} has no answer and gives up", site(at))
            }
            Action::Probe(at, lifecycle) => format!("the probe of {} ends", lane(at, lifecycle)),
            Action::TargetTimer(at, _, timer) => {
                format!("timer {timer:?} of the transfers of {} fires", site(at))
            }
            Action::Unregister(at) => format!("{} unregisters its memory", site(at)),
            Action::Notice(..)
            | Action::LoseNotice(..)
            | Action::RepeatRequest(_)
            | Action::ForgeRequest(..)
            | Action::ForgeAnswer(_)
            | Action::DialOverdue(..) => self.describe_connection(action),
            Action::Frame(..)
            | Action::Piece(..)
            | Action::ReadEnd(..)
            | Action::SeeDeath(..)
            | Action::BreakChannel(..)
            | Action::HeldRetire(_) => self.describe_channel(action),
        }
    }

    fn describe_command(&self, command: Command) -> String {
        let (site, peer) = (self.describe_site(command.site), self.describe_site(command.peer));
        let verb = match command.kind {
            CommandKind::Open => "opens towards",
            CommandKind::Close => "closes towards",
            CommandKind::Release => "has no work for",
            CommandKind::Restart => return format!("{site} is restarted"),
        };
        format!("{site} {verb} {peer}")
    }

    fn describe_timer(&self, site: usize, timer: &TimerId) -> String {
        let kind = self.sites[site].node.timers().find(|(id, ..)| id == timer);
        let kind = kind.map(|(_, _, kind)| format!("{kind:?}")).unwrap_or_default();
        match timer {
            TimerId::Lifecycle(lifecycle) => {
                format!("timer {kind} of {} fires", self.describe_own(site, *lifecycle))
            }
            TimerId::Peer(_) => format!("timer {kind} of {} fires", self.describe_site(site)),
        }
    }
}

/// A digest of a pair, equal for equal ones.
fn digest(pair: Pair) -> u64 {
    pair.incarnation.0 as u64 ^ pair.lifecycle.0.rotate_left(u64::BITS / 2)
}
