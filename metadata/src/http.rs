//! A store behind an HTTP metadata server.

use crate::error::{StoreCause, StoreError, StoreOperation, broken, check, words};
use crate::store::{Pending, Store, VALUE_BYTES_MAX};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::client::legacy::{Client, ResponseFuture};
use hyper_util::rt::TokioExecutor;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::time::Duration;
use tokio::time::timeout;

/// Timeout of an operation, as in Mooncake's client.
const TIMEOUT: Duration = Duration::from_millis(3_000);
/// Timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Characters of a key that need no escape: RFC 3986, section 2.3.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A store at `http://HOST:PORT/PATH`, or with the feature `tls` at `https://HOST:PORT/PATH`.
pub struct HttpStore {
    base: String,
    client: Box<dyn Requests>,
}

/// A client and its connections, of any connector.
trait Requests: Send + Sync {
    fn send(&self, request: Request<Full<Bytes>>) -> ResponseFuture;
}

impl<C: Connect + Clone + Send + Sync + 'static> Requests for Client<C, Full<Bytes>> {
    fn send(&self, request: Request<Full<Bytes>>) -> ResponseFuture {
        self.request(request)
    }
}

impl HttpStore {
    /// A store that connects at its first operation.
    ///
    /// # Errors
    /// [`StoreCause::Unreachable`] for a malformed URL; for `https` also [`StoreCause::Certificates`]
    /// if no authority is trusted, and [`StoreCause::NotBuilt`] without the feature `tls`.
    pub fn new(base: &str) -> Result<Self, StoreError> {
        if base.starts_with("https://") {
            #[cfg(not(feature = "tls"))]
            return Err(unusable(base, StoreCause::NotBuilt { feature: "tls" }));
            #[cfg(feature = "tls")]
            return match crate::Tls::load(&crate::TlsFiles::default()) {
                Ok(tls) => Self::with_tls(base, &tls),
                Err(cause) => Err(unusable(base, cause)),
            };
        }
        Self::with_connector(base, connector())
    }

    /// A store at an `http` URL whose connections `connector` opens, such as those of a simulated
    /// network.
    ///
    /// # Errors
    /// [`StoreCause::Unreachable`] for a malformed URL.
    pub fn with_connector<C>(base: &str, connector: C) -> Result<Self, StoreError>
    where
        C: Connect + Clone + Send + Sync + 'static,
    {
        check_url(base, "http")?;
        Ok(Self::over(base, connector))
    }

    /// A store at an `https` URL that connects at its first operation.
    ///
    /// # Errors
    /// [`StoreCause::Unreachable`] for a malformed URL.
    #[cfg(feature = "tls")]
    pub fn with_tls(base: &str, tls: &crate::Tls) -> Result<Self, StoreError> {
        check_url(base, "https")?;
        let mut tcp = connector();
        tcp.enforce_http(false);
        let connector: hyper_rustls::HttpsConnector<_> = (tcp, tls.config.clone()).into();
        Ok(Self::over(base, connector))
    }

    fn over<C: Connect + Clone + Send + Sync + 'static>(base: &str, connector: C) -> Self {
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Self { base: base.trim_end_matches('/').to_owned(), client: Box::new(client) }
    }

    async fn send(
        &self,
        operation: StoreOperation,
        key: &str,
        value: Option<&str>,
    ) -> Result<(StatusCode, Bytes), StoreError> {
        check(key, value).map_err(|cause| self.failed(operation, cause))?;
        let answered = timeout(TIMEOUT, self.exchange(operation, key, value)).await;
        answered
            .unwrap_or(Err(StoreCause::Silent { timeout: TIMEOUT }))
            .map_err(|cause| self.failed(operation, cause))
    }

    async fn exchange(
        &self,
        operation: StoreOperation,
        key: &str,
        value: Option<&str>,
    ) -> Result<(StatusCode, Bytes), StoreCause> {
        let method = match operation {
            StoreOperation::Put => Method::PUT,
            StoreOperation::Remove => Method::DELETE,
            StoreOperation::Get | StoreOperation::Connect | StoreOperation::Watch => Method::GET,
        };
        let uri = format!("{}?key={}", self.base, utf8_percent_encode(key, PLAIN));
        let body = value.map(|value| Bytes::copy_from_slice(value.trim_end().as_bytes()));
        let mut request = Request::builder().method(method).uri(uri);
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(body.unwrap_or_default()));
        let request = request.map_err(|error| broken(&error))?;
        let answer = self.client.send(request).await.map_err(|error| broken(&error))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, VALUE_BYTES_MAX).collect().await;
        let body = body.map_err(|error| broken(&*error))?;
        Ok((head.status, body.to_bytes()))
    }

    fn failed(&self, operation: StoreOperation, cause: StoreCause) -> StoreError {
        StoreError::new(&self.base, operation, cause)
    }

    fn refused(&self, operation: StoreOperation, status: StatusCode, body: &[u8]) -> StoreError {
        let text = words(&String::from_utf8_lossy(body));
        self.failed(operation, StoreCause::Refused { status: status.as_u16(), text })
    }
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_nodelay(true);
    connector
}

fn check_url(base: &str, scheme: &str) -> Result<(), StoreError> {
    let wrong = |text: String| unusable(base, StoreCause::Unreachable(text));
    let uri: Uri = base.parse().map_err(|error| wrong(format!("no URL: {error}")))?;
    let whole = uri.authority().is_some_and(|it| {
        !it.host().is_empty() && (it.as_str() == it.host() || it.port_u16().is_some())
    });
    match uri.scheme_str() == Some(scheme) && whole && uri.query().is_none() {
        true => Ok(()),
        false => Err(wrong(format!("it is no {scheme}://HOST:PORT/PATH"))),
    }
}

fn unusable(base: &str, cause: StoreCause) -> StoreError {
    StoreError::new(base, StoreOperation::Connect, cause)
}

impl Store for HttpStore {
    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<String>> {
        Box::pin(async move {
            let operation = StoreOperation::Get;
            let (status, body) = self.send(operation, key, None).await?;
            match status {
                StatusCode::OK => {
                    let text = String::from_utf8(body.to_vec());
                    text.map(Some).map_err(|_| self.failed(operation, StoreCause::NotText))
                }
                StatusCode::NOT_FOUND => Ok(None),
                status => Err(self.refused(operation, status, &body)),
            }
        })
    }

    fn put<'a>(&'a self, key: &'a str, value: &'a str) -> Pending<'a, ()> {
        Box::pin(async move {
            let operation = StoreOperation::Put;
            let (mut status, mut body) = self.send(operation, key, Some(value)).await?;
            if status == StatusCode::BAD_REQUEST {
                // Mooncake's servers accept the address of a node only once and lock out a node
                // that restarts after a crash, so the old entry is removed first.
                self.send(StoreOperation::Remove, key, None).await?;
                (status, body) = self.send(operation, key, Some(value)).await?;
            }
            match status {
                StatusCode::OK => Ok(()),
                status => Err(self.refused(operation, status, &body)),
            }
        })
    }

    fn remove<'a>(&'a self, key: &'a str) -> Pending<'a, ()> {
        Box::pin(async move {
            let operation = StoreOperation::Remove;
            match self.send(operation, key, None).await? {
                (StatusCode::OK | StatusCode::NOT_FOUND, _) => Ok(()),
                (status, body) => Err(self.refused(operation, status, &body)),
            }
        })
    }

    fn name(&self) -> &str {
        &self.base
    }
}
