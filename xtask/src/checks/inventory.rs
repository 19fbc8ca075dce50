//! The inventory of unsafe code, `docs/unsafe.md`: every file with such code, and what is in it.

use super::output_of;
use crate::report::{Outcome, as_skipped, of_findings};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

const PAGE: &str = "docs/unsafe.md";
/// Writes the page where it is set.
const UPDATE: &str = "UPDATE_SNAPSHOTS";
/// Part of the comment at each block and implementation.
const PROOF: &str = "SAFETY";
/// A comment with this gives the proof of all that follows in its file.
const PROOF_OF_FILE: &str = "SAFETY of the blocks below";
/// Lines above a block in which its comment begins. A statement may have so many lines.
const LINES_ABOVE_MAX: usize = 16;
const HEAD: &str = "\
# Unsafe code

Every Rust file of the workspace with unsafe code. Written by `UPDATE_SNAPSHOTS=1 cargo xtask test --stage checks \
--step unsafe-code`; not edited. The step fails where the page differs from the sources, and where a block or an \
implementation has no `SAFETY` comment with the invariant and its owner. `core` forbids unsafe code, and every other \
crate denies it outside the modules that allow it.

*Functions* are those that their callers must use with care, and signatures of C. *Exported* are functions and \
statics with a name for C.
";

/// Unsafe code of a file.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
struct Counts {
    blocks: usize,
    functions: usize,
    implementations: usize,
    exported: usize,
}

/// Compares the page with the sources, and finds code without a proof.
pub(crate) fn check(root: &Path) -> Outcome {
    let mut findings = Vec::new();
    let mut files = BTreeMap::new();
    for path in sources(root).map_err(as_skipped)? {
        let text = fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
        let (counts, unproven) = counted(&text);
        findings.extend(unproven.iter().map(|line| format!("{path}:{line}: no {PROOF} comment")));
        if counts != Counts::default() {
            files.insert(path, counts);
        }
    }
    let page = page(&files);
    let path = root.join(PAGE);
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&path, &page).with_context(|| PAGE.to_owned())?;
    } else if fs::read_to_string(&path).ok().as_ref() != Some(&page) {
        findings.push(format!("{PAGE} differs from the sources: {UPDATE}=1 rewrites it"));
    }
    let blocks: usize = files.values().map(|counts| counts.blocks).sum();
    of_findings(&findings, format!("{blocks} unsafe blocks in {} files", files.len()))
}

/// The Rust files that contain the word.
fn sources(root: &Path) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["grep", "--untracked", "-l", "-w", "unsafe", "--", "*.rs"]);
    Ok(output_of(git, &[0, 1])?.lines().map(str::to_owned).collect())
}

fn page(files: &BTreeMap<String, Counts>) -> String {
    let mut page = String::from(HEAD);
    for (title, of_tests) in [("Code that ships", false), ("Tests, benchmarks and examples", true)]
    {
        let chosen = files.iter().filter(|(path, _)| is_test(path) == of_tests);
        let rows = chosen.map(|(path, counts)| (format!("`{path}`"), *counts));
        let rows: Vec<_> = rows.collect();
        let mut sum = Counts::default();
        for (_, counts) in &rows {
            sum.blocks += counts.blocks;
            sum.functions += counts.functions;
            sum.implementations += counts.implementations;
            sum.exported += counts.exported;
        }
        page.push_str(&format!("\n## {title}\n\n"));
        page.push_str("| file | blocks | functions | implementations | exported |\n");
        page.push_str("| --- | --- | --- | --- | --- |\n");
        for (name, counts) in rows.into_iter().chain([("together".to_owned(), sum)]) {
            let Counts { blocks, functions, implementations, exported } = counts;
            page.push_str(&format!(
                "| {name} | {blocks} | {functions} | {implementations} | {exported} |\n"
            ));
        }
    }
    page
}

fn is_test(path: &str) -> bool {
    let folders = ["tests", "benches", "examples", "fuzz", "sim-tests", "xtask"];
    let in_folder = path.split('/').any(|part| folders.contains(&part));
    in_folder || path.ends_with("/tests.rs") || path.ends_with("/scripted.rs")
}

/// Counts the unsafe code of a file, and returns the numbers of lines without a proof.
fn counted(text: &str) -> (Counts, Vec<usize>) {
    let lines: Vec<&str> = text.lines().collect();
    let mut counts = Counts::default();
    let mut unproven = Vec::new();
    let mut is_proven_on = false;
    for (place, line) in lines.iter().enumerate() {
        is_proven_on |= line.contains(PROOF_OF_FILE);
        for rest in code_of(line).split("unsafe").skip(1) {
            // A word such as `unsafe_code` is a lint, and has no next word.
            let next = rest.trim_start();
            let proof_needed = match next {
                _ if rest.starts_with('(') => {
                    counts.exported += 1;
                    false
                }
                _ if next.starts_with("fn") || next.starts_with("extern") => {
                    counts.functions += 1;
                    false
                }
                _ if next.starts_with("impl") => {
                    counts.implementations += 1;
                    true
                }
                _ if next.starts_with('{') || next.is_empty() => {
                    counts.blocks += 1;
                    true
                }
                _ => false,
            };
            if proof_needed && !is_proven_on && !is_proven(&lines[..=place]) {
                unproven.push(place + 1);
            }
        }
    }
    (counts, unproven)
}

/// Whether the last of these lines, or a line of the same paragraph not far above, has the proof.
fn is_proven(lines: &[&str]) -> bool {
    let above = lines.iter().rev().take(LINES_ABOVE_MAX + 1);
    above.take_while(|line| !line.trim().is_empty()).any(|line| line.contains(PROOF))
}

/// A line without its comment and its texts.
fn code_of(line: &str) -> String {
    let mut code = String::new();
    for (place, part) in line.split('"').enumerate() {
        // Every other part is a text.
        if place % 2 == 0 {
            if let Some((before, _)) = part.split_once("//") {
                code.push_str(before);
                break;
            }
            code.push_str(part);
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_is_counted_by_kind() {
        let text = "//! unsafe {\n#![allow(unsafe_code)]\n#[unsafe(no_mangle)]\n\
            pub unsafe extern \"C\" fn a() {\n    // SAFETY: the caller's.\n    unsafe { b() };\n}\n\
            unsafe fn b() {}\n// SAFETY: it has no fields.\nunsafe impl Send for A {}\n\
            let text = \"unsafe { }\"; // unsafe {\n";
        let expected = Counts { blocks: 1, functions: 2, implementations: 1, exported: 1 };
        assert_eq!(counted(text), (expected, Vec::new()));
    }

    /// A proof ends with its paragraph, unless it is that of its file.
    #[test]
    fn block_without_a_proof_is_found() {
        let block = "let a = unsafe { b() };\n";
        assert_eq!(counted(block).1, [1]);
        assert_eq!(counted(&format!("// SAFETY: so.\n\n{block}")).1, [3]);
        assert_eq!(counted(&format!("// SAFETY: so.\n{block}{block}")).1, [0; 0]);
        let far = format!("\n{}", "f();\n".repeat(LINES_ABOVE_MAX));
        assert_eq!(counted(&format!("// SAFETY: so.{far}{block}")).1, [LINES_ABOVE_MAX + 2]);
        let of_file = "// SAFETY of the blocks below: so.\n\n";
        assert_eq!(counted(&format!("{of_file}{block}\n{block}")).1, [0; 0]);
        assert_eq!(counted("unsafe impl Send for A {}\n").1, [1]);
    }

    #[test]
    fn page_that_differs_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let init = Command::new("git").current_dir(root).args(["init", "--quiet"]).status();
        assert!(init.unwrap().success());
        fs::write(root.join("a.rs"), "// SAFETY: so.\nunsafe { b() };\n").unwrap();
        assert!(check(root).unwrap_err().to_string().contains("findings: 1"));
        let counts = Counts { blocks: 1, ..Counts::default() };
        fs::create_dir(root.join("docs")).unwrap();
        fs::write(root.join(PAGE), page(&[("a.rs".to_owned(), counts)].into())).unwrap();
        assert_eq!(check(root).unwrap(), "1 unsafe blocks in 1 files");
        fs::write(root.join("c.rs"), "unsafe { b() };\n").unwrap();
        let found = format!("{:#}", check(root).unwrap_err());
        assert!(found.contains("findings: 2") && found.contains("c.rs:1: no SAFETY"), "{found}");
    }
}
