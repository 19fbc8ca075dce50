//! `cargo xtask release`: the program, the libraries and the Python package for users.

mod sbom;

use crate::c_library;
use crate::fleet;
use crate::project::Project;
use crate::python;
use crate::verbs::VerbsBuild;
use crate::wheel::Wheel;
use anyhow::{Context, Result, bail, ensure};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Build the program for release into target/release-artifacts
///
/// Links with every feature against glibc 2.28 by zig, checks that no symbol of a later glibc is
/// needed, that the program starts and that a C program transfers by the library, and writes for
/// each architecture an archive of the program, one of the C libraries, a Python wheel and a bill of
/// materials; then the Containerfile and SHA256SUMS. cargo-zigbuild and zig are unpacked below
/// cargo's target folder. AArch64 is built if the toolchain has that target, without verbs, and is
/// marked unproven: it is never run.
///
/// Exit code: 1 if a part cannot be built or a check fails.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Time limit of the whole run, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5400)]
    limit: u64,
}

/// The oldest supported glibc: that of RHEL 8 and Debian 10.
pub(crate) const GLIBC: Version = (2, 28);
/// The C compiler and linker for an older glibc.
pub(crate) const ZIG: Wheel = Wheel {
    release: "ziglang==0.15.2",
    checksums: [
        "806316453d1ede7174ed3fefb8e5348154629089c3bb5fe812dfd0e172fac130",
        "edc0aa60ec964a4cf462d40f68d7de242ddf37fd9a80f2afaee6397059463230",
    ],
};
const ZIGBUILD: &str = "cargo-zigbuild@0.24.1";
/// Commands that the built program must answer with success.
const STARTS: [&[&str]; 3] = [&["--version"], &["--help"], &["doctor", "--help"]];
const DOCUMENTS: [&str; 3] = ["LICENSE", "README.md", "CHANGELOG.md"];

pub(crate) type Version = (u32, u32);

struct Build {
    target: &'static str,
    features: &'static str,
    /// The packages of the program and of the libraries, which share one build.
    packages: [&'static str; 3],
    /// Whether it is published without having been run.
    is_unproven: bool,
}

const PACKAGES: [&str; 3] = ["handfast-cli", c_library::PACKAGE, "handfast-c"];
const BUILDS: [Build; 2] = [
    Build {
        target: "x86_64-unknown-linux-gnu",
        features: "verbs,etcd,redis,tls",
        packages: PACKAGES,
        is_unproven: false,
    },
    Build {
        target: "aarch64-unknown-linux-gnu",
        features: "etcd,redis,tls",
        packages: PACKAGES,
        is_unproven: true,
    },
];

/// `cargo xtask release`.
pub(crate) fn run(project: &Project, arguments: &Arguments) -> Result<bool> {
    let deadline = Instant::now() + Duration::from_secs(arguments.limit);
    let artifacts = project.target().join("release-artifacts");
    if artifacts.exists() {
        fs::remove_dir_all(&artifacts)?;
    }
    fs::create_dir_all(&artifacts)?;
    for build in &BUILDS {
        if !build.is_installed()? {
            ensure!(build.is_unproven, "the toolchain has no target {}", build.target);
            anstream::println!("skipped: {}: `rustup target add` adds the target", build.target);
            continue;
        }
        build.publish(project, &artifacts, deadline)?;
    }
    fs::copy(project.root().join("Containerfile"), artifacts.join("Containerfile"))?;
    anstream::println!("Containerfile: podman build {}", artifacts.display());
    write_checksums(&artifacts)?;
    anstream::println!("SHA256SUMS\nok: {}", artifacts.display());
    Ok(true)
}

impl Build {
    fn is_installed(&self) -> Result<bool> {
        let mut rustc = Command::new("rustc");
        let output = rustc.args(["--print", "target-libdir", "--target", self.target]).output()?;
        let folder = String::from_utf8_lossy(&output.stdout);
        Ok(output.status.success() && Path::new(folder.trim()).is_dir())
    }

    /// Builds and checks the artifacts, and prints their names.
    fn publish(&self, project: &Project, artifacts: &Path, deadline: Instant) -> Result<()> {
        let built = self.build(project, deadline)?;
        let program = built.join("handfast");
        let glibc = |file: &Path| {
            let newest = newest_glibc(file)?;
            let (major, minor) = newest;
            ensure!(newest <= GLIBC, "{} needs glibc {major}.{minor}", file.display());
            resolved(file)?;
            Ok(format!("glibc {major}.{minor}"))
        };
        let needs = glibc(&program)?;
        if !self.is_unproven {
            starts(&program)?;
        }
        let name = self.archive(project, &program, artifacts)?;
        anstream::println!("{name}: {}, {needs}", self.features);
        let [native, drop_in] =
            ["libhandfast_capi.so", "libtransfer_engine.so"].map(|it| built.join(it));
        let needs = [glibc(&native)?, glibc(&drop_in)?].join(" and ");
        let (name, note) = self.libraries(project, &built, artifacts, deadline)?;
        anstream::println!("{name}: {note}, {needs}");
        let name = format!("{}.cdx.json", self.stem(project, "handfast")?);
        let count = sbom::write(project, self, "handfast", &artifacts.join(&name))?;
        anstream::println!("{name}: {count} packages");
        anstream::println!("{}", self.wheel(project, artifacts, deadline)?);
        Ok(())
    }

    /// Builds the program and the libraries, and returns their folder.
    fn build(&self, project: &Project, deadline: Instant) -> Result<PathBuf> {
        let zigbuild = zigbuild(project, deadline)?;
        let zig = ZIG.ensure(project, deadline).context("zig, which links for an older glibc")?;
        let (major, minor) = GLIBC;
        let target = format!("{}.{major}.{minor}", self.target);
        let mut command = project.cargo(&["zigbuild", "--release", "--locked"]);
        command.args(self.packages.iter().flat_map(|package| ["--package", package]));
        command.args(["--features", self.features, "--target", &target]);
        let path = env::var_os("PATH").unwrap_or_default();
        let path = [zigbuild].into_iter().chain(env::split_paths(&path));
        command.env("PATH", env::join_paths(path)?);
        command.env("CARGO_ZIGBUILD_ZIG_PATH", zig.join("ziglang/zig"));
        self.prepare(project, &mut command, deadline)?;
        project.run(command, &format!("release-{}", self.target), deadline)?;
        Ok(project.target().join(self.target).join("release"))
    }

    /// Sets the variables of the features.
    fn prepare(&self, project: &Project, command: &mut Command, deadline: Instant) -> Result<()> {
        fleet::PROTOC.ensure(project, deadline).context("protoc, for the feature etcd")?;
        command.envs(fleet::etcd_build(project).into_iter().flatten());
        if self.features.contains("verbs") {
            VerbsBuild::prepare(project, deadline)?.apply(command);
        }
        Ok(())
    }

    /// Builds the Python wheel, which always has TLS, and returns its name.
    fn wheel(&self, project: &Project, artifacts: &Path, deadline: Instant) -> Result<String> {
        let features = self.features.trim_end_matches(",tls");
        let prepare = |command: &mut Command| self.prepare(project, command, deadline);
        let wheel = python::release(project, (self.target, features), prepare, deadline)?;
        let listed = Command::new("python3").args(["-m", "zipfile", "-l"]).arg(&wheel).output();
        let listed = listed.context("python3")?;
        ensure!(has_bill(&String::from_utf8_lossy(&listed.stdout)), "the wheel has no sboms/");
        let name = wheel.file_name().context("a wheel")?.to_string_lossy().into_owned();
        let name = if self.is_unproven { marked_unproven(&name)? } else { name };
        fs::copy(wheel, artifacts.join(&name))?;
        Ok(name)
    }

    /// Packs the program with its documents and returns the archive's name.
    fn archive(&self, project: &Project, program: &Path, artifacts: &Path) -> Result<String> {
        let folder = self.empty_folder(project, "program")?;
        fs::create_dir_all(folder.join("bin"))?;
        fs::copy(program, folder.join("bin/handfast"))?;
        self.pack(project, ("handfast", &folder), artifacts)
    }

    /// Packs the libraries with their headers, and returns the archive's name and a note. A C program
    /// is compiled with them and run.
    fn libraries(
        &self,
        project: &Project,
        built: &Path,
        artifacts: &Path,
        deadline: Instant,
    ) -> Result<(String, String)> {
        let folder = self.empty_folder(project, "libraries")?;
        c_library::lay_out(project, built, &folder)?;
        let note = match self.is_unproven {
            true => "not run".to_owned(),
            false => c_library::check(project, &folder, deadline)?,
        };
        Ok((self.pack(project, ("libhandfast", &folder), artifacts)?, note))
    }

    fn empty_folder(&self, project: &Project, of: &str) -> Result<PathBuf> {
        let folder = project.scratch().join("release").join(self.target).join(of);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// The name of an artifact without its ending.
    fn stem(&self, project: &Project, name: &str) -> Result<String> {
        let suffix = if self.is_unproven { "-unproven" } else { "" };
        Ok(format!("{name}-{}-{}{suffix}", project.version()?, self.target))
    }

    /// Adds the documents to a folder, packs it, and returns the archive's name.
    fn pack(
        &self,
        project: &Project,
        (of, folder): (&str, &Path),
        artifacts: &Path,
    ) -> Result<String> {
        let name = format!("{}.tar.gz", self.stem(project, of)?);
        let documents = folder.join("share/doc").join(of);
        fs::create_dir_all(&documents)?;
        for document in DOCUMENTS {
            fs::copy(project.root().join(document), documents.join(document))?;
        }
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]);
        tar.arg("--gzip").arg("--create").arg("--file").arg(artifacts.join(&name));
        tar.arg("--directory").arg(folder).arg(".");
        let output = tar.output().context("tar")?;
        ensure!(output.status.success(), "tar: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(name)
    }
}

/// Whether the list of a wheel's files has a bill of materials, at the place of PEP 770.
fn has_bill(listed: &str) -> bool {
    let mut names = listed.lines().filter_map(|line| line.split_whitespace().next());
    names.any(|name| name.contains(".dist-info/sboms/") && name.ends_with(".json"))
}

/// Marks the name of a wheel by its build tag, which begins with a digit.
fn marked_unproven(name: &str) -> Result<String> {
    let (package, rest) = name.split_once('-').context("a wheel's name")?;
    let (version, tags) = rest.split_once('-').context("a wheel's name")?;
    Ok(format!("{package}-{version}-0unproven-{tags}"))
}

/// Returns the folder of cargo-zigbuild, built if necessary.
fn zigbuild(project: &Project, deadline: Instant) -> Result<PathBuf> {
    let tools = project.scratch().join("tools");
    let programs = tools.join("bin");
    if !programs.join("cargo-zigbuild").is_file() {
        let mut install = project.cargo(&["install", "--quiet", "--locked", ZIGBUILD]);
        install.arg("--root").arg(tools);
        project.run(install, "release-zigbuild", deadline)?;
    }
    Ok(programs)
}

/// Returns the newest version of glibc that a symbol of the program requires.
pub(crate) fn newest_glibc(program: &Path) -> Result<Version> {
    let output = Command::new("readelf").args(["--version-info", "--wide"]).arg(program).output();
    let output = output.context("readelf, of binutils")?;
    let text = String::from_utf8_lossy(&output.stdout);
    newest_in(&text).with_context(|| format!("{} needs no glibc", program.display()))
}

fn newest_in(version_info: &str) -> Option<Version> {
    let words = version_info.split(|letter: char| letter.is_whitespace() || "()".contains(letter));
    let versions = words.filter_map(|word| {
        let mut numbers = word.strip_prefix("GLIBC_")?.split('.').map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    });
    versions.max()
}

/// Checks that every symbol that a file needs is one of a library that it names: a function that is newer
/// than the library has no version, and the file would not load.
pub(crate) fn resolved(file: &Path) -> Result<()> {
    let output = Command::new("readelf").args(["--dyn-syms", "--wide"]).arg(file).output();
    let output = output.context("readelf, of binutils")?;
    match unresolved_in(&String::from_utf8_lossy(&output.stdout)) {
        Some(name) => bail!("{} needs {name}, which no library has", file.display()),
        None => Ok(()),
    }
}

/// Returns the first symbol without a version that must be there at the start. Those of Python are the
/// interpreter's.
fn unresolved_in(symbols: &str) -> Option<&str> {
    symbols.lines().find_map(|line| {
        // Number, value, size, type, binding, visibility, section, name.
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_needed = fields.len() >= 8 && fields[4] == "GLOBAL" && fields[6] == "UND";
        let name = fields.get(7).filter(|_| is_needed)?;
        let is_known = name.contains('@') || name.starts_with("Py") || name.starts_with("_Py");
        (!is_known).then_some(*name)
    })
}

fn starts(program: &Path) -> Result<()> {
    for words in STARTS {
        let output = Command::new(program).args(words).output();
        let output = output.with_context(|| format!("{} does not start", program.display()))?;
        let printed = output.status.success() && !output.stdout.is_empty();
        ensure!(printed, "`handfast {}` ends with {}", words.join(" "), output.status);
    }
    Ok(())
}

fn write_checksums(artifacts: &Path) -> Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(artifacts)? {
        names.push(entry?.file_name());
    }
    names.sort();
    let output = Command::new("sha256sum").args(names).current_dir(artifacts).output();
    let output = output.context("sha256sum")?;
    ensure!(output.status.success(), "sha256sum: {}", String::from_utf8_lossy(&output.stderr));
    fs::write(artifacts.join("SHA256SUMS"), output.stdout).context("writing SHA256SUMS")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glibc_versions_compare_as_numbers() {
        let text = "  0x0010:   Name: GLIBC_2.9  Flags: none  Version: 4\n\
                    000: 0 (*local*) 2 (GLIBC_2.28) 3 (GLIBC_2.2.5) GLIBC_PRIVATE GCC_4.2.0\n";
        assert_eq!(newest_in(text), Some((2, 28)));
        assert!(newest_in("GLIBC_2.34").is_some_and(|newest| newest > GLIBC));
        assert_eq!(newest_in("GCC_3.0"), None);
    }

    #[test]
    fn function_newer_than_the_library_is_found() {
        let symbol = |binding: &str, section: &str, name: &str| {
            format!(" 9: 0000000000000000     0 FUNC    {binding} DEFAULT  {section} {name}\n")
        };
        let sound = symbol("GLOBAL", "UND", "read@GLIBC_2.2.5 (2)")
            + &symbol("WEAK", "UND", "gettid")
            + &symbol("GLOBAL", "UND", "PyErr_Print")
            + &symbol("GLOBAL", "12", "handfast_version");
        assert_eq!(unresolved_in(&sound), None);
        assert_eq!(unresolved_in(&(sound + &symbol("GLOBAL", "UND", "gettid"))), Some("gettid"));
    }

    #[test]
    fn unproven_wheel_is_marked_in_its_name() {
        let name = "handfast-0.1.0-cp310-abi3-manylinux_2_28_aarch64.whl";
        let marked = "handfast-0.1.0-0unproven-cp310-abi3-manylinux_2_28_aarch64.whl";
        assert_eq!(marked_unproven(name).unwrap(), marked);
        assert!(marked_unproven("handfast.whl").is_err());
    }

    #[test]
    fn bill_of_a_wheel_is_found_at_its_place() {
        let listed = "File Name  Modified  Size\nhandfast-0.1.0.dist-info/WHEEL 2026 10\n";
        assert!(!has_bill(listed));
        let bill = "handfast-0.1.0.dist-info/sboms/handfast.cyclonedx.json 2026 10\n";
        assert!(has_bill(&format!("{listed}{bill}")));
    }

    /// This test's own program needs a glibc, of a version that is read, and starts nothing here.
    #[test]
    fn unstartable_program_is_refused() {
        let program = std::env::current_exe().unwrap();
        assert!(newest_glibc(&program).unwrap() >= (2, 2));
        let scratch = tempfile::tempdir().unwrap();
        let empty = scratch.path().join("handfast");
        fs::write(&empty, "").unwrap();
        assert!(starts(&empty).is_err());
        assert!(newest_glibc(&empty).is_err());
    }
}
