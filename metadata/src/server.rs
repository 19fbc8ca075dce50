//! An HTTP metadata server: texts under keys for the nodes of a fleet, in memory or in a file.

use crate::journal::{Journal, JournalError, TableLines};
use crate::store::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Longest header of a request, in bytes: a key with every byte escaped, and what clients add.
const HEADER_BYTES_MAX: usize = 16 << 10;

/// The bounds of a server. A request past a bound gets a status of its own, or waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Maximum entries; 507 past it.
    pub entries_max: usize,
    /// Maximum bytes of all keys and values; 507 past it.
    pub bytes_max: usize,
    /// Maximum concurrent connections; further ones wait until one closes.
    pub connections_max: usize,
    /// Timeout of a request's header and body, from the start of the wait, in milliseconds.
    pub request_timeout_ms: u64,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            entries_max: 131_072,
            bytes_max: 256 << 20,
            connections_max: 1_024,
            request_timeout_ms: 30_000,
        }
    }
}

/// The error of a server that does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The server cannot listen at its address.
    #[error("{address} cannot be listened at: {error}")]
    Bind {
        /// The address.
        address: String,
        /// The error of the system.
        error: io::Error,
    },
    /// The server's file cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// A listening server, which serves while [`HttpServer::run`] is polled.
pub struct HttpServer {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// Serializes changes: a change holds this lock until it is on disk.
    journal: Mutex<Option<Journal>>,
    /// The entries on disk. Never locked during a wait for the disk; written only with `journal` held.
    table: RwLock<Table>,
    limits: ServerLimits,
}

struct Table {
    entries: BTreeMap<String, String>,
    bytes: usize,
}

type Answer = Response<Full<Bytes>>;

impl HttpServer {
    /// Listens at `address`, `host:port`, and reads the table from `file`, if one is given.
    ///
    /// # Errors
    /// [`ServerError`].
    pub async fn bind(
        address: &str,
        file: Option<&Path>,
        limits: ServerLimits,
    ) -> Result<Self, ServerError> {
        let failed = |error| ServerError::Bind { address: address.to_owned(), error };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let (journal, entries) = match file.map(Journal::open).transpose()? {
            Some((journal, entries)) => (Some(journal), entries),
            None => (None, BTreeMap::new()),
        };
        let bytes = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        let (journal, table) = (Mutex::new(journal), RwLock::new(Table { entries, bytes }));
        Ok(Self { listener, address: bound, shared: Arc::new(Shared { journal, table, limits }) })
    }

    /// The address that it listens at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of entries.
    pub fn entries(&self) -> usize {
        self.shared.table().entries.len()
    }

    /// Serves until dropped; connections end with it.
    pub async fn run(self) {
        let places = Arc::new(Semaphore::new(self.shared.limits.connections_max));
        let mut connections = JoinSet::new();
        loop {
            // Never closed.
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(%error, "no connection can be accepted");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            while connections.try_join_next().is_some() {}
            let shared = self.shared.clone();
            connections.spawn(async move {
                serve(shared, stream).await;
                drop(place);
            });
        }
    }
}

async fn serve(shared: Arc<Shared>, stream: TcpStream) {
    let limit = Duration::from_millis(shared.limits.request_timeout_ms);
    let service = service_fn(move |request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(shared.answer(request).await) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(limit).max_buf_size(HEADER_BYTES_MAX);
    // A half-closed client still gets its responses.
    server.half_close(true);
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        debug!(%error, "a connection ended");
    }
}

impl Shared {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        if request.uri().path() == "/health" && request.method() == Method::GET {
            return say(StatusCode::OK, "OK");
        }
        let Some(key) = key_of(request.uri().query().unwrap_or_default()) else {
            return say(StatusCode::BAD_REQUEST, "the query has no key, or one that is no text");
        };
        if key.len() > KEY_BYTES_MAX {
            return say(
                StatusCode::URI_TOO_LONG,
                &format!("a key has at most {KEY_BYTES_MAX} bytes"),
            );
        }
        match *request.method() {
            Method::GET => self.get(&key),
            Method::DELETE => self.change(key, None).await,
            Method::PUT => {
                let too_long = || {
                    say(StatusCode::PAYLOAD_TOO_LARGE, &format!("at most {VALUE_BYTES_MAX} bytes"))
                };
                if request.body().size_hint().lower() > VALUE_BYTES_MAX as u64 {
                    return too_long();
                }
                let limit = Duration::from_millis(self.limits.request_timeout_ms);
                let body = Limited::new(request.into_body(), VALUE_BYTES_MAX).collect();
                let body = match timeout(limit, body).await {
                    Err(_) => return say(StatusCode::REQUEST_TIMEOUT, "the value came too slowly"),
                    Ok(Err(_)) => return too_long(),
                    Ok(Ok(body)) => body.to_bytes(),
                };
                match String::from_utf8(body.to_vec()) {
                    Ok(value) => self.change(key, Some(value)).await,
                    Err(_) => say(StatusCode::BAD_REQUEST, "the value is not UTF-8"),
                }
            }
            _ => say(StatusCode::METHOD_NOT_ALLOWED, "GET, PUT and DELETE are served"),
        }
    }

    fn get(&self, key: &str) -> Answer {
        match self.table().entries.get(key) {
            Some(value) => {
                let mut answer = say(StatusCode::OK, value);
                let json = hyper::header::HeaderValue::from_static("application/json");
                answer.headers_mut().insert(CONTENT_TYPE, json);
                answer
            }
            None => say(StatusCode::NOT_FOUND, "metadata not found"),
        }
    }

    /// Changes an entry, which is on disk before the answer.
    async fn change(self: Arc<Self>, key: String, value: Option<String>) -> Answer {
        // Other changes wait for the disk; reads do not.
        let changed = tokio::task::spawn_blocking(move || self.change_on_disk(&key, value));
        changed
            .await
            .unwrap_or_else(|error| say(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()))
    }

    fn change_on_disk(&self, key: &str, value: Option<String>) -> Answer {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = match self.table().bytes_after(key, value.as_deref(), &self.limits) {
            Ok(bytes) => bytes,
            Err((status, why)) => return say(status, why),
        };
        if let Some(journal) = journal.as_mut()
            && let Err(error) = self.write(journal, key, value.as_deref())
        {
            warn!(%error, "a change cannot be written to disk");
            return say(StatusCode::INTERNAL_SERVER_ERROR, &format!("not on disk: {error}"));
        }
        let told = if value.is_some() { "metadata updated" } else { "metadata deleted" };
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.bytes = bytes;
        match value {
            Some(value) => drop(table.entries.insert(key.to_owned(), value)),
            None => drop(table.entries.remove(key)),
        }
        say(StatusCode::OK, told)
    }

    fn write(&self, journal: &mut Journal, key: &str, value: Option<&str>) -> io::Result<()> {
        let overgrown = {
            let table = self.table();
            let overgrown = journal.is_overgrown(table.entries.len());
            overgrown.then(|| TableLines::of(&table.entries)).transpose()?
        };
        if let Some(lines) = overgrown {
            journal.compact(&lines)?;
        }
        journal.append(key, value)
    }

    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Bytes of all keys and values after the change, or the status that refuses it.
    fn bytes_after(
        &self,
        key: &str,
        value: Option<&str>,
        limits: &ServerLimits,
    ) -> Result<usize, (StatusCode, &'static str)> {
        let before = self.entries.get(key).map(String::as_str);
        let size = |value: Option<&str>| value.map_or(0, |it| key.len() + it.len());
        let bytes = self.bytes - size(before) + size(value);
        let grows = value.is_some() && before.is_none();
        if bytes > limits.bytes_max || grows && self.entries.len() >= limits.entries_max {
            return Err((
                StatusCode::INSUFFICIENT_STORAGE,
                "the limit of entries or bytes is reached",
            ));
        }
        if value.is_none() && before.is_none() {
            return Err((StatusCode::NOT_FOUND, "metadata not found"));
        }
        Ok(bytes)
    }
}

/// The value of `key` in a query, without its escapes.
fn key_of(query: &str) -> Option<String> {
    let key = query.split('&').find_map(|pair| pair.strip_prefix("key="))?;
    let plain = percent_decode_str(key).decode_utf8().ok()?;
    (!plain.is_empty()).then(|| plain.into_owned())
}

fn say(status: StatusCode, text: &str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::copy_from_slice(text.as_bytes())));
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HttpStore, Store};

    #[expect(clippy::await_holding_lock, reason = "so does a disk that takes its time")]
    #[tokio::test]
    async fn a_change_that_waits_for_the_disk_holds_up_nobody_who_reads() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("table");
        let server = HttpServer::bind("127.0.0.1:0", Some(&file), ServerLimits::default());
        let server = server.await.unwrap();
        let shared = server.shared.clone();
        let url = format!("http://{}/metadata", server.address());
        let serving = tokio::spawn(server.run());
        let store = HttpStore::new(&url).unwrap();
        store.put("k", "before").await.unwrap();
        // Blocks like a write that waits for the disk.
        let held = shared.journal.lock().unwrap();
        let mut changing = Box::pin(store.put("k", "after"));
        let waited = timeout(Duration::from_millis(100), &mut changing).await;
        assert!(waited.is_err(), "the answer follows the disk");
        assert_eq!(store.get("k").await, Ok(Some("before".to_owned())));
        drop(held);
        changing.await.unwrap();
        assert_eq!(store.get("k").await, Ok(Some("after".to_owned())));
        serving.abort();
    }
}
