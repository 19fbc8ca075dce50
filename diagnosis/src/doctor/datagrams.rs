//! Datagrams of a chosen length between two doctors: tests whether they pass unfragmented.
//!
//! A question is [`DATAGRAM_MAGIC`], four bytes that its answer repeats, and zeros. An answer is 16
//! bytes, never longer than its question.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Start of a question.
pub const DATAGRAM_MAGIC: &[u8; 8] = b"HFDOCTU1";
/// Start of an answer.
const ANSWER_MAGIC: &[u8; 8] = b"HFDOCTA1";
/// Minimum length of a question, and length of every answer, in bytes.
pub const DATAGRAM_BYTES_MIN: usize = 16;
/// Maximum length of a question, in bytes: the limit of IPv4.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Questions of one length before it counts as lost.
pub const DATAGRAM_TRIES: u8 = 3;
/// Timeout of each answer.
pub const DATAGRAM_WAIT: Duration = Duration::from_millis(300);
/// The UDP port of RoCE v2, as assigned by IANA.
pub const ROCE_PORT: u16 = 4_791;

/// Answers datagrams at one port, on all addresses of this host.
#[derive(Debug)]
pub struct Answerer {
    socket: UdpSocket,
}

impl Answerer {
    /// Binds the port; 0 lets the system choose.
    ///
    /// # Errors
    /// The error of the system.
    pub fn bind(family: IpAddr, port: u16) -> io::Result<Self> {
        Ok(Self { socket: UdpSocket::bind((any(family), port))? })
    }

    /// Returns its port.
    ///
    /// # Errors
    /// The error of the system.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    /// Waits for one datagram, and answers it if it is a question.
    ///
    /// # Errors
    /// The error of the system; the next call may succeed.
    pub fn answer_one(&self) -> io::Result<()> {
        let mut question = vec![0; DATAGRAM_BYTES_MAX];
        let (bytes, from) = self.socket.recv_from(&mut question)?;
        let Some(answer) = answer_to(&question[..bytes]) else { return Ok(()) };
        self.socket.send_to(&answer, from).map(drop)
    }
}

fn any(family: IpAddr) -> IpAddr {
    if family.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Returns the answer to a datagram; `None` if it is no question.
pub fn answer_to(question: &[u8]) -> Option<[u8; DATAGRAM_BYTES_MIN]> {
    let rest = question.strip_prefix(DATAGRAM_MAGIC)?;
    let mark = rest.get(..4)?;
    // An answer longer than its question would amplify traffic with a forged sender.
    let length = u32::try_from(question.len()).ok().filter(|_| rest.len() >= 8)?;
    let mut answer = [0; DATAGRAM_BYTES_MIN];
    answer[..8].copy_from_slice(ANSWER_MAGIC);
    answer[8..12].copy_from_slice(mark);
    answer[12..].copy_from_slice(&length.to_be_bytes());
    Some(answer)
}

/// Returns the length of the question that an answer names; `None` if a datagram is no answer.
pub fn length_of_question(answer: &[u8]) -> Option<usize> {
    let length = answer.strip_prefix(ANSWER_MAGIC)?.get(4..8)?;
    let is_whole = answer.len() == DATAGRAM_BYTES_MIN;
    is_whole.then(|| length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
}

/// Tests whether a datagram with so many bytes of payload passes unfragmented.
///
/// # Errors
/// The error number; 0 if no answer came to any of [`DATAGRAM_TRIES`].
pub(super) fn pass(address: SocketAddr, bytes: usize) -> Result<(), i32> {
    let code = |error: io::Error| error.raw_os_error().unwrap_or(0);
    let socket = UdpSocket::bind((any(address.ip()), 0)).map_err(code)?;
    keep_whole(&socket, address).map_err(code)?;
    let bytes = bytes.clamp(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX);
    let mut question = vec![0; bytes];
    question[..8].copy_from_slice(DATAGRAM_MAGIC);
    for attempt in 1..=DATAGRAM_TRIES {
        question[11] = attempt;
        socket.send_to(&question, address).map_err(code)?;
        if is_answered(&socket, &question).map_err(code)? {
            return Ok(());
        }
    }
    Err(0)
}

/// The answer to an earlier attempt counts as well.
fn is_answered(socket: &UdpSocket, question: &[u8]) -> io::Result<bool> {
    let length = question.len();
    let asked = Instant::now();
    let mut answer = [0; DATAGRAM_BYTES_MIN];
    loop {
        let left = DATAGRAM_WAIT.saturating_sub(asked.elapsed());
        if left.is_zero() {
            return Ok(false);
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv_from(&mut answer) {
            Ok((bytes, _)) if length_of_question(&answer[..bytes]) == Some(length) => {
                return Ok(true);
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Ignores the kernel's path MTU, since NICs send RoCE without it.
#[cfg(target_os = "linux")]
fn keep_whole(socket: &UdpSocket, address: SocketAddr) -> io::Result<()> {
    use rustix::net::sockopt::{
        Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
    };
    match address {
        SocketAddr::V4(_) => set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::PROBE)?,
        SocketAddr::V6(_) => set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::PROBE)?,
    }
    Ok(())
}

/// Other systems have no RDMA either.
#[cfg(not(target_os = "linux"))]
fn keep_whole(_: &UdpSocket, _: SocketAddr) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other datagrams get no answer, and an answer is never longer than its question.
    #[test]
    fn responder_answers_questions_only() {
        let question = [&DATAGRAM_MAGIC[..], &[1, 2, 3, 4, 0, 0, 0, 0]].concat();
        let answer = answer_to(&question).unwrap();
        assert_eq!(&answer[8..], [1, 2, 3, 4, 0, 0, 0, 16]);
        assert_eq!(length_of_question(&answer), Some(16));
        assert_eq!(length_of_question(&answer[..15]), None, "a part of it");
        assert_eq!(length_of_question(&question), None);
        for bytes in 0..question.len() {
            assert_eq!(answer_to(&question[..bytes]), None, "{bytes}");
        }
        // Two answerers do not talk to each other for ever.
        assert_eq!(answer_to(&answer), None);
    }

    #[test]
    fn datagram_without_answer_times_out() {
        let family = Ipv4Addr::LOCALHOST.into();
        let bound = || {
            let answerer = Answerer::bind(family, 0).unwrap();
            let address = SocketAddr::new(family, answerer.port().unwrap());
            (answerer, address)
        };
        let ((answering, address), (_silent, unanswered)) = (bound(), bound());
        // It ends with the process.
        std::thread::spawn(move || while answering.answer_one().is_ok() {});
        assert_eq!(pass(address, DATAGRAM_BYTES_MIN), Ok(()));
        assert_eq!(pass(address, DATAGRAM_BYTES_MAX + 1), Ok(()), "it is cut to the longest");
        assert_eq!(pass(unanswered, DATAGRAM_BYTES_MIN), Err(0));
    }
}
