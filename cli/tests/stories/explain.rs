//! `handfast explain` as users run it.

use crate::helpers::{Client, Ended, PROGRAM, contains, run, succeed};
use crate::output::on_terminal;
use serde_json::Value;
use std::fs::File;
use std::process::Command;

const STORM: &str = "\
E1121 09:32:00.000001  2240 worker_pool.cpp:300] Worker: Process failed for slice (peer_nic: b:1@mlx5_0): transport retry counter exceeded
E1121 09:32:00.000011  2240 worker_pool.cpp:300] Worker: Process failed for slice (peer_nic: b:1@mlx5_0): Work Request Flushed Error
E1121 09:32:00.000021  2240 worker_pool.cpp:300] Worker: Process failed for slice (peer_nic: b:1@mlx5_0): Work Request Flushed Error
";

/// With a log on standard input.
fn piped(log: &str, arguments: &[&str]) -> Ended {
    let folder = crate::helpers::Folder::new();
    std::fs::write(folder.join("log"), log).unwrap();
    let line = format!("'{PROGRAM}' explain {} < '{}'", arguments.join(" "), folder.name("log"));
    let mut command = Command::new("sh");
    command.args(["-c", &line]);
    Client::spawn(command).end()
}

#[test]
fn first_error_of_a_storm_is_explained() {
    let ended = piped(STORM, &["--lang", "en"]).done();
    contains(
        &ended.output,
        &[
            "WC-RETRY",
            "Line 1",
            "2 requests failed as a consequence",
            "Remedy",
            "$ handfast smoke",
            "Check",
            "unknown: ",
        ],
    );
    let json: Value = serde_json::from_str(&piped(STORM, &["--json"]).output).unwrap();
    assert_eq!((&json["first"]["id"], &json["flushed"]), (&"WC-RETRY".into(), &2.into()));
    assert_eq!(json["page"]["severity"], "fatal");
}

#[test]
fn a_page_is_printed_by_its_name_in_either_language() {
    let english = succeed(&["explain", "net-refused", "--lang", "en"]);
    assert!(english.contains("Nobody listens at the address"), "{english}");
    let chinese = succeed(&["explain", "[NET-REFUSED]", "--lang", "zh"]);
    assert!(chinese.contains("原因") && chinese.contains("没有程序在监听"), "{chinese}");
    let mut command = Command::new(PROGRAM);
    command
        .args(["explain", "NET-REFUSED"])
        .env("LANG", "zh_CN.UTF-8")
        .env_remove("LC_ALL")
        .env_remove("LC_MESSAGES");
    assert_eq!(Client::spawn(command).end().output, chinese);
}

#[test]
fn unknown_text_ends_with_3_and_the_nearest() {
    let ended = run(&["explain", "Faild to modfy QP to RTR", "--lang", "en"])
        .failed(3, &["not in the catalogue"]);
    assert!(ended.output.contains("Nearest") && ended.output.contains("QP-RTR"), "{ended:?}");
    run(&["explain", "all is well"]).failed(3, &[]);
    assert_eq!(run(&["explain", "--lang", "fr", "x"]).code, Some(2));
}

#[test]
fn a_log_of_bytes_that_are_no_text_is_read_to_its_end() {
    let folder = crate::helpers::Folder::new();
    let file = folder.patterned("log", 3 << 20, 9);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("'{PROGRAM}' explain < '{file}'")]);
    Client::spawn(command).end().failed(3, &[]);
    assert!(File::open(folder.join("log")).is_ok());
}

#[test]
fn pages_fit_the_terminal_and_have_colour_there_alone() {
    for columns in [40, 60, 140] {
        for language in ["en", "zh"] {
            let line = format!("'{PROGRAM}' explain QP-RTR --lang {language}");
            let Some(ended) = on_terminal(columns, &line) else { return };
            assert!(ended.output.contains("\u{1b}["), "{ended:?}");
            let plain = on_terminal(columns, &format!("NO_COLOR=1 {line}")).unwrap();
            assert!(!plain.output.contains('\u{1b}'), "{plain:?}");
            for shown in plain.output.lines() {
                let shown = shown.trim_end();
                // Wide characters take two columns each; a command is not broken.
                let wide = shown.chars().filter(|c| *c > '\u{2e7f}').count();
                let is_command = shown.trim_start().starts_with('$');
                let fits = shown.chars().count() + wide <= usize::from(columns) + 2;
                assert!(fits || is_command, "{columns}: {shown}");
            }
        }
    }
    assert!(!succeed(&["explain", "QP-RTR"]).contains('\u{1b}'));
}
