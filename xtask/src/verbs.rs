//! Build dependencies of the verbs transport: the headers of rdma-core and a libclang that the
//! binding generator of `rdma-sys` accepts.

use crate::command::answers;
use crate::guest::{Packages, files_of};
use crate::project::Project;
use crate::wheel::Wheel;
use anyhow::{Context, Result, ensure};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The headers, and the program that locates them.
pub(crate) const HEADERS: Packages =
    Packages::of_system("headers", &["pkg-config", "libibverbs-dev", "librdmacm-dev"]);
const LIBCLANG: Packages = Packages::of_system("libclang", &["libclang1-14"]);
/// Versions that the generator accepts, the preferred one first. From 16 on it panics.
const VERSIONS: [u32; 3] = [14, 15, 13];
const WHEEL: Wheel = Wheel {
    release: "libclang==14.0.6",
    checksums: [
        "206d2789e4450a37d054e63b70451a6fc1873466397443fa13de2b3d4adb2796",
        "e2add1703129b2abe066fb1890afa880870a89fd6ab4ec5d2a7a8dc8d271677e",
    ],
};
/// Versions of rdma-core 28, the oldest that `rdma-sys` accepts.
const MODULES: [&str; 2] = ["libibverbs >= 1.8.28", "librdmacm >= 1.2.28"];
/// Time limit for downloading and unpacking about 60 MB.
const SETUP_MAX: Duration = Duration::from_secs(600);

/// The environment of cargo for the feature `verbs`.
pub(crate) struct VerbsBuild {
    variables: Vec<(&'static str, OsString)>,
}

/// `cargo xtask setup --verbs`: finds or unpacks everything and prints the command that builds.
pub(crate) fn setup(project: &Project) -> Result<bool> {
    let build = VerbsBuild::prepare(project, Instant::now() + SETUP_MAX)?;
    let config = build.write(project)?;
    let config = config.strip_prefix(project.root()).unwrap_or(&config);
    anstream::println!("ok: cargo --config {} build --release --features verbs", config.display());
    Ok(true)
}

impl VerbsBuild {
    /// Finds the headers and libclang, or unpacks them below cargo's target folder.
    ///
    /// # Errors
    /// Names the unavailable part and the packages that contain it.
    pub(crate) fn prepare(project: &Project, deadline: Instant) -> Result<Self> {
        let mut build = Self { variables: Vec::new() };
        build.find_headers(project, deadline)?;
        build.find_libclang(project, deadline)?;
        Ok(build)
    }

    pub(crate) fn apply(&self, command: &mut Command) {
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }

    /// Writes the environment as a file for `cargo --config`.
    fn write(&self, project: &Project) -> Result<PathBuf> {
        let path = project.target().join("verbs.toml");
        let mut text = String::from("[env]\n");
        for (name, value) in &self.variables {
            let value = value.to_str().with_context(|| format!("{name} is not UTF-8"))?;
            // A JSON string is a TOML string.
            let value = serde_json::to_string(value)?;
            text.push_str(&format!("{name} = {{ value = {value}, force = true }}\n"));
        }
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    fn find_headers(&mut self, project: &Project, deadline: Instant) -> Result<()> {
        let pkg_config = system_pkg_config();
        if answers(Command::new(&pkg_config).arg("--exists").args(MODULES)) {
            return Ok(());
        }
        let folder = HEADERS.ensure(project, deadline).context(
            "no headers of libibverbs and librdmacm 28 or newer; install libibverbs-dev and \
             librdmacm-dev, or rdma-core-devel",
        )?;
        let libraries = folder.join(libraries());
        ensure!(libraries.join("pkgconfig").is_dir(), "the unpacked headers have no .pc files");
        link_installed(&libraries, &Path::new("/").join(self::libraries()))?;
        if !answers(Command::new(&pkg_config).arg("--version")) {
            self.variables.push(("PKG_CONFIG", unpacked_pkg_config(&folder)?.into()));
        }
        self.variables.push(("PKG_CONFIG_SYSROOT_DIR", folder.clone().into()));
        self.variables.push(("PKG_CONFIG_PATH", libraries.join("pkgconfig").into()));
        Ok(())
    }

    fn find_libclang(&mut self, project: &Project, deadline: Instant) -> Result<()> {
        let library = match env::var_os("LIBCLANG_PATH") {
            Some(given) => PathBuf::from(given),
            None => libclang(project, deadline)?,
        };
        self.variables.push(("LIBCLANG_PATH", library.into()));
        // A libclang from elsewhere has no stddef.h, so the compiler's is used.
        let mut includes = vec![compiler_headers()?];
        // rdma-sys names /usr/include; a cross linker hides the compiler's own search path.
        let multiarch = Path::new("/usr/include").join(format!("{}-linux-gnu", env::consts::ARCH));
        let unpacked = HEADERS.folder(project).join("usr/include");
        includes.extend([multiarch, unpacked].into_iter().filter(|include| include.is_dir()));
        let quoted = includes.iter().map(|include| format!("'-I{}'", include.display()));
        let arguments = quoted.collect::<Vec<_>>().join(" ");
        self.variables.push(("BINDGEN_EXTRA_CLANG_ARGS", arguments.into()));
        Ok(())
    }
}

fn system_pkg_config() -> OsString {
    env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into())
}

/// Returns the system's pkg-config, else the unpacked one if there is one.
pub(crate) fn pkg_config(project: &Project) -> OsString {
    let system = system_pkg_config();
    if answers(Command::new(&system).arg("--version")) {
        return system;
    }
    unpacked_pkg_config(&HEADERS.folder(project)).map_or(system, Into::into)
}

/// Returns Debian's library folder for this machine's architecture, relative to the root.
fn libraries() -> String {
    format!("usr/lib/{}-linux-gnu", env::consts::ARCH)
}

/// Returns the system's libclang, else that of Debian packages, else that of the Python wheel.
fn libclang(project: &Project, deadline: Instant) -> Result<PathBuf> {
    if let Some(library) = libclang_in(Path::new("/")) {
        return Ok(library);
    }
    let wheel = WHEEL.folder(project).join("clang/native/libclang.so");
    if wheel.is_file() {
        return Ok(wheel);
    }
    let packages = LIBCLANG.ensure(project, deadline);
    if let Some(library) = packages.ok().and_then(|folder| libclang_in(&folder)) {
        return Ok(library);
    }
    WHEEL.ensure(project, deadline).context(
        "no libclang 13 to 15, which the bindings of rdma-sys need; install libclang1-14 \
         or python3-pip, and run this again",
    )?;
    ensure!(wheel.is_file(), "the Python wheel of libclang has no {}", wheel.display());
    Ok(wheel)
}

/// Finds a libclang below `root` that loads and has an accepted version.
fn libclang_in(root: &Path) -> Option<PathBuf> {
    VERSIONS.iter().find_map(|version| {
        let own = [
            format!("usr/lib/llvm-{version}/lib"),
            format!("usr/lib64/llvm{version}/lib64"),
            format!("usr/lib64/llvm{version}/lib"),
        ];
        let own = own.map(|folder| (folder, "libclang.so".to_owned()));
        let shared = (libraries(), format!("libclang-{version}.so"));
        let mut candidates = own.into_iter().chain([shared]).flat_map(|(folder, prefix)| {
            let mut found = files_of(&root.join(folder), "").unwrap_or_default();
            found.retain(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with(&prefix) && path.is_file()
            });
            found
        });
        candidates.find(|path| loads(path))
    })
}

/// Whether the loader finds all dependencies of a library.
fn loads(library: &Path) -> bool {
    let output = Command::new("ldd").env("LC_ALL", "C").arg(library).output();
    output.is_ok_and(|output| {
        output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("not found")
    })
}

/// Returns the pkg-config of Debian 12 and later, which loads a library of its own.
fn unpacked_pkg_config(folder: &Path) -> Result<PathBuf> {
    let program = folder.join("usr/bin/pkg-config");
    ensure!(program.is_file(), "the unpacked packages have no pkg-config");
    let script = folder.join("pkg-config");
    let libraries = folder.join(libraries());
    let text = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH='{}' exec '{}' \"$@\"\n",
        libraries.display(),
        program.display()
    );
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    ensure!(
        answers(Command::new(&script).arg("--version")),
        "pkg-config is missing, and the unpacked one does not run; install pkg-config"
    );
    Ok(script)
}

/// Points dangling links of unpacked development packages to the installed library.
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

/// Returns the folder of the C compiler's headers, such as stddef.h.
fn compiler_headers() -> Result<PathBuf> {
    let output = Command::new("cc").arg("-print-file-name=include/stddef.h").output();
    let output = output.context("no C compiler; install gcc and libc6-dev")?;
    let file = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let folder = file.parent().filter(|_| file.is_file());
    Ok(folder.context("the C compiler has no stddef.h; install gcc and libc6-dev")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dangling_link_points_at_installed_library() {
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

    /// Any library that loads serves as libclang here: the search checks the name and loading.
    #[test]
    fn libclang_of_accepted_version_is_found() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path();
        let libc = Command::new("cc").arg("-print-file-name=libc.so.6").output().unwrap();
        let libc = String::from_utf8(libc.stdout).unwrap();
        let place = |path: String| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::copy(libc.trim(), &path).unwrap();
            path
        };
        place("usr/lib/llvm-16/lib/libclang.so.1".to_owned());
        place(format!("{}/libclang-19.so.19", libraries()));
        assert_eq!(libclang_in(root), None);
        let fifteen = place(format!("{}/libclang-15.so.1", libraries()));
        assert_eq!(libclang_in(root), Some(fifteen));
        let fourteen = place("usr/lib/llvm-14/lib/libclang.so.1".to_owned());
        assert_eq!(libclang_in(root), Some(fourteen.clone()));
        fs::write(fourteen, "no library").unwrap();
        assert!(libclang_in(root).unwrap().ends_with("libclang-15.so.1"));
    }
}
