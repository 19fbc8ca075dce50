//! Values of the C interface and of the simulated devices.
use crate::protocol::{PairAttributes, access_flag, mask};
use handfast_transport_sim::verbs::{
    Access, AddressVector, AsyncEvent, Attributes, Gid, GidKind, Nic, QpState, Status,
};
use std::net::Ipv4Addr;

/// Network of the devices' IPv4 addresses: 10.0.0.0/16, the host's number counted from 1.
const NETWORK: [u8; 2] = [10, 0];
/// Network of their IPv6 addresses: 2001:db8::/112.
const NETWORK_IPV6: [u8; 4] = [0x20, 0x01, 0x0d, 0xb8];
/// A host that no NIC has.
const NOBODY: u16 = u16::MAX;
/// The last path MTU as `ibv_mtu` counts them; larger numbers are converted too, to be refused.
const MTU_NUMBERS_MAX: u32 = 10;

/// Sixteen bytes of an address.
pub(crate) fn gid_bytes(gid: Gid) -> [u8; 16] {
    let [high, low] = gid.host.wrapping_add(1).to_be_bytes();
    match gid.kind {
        GidKind::Ipv4 => {
            let [first, second] = NETWORK;
            Ipv4Addr::new(first, second, high, low).to_ipv6_mapped().octets()
        }
        GidKind::LinkLocal => [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, high, low],
        GidKind::Mac => [2, 0, 0, 0, high, low, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        GidKind::Ipv6 => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&NETWORK_IPV6);
            bytes[14..].copy_from_slice(&[high, low]);
            bytes
        }
    }
}

/// The address of sixteen bytes, of a RoCE version. An address that no NIC could have is nobody's.
pub(crate) fn gid(bytes: [u8; 16], version: u8) -> Gid {
    let host = |high, low| u16::from_be_bytes([high, low]).checked_sub(1).unwrap_or(NOBODY);
    let mapped = std::net::Ipv6Addr::from(bytes).to_ipv4_mapped().map(|address| address.octets());
    let gid = match (mapped, bytes) {
        (Some([first, second, high, low]), _) => {
            let host = if [first, second] == NETWORK { host(high, low) } else { NOBODY };
            Gid { kind: GidKind::Ipv4, host, version }
        }
        (None, [2, 0, 0, 0, high, low, ..]) => {
            Gid { kind: GidKind::Mac, host: host(high, low), version }
        }
        (None, bytes) if bytes[..4] == NETWORK_IPV6 => {
            Gid { kind: GidKind::Ipv6, host: host(bytes[14], bytes[15]), version }
        }
        (None, _) => Gid { kind: GidKind::LinkLocal, host: host(bytes[14], bytes[15]), version },
    };
    if gid_bytes(gid) == bytes { gid } else { Gid { host: NOBODY, ..gid } }
}

/// `gid_type` of an entry: InfiniBand, RoCE v1 or RoCE v2.
pub(crate) fn gid_type(gid: Gid) -> u32 {
    gid.version.into()
}

pub(crate) fn lid(nic: usize, is_infiniband: bool) -> u16 {
    if is_infiniband { nic as u16 + 1 } else { 0 }
}

fn mtu_bytes(number: u32) -> u32 {
    128 << number.min(MTU_NUMBERS_MAX)
}

pub(crate) fn state(number: u32) -> Option<QpState> {
    QpState::ALL.get(number as usize).copied()
}

pub(crate) fn access(flags: u32) -> Access {
    let has = |flag: u32| flags & flag != 0;
    Access {
        local_write: has(access_flag::LOCAL_WRITE),
        remote_read: has(access_flag::REMOTE_READ),
        remote_write: has(access_flag::REMOTE_WRITE),
    }
}

/// Status as `ibv_wc_status` counts them.
pub(crate) fn status_number(status: Status) -> u32 {
    STATUSES.iter().find(|(_, known)| *known == status).map_or(21, |(number, _)| *number)
}

pub(crate) fn status(number: u32) -> Option<Status> {
    STATUSES.iter().find(|(known, _)| *known == number).map(|(_, status)| *status)
}

const STATUSES: [(u32, Status); 12] = [
    (0, Status::Success),
    (1, Status::LocalLength),
    (2, Status::LocalQueuePair),
    (4, Status::LocalProtection),
    (5, Status::Flushed),
    (8, Status::LocalAccess),
    (9, Status::RemoteInvalid),
    (10, Status::RemoteAccess),
    (11, Status::RemoteOperation),
    (12, Status::RetryExceeded),
    (13, Status::RnrExceeded),
    (21, Status::General),
];

/// Kind of an event as `ibv_event_type` counts them.
pub(crate) fn event_kind(event: AsyncEvent) -> u32 {
    match event {
        AsyncEvent::CompletionQueueError => 0,
        AsyncEvent::QueuePairFatal(_) => 1,
        AsyncEvent::PortActive => 9,
        AsyncEvent::PortError => 10,
        AsyncEvent::GidChange => 18,
    }
}

/// Attributes as the devices know them. The state is the present one where the mask has none.
pub(crate) fn attributes(
    nic: &Nic,
    present: QpState,
    given: &PairAttributes,
    bits: u32,
) -> Attributes {
    let has = |bit: u32| bits & bit != 0;
    let wanted = state(given.state).filter(|_| has(mask::STATE));
    Attributes {
        state: wanted.unwrap_or(present),
        pkey_index: has(mask::PKEY_INDEX).then_some(given.pkey_index),
        port: has(mask::PORT).then_some(given.port),
        access: has(mask::ACCESS_FLAGS).then(|| access(given.access_flags)),
        address: has(mask::AV).then(|| address(nic, given)),
        path_mtu: has(mask::PATH_MTU).then(|| mtu_bytes(given.path_mtu)),
        dest_number: has(mask::DEST_QPN).then_some(given.dest_number),
        rq_psn: has(mask::RQ_PSN).then_some(given.rq_psn),
        max_dest_rd_atomic: has(mask::MAX_DEST_RD_ATOMIC).then_some(given.max_dest_rd_atomic),
        min_rnr_timer: has(mask::MIN_RNR_TIMER).then_some(given.min_rnr_timer),
        timeout: has(mask::TIMEOUT).then_some(given.timeout),
        retry_count: has(mask::RETRY_CNT).then_some(given.retry_count),
        rnr_retry: has(mask::RNR_RETRY).then_some(given.rnr_retry),
        sq_psn: has(mask::SQ_PSN).then_some(given.sq_psn),
        max_rd_atomic: has(mask::MAX_QP_RD_ATOMIC).then_some(given.max_rd_atomic),
    }
}

/// The peer's GID has the version of our own entry. Without a global header, the LID names the NIC.
fn address(nic: &Nic, given: &PairAttributes) -> AddressVector {
    let (is_global, sgid_index) = (given.is_global, given.gid_index);
    let own = nic.gids().get(usize::from(sgid_index)).copied().flatten();
    let version = own.map_or(0, |own| own.version);
    let dgid = if is_global || version > 0 {
        gid(given.gid, version)
    } else {
        let host = given.lid.checked_sub(1).unwrap_or(NOBODY);
        Gid { kind: GidKind::LinkLocal, host, version }
    };
    AddressVector { port: given.path_port, sgid_index, dgid, is_global }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GID comes back from its bytes, and an address of no NIC is nobody's.
    #[test]
    fn gid_comes_back_from_its_bytes() {
        for kind in [GidKind::LinkLocal, GidKind::Ipv4, GidKind::Ipv6, GidKind::Mac] {
            for host in [0, 1, 254, 255, 300] {
                let known = Gid { kind, host, version: 2 };
                assert_eq!(gid(gid_bytes(known), 2), known);
            }
        }
        for text in ["::ffff:192.168.0.1", "fe80::1", "fd00::2", "::ffff:10.0.0.0", "::"] {
            let address: std::net::Ipv6Addr = text.parse().unwrap();
            assert_eq!(gid(address.octets(), 2).host, NOBODY, "{text}");
        }
    }

    /// Path MTUs are the numbers of the C interface.
    #[test]
    fn path_mtus_are_numbers_of_the_interface() {
        for (number, bytes) in [(1, 256), (3, 1_024), (5, 4_096)] {
            assert_eq!(mtu_bytes(number), bytes);
        }
        assert_eq!(mtu_bytes(6), 8_192);
    }
}
