//! Handshake with a legacy Mooncake node, which has no handfast key (rule H13).
//!
//! It echoes nothing and has no incarnation, so only the list of its queue pairs separates its
//! incarnations. The passive side connects before it replies, and no lane is usable before a probe
//! has been answered.

use super::api::{CallToken, Failure, Output, TimerKind};
use super::lane::{PlainCall, State, StateKind};
use super::machine::Node;
use super::peers::{Fence, Peer};
use super::transitions::Trigger;
use crate::entropy::{Purpose, derive};
use crate::identity::{Lifecycle, NicPath, Pair};
use crate::time::Instant;
use crate::transport::Operation;
use crate::wire::{Body, PlainMessage, Refusal, RefusalReason};
use alloc::string::String;
use alloc::vec::Vec;

/// Most queue pairs skipped to make numbers fresh.
const SKIP_MAX: u64 = 16;

impl Node {
    pub(super) fn handle_plain_call(
        &mut self,
        now: Instant,
        token: CallToken,
        message: PlainMessage,
    ) {
        let ours = message.to.as_ref() == Some(&self.config.path);
        let Some(path) = message.from.clone().filter(|_| ours) else {
            return self.reject_plain(token, "peer nic path inconsistency");
        };
        if message.body.queue_pairs.is_empty() {
            return self.reject_plain(token, "no queue pairs are announced");
        }
        let call = PlainCall { token, message };
        if call.message.ready == Some(true) {
            self.on_plain_ready(now, &path, call);
        } else {
            self.on_plain_request(now, &path, call);
        }
    }

    fn on_plain_request(&mut self, now: Instant, path: &NicPath, call: PlainCall) {
        let remote = Pair::legacy(&call.message.body.queue_pairs);
        let bound = self.bound(path);
        // Once work was posted on a lane, its peer has no reason to ask again: a request with the
        // same queue pairs now comes from a restarted node with the same numbers, and expects fresh
        // local ones.
        let posted = |own: &Lifecycle| {
            matches!(self.state_of(*own), Some(StateKind::Probing | StateKind::Legacy))
        };
        let same = bound.filter(|(own, to)| *to == remote && !posted(own));
        if let Some((lifecycle, _)) = same {
            return self.answer_plain(lifecycle, call);
        }
        if bound.is_some_and(|(_, to)| !to.is_legacy()) {
            return self
                .reject_plain(call.token, "a run of this name that has proven itself is paired");
        }
        let open = self.peers.get(path).and_then(|peer| peer.open);
        if open.is_some_and(|open| self.plain_held(open) >= self.config.limits.answers_held_max) {
            return self.reject_plain(call.token, "too many calls wait");
        }
        let offered = open.and_then(|open| self.offered(open));
        let keyed = |own: &Lifecycle| {
            let lane = &self.lanes[own];
            lane.state.remote().is_some_and(|to| !to.is_legacy())
                && lane.state.kind() != StateKind::Retiring
        };
        let name = self.names.get(&path.node);
        if offered.is_some() || name.is_some_and(|name| name.lanes.iter().any(keyed)) {
            return self
                .reject_plain(call.token, "a run of this name that spoke for itself is paired");
        }
        if open.is_none() && !self.has_capacity() || !self.admit(path) {
            return self.reject_plain(call.token, "a table is full");
        }
        self.peers.entry(path.clone()).or_default().plain = true;
        if let Some((earlier, _)) = bound {
            self.end(now, earlier, Failure::Superseded);
        }
        let Some(lifecycle) = open.or_else(|| self.create_endpoint(now, path)) else { return };
        match self.state_of(lifecycle) {
            Some(StateKind::Announced) => {
                let body = call.message.body.clone();
                let knows_ready = call.message.ready.is_some();
                if let Some(lane) = self.lanes.get_mut(&lifecycle) {
                    lane.plain.push(call);
                }
                self.bind_plain(now, lifecycle, path, body, knows_ready);
            }
            _ => self.hold_plain(lifecycle, call),
        }
    }

    /// A reply without our key: the peer has connected already.
    pub(super) fn handle_plain_answer(
        &mut self,
        now: Instant,
        lifecycle: Lifecycle,
        message: PlainMessage,
    ) {
        let Some(lane) = self.lanes.get(&lifecycle) else {
            self.counters.ignored += 1;
            return;
        };
        let path = lane.peer.clone();
        let remote = lane.state.remote();
        let listed = Pair::legacy(&message.body.queue_pairs);
        let empty = message.body.queue_pairs.is_empty();
        match lane.state.kind() {
            StateKind::Announced | StateKind::Connected if message.rejected.is_some() => {
                let detail = message.rejected.unwrap_or_default();
                self.refused_plainly(now, lifecycle, RefusalReason::Gone, detail);
            }
            StateKind::Announced if empty || !self.is_reply(&message, &path) => {
                let detail = "no handshake is spoken there".into();
                self.refused_plainly(now, lifecycle, RefusalReason::Configuration, detail);
            }
            StateKind::Announced => {
                if self.fence(lifecycle, &path, listed) == Fence::InUse {
                    let detail = "a run of this name that has proven itself is paired".into();
                    return self.refused_plainly(now, lifecycle, RefusalReason::Gone, detail);
                }
                let knows_ready = message.ready.is_some();
                if let Some(lane) = self.lanes.get_mut(&lifecycle) {
                    lane.answered_plainly = true;
                }
                self.bind_plain(now, lifecycle, &path, message.body, knows_ready);
            }
            StateKind::Connected if empty => self.probe(now, lifecycle, Trigger::PeerConnected),
            // The answer to our half of a crossing open.
            StateKind::Fencing | StateKind::Connecting | StateKind::Connected
                if remote == Some(listed) && message.rejected.is_none() =>
            {
                if let Some(lane) = self.lanes.get_mut(&lifecycle) {
                    lane.answered_plainly = true;
                }
                self.send_plain_ready(now, lifecycle);
            }
            _ => self.counters.ignored += 1,
        }
    }

    fn is_reply(&self, message: &PlainMessage, path: &NicPath) -> bool {
        message.from.as_ref() == Some(path) && message.to.as_ref() == Some(&self.config.path)
    }

    fn on_plain_ready(&mut self, now: Instant, path: &NicPath, call: PlainCall) {
        let remote = Pair::legacy(&call.message.body.queue_pairs);
        let bound = self.bound(path).filter(|(_, to)| *to == remote);
        let state = bound.and_then(|(own, _)| Some((own, self.state_of(own)?)));
        match state {
            Some((own, StateKind::Connected)) => {
                self.answer_plainly(call.token, PlainMessage::ack());
                self.probe(now, own, Trigger::PeerConnected);
            }
            Some((_, StateKind::Probing | StateKind::Legacy)) => {
                self.answer_plainly(call.token, PlainMessage::ack());
            }
            Some((own, StateKind::Fencing | StateKind::Connecting)) => self.hold_plain(own, call),
            _ => self.reject_plain(call.token, "ready for queue pairs that are not paired"),
        }
    }

    /// The peer is named by its list of queue pairs.
    fn bind_plain(
        &mut self,
        now: Instant,
        lifecycle: Lifecycle,
        path: &NicPath,
        body: Body,
        knows_ready: bool,
    ) {
        let remote = Pair::legacy(&body.queue_pairs);
        let peer = self.peers.entry(path.clone()).or_default();
        peer.plain = true;
        peer.open = None;
        let previous = peer.bound.replace(lifecycle);
        self.change_waits(path, Peer::stop_waiting);
        if let Some(previous) = previous {
            self.end(now, previous, Failure::Superseded);
        }
        self.dismiss_others(lifecycle, remote);
        let next = State::Fencing { remote, body, peer_connected: !knows_ready };
        self.transit(lifecycle, Trigger::Listed, next);
        self.arm(lifecycle, now + self.config.timing.operation, TimerKind::Operation);
        self.connect_when_fenced(now, lifecycle);
    }

    /// Our side has connected towards a node without our key.
    pub(super) fn on_connected_legacy(&mut self, now: Instant, lifecycle: Lifecycle, alone: bool) {
        let Some(remote) = self.lanes.get(&lifecycle).and_then(|lane| lane.state.remote()) else {
            return;
        };
        let waiting = self.lanes.get_mut(&lifecycle).map(|lane| core::mem::take(&mut lane.plain));
        if alone {
            self.probe(now, lifecycle, Trigger::Connected);
        } else {
            self.transit(lifecycle, Trigger::Connected, State::Connected { remote, readies: 0 });
            self.arm(lifecycle, now + self.config.timing.half_open, TimerKind::HalfOpen);
            self.send_plain_ready(now, lifecycle);
        }
        for call in waiting.into_iter().flatten() {
            let listed = Pair::legacy(&call.message.body.queue_pairs);
            if listed == remote && call.message.ready != Some(true) {
                self.answer_plain(lifecycle, call);
            } else {
                self.handle_plain_call(now, call.token, call.message);
            }
        }
    }

    /// The answered side announces that it is connected; the passive side waits for that.
    fn send_plain_ready(&mut self, now: Instant, lifecycle: Lifecycle) {
        if self.lanes.get(&lifecycle).is_some_and(|lane| lane.answered_plainly) {
            self.send_ready(now, lifecycle);
        }
    }

    /// Probes the lane before it is published.
    fn probe(&mut self, now: Instant, lifecycle: Lifecycle, trigger: Trigger) {
        let Some(remote) = self.lanes.get(&lifecycle).and_then(|lane| lane.state.remote()) else {
            return;
        };
        self.transit(lifecycle, trigger, State::Probing { remote });
        self.arm(lifecycle, now + self.config.timing.operation, TimerKind::Operation);
        self.outputs.push_back(Output::Operate(Operation::Probe { lifecycle }));
    }

    pub(super) fn on_probed(&mut self, lifecycle: Lifecycle) {
        let Some(lane) = self.lanes.get(&lifecycle) else { return };
        let State::Probing { remote } = lane.state else { return };
        let peer = lane.peer.clone();
        self.set_timer(lifecycle, None);
        self.transit(lifecycle, Trigger::Probed, State::Legacy { remote });
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.failures = 0;
            peer.first_failure = None;
        }
        self.counters.published += 1;
        let local = self.pair(lifecycle);
        self.outputs.push_back(Output::Publish { local, remote, peer });
    }

    /// Queue pairs that a new lifecycle skips, so that its numbers differ from those of an earlier
    /// incarnation, which a legacy node cannot tell from this one.
    pub(super) fn numbers_to_skip(&self, lifecycle: Lifecycle, path: &NicPath) -> u32 {
        let plain = self.peers.get(path).is_some_and(|peer| peer.plain);
        let drawn = derive(self.config.seed, lifecycle, Purpose::FreshNumbers, 0) % SKIP_MAX;
        if plain { u32::try_from(drawn).unwrap_or(0) + 1 } else { 0 }
    }

    /// A request may go out. To a legacy node it is a permission to connect, so no earlier local
    /// lane may remain (rule H6).
    pub(super) fn leave_to_ask(&self, lifecycle: Lifecycle) -> bool {
        let Some(lane) = self.lanes.get(&lifecycle) else { return false };
        let plain = self.peers.get(&lane.peer).is_some_and(|peer| peer.plain);
        let earlier = |(own, other): (&Lifecycle, &super::lane::Lane)| {
            *own != lifecycle && other.peer == lane.peer && other.state.remote().is_some()
        };
        !plain || !self.lanes.iter().any(earlier)
    }

    /// Sends the first request to a node without our key, held back until now.
    pub(super) fn ask_when_fenced(&mut self, now: Instant, lifecycle: Lifecycle) {
        let Some(lane) = self.lanes.get(&lifecycle) else { return };
        let State::Announced(announcement) = &lane.state else { return };
        let peer = self.peers.get(&lane.peer);
        let asks = peer.is_some_and(|peer| peer.plain && peer.wanted);
        if asks && announcement.requests == 0 {
            self.send_request(now, lifecycle);
        }
    }

    fn answer_plain(&mut self, lifecycle: Lifecycle, call: PlainCall) {
        match self.state_of(lifecycle) {
            Some(StateKind::Fencing | StateKind::Connecting) => self.hold_plain(lifecycle, call),
            Some(StateKind::Connected | StateKind::Probing | StateKind::Legacy) => {
                let lane = &self.lanes[&lifecycle];
                let reply = PlainMessage {
                    from: Some(self.config.path.clone()),
                    to: Some(lane.peer.clone()),
                    body: Body { psns: Vec::new(), probe: None, ..lane.body.clone() },
                    ready: Some(false),
                    rejected: None,
                };
                self.answer_plainly(call.token, reply);
            }
            _ => self.reject_plain(call.token, "the lane is being retired"),
        }
    }

    fn plain_held(&self, lifecycle: Lifecycle) -> usize {
        self.lanes.get(&lifecycle).map_or(0, |lane| lane.plain.len())
    }

    fn hold_plain(&mut self, lifecycle: Lifecycle, call: PlainCall) {
        if self.plain_held(lifecycle) >= self.config.limits.answers_held_max {
            return self.reject_plain(call.token, "too many calls wait");
        }
        if let Some(lane) = self.lanes.get_mut(&lifecycle) {
            lane.plain.push(call);
        }
    }

    /// Releases held legacy calls, once their operation or their lifecycle has ended.
    pub(super) fn release_plain(&mut self, now: Instant, lifecycle: Lifecycle) {
        let Some(lane) = self.lanes.get_mut(&lifecycle) else { return };
        let ended = lane.state.kind() == StateKind::Retiring;
        for call in core::mem::take(&mut lane.plain) {
            if ended {
                self.reject_plain(call.token, "the queue pairs were given up");
            } else {
                self.handle_plain_call(now, call.token, call.message);
            }
        }
    }

    fn refused_plainly(
        &mut self,
        now: Instant,
        lifecycle: Lifecycle,
        reason: RefusalReason,
        detail: String,
    ) {
        self.end(now, lifecycle, Failure::Refused(Refusal { reason, detail }));
    }

    fn answer_plainly(&mut self, token: CallToken, message: PlainMessage) {
        self.outputs.push_back(Output::PlainAnswer { token, message });
    }

    fn reject_plain(&mut self, token: CallToken, detail: &str) {
        self.counters.refused += 1;
        self.answer_plainly(token, PlainMessage::rejection(detail));
    }
}
