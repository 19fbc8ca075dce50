//! The other host: its availability, and the compatibility of the two hosts.

use super::addresses::reachable;
use super::names::{addresses_of, no_place};
use crate::doctor::exchange::{
    ExchangeError, FRAME_BYTES_MAX, HEADER_BYTES, Half, encode, read_half,
};
use crate::doctor::facts::{Gid, is_reached, owners};
use crate::doctor::finding::seen;
use crate::doctor::observed::said;
use crate::doctor::{ANSWER_MAX, AskFailure, Context, Device, Finding, Halves, Observed, Port};
use crate::problem::{Id, Severity, Side};
use crate::{ids, of_call};
use handfast_core::address::with_port;
use std::net::{IpAddr, SocketAddr};

/// Difference of the clocks that network delays do not explain.
const CLOCKS_APART_S: u64 = 5;
/// The port for a doctor if the requested one is taken.
const PORT_ALTERNATIVE: u16 = 7_412;

/// Returns the address of the other doctor.
pub(super) fn address_of_peer(context: &Context<'_>) -> Option<SocketAddr> {
    let (host, port) = with_port(context.request.peer.as_deref()?).ok()?;
    Some(SocketAddr::new(*addresses_of(context, host).ok()?.first()?, port))
}

pub(super) fn peer(context: &mut Context<'_>) -> Vec<Finding> {
    let text = context.request.peer.clone().unwrap_or_default();
    let (host, port) = match with_port(&text) {
        Ok(place) => place,
        Err(error) => return vec![no_place(&error)],
    };
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
    if ip.is_unspecified() {
        return vec![of_no_host(address)];
    }
    let own = Half::of(context.facts, &context.request.host, context.outside.unix_s());
    let Ok(request) = encode(&own) else {
        let finding = seen!(ENGINE_LIMIT, Severity::CannotTell);
        return vec![finding.at(Side::Local).preventing()];
    };
    let answer = context.outside.ask(address, None, &request, FRAME_BYTES_MAX + HEADER_BYTES);
    let half = match answer {
        Ok(answer) => read_half(&mut &answer[..]).map_err(|error| error.told()),
        Err(AskFailure::Connect(code)) => return vec![unreachable(address, code)],
        Err(AskFailure::Silent) => return vec![mute(address)],
        Err(_) => Err(ExchangeError::Foreign.told()),
    };
    match half {
        Ok(half) => {
            *context.halves = Some(Box::new(Halves { here: own, there: half }));
            Vec::new()
        }
        Err(why) => vec![foreign(address, &why)],
    }
}

/// Reports the unspecified address, which is not one of a host.
fn of_no_host(address: SocketAddr) -> Finding {
    let observed = said!(
        "{address} is not the address of a host: a peer that uses it reaches itself",
        "{address} 不是某台主机的地址:谁用它,指的就是谁自己"
    );
    let finding = Finding::new(ids::NET_LOOPBACK, Severity::Fatal, observed);
    finding.cured_by(
        said!("Use an address of the other host.", "用对端主机自己的地址来指明它。"),
        format!("handfast doctor --peer HOST:{}", address.port()),
    )
}

/// Adds a remedy: a doctor on a free port there.
fn with_doctor_at_other_port(finding: Finding, address: SocketAddr) -> Finding {
    let port =
        if address.port() == PORT_ALTERNATIVE { PORT_ALTERNATIVE + 1 } else { PORT_ALTERNATIVE };
    let alternative = SocketAddr::new(address.ip(), port);
    let remedy = said!(
        "Start a doctor on that host, on a separate port, and compare with it: engines and other services do not answer doctors.",
        "在那台主机上用单独的端口启动 doctor,再与它对照:引擎和其他服务不会应答 doctor。"
    );
    let finding = finding.cured_by(remedy, format!("handfast doctor --listen {alternative}"));
    finding.with("peer", address.to_string())
}

/// Reports a port that accepts connections without a doctor.
fn foreign(address: SocketAddr, why: &Observed) -> Finding {
    let english = format!("{address} accepts connections; ");
    let observed = why.after(&english, &format!("{address} 接受连接;"));
    with_doctor_at_other_port(Finding::new(ids::NET_RESET, Severity::Fatal, observed), address)
}

/// Reports a port that accepts connections and sends nothing.
fn mute(address: SocketAddr) -> Finding {
    let limit_s = ANSWER_MAX.as_secs();
    let observed = said!(
        "{address} accepted the connection and sent nothing within {limit_s} s: the listener is stopped, busy or not a doctor",
        "{address} 接受了连接,但 {limit_s} 秒内没有任何应答:监听的进程已停住、繁忙,或不是 doctor"
    );
    with_doctor_at_other_port(Finding::new(ids::NET_FILTERED, Severity::Fatal, observed), address)
}

fn unreachable(address: SocketAddr, code: i32) -> Finding {
    let code = if code == 0 { libc::ETIMEDOUT } else { code };
    let id = of_call("connect", code, "").unwrap_or(ids::NET_FILTERED);
    let words = std::io::Error::from_raw_os_error(code);
    let finding = Finding::new(id, Severity::Fatal, format!("{address}: {words}"));
    let finding = finding.with("peer", address.to_string()).with("host", address.ip().to_string());
    let finding = finding.with("port", address.port().to_string());
    if id != ids::NET_REFUSED {
        return finding;
    }
    let remedy = said!(
        "Start a doctor on that host, and compare its listening address.",
        "在那台主机上启动 doctor,并核对它监听的地址。"
    );
    finding.cured_by(remedy, format!("handfast doctor --listen {address}"))
}

pub(super) fn pair(context: &mut Context<'_>) -> Vec<Finding> {
    let Some(other) = context.halves.as_ref().map(|halves| halves.there.clone()) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for told in other.findings.iter().filter(|told| told.is_fatal) {
        let Some(id) = Id::parse(&told.id) else { continue };
        let (english, chinese) = (format!("at {}: ", other.host), format!("{}:", other.host));
        let observed = told.observed.after(&english, &chinese);
        findings.push(Finding::new(id, Severity::Fatal, observed).at(Side::Remote));
    }
    let apart = context.outside.unix_s().abs_diff(other.unix_s);
    if apart > CLOCKS_APART_S {
        findings.push(seen!(CLOCK_SKEW, Severity::Risk, apart));
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
        findings.push(seen!(DEV_NONE, context.without_rdma(), host).at(side));
        return findings;
    }
    findings.extend(layers(context, &ours, &theirs));
    if findings.is_empty() {
        findings.extend(addresses(context, &ours, &theirs, &other));
    }
    findings.extend(mtus(context, &ours, &theirs, &other));
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
        let observed = said!("here {own:?}, there {other:?}", "本端 {own:?},对端 {other:?}");
        Finding::new(ids::LINK_LAYER, context.without_rdma(), observed)
    })
}

/// Checks that a local address can be paired with one of the peer.
fn addresses(
    context: &Context<'_>,
    ours: &[&Device],
    theirs: &[&Device],
    other: &Half,
) -> Option<Finding> {
    let is_infiniband = |devices: &[&Device]| {
        devices.iter().any(|device| device.ports.first().is_some_and(Port::is_infiniband))
    };
    // There packets need no address.
    if is_infiniband(ours) && is_infiniband(theirs) {
        return None;
    }
    let mut own = ips_of(ours, &context.facts.addresses);
    let peers = ips_of(theirs, &other.addresses);
    if let Some(wanted) = context.request.gid.filter(|wanted| own.contains(wanted)) {
        own = vec![wanted];
    }
    if own.is_empty() || peers.is_empty() {
        let (side, host) = if own.is_empty() {
            (Side::Local, &*context.request.host)
        } else {
            (Side::Remote, &*other.host)
        };
        let observed =
            said!("{host} has no address that the other can reach", "{host} 没有对方能到达的地址");
        let devices = if own.is_empty() { ours } else { theirs };
        let mut interfaces = devices.iter().filter_map(|device| device.ports.first());
        let known = interfaces.find(|port| !port.interface.is_empty());
        let netdev = known.map_or("NETDEV", |port| &port.interface);
        let finding = Finding::new(ids::IP_MISSING, context.without_rdma(), observed).at(side);
        return Some(finding.with("netdev", netdev).with("address", "ADDRESS/PREFIX"));
    }
    let joined = own.iter().any(|own| peers.iter().any(|peer| own.is_ipv4() == peer.is_ipv4()));
    let words = |ips: &[IpAddr]| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
    if !joined {
        let (own, theirs, host) = (words(&own), words(&peers), &other.host);
        let severity = context.without_rdma();
        return Some(seen!(GID_FAMILY, severity, own, host, theirs));
    }
    neighbours(context, ours, &peers).or_else(|| routes(context, ours, &peers))
}

/// Returns the addresses of devices that the other side can reach: of one that connects through the
/// connection manager alone those of its network interface, or all of its host's if that is unknown.
fn ips_of(devices: &[&Device], of_host: &[IpAddr]) -> Vec<IpAddr> {
    let of = |device: &&Device| -> Vec<IpAddr> {
        if !device.is_managed {
            return reachable(device).into_iter().map(Gid::ip).collect();
        }
        let Some(port) = device.ports.first().filter(|port| port.is_active()) else {
            return Vec::new();
        };
        port.addresses.clone().unwrap_or_else(|| {
            let is_link_local =
                |ip: &&IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
            let far = of_host.iter().filter(|ip| !ip.is_loopback() && !is_link_local(ip));
            far.copied().collect()
        })
    };
    devices.iter().flat_map(of).collect()
}

/// Checks that a local device has a route to an address of the peer.
fn routes(context: &Context<'_>, ours: &[&Device], peers: &[IpAddr]) -> Option<Finding> {
    // Local addresses of the families that both sides have.
    let is_told = |peer: &IpAddr| {
        context.facts.routes.iter().any(|route| route.network.is_ipv4() == peer.is_ipv4())
    };
    let peers: Vec<_> = peers.iter().copied().filter(is_told).collect();
    let known = &context.facts.routes;
    let mut interfaces = Vec::new();
    for port in ours.iter().filter_map(|device| device.ports.first()) {
        interfaces.push(&*port.interface);
        // The addresses of an iWARP device may be those of a VLAN above its interface.
        interfaces.extend(port.addresses.iter().flatten().flat_map(|ip| owners(known, *ip)));
    }
    interfaces.dedup();
    // Over an interface that is unknown any route may lead there.
    if interfaces.iter().any(|interface| interface.is_empty()) {
        return None;
    }
    let first = (*peers.first()?, *interfaces.first()?);
    let reached = peers
        .iter()
        .any(|peer| interfaces.iter().any(|interface| is_reached(known, interface, *peer)));
    let is_own = peers.iter().any(|peer| context.facts.addresses.contains(peer));
    (!reached && !is_own).then(|| {
        let (all, severity) = (interfaces.join(", "), context.without_rdma());
        seen!(IP_SUBNET, severity, all, peer = first.0, netdev = first.1)
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
    let (peer, netdev) = (silent.address, &silent.interface);
    Some(seen!(NEIGH_FAILED, Severity::Risk, peer, netdev))
}

fn mtus(
    context: &Context<'_>,
    ours: &[&Device],
    theirs: &[&Device],
    other: &Half,
) -> Option<Finding> {
    let largest = |devices: &[&Device]| {
        let ports =
            devices.iter().filter_map(|device| device.ports.first()).filter(|port| port.mtu > 0);
        ports.max_by_key(|port| port.mtu).cloned()
    };
    let (own, peer) = (largest(ours)?, largest(theirs)?);
    (own.mtu != peer.mtu).then(|| {
        let (side, small) =
            if own.mtu < peer.mtu { (Side::Local, &own) } else { (Side::Remote, &peer) };
        let (near, far, host) = (&own.interface, &peer.interface, &other.host);
        let interface = |half: &[crate::doctor::Interface], name: &str| {
            half.iter().find(|known| known.name == name).map(|known| known.mtu)
        };
        let larger = match side {
            Side::Local => interface(&other.interfaces, &peer.interface),
            _ => interface(&context.facts.interfaces, &own.interface),
        };
        let (degraded, mtu, theirs) = (Severity::Degraded, own.mtu, peer.mtu);
        let finding = seen!(MTU_MISMATCH, degraded, own = mtu, near, host, theirs, far).at(side);
        let finding = finding.with("netdev", &*small.interface);
        finding.with("mtu", larger.map_or("MTU".to_owned(), |mtu| mtu.to_string()))
    })
}
