//! Soft-iWARP, which the distribution's kernel lacks: built as a module from the distribution's own
//! sources of that kernel. The repository contains no part of it.

use super::packages::Packages;
use crate::command;
use crate::project::Project;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Programs that build a module, and their package.
const PROGRAMS: [(&str, &str); 2] = [("gcc", "gcc"), ("make", "make")];
/// Folder of the driver in the sources.
const DRIVER: &str = "drivers/infiniband/sw/siw";

/// Returns the packages of a kernel's headers, with the programs of their own that build modules, and of the
/// distribution's sources. The names are those of the release that is unpacked: the distribution may have a newer one.
pub(super) fn sources(release: &str) -> Packages {
    let headers: &'static str = format!("linux-headers-{release}").leak();
    Packages::of_system("kernel-sources", vec![headers, "linux-source"].leak())
}

/// Checks the programs that build a module.
///
/// # Errors
/// The missing one.
pub(super) fn check_programs() -> Result<()> {
    for (program, package) in PROGRAMS {
        let is_there = command::answers(Command::new(program).arg("--version"));
        ensure!(
            is_there,
            "{program}, which builds soft-iWARP, is missing; the package {package} has it"
        );
    }
    Ok(())
}

/// Returns the module for a kernel, if it was built before.
pub(super) fn kept(project: &Project, release: &str) -> Option<PathBuf> {
    let module = folder(project, release).join("siw.ko");
    module.is_file().then_some(module)
}

/// Returns the module for a kernel, built if necessary, which takes a minute at most.
///
/// # Errors
/// The missing or failed part, first of all a system compiler.
pub(super) fn ensure(project: &Project, release: &str, deadline: Instant) -> Result<PathBuf> {
    if let Some(module) = kept(project, release) {
        return Ok(module);
    }
    let sources = sources(release).ensure(project, deadline)?.join("usr/src");
    let headers = sources.join(format!("linux-headers-{release}"));
    ensure!(headers.is_dir(), "the package of the headers has no folder {}", headers.display());
    let work = project.scratch().join("siw-new");
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    fs::create_dir_all(&work)?;
    let driver = unpack_driver(&sources, &work, deadline)?;
    point_to(&headers, &sources)?;
    let mut make = Command::new("make");
    make.arg("-C").arg(&headers).arg(format!("M={}", driver.display()));
    make.args(["CONFIG_RDMA_SIW=m", "modules"]);
    project.run(make, "siw-make", deadline).context("building siw")?;
    let folder = folder(project, release);
    fs::create_dir_all(&folder)?;
    let module = folder.join("siw.ko");
    fs::rename(driver.join("siw.ko"), &module).context("the build left no siw.ko")?;
    fs::remove_dir_all(&work)?;
    Ok(module)
}

fn folder(project: &Project, release: &str) -> PathBuf {
    project.scratch().join("siw").join(release)
}

/// Unpacks only the driver from the archive of sources.
fn unpack_driver(sources: &Path, work: &Path, deadline: Instant) -> Result<PathBuf> {
    let archives = super::packages::files_of(sources, ".tar.xz")?;
    let archive = archives.first().context("the package has no archive of sources")?;
    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    let top = name.trim_end_matches(".tar.xz");
    let mut unpack = Command::new("tar");
    unpack.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(work);
    unpack.arg(format!("{top}/{DRIVER}"));
    command::run(unpack, &work.join("tar.log"), deadline).context("unpacking siw")?;
    Ok(work.join(top).join(DRIVER))
}

/// Replaces the path of their installed package in the headers by their own.
fn point_to(headers: &Path, sources: &Path) -> Result<()> {
    let makefile = headers.join("Makefile");
    let text = fs::read_to_string(&makefile)?;
    let own = format!("include {}/", sources.display());
    fs::write(&makefile, text.replace("include /usr/src/", &own)).context("the headers' Makefile")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The headers are those of the kernel at hand, so that a newer one of the distribution does not replace them.
    #[test]
    fn headers_are_asked_for_by_the_release_of_the_kernel() {
        let packages = sources("6.1.0-41-amd64").packages;
        assert_eq!(packages, ["linux-headers-6.1.0-41-amd64", "linux-source"]);
    }

    #[test]
    fn unpacked_headers_include_their_own_makefile() {
        let scratch = tempfile::tempdir().unwrap();
        let headers = scratch.path().join("linux-headers-6-amd64");
        fs::create_dir_all(&headers).unwrap();
        let makefile = headers.join("Makefile");
        fs::write(&makefile, "include /usr/src/linux-headers-6-common/Makefile\n").unwrap();
        // Twice, as after a build that failed.
        point_to(&headers, scratch.path()).unwrap();
        point_to(&headers, scratch.path()).unwrap();
        let expected =
            format!("include {}/linux-headers-6-common/Makefile\n", scratch.path().display());
        assert_eq!(fs::read_to_string(&makefile).unwrap(), expected);
    }
}
