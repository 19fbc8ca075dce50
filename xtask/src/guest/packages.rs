//! Debian packages that are unpacked below cargo's target folder where the system lacks them.
//!
//! Nothing is installed, so no root is needed and no package of the system changes: a virtual
//! machine's kernel, another libclang or a program that conflicts with an installed one stay apart.

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
    /// Package names; of [`KERNEL`] the package that it depends on, without further dependencies.
    pub(crate) packages: &'static [&'static str],
}

/// Depends on the newest kernel of the distribution and is otherwise empty.
pub(crate) const KERNEL: &str = "linux-image-amd64";
/// Written last.
const COMPLETE: &str = ".complete";

impl Packages {
    /// Folder of the unpacked packages, existing or not.
    pub(crate) fn folder(&self, project: &Project) -> PathBuf {
        project.scratch().join("packages").join(self.name)
    }

    /// Reason for skipping a step that needs them.
    pub(crate) fn missing(&self) -> String {
        format!("these packages could not be unpacked: {}", self.packages.join(", "))
    }

    /// They were unpacked before.
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
        let run = |command, step: &str| {
            project.run(command, &format!("packages-{}-{step}", self.name), deadline)
        };
        let wanted = || format!("packages wanted: {}", self.packages.join(", "));
        let download = || {
            let commands = self.downloads(&archives)?;
            commands.into_iter().try_for_each(|command| run(command, "download").map(drop))
        };
        if let Err(first) = download() {
            // Lists that were never fetched, or are stale; only root may fetch those of the system.
            let mut update = Command::new("apt-get");
            update.args(["update", "--quiet"]);
            if run(update, "update").is_err() {
                return Err(first).with_context(wanted);
            }
            download().with_context(wanted)?;
        }
        for archive in files_of(&archives, ".deb")? {
            let mut unpack = Command::new("dpkg-deb");
            unpack.arg("--extract").arg(&archive).arg(&fresh);
            run(unpack, "unpack")?;
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

    /// The commands that download them.
    fn downloads(&self, archives: &Path) -> Result<Vec<Command>> {
        let (kernels, others): (Vec<_>, Vec<_>) =
            self.packages.iter().partition(|name| **name == KERNEL);
        let mut commands = Vec::new();
        for kernel in kernels {
            let mut download = Command::new("apt-get");
            download.current_dir(archives).args(["download", &newest(kernel)?]);
            commands.push(download);
        }
        if !others.is_empty() {
            let mut download = Command::new("apt-get");
            download.args(["install", "--download-only", "--yes", "--no-install-recommends"]);
            // The lock guards the system's own packages, which stay as they are.
            download.args(["-o", "Debug::NoLocking=1", "-o"]);
            download.arg(format!("Dir::Cache::archives={}", archives.display())).args(others);
            commands.push(download);
        }
        Ok(commands)
    }
}

/// The newest package of the kind `name`: its first dependency.
fn newest(name: &str) -> Result<String> {
    let output = Command::new("apt-cache").args(["depends", name]).output();
    let output = output.context("apt-cache")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let depends = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let newest = depends.map(|version| format!("linux-image-{version}")).next();
    newest.with_context(|| format!("apt-cache knows no package {name}"))
}

/// The files in `folder` whose names end so, in order.
pub(super) fn files_of(folder: &Path, suffix: &str) -> Result<Vec<PathBuf>> {
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
