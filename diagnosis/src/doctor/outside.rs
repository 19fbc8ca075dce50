//! What the doctor asks of the world beyond files: names, sockets, device nodes, the time. Tests
//! answer in its place.

use super::bulk::{self, BULK_MAGIC};
use super::datagrams;
use super::timed::Timed;
use socket2::{Domain, Socket, Type};
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest wait for a connection, and for all that is then said on it, both ways.
pub const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Of questions and answers: what every host takes (RFC 1122), so that they pass where long packets
/// are lost.
const SEGMENT_BYTES: u32 = 536;
/// Of the kernel's log.
const LOG_BYTES_MAX: usize = 1 << 20;

/// How a question to another process failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskFailure {
    /// No connection came about: the error number, 0 for no answer in time.
    Connect(i32),
    /// The connection ended before an answer.
    Broken,
}

/// The world beyond files.
pub trait Outside {
    /// The addresses of a name.
    ///
    /// # Errors
    /// What the resolver said.
    fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, String>;

    /// Whether this process could listen at the address.
    ///
    /// # Errors
    /// The error number.
    fn bind(&self, address: SocketAddr) -> Result<(), i32>;

    /// Whether this process can open the device node, below the root.
    ///
    /// # Errors
    /// The error number.
    fn open(&self, path: &str) -> Result<(), i32>;

    /// Sends a request to another process and reads its answer up to its end, or to so many bytes.
    ///
    /// # Errors
    /// How that failed.
    fn ask(
        &self,
        address: SocketAddr,
        request: &[u8],
        bytes_max: usize,
    ) -> Result<Vec<u8>, AskFailure>;

    /// Whether a datagram with so many bytes of payload reaches a doctor there without being cut.
    ///
    /// # Errors
    /// The error number, 0 for no answer in time.
    fn pass(&self, address: SocketAddr, bytes: usize) -> Result<(), i32>;

    /// Bytes in a second that another doctor sends; none if too few came to tell.
    ///
    /// # Errors
    /// How that failed.
    fn rate(&self, address: SocketAddr) -> Result<Option<u64>, AskFailure>;

    /// Waits.
    fn pause(&self, time: Duration);

    /// Seconds since 1970.
    fn unix_s(&self) -> u64;

    /// The kernel's log, if it may be read.
    fn kernel_log(&self) -> Option<String>;
}

/// This machine.
pub struct ThisMachine {
    root: PathBuf,
}

impl ThisMachine {
    /// With device nodes below `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }
}

fn code_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

/// Within [`ANSWER_MAX`], as what is said then; in segments of so many bytes at most.
fn connected(address: SocketAddr, segments: Option<u32>) -> Result<Timed, AskFailure> {
    let failed = |error: io::Error| {
        AskFailure::Connect(match error.kind() {
            ErrorKind::TimedOut => 0,
            _ => code_of(&error),
        })
    };
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).map_err(failed)?;
    if let Some(bytes) = segments {
        socket.set_tcp_mss(bytes).map_err(failed)?;
    }
    socket.connect_timeout(&address.into(), ANSWER_MAX).map_err(failed)?;
    Ok(Timed::new(socket.into(), ANSWER_MAX))
}

impl Outside for ThisMachine {
    fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        let found = (name, 0).to_socket_addrs().map_err(|error| error.to_string())?;
        let mut addresses = Vec::new();
        for address in found.map(|address| address.ip()) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Ok(addresses)
    }

    fn bind(&self, address: SocketAddr) -> Result<(), i32> {
        TcpListener::bind(address).map(|_| ()).map_err(|error| code_of(&error))
    }

    fn open(&self, path: &str) -> Result<(), i32> {
        let path = self.root.join(path);
        let opened = OpenOptions::new().read(true).write(true).open(path);
        opened.map(|_| ()).map_err(|error| code_of(&error))
    }

    fn ask(
        &self,
        address: SocketAddr,
        request: &[u8],
        bytes_max: usize,
    ) -> Result<Vec<u8>, AskFailure> {
        let mut stream = connected(address, Some(SEGMENT_BYTES))?;
        stream.write_all(request).map_err(|_| AskFailure::Broken)?;
        let mut answer = Vec::new();
        // What came before an error is looked at below.
        let _ = stream.take(bytes_max as u64).read_to_end(&mut answer);
        // A part may be all that a keep-alive connection brings.
        if answer.is_empty() { Err(AskFailure::Broken) } else { Ok(answer) }
    }

    fn pass(&self, address: SocketAddr, bytes: usize) -> Result<(), i32> {
        datagrams::pass(address, bytes)
    }

    fn rate(&self, address: SocketAddr) -> Result<Option<u64>, AskFailure> {
        let mut stream = connected(address, None)?;
        let broken = |_| AskFailure::Broken;
        stream.write_all(&[&BULK_MAGIC[..], &[0; 4]].concat()).map_err(broken)?;
        bulk::receive(&mut stream).map_err(broken)
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn unix_s(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    fn kernel_log(&self) -> Option<String> {
        /// O_NONBLOCK: the end of the log is otherwise waited at.
        const NON_BLOCKING: i32 = 0o4000;
        let path = self.root.join("dev/kmsg");
        let mut file = OpenOptions::new().read(true).custom_flags(NON_BLOCKING).open(path).ok()?;
        let mut log = Vec::new();
        let mut record = [0; 8192];
        while log.len() < LOG_BYTES_MAX {
            match file.read(&mut record) {
                Ok(0) => break,
                Ok(bytes) => log.extend_from_slice(&record[..bytes]),
                // A record that was overwritten meanwhile.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                Err(_) => break,
            }
        }
        Some(String::from_utf8_lossy(&log).into_owned())
    }
}
