//! The Python package and those of other engines, measured in turns with handfast.

use crate::fleet;
use crate::guest::Packages;
use crate::project::Project;
use crate::python;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
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

/// An environment with the packages.
pub(super) struct Environment {
    python: PathBuf,
    /// Folders of Mooncake's libraries.
    libraries: Option<String>,
    /// Missing packages, with the reason.
    missing: Vec<(&'static str, String)>,
}

/// Installs all engines that can be installed, and builds the calls from Rust.
pub(super) fn install(project: &Project) -> Result<Environment> {
    let folder = project.scratch().join("engines");
    let python = folder.join("bin/python");
    if !python.exists() {
        let mut create = Command::new("python3");
        create.args(["-m", "venv"]).arg(&folder);
        project.run(create, "bench-engines", Instant::now() + INSTALL_MAX)?;
    }
    let mut missing = Vec::new();
    for package in PACKAGES {
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "install", "--quiet", "--no-deps", package]);
        let installed = project.run(install, "bench-engines", Instant::now() + INSTALL_MAX);
        missing.extend(installed.err().map(|error| (package, format!("pip install: {error:#}"))));
    }
    println!("building the Python package");
    python::install_optimized(project, &folder, Instant::now() + BUILD_MAX)?;
    let built = project.cargo(&CALLS).status().context("cargo build")?;
    ensure!(built.success(), "the example calls does not build: {built}");
    let unpacked = LIBRARIES.ensure(project, Instant::now() + INSTALL_MAX);
    let libraries = unpacked.map(|unpacked| fleet::libraries(&unpacked));
    let libraries =
        libraries.map_err(|error| missing.push((LIBRARIES.name, format!("{error:#}")))).ok();
    Ok(Environment { python, libraries, missing })
}

impl Environment {
    /// Measures the engines, and calls of the Python package and of Rust. Returns the lines of the
    /// results.
    pub(super) fn measure(
        &self,
        project: &Project,
        program: &Path,
        quick: bool,
    ) -> Result<[String; 2]> {
        let rounds = |whole| if quick { "1" } else { whole };
        let mut compare = Command::new(&self.python);
        compare.envs(self.libraries.iter().map(|folders| ("LD_LIBRARY_PATH", folders)));
        compare.arg(project.root().join("docs/bench/compare.py")).arg(program);
        compare.args([rounds("7"), "--json"]);
        let output = project.run(compare, "bench-engines", Instant::now() + MEASURE_MAX)?;
        let line = output.lines().find(|line| line.starts_with("{\"engines\""));
        let line = line.context("compare.py printed no result")?;
        let engines = with_missing(line, &self.missing)?;
        let mut calls = Command::new(&self.python);
        calls.arg(project.root().join("docs/bench/calls.py"));
        calls.arg(project.target().join("release/examples/calls"));
        calls.args([rounds("9"), "--json"]);
        let output = project.run(calls, "bench-calls", Instant::now() + MEASURE_MAX)?;
        let line = output.lines().find(|line| line.starts_with("{\"python\""));
        Ok([engines, line.context("calls.py printed no result")?.to_owned()])
    }
}

/// Adds what was not installed to the engines that a result leaves out; of the reason its first line,
/// since the page is a page.
fn with_missing(result: &str, missing: &[(&str, String)]) -> Result<String> {
    let mut result: Value = serde_json::from_str(result)?;
    let left_out = result["engines"]["left_out"].as_array_mut().context("no engines left out")?;
    left_out.extend(missing.iter().map(|(name, reason)| {
        json!({ "engine": name, "reason": reason.lines().next().unwrap_or_default() })
    }));
    Ok(result.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A package that cannot be installed is reported with one line.
    #[test]
    fn engine_left_out_has_its_reason() {
        let result = r#"{"engines":{"rows":[],"left_out":[]}}"#;
        let missing = [("nixl", "no network\nsecond line".to_owned())];
        let expected =
            r#"{"engines":{"left_out":[{"engine":"nixl","reason":"no network"}],"rows":[]}}"#;
        assert_eq!(with_missing(result, &missing).unwrap(), expected);
        assert!(with_missing("{}", &missing).is_err());
    }
}
