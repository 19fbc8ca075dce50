//! The effects of a message (rules H1 to H7 and H10).

use super::api::*;
use super::lane::{Held, State, StateKind};
use super::machine::Node;
use super::peers::{Fence, Peer, Proof};
use super::transitions::Trigger;
use crate::identity::{Lifecycle, NicPath, Pair};
use crate::time::Instant;
use crate::transport::Operation;
use crate::wire::{Message, Op, Refusal, RefusalReason};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

impl Node {
    pub(super) fn handle_call(&mut self, now: Instant, token: CallToken, message: Message) {
        let own = message.from.seen_from(&self.config.path);
        if message.to != own {
            let detail = format!("this is {own}, not {}", message.to);
            self.reject(token, &message, RefusalReason::Configuration, detail);
            return;
        }
        match message.op {
            Op::Request => self.on_request(now, Held { token, message }),
            Op::Ready => self.on_ready(now, Held { token, message }),
            Op::Quiesce => self.on_quiesce(now, Held { token, message }),
            _ => {
                let detail = format!("{:?} is no call", message.op);
                self.reject(token, &message, RefusalReason::Protection, detail);
            }
        }
    }

    pub(super) fn handle_answer(&mut self, now: Instant, message: Message) {
        let Some(echo) = message.echo.filter(|echo| echo.incarnation == self.config.incarnation)
        else {
            self.counters.ignored += 1;
            return;
        };
        let lifecycle = self.answered(echo.lifecycle, &message.from);
        match (lifecycle, message.op) {
            (Some(lifecycle), Op::Reply) => self.on_reply(now, lifecycle, &message),
            (Some(lifecycle), Op::Ack) => self.on_ack(now, lifecycle, message.sender),
            (Some(lifecycle), Op::Retired) => {
                self.on_retired_there(now, lifecycle, message.sender);
            }
            (Some(lifecycle), Op::Refuse) => self.on_refuse(now, lifecycle, message),
            _ => self.counters.ignored += 1,
        }
    }

    /// The lifecycle that an answer is about, unless it is gone, going or not announced.
    fn answered(&self, echo: Lifecycle, from: &NicPath) -> Option<Lifecycle> {
        let gone = self.state_of(echo).is_none_or(|state| state == StateKind::Retiring);
        let lane = self.lanes.get(&echo)?;
        // No peer has heard of this lifecycle, so an answer to it is forged.
        let unheard = lane.state.kind() == StateKind::Creating;
        let current = lane.peer == *from && !unheard && !gone;
        current.then_some(echo)
    }

    fn on_request(&mut self, now: Instant, call: Held) {
        let (path, sender) = (call.message.from.clone(), call.message.sender);
        let open = self.peers.get(&path).and_then(|peer| peer.open);
        let bound = self.bound(&path);
        let current = bound.filter(|(_, remote)| remote.incarnation == sender.incarnation);
        let same = bound.filter(|(_, remote)| *remote == sender);
        if let Some((bound, _)) = same {
            self.answer_request(now, bound, call);
            return;
        }
        if let Some(newer) = self.passed_over(&path, open, sender) {
            self.reject_superseded(call, newer);
            return;
        }
        let echoed = open.filter(|open| call.message.echo == Some(self.pair(*open)));
        if let Some(echoed) = echoed.filter(|open| self.is_announced(*open)) {
            if self.crowded(echoed, |held| held.message.sender == sender) {
                self.reject_busy(call);
                return;
            }
            match self.bind(now, echoed, &call.message, false) {
                Proof::Holds => self.answer_request(now, echoed, call),
                proof => self.reject_unproven(call, proof),
            }
            return;
        }
        if open.is_none() && !self.has_capacity() {
            let detail = "the table of lifecycles is full".into();
            if !self.room_is_coming() && self.evict(now) {
                // Refused, and yet not for nothing: asked again, it finds room (rule H11).
                let sender = self.pair(Lifecycle(0));
                self.refuse(call.token, sender, &call.message, RefusalReason::Busy, detail);
                return;
            }
            self.reject(call.token, &call.message, RefusalReason::Busy, detail);
            return;
        }
        if !self.admit(&path) {
            let detail = format!("{} peers are known, the limit", self.config.limits.peers_max);
            self.reject(call.token, &call.message, RefusalReason::Busy, detail);
            return;
        }
        if open.is_some_and(|open| self.crowded(open, |_| true)) {
            self.reject_busy(call);
            return;
        }
        if let Some((bound, _)) = current {
            self.end(now, bound, Failure::Superseded);
        }
        let Some(lifecycle) = open.or_else(|| self.create_endpoint(now, &path)) else { return };
        self.change_waits(&path, Peer::stop_waiting);
        self.answer_request(now, lifecycle, call);
    }

    /// The pair that a request comes too late after: the last one bound, or a later one that the
    /// open lifecycle was offered to.
    fn passed_over(&self, path: &NicPath, open: Option<Lifecycle>, sender: Pair) -> Option<Pair> {
        let last = self.peers.get(path).and_then(|peer| peer.last);
        let last = last.filter(|last| sender == *last || is_older(sender, *last));
        let offered = open.and_then(|open| self.offered(open));
        last.or_else(|| offered.filter(|offered| is_older(sender, *offered)))
    }

    /// Replies to a request with a lifecycle, which permits its sender to connect to it: only
    /// once no earlier lane of ours could be hit or hit it (rule H6), and to one pair only.
    fn answer_request(&mut self, now: Instant, lifecycle: Lifecycle, call: Held) {
        let sender = call.message.sender;
        match self.lanes[&lifecycle].state.kind() {
            StateKind::Announced => {
                let offered = self.offered(lifecycle);
                let taken = offered.is_some_and(|to| to.incarnation != sender.incarnation);
                match self.fence(lifecycle, &call.message.from, sender) {
                    Fence::Retiring => return self.hold(lifecycle, call),
                    Fence::Clear if !taken => {}
                    Fence::Clear | Fence::InUse => return self.ask_for_proof(lifecycle, &call),
                }
                self.offer(now, lifecycle, sender);
            }
            StateKind::Creating | StateKind::Fencing => return self.hold(lifecycle, call),
            StateKind::Draining | StateKind::Quiescing => return self.reject_ending(call),
            _ => {}
        }
        let message = self.message(lifecycle, Op::Reply, Some(sender));
        self.outputs.push_back(Output::Answer { token: call.token, message });
    }

    /// Offers the lifecycle to a pair, which has the whole of `half_open` to echo it however long the
    /// offer waited for the retire of earlier lanes. Repeated requests of the pair extend nothing.
    fn offer(&mut self, now: Instant, lifecycle: Lifecycle, sender: Pair) {
        let half_open = now + self.config.timing.half_open;
        let Some(lane) = self.lanes.get_mut(&lifecycle) else { return };
        let State::Announced(announcement) = &mut lane.state else { return };
        let first = announcement.offered.replace(sender) != Some(sender);
        if first && matches!(lane.timer, Some((_, TimerKind::HalfOpen))) {
            self.arm(lifecycle, half_open, TimerKind::HalfOpen);
        }
    }

    /// Refuses so that the sender asks again and echoes `lifecycle`, which proves that it is alive
    /// now, before it is permitted to connect.
    fn ask_for_proof(&mut self, lifecycle: Lifecycle, call: &Held) {
        let detail = format!("lifecycle {} must be echoed first", lifecycle.0);
        let sender = self.pair(lifecycle);
        self.refuse(call.token, sender, &call.message, RefusalReason::Unproven, detail);
    }

    fn hold(&mut self, lifecycle: Lifecycle, call: Held) {
        let held_max = self.config.limits.answers_held_max;
        let Some(lane) = self.lanes.get_mut(&lifecycle) else { return };
        if lane.held.len() < held_max {
            lane.held.push(call);
            return;
        }
        self.reject_busy(call);
    }

    fn crowded(&self, lifecycle: Lifecycle, counts: impl Fn(&Held) -> bool) -> bool {
        let held = self.lanes.get(&lifecycle).map(|lane| lane.held.iter());
        let held = held.map_or(0, |held| held.filter(|held| counts(held)).count());
        held >= self.config.limits.answers_held_max
    }

    /// Calls that wait for a lifecycle which now belongs to another pair wait in vain.
    pub(super) fn dismiss_others(&mut self, lifecycle: Lifecycle, remote: Pair) {
        let Some(lane) = self.lanes.get_mut(&lifecycle) else { return };
        let others = lane.held.extract_if(.., |held| held.message.sender != remote);
        for other in others.collect::<Vec<_>>() {
            let detail = "another pair was faster".into();
            let sender = self.pair(Lifecycle(0));
            self.refuse(other.token, sender, &other.message, RefusalReason::Busy, detail);
        }
    }

    /// Busy and not gone: the quiesce that is coming ends the pair, and lets its work end first
    /// (rule H11).
    fn reject_ending(&mut self, call: Held) {
        let detail = "the lane is being retired".into();
        self.reject(call.token, &call.message, RefusalReason::Busy, detail);
    }

    fn reject_busy(&mut self, call: Held) {
        let detail = format!("{} calls wait already", self.config.limits.answers_held_max);
        self.reject(call.token, &call.message, RefusalReason::Busy, detail);
    }

    /// Takes the calls that waited for a lifecycle again.
    pub(super) fn release(&mut self, now: Instant, lifecycle: Lifecycle) {
        self.release_plain(now, lifecycle);
        let Some(lane) = self.lanes.get_mut(&lifecycle) else { return };
        for held in core::mem::take(&mut lane.held) {
            self.handle_call(now, held.token, held.message);
        }
    }

    fn on_ready(&mut self, now: Instant, call: Held) {
        let message = &call.message;
        let echo = message.echo.filter(|echo| echo.incarnation == self.config.incarnation);
        let own = echo.map(|echo| echo.lifecycle);
        let lane = own.and_then(|own| Some((own, self.lanes.get(&own)?)));
        let Some((lifecycle, lane)) = lane.filter(|(_, lane)| {
            let gone = matches!(lane.state.kind(), StateKind::Creating | StateKind::Retiring);
            lane.peer == message.from && !gone
        }) else {
            let detail = "the echoed lifecycle does not exist".into();
            self.reject(call.token, message, RefusalReason::Gone, detail);
            return;
        };
        match lane.state.remote() {
            None => {
                let offered = self.offered(lifecycle);
                if let Some(newer) = offered.filter(|offered| is_older(message.sender, *offered)) {
                    self.reject_superseded(call, newer);
                    return;
                }
                match self.bind(now, lifecycle, message, true) {
                    Proof::Holds => self.hold(lifecycle, call),
                    proof => self.reject_unproven(call, proof),
                }
            }
            Some(remote) if remote == message.sender => {
                self.on_peer_connected(now, lifecycle, call);
            }
            Some(remote) => self.reject_superseded(call, remote),
        }
    }

    fn on_peer_connected(&mut self, now: Instant, lifecycle: Lifecycle, call: Held) {
        if self.state_of(lifecycle).is_some_and(StateKind::is_ending) {
            return self.reject_ending(call);
        }
        let message = self.message(lifecycle, Op::Ack, Some(call.message.sender));
        match self.state_mut(lifecycle) {
            Some(
                State::Fencing { peer_connected, .. } | State::Connecting { peer_connected, .. },
            ) => {
                *peer_connected = true;
                self.hold(lifecycle, call);
            }
            Some(State::Connected { remote, .. }) => {
                let remote = *remote;
                self.outputs.push_back(Output::Answer { token: call.token, message });
                self.establish(now, lifecycle, remote, Trigger::PeerConnected);
            }
            _ => self.outputs.push_back(Output::Answer { token: call.token, message }),
        }
    }

    fn on_reply(&mut self, now: Instant, lifecycle: Lifecycle, message: &Message) {
        let offered = self.offered(lifecycle);
        let older = offered.is_some_and(|offered| is_older(message.sender, offered));
        if older || !self.is_announced(lifecycle) {
            self.counters.ignored += 1;
            return;
        }
        if let Proof::Conflict = self.bind(now, lifecycle, message, false) {
            let detail = format!("another live process bears the name {}", message.from.node);
            let refusal = Refusal { reason: RefusalReason::NameConflict, detail };
            self.end(now, lifecycle, Failure::Refused(refusal));
        }
    }

    fn on_ack(&mut self, now: Instant, lifecycle: Lifecycle, sender: Pair) {
        match self.lanes[&lifecycle].state {
            State::Connected { remote, .. } if remote == sender => {
                self.establish(now, lifecycle, remote, Trigger::PeerConnected);
            }
            _ => self.counters.ignored += 1,
        }
    }

    fn on_refuse(&mut self, now: Instant, lifecycle: Lifecycle, message: Message) {
        let Some(refusal) = message.refusal else { return };
        match &self.lanes[&lifecycle].state {
            // It answers a call of before: what was asked for has been had since.
            State::Established { .. } | State::Draining { .. } => {
                self.counters.ignored += 1;
                return;
            }
            State::Quiescing { remote, .. } => {
                if refusal.reason == RefusalReason::Gone && *remote == message.sender {
                    self.on_agreed(now, lifecycle);
                } else {
                    self.counters.ignored += 1;
                }
                return;
            }
            _ => {}
        }
        match refusal.reason {
            RefusalReason::Busy | RefusalReason::Starting => {
                let path = self.lanes[&lifecycle].peer.clone();
                let peer = self.peers.entry(path).or_default();
                peer.first_failure.get_or_insert(Failure::Refused(refusal));
            }
            RefusalReason::Unproven => self.on_unproven(now, lifecycle, message.sender),
            _ => self.end(now, lifecycle, Failure::Refused(refusal)),
        }
    }

    /// The peer wants its pair echoed. An echo permits it to connect, as a reply does: a lifecycle
    /// that was offered to another incarnation is worth nothing any more.
    fn on_unproven(&mut self, now: Instant, lifecycle: Lifecycle, prove: Pair) {
        let Some(State::Announced(announcement)) = self.state_mut(lifecycle) else {
            self.counters.ignored += 1;
            return;
        };
        let offered = announcement.offered;
        if announcement.prove == Some(prove) || offered.is_some_and(|to| is_older(prove, to)) {
            self.counters.ignored += 1;
            return;
        }
        if offered.is_some_and(|to| to.incarnation != prove.incarnation) {
            self.end(now, lifecycle, Failure::Superseded);
            return;
        }
        announcement.prove = Some(prove);
        self.probe_when_fenced(now, lifecycle);
    }

    /// Sends the echo that was asked for once no earlier lane of ours could hit or be hit (rule H6).
    pub(super) fn probe_when_fenced(&mut self, now: Instant, lifecycle: Lifecycle) {
        let leave = self.leave_to_prove(lifecycle);
        if leave.is_some() && leave != self.offered(lifecycle) {
            self.send_request(now, lifecycle);
        }
    }

    /// The pair that the next request may echo.
    pub(super) fn leave_to_prove(&self, lifecycle: Lifecycle) -> Option<Pair> {
        let lane = self.lanes.get(&lifecycle)?;
        let State::Announced(announcement) = &lane.state else { return None };
        let clear = |prove: Pair| self.fence(lifecycle, &lane.peer, prove) == Fence::Clear;
        let latest = |prove: Pair| {
            let offered = announcement.offered;
            offered.is_none_or(|to| to.incarnation == prove.incarnation && !is_older(prove, to))
        };
        let prove = announcement.prove.filter(|to| latest(*to));
        prove.filter(|prove| clear(*prove))
    }

    /// An unbound lifecycle of ours was echoed. It was issued after the present holder of the name
    /// had proven itself, so the echo proves that its sender was alive later (rule H5).
    fn bind(
        &mut self,
        now: Instant,
        lifecycle: Lifecycle,
        message: &Message,
        connected: bool,
    ) -> Proof {
        let (path, remote) = (message.from.clone(), message.sender);
        let proof = self.verify_proof(lifecycle, &path, remote);
        match proof {
            Proof::Holds => {}
            Proof::Conflict => {
                let live = self.names.get(&path.node).and_then(|name| name.live);
                let live = live.map_or(remote.incarnation, |live| live.incarnation);
                self.emit(Event::NameConflict { peer: path, live, other: remote.incarnation });
                return proof;
            }
            Proof::Stale => {
                self.end(now, lifecycle, Failure::Superseded);
                return proof;
            }
        }
        self.change_waits(&path, Peer::stop_waiting);
        let previous = self.peers.get_mut(&path).and_then(|peer| {
            peer.open = None;
            peer.plain = false;
            peer.last = Some(remote);
            peer.bound.replace(lifecycle)
        });
        self.set_live_incarnation(now, &path, remote.incarnation);
        if let Some(previous) = previous {
            self.end(now, previous, Failure::Superseded);
        }
        self.dismiss_others(lifecycle, remote);
        let body = message.body.clone();
        let next = State::Fencing { remote, body, peer_connected: connected };
        self.transit(lifecycle, Trigger::Echoed, next);
        self.arm(lifecycle, now + self.config.timing.operation, TimerKind::Operation);
        self.connect_when_fenced(now, lifecycle);
        proof
    }

    /// Wires once no earlier lane to this peer remains (rules H6 and H12): a lane that the peer is
    /// known to have connected proves that nothing posted on an earlier one can land any more.
    pub(super) fn connect_when_fenced(&mut self, now: Instant, lifecycle: Lifecycle) {
        let Some(lane) = self.lanes.get(&lifecycle) else { return };
        let State::Fencing { remote, body, peer_connected } = lane.state.clone() else { return };
        let fence = self.fence(lifecycle, &lane.peer, remote);
        if fence != Fence::Clear {
            return;
        }
        let local = self.pair(lifecycle);
        self.transit(lifecycle, Trigger::Fenced, State::Connecting { remote, peer_connected });
        self.arm(lifecycle, now + self.config.timing.operation, TimerKind::Operation);
        self.outputs.push_back(Output::Operate(Operation::Connect { local, remote, body }));
        self.release(now, lifecycle);
    }

    fn is_announced(&self, lifecycle: Lifecycle) -> bool {
        self.state_of(lifecycle) == Some(StateKind::Announced)
    }

    fn reject_superseded(&mut self, call: Held, by: Pair) {
        let detail = format!("lifecycle {} took its place", by.lifecycle.0);
        self.reject(call.token, &call.message, RefusalReason::Superseded, detail);
    }

    fn reject_unproven(&mut self, call: Held, proof: Proof) {
        let (reason, detail): (_, String) = match proof {
            Proof::Conflict => {
                (RefusalReason::NameConflict, "another incarnation bears this name".into())
            }
            _ => (RefusalReason::Gone, "the echoed lifecycle proves nothing any more".into()),
        };
        self.refuse(call.token, self.pair(Lifecycle(0)), &call.message, reason, detail);
    }
}

/// The same incarnation, and an earlier lifecycle of it.
fn is_older(sender: Pair, than: Pair) -> bool {
    !sender.is_legacy()
        && sender.incarnation == than.incarnation
        && sender.lifecycle < than.lifecycle
}
