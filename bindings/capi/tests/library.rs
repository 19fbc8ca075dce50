//! The header and the library, as C programs find them.

#[path = "../../c/tests/toolchain/mod.rs"]
mod toolchain;

use handfast_capi::{ErrorRecord, Grant, Options, Request, Segment};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::mem::offset_of;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use toolchain::{built, check_exports, functions, run, tool};

const HEADER: &str = include_str!("../include/handfast.h");
const LIBRARY: &str = "libhandfast_capi.so";
const SONAME: &str = "libhandfast.so.0.1";

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `UPDATE_HEADER=1` writes it.
#[test]
fn header_is_that_of_the_sources() {
    let config = cbindgen::Config::from_file(crate_folder().join("cbindgen.toml")).unwrap();
    let header = cbindgen::Builder::new().with_crate(crate_folder()).with_config(config);
    let mut text = Vec::new();
    header.generate().unwrap().write(&mut text);
    let text = String::from_utf8(text).unwrap();
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(crate_folder().join("include/handfast.h"), text).unwrap();
    } else {
        assert!(text == HEADER, "run this test with UPDATE_HEADER=1");
    }
}

/// Assertions in both languages that a structure is laid out as in Rust.
macro_rules! layout {
    ($text:ident, $type:ty, $name:literal, $($field:ident),*) => {
        let size = size_of::<$type>();
        writeln!($text, "ASSERT(sizeof({}) == {size}, \"size\");", $name).unwrap();
        $(
            let (field, offset) = (stringify!($field), offset_of!($type, $field));
            writeln!($text, "ASSERT(offsetof({}, {field}) == {offset}, \"{field}\");", $name)
                .unwrap();
        )*
    };
}

/// The header compiles without a warning as C and as C++, with the layouts of the library.
#[test]
fn header_has_the_layouts_of_the_library() {
    let mut text = String::from(
        "#include \"handfast.h\"\n#ifdef __cplusplus\n#define ASSERT static_assert\n#else\n\
         #define ASSERT _Static_assert\n#endif\n\
         ASSERT(sizeof(handfast_engine) == 8, \"size\");\n\
         ASSERT(sizeof(handfast_peer) == 8 && sizeof(handfast_batch) == 8, \"size\");\n\
         ASSERT(HANDFAST_FOREVER == UINT64_MAX && HANDFAST_WRITE == 1, \"values\");\n",
    );
    layout!(
        text,
        Options,
        "handfast_options",
        size,
        name,
        metadata,
        transport,
        devices,
        timeout_ms,
        auth,
        accept_exposed_memory,
        accept_forked_memory,
        encrypt_lanes,
        rdma_cm,
        administrators
    );
    layout!(text, Request, "handfast_request", direction, reserved, local, remote, bytes);
    layout!(text, Segment, "handfast_segment", address, bytes, readable, writable);
    layout!(text, Grant, "handfast_grant", peers, access, reserved);
    layout!(text, ErrorRecord, "handfast_error", code, side, remote, stage, cause, id, text);
    let folder = tempfile::tempdir().unwrap();
    for (compiler, standard, file) in
        [("cc", "-std=c11", "header.c"), ("c++", "-std=c++17", "header.cc")]
    {
        let Some(mut compile) = tool(compiler) else { continue };
        let file = folder.path().join(file);
        std::fs::write(&file, &text).unwrap();
        let warnings = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"];
        let include = crate_folder().join("include");
        run(compile.arg(standard).args(warnings).arg("-I").arg(include).arg(file));
    }
}

#[test]
fn library_exports_the_functions_of_the_header_alone() {
    let declared = functions(HEADER);
    assert_eq!(declared.len(), 28, "{declared:?}");
    assert!(declared.iter().all(|name| name.starts_with("handfast_")), "{declared:?}");
    let page = include_str!("../../../docs/c.md");
    assert!(
        page.contains(&format!("| {}, `handfast_*` |", declared.len())),
        "docs/c.md counts them"
    );
    check_exports(LIBRARY, SONAME, &declared);
}

/// A serving process, which ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Compiles the example, and has one process of it write to another's memory. Returns the standard
/// error of both.
fn transfer_with(flags: &[&str], libraries: &[&OsStr]) {
    let Some(mut compile) = tool("cc") else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    symlink(built(LIBRARY), folder.join(SONAME)).unwrap();
    let program = folder.join("transfer");
    compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]).args(flags);
    compile.arg("-o").arg(&program).arg("-I").arg(crate_folder().join("include"));
    run(compile.arg(crate_folder().join("examples/transfer.c")).args(libraries));
    let start = |words: &[&str]| {
        let mut program = Command::new(&program);
        program.args(words).env("LD_LIBRARY_PATH", folder);
        program
    };
    let mut server = start(&["serve"]);
    let server = server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut server = Server(server);
    let mut address = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let written = run(&mut start(&["write", address.trim()]));
    assert_eq!(written, "wrote 1048576 bytes\nread 1048576 bytes\n");
    drop(server.0.stdin.take());
    assert!(server.0.wait().unwrap().success());
}

/// A program that was compiled with the header alone.
#[test]
fn program_in_c_transfers_with_the_shared_library() {
    transfer_with(&[], &[built(LIBRARY).as_os_str()]);
}

/// The program and the library leave no memory that nothing points to.
#[test]
fn program_in_c_leaks_nothing_with_the_static_library() {
    let archive = built("libhandfast_capi.a");
    let libraries = [archive.as_os_str(), OsStr::new("-lm")];
    transfer_with(&["-fsanitize=leak"], &libraries);
}
