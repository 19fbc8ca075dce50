//! Finds messages of the catalogue in text in [`normal`](crate::normal) form.

use crate::problem::{Problem, Role, problems};
use aho_corasick::AhoCorasick;
use std::sync::LazyLock;

/// Maximum length of the gap matched by a `*`, in bytes of the normal form.
const GAP_BYTES_MAX: usize = 400;

/// A recognised message.
#[derive(Clone, Copy)]
pub(super) struct Match {
    pub(super) problem: &'static Problem,
    /// Number of matched bytes; more of them are more certain. A Chinese character has three, and
    /// carries as much as three letters.
    score: usize,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Match {
    /// Returns the match of a problem named by its id.
    pub(super) fn whole(problem: &'static Problem) -> Self {
        Self { problem, score: usize::MAX, start: 0, end: 0 }
    }

    /// Whether this match is more specific than `other`: a cause precedes other roles, then the
    /// longer message, then the earlier position.
    pub(super) fn says_more_than(&self, other: &Self) -> bool {
        let key = |found: &Self| (found.problem.role == Role::Cause, found.score);
        key(self) > key(other) || (key(self) == key(other) && self.start < other.start)
    }
}

struct Matcher {
    /// The first pieces of all patterns.
    first: Option<AhoCorasick>,
    patterns: Vec<(&'static Problem, &'static [&'static str])>,
}

static MATCHER: LazyLock<Matcher> = LazyLock::new(|| {
    let all =
        |problem: &'static Problem| problem.patterns.iter().map(move |pattern| (problem, *pattern));
    let patterns: Vec<_> = problems().iter().flat_map(all).collect();
    // Fails only for far larger tables; a test checks it.
    let first = AhoCorasick::new(patterns.iter().map(|(_, pieces)| pieces[0])).ok();
    Matcher { first, patterns }
});

/// Returns the most specific message in `text`.
pub(super) fn best_match(text: &str) -> Option<Match> {
    let matcher = &*MATCHER;
    let mut best: Option<Match> = None;
    for hit in matcher.first.iter().flat_map(|first| first.find_overlapping_iter(text)) {
        let (problem, pieces) = matcher.patterns[hit.pattern().as_usize()];
        let Some(end) = matched_to(text, hit.start(), pieces) else { continue };
        let score = pieces.iter().map(|piece| piece.len()).sum();
        let found = Match { problem, score, start: hit.start(), end };
        if best.as_ref().is_none_or(|best| found.says_more_than(best)) {
            best = Some(found);
        }
    }
    best
}

/// Returns the end of a pattern that starts at `start`, if it matches.
fn matched_to(text: &str, start: usize, pieces: &[&str]) -> Option<usize> {
    let (first, rest) = pieces.split_first()?;
    let mut end = start + first.len();
    if cuts_a_number(text, start, end) {
        return None;
    }
    for piece in rest {
        let mut limit = (end + GAP_BYTES_MAX + piece.len()).min(text.len());
        while !text.is_char_boundary(limit) {
            limit -= 1;
        }
        let window = &text[end..limit];
        let places = window.match_indices(piece).map(|(at, _)| end + at);
        let mut whole = places.filter(|at| !cuts_a_number(text, *at, at + piece.len()));
        end = whole.next()? + piece.len();
    }
    Some(end)
}

/// Whether the piece starts or ends inside a longer number: `status=1` is not in `status=12`.
fn cuts_a_number(text: &str, start: usize, end: usize) -> bool {
    let bytes = text.as_bytes();
    let digit = |at: Option<usize>| {
        at.and_then(|at| bytes.get(at)).is_some_and(|byte| byte.is_ascii_digit())
    };
    (digit(Some(start)) && digit(start.checked_sub(1)))
        || (digit(end.checked_sub(1)) && digit(Some(end)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids;
    use crate::normal::normal;

    fn id_in(text: &str) -> Option<crate::Id> {
        best_match(&normal(text)).map(|found| found.problem.id)
    }

    #[test]
    fn the_table_can_be_searched() {
        assert!(MATCHER.first.is_some());
    }

    #[test]
    fn the_longer_message_wins_and_causes_win_over_what_follows() {
        assert_eq!(id_in("Failed to modify QP to RTR"), Some(ids::QP_RTR));
        assert_eq!(
            id_in("Failed to modify QP to RTR: Connection timed out"),
            Some(ids::QP_RTR_TIMEOUT)
        );
        let line = "Process failed for slice (opcode: 1): local access error";
        assert_eq!(id_in(line), Some(ids::WC_LOC_PROT));
        assert_eq!(id_in("Process failed for slice"), Some(ids::WC_STORM));
    }

    #[test]
    fn a_number_is_matched_whole() {
        assert_eq!(id_in("with status=5 opcode"), Some(ids::WC_FLUSH_ONLY));
        assert_eq!(id_in("with status=503 opcode"), None);
        assert_eq!(id_in("bind port 130608: Address already in use"), Some(ids::PORT_IN_USE));
        assert_eq!(
            id_in("bind port 30608: Address already in use"),
            Some(ids::PORT_RESERVED_ERDMA)
        );
    }

    #[test]
    fn a_gap_is_bounded() {
        let line = |gap: usize| format!("ibv_reg_mr {} Bad address", "x".repeat(gap));
        assert_eq!(id_in(&line(GAP_BYTES_MAX)), Some(ids::MR_FAULT));
        assert_eq!(id_in(&line(GAP_BYTES_MAX + 1)), None);
    }
}
