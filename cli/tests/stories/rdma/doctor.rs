//! Faults that are planted on a real driver, found by `handfast doctor`, and cured by the command
//! that it shows.

use crate::helpers::{Server, run};
use crate::planted::{command, cured, done, found, shell};
use crate::rdma_engine::guest;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpListener;

/// A NIC of the story's own, so that it disturbs no other.
const DEVICE: &str = "rxe7";
const INTERFACE: &str = "fault0";
const ADDRESS: &str = "10.7.0.1";
/// A machine of which all is emulated takes this long to show what was done to it.
const DOCTOR: [&str; 6] = ["doctor", "--json", "--once", "--transport", "rdma", "--device"];

fn line(more: &str) -> String {
    format!("handfast {} {DEVICE} {more}", DOCTOR.join(" "))
}

/// Soft-RoCE of the running kernel is as its profile says, in everything that a profile assumes.
#[test]
fn soft_roce_proves_its_profile() {
    let Some(()) = guest() else { return };
    let ended = run(&["doctor", "--prove", "--device", "rxe0,rxe1", "--json"]);
    let report: Value = serde_json::from_str(&ended.output).unwrap_or_else(|_| panic!("{ended:?}"));
    let of = |verdict: &str| -> Vec<&str> {
        let measured = report["assumptions"].as_array().unwrap().iter();
        let measured = measured.filter(|measured| measured["verdict"] == verdict);
        measured.map(|measured| measured["key"].as_str().unwrap()).collect()
    };
    assert_eq!(report["devices"]["requester"]["profile"], "rxe");
    assert_eq!(of("differs"), [""; 0], "{report:#}");
    assert!(of("agrees").len() >= 12, "{report:#}");
    assert_eq!(ended.code, Some(0), "{report:#}");
}

#[test]
fn planted_faults_are_found_and_each_is_cured_by_its_own_remedy() {
    let Some(()) = guest() else { return };
    done(&format!(
        "ip link add {INTERFACE} type veth peer name fault1 && ip link set fault1 up && \
         ip link set {INTERFACE} up && rdma link add {DEVICE} type rxe netdev {INTERFACE}"
    ));
    no_address();
    link_down();
    wrong_device();
    fixed_mtu();
    little_locked_memory();
    node_missing();
    port_in_use();
    told_any_address();
    proxy_set();
    done(&format!("rdma link delete {DEVICE} && ip link delete {INTERFACE}"));
}

fn no_address() {
    let finding = found("IP-MISSING", &line(""));
    // The user's choice.
    done(&command(&finding).replace("ADDRESS/PREFIX", &format!("{ADDRESS}/24")));
    cured("IP-MISSING", &line(""));
}

fn link_down() {
    done(&format!("ip link set {INTERFACE} down"));
    let finding = found("PORT-DOWN", &line(""));
    assert_eq!(finding["severity"], "fatal", "it is the device that was asked for");
    done(&command(&finding));
    cured("PORT-DOWN", &line(""));
}

fn wrong_device() {
    let finding = found("DEV-NAME", "handfast doctor --json --transport rdma --device rxe77");
    let command = command(&finding);
    assert_eq!(command, format!("handfast doctor --device {DEVICE}"));
    done(&command);
}

fn fixed_mtu() {
    let fixed = format!("MC_MTU=4096 {}", line(""));
    done(&command(&found("MTU-OVER-ACTIVE", &fixed)));
    cured("MTU-OVER-ACTIVE", &fixed);
}

fn little_locked_memory() {
    let under = |limits: &str| {
        format!("setpriv --bounding-set=-ipc_lock sh -c '{limits}; exec {}'", line(""))
    };
    let finding = found("LIM-MEMLOCK", &under("ulimit -l 64"));
    assert_eq!(finding["severity"], "fatal");
    cured("LIM-MEMLOCK", &under(&format!("ulimit -l 64; {}", command(&finding))));
}

fn node_missing() {
    let report: Value = serde_json::from_str(&shell(&line("")).output).unwrap();
    let devices = report["devices"].as_array().unwrap();
    let device = devices.iter().find(|device| device["name"] == DEVICE).unwrap();
    done(&format!("rm /dev/infiniband/{}", device["node"].as_str().unwrap()));
    done(&command(&found("DEV-NODE", &line(""))));
    cured("DEV-NODE", &line(""));
}

fn port_in_use() {
    let server = Server::start_at(&format!("{ADDRESS}:0"), &["--memory", "m=1M"]);
    let line = line(&format!("--listen {}", server.address));
    done(&command(&found("PORT-IN-USE", &line)));
    cured("PORT-IN-USE", &line);
}

fn told_any_address() {
    let finding = found("NET-LOOPBACK", &line("--listen 0.0.0.0:7555"));
    let options = command(&finding).replace("handfast serve", "");
    cured("NET-LOOPBACK", &line(&options));
}

fn proxy_set() {
    let listener = TcpListener::bind((ADDRESS, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let body = r#"{"etcdserver":"3.5.9","health":"true","members":[]}"#;
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 1024]);
            let _ = write!(stream, "HTTP/1.1 200 OK\r\n\r\n{body}");
        }
    });
    let asked = line(&format!("--metadata etcd://{address}"));
    let proxied = |before: &str| format!("export http_proxy=http://10.7.0.9:3128; {before}{asked}");
    let finding = found("PROXY-SET", &proxied(""));
    cured("PROXY-SET", &proxied(&format!("{}; ", command(&finding))));
}
