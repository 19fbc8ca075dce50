//! The status of an event that ended a dial, as its error has it.

use handfast_core::connection::Cause;

/// The last reason of InfiniBand's and RoCE's connection manager for a rejection (`IB_CM_REJ_…`). It comes in
/// the place of errno, whose value for a refused connection is higher.
const REASON_MAX: i32 = 35;
/// The cure of a rejection without a reason: a stream that the peer's kernel has refused.
const STREAM_REFUSED: &str = "nobody listens there any more, or more requests wait than it takes";
const ON_DEMAND: &str = "another lane follows on demand";
const ITS_RESOURCES: &str = "free queue pairs and memory on the peer's host";
const ITS_PROGRAM: &str = "another program than a handfast node listens there";
const ADDRESSES: &str = "check the addresses of both ports, and the subnet manager's";
const PATHS: &str = "check the path between both ports in the subnet manager";
const RELEASES: &str =
    "run kernels, and libraries of rdma-core, that understand each other on both sides";

/// The reasons of the specification of InfiniBand, 1 to [`REASON_MAX`], each with its cure.
fn of_specification(reason: i32) -> (&'static str, &'static str) {
    match reason {
        1 => ("it has no queue pair", ITS_RESOURCES),
        2 => ("it has no end-to-end context", ITS_RESOURCES),
        3 => ("it has no resources", ITS_RESOURCES),
        4 => ("an answer did not come in time", ON_DEMAND),
        5 => ("it does not support the request", RELEASES),
        6 | 7 => ("it does not know the exchange", ON_DEMAND),
        8 => ("nobody listens at the port", "the peer has ended, or has opened its device again"),
        9 => ("the port takes connections of another type", ITS_PROGRAM),
        10 => ("the number of the queue pair is still that of an earlier connection", ON_DEMAND),
        11 => ("it has no such reliable datagram domain", ITS_PROGRAM),
        12 | 13 => ("the address is not that of its port", ADDRESSES),
        14 => ("it does not take the service level", PATHS),
        15 => {
            ("it does not take the traffic class", "set MC_IB_TC to a class that both sides take")
        }
        16 => ("it does not take the hop limit", PATHS),
        17 => ("it does not take the packet rate", PATHS),
        18..=23 | 33 => ("it does not take the alternate path", PATHS),
        24 | 25 => ("it asks for another port", ADDRESSES),
        26 => ("it does not take the path MTU", "give both ports, and the switches, one MTU"),
        27 => ("it accepts fewer outstanding reads", ITS_PROGRAM),
        28 => (
            "its program rejected it",
            "it is another program than a handfast node, it ends, or more requests wait than it takes",
        ),
        29 => ("it does not take the count of RNR retries", RELEASES),
        30 => ("the exchange has the number of another one", ON_DEMAND),
        31 => ("it speaks another version of the protocol", RELEASES),
        32 => ("it does not take the flow label", PATHS),
        35 => ("it does not support an option of the vendor", RELEASES),
        _ => ("the specification has no words for it", RELEASES),
    }
}

/// The reason of a rejection, if the status is one.
fn reason_of(cause: Cause, status: i32) -> Option<i32> {
    let is_rejected = matches!(cause, Cause::Refused(_) | Cause::Rejected);
    Some(status).filter(|reason| is_rejected && (1..=REASON_MAX).contains(reason))
}

/// Returns the value of errno of a status, positive and 0 without one, and the words of a reason.
pub(super) fn code_and_reason(cause: Cause, status: i32) -> (i32, String) {
    match reason_of(cause, status) {
        None => (status.saturating_abs(), String::new()),
        Some(reason) => (0, format!(" (reason {reason}, {})", of_specification(reason).0)),
    }
}

/// Returns the cure of a rejection by the peer's connection manager.
pub(super) fn cure_of_rejection(status: i32) -> &'static str {
    reason_of(Cause::Rejected, status).map_or(STREAM_REFUSED, |reason| of_specification(reason).1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_core::connection::Refusal;

    /// A status of an event is a negative value of errno, that of a call a positive one, and that of a rejection
    /// on InfiniBand and RoCE a reason, which is no value of errno.
    #[test]
    fn reasons_of_rejections_are_no_values_of_errno() {
        let of = code_and_reason;
        for status in [-libc::ETIMEDOUT, libc::ETIMEDOUT] {
            assert_eq!(of(Cause::Unreachable, status), (libc::ETIMEDOUT, String::new()));
        }
        for status in [-libc::ECONNREFUSED, libc::ECONNREFUSED] {
            assert_eq!(of(Cause::Rejected, status), (libc::ECONNREFUSED, String::new()));
            assert_eq!(cure_of_rejection(status), STREAM_REFUSED);
        }
        let (code, words) = of(Cause::Rejected, 10);
        assert!(code == 0 && words.contains("(reason 10, the number of"), "{code} {words}");
        assert_eq!(of(Cause::Refused(Refusal::Taken), 28).0, 0);
        assert_eq!(of(Cause::TimedOut, 0), (0, String::new()));
        assert_eq!(of(Cause::Unreachable, i32::MIN).0, i32::MAX);
    }

    /// Each reason has its own words, and only a listener without a free place is called full.
    #[test]
    fn every_reason_has_its_own_words() {
        for reason in (1..=33).chain([35]) {
            let (words, cure) = of_specification(reason);
            assert_ne!(words, of_specification(REASON_MAX - 1).0, "{reason}");
            assert_eq!(cure_of_rejection(reason), cure);
            assert_eq!(cure.contains("more requests wait"), reason == 28, "{reason}: {cure}");
        }
        for (reason, words) in
            [(3, "no resources"), (4, "in time"), (10, "earlier"), (28, "program")]
        {
            assert!(of_specification(reason).0.contains(words), "{reason}");
        }
    }
}
