//! The header and the library, as a C program finds them.

mod toolchain;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use toolchain::{built, check_exports, functions, run, tool};

const HEADER: &str = include_str!("../include/transfer_engine_c.h");
const LIBRARY: &str = "libtransfer_engine.so";

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The assertions in the header hold in both languages, without a warning.
#[test]
fn header_compiles_as_c_and_as_cpp() {
    let folder = tempfile::tempdir().unwrap();
    for (compiler, standard, file) in
        [("cc", "-std=c11", "header.c"), ("c++", "-std=c++17", "h.cc")]
    {
        let Some(mut compile) = tool(compiler) else { continue };
        let file = folder.path().join(file);
        std::fs::write(&file, "#include \"transfer_engine_c.h\"\n").unwrap();
        let include = crate_folder().join("include");
        let warnings = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"];
        run(compile.arg(standard).args(warnings).arg("-I").arg(include).arg(file));
    }
}

#[test]
fn library_exports_the_functions_of_the_header_alone() {
    // Links the crate, so that cargo builds it.
    let _ = transfer_engine::ENGINES_MAX;
    let declared = functions(HEADER);
    assert_eq!(declared.len(), 27, "{declared:?}");
    check_exports(LIBRARY, LIBRARY, &declared);
}

/// Compiles the example, runs it, and checks that it copied.
fn copy_with(compile: &mut Command, libraries: &[&OsStr]) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("copy");
    compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"]).arg(&program);
    compile.arg("-I").arg(crate_folder().join("include"));
    run(compile.arg(crate_folder().join("examples/copy.c")).args(libraries));
    let library = built(LIBRARY);
    let copied = run(Command::new(&program).env("LD_LIBRARY_PATH", library.parent().unwrap()));
    assert!(copied.starts_with("copied 1048576 bytes to 127.0.0.1:"), "{copied}");
}

/// A program that was compiled with the header alone copies between two engines.
#[test]
fn program_in_c_copies_with_the_shared_library() {
    let Some(mut compile) = tool("cc") else { return };
    copy_with(&mut compile, &[built(LIBRARY).as_os_str()]);
}

#[test]
fn program_in_c_copies_with_the_static_library() {
    let Some(mut compile) = tool("cc") else { return };
    let archive = built("libtransfer_engine.a");
    copy_with(&mut compile, &[archive.as_os_str(), OsStr::new("-lm")]);
}
