//! Cost of sections of a program, in counts: the system calls, the instructions and the locked ones
//! of one thread, while every other thread of its process stands still. The program runs under the
//! tracing of its parent.
//!
//! A section lies between two [`mark`]s. The program runs each section twice: its system calls are
//! counted the first time, and its instructions the second. Instructions of libc and of the kernel's page in the
//! program are left out: these choose their code by the processor.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Names the folder in which parent and program meet.
const FOLDER: &str = "HANDFAST_COST";
/// Maximum instructions of a section.
const INSTRUCTIONS_MAX: u64 = 10_000_000;
/// Longest wait for the program to be ready.
const READY_MAX: Duration = Duration::from_secs(60);
/// Longest time of all sections; the program is killed then.
const COUNTED_MAX: Duration = Duration::from_secs(120);
/// Longest instruction of x86.
const INSTRUCTION_BYTES_MAX: usize = 15;
/// The prefix of instructions that lock memory, and all prefixes but REX, with its upper bits.
const LOCK: u8 = 0xf0;
const PREFIXES: [u8; 11] = [LOCK, 0xf2, 0xf3, 0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67];
const REX: u8 = 0x40;
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Names of the mappings with code that depends on the processor.
const LEFT_OUT: [&str; 2] = ["/libc.so.6", "[vdso]"];

/// Cost of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// System calls of the first run.
    pub system_calls: u64,
    /// Instructions of the second run, in the program and its libraries without libc.
    pub instructions: u64,
    /// Those instructions that lock memory: each taking and giving back of a lock, and each change of a
    /// count that threads share.
    pub locked: u64,
}

/// In the program: waits until the parent traces the calling thread and holds all others.
///
/// # Errors
/// There is no parent, or it does not answer.
pub fn ready() -> io::Result<()> {
    let folder = std::env::var_os(FOLDER).ok_or_else(|| io::Error::other("nobody traces"))?;
    let folder = PathBuf::from(folder);
    // The function `gettid` is newer than the glibc of a release.
    // SAFETY: the call takes nothing and returns a number.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    fs::write(folder.join("new"), thread.to_string())?;
    fs::rename(folder.join("new"), folder.join("thread"))?;
    wait_until(|| folder.join("go").exists())
}

/// In the program: begins a section, or ends one.
pub fn mark() {
    std::thread::yield_now();
}

fn wait_until(is_so: impl Fn() -> bool) -> io::Result<()> {
    let deadline = Instant::now() + READY_MAX;
    while !is_so() {
        if Instant::now() >= deadline {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// Runs a program and returns the cost of so many sections. The program ends with the last.
///
/// # Errors
/// The machine permits no tracing, or the program ends early or is never ready.
pub fn costs(mut command: Command, sections: usize) -> io::Result<Vec<Cost>> {
    let folder = tempfile::tempdir()?;
    let mut child = command.env(FOLDER, folder.path()).spawn()?;
    let process = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
    let (_over, is_over) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        // A thread that waits for one that stands still never goes on.
        if is_over.recv_timeout(COUNTED_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
            // SAFETY: the call takes two numbers; the child is not reaped before the channel ends.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
    });
    let mut threads = Vec::new();
    let counted = counted(&child, folder.path().to_owned(), sections, &mut threads);
    child.kill()?;
    // The end of a traced thread is reported to its tracer alone, and that of the first one after the
    // others.
    for other in threads.into_iter().filter(|thread| thread.cast_unsigned() != child.id()) {
        while wait(other).is_ok() {}
    }
    child.wait()?;
    counted
}

fn counted(
    child: &Child,
    folder: PathBuf,
    sections: usize,
    threads: &mut Vec<libc::pid_t>,
) -> io::Result<Vec<Cost>> {
    wait_until(|| folder.join("thread").exists())?;
    let text = fs::read_to_string(folder.join("thread"))?;
    let thread: libc::pid_t = text.parse().map_err(io::Error::other)?;
    for entry in fs::read_dir(format!("/proc/{}/task", child.id()))? {
        let name = entry?.file_name();
        let other: libc::pid_t = name.to_string_lossy().parse().map_err(io::Error::other)?;
        request(libc::PTRACE_SEIZE, other, libc::PTRACE_O_TRACESYSGOOD as usize)?;
        threads.push(other);
        request(libc::PTRACE_INTERRUPT, other, 0)?;
        wait(other)?;
    }
    let memory = File::open(format!("/proc/{thread}/mem"))?;
    let left_out = left_out(&fs::read_to_string(format!("/proc/{thread}/maps"))?);
    if left_out.is_empty() {
        return Err(io::Error::other("the program maps no libc.so.6"));
    }
    let traced = Traced { thread, memory, left_out };
    fs::write(folder.join("go"), "")?;
    traced.until_mark()?;
    (0..sections).map(|_| traced.section()).collect()
}

/// A stopped thread.
struct Traced {
    thread: libc::pid_t,
    /// The memory of its process.
    memory: File,
    /// Addresses of code whose instructions do not count.
    left_out: Vec<Range<u64>>,
}

impl Traced {
    fn section(&self) -> io::Result<Cost> {
        let system_calls = self.until_mark()?;
        let marked = self.place()?;
        let (mut instructions, mut locked) = (0, 0);
        let mut place = marked;
        for _ in 0..INSTRUCTIONS_MAX {
            if !self.left_out.iter().any(|code| code.contains(&place)) {
                instructions += 1;
                locked += u64::from(self.locks(place)?);
            }
            self.go(libc::PTRACE_SINGLESTEP)?;
            place = self.place()?;
            if place == marked {
                return Ok(Cost { system_calls, instructions, locked });
            }
        }
        Err(io::Error::other("a section has too many instructions"))
    }

    /// Whether the instruction at a place locks memory.
    fn locks(&self, place: u64) -> io::Result<bool> {
        let mut code = [0; INSTRUCTION_BYTES_MAX];
        let read = self.memory.read_at(&mut code, place)?;
        Ok(locks(&code[..read]))
    }

    /// Runs to the end of the next mark, and returns the system calls before it.
    fn until_mark(&self) -> io::Result<u64> {
        let mut calls = 0;
        loop {
            if !self.go(libc::PTRACE_SYSCALL)? {
                continue;
            }
            let registers = self.registers()?;
            // The kernel's sign of an entry; the other stops are exits.
            if registers.rax != i64::from(-libc::ENOSYS).cast_unsigned() {
                continue;
            }
            if registers.orig_rax == libc::SYS_sched_yield.cast_unsigned() {
                self.go(libc::PTRACE_SYSCALL)?;
                return Ok(calls);
            }
            calls += 1;
        }
    }

    /// Continues to the next stop; returns whether it is that of a system call.
    fn go(&self, how: libc::c_uint) -> io::Result<bool> {
        request(how, self.thread, 0)?;
        Ok(wait(self.thread)? == libc::SIGTRAP | 0x80)
    }

    fn place(&self) -> io::Result<u64> {
        Ok(self.registers()?.rip)
    }

    fn registers(&self) -> io::Result<libc::user_regs_struct> {
        let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
        request(libc::PTRACE_GETREGS, self.thread, registers.as_mut_ptr().expose_provenance())?;
        // SAFETY: the structure is made of numbers.
        Ok(unsafe { registers.assume_init() })
    }
}

/// The addresses of the mappings of [`LEFT_OUT`], of a process's list of mappings.
fn left_out(maps: &str) -> Vec<Range<u64>> {
    let lines = maps.lines().filter(|line| LEFT_OUT.iter().any(|name| line.ends_with(name)));
    let range = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let [from, to] = [from, to].map(|address| u64::from_str_radix(address, 16).ok());
        Some(from?..to?)
    };
    lines.filter_map(range).collect()
}

/// Whether an instruction has the prefix `lock`, or is an `xchg` with memory, which needs none.
fn locks(code: &[u8]) -> bool {
    let is_prefix = |byte: &u8| PREFIXES.contains(byte) || (*byte & 0xf0 == REX);
    let (prefixes, rest) = code.split_at(code.iter().take_while(|byte| is_prefix(byte)).count());
    let is_exchange = matches!(rest, [0x86 | 0x87, operands, ..] if *operands < 0xc0);
    prefixes.contains(&LOCK) || is_exchange
}

fn request(request: libc::c_uint, thread: libc::pid_t, data: usize) -> io::Result<()> {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: no request here reads or writes memory of this process but the one for the registers,
    // whose data is the address of as large a structure.
    let returned = unsafe { libc::ptrace(request, thread, nothing, data) };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits for a stop and returns its signal.
fn wait(thread: libc::pid_t) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: the call fills the number.
    let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
    if waited < 0 {
        return Err(io::Error::last_os_error());
    }
    if !libc::WIFSTOPPED(status) {
        return Err(io::Error::other("the program ended within a section"));
    }
    Ok(libc::WSTOPSIG(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lock is recognised behind other prefixes, and `xchg` locks memory and no register.
    #[test]
    fn locking_instructions_are_recognised() {
        // lock cmpxchg [rdi], ecx; lock inc qword [rax]; data16 lock add [rax], ax
        assert!(locks(&[0xf0, 0x0f, 0xb1, 0x0f]) && locks(&[0xf0, 0x48, 0xff, 0x00]));
        assert!(locks(&[0x66, 0xf0, 0x01, 0x00]));
        // xchg [rbx], eax; xchg eax, ecx; mov [rdi], ecx; mov eax, 0xf0
        assert!(locks(&[0x87, 0x03]) && !locks(&[0x87, 0xc8]));
        assert!(!locks(&[0x89, 0x0f]) && !locks(&[0xb8, 0xf0, 0, 0, 0]) && !locks(&[]));
    }

    /// Code of libc and of the kernel's page is left out, and that of other libraries is not.
    #[test]
    fn code_of_libc_is_left_out() {
        let maps = "\
7f5e5c400000-7f5e5c426000 r--p 00000000 fe:00 2080                       /usr/lib/x86_64-linux-gnu/libc.so.6
7f5e5c426000-7f5e5c57b000 r-xp 00026000 fe:00 2080                       /usr/lib/x86_64-linux-gnu/libc.so.6
7f5e5c5e0000-7f5e5c5e1000 r-xp 00000000 fe:00 2081                       /usr/lib/libother-libc.so
7ffe3a5f4000-7ffe3a5f6000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";
        let libc = [0x7f5e_5c40_0000..0x7f5e_5c42_6000, 0x7f5e_5c42_6000..0x7f5e_5c57_b000];
        let [one, other] = libc;
        assert_eq!(left_out(maps), [one, other, 0x7ffe_3a5f_4000..0x7ffe_3a5f_6000]);
    }
}
