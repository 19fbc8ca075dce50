//! The simulated network of engines in a simulation.

use crate::chopped::Chopped;
use crate::ledger::Story;
use crate::plan::Draw;
use handfast::runtime::Net;
use handfast_transport_tcp::Bounced;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use turmoil::net::{TcpListener, TcpStream};

/// One of so many calls of accept fails on a rough network.
const ACCEPTS_FAILED: u64 = 16;

/// The simulated network of a node.
#[derive(Clone)]
pub(crate) struct SimNet {
    story: Arc<Story>,
    node: usize,
    /// Of streams, and of accepts that fail; absent on a smooth network.
    draw: Option<Arc<Mutex<Draw>>>,
}

impl SimNet {
    pub(crate) fn new(story: &Arc<Story>, node: usize, seed: u64) -> Self {
        let draw = story.plan.is_rough.then(|| Arc::new(Mutex::new(Draw::new(seed))));
        Self { story: story.clone(), node, draw }
    }

    fn stream(&self, stream: TcpStream) -> Bounced<Chopped<TcpStream>> {
        let draw = self.draw.as_ref().map(|draw| Draw::new(draw.lock().unwrap().below(u64::MAX)));
        Bounced(Chopped::new(stream, draw))
    }
}

impl Net for SimNet {
    type Stream = Bounced<Chopped<TcpStream>>;
    type Listener = TcpListener;

    async fn bind(&self, address: &str) -> io::Result<TcpListener> {
        let listener = TcpListener::bind(address).await?;
        self.story.processes[self.node].is_listening.store(true, Ordering::Relaxed);
        Ok(listener)
    }

    async fn accept(&self, listener: &TcpListener) -> io::Result<(Self::Stream, SocketAddr)> {
        let fails = |draw: &Arc<Mutex<Draw>>| draw.lock().unwrap().below(ACCEPTS_FAILED) == 0;
        if self.draw.as_ref().is_some_and(fails) {
            // The peer of another connection has gone; those that wait are not concerned.
            return Err(io::Error::from_raw_os_error(libc::ECONNABORTED));
        }
        let (stream, from) = listener.accept().await?;
        Ok((self.stream(stream), from))
    }

    async fn connect(&self, address: &str) -> io::Result<Self::Stream> {
        TcpStream::connect(address).await.map(|stream| self.stream(stream))
    }

    fn local_address(&self, listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }
}
