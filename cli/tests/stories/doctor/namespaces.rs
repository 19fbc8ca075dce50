//! Two doctors with a network between them that is spoiled on purpose: a namespace for each, and one
//! for the bridge that joins them.

use super::{answering_of, doctor_of, findings};
use crate::helpers::{Ended, PROGRAM, Process, skipped, until};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The two hosts; the bridge is `m`.
const HOSTS: [&str; 2] = ["a", "b"];
const ADDRESS: &str = "10.77.0.2";
const PORT: u16 = 7412;
/// Of both hosts' interfaces.
const MTU: u32 = 9_000;

/// Namespaces of a story's own, which go with it.
struct Network(String);

impl Drop for Network {
    fn drop(&mut self) {
        for part in ["a", "b", "m"] {
            // It is not there only where making it has failed.
            let _ = ip(&format!("netns del {}", self.name(part)));
        }
    }
}

fn ip(words: &str) -> std::io::Result<Output> {
    Command::new("ip").args(words.split(' ')).output()
}

/// Runs a command of `ip` that must succeed.
#[track_caller]
fn done(words: &str) {
    let output = ip(words).unwrap();
    assert!(output.status.success(), "ip {words}: {output:?}");
}

impl Network {
    /// A sound network; none, and said so, where namespaces may not be made.
    fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let network = Self(format!("hf{}n{number}", std::process::id()));
        let bridge = network.name("m");
        match ip(&format!("netns add {bridge}")) {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                skipped(&format!("network namespaces cannot be made: {words}"));
                return None;
            }
            Err(error) => {
                skipped(&format!("there is no `ip`: {error}"));
                return None;
            }
        }
        done(&format!("-n {bridge} link add bridge type bridge"));
        done(&format!("-n {bridge} link set bridge up"));
        for (host, last) in HOSTS.into_iter().zip(1..) {
            let name = network.name(host);
            done(&format!("netns add {name}"));
            done(&format!("-n {name} link add eth0 type veth peer name to-{host} netns {bridge}"));
            done(&format!("-n {name} address add 10.77.0.{last}/24 dev eth0"));
            if Path::new("/proc/net/if_inet6").exists() {
                done(&format!("-n {name} address add fd77::{last}/64 dev eth0 nodad"));
            }
            done(&format!("-n {name} link set eth0 up mtu {MTU}"));
            done(&format!("-n {name} link set lo up"));
            done(&format!("-n {bridge} link set to-{host} master bridge up mtu {MTU}"));
        }
        // The kernel reports a new link within a second, later on a busy machine.
        for host in HOSTS {
            until("the bridge forwards", || {
                let port = ip(&format!("-n {bridge} -d link show to-{host}")).unwrap();
                String::from_utf8_lossy(&port.stdout).contains("state forwarding")
            });
        }
        // Before what is this host's own is taken in, as what filters is.
        let host = network.name("b");
        done(&format!("-n {host} rule add pref 100 lookup local"));
        done(&format!("-n {host} rule del pref 0"));
        Some(network)
    }

    fn name(&self, part: &str) -> String {
        format!("{}{part}", self.0)
    }

    /// Of the bridge's ends.
    fn set_bridge_mtu(&self, mtu: u32) {
        for host in HOSTS {
            done(&format!("-n {} link set to-{host} mtu {mtu}", self.name("m")));
        }
    }

    /// Drops what comes to a port of host b.
    fn drop_at(&self, protocol: &str, port: u16) {
        let host = self.name("b");
        done(&format!("-n {host} rule add pref 1 ipproto {protocol} dport {port} blackhole"));
    }

    /// A command on one of the hosts.
    fn on(&self, host: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(host), PROGRAM]);
        // `CI` would change the severity of the planted problem.
        command.env_remove("CI");
        command
    }

    /// A doctor on host b that answers.
    fn answering(&self) -> (Process, String) {
        answering_of(self.on("b"), &format!("{ADDRESS}:{PORT}"), "tcp")
    }

    /// The comparison by host a's doctor.
    fn compared(&self) -> Ended {
        doctor_of(self.on("a"), &["--transport", "auto", "--peer", &format!("{ADDRESS}:{PORT}")])
    }
}

/// The findings about the path between the two, without the rate, which a busy machine cannot
/// judge.
#[track_caller]
fn way(ended: &Ended) -> Vec<Value> {
    let report: Value = serde_json::from_str(&ended.output).unwrap();
    let mut checks = report["checks"].as_array().unwrap().iter();
    let way = checks.find(|check| check["name"] == "way").expect("the peer was asked");
    assert_ne!(way["outcome"], "skipped", "{report}");
    let found = way["findings"].as_array().unwrap().iter();
    let is_told = |finding: &&Value| {
        (&finding["id"], &finding["severity"]) != (&"PERF-LOW".into(), &"cannot-tell".into())
    };
    found.filter(is_told).cloned().collect()
}

/// The one thing that was found on the way.
#[track_caller]
fn one(ended: &Ended) -> Value {
    let found = way(ended);
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().unwrap()
}

#[test]
fn two_hosts_with_a_sound_network_between_them_get_no_complaint() {
    let Some(network) = Network::new() else { return };
    let (_process, address) = network.answering();
    assert_eq!(address, format!("{ADDRESS}:{PORT}"));
    let ended = network.compared();
    assert_eq!((ended.code, way(&ended)), (Some(0), vec![]), "{ended:?}");
    let report: Value = serde_json::from_str(&ended.output).unwrap();
    let there = &report["halves"]["there"];
    assert_eq!(there["datagram_ports"], serde_json::json!([PORT, 4791]), "{there}");
    assert!(there["addresses"].as_array().unwrap().contains(&ADDRESS.into()), "{there}");
}

#[test]
fn a_bridge_that_swallows_long_packets_is_found_from_both_ends() {
    let Some(network) = Network::new() else { return };
    let (_process, _) = network.answering();
    network.set_bridge_mtu(1_500);
    let found = one(&network.compared());
    assert_eq!((&found["id"], &found["side"]), (&"MTU-BLACKHOLE".into(), &"unknown".into()));
    let command = found["command"].as_str().unwrap();
    assert_eq!(command, format!("ping -M do -s {} -c 3 -I eth0 {ADDRESS}", MTU - 28));
    // Its own remedy: the MTU in between is raised.
    network.set_bridge_mtu(MTU);
    assert_eq!(way(&network.compared()), [] as [Value; 0]);
    let (_process, _) = answering_of(network.on("a"), "10.77.0.1:7412", "tcp");
    network.set_bridge_mtu(1_500);
    let back = doctor_of(network.on("b"), &["--transport", "tcp", "--peer", "10.77.0.1:7412"]);
    assert_eq!(one(&back)["id"], "MTU-BLACKHOLE");
}

#[test]
fn ipv6_path_mtu_and_blocked_roce_port_are_found() {
    let Some(network) = Network::new() else { return };
    if !Path::new("/proc/net/if_inet6").exists() {
        return skipped("this kernel has no IPv6");
    }
    let address = format!("[fd77::2]:{PORT}");
    let (_process, _) = answering_of(network.on("b"), &address, "tcp");
    let compared = || doctor_of(network.on("a"), &["--transport", "auto", "--peer", &address]);
    assert_eq!(way(&compared()), [] as [Value; 0]);
    network.set_bridge_mtu(1_500);
    let found = one(&compared());
    assert_eq!(found["id"], "MTU-BLACKHOLE", "{found}");
    let command = format!("ping -M do -s {} -c 3 -I eth0 fd77::2", MTU - 48);
    assert_eq!(found["command"].as_str(), Some(&*command));
    network.set_bridge_mtu(MTU);
    let host = network.name("b");
    done(&format!("-6 -n {host} rule add pref 100 lookup local"));
    done(&format!("-6 -n {host} rule del pref 0"));
    done(&format!("-6 -n {host} rule add pref 1 ipproto udp dport 4791 blackhole"));
    assert_eq!(one(&compared())["id"], "ROCE-UDP-FILTERED");
}

#[test]
fn a_filter_that_drops_roces_port_alone_is_found() {
    let Some(network) = Network::new() else { return };
    let (_process, _) = network.answering();
    network.drop_at("udp", 4791);
    assert_eq!(one(&network.compared())["id"], "ROCE-UDP-FILTERED");
    // All of UDP.
    network.drop_at("udp", PORT);
    let found = one(&network.compared());
    assert_eq!(
        (&found["id"], &found["severity"]),
        (&"MTU-BLACKHOLE".into(), &"cannot-tell".into())
    );
}

#[test]
fn filtered_port_differs_from_closed_port() {
    let Some(network) = Network::new() else { return };
    let ids = |ended: &Ended| -> Vec<String> {
        let found = findings(&ended.output).into_iter();
        found.map(|finding| finding["id"].as_str().unwrap().to_owned()).collect()
    };
    let ended = network.compared();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ids(&ended).contains(&"NET-REFUSED".to_owned()), "{ended:?}");
    let (_process, _) = network.answering();
    network.drop_at("tcp", PORT);
    let ended = network.compared();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ids(&ended).contains(&"NET-FILTERED".to_owned()), "{ended:?}");
}

#[test]
fn a_link_that_is_slowed_down_is_found() {
    let Some(network) = Network::new() else { return };
    let (_process, _) = network.answering();
    let mut slow = Command::new("ip");
    slow.args(["netns", "exec", &network.name("b"), "tc", "qdisc", "add", "dev", "eth0", "root"]);
    slow.args(["tbf", "rate", "20mbit", "burst", "32k", "latency", "400ms"]);
    match slow.stderr(Stdio::null()).status() {
        Ok(status) if status.success() => {}
        _ => return skipped("this kernel cannot slow a link down (tc tbf)"),
    }
    // A host that is too busy to measure itself cannot judge the link.
    let mut compared = network.compared();
    for _ in 0..10 {
        if !way(&compared).is_empty() {
            break;
        }
        compared = network.compared();
    }
    let found = one(&compared);
    assert_eq!((&found["id"], &found["severity"]), (&"PERF-LOW".into(), &"degraded".into()));
    assert!(found["observed"].as_str().unwrap().contains("links of 10000 Mb/s"), "{found}");
}
