//! Two doctors with a NIC each: what is spoiled on one host is found from the other, which names the
//! side at fault, and is cured there by the command of the finding.

use crate::doctor::{answering_of, findings, ids};
use crate::helpers::PROGRAM;
use crate::meeting::{Other, host};
use crate::planted::{command, cured, done, found, shell};
use serde_json::Value;
use std::process::Command;

const PEER: &str = "10.0.0.2:7412";
const LOOK: &str = "handfast doctor --json --once --transport rdma --peer 10.0.0.2:7412";
const LOOK_HERE: &str = "handfast doctor --json --once --transport rdma --device rxe0";
/// The last command.
const END: &str = "end";
const DONE: &str = "done";

/// Comes before the other story of two hosts, which ends with one of them cut off.
#[test]
fn doctors_of_two_hosts_name_the_side_at_fault() {
    let Some(host) = host() else { return };
    let mut other = Other::meet(host);
    if host == 1 {
        return obey(&mut other);
    }
    other.both("answering");
    nothing_is_wrong();
    unequal_mtus(&mut other);
    filtered_packets(&mut other);
    other.tell(END);
    module_missing();
}

/// Runs the commands of the other host.
fn obey(other: &mut Other) {
    let (_process, _) = answering_of(Command::new(PROGRAM), PEER, "rdma");
    other.both("answering");
    loop {
        let line = other.hear();
        if line == END {
            return;
        }
        let ended = shell(&line);
        other.tell(if ended.code == Some(0) { DONE } else { ended.errors.trim() });
    }
}

/// Has a line run at the other host.
#[track_caller]
fn there(other: &mut Other, line: &str) {
    other.tell(line);
    assert_eq!(other.hear(), DONE, "{line}");
}

fn nothing_is_wrong() {
    let ended = shell(LOOK).done();
    let report: Value = serde_json::from_str(&ended.output).unwrap();
    assert!(report["halves"]["there"]["lane_port"].is_u64(), "{report}");
    let checks = report["checks"].as_array().unwrap();
    let lane = checks.iter().find(|check| check["name"] == "lane").unwrap();
    assert_eq!(lane["outcome"], "passed", "{lane}");
    let found = ids(&ended.output);
    assert!(!found.iter().any(|id| id.starts_with("MTU") || id.starts_with("ROCE")), "{found:?}");
}

fn unequal_mtus(other: &mut Other) {
    there(other, "ip link set eth0 mtu 4200");
    let finding = found("MTU-MISMATCH", LOOK);
    assert_eq!(finding["side"], "local", "{finding}");
    done(&command(&finding));
    cured("MTU-MISMATCH", LOOK);
    there(other, "ip link set eth0 mtu 1500");
    let finding = found("MTU-MISMATCH", LOOK);
    assert_eq!(finding["side"], "remote", "{finding}");
    there(other, &command(&finding));
    cured("MTU-MISMATCH", LOOK);
}

/// Of RDMA's packets alone, before what is the host's own is taken in.
fn filtered_packets(other: &mut Other) {
    there(other, "ip rule add pref 100 lookup local && ip rule del pref 0");
    there(other, "ip rule add pref 1 ipproto udp dport 4791 blackhole");
    let ended = shell(LOOK);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let all = findings(&ended.output);
    let fatal: Vec<_> = all.iter().filter(|finding| finding["severity"] == "fatal").collect();
    assert_eq!(fatal.len(), 1, "{fatal:?}");
    assert_eq!(fatal[0]["id"], "ROCE-UDP-FILTERED", "{fatal:?}");
    there(other, "ip rule del pref 1");
    cured("ROCE-UDP-FILTERED", LOOK);
}

fn module_missing() {
    done("rdma link delete rxe0 && rmmod rdma_rxe");
    done(&command(&found("MOD-MISSING", LOOK_HERE)));
    // A device of this kind is made by hand: that is what is left to be found.
    done(&command(&found("HW-PCI-ABSENT", LOOK_HERE)));
    cured("HW-PCI-ABSENT", LOOK_HERE);
}
