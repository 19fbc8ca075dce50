//! The metadata store of a simulation: an HTTP server or a Redis on one of its hosts, and the connections
//! of its clients.

use crate::ledger::Story;
use crate::plan::StoreKind;
use bytes::Bytes;
use handfast::metadata::{HttpStore, Store};
use handfast_metadata::{RedisOptions, RedisStore};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::io::{BufStream, ReadBuf};
use tower_service::Service;
use turmoil::net::{TcpListener, TcpStream};

pub(crate) const STORE: &str = "store";
const STORE_PORT: u16 = 8080;
/// Timeout of an operation of a Redis, as that of HTTP.
const REDIS_TIMEOUT: Duration = Duration::from_secs(3);

/// The client of a node.
pub(crate) fn client(kind: StoreKind) -> Arc<dyn Store> {
    match kind {
        StoreKind::Http => {
            let at = format!("http://{STORE}:{STORE_PORT}/metadata");
            Arc::new(HttpStore::with_connector(&at, Connector).unwrap())
        }
        StoreKind::Redis => {
            let options = RedisOptions { timeout: REDIS_TIMEOUT, ..RedisOptions::default() };
            let dial = |host: String, port| async move { TcpStream::connect((host, port)).await };
            Arc::new(RedisStore::with_connector(STORE, STORE_PORT, options, dial))
        }
    }
}

/// Serves an empty table.
pub(crate) async fn serve(story: Arc<Story>) -> Result<(), Box<dyn std::error::Error>> {
    story.entries.lock().unwrap().clear();
    let listener = TcpListener::bind(("0.0.0.0", STORE_PORT)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let story = story.clone();
        if story.plan.store == Some(StoreKind::Redis) {
            tokio::spawn(serve_redis(story, stream));
            continue;
        }
        let service = service_fn(move |request| answer(story.clone(), request));
        let server = hyper::server::conn::http1::Builder::new();
        tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
    }
}

async fn answer(
    story: Arc<Story>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let key = request.uri().query().unwrap_or_default().to_owned();
    let method = request.method().clone();
    let body =
        request.into_body().collect().await.map_or_else(|_| Bytes::new(), |it| it.to_bytes());
    let (status, body) = match method {
        Method::PUT => {
            story.publish(&key, body);
            (StatusCode::OK, Bytes::new())
        }
        Method::DELETE => {
            story.entries.lock().unwrap().remove(&key);
            (StatusCode::OK, Bytes::new())
        }
        _ => match story.entries.lock().unwrap().get(&key) {
            Some(value) => (StatusCode::OK, value.clone()),
            None => (StatusCode::NOT_FOUND, Bytes::new()),
        },
    };
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    Ok(answer)
}

/// Serves the requests of a connection until it ends.
async fn serve_redis(story: Arc<Story>, stream: TcpStream) {
    let mut stream = BufStream::new(stream);
    while let Ok(words) = redis_request(&mut stream).await {
        let text = |place: usize| words.get(place).map(|it| String::from_utf8_lossy(it));
        let (name, key) = (text(0).unwrap_or_default(), text(1).unwrap_or_default());
        let answer = match &*name {
            "SET" => {
                let value = words.get(2).cloned().unwrap_or_default();
                story.publish(&key, Bytes::from(value));
                b"+OK\r\n".to_vec()
            }
            "GET" => match story.entries.lock().unwrap().get(&*key) {
                Some(value) => {
                    let mut answer = format!("${}\r\n", value.len()).into_bytes();
                    answer.extend_from_slice(value);
                    answer.extend_from_slice(b"\r\n");
                    answer
                }
                None => b"$-1\r\n".to_vec(),
            },
            "DEL" => {
                let removed = story.entries.lock().unwrap().remove(&*key);
                format!(":{}\r\n", u8::from(removed.is_some())).into_bytes()
            }
            _ => b"-ERR unknown command\r\n".to_vec(),
        };
        if stream.write_all(&answer).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

/// Reads a request: the number of its words, and each behind its length.
async fn redis_request(stream: &mut BufStream<TcpStream>) -> io::Result<Vec<Vec<u8>>> {
    let count = redis_number(stream, '*').await?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; redis_number(stream, '$').await?];
        stream.read_exact(&mut word).await?;
        stream.read_exact(&mut [0; 2]).await?;
        words.push(word);
    }
    Ok(words)
}

async fn redis_number(stream: &mut BufStream<TcpStream>, kind: char) -> io::Result<usize> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let number = line.trim_end().strip_prefix(kind).and_then(|number| number.parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
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
