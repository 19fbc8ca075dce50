//! A store in a Redis.

mod limited;

use crate::Tls;
use crate::error::{RedisRefusal, StoreCause, StoreError, StoreOperation, broken, check, words};
use crate::store::{Pending, Store, VALUE_BYTES_MAX};
use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Cmd, ErrorKind, RedisConnectionInfo, RedisError, Value, cmd};
use limited::Limited;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Operations at once; more wait.
const OPERATIONS_MAX: usize = 8;
/// Longest answers to all of them together, in bytes; longer ones end the connection.
const ANSWERS_BYTES_MAX: usize = 2 * OPERATIONS_MAX * VALUE_BYTES_MAX;
/// The words of a Redis before the arguments of a request.
const ARGUMENTS: &str = ", with args beginning with";

/// Options of a Redis store.
#[derive(Clone)]
pub struct RedisOptions {
    /// Name and password, if the Redis requires them; an empty name is Redis's default user.
    pub user: Option<(String, String)>,
    /// Number of the database.
    pub database: u8,
    /// Certificates for TLS; `None` for plain connections.
    pub tls: Option<Tls>,
    /// Timeout of an operation, connecting included; at least one millisecond.
    pub timeout: Duration,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self { user: None, database: 0, tls: None, timeout: Duration::from_secs(5) }
    }
}

impl fmt::Debug for RedisOptions {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        write!(f, "RedisOptions({user:?}, {}, {:?})", self.database, self.timeout)
    }
}

/// The stream of a connection.
trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

type Dialled = Pin<Box<dyn Future<Output = io::Result<Box<dyn Duplex>>> + Send>>;
type Dial = Box<dyn Fn(String, u16) -> Dialled + Send + Sync>;

/// A store in a Redis. It connects at the first operation, and reconnects after a failure. Entries stay
/// until they are removed.
pub struct RedisStore {
    name: String,
    host: String,
    port: u16,
    options: RedisOptions,
    dial: Dial,
    /// The connection, with its number.
    connection: Mutex<Option<(u64, MultiplexedConnection)>>,
    /// Connections so far.
    connections: AtomicU64,
}

impl RedisStore {
    /// Creates a store at a host or address.
    pub fn new(host: &str, port: u16, options: RedisOptions) -> Self {
        Self::with_connector(host, port, options, |host: String, port| async move {
            let stream = TcpStream::connect((&*host, port)).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        })
    }

    /// Creates a store whose connections `connect` opens, such as those of a simulated network.
    pub fn with_connector<C, F, S>(host: &str, port: u16, options: RedisOptions, connect: C) -> Self
    where
        C: Fn(String, u16) -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let options =
            RedisOptions { timeout: options.timeout.max(Duration::from_millis(1)), ..options };
        let url = crate::RedisUrl {
            host: host.to_owned(),
            port,
            is_encrypted: options.tls.is_some(),
            user: None,
            database: Some(options.database).filter(|database| *database != 0),
        };
        let connection = Mutex::default();
        let connections = AtomicU64::new(0);
        let dial: Dial = Box::new(move |host, port| {
            let connecting = connect(host, port);
            Box::pin(async move { Ok(Box::new(connecting.await?) as Box<dyn Duplex>) })
        });
        Self {
            name: url.to_string(),
            host: host.to_owned(),
            port,
            options,
            dial,
            connection,
            connections,
        }
    }

    async fn ask(&self, operation: StoreOperation, request: &Cmd) -> Result<Value, StoreError> {
        let limit = self.options.timeout;
        let used = AtomicU64::new(0);
        let ended = timeout(limit, self.exchange(request, &used)).await;
        let cause = match ended.unwrap_or(Err(StoreCause::Silent { timeout: limit })) {
            Ok(value) => return Ok(value),
            Err(cause) => cause,
        };
        let is_of_server = matches!(
            cause,
            StoreCause::RedisRefused {
                refusal: RedisRefusal::NotPrimary | RedisRefusal::NotReady,
                ..
            }
        );
        if is_of_server || !matches!(cause, StoreCause::RedisRefused { .. }) {
            // The next operation reconnects, and looks the name up: another may be the primary. An operation
            // that connects now holds the lock.
            if let Ok(known) = self.connection.try_lock() {
                forget(known, used.into_inner());
            }
        }
        Err(self.failed(operation, cause))
    }

    /// `used` is set to the number of the connection.
    async fn exchange(&self, request: &Cmd, used: &AtomicU64) -> Result<Value, StoreCause> {
        let (mut connection, is_fresh) = self.connection(used).await?;
        match request.query_async(&mut connection).await {
            // A Redis closes idle connections and restarts; every request may be repeated.
            Err(error) if !is_fresh && !is_answer(&error) => {
                forget(self.connection.lock().await, used.load(Ordering::Relaxed));
                let (mut connection, _) = self.connection(used).await?;
                request.query_async(&mut connection).await
            }
            ended => ended,
        }
        .map_err(|error| self.cause(&error))
    }

    /// Returns the connection, and whether it is new.
    async fn connection(
        &self,
        used: &AtomicU64,
    ) -> Result<(MultiplexedConnection, bool), StoreCause> {
        let mut known = self.connection.lock().await;
        if let Some((number, connection)) = &*known {
            used.store(*number, Ordering::Relaxed);
            return Ok((connection.clone(), false));
        }
        let stream = (self.dial)(self.host.clone(), self.port).await;
        let stream = stream.map_err(|error| broken(&error))?;
        let connection = match &self.options.tls {
            None => self.authenticated(stream).await?,
            Some(tls) => {
                let name = self.host.clone().try_into();
                let name = name.map_err(|error| broken(&io::Error::other(error)))?;
                let connecting = TlsConnector::from(tls.config.clone()).connect(name, stream);
                let stream = connecting.await.map_err(|error| broken(&error))?;
                self.authenticated(stream).await?
            }
        };
        let number = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        used.store(number, Ordering::Relaxed);
        Ok((known.insert((number, connection)).1.clone(), true))
    }

    /// Authenticates and selects the database.
    async fn authenticated(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<MultiplexedConnection, StoreCause> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_concurrency_limit(OPERATIONS_MAX);
        // The commands are sent below, so that errors keep the text of the Redis.
        let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
        let stream = Limited::new(stream, ANSWERS_BYTES_MAX);
        let made = MultiplexedConnection::new_with_config(&silent, stream, config).await;
        let (mut connection, driver) = made.map_err(|error| self.cause(&error))?;
        // It ends with the last clone of the connection.
        tokio::spawn(driver);
        let mut requests = Vec::new();
        if let Some((name, password)) = &self.options.user {
            let mut request = cmd("AUTH");
            if !name.is_empty() {
                request.arg(name);
            }
            requests.push(request.arg(password).take());
        }
        if self.options.database != 0 {
            requests.push(cmd("SELECT").arg(self.options.database).take());
        }
        for request in requests {
            let ended = request.query_async::<Value>(&mut connection).await;
            ended.map_err(|error| self.cause(&error))?;
        }
        Ok(connection)
    }

    fn cause(&self, error: &RedisError) -> StoreCause {
        cause(error, self.options.user.as_ref().map_or("", |(_, password)| password))
    }

    fn failed(&self, operation: StoreOperation, cause: StoreCause) -> StoreError {
        StoreError::new(&self.name, operation, cause)
    }
}

/// Drops the connection with a number.
fn forget(mut known: MutexGuard<'_, Option<(u64, MultiplexedConnection)>>, used: u64) {
    known.take_if(|(number, _)| *number == used);
}

impl Store for RedisStore {
    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<String>> {
        Box::pin(async move {
            let operation = StoreOperation::Get;
            check(key, None).map_err(|cause| self.failed(operation, cause))?;
            match self.ask(operation, cmd("GET").arg(key)).await? {
                Value::Nil => Ok(None),
                Value::BulkString(bytes) => {
                    let text = String::from_utf8(bytes).map_err(|_| StoreCause::NotText);
                    let text = text.and_then(|text| check(key, Some(&text)).map(|()| text));
                    text.map(Some).map_err(|cause| self.failed(operation, cause))
                }
                _ => Err(self.failed(operation, StoreCause::NotText)),
            }
        })
    }

    fn put<'a>(&'a self, key: &'a str, value: &'a str) -> Pending<'a, ()> {
        Box::pin(async move {
            let operation = StoreOperation::Put;
            check(key, Some(value)).map_err(|cause| self.failed(operation, cause))?;
            self.ask(operation, cmd("SET").arg(key).arg(value)).await.map(drop)
        })
    }

    fn remove<'a>(&'a self, key: &'a str) -> Pending<'a, ()> {
        Box::pin(async move {
            let operation = StoreOperation::Remove;
            check(key, None).map_err(|cause| self.failed(operation, cause))?;
            self.ask(operation, cmd("DEL").arg(key)).await.map(drop)
        })
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// Returns whether the Redis answered with an error, so that the connection is intact.
fn is_answer(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

/// The cause with the text of the service, in which a password of any length and with any blanks is
/// replaced before the text is shortened.
fn cause(error: &RedisError, password: &str) -> StoreCause {
    match (error.code(), error.kind()) {
        (Some(code), _) => {
            let detail = error.detail().unwrap_or_default();
            let line = without(&format!("{code} {detail}"), password);
            // A Redis that does not know a request repeats its arguments, cut where it likes.
            let known = line.split_once(ARGUMENTS).map_or(&*line, |(before, _)| before);
            let refusal = RedisRefusal::of(code, detail);
            StoreCause::RedisRefused { refusal, text: words(known) }
        }
        (None, ErrorKind::Parse) => {
            let text = without(&error.to_string(), password);
            StoreCause::Unreachable(words(&format!("it does not answer as a Redis: {text}")))
        }
        (None, _) => broken(error),
    }
}

/// Replaces a password wherever it is.
fn without(text: &str, password: &str) -> String {
    match password {
        "" => text.to_owned(),
        password => text.replace(password, "..."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::redis::parse_redis_value;

    fn shown(answer: &str, password: &str) -> String {
        let error = match parse_redis_value(answer.as_bytes()) {
            Ok(Value::ServerError(error)) => error.into(),
            Ok(value) => panic!("{value:?}"),
            Err(error) => error,
        };
        format!("{:?}", cause(&error, password))
    }

    /// The text is cut after 200 bytes, and its blanks become single ones.
    #[test]
    fn no_part_of_a_repeated_password_is_shown() {
        let long = "secret".repeat(50);
        let passwords =
            [&long, "two  secret", "a\tsecret", "ERR secret", "secret, with args beginning with"];
        for password in passwords {
            for answer in ["ERR no user with {} here", "ERR {} {}", "{}", "{}x\ty"] {
                let answer = answer.replace("{}", password);
                let shown = shown(&format!("-{answer}\r\n"), password);
                assert!(shown.contains("...") && !shown.contains("secret"), "{shown}");
            }
            let error = RedisError::from((ErrorKind::Parse, "no length", password.to_owned()));
            let shown = format!("{:?}", cause(&error, password));
            assert!(shown.contains("answer as a Redis"), "{shown}");
            assert!(shown.contains("...") && !shown.contains("secret"), "{shown}");
        }
    }

    #[test]
    fn refusals_are_read_before_the_password_is_replaced() {
        let shown = shown("-WRONGPASS invalid username-password pair\r\n", "WRONGPASS");
        assert!(shown.contains("User") && shown.contains("... invalid username"), "{shown}");
    }
}
