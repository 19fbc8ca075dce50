//! Faults that are planted, found by a line of the shell that runs the doctor, and cured by another:
//! the command of the finding, as it stands.

use crate::doctor::{findings, ids};
use crate::helpers::{Client, Ended, PROGRAM, until};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Runs a line of the shell, with `handfast` found as a command.
pub(crate) fn shell(line: &str) -> Ended {
    let folder = Path::new(PROGRAM).parent().unwrap().to_str().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("PATH={folder}:$PATH; {line}")]);
    Client::spawn(command).end()
}

/// Runs one that must succeed.
#[track_caller]
pub(crate) fn done(line: &str) {
    let ended = shell(line);
    assert_eq!(ended.code, Some(0), "{line}: {ended:?}");
}

/// The finding of an id in what a line of the shell prints.
#[track_caller]
pub(crate) fn found(id: &str, line: &str) -> Value {
    let ended = shell(line);
    let all = findings(&ended.output);
    let finding = all.iter().find(|finding| finding["id"] == id);
    finding.unwrap_or_else(|| panic!("no {id}: {ended:?}")).clone()
}

/// Waits until the id is no longer found, and nothing fatal is.
#[track_caller]
pub(crate) fn cured(id: &str, line: &str) {
    until(&format!("{id} is cured"), || {
        let ended = shell(line);
        ended.code == Some(0) && !ids(&ended.output).iter().any(|found| found == id)
    });
}

/// Its remedy.
pub(crate) fn command(finding: &Value) -> String {
    finding["command"].as_str().unwrap().to_owned()
}
