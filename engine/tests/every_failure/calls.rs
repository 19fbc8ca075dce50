//! The calls of the system that this program's code makes, each of which can be made to fail once.
//! The names are defined here, in the program, so that the standard library, the runtime and the
//! engine call them in place of the C library's, which itself does not. SAFETY of the blocks below:
//! each function passes on the arguments of its caller, who answers for them as for those of the C
//! library; a call that fails touches nothing but the number of the error.
#![allow(
    unsafe_code,
    clippy::too_many_arguments,
    reason = "they have the names and signatures of C"
)]

use libc::{c_char, c_int, c_uint, c_void, size_t};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// A call, and the error that it fails with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    error: c_int,
}

macro_rules! calls {
    ($($at:ident $name:literal $error:ident,)*) => {
        #[derive(Clone, Copy)]
        #[repr(usize)]
        enum At { $($at),* }
        /// Every call that fails here.
        pub(crate) const CALLS: &[Call] = &[$(Call { name: $name, error: libc::$error }),*];
    };
}

calls! {
    Socket "socket" EMFILE,
    Bind "bind" EADDRINUSE,
    Listen "listen" EADDRINUSE,
    Accept "accept4" EMFILE,
    Connect "connect" EADDRNOTAVAIL,
    SetOption "setsockopt" ENOMEM,
    GetOption "getsockopt" ENOBUFS,
    OwnName "getsockname" ENOBUFS,
    PeerName "getpeername" ENOTCONN,
    Send "send" ECONNRESET,
    Receive "recv" ECONNRESET,
    SendMessage "sendmsg" ENOBUFS,
    ReceiveMessage "recvmsg" ECONNRESET,
    ReadVector "readv" ECONNRESET,
    WriteVector "writev" EPIPE,
    WriteFile "write" ENOSPC,
    Watch "epoll_ctl" ENOSPC,
    EventFd "eventfd" EMFILE,
    Memory "memfd_create" EMFILE,
    Truncate "ftruncate" ENOSPC,
    Map "mmap" ENOMEM,
    Advise "madvise" ENOMEM,
    Descriptor "fcntl" EMFILE,
    Open "open" EMFILE,
    CopyFrom "process_vm_readv" ENOMEM,
    CopyTo "process_vm_writev" ENOMEM,
    Thread "pthread_create" EAGAIN,
}

const NONE: usize = usize::MAX;
/// The call that fails, and how many of its kind go by before.
static FAILING: AtomicUsize = AtomicUsize::new(NONE);
static BEFORE: AtomicU64 = AtomicU64::new(0);
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// From now on the call at this place of [`CALLS`] fails, once, after `before` more of its kind.
pub(crate) fn fail(at: usize, before: u64) {
    BEFORE.store(before, Ordering::SeqCst);
    HAS_FAILED.store(false, Ordering::SeqCst);
    FAILING.store(at, Ordering::SeqCst);
}

/// Nothing fails from now on. Returns whether a call has failed.
pub(crate) fn end() -> bool {
    FAILING.store(NONE, Ordering::SeqCst);
    HAS_FAILED.load(Ordering::SeqCst)
}

/// Whether this call fails.
fn fails(at: At) -> bool {
    if FAILING.load(Ordering::SeqCst) != at as usize {
        return false;
    }
    let before =
        BEFORE.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    before.is_err() && !HAS_FAILED.swap(true, Ordering::SeqCst)
}

fn failed(at: At) -> isize {
    // SAFETY: it is the number of this thread.
    unsafe { *libc::__errno_location() = CALLS[at as usize].error };
    -1
}

/// Defines a function of C, which fails if its turn has come, and otherwise is a call of the kernel.
macro_rules! hook {
    ($at:ident if $may_fail:expr;
     $name:ident($($arg:ident: $kind:ty),*) -> $result:ty = $number:ident($($given:expr),*)) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $kind),*) -> $result {
            if $may_fail && fails(At::$at) {
                return failed(At::$at) as $result;
            }
            // SAFETY: the caller's arguments, for the call that it asked for.
            unsafe { libc::syscall(libc::$number, $($given),*) as $result }
        }
    };
}

type Bytes = *mut c_void;
type Read = *const c_void;
type Length = *mut c_uint;

hook!(Socket if true; socket(a: c_int, b: c_int, c: c_int) -> c_int = SYS_socket(a, b, c));
hook!(Bind if true; bind(a: c_int, b: Read, c: c_uint) -> c_int = SYS_bind(a, b, c));
hook!(Listen if true; listen(a: c_int, b: c_int) -> c_int = SYS_listen(a, b));
hook!(Accept if true;
    accept4(a: c_int, b: Bytes, c: Length, d: c_int) -> c_int = SYS_accept4(a, b, c, d));
hook!(Connect if true; connect(a: c_int, b: Read, c: c_uint) -> c_int = SYS_connect(a, b, c));
hook!(SetOption if true;
    setsockopt(a: c_int, b: c_int, c: c_int, d: Read, e: c_uint) -> c_int
        = SYS_setsockopt(a, b, c, d, e));
hook!(GetOption if true;
    getsockopt(a: c_int, b: c_int, c: c_int, d: Bytes, e: Length) -> c_int
        = SYS_getsockopt(a, b, c, d, e));
hook!(OwnName if true;
    getsockname(a: c_int, b: Bytes, c: Length) -> c_int = SYS_getsockname(a, b, c));
hook!(PeerName if true;
    getpeername(a: c_int, b: Bytes, c: Length) -> c_int = SYS_getpeername(a, b, c));
hook!(Send if true;
    send(a: c_int, b: Read, c: size_t, d: c_int) -> isize = SYS_sendto(a, b, c, d, 0, 0));
hook!(Receive if true;
    recv(a: c_int, b: Bytes, c: size_t, d: c_int) -> isize = SYS_recvfrom(a, b, c, d, 0, 0));
hook!(SendMessage if true;
    sendmsg(a: c_int, b: Read, c: c_int) -> isize = SYS_sendmsg(a, b, c));
hook!(ReceiveMessage if true;
    recvmsg(a: c_int, b: Bytes, c: c_int) -> isize = SYS_recvmsg(a, b, c));
hook!(ReadVector if true; readv(a: c_int, b: Read, c: c_int) -> isize = SYS_readv(a, b, c));
hook!(WriteVector if true; writev(a: c_int, b: Read, c: c_int) -> isize = SYS_writev(a, b, c));
// The runtime wakes itself by descriptors of events, which do not fail.
hook!(WriteFile if is_file(a); write(a: c_int, b: Read, c: size_t) -> isize = SYS_write(a, b, c));
// A socket can be refused its place, not its leave.
hook!(Watch if b == libc::EPOLL_CTL_ADD;
    epoll_ctl(a: c_int, b: c_int, c: c_int, d: Bytes) -> c_int = SYS_epoll_ctl(a, b, c, d));
hook!(EventFd if true; eventfd(a: c_uint, b: c_int) -> c_int = SYS_eventfd2(a, b));
hook!(Memory if true; memfd_create(a: *const c_char, b: c_uint) -> c_int = SYS_memfd_create(a, b));
hook!(Truncate if true; ftruncate64(a: c_int, b: i64) -> c_int = SYS_ftruncate(a, b));
hook!(Map if true;
    mmap(a: Bytes, b: size_t, c: c_int, d: c_int, e: c_int, f: i64) -> Bytes
        = SYS_mmap(a, b, c, d, e, f));
hook!(Advise if true; madvise(a: Bytes, b: size_t, c: c_int) -> c_int = SYS_madvise(a, b, c));
// A function of C with more arguments takes them in the same registers.
hook!(Descriptor if b == libc::F_DUPFD_CLOEXEC || b == libc::F_ADD_SEALS;
    fcntl(a: c_int, b: c_int, c: usize) -> c_int = SYS_fcntl(a, b, c));
hook!(Open if true;
    open64(a: *const c_char, b: c_int, c: c_uint) -> c_int
        = SYS_openat(libc::AT_FDCWD, a, b, c));
hook!(CopyFrom if true;
    process_vm_readv(a: c_int, b: Read, c: usize, d: Read, e: usize, f: usize) -> isize
        = SYS_process_vm_readv(a, b, c, d, e, f));
hook!(CopyTo if true;
    process_vm_writev(a: c_int, b: Read, c: usize, d: Read, e: usize, f: usize) -> isize
        = SYS_process_vm_writev(a, b, c, d, e, f));

fn is_file(file: c_int) -> bool {
    // SAFETY: it is all zeros, as C allows, and filled by the call, which takes any number of a file.
    let kind = unsafe {
        let mut status: libc::stat64 = std::mem::zeroed();
        if libc::fstat64(file, &mut status) != 0 {
            return false;
        }
        status.st_mode & libc::S_IFMT
    };
    kind == libc::S_IFREG
}

/// Shuts down every connection of this process over IPv4.
pub(crate) fn break_connections() {
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = files.filter_map(|file| file.ok()?.file_name().to_str()?.parse::<c_int>().ok());
    for number in numbers.collect::<Vec<_>>() {
        let mut address = [0u8; 128];
        let mut length = address.len() as c_uint;
        // SAFETY: the kernel writes no more than `length` bytes of the array. One that is no socket, or
        // is not connected, is left alone.
        unsafe {
            let (at, bytes) = (address.as_mut_ptr(), &mut length);
            let found = libc::syscall(libc::SYS_getpeername, number, at, bytes as Length);
            if found == 0 && address[0] == libc::AF_INET as u8 {
                libc::syscall(libc::SYS_shutdown, number, libc::SHUT_RDWR);
            }
        }
    }
}

type Run = extern "C" fn(Bytes) -> Bytes;

/// A thread is not begun by a single call of the kernel.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: Bytes,
    attributes: Read,
    run: Run,
    argument: Bytes,
) -> c_int {
    if fails(At::Thread) {
        // It returns its error.
        return CALLS[At::Thread as usize].error;
    }
    type Begin = unsafe extern "C" fn(Bytes, Read, Run, Bytes) -> c_int;
    // SAFETY: the C library's function of this name has this signature.
    unsafe {
        let begin = libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr());
        let begin: Begin = std::mem::transmute(begin);
        begin(thread, attributes, run, argument)
    }
}
