//! Searches a machine for the problems of the catalogue.
//!
//! The kernel's facts are read once, below a root that tests choose ([`Facts`]); all other queries
//! go through [`Outside`]. Probes form a graph: the consequences of a found cause are skipped, and
//! the report names the cause. The doctor changes nothing.

mod bulk;
mod bundle;
mod compare;
mod datagrams;
mod exchange;
mod facts;
mod finding;
mod observed;
mod outside;
mod probes;
mod report;
mod timed;

pub use bulk::{BULK_BYTES_MAX, BULK_TIME, loopback_mbps};
pub use bundle::{BUNDLE, bundle};
pub use datagrams::{
    Answerer, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, DATAGRAM_MAGIC, DATAGRAM_TRIES,
    DATAGRAM_WAIT, ROCE_PORT, answer_to, length_of_question,
};
pub use exchange::{
    ExchangeError, FRAME_BYTES_MAX, HEADER_BYTES, Half, Halves, MAGIC, Question, encode, read_half,
    read_question, tell_bytes, tell_half,
};
pub use facts::{Card, Device, Facts, Gid, Interface, Limits, Listener, Neighbour, Port, Route};
pub use finding::Finding;
pub use observed::Observed;
pub(crate) use observed::said;
pub use outside::{
    ANSWER_MAX, AskFailure, CONNECT_MAX, Channel, Encrypt, LANE_BYTES, LaneFailure, LaneStep,
    Lanes, Outside, QUESTION_MAX, ThisMachine,
};
pub use report::{Check, Outcome, Report};
pub use timed::Timed;

use crate::problem::{Id, Severity, Side, Text};
use exchange::Told;
use probes::PROBES;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

/// The transport that the user wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Wanted {
    /// TCP only; probes of RDMA are omitted.
    Tcp,
    /// RDMA if it works.
    #[default]
    Auto,
    /// RDMA only; obstacles to it are fatal.
    Rdma,
}

/// The state of this process's verbs library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Library {
    /// This program was built without RDMA.
    #[default]
    NotBuilt,
    /// The library cannot be loaded; contains the loader's message.
    Missing(String),
    /// The library lists these devices.
    Devices(Vec<String>),
}

/// The class of a node's RDMA packets, by which a fabric chooses their queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PacketClass {
    /// Traffic class; on Ethernet the DSCP times four.
    pub traffic_class: u8,
    /// Service level: the virtual lane on InfiniBand, the priority of tagged frames on Ethernet.
    pub service_level: u8,
}

/// The subject of a run: the options of `serve`, and the peer to compare with.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Request {
    /// The wanted transport.
    #[serde(rename = "transport")]
    pub wanted: Wanted,
    /// RDMA devices to check, by name; empty for all.
    pub devices: Vec<String>,
    /// The address of the device to use.
    pub gid: Option<IpAddr>,
    /// The class of the node's RDMA packets.
    pub packets: PacketClass,
    /// Queue pairs of every device connect through the connection manager.
    pub connection_manager: bool,
    /// `HOST:PORT` to listen on.
    pub listen: Option<String>,
    /// `HOST` or `HOST:PORT` advertised to peers.
    pub advertise: Option<String>,
    /// The address of another doctor, `HOST:PORT`.
    pub peer: Option<String>,
    /// The metadata service, such as `etcd://10.0.0.9:2379`.
    pub metadata: Option<String>,
    /// Name of the node whose entries in the service are checked.
    pub segment: Option<String>,
    /// Number of bytes to serve.
    pub memory_bytes: u64,
    /// The state of the verbs library.
    #[serde(skip)]
    pub verbs_library: Library,
    /// This host's name.
    #[serde(skip)]
    pub host: String,
    /// The environment.
    #[serde(skip)]
    pub environment: BTreeMap<String, String>,
    /// Root folder of all files to read.
    #[serde(skip)]
    pub root: PathBuf,
}

/// The input of a probe.
struct Context<'a> {
    facts: &'a Facts,
    request: &'a Request,
    outside: &'a dyn Outside,
    /// Devices with an earlier finding. Later probes skip them.
    broken: &'a BTreeMap<String, Id>,
    /// Both sides, once the other one has answered.
    halves: &'a mut Option<Box<Halves>>,
}

impl Context<'_> {
    /// The severity if RDMA is unavailable.
    fn without_rdma(&self) -> Severity {
        if self.request.wanted == Wanted::Rdma { Severity::Fatal } else { Severity::Degraded }
    }

    /// The severity if this device is unusable; lower if another one can replace it.
    fn without(&self, device: &str) -> Severity {
        let others = self.devices().any(|other| other.name != device && is_usable(other));
        if others { Severity::Degraded } else { self.without_rdma() }
    }

    /// The selected devices without a known problem.
    fn devices(&self) -> impl Iterator<Item = &Device> {
        let wanted = &self.request.devices;
        let is_any = !self.facts.devices.iter().any(|device| wanted.contains(&device.name));
        let devices = self.facts.devices.iter();
        devices.filter(move |device| {
            (is_any || wanted.contains(&device.name)) && !self.broken.contains_key(&device.name)
        })
    }

    /// These devices with their first port, the only one that lanes use.
    fn ports(&self) -> impl Iterator<Item = (&Device, &Port)> {
        self.devices().filter_map(|device| Some((device, device.ports.first()?)))
    }

    /// Whether the device's queue pairs connect through the connection manager.
    fn is_managed(&self, device: &Device) -> bool {
        device.refused.is_none() && (device.is_managed || self.request.connection_manager)
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.request.environment.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// Whether lanes over the device seem possible.
fn is_usable(device: &Device) -> bool {
    device.refused.is_none() && device.ports.first().is_some_and(Port::is_active)
}

/// The condition under which a probe applies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Applies {
    Always,
    /// Unless only TCP is wanted.
    ToRdma,
    /// As [`Applies::ToRdma`], if there is a device without a known problem.
    ToDevices,
    /// The following apply with an option, in order: `--peer`; `--peer`, unless only TCP is wanted;
    /// `--metadata`; `--segment` as well; `--listen` or `--advertise`.
    WithPeer,
    ToPeerOverRdma,
    WithMetadata,
    WithSegment,
    WithAddress,
}

struct Probe {
    name: &'static str,
    title: Text,
    applies: Applies,
    /// Probes that must not have found a preventing problem.
    after: &'static [&'static str],
    look: fn(&mut Context<'_>) -> Vec<Finding>,
}

/// Runs all probes in order.
pub fn examine(facts: &Facts, request: &Request, outside: &dyn Outside) -> Report {
    let mut broken = BTreeMap::new();
    let mut blocked: BTreeMap<&'static str, Id> = BTreeMap::new();
    let mut halves = None;
    let mut checks = Vec::new();
    for probe in PROBES {
        let outcome = match reason_to_skip(probe, facts, request, &broken, &blocked) {
            Some(Skip::NotAsked) => continue,
            Some(Skip::Because(id)) => {
                blocked.insert(probe.name, id);
                Outcome::Skipped { because: id }
            }
            None => {
                let mut context =
                    Context { facts, request, outside, broken: &broken, halves: &mut halves };
                let findings = (probe.look)(&mut context);
                for finding in findings.iter().filter(|finding| finding.prevents) {
                    match &finding.device {
                        Some(device) => broken.entry(device.clone()).or_insert(finding.id),
                        None => blocked.entry(probe.name).or_insert(finding.id),
                    };
                }
                Outcome::of(findings)
            }
        };
        checks.push(Check { name: probe.name, title: probe.title, outcome });
    }
    let mut report = Report {
        host: request.host.clone(),
        version: env!("CARGO_PKG_VERSION"),
        kernel: facts.kernel.clone(),
        halves,
        devices: facts.devices.clone(),
        packets: request.packets,
        checks,
    };
    let own = report.findings().filter(|finding| finding.side != Side::Remote);
    let own = own.map(Told::of).collect();
    if let Some(halves) = &mut report.halves {
        halves.here.findings = own;
    }
    report
}

/// Returns this side's report for another doctor.
pub fn half(facts: &Facts, report: &Report, unix_s: u64) -> Half {
    let findings = report.findings().map(Told::of).collect();
    Half { findings, ..Half::of(facts, &report.host, unix_s) }
}

enum Skip {
    NotAsked,
    Because(Id),
}

fn reason_to_skip(
    probe: &Probe,
    facts: &Facts,
    request: &Request,
    broken: &BTreeMap<String, Id>,
    blocked: &BTreeMap<&'static str, Id>,
) -> Option<Skip> {
    let over_rdma = request.wanted != Wanted::Tcp;
    let asked = match probe.applies {
        Applies::Always => true,
        Applies::ToRdma | Applies::ToDevices => over_rdma,
        Applies::WithPeer => request.peer.is_some(),
        Applies::ToPeerOverRdma => over_rdma && request.peer.is_some(),
        Applies::WithMetadata => request.metadata.is_some(),
        Applies::WithSegment => request.metadata.is_some() && request.segment.is_some(),
        Applies::WithAddress => request.listen.is_some() || request.advertise.is_some(),
    };
    if !asked {
        return Some(Skip::NotAsked);
    }
    if let Some(id) = probe.after.iter().find_map(|name| blocked.get(name)) {
        return Some(Skip::Because(*id));
    }
    if probe.applies == Applies::ToDevices {
        let sound: BTreeSet<_> =
            facts.devices.iter().filter(|device| !broken.contains_key(&device.name)).collect();
        let named = |device: &&&Device| {
            request.devices.is_empty() || request.devices.contains(&device.name)
        };
        if sound.iter().filter(named).count() == 0 {
            let of_named = request.devices.iter().find_map(|name| broken.get(name));
            let because = of_named.or_else(|| broken.values().next());
            return Some(because.map_or(Skip::NotAsked, |id| Skip::Because(*id)));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_comes_after_those_it_depends_on() {
        for (at, probe) in PROBES.iter().enumerate() {
            for name in probe.after {
                let earlier = PROBES[..at].iter().any(|earlier| earlier.name == *name);
                assert!(earlier, "{} comes before {name}", probe.name);
            }
            let twins = PROBES.iter().filter(|other| other.name == probe.name).count();
            assert_eq!(twins, 1, "{}", probe.name);
        }
    }
}
