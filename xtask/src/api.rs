//! `cargo xtask api`: the public surface of the library as one item per line.
//!
//! rustdoc writes the crate as JSON, and every public item becomes a line of docs/api/handfast.txt.
//! A change of the public surface thus changes that file.

use crate::project::Project;
use crate::report::{Outcome, of_findings, skipped};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::PathBuf;

const PACKAGE: &str = "handfast";
const FEATURES: &str = "diagnosis,metadata,metrics-http";
const SNAPSHOT: &str = "docs/api/handfast.txt";
/// Version of rustdoc's JSON: that of Rust 1.95, which the crate public-api reads.
const FORMAT_VERSION: u64 = 57;

/// Compare the library's public items with docs/api/handfast.txt
///
/// Exit code: 0 if they agree, 1 if not.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Rewrite the file
    #[arg(long)]
    bless: bool,
}

pub(crate) fn run(project: &Project, arguments: &Arguments) -> Result<bool> {
    if arguments.bless {
        let surface = surface(project)?;
        fs::write(project.root().join(SNAPSHOT), &surface)?;
        println!("{SNAPSHOT}: {} items", surface.lines().count());
    } else {
        println!("{}", check(project)?);
    }
    Ok(true)
}

/// Checks that the public surface matches the file.
pub(crate) fn check(project: &Project) -> Outcome {
    let surface = surface(project)?;
    // A missing file lists no item.
    let stated = fs::read_to_string(project.root().join(SNAPSHOT)).unwrap_or_default();
    let note = format!("{} public items", surface.lines().count());
    of_findings(&differences(&stated, &surface), note)
}

/// Returns the public items. Skipped if rustdoc writes an unsupported version of JSON.
fn surface(project: &Project) -> Result<String> {
    let json = document(project)?;
    let document: serde_json::Value = serde_json::from_slice(&fs::read(&json)?)?;
    let version = document["format_version"].as_u64().context("a document has a version")?;
    if version != FORMAT_VERSION {
        let read = format!("Rust 1.95 writes {FORMAT_VERSION}");
        return Err(skipped(format!("this rustdoc writes version {version} of its JSON; {read}")));
    }
    let api = public_api::Builder::from_rustdoc_json(&json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .with_context(|| json.display().to_string())?;
    Ok(api.items().map(|item| format!("{item}\n")).collect())
}

/// Has rustdoc write its JSON, in a separate target folder so that the unstable option rebuilds
/// nothing else.
fn document(project: &Project) -> Result<PathBuf> {
    let target = project.scratch().join("api");
    let words = ["rustdoc", "--quiet", "--lib", "--package", PACKAGE, "--features", FEATURES];
    let mut command = project.cargo(&words);
    command.args(["--", "-Z", "unstable-options", "--output-format", "json"]);
    command.env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_DIR", &target);
    let status = command.status()?;
    if !status.success() {
        bail!("cargo rustdoc: {status}");
    }
    Ok(target.join("doc").join(PACKAGE).with_extension("json"))
}

/// Returns the lines that only one of the texts has.
fn differences(stated: &str, found: &str) -> Vec<String> {
    let lacks = |text: &str, line: &str| !text.lines().any(|other| other == line);
    let gone = stated.lines().filter(|line| lacks(found, line));
    let new = found.lines().filter(|line| lacks(stated, line));
    let mut all: Vec<_> = gone.map(|line| format!("-{line}")).collect();
    all.extend(new.map(|line| format!("+{line}")));
    if !all.is_empty() {
        all.push(format!("`cargo xtask api --bless` writes {SNAPSHOT}"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::differences;

    #[test]
    fn added_and_removed_items_are_shown() {
        assert_eq!(differences("a\nb\n", "b\na\n"), [""; 0]);
        let shown = differences("a\nb\n", "b\nc\n");
        assert_eq!(shown[..2], ["-a", "+c"]);
        assert!(shown[2].contains("--bless"));
    }
}
