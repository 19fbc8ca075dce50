//! Causes of a lifecycle's end and reasons of refusals, in one word.

use handfast_core::node::{CallFailure, Failure};
use handfast_core::wire::RefusalReason;

/// The cause of every end after a restart of the peer.
pub(crate) const PEER_RESTARTED: &str = "peer_restarted";

pub(crate) fn cause(failure: &Failure) -> &'static str {
    match failure {
        Failure::Call(CallFailure::Refused) => "call_refused",
        Failure::Call(CallFailure::Unreachable) => "unreachable",
        Failure::Call(CallFailure::TimedOut) => "call_timed_out",
        Failure::Call(CallFailure::Broken) => "call_broken",
        Failure::Call(CallFailure::Unproven) => "call_unproven",
        Failure::Refused(_) => "refused",
        Failure::Transport(_) => "transport",
        Failure::Silent => "silent",
        Failure::HalfOpen => "half_open",
        Failure::OperationOverdue => "operation_overdue",
        Failure::Superseded => "superseded",
        Failure::Closed => "closed",
        Failure::Evicted => "evicted",
        Failure::Quiesced => "quiesced",
        Failure::DrainOverdue => "drain_overdue",
        Failure::Limit(_) => "limit",
    }
}

pub(crate) fn reason(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::Gone => "gone",
        RefusalReason::Superseded => "superseded",
        RefusalReason::Busy => "busy",
        RefusalReason::Starting => "starting",
        RefusalReason::Configuration => "configuration",
        RefusalReason::Encryption => "encryption",
        RefusalReason::Protection => "protection",
        RefusalReason::NameConflict => "name_conflict",
        RefusalReason::Unproven => "unproven",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_core::transport::{Side, TransportError};
    use handfast_core::wire::Refusal;
    use std::collections::BTreeSet;

    #[test]
    fn every_cause_is_counted_under_a_name_of_its_own() {
        let refusal = Refusal { reason: RefusalReason::Gone, detail: String::new() };
        let failures = [
            Failure::Call(CallFailure::Refused),
            Failure::Call(CallFailure::Unreachable),
            Failure::Call(CallFailure::TimedOut),
            Failure::Call(CallFailure::Broken),
            Failure::Call(CallFailure::Unproven),
            Failure::Refused(refusal),
            Failure::Transport(TransportError::new(Side::Peer, "lane", "it broke")),
            Failure::Silent,
            Failure::HalfOpen,
            Failure::OperationOverdue,
            Failure::Superseded,
            Failure::Closed,
            Failure::Evicted,
            Failure::Quiesced,
            Failure::DrainOverdue,
            Failure::Limit("peers_max".into()),
        ];
        let names: BTreeSet<&str> = failures.iter().map(cause).chain([PEER_RESTARTED]).collect();
        assert_eq!(names.len(), failures.len() + 1, "{names:?}");
    }
}
