//! An installation of `libhandfast`, as C programs find it.

use crate::command::answers;
use crate::features::Features;
use crate::project::Project;
use crate::report::{Outcome, Step, skipped};
use crate::setup;
use crate::verbs::pkg_config;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The header in the sources, which an installation must contain unchanged.
pub(crate) const HEADER: &str = "bindings/capi/include/handfast.h";
/// The package of the library.
pub(crate) const PACKAGE: &str = "handfast-capi";
const EXAMPLE: &str = "bindings/capi/examples/transfer.c";
/// The result of the example's writer.
const WRITTEN: &str = "wrote 1048576 bytes\nread 1048576 bytes\n";
/// Starts the example's server, writes to it, and ends it. The first argument is the program.
const TRANSFER: &str = r#"
mkfifo hold
"$1" serve < hold > address &
exec 3> hold
while ! [ -s address ]; do kill -0 $! || exit 1; sleep 0.1; done
"$1" write "$(cat address)" || exit
exec 3>&-
wait $!
"#;

/// Installs the library by cargo-c into an empty folder, and has a program use it. It is skipped
/// without cargo-c or a C compiler.
pub(crate) fn step(project: &Project) -> Step<'_> {
    Step::new("c-library", |deadline| {
        setup::CARGO_C.check()?;
        let prefix = project.scratch().join("cargo-c/prefix");
        if prefix.exists() {
            fs::remove_dir_all(&prefix)?;
        }
        let features = Features::available(project, deadline);
        let mut install = project.cargo(&["cinstall", "--locked", "--package", PACKAGE]);
        install.args(features.words());
        install.arg("--prefix").arg(&prefix).arg("--libdir").arg(prefix.join("lib"));
        // It sets a cfg for every crate, so it shares none with other builds.
        install.arg("--target-dir").arg(project.scratch().join("cargo-c/target"));
        features.apply(&mut install);
        project.run(install, "cargo-c", deadline)?;
        check(project, &prefix, deadline)
    })
}

/// Checks the files of an installation, and compiles and runs the example with them, as pkg-config
/// describes them.
///
/// # Errors
/// Names the file that is absent or differs, or quotes the failed command.
pub(crate) fn check(project: &Project, prefix: &Path, deadline: Instant) -> Outcome {
    let header = fs::read(prefix.join("include/handfast.h")).context("include/handfast.h")?;
    let of_sources = fs::read(project.root().join(HEADER))?;
    ensure!(header == of_sources, "include/handfast.h differs from {HEADER}");
    let libraries = prefix.join("lib");
    ensure!(libraries.join("libhandfast.a").is_file(), "lib/libhandfast.a is absent");
    let soname = soname(&libraries.join("libhandfast.so"))?;
    let version = project.version()?;
    let expected = soname_of(&version);
    ensure!(soname == expected, "the SONAME is {soname} instead of {expected}");
    ensure!(libraries.join(&soname).is_file(), "lib/{soname} is absent");
    let described = described(project, &libraries, "--modversion")?;
    ensure!(described == version, "handfast.pc has version {described} instead of {version}");
    if !answers(Command::new("cc").arg("--version")) {
        return Err(skipped("the example was not compiled: there is no C compiler"));
    }
    transfer(project, &libraries, deadline)?;
    Ok(format!("{soname}, {} exported functions", exported(&libraries.join(&soname))?))
}

/// Compiles the example by the options of pkg-config and has one process of it write to another.
fn transfer(project: &Project, libraries: &Path, deadline: Instant) -> Result<()> {
    let folder = project.scratch().join("c-library");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let flags = described(project, libraries, "--cflags")?;
    let linked = described(project, libraries, "--libs")?;
    let program = folder.join("transfer");
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    compile.args(flags.split_whitespace()).arg(project.root().join(EXAMPLE));
    compile.args(linked.split_whitespace()).arg("-o").arg(&program);
    project.run(compile, "c-library-compile", deadline)?;
    let mut transfer = Command::new("sh");
    transfer.args(["-c", TRANSFER, "sh"]).arg(program).current_dir(folder);
    transfer.env("LD_LIBRARY_PATH", libraries);
    let output = project.run(transfer, "c-library-transfer", deadline)?;
    ensure!(output.contains(WRITTEN), "the example ended without its result\n{output}");
    Ok(())
}

/// Returns the answer of pkg-config to a question about the library.
fn described(project: &Project, libraries: &Path, question: &str) -> Result<String> {
    let mut ask = Command::new(pkg_config(project));
    ask.args([question, "handfast"]).env("PKG_CONFIG_PATH", libraries.join("pkgconfig"));
    ask.env_remove("PKG_CONFIG_SYSROOT_DIR").env_remove("PKG_CONFIG_LIBDIR");
    let output = ask.output().context("pkg-config")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "pkg-config {question}: {}", errors.trim());
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Returns the SONAME of a version: before version 1 the interface changes with the minor version.
pub(crate) fn soname_of(version: &str) -> String {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    match major {
        "0" => format!("libhandfast.so.0.{minor}"),
        major => format!("libhandfast.so.{major}"),
    }
}

fn soname(library: &Path) -> Result<String> {
    let output = readelf("--dynamic", library)?;
    soname_in(&output).with_context(|| format!("{} has no SONAME", library.display()))
}

fn soname_in(dynamic: &str) -> Option<String> {
    let line = dynamic.lines().find(|line| line.contains("(SONAME)"))?;
    Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// Returns the number of exported functions, of which all have the prefix of the interface.
fn exported(library: &Path) -> Result<usize> {
    let symbols = readelf("--dyn-syms", library)?;
    let names: Vec<_> = defined_in(&symbols).collect();
    let foreign = names.iter().find(|name| !name.starts_with("handfast_"));
    ensure!(foreign.is_none(), "{} exports {foreign:?}", library.display());
    ensure!(!names.is_empty(), "{} exports nothing", library.display());
    Ok(names.len())
}

/// The names of defined global functions and objects in the output of `readelf --dyn-syms`.
fn defined_in(symbols: &str) -> impl Iterator<Item = &str> {
    symbols.lines().filter_map(|line| {
        // Number, value, size, type, binding, visibility, section, name.
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_defined = fields.len() >= 8 && fields[4] == "GLOBAL" && fields[6] != "UND";
        is_defined.then(|| fields[7])
    })
}

fn readelf(option: &str, file: &Path) -> Result<String> {
    let output = Command::new("readelf").args([option, "--wide"]).arg(file).output();
    let output = output.context("readelf, of binutils")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "readelf {}: {}", file.display(), errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The files that a C program needs, below the prefix of an installation.
pub(crate) fn lay_out(project: &Project, built: &Path, prefix: &Path) -> Result<()> {
    let version = project.version()?;
    let soname = soname_of(&version);
    let libraries = prefix.join("lib");
    // Apart from the search path of the linker: its name is that of Mooncake's library.
    let drop_in = libraries.join("handfast");
    for folder in [&libraries.join("pkgconfig"), &drop_in, &prefix.join("include/handfast")] {
        fs::create_dir_all(folder)?;
    }
    let complete = format!("libhandfast.so.{version}");
    let files: [(&str, PathBuf); 4] = [
        ("libhandfast_capi.so", libraries.join(&complete)),
        ("libhandfast_capi.a", libraries.join("libhandfast.a")),
        ("libtransfer_engine.so", drop_in.join("libtransfer_engine.so")),
        ("libtransfer_engine.a", drop_in.join("libtransfer_engine.a")),
    ];
    for (name, to) in files {
        fs::copy(built.join(name), to).with_context(|| name.to_owned())?;
    }
    std::os::unix::fs::symlink(&complete, libraries.join(&soname))?;
    std::os::unix::fs::symlink(&soname, libraries.join("libhandfast.so"))?;
    let sources = project.root();
    fs::copy(sources.join(HEADER), prefix.join("include/handfast.h"))?;
    let of_drop_in = sources.join("bindings/c/include/transfer_engine_c.h");
    fs::copy(of_drop_in, prefix.join("include/handfast/transfer_engine_c.h"))?;
    let description = libraries.join("pkgconfig/handfast.pc");
    fs::write(description, described_as(&version))?;
    Ok(())
}

/// The file for pkg-config. It holds wherever the archive is unpacked.
fn described_as(version: &str) -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\n\n\
         Name: handfast\nDescription: Moves memory between machines over RDMA or TCP\n\
         Version: {version}\nCflags: -I${{includedir}}\nLibs: -L${{libdir}} -lhandfast\n\
         Libs.private: -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soname_has_the_part_that_changes_the_interface() {
        assert_eq!(soname_of("0.1.0"), "libhandfast.so.0.1");
        assert_eq!(soname_of("0.12.3"), "libhandfast.so.0.12");
        assert_eq!(soname_of("2.3.4"), "libhandfast.so.2");
    }

    #[test]
    fn soname_is_read_from_the_dynamic_section() {
        let text = " 0x0001 (NEEDED)  Shared library: [libc.so.6]\n \
                    0x000e (SONAME)  Library soname: [libhandfast.so.0.1]\n";
        assert_eq!(soname_in(text).as_deref(), Some("libhandfast.so.0.1"));
        assert_eq!(soname_in(" 0x0001 (NEEDED)  Shared library: [libc.so.6]\n"), None);
    }

    #[test]
    fn undefined_symbols_are_no_exports() {
        let text = "Symbol table '.dynsym' contains 3 entries:\n\
             Num:    Value  Size Type    Bind   Vis      Ndx Name\n\
             1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND malloc@GLIBC_2.2.5 (2)\n\
             2: 0000000000001000    10 FUNC    GLOBAL DEFAULT   12 handfast_version\n\
             3: 0000000000001000    10 FUNC    LOCAL  DEFAULT   12 inner\n";
        assert_eq!(defined_in(text).collect::<Vec<_>>(), ["handfast_version"]);
    }

    /// An installation without a file, with another header, or with a library of another name is
    /// refused.
    #[test]
    fn incomplete_installation_is_refused() {
        let project = Project::find().unwrap();
        let built = tempfile::tempdir().unwrap();
        let prefix = tempfile::tempdir().unwrap();
        let deadline = Instant::now() + std::time::Duration::from_secs(60);
        let refused = || format!("{:#}", check(&project, prefix.path(), deadline).unwrap_err());
        assert!(refused().starts_with("include/handfast.h"));
        assert!(lay_out(&project, built.path(), prefix.path()).is_err(), "nothing was built");
        let program = std::env::current_exe().unwrap();
        let prefix = tempfile::tempdir().unwrap();
        for name in ["libhandfast_capi", "libtransfer_engine"] {
            fs::write(built.path().join(format!("{name}.a")), "").unwrap();
            fs::copy(&program, built.path().join(format!("{name}.so"))).unwrap();
        }
        lay_out(&project, built.path(), prefix.path()).unwrap();
        let refused = || format!("{:#}", check(&project, prefix.path(), deadline).unwrap_err());
        // This test's own program is no library.
        assert!(refused().contains("has no SONAME"), "{}", refused());
        fs::write(prefix.path().join("include/handfast.h"), "").unwrap();
        assert!(refused().contains("differs"), "{}", refused());
    }
}
