//! The last proof of each peer, so that lanes end once it is not accepted any more.

use super::Material;
use super::tls::Chain;
use crate::api::auth::Secret;
use handfast_core::NodeName;
use handfast_core::auth::Proof;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum remembered peers, as many as lanes by default. Past it the peer is forgotten whose last
/// connection began first.
const PROVEN_MAX: usize = 16_384;

/// The proof of one peer.
pub(super) enum Proved {
    Key { id: String, secret: Secret },
    Certificate(Chain),
}

impl Proved {
    /// The proof under the present keys or certificates, if it is accepted.
    pub(super) fn under(&self, current: &Material, peer: &NodeName) -> Option<Proof> {
        match (self, &current.certificates) {
            (Self::Key { id, secret }, _) => {
                let mut all = current.policy.keys().iter().zip(&current.secrets);
                let place = all.position(|(own, known)| own.id() == id && known.0 == secret.0);
                place.map(Proof::Key)
            }
            (Self::Certificate(chain), Some(own)) => own.proof(chain, peer),
            (Self::Certificate(_), None) => None,
        }
    }
}

#[derive(Default)]
struct Table {
    peers: BTreeMap<NodeName, (u64, Arc<Proved>)>,
    /// Names by the number of their last connection.
    order: BTreeMap<u64, NodeName>,
    next: u64,
}

/// The peers of a node.
#[derive(Default)]
pub(super) struct Proven(Mutex<Table>);

impl Proven {
    /// Remembers what a peer proved, in place of what it proved before.
    pub(super) fn note(&self, peer: &NodeName, proved: Arc<Proved>) {
        let mut table = self.0.lock();
        let number = table.next;
        table.next += 1;
        if let Some((before, _)) = table.peers.insert(peer.clone(), (number, proved)) {
            table.order.remove(&before);
        }
        table.order.insert(number, peer.clone());
        if table.peers.len() > PROVEN_MAX
            && let Some((_, oldest)) = table.order.pop_first()
        {
            table.peers.remove(&oldest);
        }
    }

    /// Forgets and returns the peers whose proof is not accepted any more.
    pub(super) fn take_withdrawn(&self, current: &Material) -> Vec<NodeName> {
        let all: Vec<_> =
            self.0.lock().peers.iter().map(|(peer, it)| (peer.clone(), it.clone())).collect();
        let is_accepted = |peer: &NodeName, proved: &Proved| {
            let proof = proved.under(current, peer);
            proof.is_some_and(|proof| current.policy.allows(proof, peer))
        };
        let withdrawn = all.into_iter().filter(|(peer, (_, proved))| !is_accepted(peer, proved));
        // A peer that has proven something else meanwhile stays.
        let mut taken = Vec::new();
        for (peer, (number, _)) in withdrawn {
            let mut table = self.0.lock();
            if table.order.remove(&number).is_some() {
                table.peers.remove(&peer);
                taken.push(peer);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_core::Incarnation;
    use handfast_core::auth::{AuthPolicy, Identity, KeyRule};

    fn name(number: usize) -> NodeName {
        NodeName::new(&format!("n{number}")).unwrap()
    }

    fn proved(id: &str, secret: u8) -> Arc<Proved> {
        Arc::new(Proved::Key { id: id.into(), secret: Secret([secret; 32]) })
    }

    fn material(id: &str, secret: u8) -> Material {
        let own = Identity { name: name(0), incarnation: Incarnation(1) };
        let policy = AuthPolicy::new(own, vec![KeyRule::new(id, Vec::new()).unwrap()]).unwrap();
        Material { policy, secrets: vec![Secret([secret; 32])], certificates: None }
    }

    /// A removed key, another secret under its id, and no other change, withdraw the proof of a peer.
    #[test]
    fn peers_of_a_removed_key_are_taken_once() {
        let proven = Proven::default();
        proven.note(&name(1), proved("old", 1));
        proven.note(&name(2), proved("old", 1));
        proven.note(&name(2), proved("new", 2));
        assert!(proven.take_withdrawn(&material("old", 1)) == [name(2)]);
        assert!(proven.take_withdrawn(&material("old", 1)).is_empty());
        assert!(proven.take_withdrawn(&material("old", 3)) == [name(1)]);
    }

    /// The peer past the limit takes the place of the one that connected first.
    #[test]
    fn peers_past_the_limit_displace_the_oldest() {
        let proven = Proven::default();
        for number in 0..PROVEN_MAX {
            proven.note(&name(number), proved("old", 1));
        }
        proven.note(&name(0), proved("old", 1));
        proven.note(&name(PROVEN_MAX), proved("old", 1));
        let taken = proven.take_withdrawn(&material("new", 2));
        assert_eq!(taken.len(), PROVEN_MAX);
        assert!(taken.contains(&name(0)) && !taken.contains(&name(1)));
    }
}
