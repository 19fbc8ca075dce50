//! The gate between the threads that post on a lane and the one that retires it.
//!
//! A poster enters, posts, and leaves. The retiring thread revokes the gate, waits until it is
//! empty, and only then destroys the lane. One word holds the whole state, because "revoked and
//! empty" must be one atomic check: with two words a poster could enter between two loads.

use core::sync::atomic::{AtomicU64, Ordering};

const POSTERS_BITS: u32 = 16;
const POSTERS_MASK: u64 = (1 << POSTERS_BITS) - 1;
const REVOKED: u64 = 1 << POSTERS_BITS;
const GENERATION_ONE: u64 = REVOKED << 1;
const GENERATION_SHIFT: u32 = POSTERS_BITS + 1;

/// A word of generation (47 bits), revoked (1 bit) and posters inside (16 bits).
///
/// A gate belongs to a slot of a table, which lanes occupy in turn: each opening starts a
/// new generation. Nothing here blocks.
///
/// ```
/// use handfast_core::gate::LaneGate;
///
/// let gate = LaneGate::new();
/// assert!(gate.enter().is_none(), "closed");
/// let generation = gate.open().expect("a drained gate opens");
/// let ticket = gate.enter().expect("an open gate admits posters");
/// assert_eq!(ticket.generation(), generation);
/// assert!(!gate.revoke(), "a poster is inside");
/// assert!(gate.enter().is_none(), "revoked");
/// drop(ticket);
/// assert!(gate.is_drained(), "the lane may be destroyed");
/// ```
#[derive(Debug)]
pub struct LaneGate {
    word: AtomicU64,
}

impl LaneGate {
    /// Maximum posters inside at a time.
    pub const POSTERS_MAX: u32 = POSTERS_MASK as u32;

    /// Creates a gate that is closed until [`LaneGate::open`].
    pub fn new() -> Self {
        Self { word: AtomicU64::new(REVOKED) }
    }

    /// Opens the gate and returns the new generation, starting at 1; `None` unless the gate
    /// is drained. Generations wrap around after 2^47 openings.
    pub fn open(&self) -> Option<u64> {
        let word = self.word.load(Ordering::Relaxed);
        if !is_drained(word) {
            return None;
        }
        let opened = (word & !REVOKED).wrapping_add(GENERATION_ONE);
        // Release: what was written to set up the lane happens before every post on it. Acquire:
        // the posts of the generation before happen before this one's use of the same place.
        // A failure means that another thread opened the gate first: nothing else moves a drained
        // word.
        self.word
            .compare_exchange(word, opened, Ordering::AcqRel, Ordering::Relaxed)
            .ok()
            .map(|_| opened >> GENERATION_SHIFT)
    }

    /// Enters, unless the gate is revoked or [`LaneGate::POSTERS_MAX`] are inside.
    pub fn enter(&self) -> Option<Ticket<'_>> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & REVOKED != 0 || word & POSTERS_MASK == POSTERS_MASK {
                return None;
            }
            // One compare-and-exchange checks and counts: either it comes before the revocation
            // in the order of changes to the word, and the revoker sees the poster, or it fails
            // and the poster sees the revocation. Acquire pairs with the Release of `open`; the
            // entries, exits and the revocation in between are read-modify-writes and so continue
            // its release sequence.
            let entered = word + 1;
            match self.word.compare_exchange_weak(
                word,
                entered,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(Ticket { gate: self, generation: word >> GENERATION_SHIFT }),
                Err(current) => word = current,
            }
        }
    }

    /// Closes the gate to further posters, and returns whether it is empty. Idempotent.
    pub fn revoke(&self) -> bool {
        // A read-modify-write loses no concurrent entry or exit; a load and a store would. Acquire,
        // because with an empty gate the caller may destroy at once, so it must see the posts as
        // `is_drained` does.
        self.word.fetch_or(REVOKED, Ordering::Acquire) & POSTERS_MASK == 0
    }

    /// Returns whether the gate is revoked and empty. Stays true until it is opened, and all that posters
    /// did inside happened before.
    pub fn is_drained(&self) -> bool {
        // Acquire pairs with the Release of every exit: what changed the word after an exit was a
        // read-modify-write, so this load synchronizes with all exits and not with the last alone.
        is_drained(self.word.load(Ordering::Acquire))
    }
}

impl Default for LaneGate {
    fn default() -> Self {
        Self::new()
    }
}

fn is_drained(word: u64) -> bool {
    word & (REVOKED | POSTERS_MASK) == REVOKED
}

/// A poster's presence inside. Dropping it leaves; leaking it prevents the lane from draining.
#[derive(Debug)]
#[must_use = "a dropped ticket is an exit"]
pub struct Ticket<'a> {
    gate: &'a LaneGate,
    generation: u64,
}

impl Ticket<'_> {
    /// Generation of the entered lane, to compare with the one that the poster meant.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        // Release: the post happens before any load that sees this exit. The count cannot
        // underflow, since each ticket is one entry and is dropped once.
        self.gate.word.fetch_sub(1, Ordering::Release);
    }
}
