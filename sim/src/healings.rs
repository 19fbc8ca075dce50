//! The healings of the worlds of an exploration, from those of their successors.
//!
//! Each event of a healing is one of an exploration too. A world therefore keeps only the one after its
//! next event, and the healings of all worlds are found at the end, without an event of their own.

use crate::liveness::{HEAL_EVENTS_MAX, Healing, exceeds};
use crate::path_tree::{bytes, push};

/// The next event of a world once faults have stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing: it is at rest.
    Rest,
    /// An event that leads to this world, with the lifecycles that it ends.
    To(u32, u32),
    /// An event that the exploration does not try. The healing has events of its own.
    Apart(Healing),
}

/// Bound on ended lifecycles of a world that has none.
const ANY: u16 = u16::MAX;
/// Lifecycles that an event ends, where the rest of the healing is not in the list.
const APART: u8 = u8::MAX;
/// A world without a healing yet, and one on the way to its rest.
const UNKNOWN: u32 = u32::MAX;
const BEGUN: u32 = u32::MAX - 1;

/// The next event of each world whose events were tried, by its number.
#[derive(Default)]
pub(crate) struct Healings {
    /// The world after it; the same at rest. With [`APART`] an index in `apart`.
    to: Vec<u32>,
    ended: Vec<u8>,
    /// Lifecycles that may end until it is at rest.
    may_end: Vec<u16>,
    apart: Vec<Healing>,
}

impl Healings {
    /// Number of worlds whose events were tried.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.to.len()).unwrap_or(u32::MAX)
    }

    /// Adds the next world.
    pub(crate) fn add(&mut self, next: Next, may_end: Option<u32>) {
        let (to, ended) = match next {
            Next::Rest => (self.len(), 0),
            Next::To(to, ended) => (to, u8::try_from(ended).unwrap_or(APART - 1).min(APART - 1)),
            Next::Apart(healing) => {
                push(&mut self.apart, healing);
                (u32::try_from(self.apart.len() - 1).unwrap_or(u32::MAX), APART)
            }
        };
        push(&mut self.to, to);
        push(&mut self.ended, ended);
        let may_end = may_end.map_or(ANY, |count| u16::try_from(count).unwrap_or(ANY));
        push(&mut self.may_end, may_end);
    }

    /// The worlds, in order.
    pub(crate) fn all(&self) -> impl ExactSizeIterator<Item = (Next, Option<u32>)> {
        (0..self.len()).map(|world| {
            let may_end = self.may_end[world as usize];
            (self.next(world), (may_end != ANY).then_some(u32::from(may_end)))
        })
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        bytes(&self.to) + bytes(&self.ended) + bytes(&self.may_end) + bytes(&self.apart)
    }

    fn next(&self, world: u32) -> Next {
        let (to, ended) = (self.to[world as usize], self.ended[world as usize]);
        match ended {
            APART => Next::Apart(self.apart[to as usize]),
            _ if to == world => Next::Rest,
            ended => Next::To(to, u32::from(ended)),
        }
    }

    /// Finds the worst healing, and asks `settle` for each one that is not known, does not end or is
    /// too long: those of worlds whose events were not tried, and of circles.
    ///
    /// # Errors
    /// Those of `settle`.
    pub(crate) fn worst<E>(
        &self,
        mut settle: impl FnMut(u32) -> Result<Healing, E>,
    ) -> Result<Healing, E> {
        let mut known = vec![UNKNOWN; self.to.len()];
        let mut worst = Healing::default();
        let mut way: Vec<(u32, u32)> = Vec::new();
        for world in 0..self.len() {
            let mut at = world;
            let mut healing = loop {
                let place = known.get(at as usize).copied();
                break match place.map(|packed| (packed, self.next(at))) {
                    None => settle(at)?,
                    Some((UNKNOWN, Next::Rest)) => Healing::default(),
                    Some((UNKNOWN, Next::Apart(healing))) => healing,
                    Some((UNKNOWN, Next::To(to, ended))) => {
                        known[at as usize] = BEGUN;
                        way.push((at, ended));
                        at = to;
                        continue;
                    }
                    Some((BEGUN, _)) => settle(at)?,
                    Some((packed, _)) => Healing::unpacked(packed),
                };
            };
            if let Some(known) = known.get_mut(at as usize).filter(|known| **known >= BEGUN) {
                *known = healing.packed();
            }
            while let Some((world, ended)) = way.pop() {
                if known[world as usize] != BEGUN {
                    // It is where a circle was left.
                    healing = Healing::unpacked(known[world as usize]);
                    continue;
                }
                healing = Healing { events: healing.events + 1, ended: healing.ended + ended };
                let may_end = self.may_end[world as usize];
                let may_end = (may_end != ANY).then_some(u32::from(may_end));
                if healing.events > HEAL_EVENTS_MAX || exceeds(healing, may_end).is_some() {
                    healing = settle(world)?;
                }
                known[world as usize] = healing.packed();
                worst = worst.worse(healing);
            }
            worst = worst.worse(healing);
        }
        Ok(worst)
    }
}

#[cfg(test)]
mod tests {
    use super::{Healings, Next};
    use crate::liveness::{HEAL_EVENTS_MAX, Healing};

    const NONE: Result<Healing, u32> = Ok(Healing { events: 0, ended: 0 });

    fn healings(nexts: &[Next]) -> Healings {
        let mut healings = Healings::default();
        nexts.iter().for_each(|next| healings.add(*next, Some(4)));
        healings
    }

    #[test]
    fn healing_is_that_of_the_successor_and_one_event() {
        let healings = healings(&[Next::To(2, 1), Next::Rest, Next::To(1, 2)]);
        let worst = healings.worst(Err::<Healing, _>);
        assert_eq!(worst, Ok(Healing { events: 2, ended: 3 }));
    }

    #[test]
    fn healing_apart_counts_with_its_events() {
        let apart = Healing { events: 7, ended: 1 };
        let healings = healings(&[Next::To(1, 1), Next::Apart(apart)]);
        let worst = healings.worst(Err::<Healing, _>);
        assert_eq!(worst, Ok(Healing { events: 8, ended: 2 }));
    }

    /// Each world of a circle leads to another one of it, so that one of them is played.
    #[test]
    fn circle_is_settled_by_events_of_its_own() {
        let healings = healings(&[Next::To(1, 0), Next::To(2, 0), Next::To(1, 0)]);
        let mut settled = Vec::new();
        let worst = healings.worst(|world| {
            settled.push(world);
            Ok::<_, u32>(Healing { events: 5, ended: 0 })
        });
        assert_eq!((worst, settled), (Ok(Healing { events: 6, ended: 0 }), vec![1]));
        assert_eq!(healings.worst(Err), Err::<Healing, _>(1));
    }

    #[test]
    fn world_whose_events_were_not_tried_is_settled() {
        let healings = healings(&[Next::To(9, 0)]);
        assert_eq!(healings.worst(Err), Err::<Healing, _>(9));
    }

    #[test]
    fn one_lifecycle_over_the_bound_is_settled() {
        let four = healings(&[Next::To(1, 4), Next::Rest]);
        assert_eq!(four.worst(Err::<Healing, _>), Ok(Healing { events: 1, ended: 4 }));
        let five = healings(&[Next::To(1, 5), Next::Rest]);
        assert_eq!(five.worst(Err::<Healing, _>), Err(0));
        assert_eq!(five.worst(|_| NONE), NONE);
    }

    #[test]
    fn one_event_over_the_bound_is_settled() {
        let of = |events| healings(&[Next::To(1, 0), Next::Apart(Healing { events, ended: 0 })]);
        let most = Healing { events: HEAL_EVENTS_MAX, ended: 0 };
        assert_eq!(of(HEAL_EVENTS_MAX - 1).worst(Err::<Healing, _>), Ok(most));
        assert_eq!(of(HEAL_EVENTS_MAX).worst(Err::<Healing, _>), Err(0));
    }
}
