//! Ids of failed calls, for errors that carry the call, its error number and its text.

use crate::explain::explain;
use crate::ids;
use crate::problem::{Id, Role};
use libc::{
    EACCES, EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EAGAIN, ECONNREFUSED, ECONNRESET,
    EHOSTUNREACH, EINVAL, EIO, EMFILE, ENETUNREACH, ENFILE, ENODEV, ENOENT, ENOMEM, ENOSPC,
    ENOTCONN, EOPNOTSUPP, EPERM, ETIMEDOUT,
};
use std::net::{IpAddr, SocketAddr};

/// The kernel's internal ENOTSUPP, which some drivers leak.
const ENOTSUPP: i32 = 524;

/// `IBV_WC_RETRY_EXC_ERR`.
const WC_RETRY: i32 = 12;

/// Returns the problem behind a lane that shares no memory.
fn of_sharing(detail: &str) -> Option<Id> {
    let reasons = [
        ("not in this network namespace", ids::SHM_APART),
        ("has none configured", ids::SHM_APART),
        ("belongs to another user", ids::SHM_USER),
        ("socket may not be used", ids::SHM_USER),
        ("cannot be watched", ids::SHM_KERNEL),
        ("private memory of the peer", ids::SHM_PRIVATE),
    ];
    reasons.into_iter().find(|(words, _)| detail.contains(words)).map(|(_, id)| id)
}

/// Returns the problem of a local port or device, which explains more than its effect.
fn of_device(detail: &str) -> Option<Id> {
    let reasons = [
        ("our own port is down", ids::PORT_DOWN),
        ("the device is lost", ids::DEV_FATAL),
        ("the device was lost", ids::DEV_FATAL),
        ("the device was removed", ids::DEV_FATAL),
    ];
    reasons.into_iter().find(|(words, _)| detail.contains(words)).map(|(_, id)| id)
}

/// Returns the problem of addresses that the connection manager refuses to join, of the words `from 10.0.0.1 to
/// 10.0.0.2:41000: …`: two families, or an address that is valid on one link alone. Other programs name none.
fn of_addresses(detail: &str) -> Option<Id> {
    let named = detail.split_once("from ").and_then(|(_, rest)| rest.split_once(" to "));
    let Some((own, rest)) = named else { return Some(ids::GID_FAMILY) };
    let own: IpAddr = own.parse().ok()?;
    let target: SocketAddr =
        rest.split_once(": ").map_or(rest, |(target, _)| target).parse().ok()?;
    let is_link_local = |ip| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    if own.is_ipv6() != target.is_ipv6() {
        return Some(ids::GID_FAMILY);
    }
    (is_link_local(own) || is_link_local(target.ip())).then_some(ids::GID_LINKLOCAL)
}

/// Returns the problem behind a connection through the connection manager.
fn of_manager(call: &str, code: i32, detail: &str) -> Option<Id> {
    if !call.starts_with("rdma_") && !["connection", "wire", "bring_up"].contains(&call) {
        return None;
    }
    let reasons = [
        ("connects queue pairs out of band alone", ids::CM_ONE_WAY),
        ("connect out of band, and ours", ids::CM_ONE_WAY),
        ("no connection joins queue pairs of iWARP", ids::CM_ONE_WAY),
        ("connect through the connection manager, and ours", ids::CM_ONE_WAY),
        ("addresses of different families", ids::GID_FAMILY),
        ("in the InfiniBand partition", ids::IB_PKEY),
        ("cannot be reached", ids::CM_UNREACHED),
        ("neither side reaches", ids::CM_UNREACHED),
        ("was not established in time", ids::CM_UNREACHED),
        ("refused the connection", ids::CM_REFUSED),
        ("is not the peer's", ids::CM_REFUSED),
        ("connection manager rejected", ids::CM_FULL),
        ("the connection was disconnected", ids::PEER_LOST),
        ("one of the device's port", ids::CM_ADDRESS),
        ("no address of the device's port", ids::CM_ADDRESS),
        ("has left the device's port", ids::CM_ADDRESS),
        ("ip_local_port_range", ids::LIM_EPHEMERAL),
    ];
    let by_words = reasons.into_iter().find(|(words, _)| detail.contains(words));
    by_words.map(|(_, id)| id).or(match (call, code.saturating_abs()) {
        ("rdma_resolve_addr", EAFNOSUPPORT) => Some(ids::GID_FAMILY),
        ("rdma_resolve_addr", EINVAL) => of_addresses(detail),
        ("rdma_resolve_addr" | "rdma_bind_addr", ENODEV | EADDRNOTAVAIL) => Some(ids::CM_ADDRESS),
        ("rdma_resolve_addr" | "rdma_resolve_route", ENETUNREACH | EHOSTUNREACH | ETIMEDOUT)
        | ("rdma_resolve_route", ENODEV | EINVAL)
        | ("rdma_connect", ENETUNREACH | EHOSTUNREACH | ETIMEDOUT | ECONNRESET) => {
            Some(ids::CM_UNREACHED)
        }
        ("rdma_connect", ECONNREFUSED) => Some(ids::CM_FULL),
        ("rdma_connect", EADDRINUSE | EADDRNOTAVAIL) => Some(ids::LIM_EPHEMERAL),
        ("rdma_accept", ECONNRESET | ENOTCONN) => Some(ids::PEER_LOST),
        ("rdma_listen", EADDRINUSE) => Some(ids::PORT_IN_USE),
        _ => None,
    })
}

/// Returns the problem behind a failed call: `call` as in errors, such as `ibv_modify_qp(RTR)` or
/// `connect`, `code` its error number or the status of a completion, `detail` its text.
pub fn of_call(call: &str, code: i32, detail: &str) -> Option<Id> {
    if let Some(id) = of_device(detail).or_else(|| of_manager(call, code, detail)) {
        return Some(id);
    }
    let by_number = match call {
        "ibv_modify_qp(INIT)" => Some(ids::QP_INIT),
        "ibv_modify_qp(RESET)" => Some(ids::QP_RESET),
        "ibv_modify_qp(RTR)" => Some(match code {
            ETIMEDOUT => ids::QP_RTR_TIMEOUT,
            ENETUNREACH | EHOSTUNREACH => ids::IP_SUBNET,
            EAFNOSUPPORT | ENOTSUPP => ids::ERDMA_COMPAT_GID,
            ENOMEM => ids::QP_NOMEM,
            EIO | ENODEV => ids::DEV_FATAL,
            _ => ids::QP_RTR,
        }),
        "ibv_modify_qp(RTS)" => Some(ids::QP_RTS),
        "ibv_create_qp" => Some(match code {
            EAGAIN => ids::LIM_CGROUP,
            EOPNOTSUPP => ids::EFA_NO_RC,
            _ => ids::QP_NOMEM,
        }),
        "ibv_create_cq" if code == ENOMEM => Some(ids::LIM_MEMLOCK),
        "ibv_reg_mr" | "ibv_reg_dmabuf_mr" => Some(match code {
            ENOMEM => ids::LIM_MEMLOCK,
            EAGAIN | ENOSPC => ids::MR_EXHAUSTED,
            EINVAL | EIO => ids::MR_TOO_BIG,
            EOPNOTSUPP => ids::GPU_NOPEER,
            _ => ids::MR_FAULT,
        }),
        "cuMemGetHandleForAddressRange" => Some(ids::GPU_EXPORT),
        "cuPointerGetAttributes" => Some(ids::GPU_POINTER),
        "cuFlushGPUDirectRDMAWrites" => Some(ids::GPU_ORDER),
        "ibv_open_device" => Some(match code {
            EPERM => ids::PERM_RAWIO,
            EAGAIN => ids::LIM_CGROUP,
            ENOENT | EACCES | ENODEV => ids::DEV_NODE,
            _ => ids::DEV_FATAL,
        }),
        // The lane was connected, so addresses were exchanged and resolved. The first packet over
        // it was never answered, although the handshake over TCP was.
        "prove" if code == WC_RETRY => Some(ids::ROCE_UDP_FILTERED),
        // The code of these calls is the status of a completion.
        "completion" | "prove" => {
            u32::try_from(code).ok().filter(|status| *status > 0).map(of_completion)
        }
        "resolve" => Some(ids::NET_UNRESOLVED),
        "share" => of_sharing(detail),
        "connect" | "accept" | "hello" => match code {
            ECONNREFUSED => Some(ids::NET_REFUSED),
            ETIMEDOUT => Some(ids::NET_FILTERED),
            ENETUNREACH | EHOSTUNREACH => Some(ids::NET_UNREACHABLE),
            EADDRNOTAVAIL => Some(ids::LIM_EPHEMERAL),
            EMFILE | ENFILE => Some(ids::LIM_NOFILE),
            EACCES | EPERM => Some(ids::NET_FILTERED),
            _ => None,
        },
        _ => None,
    };
    let by_words = || {
        let cause = |text: &str| {
            explain(text).first.filter(|first| first.role == Role::Cause).map(|first| first.id)
        };
        cause(detail).or_else(|| cause(&format!("{call} failed: {detail}")))
    };
    // Without an errno the text of a call is more specific than its kind.
    if code == 0 { by_words().or(by_number) } else { by_number.or_else(by_words) }
}

/// Returns the problem behind the status of a failed completion, as numbered by `enum
/// ibv_wc_status`.
pub fn of_completion(status: u32) -> Id {
    match status {
        1 => ids::WC_LOC_LEN,
        2 | 3 | 6 => ids::WC_LOC_QP_OP,
        4 | 8 => ids::WC_LOC_PROT,
        5 => ids::WC_FLUSH_ONLY,
        7 => ids::WC_BAD_RESP,
        9 => ids::WC_REM_INV,
        10 => ids::WC_REM_ACCESS,
        11 | 16 => ids::WC_REM_OP,
        12 | 20 => ids::WC_RETRY,
        13 => ids::WC_RNR,
        19 => ids::DEV_FATAL,
        _ => ids::WC_GENERAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_and_its_number_lead_to_the_cause() {
        let of = |call, code| of_call(call, code, "").map(Id::as_str);
        assert_eq!(of("ibv_modify_qp(RTR)", 110), Some("QP-RTR-TIMEOUT"));
        assert_eq!(of("ibv_modify_qp(RTR)", 22), Some("QP-RTR"));
        assert_eq!(of("ibv_modify_qp(RTR)", 113), Some("IP-SUBNET"));
        assert_eq!(of("ibv_modify_qp(RTR)", 524), Some("ERDMA-COMPAT-GID"));
        assert_eq!(of("ibv_modify_qp(RTS)", 22), Some("QP-RTS"));
        assert_eq!(of("ibv_create_qp", 12), Some("QP-NOMEM"));
        assert_eq!(of("ibv_reg_mr", 12), Some("LIM-MEMLOCK"));
        assert_eq!(of("ibv_reg_mr", 14), Some("MR-FAULT"));
        assert_eq!(of("ibv_reg_dmabuf_mr", 95), Some("GPU-NOPEER"));
        assert_eq!(of("cuMemGetHandleForAddressRange", 801), Some("GPU-EXPORT"));
        assert_eq!(of("cuPointerGetAttributes", 1), Some("GPU-POINTER"));
        assert_eq!(of("cuFlushGPUDirectRDMAWrites", 801), Some("GPU-ORDER"));
        assert_eq!(of("ibv_open_device", 13), Some("DEV-NODE"));
        assert_eq!(of("connect", 111), Some("NET-REFUSED"));
        assert_eq!(of("connect", 24), Some("LIM-NOFILE"));
        assert_eq!(of("prove", 12), Some("ROCE-UDP-FILTERED"));
        assert_eq!(of("completion", 12), Some("WC-RETRY"));
        assert_eq!(of("prove", 10), Some("WC-REM-ACCESS"));
        assert_eq!(of("a call of nobody", 5), None);
    }

    /// A dial, and what listens for it, has problems of its own: by their words, else by call and number,
    /// which events of the kernel give with either sign.
    #[test]
    fn connections_of_the_manager_have_problems_of_their_own() {
        let of = |call, code, detail| of_call(call, code, detail).map(Id::as_str);
        for (detail, id) in [
            (
                "10.0.0.2:41000: the peer's address cannot be reached; check the route",
                "CM-UNREACHED",
            ),
            ("10.0.0.2:41000: neither side reaches the other's address; put", "CM-UNREACHED"),
            (
                "10.0.0.2:41000: the connection was not established in time; the peer",
                "CM-UNREACHED",
            ),
            ("the peer: the peer refused the connection: the receiver dials itself", "CM-REFUSED"),
            ("the peer: the answer to the connection is not the peer's; another", "CM-REFUSED"),
            (
                "the peer: the peer's connection manager rejected the connection; nobody listens \
                 there any more, or more requests wait than it takes",
                "CM-FULL",
            ),
        ] {
            for code in [0, 110, -110, 111, 8] {
                assert_eq!(of("rdma_connect", code, detail), Some(id), "{code}: {detail}");
            }
        }
        for (call, code, detail, id) in [
            ("connection", 0, "x: the connection was disconnected; the peer ended it", "PEER-LOST"),
            ("connection", 0, "x: the device was removed; it has to be opened again", "DEV-FATAL"),
            (
                "wire",
                0,
                "the peer's queue pairs connect out of band, and ours through",
                "CM-ONE-WAY",
            ),
            ("wire", 0, "connect through the connection manager, and ours out", "CM-ONE-WAY"),
            ("bring_up", 0, "a Mooncake node connects queue pairs out of band alone", "CM-ONE-WAY"),
            ("wire", 0, "at 10.0.0.1 here, addresses of different families", "GID-FAMILY"),
            ("wire", 0, "10.0.0.2 of the peer is in the InfiniBand partition 0x8002", "IB-PKEY"),
            ("rdma_bind_addr", 19, "is one of the device's port; give it one", "CM-ADDRESS"),
            ("rdma_bind_addr", 0, "10.0.0.1 is no address of the device's port", "CM-ADDRESS"),
            ("rdma_bind_addr", 0, "10.0.0.1 has left the device's port", "CM-ADDRESS"),
            ("rdma_bind_addr", 0, "widen net.ipv4.ip_local_port_range", "LIM-EPHEMERAL"),
            ("rdma_resolve_addr", 22, "Invalid argument (os error 22)", "GID-FAMILY"),
            (
                "rdma_resolve_addr",
                22,
                "from 10.0.0.1 to [fd00::2]:9: Invalid argument",
                "GID-FAMILY",
            ),
            ("rdma_resolve_addr", 22, "from fe80::1 to [fe80::2]:9: Invalid", "GID-LINKLOCAL"),
            ("rdma_resolve_addr", 97, "from 10.0.0.1 to 10.0.0.2:9: not supported", "GID-FAMILY"),
            ("rdma_resolve_route", -110, "", "CM-UNREACHED"),
            ("rdma_connect", 111, "", "CM-FULL"),
            ("rdma_connect", 98, "Address already in use (os error 98)", "LIM-EPHEMERAL"),
            ("rdma_connect", 99, "", "LIM-EPHEMERAL"),
            ("rdma_accept", 104, "Connection reset by peer (os error 104)", "PEER-LOST"),
            ("rdma_listen", 98, "Address already in use (os error 98)", "PORT-IN-USE"),
        ] {
            assert_eq!(of(call, code, detail), Some(id), "{call} {code} {detail}");
        }
        let one_family = "from 10.0.0.1 to 10.0.0.2:41000: Invalid argument (os error 22)";
        assert_eq!(of("rdma_resolve_addr", 22, one_family), None);
        assert_eq!(of("rdma_create_event_channel", 13, ""), Some("CM-MISSING"));
        assert_eq!(of("connect", 111, "nobody listens there"), Some("NET-REFUSED"));
    }

    #[test]
    fn without_a_number_the_words_decide() {
        let words = "rxe0: no usable address among: nothing";
        assert_eq!(of_call("open", 0, words), Some(ids::GID_ZERO));
        let words = "there is no such device; there are: rxe0, rxe1";
        assert_eq!(of_call("ibv_get_device_list", 0, words), Some(ids::DEV_NAME));
        assert_eq!(of_call("open", 0, "port 1 is not active"), Some(ids::PORT_DOWN));
        let words = "nic0: the device was lost, and cannot be opened again yet: no such device";
        for (call, code) in [("asynchronous event", 8), ("ibv_open_device", 2)] {
            assert_eq!(of_call(call, code, words), Some(ids::DEV_FATAL));
        }
        assert_eq!(of_call("bring_up", 8, "nic0: the device is lost"), Some(ids::DEV_FATAL));
        let words = "Connection timed out; our own port is down";
        assert_eq!(of_call("ibv_modify_qp(RTR)", 110, words), Some(ids::PORT_DOWN));
        assert_eq!(
            of_call("ibv_modify_qp(RTR)", 0, "the path MTU mismatch"),
            Some(ids::MTU_MISMATCH)
        );
        assert_eq!(of_call("ibv_modify_qp(RTR)", 0, "something new"), Some(ids::QP_RTR));
        let words = "writes of peers to the memory of cuda:0 are seen after a read behind them";
        assert_eq!(of_call("ibv_reg_dmabuf_mr", 0, words), Some(ids::GPU_ORDER));
    }

    #[test]
    fn every_status_has_a_page_and_a_flush_its_own() {
        assert_eq!(of_completion(5), ids::WC_FLUSH_ONLY);
        assert_eq!(of_completion(12), ids::WC_RETRY);
        assert_eq!(of_completion(u32::MAX), ids::WC_GENERAL);
    }
}
