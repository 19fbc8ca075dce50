//! The baselines, over one plain TCP socket between two processes: a one-way stream of blocks, and
//! a ping-pong of messages.

use super::load::Moved;
use super::processor::{Meter, PAUSE, Paused};
use super::server::Process;
use crate::failure::{Failure, Outcome};
use crate::output;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Maximum size of a message, block or buffer at either end.
const BLOCK_BYTES_MAX: u64 = 1 << 30;
/// Maximum memory that a stream covers: several times the size of caches, so that more of it
/// changes nothing.
const WALK_BYTES_MAX: u64 = 256 << 20;
/// Maximum time of busy polling before an adaptive wait sleeps: about as long as a lane's reader
/// polls (64 turns of a runtime).
const LOOK_MAX: Duration = Duration::from_micros(100);
/// Round trips before the measurement.
const WARM_UP_TRIPS: u32 = 16;
/// Bytes of the message that states the purpose of a connection.
const ORDER_BYTES: usize = 24;

/// The way of waiting for the next message at both ends of a ping-pong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Sleep in the kernel.
    Blocking,
    /// Poll for a while, then sleep.
    Adaptive,
}

/// The purpose of a connection, encoded alike on both sides.
#[derive(Clone, Copy)]
enum Order {
    /// A byte confirms that the memory is allocated. Then blocks of `block` bytes follow until the
    /// end, each into the next part of `walk` bytes of memory; the answer is the number of bytes.
    Stream { block: u64, walk: u64 },
    /// Each message of `out` bytes is answered with `back` bytes.
    PingPong { waiting: Waiting, out: u64, back: u64 },
}

impl Order {
    fn encode(self) -> Vec<u8> {
        let words = match self {
            Self::Stream { block, walk } => [0, block, walk],
            Self::PingPong { waiting: Waiting::Blocking, out, back } => [1, out, back],
            Self::PingPong { waiting: Waiting::Adaptive, out, back } => [2, out, back],
        };
        words.map(u64::to_le_bytes).concat()
    }

    fn decode(bytes: [u8; ORDER_BYTES]) -> Result<Self> {
        let [kind, out, back] = std::array::from_fn(|at| {
            let word = &bytes[8 * at..8 * (at + 1)];
            word.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
        });
        let bounded = |bytes: u64| bytes.clamp(1, BLOCK_BYTES_MAX);
        let (out, back) = (bounded(out), bounded(back));
        match kind {
            0 => Ok(Self::Stream { block: out, walk: back.max(out) }),
            1 => Ok(Self::PingPong { waiting: Waiting::Blocking, out, back }),
            2 => Ok(Self::PingPong { waiting: Waiting::Adaptive, out, back }),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }
}

/// A process that receives the traffic of the baselines.
pub(super) struct Sink(Process);

impl Sink {
    pub(super) fn start(core: Option<usize>) -> std::result::Result<Self, Failure> {
        Process::start(&["raw-sink"], core).map(Self)
    }

    /// Measures a stream of `block`-byte writes, received and acknowledged. Both ends cycle through
    /// `walk` bytes of memory, up to [`WALK_BYTES_MAX`]: a single block would measure their caches.
    pub(super) fn stream(&self, block: u64, walk: u64, duration: Duration) -> Result<Moved> {
        let walk = walk.min(WALK_BYTES_MAX).max(block);
        let mut stream = self.connect(Order::Stream { block, walk })?;
        let bytes = buffer(walk)?;
        stream.read_exact(&mut [0])?;
        let meter = Meter::new(Some(self.0.id()));
        let blocks = bytes.chunks_exact(usize::try_from(block).map_err(Error::other)?).cycle();
        let processor = meter.read();
        let started = Instant::now();
        for block in blocks {
            stream.write_all(block)?;
            if started.elapsed() >= duration {
                break;
            }
        }
        stream.shutdown(Shutdown::Write)?;
        let mut received = [0; 8];
        stream.read_exact(&mut received)?;
        let received = u64::from_le_bytes(received) as f64;
        let bytes_per_s = received / started.elapsed().as_secs_f64();
        let spent = meter.since(processor);
        let processor_s_per_byte = spent.map(|spent| spent.as_secs_f64() / received);
        Ok(Moved { bytes_per_s, processor_s_per_byte })
    }

    /// Measures round trips in sequence, with `out` bytes in requests and `back` bytes in answers.
    pub(super) fn ping_pong(
        &self,
        waiting: Waiting,
        (out, back): (u64, u64),
        duration: Duration,
    ) -> Result<Vec<Duration>> {
        let mut stream = self.connect(Order::PingPong { waiting, out, back })?;
        let (message, mut answer) = (buffer(out)?, buffer(back)?);
        let mut end = End::new(&stream, waiting)?;
        for _ in 0..WARM_UP_TRIPS {
            end.send(&mut stream, &message)?;
            end.receive(&mut stream, &mut answer)?;
        }
        let mut trips = Vec::new();
        let started = Instant::now();
        let mut began = started;
        while began - started < duration {
            end.send(&mut stream, &message)?;
            end.receive(&mut stream, &mut answer)?;
            let ended = Instant::now();
            trips.push(ended - began);
            began = ended;
        }
        Ok(trips)
    }

    /// Measures round trips that sleep, with a pause before each.
    pub(super) fn ping_pong_with_pauses(
        &self,
        (out, back): (u64, u64),
        duration: Duration,
    ) -> Result<Paused> {
        let waiting = Waiting::Blocking;
        let mut stream = self.connect(Order::PingPong { waiting, out, back })?;
        let (message, mut answer) = (buffer(out)?, buffer(back)?);
        let mut end = End::new(&stream, waiting)?;
        let mut times = Vec::new();
        for _ in 0..WARM_UP_TRIPS {
            std::thread::sleep(PAUSE);
            end.send(&mut stream, &message)?;
            end.receive(&mut stream, &mut answer)?;
        }
        let meter = Meter::new(Some(self.0.id()));
        let processor = meter.read();
        let started = Instant::now();
        while times.is_empty() || started.elapsed() < duration {
            std::thread::sleep(PAUSE);
            let began = Instant::now();
            end.send(&mut stream, &message)?;
            end.receive(&mut stream, &mut answer)?;
            times.push(began.elapsed());
        }
        Ok(Paused { times, processor: meter.since(processor) })
    }

    /// Measures the time to connect and to get an answer to `out` bytes.
    pub(super) fn connect_and_ask(&self, out: u64) -> Result<Duration> {
        let (message, mut answer) = (buffer(out)?, [0; 8]);
        let started = Instant::now();
        let order = Order::PingPong { waiting: Waiting::Blocking, out, back: 8 };
        let mut stream = self.connect(order)?;
        stream.write_all(&message)?;
        stream.read_exact(&mut answer)?;
        Ok(started.elapsed())
    }

    fn connect(&self, order: Order) -> Result<TcpStream> {
        let address = self.0.lines.first().ok_or(ErrorKind::NotConnected)?;
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.write_all(&order.encode())?;
        Ok(stream)
    }
}

/// One end of a ping-pong.
struct End {
    waiting: Waiting,
}

impl End {
    fn new(stream: &TcpStream, waiting: Waiting) -> Result<Self> {
        stream.set_nonblocking(waiting == Waiting::Adaptive)?;
        Ok(Self { waiting })
    }

    fn send(&mut self, stream: &mut TcpStream, mut message: &[u8]) -> Result<()> {
        while !message.is_empty() {
            match stream.write(message) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => message = &message[sent..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives a whole message; the end of the stream is an error.
    fn receive(&mut self, stream: &mut TcpStream, message: &mut [u8]) -> Result<()> {
        if self.waiting == Waiting::Blocking {
            return stream.read_exact(message);
        }
        let mut filled = 0;
        let mut looking_since = Instant::now();
        while filled < message.len() {
            match stream.read(&mut message[filled..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    filled += count;
                    looking_since = Instant::now();
                }
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                Err(_) if looking_since.elapsed() < LOOK_MAX => std::hint::spin_loop(),
                Err(_) => {
                    stream.set_nonblocking(false)?;
                    stream.read_exact(&mut message[filled..])?;
                    stream.set_nonblocking(true)?;
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

fn buffer(bytes: u64) -> Result<Vec<u8>> {
    Ok(vec![7; usize::try_from(bytes).map_err(Error::other)?])
}

/// Accepts connections in sequence until standard input ends.
pub(crate) fn sink(cores: &[usize]) -> Outcome {
    super::pin(cores)?;
    let failed = Failure::system("taking raw streams");
    let listener = TcpListener::bind("127.0.0.1:0").map_err(&failed)?;
    let address = listener.local_addr().map_err(&failed)?;
    output::say(format_args!("{address}\nready"))?;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // The other process reports a broken stream; the next one is independent.
            let _ = stream.and_then(take);
        }
    });
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).map_err(failed)?;
    Ok(())
}

fn take(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut order = [0; ORDER_BYTES];
    stream.read_exact(&mut order)?;
    match Order::decode(order)? {
        Order::Stream { block, walk } => take_stream(stream, block, walk),
        Order::PingPong { waiting, out, back } => {
            let (mut message, answer) = (buffer(out)?, buffer(back)?);
            let mut end = End::new(&stream, waiting)?;
            loop {
                end.receive(&mut stream, &mut message)?;
                end.send(&mut stream, &answer)?;
            }
        }
    }
}

fn take_stream(mut stream: TcpStream, block: u64, walk: u64) -> Result<()> {
    let mut buffer = buffer(walk)?;
    let block = usize::try_from(block).map_err(Error::other)?;
    stream.write_all(&[0])?;
    let (mut received, mut at) = (0u64, 0);
    loop {
        let room = (buffer.len() - at).min(block);
        match stream.read(&mut buffer[at..at + room])? {
            0 => break,
            bytes => {
                received += bytes as u64;
                at = (at + bytes) % buffer.len();
            }
        }
    }
    stream.write_all(&received.to_le_bytes())
}
