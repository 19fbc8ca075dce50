//! Texts that no file of the repository may contain, each rule one search of `git grep`.

use super::output_of;
use crate::report::{Outcome, as_skipped, of_findings};
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Most lines of one Rust file. A longer file holds more than one concern.
const RUST_LINES_MAX: usize = 800;
/// Findings that a failure lists for each folder.
const LISTED_MAX: usize = 20;

/// One search, and the findings that are left for now.
struct Rule {
    /// The step that it belongs to.
    step: &'static str,
    what: &'static str,
    /// Options and patterns of `git grep`. A class of one letter keeps a pattern from finding itself.
    search: &'static [&'static str],
    paths: &'static [&'static str],
    /// Findings allowed in a folder of the repository. The numbers only fall.
    budgets: &'static [(&'static str, usize)],
}

/// Words that are not used. `BANNED` in a search is replaced by them.
const BANNED: &str = r"\b(whoever|whomever|told|tells|anew|bears|in vain|of ours|of theirs|beside|enthrone|fates|make way|makes way|made way|mute|twins|yardstick)\b";

const RULES: [Rule; 10] = [
    Rule {
        step: "texts",
        what: "a path of one machine",
        search: &["-e", "/wor[k]/|/roo[t]/|/tmp/targe[t]"],
        paths: &["."],
        budgets: &[],
    },
    Rule {
        step: "texts",
        what: "unfinished",
        search: &["-e", r"\b(tod[o]|unimplemente[d])!|#\[ignor[e]\b|\b(TOD[O]|FIXM[E])\b"],
        paths: &["."],
        budgets: &[],
    },
    Rule {
        step: "core-source",
        what: "`#![no_std]` is missing",
        search: &["--files-without-match", "-e", r"^#!\[no_std\]$"],
        paths: &["core/src/lib.rs"],
        budgets: &[],
    },
    Rule {
        step: "core-source",
        what: "`#![forbid(unsafe_code)]` is missing",
        search: &["--files-without-match", "-e", r"^#!\[forbid\(unsafe_code\)\]$"],
        paths: &["core/src/lib.rs"],
        budgets: &[],
    },
    Rule {
        step: "core-source",
        what: "the standard library",
        search: &["-e", r"^([^/]|/[^/])*\bstd\b"],
        paths: &["core/src"],
        budgets: &[],
    },
    // A machine that ships holds no switch of a test.
    Rule {
        step: "core-source",
        what: "code of some builds alone",
        search: &["-e", "^([^/]|/[^/])*cfg", "--and", "--not", "-e", r"cfg\(test\)"],
        paths: &["core/src"],
        budgets: &[],
    },
    Rule {
        step: "words",
        what: "a word that is not used in a page; docs/glossary.md has the terms",
        search: &["-i", "-e", "BANNED"],
        paths: &["*.md", ":!docs/glossary.md"],
        budgets: &[("docs", 5)],
    },
    // A text goes on in the next line after a backslash. An argument of a format is a name.
    Rule {
        step: "words",
        what: "a word that is not used in a comment or text; docs/glossary.md has the terms",
        search: &[
            "-i",
            "-e",
            r#"(^|\s)//.*BANNED|".*BANNED.*"|BANNED.*\\$"#,
            "--and",
            "--not",
            "-e",
            r"\{BANNED\}",
        ],
        paths: &["*.rs", ":!xtask/src/checks/texts.rs"],
        budgets: &[("core", 13), ("sim", 6), ("transport-rdma", 19), ("transport-sim", 1)],
    },
    Rule {
        step: "words",
        what: "a comment that begins with a question word",
        search: &["-e", r"(^|\s)//[/!]*\s*(What|Who|Whoever|Which|Where|How|When)\b"],
        paths: &["*.rs", ":!xtask/src/checks/texts.rs"],
        budgets: &[],
    },
    Rule {
        step: "words",
        what: "a name of more than 60 characters; the sentence is the doc comment",
        search: &["-e", r"\bfn \w{61,}"],
        paths: &["*.rs"],
        budgets: &[],
    },
];

/// Searches for the texts of one step.
pub(crate) fn check(root: &Path, step: &str) -> Outcome {
    let mut findings = Vec::new();
    let mut left = 0;
    let mut lower = String::new();
    for rule in RULES.iter().filter(|rule| rule.step == step) {
        let found = search(root, rule.search, rule.paths).map_err(as_skipped)?;
        left += found.len();
        for (folder, lines) in rule.by_folder(&found) {
            let allowed = rule.budgets.iter().find(|(name, _)| *name == folder);
            let allowed = allowed.map_or(0, |(_, count)| *count);
            let count = format!("{folder}: {} of {}, {allowed} allowed", lines.len(), rule.what);
            if lines.len() > allowed {
                findings.push(count);
                findings.extend(lines.iter().take(LISTED_MAX).map(|line| format!("  {line}")));
            } else if lines.len() < allowed {
                lower.push_str(&format!("; lower {count}"));
            }
        }
    }
    if step == "texts" {
        findings.extend(long_files(root));
    }
    of_findings(&findings, format!("{step}: {left} left{lower}"))
}

impl Rule {
    /// Findings by the first folder of their path; `.` is the root. Folders with a budget are in it.
    fn by_folder<'a>(&self, found: &'a [String]) -> BTreeMap<&'a str, Vec<&'a str>> {
        let mut folders: BTreeMap<&str, Vec<&str>> =
            self.budgets.iter().map(|(folder, _)| (*folder, Vec::new())).collect();
        for line in found {
            let path = line.split(':').next().unwrap_or_default();
            let folder = path.split_once('/').map_or(".", |(folder, _)| folder);
            folders.entry(folder).or_default().push(line);
        }
        folders
    }
}

fn long_files(root: &Path) -> Vec<String> {
    let counts = search(root, &["--count", "-e", ""], &["*.rs"]).unwrap_or_default();
    let is_long = |line: &String| {
        let count = line.rsplit_once(':').and_then(|(_, count)| count.parse::<usize>().ok());
        count.is_some_and(|count| count > RUST_LINES_MAX)
    };
    let long = counts.into_iter().filter(is_long);
    long.map(|line| format!("{line} lines, at most {RUST_LINES_MAX}: split by concern")).collect()
}

/// The lines that `git grep` prints, which ends with 1 where it finds nothing.
fn search(root: &Path, search: &[&str], paths: &[&str]) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["grep", "--untracked", "-n", "-I", "-E"]);
    git.args(search.iter().map(|word| word.replace("BANNED", BANNED))).arg("--").args(paths);
    let output = output_of(git, &[0, 1])?;
    Ok(output.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Findings in a repository of one file.
    fn findings(step: &str, path: &str, text: &str) -> Outcome {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
        let init = Command::new("git").current_dir(&folder).args(["init", "--quiet"]).status();
        assert!(init.unwrap().success());
        check(folder.path(), step)
    }

    #[test]
    fn forbidden_text_is_found() {
        let library = "#![no_std]\n#![forbid(unsafe_code)]\n";
        let long = "\n".repeat(RUST_LINES_MAX + 1);
        let cases = [
            ("texts", "a.md", concat!("see /wo", "rk/x")),
            ("texts", "a.rs", concat!("tod", "o!()")),
            ("texts", "a.rs", concat!("#[igno", "re]")),
            ("texts", "a.md", concat!("a FIX", "ME b")),
            ("texts", "a.rs", &long),
            ("core-source", "core/src/lib.rs", "#![no_std]\n"),
            ("core-source", "core/src/lib.rs", "//#![no_std]\n#![forbid(unsafe_code)]\n"),
            ("core-source", "core/src/lib.rs", &format!("{library}extern crate std;")),
            ("core-source", "core/src/lib.rs", &format!("{library}let a = ::std::env::args();")),
            ("core-source", "core/src/lib.rs", &format!("{library}if cfg!(debug_assertions) {{")),
            ("words", "x/a.md", "Told so."),
            ("words", "x/a.rs", "f(); // It is told."),
            ("words", "x/a.rs", "f(\"in vain\");"),
            ("words", "x/a.rs", "//! What it is."),
            ("words", "x/a.rs", &format!("async fn {}() {{}}", "n".repeat(61))),
        ];
        for (step, path, text) in cases {
            let outcome = findings(step, path, text);
            let error = outcome.expect_err(text).to_string();
            assert!(error.starts_with("findings: "), "{text}: {error}");
        }
    }

    #[test]
    fn similar_text_passes() {
        let core = "#![no_std]\n#![forbid(unsafe_code)]\n/// std, cfg\nlet std_dev = 1; // std\n\
            #[cfg(test)]\n";
        let cases = [
            ("texts", "a.md", concat!("MASTO", "DON /home/wo", "rk /wo", "rkshop/")),
            ("texts", "a.rs", "fn ignored() {}"),
            ("texts", "a.md", &"\n".repeat(RUST_LINES_MAX + 1)),
            ("core-source", "core/src/lib.rs", core),
            ("words", "x/a.md", "retold, told_to, mute_timeout"),
            ("words", "x/a.toml", "told"),
            ("words", "x/a.rs", "let whoever = 1;"),
            ("words", "x/a.rs", "/// Whatever.\n// Asks what.\nf(\"Which\");"),
            ("words", "x/a.rs", &format!("fn {}() {{}}", "n".repeat(60))),
        ];
        for (step, path, text) in cases {
            findings(step, path, text).expect(text);
        }
    }
}
