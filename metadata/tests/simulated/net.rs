//! The simulated network of the engines.

use handfast::runtime::Net;
use handfast_transport_tcp::Bounced;
use std::io;
use std::net::SocketAddr;
use turmoil::net::{TcpListener, TcpStream};

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
