//! The patches as commits for editing: one for each, after one with the shipping core.

use super::{CORE, PATCHES, file_name, git_apply, hide_repository, patches, remove, sync};
use crate::project::Project;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first line of each file in a patch.
const FILE: &str = "diff --git ";
/// The commit before the first patch.
const SHIPPING: &str = "The shipping core";

fn folder(project: &Project) -> PathBuf {
    project.target().join("variants-edit")
}

/// Creates the repository.
pub(super) fn edit(project: &Project) -> Result<bool> {
    let folder = folder(project);
    ensure!(
        !folder.exists(),
        "{} exists: save its commits with --save or remove it",
        folder.display()
    );
    let rejected = make(project.root(), &folder)?;
    for name in &rejected {
        anstream::println!("{name} does not apply: its hunks are in files named *.rej");
    }
    anstream::println!(
        "{}\n  has a commit for each patch. Change one with `git commit --fixup COMMIT` and\n  `git rebase -i \
         --autosquash --root`, add one, then `cargo xtask variants --save`.",
        folder.display()
    );
    Ok(rejected.is_empty())
}

/// Creates the repository in `folder`; returns the patches that do not apply.
fn make(root: &Path, folder: &Path) -> Result<Vec<String>> {
    sync(&root.join(CORE).join("src"), &folder.join(CORE).join("src"))?;
    git(folder, &["init", "--quiet"])?;
    commit(folder, SHIPPING)?;
    let mut rejected = Vec::new();
    for patch in patches(&root.join(PATCHES))? {
        let name = file_name(&patch).trim_end_matches(".patch").to_owned();
        let text = fs::read_to_string(&patch).with_context(|| name.clone())?;
        let about = text.split(FILE).next().unwrap_or_default();
        if git_apply(folder, &patch, &["--reject"])?.is_err() {
            rejected.push(name.clone());
        }
        commit(folder, &format!("{name}\n\n{about}"))?;
    }
    Ok(rejected)
}

/// Writes the patches from the repository, and removes it.
pub(super) fn save(project: &Project) -> Result<bool> {
    let folder = folder(project);
    ensure!(folder.exists(), "{} does not exist: make it with --edit", folder.display());
    let saved = texts(&folder)?;
    for patch in patches(&project.root().join(PATCHES))? {
        fs::remove_file(&patch)?;
    }
    for (name, text) in &saved {
        fs::write(project.root().join(PATCHES).join(format!("{name}.patch")), text)?;
    }
    remove(&folder)?;
    anstream::println!("{} patches written to {PATCHES}", saved.len());
    Ok(true)
}

/// Returns the patches of a repository's commits, by name.
fn texts(folder: &Path) -> Result<BTreeMap<String, String>> {
    let status = git(folder, &["status", "--porcelain"])?;
    ensure!(status.is_empty(), "{} has changes that are in no commit", folder.display());
    let files = git(folder, &["ls-files", "*.rej"])?;
    ensure!(files.is_empty(), "hunks are left that do not apply:\n{files}");
    let commits = git(folder, &["rev-list", "--reverse", "HEAD"])?;
    let mut saved = BTreeMap::new();
    let mut last = String::new();
    for commit in commits.lines().skip(1) {
        let message = git(folder, &["show", "--no-patch", "--format=%B", commit])?;
        let (name, about) = message.split_once('\n').unwrap_or((&message, ""));
        let well_named = name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-');
        ensure!(well_named && !name.is_empty(), "'{name}' names no patch: letters, digits and '-'");
        ensure!(*name > *last, "{name} must come before {last}: patches apply in order of names");
        name.clone_into(&mut last);
        let options = ["diff-tree", "-p", "--no-color", "--no-renames", "--no-commit-id", commit];
        let diff = git(folder, &options)?;
        ensure!(!diff.is_empty(), "{name} changes nothing");
        // The index lines name git objects, which are irrelevant to readers.
        let lines = diff.lines().filter(|line| !line.starts_with("index "));
        let diff: String = lines.map(|line| format!("{line}\n")).collect();
        saved.insert(name.to_owned(), format!("{}\n\n{diff}", about.trim()));
    }
    Ok(saved)
}

fn commit(folder: &Path, message: &str) -> Result<()> {
    git(folder, &["add", "--all", "--force"])?;
    let author = ["-c", "user.name=xtask", "-c", "user.email=xtask@localhost"];
    let options = ["commit", "--quiet", "--no-verify", "--no-gpg-sign", "--message", message];
    git(folder, &[&author[..], &options].concat()).map(drop)
}

fn git(folder: &Path, words: &[&str]) -> Result<String> {
    let mut command = Command::new("git");
    hide_repository(&mut command);
    let output = command.current_dir(folder).args(words).output().context("git")?;
    if !output.status.success() {
        bail!("git {}: {}", words[0], String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_that_nobody_edited_are_saved_as_they_were() {
        let project = Project::find().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("edit");
        assert_eq!(make(project.root(), &tree).unwrap(), [""; 0]);
        let saved = texts(&tree).unwrap();
        for patch in patches(&project.root().join(PATCHES)).unwrap() {
            let name = file_name(&patch).trim_end_matches(".patch").to_owned();
            assert_eq!(saved[&name], fs::read_to_string(&patch).unwrap(), "{name}");
        }
    }

    #[test]
    fn rejected_hunks_and_loose_changes_are_not_saved() {
        let project = Project::find().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("edit");
        make(project.root(), &tree).unwrap();
        fs::write(tree.join("core/src/lib.rs.rej"), "hunk").unwrap();
        assert!(texts(&tree).unwrap_err().to_string().contains("in no commit"));
        commit(&tree, "zz-rejected").unwrap();
        assert!(texts(&tree).unwrap_err().to_string().contains("lib.rs.rej"));
    }
}
