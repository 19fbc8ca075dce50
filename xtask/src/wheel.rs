//! Python wheels that are unpacked below cargo's target folder, verified by their checksums.

use crate::command::answers;
use crate::guest::Packages;
use crate::project::Project;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

const PIP: Packages = Packages::of_system("pip", &["python3-pip"]);

/// A wheel of PyPI.
pub(crate) struct Wheel {
    /// Its name and version, as `NAME==VERSION`.
    pub(crate) release: &'static str,
    /// SHA-256 of the wheels for x86-64 and AArch64.
    pub(crate) checksums: [&'static str; 2],
}

impl Wheel {
    /// Folder of the unpacked wheel, existing or not.
    pub(crate) fn folder(&self, project: &Project) -> PathBuf {
        project.scratch().join("wheels").join(self.release)
    }

    /// Downloads and unpacks it, unless that was done before.
    ///
    /// # Errors
    /// Names the missing program, or quotes the end of pip's output.
    pub(crate) fn ensure(&self, project: &Project, deadline: Instant) -> Result<PathBuf> {
        let folder = self.folder(project);
        if folder.is_dir() {
            return Ok(folder);
        }
        let mut install = pip(project, deadline)?;
        let wheels = project.scratch().join("wheels");
        let fresh = wheels.join("new");
        if fresh.exists() {
            fs::remove_dir_all(&fresh)?;
        }
        fs::create_dir_all(&wheels)?;
        let requirements = wheels.join("requirements.txt");
        let [one, other] = self.checksums;
        let text = format!("{} --hash=sha256:{one} --hash=sha256:{other}\n", self.release);
        fs::write(&requirements, text)?;
        install.args(["install", "--quiet", "--no-deps", "--require-hashes"]);
        install.args(["--only-binary", ":all:", "--target"]).arg(&fresh);
        install.arg("--requirement").arg(requirements).env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
        project.run(install, "wheel", deadline).with_context(|| self.release)?;
        fs::rename(&fresh, &folder)?;
        Ok(folder)
    }
}

/// Returns the system's pip or uv, else an unpacked pip of Debian.
fn pip(project: &Project, deadline: Instant) -> Result<Command> {
    let known: [&[&str]; 3] = [&["python3", "-m", "pip"], &["pip3"], &["uv", "pip"]];
    let command = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    };
    let help = |words: &&&[&str]| answers(command(words).args(["install", "--help"]));
    if let Some(words) = known.iter().find(help) {
        return Ok(command(words));
    }
    ensure!(answers(Command::new("python3").arg("--version")), "python3 is missing");
    let modules = PIP.ensure(project, deadline)?.join("usr/lib/python3/dist-packages");
    let mut pip = command(known[0]);
    pip.env("PYTHONPATH", modules);
    Ok(pip)
}
