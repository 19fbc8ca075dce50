//! Secrets of lanes, and the proofs that both sides of a lane have one.

use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};
use handfast_core::Lifecycle;
use handfast_core::auth::{LANE_NONCE_BYTES, LANE_SECRET_BYTES, LaneEnd, LaneProofs};
use handfast_core::wire::SEALED_TOKEN_END;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a proof.
pub(crate) const PROOF_BYTES: usize = 32;

/// Purposes of derived numbers, so that none is of two.
const SECRET: &[u8] = b"handfast lane secret";
const NONCE: &[u8] = b"handfast lane number";

/// Secret of one lane, which its listening side announces over an authenticated channel.
#[derive(Clone)]
pub(crate) struct LaneSecret([u8; LANE_SECRET_BYTES]);

/// Derives secrets and numbers from one random number of this run. No lifecycle recurs in a run, so each lane has its own.
pub(crate) struct LaneKeys {
    root: [u8; LANE_SECRET_BYTES],
    numbers: AtomicU64,
}

impl LaneKeys {
    pub(crate) fn new(root: [u8; LANE_SECRET_BYTES]) -> Self {
        Self { root, numbers: AtomicU64::new(0) }
    }

    pub(crate) fn secret(&self, lifecycle: Lifecycle) -> LaneSecret {
        LaneSecret(mac(&self.root, &[SECRET, &lifecycle.0.to_le_bytes()]))
    }

    /// A number that was not used before.
    pub(crate) fn nonce(&self) -> [u8; LANE_NONCE_BYTES] {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        mac(&self.root, &[NONCE, &number.to_le_bytes()])
    }
}

impl LaneSecret {
    pub(crate) fn bytes(&self) -> &[u8; LANE_SECRET_BYTES] {
        &self.0
    }

    /// Reads an announced secret, and whether the announcing side encrypts the lane.
    pub(crate) fn parse(text: &str) -> Option<(Self, bool)> {
        let sealed = text.strip_suffix(SEALED_TOKEN_END);
        let digits = sealed.unwrap_or(text).as_bytes();
        if digits.len() != 2 * LANE_SECRET_BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let mut secret = [0; LANE_SECRET_BYTES];
        for (byte, pair) in secret.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some((Self(secret), sealed.is_some()))
    }

    /// The secret as it is announced, by a side that encrypts the lane or does not.
    pub(crate) fn announcement(&self, seals: bool) -> String {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        if seals { digits + SEALED_TOKEN_END } else { digits }
    }

    /// The proof of one side.
    pub(crate) fn proof(&self, proofs: &LaneProofs, end: LaneEnd) -> [u8; PROOF_BYTES] {
        mac(&self.0, &[&proofs.text(end)])
    }

    /// Whether a proof is that of a side, compared in constant time.
    pub(crate) fn is_proven(
        &self,
        proofs: &LaneProofs,
        end: LaneEnd,
        proof: &[u8; PROOF_BYTES],
    ) -> bool {
        let mac = started(&self.0, &[&proofs.text(end)]);
        mac.verify_slice(proof).is_ok()
    }
}

fn started(key: &[u8; LANE_SECRET_BYTES], parts: &[&[u8]]) -> Blake2sMac256 {
    let mut mac = <Blake2sMac256 as KeyInit>::new(key.into());
    parts.iter().for_each(|part| mac.update(part));
    mac
}

fn mac(key: &[u8; LANE_SECRET_BYTES], parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
    started(key, parts).finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_core::{Incarnation, Pair};

    fn proofs() -> LaneProofs {
        let pair = |run| Pair { incarnation: Incarnation(run), lifecycle: Lifecycle(1) };
        LaneProofs {
            dialling: pair(1),
            listening: pair(2),
            depth: 3,
            dialling_nonce: [4; LANE_NONCE_BYTES],
            listening_nonce: [5; LANE_NONCE_BYTES],
        }
    }

    /// Secrets differ by lane and run, numbers by use, and both survive the announcement.
    #[test]
    fn secrets_and_numbers_do_not_recur() {
        let (keys, other) = (LaneKeys::new([1; 32]), LaneKeys::new([2; 32]));
        let secret = |keys: &LaneKeys, lane| keys.secret(Lifecycle(lane)).announcement(false);
        assert_eq!(secret(&keys, 1), secret(&keys, 1));
        assert_ne!(secret(&keys, 1), secret(&keys, 2));
        assert_ne!(secret(&keys, 1), secret(&other, 1));
        assert_ne!(keys.nonce(), keys.nonce());
        let text = secret(&keys, 1);
        for (text, seals) in [(text.clone(), false), (text.clone() + SEALED_TOKEN_END, true)] {
            let (secret, told) = LaneSecret::parse(&text).unwrap();
            assert_eq!((secret.announcement(seals), told), (text, seals));
        }
        for wrong in ["", &text[1..], &text.replace(&text[..1], "+"), "0123456789abcdef"] {
            assert!(LaneSecret::parse(wrong).is_none(), "{wrong}");
        }
    }

    /// A proof is of one side, of one secret, and complete.
    #[test]
    fn proof_fits_its_side_and_secret_alone() {
        let keys = LaneKeys::new([1; 32]);
        let secret = keys.secret(Lifecycle(1));
        let proof = secret.proof(&proofs(), LaneEnd::Dialling);
        assert!(secret.is_proven(&proofs(), LaneEnd::Dialling, &proof));
        assert!(!secret.is_proven(&proofs(), LaneEnd::Listening, &proof), "it is not reflected");
        assert!(!keys.secret(Lifecycle(2)).is_proven(&proofs(), LaneEnd::Dialling, &proof));
        let other = LaneProofs { listening_nonce: [6; LANE_NONCE_BYTES], ..proofs() };
        assert!(!secret.is_proven(&other, LaneEnd::Dialling, &proof), "it is not repeated");
        for bit in 0..8 * PROOF_BYTES {
            let mut altered = proof;
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(!secret.is_proven(&proofs(), LaneEnd::Dialling, &altered), "{bit}");
        }
    }
}
