//! Devices for other processes, over a socket.

use crate::protocol::{Hello, Request, receive, send};
use crate::server;
use crate::state::{State, changed, lock};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Maximum connections: a few for each thread of the programs.
const CONNECTIONS_MAX: usize = 1_024;

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
    let accept = move || {
        let connections = std::sync::Arc::new(());
        for stream in listener.incoming().flatten() {
            let connection = std::sync::Arc::clone(&connections);
            if std::sync::Arc::strong_count(&connections) > CONNECTIONS_MAX {
                continue;
            }
            let handle = move || {
                let _connection = connection;
                // The end of a connection is how a program ends.
                let _ = converse(&stream);
            };
            if let Err(error) = spawn("fabric connection", handle) {
                eprintln!("handfast-fabric: no thread for a connection: {error}");
            }
        }
    };
    spawn("fabric socket", accept)
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
            let ended = send(stream, &program).and_then(|()| until_closed(stream));
            lock().end(program);
            PROGRAMS.lock().remove(&program);
            changed();
            ended
        }
        Hello::Events { program, name } => server::offer(program, name, stream.try_clone()?),
        Hello::Calls { program } => loop {
            let request: Request = receive(stream)?;
            send(stream, &server::handle(program, request))?;
        },
    }
}

/// Waits for the other end to close.
fn until_closed(mut stream: &UnixStream) -> io::Result<()> {
    let mut rest = Vec::new();
    io::Read::read_to_end(&mut stream, &mut rest).map(drop)
}
