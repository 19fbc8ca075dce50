//! Printed output: its content, stream and width.

use crate::helpers::{Client, Ended, Folder, MIB, PROGRAM, Server, run, skipped, succeed};
use serde_json::Value;
use std::process::Command;

const COMMANDS: [&[&str]; 15] = [
    &[],
    &["serve"],
    &["put"],
    &["get"],
    &["bench"],
    &["doctor"],
    &["explain"],
    &["sim"],
    &["sim", "explore"],
    &["sim", "sweep"],
    &["sim", "replay"],
    &["sim", "minimize"],
    &["sim", "timeline"],
    &["sim", "variants"],
    &["topology"],
];
/// Commands of which nothing has a default.
const WITHOUT_DEFAULT: [&[&str]; 4] = [&[], &["sim"], &["sim", "replay"], &["sim", "minimize"]];
const ESCAPE: char = '\u{1b}';

/// Runs a shell line on a terminal of its own.
pub(crate) fn on_terminal(columns: u16, line: &str) -> Option<Ended> {
    if Command::new("script").arg("--version").output().is_err() {
        skipped("there is no program `script`, which makes a terminal");
        return None;
    }
    let mut command = Command::new("script");
    let folder = Folder::new();
    let line = format!("stty cols {columns} rows 24; {line}");
    command.args(["-qec", &line]).arg(folder.join("typescript")).env("TERM", "xterm");
    // The environment of the tests may switch colours off; the program's own choice is under test.
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(variable);
    }
    Some(Client::spawn(command).end())
}

/// The text of each line between two moves of the cursor, without escape sequences.
fn shown(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.split(['\r', '\n']) {
        let mut parts = line.split(ESCAPE);
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            // ESC [ parameters letter
            let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
            shown += &part[end..];
        }
        lines.push(shown);
    }
    lines
}

#[test]
fn a_bar_fits_its_terminal_and_is_gone_at_the_end() {
    let folder = Folder::new();
    let file = folder.sparse("file", 256 * MIB);
    let server = Server::start(&["--memory", "256M"]);
    for columns in [20, 40, 80, 200] {
        let line = format!("'{PROGRAM}' put '{file}' {}", server.at("memory"));
        let Some(ended) = on_terminal(columns, &line) else { return };
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let lines = shown(&ended.output);
        let (result, bars): (Vec<_>, Vec<_>) =
            lines.iter().partition(|line| line.contains("verified"));
        assert_eq!(result.len(), 1, "{lines:?}");
        let bars: Vec<_> = bars.iter().filter(|line| line.starts_with("put ")).collect();
        assert!(!bars.is_empty(), "no bar at {columns} columns: {lines:?}");
        for bar in bars {
            assert!(bar.chars().count() <= columns.into(), "too wide for {columns}: {bar:?}");
        }
        let before_result = ended.output.split("put 268435456").next().unwrap();
        assert!(before_result.contains("\u{1b}[2K"), "the bar is cleared: {before_result:?}");
    }
}

#[test]
fn without_a_terminal_there_is_one_plain_line_and_nothing_else() {
    let folder = Folder::new();
    let file = folder.patterned("file", MIB, 0);
    let server = Server::start(&["--transport", "tcp"]);
    let output = succeed(&["put", &file, &server.at("memory:1M")]);
    assert_eq!(output.lines().count(), 1, "{output:?}");
    let start = format!("put 1048576 bytes over tcp, {}", server.address);
    assert!(output.starts_with(&start), "{output:?}");
    assert!(output.ends_with(" verified\n") && !output.contains(ESCAPE), "{output:?}");
    let output = succeed(&["get", &server.at("memory:1M,1M"), &folder.name("copy"), "--no-verify"]);
    assert!(
        output.starts_with("get 1048576 bytes over tcp, ") && output.ends_with(" not verified\n")
    );
}

/// A program with RDMA reports the same on a machine without a device.
#[test]
fn missing_rdma_is_an_error_and_auto_falls_back() {
    if !handfast_has_no_rdma() {
        return;
    }
    let folder = Folder::new();
    let file = folder.patterned("file", 10_000, 0);
    let server = Server::start(&[]);
    for command in ["put", "bench"] {
        let words: &[&str] = if command == "put" { &[&file, &server.address] } else { &[] };
        let ended = run(&[&[command], words, &["--transport", "rdma"]].concat());
        ended.failed(13, &["opening an RDMA device failed", "our side", "`--transport tcp`"]);
    }
    let ended = run(&["put", &file, &server.address, "--json", "--transport", "auto"]).done();
    assert_eq!(ended.errors, "", "nothing is lost on a machine without RDMA");
    let result: Value = serde_json::from_str(&ended.output).unwrap();
    let fallback = &result["fallbacks"][0];
    assert!(["tcp", "shm"].iter().any(|kind| result["transport"] == *kind), "{result}");
    assert_eq!(fallback["side"], "local");
    for part in ["stage", "cause", "cure"] {
        assert!(fallback[part].is_string(), "'{part}' is missing in: {result}");
    }
}

fn handfast_has_no_rdma() -> bool {
    let available = handfast_transport_rdma::availability();
    if available.is_ok() {
        skipped("this machine has an RDMA device");
    }
    available.is_err()
}

#[test]
fn json_is_one_line_with_the_result() {
    let folder = Folder::new();
    let file = folder.patterned("file", 10_000, 0);
    let server = Server::start(&[]);
    let output = succeed(&["put", &file, &server.at("memory:5"), "--json"]);
    assert_eq!(output.lines().count(), 1, "{output:?}");
    let result: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(result["operation"], "put");
    assert_eq!(result["segment"], server.at("memory"));
    assert_eq!((&result["offset"], &result["bytes"]), (&5.into(), &10_000.into()));
    assert_eq!(result["verified"], true);
    assert!(result["milliseconds"].is_u64());
    let got = succeed(&["get", &server.at("memory:5,10000"), &folder.name("copy"), "--json"]);
    let got: Value = serde_json::from_str(&got).unwrap();
    assert_eq!((&got["operation"], &got["crc32c"]), (&"get".into(), &result["crc32c"]));
}

#[test]
fn each_v_tells_more() {
    let folder = Folder::new();
    let file = folder.patterned("file", 10_000, 0);
    let server = Server::start(&[]);
    let lines = |option: &str| {
        let ended = run(&["put", &file, &server.at("memory"), option]).done();
        assert!(!ended.errors.contains(ESCAPE), "{ended:?}");
        ended.errors.lines().count()
    };
    let quiet = lines("--json");
    let (one, two) = (lines("-v"), lines("-vv"));
    assert!(quiet == 0 && one > 0 && two > one, "{quiet}, {one}, {two} lines");
}

#[test]
fn help_fits_terminal_with_examples_and_exit_codes() {
    for command in COMMANDS {
        for (columns, widest) in [("80", 80), ("40", 40)] {
            let arguments = [command, &["--help"]].concat();
            let mut process = Command::new(PROGRAM);
            let output = process.args(&arguments).env("COLUMNS", columns).output().unwrap();
            let help = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success() && !help.contains(ESCAPE), "{help}");
            for line in help.lines() {
                // A usage line is not broken, and neither is a word.
                let whole = line.starts_with("Usage:") || line.split_whitespace().count() == 1;
                let fits = line.chars().count() <= widest || (whole && widest < 80);
                assert!(fits, "{command:?} at {columns}: {line}");
            }
            assert!(help.contains("Exit codes:") && help.contains("  handfast "), "{help}");
            let bare = WITHOUT_DEFAULT.contains(&command);
            assert!(bare || help.contains("[default: "), "{help}");
        }
    }
}

#[test]
fn no_color_is_respected_on_a_terminal() {
    let folder = Folder::new();
    let file = folder.patterned("file", 10_000, 0);
    let server = Server::start(&[]);
    for what in ["--help".to_owned(), format!("put '{file}' {} -v --json", server.at("memory"))] {
        let line = format!("'{PROGRAM}' {what}");
        let Some(colored) = on_terminal(80, &line) else { return };
        assert!(colored.output.contains("\u{1b}["), "{colored:?}");
        let plain = on_terminal(80, &format!("NO_COLOR=1 {line}")).unwrap().done();
        assert!(!plain.output.contains(ESCAPE), "{plain:?}");
    }
}
