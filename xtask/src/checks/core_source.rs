//! The core keeps out the standard library, unsafe code, and code that only some builds have.

use crate::report::Outcome;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const REQUIRED: [&str; 2] = ["#![no_std]", "#![forbid(unsafe_code)]"];

/// Reads every source file of the core.
pub(crate) fn check(root: &Path) -> Outcome {
    let folder = root.join("core/src");
    match findings_in(&folder) {
        Ok((files, findings)) => Outcome::of_findings(&findings, format!("core: {files} files")),
        Err(error) => Outcome::failed(format!("{}: {error}", folder.display()), ""),
    }
}

fn findings_in(folder: &Path) -> io::Result<(usize, Vec<String>)> {
    let files = rust_files(folder)?;
    let mut findings = missing_attributes(&fs::read_to_string(folder.join("lib.rs"))?);
    for file in &files {
        let (name, text) = (file.display().to_string(), fs::read_to_string(file)?);
        findings.extend(uses_of_std(&name, &text));
        findings.extend(switches(&name, &text));
    }
    Ok((files.len(), findings))
}

fn rust_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn missing_attributes(library: &str) -> Vec<String> {
    let missing =
        REQUIRED.iter().filter(|required| !library.lines().any(|line| line == **required));
    missing.map(|required| format!("core/src/lib.rs lacks the line {required}")).collect()
}

/// Lines with the word `std` outside comments: whatever is done with it there, it is too much.
fn uses_of_std(file: &str, text: &str) -> Vec<String> {
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    let is_part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let uses = |line: &str| code(line).split(|c| !is_part_of_word(c)).any(|word| word == "std");
    let lines = text.lines().enumerate().filter(|(_, line)| uses(line));
    lines.map(|(index, line)| format!("{file}:{}: {}", index + 1, line.trim())).collect()
}

/// Lines that only some builds have, except tests and the atomics that loom replaces: a machine that
/// ships holds no switch of a test.
fn switches(file: &str, text: &str) -> Vec<String> {
    let switches = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        code.contains("cfg") && !code.contains("cfg(test)") && !code.contains("core_loom")
    };
    let lines = text.lines().enumerate().filter(|(_, line)| switches(line));
    lines.map(|(index, line)| format!("{file}:{}: {}", index + 1, line.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_its_attributes_is_found() {
        assert_eq!(missing_attributes("#![no_std]\n#![forbid(unsafe_code)]\n"), [""; 0]);
        assert_eq!(missing_attributes("#![no_std]\n//#![forbid(unsafe_code)]\n").len(), 1);
        let optional = "#![cfg_attr(not(feature = \"std\"), no_std)]\n#![forbid(unsafe_code)]\n";
        assert_eq!(missing_attributes(optional).len(), 1);
    }

    #[test]
    fn code_of_some_builds_is_found() {
        let text = "#[cfg(feature = \"x\")]\nif cfg!(debug_assertions) {\n#[cfg(test)]\n";
        assert_eq!(switches("a.rs", text).len(), 2);
        assert_eq!(switches("a.rs", "#[cfg(not(core_loom))]\n/// cfg\n"), [""; 0]);
    }

    #[test]
    fn every_way_to_the_standard_library_is_found_and_comments_are_not() {
        let text =
            "extern crate std;\nuse std::vec;\nlet a = ::std::env::args();\nuse {std as s};\n";
        assert_eq!(uses_of_std("a.rs", text).len(), 4);
        assert_eq!(uses_of_std("a.rs", "x\nuse std::io;\n"), ["a.rs:2: use std::io;"]);
        let harmless = "#![no_std]\n/// like std::io\nlet std_dev = 1; // std\nuse core::fmt;\n";
        assert_eq!(uses_of_std("a.rs", harmless), [""; 0]);
    }
}
