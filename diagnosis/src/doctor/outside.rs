//! Queries beyond files: names, sockets, device nodes, the time. Tests answer in place of the
//! machine.

use super::bulk::{self, BULK_MAGIC};
use super::datagrams;
use super::timed::Timed;
use crate::problem::{Id, Side};
use handfast_transport_rdma::ManagerUnavailable;
use socket2::{Domain, Socket, Type};
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Timeout of a question, from the start of the connection.
pub const QUESTION_MAX: Duration = Duration::from_secs(3);
/// Timeout of an answer, and of the whole exchange. A doctor that gets its first question probes
/// its host and opens an RDMA device before it answers, which may take five seconds.
pub const ANSWER_MAX: Duration = Duration::from_secs(8);
/// Timeout of connecting: longer than the three seconds after which Linux reports an absent address
/// in its own network (mcast_solicit and retrans_time_ms, `arp(7)`).
pub const CONNECT_MAX: Duration = Duration::from_secs(4);
/// Segment size of questions and answers: every host accepts it (RFC 1122), so they pass even if
/// long packets are lost.
const SEGMENT_BYTES: u32 = 536;
/// Bytes written over a lane between two doctors: several packets of every possible length.
pub const LANE_BYTES: usize = 64 << 10;
/// Maximum bytes read of the kernel's log.
const LOG_BYTES_MAX: usize = 1 << 20;

/// The failure of a request to another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskFailure {
    /// Connecting failed: the error number, 0 for a timeout.
    Connect(i32),
    /// The connection ended before an answer.
    Broken,
    /// The connection was established, but no answer arrived in time.
    Silent,
    /// The two sides failed to agree on TLS; contains this side's error.
    Encryption(String),
    /// This program was built without TLS.
    NotBuilt,
}

/// The furthest step of a lane over RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneStep {
    /// This host's device.
    Device,
    /// The connection.
    Connect,
    /// A write of a few bytes.
    Short,
    /// A write of [`LANE_BYTES`].
    Write,
}

/// The reason why no bytes moved over a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneFailure {
    /// The step that failed.
    pub step: LaneStep,
    /// The id of the error.
    pub id: Id,
    /// The side at fault.
    pub side: Side,
    /// The text of the error.
    pub text: String,
}

/// A connection over any transport.
pub trait Channel: Read + Write {}

impl<T: Read + Write> Channel for T {}

/// Adds TLS to a connection to the named service.
pub type Encrypt = Box<dyn Fn(&str, Timed) -> io::Result<Box<dyn Channel>> + Send + Sync>;

/// Opens a lane over RDMA to a doctor that accepts lanes there, and writes over it.
pub type Lanes = Box<dyn Fn(SocketAddr) -> Result<(), LaneFailure> + Send + Sync>;

/// Queries beyond files.
pub trait Outside {
    /// Resolves a name.
    ///
    /// # Errors
    /// The error of the resolver.
    fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, String>;

    /// Tests whether this process can listen on the address.
    ///
    /// # Errors
    /// The error number.
    fn bind(&self, address: SocketAddr) -> Result<(), i32>;

    /// Tests whether this process can open the device node, below the root.
    ///
    /// # Errors
    /// The error number.
    fn open(&self, path: &str) -> Result<(), i32>;

    /// Tests whether this process can use the kernel's connection manager.
    ///
    /// # Errors
    /// The reason why not.
    fn connection_manager(&self) -> Result<(), ManagerUnavailable>;

    /// Sends a request to another process and reads its answer, up to its end or to so many bytes;
    /// over TLS if the service is named.
    ///
    /// # Errors
    /// The failure of the request.
    fn ask(
        &self,
        address: SocketAddr,
        encrypted: Option<&str>,
        request: &[u8],
        bytes_max: usize,
    ) -> Result<Vec<u8>, AskFailure>;

    /// Tests whether a datagram with so many bytes of payload reaches a doctor there unfragmented.
    ///
    /// # Errors
    /// The error number, 0 for no answer in time.
    fn pass(&self, address: SocketAddr, bytes: usize) -> Result<(), i32>;

    /// Returns the rate in bytes per second at which another doctor sends; `None` if too few bytes
    /// arrived.
    ///
    /// # Errors
    /// The failure of the request.
    fn rate(&self, address: SocketAddr) -> Result<Option<u64>, AskFailure>;

    /// Returns the rate of this host over loopback TCP, in megabits per second; 0 if unknown.
    fn loopback_mbps(&self) -> u32;

    /// Tests whether bytes move over an RDMA lane to a doctor that accepts lanes there; `None` if
    /// this program cannot test it.
    fn lane(&self, address: SocketAddr) -> Option<Result<(), LaneFailure>>;

    /// Waits for so long.
    fn pause(&self, time: Duration);

    /// Seconds since 1970.
    fn unix_s(&self) -> u64;

    /// Returns the kernel's log, if it is readable.
    fn kernel_log(&self) -> Option<String>;
}

/// This machine.
pub struct ThisMachine {
    root: PathBuf,
    lanes: Option<Lanes>,
    encrypt: Option<Encrypt>,
}

impl ThisMachine {
    /// Creates queries with device nodes below `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), lanes: None, encrypt: None }
    }

    /// Adds support for TLS.
    pub fn with_encryption(self, encrypt: Encrypt) -> Self {
        Self { encrypt: Some(encrypt), ..self }
    }

    /// Adds support for lanes.
    pub fn with_lanes(self, lanes: Lanes) -> Self {
        Self { lanes: Some(lanes), ..self }
    }
}

fn code_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

/// Connects within [`CONNECT_MAX`], optionally with a maximum segment size.
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
    socket.connect_timeout(&address.into(), CONNECT_MAX).map_err(failed)?;
    Ok(Timed::new(socket.into(), ANSWER_MAX))
}

/// Sends a request and reads the answer.
fn said_by(
    mut stream: impl Channel,
    request: &[u8],
    bytes_max: usize,
) -> Result<Vec<u8>, AskFailure> {
    stream.write_all(request).map_err(|error| broken(&error))?;
    let mut answer = Vec::new();
    let ended = stream.take(bytes_max as u64).read_to_end(&mut answer);
    match ended {
        // A keep-alive connection may deliver only a part before the timeout.
        _ if !answer.is_empty() => Ok(answer),
        Ok(_) => Err(AskFailure::Broken),
        Err(error) => Err(broken(&error)),
    }
}

/// A refused certificate is reported as invalid data.
fn broken(error: &io::Error) -> AskFailure {
    match error.kind() {
        ErrorKind::InvalidData => AskFailure::Encryption(error.to_string()),
        ErrorKind::TimedOut => AskFailure::Silent,
        _ => AskFailure::Broken,
    }
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

    fn connection_manager(&self) -> Result<(), ManagerUnavailable> {
        handfast_transport_rdma::connection_manager()
    }

    fn ask(
        &self,
        address: SocketAddr,
        encrypted: Option<&str>,
        request: &[u8],
        bytes_max: usize,
    ) -> Result<Vec<u8>, AskFailure> {
        // A port without a listener is reported in any case.
        let stream = connected(address, Some(SEGMENT_BYTES))?;
        let Some(name) = encrypted else { return said_by(stream, request, bytes_max) };
        let encrypt = self.encrypt.as_ref().ok_or(AskFailure::NotBuilt)?;
        said_by(encrypt(name, stream).map_err(|error| broken(&error))?, request, bytes_max)
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

    fn loopback_mbps(&self) -> u32 {
        bulk::loopback_mbps()
    }

    fn lane(&self, address: SocketAddr) -> Option<Result<(), LaneFailure>> {
        self.lanes.as_ref().map(|lane| lane(address))
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn unix_s(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    fn kernel_log(&self) -> Option<String> {
        let path = self.root.join("dev/kmsg");
        // Otherwise reading would wait at the end of the log.
        let mut options = OpenOptions::new();
        let mut file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
        let mut log = Vec::new();
        let mut record = [0; 8192];
        while log.len() < LOG_BYTES_MAX {
            match file.read(&mut record) {
                Ok(0) => break,
                Ok(bytes) => log.extend_from_slice(&record[..bytes]),
                // The record was overwritten meanwhile.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                Err(_) => break,
            }
        }
        Some(String::from_utf8_lossy(&log).into_owned())
    }
}
