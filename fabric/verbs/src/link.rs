//! The way of a call to the devices: a function in this process, or a socket to another.

use handfast_fabric::protocol::{Answer, Hello, Reply, Request, receive, send};
use handfast_fabric::{HERE, handle, offer};
use std::cell::RefCell;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names the socket of the process that has the devices. Without it they are in this process.
pub(crate) const SOCKET: &str = "HANDFAST_FABRIC_SOCKET";

/// The connection that ends with this program, and the program's name.
struct Program {
    socket: String,
    _life: UnixStream,
    name: u64,
}

/// The process of the devices; `None` is this one.
fn program() -> Result<Option<&'static Program>, i32> {
    static PROGRAM: OnceLock<Result<Option<Program>, i32>> = OnceLock::new();
    let found = PROGRAM.get_or_init(|| {
        let Ok(socket) = std::env::var(SOCKET) else { return Ok(None) };
        join(socket).map(Some).map_err(|error| {
            eprintln!("handfast-fabric: the devices at {SOCKET} cannot be reached: {error}");
            libc::ECONNREFUSED
        })
    });
    found.as_ref().map(Option::as_ref).map_err(|code| *code)
}

fn join(socket: String) -> io::Result<Program> {
    let life = UnixStream::connect(&socket)?;
    send(&life, &Hello::Program { process: std::process::id() })?;
    let name = receive(&life)?;
    Ok(Program { socket, _life: life, name })
}

thread_local! {
    /// This thread's connection for calls.
    static CALLS: RefCell<Option<UnixStream>> = const { RefCell::new(None) };
}

/// Makes a call and waits for its answer.
pub(crate) fn call(request: Request) -> Reply {
    let Some(program) = program()? else { return handle(HERE, request) };
    let lost = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    let exchange = |slot: &RefCell<Option<UnixStream>>| -> io::Result<Reply> {
        let mut slot = slot.borrow_mut();
        let stream = match slot.take() {
            Some(stream) => stream,
            None => {
                let stream = UnixStream::connect(&program.socket)?;
                send(&stream, &Hello::Calls { program: program.name })?;
                stream
            }
        };
        send(&stream, &request)?;
        let reply = receive(&stream)?;
        *slot = Some(stream);
        Ok(reply)
    };
    CALLS.try_with(exchange).map_err(|_| libc::EIO)?.map_err(lost)?
}

/// Makes a call that answers with nothing or with an error number.
pub(crate) fn done(request: Request) -> i32 {
    match call(request) {
        Ok(_) => 0,
        Err(code) => code,
    }
}

/// Makes a call that creates an object.
pub(crate) fn created(request: Request) -> Result<u64, i32> {
    match call(request)? {
        Answer::Object(name) => Ok(name),
        _ => Err(libc::EPROTO),
    }
}

/// Returns the program's end of a new descriptor for events, and its name for the devices.
pub(crate) fn events() -> Result<(UnixStream, u64), i32> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let name = NEXT.fetch_add(1, Ordering::Relaxed);
    let failed = |error: io::Error| error.raw_os_error().unwrap_or(libc::EMFILE);
    let Some(program) = program()? else {
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        offer(HERE, name, theirs).map_err(failed)?;
        return Ok((ours, name));
    };
    let stream = UnixStream::connect(&program.socket).map_err(failed)?;
    send(&stream, &Hello::Events { program: program.name, name }).map_err(failed)?;
    Ok((stream, name))
}
