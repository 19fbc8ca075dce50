//! Diagnosis of errors by the catalogue.

use crate::error::{Cause, Error, Stage};
use handfast_core::auth::{AuthFailure, AuthRefusal, CertificateFault};
use handfast_core::mooncake::{NotificationError, SegmentError};
use handfast_core::node::{CallFailure, Failure};
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::{DescriptorError, GrantsRefusalReason, RefusalReason};
use handfast_diagnosis::{Id, ids, of_call};
#[cfg(feature = "metadata")]
use handfast_metadata::{RedisRefusal, StoreCause, StoreError};
use handfast_transport_rdma::{NicLimit, RdmaUnavailable};

/// Prefix of the message of [`Failure::Refused`], with which a peer is given up.
const REFUSAL: &str = "the peer refused";

impl Error {
    /// Returns the problem's id in the catalogue; `handfast explain ID` describes the remedy.
    pub fn diagnosis_id(&self) -> Id {
        of_cause(self.stage(), self.cause())
    }
}

fn of_cause(stage: Stage, cause: &Cause) -> Id {
    match cause {
        Cause::Invalid(_) | Cause::KeysNeeded(_) => ids::CONFIG_INVALID,
        Cause::Grant(_) | Cause::NotAdvertised => ids::CONFIG_INVALID,
        Cause::GrantsRefused(refusal) => match refusal.reason {
            GrantsRefusalReason::NoAdministrator => ids::SEG_PERMISSION,
            GrantsRefusalReason::NoSegment => ids::SEG_NAME,
            GrantsRefusalReason::Limit => ids::ENGINE_LIMIT,
            GrantsRefusalReason::Other => ids::CONFIG_INVALID,
        },
        Cause::Name(_) => ids::NAME_INVALID,
        Cause::UnknownHost(_) => ids::NET_UNRESOLVED,
        Cause::Refused => ids::NET_REFUSED,
        Cause::Unreachable(_) => ids::NET_UNREACHABLE,
        Cause::Silent { .. } => ids::NET_FILTERED,
        Cause::Broken(_) | Cause::Foreign(_) | Cause::Frame(_) => ids::NET_RESET,
        Cause::Descriptor(error) => of_descriptor(error),
        Cause::Auth(failure) => of_auth(*failure),
        Cause::RdmaUnavailable(unavailable) => of_unavailable(unavailable),
        Cause::RdmaNotOffered | Cause::TcpNotOffered => ids::TRANSPORT_MISMATCH,
        Cause::NoDataPort => ids::TRANSPORT_MISMATCH,
        Cause::MooncakeDescriptor(SegmentError::Null) => ids::SEG_NAME,
        Cause::MooncakeDescriptor(_) => ids::META_VERSION,
        Cause::Notification(NotificationError::Malformed(_)) => ids::META_VERSION,
        Cause::Notification(NotificationError::TooLong { .. }) => ids::ENGINE_LIMIT,
        Cause::NotificationRejected => ids::HS_FAILED,
        Cause::Recording(_) => ids::CONFIG_INVALID,
        #[cfg(feature = "metadata")]
        Cause::Store(error) => of_store(error),
        #[cfg(feature = "metadata")]
        Cause::NotPublished { .. } => ids::SEG_NAME,
        Cause::Bind(text) => of_bind(text),
        Cause::NoSuchSegment { .. } | Cause::NotNamed { .. } => ids::SEG_NAME,
        Cause::OutOfRange { .. } | Cause::NoSuchAddress { .. } => ids::SEG_RANGE,
        Cause::Permission(_) | Cause::ReadOnly => ids::SEG_PERMISSION,
        Cause::Memory(_) | Cause::Registration(_) => ids::MEM_ALLOCATION,
        Cause::DevicePointer(_) => ids::GPU_POINTER,
        Cause::Handshake(failure) => of_failure(failure),
        Cause::Transport(error) => of_transport(stage, error),
        Cause::PeerLost(error) if error.detail.starts_with(REFUSAL) => {
            of_call("handshake", 0, &error.detail).unwrap_or(ids::HS_FAILED)
        }
        Cause::PeerLost(_) => ids::PEER_LOST,
        Cause::NoCapacity(reached) => of_limit(reached.limit),
        Cause::PeerRestarted => ids::PEER_RESTARTED,
        Cause::DeadlinePassed => ids::XFER_DEADLINE,
        Cause::Cancelled | Cause::Closed => ids::XFER_CANCELLED,
        Cause::NameConflict { .. } => ids::HOSTNAME_DUP,
        Cause::Limit { .. } => ids::ENGINE_LIMIT,
        Cause::ChecksumRefused(_) => ids::CHECKSUM,
    }
}

#[cfg(feature = "metadata")]
fn of_store(error: &StoreError) -> Id {
    match &error.cause {
        StoreCause::RedisRefused { refusal, .. } => match refusal {
            RedisRefusal::User => ids::REDIS_AUTH,
            RedisRefusal::Protected => ids::REDIS_LOOPBACK,
            RedisRefusal::Database => ids::REDIS_DATABASE,
            RedisRefusal::NotPrimary | RedisRefusal::Full => ids::REDIS_READONLY,
            RedisRefusal::NotReady | RedisRefusal::Other => ids::REDIS_DOWN,
        },
        StoreCause::Unreachable(_) | StoreCause::Silent { .. }
            if error.store.starts_with("redis") =>
        {
            ids::REDIS_DOWN
        }
        // HTTP and gRPC codes: permission denied, unauthenticated.
        StoreCause::Refused { status: 401 | 403 | 7 | 16, .. } => ids::ETCD_AUTH,
        StoreCause::Unreachable(_) | StoreCause::Silent { .. } | StoreCause::Refused { .. } => {
            ids::ETCD_DOWN
        }
        StoreCause::NotText => ids::META_CAPTIVE,
        StoreCause::TooLong { .. } => ids::ENGINE_LIMIT,
        StoreCause::NotBuilt { .. } => ids::BUILD_FEATURE,
        StoreCause::Certificates(_) | StoreCause::Tls { .. } => ids::ETCD_TLS,
    }
}

fn of_auth(failure: AuthFailure) -> Id {
    match failure {
        AuthFailure::Required | AuthFailure::Unproven => ids::AUTH_REQUIRED,
        AuthFailure::Refused(AuthRefusal::NoKeys | AuthRefusal::Plain) => ids::AUTH_REQUIRED,
        AuthFailure::Refused(AuthRefusal::UnknownKey | AuthRefusal::Unopened)
        | AuthFailure::Unopened => ids::AUTH_KEY,
        AuthFailure::Refused(AuthRefusal::Version) => ids::META_VERSION,
        AuthFailure::Refused(AuthRefusal::Method) => ids::AUTH_METHOD,
        AuthFailure::Refused(AuthRefusal::Expired)
        | AuthFailure::Certificate(CertificateFault::Expired)
        | AuthFailure::Own(CertificateFault::Expired) => ids::AUTH_CERT_EXPIRED,
        AuthFailure::Refused(AuthRefusal::NotYetValid)
        | AuthFailure::Certificate(CertificateFault::NotYetValid)
        | AuthFailure::Own(CertificateFault::NotYetValid) => ids::AUTH_CERT_EARLY,
        AuthFailure::Refused(AuthRefusal::UnknownAuthority)
        | AuthFailure::Certificate(CertificateFault::UnknownAuthority)
        | AuthFailure::Own(CertificateFault::UnknownAuthority) => ids::AUTH_CERT_AUTHORITY,
        AuthFailure::Refused(AuthRefusal::Revoked)
        | AuthFailure::Certificate(CertificateFault::Revoked)
        | AuthFailure::Own(CertificateFault::Revoked) => ids::AUTH_CERT_REVOKED,
        AuthFailure::Refused(AuthRefusal::Unusable)
        | AuthFailure::Certificate(CertificateFault::Unusable)
        | AuthFailure::Own(CertificateFault::Unusable) => ids::AUTH_CERT,
        AuthFailure::Refused(AuthRefusal::Name | AuthRefusal::Addressed)
        | AuthFailure::Name
        | AuthFailure::OwnName
        | AuthFailure::Itself
        | AuthFailure::Addressed => ids::AUTH_NAME,
        AuthFailure::Refused(AuthRefusal::Conflict) | AuthFailure::Conflict => ids::HOSTNAME_DUP,
    }
}

fn of_limit(limit: NicLimit) -> Id {
    match limit {
        NicLimit::Lanes | NicLimit::LanesOfPeer | NicLimit::CompletionEntries => ids::ENGINE_LIMIT,
        NicLimit::QueuePairs => ids::QP_NOMEM,
        NicLimit::Regions => ids::MR_EXHAUSTED,
        NicLimit::LockedMemory => ids::LIM_MEMLOCK,
    }
}

fn of_descriptor(error: &DescriptorError) -> Id {
    match error {
        DescriptorError::NoKey(_) | DescriptorError::Required(_) => ids::META_VERSION,
        DescriptorError::Null => ids::SEG_NAME,
        DescriptorError::Malformed(_) | DescriptorError::Field(_) => ids::META_VERSION,
    }
}

fn of_unavailable(unavailable: &RdmaUnavailable) -> Id {
    match unavailable {
        RdmaUnavailable::NotBuilt => ids::BUILD_FEATURE,
        RdmaUnavailable::NoLibrary { .. } => ids::PROV_MISSING,
        RdmaUnavailable::NoList { .. } => ids::MOD_MISSING,
        RdmaUnavailable::NoDevice => ids::DEV_NONE,
    }
}

/// Returns the id for a failed bind, by the system's message.
fn of_bind(text: &str) -> Id {
    of_call("bind", 0, &format!("bind: {text}")).unwrap_or(ids::PORT_IN_USE)
}

fn of_failure(failure: &Failure) -> Id {
    match failure {
        Failure::Call(CallFailure::Refused) => ids::NET_REFUSED,
        Failure::Call(CallFailure::Unreachable) => ids::NET_UNREACHABLE,
        Failure::Call(CallFailure::TimedOut) | Failure::Silent => ids::NET_FILTERED,
        Failure::Call(CallFailure::Broken) => ids::NET_RESET,
        Failure::Call(CallFailure::Unproven) => ids::AUTH_REQUIRED,
        Failure::Refused(refusal) => match refusal.reason {
            RefusalReason::NameConflict => ids::HOSTNAME_DUP,
            RefusalReason::Protection => ids::SEG_PERMISSION,
            RefusalReason::Superseded => ids::PEER_RESTARTED,
            RefusalReason::Configuration | RefusalReason::Encryption => {
                of_call("handshake", 0, &refusal.detail).unwrap_or(ids::HS_FAILED)
            }
            RefusalReason::Gone
            | RefusalReason::Busy
            | RefusalReason::Starting
            | RefusalReason::Unproven => ids::HS_FAILED,
        },
        Failure::Transport(error) => of_transport(Stage::Handshake, error),
        Failure::HalfOpen | Failure::OperationOverdue => ids::HS_FAILED,
        Failure::Superseded => ids::PEER_RESTARTED,
        Failure::Closed | Failure::Evicted | Failure::Quiesced => ids::XFER_CANCELLED,
        Failure::DrainOverdue => ids::XFER_DEADLINE,
        Failure::Limit(_) => ids::ENGINE_LIMIT,
    }
}

/// Returns the id for a transport error, by its call, then by stage and side.
fn of_transport(stage: Stage, error: &TransportError) -> Id {
    let by_call = of_call(&error.call, error.code, &error.detail);
    by_call.unwrap_or(match (stage, error.side) {
        (Stage::Device, _) => ids::DEV_NONE,
        (Stage::Registration, _) => ids::MR_FAULT,
        (_, Side::Protection) => ids::WC_REM_ACCESS,
        (Stage::Connect | Stage::Metadata | Stage::Handshake, _) => ids::HS_FAILED,
        (_, Side::Peer) => ids::PEER_LOST,
        (_, Side::Local | Side::Configuration) if error.call.starts_with("ibv_") => {
            ids::VERBS_OTHER
        }
        (_, Side::Local | Side::Configuration) => ids::INTERNAL,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_core::Incarnation;
    use handfast_core::identity::NameError;
    use handfast_core::wire::{FrameError, GrantsRefusal, Refusal};
    use handfast_diagnosis::problem;
    use handfast_metadata::{StoreOperation, TlsFailure};
    use handfast_transport::{Direction, RegistrationError};
    use handfast_transport_rdma::LimitReached;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn transport(side: Side, call: &'static str, code: i32, detail: &str) -> TransportError {
        TransportError { side, call: call.into(), code, detail: detail.to_owned() }
    }

    /// The page and the remedy of a dial are those of the connection manager.
    #[test]
    fn failed_dial_has_a_page_and_a_remedy_of_its_own() {
        let failed = |call, detail| {
            let failure = transport(Side::Peer, call, 110, detail);
            Error::new(Side::Peer, Stage::Handshake, failure)
        };
        let dial = failed("rdma_connect", "10.0.0.2:41000: the peer's address cannot be reached");
        assert_eq!(dial.diagnosis_id(), ids::CM_UNREACHED);
        assert!(dial.hint().unwrap().contains("ip_local_port_range"), "{:?}", dial.hint());
        let out_of_band = failed("ibv_modify_qp(RTR)", "Connection timed out");
        assert_eq!(out_of_band.diagnosis_id(), ids::QP_RTR_TIMEOUT);
        assert!(out_of_band.hint().unwrap().contains("`rping`"), "{:?}", out_of_band.hint());
    }

    /// Every variant at least once. The functions above match exhaustively, so a new variant does
    /// not compile.
    fn causes() -> Vec<Cause> {
        let unavailable = [
            RdmaUnavailable::NotBuilt,
            RdmaUnavailable::NoLibrary { library: "libibverbs.so.1", detail: String::new() },
            RdmaUnavailable::NoList { code: 38 },
            RdmaUnavailable::NoDevice,
        ];
        let mut causes = vec![
            Cause::Invalid("a contradiction".into()),
            Cause::KeysNeeded("an option needs keys"),
            Cause::Name(NameError::Empty),
            Cause::UnknownHost("x".into()),
            Cause::Refused,
            Cause::Unreachable("x".into()),
            Cause::Silent { timeout: std::time::Duration::ZERO },
            Cause::Broken("x".into()),
            Cause::Foreign("HTTP"),
            Cause::Frame(FrameError::Empty),
            Cause::Descriptor(DescriptorError::Required(1)),
            Cause::RdmaNotOffered,
            Cause::TcpNotOffered,
            Cause::NoDataPort,
            Cause::NotAdvertised,
            Cause::MooncakeDescriptor(SegmentError::Null),
            Cause::NotificationRejected,
            Cause::NotPublished { name: "x".into(), store: "x".into() },
            Cause::Recording(handfast_trace::RecordError::Bytes { bytes: 1 }),
            Cause::Notification(NotificationError::TooLong { field: "name", bytes: 2, limit: 1 }),
            Cause::Descriptor(DescriptorError::Null),
            Cause::Bind("Address already in use (os error 98)".into()),
            Cause::NoSuchSegment { asked: "a".into(), nearest: None, served: vec![], known: 0 },
            Cause::NotNamed { served: vec!["a".into(), "b".into()], known: 2 },
            Cause::OutOfRange { offset: 1, length: 1, bytes: 1 },
            Cause::NoSuchAddress { address: 1, length: 1 },
            Cause::Permission(Direction::Write),
            Cause::ReadOnly,
            Cause::Memory("x".into()),
            Cause::DevicePointer("x".into()),
            Cause::Registration(RegistrationError::Full),
            Cause::Transport(transport(Side::Local, "ibv_modify_qp(RTR)", 110, "x")),
            Cause::PeerLost(Arc::new(transport(Side::Peer, "receive", 0, "x"))),
            Cause::NoCapacity(LimitReached { limit: NicLimit::QueuePairs, in_use: 1, max: 1 }),
            Cause::PeerRestarted,
            Cause::DeadlinePassed,
            Cause::Cancelled,
            Cause::NameConflict { first: Incarnation(1), second: Incarnation(2) },
            Cause::Limit { name: "peers", value: 1 },
            Cause::ChecksumRefused("x".into()),
            Cause::Closed,
        ];
        causes.extend(stores());
        causes.extend(unavailable.map(Cause::RdmaUnavailable));
        causes.extend(grants_refusals());
        causes.extend(failures().into_iter().map(Cause::Handshake));
        causes
    }

    fn grants_refusals() -> impl Iterator<Item = Cause> {
        let reasons = [
            GrantsRefusalReason::NoAdministrator,
            GrantsRefusalReason::NoSegment,
            GrantsRefusalReason::Limit,
            GrantsRefusalReason::Other,
        ];
        let refusal = |reason| GrantsRefusal { reason, detail: "x".into() };
        reasons.into_iter().map(move |reason| Cause::GrantsRefused(refusal(reason)))
    }

    fn stores() -> impl Iterator<Item = Cause> {
        let stores = [
            StoreCause::Unreachable("x".into()),
            StoreCause::Silent { timeout: std::time::Duration::ZERO },
            StoreCause::Refused { status: 401, text: "x".into() },
            StoreCause::Refused { status: 500, text: "x".into() },
            StoreCause::TooLong { what: "key", bytes: 2, limit: 1 },
            StoreCause::RedisRefused { refusal: RedisRefusal::User, text: "x".into() },
            StoreCause::NotBuilt { feature: "etcd" },
            StoreCause::Certificates("x".into()),
            StoreCause::Tls { failure: TlsFailure::WrongName, detail: "x".into() },
            StoreCause::NotText,
        ];
        stores.into_iter().map(|cause| {
            let (store, operation) = ("http://x".into(), StoreOperation::Get);
            Cause::Store(StoreError { store, operation, cause })
        })
    }

    fn failures() -> Vec<Failure> {
        let refused = |reason| Failure::Refused(Refusal { reason, detail: "MTU mismatch".into() });
        vec![
            Failure::Call(CallFailure::Refused),
            Failure::Call(CallFailure::Unreachable),
            Failure::Call(CallFailure::TimedOut),
            Failure::Call(CallFailure::Broken),
            Failure::Call(CallFailure::Unproven),
            refused(RefusalReason::Gone),
            refused(RefusalReason::Superseded),
            refused(RefusalReason::Busy),
            refused(RefusalReason::Starting),
            refused(RefusalReason::Configuration),
            refused(RefusalReason::Encryption),
            refused(RefusalReason::Protection),
            refused(RefusalReason::NameConflict),
            refused(RefusalReason::Unproven),
            Failure::Transport(transport(Side::Local, "ibv_create_qp", 12, "x")),
            Failure::Silent,
            Failure::HalfOpen,
            Failure::OperationOverdue,
            Failure::Superseded,
            Failure::Closed,
            Failure::Evicted,
            Failure::Quiesced,
            Failure::DrainOverdue,
            Failure::Limit("peers".into()),
        ]
    }

    /// Every error leads to a page more specific than the last resort.
    #[test]
    fn every_error_has_a_specific_page() {
        let mut seen = BTreeSet::new();
        for cause in causes() {
            let error = Error::local(Stage::Handshake, cause);
            let id = error.diagnosis_id();
            assert_eq!(problem(id).id, id);
            assert!(id != ids::INTERNAL && id != ids::VERBS_OTHER, "{error}");
            seen.insert(id);
        }
        assert!(seen.len() > 20, "{seen:?}");
    }

    /// A peer lost to a refusal leads to the handshake's page.
    #[test]
    fn refusal_leads_to_the_handshake_page() {
        let lost = |reason, detail: &str| {
            let words = Failure::Refused(Refusal { reason, detail: detail.into() }).to_string();
            let error = transport(Side::Peer, "handshake", 0, &words);
            of_cause(Stage::Transfer, &Cause::PeerLost(Arc::new(error)))
        };
        assert_eq!(lost(RefusalReason::Busy, "no lane is free"), ids::HS_FAILED);
        assert_eq!(lost(RefusalReason::Configuration, "MTU mismatch"), ids::MTU_MISMATCH);
        let silent = transport(Side::Peer, "handshake", 0, &Failure::Silent.to_string());
        let silent = Cause::PeerLost(Arc::new(silent));
        assert_eq!(of_cause(Stage::Transfer, &silent), ids::PEER_LOST);
    }

    /// The system's error explains a failed listen.
    #[test]
    fn system_error_explains_a_failed_listen() {
        let of = |text: &str| of_cause(Stage::Listen, &Cause::Bind(text.into()));
        assert_eq!(of("Address already in use (os error 98)"), ids::PORT_IN_USE);
        assert_eq!(of("Cannot assign requested address (os error 99)"), ids::NET_NOT_LOCAL);
        assert_eq!(
            of("failed to lookup address information: Name or service not known"),
            ids::NET_UNRESOLVED
        );
    }

    #[test]
    fn a_failed_call_leads_to_the_calls_page_and_else_to_its_stage() {
        let of = |stage, side, call, code| of_transport(stage, &transport(side, call, code, "x"));
        let (local, peer) = (Side::Local, Side::Peer);
        assert_eq!(of(Stage::Handshake, peer, "ibv_modify_qp(RTR)", 110), ids::QP_RTR_TIMEOUT);
        assert_eq!(of(Stage::Transfer, peer, "completion", 12), ids::WC_RETRY);
        assert_eq!(of(Stage::Registration, local, "ibv_reg_mr", 12), ids::LIM_MEMLOCK);
        assert_eq!(of(Stage::Device, local, "open", 0), ids::DEV_NONE);
        assert_eq!(of(Stage::Transfer, Side::Protection, "copy", 0), ids::WC_REM_ACCESS);
        assert_eq!(of(Stage::Transfer, peer, "copy", 0), ids::PEER_LOST);
        assert_eq!(of(Stage::Transfer, local, "ibv_close_device", 5), ids::VERBS_OTHER);
    }

    #[test]
    fn what_an_error_says_is_recognised_as_the_page_it_names() {
        for cause in causes() {
            let error = Error::local(Stage::Connect, cause);
            let text = format!("{error} [{}]", error.diagnosis_id());
            let first = handfast_diagnosis::explain::explain(&text).first;
            assert_eq!(first.map(|first| first.id), Some(error.diagnosis_id()), "{text}");
        }
    }
}
