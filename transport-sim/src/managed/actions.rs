//! Possible actions of connection managers.

use super::link::{DIALLER, LISTENER, Link, Notice};
use crate::action::{Action, Choice};
use crate::oracle::{Oracle, Violation};
use crate::world::{Step, World};
use handfast_core::Lifecycle;
use handfast_core::transport::OperationKind;

impl World {
    /// Adds the possible actions of connections.
    pub(crate) fn push_connections(&self, paid: bool, choices: &mut Vec<Choice>) {
        if !self.is_managed() {
            return;
        }
        let faults = self.setup.faults;
        let mut push = |action, cost| choices.push(Choice { action, cost });
        for link in &self.managed.links {
            for side in [DIALLER, LISTENER] {
                let Some(first) = link.inboxes[side].first() else { continue };
                if self.is_kept_from(link, side) {
                    push(Action::LoseNotice(link.id, side), 0);
                    continue;
                }
                push(Action::Notice(link.id, side), 0);
                if paid && faults.loss && self.travels(first) {
                    push(Action::LoseNotice(link.id, side), 1);
                }
                // A stream has no duplicates.
                let may_repeat = !self.setup.devices.profile.connects_managed_only();
                if paid && faults.duplication && may_repeat && super::notices::is_request(first) {
                    push(Action::RepeatRequest(link.id), 1);
                }
            }
        }
        if paid && faults.forgery {
            self.push_forged(choices);
        }
        self.push_overdue(paid, choices);
    }

    /// Adds the waits that may end by their time: at no cost if nothing else can end them.
    fn push_overdue(&self, paid: bool, choices: &mut Vec<Choice>) {
        let is_still = self.is_still();
        if !(is_still || paid && self.setup.faults.early_timer) {
            return;
        }
        let dials = self.operations.iter().filter_map(|pending| {
            let id = pending.operation.id();
            let is_dial =
                id.kind == OperationKind::Connect && self.is_dialling(pending.site, id.lifecycle);
            is_dial.then_some((pending.site, id.lifecycle))
        });
        // A lane waits for its peer's dial longer than any dial takes.
        let is_dialling = dials.clone().next().is_some();
        let awaiting = self.managed.awaiting.iter().copied();
        let awaiting = awaiting.filter(|_| !is_still || !is_dialling);
        for (site, lifecycle) in dials.chain(awaiting) {
            let action = Action::DialOverdue(site, lifecycle);
            choices.push(Choice { action, cost: u32::from(!is_still) });
        }
    }

    /// Whether nothing but time ends the dials that are under way.
    fn is_still(&self) -> bool {
        let is_dial = |pending: &crate::world::Pending| {
            let id = pending.operation.id();
            id.kind == OperationKind::Connect && self.is_dialling(pending.site, id.lifecycle)
        };
        self.nothing_arrives()
            && !self.connections_move()
            && !self.data_moves()
            && self.operations.iter().all(|pending| is_dial(pending))
    }

    /// Whether a message or an event of a connection is on its way to a process that runs.
    pub(crate) fn connections_move(&self) -> bool {
        let runs = |link: &Link, side: usize| !self.mute.contains(&self.host(link.nics[side]));
        self.managed.links.iter().any(|link| {
            [DIALLER, LISTENER].into_iter().any(|side| {
                !link.inboxes[side].is_empty()
                    && (runs(link, side) || self.is_kept_from(link, side))
            })
        })
    }

    /// Whether the first message to a side comes from the other, and no packet does.
    fn is_kept_from(&self, link: &Link, side: usize) -> bool {
        let comes = link.inboxes[side].first().is_some_and(|first| self.travels(first));
        comes && !self.fabric.verbs.reaches(link.nics[1 - side], link.nics[side])
    }

    /// Whether a notice is a message; otherwise it is an event of the receiver's own kernel.
    fn travels(&self, notice: &Notice) -> bool {
        match notice {
            Notice::Request(_) | Notice::Accept(_) | Notice::Reject(_) | Notice::Disconnect => true,
            Notice::Established => !self.setup.devices.profile.connects_managed_only(),
            Notice::Unreachable => false,
        }
    }

    /// The site at which an action of a link happens.
    pub(crate) fn site_of_link(&self, id: u64, side: usize) -> usize {
        self.link(id).map_or(0, |at| self.managed.links[at].nics[side])
    }

    /// The same for a message that is lost.
    pub(crate) fn sender_of_link(&self, id: u64, side: usize) -> usize {
        self.site_of_link(id, 1 - side)
    }

    /// Checks that no wait for a dial ends by its time, with nothing lost.
    pub(crate) fn check_overdue(
        &self,
        (site, lifecycle): (usize, Lifecycle),
        cost: u32,
        step: &mut Step,
    ) {
        if cost == 0 && self.judges_promptness() && self.stuck.is_empty() && !self.is_cut_anywhere()
        {
            let own = self.describe_own(site, lifecycle);
            let detail = format!("{own} waits for a dial until its time, and no message was lost");
            step.violations.push(Violation::new(Oracle::Promptness, detail));
        }
    }

    fn is_cut_anywhere(&self) -> bool {
        let count = self.sites.len();
        let ways = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        ways.into_iter().any(|(from, to)| !self.fabric.verbs.reaches(from, to))
    }

    /// Describes an action of a connection.
    pub(crate) fn describe_connection(&self, action: &Action) -> String {
        let notice = |id: &u64, side: usize| {
            let at = self.link(*id);
            let first = at.and_then(|at| self.managed.links[at].inboxes[side].first());
            let name = match first {
                Some(Notice::Request(_)) => "request",
                Some(Notice::Accept(_)) => "acceptance",
                Some(Notice::Reject(_)) => "rejection",
                Some(Notice::Established) => "establishment",
                Some(Notice::Disconnect) => "disconnect",
                Some(Notice::Unreachable) => "failure",
                None => "nothing",
            };
            format!("the {name} of connection {id} to {}", {
                self.describe_site(self.site_of_link(*id, side))
            })
        };
        match action {
            Action::Notice(id, side) => format!("arrives: {}", notice(id, *side)),
            Action::LoseNotice(id, side) => format!("is lost: {}", notice(id, *side)),
            Action::RepeatRequest(id) => format!("arrives, and again: {}", notice(id, LISTENER)),
            Action::ForgeRequest(nic, lifecycle) => {
                let own = self.describe_own(self.host(*nic), *lifecycle);
                format!("a stranger dials {own}")
            }
            Action::ForgeAnswer(id) => format!("a stranger answers connection {id}"),
            Action::DialOverdue(site, lifecycle) => {
                format!("{} is not connected in time", self.describe_own(*site, *lifecycle))
            }
            _ => String::new(),
        }
    }
}
