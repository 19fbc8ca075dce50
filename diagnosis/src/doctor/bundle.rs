//! A document with everything that others need to analyse a problem, without secrets and names.

use super::facts::Tree;
use super::probes::{is_foreign, without_user};
use super::{Facts, Outside, Report, Request};
use crate::language::Language;
use redact::{Redactor, Secret};
use serde_json::{Map, Value, json};
use std::time::Duration;

mod redact;

/// Version of the document's form.
pub const BUNDLE: u32 = 1;
/// Interval between two readings of the counters.
const COUNTERS_APART: Duration = Duration::from_secs(1);
/// Maximum lines of the kernel's log; the last ones are kept.
const LOG_LINES_MAX: usize = 200;
/// Maximum counters of one device.
const COUNTERS_MAX: usize = 512;
/// Words that mark lines of the kernel's log about RDMA and its network.
const LOG_WORDS: [&str; 14] = [
    "rdma",
    "infiniband",
    "ib_",
    "mlx",
    "irdma",
    "bnxt",
    "erdma",
    "efa",
    "rxe",
    "siw",
    "roce",
    "uverbs",
    "aer:",
    "link",
];
/// The other environment variables of interest.
const VARIABLES: [&str; 6] =
    ["CI", "LANG", "LC_ALL", "KUBERNETES_SERVICE_HOST", "LD_LIBRARY_PATH", "RUST_LOG"];

/// Returns the document. Passwords and tokens are omitted; hosts and addresses are replaced, equal
/// ones alike.
pub fn bundle(report: &Report, facts: &Facts, request: &Request, outside: &dyn Outside) -> Value {
    let tree = Tree(&request.root);
    let before = counters(&tree, facts);
    outside.pause(COUNTERS_APART);
    let after = counters(&tree, facts);
    let mut told = json!(facts);
    // The other annotations of a pod are private.
    told["annotations"] = json!(facts.annotations.len());
    let mut asked = json!(request);
    if let Some(address) = &request.metadata {
        asked["metadata"] = without_user(address).into();
    }
    let mut document = json!({
        "bundle": BUNDLE,
        "program": {
            "version": report.version,
            "verbs_library": format!("{:?}", request.verbs_library),
            "machine": std::env::consts::ARCH,
            "system": std::env::consts::OS,
        },
        "asked": asked,
        "report": report.json(Language::English),
        "facts": told,
        "devices": details(&tree, facts),
        "counters": { "apart_ms": 1_000, "before": before, "after": after },
        "environment": environment(request),
        "kernel_log": log(outside),
    });
    let hosts = [Some(report.host.as_str()), report.peer()];
    let redactor = Redactor::new(hosts.into_iter().flatten()).hiding(secrets_asked(request));
    redactor.naming(hosts_asked(request)).redact(&mut document);
    document
}

/// The users of the addresses that the request and its variables have, as texts may repeat them.
fn secrets_asked(request: &Request) -> Vec<Secret> {
    let told = request.environment.iter().filter(|(name, _)| is_told(name));
    let asked = request.metadata.iter().chain(told.map(|(_, value)| value));
    asked.flat_map(|text| redact::secrets_of(text)).collect()
}

/// The hosts that the request names, and those in the variables that the bundle has: also where a value is cut.
fn hosts_asked(request: &Request) -> Vec<String> {
    let Request { listen, advertise, peer, metadata, segment, .. } = request;
    let asked = [listen, advertise, peer, metadata, segment].into_iter().flatten();
    // A password with a blank seems to end the address of its user.
    let texts = asked.flat_map(|text| [text.clone(), without_user(text)]);
    let mut hosts: Vec<String> = texts.flat_map(|text| redact::hosts_of(&text)).collect();
    for (name, value) in request.environment.iter().filter(|(name, _)| is_told(name)) {
        let told = redact::value_of(name, value);
        if told != redact::LEFT_OUT {
            hosts.extend(redact::hosts_in(value));
            hosts.extend(redact::hosts_in(&without_user(value)));
            hosts.extend(redact::hosts_in(&told));
        }
    }
    hosts
}

/// Returns the sysfs attributes of each device except its ports.
fn details(tree: &Tree<'_>, facts: &Facts) -> Value {
    let details = facts.devices.iter().map(|device| {
        let folder = format!("sys/class/infiniband/{}", device.name);
        let line = |name: &str| tree.line(&format!("{folder}/{name}"));
        let ports = device.ports.iter().map(|port| {
            json!({ "number": port.number, "rate": line(&format!("ports/{}/rate", port.number)) })
        });
        let value = json!({
            "firmware": line("fw_ver"),
            "board": line("board_id"),
            "kind": line("hca_type"),
            "processor_node": line("device/numa_node"),
            "ports": ports.collect::<Vec<_>>(),
        });
        (device.name.clone(), value)
    });
    Value::Object(details.collect())
}

/// Returns all counters, by device, port and name.
fn counters(tree: &Tree<'_>, facts: &Facts) -> Value {
    let mut all = Map::new();
    for device in &facts.devices {
        let mut found = Map::new();
        for port in &device.ports {
            for kind in ["counters", "hw_counters"] {
                let folder =
                    format!("sys/class/infiniband/{}/ports/{}/{kind}", device.name, port.number);
                for name in tree.names(&folder).into_iter().take(COUNTERS_MAX) {
                    let value = tree.number(&format!("{folder}/{name}"));
                    found.insert(format!("{}/{name}", port.number), value.into());
                }
            }
        }
        all.insert(device.name.clone(), found.into());
    }
    Value::Object(all)
}

/// Whether the value of a variable is in the document.
fn is_told(name: &str) -> bool {
    is_foreign(name) || VARIABLES.contains(&name)
}

fn environment(request: &Request) -> Value {
    let told = request.environment.iter().filter(|(name, _)| is_told(name));
    Value::Object(
        told.map(|(name, value)| (name.clone(), redact::value_of(name, value).into())).collect(),
    )
}

/// Returns null if the log may not be read.
fn log(outside: &dyn Outside) -> Value {
    let Some(log) = outside.kernel_log() else { return Value::Null };
    let is_told = |line: &&str| {
        let line = line.to_lowercase();
        LOG_WORDS.iter().any(|word| line.contains(word))
    };
    let lines: Vec<&str> = log.lines().filter(is_told).collect();
    json!(&lines[lines.len().saturating_sub(LOG_LINES_MAX)..])
}
