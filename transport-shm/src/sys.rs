//! Calls of the system: sockets that pass descriptors, processes, and their memory.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::ptr;
use tokio::io::unix::AsyncFd;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Room for one descriptor in a packet, with its header.
const CONTROL_BYTES: usize = 64;

/// Name of a socket.
pub(crate) enum Name<'a> {
    Abstract(&'a str),
    File(&'a Path),
}

impl Name<'_> {
    fn address(&self) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
        // SAFETY: zeros are a valid value of this plain structure.
        let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let (first, name) = match self {
            Self::Abstract(name) => (1, name.as_bytes()),
            Self::File(path) => (0, OsStr::as_bytes(path.as_os_str())),
        };
        if first + name.len() >= address.sun_path.len() {
            let long = "the path of the socket is longer than the system takes";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, long));
        }
        for (place, byte) in address.sun_path[first..].iter_mut().zip(name) {
            *place = *byte as libc::c_char;
        }
        let after = usize::from(matches!(self, Self::File(_)));
        let bytes = mem::offset_of!(libc::sockaddr_un, sun_path) + first + name.len() + after;
        Ok((address, bytes as libc::socklen_t))
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    let fd = check(fd)?;
    // SAFETY: the call that returned the descriptor made it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a new socket.
    owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
}

/// A connected pair.
#[cfg(test)]
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let mut ends = [-1; 2];
    // SAFETY: the array has room for two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
    Ok((owned(ends[0])?, owned(ends[1])?))
}

/// Listens at a name.
pub(crate) fn listen(name: &Name<'_>) -> io::Result<OwnedFd> {
    let socket = socket()?;
    let (address, bytes) = name.address()?;
    // SAFETY: the address is valid for its length.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) })?;
    if let Name::File(path) = name {
        // The user of this process, and the superuser; nobody connects before the socket listens.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    }
    // SAFETY: the socket is open.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(socket)
}

/// Connects to a name. Never blocks: a full queue of the listener is an error.
pub(crate) fn connect(name: &Name<'_>) -> io::Result<OwnedFd> {
    let socket = socket()?;
    let (address, bytes) = name.address()?;
    // SAFETY: the address is valid for its length.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), bytes) })?;
    Ok(socket)
}

/// Accepts a connection.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is asked for.
    owned(unsafe { libc::accept4(listener.as_raw_fd(), ptr::null_mut(), ptr::null_mut(), flags) })
}

/// Credentials of the process that connected or listened, as this process knows them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credentials {
    /// 0 if the process is outside of this one's namespace of processes.
    pub(crate) process: libc::pid_t,
    pub(crate) user: libc::uid_t,
}

pub(crate) fn credentials(socket: &OwnedFd) -> io::Result<Credentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    option(socket, libc::SO_PEERCRED, &mut found)?;
    Ok(Credentials { process: found.pid, user: found.uid })
}

/// An anonymous file that nobody can change.
pub(crate) fn sealed_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string; the call returns a new descriptor or an error.
    let mut file = File::from(owned(unsafe { libc::memfd_create(c"handfast".as_ptr(), flags) })?);
    file.write_all(bytes)?;
    let size = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    let seals = size | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
    // SAFETY: restricts what can be done with the new file.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file.into())
}

/// Reads the beginning of an anonymous file of another process. A file of another kind is refused: a
/// read of it may wait for ever.
pub(crate) fn read_sealed(file: OwnedFd, bytes: &mut [u8]) -> io::Result<()> {
    // SAFETY: reads a property of an open descriptor.
    let seals = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) })?;
    if seals & libc::F_SEAL_SHRINK == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    File::from(file).read_exact_at(bytes, 0)
}

/// This process's effective user.
pub(crate) fn user() -> libc::uid_t {
    // SAFETY: reads a property of the process.
    unsafe { libc::geteuid() }
}

/// `SO_PEERPIDFD`, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

/// A descriptor of the peer's process, readable once the process has ended.
pub(crate) fn process_of(socket: &OwnedFd, credentials: Credentials) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    if option(socket, SO_PEERPIDFD, &mut fd).is_ok() && fd >= 0 {
        return owned(fd);
    }
    if credentials.process <= 0 {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    let process = open_process(credentials.process)?;
    // The number may have another process by now: the peer is certainly the one if it still holds the
    // other end of the socket.
    match is_readable(socket, libc::POLLHUP) {
        false => Ok(process),
        true => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// A descriptor of the process that has a number now.
pub(crate) fn open_process(number: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor of a process.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, number, 0) } as RawFd)
}

/// The number of a process's descriptor, which it shares with no other process since Linux 6.9, and with all
/// before.
pub(crate) fn inode(process: &OwnedFd) -> Option<u64> {
    // SAFETY: zeros are a valid value of this plain structure.
    let mut found: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: `found` is valid for the write of the call.
    check(unsafe { libc::fstat(process.as_raw_fd(), &raw mut found) }).ok()?;
    Some(found.st_ino)
}

/// The number of a process in the namespace of `/proc`; `None` if it is not visible there.
pub(crate) fn number_in_proc(process: &OwnedFd) -> Option<libc::pid_t> {
    let path = format!("/proc/self/fdinfo/{}", process.as_raw_fd());
    let text = std::fs::read_to_string(path).ok()?;
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    number.trim().parse().ok().filter(|number| *number > 0)
}

/// Whether a process has ended.
pub(crate) fn has_ended(process: &OwnedFd) -> bool {
    is_readable(process, libc::POLLIN)
}

fn is_readable(fd: &OwnedFd, events: libc::c_short) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: one valid entry; returns at once.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    ready > 0 && poll.revents & events != 0
}

fn option<T>(socket: &OwnedFd, name: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for `bytes` bytes, and every pattern of its plain type is valid.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            ptr::from_mut(value).cast(),
            &raw mut bytes,
        )
    })?;
    Ok(())
}

/// Buffer of ancillary data, aligned as its headers.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Sends one packet, with a descriptor or without. Never blocks.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8], passed: Option<&OwnedFd>) -> io::Result<()> {
    let mut piece =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0; CONTROL_BYTES]);
    // SAFETY: zeros are a valid value of this plain structure.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    if let Some(passed) = passed {
        let fd = passed.as_raw_fd();
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: the buffer has room for one header and one descriptor, and is aligned for them.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            ptr::write_unaligned(libc::CMSG_DATA(header).cast::<RawFd>(), fd);
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message names buffers that live during the call, which only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A received packet.
pub(crate) struct Received {
    /// Its bytes; 0 at the end of the connection.
    pub(crate) length: usize,
    /// The descriptor that came with it.
    pub(crate) passed: Option<OwnedFd>,
    /// It was longer than the buffer.
    pub(crate) is_cut: bool,
}

/// Whether a later attempt to send the same packet may succeed.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    let codes = [libc::ETOOMANYREFS, libc::ENOMEM, libc::ENOBUFS, libc::EINTR];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Whether the system knows no such process here, or forbids to reach it.
pub(crate) fn is_forbidden(error: &io::Error) -> bool {
    let codes = [libc::EPERM, libc::EACCES, libc::ESRCH];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Receives one packet.
pub(crate) fn receive(socket: &OwnedFd, bytes: &mut [u8]) -> io::Result<Received> {
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; CONTROL_BYTES]);
    // SAFETY: zeros are a valid value of this plain structure.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message names buffers that are valid for writes during the call.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    // A descriptor that this process has no room for is missing, and the packet is there.
    Ok(Received {
        length: received as usize,
        passed: taken(&message),
        is_cut: message.msg_flags & libc::MSG_TRUNC != 0,
    })
}

/// Takes the descriptors of a received message. All but the first are closed.
fn taken(message: &libc::msghdr) -> Option<OwnedFd> {
    let mut first = None;
    // SAFETY: the kernel filled the buffer that the message names; the macros stay inside of it. Each
    // descriptor in it is new in this process, and owned by nothing else.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let is_rights =
                (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
            for place in 0..if is_rights { bytes / size_of::<RawFd>() } else { 0 } {
                let fd = OwnedFd::from_raw_fd(ptr::read_unaligned(data.add(place)));
                first.get_or_insert(fd);
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    first
}

/// Copies between this process's bytes and another's, and returns how many were copied.
///
/// # Safety
/// `here` must be valid for `length` bytes, for writes unless `to_peer`, and no reference to them may
/// exist.
pub(crate) unsafe fn copy_by_call(
    process: libc::pid_t,
    here: *mut u8,
    there: u64,
    length: usize,
    to_peer: bool,
) -> io::Result<usize> {
    let ours = libc::iovec { iov_base: here.cast(), iov_len: length };
    let theirs =
        libc::iovec { iov_base: ptr::without_provenance_mut(there as usize), iov_len: length };
    // SAFETY: the caller's bytes are valid; the kernel checks those of the other process.
    let copied = unsafe {
        match to_peer {
            true => libc::process_vm_writev(process, &raw const ours, 1, &raw const theirs, 1, 0),
            false => libc::process_vm_readv(process, &raw const ours, 1, &raw const theirs, 1, 0),
        }
    };
    if copied < 0 { Err(io::Error::last_os_error()) } else { Ok(copied as usize) }
}

/// Copies as [`copy_by_call`], several pieces in order: those of this process, and as many of the same
/// lengths of the other.
///
/// # Safety
/// As for [`copy_by_call`], for each piece.
pub(crate) unsafe fn copy_pieces_by_call(
    process: libc::pid_t,
    (ours, theirs): (&[libc::iovec], &[libc::iovec]),
    to_peer: bool,
) -> io::Result<usize> {
    let counts = (ours.len() as libc::c_ulong, theirs.len() as libc::c_ulong);
    let (ours, theirs) = (ours.as_ptr(), theirs.as_ptr());
    // SAFETY: the caller's bytes are valid; the kernel checks those of the other process.
    let copied = unsafe {
        match to_peer {
            true => libc::process_vm_writev(process, ours, counts.0, theirs, counts.1, 0),
            false => libc::process_vm_readv(process, ours, counts.0, theirs, counts.1, 0),
        }
    };
    if copied < 0 { Err(io::Error::last_os_error()) } else { Ok(copied as usize) }
}

/// Copies as [`copy_by_call`], by the opened memory of a process.
///
/// # Safety
/// As for [`copy_by_call`].
pub(crate) unsafe fn copy_by_file(
    memory: &File,
    here: *mut u8,
    there: u64,
    length: usize,
    to_peer: bool,
) -> io::Result<usize> {
    let (fd, there) = (memory.as_raw_fd(), there as libc::off_t);
    // SAFETY: the caller's bytes are valid; the kernel checks those of the other process.
    let copied = unsafe {
        match to_peer {
            true => libc::pwrite(fd, here.cast_const().cast(), length, there),
            false => libc::pread(fd, here.cast(), length, there),
        }
    };
    if copied < 0 { Err(io::Error::last_os_error()) } else { Ok(copied as usize) }
}

/// `PROCMAP_QUERY`, since Linux 6.11: the map of an address.
const PROCMAP_QUERY: libc::Ioctl = 0xC068_6611_u32 as libc::Ioctl;

/// Its argument, `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct MapQuery {
    size: u64,
    flags: u64,
    address: u64,
    answer: [u64; 6],
    device: [u32; 2],
    lengths: [u32; 2],
    places: [u64; 2],
}

/// Asks for the map of an address in an opened list of maps. Fails if the program has ended, and where the
/// kernel has no answers; an address without a map is an answer.
pub(crate) fn ask_for_map(maps: &File, address: u64) -> io::Result<()> {
    let size = size_of::<MapQuery>() as u64;
    let mut query = MapQuery { size, address, ..MapQuery::default() };
    // SAFETY: the kernel reads and writes the structure up to its size, and nothing that it names.
    match check(unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) }) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The number of the running kernel, equal in all containers of a host.
pub(crate) fn host() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(io::Error::other)?;
    Ok((number >> 64) as u64 ^ number as u64)
}

/// Random bits of the system.
pub(crate) fn random() -> io::Result<u64> {
    let mut bytes = [0_u8; 8];
    // SAFETY: the buffer is valid for its length.
    let filled = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match usize::try_from(filled) {
        Ok(8) => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A set of descriptors that a thread waits for.
pub(crate) struct Poller(OwnedFd);

/// An event: the token, whether something can be read or has ended, and whether more can be sent.
pub(crate) struct Ready {
    pub(crate) token: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// Events taken at a time.
const EVENTS_MAX: usize = 64;

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a new descriptor.
        owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Self)
    }

    /// A descriptor of the set for a task of this thread's runtime, readable while an event is there.
    pub(crate) fn in_runtime(&self) -> io::Result<AsyncFd<OwnedFd>> {
        // SAFETY: the descriptor is owned by what is returned, which never replaces it and closes it last.
        Ok(unsafe { AsyncFd::register(self.0.try_clone()?) }?)
    }

    /// Adds a descriptor, or changes what is awaited of it.
    pub(crate) fn watch(&self, fd: &OwnedFd, token: u64, sends: bool) -> io::Result<()> {
        let events = libc::EPOLLIN | if sends { libc::EPOLLOUT } else { 0 };
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        let (set, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: both descriptors are open, and the event lives during the call.
        let added = unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if added == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        check(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, &raw mut event) })?;
        Ok(())
    }

    /// Removes a descriptor, which may be unknown.
    pub(crate) fn forget(&self, fd: &OwnedFd) {
        let (set, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: both descriptors are open; an unknown one is an error without effect.
        unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, ptr::null_mut()) };
    }

    /// Waits for events, for at most `timeout_ms`, for ever if negative.
    pub(crate) fn wait(&self, ready: &mut Vec<Ready>, timeout_ms: i32) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        // SAFETY: the array is valid for the number of its entries.
        let count = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                EVENTS_MAX as libc::c_int,
                timeout_ms,
            )
        };
        ready.clear();
        ready.extend(events.iter().take(count.max(0) as usize).map(|event| {
            let (events, token) = (event.events, event.u64);
            let writable = events & libc::EPOLLOUT as u32 != 0;
            Ready { token, readable: events & !(libc::EPOLLOUT as u32) != 0, writable }
        }));
    }
}

/// A descriptor that wakes a thread in [`Poller::wait`].
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a new descriptor.
        owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).map(Self)
    }

    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.0
    }

    pub(crate) fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: the buffer is valid for its length. A full counter wakes as well.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    pub(crate) fn clear(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: the buffer is valid for its length.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}
