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

struct Peer {
    /// The number of its last connection.
    number: u64,
    proved: Arc<Proved>,
    /// The proof was not accepted at a look.
    is_withdrawn: bool,
}

#[derive(Default)]
struct Table {
    peers: BTreeMap<NodeName, Peer>,
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
        let noted = Peer { number, proved, is_withdrawn: false };
        if let Some(before) = table.peers.insert(peer.clone(), noted) {
            table.order.remove(&before.number);
        }
        table.order.insert(number, peer.clone());
        if table.peers.len() > PROVEN_MAX
            && let Some((_, oldest)) = table.order.pop_first()
        {
            table.peers.remove(&oldest);
        }
    }

    /// Returns the peers whose proof is not accepted any more, at this look and at the next one, and
    /// then forgets them: a call that was accepted before may open a lane after the first.
    pub(super) fn take_withdrawn(&self, current: &Material) -> Vec<NodeName> {
        let of =
            |(name, peer): (&NodeName, &Peer)| (name.clone(), peer.number, peer.proved.clone());
        let all: Vec<_> = self.0.lock().peers.iter().map(of).collect();
        let is_accepted = |name: &NodeName, proved: &Proved| {
            let proof = proved.under(current, name);
            proof.is_some_and(|proof| current.policy.allows(proof, name))
        };
        let withdrawn = all.into_iter().filter(|(name, _, proved)| !is_accepted(name, proved));
        let mut taken = Vec::new();
        for (name, number, _) in withdrawn {
            let mut table = self.0.lock();
            // A peer that has proven something else meanwhile stays.
            let Some(peer) = table.peers.get_mut(&name).filter(|it| it.number == number) else {
                continue;
            };
            if std::mem::replace(&mut peer.is_withdrawn, true) {
                table.peers.remove(&name);
                table.order.remove(&number);
            }
            taken.push(name);
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

    /// A removed key, another secret under its id, and no other change, withdraw the proof of a peer. It
    /// is told at two looks, unless the peer proves what is accepted between them.
    #[test]
    fn peers_of_a_removed_key_are_told_at_two_looks() {
        let proven = Proven::default();
        proven.note(&name(1), proved("old", 1));
        proven.note(&name(2), proved("old", 1));
        proven.note(&name(2), proved("new", 2));
        let take = |id, secret| proven.take_withdrawn(&material(id, secret));
        assert!(take("old", 1) == [name(2)] && take("old", 1) == [name(2)]);
        assert!(take("old", 1).is_empty() && proven.0.lock().order.len() == 1);
        assert!(take("old", 3) == [name(1)]);
        proven.note(&name(1), proved("old", 3));
        assert!(take("old", 3).is_empty());
        assert!(take("old", 4) == [name(1)] && take("old", 4) == [name(1)]);
        assert!(take("old", 4).is_empty() && proven.0.lock().order.is_empty());
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
