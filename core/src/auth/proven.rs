//! The proofs of peers, so that lanes end once one of them is not accepted any more.

use crate::identity::NodeName;
use alloc::collections::BTreeMap;
use core::mem;

/// Maximum remembered pairs of a name and a proof, as many as lanes by default.
pub const PROVEN_MAX: usize = 16_384;
/// Maximum remembered names of one proof.
pub const NAMES_PER_PROOF_MAX: usize = 4_096;

/// A proof under one name.
#[derive(Clone, Debug)]
struct Shown {
    /// The number of the last connection with it.
    number: u64,
    /// The place in the order of the names of the proof.
    place: u64,
    /// It was not accepted at the last look.
    is_withdrawn: bool,
}

/// The names under which a proof was shown.
#[derive(Clone, Debug)]
struct Names<V> {
    /// The means to verify the proof, as it was shown last.
    value: V,
    /// The longest unused first.
    order: BTreeMap<u64, NodeName>,
    /// One of its names was displaced.
    has_displaced: bool,
    /// It was not valid at the last look.
    is_withdrawn: bool,
}

/// Lanes under proofs that were forgotten with all their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forgotten {
    /// None is left.
    None,
    /// Some may be left.
    Some,
    /// They ended at the first look after a change.
    Ended,
}

/// Every proof that each peer of a node has shown. A lane may have been opened under any of them, so the
/// lanes of a peer end once one is not accepted any more, whatever the peer has proven since.
///
/// A name past a limit displaces one of its own proof; in a full table, the first name of a proof displaces
/// one of the proof with the most. The proof of a displaced name stays in [`Self::displaced`] until it is not
/// valid any more. If the table is full and it has no other name, it is forgotten as well; then every lane ends
/// at the next change, see [`Self::handle_change`].
#[derive(Clone, Debug)]
pub struct PeerProofs<P, V> {
    peers: BTreeMap<NodeName, BTreeMap<P, Shown>>,
    proofs: BTreeMap<P, Names<V>>,
    /// Pairs of a name and a proof.
    pairs: usize,
    next: u64,
    forgotten: Forgotten,
}

impl<P, V> Default for PeerProofs<P, V> {
    fn default() -> Self {
        Self {
            peers: BTreeMap::new(),
            proofs: BTreeMap::new(),
            pairs: 0,
            next: 0,
            forgotten: Forgotten::None,
        }
    }
}

impl<P: Clone + Ord, V> PeerProofs<P, V> {
    /// Remembers that a peer has shown a proof, in addition to those before.
    pub fn note(&mut self, name: &NodeName, proof: P, value: V) {
        // Equal proofs share the first one.
        let known = self.proofs.get_key_value(&proof).map(|(known, _)| known.clone());
        let proof = known.unwrap_or(proof);
        if !self.peers.get(name).is_some_and(|shown| shown.contains_key(&proof)) {
            self.make_room(&proof);
        }
        let number = self.next();
        let shown = Shown { number, place: number, is_withdrawn: false };
        let before = self.peers.entry(name.clone()).or_default().insert(proof.clone(), shown);
        self.pairs += usize::from(before.is_none());
        let mut names = match self.proofs.remove(&proof) {
            Some(names) => Names { value, ..names },
            None => {
                let order = BTreeMap::new();
                Names { value, order, has_displaced: false, is_withdrawn: false }
            }
        };
        if let Some(before) = before {
            names.order.remove(&before.place);
        }
        names.order.insert(number, name.clone());
        self.proofs.insert(proof, names);
    }

    /// Whether a peer with a lane is remembered; if so, it is the last of its proofs' names to be displaced.
    pub fn keeps(&mut self, name: &NodeName) -> bool {
        let Self { peers, proofs, next, .. } = self;
        let Some(shown) = peers.get_mut(name) else { return false };
        for (proof, shown) in shown {
            let Some(names) = proofs.get_mut(proof) else { continue };
            *next += 1;
            names.order.remove(&shown.place);
            names.order.insert(*next, name.clone());
            shown.place = *next;
        }
        true
    }

    /// Every name with each of its proofs, and the number of the last connection with it.
    pub fn shown(&self) -> impl Iterator<Item = (&NodeName, &P, u64)> {
        self.peers.iter().flat_map(|(name, shown)| {
            shown.iter().map(move |(proof, shown)| (name, proof, shown.number))
        })
    }

    /// Every proof, and what it takes to verify it.
    pub fn proofs(&self) -> impl Iterator<Item = (&P, &V)> {
        self.proofs.iter().map(|(proof, names)| (proof, &names.value))
    }

    /// The proofs of which a name was displaced.
    pub fn displaced(&self) -> impl Iterator<Item = &P> {
        self.proofs.iter().filter(|(_, names)| names.has_displaced).map(|(proof, _)| proof)
    }

    /// Handles a change of what is accepted: a look is the first after one, or follows a first look, or both.
    /// Returns whether the lanes of every peer end, since a proof was forgotten with all its names.
    ///
    /// No lane under it is left after two such looks in a row, the second of which ends those of calls that were
    /// accepted before the first. Later lanes are opened under proofs that are shown after the change.
    pub fn handle_change(&mut self, is_first: bool, follows_first: bool) -> bool {
        if self.forgotten == Forgotten::None || !(is_first || follows_first) {
            return false;
        }
        self.forgotten = match self.forgotten {
            Forgotten::Ended if follows_first => Forgotten::None,
            _ if is_first => Forgotten::Ended,
            before => before,
        };
        true
    }

    /// Handles a look at a proof, as of a number of [`Self::shown`]; returns whether the lanes of the peer
    /// end. At the second look in a row without acceptance the proof is forgotten: a call that was accepted
    /// before the first may open a lane after it. A proof that was shown again since stays.
    pub fn handle_look(
        &mut self,
        name: &NodeName,
        proof: &P,
        number: u64,
        is_accepted: bool,
    ) -> bool {
        let shown = self.peers.get_mut(name).and_then(|shown| shown.get_mut(proof));
        let Some(shown) = shown.filter(|it| it.number == number) else { return false };
        let was_withdrawn = mem::replace(&mut shown.is_withdrawn, !is_accepted);
        if !is_accepted && was_withdrawn {
            self.remove(name, proof);
            // A displaced name may be accepted under it.
            let is_over = |names: &Names<V>| names.order.is_empty() && !names.has_displaced;
            if self.proofs.get(proof).is_some_and(is_over) {
                self.proofs.remove(proof);
            }
        }
        !is_accepted
    }

    /// Handles a look at a proof, whatever its names are; call it after [`Self::handle_look`] for each of them.
    /// One that is not valid at two looks in a row, and was not shown since, is forgotten.
    pub fn handle_validity(&mut self, proof: &P, is_valid: bool) {
        let Some(names) = self.proofs.get_mut(proof) else { return };
        let was_withdrawn = mem::replace(&mut names.is_withdrawn, !is_valid);
        if !is_valid && was_withdrawn && names.order.is_empty() {
            self.proofs.remove(proof);
        }
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Displaces a name if the proof has as many as it may, or the table is full.
    fn make_room(&mut self, proof: &P) {
        let own = self.proofs.get(proof).map(|own| own.order.len());
        if own.is_none() && self.proofs.len() >= PROVEN_MAX {
            self.forget_nameless();
        }
        let is_full = self.pairs >= PROVEN_MAX;
        if !is_full && own.is_none_or(|own| own < NAMES_PER_PROOF_MAX) {
            return;
        }
        let largest = || self.proofs.iter().max_by_key(|(_, names)| names.order.len());
        let own = own.filter(|own| *own > 0);
        let from = own.map(|_| proof).or_else(|| largest().map(|(proof, _)| proof)).cloned();
        let Some(from) = from else { return };
        let names = self.proofs.get(&from);
        let Some(oldest) = names.and_then(|it| it.order.values().next().cloned()) else { return };
        self.remove(&oldest, &from);
        let Some(names) = self.proofs.get_mut(&from) else { return };
        names.has_displaced = true;
        if names.order.is_empty() && from != *proof {
            self.proofs.remove(&from);
            self.forgotten = Forgotten::Some;
        }
    }

    /// Forgets a proof of which every name was displaced or is not accepted, if there is one. In a table with as
    /// many proofs as pairs every other one has one name.
    fn forget_nameless(&mut self) {
        let nameless = self.proofs.iter().find(|(_, names)| names.order.is_empty());
        if let Some(proof) = nameless.map(|(proof, _)| proof.clone()) {
            self.proofs.remove(&proof);
            self.forgotten = Forgotten::Some;
        }
    }

    /// Removes a pair; the proof stays, also without names.
    fn remove(&mut self, name: &NodeName, proof: &P) {
        let Some(shown) = self.peers.get_mut(name) else { return };
        let Some(Shown { place, .. }) = shown.remove(proof) else { return };
        if shown.is_empty() {
            self.peers.remove(name);
        }
        self.pairs -= 1;
        if let Some(names) = self.proofs.get_mut(proof) {
            names.order.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec;
    use alloc::vec::Vec;
    use core::ops::Range;

    type Proofs = PeerProofs<usize, u8>;

    fn name(number: usize) -> NodeName {
        NodeName::new(&format!("n{number}")).unwrap()
    }

    fn note_all(proofs: &mut Proofs, names: Range<usize>, proof: usize) {
        names.for_each(|number| proofs.note(&name(number), proof, 0));
    }

    fn known(proofs: &Proofs, names: Range<usize>) -> usize {
        names.filter(|number| proofs.peers.contains_key(&name(*number))).count()
    }

    /// Looks at every proof, of which some are not accepted; returns the peers whose lanes end.
    fn look(proofs: &mut Proofs, refused: &[usize]) -> Vec<NodeName> {
        let shown: Vec<_> =
            proofs.shown().map(|(name, proof, number)| (name.clone(), *proof, number)).collect();
        let ends = shown.into_iter().filter(|(name, proof, number)| {
            proofs.handle_look(name, proof, *number, !refused.contains(proof))
        });
        ends.map(|(name, ..)| name).collect()
    }

    /// The lanes of a peer end with each proof that it has shown, also an earlier one, at two looks; then
    /// the proof is forgotten, and the others stay.
    #[test]
    fn earlier_proof_ends_the_lanes_of_its_peer() {
        let mut proofs = Proofs::default();
        proofs.note(&name(1), 1, 0);
        proofs.note(&name(1), 2, 0);
        proofs.note(&name(2), 2, 0);
        assert!(look(&mut proofs, &[]).is_empty());
        for _ in 0..2 {
            assert_eq!(look(&mut proofs, &[1]), [name(1)]);
        }
        assert!(look(&mut proofs, &[1]).is_empty(), "it is forgotten");
        assert_eq!((proofs.pairs, proofs.proofs().count()), (2, 1));
        assert_eq!(look(&mut proofs, &[2]), [name(1), name(2)]);
    }

    /// A proof that is shown again after the look began, or accepted at the next one, has two looks more.
    #[test]
    fn proof_that_is_shown_again_has_two_more_looks() {
        let mut proofs = Proofs::default();
        proofs.note(&name(1), 1, 0);
        let number = proofs.shown().next().unwrap().2;
        assert!(proofs.handle_look(&name(1), &1, number, false));
        proofs.note(&name(1), 1, 0);
        assert!(!proofs.handle_look(&name(1), &1, number, false), "an earlier connection");
        for _ in 0..2 {
            assert_eq!(look(&mut proofs, &[1]).len(), 1);
            assert!(look(&mut proofs, &[]).is_empty(), "it is accepted again");
        }
        assert_eq!(proofs.pairs, 1);
    }

    /// A name past the limit of its proof takes the place of the one that is unused the longest. A
    /// connection is a use, and so is a lane at a look.
    #[test]
    fn names_of_one_proof_displace_its_oldest_alone() {
        let mut proofs = Proofs::default();
        let others = PROVEN_MAX..PROVEN_MAX + 2;
        note_all(&mut proofs, others.clone(), 2);
        note_all(&mut proofs, 0..NAMES_PER_PROOF_MAX, 1);
        assert_eq!(known(&proofs, 0..NAMES_PER_PROOF_MAX), NAMES_PER_PROOF_MAX, "at the limit");
        assert_eq!(proofs.displaced().count(), 0);
        proofs.note(&name(0), 1, 0);
        assert!(proofs.keeps(&name(1)) && !proofs.keeps(&name(NAMES_PER_PROOF_MAX)));
        note_all(&mut proofs, NAMES_PER_PROOF_MAX..NAMES_PER_PROOF_MAX + 1, 1);
        assert_eq!(
            (known(&proofs, 0..3), known(&proofs, 2..3)),
            (2, 0),
            "the third was the oldest"
        );
        assert_eq!(proofs.displaced().collect::<Vec<_>>(), [&1]);
        note_all(&mut proofs, NAMES_PER_PROOF_MAX..PROVEN_MAX, 1);
        let first = PROVEN_MAX - NAMES_PER_PROOF_MAX;
        assert_eq!(
            (known(&proofs, 0..first), known(&proofs, first..PROVEN_MAX)),
            (0, NAMES_PER_PROOF_MAX)
        );
        assert_eq!(known(&proofs, others), 2, "of another");
        assert!(!proofs.handle_change(true, false));
    }

    /// In a full table a proof displaces its own oldest name, and one without any that of the proof with
    /// the most.
    #[test]
    fn full_table_displaces_own_names_then_those_of_the_largest() {
        let mut proofs = Proofs::default();
        let many = PROVEN_MAX / NAMES_PER_PROOF_MAX;
        let names_of =
            |proof: usize| proof * NAMES_PER_PROOF_MAX..(proof + 1) * NAMES_PER_PROOF_MAX;
        (0..many).for_each(|proof| note_all(&mut proofs, names_of(proof), proof));
        assert_eq!(known(&proofs, 0..PROVEN_MAX), PROVEN_MAX, "at the limit");
        proofs.note(&name(PROVEN_MAX), 100, 0);
        assert_eq!((proofs.pairs, known(&proofs, 0..PROVEN_MAX)), (PROVEN_MAX, PROVEN_MAX - 1));
        let largest = |proofs: &Proofs| proofs.displaced().copied().collect::<Vec<_>>();
        assert_eq!(largest(&proofs), [many - 1]);
        proofs.note(&name(PROVEN_MAX + 1), 100, 0);
        assert!(!proofs.keeps(&name(PROVEN_MAX)) && proofs.keeps(&name(PROVEN_MAX + 1)), "its own");
        assert_eq!((proofs.pairs, largest(&proofs)), (PROVEN_MAX, vec![many - 1, 100]));
        proofs.note(&name(0), 100, 0);
        assert!(!proofs.keeps(&name(PROVEN_MAX + 1)), "also for a name that another has");
        assert_eq!(proofs.peers[&name(0)].len(), 2);
        assert!(!proofs.handle_change(true, false));
    }

    /// In a table that is full of proofs with one name each, a new one takes the place of a whole proof,
    /// which is not silent.
    #[test]
    fn proof_that_is_forgotten_with_its_name_is_reported() {
        let mut proofs = Proofs::default();
        (0..PROVEN_MAX).for_each(|number| proofs.note(&name(number), number, 0));
        proofs.note(&name(PROVEN_MAX), 0, 0);
        assert!(!proofs.handle_change(true, false), "in the place of its own");
        assert_eq!(proofs.displaced().collect::<Vec<_>>(), [&0]);
        proofs.note(&name(0), PROVEN_MAX, 0);
        assert!(!proofs.handle_change(false, false), "no change");
        assert!(proofs.handle_change(true, false));
        assert_eq!((proofs.pairs, proofs.proofs().count()), (PROVEN_MAX, PROVEN_MAX));
    }

    /// The lanes under a proof that was forgotten end at two looks after a change. Later changes end no lane of
    /// others, unless another proof was forgotten since the first look.
    #[test]
    fn forgotten_proof_ends_every_lane_at_one_change_alone() {
        let mut proofs = Proofs::default();
        (0..PROVEN_MAX).for_each(|number| proofs.note(&name(number), number, 0));
        let mut next = PROVEN_MAX;
        let mut forgets = |proofs: &mut Proofs| {
            proofs.note(&name(0), next, 0);
            next += 1;
        };
        let change = |proofs: &mut Proofs| proofs.handle_change(true, false);
        let second = |proofs: &mut Proofs| proofs.handle_change(false, true);
        forgets(&mut proofs);
        assert!(change(&mut proofs) && second(&mut proofs));
        assert!(!change(&mut proofs) && !second(&mut proofs), "none of them is left");
        forgets(&mut proofs);
        assert!(change(&mut proofs));
        forgets(&mut proofs);
        assert!(second(&mut proofs));
        assert!(change(&mut proofs) && second(&mut proofs), "forgotten between the looks");
        forgets(&mut proofs);
        assert!(change(&mut proofs) && proofs.handle_change(true, true), "two changes in a row");
        assert!(!second(&mut proofs));
        forgets(&mut proofs);
        assert!((0..3).all(|_| second(&mut proofs)), "a first look is needed");
        assert!(change(&mut proofs) && change(&mut proofs) && second(&mut proofs));
        assert!(!second(&mut proofs), "and a second one");
    }

    /// A displaced name may be the only one that a proof is still accepted for, so the proof outlasts the names
    /// that are remembered, until it is not valid at two looks.
    #[test]
    fn proof_with_displaced_names_outlasts_the_others() {
        let mut proofs = Proofs::default();
        note_all(&mut proofs, 0..NAMES_PER_PROOF_MAX + 1, 1);
        for _ in 0..2 {
            assert_eq!(look(&mut proofs, &[1]).len(), NAMES_PER_PROOF_MAX, "all but the first");
            proofs.handle_validity(&1, true);
        }
        assert_eq!((proofs.pairs, proofs.displaced().collect::<Vec<_>>()), (0, vec![&1]));
        proofs.handle_validity(&1, false);
        proofs.handle_validity(&1, true);
        proofs.handle_validity(&1, false);
        assert_eq!(proofs.displaced().count(), 1, "once is not enough");
        proofs.handle_validity(&1, false);
        assert_eq!(proofs.proofs().count(), 0);
    }

    /// In a full table a proof whose names were all displaced takes the place of another's name.
    #[test]
    fn nameless_proof_is_shown_again_in_a_full_table() {
        let mut proofs = Proofs::default();
        note_all(&mut proofs, 0..NAMES_PER_PROOF_MAX + 1, 0);
        for _ in 0..2 {
            look(&mut proofs, &[0]);
        }
        for number in 0..PROVEN_MAX {
            proofs.note(&name(number), 1 + number / NAMES_PER_PROOF_MAX, 0);
        }
        proofs.note(&name(PROVEN_MAX), 0, 0);
        assert_eq!(proofs.pairs, PROVEN_MAX);
        assert_eq!(known(&proofs, PROVEN_MAX..PROVEN_MAX + 1), 1);
    }

    /// Proofs without a name have their bound too: in a full table a newcomer takes the place of one, which is not
    /// silent.
    #[test]
    fn proofs_without_names_are_bounded() {
        let mut proofs = Proofs::default();
        note_all(&mut proofs, 0..NAMES_PER_PROOF_MAX + 1, 0);
        for _ in 0..2 {
            look(&mut proofs, &[0]);
        }
        (1..PROVEN_MAX).for_each(|number| proofs.note(&name(number), number, 0));
        assert_eq!((proofs.pairs, proofs.proofs().count()), (PROVEN_MAX - 1, PROVEN_MAX));
        assert!(!proofs.handle_change(true, false), "at the limit");
        proofs.note(&name(PROVEN_MAX), PROVEN_MAX, 0);
        assert_eq!((proofs.pairs, proofs.proofs().count()), (PROVEN_MAX, PROVEN_MAX));
        assert_eq!(proofs.displaced().count(), 0);
        assert!(proofs.handle_change(true, false));
    }

    /// A proof has one value for all its names, the last, and goes with the last of them.
    #[test]
    fn value_of_a_proof_is_kept_once() {
        let mut proofs = Proofs::default();
        (0..100_u8).for_each(|number| proofs.note(&name(usize::from(number)), 1, number));
        proofs.note(&name(100), 2, 0);
        assert_eq!(proofs.proofs().collect::<Vec<_>>(), [(&1, &99), (&2, &0)]);
        for _ in 0..2 {
            assert_eq!(look(&mut proofs, &[1]).len(), 100);
        }
        assert_eq!(proofs.proofs().collect::<Vec<_>>(), [(&2, &0)]);
        assert_eq!((proofs.pairs, proofs.peers.len()), (1, 1));
        assert!(proofs.keeps(&name(100)) && !proofs.keeps(&name(99)));
    }
}
