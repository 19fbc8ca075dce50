//! The side that a failed call or event of the connection manager is charged to.

use super::Manager;
use super::identifier::{Identifier, kinds};
use crate::error::{VerbsError, words_of};
use crate::verbs::context::Context;
use handfast_core::connection::{Cause, ConnectionId};
use handfast_core::transport::Side;
use std::net::{IpAddr, SocketAddr};

/// The status of an event whose cause is a step of librdmacm's own on this side, such as the move of the
/// queue pair to RTS. Its errno is lost.
pub(super) const OWN_STEP: i32 = -1;

/// The cause of a dial that failed with this value of errno, if the peer or its network is to blame. Kernels
/// that connect within the call, as siw does, return it in the place of an event.
pub(super) fn said_of_peer(call: &str, code: i32) -> Option<Cause> {
    let resolves = ["rdma_resolve_addr", "rdma_resolve_route"].contains(&call);
    let dials = resolves || call == "rdma_connect";
    match code {
        // The peer may find a way where this side has none.
        libc::ENODEV | libc::EADDRNOTAVAIL if resolves => Some(Cause::Unreachable),
        libc::ECONNREFUSED if dials => Some(Cause::Rejected),
        libc::ETIMEDOUT
        | libc::EHOSTUNREACH
        | libc::EHOSTDOWN
        | libc::ENETUNREACH
        | libc::ENETDOWN
        | libc::ECONNRESET
            if dials =>
        {
            Some(Cause::Unreachable)
        }
        _ => None,
    }
}

/// The error of a call of a dial that failed for a reason of this side: it names both addresses.
pub(super) fn failed_dial(
    context: &Context,
    (call, code): (&'static str, i32),
    own: IpAddr,
    target: Option<SocketAddr>,
) -> VerbsError {
    let Some(target) = target else { return context.failed(call, code) };
    let detail = format!("from {own} to {target}: {}", words_of(code));
    context.error(Side::Local, call, code, detail)
}

impl Manager {
    /// Notes the source port of a dial whose call failed since TCP has the port: ports of the connection manager
    /// and of TCP are counted apart, and iWARP dials with TCP.
    pub(super) fn note_taken_port(&self, id: ConnectionId, identifier: &Identifier, code: i32) {
        let is_taken = match code {
            libc::EADDRINUSE => true,
            // Also the answer to an address that has left.
            libc::EADDRNOTAVAIL => self.left().is_none(),
            _ => false,
        };
        if !is_taken {
            return;
        }
        let (port, ip) = (identifier.source_port(), self.address.ip());
        let detail = format!(
            "{}; TCP holds port {port} of {ip}, from which the connection manager dials; the next lane dials \
             from another one; widen net.ipv4.ip_local_port_range if it recurs",
            words_of(code)
        );
        let error = self.context.error(Side::Local, "rdma_connect", code, detail);
        if let Some(entry) = self.table.lock().entries.get_mut(&id) {
            entry.error.get_or_insert(error);
        }
    }
}

/// The cause of an accept that failed with this value of errno, if the side that has dialled is to blame:
/// it is gone. `has_ended`: an event has ended the request before.
pub(super) fn said_of_accept(code: i32, has_ended: bool) -> Option<Cause> {
    match code {
        // Soft-iWARP keeps the end of the stream for the answer.
        libc::ECONNRESET | libc::ENOTCONN => Some(Cause::Disconnected),
        // InfiniBand and RoCE have forgotten a request whose end they have reported.
        libc::EINVAL if has_ended => Some(Cause::Disconnected),
        _ => None,
    }
}

/// The cause of an event that ends a dial.
///
/// # Errors
/// The call whose failure of this side the event reports.
pub(super) fn said_of_event(kind: u32, status: i32) -> Result<Cause, &'static str> {
    let call = match kind {
        kinds::ADDRESS_ERROR => "rdma_resolve_addr",
        kinds::ROUTE_ERROR => "rdma_resolve_route",
        kinds::CONNECT_ERROR => "rdma_connect",
        _ => return Ok(Cause::Unreachable),
    };
    match status.saturating_abs() {
        // The subnet manager knows no path to the peer.
        libc::EINVAL if kind == kinds::ROUTE_ERROR => Ok(Cause::Unreachable),
        // Drivers of iWARP report each answer that they do not understand as EINVAL, and it is the peer's.
        _ if kind == kinds::CONNECT_ERROR && status != OWN_STEP => Ok(Cause::Unreachable),
        code => said_of_peer(call, code).ok_or(call),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event names the peer where its network has not answered, and this side where a step of its own failed.
    #[test]
    fn event_of_an_own_step_is_not_the_peers() {
        let (reach, own) = (Ok(Cause::Unreachable), Err);
        for (kind, status, expected) in [
            (kinds::UNREACHABLE, -libc::ETIMEDOUT, reach),
            (kinds::UNREACHABLE, 0, reach),
            (kinds::ADDRESS_ERROR, -libc::ETIMEDOUT, reach),
            (kinds::ADDRESS_ERROR, -libc::ENODEV, reach),
            (kinds::ADDRESS_ERROR, OWN_STEP, own("rdma_resolve_addr")),
            (kinds::ROUTE_ERROR, -libc::ENETUNREACH, reach),
            (kinds::ROUTE_ERROR, -libc::EINVAL, reach),
            (kinds::ROUTE_ERROR, -libc::ENOMEM, own("rdma_resolve_route")),
            (kinds::CONNECT_ERROR, OWN_STEP, own("rdma_connect")),
            (kinds::CONNECT_ERROR, -libc::EINVAL, reach),
            (kinds::CONNECT_ERROR, -libc::EHOSTUNREACH, reach),
            (kinds::CONNECT_ERROR, i32::MIN, reach),
        ] {
            assert_eq!(said_of_event(kind, status), expected, "{kind} {status}");
        }
    }

    /// An accept fails for the peer once the peer is gone, and else for this side.
    #[test]
    fn accept_of_a_request_that_has_ended_is_the_peers() {
        let gone = Some(Cause::Disconnected);
        for (code, has_ended, expected) in [
            (libc::ECONNRESET, false, gone),
            (libc::ENOTCONN, false, gone),
            (libc::EINVAL, true, gone),
            (libc::EINVAL, false, None),
            (libc::ENOMEM, true, None),
        ] {
            assert_eq!(said_of_accept(code, has_ended), expected, "{code}");
        }
    }
}
