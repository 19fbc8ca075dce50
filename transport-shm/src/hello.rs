//! The proof of a shared host: each side shows a number in a page that only a process of the same
//! kernel can map. The numbers travel over the control channel, so they prove the peer as well.

use crate::announcement::Announcement;
use crate::map::Process;
use crate::reason::NoChannel;
use crate::sys::{self, Credentials, Received};
use crate::wire::{ANSWER, ANSWER_BYTES, HELLO_BYTES, Hello};
use handfast_transport::{Memory, MemoryError};
use std::io;
use std::os::fd::OwnedFd;

/// Bytes of a proving page that are used.
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

/// Says hello on a fresh connection.
pub(crate) fn say(socket: &OwnedFd, hello: &Hello, knock: u64) -> io::Result<()> {
    let page = page(knock).map_err(io::Error::other)?;
    sys::send(socket, &hello.encode(), Some(&page))
}

/// Answers a hello.
pub(crate) fn answer(socket: &OwnedFd, announcement: &Announcement) -> io::Result<()> {
    let page = page(announcement.answer).map_err(io::Error::other)?;
    sys::send(socket, &ANSWER, Some(&page))
}

/// Reads a hello and the number of its page; `None` while it is not there.
pub(crate) fn read(socket: &OwnedFd) -> Option<Result<(Hello, u64), &'static str>> {
    let mut bytes = [0; HELLO_BYTES];
    let (length, page) = match sys::receive(socket, &mut bytes) {
        Ok(received) if received.is_cut => return Some(Err("the first packet is no hello")),
        Ok(received) => (received.length, received.passed),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
        Err(_) => return Some(Err("the connection broke before a hello")),
    };
    let Some(hello) = Hello::decode(&bytes[..length]) else {
        return Some(Err("the first packet is no hello"));
    };
    let number = page.and_then(number_in);
    Some(
        number
            .map(|number| (hello, number))
            .ok_or("the hello came without a page that can be mapped"),
    )
}

/// Reads the answer to a hello, and checks its number.
pub(crate) fn read_answer(socket: &OwnedFd, expected: u64) -> Result<Process, NoChannel> {
    let mut bytes = [0; ANSWER_BYTES];
    let received = sys::receive(socket, &mut bytes).ok().filter(|received| !received.is_cut);
    let Some(Received { length: ANSWER_BYTES, passed: Some(page), .. }) = received else {
        return Err(NoChannel::Refused);
    };
    if bytes != ANSWER || number_in(page) != Some(expected) {
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

fn page(number: u64) -> Result<OwnedFd, MemoryError> {
    let page = Memory::shared(PROOF_BYTES)?;
    page.copy_in(0, &number.to_le_bytes())?;
    page.descriptor(false)?.ok_or(MemoryError::NotSealed)
}

fn number_in(page: OwnedFd) -> Option<u64> {
    let page = Memory::of_peer(page, false, PROOF_BYTES).ok()?;
    let mut number = [0; PROOF_BYTES];
    page.copy_out(0, &mut number).ok()?;
    Some(u64::from_le_bytes(number))
}
