//! The proof of a shared host: each side shows a number in an anonymous file that only a process of the
//! same kernel can open. The numbers travel over the control channel, so they prove the peer as well.

use crate::announcement::Announcement;
use crate::map::Process;
use crate::reason::NoChannel;
use crate::sys::{self, Credentials, Received};
use crate::wire::{ANSWER, ANSWER_BYTES, HELLO_BYTES, Hello};
use std::io;
use std::os::fd::OwnedFd;

/// Bytes of a proof that are used.
const PROOF_BYTES: usize = 8;

/// Processes that may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Processes of the same user, and of the superuser.
    SameUser,
    /// All that the permissions of the directory let in.
    Directory,
}

impl Admission {
    pub(crate) fn admits(self, found: Credentials) -> bool {
        let ours = sys::user();
        self == Self::Directory || found.user == ours || found.user == 0 || ours == 0
    }
}

/// A file with a number, which proves the host that it is read on.
pub(crate) struct Proof(OwnedFd);

impl Proof {
    pub(crate) fn new(number: u64) -> io::Result<Self> {
        sys::sealed_file(&number.to_le_bytes()).map(Self)
    }
}

/// Says hello on a fresh connection.
pub(crate) fn say(socket: &OwnedFd, hello: &Hello, proof: &Proof) -> io::Result<()> {
    sys::send(socket, &hello.encode(), Some(&proof.0))
}

/// Answers a hello.
pub(crate) fn answer(socket: &OwnedFd, announcement: &Announcement) -> io::Result<()> {
    let proof = Proof::new(announcement.answer)?;
    sys::send(socket, &ANSWER, Some(&proof.0))
}

/// Reads a hello and the number of its proof; `None` while it is not there.
pub(crate) fn read(socket: &OwnedFd) -> Option<Result<(Hello, u64), &'static str>> {
    let mut bytes = [0; HELLO_BYTES];
    let (length, proof) = match sys::receive(socket, &mut bytes) {
        Ok(received) if received.is_cut => return Some(Err("the first packet is no hello")),
        Ok(received) => (received.length, received.passed),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
        Err(_) => return Some(Err("the connection broke before a hello")),
    };
    let Some(hello) = Hello::decode(&bytes[..length]) else {
        return Some(Err("the first packet is no hello"));
    };
    let number = proof.and_then(number_in);
    Some(
        number
            .map(|number| (hello, number))
            .ok_or("the hello came without a file that proves its host"),
    )
}

/// Reads the answer to a hello, and checks its number.
pub(crate) fn read_answer(socket: &OwnedFd, expected: u64) -> Result<Process, NoChannel> {
    let mut bytes = [0; ANSWER_BYTES];
    let received = sys::receive(socket, &mut bytes).ok().filter(|received| !received.is_cut);
    let Some(Received { length: ANSWER_BYTES, passed: Some(proof), .. }) = received else {
        return Err(NoChannel::Refused);
    };
    if bytes != ANSWER || number_in(proof) != Some(expected) {
        return Err(NoChannel::NotThePeer);
    }
    process(socket)
}

/// The peer's process, whose end this one can see: without that, memory that the peer may access would
/// never come back.
pub(crate) fn process(socket: &OwnedFd) -> Result<Process, NoChannel> {
    let found = sys::credentials(socket).map_err(|_| NoChannel::Unwatched)?;
    let descriptor = sys::process_of(socket, found).map_err(|_| NoChannel::Unwatched)?;
    Ok(Process::new(found.process, Some(descriptor)))
}

fn number_in(proof: OwnedFd) -> Option<u64> {
    let mut number = [0; PROOF_BYTES];
    sys::read_sealed(proof, &mut number).ok()?;
    Some(u64::from_le_bytes(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// A number is read from a sealed anonymous file alone. A pipe would keep its reader, and another
    /// file may be on another host.
    #[test]
    fn number_comes_from_a_sealed_file_alone() {
        let number = u64::MAX - 7;
        assert_eq!(number_in(Proof::new(number).unwrap().0), Some(number));
        let (pipe, _writer) = io::pipe().unwrap();
        assert_eq!(number_in(pipe.into()), None);
        let executable = File::open(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(number_in(executable.into()), None);
        assert_eq!(number_in(sys::sealed_file(&[1; 7]).unwrap()), None, "a byte is missing");
    }

    /// A peer cannot change the number that it was shown.
    #[test]
    fn proof_cannot_be_changed() {
        use std::io::Write;
        let proof = Proof::new(1).unwrap().0;
        let written = File::from(proof).write_all(&[2]);
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
