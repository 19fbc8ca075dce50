//! Problems that unknown text resembles.

use super::Suggestion;
use crate::normal::normal;
use crate::problem::{Problem, problems};
use std::collections::BTreeSet;

/// Maximum length of the compared text, in bytes of the normal form.
const SAMPLE_BYTES_MAX: usize = 4 << 10;
/// Maximum number of suggestions.
const SUGGESTIONS_MAX: usize = 3;
/// Minimum likeness, in percent; a lower one is chance.
const LIKENESS_PERCENT_MIN: usize = 45;
/// Maximum length of a text that may be the name of a problem, in bytes.
const NAME_BYTES_MAX: usize = 24;
/// Number of letters compared together.
const LETTERS: usize = 3;

/// The beginning of an unrecognised text.
#[derive(Default)]
pub(super) struct Sample(String);

impl Sample {
    pub(super) fn add(&mut self, text: &str) {
        let mut end = text.len().min(SAMPLE_BYTES_MAX.saturating_sub(self.0.len()));
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.0.push_str(&text[..end]);
    }

    pub(super) fn nearest(&self) -> Vec<Suggestion> {
        let have: BTreeSet<_> = grams(&self.0).collect();
        let name = (self.0.len() <= NAME_BYTES_MAX).then(|| self.0.replace('_', "-"));
        let name = name.map(|name| grams(&name).collect::<BTreeSet<_>>());
        let by_name = |problem: &Problem| {
            let id = normal(problem.id.as_str());
            name.as_ref().map_or(0, |have| share_percent(&grams(&id).collect::<Vec<_>>(), have))
        };
        let mut all: Vec<_> = problems()
            .iter()
            .map(|problem| (likeness_percent(problem, &have).max(by_name(problem)), problem.id))
            .filter(|(percent, _)| *percent >= LIKENESS_PERCENT_MIN)
            .collect();
        all.sort_by_key(|(percent, id)| (std::cmp::Reverse(*percent), *id));
        all.truncate(SUGGESTIONS_MAX);
        let suggestion = |(percent, id)| Suggestion {
            id,
            likeness_percent: u8::try_from(percent).unwrap_or(100),
        };
        all.into_iter().map(suggestion).collect()
    }
}

/// Returns the share of the most similar message contained in the text.
fn likeness_percent(problem: &Problem, have: &BTreeSet<[char; LETTERS]>) -> usize {
    let of = |pieces: &&[&str]| {
        let wanted: Vec<_> = pieces.iter().flat_map(|piece| grams(piece)).collect();
        // A short message has too few letters to compare.
        if wanted.len() >= 5 { share_percent(&wanted, have) } else { 0 }
    };
    problem.patterns.iter().map(of).max().unwrap_or(0)
}

/// Returns the share of the wanted letters contained in the text.
fn share_percent(wanted: &[[char; LETTERS]], have: &BTreeSet<[char; LETTERS]>) -> usize {
    let there = wanted.iter().filter(|gram| have.contains(*gram)).count();
    there * 100 / wanted.len().max(1)
}

fn grams(text: &str) -> impl Iterator<Item = [char; LETTERS]> {
    let chars: Vec<char> = text.chars().collect();
    let windows: Vec<_> =
        chars.windows(LETTERS).map(|window| [window[0], window[1], window[2]]).collect();
    windows.into_iter()
}
