//! The Python package and those of other engines, measured in turns with handfast.

use crate::fleet;
use crate::guest::Packages;
use crate::project::Project;
use crate::python;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The packages; their dependencies on frameworks of tensors are not needed.
const PACKAGES: [&str; 4] = ["numpy", "nixl", "nixl-cu12", "mooncake-transfer-engine-non-cuda"];
/// The calls of `docs/bench/calls.py` from Rust.
const CALLS: [&str; 7] =
    ["build", "--quiet", "--release", "-p", "handfast-compat", "--example", "calls"];
/// Libraries that Mooncake's package loads.
static LIBRARIES: Packages = Packages::of_system("engines", &["libibverbs1", "librdmacm1"]);
/// Time limits of building the Python package, of the installation of another one, and of a measurement.
const BUILD_MAX: Duration = Duration::from_secs(1800);
const INSTALL_MAX: Duration = Duration::from_secs(300);
const MEASURE_MAX: Duration = Duration::from_secs(600);

/// Measures all engines that can be installed, and the calls of the Python package and of Rust, and
/// returns the lines of the results.
pub(super) fn measure(project: &Project, program: &Path, quick: bool) -> Result<Vec<String>> {
    let folder = project.scratch().join("engines");
    let python = folder.join("bin/python");
    if !python.exists() {
        let mut create = Command::new("python3");
        create.args(["-m", "venv"]).arg(&folder);
        if let Err(error) = project.run(create, "bench-engines", Instant::now() + INSTALL_MAX) {
            let reason = format!("python3 -m venv: {error:#}");
            return Ok(vec![left_out(&[("all", reason)]).to_string()]);
        }
    }
    let mut missing = Vec::new();
    for package in PACKAGES {
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "install", "--quiet", "--no-deps", package]);
        let installed = project.run(install, "bench-engines", Instant::now() + INSTALL_MAX);
        missing.extend(installed.err().map(|error| (package, format!("pip install: {error:#}"))));
    }
    python::install_optimized(project, &folder, Instant::now() + BUILD_MAX)?;
    let built = project.cargo(&CALLS).status().context("cargo build")?;
    ensure!(built.success(), "the example calls does not build: {built}");
    let libraries = LIBRARIES.ensure(project, Instant::now() + INSTALL_MAX);
    let mut compare = Command::new(&python);
    match libraries {
        Ok(unpacked) => drop(compare.env("LD_LIBRARY_PATH", fleet::libraries(&unpacked))),
        Err(error) => missing.push((LIBRARIES.name, format!("{error:#}"))),
    }
    compare.arg(project.root().join("docs/bench/compare.py")).arg(program);
    compare.args([if quick { "1" } else { "7" }, "--json"]);
    let output = project.run(compare, "bench-engines", Instant::now() + MEASURE_MAX)?;
    let line = output.lines().find(|line| line.starts_with("{\"engines\""));
    let mut result: Value = serde_json::from_str(line.context("compare.py printed no result")?)?;
    if let Value::Array(left_out) = &mut result["engines"]["left_out"] {
        left_out.extend(missing.iter().map(|(package, reason)| entry(package, reason)));
    }
    let mut calls = Command::new(&python);
    calls.arg(project.root().join("docs/bench/calls.py"));
    calls.arg(project.target().join("release/examples/calls"));
    calls.args([if quick { "1" } else { "9" }, "--json"]);
    let output = project.run(calls, "bench-calls", Instant::now() + MEASURE_MAX)?;
    let line = output.lines().find(|line| line.starts_with("{\"python\""));
    let calls = line.context("calls.py printed no result")?.to_owned();
    Ok(vec![result.to_string(), calls])
}

fn left_out(missing: &[(&str, String)]) -> Value {
    let missing: Vec<_> = missing.iter().map(|(name, reason)| entry(name, reason)).collect();
    json!({ "engines": { "rounds": 0, "rows": [], "left_out": missing } })
}

/// One entry of the engines left out; of the reason its first line, since the page is a page.
fn entry(name: &str, reason: &str) -> Value {
    json!({ "engine": name, "reason": reason.lines().next().unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine that cannot be installed is reported with one line.
    #[test]
    fn engine_left_out_has_its_reason() {
        let result = left_out(&[("all", "no python3\nsecond line".to_owned())]);
        assert_eq!(result["engines"]["left_out"][0]["reason"], "no python3");
        assert_eq!(result["engines"]["rows"], json!([]));
    }
}
