//! Functions of engines.

use crate::abi::{Engine, HANDFAST_FOREVER, Options};
use crate::errors::done;
use handfast_compat::c::{place, put_text, text};
use handfast_compat::{Engines, Failure, Handles, PEERS_MAX, TransferEngine};
use parking_lot::RwLock;
use std::ffi::c_char;
use std::mem::offset_of;
use std::sync::Arc;
use std::time::Duration;

static ENGINES: Engines<Node> = Engines::new();

/// An engine of the program.
pub(crate) struct Node {
    pub(crate) engine: TransferEngine,
    /// The names of open peers.
    pub(crate) peers: RwLock<Handles<Arc<str>>>,
}

/// Returns the engine of a handle.
pub(crate) fn find(engine: Engine) -> Result<Arc<Node>, Failure> {
    ENGINES.find(engine)
}

/// Returns a span of time; `None` for the default.
pub(crate) fn duration(milliseconds: u64) -> Option<Duration> {
    match milliseconds {
        0 => None,
        HANDFAST_FOREVER => Some(Duration::MAX),
        _ => Some(Duration::from_millis(milliseconds)),
    }
}

/// Starts an engine and writes its handle.
///
/// # Safety
/// `options` is NULL, or has as many bytes as its size says, with texts that are NULL or end with a
/// null byte; `engine` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_engine_start(
    options: *const Options,
    engine: *mut Engine,
) -> i32 {
    done(|| {
        let out = place(engine, "engine")?;
        // SAFETY: the caller's promise is passed on.
        let options = unsafe { given(&read(options)?)? };
        let peers = Handles::new("PEERS_MAX", PEERS_MAX, "close peers that are not used");
        let engine = TransferEngine::start(&options)?;
        let handle = ENGINES.insert(Arc::new(Node { engine, peers: RwLock::new(peers) }))?;
        // SAFETY: the place is writable, as the caller promises.
        unsafe { out.write(handle) };
        Ok(())
    })
}

/// Copies options of a program that may have been compiled for another version.
///
/// # Safety
/// As of [`handfast_engine_start`].
unsafe fn read(options: *const Options) -> Result<Options, Failure> {
    const LEAST: usize = offset_of!(Options, timeout_ms) + size_of::<u64>();
    const MOST: usize = 4_096;
    let start = place(options.cast_mut(), "options")?.cast_const().cast::<u8>();
    // SAFETY: the first field can be read, as the caller promises.
    let size = unsafe { start.cast::<usize>().read() };
    // A part of a field is no option.
    if !(LEAST..=MOST).contains(&size) || !size.is_multiple_of(align_of::<Options>()) {
        let text = format!("options->size is {size}: set it to sizeof(handfast_options)");
        return Err(Failure::argument(text));
    }
    let known = size.min(size_of::<Options>());
    // SAFETY: so many bytes can be read, as the caller promises.
    let rest = unsafe { std::slice::from_raw_parts(start.add(known), size - known) };
    if rest.iter().any(|byte| *byte != 0) {
        let text = "options has fields that this version of the library does not know: link the \
                    version of the header";
        return Err(Failure::argument(text));
    }
    // SAFETY: every field may be zero, and so many bytes can be read and written.
    unsafe {
        let mut copy: Options = std::mem::zeroed();
        std::ptr::copy_nonoverlapping(start, (&raw mut copy).cast::<u8>(), known);
        Ok(copy)
    }
}

/// # Safety
/// Texts are NULL, or end with a null byte.
unsafe fn given(options: &Options) -> Result<handfast_compat::Options, Failure> {
    let or = |start: *const c_char, what, default| match start.is_null() {
        true => Ok(default),
        // SAFETY: the caller's promise is passed on.
        false => unsafe { text(start, what) },
    };
    // SAFETY: the caller's promise is passed on.
    let name = unsafe { text(options.name, "options->name")? };
    let mut given = handfast_compat::Options::new(
        name,
        or(options.metadata, "options->metadata", "P2PHANDSHAKE")?,
        or(options.transport, "options->transport", "auto")?,
        or(options.devices, "options->devices", "")?,
    )?;
    given.timeout = duration(options.timeout_ms).unwrap_or(given.timeout);
    // An empty one names no keys, and fails the start.
    if !options.auth.is_null() {
        given.auth = Some(or(options.auth, "options->auth", "")?.to_owned());
    }
    given.accept_exposed_memory |=
        switch(options.accept_exposed_memory, "options->accept_exposed_memory")?;
    given.accept_forked_memory |=
        switch(options.accept_forked_memory, "options->accept_forked_memory")?;
    given.encrypt_lanes |= switch(options.encrypt_lanes, "options->encrypt_lanes")?;
    let administrators = or(options.administrators, "options->administrators", "")?;
    let patterns = administrators.split(',').map(str::trim).filter(|it| !it.is_empty());
    given.administrators = patterns.map(str::to_owned).collect();
    given.rdma_cm |= switch(options.rdma_cm, "options->rdma_cm")?;
    Ok(given)
}

fn switch(value: u32, what: &str) -> Result<bool, Failure> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Failure::argument(format!("{what} is {value}: it is 0 or 1"))),
    }
}

/// Ends what is under way, closes the engine, and releases its memory, peers and batches.
/// HANDFAST_IN_USE if transfers still use memory after 10 seconds: the memory must stay mapped, and
/// the call may be repeated.
#[unsafe(no_mangle)]
pub extern "C" fn handfast_engine_close(engine: Engine) -> i32 {
    done(|| {
        find(engine)?.engine.close()?;
        ENGINES.take(engine).map(drop)
    })
}

/// Writes the engine's address, HOST:PORT, by which peers open it. HANDFAST_ARGUMENT if it does not
/// fit into so many bytes with its null byte.
///
/// # Safety
/// `out` is NULL, or has so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_engine_address(
    engine: Engine,
    out: *mut c_char,
    bytes: usize,
) -> i32 {
    done(|| {
        let node = find(engine)?;
        // SAFETY: the caller's promise is passed on.
        unsafe { put_whole(out, bytes, node.engine.address()) }
    })
}

/// Writes what the start warns of, a line each: devices that are not used, lanes over TCP in place
/// of RDMA, ports that are open to everybody, variables with unknown names. Empty text if there is
/// nothing. HANDFAST_ARGUMENT if it does not fit into so many bytes with its null byte.
///
/// # Safety
/// `out` is NULL, or has so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handfast_engine_warnings(
    engine: Engine,
    out: *mut c_char,
    bytes: usize,
) -> i32 {
    done(|| {
        let lines = find(engine)?.engine.warnings().join("\n");
        // SAFETY: the caller's promise is passed on.
        unsafe { put_whole(out, bytes, &lines) }
    })
}

/// # Safety
/// As of [`put_text`].
unsafe fn put_whole(out: *mut c_char, bytes: usize, text: &str) -> Result<(), Failure> {
    if bytes <= text.len() {
        let text = format!("the buffer has {bytes} bytes: the text needs {}", text.len() + 1);
        return Err(Failure::argument(text));
    }
    // SAFETY: the caller's promise is passed on.
    unsafe { put_text(out, bytes, text) }
}
