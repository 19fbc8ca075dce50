//! The proofs of each peer, so that lanes end once one of them is not accepted any more.

use super::Material;
use super::tls::{Chain, end_of};
use crate::api::auth::{SECRET_BYTES, Secret};
use handfast_core::NodeName;
use handfast_core::auth::{KeyRule, PeerProofs, Proof, ProofLook};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The proof of one peer.
pub(super) enum Proved {
    Key { rule: KeyRule, secret: Secret },
    Certificate(Chain),
}

impl Proved {
    /// The proof under the present keys or certificates, if it is accepted.
    pub(super) fn under(&self, current: &Material, peer: &NodeName) -> Option<Proof> {
        self.is_valid(current).then(|| self.named(current, peer)).flatten()
    }

    /// Whether a key is among the present ones, or a certificate is valid now.
    fn is_valid(&self, current: &Material) -> bool {
        match (self, &current.certificates) {
            (Self::Key { .. }, _) => self.place(current).is_some(),
            (Self::Certificate(chain), Some(own)) => own.is_valid(chain),
            (Self::Certificate(_), None) => false,
        }
    }

    /// The proof, if it is valid.
    fn named(&self, current: &Material, peer: &NodeName) -> Option<Proof> {
        match (self, &current.certificates) {
            (Self::Key { .. }, _) => self.place(current).map(Proof::Key),
            (Self::Certificate(chain), Some(own)) => Some(own.proof(chain, peer)),
            (Self::Certificate(_), None) => None,
        }
    }

    /// The place of the key among the present ones.
    fn place(&self, current: &Material) -> Option<usize> {
        let Self::Key { rule, secret } = self else { return None };
        let mut all = current.policy.keys().iter().zip(&current.secrets);
        all.position(|(own, known)| own.id() == rule.id() && known.0 == secret.0)
    }

    /// Whether the valid proof allows the name of a peer now.
    fn allows(&self, current: &Material, peer: &NodeName) -> bool {
        self.named(current, peer).is_some_and(|proof| current.policy.allows(proof, peer))
    }

    /// Whether it allowed the name of a peer when it was shown.
    fn allowed(&self, current: &Material, peer: &NodeName) -> bool {
        match self {
            Self::Key { rule, .. } => rule.covers(peer),
            Self::Certificate(_) => {
                self.named(current, peer) == Some(Proof::Certificate { names_peer: true })
            }
        }
    }

    /// The holders of it.
    pub(super) fn member(&self) -> Member {
        match self {
            Self::Key { rule, secret } => Member::Key(Arc::new((rule.clone(), secret.0))),
            Self::Certificate(chain) => Member::Certificate(end_of(chain).into()),
        }
    }
}

/// The holders of a certificate, by its bytes, or of a key, by its line.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Member {
    Key(Arc<(KeyRule, [u8; SECRET_BYTES])>),
    Certificate(Arc<[u8]>),
}

#[cfg(test)]
impl Member {
    /// The holders of a key that allows every name.
    pub(crate) fn of_key(id: &str) -> Self {
        Self::Key(Arc::new((KeyRule::new(id, Vec::new()).unwrap(), [0; SECRET_BYTES])))
    }
}

/// The peers of a node. Those with one certificate share its chain, the last that was shown.
#[derive(Default)]
pub(super) struct Proven(Mutex<PeerProofs<Member, Arc<Proved>>>);

impl Proven {
    /// Remembers what a peer proved, in addition to what it proved before.
    pub(super) fn note(&self, peer: &NodeName, proved: Arc<Proved>) {
        let member = proved.member();
        self.0.lock().note(peer, member, proved);
    }

    /// Whether a peer with a lane is remembered, as [`PeerProofs::keeps`].
    pub(super) fn keeps(&self, name: &NodeName) -> bool {
        self.0.lock().keeps(name)
    }

    /// Looks at every proof; returns the peers of those that are not accepted any more.
    pub(super) fn take_withdrawn(&self, current: Arc<Material>, look: ProofLook) -> Withdrawn {
        let table = self.0.lock();
        let all = table.proofs().map(|(member, proved)| (member.clone(), proved.clone()));
        let all: Vec<_> = all.collect();
        let shown = table.shown().map(|(name, member, number)| {
            let (name, member) = (name.clone(), member.clone());
            (name, member, number)
        });
        let shown: Vec<_> = shown.collect();
        drop(table);
        // Without the lock: a chain is verified once for all its peers.
        let verified = all.into_iter().map(|(member, proved)| {
            let is_valid = proved.is_valid(&current);
            (member, (proved, is_valid))
        });
        let verified: BTreeMap<_, _> = verified.collect();
        let is_accepted = |name: &NodeName, member: &Member| {
            let found = verified.get(member);
            found.is_some_and(|(proved, is_valid)| *is_valid && proved.allows(&current, name))
        };
        let looks: Vec<_> =
            shown.iter().map(|(name, member, _)| is_accepted(name, member)).collect();
        let mut table = self.0.lock();
        let displaced = table.displaced().filter_map(|member| verified.get(member).cloned());
        // The names of a valid proof change with the files alone.
        let is_after_change = look.is_after_change();
        let displaced = displaced.filter(|(_, is_valid)| is_after_change || !is_valid).collect();
        let is_everybody = table.handle_change(look.is_first, look.follows_first);
        let mut names = BTreeSet::new();
        for ((name, member, number), is_accepted) in shown.into_iter().zip(looks) {
            if table.handle_look(&name, &member, number, is_accepted) {
                names.insert(name);
            }
        }
        for (member, (_, is_valid)) in &verified {
            table.handle_validity(member, *is_valid);
        }
        Withdrawn { names, displaced, is_everybody, current }
    }
}

/// The peers whose lanes may have been opened under what is not accepted any more.
pub(super) struct Withdrawn {
    names: BTreeSet<NodeName>,
    /// Proofs of which names are not remembered, and whether they are valid.
    displaced: Vec<(Arc<Proved>, bool)>,
    /// Proofs were forgotten with all their names.
    is_everybody: bool,
    current: Arc<Material>,
}

impl Withdrawn {
    /// Those that are remembered.
    pub(super) fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.names.iter()
    }

    pub(super) fn contains(&self, peer: &NodeName) -> bool {
        let has_ended = |(proved, is_valid): &(Arc<Proved>, bool)| {
            let is_accepted = *is_valid && proved.allows(&self.current, peer);
            !is_accepted && proved.allowed(&self.current, peer)
        };
        self.is_everybody || self.names.contains(peer) || self.displaced.iter().any(has_ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_core::Incarnation;
    use handfast_core::auth::{AuthPolicy, Identity, NAMES_PER_PROOF_MAX, NamePattern, PROVEN_MAX};

    const CHANGED: ProofLook =
        ProofLook { is_first: true, follows_first: false, is_recheck: false };

    fn name(number: usize) -> NodeName {
        NodeName::new(&format!("n{number}")).unwrap()
    }

    fn rule(id: &str, names: &[&str]) -> KeyRule {
        KeyRule::new(id, names.iter().map(|name| NamePattern::new(name).unwrap()).collect())
            .unwrap()
    }

    fn proved_as(rule: &KeyRule, secret: u8) -> Arc<Proved> {
        Arc::new(Proved::Key { rule: rule.clone(), secret: Secret([secret; 32]) })
    }

    fn proved(id: &str, secret: u8) -> Arc<Proved> {
        proved_as(&rule(id, &[]), secret)
    }

    fn material_of(keys: &[(KeyRule, u8)]) -> Arc<Material> {
        let own = Identity { name: name(0), incarnation: Incarnation(1) };
        let policy = AuthPolicy::new(own, keys.iter().map(|(rule, _)| rule.clone()).collect());
        let secrets = keys.iter().map(|(_, secret)| Secret([*secret; 32])).collect();
        Arc::new(Material { policy: policy.unwrap(), secrets, certificates: None })
    }

    fn material(id: &str, secret: u8) -> Arc<Material> {
        material_of(&[(rule(id, &[]), secret)])
    }

    /// A removed key, or another secret under its id, and no other change, withdraw the proof of a peer,
    /// also of one that has proven another key since. It is reported at two looks, unless the peer proves
    /// what is accepted between them.
    #[test]
    fn peers_of_a_removed_key_are_told_at_two_looks() {
        let proven = Proven::default();
        proven.note(&name(1), proved("old", 1));
        proven.note(&name(2), proved("old", 1));
        proven.note(&name(2), proved("new", 2));
        let take = |materials: &[(&str, u8)]| {
            let keys: Vec<_> = materials.iter().map(|(id, it)| (rule(id, &[]), *it)).collect();
            let withdrawn = proven.take_withdrawn(material_of(&keys), CHANGED);
            withdrawn.names().cloned().collect::<Vec<_>>()
        };
        assert!(take(&[("old", 1), ("new", 2)]).is_empty());
        for _ in 0..2 {
            assert!(take(&[("new", 2)]) == [name(1), name(2)], "whatever was proven since");
        }
        assert!(take(&[("new", 2)]).is_empty() && proven.0.lock().shown().count() == 1);
        assert!(take(&[("new", 3)]) == [name(2)]);
        proven.note(&name(2), proved("new", 3));
        assert!(take(&[("new", 3)]) == [name(2)], "its lane may be of the earlier secret");
        assert!(take(&[("new", 3)]).is_empty());
        for _ in 0..2 {
            assert!(take(&[("new", 4)]) == [name(2)]);
        }
        assert!(take(&[("new", 4)]).is_empty() && proven.0.lock().proofs().count() == 0);
    }

    fn certificate(end: u8, more: usize) -> Arc<Proved> {
        let chain = std::iter::once(vec![end]).chain(vec![vec![9]; more]);
        Arc::new(Proved::Certificate(chain.map(Into::into).collect()))
    }

    /// The holder of a key can displace a name of it from memory, by others that it proves. The lanes of
    /// the displaced name end with the key nonetheless, also if the name has proven another one.
    #[test]
    fn name_that_its_own_key_displaced_ends_with_the_key() {
        let (old, bound) = (rule("old", &["n*"]), rule("old", &["n1"]));
        let other = (rule("new", &[]), 2);
        let proven = Proven::default();
        proven.note(&name(0), proved_as(&old, 1));
        proven.note(&name(0), proved("new", 2));
        let stranger = NodeName::new("stranger").unwrap();
        proven.note(&stranger, proved("new", 2));
        (1..=NAMES_PER_PROOF_MAX).for_each(|it| proven.note(&name(it), proved_as(&old, 1)));
        let take = |keys: &[(KeyRule, u8)]| {
            let withdrawn = proven.take_withdrawn(material_of(keys), CHANGED);
            (withdrawn.contains(&name(0)), withdrawn.contains(&stranger))
        };
        assert_eq!(take(&[(old.clone(), 1), other.clone()]), (false, false));
        assert_eq!(take(&[(bound, 1), other.clone()]), (true, false), "not its name any more");
        for look in 0..2 {
            assert_eq!(take(std::slice::from_ref(&other)), (true, false), "look {look}");
        }
        assert_eq!(take(std::slice::from_ref(&other)), (false, false));
    }

    /// A rule that is narrowed to a displaced name leaves its key no other name. The lanes of that name stay, and
    /// end with the key.
    #[test]
    fn name_of_a_narrowed_key_ends_with_the_key() {
        let (wide, narrow) = (rule("old", &["n*"]), rule("old", &["n0"]));
        let other = (rule("new", &[]), 2);
        let proven = Proven::default();
        (0..=NAMES_PER_PROOF_MAX).for_each(|it| proven.note(&name(it), proved_as(&wide, 1)));
        proven.note(&name(0), proved("new", 2));
        let take = |keys: &[(KeyRule, u8)]| {
            let withdrawn = proven.take_withdrawn(material_of(keys), CHANGED);
            withdrawn.contains(&name(0))
        };
        for look in 0..2 {
            assert!(!take(&[(narrow.clone(), 1), other.clone()]), "look {look}: it is accepted");
        }
        for look in 0..2 {
            assert!(take(std::slice::from_ref(&other)), "look {look}: the key is removed");
        }
        assert!(!take(std::slice::from_ref(&other)), "it is forgotten");
    }

    /// A full table forgets proofs that have one name each. After a change of the files every lane ends
    /// then, and none by the time alone.
    #[test]
    fn forgotten_proofs_end_every_lane_at_a_change() {
        let proven = Proven::default();
        for number in 0..PROVEN_MAX {
            let end = number.to_le_bytes().to_vec();
            proven.note(&name(number), Arc::new(Proved::Certificate(vec![end.into()])));
        }
        proven.note(&name(0), proved("new", 2));
        let timed = ProofLook { is_first: false, ..CHANGED };
        for (look, ends) in [(timed, false), (CHANGED, true)] {
            let withdrawn = proven.take_withdrawn(material("new", 2), look);
            assert_eq!(withdrawn.contains(&NodeName::new("anybody").unwrap()), ends);
        }
    }

    /// Peers with one certificate share the chain that was shown last, however many names they have.
    #[test]
    fn chain_of_a_certificate_is_kept_once() {
        let proven = Proven::default();
        let last = certificate(1, 2);
        for number in 0..100 {
            proven.note(&name(number), certificate(1, number % 3));
        }
        proven.note(&name(100), last.clone());
        proven.note(&name(101), certificate(2, 0));
        let table = proven.0.lock();
        assert_eq!((table.shown().count(), table.proofs().count()), (102, 2));
        assert!(table.proofs().any(|(_, proved)| Arc::ptr_eq(proved, &last)));
        let ends: Vec<_> = table.shown().map(|(_, member, _)| member).collect();
        let bytes = |member: &Member| match member {
            Member::Certificate(bytes) => Arc::as_ptr(bytes).cast::<u8>(),
            Member::Key(_) => panic!("a key"),
        };
        let distinct: BTreeSet<_> = ends.into_iter().map(bytes).collect();
        assert_eq!(distinct.len(), 2, "the bytes too");
    }
}
