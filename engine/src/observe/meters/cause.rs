//! Causes of a lifecycle's end, in one word.

use handfast_core::node::{CallFailure, Failure};

/// The causes that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    CallRefused,
    Unreachable,
    CallTimedOut,
    CallBroken,
    Refused,
    Transport,
    Silent,
    HalfOpen,
    OperationOverdue,
    Superseded,
    Closed,
    Evicted,
    Quiesced,
    DrainOverdue,
    Limit,
    PeerRestarted,
}

impl Cause {
    /// All of them, in the order of their counts.
    pub(crate) const ALL: [Self; 16] = [
        Self::CallRefused,
        Self::Unreachable,
        Self::CallTimedOut,
        Self::CallBroken,
        Self::Refused,
        Self::Transport,
        Self::Silent,
        Self::HalfOpen,
        Self::OperationOverdue,
        Self::Superseded,
        Self::Closed,
        Self::Evicted,
        Self::Quiesced,
        Self::DrainOverdue,
        Self::Limit,
        Self::PeerRestarted,
    ];

    pub(crate) fn of(failure: &Failure) -> Self {
        match failure {
            Failure::Call(CallFailure::Refused) => Self::CallRefused,
            Failure::Call(CallFailure::Unreachable) => Self::Unreachable,
            Failure::Call(CallFailure::TimedOut) => Self::CallTimedOut,
            Failure::Call(CallFailure::Broken) => Self::CallBroken,
            Failure::Refused(_) => Self::Refused,
            Failure::Transport(_) => Self::Transport,
            Failure::Silent => Self::Silent,
            Failure::HalfOpen => Self::HalfOpen,
            Failure::OperationOverdue => Self::OperationOverdue,
            Failure::Superseded => Self::Superseded,
            Failure::Closed => Self::Closed,
            Failure::Evicted => Self::Evicted,
            Failure::Quiesced => Self::Quiesced,
            Failure::DrainOverdue => Self::DrainOverdue,
            Failure::Limit(_) => Self::Limit,
        }
    }

    /// As labels name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CallRefused => "call_refused",
            Self::Unreachable => "unreachable",
            Self::CallTimedOut => "call_timed_out",
            Self::CallBroken => "call_broken",
            Self::Refused => "refused",
            Self::Transport => "transport",
            Self::Silent => "silent",
            Self::HalfOpen => "half_open",
            Self::OperationOverdue => "operation_overdue",
            Self::Superseded => "superseded",
            Self::Closed => "closed",
            Self::Evicted => "evicted",
            Self::Quiesced => "quiesced",
            Self::DrainOverdue => "drain_overdue",
            Self::Limit => "limit",
            Self::PeerRestarted => "peer_restarted",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cause;

    #[test]
    fn every_cause_is_counted_in_a_place_of_its_own() {
        for (place, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, place, "{}", cause.name());
        }
        let mut names = Cause::ALL.map(Cause::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Cause::ALL.len());
    }
}
