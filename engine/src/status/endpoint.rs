//! HTTP server of `/metrics` and `/state`.

use super::prometheus;
use super::view::View;
use crate::control::accept::{Listening, Places, Stop, accept, bind_at};
use crate::error::Error;
use crate::observe::counters::Counts;
use bytes::Bytes;
use handfast_transport_tcp::Net;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tracing::debug;

/// Maximum connections; past it the oldest is closed.
const CONNECTIONS_MAX: usize = 16;
/// Timeout of a connection, up to the end of its only answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest header of a request, in bytes.
const HEADER_BYTES_MAX: usize = 8 << 10;

/// The port for metrics, bound and not served yet.
pub(crate) struct MetricsListener<N: Net> {
    listener: N::Listener,
    bound: SocketAddr,
}

impl<N: Net> MetricsListener<N> {
    /// Binds the port, if one is configured.
    pub(crate) async fn bind(address: Option<&str>, net: &N) -> Result<Option<Self>, Error> {
        let Some(at) = address else { return Ok(None) };
        let (listener, bound) = bind_at(net, at).await?;
        Ok(Some(Self { listener, bound }))
    }

    /// Returns the bound address.
    pub(crate) fn bound(&self) -> SocketAddr {
        self.bound
    }

    /// Starts the task that serves the port.
    pub(crate) fn serve(
        self,
        net: N,
        view: Arc<View>,
        counts: Arc<Counts>,
        accept_pause: Duration,
    ) -> Listening {
        Listening::start(|stop| serve(net, self.listener, view, counts, accept_pause, stop))
    }
}

/// Serves connections until stopped.
async fn serve<N: Net>(
    net: N,
    listener: N::Listener,
    view: Arc<View>,
    counts: Arc<Counts>,
    accept_pause: Duration,
    stop: Stop,
) {
    let places = Places {
        connections_max: CONNECTIONS_MAX,
        accept_pause,
        counts,
        shed: |_| {},
        refused: |_| {},
    };
    accept(net, listener, places, stop, |stream, from, _| {
        let view = view.clone();
        async move {
            let service = service_fn(move |request| {
                let view = view.clone();
                async move { Ok::<_, Infallible>(answer(&view, &request).await) }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(CONNECTION_TIMEOUT);
            server.max_buf_size(HEADER_BYTES_MAX).keep_alive(false).half_close(true);
            let serving = server.serve_connection(TokioIo::new(stream), service);
            match timeout(CONNECTION_TIMEOUT, serving).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%from, %error, "a metrics connection failed"),
                Err(_) => debug!(%from, "a metrics connection timed out"),
            }
        }
    })
    .await;
}

async fn answer(view: &View, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET {
        let mut answer = say(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET is served\n");
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return answer;
    }
    let text = match request.uri().path() {
        "/metrics" => prometheus::text(&view.state().await).map_err(|error| error.to_string()),
        "/state" => serde_json::to_string(&view.state().await).map_err(|error| error.to_string()),
        _ => {
            let text = "try /metrics for Prometheus or /state for JSON\n";
            return say(StatusCode::NOT_FOUND, "text/plain", text);
        }
    };
    let kind = match request.uri().path() {
        "/metrics" => prometheus::CONTENT_TYPE,
        _ => "application/json",
    };
    match text {
        Ok(text) => say(StatusCode::OK, kind, &text),
        Err(text) => say(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", &text),
    }
}

fn say(status: StatusCode, kind: &'static str, text: &str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::copy_from_slice(text.as_bytes())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
