//! The language of comments, messages, pages and test names.
//!
//! A crate may have as many findings of a rule as its row of [`BUDGETS`] says. The numbers only fall:
//! the aim is zero in every row.

use super::rust_source::{self, Prose, ProseKind, Token};
use super::tracked_texts;
use crate::report::Outcome;
use std::collections::BTreeMap;
use std::path::Path;

/// Words that are not used, each with its replacement. `docs/glossary.md` has the terms of the field.
const BANNED: [(&str, &str); 18] = [
    ("whoever", "the caller, the peer, the reader"),
    ("whomever", "the caller, the peer, the reader"),
    ("told", "given, reported, informed"),
    ("tells", "reports, gives, says"),
    ("anew", "again"),
    ("bears", "has"),
    ("in vain", "without success"),
    ("of ours", "local, own"),
    ("of theirs", "of the peer"),
    ("beside", "next to, along with, and"),
    ("enthrone", "set_live_incarnation"),
    ("fates", "outcomes"),
    ("make way", "be evicted, be dropped"),
    ("makes way", "is evicted, is dropped"),
    ("made way", "was evicted, was dropped"),
    ("mute", "unresponsive"),
    ("twins", "reused queue-pair numbers"),
    ("yardstick", "baseline"),
];
/// First words of a comment that puts a clause in place of a noun.
const QUESTIONS: [&str; 7] = ["What", "Who", "Whoever", "Which", "Where", "How", "When"];
/// Longest name of a test, in characters. The sentence is its doc comment.
const TEST_NAME_MAX: usize = 60;
/// Findings that a failure lists for each rule of a crate.
const LISTED_MAX: usize = 20;
/// Files that list the words themselves.
const LISTS: [&str; 2] = ["docs/glossary.md", "xtask/src/checks/words.rs"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rule {
    /// No word of [`BANNED`] in comments, text literals and pages.
    Banned,
    /// No comment line begins with a word of [`QUESTIONS`].
    Question,
    /// Test names are at most [`TEST_NAME_MAX`] characters long.
    TestName,
}

const RULES: [(Rule, &str); 3] = [
    (Rule::Banned, "words that are not used"),
    (Rule::Question, "comments that begin with a question word"),
    (Rule::TestName, "test names that are too long"),
];

/// Findings that a folder of the repository may have, in the order of [`RULES`]; `.` is the root's files.
const BUDGETS: [(&str, [usize; 3]); 11] = [
    ("cli", [6, 0, 0]),
    ("core", [20, 13, 0]),
    ("docs", [139, 0, 0]),
    ("engine", [165, 157, 0]),
    ("sim", [10, 12, 0]),
    ("sim-tests", [6, 5, 0]),
    ("transport", [3, 1, 0]),
    ("transport-rdma", [34, 26, 0]),
    ("transport-sim", [3, 0, 0]),
    ("transport-tcp", [19, 24, 0]),
    ("xtask", [6, 2, 12]),
];

/// Reads every Rust file and every page that git tracks.
pub(crate) fn check(root: &Path) -> Outcome {
    match tracked_texts(root) {
        Ok(texts) => judge(&texts),
        Err(error) => Outcome::Skipped(error),
    }
}

fn judge(texts: &[(String, String)]) -> Outcome {
    let mut found: BTreeMap<(&str, Rule), Vec<String>> = BTreeMap::new();
    let listed = |file: &str| LISTS.contains(&file);
    for (file, text) in texts.iter().filter(|(file, _)| !listed(file)) {
        let folder = file.split_once('/').map_or(".", |(folder, _)| folder);
        for (rule, finding) in findings_in(file, text) {
            found.entry((folder, rule)).or_default().push(finding);
        }
    }
    let (mut over, mut below) = (Vec::new(), Vec::new());
    for folder in folders(&found) {
        for (at, (rule, what)) in RULES.into_iter().enumerate() {
            let budget = BUDGETS.iter().find(|(name, _)| *name == folder);
            let budget = budget.map_or(0, |(_, budgets)| budgets[at]);
            let findings = found.get(&(folder, rule)).map_or(&[][..], Vec::as_slice);
            if findings.len() > budget {
                over.push(format!("{folder}: {} {what}, {budget} allowed", findings.len()));
                over.extend(findings.iter().take(LISTED_MAX).map(|finding| format!("  {finding}")));
            } else if findings.len() < budget {
                below.push(format!("{folder}: {} {what}, {budget} allowed", findings.len()));
            }
        }
    }
    let total: usize = found.values().map(Vec::len).sum();
    let lower =
        if below.is_empty() { String::new() } else { format!("; lower {}", below.join(", ")) };
    Outcome::of_findings(&over, format!("words: {total} left{lower}"))
}

fn folders<'a>(found: &BTreeMap<(&'a str, Rule), Vec<String>>) -> Vec<&'a str> {
    let mut folders: Vec<_> = found.keys().map(|(folder, _)| *folder).collect();
    folders.extend(BUDGETS.iter().map(|(folder, _)| *folder));
    folders.sort_unstable();
    folders.dedup();
    folders
}

fn findings_in(file: &str, text: &str) -> Vec<(Rule, String)> {
    if file.ends_with(".md") {
        let lines = text.lines().enumerate();
        return lines.flat_map(|(at, line)| banned(file, at + 1, line)).collect();
    }
    if !file.ends_with(".rs") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for Prose { line, text, kind } in rust_source::prose(text) {
        let lines = text.lines().enumerate();
        findings.extend(lines.flat_map(|(at, part)| banned(file, line + at, part)));
        let first = text.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
        if kind == ProseKind::Comment && QUESTIONS.contains(&first) {
            findings.push((Rule::Question, format!("{file}:{line}: {text}")));
        }
    }
    let tokens = rust_source::tokens(text);
    let long = test_names(&tokens).into_iter().filter(|name| name.chars().count() > TEST_NAME_MAX);
    findings.extend(long.map(|name| (Rule::TestName, format!("{file}: {name}"))));
    findings
}

fn banned(file: &str, line: usize, text: &str) -> Vec<(Rule, String)> {
    let lower = text.to_lowercase();
    let words = BANNED.iter().filter(|(word, _)| has_word(&lower, word));
    let finding = |(word, instead): &(&str, &str)| {
        (Rule::Banned, format!("{file}:{line}: '{word}', better: {instead}"))
    };
    words.map(finding).collect()
}

/// The text contains these words, not as parts of others, of an identifier or of a format argument.
fn has_word(text: &str, word: &str) -> bool {
    let goes_on =
        |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '{' | '}'));
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !goes_on(before.chars().next_back()) && !goes_on(after.chars().next())
    })
}

/// The names of functions with an attribute `#[test]`, `#[tokio::test(…)]` or alike.
fn test_names(tokens: &[Token]) -> Vec<&str> {
    let word = |text: &str| Token::Word(text.to_owned());
    let mut names = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_attribute =
            tokens[at] == Token::Sign('#') && tokens.get(at + 1) == Some(&Token::Sign('['));
        if !is_attribute {
            at += 1;
            continue;
        }
        let length = tokens[at..].iter().position(|token| *token == Token::Sign(']'));
        let end = length.map_or(tokens.len(), |length| at + length);
        let path = tokens[at + 2..end].split(|token| *token == Token::Sign('(')).next();
        at = end;
        if path.and_then(<[Token]>::last) == Some(&word("test")) {
            let function = tokens[end..].iter().position(|token| *token == word("fn"));
            if let Some(Token::Word(name)) = function.and_then(|it| tokens.get(end + it + 1)) {
                names.push(name.as_str());
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(file: &str, text: &str) -> Vec<Rule> {
        findings_in(file, text).into_iter().map(|(rule, _)| rule).collect()
    }

    #[test]
    fn banned_words_are_found_in_prose_and_not_in_names() {
        let text = "// It is told.\nlet told = f(\"in vain\"); // fine\nlet whoever = 'x';\n";
        assert_eq!(rules("a/src/b.rs", text), [Rule::Banned, Rule::Banned]);
        assert_eq!(
            rules("docs/a.md", "Told so.\nretold, told_to, mute_timeout, {told}\n"),
            [Rule::Banned]
        );
        assert_eq!(rules("a.toml", "told"), []);
        let found = findings_in("a/src/b.rs", "fn f() {}\n\n/// Asks\n/// in vain.\n");
        assert_eq!(found[0].1, "a/src/b.rs:4: 'in vain', better: without success");
    }

    #[test]
    fn question_words_are_found_at_the_begin_of_comments() {
        let text = "//! What it is.\n/// Whatever.\n// Asks what.\nf(\"Which\"); // How so\n";
        assert_eq!(rules("a/src/b.rs", text), [Rule::Question, Rule::Question]);
    }

    #[test]
    fn test_names_over_the_bound_are_found() {
        let (long, fits) = ("n".repeat(TEST_NAME_MAX + 1), "n".repeat(TEST_NAME_MAX));
        for attribute in ["#[test]", "#[tokio::test(flavor = \"x\")]", "#[test]\n#[should_panic]"] {
            let with = |name: &str| format!("{attribute}\nasync fn {name}() {{}}\n");
            assert_eq!(rules("a/src/b.rs", &with(&long)), [Rule::TestName], "{attribute}");
            assert_eq!(rules("a/src/b.rs", &with(&fits)), [], "{attribute}");
        }
        assert_eq!(rules("a/src/b.rs", &format!("#[cfg(test)]\nfn {long}() {{}}\n")), []);
    }

    #[test]
    fn folder_over_its_budget_fails() {
        let texts = [("nowhere/src/a.rs".to_owned(), "// It is told.\n".to_owned())];
        let Outcome::Failed { tail, .. } = judge(&texts) else { panic!("no budget, no finding") };
        assert!(
            tail.starts_with("nowhere: 1 words that are not used, 0 allowed\n  nowhere/src/a.rs:1")
        );
        let lists = [("docs/glossary.md".to_owned(), "told".to_owned())];
        assert!(matches!(judge(&lists), Outcome::Passed(_)));
    }
}
