//! Checks of the repository that no compiler makes.

pub(crate) mod circles;
pub(crate) mod graph;
pub(crate) mod inventory;
pub(crate) mod links;
pub(crate) mod program;
pub(crate) mod texts;

use anyhow::{Context, Result, bail};
use std::process::Command;

/// Returns a program's output, or the reason why there is none. The accepted exit codes are
/// `codes`.
fn output_of(mut command: Command, codes: &[i32]) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| name.clone())?;
    if !output.status.code().is_some_and(|code| codes.contains(&code)) {
        bail!("{name}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
