//! Released nodes of the Mooncake Transfer Engine, and stories of the program with them as peers.

use crate::command::{Finished, run as run_command};
use crate::features::Features;
use crate::guest::{Archive, Packages};
use crate::project::Project;
use crate::report::{Outcome, Step};
use crate::stages::{NIGHTLY, judged};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// The stage.
pub(crate) const STAGE: &str = "fleet";
/// Their package on PyPI.
const PACKAGE: &str = "mooncake-transfer-engine-non-cuda";
/// One with all of the protocol, and one before version 2 of the data protocol, the ready message
/// and GIDs in handshakes. The stories name them too.
const RELEASES: [&str; 2] = ["0.3.13.post1", "0.3.10.post2"];
/// Variable with the path of this folder, for the tests.
pub(crate) const FOLDER: &str = "HANDFAST_FLEET";
/// Written last.
const COMPLETE: &str = ".complete";

/// A library that the releases load, and a metadata store.
pub(crate) static PACKAGES: Packages =
    Packages { name: "fleet", packages: &["libibverbs1", "etcd-server"], from: Archive::System };

/// Build dependencies of the feature `etcd`.
pub(crate) const PROTOC: Packages = Packages {
    name: "protoc",
    packages: &["protobuf-compiler", "libprotobuf-dev"],
    from: Archive::System,
};

/// Installs the releases, each into a separate environment below cargo's target folder.
pub(crate) fn installs(project: &Project) -> Vec<Step<'_>> {
    let step = |release: &'static str| {
        Step::new(release, move |deadline| match install(project, release, deadline) {
            Ok(()) => Outcome::Passed(String::new()),
            Err(why) => Outcome::Skipped(why),
        })
    };
    RELEASES.into_iter().map(step).collect()
}

/// The stories, and those of the store in an etcd. Nightly both releases do everything.
pub(crate) fn steps(project: &Project, nightly: bool) -> Vec<Step<'_>> {
    vec![
        Step::new("etcd", move |deadline| {
            let missing = [&PACKAGES, &PROTOC].into_iter().find(|it| !it.is_present(project));
            if let Some(missing) = missing {
                return Outcome::Skipped(format!("not unpacked: {}", missing.packages.join(", ")));
            }
            tests(project, "etcd", &["--test", "stores"], nightly, deadline)
        }),
        Step::new("released-nodes", move |deadline| {
            if let Some(why) = absent(project) {
                return Outcome::Skipped(why);
            }
            tests(
                project,
                "released-nodes",
                &["--test", "program", "mooncake::"],
                nightly,
                deadline,
            )
        }),
    ]
}

/// Reason for skipping the tests with released nodes, if one is missing.
pub(crate) fn absent(project: &Project) -> Option<String> {
    if !PACKAGES.is_present(project) {
        return Some(format!("not unpacked: {}", PACKAGES.packages.join(", ")));
    }
    let absent = RELEASES.iter().find(|release| !is_installed(project, release))?;
    Some(format!("{PACKAGE} {absent} is not installed; stage {STAGE} installs it"))
}

/// Runs tests that may use what is installed, with the store in an etcd where that can be built.
fn tests(
    project: &Project,
    name: &str,
    arguments: &[&str],
    nightly: bool,
    deadline: Instant,
) -> Outcome {
    let mut features = Features::available(project, deadline);
    features.set(FOLDER, project.scratch());
    if nightly {
        features.set(NIGHTLY, "1");
    }
    let log = format!("fleet-{name}");
    unless_skipped(&features.run(project, &log, (&["test"], arguments), deadline))
}

/// With which variables the feature `etcd` is built, where that can be done.
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

/// Outcome of tests; a skipped test makes the step skipped.
pub(crate) fn unless_skipped(done: &Finished) -> Outcome {
    let output = done.output();
    let skipped = output.lines().find(|line| line.starts_with("skipped: "));
    match (judged(done), skipped) {
        (Outcome::Passed(_), Some(why)) => Outcome::Skipped(why.to_owned()),
        (outcome, _) => outcome,
    }
}

fn folder(project: &Project, release: &str) -> PathBuf {
    project.scratch().join(format!("mooncake-{release}"))
}

fn is_installed(project: &Project, release: &str) -> bool {
    folder(project, release).join(COMPLETE).exists()
}

fn install(project: &Project, release: &str, deadline: Instant) -> Result<(), String> {
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
        let log = project.scratch().join(format!("mooncake-{release}-{name}.log"));
        if !run_command(command, log.clone(), deadline).succeeded() {
            let log = log.display();
            return Err(format!("{PACKAGE} {release} cannot be installed; see {log}"));
        }
    }
    fs::write(folder.join(COMPLETE), "").map_err(|error| error.to_string())
}
