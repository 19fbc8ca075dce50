//! The network path between two hosts: whether packets of the full size pass, also at RoCE's port,
//! and the rate.

use super::addresses::reachable;
use super::pair::address_of_peer;
use crate::doctor::bulk::to_mbps;
use crate::doctor::datagrams::DATAGRAM_BYTES_MIN;
use crate::doctor::exchange::Half;
use crate::doctor::facts::way_to;
use crate::doctor::finding::seen;
use crate::doctor::observed::said;
use crate::doctor::{Context, DATAGRAM_BYTES_MAX, Finding, Interface, ROCE_PORT, Wanted};
use crate::ids;
use crate::problem::{Severity, Side};
use std::net::{IpAddr, SocketAddr};

/// Length of the headers of IPv4 and UDP, in bytes.
const HEADERS_IPV4: usize = 28;
/// Length of the headers of IPv6 and UDP, in bytes.
const HEADERS_IPV6: usize = 48;
/// Maximum addresses of the peer that are tried.
const TARGETS_MAX: usize = 8;
/// Maximum speed assumed of a link: one TCP connection does not fill a faster one.
const SPEED_COUNTED_MAX_MBPS: u32 = 10_000;
/// Divisor of a link's speed: a lower rate is slow.
const SLOW_PART: u32 = 16;
/// Number of measurements before a rate counts as slow.
const SPEED_TRIES: u32 = 2;
/// Minimum ratio of loopback rate to measured rate: below it the host is busy, not the link slow.
const OWN_TIMES: u32 = 4;

pub(super) fn way(context: &mut Context<'_>) -> Vec<Finding> {
    let Some(halves) = context.halves.clone() else { return Vec::new() };
    let Some(address) = address_of_peer(context) else { return Vec::new() };
    let mut findings = Vec::new();
    if let Some(port) = halves.there.datagram_ports.first() {
        for target in targets(&halves.there, address.ip()) {
            findings.extend(datagrams(context, &halves.there, target, *port, address.ip()));
        }
    }
    findings.extend(slow(context, &halves.there, address));
    findings
}

/// Returns the reached address, then those of the peer's RDMA devices.
fn targets(there: &Half, reached: IpAddr) -> Vec<IpAddr> {
    let mut targets = vec![reached];
    for ip in there.devices.iter().flat_map(reachable).map(|gid| gid.ip()) {
        // A datagram to a link-local address would need its interface.
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        // Datagrams are answered only in the address family on which the doctor listens.
        if !is_link_local && ip.is_ipv4() == reached.is_ipv4() && !targets.contains(&ip) {
            targets.push(ip);
        }
    }
    targets.truncate(TARGETS_MAX);
    targets
}

/// Returns the maximum payload of a datagram that is not fragmented.
pub(super) fn longest_payload(to: IpAddr, mtu: u32) -> usize {
    let headers = if to.is_ipv4() { HEADERS_IPV4 } else { HEADERS_IPV6 };
    usize::try_from(mtu).unwrap_or(0).saturating_sub(headers).min(DATAGRAM_BYTES_MAX)
}

fn known<'a>(interfaces: &'a [Interface], name: &str) -> Option<&'a Interface> {
    interfaces.iter().find(|interface| interface.name == name)
}

/// Returns the local interface on the path, and the peer's in that network.
fn ends<'a>(
    context: &'a Context<'_>,
    there: &'a Half,
    target: IpAddr,
) -> Option<(&'a Interface, &'a Interface)> {
    let facts = context.facts;
    let ours = known(&facts.interfaces, way_to(&facts.routes, target)?)?;
    let theirs = known(&there.interfaces, way_to(&there.routes, target)?)?;
    Some((ours, theirs))
}

fn datagrams(
    context: &Context<'_>,
    there: &Half,
    target: IpAddr,
    port: u16,
    reached: IpAddr,
) -> Option<Finding> {
    let to = |port: u16| SocketAddr::new(target, port);
    if context.outside.pass(to(port), DATAGRAM_BYTES_MIN).is_err() {
        let observed = said!(
            "no datagram passes to {target}, UDP {port}: the maximum packet length is unknown",
            "没有数据报能到达 {target} 的 UDP {port}:无法得知报文能有多长"
        );
        let finding = Finding::new(ids::MTU_BLACKHOLE, Severity::CannotTell, observed);
        // The address may belong to a NIC that only NICs reach; the probe of routes covers it.
        return (reached == target).then_some(finding);
    }
    if there.datagram_ports.contains(&ROCE_PORT)
        && context.request.wanted != Wanted::Tcp
        && context.outside.pass(to(ROCE_PORT), DATAGRAM_BYTES_MIN).is_err()
    {
        let observed = said!(
            "datagrams pass to {target}, UDP {port}, but not to UDP {ROCE_PORT}",
            "数据报能到达 {target} 的 UDP {port},但到不了 UDP {ROCE_PORT}"
        );
        return Some(
            Finding::new(ids::ROCE_UDP_FILTERED, context.without_rdma(), observed).alone(),
        );
    }
    let (ours, theirs) = ends(context, there, target)?;
    let mtu = ours.mtu.min(theirs.mtu);
    let payload = longest_payload(target, mtu);
    context.outside.pass(to(port), payload).err()?;
    let observed = said!(
        "to {target} datagrams of {DATAGRAM_BYTES_MIN} bytes pass, but those of {payload} do not: both ends have an MTU of at least {mtu}",
        "到 {target} 的 {DATAGRAM_BYTES_MIN} 字节数据报能通,{payload} 字节的不通:两端的 MTU 都不小于 {mtu}"
    );
    let finding = Finding::new(ids::MTU_BLACKHOLE, context.without_rdma(), observed).alone();
    let finding = finding.at(Side::Unknown).with("payload", payload.to_string());
    Some(finding.with("netdev", &*ours.name).with("peer", target.to_string()))
}

/// Measures the rate over TCP, if both ends report the speed of their links. A busy machine is slow
/// over loopback as well, which is not a property of its links.
fn slow(context: &Context<'_>, there: &Half, address: SocketAddr) -> Option<Finding> {
    let (ours, theirs) = ends(context, there, address.ip())?;
    let speed = ours.speed_mbps.min(theirs.speed_mbps).min(SPEED_COUNTED_MAX_MBPS);
    if speed == 0 {
        return None;
    }
    let mut rate_mbps = 0;
    for _ in 0..SPEED_TRIES {
        // A missing answer is not evidence of the speed: older doctors do not send bytes.
        rate_mbps = rate_mbps.max(to_mbps(context.outside.rate(address).ok().flatten()?));
        if rate_mbps >= speed / SLOW_PART {
            return None;
        }
    }
    let own_mbps = [context.outside.loopback_mbps(), there.loopback_mbps];
    let hosts = [&context.request.host, &there.host];
    let busy =
        hosts.into_iter().zip(own_mbps).find(|(_, own)| (1..rate_mbps * OWN_TIMES).contains(own));
    if let Some((host, own_mbps)) = busy {
        let observed = said!(
            "{rate_mbps} Mb/s pass over TCP, but {host} moves only {own_mbps} Mb/s to itself now: it is busy, and the link cannot be judged",
            "TCP 只有 {rate_mbps} Mb/s,而 {host} 此刻对自身也只有 {own_mbps} Mb/s:主机繁忙,无法判断链路"
        );
        return Some(Finding::new(ids::PERF_LOW, Severity::CannotTell, observed).alone());
    }
    if own_mbps.contains(&0) {
        let observed = said!(
            "{rate_mbps} Mb/s pass over TCP, but the load of the hosts could not be measured",
            "TCP 只有 {rate_mbps} Mb/s,而无法测得主机的繁忙程度"
        );
        return Some(Finding::new(ids::PERF_LOW, Severity::CannotTell, observed).alone());
    }
    let (near, far, peer) = (&ours.name, &theirs.name, address.ip());
    let (degraded, rate, slowest) = (Severity::Degraded, rate_mbps, own_mbps[0].min(own_mbps[1]));
    let device = context.devices().next().map_or("DEVICE", |device| device.name.as_str());
    let finding = seen!(PERF_LOW, degraded, rate, near, far, speed, slowest, device, peer);
    Some(finding.alone())
}
