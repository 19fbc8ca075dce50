//! HTTP server of `/metrics` and `/state`.

use super::prometheus;
use super::view::View;
use crate::control::accept::{Places, Stop, accept};
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
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tracing::debug;

/// Connections at once; past it the oldest is closed.
const CONNECTIONS_MAX: usize = 16;
/// Limit from a connection to the end of its only answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest header of a request, in bytes.
const HEADER_BYTES_MAX: usize = 8 << 10;

/// The served documents and the counters of requests.
pub(crate) struct MetricsServer {
    pub(crate) view: Arc<View>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) accept_pause: Duration,
}

/// Serves until stopped.
pub(crate) async fn serve<N: Net>(
    net: N,
    listener: N::Listener,
    server: MetricsServer,
    stop: Stop,
) {
    let places = Places {
        connections_max: CONNECTIONS_MAX,
        accept_pause: server.accept_pause,
        counts: server.counts,
        shed: |counts| &counts.meters.shed,
        refused: |counts| &counts.meters.refused,
    };
    let view = server.view;
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
                Ok(Err(error)) => debug!(%from, %error, "a connection for metrics ended"),
                Err(_) => debug!(%from, "a connection for metrics was too slow"),
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
            let text = "there are /metrics for Prometheus and /state in JSON\n";
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
