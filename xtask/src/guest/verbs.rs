//! Building the verbs backend: headers, and a libclang that the binding generator understands.

use super::packages::{Archive, Packages, files_of};
use crate::command::answers;
use crate::project::Project;
use anyhow::{Context, Result};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// What building `rdma-sys` needs. Its generator fails with libclang 16 and newer, so that of the
/// system, whichever it is, is not used.
pub(crate) const HEADERS: Packages = Packages {
    name: "headers",
    packages: &[
        "pkg-config",
        "libibverbs-dev",
        "librdmacm-dev",
        "libclang1-14",
        "libclang-common-14-dev",
    ],
    from: Archive::System,
};
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// A cargo command's environment for the feature `verbs`.
pub(crate) struct VerbsBuild {
    variables: Vec<(&'static str, OsString)>,
}

impl VerbsBuild {
    pub(crate) fn prepare(project: &Project, deadline: Instant) -> Result<Self> {
        let folder = HEADERS.ensure(project, deadline)?;
        let mut variables = Vec::new();
        // Installed packages are not downloaded, and then are where the defaults look.
        let headers = folder.join(LIBRARIES).join("pkgconfig").is_dir();
        if headers {
            link_installed(&folder.join(LIBRARIES), &Path::new("/").join(LIBRARIES))?;
            variables.push(("PKG_CONFIG_SYSROOT_DIR", folder.clone().into()));
            variables.push(("PKG_CONFIG_PATH", folder.join(LIBRARIES).join("pkgconfig").into()));
        }
        if folder.join("usr/lib/llvm-14/lib").is_dir() {
            variables.push(("LIBCLANG_PATH", folder.join(LIBRARIES).into()));
            let mut includes = vec![compiler_headers(&folder)?];
            includes.extend(headers.then(|| folder.join("usr/include")));
            let arguments = includes.iter().map(|include| format!("-I{}", include.display()));
            let arguments = arguments.collect::<Vec<_>>().join(" ");
            variables.push(("BINDGEN_EXTRA_CLANG_ARGS", arguments.into()));
        }
        let pkg_config = folder.join("usr/bin/pkg-config");
        if !answers(Command::new("pkg-config").arg("--version")) && pkg_config.exists() {
            variables.push(("PKG_CONFIG", pkg_config.into()));
        }
        Ok(Self { variables })
    }

    pub(crate) fn apply(&self, command: &mut Command) {
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }
}

/// Of a library whose headers alone were unpacked, the name for the linker leads nowhere: it is made
/// to lead to the installed library.
fn link_installed(unpacked: &Path, installed: &Path) -> Result<()> {
    for name in ["libibverbs", "librdmacm"] {
        let link = unpacked.join(format!("{name}.so"));
        let library = installed.join(format!("{name}.so.1"));
        if link.is_symlink() && !link.exists() && library.exists() {
            fs::remove_file(&link)?;
            symlink(library, &link)?;
        }
    }
    Ok(())
}

/// The headers that belong to the compiler, such as stddef.h; their folder is named by a version.
fn compiler_headers(folder: &Path) -> Result<PathBuf> {
    let versions = files_of(&folder.join("usr/lib/llvm-14/lib/clang"), "")?;
    let mut headers = versions.iter().map(|version| version.join("include"));
    headers.find(|path| path.join("stddef.h").is_file()).context("libclang-common has no stddef.h")
}

/// The program that runs cargo's tests in a guest with such options, as cargo's own setting.
pub(crate) fn runner(options: &[&str]) -> Result<String> {
    let itself = env::current_exe()?;
    let itself = itself.to_str().context("the path of this program is not text")?;
    let quoted = itself.replace('\\', r"\\").replace('"', r#"\""#);
    let words = options.iter().map(|word| format!(r#""{word}", "#)).collect::<String>();
    Ok(format!(r#"target.x86_64-unknown-linux-gnu.runner=["{quoted}", "guest", {words}"--"]"#))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_nowhere_leads_to_the_installed_library_and_others_stay() {
        let scratch = tempfile::tempdir().unwrap();
        let (unpacked, installed) = (scratch.path().join("unpacked"), scratch.path().join("there"));
        for folder in [&unpacked, &installed] {
            fs::create_dir_all(folder).unwrap();
        }
        for name in ["libibverbs.so.1", "librdmacm.so.1"] {
            fs::write(installed.join(name), "installed").unwrap();
        }
        symlink("libibverbs.so.1", unpacked.join("libibverbs.so")).unwrap();
        symlink("librdmacm.so.1", unpacked.join("librdmacm.so")).unwrap();
        fs::write(unpacked.join("librdmacm.so.1"), "unpacked").unwrap();
        link_installed(&unpacked, &installed).unwrap();
        assert_eq!(fs::read_to_string(unpacked.join("libibverbs.so")).unwrap(), "installed");
        assert_eq!(fs::read_to_string(unpacked.join("librdmacm.so")).unwrap(), "unpacked");
    }
}
