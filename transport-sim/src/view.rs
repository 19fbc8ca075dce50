//! Readable descriptions of a world: messages in flight, sites of actions, and names.

use crate::action::Action;
use crate::fabric::QueuePair;
use crate::letter::Letter;
use crate::world::{NUMBERS_PER_NIC, RUNS_MAX, World};
use handfast_core::wire::{Message, Op};
use handfast_core::{Event, Lifecycle, Output, Pair};
use std::sync::Arc;

/// A call or an answer in flight. Clones of a world share its messages, so that one can be followed
/// between worlds by [`Arc::ptr_eq`].
#[derive(Clone, Debug)]
pub struct InFlight {
    /// The message in flight.
    pub message: Arc<Letter>,
    /// The site that sent it.
    pub from: usize,
    /// Whether it is the answer to a call.
    pub answer: bool,
    /// Possible destinations; several for a call to a name that two processes share.
    pub to: Vec<usize>,
}

impl World {
    /// Returns calls, then answers, in the order in which they were sent.
    pub fn in_flight(&self) -> Vec<InFlight> {
        let from = |message: &Message| self.sender_of(message);
        let calls = self.calls.iter().map(|call| InFlight {
            message: call.clone(),
            from: from(call),
            answer: false,
            to: (0..self.sites.len()).filter(|site| self.sites[*site].bears(&call.to)).collect(),
        });
        let answers = self.answers.iter().map(|(run, answer)| InFlight {
            message: answer.clone(),
            from: from(answer),
            answer: true,
            to: vec![self.site_at(*run, &answer.to)],
        });
        calls.chain(answers).collect()
    }

    /// Returns the site of an action; for a lost message, its sender.
    pub fn actor(&self, action: &Action) -> usize {
        let sender = |message: &Message| self.sender_of(message);
        match action {
            Action::Command(at) => self.commands[*at].site,
            Action::Ask(command) => command.site,
            Action::Answer(at) => {
                let (run, answer) = &self.answers[*at];
                self.site_at(*run, &answer.to)
            }
            Action::LoseCall(at, _) => sender(&self.calls[*at]),
            Action::LoseAnswer(at, _) => sender(&self.answers[*at].1),
            Action::Operation(at)
            | Action::FailOperation(at)
            | Action::StallOperation(at)
            | Action::HeldRetire(at)
            | Action::FailStep(at, _) => self.operations[*at].site,
            Action::Disturb(disturbance) => disturbance.site,
            Action::Submit(index) | Action::Cancel(index) | Action::Deadline(index) => {
                self.transfer_setup().map_or(0, |setup| setup.transfers[*index].site)
            }
            Action::Packet(at) | Action::DuplicatePacket(at) => {
                usize::from(self.fabric.verbs.packets()[*at].to)
            }
            Action::LosePacket(at) => usize::from(self.fabric.verbs.packets()[*at].from),
            Action::Notice(link, side) => self.site_of_link(*link, *side),
            Action::LoseNotice(link, side) => self.sender_of_link(*link, *side),
            Action::RepeatRequest(link) => self.site_of_link(*link, 1),
            Action::ForgeAnswer(link) => self.site_of_link(*link, 0),
            Action::Call(_, site)
            | Action::DuplicateCall(_, site)
            | Action::Timer(site, _)
            | Action::Broken(site, _)
            | Action::LaneError(site, _)
            | Action::Completion(site)
            | Action::Exhaust(site, _)
            | Action::Probe(site, _)
            | Action::TargetTimer(site, ..)
            | Action::ProtectionError(site, _)
            | Action::Frame(site, _)
            | Action::Piece(site, ..)
            | Action::ReadEnd(site, _)
            | Action::SeeDeath(site, _)
            | Action::BreakChannel(site, _)
            | Action::Unregister(site)
            | Action::ForgeRequest(site, _)
            | Action::DialOverdue(site, _)
            | Action::Restart(site) => *site,
        }
    }

    /// Returns the name of a queue pair's lifecycle.
    pub fn name_of(&self, qp: &QueuePair) -> String {
        self.describe_own(qp.host, qp.lifecycle)
    }

    /// Describes pending operations, with their sites.
    pub fn operations_under_way(&self) -> impl Iterator<Item = (usize, String)> + '_ {
        self.operations.iter().map(|pending| {
            let id = pending.operation.id();
            let of = self.describe_own(pending.site, id.lifecycle);
            (pending.site, format!("{:?} of {of}", id.kind))
        })
    }

    /// Returns the sender of a message; the first site for an unknown incarnation.
    fn sender_of(&self, message: &Message) -> usize {
        let site = self.site_at(message.sender.incarnation, &message.from);
        if site < self.sites.len() { site } else { 0 }
    }

    pub(crate) fn describe_output(&self, site: usize, output: &Output) -> String {
        match output {
            Output::Call(message) => format!("calls {}", self.describe_message(message)),
            Output::Answer { message, .. } => format!("answers {}", self.describe_message(message)),
            Output::PlainAnswer { .. } => "speaks to a node without our key".into(),
            Output::Operate(operation) => {
                let id = operation.id();
                format!("asks for {:?} of {:?}", id.kind, id.lifecycle)
            }
            Output::Publish { local, remote, .. } => {
                format!(
                    "publishes {} as connected to {}",
                    self.describe_pair(*local),
                    self.describe_pair(*remote)
                )
            }
            Output::Revoke(lifecycle) => {
                format!("revokes {}", self.describe_own(site, *lifecycle))
            }
            Output::Event(Event::Ended { lifecycle, failure, .. }) => {
                format!("ends {}: {failure}", self.describe_own(site, *lifecycle))
            }
            Output::Event(event) => format!("reports {event:?}"),
        }
    }

    /// Returns the name of a lifecycle: `B'#2` is lifecycle 2 of the second incarnation of site B.
    pub fn describe_pair(&self, pair: Pair) -> String {
        if pair.is_legacy() {
            // Its list of queue pairs is its only identity; these bits of the digest separate two
            // nodes.
            return format!("plain~{:04x}", pair.lifecycle.0 & 0xffff);
        }
        if pair.incarnation.0 < RUNS_MAX {
            return format!("{pair:?}");
        }
        let site = self.describe_site(self.site_of(pair.incarnation));
        let runs = usize::try_from(pair.incarnation.0 % RUNS_MAX).unwrap_or(0);
        format!("{site}{}#{}", "'".repeat(runs), pair.lifecycle.0 % NUMBERS_PER_NIC)
    }

    /// Returns the name of a site: `A`, `B`, …; `B/2` is the second NIC of the process of site B.
    pub fn describe_site(&self, site: usize) -> String {
        let process = self.sites[site].process;
        let before = self.sites[..site].iter().filter(|other| other.process == process).count();
        let letter = char::from(b'A'.saturating_add(u8::try_from(process).unwrap_or(0)));
        match before {
            0 => letter.to_string(),
            nics => format!("{letter}/{}", nics + 1),
        }
    }

    /// Describes a lifecycle with its rail, or with its NIC if that is not the first.
    pub(crate) fn describe_own(&self, site: usize, lifecycle: Lifecycle) -> String {
        let pair = self.describe_pair(self.pair(site, lifecycle));
        let path = self.peer_of(site, lifecycle).filter(|path| path.rail().is_some());
        match path {
            Some(path) => format!("{pair} over {}", path.nic),
            None if self.leads(site) => pair,
            None => format!("{pair} on {}", self.sites[site].path.nic),
        }
    }

    /// Describes a message.
    pub fn describe_message(&self, message: &Message) -> String {
        let sender = self.describe_pair(message.sender);
        let echo = message.echo.map(|echo| format!(" echoing {}", self.describe_pair(echo)));
        let op = match (&message.op, &message.refusal) {
            (Op::Refuse, Some(refusal)) => format!("refuse({:?})", refusal.reason),
            (op, _) => format!("{op:?}").to_lowercase(),
        };
        let rail = message.to.rail().map(|_| format!(" over {}", message.to.nic));
        format!("{op} of {sender}{}{}", echo.unwrap_or_default(), rail.unwrap_or_default())
    }
}
