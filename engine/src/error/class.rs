//! Failure classes, by cause.

use super::{Cause, Error};
use handfast_core::policy::FailureClass;
use handfast_core::transport::Side;
use handfast_core::wire::GrantsRefusalReason;

impl Error {
    /// The class of the failure, which determines the use of a retry; `None` for a cancel, an
    /// unknown node, or a deadline without an earlier failure.
    ///
    /// For a transfer it is the class that its lanes' rails use (`docs/transfers.md`).
    pub fn class(&self) -> Option<FailureClass> {
        of(self.side(), self.cause()).or_else(|| {
            let first = self.report()?.first_error.as_ref()?;
            Some(FailureClass::of(first))
        })
    }
}

fn of(side: Side, cause: &Cause) -> Option<FailureClass> {
    Some(match cause {
        Cause::Transport(error) => FailureClass::of(error),
        Cause::PeerLost(error) => FailureClass::of(error),
        Cause::Handshake(_) => match side {
            Side::Local => FailureClass::LocalPort,
            Side::Peer => FailureClass::PeerProcess,
            Side::Configuration => FailureClass::Configuration,
            Side::Protection => FailureClass::Protection,
        },
        Cause::PeerRestarted
        | Cause::Refused
        | Cause::Unreachable(_)
        | Cause::UnknownHost(_)
        | Cause::Silent { .. }
        | Cause::Broken(_)
        | Cause::Foreign(_)
        | Cause::Frame(_)
        | Cause::Descriptor(_)
        | Cause::MooncakeDescriptor(_)
        | Cause::ChecksumRefused(_)
        | Cause::NotificationRejected => FailureClass::PeerProcess,
        Cause::NoCapacity(_)
        | Cause::RdmaUnavailable(_)
        | Cause::Bind(_)
        | Cause::Memory(_)
        | Cause::DevicePointer(_)
        | Cause::Registration(_)
        | Cause::Recording(_)
        | Cause::Limit { .. } => FailureClass::LocalPort,
        Cause::GrantsRefused(refusal) => match refusal.reason {
            GrantsRefusalReason::NoAdministrator | GrantsRefusalReason::NoSegment => {
                FailureClass::Protection
            }
            GrantsRefusalReason::Limit | GrantsRefusalReason::Other => FailureClass::Configuration,
        },
        Cause::Permission(_)
        | Cause::ReadOnly
        | Cause::OutOfRange { .. }
        | Cause::NoSuchAddress { .. }
        | Cause::NoSuchSegment { .. } => FailureClass::Protection,
        Cause::Invalid(_)
        | Cause::KeysNeeded(_)
        | Cause::Grant(_)
        | Cause::Name(_)
        | Cause::NameConflict { .. }
        | Cause::RdmaNotOffered
        | Cause::TcpNotOffered
        | Cause::NoDataPort
        | Cause::NotAdvertised
        | Cause::Auth(_)
        | Cause::NotNamed { .. }
        | Cause::Notification(_) => FailureClass::Configuration,
        #[cfg(feature = "metadata")]
        Cause::Store(_) | Cause::NotPublished { .. } => return None,
        Cause::DeadlinePassed | Cause::Cancelled | Cause::Closed => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Stage;
    use handfast_core::Instant;
    use handfast_core::transfer::{BatchOutcome, BatchReport};
    use handfast_core::transport::TransportError;
    use std::sync::Arc;

    fn lane(side: Side, call: &'static str) -> TransportError {
        TransportError { side, call: call.into(), code: 0, detail: "it broke".into() }
    }

    /// A lane's error has the class that its rail's policy uses, and names it.
    #[test]
    fn lane_error_has_the_class_of_its_rail() {
        for (error, class, words) in [
            (lane(Side::Local, "completion"), FailureClass::LocalPort, "our side, local port"),
            (lane(Side::Peer, "completion"), FailureClass::PeerRail, "the peer's side, peer rail"),
            (lane(Side::Peer, "handshake"), FailureClass::PeerProcess, "peer's side, peer process"),
            (lane(Side::Protection, "post"), FailureClass::Protection, "(access denied)"),
            (
                lane(Side::Configuration, "wire"),
                FailureClass::Configuration,
                "(the configuration of",
            ),
        ] {
            for cause in [Cause::Transport(error.clone()), Cause::PeerLost(Arc::new(error.clone()))]
            {
                let failed = Error::new(error.side, Stage::Transfer, cause);
                assert_eq!(failed.class(), Some(class));
                assert!(failed.to_string().contains(words), "{failed}");
            }
        }
    }

    /// A passed deadline has the class of the earlier failure, if there was one.
    #[test]
    fn deadline_has_the_class_of_the_earlier_failure() {
        let late = |first: Option<TransportError>| {
            let report = BatchReport {
                outcome: BatchOutcome::TimedOut,
                requests: Vec::new(),
                first_error: first.map(Arc::new),
                submitted: Instant(1),
                finished: Instant(2),
            };
            Error::peer(Stage::Transfer, Cause::DeadlinePassed).with_report(report).class()
        };
        assert_eq!(late(Some(lane(Side::Peer, "completion"))), Some(FailureClass::PeerRail));
        assert_eq!(late(None), None);
        assert_eq!(Error::local(Stage::Transfer, Cause::Cancelled).class(), None);
    }
}
