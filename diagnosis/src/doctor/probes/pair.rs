//! The other host: whether it answers, and how the two fit together.

use super::addresses::reachable;
use super::names::{addresses_of, split};
use crate::doctor::exchange::{FRAME_BYTES_MAX, HEADER_BYTES, Half, encode, read_half};
use crate::doctor::facts::is_reached;
use crate::doctor::{AskFailure, Context, Device, Finding};
use crate::problem::{Id, Severity, Side};
use crate::{ids, of_call};
use std::net::{IpAddr, SocketAddr};

/// A difference of the clocks that is no matter of the network.
const CLOCKS_APART_S: u64 = 5;
/// Where doctors answer if the port is not said.
const PORT_DEFAULT: u16 = 7_411;

pub(super) fn peer(context: &mut Context<'_>) -> Vec<Finding> {
    let text = context.request.peer.clone().unwrap_or_default();
    let (host, port) = split(&text);
    let port = port.unwrap_or(PORT_DEFAULT);
    let found = match addresses_of(context, host) {
        Ok(found) => found,
        Err(error) => {
            let finding =
                Finding::new(ids::NET_UNRESOLVED, Severity::Fatal, format!("{host}: {error}"));
            return vec![finding.with("name", host)];
        }
    };
    let Some(ip) = found.first() else { return Vec::new() };
    let address = SocketAddr::new(*ip, port);
    let own = Half {
        host: context.request.host.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        unix_s: context.outside.unix_s(),
        devices: context.facts.devices.clone(),
        interfaces: context.facts.interfaces.clone(),
        addresses: context.facts.addresses.clone(),
        routes: context.facts.routes.clone(),
        findings: Vec::new(),
    };
    let Ok(request) = encode(&own) else {
        return vec![cannot_compare(address, "this machine's report is too long to be sent")];
    };
    let answer = context.outside.ask(address, &request, FRAME_BYTES_MAX + HEADER_BYTES);
    let half = match answer {
        Ok(answer) => read_half(&mut &answer[..]).map_err(|error| error.to_string()),
        Err(AskFailure::Broken) => Err("what answers is no doctor".to_owned()),
        Err(AskFailure::Connect(code)) => return vec![unreachable(address, code)],
    };
    match half {
        Ok(half) => {
            *context.peer = Some(half);
            Vec::new()
        }
        Err(why) => vec![cannot_compare(address, &why)],
    }
}

/// The port takes connections, which is all that can be said.
fn cannot_compare(address: SocketAddr, why: &str) -> Finding {
    let observed = format!(
        "{address} takes connections; {why}: run `handfast doctor --answer` there to compare"
    );
    let finding = Finding::new(ids::NET_RESET, Severity::CannotTell, observed).preventing();
    finding.with("peer", address.to_string())
}

fn unreachable(address: SocketAddr, code: i32) -> Finding {
    const ETIMEDOUT: i32 = 110;
    let code = if code == 0 { ETIMEDOUT } else { code };
    let id = of_call("connect", code, "").unwrap_or(ids::NET_FILTERED);
    let words = std::io::Error::from_raw_os_error(code);
    let finding = Finding::new(id, Severity::Fatal, format!("{address}: {words}"));
    let finding = finding.with("peer", address.to_string()).with("host", address.ip().to_string());
    finding.with("port", address.port().to_string())
}

pub(super) fn pair(context: &mut Context<'_>) -> Vec<Finding> {
    let Some(other) = context.peer.clone() else { return Vec::new() };
    let mut findings = Vec::new();
    for told in other.findings.iter().filter(|told| told.is_fatal) {
        let Some(id) = Id::parse(&told.id) else { continue };
        let observed = format!("at {}: {}", other.host, told.observed);
        findings.push(Finding::new(id, Severity::Fatal, observed).at(Side::Remote));
    }
    let apart_s = context.outside.unix_s().abs_diff(other.unix_s);
    if apart_s > CLOCKS_APART_S {
        let observed = format!("the clocks are {apart_s} s apart");
        findings.push(Finding::new(ids::CLOCK_SKEW, Severity::Risk, observed));
    }
    if context.request.wanted == crate::doctor::Wanted::Tcp {
        return findings;
    }
    let ours: Vec<&Device> = context.devices().filter(|device| device.refused.is_none()).collect();
    let theirs: Vec<&Device> =
        other.devices.iter().filter(|device| device.refused.is_none()).collect();
    if ours.is_empty() || theirs.is_empty() {
        let (side, host) = if ours.is_empty() {
            (Side::Local, &context.request.host)
        } else {
            (Side::Remote, &other.host)
        };
        let observed = format!("{host} has no device for lanes");
        findings.push(Finding::new(ids::DEV_NONE, context.without_rdma(), observed).at(side));
        return findings;
    }
    findings.extend(layers(context, &ours, &theirs));
    if findings.is_empty() {
        findings.extend(addresses(context, &ours, &theirs, &other));
    }
    findings.extend(mtus(&ours, &theirs, &other));
    findings
}

fn layers(context: &Context<'_>, ours: &[&Device], theirs: &[&Device]) -> Option<Finding> {
    let of = |devices: &[&Device]| {
        let layers =
            devices.iter().filter_map(|device| Some(device.ports.first()?.link_layer.clone()));
        layers.collect::<std::collections::BTreeSet<_>>()
    };
    let (own, other) = (of(ours), of(theirs));
    own.is_disjoint(&other).then(|| {
        let observed = format!("here {own:?}, there {other:?}");
        Finding::new(ids::LINK_LAYER, context.without_rdma(), observed)
    })
}

/// Whether some address of ours can be joined to some of theirs.
fn addresses(
    context: &Context<'_>,
    ours: &[&Device],
    theirs: &[&Device],
    other: &Half,
) -> Option<Finding> {
    let ips = |devices: &[&Device]| -> Vec<IpAddr> {
        devices.iter().flat_map(|device| reachable(device)).map(|gid| gid.ip()).collect()
    };
    let (own, peers) = (ips(ours), ips(theirs));
    if own.is_empty() || peers.is_empty() {
        let (side, host) = if own.is_empty() {
            (Side::Local, &*context.request.host)
        } else {
            (Side::Remote, &*other.host)
        };
        let observed = format!("{host} has no address that the other can reach");
        let devices = if own.is_empty() { ours } else { theirs };
        let interface =
            devices.iter().find_map(|device| Some(device.ports.first()?.interface.clone()));
        let finding = Finding::new(ids::IP_MISSING, context.without_rdma(), observed).at(side);
        return Some(
            finding.with("netdev", interface.unwrap_or_default()).with("address", "ADDRESS/PREFIX"),
        );
    }
    let joined = own.iter().any(|own| peers.iter().any(|peer| own.is_ipv4() == peer.is_ipv4()));
    let words = |ips: &[IpAddr]| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
    if !joined {
        let observed = format!("here {}; at {} {}", words(&own), other.host, words(&peers));
        return Some(Finding::new(ids::GID_FAMILY, context.without_rdma(), observed));
    }
    neighbours(context, ours, &peers).or_else(|| routes(context, ours, &peers))
}

/// No device of ours has a route to any address of theirs.
fn routes(context: &Context<'_>, ours: &[&Device], peers: &[IpAddr]) -> Option<Finding> {
    let peers: Vec<_> = peers
        .iter()
        .filter_map(|peer| if let IpAddr::V4(peer) = peer { Some(*peer) } else { None })
        .collect();
    let interfaces: Vec<_> = ours
        .iter()
        .filter_map(|device| device.ports.first())
        .map(|port| &*port.interface)
        .collect();
    let first = (*peers.first()?, *interfaces.first()?);
    let reached = peers.iter().any(|peer| {
        interfaces.iter().any(|interface| is_reached(&context.facts.routes, interface, *peer))
    });
    let is_own = peers.iter().any(|peer| context.facts.addresses.contains(&IpAddr::V4(*peer)));
    (!reached && !is_own).then(|| {
        let observed = format!("no route out of {} leads to {}", interfaces.join(", "), first.0);
        let finding = Finding::new(ids::IP_SUBNET, context.without_rdma(), observed);
        finding.with("peer", first.0.to_string()).with("netdev", first.1)
    })
}

fn neighbours(context: &Context<'_>, ours: &[&Device], peers: &[IpAddr]) -> Option<Finding> {
    let is_ours = |interface: &str| {
        ours.iter().any(|device| device.ports.iter().any(|port| port.interface == interface))
    };
    let silent = context.facts.neighbours.iter().find(|neighbour| {
        !neighbour.has_answered
            && is_ours(&neighbour.interface)
            && peers.contains(&IpAddr::V4(neighbour.address))
    })?;
    let observed =
        format!("{} was asked for on {} and has not answered", silent.address, silent.interface);
    let finding = Finding::new(ids::NEIGH_FAILED, Severity::Risk, observed);
    Some(finding.with("netdev", &*silent.interface).with("peer", silent.address.to_string()))
}

fn mtus(ours: &[&Device], theirs: &[&Device], other: &Half) -> Option<Finding> {
    let largest = |devices: &[&Device]| {
        let ports =
            devices.iter().filter_map(|device| device.ports.first()).filter(|port| port.mtu > 0);
        ports.max_by_key(|port| port.mtu).cloned()
    };
    let (own, peer) = (largest(ours)?, largest(theirs)?);
    (own.mtu != peer.mtu).then(|| {
        let (side, small) =
            if own.mtu < peer.mtu { (Side::Local, &own) } else { (Side::Remote, &peer) };
        let observed = format!(
            "here {} over {}, at {} {} over {}",
            own.mtu, own.interface, other.host, peer.mtu, peer.interface
        );
        let interface = |half: &[crate::doctor::Interface], name: &str| {
            half.iter().find(|known| known.name == name).map(|known| known.mtu)
        };
        let larger =
            if own.mtu < peer.mtu { interface(&other.interfaces, &peer.interface) } else { None };
        let finding = Finding::new(ids::MTU_MISMATCH, Severity::Degraded, observed).at(side);
        let finding = finding.with("netdev", &*small.interface);
        finding.with("mtu", larger.map_or("MTU".to_owned(), |mtu| mtu.to_string()))
    })
}
