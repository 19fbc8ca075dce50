//! The way between two hosts: whether packets of the full size pass, at RoCE's port too, and how fast.

use super::addresses::reachable;
use super::pair::address_of_peer;
use crate::doctor::datagrams::DATAGRAM_BYTES_MIN;
use crate::doctor::exchange::Half;
use crate::doctor::facts::way_to;
use crate::doctor::observed::said;
use crate::doctor::{Context, DATAGRAM_BYTES_MAX, Finding, Interface, ROCE_PORT, Wanted};
use crate::ids;
use crate::problem::{Severity, Side};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Headers of IPv4 and UDP, in bytes.
const HEADERS: usize = 28;
/// Addresses of the peer that are tried.
const TARGETS_MAX: usize = 8;
/// A faster link counts as one of this speed: one connection over TCP does not fill it.
const SPEED_COUNTED_MAX_MBPS: u32 = 10_000;
/// Less than this part of a link's speed is slow.
const SLOW_PART: u64 = 16;

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

/// Where it was reached, then the addresses of its RDMA devices.
fn targets(there: &Half, reached: IpAddr) -> Vec<Ipv4Addr> {
    let mut targets = Vec::new();
    let gids = there.devices.iter().flat_map(reachable).map(|gid| gid.ip());
    for ip in [reached].into_iter().chain(gids) {
        if let IpAddr::V4(ip) = ip
            && !targets.contains(&ip)
        {
            targets.push(ip);
        }
    }
    targets.truncate(TARGETS_MAX);
    targets
}

fn known<'a>(interfaces: &'a [Interface], name: &str) -> Option<&'a Interface> {
    interfaces.iter().find(|interface| interface.name == name)
}

/// Our interface on the way there, and theirs of that network.
fn ends<'a>(
    context: &'a Context<'_>,
    there: &'a Half,
    target: Ipv4Addr,
) -> Option<(&'a Interface, &'a Interface)> {
    let facts = context.facts;
    let ours = known(&facts.interfaces, way_to(&facts.routes, target)?)?;
    let theirs = known(&there.interfaces, way_to(&there.routes, target)?)?;
    Some((ours, theirs))
}

fn datagrams(
    context: &Context<'_>,
    there: &Half,
    target: Ipv4Addr,
    port: u16,
    reached: IpAddr,
) -> Option<Finding> {
    let to = |port: u16| SocketAddr::new(target.into(), port);
    if context.outside.pass(to(port), DATAGRAM_BYTES_MIN).is_err() {
        let observed = said!(
            "no datagram passes to {target}, UDP {port}: how long packets may be was not found out",
            "没有数据报能到达 {target} 的 UDP {port}:无法得知报文能有多长"
        );
        let finding = Finding::new(ids::MTU_BLACKHOLE, Severity::CannotTell, observed);
        // An address of a NIC may be one that only NICs reach; the pair's routes tell.
        return (reached == IpAddr::V4(target)).then_some(finding);
    }
    if there.datagram_ports.contains(&ROCE_PORT)
        && context.request.wanted != Wanted::Tcp
        && context.outside.pass(to(ROCE_PORT), DATAGRAM_BYTES_MIN).is_err()
    {
        let observed = said!(
            "datagrams pass to {target}, UDP {port}, and not to UDP {ROCE_PORT}",
            "数据报能到达 {target} 的 UDP {port},但到不了 UDP {ROCE_PORT}"
        );
        return Some(
            Finding::new(ids::ROCE_UDP_FILTERED, context.without_rdma(), observed).alone(),
        );
    }
    let (ours, theirs) = ends(context, there, target)?;
    let mtu = ours.mtu.min(theirs.mtu);
    let payload = usize::try_from(mtu).ok()?.saturating_sub(HEADERS).min(DATAGRAM_BYTES_MAX);
    context.outside.pass(to(port), payload).err()?;
    let observed = said!(
        "to {target} datagrams of {DATAGRAM_BYTES_MIN} bytes pass and those of {payload} do not: both ends have an MTU of {mtu} at least",
        "到 {target} 的 {DATAGRAM_BYTES_MIN} 字节数据报能通,{payload} 字节的不通:两端的 MTU 都不小于 {mtu}"
    );
    let finding = Finding::new(ids::MTU_BLACKHOLE, context.without_rdma(), observed).alone();
    let finding = finding.at(Side::Unknown).with("payload", payload.to_string());
    Some(finding.with("netdev", &*ours.name).with("peer", target.to_string()))
}

/// How fast bytes come over TCP, where both ends say how fast their links are.
fn slow(context: &Context<'_>, there: &Half, address: SocketAddr) -> Option<Finding> {
    let IpAddr::V4(ip) = address.ip() else { return None };
    let (ours, theirs) = ends(context, there, ip)?;
    let speed = ours.speed_mbps.min(theirs.speed_mbps).min(SPEED_COUNTED_MAX_MBPS);
    // An answer that does not come says nothing of speed: older doctors do not send bytes.
    let rate = context.outside.rate(address).ok().flatten().filter(|_| speed > 0)?;
    let rate_mbps = rate.saturating_mul(8) / 1_000_000;
    if rate_mbps >= u64::from(speed) / SLOW_PART {
        return None;
    }
    let observed = said!(
        "{rate_mbps} Mb/s come over TCP; {here} and {there} are links of {speed} Mb/s",
        "TCP 只有 {rate_mbps} Mb/s,而 {here} 与 {there} 的链路速率为 {speed} Mb/s",
        here = &ours.name,
        there = &theirs.name
    );
    let device = context.devices().next().map_or("DEVICE", |device| device.name.as_str());
    let finding = Finding::new(ids::PERF_LOW, Severity::Degraded, observed).alone();
    Some(finding.with("device", device).with("peer", ip.to_string()))
}
