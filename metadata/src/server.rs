//! An HTTP metadata server: texts under keys for the nodes of a fleet, in memory or in a file.

mod places;
mod sending;

use crate::store::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use bytes::Bytes;
use handfast_core::address::{PORTS_OF_ERDMA, is_given_back};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use places::{Calls, Places};
use redb::backends::InMemoryBackend;
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use sending::Sending;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
const TABLE: TableDefinition<'_, &str, &str> = TableDefinition::new("metadata");
/// Longest header of a request, in bytes: a key with every byte escaped, and what clients add.
const HEADER_BYTES_MAX: usize = 16 << 10;

/// The limits of a server. A request past a limit gets a status of its own, or waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Maximum entries; 507 past it.
    pub entries_max: usize,
    /// Maximum bytes of all keys and values; 507 past it.
    pub bytes_max: usize,
    /// Maximum concurrent connections. Past it one closes that has no request under way, of the host with the
    /// most; without one, a slow one of a host with more than half of the places, for other hosts. Further ones
    /// wait until one closes, and those of a host with more than half are closed.
    pub connections_max: usize,
    /// Timeout of a request's header and body, from the start of the wait, and of the answers that the client
    /// does not read. The connection closes past it.
    pub request_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            entries_max: 131_072,
            bytes_max: 256 << 20,
            connections_max: 1_024,
            request_timeout: Duration::from_secs(30),
        }
    }
}

/// The error of a server that does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The server cannot listen at its address.
    #[error("listening on {address} failed: {error}")]
    Bind {
        /// The address.
        address: String,
        /// The error of the system.
        error: io::Error,
    },
    /// The server's file cannot be used.
    #[error(
        "{path} is not the table of a metadata server, or is damaged: {error}; name another file",
        path = .path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the database.
        error: String,
    },
}

/// A listening server, which serves while [`HttpServer::run`] is polled.
pub struct HttpServer {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    database: Database,
    /// Bytes of all keys and values. A change holds this lock until it is on disk; reads do not.
    bytes: Mutex<usize>,
    limits: ServerLimits,
}

type Answer = Response<Full<Bytes>>;

impl HttpServer {
    /// Listens at `address`, `host:port`, and reads the table from `file`, if one is given.
    ///
    /// A port that the kernel chooses is none of [`PORTS_OF_ERDMA`].
    ///
    /// # Errors
    /// [`ServerError`].
    pub async fn bind(
        address: &str,
        file: Option<&Path>,
        limits: ServerLimits,
    ) -> Result<Self, ServerError> {
        let failed = |error| ServerError::Bind { address: address.to_owned(), error };
        let listener = listen(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        // redb panics on some damaged files.
        let opened = std::panic::catch_unwind(|| open(file));
        let opened = match opened {
            Ok(opened) => opened.map_err(|error| error.to_string()),
            Err(_) => Err("its pages contradict each other".to_owned()),
        };
        let (database, bytes) = opened.map_err(|error| {
            let path = file.unwrap_or(Path::new("")).to_owned();
            ServerError::File { path, error }
        })?;
        let shared = Shared { database, bytes: Mutex::new(bytes), limits };
        Ok(Self { listener, address: bound, shared: Arc::new(shared) })
    }

    /// Returns the bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of entries.
    pub fn entries(&self) -> u64 {
        self.shared.entries().unwrap_or(0)
    }

    /// Serves until dropped; connections end with it.
    pub async fn run(self) {
        let mut places = Places::new(self.shared.limits.connections_max);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = places.ended(), if !places.is_empty() => continue,
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "accepting a connection failed");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if !places.make_room(from.ip()).await {
                debug!(%from, "connection refused: its network holds more than half of the places");
                continue;
            }
            let shared = self.shared.clone();
            places.open(from.ip(), |calls| serve(shared, stream, calls));
        }
    }
}

/// Listens. Ports of the driver erdma that the kernel gives are held, so that it gives another one.
async fn listen(address: &str) -> io::Result<TcpListener> {
    let mut reserved = Vec::new();
    while reserved.len() <= PORTS_OF_ERDMA.len() {
        let listener = TcpListener::bind(address).await?;
        if !is_given_back(address, listener.local_addr()?.port()) {
            return Ok(listener);
        }
        reserved.push(listener);
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Returns the database in the file, or in memory, and the bytes of its keys and values.
fn open(file: Option<&Path>) -> Result<(Database, usize), redb::Error> {
    let mut database = match file {
        Some(path) => Database::create(path)?,
        None => Database::builder().create_with_backend(InMemoryBackend::new())?,
    };
    if !database.check_integrity()? {
        return Err(redb::Error::Corrupted("a page fails its checksum".to_owned()));
    }
    let first = database.begin_write()?;
    let mut bytes = 0;
    for entry in first.open_table(TABLE)?.iter()? {
        let (key, value) = entry?;
        bytes += key.value().len() + value.value().len();
    }
    first.commit()?;
    Ok((database, bytes))
}

async fn serve(shared: Arc<Shared>, stream: TcpStream, calls: Arc<Calls>) {
    let limit = shared.limits.request_timeout;
    let stream = TokioIo::new(Sending::new(stream, limit, calls.clone()));
    let service = service_fn(move |request| {
        let (shared, calls) = (shared.clone(), calls.clone());
        async move {
            calls.begin();
            let answer = shared.answer(request).await;
            calls.answer();
            Ok::<_, Infallible>(answer)
        }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(limit).max_buf_size(HEADER_BYTES_MAX);
    // A half-closed client still gets its responses.
    server.half_close(true);
    if let Err(error) = server.serve_connection(stream, service).await {
        debug!(%error, "connection ended");
    }
}

impl Shared {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        if request.uri().path() == "/health" && request.method() == Method::GET {
            return say(StatusCode::OK, "OK");
        }
        let Some(key) = key_of(request.uri().query().unwrap_or_default()) else {
            return say(StatusCode::BAD_REQUEST, "the query has no key, or its key is not UTF-8");
        };
        if key.len() > KEY_BYTES_MAX {
            return say(
                StatusCode::URI_TOO_LONG,
                &format!("a key has at most {KEY_BYTES_MAX} bytes"),
            );
        }
        match *request.method() {
            Method::GET => self.get(&key).unwrap_or_else(|error| broken(&error)),
            Method::DELETE => self.change(key, None).await,
            Method::PUT => {
                let too_long = || {
                    say(StatusCode::PAYLOAD_TOO_LARGE, &format!("at most {VALUE_BYTES_MAX} bytes"))
                };
                if request.body().size_hint().lower() > VALUE_BYTES_MAX as u64 {
                    return too_long();
                }
                let limit = self.limits.request_timeout;
                let body = Limited::new(request.into_body(), VALUE_BYTES_MAX).collect();
                let body = match timeout(limit, body).await {
                    Err(_) => return say(StatusCode::REQUEST_TIMEOUT, "the value timed out"),
                    Ok(Err(_)) => return too_long(),
                    Ok(Ok(body)) => body.to_bytes(),
                };
                match String::from_utf8(body.to_vec()) {
                    Ok(value) => self.change(key, Some(value)).await,
                    Err(_) => say(StatusCode::BAD_REQUEST, "the value is not UTF-8"),
                }
            }
            _ => {
                say(StatusCode::METHOD_NOT_ALLOWED, "the supported methods are GET, PUT and DELETE")
            }
        }
    }

    fn get(&self, key: &str) -> Result<Answer, redb::Error> {
        let table = self.database.begin_read()?.open_table(TABLE)?;
        let Some(value) = table.get(key)? else {
            return Ok(say(StatusCode::NOT_FOUND, "metadata not found"));
        };
        let mut answer = say(StatusCode::OK, value.value());
        let json = hyper::header::HeaderValue::from_static("application/json");
        answer.headers_mut().insert(CONTENT_TYPE, json);
        Ok(answer)
    }

    fn entries(&self) -> Result<u64, redb::Error> {
        Ok(self.database.begin_read()?.open_table(TABLE)?.len()?)
    }

    /// Changes an entry. The change is on disk before the answer.
    async fn change(self: Arc<Self>, key: String, value: Option<String>) -> Answer {
        let changed =
            tokio::task::spawn_blocking(move || self.change_on_disk(&key, value.as_deref()));
        match changed.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => broken(&error),
            Err(error) => broken(&error),
        }
    }

    fn change_on_disk(&self, key: &str, value: Option<&str>) -> Result<Answer, redb::Error> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let change = self.database.begin_write()?;
        let mut table = change.open_table(TABLE)?;
        let entries = usize::try_from(table.len()?).unwrap_or(usize::MAX);
        let size = |value: &str| key.len() + value.len();
        let before = match value {
            Some(value) => table.insert(key, value)?,
            None => table.remove(key)?,
        }
        .map(|before| size(before.value()));
        drop(table);
        let after = *bytes - before.unwrap_or(0) + value.map_or(0, size);
        let is_new = value.is_some() && before.is_none();
        let is_full = after > self.limits.bytes_max || is_new && entries >= self.limits.entries_max;
        if value.is_some() && is_full {
            let text = "the limit of entries or bytes is reached";
            return Ok(say(StatusCode::INSUFFICIENT_STORAGE, text));
        }
        if value.is_none() && before.is_none() {
            return Ok(say(StatusCode::NOT_FOUND, "metadata not found"));
        }
        change.commit()?;
        *bytes = after;
        let told = if value.is_some() { "metadata updated" } else { "metadata deleted" };
        Ok(say(StatusCode::OK, told))
    }
}

fn broken(error: &dyn std::error::Error) -> Answer {
    warn!(%error, "accessing the table failed");
    say(StatusCode::INTERNAL_SERVER_ERROR, &format!("not on disk: {error}"))
}

/// Returns the percent-decoded value of `key` in a query.
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
        let held = shared.bytes.lock().unwrap();
        let mut changing = Box::pin(store.put("k", "after"));
        let waited = timeout(Duration::from_millis(100), &mut changing).await;
        assert!(waited.is_err(), "the answer follows the disk");
        assert_eq!(store.get("k").await, Ok(Some("before".to_owned())));
        drop(held);
        changing.await.unwrap();
        assert_eq!(store.get("k").await, Ok(Some("after".to_owned())));
        serving.abort();
    }

    /// A server with smaller limits than the one that wrote its file.
    #[tokio::test]
    async fn entry_of_a_table_past_its_limits_can_be_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("table");
        let server = HttpServer::bind("127.0.0.1:0", Some(&file), ServerLimits::default());
        let Shared { database, bytes, .. } =
            Arc::into_inner(server.await.unwrap().shared).expect("one owner");
        let limits = ServerLimits { bytes_max: 1, ..ServerLimits::default() };
        let before = Shared { database, bytes, limits: ServerLimits::default() };
        for key in ["a", "b"] {
            before.change_on_disk(key, Some("value")).unwrap();
        }
        let after = Shared { limits, ..before };
        let full = after.change_on_disk("a", Some("value")).unwrap();
        assert_eq!(full.status(), StatusCode::INSUFFICIENT_STORAGE);
        assert_eq!(after.change_on_disk("a", None).unwrap().status(), StatusCode::OK);
        assert_eq!(after.entries().unwrap(), 1);
    }

    /// A copy of a running server's file is the file of a killed server. The test then zeroes each
    /// page, and truncates the file at each page.
    #[tokio::test]
    async fn a_damaged_file_is_refused_or_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("table");
        let server = HttpServer::bind("127.0.0.1:0", Some(&file), ServerLimits::default());
        let server = server.await.unwrap();
        for key in 0..64 {
            server.shared.change_on_disk(&format!("key-{key}"), Some("value")).unwrap();
        }
        let killed = folder.path().join("killed");
        std::fs::copy(&file, &killed).unwrap();
        let limits = ServerLimits::default();
        let after = HttpServer::bind("127.0.0.1:0", Some(&killed), limits).await.unwrap();
        assert_eq!(after.entries(), 64);
        drop(server);
        let whole = std::fs::read(&file).unwrap();
        let page = 4096.min(whole.len());
        for start in (0..whole.len()).step_by(page).take(64) {
            let mut zeroed = whole.clone();
            zeroed[start..(start + page).min(whole.len())].fill(0);
            for damaged in [&zeroed[..], &whole[..start]] {
                std::fs::write(&file, damaged).unwrap();
                let opened = HttpServer::bind("127.0.0.1:0", Some(&file), ServerLimits::default());
                if let Err(error) = opened.await {
                    assert!(error.to_string().contains("name another file"), "{error}");
                }
            }
        }
    }

    #[tokio::test]
    async fn a_file_of_something_else_is_refused_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letter");
        std::fs::write(&path, "Dear Sir,\nyours\n").unwrap();
        let refused = HttpServer::bind("127.0.0.1:0", Some(&path), ServerLimits::default()).await;
        let refused = refused.err().expect("refused");
        assert!(matches!(refused, ServerError::File { .. }), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "Dear Sir,\nyours\n");
    }
}
