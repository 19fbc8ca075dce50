//! Graceful shutdown of a lane (rule H11), and eviction from a full table of lifecycles.
//!
//! One-sided work of the peer on a lane is invisible here, so the lane is not destroyed under it:
//! first local work ends, then the peer is asked, stops, drains and acknowledges.

use super::api::{Event, Failure, Output, TimerKind};
use super::lane::{Held, State, StateKind};
use super::machine::Node;
use super::transitions::Trigger;
use crate::entropy::Purpose;
use crate::identity::{Lifecycle, NicPath, Pair};
use crate::time::Instant;
use crate::transport::Operation;
use crate::wire::{Message, Op, RefusalReason};
use alloc::format;

impl Node {
    /// Ends a lifecycle with the peer's consent if the peer may have work on it.
    pub(super) fn close_gracefully(&mut self, now: Instant, lifecycle: Lifecycle, cause: Failure) {
        let remote = self.lanes.get(&lifecycle).and_then(|lane| lane.state.remote());
        let legacy = remote.is_some_and(Pair::is_legacy);
        match self.state_of(lifecycle) {
            Some(StateKind::Established | StateKind::Legacy) => {
                self.drain_lane(now, lifecycle, cause);
            }
            // The peer may have connected and heard that we have: nothing is posted here, but there.
            Some(StateKind::Connected) if !legacy => {
                self.quiesce(now, lifecycle, Trigger::of(&cause), cause);
            }
            Some(StateKind::Draining | StateKind::Quiescing) => {}
            _ => self.end(now, lifecycle, cause),
        }
    }

    fn drain_lane(&mut self, now: Instant, lifecycle: Lifecycle, cause: Failure) {
        let state = self.state_mut(lifecycle);
        let Some(State::Established { remote } | State::Legacy { remote }) = state else { return };
        let remote = *remote;
        let trigger = Trigger::of(&cause);
        self.transit(lifecycle, trigger, State::Draining { remote, cause });
        self.arm(lifecycle, now + self.config.timing.drain, TimerKind::Drain);
        self.outputs.push_back(Output::Revoke(lifecycle));
        self.outputs.push_back(Output::Operate(Operation::Drain { lifecycle }));
    }

    /// No local work is outstanding: a peer that has asked is answered, any other is asked.
    pub(super) fn on_drained(&mut self, now: Instant, lifecycle: Lifecycle) {
        let Some(lane) = self.lanes.get_mut(&lifecycle) else { return };
        let State::Draining { remote, cause } = &lane.state else { return };
        let (remote, cause) = (*remote, cause.clone());
        if remote.is_legacy() {
            // It has not shown our key, and would not know what is asked of it (rule H13).
            self.end(now, lifecycle, cause);
            return;
        }
        let asked = core::mem::take(&mut lane.held);
        if asked.is_empty() {
            self.quiesce(now, lifecycle, Trigger::Drained, cause);
            return;
        }
        for call in asked {
            self.agree(lifecycle, &call);
        }
        self.end_by(now, lifecycle, cause, Trigger::Agreed);
    }

    fn quiesce(&mut self, now: Instant, lifecycle: Lifecycle, trigger: Trigger, cause: Failure) {
        let remote = self.lanes.get(&lifecycle).and_then(|lane| lane.state.remote());
        let Some(remote) = remote else { return };
        self.transit(lifecycle, trigger, State::Quiescing { remote, cause, quiesces: 0 });
        self.send_quiesce(now, lifecycle);
    }

    pub(super) fn send_quiesce(&mut self, now: Instant, lifecycle: Lifecycle) {
        let quiesces_max = self.config.limits.quiesces_max;
        let base = self.config.timing.quiesce_retry;
        let Some(lane) = self.lanes.get_mut(&lifecycle) else { return };
        let State::Quiescing { remote, cause, quiesces } = &mut lane.state else { return };
        if *quiesces >= quiesces_max {
            let cause = cause.clone();
            let peer = lane.peer.clone();
            self.emit(Event::RetireForced { peer, lifecycle });
            self.end_by(now, lifecycle, cause, Trigger::Silent);
            return;
        }
        *quiesces += 1;
        let (remote, attempt) = (*remote, *quiesces);
        let wait = self.jittered(base, lifecycle, Purpose::RetryJitter, attempt);
        self.arm(lifecycle, now + wait, TimerKind::QuiesceRetry);
        let message = self.message(lifecycle, Op::Quiesce, Some(remote));
        self.outputs.push_back(Output::Call(message));
    }

    /// The peer has stopped, its work has ended, and it wants the pair retired.
    pub(super) fn on_quiesce(&mut self, now: Instant, call: Held) {
        let message = &call.message;
        let Some(lifecycle) = self.quiesced(message) else {
            let detail = "the echoed lifecycle does not exist, or is not paired with this".into();
            // Named after the pair that was asked about, so that the answer to an earlier call is
            // not taken for this one.
            let sender = message.echo.unwrap_or(self.pair(Lifecycle(0)));
            self.counters.rejected += 1;
            self.refuse(call.token, sender, message, RefusalReason::Gone, detail);
            return;
        };
        match self.lanes[&lifecycle].state.kind() {
            StateKind::Established | StateKind::Draining => {
                let held_max = self.config.limits.answers_held_max;
                if self.lanes[&lifecycle].held.len() >= held_max {
                    let detail = format!("{held_max} calls wait already");
                    self.reject(call.token, message, RefusalReason::Busy, detail);
                    return;
                }
                self.drain_lane(now, lifecycle, Failure::Quiesced);
                if let Some(lane) = self.lanes.get_mut(&lifecycle) {
                    lane.held.push(call);
                }
            }
            // Both have asked, and both have drained before they asked: both agree.
            StateKind::Quiescing => {
                self.agree(lifecycle, &call);
                self.on_agreed(now, lifecycle);
            }
            // Never published here, so nothing was posted.
            _ => {
                self.agree(lifecycle, &call);
                self.end(now, lifecycle, Failure::Quiesced);
            }
        }
    }

    /// The lifecycle of a quiesce: the one it echoes, if that is bound to the sender, or was
    /// offered to it and to no later pair.
    fn quiesced(&self, message: &Message) -> Option<Lifecycle> {
        let echo = message.echo.filter(|echo| echo.incarnation == self.config.incarnation)?;
        let lane = self.lanes.get(&echo.lifecycle).filter(|lane| lane.peer == message.from)?;
        let current = match &lane.state {
            State::Creating | State::Retiring { .. } => None,
            State::Announced(announcement) => announcement.offered,
            bound => bound.remote(),
        };
        (current == Some(message.sender)).then_some(echo.lifecycle)
    }

    fn agree(&mut self, lifecycle: Lifecycle, call: &Held) {
        let message = self.message(lifecycle, Op::Retired, Some(call.message.sender));
        self.outputs.push_back(Output::Answer { token: call.token, message });
    }

    /// The peer has answered that it is done with the lane.
    pub(super) fn on_retired_there(&mut self, now: Instant, lifecycle: Lifecycle, sender: Pair) {
        match self.lanes[&lifecycle].state {
            State::Quiescing { remote, .. } if remote == sender => self.on_agreed(now, lifecycle),
            _ => self.counters.ignored += 1,
        }
    }

    /// Neither side has anything outstanding.
    pub(super) fn on_agreed(&mut self, now: Instant, lifecycle: Lifecycle) {
        let Some(State::Quiescing { cause, .. }) = self.state_mut(lifecycle) else { return };
        let cause = cause.clone();
        self.end_by(now, lifecycle, cause, Trigger::Agreed);
    }

    /// Lets a demand wait for room in the table of lifecycles, if room is coming or can be made.
    pub(super) fn await_room(&mut self, now: Instant, path: &NicPath) {
        if !self.room_is_coming() && !self.evict(now) {
            self.fail_demand(path, Failure::Limit("lifecycles_max".into()));
            return;
        }
        let until = now + self.config.timing.capacity_wait;
        self.change_waits(path, |peer| {
            peer.capacity_until.get_or_insert(until);
        });
    }

    /// A lifecycle is about to free its slot. One whose retire has failed or is overdue may stay.
    pub(super) fn room_is_coming(&self) -> bool {
        self.lanes.values().any(|lane| lane.state.kind().is_ending() && lane.timer.is_some())
    }

    /// Retires the oldest established lane that the application has no work for.
    pub(super) fn evict(&mut self, now: Instant) -> bool {
        let idle = self.lanes.iter().find(|(_, lane)| {
            let wanted = self.peers.get(&lane.peer).is_some_and(|peer| peer.wanted);
            lane.state.kind().is_in_use() && !wanted
        });
        let Some((lifecycle, _)) = idle else { return false };
        self.close_gracefully(now, *lifecycle, Failure::Evicted);
        true
    }

    /// A lifecycle is gone: demands that wait for room are pursued.
    pub(super) fn on_room(&mut self, now: Instant) {
        while self.has_capacity() {
            let Some(path) = self.first_awaiting_capacity() else { return };
            self.change_waits(&path, |peer| peer.capacity_until = None);
            self.drive_demand(now, &path);
        }
    }
}
