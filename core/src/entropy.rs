//! Randomness as a pure function: nothing is consumed, and equal states stay equal.

use crate::identity::Lifecycle;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Purpose of a derived number. It is part of the derivation, so that purposes never share a value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    RetryJitter = 1,
    BackoffJitter = 2,
    FreshNumbers = 3,
}

/// Derives the number of (seed, lifecycle, purpose, attempt). ChaCha8, one block.
pub(crate) fn derive(seed: u64, lifecycle: Lifecycle, purpose: Purpose, attempt: u32) -> u64 {
    let mut key = [0u8; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&lifecycle.0.to_le_bytes());
    key[16..20].copy_from_slice(&(purpose as u32).to_le_bytes());
    key[20..24].copy_from_slice(&attempt.to_le_bytes());
    ChaCha8Rng::from_seed(key).next_u64()
}
