//! Libraries of the build, and tools of the system.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A library that cargo built with this test.
pub(crate) fn built(name: &str) -> PathBuf {
    let binary = std::env::current_exe().unwrap();
    let folder = binary.parent().unwrap();
    let found = ["", "deps"].map(|place| folder.join(place).join(name));
    found.into_iter().find(|path| path.exists()).expect("cargo built the library")
}

/// A tool of the system, or `None` with a line that is counted.
pub(crate) fn tool(name: &str) -> Option<Command> {
    let found = Command::new(name).arg("--version").stdout(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return Some(Command::new(name));
    }
    eprintln!("skipped: no C compiler: {name} is not installed");
    None
}

pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{errors}", output.status);
    out
}

/// Checks that a library exports these functions alone, has this name, and stays loaded.
pub(crate) fn check_exports(library: &str, soname: &str, declared: &[String]) {
    let Some(mut symbols) = tool("nm") else { return };
    let listed = run(symbols.args(["-D", "--defined-only"]).arg(built(library)));
    let mut exported: Vec<_> =
        listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
    exported.sort_unstable();
    assert_eq!(exported, declared);
    let Some(mut dynamic) = tool("readelf") else { return };
    let dynamic = run(dynamic.arg("-d").arg(built(library)));
    assert!(dynamic.contains(&format!("soname: [{soname}]")), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}

/// The names of functions in a header, sorted.
pub(crate) fn functions(header: &str) -> Vec<String> {
    let code = header.split("*/").map(|it| it.split_once("/*").map_or(it, |(code, _)| code));
    let code: String = code.collect();
    let lines = code.lines().filter(|line| !line.starts_with('#') && !line.contains("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let name = |statement: &str| {
        let head = statement.split_once('(')?.0.lines().last()?.trim();
        let is_function = head.contains(' ') && !head.contains(['{', '}']);
        is_function.then(|| head.rsplit([' ', '*']).next().unwrap_or(head).to_owned())
    };
    let mut names: Vec<_> = code.split(';').filter_map(name).collect();
    names.sort_unstable();
    names
}
