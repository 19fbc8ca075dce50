//! Memory of the peer: mapped, or reached by calls that name its process.
#![allow(unsafe_code)]

use crate::opened::Opened;
use crate::sys;
use handfast_core::sharing::{Keeper, Offered};
use handfast_core::transport::{Side, TransportError};
use handfast_transport::{COPY_CALL, Direction, Memory, MemoryError, Span, pass_in, pass_out};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Length from which the calls that name the process copy faster than its opened memory.
const NAMED_BYTES_MIN: usize = 16 << 10;

/// The bit of a keeper that has no number here.
const OUTSIDE: u64 = 1 << 63;

/// Most pieces of one call.
const PIECES_PER_CALL_MAX: usize = 64;

/// The peer's process.
pub(crate) struct Process {
    /// Its number here; 0 if it is outside of this process's namespace.
    pub(crate) number: libc::pid_t,
    /// Readable once it has ended; absent where the kernel has none.
    pub(crate) descriptor: Option<OwnedFd>,
    /// Its program, opened while the number certainly named it, or nothing if that failed.
    opened: OnceLock<Option<Program>>,
}

/// The memory of a process's program. It ends with the program: one that the process starts in its place,
/// or that has the number later, has another.
struct Program {
    memory: File,
    /// The list of its maps, where the kernel answers questions about it, in half the time of a read of
    /// the memory.
    maps: Option<File>,
    /// Both are of one program.
    is_one: AtomicBool,
}

impl Program {
    /// Checks that the program still has its memory, at an address that is mapped if it has.
    fn check(&self, address: u64) -> io::Result<()> {
        if let Some(maps) = self.maps.as_ref().filter(|_| self.is_one.load(Ordering::Relaxed)) {
            return sys::ask_for_map(maps, address);
        }
        match self.memory.read_at(&mut [0], address)? {
            0 => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            _ => {
                // The memory is of the program that was there when the maps were opened.
                self.is_one.store(true, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

impl Process {
    pub(crate) fn new(number: libc::pid_t, descriptor: Option<OwnedFd>) -> Self {
        Self { number, descriptor, opened: OnceLock::new() }
    }

    /// Its program; `None` where the kernel lets this process reach it by calls alone.
    fn program(&self) -> io::Result<Option<&Program>> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened.as_ref());
        }
        let opened = self.open_program();
        // It lives after the number was looked up, so it was the one that the number named.
        match self.is_named() {
            true => Ok(self.opened.get_or_init(|| opened).as_ref()),
            false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    /// Opens its memory and maps, by its number in the namespace of `/proc`, which may be another than this
    /// process's.
    fn open_program(&self) -> Option<Program> {
        let number = sys::number_in_proc(self.descriptor.as_ref()?)?;
        let path = format!("/proc/{number}/mem");
        let memory = OpenOptions::new().read(true).write(true).open(path).ok()?;
        // After the memory: a byte of the memory that is read later proves that both are of one program.
        let maps = File::open(format!("/proc/{number}/maps")).ok();
        let maps = maps.filter(|maps| sys::ask_for_map(maps, 0).is_ok());
        Some(Program { memory, maps, is_one: AtomicBool::new(false) })
    }

    /// Checks that the number has its process, and the process its program, whose memory begins to be
    /// copied at an address.
    fn check(&self, address: u64) -> io::Result<()> {
        self.program()?.map_or(Ok(()), |program| program.check(address))?;
        match self.is_named() {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    /// The process as one that keeps memory: by its number, and outside of this one's namespace by that of its
    /// descriptor. Before Linux 6.9 the processes outside are one.
    pub(crate) fn keeper(&self) -> Keeper {
        let number = u64::try_from(self.number).unwrap_or_default();
        if number > 0 {
            return Keeper(number);
        }
        let inode = self.descriptor.as_ref().and_then(sys::inode);
        Keeper(inode.map_or(0, |inode| inode | OUTSIDE))
    }

    /// Whether it is proven to have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.descriptor.as_ref().is_some_and(sys::has_ended)
    }

    /// Whether its number certainly names it now.
    fn is_named(&self) -> bool {
        self.number > 0 && self.descriptor.is_some() && !self.has_ended()
    }
}

/// A granted region of the peer.
pub(crate) enum Map {
    Mapped(Memory),
    Calls {
        process: Arc<Process>,
        address: u64,
    },
    /// An allocation on a device.
    Opened(Opened),
}

/// Reasons why a copy did not happen.
pub(crate) enum CopyError {
    /// This node's memory: the slice is refused.
    Local(TransportError),
    /// The peer's, after so many bytes: another path may do it, or says more.
    Remote { error: io::Error, copied: usize },
    /// The driver of a device failed after the copy had begun, and any byte may have been copied.
    Driver(TransportError),
}

impl CopyError {
    /// A failure before the first byte.
    pub(crate) fn untouched(error: io::Error) -> Self {
        Self::Remote { error, copied: 0 }
    }
}

impl Map {
    /// Maps what came with a grant.
    pub(crate) fn of_descriptor(fd: OwnedFd, offered: &Offered) -> Result<Self, MemoryError> {
        let bytes = usize::try_from(offered.bytes).map_err(|_| MemoryError::Size(usize::MAX))?;
        Memory::of_peer(fd, offered.writable, bytes).map(Self::Mapped)
    }

    /// Tries whether the kernel lets this process reach a region of the peer's by calls.
    pub(crate) fn by_calls(process: &Arc<Process>, offered: &Offered) -> io::Result<Self> {
        let mut byte = 0;
        if call(process, offered.address, Direction::Read, &raw mut byte, 1)? == 0 {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        Ok(Self::Calls { process: Arc::clone(process), address: offered.address })
    }

    /// Whether it has the bytes in this process's addresses.
    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self, Self::Mapped(_))
    }

    /// Ends a map that no copy uses. Returns false if this process may touch the region still.
    pub(crate) fn end(map: Arc<Self>) -> bool {
        let is_opened = map.is_opened();
        match Arc::into_inner(map) {
            Some(Self::Opened(opened)) => opened.close(),
            Some(_) => true,
            None => !is_opened,
        }
    }

    /// Whether it is an allocation on a device.
    pub(crate) fn is_opened(&self) -> bool {
        matches!(self, Self::Opened(_))
    }

    /// Copies several pieces between local spans and the region's bytes at their offsets, by one call of
    /// the kernel, which names the process by number as that of a long copy does. Returns how many bytes of
    /// them were copied, from the first on: none where the region is mapped, or a piece needs a call of its
    /// own.
    pub(crate) fn copy_together<'a>(
        &self,
        direction: Direction,
        pieces: impl Iterator<Item = (&'a Span, std::ops::Range<usize>, u64)>,
    ) -> usize {
        let Self::Calls { process, address } = self else { return 0 };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (local, bytes, offset) in pieces.take(PIECES_PER_CALL_MAX) {
            let Some(start) = local.host_ptr() else { break };
            let there = ptr::without_provenance_mut((*address + offset) as usize);
            ours.push(libc::iovec {
                iov_base: start.wrapping_add(bytes.start).cast(),
                iov_len: bytes.len(),
            });
            theirs.push(libc::iovec { iov_base: there, iov_len: bytes.len() });
        }
        let Some(first) = theirs.first().filter(|_| theirs.len() > 1) else { return 0 };
        let checked = process.check(first.iov_base.addr() as u64);
        let to_peer = direction == Direction::Write;
        let copied = checked.and_then(|()| {
            let pieces = (&*ours, &*theirs);
            // SAFETY: the caller holds the spans, whose bytes are writable for a read of the peer's,
            // which posting checks; no reference to registered memory is ever made. The kernel reports
            // bytes it cannot touch.
            unsafe { sys::copy_pieces_by_call(process.number, pieces, to_peer) }
        });
        // The failed piece is copied again on its own, and has its error.
        copied.unwrap_or(0)
    }

    /// Copies between `local` and the region's bytes at `offset`.
    pub(crate) fn copy(
        &self,
        direction: Direction,
        local: &Span,
        offset: u64,
    ) -> Result<(), CopyError> {
        match self {
            Self::Mapped(memory) => {
                let there = memory.span(offset as usize, local.len());
                let there = there.map_err(|error| CopyError::untouched(io::Error::other(error)))?;
                let copied = match direction {
                    Direction::Write => local.copy_to(&there),
                    Direction::Read => there.copy_to(local),
                };
                copied.map_err(local_failure)
            }
            Self::Calls { process, address } => {
                by_calls(process, *address + offset, direction, local)
            }
            Self::Opened(opened) => by_driver(opened, offset as usize, direction, local),
        }
    }
}

/// Copies by calls. An accelerator's memory goes through staging buffers.
fn by_calls(
    process: &Process,
    address: u64,
    direction: Direction,
    local: &Span,
) -> Result<(), CopyError> {
    if let Some(start) = local.host_ptr() {
        return call_all(process, address, direction, start, local.len());
    }
    let call_piece = |done: usize, bytes: &mut [u8]| {
        let (there, length) = (address + done as u64, bytes.len());
        call_all(process, there, direction, bytes.as_mut_ptr(), length).map_err(|error| match error
        {
            CopyError::Remote { error, copied } => {
                CopyError::Remote { error, copied: done + copied }
            }
            other => other,
        })
    };
    match direction {
        Direction::Write => pass_out(local, local_failure, call_piece),
        Direction::Read => pass_in(local, local_failure, call_piece),
    }
}

/// Copies by the driver of a device, between devices or through staging buffers.
fn by_driver(
    opened: &Opened,
    offset: usize,
    direction: Direction,
    local: &Span,
) -> Result<(), CopyError> {
    let there = opened.span(offset, local.len());
    let untouched = |error: MemoryError| CopyError::untouched(io::Error::other(error));
    let there = there.map_err(untouched)?;
    local.check_there().map_err(local_failure)?;
    there.check_there().map_err(untouched)?;
    let copied = match direction {
        Direction::Write => local.copy_across(&there),
        Direction::Read => there.copy_across(local),
    };
    copied.map_err(|error| {
        let detail =
            format!("a copy between this process and a device of the peer failed: {error}");
        CopyError::Driver(TransportError::new(Side::Local, COPY_CALL, detail))
    })
}

fn local_failure(error: MemoryError) -> CopyError {
    let detail = format!("the local memory failed: {error}");
    CopyError::Local(TransportError::new(Side::Local, "copy", detail))
}

/// Copies all bytes between `start`, valid for `length` bytes, and the peer.
fn call_all(
    process: &Process,
    address: u64,
    direction: Direction,
    start: *mut u8,
    length: usize,
) -> Result<(), CopyError> {
    let mut copied = 0;
    while copied < length {
        let (here, there) = (start.wrapping_add(copied), address + copied as u64);
        match call(process, there, direction, here, length - copied) {
            Ok(0) => {
                let error = io::Error::from_raw_os_error(libc::EFAULT);
                return Err(CopyError::Remote { error, copied });
            }
            Ok(more) => copied += more,
            Err(error) => return Err(CopyError::Remote { error, copied }),
        }
    }
    Ok(())
}

/// Copies some of the bytes between `here`, valid for `length` bytes, and the peer.
fn call(
    process: &Process,
    there: u64,
    direction: Direction,
    here: *mut u8,
    length: usize,
) -> io::Result<usize> {
    let memory = process.program()?.map(|program| &program.memory);
    let file = memory.filter(|_| length < NAMED_BYTES_MIN);
    if file.is_none() {
        process.check(there)?;
    }
    let to_peer = direction == Direction::Write;
    // SAFETY: the caller keeps the bytes mapped, writable for a read of the peer's, which posting
    // checks; no reference to registered memory is ever made. The kernel reports bytes it cannot touch.
    unsafe {
        match file {
            Some(file) => sys::copy_by_file(file, here, there, length, to_peer),
            None => sys::copy_by_call(process.number, here, there, length, to_peer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    /// A child whose end this process can see.
    fn child() -> (std::process::Child, Arc<Process>) {
        let child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let number = libc::pid_t::try_from(child.id()).unwrap();
        let descriptor = sys::open_process(number).unwrap();
        (child, Arc::new(Process::new(number, Some(descriptor))))
    }

    /// The opened memory is that of the process, and of no later one with its number, asked for by
    /// either way.
    #[test]
    fn memory_of_an_ended_process_is_gone() {
        let (mut child, process) = child();
        let Some(program) = process.program().unwrap() else {
            child.kill().unwrap();
            child.wait().unwrap();
            return eprintln!("skipped: this process may not open the memory of its child");
        };
        let address = first_address(process.number);
        let read = Program {
            memory: program.memory.try_clone().unwrap(),
            maps: None,
            is_one: false.into(),
        };
        let ways = || [program, &read].map(|way| way.check(address));
        ways().into_iter().for_each(|found| found.unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ways().iter().all(Result::is_err));
        let local = Memory::zeroed(2 * NAMED_BYTES_MIN).unwrap();
        for length in [1, local.len()] {
            let span = local.span(0, length).unwrap();
            assert!(by_calls(&process, address, Direction::Read, &span).is_err());
        }
    }

    /// A program that the process starts in the place of another is not taken for it: the number and the
    /// descriptor stay those of the process.
    #[test]
    fn memory_of_a_replaced_program_is_gone() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "read line; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let number = libc::pid_t::try_from(child.id()).unwrap();
        let process = Process::new(number, Some(sys::open_process(number).unwrap()));
        let checked = process.program().unwrap().map(|program| {
            let address = first_address(number);
            let read = Program {
                memory: program.memory.try_clone().unwrap(),
                maps: None,
                is_one: false.into(),
            };
            let ways = || [program, &read].map(|way| way.check(address).is_ok());
            let before = ways();
            let mut input = child.stdin.take().unwrap();
            input.write_all(b"go on\nhere\n").unwrap();
            // The other program has begun once it answers.
            let mut answer = [0; 5];
            child.stdout.take().unwrap().read_exact(&mut answer).unwrap();
            (before, ways(), process.is_named())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        match checked {
            Some(checked) => assert_eq!(checked, ([true; 2], [false; 2], true)),
            None => eprintln!("skipped: this process may not open the memory of its child"),
        }
    }

    /// Processes outside of this one's namespace keep memory apart, where the kernel numbers their descriptors.
    #[test]
    fn processes_without_a_number_keep_apart() {
        let children = [child(), child()];
        let keepers = [0, 1, 0].map(|at: usize| {
            let descriptor = sys::open_process(children[at].1.number).unwrap();
            Process::new(0, Some(descriptor)).keeper()
        });
        let numbered = children[0].1.keeper();
        for (mut child, _) in children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(keepers[0], keepers[2], "one process is one keeper");
        assert!(!keepers.contains(&numbered), "{keepers:?}: {numbered:?}");
        if keepers[0] == keepers[1] {
            eprintln!("skipped: this kernel has one number for all descriptors of processes");
        }
    }

    /// The first mapped address of a process.
    fn first_address(number: libc::pid_t) -> u64 {
        let maps = std::fs::read_to_string(format!("/proc/{number}/maps")).unwrap();
        u64::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap()
    }
}
