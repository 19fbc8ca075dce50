//! Texts that no file of the repository may contain.

use super::tracked_texts;
use crate::report::Outcome;
use std::path::Path;

/// Most lines of one Rust file: what is longer holds more than one concern.
const RUST_LINES_MAX: usize = 800;
// Written in halves, so that this file passes.
const MACHINE_PATHS: [&str; 3] =
    [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/tmp/tar", "get")];
const UNFINISHED: [&str; 5] = [
    concat!("todo", "!"),
    concat!("unimplemented", "!"),
    concat!("#[ign", "ore"),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
];

/// Reads every file that git tracks; binary files are looked at only for being text.
pub(crate) fn check(root: &Path) -> Outcome {
    let texts = match tracked_texts(root) {
        Ok(texts) => texts,
        Err(error) => return Outcome::Skipped(error),
    };
    let findings: Vec<_> = texts.iter().flat_map(|(file, text)| findings_in(file, text)).collect();
    Outcome::of_findings(&findings, format!("texts: {} files", texts.len()))
}

fn findings_in(file: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let place = format!("{file}:{}", index + 1);
        let paths = MACHINE_PATHS.iter().filter(|path| line.contains(**path));
        findings.extend(paths.map(|path| format!("{place}: a path of one machine: {path}")));
        let unfinished = UNFINISHED.iter().filter(|word| contains_word(line, word));
        findings.extend(unfinished.map(|word| format!("{place}: unfinished: {word}")));
    }
    let lines = text.lines().count();
    if file.ends_with(".rs") && lines > RUST_LINES_MAX {
        findings.push(format!("{file}: {lines} lines, at most {RUST_LINES_MAX}: split by concern"));
    }
    findings
}

/// `line` contains `word`, not as part of a longer word.
fn contains_word(line: &str, word: &str) -> bool {
    let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(start, _)| {
        let (before, after) = (&line[..start], &line[start + word.len()..]);
        let goes_on = word.ends_with(char::is_alphanumeric) && is_letter(after.chars().next());
        !goes_on && !is_letter(before.chars().next_back())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_forbidden_text_is_found_with_its_line() {
        for text in MACHINE_PATHS.iter().chain(&UNFINISHED) {
            let findings = findings_in("a.md", &format!("fine\nsee {text} here\n"));
            assert_eq!(findings.len(), 1, "{text}");
            assert!(findings[0].starts_with("a.md:2: "), "{}", findings[0]);
        }
    }

    #[test]
    fn longer_words_and_other_paths_are_fine() {
        let text = format!("MASTO{}N my_{}( /home/work /workshop/", "DON", UNFINISHED[0]);
        assert_eq!(findings_in("a.md", &text), [""; 0]);
        assert_eq!(findings_in("a.rs", "fn ignored() {}\n"), [""; 0]);
    }

    #[test]
    fn a_rust_file_at_the_limit_passes_and_one_line_more_is_found() {
        assert_eq!(findings_in("a.rs", &"\n".repeat(RUST_LINES_MAX)), [""; 0]);
        assert_eq!(findings_in("a.rs", &"\n".repeat(RUST_LINES_MAX + 1)).len(), 1);
        assert_eq!(findings_in("a.md", &"\n".repeat(RUST_LINES_MAX + 1)), [""; 0]);
    }
}
