//! The status of an event that ended a dial, as its error has it.

use handfast_core::connection::Cause;

/// The last reason of InfiniBand's and RoCE's connection manager for a rejection (`IB_CM_REJ_…`). It comes in
/// the place of errno, whose value for a refused connection is higher.
const REASON_MAX: i32 = 35;

/// Returns the value of errno of a status, positive and 0 without one, and the words of a reason.
pub(super) fn code_and_reason(cause: Cause, status: i32) -> (i32, String) {
    let is_rejected = matches!(cause, Cause::Refused(_) | Cause::Rejected);
    if !is_rejected || !(1..=REASON_MAX).contains(&status) {
        return (status.saturating_abs(), String::new());
    }
    let words = match status {
        3 => ", it has no resources",
        4 => ", its time is over",
        8 => ", nobody listens at the port",
        10 => ", the number of the queue pair is still that of an earlier connection",
        28 => ", by its program",
        _ => "",
    };
    (0, format!(" (reason {status}{words})"))
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
        }
        let (code, words) = of(Cause::Rejected, 10);
        assert!(code == 0 && words.contains("(reason 10, "), "{code} {words}");
        assert_eq!(of(Cause::Rejected, REASON_MAX), (0, " (reason 35)".to_owned()));
        assert_eq!(of(Cause::Refused(Refusal::Taken), 28).0, 0);
        assert_eq!(of(Cause::TimedOut, 0), (0, String::new()));
        assert_eq!(of(Cause::Unreachable, i32::MIN).0, i32::MAX);
    }
}
