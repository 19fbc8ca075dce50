//! Sockets of the system, driven by tokio.

use crate::net::{Direct, Net, Piece, ResolveError, Stream, StreamReader, StreamWriter};
use crate::socket;
use handfast_core::address::{PORTS_OF_ERDMA, is_given_back};
use handfast_transport::{Span, SpinBudget};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Idle time of a connection before it is probed; then at [`PROBE_INTERVAL`], and given up after
/// [`PROBES_MAX`] unanswered probes: half a minute for a peer that lost its power. Without probes
/// its idle lane would remain for ever.
const PROBE_AFTER: Duration = Duration::from_secs(15);
/// Interval between probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Unanswered probes before a connection is given up.
const PROBES_MAX: u32 = 3;

/// The system's own network. Sockets are set to send at once (`TCP_NODELAY`) and to probe an idle
/// peer; the sizes of their buffers are left to the kernel, whose automatic tuning measured better than fixed ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioNet;

impl Net for TokioNet {
    type Stream = TcpStream;
    type Listener = TcpListener;

    fn is_of_host(&self) -> bool {
        true
    }

    /// A port that the kernel chooses is none of [`PORTS_OF_ERDMA`].
    async fn bind(&self, address: &str) -> io::Result<TcpListener> {
        let mut reserved = Vec::new();
        // Each of them is held, so that the kernel gives another one.
        while reserved.len() <= PORTS_OF_ERDMA.len() {
            let listener = TcpListener::bind(address).await?;
            if !is_given_back(address, listener.local_addr()?.port()) {
                return Ok(listener);
            }
            reserved.push(listener);
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    async fn accept(&self, listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, from) = listener.accept().await?;
        set_up(&stream)?;
        Ok((stream, from))
    }

    async fn connect(&self, address: &str) -> io::Result<TcpStream> {
        let candidates = tokio::net::lookup_host(address).await.map_err(ResolveError::wrap)?;
        let mut last = ResolveError::wrap(io::ErrorKind::NotFound.into());
        for candidate in candidates {
            match TcpStream::connect(candidate).await {
                Ok(stream) => {
                    set_up(&stream)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn local_address(&self, listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }
}

fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let probes = TcpKeepalive::new()
        .with_time(PROBE_AFTER)
        .with_interval(PROBE_INTERVAL)
        .with_retries(PROBES_MAX);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

/// Whether the last packet of a connection was processed on the processor of this thread
/// (`SO_INCOMING_CPU`, socket(7)). Loopback processes a packet where its sender runs.
fn shares_processor(stream: &TcpStream) -> bool {
    let processor = SockRef::from(stream).cpu_affinity();
    processor.is_ok_and(|processor| processor == rustix::thread::sched_getcpu())
}

impl Stream for TcpStream {
    type Reader = TcpReader;
    type Writer = TcpWriter;

    fn stays_on_machine(&self) -> bool {
        let ends = (self.local_addr(), self.peer_addr());
        matches!(ends, (Ok(local), Ok(peer)) if local.ip() == peer.ip())
    }

    fn read_now(&self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        Some(socket::fill_now(self, None, buffer))
    }

    fn shares_processor(&self) -> bool {
        shares_processor(self)
    }

    fn split(self) -> (TcpReader, TcpWriter) {
        let socket = Arc::new(self);
        let reader = TcpReader { socket: Arc::clone(&socket), budget: SpinBudget::default() };
        (reader, TcpWriter(socket))
    }
}

/// Fewer bytes do not wake the runtime while a thread polls. The number fits into the smallest
/// buffer that the kernel gives a socket (half of `tcp_rmem`'s default), so that the setting does
/// not enlarge the buffer.
const FEW_BYTES: i32 = 32 << 10;
/// Maximum polls of a reader, one runtime turn of one to two microseconds each, before it
/// sleeps. Waking a processor that went idle costs more than that: with both ends on processors of
/// their own, 1 MiB at a time went from 0.74 of the raw stream to more than all of it.
const SPINS_MAX: u32 = 64;
/// Maximum consecutive sleeps without polling after repeated empty polls.
const REST_MAX: u32 = 64;

/// The receiving half of a socket: one `readv` into place.
#[derive(Debug)]
pub struct TcpReader {
    socket: Arc<TcpStream>,
    budget: SpinBudget,
}

impl TcpReader {
    /// Polls for bytes for a few turns of the runtime; other tasks run meanwhile. Soon stops if
    /// polling does not pay, because the other end is slow or shares this processor.
    async fn spin(&mut self) -> bool {
        if !self.budget.is_due() {
            return false;
        }
        for _ in 0..SPINS_MAX {
            // The thread keeps its processor: on a busy machine a yield costs a time slice, and a
            // write of 20 microseconds took 20 milliseconds.
            tokio::task::yield_now().await;
            let socket = &self.socket;
            let look = |context: &mut Context<'_>| Poll::Ready(socket.poll_read_ready(context));
            if std::future::poll_fn(look).await.is_ready() {
                self.budget.on_found();
                return true;
            }
        }
        self.budget.on_empty(REST_MAX);
        false
    }
}

impl StreamReader for TcpReader {
    async fn readable(&mut self) -> io::Result<()> {
        if self.spin().await {
            return Ok(());
        }
        self.socket.readable().await
    }

    async fn readable_asleep(&mut self) -> io::Result<()> {
        self.socket.readable().await
    }

    fn try_fill(&mut self, target: Option<&Span>, spare: &mut [u8]) -> io::Result<usize> {
        socket::try_fill(&self.socket, target, spare)
    }
}

/// The sending half of a socket: one `sendmsg` from where the bytes are.
#[derive(Debug)]
pub struct TcpWriter(Arc<TcpStream>);

impl Direct for TcpStream {
    fn fill_now(&self, target: Option<&Span>, spare: &mut [u8]) -> io::Result<usize> {
        socket::fill_now(self, target, spare)
    }

    fn send_now(&self, pieces: &[Piece<'_>]) -> io::Result<usize> {
        socket::try_send(self, pieces)
    }

    fn shares_processor(&self) -> bool {
        shares_processor(self)
    }

    fn set_woken(&self, woken: bool) {
        socket::set_low_water(self, if woken { 1 } else { FEW_BYTES });
    }
}

impl StreamWriter for TcpWriter {
    fn direct(&self) -> Option<Arc<dyn Direct>> {
        Some(self.0.clone())
    }

    async fn writable(&mut self) -> io::Result<()> {
        self.0.writable().await
    }

    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn try_send(&mut self, pieces: &[Piece<'_>]) -> io::Result<usize> {
        socket::try_send(&self.0, pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::runtime::Builder;

    /// Binds this thread to a processor.
    fn pin(processor: usize) {
        let mut set = CpuSet::new();
        set.set(processor);
        sched_setaffinity(None, &set).unwrap();
        assert_eq!(sched_getcpu(), processor);
    }

    /// A connection shares the processor of this thread if its peer sent its last bytes there, and not
    /// after bytes from another one.
    async fn shares_the_processor_of_its_sender(usable: &[usize]) {
        let listener = TokioNet.bind("127.0.0.1:0").await.unwrap();
        let at = TokioNet.local_address(&listener).unwrap().to_string();
        let mut near = TokioNet.connect(&at).await.unwrap();
        let (mut far, _) = TokioNet.accept(&listener).await.unwrap();
        for sender in usable {
            pin(*sender);
            far.write_all(&[7]).await.unwrap();
            near.read_exact(&mut [0]).await.unwrap();
            for reader in usable {
                pin(*reader);
                assert_eq!(shares_processor(&near), sender == reader);
            }
        }
    }

    #[test]
    fn processor_of_the_sender_is_known() {
        let usable = sched_getaffinity(None).unwrap();
        let usable: Vec<_> = (0..CpuSet::MAX_CPU).filter(|it| usable.is_set(*it)).take(2).collect();
        // A thread of its own, which alone is bound to processors.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(shares_the_processor_of_its_sender(&usable));
            });
        });
    }
}
