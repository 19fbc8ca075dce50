//! A lane over RDMA between the two hosts, opened as nodes open theirs, and a write over it.

use super::pair::address_of_peer;
use super::way::longest_payload;
use crate::doctor::observed::said;
use crate::doctor::{Context, Finding, LANE_BYTES, LaneFailure, LaneStep, Severity, is_usable};
use crate::{Side, ids};
use std::net::SocketAddr;

pub(super) fn lane(context: &mut Context<'_>) -> Vec<Finding> {
    let Some(there) = context.halves.as_ref().map(|halves| &halves.there) else {
        return Vec::new();
    };
    let both = context.devices().next().is_some() && !there.devices.is_empty();
    let Some(address) = address_of_peer(context).filter(|_| both) else { return Vec::new() };
    let Some(port) = there.lane_port else { return vec![not_tried(context, &there.host)] };
    match context.outside.lane(SocketAddr::new(address.ip(), port)) {
        Some(Err(failure)) => vec![failed(context, &failure, address)],
        Some(Ok(())) => Vec::new(),
        None => vec![not_tried(context, &context.request.host)],
    }
}

/// Both hosts have devices, but no lane was tried: the effect of the network on RDMA is unknown.
fn not_tried(context: &Context<'_>, host: &str) -> Finding {
    let observed = said!(
        "no lane over RDMA was tried: {host} does not support the test",
        "未尝试 RDMA 通路:{host} 不参与"
    );
    let id = if is_iwarp(context, "") { ids::CM_UNREACHED } else { ids::ROCE_UDP_FILTERED };
    Finding::new(id, Severity::CannotTell, observed).alone()
}

/// Whether lanes run over TCP, on a device that connects through the connection manager alone: a filter of RoCE's packets
/// does not concern them. The device is the one that the failure names, or may be any that lanes can use.
fn is_iwarp(context: &Context<'_>, failure: &str) -> bool {
    let usable: Vec<_> = context.devices().filter(|device| is_usable(device)).collect();
    match usable.iter().find(|device| names(failure, &device.name)) {
        Some(device) => device.is_managed,
        None => !usable.is_empty() && usable.iter().all(|device| device.is_managed),
    }
}

/// Whether a text has a device's name as a word. In a path, such as `node-b@mlx5_0`, it is the peer's.
fn names(text: &str, device: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || "_-.@".contains(c);
    text.split(|c| !is_part(c)).any(|word| word == device)
}

fn failed(context: &Context<'_>, failure: &LaneFailure, address: SocketAddr) -> Finding {
    let text = &failure.text;
    let is_silence =
        [ids::WC_RETRY, ids::XFER_DEADLINE, ids::PEER_LOST, ids::WC_GENERAL].contains(&failure.id);
    let (id, side, observed) = match failure.step {
        LaneStep::Short if is_silence && !is_iwarp(context, text) => (
            ids::ROCE_UDP_FILTERED,
            Side::Unknown,
            said!(
                "a lane was established, but a few bytes over it did not arrive: {text}",
                "双方已建立通路,但其上的几个字节没有到达:{text}"
            ),
        ),
        LaneStep::Write if is_silence => (
            ids::MTU_BLACKHOLE,
            Side::Unknown,
            said!(
                "a short RDMA packet passed, but {LANE_BYTES} bytes did not: {text}",
                "短的 RDMA 报文能通,{LANE_BYTES} 字节不通:{text}"
            ),
        ),
        _ => (failure.id, failure.side, text.clone().into()),
    };
    let finding = Finding::new(id, context.without_rdma(), observed).at(side);
    let finding = finding.with("peer", address.ip().to_string()).alone();
    let port = context.ports().next();
    let interface = port.and_then(|(_, port)| context.facts.interface(&port.interface));
    let Some(interface) = interface else { return finding };
    let payload = longest_payload(address.ip(), interface.mtu);
    finding.with("netdev", &*interface.name).with("payload", payload.to_string())
}
