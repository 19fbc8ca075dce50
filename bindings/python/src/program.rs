//! Commands of the program `handfast`.

use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs `doctor`, `explain` or `top`, and returns the exit code.
#[pyfunction]
pub(crate) fn run_tool(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| handfast_cli::run_tool(arguments))
}
