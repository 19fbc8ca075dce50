//! Checks of the repository itself that no compiler makes.

pub(crate) mod circles;
pub(crate) mod core_source;
pub(crate) mod graph;
pub(crate) mod links;
pub(crate) mod program;
mod rust_source;
pub(crate) mod texts;
pub(crate) mod words;

use std::fs;
use std::path::Path;
use std::process::Command;

/// The path and content of every text file that git tracks, or the reason that git lists none.
fn tracked_texts(root: &Path) -> Result<Vec<(String, String)>, String> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "-z"]);
    let listing = output_of(git).map_err(|error| format!("git lists no files: {error}"))?;
    let files = listing.split('\0').filter(|file| !file.is_empty());
    // A file that is gone from the disk is about to be gone from the index.
    let text = |file: &str| Some((file.to_owned(), fs::read_to_string(root.join(file)).ok()?));
    Ok(files.filter_map(text).collect())
}

/// A program's output, or the reason for having none.
fn output_of(mut command: Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{name}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
    }
}
