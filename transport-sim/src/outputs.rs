//! Turns of nodes: an input, and its outputs.

use crate::effects::{Told, turned_away};
use crate::journal::JournalEntry;
use crate::letter::Letter;
use crate::oracle::{Oracle, Violation};
use crate::setup::Operations;
use crate::world::{HeldCall, Pending, Step, World};
use handfast_core::node::{CallToken, StateKind};
use handfast_core::transport::{Operation, OperationKind};
use handfast_core::wire::{Message, Op};
use handfast_core::{Event, Incarnation, Instant, Lifecycle, Node, Output};
use std::sync::Arc;

/// An output in the form in which a world keeps it.
pub(crate) enum Made {
    /// A call, and whether it invites the peer to an ending lifecycle.
    Call(Arc<Letter>, bool),
    /// The same of an answer.
    Answer(CallToken, Arc<Letter>, bool),
    Operate(Arc<Pending>),
    Other(Arc<Output>),
}

impl Made {
    /// Returns the form of an output of a node, which is in the state after its turn.
    pub(crate) fn of(site: usize, output: Output, node: &Node) -> Self {
        match output {
            Output::Call(message) => {
                let is_dead = invites_to_ending(node, &message);
                Self::Call(Arc::new(Letter::new(message)), is_dead)
            }
            Output::Answer { token, message } => {
                let is_dead = invites_to_ending(node, &message);
                Self::Answer(token, Arc::new(Letter::new(message)), is_dead)
            }
            Output::Operate(operation) => Self::Operate(Arc::new(Pending { site, operation })),
            other => Self::Other(Arc::new(other)),
        }
    }
}

/// Whether a request or a reply invites the peer to connect to an ending lifecycle.
fn invites_to_ending(node: &Node, message: &Message) -> bool {
    let state = node.state_of(message.sender.lifecycle);
    let ending = state.is_none_or(|state| state == StateKind::Retiring);
    ending && matches!(message.op, Op::Request | Op::Reply)
}

/// Lifecycles to which messages invite, although they are ending.
type Dead = Vec<(Lifecycle, String)>;

impl World {
    /// Passes an input to a node, and performs its outputs.
    pub(crate) fn tell(&mut self, site: usize, told: impl Into<Told>, step: &mut Step) {
        self.tell_at(site, told.into(), self.now, step);
    }

    /// The same at another time than the present.
    pub(crate) fn tell_at(&mut self, site: usize, told: Told, now: Instant, step: &mut Step) {
        let is_followed = step.notes.is_some() || step.journal.is_some();
        let effect = if is_followed { None } else { self.effect(site, &told, now) };
        let Some(effect) = effect else {
            let at = self.site_mut(site);
            let before = turned_away(&at.node.counters());
            told.to(at, now);
            let counters = at.node.counters();
            step.transitions |= counters.transitions;
            if turned_away(&counters) > before {
                step.turned_away.push(site);
            }
            self.drain(site, step);
            return;
        };
        step.transitions |= effect.transitions;
        if effect.turns_away {
            step.turned_away.push(site);
        }
        let pending = self.operations.len();
        self.touch(site);
        self.sites[site] = effect.after.clone();
        let mut dead = Dead::new();
        for made in &effect.outputs {
            self.perform_output(site, made, &mut dead, step);
        }
        self.report_dead(dead, step);
        if let Some(violation) = &effect.violation {
            self.report_waits(site, violation.clone(), step);
        }
        self.operate_at_once(site, pending, step);
    }

    /// Performs the outputs of a node.
    pub(crate) fn drain(&mut self, site: usize, step: &mut Step) {
        let pending = self.operations.len();
        let mut dead = Dead::new();
        while let Some(output) = self.poll_output(site) {
            step.note(|| self.describe_output(site, &output));
            let made = Made::of(site, output, &self.sites[site].node);
            self.perform_output(site, &made, &mut dead, step);
        }
        self.report_dead(dead, step);
        self.check_waits(site, step);
        self.operate_at_once(site, pending, step);
    }

    /// Lets new operations of a site succeed where each is a part of its event. One that cannot end at once is a
    /// separate event.
    fn operate_at_once(&mut self, site: usize, pending: usize, step: &mut Step) {
        let at_once = self.setup.operations == Operations::AtOnce;
        let next = |world: &Self| {
            let mut asked = world.operations.iter().enumerate().skip(pending);
            let ends = |op: &Pending| op.site == site && world.can_end(op);
            asked.find(|(_, op)| ends(op)).map(|(index, _)| index)
        };
        while let Some(index) = next(self).filter(|_| at_once) {
            self.operate(index, true, step);
        }
    }

    /// Lets every operation of a site succeed that can, where each is a part of its event.
    pub(crate) fn operate_all_at_once(&mut self, site: usize, step: &mut Step) {
        self.operate_at_once(site, 0, step);
    }

    fn perform_output(&mut self, site: usize, made: &Made, dead: &mut Dead, step: &mut Step) {
        match made {
            Made::Call(letter, is_dead) => {
                dead.extend(self.dead_offer(letter, *is_dead));
                self.remember_call(site, letter);
                self.call(letter.clone());
            }
            Made::Answer(token, letter, is_dead) => {
                dead.extend(self.dead_offer(letter, *is_dead));
                self.answer(site, *token, letter.clone(), step);
            }
            Made::Operate(pending) => self.begin_operation(pending.clone(), step),
            Made::Other(output) => self.perform_other(site, output, dead, step),
        }
    }

    fn perform_other(&mut self, site: usize, output: &Output, dead: &mut Dead, step: &mut Step) {
        match output {
            Output::PlainAnswer { token, message } => {
                let is_it = |held: &HeldCall| held.site == site && held.token == *token;
                if let Some(index) = self.held.iter().position(is_it) {
                    let held = self.held.remove(index);
                    self.plain_answer(site, held, message.clone(), step);
                }
            }
            Output::Publish { local, remote, peer } => {
                self.publish(site, *local, *remote, peer, step);
                self.lane_up(site, local.lifecycle, remote.incarnation, step);
            }
            Output::Revoke(lifecycle) => {
                if let Some(qp) = self.fabric.of_mut(site, *lifecycle) {
                    qp.revoked = true;
                }
                self.lane_revoked(site, *lifecycle, step);
            }
            Output::Event(event) => {
                if let Event::Ended { lifecycle, .. } = event {
                    // The lifecycle was offered first, and ended after that.
                    dead.retain(|(offered, _)| offered != lifecycle);
                }
                self.observe(site, event.clone(), step);
            }
            // They have forms of their own.
            Output::Call(_) | Output::Answer { .. } | Output::Operate(_) => {}
        }
    }

    fn begin_operation(&mut self, pending: Arc<Pending>, step: &mut Step) {
        let (site, operation) = (pending.site, &pending.operation);
        self.check_operation(site, operation, step);
        self.history.spent.lifecycles += u32::from(operation.id().kind == OperationKind::Create);
        match operation {
            Operation::Connect { local, remote, .. } => {
                self.leave_given(site, local.lifecycle, *remote, step);
            }
            Operation::Drain { lifecycle } => self.lane_drains(site, *lifecycle, step),
            Operation::Retire { lifecycle } => self.channel_closes(site, *lifecycle, step),
            _ => {}
        }
        step.record(|| JournalEntry::Asked { site, operation: operation.clone() });
        self.operations.push(pending);
    }

    fn call(&mut self, letter: Arc<Letter>) {
        let mute = self.setup.mute.map(|site| &self.sites[site]);
        if !mute.is_some_and(|mute| mute.bears(&letter.to)) {
            self.calls.push(letter);
        }
    }

    fn answer(&mut self, site: usize, token: CallToken, letter: Arc<Letter>, step: &mut Step) {
        if let Some(refusal) = &letter.refusal {
            step.refusals.push(refusal.reason);
        }
        self.note_answer(site, &letter);
        let echo = letter.echo;
        let held =
            |held: &HeldCall| held.site == site && held.token == token && Some(held.sender) == echo;
        if let Some(index) = self.held.iter().position(held) {
            self.held.remove(index);
        }
        let run = Incarnation(u128::from(token.0));
        let caller = self.site_of(run);
        if self.sites.get(caller).is_some_and(|site| site.incarnation == run) {
            self.answers.push((run, letter));
        } else {
            // The lifecycle may be offered to the dead process, which looks like a slow one.
            self.remember_dead_caller(site, &letter);
        }
    }

    fn dead_offer(&self, message: &Message, is_dead: bool) -> Option<(Lifecycle, String)> {
        is_dead.then(|| (message.sender.lifecycle, self.describe_message(message)))
    }

    fn report_dead(&self, dead: Dead, step: &mut Step) {
        let dead = dead.into_iter().map(|(_, words)| format!("{words} is ending"));
        step.violations.extend(dead.map(|detail| Violation::new(Oracle::DeadOffer, detail)));
    }

    /// Reports a violation of the declared times (rule H8).
    pub(crate) fn report_waits(&self, site: usize, mut violation: Violation, step: &mut Step) {
        violation.detail = format!("{}: {}", self.describe_site(site), violation.detail);
        step.violations.push(violation);
    }
}
