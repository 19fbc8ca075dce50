//! The metadata store of a simulation: an HTTP server on one of its hosts, and the connections of its
//! clients.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tower_service::Service;
use turmoil::net::{TcpListener, TcpStream};

pub(crate) const STORE: &str = "store";
pub(crate) const STORE_PORT: u16 = 8080;

type Table = Arc<Mutex<BTreeMap<String, Bytes>>>;

/// Serves an empty table.
pub(crate) async fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let table = Table::default();
    let listener = TcpListener::bind(("0.0.0.0", STORE_PORT)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let table = table.clone();
        let service = service_fn(move |request| answer(table.clone(), request));
        let server = hyper::server::conn::http1::Builder::new();
        tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
    }
}

async fn answer(
    table: Table,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let key = request.uri().query().unwrap_or_default().to_owned();
    let method = request.method().clone();
    let body =
        request.into_body().collect().await.map_or_else(|_| Bytes::new(), |it| it.to_bytes());
    let mut table = table.lock().unwrap();
    let (status, body) = match method {
        Method::PUT => {
            table.insert(key, body);
            (StatusCode::OK, Bytes::new())
        }
        Method::DELETE => {
            table.remove(&key);
            (StatusCode::OK, Bytes::new())
        }
        _ => match table.get(&key) {
            Some(value) => (StatusCode::OK, value.clone()),
            None => (StatusCode::NOT_FOUND, Bytes::new()),
        },
    };
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    Ok(answer)
}

/// Opens the connections of the shipping HTTP client in the simulated network.
#[derive(Clone)]
pub(crate) struct Connector;

impl Service<Uri> for Connector {
    type Response = TokioIo<Dialled>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        Box::pin(async move {
            let host = to.host().unwrap_or_default().to_owned();
            let port = to.port_u16().unwrap_or(STORE_PORT);
            let stream = TcpStream::connect((host, port)).await?;
            Ok(TokioIo::new(Dialled(stream)))
        })
    }
}

/// A connection to the store.
pub(crate) struct Dialled(TcpStream);

impl Connection for Dialled {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Dialled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Dialled {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
