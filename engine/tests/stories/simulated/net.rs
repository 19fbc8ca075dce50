//! The simulated network and the randomness of engines in a simulation.

use handfast::runtime::{Entropy, Net};
use handfast_transport_tcp::Bounced;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use turmoil::net::{TcpListener, TcpStream};

/// The simulated network.
#[derive(Clone)]
pub(crate) struct SimNet;

impl Net for SimNet {
    type Stream = Bounced<TcpStream>;
    type Listener = TcpListener;

    async fn bind(&self, address: &str) -> io::Result<TcpListener> {
        TcpListener::bind(address).await
    }

    async fn accept(&self, listener: &TcpListener) -> io::Result<(Self::Stream, SocketAddr)> {
        let (stream, from) = listener.accept().await?;
        Ok((Bounced(stream), from))
    }

    async fn connect(&self, address: &str) -> io::Result<Self::Stream> {
        TcpStream::connect(address).await.map(Bounced)
    }

    fn local_address(&self, listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }
}

/// Randomness that a seed repeats.
pub(crate) struct Seeded(Mutex<ChaCha8Rng>);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(ChaCha8Rng::seed_from_u64(seed)))
    }
}

impl Entropy for Seeded {
    fn next_u64(&self) -> u64 {
        self.0.lock().unwrap().next_u64()
    }
}
