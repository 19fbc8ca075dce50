//! `cargo xtask api`: the public surface of the library as one item per line.
//!
//! rustdoc writes the crate as JSON, and every public item becomes a line of docs/api/handfast.txt. A
//! change of the surface is a change of that file.

use crate::command::cargo;
use crate::project::Project;
use crate::report::Outcome;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

const PACKAGE: &str = "handfast";
const FEATURES: &str = "diagnosis,metadata,metrics-http";
const SNAPSHOT: &str = "docs/api/handfast.txt";
/// Version of rustdoc's JSON, that of Rust 1.95, which the crate public-api reads.
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
    let surface = match surface(project)? {
        Ok(surface) => surface,
        Err(format) => bail!("{}", other_format(format)),
    };
    let file = project.root().join(SNAPSHOT);
    if arguments.bless {
        fs::create_dir_all(file.parent().context("a folder holds the file")?)?;
        fs::write(&file, &surface)?;
        println!("{SNAPSHOT}: {} items", surface.lines().count());
        return Ok(true);
    }
    let findings = differences(&read(&file), &surface);
    findings.iter().for_each(|finding| println!("{finding}"));
    Ok(findings.is_empty())
}

/// The surface is the one that the repository states.
pub(crate) fn check(project: &Project) -> Outcome {
    match surface(project) {
        Ok(Err(format)) => Outcome::Skipped(other_format(format)),
        Ok(Ok(surface)) => {
            let stated = read(&project.root().join(SNAPSHOT));
            let note = format!("{} public items", surface.lines().count());
            Outcome::of_findings(&differences(&stated, &surface), note)
        }
        Err(error) => Outcome::failed("no list of public items", format!("{error:#}")),
    }
}

fn read(file: &Path) -> String {
    // A file that is missing states no item.
    fs::read_to_string(file).unwrap_or_default()
}

fn other_format(version: u64) -> String {
    format!("this rustdoc writes version {version} of its JSON; Rust 1.95 writes {FORMAT_VERSION}")
}

/// The public items, or the version of a JSON form that is not read.
fn surface(project: &Project) -> Result<Result<String, u64>> {
    let json = document(project)?;
    let document: serde_json::Value = serde_json::from_slice(&fs::read(&json)?)?;
    let version = document["format_version"].as_u64().context("a document has a version")?;
    if version != FORMAT_VERSION {
        return Ok(Err(version));
    }
    let api = public_api::Builder::from_rustdoc_json(&json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .with_context(|| json.display().to_string())?;
    Ok(Ok(api.items().map(|item| format!("{item}\n")).collect()))
}

/// Has rustdoc write its JSON form, in a target folder of its own so that the unstable option
/// rebuilds nothing else.
fn document(project: &Project) -> Result<PathBuf> {
    let target = project.scratch().join("api");
    let words = ["rustdoc", "--quiet", "--lib", "--package", PACKAGE, "--features", FEATURES];
    let rustdoc = ["--", "-Z", "unstable-options", "--output-format", "json"];
    let mut command = cargo(project.root(), words.into_iter().chain(rustdoc));
    command.env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_DIR", &target);
    let status = command.status()?;
    if !status.success() {
        bail!("cargo rustdoc: {status}");
    }
    Ok(target.join("doc").join(PACKAGE).with_extension("json"))
}

/// Lines that one text has and the other has not.
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
