//! Inputs made of those of a corpus by random changes, for builds without counters of coverage.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Maximum length of an input in bytes, that of libFuzzer.
pub const INPUT_BYTES_MAX: usize = 4096;
/// Inputs that are made one of the other before the next begins with the corpus.
const CHANGES_MAX: usize = 24;
/// Longest range in bytes that one change copies, repeats or removes.
const RANGE_MAX: usize = 64;
/// Bytes at the edges of ranges.
const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];
/// Texts at the edges of what numbers and JSON hold.
const TEXTS: [&str; 8] =
    ["0", "-1", "4294967296", "18446744073709551616", "null", "\"\"", "[]", "{}"];

/// Inputs of one target, determined by a seed.
#[derive(Clone, Debug)]
pub struct Mutator {
    random: ChaCha8Rng,
    corpus: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
    input: Vec<u8>,
    changes_left: usize,
}

impl Mutator {
    /// Inputs like those of `corpus`; `words` are inserted now and then.
    pub fn new(corpus: Vec<Vec<u8>>, words: Vec<Vec<u8>>, seed: u64) -> Self {
        let random = ChaCha8Rng::seed_from_u64(seed);
        Self { random, corpus, words, input: Vec::new(), changes_left: 0 }
    }

    /// Returns the next input, at most [`INPUT_BYTES_MAX`] long.
    pub fn next_input(&mut self) -> &[u8] {
        if self.changes_left == 0 {
            self.changes_left = 1 + self.below(CHANGES_MAX);
            self.input = self.of_corpus();
        }
        self.changes_left -= 1;
        for _ in 0..=self.below(3) {
            self.change();
        }
        self.input.truncate(INPUT_BYTES_MAX);
        &self.input
    }

    fn change(&mut self) {
        let at = self.below(self.input.len() + 1);
        match self.below(9) {
            0 => self.change_byte(at, |byte, random| byte ^ 1 << (random % 8)),
            1 => self.change_byte(at, |_, random| EDGES[random % EDGES.len()]),
            2 => self.change_byte(at, |byte, random| byte.wrapping_add(random as u8)),
            3 => self.add_to_number(at),
            4 => {
                let byte = EDGES[self.below(EDGES.len())];
                let length = 1 + self.below(RANGE_MAX);
                self.insert(at, &vec![byte; length]);
            }
            5 => {
                let end = self.input.len().min(at + 1 + self.below(RANGE_MAX));
                self.input.drain(at..end);
            }
            6 => {
                let range = self.range_of(&self.input.clone());
                self.insert(at, &range);
            }
            7 => {
                let other = self.of_corpus();
                let range = self.range_of(&other);
                self.insert(at, &range);
            }
            _ => {
                let place = self.below(self.words.len() + TEXTS.len());
                let text = || TEXTS[place - self.words.len()].into();
                let word = self.words.get(place).cloned().unwrap_or_else(text);
                self.insert(at, &word);
            }
        }
    }

    fn change_byte(&mut self, at: usize, change: impl FnOnce(u8, usize) -> u8) {
        let random = self.below(256);
        if let Some(byte) = self.input.get_mut(at) {
            *byte = change(*byte, random);
        }
    }

    /// Adds a little to four bytes in the order of either end, or takes a little from them.
    fn add_to_number(&mut self, at: usize) {
        let (big, by) = (self.below(2) == 0, self.below(71) as u32);
        let Some(bytes) = self.input.get_mut(at..).and_then(<[u8]>::first_chunk_mut) else {
            return;
        };
        let number = if big { u32::from_be_bytes(*bytes) } else { u32::from_le_bytes(*bytes) };
        let number = number.wrapping_add(by).wrapping_sub(35);
        *bytes = if big { number.to_be_bytes() } else { number.to_le_bytes() };
    }

    fn insert(&mut self, at: usize, bytes: &[u8]) {
        self.input.splice(at..at, bytes.iter().copied());
    }

    fn range_of(&mut self, bytes: &[u8]) -> Vec<u8> {
        let begin = self.below(bytes.len() + 1);
        let end = bytes.len().min(begin + 1 + self.below(RANGE_MAX));
        bytes[begin..end].to_vec()
    }

    fn of_corpus(&mut self) -> Vec<u8> {
        let place = self.below(self.corpus.len());
        self.corpus.get(place).cloned().unwrap_or_default()
    }

    /// A number below `bound`; 0 if that is 0.
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.random.next_u64() % bound.max(1) as u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn inputs(mut mutator: Mutator, count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|_| mutator.next_input().to_vec()).collect()
    }

    #[test]
    fn seed_determines_the_inputs() {
        let of = |seed| inputs(Mutator::new(vec![b"abcdef".to_vec()], vec![], seed), 200);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    /// Changes add up: hundreds of inputs are alike in few cases, and contain the words and the parts of
    /// every file.
    #[test]
    fn inputs_differ_and_mix_files_and_words() {
        let corpus = vec![b"0123456789".to_vec(), b"abcdefghij".to_vec()];
        let made = inputs(Mutator::new(corpus, vec![b"WORD".to_vec()], 3), 2_000);
        let has = |part: &[u8]| {
            made.iter().any(|input| input.windows(part.len()).any(|window| window == part))
        };
        assert!(made.iter().collect::<BTreeSet<_>>().len() > 1_500);
        assert!(has(b"WORD") && has(b"null"));
        let mixes = |input: &Vec<u8>| {
            input.windows(3).any(|part| part == b"345")
                && input.windows(3).any(|part| part == b"def")
        };
        assert!(made.iter().any(mixes));
    }

    /// An input never exceeds the limit, also from files that do; an empty corpus is none.
    #[test]
    fn inputs_are_as_long_as_the_limit_at_most() {
        let long = Mutator::new(vec![vec![7; 2 * INPUT_BYTES_MAX]], vec![vec![1; 100]], 4);
        let made = inputs(long, 300);
        assert!(made.iter().all(|input| input.len() <= INPUT_BYTES_MAX));
        assert!(made.iter().any(|input| input.len() == INPUT_BYTES_MAX));
        assert!(inputs(Mutator::new(vec![], vec![], 5), 300).iter().any(|input| !input.is_empty()));
    }
}
