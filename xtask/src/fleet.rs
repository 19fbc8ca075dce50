//! Released nodes of the Mooncake Transfer Engine, and tests of the program with them as peers.

use crate::features::Features;
use crate::guest::Packages;
use crate::project::Project;
use crate::report::{Outcome, Step, as_skipped, skipped};
use crate::stages::{NIGHTLY, binary, judged};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The stage.
pub(crate) const STAGE: &str = "fleet";
/// Their package on PyPI.
const PACKAGE: &str = "mooncake-transfer-engine-non-cuda";
/// One with the whole protocol, and one before version 2 of the data protocol, the ready message
/// and GIDs in handshakes. The tests name them too.
const RELEASES: [&str; 2] = ["0.3.13.post1", "0.3.10.post2"];
/// Variable with the path of this folder, for the tests.
pub(crate) const FOLDER: &str = "HANDFAST_FLEET";
/// Marker file, written last.
const COMPLETE: &str = ".complete";

/// A library that the releases load, and metadata stores.
pub(crate) static PACKAGES: Packages =
    Packages::of_system("fleet", &["libibverbs1", "etcd-server", "redis-server"]);

/// Programs of the distribution that run on scripted devices.
pub(crate) static PERFTEST: Packages =
    Packages::of_system("perftest", &["perftest", "rdmacm-utils"]);

/// Build dependencies of the feature `etcd`.
pub(crate) const PROTOC: Packages =
    Packages::of_system("protoc", &["protobuf-compiler", "libprotobuf-dev"]);

/// Installs the releases, each into a separate environment below cargo's target folder.
pub(crate) fn installs(project: &Project) -> impl Iterator<Item = Step<'_>> {
    RELEASES.into_iter().map(move |release| {
        Step::new(release, move |deadline| {
            install(project, release, deadline).map_err(as_skipped)?;
            Ok(String::new())
        })
    })
}

/// The tests, and those of the stores in an etcd and in a Redis. Nightly, all of them run with both releases.
pub(crate) fn steps(project: &Project, nightly: bool) -> Vec<Step<'_>> {
    let tests = move |step: &str, name: &str, arguments: &[&str], deadline| {
        let mut features = Features::available(project, deadline);
        features.set(FOLDER, project.scratch());
        if nightly {
            features.set(NIGHTLY, "1");
        }
        let log = format!("fleet-{step}");
        let binary = binary(project, &features, (name, &log), deadline)?;
        let mut command = binary.command(&binary.program, &features);
        command.args(arguments);
        unless_skipped(&project.run(command, &log, deadline)?)
    };
    vec![
        Step::new("stores", move |deadline| {
            let missing = [&PACKAGES, &PROTOC].into_iter().find(|it| !it.is_present(project));
            match missing {
                Some(missing) => Err(skipped(missing.missing())),
                None => tests("stores", "metadata/stores", &[], deadline),
            }
        }),
        Step::new("bindings", move |deadline| match PACKAGES.is_present(project) {
            true => tests("bindings", "bindings/compat/stories", &["redis"], deadline),
            false => Err(skipped(PACKAGES.missing())),
        }),
        Step::new("released-nodes", move |deadline| {
            check(project)?;
            tests("released-nodes", "cli/program", &["mooncake::"], deadline)
        }),
        Step::new("programs", move |deadline| {
            check(project)?;
            if !PERFTEST.is_present(project) {
                return Err(skipped(PERFTEST.missing()));
            }
            tests("programs", "cli/program", &["programs::"], deadline)
        }),
    ]
}

/// Checks the requirements of the tests with released nodes; an error skips them.
pub(crate) fn check(project: &Project) -> Result<()> {
    if !PACKAGES.is_present(project) {
        return Err(skipped(PACKAGES.missing()));
    }
    let absent = RELEASES.iter().find(|release| !is_installed(project, release));
    absent.map_or(Ok(()), |absent| {
        let cure = format!("stage {STAGE} installs it");
        Err(skipped(format!("{PACKAGE} {absent} is not installed; {cure}")))
    })
}

/// A released node's interpreter, and the libraries that it needs.
pub(crate) struct Released {
    pub(crate) interpreter: PathBuf,
    /// Folders, separated by colons.
    pub(crate) libraries: String,
}

/// Returns the newest release; an error skips the tests with it.
pub(crate) fn python(project: &Project) -> Result<Released> {
    check(project)?;
    let interpreter = folder(project, RELEASES[0]).join("bin/python");
    Ok(Released { interpreter, libraries: libraries(&PACKAGES.folder(project)) })
}

/// Returns the folders of the libraries of unpacked packages, separated by colons.
pub(crate) fn libraries(unpacked: &Path) -> String {
    let libraries = ["usr/lib", "lib"].map(|lib| unpacked.join(lib).join("x86_64-linux-gnu"));
    libraries.map(|folder| folder.display().to_string()).join(":")
}

/// Returns the variables for building the feature `etcd`, if that is possible.
pub(crate) fn etcd_build(project: &Project) -> Option<[(&'static str, PathBuf); 3]> {
    PROTOC.is_present(project).then(|| {
        let unpacked = PROTOC.folder(project).join("usr");
        [
            ("PROTOC", unpacked.join("bin/protoc")),
            ("PROTOC_INCLUDE", unpacked.join("include")),
            ("LD_LIBRARY_PATH", unpacked.join("lib/x86_64-linux-gnu")),
        ]
    })
}

/// Returns the note of a test run; a skipped test makes the step skipped.
pub(crate) fn unless_skipped(output: &str) -> Outcome {
    let note = judged(output)?;
    // It may follow the name of a test that has not ended.
    match output.lines().find_map(|line| line.find("skipped: ").map(|at| &line[at..])) {
        Some(why) => Err(skipped(why)),
        None => Ok(note),
    }
}

fn folder(project: &Project, release: &str) -> PathBuf {
    project.scratch().join(format!("mooncake-{release}"))
}

fn is_installed(project: &Project, release: &str) -> bool {
    folder(project, release).join(COMPLETE).exists()
}

fn install(project: &Project, release: &str, deadline: Instant) -> Result<()> {
    if is_installed(project, release) {
        return Ok(());
    }
    let folder = folder(project, release);
    let mut environment = Command::new("python3");
    environment.args(["-m", "venv", "--clear"]).arg(&folder);
    let mut package = Command::new(folder.join("bin/python"));
    package.args(["-m", "pip", "install", "--no-input", "--disable-pip-version-check"]);
    package.arg("--no-cache-dir").arg(format!("{PACKAGE}=={release}"));
    for (name, command) in [("environment", environment), ("package", package)] {
        let log = format!("mooncake-{release}-{name}");
        project.run(command, &log, deadline).with_context(|| format!("{PACKAGE} {release}"))?;
    }
    Ok(fs::write(folder.join(COMPLETE), "")?)
}
