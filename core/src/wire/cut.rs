//! Pieces of a registration that is longer than a device registers at once.

use core::ops::Range;

/// Maximum pieces of one registration: two tebibytes in pieces of two gibibytes.
pub const PIECES_MAX: u64 = 1_024;

/// Cut of a long registration into pieces that overlap, so that every slice lies in one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bytes of all.
    bytes: u64,
    /// Bytes from the start of a piece to that of the next.
    step: u64,
    /// Bytes of a piece; the last may have fewer.
    piece: u64,
}

impl Cut {
    /// One piece that has all bytes.
    pub fn whole(bytes: u64) -> Self {
        Self { bytes, step: bytes.max(1), piece: bytes }
    }

    /// Cuts `bytes` into pieces of at most `piece_max`, of which neighbours share `overlap`; one
    /// piece if it suffices. `None` if pieces of that size hold no slice of `overlap` bytes and
    /// one more, or are more than [`PIECES_MAX`].
    pub fn new(bytes: u64, piece_max: u64, overlap: u64) -> Option<Self> {
        if bytes <= piece_max {
            return Some(Self::whole(bytes));
        }
        Self::of(bytes, piece_max.checked_sub(overlap)?, piece_max)
    }

    /// The cut of `bytes` into pieces of `piece` bytes, of which each starts `step` after the one
    /// before. `None` if they have gaps, or are more than [`PIECES_MAX`].
    pub fn of(bytes: u64, step: u64, piece: u64) -> Option<Self> {
        let cut = Self { bytes, step, piece };
        ((1..=piece).contains(&step) && cut.count() <= PIECES_MAX).then_some(cut)
    }

    /// Bytes from the start of a piece to that of the next.
    pub fn step(self) -> u64 {
        self.step
    }

    /// Bytes of a piece; the last may have fewer.
    pub fn piece_bytes(self) -> u64 {
        self.piece
    }

    /// Returns the pieces, by offset.
    pub fn pieces(self) -> impl Iterator<Item = Range<u64>> {
        let Self { bytes, step, piece } = self;
        (0..self.count()).map(move |place| {
            let start = place * step;
            start..bytes.min(start.saturating_add(piece))
        })
    }

    /// Number of pieces.
    pub fn count(self) -> u64 {
        1 + self.bytes.saturating_sub(self.piece).div_ceil(self.step)
    }

    /// Returns the place of the piece that has `length` bytes at `offset`. Of at most the overlap
    /// one piece has all, wherever they lie.
    pub fn piece_of(self, offset: u64, length: u64) -> Option<u64> {
        if self.piece >= self.bytes {
            return (offset.checked_add(length)? <= self.bytes).then_some(0);
        }
        let place = (offset / self.step).min(self.count() - 1);
        let end = self.bytes.min((place * self.step).saturating_add(self.piece));
        (offset.checked_add(length)? <= end).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// A device limits the bytes of one key. Wherever a slice lies, one key has all of it.
    #[test]
    fn each_slice_lies_in_one_piece() {
        const OVERLAP: u64 = 3;
        for bytes in 1..64 {
            let cut = Cut::new(bytes, 10, OVERLAP).unwrap();
            let pieces: Vec<_> = cut.pieces().collect();
            assert_eq!((pieces.len() as u64, pieces[0].start), (cut.count(), 0));
            assert_eq!(pieces.last().unwrap().end, bytes);
            assert!(pieces.iter().all(|piece| (1..=10).contains(&(piece.end - piece.start))));
            for offset in 0..bytes {
                let length = OVERLAP.min(bytes - offset);
                let piece = &pieces[cut.piece_of(offset, length).unwrap() as usize];
                assert!(piece.start <= offset && offset + length <= piece.end, "{bytes} {offset}");
            }
            assert_eq!(cut.piece_of(bytes - 1, 2), None);
        }
        assert_eq!(Cut::new(10, 10, OVERLAP).unwrap().count(), 1, "at the limit");
        assert_eq!(Cut::new(11, 10, OVERLAP).unwrap().count(), 2, "past the limit");
        let cut = Cut::of(9, 3, 4).unwrap();
        assert_eq!((cut.step(), cut.piece_bytes()), (3, 4));
        assert_eq!(Cut::new(11, 3, OVERLAP), None, "pieces too small for a slice");
        assert_eq!(Cut::of(PIECES_MAX * 2, 2, 2).map(Cut::count), Some(PIECES_MAX), "at the limit");
        assert_eq!(Cut::of(PIECES_MAX * 2 + 1, 2, 2), None, "past the limit");
        assert_eq!((Cut::of(9, 0, 2), Cut::of(9, 3, 2)), (None, None), "no step, and gaps");
        assert_eq!(Cut::whole(0).piece_of(0, 0), Some(0));
        assert_eq!(Cut::of(u64::MAX, u64::MAX, u64::MAX).map(Cut::count), Some(1));
    }
}
