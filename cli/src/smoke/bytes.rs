//! Patterned bytes, written to a segment, read back, and compared at both ends.

use crate::failure::Failure;
use handfast::{Memory, Segment, TransportKind};
use std::time::Duration;

/// A byte; a page and a byte; a quarter of a mebibyte, which is a slice; several slices and a byte.
const SIZES: [usize; 4] = [1, 4_097, 256 << 10, (1 << 20) + 1];
/// Fits the largest size, at the offset.
pub(super) const SEGMENT_BYTES: usize = 2 << 20;
/// Offset of the bytes within the segment, deliberately unaligned.
const OFFSET: u64 = 3;

/// The target of writes.
pub(super) struct Target<'a> {
    pub(super) segment: &'a Segment,
    pub(super) offset: u64,
    /// Number of available bytes.
    pub(super) bytes: u64,
}

impl<'a> Target<'a> {
    pub(super) fn whole(segment: &'a Segment) -> Self {
        Self { segment, offset: 0, bytes: segment.bytes() }
    }

    /// Moves every size that fits, in both directions; each seed gives other bytes. Returns a
    /// description of the transfers.
    pub(super) async fn exchange(&self, seed: u8, timeout: Duration) -> Result<String, Failure> {
        let start = if self.bytes > OFFSET { OFFSET } else { 0 };
        let fits = |bytes: &&usize| start + **bytes as u64 <= self.bytes;
        let mut moved = Vec::new();
        for (n, bytes) in SIZES.iter().filter(fits).enumerate() {
            let pattern = pattern(*bytes, seed.wrapping_add(n as u8));
            self.there_and_back(self.offset + start, &pattern, timeout).await?;
            moved.push(bytes.to_string());
        }
        if moved.is_empty() {
            return Err(Failure::Usage("the range at the node is empty".to_owned()));
        }
        match self.segment.transport_kind() {
            Some(TransportKind::Rdma) => {
                Ok(format!("{} bytes, compared at both ends", moved.join(", ")))
            }
            other => {
                let name = other.map_or("nothing", TransportKind::name);
                Err(Failure::Device(format!("bytes moved over {name}, not over RDMA")))
            }
        }
    }

    async fn there_and_back(
        &self,
        offset: u64,
        pattern: &[u8],
        timeout: Duration,
    ) -> Result<(), Failure> {
        let memory = || Memory::zeroed(pattern.len());
        let (source, back) = (memory()?, memory()?);
        source.copy_in(0, pattern)?;
        self.segment.write(&source.whole(), offset).timeout(timeout).await?;
        let local = crc32c::crc32c(pattern);
        let remote = self.segment.checksum(offset, pattern.len() as u64).await?;
        if remote != local {
            return Err(Failure::Checksum { local, remote });
        }
        self.segment.read(&back.whole(), offset).timeout(timeout).await?;
        let mut seen = vec![0; pattern.len()];
        back.copy_out(0, &mut seen)?;
        compare(pattern, &seen)
    }
}

/// Returns bytes that vary with their position and with the seed, of which there are 128.
pub(super) fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    // Never zero, so that untouched memory does not pass.
    (0..bytes).map(|n| ((n * 7 + n / 251) as u8 ^ (seed << 1)) | 1).collect()
}

/// Compares the bytes, and reports the first difference.
pub(super) fn compare(sent: &[u8], seen: &[u8]) -> Result<(), Failure> {
    match sent.iter().zip(seen).position(|(sent, seen)| sent != seen) {
        None => Ok(()),
        Some(at) => {
            let wrong = sent.iter().zip(seen).filter(|(sent, seen)| sent != seen).count();
            Err(Failure::Damaged { at, wrong, bytes: sent.len() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_fits_and_a_damaged_byte_is_found() {
        assert!(SIZES.iter().all(|bytes| OFFSET as usize + bytes <= SEGMENT_BYTES));
        let sent = pattern(4_097, 1);
        assert_ne!(sent, pattern(4_097, 2));
        assert!(!sent.contains(&0));
        let mut seen = sent.clone();
        assert!(compare(&sent, &seen).is_ok());
        seen[17] ^= 4;
        seen[99] = 0;
        let damaged = compare(&sent, &seen);
        assert!(matches!(damaged, Err(Failure::Damaged { at: 17, wrong: 2, bytes: 4_097 })));
    }
}
