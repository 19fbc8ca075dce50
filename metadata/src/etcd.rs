//! A store in an etcd.

mod dial;
mod watch;

use crate::Tls;
use crate::error::{StoreCause, StoreError, StoreOperation, broken, check, words};
use crate::store::{Changes, Pending, Store};
use dial::Dial;
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error, Identity, PutOptions,
    TlsOptions, Txn, TxnOp,
};
use std::error::Error as _;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as SyncMutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

/// Minimum time to live of an entry after its writer's end.
const LEASE_MIN: Duration = Duration::from_secs(3);
/// Interval of keepalives on a connection with pending calls, such as a watch: twice the shortest that
/// an etcd allows by default (its `--grpc-keepalive-min-time`).
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Options of an etcd store.
#[derive(Clone)]
pub struct EtcdOptions {
    /// Name and password, if the etcd requires them.
    pub user: Option<(String, String)>,
    /// Certificates for TLS, which all endpoints speak; `None` for plain connections.
    pub tls: Option<Tls>,
    /// Timeout of an operation, connecting included; at least one millisecond.
    pub timeout: Duration,
    /// Time to live of an entry after its writer's end, at least three seconds, in whole seconds. The
    /// writer keeps its entries alive.
    pub lease: Duration,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        // The timeout of Mooncake's client.
        let (timeout, lease) = (Duration::from_secs(5), Duration::from_secs(15));
        Self { user: None, tls: None, timeout, lease }
    }
}

impl fmt::Debug for EtcdOptions {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        write!(f, "EtcdOptions({user:?}, {:?}, {:?})", self.timeout, self.lease)
    }
}

/// A store in an etcd with one or several endpoints. It connects at the first operation, and reconnects
/// after a failure. Its entries are bound to a lease and expire with their writer.
pub struct EtcdStore {
    name: String,
    shared: Arc<Shared>,
}

struct Shared {
    endpoints: Vec<String>,
    options: EtcdOptions,
    /// Opens the connections to the first endpoint; `None` for those of the client.
    dial: Option<Dial>,
    /// The connection, with its number. Not held during a wait: an operation past its time waits for no other.
    client: SyncMutex<Option<(u64, Client)>>,
    /// Connections so far. Held while one is made.
    connections: Mutex<u64>,
    /// The lease of this process's entries. Held while one is asked for.
    lease: Mutex<Option<i64>>,
}

impl EtcdStore {
    /// Creates a store at `endpoints`, `host:port` each, with an optional `https://` for TLS.
    pub fn new(endpoints: &[String], options: EtcdOptions) -> Self {
        Self::over(endpoints.to_vec(), options, None)
    }

    /// Creates a store whose connections `connect` opens, such as those of a simulated network. They
    /// are plain.
    pub fn with_connector<C, F, S>(host: &str, port: u16, options: EtcdOptions, connect: C) -> Self
    where
        C: Fn(String, u16) -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let options = EtcdOptions { tls: None, ..options };
        Self::over(vec![format!("{host}:{port}")], options, Some(Dial::new(connect)))
    }

    fn over(endpoints: Vec<String>, options: EtcdOptions, dial: Option<Dial>) -> Self {
        let options = EtcdOptions {
            lease: options.lease.max(LEASE_MIN),
            timeout: options.timeout.max(Duration::from_millis(1)),
            ..options
        };
        let name = format!("etcd://{}", endpoints.join(","));
        let (client, connections) = (SyncMutex::default(), Mutex::default());
        let lease = Mutex::default();
        let shared = Shared { endpoints, options, dial, client, connections, lease };
        Self { name, shared: Arc::new(shared) }
    }

    /// Asks in time, and once more with a new token if the etcd does not know the connection's. `used` has the
    /// number of the connection.
    async fn within<T, F: Future<Output = Result<T, Error>>>(
        &self,
        operation: StoreOperation,
        used: &AtomicU64,
        ask: impl Fn() -> F,
    ) -> Result<T, StoreError> {
        let limit = self.shared.options.timeout;
        let asked = async {
            match ask().await {
                Err(error) if is_token_gone(&error) => {
                    self.shared.forget(used);
                    ask().await
                }
                ended => ended,
            }
        };
        let ended = timeout(limit, asked).await;
        let cause = match ended {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => cause(&error),
            Err(_) => StoreCause::Silent { timeout: limit },
        };
        if !matches!(cause, StoreCause::Refused { .. }) {
            // The next operation reconnects.
            self.shared.forget(used);
        }
        Err(self.failed(operation, cause))
    }

    fn failed(&self, operation: StoreOperation, cause: StoreCause) -> StoreError {
        StoreError::new(&self.name, operation, cause)
    }
}

impl Shared {
    /// Returns the connection, and makes one without it. `used` is set to its number.
    async fn client(&self, used: &AtomicU64) -> Result<Client, Error> {
        if let Some(client) = self.known(used) {
            return Ok(client);
        }
        let mut connections = self.connections.lock().await;
        // It may have been made meanwhile.
        if let Some(client) = self.known(used) {
            return Ok(client);
        }
        let wait = self.options.timeout;
        // A member without a quorum may answer with old entries.
        let mut options = ConnectOptions::new()
            .with_connect_timeout(wait)
            .with_timeout(wait)
            .with_keep_alive(PING_INTERVAL, wait)
            .with_require_leader(true);
        if let Some((name, password)) = &self.options.user {
            options = options.with_user(name, password);
        }
        if let Some(tls) = &self.options.tls {
            options = options.with_tls(tls_options(tls));
        }
        let client = match &self.dial {
            Some(dial) => dial.connect(&self.endpoints[0], options, wait).await?,
            None => Client::connect(&self.endpoints, Some(options)).await?,
        };
        *connections += 1;
        used.store(*connections, Ordering::Relaxed);
        *self.connection() = Some((*connections, client.clone()));
        Ok(client)
    }

    fn connection(&self) -> MutexGuard<'_, Option<(u64, Client)>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, used: &AtomicU64) -> Option<Client> {
        self.connection().as_ref().map(|(number, client)| {
            used.store(*number, Ordering::Relaxed);
            client.clone()
        })
    }

    /// Forgets the connection that an operation has used, unless another one has replaced it.
    fn forget(&self, used: &AtomicU64) {
        let used = used.load(Ordering::Relaxed);
        self.connection().take_if(|(number, _)| *number == used);
    }

    /// Forgets this lease, unless another one has replaced it.
    async fn forget_lease(&self, lease: i64) {
        self.lease.lock().await.take_if(|current| *current == lease);
    }

    /// Returns the lease of this process's entries.
    async fn lease(self: &Arc<Self>, client: &mut Client) -> Result<i64, Error> {
        let mut known = self.lease.lock().await;
        if let Some(lease) = *known {
            return Ok(lease);
        }
        let seconds = i64::try_from(self.options.lease.as_secs()).unwrap_or(i64::MAX);
        let lease = client.lease_grant(seconds, None).await?.id();
        *known = Some(lease);
        tokio::spawn(keep_alive(Arc::downgrade(self), lease));
        Ok(lease)
    }

    /// Renews the lease once; false if the lease is gone.
    async fn keep_alive(&self, lease: i64, used: &AtomicU64) -> Result<bool, Error> {
        let mut client = self.client(used).await?;
        let (mut keeper, mut answers) = client.lease_keep_alive(lease).await?;
        keeper.keep_alive().await?;
        Ok(answers.message().await?.is_some_and(|answer| answer.ttl() > 0))
    }
}

/// Renews a lease while its store exists. An expired lease is forgotten, and the next entry gets a
/// new one.
async fn keep_alive(store: Weak<Shared>, lease: i64) {
    loop {
        let Some(alive) = store.upgrade() else { return };
        let options = alive.options.clone();
        drop(alive);
        sleep(options.lease / 3).await;
        let Some(alive) = store.upgrade() else { return };
        if *alive.lease.lock().await != Some(lease) {
            return;
        }
        let used = AtomicU64::default();
        match timeout(options.timeout, alive.keep_alive(lease, &used)).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => {
                warn!("the lease expired; writing the entries again under a new one");
                alive.forget_lease(lease).await;
                return;
            }
            failed => {
                debug!(?failed, "keeping the lease alive failed");
                alive.forget(&used);
            }
        }
    }
}

impl Store for EtcdStore {
    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<String>> {
        Box::pin(async move {
            let operation = StoreOperation::Get;
            check(key, None).map_err(|cause| self.failed(operation, cause))?;
            let used = AtomicU64::default();
            let asked = || async { self.shared.client(&used).await?.get(key, None).await };
            let answer = self.within(operation, &used, asked).await?;
            let value = answer.kvs().first().map(|entry| entry.value().to_vec());
            let text = value.map(String::from_utf8).transpose();
            text.map_err(|_| self.failed(operation, StoreCause::NotText))
        })
    }

    fn put<'a>(&'a self, key: &'a str, value: &'a str) -> Pending<'a, ()> {
        Box::pin(async move {
            let operation = StoreOperation::Put;
            check(key, Some(value)).map_err(|cause| self.failed(operation, cause))?;
            let used = AtomicU64::default();
            let asked = || async {
                let mut client = self.shared.client(&used).await?;
                let lease = self.shared.lease(&mut client).await?;
                let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)));
                let same = [
                    Compare::value(key, CompareOp::Equal, value),
                    Compare::lease(key, CompareOp::Equal, lease),
                ];
                // An unchanged entry is not written again: an etcd keeps every revision until it is
                // compacted, and notifies watchers of each.
                let put = client.txn(Txn::new().when(same).or_else([put])).await;
                if put.as_ref().is_err_and(is_lease_gone) {
                    // The next attempt needs another lease.
                    self.shared.forget_lease(lease).await;
                }
                put
            };
            self.within(operation, &used, asked).await.map(drop)
        })
    }

    fn remove<'a>(&'a self, key: &'a str) -> Pending<'a, ()> {
        Box::pin(async move {
            let operation = StoreOperation::Remove;
            check(key, None).map_err(|cause| self.failed(operation, cause))?;
            let used = AtomicU64::default();
            let asked = || async { self.shared.client(&used).await?.delete(key, None).await };
            self.within(operation, &used, asked).await.map(drop)
        })
    }

    fn watch(&self, prefix: &str) -> Option<Box<dyn Changes>> {
        Some(Box::new(watch::Watch::new(self.name.clone(), self.shared.clone(), prefix)))
    }

    fn name(&self) -> &str {
        &self.name
    }
}

fn tls_options(tls: &Tls) -> TlsOptions {
    let mut options = TlsOptions::new();
    match &tls.texts.authority {
        Some(authority) => options = options.ca_certificate(Certificate::from_pem(authority)),
        None => options = options.with_native_roots(),
    }
    if let Some((certificate, key)) = &tls.texts.identity {
        options = options.identity(Identity::from_pem(certificate, key));
    }
    options
}

/// Returns whether a put was refused because its lease is unknown; a put requires nothing else to
/// exist.
fn is_lease_gone(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.code() as i32 == NOT_FOUND)
}

/// Returns whether the etcd refuses the token that the client got when it connected: the token has
/// expired, a restarted member has lost it, or users have changed since.
fn is_token_gone(error: &Error) -> bool {
    is_token_refused(&cause(error))
}

fn is_token_refused(cause: &StoreCause) -> bool {
    let StoreCause::Refused { status, text } = cause else { return false };
    *status == UNAUTHENTICATED || text.contains(OLD_REVISION)
}

fn cause(error: &Error) -> StoreCause {
    match error {
        Error::GRpcStatus(status) if !OF_TRANSPORT.contains(&(status.code() as i32)) => {
            let text = words(status.message());
            StoreCause::Refused { status: status.code() as u16, text }
        }
        Error::GRpcStatus(status) => match status.source() {
            Some(source) => broken(source),
            None => StoreCause::Unreachable(words(status.message())),
        },
        Error::TransportError(error) => broken(error),
        other => StoreCause::Unreachable(words(&other.to_string())),
    }
}

/// The gRPC code of a missing entity.
const NOT_FOUND: i32 = 5;
/// The gRPC code of a missing permission.
const PERMISSION_DENIED: u16 = 7;
/// The gRPC code of an unknown token.
const UNAUTHENTICATED: u16 = 16;
/// Part of the message about a token from before the last change of users (etcd, `ErrAuthOldRevision`).
const OLD_REVISION: &str = "revision of auth store is old";
/// The gRPC codes of an etcd that was not reached in time: cancelled, unknown, deadline exceeded,
/// unavailable.
const OF_TRANSPORT: [i32; 4] = [1, 2, 4, 14];

#[cfg(test)]
mod tests {
    use super::*;

    /// A late failure over an earlier connection leaves the one that another operation has made since. It is made
    /// without a message: no etcd is needed.
    #[tokio::test]
    async fn late_failure_keeps_a_newer_connection() {
        let store = EtcdStore::new(&["127.0.0.1:1".to_owned()], EtcdOptions::default());
        let shared = &store.shared;
        let [late, next, last] = [const { AtomicU64::new(0) }; 3];
        shared.client(&late).await.unwrap();
        shared.forget(&late);
        assert!(shared.known(&next).is_none());
        shared.client(&next).await.unwrap();
        shared.forget(&late);
        assert!(shared.known(&last).is_some(), "it is another operation's");
        assert_eq!((late.into_inner(), last.into_inner()), (1, 2));
        shared.forget(&next);
        assert!(shared.known(&next).is_none());
    }
}
