//! Removal of messages without an effect, in worlds that enable it.

use crate::effects::Told;
use crate::letter::Letter;
use crate::outputs::Made;
use crate::setup::CommandKind;
use crate::world::{Site, World};
use handfast_core::node::{CallToken, StateKind};
use handfast_core::wire::{Message, Op, RefusalReason};
use handfast_core::{Input, Node, Output, Pair};
use std::sync::Arc;

impl World {
    /// Drops messages that their receivers can only ignore, or refuse to a dead sender, in every
    /// possible future.
    pub(crate) fn prune(&mut self) {
        if !self.setup.prune {
            return;
        }
        self.prune_answers();
        if !self.memories_last() {
            self.is_pruned = false;
            return;
        }
        let mut calls = std::mem::take(&mut self.calls);
        // The rest was looked at after an earlier action, when its caller and receiver were the same.
        let looks = |call: &Letter| !self.is_pruned || self.concerns_touched(call);
        calls.retain(|call| {
            debug_assert!(
                looks(call) || !self.is_spent(call),
                "{call:?} is spent and was not looked at"
            );
            !looks(call) || !self.is_spent(call)
        });
        self.calls = calls;
        self.is_pruned = true;
    }

    /// Records that a site changes.
    pub(crate) fn touch(&mut self, site: usize) {
        self.touched |= bit(site);
    }

    /// Whether the last action has changed a site, or another that shares its bit.
    pub fn has_touched(&self, site: usize) -> bool {
        self.touched & bit(site) != 0
    }

    /// Whether the action has changed the caller or a receiver of a call.
    fn concerns_touched(&self, call: &Message) -> bool {
        let concerned = |(at, site): (usize, &Arc<Site>)| {
            let concerns = site.bears(&call.from) || site.bears(&call.to);
            concerns && self.has_touched(self.host(at))
        };
        self.sites.iter().enumerate().any(concerned)
    }

    /// Drops answers that their receiver can only ignore.
    fn prune_answers(&mut self) {
        let (sites, fabric, in_flight) = (&self.sites, &self.fabric, self.answers.len());
        self.answers.retain(|(run, answer)| {
            let process = Self::process_of(*run);
            let caller = |site: &Arc<Site>| site.process == process && site.bears(&answer.to);
            let caller = sites.iter().position(caller).map(|site| &sites[fabric.host(site)]);
            if caller.is_some_and(|caller| caller.old.is_some()) {
                return true;
            }
            let from_old = sites.iter().any(|site| site.path == answer.from && site.old.is_some());
            let echo = answer.echo.map(|echo| echo.lifecycle);
            let state = caller.and_then(|site| site.node.state_of(echo?));
            match (answer.op, state) {
                (_, None | Some(StateKind::Retiring)) => false,
                _ if from_old => true,
                (Op::Reply, state) => state == Some(StateKind::Announced),
                (Op::Ack, state) => {
                    state.is_some_and(|state| state != StateKind::Established && !state.is_ending())
                }
                (Op::Retired, state) => state == Some(StateKind::Quiescing),
                _ => true,
            }
        });
        self.history.lost |= self.answers.len() < in_flight;
    }

    /// Whether no node can lose its records of peers: no restart is possible, and tables of peers
    /// have capacity.
    fn memories_last(&self) -> bool {
        let crash = self.setup.faults.crash && self.faults_spent < self.setup.faults_max;
        let restart = |kind: CommandKind| kind == CommandKind::Restart;
        let asked = self.commands.iter().any(|command| restart(command.kind));
        !crash && !asked && !self.is_crowded() && self.mute.is_empty()
    }

    /// Whether the caller has ended or is ending, and the receiver's refusal is permanent, since
    /// the subject is gone or superseded. The receiving node itself decides.
    fn is_spent(&self, call: &Arc<Letter>) -> bool {
        let caller = self.host(self.site_at(call.sender.incarnation, &call.from));
        let caller = self.sites.get(caller);
        let caller = caller.filter(|site| site.incarnation == call.sender.incarnation);
        let state = caller.and_then(|site| site.node.state_of(call.sender.lifecycle));
        if !matches!(state, None | Some(StateKind::Retiring)) || self.has_twins() {
            return false;
        }
        let receiver = self.sites.iter().position(|site| site.bears(&call.to));
        let Some(host) = receiver.map(|site| self.host(site)) else { return false };
        let receiver = &self.sites[host];
        if receiver.old.is_some() {
            return false;
        }
        if self.old_site(&call.from).is_some() {
            return false;
        }
        // A message about a live lifecycle may be accepted later, once its owner has learned more.
        let about = call.echo.filter(|echo| echo.incarnation == receiver.incarnation);
        let about = about.and_then(|echo| receiver.node.state_of(echo.lifecycle));
        // A lifecycle is refused for good once a later one of its process is known, or its subject gone.
        let is_answerable = match call.echo {
            Some(_) => about.is_some_and(|state| state != StateKind::Retiring),
            None => call.op == Op::Request && !knows_later(&receiver.node, call.sender),
        };
        debug_assert!(
            !is_answerable || !self.is_refused_for_good(host, call, about),
            "{call:?} is refused for good"
        );
        !is_answerable && self.is_refused_for_good(host, call, about)
    }

    /// Whether a node refuses a call about a lifecycle in a state, and will not accept it later.
    fn is_refused_for_good(
        &self,
        site: usize,
        call: &Arc<Letter>,
        about: Option<StateKind>,
    ) -> bool {
        let lasts = |reason: RefusalReason| match reason {
            RefusalReason::Gone => matches!(about, None | Some(StateKind::Retiring)),
            RefusalReason::Superseded => call.op == Op::Request && call.echo.is_none(),
            _ => false,
        };
        let token = CallToken(call.sender.incarnation.0 as u64);
        if let Some(effect) = self.effect(site, &Told::Call(token, call.clone()), self.now) {
            let [Made::Answer(_, answer, _)] = &*effect.outputs else { return false };
            return answer.refusal.as_ref().is_some_and(|no| lasts(no.reason));
        }
        let mut node = self.sites[site].node.clone();
        node.handle_input(self.now, Input::CallReceived { token, message: Message::clone(call) });
        let refused = |output: Output| match output {
            Output::Answer { message, .. } => message.refusal.is_some_and(|no| lasts(no.reason)),
            _ => false,
        };
        let outputs = std::iter::from_fn(|| node.poll_output());
        let mut count = 0;
        outputs.inspect(|_| count += 1).all(refused) && count == 1
    }
}

/// Whether a node knows a pair, or a later one of its process.
fn knows_later(node: &Node, pair: Pair) -> bool {
    let mut knows = false;
    node.visit_pairs(&mut |known| {
        knows |= known.incarnation == pair.incarnation && known.lifecycle >= pair.lifecycle;
    });
    knows
}

fn bit(site: usize) -> u64 {
    1 << (site % 64)
}
