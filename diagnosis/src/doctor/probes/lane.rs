//! A lane over RDMA between the two hosts, made as nodes make theirs, and written over.

use super::pair::address_of_peer;
use super::way::longest_payload;
use crate::doctor::observed::said;
use crate::doctor::{Context, Finding, LANE_BYTES, LaneFailure, LaneStep};
use crate::ids;
use std::net::SocketAddr;

pub(super) fn lane(context: &mut Context<'_>) -> Vec<Finding> {
    let port = context.halves.as_ref().and_then(|halves| halves.there.lane_port);
    let (Some(address), Some(port)) = (address_of_peer(context), port) else { return Vec::new() };
    if context.devices().next().is_none() {
        return Vec::new();
    }
    let tried = context.outside.lane(SocketAddr::new(address.ip(), port));
    let Some(Err(failure)) = tried else { return Vec::new() };
    vec![failed(context, &failure, address)]
}

fn failed(context: &Context<'_>, failure: &LaneFailure, address: SocketAddr) -> Finding {
    let text = &failure.text;
    // Short packets have passed: it is the long ones that do not, unless something else is told.
    let is_silence =
        [ids::WC_RETRY, ids::XFER_DEADLINE, ids::PEER_LOST, ids::WC_GENERAL].contains(&failure.id);
    let (id, observed) = match failure.step {
        LaneStep::Write if is_silence => (
            ids::MTU_BLACKHOLE,
            said!(
                "a short RDMA packet passed and {LANE_BYTES} bytes did not: {text}",
                "短的 RDMA 报文能通,{LANE_BYTES} 字节不通:{text}"
            ),
        ),
        _ => (failure.id, text.clone().into()),
    };
    let finding = Finding::new(id, context.without_rdma(), observed).at(failure.side);
    let finding = finding.with("peer", address.ip().to_string()).alone();
    let interface = context.devices().find_map(|device| device.ports.first()).and_then(|port| {
        context.facts.interfaces.iter().find(|interface| interface.name == port.interface)
    });
    let Some(interface) = interface else { return finding };
    let payload = longest_payload(address.ip(), interface.mtu);
    finding.with("netdev", &*interface.name).with("payload", payload.to_string())
}
