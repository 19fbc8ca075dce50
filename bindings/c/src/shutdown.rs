//! Engines that close when the process ends.

use crate::node::Node;
use handfast_compat::{Failure, PerProcess};
use libc::{SIGINT, SIGTERM};
use parking_lot::{Mutex, ReentrantMutex};
use std::ffi::c_int;
use std::io::{self, PipeReader, Read};
use std::os::fd::IntoRawFd;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The engines to close.
static NODES: PerProcess<Mutex<Vec<Weak<Node>>>> = PerProcess::new();

/// Held while engines close: the process does not end before. A handler of the program that runs on the
/// closing thread may call `exit`, so that thread can have it twice.
static CLOSING: PerProcess<ReentrantMutex<()>> = PerProcess::new();

/// The process whose thread waits for signals, and below it the descriptor of the thread's pipe. A
/// child of a fork has its parent's until it has a thread of its own.
static WAITING: AtomicU64 = AtomicU64::new(0);

/// Whether there are handlers, which a child of a fork inherits.
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// Closes an engine at exit, and on signals that end the process.
pub(crate) fn enable(node: &Arc<Node>) -> Result<(), Failure> {
    let mut nodes = NODES.get(Mutex::default)?.lock();
    let failed = |error| Failure::argument(format!("no signal handlers: {error}"));
    if pipe_of(std::process::id()).is_none() {
        wait_for_signals().map_err(failed)?;
    }
    if !IS_INSTALLED.load(Ordering::Acquire) {
        install().map_err(failed)?;
        IS_INSTALLED.store(true, Ordering::Release);
    }
    nodes.retain(|known| known.strong_count() > 0);
    if !nodes.iter().any(|known| known.as_ptr() == Arc::as_ptr(node)) {
        nodes.push(Arc::downgrade(node));
    }
    Ok(())
}

/// The descriptor to which this process's handlers write, once its thread waits.
fn pipe_of(process: u32) -> Option<c_int> {
    let waiting = WAITING.load(Ordering::Acquire);
    (waiting >> 32 == u64::from(process)).then_some(waiting as c_int)
}

fn wait_for_signals() -> io::Result<()> {
    let (reader, writer) = io::pipe()?;
    let thread = std::thread::Builder::new().name("handfast-signals".into());
    thread.spawn(move || close_on_signal(reader))?;
    // Open as long as the process.
    let pipe = writer.into_raw_fd().cast_unsigned();
    WAITING.store(u64::from(std::process::id()) << 32 | u64::from(pipe), Ordering::Release);
    Ok(())
}

fn install() -> io::Result<()> {
    for signal in [SIGTERM, SIGINT] {
        // SAFETY: the handler calls functions that are allowed in handlers, and does not panic.
        unsafe { signal_hook_registry::register(signal, move || on_signal(signal))? };
    }
    // SAFETY: the function lives as long as the library, which is never unloaded.
    unsafe { libc::atexit(at_exit) };
    Ok(())
}

/// Notifies the thread. A forked child that has none ends as without the handler.
fn on_signal(signal: c_int) {
    // SAFETY: these functions are allowed in handlers; the byte outlives the call.
    unsafe {
        let Some(pipe) = pipe_of(libc::getpid().cast_unsigned()) else {
            // Takes effect when the handler returns.
            return raise_without_handler(signal);
        };
        let byte = signal as u8;
        libc::write(pipe, (&raw const byte).cast(), 1);
    }
}

fn close_on_signal(mut reader: PipeReader) {
    let mut signal = [0];
    if reader.read_exact(&mut signal).is_ok() {
        close_all();
        die(signal[0].into());
    }
}

/// Ends the process as the signal does without a handler.
fn die(signal: c_int) -> ! {
    // SAFETY: the set is initialized before its use, and the calls end the process.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        raise_without_handler(signal);
        // The kernel discards the signal for the first process of a container.
        libc::_exit(128 + signal)
    }
}

/// Sends the process a signal whose handler is removed.
fn raise_without_handler(signal: c_int) {
    // SAFETY: these functions are allowed in handlers, and take any number of a signal.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal);
    }
}

extern "C" fn at_exit() {
    // A panic must not leave the function.
    let _ = catch_unwind(|| {
        if pipe_of(std::process::id()).is_some() {
            close_all();
        }
    });
}

fn close_all() {
    let closing = CLOSING.get(ReentrantMutex::default);
    let (Ok(closing), Ok(nodes)) = (closing, NODES.get(Mutex::default)) else { return };
    let _closing = closing.lock();
    let nodes = std::mem::take(&mut *nodes.lock());
    for node in nodes.iter().filter_map(Weak::upgrade) {
        node.destroy();
    }
}
