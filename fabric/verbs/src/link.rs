//! The way of a call to the devices: a function in this process, or a socket to another.

use handfast_fabric::protocol::{Answer, Hello, Reply, Request, receive, send};
use handfast_fabric::{HERE, Refusal, Welcome, handle, offer};
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
    let (life, name) = connect(&socket, &Hello::Program { process: std::process::id() })?;
    Ok(Program { socket, _life: life, name })
}

/// Opens a connection, and returns it with the program's name.
fn connect(socket: &str, hello: &Hello) -> io::Result<(UnixStream, u64)> {
    let stream = UnixStream::connect(socket)?;
    let sent = send(&stream, hello);
    // At their limit the devices answer before they read, and close.
    let welcome: Welcome = receive(&stream).map_err(|error| sent.err().unwrap_or(error))?;
    Ok((stream, welcome.map_err(refused)?))
}

/// Says why the devices refuse something, and returns the error for it.
fn refused(why: Refusal) -> io::Error {
    eprintln!("handfast-fabric: {why}");
    io::Error::from_raw_os_error(libc::EMFILE)
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
            None => connect(&program.socket, &Hello::Calls { program: program.name })?.0,
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
        offer(HERE, name, theirs).map_err(|why| failed(refused(why)))?;
        return Ok((ours, name));
    };
    let hello = Hello::Events { program: program.name, name };
    Ok((connect(&program.socket, &hello).map_err(failed)?.0, name))
}
