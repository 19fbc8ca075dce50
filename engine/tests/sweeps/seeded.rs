//! The randomness of engines in a simulation.

use handfast::runtime::Entropy;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::sync::Mutex;

/// Randomness that a seed repeats.
pub(crate) struct Seeded(Mutex<ChaCha8Rng>);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(ChaCha8Rng::seed_from_u64(seed)))
    }
}

impl Entropy for Seeded {
    fn next_u64(&self) -> u64 {
        self.0.lock().unwrap().next_u64()
    }
}
