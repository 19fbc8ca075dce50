//! The broken variants of the rules: patches in `sim-tests/variants`, applied to a copy of the core
//! in a separate workspace below `target`. `docs/adr/0006-variants-are-patches.md` gives the
//! reasons. Those of the engine's input and output are in `sim-tests/engine-variants`.

mod built;
mod engine;
mod history;
mod others;
mod planted;

pub(crate) use engine::step as engine;
pub(crate) use planted::step as planted;

use crate::command::cargo;
use crate::project::Project;
use crate::report::Outcome;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Patches, and what they change.
struct Patched {
    /// Folder of the patches.
    patches: &'static str,
    /// The folders of the crates that they change.
    crates: &'static [&'static str],
    /// Folder of the workspace, below `target`.
    folder: &'static str,
}

const VARIANTS: Patched = Patched { patches: PATCHES, crates: &[CORE], folder: "variants" };
const PATCHES: &str = "sim-tests/variants";
const CORE: &str = "core";
/// Lines of context before and after a change that must match; text further away may change.
const CONTEXT: &str = "-C1";
/// Files that the workspace does not link from the original.
const OWN_FILES: [&str; 2] = ["Cargo.toml", "Cargo.lock"];

/// Explore the broken variants of the rules, or edit their patches
///
/// Each variant is the shipping core with one rule broken by a patch in `sim-tests/variants`. All
/// patches are applied together to a copy of the core in `target/variants`. One program is built
/// from it, which explores each variant until an oracle fails, and its world under the shipping
/// rules, in which no oracle may fail.
///
/// Exit code: 0 if every variant was found, 1 if a patch does not apply, otherwise that of the
/// program.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Ids of variants, such as SO-1 [default: all]
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
    /// Check that every patch applies, without building
    #[arg(long, conflicts_with_all = ["ids", "json", "edit", "save", "program"])]
    check: bool,
    /// Play the seeds that find the variants of the engine, in `sim-tests/engine-variants`
    #[arg(long, conflicts_with_all = ["json", "edit", "save", "check", "program"])]
    engine: bool,
    /// Run the other tests of the engine, the transport, the stores and the program with each variant of
    /// the engine, and compare with the table
    #[arg(long, conflicts_with_all = ["json", "edit", "save", "check", "program", "engine"])]
    others: bool,
    /// Create a git repository in `target/variants-edit` with a commit for each patch
    #[arg(long, conflicts_with_all = ["ids", "json", "save", "program"])]
    edit: bool,
    /// Write the patches from the commits of that repository
    #[arg(long, conflicts_with_all = ["ids", "json", "program"])]
    save: bool,
    /// Run the program with the variants with these arguments, such as `sim replay LINE`
    #[arg(last = true, value_name = "ARGUMENT", conflicts_with_all = ["ids", "json"])]
    program: Vec<String>,
}

pub(crate) fn run(project: &Project, arguments: &Arguments) -> Result<bool> {
    if arguments.edit {
        return history::edit(project);
    }
    if arguments.save {
        return history::save(project);
    }
    if arguments.check {
        anstream::println!("{}", check(project)?);
        return Ok(true);
    }
    if arguments.others {
        anstream::println!("{}", others::others(project, &arguments.ids)?);
        return Ok(true);
    }
    if arguments.engine {
        anstream::println!("{}", engine::find(project, &arguments.ids, None)?);
        return Ok(true);
    }
    let mut program = cargo_run(project)?;
    if arguments.program.is_empty() {
        program.args(["sim", "variants"]).args(&arguments.ids);
        program.args(arguments.json.then_some("--json"));
    } else {
        program.args(&arguments.program);
    }
    Ok(program.status().context("cargo")?.success())
}

/// Returns the command that builds the program with the variants and runs it, without its
/// arguments.
fn cargo_run(project: &Project) -> Result<Command> {
    let workspace = workspace(project, &VARIANTS)?;
    let words = ["run", "--quiet", "--package", "handfast-cli", "--bin", "handfast"];
    let mut program = cargo(&workspace, words);
    // Its name is that of the shipping program, which it must not replace.
    program.env("CARGO_TARGET_DIR", workspace.join("target"));
    program.args(["--features", "variants", "--"]);
    Ok(program)
}

/// Checks that the program with the variants finds one by `sim variants`.
pub(crate) fn program(project: &Project, deadline: Instant) -> Outcome {
    let mut command = cargo_run(project)?;
    command.args(["sim", "variants", "SO-1", "BATCH-1"]);
    project.run(command, "variants-program", deadline)?;
    Ok("the program finds variants".to_owned())
}

/// Lints the code that only a build with the variants has.
pub(crate) fn lints(project: &Project, deadline: Instant) -> Outcome {
    let packages = ["-p", "handfast-sim", "-p", "sim-tests", "-p", "handfast-cli"];
    let options = ["--all-targets", "--features", "variants", "--", "-D", "warnings"];
    let words = [&["clippy"][..], &packages, &options].concat();
    project.run(cargo_with_variants(project, &words)?, "variants-lints", deadline)?;
    Ok(String::new())
}

/// Checks that every patch applies.
pub(crate) fn check(project: &Project) -> Outcome {
    engine::table(project)?;
    let (core, engine) = (apply(project, &VARIANTS)?, apply(project, &engine::VARIANTS)?);
    Ok(format!("{core} patches of variants and {engine} of the engine's apply"))
}

/// Runs cargo on the core with the variants, with the target folder of the original workspace, so
/// that other dependencies are not built twice.
pub(crate) fn cargo_with_variants(project: &Project, words: &[&str]) -> Result<Command> {
    cargo_with(project, &VARIANTS, words)
}

fn cargo_with(project: &Project, patched: &Patched, words: &[&str]) -> Result<Command> {
    let mut command = cargo(&workspace(project, patched)?, words.iter().copied());
    command.env("CARGO_TARGET_DIR", project.target()).env("CARGO_INCREMENTAL", "0");
    Ok(command)
}

/// Updates the workspace with the variants: links to everything but the changed crates, and a copy
/// of these with every patch applied. Unchanged files keep their times.
fn workspace(project: &Project, patched: &Patched) -> Result<PathBuf> {
    apply(project, patched)?;
    let (root, folder) = (project.root(), folder(project, patched));
    for file in OWN_FILES {
        copy_if_changed(&root.join(file), &folder.join(file))?;
    }
    for entry in fs::read_dir(root)? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        let is_changed = patched.crates.contains(&&*text);
        let own = OWN_FILES.contains(&&*text) || is_changed || text == "target";
        if own || text.starts_with('.') {
            continue;
        }
        match symlink(root.join(&name), folder.join(&name)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("a link to {text}"));
            }
            _ => {}
        }
    }
    for name in patched.crates {
        let applied = folder.join("applied").join(name);
        set_version(&applied.join("Cargo.toml"))?;
        sync(&applied, &folder.join(name))?;
    }
    Ok(folder)
}

/// Gives a copy another version. Otherwise cargo names the files of both crates alike, and a test of
/// the shipping one could link the copy.
fn set_version(manifest: &Path) -> Result<()> {
    let text = fs::read_to_string(manifest).with_context(|| manifest.display().to_string())?;
    let inherited = "version.workspace = true";
    ensure!(text.contains(inherited), "{}: no `{inherited}`", manifest.display());
    let version = concat!("version = \"", env!("CARGO_PKG_VERSION"), "+variants\"");
    fs::write(manifest, text.replacen(inherited, version, 1))?;
    Ok(())
}

fn folder(project: &Project, patched: &Patched) -> PathBuf {
    project.target().join(patched.folder)
}

/// Applies every patch to a fresh copy of the crates that they change, and returns their number.
fn apply(project: &Project, patched: &Patched) -> Result<usize> {
    let fresh = folder(project, patched).join("applied");
    remove(&fresh)?;
    for name in patched.crates {
        sync(&project.root().join(name), &fresh.join(name))?;
    }
    let patches = patches(&project.root().join(patched.patches))?;
    for patch in &patches {
        let applied = git_apply(&fresh, patch, &[])?;
        if let Err(why) = applied {
            bail!(
                "{}/{}: {why}\n`cargo xtask variants --edit` shows where, and `--save` writes \
                 the patch that you made of it, for those of the core",
                patched.patches,
                file_name(patch)
            );
        }
    }
    Ok(patches.len())
}

/// Returns the patches of a folder in the order of application, which is that of their names.
fn patches(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut patches = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "patch") {
            patches.push(path);
        }
    }
    patches.sort();
    ensure!(!patches.is_empty(), "{} has no patches", folder.display());
    Ok(patches)
}

/// Applies a patch in a folder; the error is that of git, with file and line of the hunk.
fn git_apply(folder: &Path, patch: &Path, options: &[&str]) -> Result<Result<(), String>> {
    let mut git = Command::new("git");
    git.current_dir(folder).args(["apply", CONTEXT]).args(options).arg(patch);
    // In a repository git would ignore files that are not in its index.
    hide_repository(&mut git);
    git.env("GIT_CEILING_DIRECTORIES", folder.parent().unwrap_or(folder));
    let output = git.output().context("git, which applies the patches of the variants")?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok(if output.status.success() { Ok(()) } else { Err(said) })
}

/// Removes the variables that git sets for its hooks.
fn hide_repository(git: &mut Command) {
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(name);
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Makes `to` equal to `from`, without touching equal files.
fn sync(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    let mut kept = BTreeSet::new();
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            sync(&source, &target)?;
        } else {
            copy_if_changed(&source, &target)?;
        }
        kept.insert(entry.file_name());
    }
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if !kept.contains(&entry.file_name()) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn copy_if_changed(from: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(from).with_context(|| from.display().to_string())?;
    if !fs::read(to).is_ok_and(|kept| kept == bytes) {
        fs::write(to, bytes).with_context(|| to.display().to_string())?;
    }
    Ok(())
}

/// Removes a file or a folder, which may be absent.
fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "A variant\n\ndiff --git a/core/a.rs b/core/a.rs\n--- a/core/a.rs\n\
        +++ b/core/a.rs\n@@ -1,3 +1,4 @@\n one\n+broken\n two\n three\n";

    /// A folder with a core of one file, and a patch next to it.
    fn folder(text: &str) -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir_all(tree.join(CORE)).unwrap();
        fs::write(tree.join("core/a.rs"), text).unwrap();
        let patch = folder.path().join("A.patch");
        fs::write(&patch, PATCH).unwrap();
        (folder, tree, patch)
    }

    #[test]
    fn patch_applies_at_moved_lines() {
        let (_folder, tree, patch) = folder("new\nnew\none\ntwo\nthree\n");
        git_apply(&tree, &patch, &[]).unwrap().unwrap();
        let text = fs::read_to_string(tree.join("core/a.rs")).unwrap();
        assert_eq!(text, "new\nnew\none\nbroken\ntwo\nthree\n");
    }

    #[test]
    fn patch_of_changed_lines_fails_with_file_and_hunk() {
        let (_folder, tree, patch) = folder("one\nchanged\nthree\n");
        let said = git_apply(&tree, &patch, &[]).unwrap().unwrap_err();
        assert!(said.contains("core/a.rs:1"), "{said}");
    }

    #[test]
    fn sync_leaves_equal_files_and_removes_others() {
        let (_folder, tree, _) = folder("one\n");
        let copy = tree.join("copy");
        sync(&tree.join(CORE), &copy).unwrap();
        let time = || fs::metadata(copy.join("a.rs")).unwrap().modified().unwrap();
        let before = time();
        fs::write(copy.join("b.rs"), "gone").unwrap();
        sync(&tree.join(CORE), &copy).unwrap();
        assert_eq!(time(), before);
        assert!(!copy.join("b.rs").exists());
    }
}
