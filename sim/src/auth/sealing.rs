//! Nodes that encrypt their lanes, others that do not, and earlier versions, which cannot.

use super::oracle::AuthOracle;
use super::setup::AuthBackend;
use super::term::Content;
use super::world::AuthWorld;
use handfast_core::auth::check_sealing;

impl AuthWorld {
    /// Whether a node takes a lane of a peer that encrypts or does not. An earlier version knows no
    /// encryption, so it takes what it can read.
    pub(super) fn agrees(&self, node: usize, peer: bool) -> bool {
        let plan = &self.setup.nodes[node];
        match plan.is_earlier {
            true => !peer || self.is(AuthBackend::SealingFollowed),
            false => {
                check_sealing(plan.seals, peer).is_ok() || self.is(AuthBackend::SealingFollowed)
            }
        }
    }

    /// A side reports to the other that one of them encrypts. An earlier version says that it cannot read the
    /// request, which its peer understands.
    pub(super) fn tell(&mut self, wire: usize, side: usize) {
        if !self.is(AuthBackend::DifferenceUntold) {
            self.seal(wire, side, Content::Differs);
        }
    }

    /// The dialling side knows why it gets no lane.
    pub(super) fn hear(&mut self, wire: usize) {
        self.told.insert(wire);
    }

    /// Whether the hello of a lane asks for encryption.
    pub(super) fn seals_lane(&self, node: usize) -> bool {
        let everyone = self.setup.nodes.iter().all(|plan| plan.seals);
        self.setup.nodes[node].seals && (everyone || !self.is(AuthBackend::SealingFollowed))
    }

    /// A node that encrypts has no plain lane.
    pub(super) fn check_sealed(&mut self, node: usize, seals: bool) {
        if self.setup.nodes[node].seals && !seals {
            let detail = format!("node {node} encrypts its lanes and has a plain one");
            self.violate(AuthOracle::Downgrade, detail);
        }
    }

    /// The forms of a hello for a lane that the attacker sends: where a node encrypts, both.
    pub(super) fn forms(&self) -> Vec<bool> {
        match self.setup.nodes.iter().any(|plan| plan.seals) {
            true => vec![false, true],
            false => vec![false],
        }
    }
}
