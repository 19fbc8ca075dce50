//! Meaning of a failed completion's status.

use handfast_core::transport::Side;

/// The status of a work request that was flushed: an error before it ended its queue pair.
#[cfg(feature = "verbs")]
pub(crate) const FLUSHED: u32 = 5;

/// The statuses of a request that nobody answered, or that the device lost with everything else.
#[cfg(feature = "verbs")]
pub(crate) const NO_ANSWER: [u32; 4] = [12, 13, 19, 20];

/// Names and sides by number, as `enum ibv_wc_status` of rdma-core counts them.
const STATUSES: [(&str, Side); 24] = [
    ("success", Side::Local),
    ("local length error", Side::Local),
    ("local queue-pair operation error", Side::Local),
    ("local end-to-end context operation error", Side::Local),
    ("local protection error", Side::Local),
    ("flushed after an earlier error", Side::Local),
    ("memory window bind error", Side::Local),
    ("bad response", Side::Peer),
    ("local access error", Side::Local),
    ("the peer's NIC found the request invalid", Side::Configuration),
    ("the peer's NIC refused the access", Side::Protection),
    ("the peer's NIC failed at the operation", Side::Peer),
    ("transport retries exceeded: no answer", Side::Peer),
    ("receiver-not-ready retries exceeded", Side::Peer),
    ("reliable datagram domain violation", Side::Local),
    ("invalid reliable datagram request", Side::Peer),
    ("aborted by the peer's NIC", Side::Peer),
    ("invalid end-to-end context number", Side::Local),
    ("invalid end-to-end context state", Side::Local),
    ("fatal error of the device", Side::Local),
    ("no response in time", Side::Peer),
    ("an error the driver does not classify", Side::Peer),
    ("tag matching error", Side::Local),
    ("tag matching incomplete", Side::Local),
];

/// A failed completion: the error and the side at fault.
///
/// Drivers answer the same mistake with different numbers, so nothing but the side should depend on
/// the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionError {
    /// The `ibv_wc_status` number.
    pub status: u32,
    /// The vendor error code.
    pub vendor: u32,
}

impl CompletionError {
    /// The side at fault. An unknown number is charged to the local side.
    pub fn side(self) -> Side {
        self.entry().1
    }

    /// In words.
    pub fn words(self) -> &'static str {
        self.entry().0
    }

    fn entry(self) -> (&'static str, Side) {
        let index = usize::try_from(self.status).unwrap_or(usize::MAX);
        *STATUSES.get(index).unwrap_or(&("a status unknown to this version", Side::Local))
    }
}

/// Part of a completion in the life of its queue pair.
#[cfg(feature = "verbs")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionKind {
    Done,
    /// The cause of all later errors.
    FirstError,
    /// The first completion of a queue pair's end is a consequence: its cause was not reported
    /// here.
    FirstFlush,
    /// A consequence of an end already reported.
    Consequence,
}

#[cfg(feature = "verbs")]
impl CompletionKind {
    /// Classifies a status; `broken` states whether the queue pair had an earlier error, and `broken_sends` has
    /// the device's statuses without a cause.
    pub(crate) fn of(status: u32, broken_sends: &[u32], broken: &mut bool) -> Self {
        if status == 0 {
            return Self::Done;
        }
        match (std::mem::replace(broken, true), status) {
            (true, _) => Self::Consequence,
            (false, FLUSHED) => Self::FirstFlush,
            (false, status) if broken_sends.contains(&status) => Self::FirstFlush,
            (false, _) => Self::FirstError,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first error of a queue pair is the cause, and all others are consequences.
    #[cfg(feature = "verbs")]
    #[test]
    fn first_error_of_a_queue_pair_is_the_cause() {
        let ends_on = |broken_sends: &[u32], statuses: &[u32]| {
            let mut broken = false;
            statuses
                .iter()
                .map(|status| CompletionKind::of(*status, broken_sends, &mut broken))
                .collect::<Vec<_>>()
        };
        let ends = |statuses: &[u32]| ends_on(&[], statuses);
        use CompletionKind::{Consequence, Done, FirstError, FirstFlush};
        assert_eq!(ends(&[0, 12, 5, 5]), [Done, FirstError, Consequence, Consequence]);
        // Some drivers use another status for everything after the first error.
        assert_eq!(ends(&[10, 21, 5]), [FirstError, Consequence, Consequence]);
        assert_eq!(ends(&[5, 5, 12]), [FirstFlush, Consequence, Consequence]);
        assert_eq!(ends(&[2, 5]), [FirstError, Consequence]);
        assert_eq!(ends_on(&[2], &[0, 2, 5]), [Done, FirstFlush, Consequence]);
        assert_eq!(ends_on(&[2], &[12, 2]), [FirstError, Consequence]);
    }

    #[test]
    fn no_answer_is_the_peers_a_refused_access_is_nobodys_to_retry() {
        let error = |status| CompletionError { status, vendor: 0 };
        assert_eq!(error(12).side(), Side::Peer);
        assert_eq!(error(10).side(), Side::Protection);
        assert_eq!(error(9).side(), Side::Configuration);
        assert_eq!(error(4).side(), Side::Local);
        assert_eq!(error(24).side(), Side::Local);
        assert_eq!(error(u32::MAX).words(), "a status unknown to this version");
    }
}
