//! Connections that the caller of a store opens.

use super::PING_INTERVAL;
use etcd_client::{Channel, Client, ConnectOptions, Error};
use hyper::Uri;
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::Endpoint;
use tower_service::Service;

/// The stream of a connection.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

type Dialled = Pin<Box<dyn Future<Output = io::Result<TokioIo<Box<dyn Duplex>>>> + Send>>;

/// Opens connections to a host and port.
#[derive(Clone)]
pub(super) struct Dial(Arc<dyn Fn(String, u16) -> Dialled + Send + Sync>);

impl Dial {
    pub(super) fn new<C, F, S>(connect: C) -> Self
    where
        C: Fn(String, u16) -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Self(Arc::new(move |host, port| {
            let connecting = connect(host, port);
            Box::pin(
                async move { Ok(TokioIo::new(Box::new(connecting.await?) as Box<dyn Duplex>)) },
            )
        }))
    }

    /// Returns a client of one endpoint, with the timeouts of a client that connects itself. It dials at
    /// its first call, and again after a connection ends.
    pub(super) async fn connect(
        &self,
        endpoint: &str,
        options: ConnectOptions,
        wait: Duration,
    ) -> Result<Client, Error> {
        let endpoint = Endpoint::from_shared(format!("http://{endpoint}"))?
            .connect_timeout(wait)
            .timeout(wait)
            .keep_alive_while_idle(true)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(wait);
        let channel = Channel::Tonic(endpoint.connect_with_connector_lazy(self.clone()));
        Client::from_channel(channel, Some(options)).await
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Box<dyn Duplex>>;
    type Error = io::Error;
    type Future = Dialled;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Dialled {
        let host = to.host().unwrap_or_default().to_owned();
        (self.0)(host, to.port_u16().unwrap_or(ETCD_PORT))
    }
}

/// Port of an etcd by default.
const ETCD_PORT: u16 = 2379;
