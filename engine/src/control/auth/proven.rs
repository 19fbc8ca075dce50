//! The last proof of each peer, so that lanes end once it is not accepted any more.

use super::Material;
use super::tls::{Chain, end_of};
use crate::api::auth::Secret;
use handfast_core::NodeName;
use handfast_core::auth::Proof;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum remembered peers, as many as lanes by default.
const PROVEN_MAX: usize = 16_384;
/// Maximum remembered peers of one certificate or key.
const NAMES_PER_PROOF_MAX: usize = 4_096;

/// The proof of one peer.
pub(super) enum Proved {
    Key { id: String, secret: Secret },
    Certificate(Chain),
}

impl Proved {
    /// The holders of it.
    pub(super) fn member(&self) -> Member {
        match self {
            Self::Key { id, .. } => Member::Key(id.as_str().into()),
            Self::Certificate(chain) => Member::Certificate(end_of(chain).into()),
        }
    }

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

/// The holders of a certificate, by its bytes, or of a key, by its id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Member {
    Key(Arc<str>),
    Certificate(Arc<[u8]>),
}

struct Peer {
    /// The number of its last connection.
    number: u64,
    /// Its place in the order of its member's names.
    place: u64,
    member: Member,
    /// The key that it proved. Peers with one certificate share its chain, the last that was shown.
    key: Option<Arc<Proved>>,
    /// The proof was not accepted at a look.
    is_withdrawn: bool,
}

/// The names that a member has proven.
#[derive(Default)]
struct Names {
    chain: Option<Arc<Proved>>,
    /// The longest unused first.
    order: BTreeMap<u64, NodeName>,
}

#[derive(Default)]
struct Table {
    peers: BTreeMap<NodeName, Peer>,
    members: BTreeMap<Member, Names>,
    next: u64,
}

impl Table {
    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn insert(&mut self, name: &NodeName, proved: Arc<Proved>) {
        self.forget(name);
        let number = self.next();
        let member = proved.member();
        let (key, chain) = match member {
            Member::Key(_) => (Some(proved), None),
            Member::Certificate(_) => (None, Some(proved)),
        };
        let known = self.members.get_key_value(&member).map(|(known, _)| known.clone());
        let member = known.unwrap_or(member);
        self.make_room(&member);
        let names = self.members.entry(member.clone()).or_default();
        names.chain = chain;
        names.order.insert(number, name.clone());
        let peer = Peer { number, place: number, member, key, is_withdrawn: false };
        self.peers.insert(name.clone(), peer);
    }

    /// Forgets a name if the member has as many as it may, or the table is full: one of its own, or
    /// without any, one of the member with the most.
    fn make_room(&mut self, member: &Member) {
        let own = self.members.get(member);
        let is_full = self.peers.len() >= PROVEN_MAX;
        if !is_full && own.is_none_or(|own| own.order.len() < NAMES_PER_PROOF_MAX) {
            return;
        }
        let from = own.or_else(|| self.members.values().max_by_key(|names| names.order.len()));
        let oldest = from.and_then(|names| names.order.values().next().cloned());
        if let Some(oldest) = oldest {
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, name: &NodeName) {
        let Some(Peer { place, member, .. }) = self.peers.remove(name) else { return };
        let Some(names) = self.members.get_mut(&member) else { return };
        names.order.remove(&place);
        if names.order.is_empty() {
            self.members.remove(&member);
        }
    }

    fn proved(&self, peer: &Peer) -> Option<Arc<Proved>> {
        peer.key.clone().or_else(|| self.members.get(&peer.member)?.chain.clone())
    }
}

/// The peers of a node.
#[derive(Default)]
pub(super) struct Proven(Mutex<Table>);

impl Proven {
    /// Remembers what a peer proved, in place of what it proved before.
    pub(super) fn note(&self, peer: &NodeName, proved: Arc<Proved>) {
        self.0.lock().insert(peer, proved);
    }

    /// Whether a peer with a lane is remembered; if so, it is the last of its member's to be forgotten.
    pub(super) fn keeps(&self, name: &NodeName) -> bool {
        let mut table = self.0.lock();
        let place = table.next();
        let Table { peers, members, .. } = &mut *table;
        let Some(peer) = peers.get_mut(name) else { return false };
        if let Some(names) = members.get_mut(&peer.member) {
            names.order.remove(&peer.place);
            names.order.insert(place, name.clone());
            peer.place = place;
        }
        true
    }

    /// Returns the peers whose proof is not accepted any more, at this look and at the next one, and
    /// then forgets them: a call that was accepted before may open a lane after the first.
    pub(super) fn take_withdrawn(&self, current: &Material) -> Vec<NodeName> {
        let table = self.0.lock();
        let of = |(name, peer): (&NodeName, &Peer)| {
            Some((name.clone(), peer.number, table.proved(peer)?))
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
        assert!(take("old", 1).is_empty() && proven.0.lock().peers.len() == 1);
        assert!(take("old", 3) == [name(1)]);
        proven.note(&name(1), proved("old", 3));
        assert!(take("old", 3).is_empty());
        assert!(take("old", 4) == [name(1)] && take("old", 4) == [name(1)]);
        assert!(take("old", 4).is_empty() && proven.0.lock().members.is_empty());
    }

    fn certificate(end: u8, more: usize) -> Arc<Proved> {
        let chain = std::iter::once(vec![end]).chain(vec![vec![9]; more]);
        Arc::new(Proved::Certificate(chain.map(Into::into).collect()))
    }

    fn note_all(proven: &Proven, names: std::ops::Range<usize>, proved: &Arc<Proved>) {
        names.for_each(|number| proven.note(&name(number), proved.clone()));
    }

    fn known(proven: &Proven, names: std::ops::Range<usize>) -> usize {
        let table = proven.0.lock();
        names.filter(|number| table.peers.contains_key(&name(*number))).count()
    }

    /// A name past the limit of its key or certificate takes the place of the one that is unused the
    /// longest. A connection is a use, and so is a lane at a look.
    #[test]
    fn names_of_one_proof_displace_its_oldest_alone() {
        for own in [proved("own", 1), certificate(1, 0)] {
            let proven = Proven::default();
            let others = PROVEN_MAX..PROVEN_MAX + 2;
            note_all(&proven, others.clone(), &proved("other", 2));
            note_all(&proven, 0..NAMES_PER_PROOF_MAX, &own);
            assert_eq!(known(&proven, 0..NAMES_PER_PROOF_MAX), NAMES_PER_PROOF_MAX, "at the limit");
            proven.note(&name(0), own.clone());
            assert!(proven.keeps(&name(1)) && !proven.keeps(&name(NAMES_PER_PROOF_MAX)));
            note_all(&proven, NAMES_PER_PROOF_MAX..PROVEN_MAX, &own);
            let first = PROVEN_MAX - NAMES_PER_PROOF_MAX;
            assert_eq!(
                (known(&proven, 0..first), known(&proven, first..PROVEN_MAX)),
                (0, NAMES_PER_PROOF_MAX)
            );
            assert_eq!(known(&proven, others), 2, "of another");
        }
        let proven = Proven::default();
        note_all(&proven, 0..NAMES_PER_PROOF_MAX, &certificate(1, 0));
        proven.note(&name(0), certificate(1, 0));
        assert!(proven.keeps(&name(1)));
        proven.note(&name(PROVEN_MAX), certificate(1, 0));
        assert_eq!((known(&proven, 0..3), known(&proven, 2..3)), (2, 0));
    }

    /// In a full table a member displaces its own oldest name, and one without any that of the member
    /// with the most.
    #[test]
    fn full_table_displaces_own_names_then_those_of_the_largest() {
        let proven = Proven::default();
        let many = PROVEN_MAX / NAMES_PER_PROOF_MAX;
        let names_of =
            |member: usize| member * NAMES_PER_PROOF_MAX..(member + 1) * NAMES_PER_PROOF_MAX;
        for member in 0..many {
            note_all(&proven, names_of(member), &certificate(member as u8, 0));
        }
        assert_eq!(known(&proven, 0..PROVEN_MAX), PROVEN_MAX, "at the limit");
        // Under another's proof: the largest lose no name.
        proven.note(&name(0), certificate(100, 0));
        proven.note(&name(PROVEN_MAX), certificate(100, 0));
        assert_eq!(known(&proven, 0..PROVEN_MAX + 1), PROVEN_MAX);
        assert!(!proven.keeps(&name(0)) && proven.keeps(&name(PROVEN_MAX)), "its own");
        proven.note(&name(PROVEN_MAX + 1), certificate(101, 0));
        let left: Vec<_> = (0..many).map(|member| known(&proven, names_of(member))).collect();
        assert_eq!(left.iter().sum::<usize>(), PROVEN_MAX - 2);
        assert_eq!(left[0], NAMES_PER_PROOF_MAX - 1, "it was not the largest");
        assert!(proven.keeps(&name(PROVEN_MAX)) && proven.keeps(&name(PROVEN_MAX + 1)));
    }

    /// Peers with one certificate share the chain that was shown last, however many names they have;
    /// it goes with the last of them.
    #[test]
    fn chain_of_a_certificate_is_kept_once() {
        let proven = Proven::default();
        let chain = certificate;
        let last = chain(1, 2);
        for number in 0..100 {
            proven.note(&name(number), chain(1, number % 3));
        }
        proven.note(&name(100), last.clone());
        proven.note(&name(101), chain(2, 0));
        let table = proven.0.lock();
        assert_eq!((table.peers.len(), table.members.len()), (102, 2));
        let all: Vec<_> = table.peers.values().filter_map(|it| table.proved(it)).collect();
        assert_eq!(all.iter().filter(|proved| Arc::ptr_eq(proved, &last)).count(), 101);
        drop(table);
        proven.note(&name(101), proved("old", 1));
        for number in 0..=100 {
            assert!(proven.keeps(&name(number)));
            let table = proven.0.lock();
            let chains = table.members.values().filter(|it| it.chain.is_some()).count();
            assert_eq!(chains, 1);
            drop(table);
            proven.note(&name(number), proved("old", 1));
        }
        assert!(proven.0.lock().members.values().all(|it| it.chain.is_none()));
        assert!(!proven.keeps(&name(102)));
    }
}
