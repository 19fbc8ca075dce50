//! A world for people: what is in flight, whose turn an action is, and how things are called.

use crate::action::Action;
use crate::fabric::QueuePair;
use crate::world::{RUNS_MAX, World};
use handfast_core::wire::Message;
use handfast_core::{Lifecycle, Pair};
use std::sync::Arc;

/// A call or an answer on its way. Clones of a world share its messages, so that one can be
/// followed from world to world by [`Arc::ptr_eq`].
#[derive(Clone, Debug)]
pub struct InFlight {
    /// What is on its way.
    pub message: Arc<Message>,
    /// The site that sent it.
    pub from: usize,
    /// It is the answer to a call.
    pub answer: bool,
    /// The sites that it can arrive at: several for a call to a name that two processes bear.
    pub to: Vec<usize>,
}

impl World {
    /// Calls, then answers, in the order in which they were sent.
    pub fn in_flight(&self) -> Vec<InFlight> {
        let from = |message: &Message| self.owner_of(message.sender).unwrap_or(0);
        let calls = self.calls.iter().map(|call| InFlight {
            message: call.clone(),
            from: from(call),
            answer: false,
            to: (0..self.sites.len()).filter(|site| self.sites[*site].path == call.to).collect(),
        });
        let answers = self.answers.iter().map(|(run, answer)| InFlight {
            message: answer.clone(),
            from: from(answer),
            answer: true,
            to: vec![self.site_of(*run)],
        });
        calls.chain(answers).collect()
    }

    /// The site at which an action happens; for a lost message, the one that sent it.
    pub fn actor(&self, action: &Action) -> usize {
        let sender = |message: &Message| self.owner_of(message.sender).unwrap_or(0);
        match action {
            Action::Command(at) => self.commands[*at].site,
            Action::Ask(command) => command.site,
            Action::Answer(at) => self.site_of(self.answers[*at].0),
            Action::LoseCall(at, _) => sender(&self.calls[*at]),
            Action::LoseAnswer(at, _) => sender(&self.answers[*at].1),
            Action::Operation(at)
            | Action::FailOperation(at)
            | Action::StallOperation(at)
            | Action::FailStep(at, _) => self.operations[*at].site,
            Action::Disturb(disturbance) => disturbance.site(),
            Action::Submit(index) | Action::Cancel(index) | Action::Deadline(index) => {
                self.transfer_setup().map_or(0, |setup| setup.transfers[*index].site)
            }
            Action::Packet(at) | Action::DuplicatePacket(at) => {
                usize::from(self.fabric.verbs.packets()[*at].to)
            }
            Action::LosePacket(at) => usize::from(self.fabric.verbs.packets()[*at].from),
            Action::Call(_, site)
            | Action::DuplicateCall(_, site)
            | Action::Timer(site, _)
            | Action::Broken(site, _)
            | Action::LaneError(site, _)
            | Action::Completion(site)
            | Action::Exhaust(site, _)
            | Action::ProtectionError(site, _)
            | Action::Restart(site) => *site,
        }
    }

    /// How a site is called: `A`, `B`, …
    pub fn name_of_site(&self, site: usize) -> char {
        self.describe_site(site)
    }

    /// How a lifecycle is called: `B'#2` is lifecycle 2 of the second run of site B.
    pub fn name_of_pair(&self, pair: Pair) -> String {
        self.describe_pair(pair)
    }

    /// How a queue pair's lifecycle is called.
    pub fn name_of(&self, qp: &QueuePair) -> String {
        self.describe_pair(self.pair(qp.site, qp.lifecycle))
    }

    /// The pair of a site's lifecycle in its present run.
    pub fn pair_of(&self, site: usize, lifecycle: Lifecycle) -> Pair {
        self.pair(site, lifecycle)
    }

    /// A message in words.
    pub fn words_of(&self, message: &Message) -> String {
        self.describe_message(message)
    }

    /// Operations under way, in words, with their sites.
    pub fn operations_under_way(&self) -> impl Iterator<Item = (usize, String)> + '_ {
        self.operations.iter().map(|pending| {
            let id = pending.operation.id();
            let pair = self.pair(pending.site, id.lifecycle);
            (pending.site, format!("{:?} of {}", id.kind, self.describe_pair(pair)))
        })
    }

    /// The site of a pair's incarnation; `None` for an incarnation that no site of a world has.
    fn owner_of(&self, pair: Pair) -> Option<usize> {
        (pair.incarnation.0 >= RUNS_MAX)
            .then(|| self.site_of(pair.incarnation))
            .filter(|site| *site < self.sites.len())
    }
}
