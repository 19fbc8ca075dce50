//! The last proof of each peer, so that lanes end once it is not accepted any more.

use super::Material;
use super::tls::{Chain, end_of};
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
        self.is_valid(current).then(|| self.named(current, peer)).flatten()
    }

    /// Whether a certificate is valid now.
    fn is_valid(&self, current: &Material) -> bool {
        match (self, &current.certificates) {
            (Self::Key { .. }, _) => true,
            (Self::Certificate(chain), Some(own)) => own.is_valid(chain),
            (Self::Certificate(_), None) => false,
        }
    }

    /// The proof, if it is valid.
    fn named(&self, current: &Material, peer: &NodeName) -> Option<Proof> {
        match (self, &current.certificates) {
            (Self::Key { id, secret }, _) => {
                let mut all = current.policy.keys().iter().zip(&current.secrets);
                let place = all.position(|(own, known)| own.id() == id && known.0 == secret.0);
                place.map(Proof::Key)
            }
            (Self::Certificate(chain), Some(own)) => Some(own.proof(chain, peer)),
            (Self::Certificate(_), None) => None,
        }
    }
}

/// The proof of a remembered peer. Peers with one certificate share its chain, the last that was shown.
enum Held {
    Key(Arc<Proved>),
    Certificate(Arc<[u8]>),
}

struct Peer {
    /// The number of its last connection.
    number: u64,
    held: Held,
    /// The proof was not accepted at a look.
    is_withdrawn: bool,
}

/// The chain of a certificate, and the peers that have proven it.
struct Chained {
    proved: Arc<Proved>,
    peers: usize,
}

#[derive(Default)]
struct Table {
    peers: BTreeMap<NodeName, Peer>,
    /// Names by the number of their last connection.
    order: BTreeMap<u64, NodeName>,
    chains: BTreeMap<Arc<[u8]>, Chained>,
    next: u64,
}

impl Table {
    fn hold(&mut self, proved: Arc<Proved>) -> Held {
        let Proved::Certificate(chain) = &*proved else { return Held::Key(proved) };
        let end: Arc<[u8]> = end_of(chain).into();
        let known = self.chains.get_key_value(&end).map(|(end, _)| end.clone());
        let end = known.unwrap_or(end);
        let empty = Chained { proved: proved.clone(), peers: 0 };
        let chained = self.chains.entry(end.clone()).or_insert(empty);
        chained.proved = proved;
        chained.peers += 1;
        Held::Certificate(end)
    }

    fn forget(&mut self, peer: &NodeName) {
        let Some(Peer { number, held, .. }) = self.peers.remove(peer) else { return };
        self.order.remove(&number);
        let Held::Certificate(end) = held else { return };
        if let Some(chained) = self.chains.get_mut(&end) {
            chained.peers -= 1;
            if chained.peers == 0 {
                self.chains.remove(&end);
            }
        }
    }

    fn proved(&self, held: &Held) -> Option<Arc<Proved>> {
        match held {
            Held::Key(proved) => Some(proved.clone()),
            Held::Certificate(end) => self.chains.get(end).map(|chained| chained.proved.clone()),
        }
    }
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
        table.forget(peer);
        let held = table.hold(proved);
        table.peers.insert(peer.clone(), Peer { number, held, is_withdrawn: false });
        table.order.insert(number, peer.clone());
        if table.peers.len() > PROVEN_MAX
            && let Some((_, oldest)) = table.order.pop_first()
        {
            table.forget(&oldest);
        }
    }

    /// Whether a peer is remembered.
    pub(super) fn knows(&self, peer: &NodeName) -> bool {
        self.0.lock().peers.contains_key(peer)
    }

    /// Returns the peers whose proof is not accepted any more, at this look and at the next one, and
    /// then forgets them: a call that was accepted before may open a lane after the first.
    pub(super) fn take_withdrawn(&self, current: &Material) -> Vec<NodeName> {
        let table = self.0.lock();
        let of = |(name, peer): (&NodeName, &Peer)| {
            Some((name.clone(), peer.number, table.proved(&peer.held)?))
        };
        let all: Vec<_> = table.peers.iter().filter_map(of).collect();
        drop(table);
        // A chain is verified once for all its peers.
        let mut verified = BTreeMap::new();
        let mut is_accepted = |name: &NodeName, proved: &Arc<Proved>| {
            let valid = verified.entry(Arc::as_ptr(proved));
            let is_valid = *valid.or_insert_with(|| proved.is_valid(current));
            let proof = is_valid.then(|| proved.named(current, name)).flatten();
            proof.is_some_and(|proof| current.policy.allows(proof, name))
        };
        let mut taken = Vec::new();
        for (name, number, proved) in all {
            if is_accepted(&name, &proved) {
                continue;
            }
            let mut table = self.0.lock();
            // A peer that has proven something else meanwhile stays.
            let Some(peer) = table.peers.get_mut(&name).filter(|it| it.number == number) else {
                continue;
            };
            if std::mem::replace(&mut peer.is_withdrawn, true) {
                table.forget(&name);
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

    /// Peers with one certificate share the chain that was shown last, however many names they have;
    /// it goes with the last of them.
    #[test]
    fn chain_of_a_certificate_is_kept_once() {
        let proven = Proven::default();
        let chain = |end: u8, more: usize| {
            let chain = std::iter::once(vec![end]).chain(vec![vec![9]; more]);
            Arc::new(Proved::Certificate(chain.map(Into::into).collect()))
        };
        let last = chain(1, 2);
        for number in 0..100 {
            proven.note(&name(number), chain(1, number % 3));
        }
        proven.note(&name(100), last.clone());
        proven.note(&name(101), chain(2, 0));
        let table = proven.0.lock();
        assert_eq!((table.peers.len(), table.chains.len()), (102, 2));
        let all: Vec<_> = table.peers.values().filter_map(|it| table.proved(&it.held)).collect();
        assert_eq!(all.iter().filter(|proved| Arc::ptr_eq(proved, &last)).count(), 101);
        drop(table);
        proven.note(&name(101), proved("old", 1));
        for number in 0..=100 {
            assert!(proven.knows(&name(number)));
            assert_eq!(proven.0.lock().chains.len(), 1);
            proven.note(&name(number), proved("old", 1));
        }
        assert!(proven.0.lock().chains.is_empty() && !proven.knows(&name(102)));
    }
}
