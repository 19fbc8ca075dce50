//! Test connections to a peer's listening port before a dial, for drivers whose `rdma_connect` waits for
//! the peer's machine: soft-iWARP's waits for TCP, for two minutes where packets are dropped.
//!
//! A test connection is one of TCP that carries no byte and does not block. It lasts as long as the dial:
//! the peer's driver has accepted it by then, and sees its end.

use super::said_of_peer;
use handfast_core::connection::Cause;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

/// A test connection.
pub(super) struct Reach(Socket);

/// Outcome of a test connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// The peer's machine has answered, also by a refusal, which the dial has at once too.
    Answered,
    /// The network has answered in its place, with this value of errno.
    Not { code: i32, cause: Cause },
}

impl Drop for Reach {
    /// Ends it also for a thread that waits for its descriptor.
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Reach {
    /// Begins a test connection from an address of this side. Its descriptor is writable after the answer.
    ///
    /// # Errors
    /// It fails at once, as a dial does.
    pub(super) fn begin(own: IpAddr, target: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        // A listener of the driver's may get this port later.
        socket.set_reuse_address(true)?;
        socket.bind(&SockAddr::from(SocketAddr::new(own, 0)))?;
        match socket.connect(&SockAddr::from(target)) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(Self(socket)),
        }
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Returns the outcome once the descriptor is writable.
    pub(super) fn outcome(&self) -> Reached {
        let code = match self.0.take_error() {
            Ok(error) => error.and_then(|error| error.raw_os_error()),
            Err(error) => error.raw_os_error(),
        };
        match code.map(|code| (code, said_of_peer("rdma_connect", code))) {
            Some((code, Some(cause))) if cause != Cause::Rejected => Reached::Not { code, cause },
            _ => Reached::Answered,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::time::Duration;

    const OWN: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const PATIENCE: Duration = Duration::from_secs(20);
    /// A look at a connection without an answer: long enough for one over the loopback.
    const LOOK: Duration = Duration::from_millis(200);

    /// Whether a test connection has an outcome in time.
    #[allow(unsafe_code)]
    fn is_over(reach: &Reach, within: Duration) -> bool {
        let mut watched =
            libc::pollfd { fd: reach.descriptor(), events: libc::POLLOUT, revents: 0 };
        let milliseconds = i32::try_from(within.as_millis()).unwrap();
        // SAFETY: the structure lives through the call, and its number is passed.
        unsafe { libc::poll(&raw mut watched, 1, milliseconds) == 1 }
    }

    /// A listener whose queue has the place of one connection.
    fn listener() -> (Socket, SocketAddr) {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SockAddr::from(SocketAddr::new(OWN, 0))).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        (socket, address)
    }

    /// A machine answers by a listener and by its refusal.
    #[test]
    fn listener_and_refusal_are_answers() {
        let (socket, address) = listener();
        let refused = Reach::begin(OWN, address);
        // The loopback may refuse at once.
        if let Ok(refused) = refused {
            assert!(is_over(&refused, PATIENCE));
            assert_eq!(refused.outcome(), Reached::Answered);
        }
        socket.listen(1).unwrap();
        let taken = Reach::begin(OWN, address).unwrap();
        assert!(is_over(&taken, PATIENCE));
        assert_eq!(taken.outcome(), Reached::Answered);
    }

    /// A machine that drops packets gives no outcome, and nothing blocks.
    #[test]
    fn dropped_packets_give_no_outcome() {
        let (socket, address) = listener();
        socket.listen(0).unwrap();
        // Linux keeps one more than the queue has places, and drops the others.
        let begun: Vec<_> = (0..3).map(|_| Reach::begin(OWN, address).unwrap()).collect();
        assert!(is_over(&begun[0], PATIENCE));
        assert!(!is_over(&begun[2], LOOK), "the queue has a place");
    }

    /// An address that is not of this machine fails at once.
    #[test]
    fn foreign_address_fails_at_once() {
        let nowhere = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        let error = Reach::begin(nowhere, SocketAddr::new(OWN, 9)).err().unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL));
    }
}
