//! Checks of the repository itself that no compiler makes.

pub(crate) mod circles;
pub(crate) mod core_source;
pub(crate) mod graph;
pub(crate) mod links;
pub(crate) mod program;
mod rust_source;
pub(crate) mod texts;

use std::process::Command;

/// What a program prints, or why it cannot be had.
fn output_of(mut command: Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{name}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
    }
}
