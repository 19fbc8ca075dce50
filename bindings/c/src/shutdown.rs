//! Engines that close when the process ends.

use crate::node::Node;
use crate::outcome::Error;
use libc::{SIGINT, SIGTERM};
use parking_lot::Mutex;
use std::ffi::c_int;
use std::io::{self, PipeReader, Read};
use std::os::fd::IntoRawFd;
use std::panic::catch_unwind;
use std::sync::{Arc, Weak};

/// The engines, and the process that has the handlers.
static ENDING: Mutex<Ending> = Mutex::new(Ending { nodes: Vec::new(), process: 0 });

struct Ending {
    nodes: Vec<Weak<Node>>,
    process: u32,
}

/// Closes an engine at exit, and on signals that end the process.
pub(crate) fn enable(node: &Arc<Node>) -> Result<(), Error> {
    let mut ending = ENDING.lock();
    if ending.process != std::process::id() {
        ending.nodes.clear();
        install().map_err(|error| Error::argument(format!("no signal handlers: {error}")))?;
        ending.process = std::process::id();
    }
    ending.nodes.retain(|known| known.strong_count() > 0);
    if !ending.nodes.iter().any(|known| known.as_ptr() == Arc::as_ptr(node)) {
        ending.nodes.push(Arc::downgrade(node));
    }
    Ok(())
}

fn install() -> io::Result<()> {
    let (reader, writer) = io::pipe()?;
    let thread = std::thread::Builder::new().name("handfast-signals".into());
    thread.spawn(move || close_on_signal(reader))?;
    // Open as long as the process.
    let pipe = writer.into_raw_fd();
    let process = std::process::id();
    for signal in [SIGTERM, SIGINT] {
        // SAFETY: the handler calls functions that are allowed in handlers, and does not panic.
        unsafe {
            signal_hook_registry::register(signal, move || on_signal(signal, process, pipe))?
        };
    }
    // SAFETY: the function lives as long as the library, which is never unloaded.
    unsafe { libc::atexit(at_exit) };
    Ok(())
}

/// Notifies the thread, which a forked child does not have: there the signal has its usual effect.
fn on_signal(signal: c_int, process: u32, pipe: c_int) {
    // SAFETY: these functions are allowed in handlers; the byte outlives the call.
    unsafe {
        if libc::getpid().cast_unsigned() != process {
            // Takes effect when the handler returns.
            return die(signal);
        }
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
fn die(signal: c_int) {
    // SAFETY: these functions are allowed in handlers, and the process ends.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal);
    }
}

extern "C" fn at_exit() {
    // A panic must not leave the function.
    let _ = catch_unwind(|| {
        if ENDING.lock().process == std::process::id() {
            close_all();
        }
    });
}

fn close_all() {
    let nodes = std::mem::take(&mut ENDING.lock().nodes);
    for node in nodes.iter().filter_map(Weak::upgrade) {
        node.destroy();
    }
}
