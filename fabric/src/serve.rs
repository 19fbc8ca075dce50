//! Devices for other processes, over a socket.

use crate::limit::{LimitReached, Refusal, Welcome};
use crate::protocol::{Hello, Request, receive, send};
use crate::server;
use crate::state::{State, changed, lock};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Maximum connections: one for each thread of the programs. A process has a thousand descriptors by
/// default, and each device and channel needs one too.
pub(crate) const CONNECTIONS_MAX: usize = 400;
/// Pause after a connection that the kernel does not hand over, for lack of descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The process of each program that is connected.
static PROGRAMS: Mutex<BTreeMap<u64, u32>> = Mutex::new(BTreeMap::new());

/// Returns the process of a program.
pub(crate) fn process_of(program: u64) -> Option<u32> {
    PROGRAMS.lock().get(&program).copied()
}

/// Serves devices to programs that connect to a socket, in threads of its own, until the process
/// ends. The list is as in `HANDFAST_FABRIC`. A process has one list of devices: a second call
/// replaces it. When a program ends, its objects are gone as the kernel's are.
///
/// # Errors
/// The list of devices is wrong, or the socket cannot be created.
pub fn serve(socket: &Path, devices: &str) -> io::Result<()> {
    let state = State::new(devices);
    if let Some(why) = &state.refused {
        return Err(io::Error::other(why.clone()));
    }
    *lock() = state;
    crate::instant::on_shared();
    let listener = UnixListener::bind(socket)?;
    spawn("fabric socket", move || accept(&listener))
}

fn accept(listener: &UnixListener) {
    let connections = Arc::new(());
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                eprintln!("handfast-fabric: a connection cannot be taken: {error}");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        if Arc::strong_count(&connections) > CONNECTIONS_MAX {
            // The program may have ended meanwhile.
            let _ = send(&stream, &Welcome::Err(LimitReached::Connections.into()));
            continue;
        }
        let connection = Arc::clone(&connections);
        let handle = move || {
            let _connection = connection;
            // The end of a connection is how a program ends.
            let _ = converse(&stream);
        };
        if let Err(error) = spawn("fabric connection", handle) {
            eprintln!("handfast-fabric: no thread for a connection: {error}");
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

/// Runs a command on the devices of this process.
///
/// # Errors
/// The command is wrong, with the reason.
pub fn command(line: &str) -> Result<String, String> {
    crate::commands::run(line)
}

fn converse(stream: &UnixStream) -> io::Result<()> {
    match receive(stream)? {
        Hello::Program { process } => {
            let program = lock().next_id();
            PROGRAMS.lock().insert(program, process);
            let ended = welcome(stream, Ok(program)).and_then(|()| until_closed(stream));
            lock().end(program);
            PROGRAMS.lock().remove(&program);
            server::withdraw_offers(program);
            changed();
            ended
        }
        Hello::Events { program, name } => {
            let offered = server::offer(program, name, stream.try_clone()?);
            // The program names the descriptor in a call after this.
            welcome(stream, offered.map(|()| program))
        }
        Hello::Calls { program } => {
            welcome(stream, Ok(program))?;
            loop {
                let request: Request = receive(stream)?;
                send(stream, &server::handle(program, request))?;
            }
        }
    }
}

fn welcome(stream: &UnixStream, answer: Result<u64, Refusal>) -> io::Result<()> {
    send(stream, &answer)
}

/// Waits for the other end to close.
fn until_closed(mut stream: &UnixStream) -> io::Result<()> {
    let mut rest = Vec::new();
    io::Read::read_to_end(&mut stream, &mut rest).map(drop)
}
