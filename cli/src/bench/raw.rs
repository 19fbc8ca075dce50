//! The yardstick: a one-way stream over one TCP socket between two processes, in blocks.

use super::server::{start, stop};
use crate::Outcome;
use crate::failure::Failure;
use crate::output;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, ChildStdin};
use std::time::{Duration, Instant};

/// Largest block that a sink reads into; larger ones are a mistake of the caller.
const BLOCK_BYTES_MAX: u64 = 1 << 30;

/// A process that takes streams.
pub(super) struct Sink {
    child: Child,
    _input: Option<ChildStdin>,
    address: String,
}

impl Sink {
    pub(super) fn start(core: Option<usize>) -> Result<Self, Failure> {
        let (child, input, lines) = start(&["raw-sink"], core)?;
        let address = lines.first().cloned().unwrap_or_default();
        Ok(Self { child, _input: input, address })
    }

    /// Bytes per second of a stream of `block`-byte writes, received and acknowledged.
    pub(super) fn measure(&self, block: u64, duration: Duration) -> Result<f64, Failure> {
        self.stream(block, duration)
            .map_err(|error| Failure::System { what: "measuring the raw stream", error })
    }

    fn stream(&self, block: u64, duration: Duration) -> std::io::Result<f64> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        stream.write_all(&block.to_le_bytes())?;
        let bytes = vec![7; usize::try_from(block).map_err(std::io::Error::other)?];
        let started = Instant::now();
        while started.elapsed() < duration {
            stream.write_all(&bytes)?;
        }
        stream.shutdown(Shutdown::Write)?;
        let mut received = [0; 8];
        stream.read_exact(&mut received)?;
        Ok(u64::from_le_bytes(received) as f64 / started.elapsed().as_secs_f64())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

/// Takes streams, one after the other, until standard input ends.
pub(crate) fn sink(cores: &[usize]) -> Outcome {
    super::pin(cores)?;
    let failed = |error| Failure::System { what: "taking raw streams", error };
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    output::say(format_args!("{address}\nready"))?;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // A stream that broke tells its own process; the next one starts afresh.
            let _ = stream.and_then(take);
        }
    });
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).map_err(failed)?;
    Ok(())
}

fn take(mut stream: TcpStream) -> std::io::Result<()> {
    let mut block = [0; 8];
    stream.read_exact(&mut block)?;
    let block = u64::from_le_bytes(block).clamp(1, BLOCK_BYTES_MAX) as usize;
    let mut buffer = vec![0; block];
    let mut received = 0u64;
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            bytes => received += bytes as u64,
        }
    }
    stream.write_all(&received.to_le_bytes())
}
