//! Cures of engine errors, in the options of this program.

use handfast::error::DescriptorError;
use handfast::metadata::TlsFailure;
use handfast::rdma::RdmaUnavailable;
use handfast::{Cause, Error, Fallback, Stage, TransportKind};
use handfast_trace::{RedactError, ReplayError, TraceCause, TraceError};

/// An error with its cure.
pub(crate) fn text(error: &Error) -> String {
    match cure(error) {
        Some(cure) => format!("{}; {cure}", error.without_hint()),
        None => error.without_hint().to_string(),
    }
}

/// A fallback with its cure.
pub(crate) fn fallback_text(fallback: &Fallback) -> String {
    let reason = fallback.reason().without_hint();
    let cure = of_fallback(fallback);
    match fallback.missed() {
        TransportKind::Shm => {
            format!("no memory is shared with a process of this host: {reason}; {cure}")
        }
        _ => format!("lanes run over TCP, not RDMA: {reason}; {cure}"),
    }
}

/// The remedy of a fallback.
pub(crate) fn of_fallback(fallback: &Fallback) -> &'static str {
    match fallback.missed() {
        TransportKind::Shm => fallback.cure(),
        _ => cure(fallback.reason()).unwrap_or(OF_FALLBACK),
    }
}

/// The remedy of a fallback whose reason has none.
pub(crate) const OF_FALLBACK: &str = "choose `--transport tcp` if TCP is meant";

/// The remedy of an error: an option of this program if one helps, else the library's hint.
pub(crate) fn cure(error: &Error) -> Option<&'static str> {
    of(error.stage(), error.cause())
}

fn of(stage: Stage, cause: &Cause) -> Option<&'static str> {
    Some(match (stage, cause) {
        (_, Cause::RdmaUnavailable(unavailable)) => rdma_cure(unavailable),
        (_, Cause::RdmaNotOffered) => {
            "start the peer with `--transport rdma` or `auto`, or choose `--transport tcp` here"
        }
        (_, Cause::TcpNotOffered) => {
            "choose `--transport rdma` or `auto` here, or `--transport auto` at the peer"
        }
        (Stage::Device, Cause::Transport(_)) => {
            "`rdma link` shows devices and ports; name a usable one with --device and --gid, or \
             choose `--transport tcp`"
        }
        (Stage::Registration, Cause::Transport(_)) => {
            "raise the limit of locked memory (`ulimit -l`); a file's pages cannot be pinned on \
             every file system; or choose `--transport tcp`"
        }
        (_, Cause::Descriptor(DescriptorError::NoKey(_))) => {
            "`--compat mooncake` opens Mooncake nodes"
        }
        (_, Cause::NoDataPort) => {
            "start that node with the protocol tcp, or this one with `--transport rdma`"
        }
        (_, Cause::NotAdvertised) => "name it with `--advertise HOST`",
        (_, Cause::Refused) => "start `handfast serve` there, or check host and port",
        (_, Cause::Bind(_)) => "choose another --listen address, or stop the process that holds it",
        (_, Cause::Store(store)) => {
            return store.tls_failure().map(tls_cure).or(cause.hint(stage));
        }
        _ => return cause.hint(stage),
    })
}

fn rdma_cure(unavailable: &RdmaUnavailable) -> &'static str {
    match unavailable {
        RdmaUnavailable::NotBuilt => {
            "build with `--features verbs` (docs/hardware.md), or choose `--transport tcp`"
        }
        RdmaUnavailable::NoLibrary { .. } => {
            "install rdma-core (libibverbs1 and ibverbs-providers), or choose `--transport tcp`"
        }
        RdmaUnavailable::NoList { .. } => {
            "load the kernel module ib_uverbs and check /dev/infiniband, or choose \
             `--transport tcp`"
        }
        RdmaUnavailable::NoDevice => {
            "check the device's driver (`rdma link` lists the devices), or choose \
             `--transport tcp`"
        }
    }
}

/// The cure of a store's TLS failure.
fn tls_cure(failure: TlsFailure) -> &'static str {
    match failure {
        TlsFailure::UnknownAuthority => {
            "name the authority of the store's certificate: --metadata-ca"
        }
        TlsFailure::OursMissing => {
            "name a certificate and its key: --metadata-cert and --metadata-key"
        }
        TlsFailure::OursRefused => {
            "name a valid certificate signed by the store's authority: \
             --metadata-cert and --metadata-key"
        }
        other => other.cure(),
    }
}

/// An error of a replay with its cure.
pub(crate) fn trace_text(error: &ReplayError) -> String {
    match error {
        ReplayError::Trace(TraceError { cause, .. }) => format!("{error}; {}", trace_cure(cause)),
        ReplayError::Differs(_) => error.to_string(),
    }
}

/// An error of redacting with its cure.
pub(crate) fn redact_text(error: &RedactError) -> String {
    match error {
        RedactError::Replay(error) => trace_text(error),
        other => other.to_string(),
    }
}

fn trace_cure(cause: &TraceCause) -> &'static str {
    match cause {
        TraceCause::Empty | TraceCause::NotATrace => {
            "name a file that `--record FILE` wrote, uncompressed"
        }
        TraceCause::Version { .. } | TraceCause::Json(_) => {
            "use the version of handfast that recorded it; `head -1 FILE` names it"
        }
        TraceCause::Cut => {
            "copy the whole file again; if its process was killed while it wrote, --allow-cut takes \
             the whole lines"
        }
        TraceCause::TooLong => "record with a smaller --record-bytes",
        TraceCause::Io(_) => "check that the file can be read",
        TraceCause::Checksum
        | TraceCause::NotText
        | TraceCause::LineTooLong
        | TraceCause::Order(_) => "copy the whole file again, as it is",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast::Side;
    use handfast::error::TransportError;

    /// A lane that does not connect has the library's remedy, which is chosen by the side at fault.
    #[test]
    fn remedy_of_a_lane_is_the_librarys() {
        let sides = [Side::Local, Side::Peer, Side::Configuration, Side::Protection];
        let calls = ["wire", "connection", "prove", "rdma_connect", "ibv_modify_qp(RTR)"];
        for (side, call) in sides.iter().flat_map(|side| calls.map(|call| (*side, call))) {
            let detail =
                "siw0: 10.0.0.2:41000: the peer's address cannot be reached; check the route";
            let cause = Cause::Transport(TransportError::new(side, call, detail));
            assert_eq!(
                of(Stage::Handshake, &cause),
                cause.hint(Stage::Handshake),
                "{side:?} {call}"
            );
        }
    }
}
