//! Independence of lanes between disjoint pairs of nodes.

use crate::action::{Action, Choice};
use crate::rails::Rail;
use crate::setup::CommandKind;
use crate::world::{Site, World};
use handfast_core::node::TimerId;
use handfast_core::{Incarnation, NicPath};
use std::sync::Arc;

/// Maximum lifecycles created between two events of one node.
const ROOM: usize = 2;

/// Two processes or two NICs, the smaller first.
type Ends = Rail;

impl World {
    /// Restricts the possible actions to one pair of processes, the first with a pending action,
    /// once the last fault of the budget is spent: the actions of other pairs happen later with the
    /// same result. No action is removed before the last fault, without a budget of faults, while a
    /// restart is pending, or if nodes may run out of capacity for lifecycles, which their peers
    /// share.
    ///
    /// A pair is two processes, since a new incarnation of one ends the lanes of all its NICs (H6);
    /// once no trace of an earlier incarnation is left, it is two NICs.
    ///
    /// This relies on the rule that lanes to different nodes do not wait for each other (H7). It
    /// therefore serves to explore more faults than those with which the rule was explored without
    /// it.
    pub fn keep_one_pair(&self, choices: &mut Vec<Choice>) {
        if self.faults_spent == 0 || self.faults_spent < self.setup.faults_max || self.is_tight() {
            return;
        }
        let by_nic = !self.setup.processes.is_empty() && self.earlier_runs_are_forgotten();
        let ends = |choice: &Choice| {
            let (one, other) = self.ends_of(&choice.action)?;
            let place = |site: usize| if by_nic { site } else { self.sites[site].process };
            let (one, other) = (place(one), place(other));
            Some((one.min(other), one.max(other)))
        };
        let Some(pairs) = choices.iter().map(ends).collect::<Option<Vec<Ends>>>() else { return };
        let Some(first) = pairs.iter().min().copied() else { return };
        let mut of = pairs.into_iter();
        choices.retain(|_| of.next() == Some(first));
    }

    /// Whether a node may run out of capacity for lifecycles, which its peers share.
    fn is_tight(&self) -> bool {
        let used = |site: &Arc<Site>| site.node.lifecycles().count();
        let most = self.sites.iter().map(used).max().unwrap_or(0);
        most + ROOM > self.setup.limits.lifecycles_max || self.is_crowded()
    }

    /// Whether no lane, call or answer belongs to a dead incarnation, and every holder of a name is
    /// alive.
    fn earlier_runs_are_forgotten(&self) -> bool {
        let lives = |run: Incarnation| self.sites.iter().any(|site| site.incarnation == run);
        let of_the_living = |site: &Arc<Site>| {
            let mut lanes = site.node.lifecycles();
            lanes.all(|(.., remote)| remote.is_none_or(|remote| lives(remote.incarnation)))
        };
        let holders_live = |site: &Arc<Site>| {
            let mut peers = self.sites.iter();
            peers.all(|peer| site.node.holder_of(&peer.path.node).is_none_or(lives))
        };
        let answers = self.answers.iter().map(|(_, answer)| answer);
        self.sites.iter().all(|site| of_the_living(site) && holders_live(site))
            && self.calls.iter().chain(answers).all(|message| lives(message.sender.incarnation))
            && self.held.iter().all(|held| lives(held.sender.incarnation))
    }

    /// Returns the two sites of an action; `None` if it concerns more sites, or costs a fault.
    fn ends_of(&self, action: &Action) -> Option<Ends> {
        let (site, peer) = match action {
            Action::Command(at) => {
                let command = self.commands[*at];
                (command.kind != CommandKind::Restart).then_some(())?;
                (command.site, command.peer)
            }
            Action::Call(at, to) => {
                let call = &self.calls[*at];
                (*to, self.site_at(call.sender.incarnation, &call.from))
            }
            Action::Answer(at) => {
                let (run, answer) = &self.answers[*at];
                (self.site_at(*run, &answer.to), self.site_of_path(&answer.from)?)
            }
            Action::Operation(at) => {
                let pending = &self.operations[*at];
                self.rail_of(pending.site, pending.operation.id().lifecycle)?
            }
            Action::Timer(site, TimerId::Lifecycle(own)) | Action::Broken(site, own) => {
                self.rail_of(*site, *own)?
            }
            Action::Timer(site, TimerId::Peer(path)) => {
                (self.nic_of(*site, path), self.site_of_path(path)?)
            }
            _ => return None,
        };
        (site.max(peer) < self.sites.len()).then_some((site, peer))
    }

    fn site_of_path(&self, path: &NicPath) -> Option<usize> {
        self.sites.iter().position(|site| site.bears(path))
    }
}
