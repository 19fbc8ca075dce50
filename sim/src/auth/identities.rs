//! Names and incarnations: of runs, those that the attacker claims, and whom a node takes for itself.

use super::oracle::AuthOracle;
use super::setup::AuthBackend;
use super::term::Run;
use super::world::{AuthWorld, BORROWED, CHOSEN, name};
use handfast_core::auth::{AnswerSeen, Identity, Outbound};
use handfast_core::{Incarnation, NodeName};

impl AuthWorld {
    pub(super) fn identity(&self, run: Run) -> Identity {
        let (node, number) = self.runs[run];
        let of = |node: usize, number: u8| Incarnation(1 + u128::from(number) + 16 * node as u128);
        let named = match self.setup.chosen {
            Some((_, text)) if number == CHOSEN => {
                NodeName::new(&format!("{}:{text}", name(node))).expect("it is a name")
            }
            _ => name(node),
        };
        let incarnation = match self.setup.borrowed {
            Some((_, other)) if number == BORROWED => of(other, 0),
            _ => of(node, number),
        };
        Identity { name: named, incarnation }
    }

    pub(super) fn run_of(&self, identity: &Identity) -> Option<Run> {
        (0..self.runs.len()).find(|run| self.identity(*run) == *identity)
    }

    /// The runs whose names the attacker claims: of others than the one that it talks to, and of that
    /// one where rights rest on names.
    pub(super) fn claimable(&self, wire: usize, side: usize) -> impl Iterator<Item = Run> {
        let (end, claims_all) = (self.wires[wire].ends[side], self.setup.grant.is_some());
        let runs = self.runs.iter().enumerate();
        let claimed = runs.filter(move |(_, (node, _))| claims_all || Some(*node) != end);
        claimed.map(|(run, _)| run)
    }

    /// Checks that a node takes no other for itself, as it does with a peer that it accepts and that has its
    /// incarnation; and that it does not take itself for the other that it dialled.
    pub(super) fn check_itself(&mut self, node: usize, outbound: &Outbound, seen: &AnswerSeen) {
        let (AnswerSeen::Opened(peer) | AnswerSeen::Certified(peer, _)) = seen else { return };
        let own = self.identity(self.nodes[node].run);
        let answered = outbound.clone().handle_answer(&self.nodes[node].policy, seen.clone());
        let is_accepted = answered.is_ok() || self.is(AuthBackend::IncarnationAlone);
        if is_accepted && peer.incarnation == own.incarnation && peer.name != own.name {
            let detail = format!("node {node} takes {} for itself", peer.name);
            self.violate(AuthOracle::Mistaken, detail);
        }
        // No node dials itself.
        if answered.is_ok() && *peer == own {
            let detail = format!("node {node} dials another and takes itself for it");
            self.violate(AuthOracle::LedBack, detail);
        }
    }
}
