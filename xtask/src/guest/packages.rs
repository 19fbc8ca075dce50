//! Debian packages that are unpacked below cargo's target folder if the system lacks them.
//!
//! Nothing is installed, so root is not required and no package of the system changes: a virtual
//! machine's kernel, another libclang or a program that conflicts with an installed one stay
//! separate.

use crate::project::Project;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Packages that are unpacked into one folder, with the dependencies that the system lacks.
pub(crate) struct Packages {
    /// The folder's name, and part of the name of logs.
    pub(crate) name: &'static str,
    /// Package names; for [`KERNEL`] the package that it depends on, without further dependencies.
    pub(crate) packages: &'static [&'static str],
    /// Source of the packages.
    pub(crate) from: Archive,
}

/// Sources of packages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Archive {
    /// The system's source of packages.
    System,
    /// The backports of the system's release, from the same server.
    Backports,
}

/// A package that depends on the newest kernel of the distribution and is otherwise empty.
pub(crate) const KERNEL: &str = "linux-image-amd64";
/// Marker file, written last.
const COMPLETE: &str = ".complete";

impl Packages {
    pub(crate) const fn of_system(name: &'static str, packages: &'static [&'static str]) -> Self {
        Self { name, packages, from: Archive::System }
    }

    /// Folder of the unpacked packages, existing or not.
    pub(crate) fn folder(&self, project: &Project) -> PathBuf {
        project.scratch().join("packages").join(self.name)
    }

    /// Returns the reason for skipping a step that needs them.
    pub(crate) fn missing(&self) -> String {
        format!("these packages could not be unpacked: {}", self.packages.join(", "))
    }

    /// Whether they were unpacked before.
    pub(crate) fn is_present(&self, project: &Project) -> bool {
        fs::read_to_string(self.folder(project).join(COMPLETE))
            .is_ok_and(|names| names == self.packages.join(" "))
    }

    /// Downloads and unpacks them, unless they are present.
    ///
    /// # Errors
    /// Names the packages to install if this system has no `apt-get` or no such packages.
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
        let apt = Apt::of(self.from, &fresh.join("lists")).with_context(wanted)?;
        let download = || {
            let commands = self.downloads(&apt, &archives)?;
            commands.into_iter().try_for_each(|command| run(command, "download").map(drop))
        };
        if let Err(first) = download() {
            // The lists were never fetched, or are stale; only root may fetch those of the system.
            let update = apt.command("apt-get", &["update", "--quiet"]);
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
        if self.from == Archive::Backports {
            fs::remove_dir_all(fresh.join("lists"))?;
        }
        fs::write(fresh.join(COMPLETE), self.packages.join(" "))?;
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(folder.parent().context("a folder within the scratch folder")?)?;
        fs::rename(&fresh, &folder)?;
        Ok(folder)
    }

    /// Returns the commands that download them.
    fn downloads(&self, apt: &Apt, archives: &Path) -> Result<Vec<Command>> {
        let (kernels, others): (Vec<_>, Vec<_>) =
            self.packages.iter().partition(|name| **name == KERNEL);
        let mut commands = Vec::new();
        for kernel in kernels {
            let mut download = apt.command("apt-get", &["download", &newest(apt, kernel)?]);
            download.current_dir(archives);
            commands.push(download);
        }
        if !others.is_empty() {
            let options = ["install", "--download-only", "--yes", "--no-install-recommends"];
            let mut download = apt.command("apt-get", &options);
            // The lock guards the system's own packages, which are not changed.
            download.args(["-o", "Debug::NoLocking=1", "-o"]);
            download.arg(format!("Dir::Cache::archives={}", archives.display())).args(others);
            commands.push(download);
        }
        Ok(commands)
    }
}

/// Configuration of the package tools.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// Returns the configuration for a source. Lists of another source than the system's are kept
    /// in `lists`.
    fn of(archive: Archive, lists: &Path) -> Result<Self> {
        let Archive::Backports = archive else { return Ok(Self { options: Vec::new() }) };
        let release = fs::read_to_string("/etc/os-release").context("reading /etc/os-release")?;
        let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
        let codename = codename.context("the release has no code name")?;
        let targets =
            ["indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages"];
        let output = Command::new("apt-get").args(targets).output().context("apt-get")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let place = place_of(&text, codename)
            .with_context(|| format!("apt-get names no place for the release {codename}"))?;
        fs::create_dir_all(lists.join("partial"))?;
        // Not in the folder of lists, which is cleaned.
        let sources = lists.with_extension("list");
        fs::write(&sources, format!("deb {place} {codename}-backports main\n"))?;
        let options = vec![
            format!("Dir::Etc::sourcelist={}", sources.display()),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            format!("Dir::State::lists={}", lists.display()),
            "Dir::Cache::pkgcache=".to_owned(),
            "Dir::Cache::srcpkgcache=".to_owned(),
            "Debug::NoLocking=1".to_owned(),
            // The folder is not accessible to the default user for downloads.
            "APT::Sandbox::User=".to_owned(),
        ];
        Ok(Self { options })
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(self.options.iter().flat_map(|option| ["-o", option])).args(arguments);
        command
    }
}

/// Returns the address of the release, from lines of `ADDRESS CODENAME`.
fn place_of<'a>(targets: &'a str, codename: &str) -> Option<&'a str> {
    let pairs = targets.lines().filter_map(|line| line.split_once(' '));
    pairs.filter(|(_, name)| *name == codename).map(|(place, _)| place).next()
}

/// Returns the newest package of the kind `name`: its first dependency.
fn newest(apt: &Apt, name: &str) -> Result<String> {
    let output = apt.command("apt-cache", &["depends", name]).output().context("apt-cache")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let depends = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let newest = depends.map(|version| format!("linux-image-{version}")).next();
    newest.with_context(|| format!("apt-cache knows no package {name}"))
}

/// Returns the files in `folder` with the suffix, sorted.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_of_release_is_not_that_of_its_updates() {
        let targets = "http://one/security release-security\nhttp://two release-updates\n\
                       http://two release\nhttp://three release\n";
        assert_eq!(place_of(targets, "release"), Some("http://two"));
        assert_eq!(place_of(targets, "other"), None);
        assert_eq!(place_of("", "release"), None);
    }
}
