//! Look-ups of peers' descriptors, and what their answers prove.
//!
//! A peer makes its answer at some time between the start of the look-up and its end. An answer therefore
//! settles no doubt that arose after its look-up began: a refused key, a lost peer, or a new address in a
//! metadata store.

/// A look-up, by its number. A later one is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LookUp(u64);

/// A reason to distrust a descriptor, by the last look-up that began before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Doubt(u64);

impl LookUp {
    /// Whether the answer was made after the doubt arose.
    pub fn settles(self, doubt: Doubt) -> bool {
        self.0 > doubt.0
    }
}

/// The look-ups of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LookUps {
    begun: u64,
}

impl LookUps {
    /// No look-up yet.
    pub const fn new() -> Self {
        Self { begun: 0 }
    }

    /// Begins a look-up: nothing was asked for it yet.
    pub fn begin(&mut self) -> LookUp {
        self.begun = self.begun.saturating_add(1);
        LookUp(self.begun)
    }

    /// A doubt that arises now.
    pub fn doubt(&self) -> Doubt {
        Doubt(self.begun)
    }

    /// Number of look-ups so far.
    pub fn begun(&self) -> u64 {
        self.begun
    }
}

/// The next step of a batch whose access was refused, or whose place is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AfterRefusal {
    /// Look the descriptor up once more: the present one may be older than the refusal.
    LookUp,
    /// The refusal stands.
    Fail,
    /// Submit the batch by the present descriptor.
    Submit,
}

impl AfterRefusal {
    /// Decides by the look-up of the present descriptor. It `is_same` if it permits what was refused, and
    /// nothing else.
    pub fn decide(doubt: Doubt, found: LookUp, is_same: bool) -> Self {
        match (is_same, found.settles(doubt)) {
            (true, false) => Self::LookUp,
            (true, true) => Self::Fail,
            (false, _) => Self::Submit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer settles the doubts from before its look-up, and no later ones.
    #[test]
    fn answer_settles_earlier_doubts() {
        let mut look_ups = LookUps::default();
        let before = look_ups.doubt();
        let first = look_ups.begin();
        let meanwhile = look_ups.doubt();
        let second = look_ups.begin();
        assert_eq!(look_ups.begun(), 2);
        assert!(first.settles(before) && second.settles(before));
        assert!(!first.settles(meanwhile) && second.settles(meanwhile));
        assert_eq!(AfterRefusal::decide(meanwhile, first, true), AfterRefusal::LookUp);
        assert_eq!(AfterRefusal::decide(meanwhile, second, true), AfterRefusal::Fail);
        assert_eq!(AfterRefusal::decide(meanwhile, first, false), AfterRefusal::Submit);
    }

    /// Past the last number no answer settles anything, so that no stale descriptor is used.
    #[test]
    fn numbers_end_without_a_wrap() {
        let mut look_ups = LookUps { begun: u64::MAX - 1 };
        let last = look_ups.begin();
        let doubt = look_ups.doubt();
        assert!(!look_ups.begin().settles(doubt) && look_ups.begin() == last);
    }
}
