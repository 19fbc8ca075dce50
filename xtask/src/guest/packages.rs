//! Debian packages that are unpacked below cargo's target folder where the system lacks them.
//!
//! Nothing is installed, so no root is needed and no package of the system changes: a virtual
//! machine's kernel, another libclang or a program that conflicts with an installed one stay apart.

use crate::command::{Finished, run as run_command};
use crate::project::Project;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Packages that are unpacked into one folder, with what they depend on and the system lacks.
pub(crate) struct Packages {
    /// The folder's name, and part of the name of logs.
    pub(crate) name: &'static str,
    /// Their names; of [`KERNEL`] the package that it stands for is taken, without dependencies.
    pub(crate) packages: &'static [&'static str],
}

/// Depends on the newest kernel of the distribution and is otherwise empty.
pub(crate) const KERNEL: &str = "linux-image-amd64";
/// Written last.
const COMPLETE: &str = ".complete";

impl Packages {
    /// Where they are unpacked, whether they are yet or not.
    pub(crate) fn folder(&self, project: &Project) -> PathBuf {
        project.scratch().join("packages").join(self.name)
    }

    /// Whether they were unpacked before.
    pub(crate) fn is_present(&self, project: &Project) -> bool {
        fs::read_to_string(self.folder(project).join(COMPLETE))
            .is_ok_and(|names| names == self.packages.join(" "))
    }

    /// Downloads and unpacks them, unless that was done before.
    ///
    /// # Errors
    /// Says what to install where this system has no `apt-get` or no such packages.
    pub(crate) fn ensure(&self, project: &Project, deadline: Instant) -> Result<PathBuf> {
        let folder = self.folder(project);
        if self.is_present(project) {
            return Ok(folder);
        }
        if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
            bail!("made for Linux on x86-64 alone; needed would be: {}", self.packages.join(", "));
        }
        let fresh = project.scratch().join(format!("packages-{}-new", self.name));
        if fresh.exists() {
            fs::remove_dir_all(&fresh)?;
        }
        let archives = fresh.join("archives");
        fs::create_dir_all(archives.join("partial"))?;
        let log = |step: &str| project.scratch().join(format!("packages-{}-{step}.log", self.name));
        let wanted = || format!("packages wanted: {}", self.packages.join(", "));
        if let Err(first) = self.download(&archives, &log("download"), deadline) {
            // Lists that were never fetched, or are stale; only root may fetch them.
            let mut update = Command::new("apt-get");
            update.args(["update", "--quiet"]);
            if !run_command(update, log("update"), deadline).succeeded() {
                return Err(first).with_context(wanted);
            }
            self.download(&archives, &log("download"), deadline).with_context(wanted)?;
        }
        for archive in files_of(&archives, ".deb")? {
            let mut unpack = Command::new("dpkg-deb");
            unpack.arg("--extract").arg(&archive).arg(&fresh);
            checked(&run_command(unpack, log("unpack"), deadline), "dpkg-deb --extract")?;
        }
        fs::remove_dir_all(&archives)?;
        fs::write(fresh.join(COMPLETE), self.packages.join(" "))?;
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(folder.parent().context("a folder within the scratch folder")?)?;
        fs::rename(&fresh, &folder)?;
        Ok(folder)
    }

    fn download(&self, archives: &Path, log: &Path, deadline: Instant) -> Result<()> {
        let (kernels, others): (Vec<_>, Vec<_>) =
            self.packages.iter().partition(|name| **name == KERNEL);
        for kernel in kernels {
            let mut download = Command::new("apt-get");
            download.current_dir(archives).args(["download", &newest(kernel)?]);
            checked(&run_command(download, log.to_owned(), deadline), "apt-get download")?;
        }
        if others.is_empty() {
            return Ok(());
        }
        let mut download = Command::new("apt-get");
        download.args(["install", "--download-only", "--yes", "--no-install-recommends"]);
        // The lock guards the system's own packages, which stay as they are.
        download.args(["-o", "Debug::NoLocking=1", "-o"]);
        download.arg(format!("Dir::Cache::archives={}", archives.display()));
        download.args(others);
        checked(&run_command(download, log.to_owned(), deadline), "apt-get install --download-only")
    }
}

/// The package that `name` stands for: its first dependency of the kind.
fn newest(name: &str) -> Result<String> {
    let output = Command::new("apt-cache").args(["depends", name]).output().context("apt-cache")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let depends = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let newest = depends.map(|version| format!("linux-image-{version}")).next();
    newest.with_context(|| format!("apt-cache knows no package {name}"))
}

fn checked(finished: &Finished, what: &str) -> Result<()> {
    if finished.succeeded() {
        return Ok(());
    }
    let output = finished.output();
    let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it cannot be run");
    bail!("{what} failed: {last}")
}

/// The files in `folder` whose names end so, in order.
pub(crate) fn files_of(folder: &Path, suffix: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(suffix) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
