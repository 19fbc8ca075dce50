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

/// A bound port of a node.
pub(crate) struct Port {
    listener: TcpListener,
    story: Arc<Story>,
    node: usize,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.story.unbind(self.node);
    }
}

impl Net for SimNet {
    type Stream = Bounced<Chopped<TcpStream>>;
    type Listener = Port;

    async fn bind(&self, address: &str) -> io::Result<Port> {
        let listener = TcpListener::bind(address).await?;
        self.story.processes[self.node].is_listening.store(true, Ordering::Relaxed);
        Ok(Port { listener, story: self.story.clone(), node: self.node })
    }

    async fn accept(&self, port: &Port) -> io::Result<(Self::Stream, SocketAddr)> {
        let fails = |draw: &Arc<Mutex<Draw>>| draw.lock().unwrap().below(ACCEPTS_FAILED) == 0;
        if self.draw.as_ref().is_some_and(fails) {
            // The peer of another connection has gone; those that wait are not concerned.
            return Err(io::Error::from_raw_os_error(libc::ECONNABORTED));
        }
        let (stream, from) = port.listener.accept().await?;
        Ok((self.stream(stream), from))
    }

    async fn connect(&self, address: &str) -> io::Result<Self::Stream> {
        TcpStream::connect(address).await.map(|stream| self.stream(stream))
    }

    fn local_address(&self, port: &Port) -> io::Result<SocketAddr> {
        port.listener.local_addr()
    }
}
