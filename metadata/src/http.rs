//! A store behind an HTTP metadata server.

use crate::error::{StoreCause, StoreError, StoreOperation, check, words};
use crate::store::{Pending, Store, VALUE_BYTES_MAX};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::time::Duration;
use tokio::time::timeout;

/// How long an operation may take: what Mooncake's own client allows.
const TIMEOUT: Duration = Duration::from_millis(3_000);
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_500);
/// What a key needs no escape for: RFC 3986, section 2.3.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A store at `http://HOST:PORT/PATH`.
pub struct HttpStore {
    base: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl HttpStore {
    /// A store that is connected to when it is asked.
    ///
    /// # Errors
    /// [`StoreCause::Unreachable`] for what is no such URL.
    pub fn new(base: &str) -> Result<Self, StoreError> {
        let wrong = |text: String| StoreError {
            store: base.to_owned(),
            operation: StoreOperation::Connect,
            cause: StoreCause::Unreachable(text),
        };
        let uri: Uri = base.parse().map_err(|error| wrong(format!("no URL: {error}")))?;
        let whole = uri.authority().is_some_and(|it| {
            !it.host().is_empty() && (it.as_str() == it.host() || it.port_u16().is_some())
        });
        if uri.scheme_str() != Some("http") || !whole || uri.query().is_some() {
            return Err(wrong("it is no http://HOST:PORT/PATH".into()));
        }
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { base: base.trim_end_matches('/').to_owned(), client })
    }

    async fn send(
        &self,
        operation: StoreOperation,
        key: &str,
        value: Option<&str>,
    ) -> Result<(StatusCode, Bytes), StoreError> {
        check(key, value).map_err(|cause| self.failed(operation, cause))?;
        let answered = timeout(TIMEOUT, self.exchange(operation, key, value)).await;
        let timeout_ms = TIMEOUT.as_millis() as u64;
        answered
            .unwrap_or(Err(StoreCause::Silent { timeout_ms }))
            .map_err(|cause| self.failed(operation, cause))
    }

    async fn exchange(
        &self,
        operation: StoreOperation,
        key: &str,
        value: Option<&str>,
    ) -> Result<(StatusCode, Bytes), StoreCause> {
        let unreachable = |error: &dyn std::error::Error| {
            let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
            StoreCause::Unreachable(words(format!("{error}{source}")))
        };
        let method = match operation {
            StoreOperation::Put => Method::PUT,
            StoreOperation::Remove => Method::DELETE,
            StoreOperation::Get | StoreOperation::Connect => Method::GET,
        };
        let uri = format!("{}?key={}", self.base, utf8_percent_encode(key, PLAIN));
        let body = value.map(|value| Bytes::copy_from_slice(value.trim_end().as_bytes()));
        let request = Request::builder().method(method).uri(uri);
        let request = match &body {
            Some(_) => request.header(CONTENT_TYPE, "application/json"),
            None => request,
        };
        let request = request.body(Full::new(body.unwrap_or_default()));
        let request = request.map_err(|error| unreachable(&error))?;
        let answer = self.client.request(request).await.map_err(|error| unreachable(&error))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, VALUE_BYTES_MAX).collect().await;
        let body = body.map_err(|error| unreachable(&*error))?;
        Ok((head.status, body.to_bytes()))
    }

    fn failed(&self, operation: StoreOperation, cause: StoreCause) -> StoreError {
        StoreError { store: self.base.clone(), operation, cause }
    }

    fn refused(&self, operation: StoreOperation, status: StatusCode, body: &[u8]) -> StoreError {
        let text = words(String::from_utf8_lossy(body).into_owned());
        self.failed(operation, StoreCause::Refused { status: status.as_u16(), text })
    }
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
                // Mooncake's own servers take the address of a node once, and so lock out one that
                // crashed and is back: what it left must go first.
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
