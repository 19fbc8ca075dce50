//! The yardstick's yardstick: the same one-way stream, measured by iperf3.

use crate::failure::Failure;
use std::io;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// iperf3 refuses longer blocks (its `MAX_BLOCKSIZE`).
const BLOCK_BYTES_MAX: u64 = 1 << 20;
/// How long a server of iperf3 gets to listen, and how often it is asked.
const START_TIMEOUT: Duration = Duration::from_secs(3);
const START_POLL: Duration = Duration::from_millis(20);

/// Where both ends of a stream run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Placement {
    pub(super) sender: Option<usize>,
    pub(super) receiver: Option<usize>,
}

/// Refuses what iperf3 cannot measure, and a machine that does not have it.
pub(super) fn check(largest_block: u64) -> Result<(), Failure> {
    if largest_block > BLOCK_BYTES_MAX {
        let text = format!("iperf3 takes blocks of at most {BLOCK_BYTES_MAX} bytes");
        return Err(Failure::Usage(text));
    }
    let found = Command::new("iperf3").arg("--version").stdout(Stdio::null()).status();
    found.map(drop).map_err(|error| Failure::System { what: "starting iperf3", error })
}

/// Bytes per second of a stream of `block`-byte writes, as iperf3 counts them at the receiver. It
/// measures whole seconds, so `duration` is rounded up.
pub(super) fn measure(
    block: u64,
    duration: Duration,
    placement: Placement,
) -> Result<f64, Failure> {
    stream(block, duration, placement)
        .map_err(|error| Failure::System { what: "measuring with iperf3", error })
}

fn stream(block: u64, duration: Duration, placement: Placement) -> io::Result<f64> {
    let server = Server::start(placement.receiver)?;
    let mut client = Command::new("iperf3");
    client.args(["--json", "--no-delay", "--client", "127.0.0.1"]);
    client.args(["--port", &server.port.to_string(), "--length", &block.to_string()]);
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    client.args(["--time", &seconds.to_string()]);
    if let Some(core) = placement.sender {
        client.args(["--affinity", &core.to_string()]);
    }
    let output = client.stdin(Stdio::null()).output()?;
    let result: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let bits = result["end"]["sum_received"]["bits_per_second"].as_f64();
    bits.map(|bits| bits / 8.0).ok_or_else(|| {
        io::Error::other(result["error"].as_str().unwrap_or("it reported no rate").to_owned())
    })
}

/// A server of iperf3 for one stream.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(core: Option<usize>) -> io::Result<Self> {
        // Free at this moment; should somebody else take it, the server ends and says so.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new("iperf3");
        command.args(["--server", "--one-off", "--bind", "127.0.0.1"]);
        command.args(["--port", &port.to_string()]);
        if let Some(core) = core {
            command.args(["--affinity", &core.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Self { child: command.spawn()?, port };
        let started = Instant::now();
        while TcpListener::bind(("127.0.0.1", port)).is_ok() {
            if let Some(status) = server.child.try_wait()? {
                return Err(io::Error::other(format!("its server ended: {status}")));
            }
            if started.elapsed() > START_TIMEOUT {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(START_POLL);
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        super::server::stop(&mut self.child);
    }
}
