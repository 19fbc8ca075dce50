//! Ids of failed calls, for errors that carry the call, its error number and its text.

use crate::explain::explain;
use crate::ids;
use crate::problem::{Id, Role};
use libc::{
    EACCES, EADDRNOTAVAIL, EAFNOSUPPORT, EAGAIN, ECONNREFUSED, EHOSTUNREACH, EINVAL, EIO, EMFILE,
    ENETUNREACH, ENFILE, ENODEV, ENOENT, ENOMEM, ENOSPC, EOPNOTSUPP, EPERM, ETIMEDOUT,
};

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

/// Returns the problem behind a failed call: `call` as in errors, such as `ibv_modify_qp(RTR)` or
/// `connect`, `code` its error number or the status of a completion, `detail` its text.
pub fn of_call(call: &str, code: i32, detail: &str) -> Option<Id> {
    // The state of the local port explains more than its effect.
    if detail.contains("our own port is down") {
        return Some(ids::PORT_DOWN);
    }
    if ["the device is lost", "the device was lost"].iter().any(|words| detail.contains(words)) {
        return Some(ids::DEV_FATAL);
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
