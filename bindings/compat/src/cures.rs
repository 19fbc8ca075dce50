//! Cures of engine errors, in the options of Python and C.

use handfast::auth::{AuthFailure, AuthRefusal, GrantsRefusalReason};
use handfast::error::DescriptorError;
use handfast::metadata::TlsFailure;
use handfast::rdma::RdmaUnavailable;
use handfast::{Cause, Error, Fallback, GrantError, Stage, TransportKind};

/// An error with its cure.
pub(crate) fn text(error: &Error) -> String {
    match cure(error.stage(), error.cause()).or(error.hint()) {
        Some(cure) => format!("{}; {cure}", error.without_hint()),
        None => error.without_hint().to_string(),
    }
}

/// A fallback with its cure.
pub(crate) fn fallback_text(fallback: &Fallback) -> String {
    let reason = fallback.reason();
    match (fallback.missed(), cure(reason.stage(), reason.cause())) {
        (TransportKind::Shm, _) | (_, None) => fallback.to_string(),
        (_, Some(cure)) => {
            format!("lanes run over TCP, not RDMA: {}; {cure}", reason.without_hint())
        }
    }
}

/// The remedy in an option of the bindings, if one helps.
fn cure(stage: Stage, cause: &Cause) -> Option<&'static str> {
    Some(match (stage, cause) {
        (_, Cause::RdmaUnavailable(unavailable)) => of_rdma(unavailable),
        (_, Cause::RdmaNotOffered) => {
            "start the peer with the transport `rdma` or `auto`, or choose the transport `tcp` here"
        }
        (_, Cause::TcpNotOffered) => {
            "choose the transport `rdma` or `auto` here, or `auto` at the peer"
        }
        (Stage::Device, Cause::Transport(_)) => {
            "`rdma link` shows devices and ports; name a usable one as a device, and its address by \
             MC_GID_INDEX, or choose the transport `tcp`"
        }
        (_, cause) if cause.is_exposed_memory() => {
            "let peers write to the memory, choose the transport `tcp`, or accept it: \
             `accept_exposed_memory`, or HANDFAST_ACCEPT_EXPOSED_MEMORY=1"
        }
        (_, cause) if cause.is_forked_memory() => {
            "set RDMAV_FORK_SAFE=1 before the start, choose the transport `tcp`, or accept it in a \
             process that starts no children: `accept_forked_memory`, or \
             HANDFAST_ACCEPT_FORKED_MEMORY=1"
        }
        (Stage::Registration, Cause::Transport(_)) => {
            "raise the limit of locked memory (`ulimit -l`) before the process starts; a file's pages \
             cannot be pinned on every file system; or choose the transport `tcp`"
        }
        (_, Cause::Descriptor(DescriptorError::NoKey(_))) => {
            "an engine without keys and certificates opens Mooncake nodes"
        }
        (_, Cause::NoDataPort) => {
            "start that node with the protocol `tcp`, or this engine with the transport `rdma`"
        }
        (_, Cause::Grant(GrantError::Unproven { .. }) | Cause::KeysNeeded(_)) => {
            "give the engine keys or certificates: `auth`, or HANDFAST_AUTH, is psk:FILE or \
             tls:DIRECTORY"
        }
        (_, Cause::GrantsRefused(refusal))
            if refusal.reason == GrantsRefusalReason::NoAdministrator =>
        {
            "call as a name that the peer's `administrators` cover"
        }
        (_, Cause::NotAdvertised) => "give the engine the host at which peers reach it",
        (_, Cause::Refused) => "start an engine there, or check host and port",
        (_, Cause::Auth(failure)) => return of_auth(*failure),
        (_, Cause::Store(store)) => of_tls(store.tls_failure()?)?,
        _ => return None,
    })
}

fn of_rdma(unavailable: &RdmaUnavailable) -> &'static str {
    match unavailable {
        RdmaUnavailable::NotBuilt => {
            "install a release, which has RDMA inside, or choose the transport `tcp`"
        }
        RdmaUnavailable::NoLibrary { .. } => {
            "install rdma-core of the system (libibverbs1 and ibverbs-providers), or choose the \
             transport `tcp`"
        }
        RdmaUnavailable::NoList { .. } => {
            "load the kernel module ib_uverbs and check /dev/infiniband, also in a container, or \
             choose the transport `tcp`"
        }
        RdmaUnavailable::NoDevice => {
            "check the device's driver (`rdma link` lists the devices), or choose the transport \
             `tcp`"
        }
    }
}

/// The remedy of a failed authentication, where it is an option.
fn of_auth(failure: AuthFailure) -> Option<&'static str> {
    match failure {
        AuthFailure::Required | AuthFailure::Refused(AuthRefusal::Plain) => Some(
            "give this engine the keys or a certificate of its fleet: `auth`, or HANDFAST_AUTH, is \
             psk:FILE or tls:DIRECTORY",
        ),
        AuthFailure::OwnName => {
            Some("name the engine as its certificate does, with or without a port")
        }
        _ => None,
    }
}

/// The remedy of a store's TLS failure, where a variable has the files.
fn of_tls(failure: TlsFailure) -> Option<&'static str> {
    match failure {
        TlsFailure::UnknownAuthority => {
            Some("name the authority of the store's certificate: ETCDCTL_CACERT of an etcd")
        }
        TlsFailure::OursMissing | TlsFailure::OursRefused => Some(
            "name a valid certificate signed by the store's authority, and its key: ETCDCTL_CERT and \
             ETCDCTL_KEY of an etcd",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::TransferEngine;
    use crate::options::Options;
    use handfast::auth::{CertificateFault, GrantsRefusal};
    use handfast::error::TransportError;
    use handfast::metadata::{StoreCause, StoreError, StoreOperation};
    use handfast::{Direction, Side};
    use std::sync::Arc;
    use std::time::Duration;

    /// Words of the command line and of Rust, which neither Python nor C has.
    const FOREIGN: [&str; 4] = ["--", "Builder", "Options::", "handfast serve"];

    fn of_certificates() -> Vec<Cause> {
        use AuthFailure::*;
        use AuthRefusal as By;
        let faults = [
            CertificateFault::Expired,
            CertificateFault::NotYetValid,
            CertificateFault::UnknownAuthority,
            CertificateFault::Unusable,
        ];
        let refusals =
            [By::Version, By::UnknownKey, By::Unopened, By::Name, By::Addressed, By::NoKeys];
        let more = [By::Plain, By::Conflict, By::Method, By::Expired, By::NotYetValid];
        let last = [By::UnknownAuthority, By::Unusable];
        let refused = refusals.into_iter().chain(more).chain(last).map(Refused);
        let faults = faults.into_iter().flat_map(|fault| [Certificate(fault), Own(fault)]);
        let own = [Unproven, Unopened, OwnName, Name, Addressed, Conflict, Itself, Required];
        refused.chain(faults).chain(own).map(Cause::Auth).collect()
    }

    fn of_stores() -> Vec<Cause> {
        use TlsFailure::*;
        let failures = [UnknownAuthority, WrongName, NotValidNow, BadCertificate, OursMissing];
        let failures = failures.into_iter().chain([OursRefused, NotSpoken, NothingInCommon]);
        let cause = |failure| StoreCause::Tls { failure, detail: String::new() };
        let error = |cause| StoreError {
            store: "etcd://h:1".into(),
            operation: StoreOperation::Get,
            cause,
        };
        failures.map(cause).map(error).map(Cause::Store).collect()
    }

    fn of_devices() -> Vec<Cause> {
        let transport = || TransportError::new(Side::Local, "ibv_reg_mr", "no memory");
        let refused = |call| Cause::Transport(TransportError::new(Side::Configuration, call, ""));
        let unreached = |call| {
            let detail = "10.0.0.2:41000: the peer's address cannot be reached";
            Cause::Transport(TransportError::new(Side::Peer, call, detail))
        };
        vec![
            Cause::RdmaUnavailable(RdmaUnavailable::NotBuilt),
            Cause::RdmaUnavailable(RdmaUnavailable::NoLibrary {
                library: "libibverbs.so.1",
                detail: String::new(),
            }),
            Cause::RdmaUnavailable(RdmaUnavailable::NoList { code: 2 }),
            Cause::RdmaUnavailable(RdmaUnavailable::NoDevice),
            Cause::RdmaNotOffered,
            Cause::TcpNotOffered,
            Cause::Transport(transport()),
            unreached("rdma_connect"),
            unreached("connection"),
            unreached("prove"),
            unreached("ibv_modify_qp(RTR)"),
            refused("serve"),
            refused("fork"),
            refused("ibv_reg_mr"),
            Cause::PeerLost(Arc::new(transport())),
        ]
    }

    fn refused_grants(reason: GrantsRefusalReason) -> Cause {
        Cause::GrantsRefused(GrantsRefusal { reason, detail: "refused".into() })
    }

    fn of_peers() -> Vec<Cause> {
        vec![
            Cause::NoDataPort,
            Cause::NotAdvertised,
            Cause::UnknownHost(String::new()),
            Cause::Refused,
            Cause::Unreachable(String::new()),
            Cause::Silent { timeout: Duration::from_secs(1) },
            Cause::Broken(String::new()),
            Cause::Foreign("HTTP"),
            Cause::Bind(String::new()),
            Cause::OutOfRange { offset: 0, length: 1, bytes: 0 },
            Cause::NoSuchAddress { address: 1, length: 1 },
            Cause::Permission(Direction::Write),
            Cause::PeerRestarted,
            Cause::NotPublished { name: String::new(), store: String::new() },
            Cause::NotificationRejected,
            Cause::Grant(GrantError::Unproven { pattern: String::new() }),
            Cause::KeysNeeded("encrypted lanes need keys"),
            refused_grants(GrantsRefusalReason::NoAdministrator),
            refused_grants(GrantsRefusalReason::NoSegment),
            refused_grants(GrantsRefusalReason::Limit),
            refused_grants(GrantsRefusalReason::Other),
            Cause::Grant(GrantError::Full),
            Cause::DeadlinePassed,
            Cause::Cancelled,
            Cause::Closed,
        ]
    }

    /// The start checks options that the causes below do not have.
    #[test]
    fn refused_options_are_those_of_the_bindings() {
        let options = || Options::new("127.0.0.1", "P2PHANDSHAKE", "tcp", "").unwrap();
        let (mut encrypted, mut administered) = (options(), options());
        encrypted.encrypt_lanes = true;
        administered.administrators = vec!["ops-*".into()];
        for refused in [encrypted, administered] {
            let error = TransferEngine::start(&refused).err().unwrap();
            let text = error.to_string();
            assert!(text.contains("`auth`, or HANDFAST_AUTH"), "{text}");
            assert_eq!(FOREIGN.iter().find(|word| text.contains(**word)), None, "{text}");
            assert_eq!(error.code(), -1);
        }
    }

    /// A lane that does not connect has the library's remedy, which is chosen by the side at fault.
    #[test]
    fn remedy_of_a_lane_is_the_librarys() {
        let sides = [Side::Local, Side::Peer, Side::Configuration, Side::Protection];
        let calls = ["wire", "connection", "prove", "rdma_connect", "ibv_modify_qp(RTR)"];
        for (side, call) in sides.iter().flat_map(|side| calls.map(|call| (*side, call))) {
            let cause = Cause::Transport(TransportError::new(side, call, "it failed"));
            assert_eq!(cure(Stage::Handshake, &cause), None, "{side:?} {call}");
        }
    }

    #[test]
    fn cures_are_options_of_the_bindings() {
        let stages = [
            Stage::Configuration,
            Stage::Device,
            Stage::Listen,
            Stage::Connect,
            Stage::Metadata,
            Stage::Handshake,
            Stage::Registration,
            Stage::Transfer,
        ];
        let lists = [of_certificates(), of_stores(), of_devices(), of_peers()];
        let mut cured = 0;
        for cause in lists.iter().flatten() {
            for stage in stages {
                let found = cure(stage, cause).or(cause.hint(stage)).unwrap_or_default();
                let text = format!("{cause}; {found}");
                let foreign = FOREIGN.iter().find(|word| text.contains(**word));
                assert_eq!(foreign, None, "at {stage}: {text}");
                cured += usize::from(!found.is_empty());
            }
        }
        assert!(cured > 300, "{cured}");
        let refused = |call| Cause::Transport(TransportError::new(Side::Configuration, call, ""));
        for (call, option) in [("serve", "accept_exposed_memory"), ("fork", "accept_forked_memory")]
        {
            let found = cure(Stage::Registration, &refused(call)).unwrap();
            assert!(found.contains(option), "{found}");
        }
        // The library's own cures name what its users have.
        let required = Cause::Auth(AuthFailure::Required);
        assert!(required.hint(Stage::Handshake).is_some_and(|hint| hint.contains("Builder")));
    }
}
