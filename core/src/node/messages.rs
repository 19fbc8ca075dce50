//! What a message does (rules H1 to H6 and H10).

use super::api::*;
use super::lane::{Held, Lane, State, StateKind};
use super::machine::{Live, Node};
use crate::identity::{Lifecycle, NicPath, Pair};
use crate::time::Instant;
use crate::transport::Operation;
use crate::wire::{Message, Op, RefusalReason};
use alloc::format;

impl Node {
    pub(super) fn handle_call(&mut self, now: Instant, token: CallToken, message: Message) {
        if message.to != self.config.path {
            let detail = format!("this is {}, not {}", self.config.path, message.to);
            let reason = RefusalReason::Configuration;
            self.reject(token, message.sender, &message.from, reason, detail);
            return;
        }
        match message.op {
            Op::Request => self.on_request(now, token, &message),
            Op::Ready => self.on_ready(now, token, &message),
            _ => {
                let detail = format!("{:?} is no call", message.op);
                let reason = RefusalReason::Protection;
                self.reject(token, message.sender, &message.from, reason, detail);
            }
        }
    }

    pub(super) fn handle_answer(&mut self, now: Instant, message: Message) {
        let Some(echo) = message.echo.filter(|echo| echo.incarnation == self.config.incarnation)
        else {
            self.counters.ignored += 1;
            return;
        };
        let known = self.lanes.get(&echo.lifecycle).is_some_and(|lane| lane.peer == message.from);
        match message.op {
            _ if !known => self.counters.ignored += 1,
            Op::Reply => self.on_reply(now, echo.lifecycle, &message),
            Op::Ack => self.on_ack(echo.lifecycle, message.sender),
            Op::Refuse => self.on_refuse(now, echo.lifecycle, message),
            _ => self.counters.ignored += 1,
        }
    }

    fn on_request(&mut self, now: Instant, token: CallToken, message: &Message) {
        let path = &message.from;
        let limits = self.config.limits;
        if !self.peers.contains_key(path) && self.peers.len() >= limits.peers_max {
            let detail = format!("{} peers are known, the limit", limits.peers_max);
            self.reject(token, message.sender, path, RefusalReason::Busy, detail);
            return;
        }
        let bound = self.peers.get(path).and_then(|peer| peer.bound);
        let remote = bound.and_then(|bound| self.lanes[&bound].state.remote());
        if let (Some(bound), Some(remote)) = (bound, remote)
            && remote.incarnation == message.sender.incarnation
        {
            if message.sender.lifecycle == remote.lifecycle {
                let message = self.message(bound, Op::Reply, Some(remote));
                self.outputs.push_back(Output::Answer { token, message });
                return;
            }
            if message.sender.lifecycle < remote.lifecycle {
                let detail = format!("lifecycle {} took its place", remote.lifecycle.0);
                self.reject(token, message.sender, path, RefusalReason::Superseded, detail);
                return;
            }
            self.end(now, bound, Failure::Superseded);
        }
        self.announce(now, token, path, message.sender);
    }

    /// Answers with the one lifecycle that waits for an echo, raising it if there is none.
    fn announce(&mut self, now: Instant, token: CallToken, path: &NicPath, sender: Pair) {
        let open = self.peers.get(path).and_then(|peer| peer.open);
        let Some(lifecycle) = open.or_else(|| self.raise(now, path)) else {
            let detail = "the table of lifecycles is full".into();
            self.reject(token, sender, path, RefusalReason::Busy, detail);
            return;
        };
        if let Some(peer) = self.peers.get_mut(path) {
            peer.backoff = None;
        }
        match self.lanes[&lifecycle].state.kind() {
            StateKind::Raising => self.hold(lifecycle, token, sender),
            _ => {
                let message = self.message(lifecycle, Op::Reply, Some(sender));
                self.outputs.push_back(Output::Answer { token, message });
            }
        }
    }

    fn hold(&mut self, lifecycle: Lifecycle, token: CallToken, sender: Pair) {
        let held_max = self.config.limits.answers_held_max;
        let Some(lane) = self.lanes.get_mut(&lifecycle) else { return };
        if lane.held.len() < held_max {
            lane.held.push(Held { token, sender });
            return;
        }
        let path = lane.peer.clone();
        let detail = format!("{held_max} calls wait already");
        self.reject(token, sender, &path, RefusalReason::Busy, detail);
    }

    fn on_ready(&mut self, now: Instant, token: CallToken, message: &Message) {
        let echo = message.echo.filter(|echo| echo.incarnation == self.config.incarnation);
        let lane = echo.and_then(|echo| Some((echo.lifecycle, self.lanes.get(&echo.lifecycle)?)));
        let Some((lifecycle, lane)) = lane.filter(|(_, lane)| {
            lane.peer == message.from && lane.state.kind() != StateKind::Retiring
        }) else {
            let detail = "the echoed lifecycle does not exist".into();
            self.reject(token, message.sender, &message.from, RefusalReason::Gone, detail);
            return;
        };
        match lane.state.remote() {
            None => {
                if self.bind(now, lifecycle, message, true) {
                    self.hold(lifecycle, token, message.sender);
                } else {
                    let detail = "another incarnation bears this name".into();
                    let reason = RefusalReason::NameConflict;
                    self.reject(token, message.sender, &message.from, reason, detail);
                }
            }
            Some(remote) if remote == message.sender => {
                self.hold(lifecycle, token, message.sender);
                self.on_peer_wired(lifecycle, remote);
            }
            Some(_) => {
                let detail = "the echoed lifecycle is paired with another".into();
                let reason = RefusalReason::Superseded;
                self.reject(token, message.sender, &message.from, reason, detail);
            }
        }
    }

    fn on_peer_wired(&mut self, lifecycle: Lifecycle, remote: Pair) {
        let Some(lane) = self.lanes.get_mut(&lifecycle) else { return };
        match &mut lane.state {
            State::Fencing { peer_wired, .. } | State::Wiring { peer_wired, .. } => {
                *peer_wired = true;
            }
            State::Wired { .. } => self.establish(lifecycle, remote),
            State::Established { .. } => {
                for held in core::mem::take(&mut lane.held) {
                    let message = self.message(lifecycle, Op::Ack, Some(held.sender));
                    self.outputs.push_back(Output::Answer { token: held.token, message });
                }
            }
            _ => {}
        }
    }

    fn on_reply(&mut self, now: Instant, lifecycle: Lifecycle, message: &Message) {
        match self.lanes[&lifecycle].state.kind() {
            StateKind::Announced => {
                self.bind(now, lifecycle, message, false);
            }
            _ => self.counters.ignored += 1,
        }
    }

    fn on_ack(&mut self, lifecycle: Lifecycle, sender: Pair) {
        match self.lanes[&lifecycle].state {
            State::Wired { remote, .. } if remote == sender => self.establish(lifecycle, remote),
            _ => self.counters.ignored += 1,
        }
    }

    fn on_refuse(&mut self, now: Instant, lifecycle: Lifecycle, message: Message) {
        let Some(refusal) = message.refusal else { return };
        match refusal.reason {
            RefusalReason::Busy | RefusalReason::Starting => {
                let path = self.lanes[&lifecycle].peer.clone();
                let peer = self.peers.entry(path).or_default();
                peer.first_failure.get_or_insert(Failure::Refused(refusal));
            }
            _ => self.end(now, lifecycle, Failure::Refused(refusal)),
        }
    }

    /// An unbound lifecycle of ours was echoed. It was issued after the present holder of the name
    /// had proven itself, so the echo proves that its sender was alive later (rule H5).
    fn bind(&mut self, now: Instant, lifecycle: Lifecycle, message: &Message, wired: bool) -> bool {
        let path = message.from.clone();
        let remote = message.sender;
        let since = Lifecycle(self.next_lifecycle);
        let live = self.peers.get(&path).and_then(|peer| peer.live);
        let Some(peer) = self.peers.get_mut(&path) else { return false };
        if let Some(live) = live.filter(|live| live.incarnation != remote.incarnation) {
            let (old, new) = (live.incarnation, remote.incarnation);
            if peer.superseded.contains(&new) {
                self.emit(Event::NameConflict { peer: path, live: old, other: new });
                return false;
            }
            Self::remember_superseded(peer, old);
            self.emit(Event::PeerRestarted { peer: path.clone(), old, new });
        }
        let Some(peer) = self.peers.get_mut(&path) else { return false };
        peer.live = Some(Live { incarnation: remote.incarnation, since });
        peer.open = None;
        let previous = peer.bound.replace(lifecycle);
        peer.backoff = None;
        if let Some(previous) = previous {
            self.end(now, previous, Failure::Superseded);
        }
        if let Some(lane) = self.lanes.get_mut(&lifecycle) {
            let body = message.body.clone();
            lane.state = State::Fencing { remote, body, peer_wired: wired };
        }
        self.arm(lifecycle, now + self.config.timing.operation, TimerKind::Operation);
        self.wire_when_fenced(now, lifecycle);
        true
    }

    /// Wires once no earlier lane to this peer remains (rules H6 and H12): a lane that the peer is
    /// known to have wired proves that nothing posted on an earlier one can land any more.
    pub(super) fn wire_when_fenced(&mut self, now: Instant, lifecycle: Lifecycle) {
        let Some(lane) = self.lanes.get(&lifecycle) else { return };
        let State::Fencing { remote, body, peer_wired } = lane.state.clone() else { return };
        let earlier = |(number, other): (&Lifecycle, &Lane)| {
            *number != lifecycle && other.peer == lane.peer && other.state.remote().is_some()
        };
        if self.lanes.iter().any(earlier) {
            return;
        }
        let local = self.pair(lifecycle);
        if let Some(lane) = self.lanes.get_mut(&lifecycle) {
            lane.state = State::Wiring { remote, peer_wired };
        }
        self.arm(lifecycle, now + self.config.timing.operation, TimerKind::Operation);
        self.outputs.push_back(Output::Operate(Operation::Wire { local, remote, body }));
    }
}
