//! Remedies of lanes that do not connect, for all front ends: their words fit Rust, Python, C and the command line.

use handfast_core::connection::Cause;
use handfast_core::transport::{Side, TransportError};

/// The remedy of a lane that was not connected; `None` where its reason has one, or is this side's alone.
pub(super) fn of_handshake(failure: &TransportError) -> Option<&'static str> {
    let call = &*failure.call;
    let is_of_device = call.starts_with("ibv_");
    Some(match failure.side {
        Side::Local | Side::Protection => return None,
        Side::Configuration if is_of_device => OF_PATH,
        Side::Configuration => return None,
        Side::Peer if is_unanswered(failure) => {
            "check the path to the address that the error names: on iWARP to its TCP port, which the \
             kernel takes from net.ipv4.ip_local_port_range, on RoCE to UDP port 4791; or use TCP"
        }
        Side::Peer if is_of_device => OF_PATH,
        // On iWARP there is no port of RoCE.
        Side::Peer if call == "prove" => {
            "check the path between the two devices (`rping`, `handfast doctor`), or use TCP"
        }
        Side::Peer if call == "connection" => NEXT_LANE,
        Side::Peer => return None,
    })
}

/// Whether a dial of the connection manager got no answer: others were answered, and say what to do.
fn is_unanswered(failure: &TransportError) -> bool {
    let silences = [Cause::Unreachable, Cause::NeitherReaches, Cause::TimedOut];
    let is_said = |cause: &Cause| failure.detail.contains(&cause.to_string());
    failure.call.starts_with("rdma_") && silences.iter().any(is_said)
}

/// The remedy of a peer that was given up for the failure of a lane, unless its reason has one.
pub(super) fn of_lost_peer(failure: &TransportError) -> Option<&'static str> {
    Some(match failure.side {
        Side::Local if failure.call == "close" => "the engine was closed meanwhile; start another",
        Side::Configuration if has_remedy(failure) => return None,
        Side::Configuration => "use equal options on both",
        _ => NEXT_LANE,
    })
}

/// Whether the reason of a wrong configuration ends with its remedy.
fn has_remedy(failure: &TransportError) -> bool {
    let call = &*failure.call;
    let is_of_lane = ["wire", "bring_up"].contains(&call) || call.starts_with("rdma_");
    is_of_lane || (call == "prove" && failure.code == 0)
}

const OF_PATH: &str = "check the path between the two devices (`rping`, UDP port 4791), or use TCP";
const NEXT_LANE: &str = "the next transfer opens a new lane; check whether the peer still runs";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fallback;
    use crate::error::{Cause as Failed, Error, Stage};
    use std::sync::Arc;

    const DIAL: &str = "check the path to the address that the error names";
    const PATH: &str = "check the path between the two devices";

    fn failure(side: Side, call: &'static str, detail: &str) -> TransportError {
        TransportError { side, call: call.into(), code: 0, detail: format!("siw0: {detail}") }
    }

    fn hint_of(failure: &TransportError) -> Option<&'static str> {
        let error = Error::new(failure.side, Stage::Handshake, failure.clone());
        error.hint()
    }

    /// A side, a call, and the beginning of the remedy.
    const REMEDIES: [(Side, &str, Option<&str>); 20] = [
        (Side::Configuration, "wire", None),
        (Side::Configuration, "bring_up", None),
        (Side::Configuration, "rdma_connect", None),
        (Side::Configuration, "rdma_bind_addr", None),
        (Side::Configuration, "prove", None),
        (Side::Configuration, "ibv_modify_qp(RTR)", Some(PATH)),
        (Side::Configuration, "ibv_modify_qp(RTS)", Some(PATH)),
        (Side::Local, "wire", None),
        (Side::Local, "bring_up", None),
        (Side::Local, "connection", None),
        (Side::Local, "prove", None),
        (Side::Local, "rdma_connect", None),
        (Side::Local, "rdma_create_id", None),
        (Side::Local, "rdma_set_option", None),
        (Side::Local, "ibv_create_qp", None),
        (Side::Protection, "prove", None),
        (Side::Peer, "wire", None),
        (Side::Peer, "connection", Some("the next transfer opens a new lane")),
        (Side::Peer, "prove", Some(PATH)),
        (Side::Peer, "ibv_modify_qp(RTR)", Some(PATH)),
    ];

    /// The side decides before the call: this side's own failure and a wrong configuration name no path, and the
    /// port of RoCE is named where RoCE is meant.
    #[test]
    fn remedy_of_a_lane_is_chosen_by_side_first() {
        for (side, call, expected) in REMEDIES {
            let hint = hint_of(&failure(side, call, "it failed"));
            let begins = hint.zip(expected).is_some_and(|(hint, start)| hint.starts_with(start));
            assert!(begins || hint == expected, "{side:?} {call}: {hint:?}");
            let names_port = hint.is_some_and(|hint| hint.contains("4791"));
            assert_eq!(names_port, call.starts_with("ibv_") && hint.is_some(), "{side:?} {call}");
        }
    }

    /// A dial that nobody answered leads to the path. One that was answered does not: the error has the remedy.
    #[test]
    fn dial_that_was_answered_names_no_path() {
        let refused = handfast_core::connection::Refusal::Version;
        for (cause, expected) in [
            (Cause::Unreachable, true),
            (Cause::TimedOut, true),
            (Cause::NeitherReaches, true),
            (Cause::Refused(refused), false),
            (Cause::Rejected, false),
            (Cause::Unproven, false),
        ] {
            let detail = format!("10.0.0.2:41000: {cause}; the remedy");
            let hint = hint_of(&failure(Side::Peer, "rdma_connect", &detail));
            assert_eq!(hint.is_some_and(|hint| hint.starts_with(DIAL)), expected, "{cause}");
            assert!(expected || hint.is_none(), "{cause}: {hint:?}");
        }
    }

    /// A fallback for unequal connections says how to make them equal, and sends nobody to the network.
    #[test]
    fn fallback_of_a_wrong_configuration_names_no_path() {
        let failure = failure(Side::Configuration, "wire", "one way; force it there too");
        let error = Error::new(failure.side, Stage::Handshake, failure).at("peer");
        let text = Fallback::new(error).to_string();
        assert!(text.ends_with("force it there too; choose TCP if TCP is meant"), "{text}");
    }

    /// A lost peer has equal options on both sides as its remedy, unless the reason names another.
    #[test]
    fn lost_peer_has_the_remedy_of_its_reason() {
        let hint = |side, call| {
            let lost = Failed::PeerLost(Arc::new(failure(side, call, "it failed")));
            lost.hint(Stage::Transfer).unwrap_or("none")
        };
        for call in ["wire", "bring_up", "rdma_connect", "prove"] {
            assert_eq!(hint(Side::Configuration, call), "none", "{call}");
        }
        assert_eq!(hint(Side::Configuration, "handshake"), "use equal options on both");
        assert_eq!(hint(Side::Peer, "rdma_connect"), NEXT_LANE);
        assert!(hint(Side::Local, "close").contains("was closed"));
    }

    /// The remedies name no option of one front end.
    #[test]
    fn remedies_fit_every_front_end() {
        let sides = [Side::Local, Side::Peer, Side::Configuration, Side::Protection];
        let calls = ["wire", "connection", "prove", "rdma_connect", "ibv_modify_qp(RTR)", "close"];
        for (side, call) in sides.iter().flat_map(|side| calls.map(|call| (*side, call))) {
            let failure = failure(side, call, &Cause::Unreachable.to_string());
            let hints = [of_handshake(&failure), of_lost_peer(&failure)];
            for hint in hints.into_iter().flatten() {
                for word in ["--", "`tcp`", "Builder", "Options::", "HANDFAST_"] {
                    assert!(!hint.contains(word), "{side:?} {call}: {hint}");
                }
            }
        }
    }
}
