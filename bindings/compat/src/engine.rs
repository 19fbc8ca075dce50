//! The engine of the bindings.

mod administration;
mod peer_calls;
mod registration;

use crate::batches::{BATCHES_MAX, BatchId, BatchState, Batches, Share};
use crate::cures;
use crate::failure::{Cause, Failure};
use crate::managed::{Managed, Step};
use crate::options::Options;
use crate::peers::Peers;
use crate::process::Process;
use crate::regions::{LocalRegion, LocalRegions};
use crate::runtime::runtime;
use crate::waiting::{Until, asked, drive, interruptible, notify, outside, settle, to_the_end};
use handfast::metadata::{MetadataOptions, StoreCause};
use handfast::mooncake::Notification;
use handfast::{AuthOptions, Direction, Engine, Remote, Segment, Transfer};
use handfast_environment::Ports;
use handfast_metadata::{Credentials, Source};
use parking_lot::{Mutex, RwLock};
use std::future::ready;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Time that [`TransferEngine::unregister`] waits for transfers that use the memory.
pub const UNREGISTER_WAIT: Duration = Duration::from_secs(10);
/// Maximum requests of one call.
pub const REQUESTS_MAX: usize = 8 << 20;

/// Tries to start at a port of a range.
const PORT_TRIES_MAX: usize = 500;
/// Requests that the engine takes at once.
const REQUESTS_AT_ONCE: usize = 128 << 10;
/// Time that a failed registration of several places waits for peers that use the first ones.
const ROLLBACK_WAIT: Duration = Duration::from_secs(30);
/// Interval at which the end of the use of memory is looked for.
const USE_INTERVAL: Duration = Duration::from_millis(1);

/// Bytes to move, by the addresses at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The direction.
    pub direction: Direction,
    /// First byte here.
    pub local: u64,
    /// First byte in the peer's memory.
    pub remote: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Asks whether a waiting call shall end: every 100 ms.
pub type Interrupt<'a> = &'a mut (dyn FnMut() -> bool + Send);

/// An engine. All calls may be made from any thread that is no thread of an async runtime, and at
/// the same time.
pub struct TransferEngine {
    /// Not dropped in a forked child, whose copy belongs to the parent.
    pub(crate) inner: ManuallyDrop<Arc<Inner>>,
}

pub(crate) struct Inner {
    engine: Engine,
    runtime: &'static Handle,
    pub(crate) process: Process,
    pub(crate) stream_waits: crate::streams::Waits,
    timeout: Duration,
    warnings: Vec<String>,
    openness: Option<String>,
    regions: RwLock<LocalRegions>,
    managed: Mutex<Managed>,
    peers: RwLock<Peers>,
    batches: Mutex<Batches>,
}

impl TransferEngine {
    /// Starts an engine.
    ///
    /// # Errors
    /// An option is invalid, the store is not usable, or a required device is.
    pub fn start(options: &Options) -> Result<Self, Failure> {
        let runtime = runtime()?;
        let process = Process::this();
        let started = at_ports(options.ports()?, options.wants_ports(), async |port, data_port| {
            start_at(options, port, data_port).await
        });
        let engine = outside(runtime, started)??;
        // An open data port says the same, and more.
        let exposure = engine.exposure().map(ToString::to_string);
        let openness = exposure.or_else(|| options.openness());
        let warnings = options.warnings().chain(warnings(&engine, options));
        let warnings = warnings.chain(openness.clone()).collect();
        let inner = Inner {
            engine,
            runtime,
            process,
            stream_waits: crate::streams::Waits::default(),
            timeout: options.timeout,
            warnings,
            openness,
            regions: RwLock::default(),
            managed: Mutex::default(),
            peers: RwLock::default(),
            batches: Mutex::default(),
        };
        Ok(Self { inner: ManuallyDrop::new(Arc::new(inner)) })
    }

    /// Warnings of the start: fallbacks to TCP, unusable devices, open ports, keys of every administrator.
    pub fn warnings(&self) -> &[String] {
        &self.inner.warnings
    }

    /// The warning, of [`warnings`](Self::warnings), that other machines reach this engine and it authenticates no
    /// peer.
    pub fn openness(&self) -> Option<&str> {
        self.inner.openness.as_deref()
    }

    /// The address of the engine, `host:port`.
    pub fn address(&self) -> &str {
        self.inner.engine.address()
    }

    /// The names of the RDMA devices in use.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        self.inner.engine.devices()
    }

    /// The port of the engine's address.
    pub fn port(&self) -> u16 {
        let port = self.address().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        port.unwrap_or(0)
    }

    /// Address of the metrics server, if there is one ([`Options::metrics`]).
    #[cfg(feature = "metrics")]
    pub fn metrics_address(&self) -> Option<std::net::SocketAddr> {
        self.inner.engine.metrics_address()
    }

    /// A snapshot of the engine, peer by peer.
    ///
    /// # Errors
    /// [`Cause::Forked`].
    #[cfg(feature = "metrics")]
    pub fn metrics(&self) -> Result<handfast::metrics::EngineState, Failure> {
        self.inner.process.check()?;
        outside(self.inner.runtime, self.inner.engine.state())
    }

    /// Moves bytes to or from a peer, and waits for the end. A notification is sent after the last
    /// byte, within the same timeout. Without a timeout the engine's holds, and one nanosecond more for
    /// each byte.
    ///
    /// # Errors
    /// Nothing of the engine touches the local memory after an error; [`Failure::remote`] is the
    /// state of the peer's.
    pub fn transfer(
        &self,
        peer: &str,
        requests: &[Request],
        notification: Option<&Notification>,
        timeout: Option<Duration>,
        interrupt: Interrupt<'_>,
    ) -> Result<(), Failure> {
        let inner = &self.inner;
        inner.process.check()?;
        outside(inner.runtime, async {
            let shares = [Share::all(peer, requests)];
            let until = inner.until(&shares, timeout);
            let transfers = inner.submit(&shares, until, interrupt).await?;
            settle(transfers, shares[0].has_writes(), asked(interrupt)).await.1?;
            match notification {
                Some(it) => notify(&inner.engine, (peer, it), until, asked(interrupt)).await,
                None => Ok(()),
            }
        })?
    }

    /// Makes an empty batch for so many requests.
    ///
    /// # Errors
    /// [`Cause::Limit`].
    pub fn allocate(&self, capacity: usize) -> Result<BatchId, Failure> {
        self.inner.process.check()?;
        self.inner.batches.lock().allocate(capacity).map(|(id, _)| id)
    }

    /// Adds requests, each with its peer, to a batch, and starts them. Waits for the answers of
    /// peers that were not opened before. The notification goes to the first request's peer after
    /// the last byte of all.
    ///
    /// # Errors
    /// The requests are no part of the batch, and those that were started have ended.
    pub fn submit_to(
        &self,
        id: BatchId,
        targets: &[(&str, Request)],
        notification: Option<Notification>,
        timeout: Option<Duration>,
        interrupt: Interrupt<'_>,
    ) -> Result<(), Failure> {
        let notification = notification.zip(targets.first());
        let notification = notification.map(|(it, (peer, _))| ((*peer).to_owned(), it));
        self.submit_shares(id, &Share::by_peer(targets), notification, timeout, interrupt)
    }

    fn submit_shares(
        &self,
        id: BatchId,
        shares: &[Share<'_>],
        notification: Option<(String, Notification)>,
        timeout: Option<Duration>,
        interrupt: Interrupt<'_>,
    ) -> Result<(), Failure> {
        let inner = &self.inner;
        inner.process.check()?;
        let batch = inner.batches.lock().get(id)?;
        let requests = shares.iter().map(|share| share.requests.len()).sum();
        batch.reserve(requests)?;
        let until = inner.until(shares, timeout);
        let submitted = outside(inner.runtime, inner.submit(shares, until, interrupt));
        let submitted = submitted.and_then(|it| it);
        let transfers = submitted.inspect_err(|_| batch.give_back(requests))?;
        if requests == 0 {
            batch.give_back(0);
            return Ok(());
        }
        let part = batch.add(shares);
        let notification = notification.map(|(peer, it)| (inner.engine.clone(), peer, it, until));
        let has_writes = shares.iter().any(Share::has_writes);
        inner.runtime.spawn(drive(batch, part, (transfers, has_writes), notification));
        Ok(())
    }

    /// Starts requests as a batch of their own.
    ///
    /// # Errors
    /// Nothing is under way; `Failure::remote` is the state of the peer's memory.
    pub fn submit(
        &self,
        peer: &str,
        requests: &[Request],
        timeout: Option<Duration>,
        interrupt: Interrupt<'_>,
    ) -> Result<BatchId, Failure> {
        let id = self.allocate(requests.len())?;
        let shares = [Share::all(peer, requests)];
        let submitted = self.submit_shares(id, &shares, None, timeout, interrupt);
        if submitted.is_err() {
            self.free(id)?;
        }
        submitted.map(|()| id)
    }

    /// State of a batch. Does not wait.
    ///
    /// # Errors
    /// [`Cause::NoSuchBatch`].
    pub fn state(&self, id: BatchId) -> Result<BatchState, Failure> {
        self.inner.process.check()?;
        let batch = self.inner.batches.lock().get(id)?;
        Ok(batch.state())
    }

    /// State of one request of a batch. Does not wait.
    ///
    /// # Errors
    /// [`Cause::NoSuchBatch`], or the batch has no such request.
    pub fn request_state(&self, id: BatchId, request: usize) -> Result<BatchState, Failure> {
        self.inner.process.check()?;
        let batch = self.inner.batches.lock().get(id)?;
        batch.request_state(request)
    }

    /// Bytes of each request of a batch that are at their destination for certain.
    ///
    /// # Errors
    /// [`Cause::NoSuchBatch`].
    pub fn landed(&self, id: BatchId) -> Result<Vec<u64>, Failure> {
        self.inner.process.check()?;
        let batch = self.inner.batches.lock().get(id)?;
        Ok(batch.landed())
    }

    /// Waits for the end of a batch. An interruption cancels it, and waits for that.
    ///
    /// # Errors
    /// [`Cause::NoSuchBatch`], or [`Cause::Interrupted`].
    pub fn wait(&self, id: BatchId, interrupt: Interrupt<'_>) -> Result<BatchState, Failure> {
        let inner = &self.inner;
        inner.process.check()?;
        let batch = inner.batches.lock().get(id)?;
        let ended = batch.end_of_all();
        outside(inner.runtime, async {
            tokio::pin!(ended);
            match interruptible(&mut ended, interrupt).await {
                Ok(state) => Ok(state),
                Err(failure) => {
                    batch.cancel();
                    ended.await;
                    Err(failure)
                }
            }
        })?
    }

    /// Waits for the end of a batch for a limited time. A pending one goes on.
    ///
    /// # Errors
    /// [`Cause::NoSuchBatch`].
    pub fn wait_for(&self, id: BatchId, timeout: Duration) -> Result<BatchState, Failure> {
        self.inner.process.check()?;
        let batch = self.inner.batches.lock().get(id)?;
        outside(self.inner.runtime, async {
            let ended = tokio::time::timeout(timeout, batch.end_of_all()).await;
            ended.unwrap_or(BatchState::Pending)
        })
    }

    /// Cancels what is under way in a batch; it ends soon.
    ///
    /// # Errors
    /// [`Cause::NoSuchBatch`].
    pub fn cancel(&self, id: BatchId) -> Result<(), Failure> {
        self.inner.process.check()?;
        self.inner.batches.lock().get(id)?.cancel();
        Ok(())
    }

    /// Forgets a finished batch.
    ///
    /// # Errors
    /// [`Cause::NoSuchBatch`], or [`Cause::Unfinished`].
    pub fn free(&self, id: BatchId) -> Result<(), Failure> {
        self.inner.process.check()?;
        self.inner.batches.lock().free(id)
    }

    /// Forgets a batch at its end.
    ///
    /// # Errors
    /// [`Cause::NoSuchBatch`].
    pub fn free_at_end(&self, id: BatchId) -> Result<(), Failure> {
        let inner = Arc::downgrade(&self.inner);
        self.at_end(id, move || {
            if let Some(inner) = inner.upgrade() {
                // It may have been freed since.
                let _ = inner.batches.lock().free(id);
            }
        })
    }

    /// Cancels a batch, waits for its end, also where an interruption ends other waits, and forgets it.
    ///
    /// # Errors
    /// [`Cause::NoSuchBatch`].
    pub fn abandon(&self, id: BatchId) -> Result<(), Failure> {
        self.end(id)?;
        self.inner.batches.lock().free(id)
    }

    /// Cancels a batch and waits for its end, also where an interruption ends other waits. Its result can
    /// still be taken.
    ///
    /// # Errors
    /// [`Cause::NoSuchBatch`], or [`Cause::Forked`].
    pub fn end(&self, id: BatchId) -> Result<(), Failure> {
        let inner = &self.inner;
        inner.process.check()?;
        let batch = inner.batches.lock().get(id)?;
        batch.cancel();
        to_the_end(inner.runtime, batch.end_of_all());
        Ok(())
    }

    /// Calls a function on a thread of the engine at the end of a batch, at once if it has ended.
    ///
    /// # Errors
    /// [`Cause::NoSuchBatch`].
    pub fn at_end(&self, id: BatchId, then: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
        self.inner.process.check()?;
        let batch = self.inner.batches.lock().get(id)?;
        self.inner.runtime.spawn(async move {
            batch.end_of_all().await;
            then();
        });
        Ok(())
    }

    /// Ends every transfer and closes the engine. Waits until nothing touches memory any more. Does
    /// nothing in a forked child.
    ///
    /// # Errors
    /// [`Cause::InUse`] when memory is in use for longer than [`UNREGISTER_WAIT`] after the end; the
    /// call may be repeated.
    pub fn close(&self) -> Result<(), Failure> {
        let inner = &self.inner;
        if inner.process.check().is_err() {
            return Ok(());
        }
        inner.stream_waits.end();
        to_the_end(inner.runtime, async {
            let served = inner.regions.write().begin_end_of_all();
            inner.engine.close().await;
            drop(served);
            let waited = tokio::time::timeout(UNREGISTER_WAIT, async {
                while inner.regions.read().in_use().is_some() {
                    tokio::time::sleep(USE_INTERVAL).await;
                }
            });
            let in_use = |address| Cause::InUse { address, waited: UNREGISTER_WAIT };
            match waited.await {
                Ok(()) => Ok(()),
                Err(_) => inner.regions.read().in_use().map_or(Ok(()), |it| Err(in_use(it).into())),
            }
        })
    }

    /// Allocates memory and registers it.
    ///
    /// # Errors
    /// The length is out of range, or a limit is reached.
    pub fn allocate_managed(&self, bytes: usize) -> Result<u64, Failure> {
        self.inner.process.check()?;
        loop {
            let step = self.inner.managed.lock().take(bytes)?;
            let block = match step {
                Step::Ready(address) => return Ok(address),
                Step::Block(block) => block,
            };
            let memory = self.inner.engine.allocate(block);
            let memory = memory.map_err(Failure::from).and_then(|memory| {
                let region = LocalRegion::new(memory.clone()).managed();
                self.serve(region, &format!("{:016x}", memory.address()), "*", None)
                    .map(|()| memory)
            });
            let memory = memory.inspect_err(|_| self.inner.managed.lock().give_up(block))?;
            let address = memory.address();
            self.inner.managed.lock().add_block(address, block, bytes);
        }
    }

    /// Gives back memory of [`TransferEngine::allocate_managed`], with the same length.
    ///
    /// # Errors
    /// It was not allocated, or with another length.
    pub fn free_managed(&self, address: u64, bytes: usize) -> Result<(), Failure> {
        self.inner.process.check()?;
        self.inner.managed.lock().give(address, bytes)
    }

    /// Copies bytes to registered memory.
    ///
    /// # Errors
    /// [`Cause::NotRegistered`].
    pub fn copy_in(&self, address: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.inner.process.check()?;
        let span = self.inner.regions.read().finder().find(address, bytes.len() as u64)?;
        let copied = span.memory().copy_in(span.offset(), bytes);
        Ok(copied.map_err(handfast::Error::from)?)
    }

    /// Copies bytes from registered memory.
    ///
    /// # Errors
    /// [`Cause::NotRegistered`].
    pub fn copy_out(&self, address: u64, bytes: usize) -> Result<Vec<u8>, Failure> {
        self.inner.process.check()?;
        let span = self.inner.regions.read().finder().find(address, bytes as u64)?;
        let mut copy = vec![0; bytes];
        let copied = span.memory().copy_out(span.offset(), &mut copy);
        copied.map_err(handfast::Error::from)?;
        Ok(copy)
    }
}

impl Drop for TransferEngine {
    /// Closes the engine, and waits until nothing touches memory any more, for [`UNREGISTER_WAIT`]
    /// at most: after that the memory may be in use, and the engine is leaked. In a forked child
    /// the engine is left alone.
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if self.inner.process.check().is_err() {
            return;
        }
        if self.close().is_err() {
            return;
        }
        let _entered = self.inner.runtime.enter();
        // SAFETY: `inner` is not used any more.
        unsafe { ManuallyDrop::drop(&mut self.inner) };
    }
}

impl Inner {
    /// Returns a peer's memory; opens the peer at its first use.
    async fn peer(&self, name: &str) -> Result<Segment, Failure> {
        if let Some(known) = self.peers.read().get(name) {
            return Ok(known.clone());
        }
        let opened = self.engine.open_by_address(name).await?;
        // Dropped behind the lock.
        let mut unused = Vec::new();
        self.peers.write().insert(name, opened, &mut unused)
    }

    /// The end of a call's time, from now on.
    fn until(&self, shares: &[Share<'_>], timeout: Option<Duration>) -> Until {
        let requests = shares.iter().flat_map(|share| share.requests.iter());
        let bytes = requests.fold(0_u64, |sum, it| sum.saturating_add(it.bytes));
        let default = || self.timeout.saturating_add(Duration::from_nanos(bytes));
        Until { started: Instant::now(), timeout: timeout.unwrap_or_else(default) }
    }

    /// Starts requests. After an error those that were started have ended. Empty ones are complete.
    async fn submit(
        &self,
        shares: &[Share<'_>],
        until: Until,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<Transfer>, Failure> {
        let count: usize = shares.iter().map(|share| share.requests.len()).sum();
        if count > REQUESTS_MAX {
            let cure = "split the call";
            return Err(Cause::Limit { name: "REQUESTS_MAX", max: REQUESTS_MAX, cure }.into());
        }
        let mut batches = Vec::with_capacity(shares.len());
        for share in shares {
            let opened = tokio::time::timeout(until.left(), self.peer(share.peer));
            let not_opened = |_| Failure::from(Cause::NotOpened { peer: share.peer.to_owned() });
            let segment = interruptible(opened, interrupt).await?.map_err(not_opened)??;
            batches.extend(self.batches_of(&segment, &share.requests)?);
        }
        let mut transfers = Vec::with_capacity(batches.len());
        for batch in batches {
            let submitted = interruptible(batch.timeout(until.left()).submit(), interrupt).await;
            match submitted.and_then(|submitted| submitted.map_err(Failure::from)) {
                Ok(transfer) => transfers.push(transfer),
                Err(failure) => {
                    let has_writes = shares.iter().any(Share::has_writes);
                    let (_, ended) = settle(transfers, has_writes, ready(())).await;
                    let Err(ended) = ended else {
                        return Err(failure.with_remote(Remote::Untouched));
                    };
                    // A device still uses the memory, which says more than the refusal.
                    let is_kept = matches!(ended.cause(), Cause::Kept);
                    return Err(if is_kept { ended } else { failure.with_remote(ended.remote()) });
                }
            }
        }
        Ok(transfers)
    }

    fn batches_of(
        &self,
        segment: &Segment,
        requests: &[Request],
    ) -> Result<Vec<handfast::Batch>, Failure> {
        let regions = self.regions.read();
        let mut finder = regions.finder();
        let mut batches = Vec::with_capacity(requests.len().div_ceil(REQUESTS_AT_ONCE));
        for chunk in requests.chunks(REQUESTS_AT_ONCE) {
            let mut batch = segment.batch();
            let mut is_empty = true;
            for Request { direction, local, remote, bytes } in chunk {
                if *bytes == 0 {
                    continue;
                }
                is_empty = false;
                let span = finder.find(*local, *bytes)?;
                batch = match direction {
                    Direction::Read => batch.read(&span, *remote),
                    Direction::Write => batch.write(&span, *remote),
                };
            }
            if !is_empty {
                batches.push(batch);
            }
        }
        Ok(batches)
    }
}

/// Starts an engine at a port of the range in the environment, if it has one. Another program may
/// take a port between its choice and its use; then another one is chosen.
async fn at_ports<T>(
    ports: Option<Ports<'_>>,
    (wants_port, wants_data_port): (bool, bool),
    mut start: impl AsyncFnMut(Option<u16>, Option<u16>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let Some(mut ports) = ports else { return start(None, None).await };
    let mut last = None;
    for _ in 0..PORT_TRIES_MAX {
        let port = match wants_port.then(|| ports.take()).transpose() {
            Ok(port) => port,
            Err(error) => {
                return Err(last.map_or_else(|| error.into(), |it: Failure| it.of_ports(&ports)));
            }
        };
        // A range of one port has none left for data, which then has any.
        let data_port = wants_data_port.then(|| ports.take().ok()).flatten();
        match start(port, data_port).await {
            Err(failure) if is_of_port(&failure) => {
                let is_taken = |port: u16| !ports.is_free(port);
                if !port.is_some_and(is_taken) && !data_port.is_some_and(is_taken) {
                    return Err(failure);
                }
                last = Some(failure);
            }
            started => return started,
        }
    }
    let last = last.map(|it| it.of_ports(&ports));
    Err(last.unwrap_or_else(|| Failure::argument("no port was tried")))
}

fn is_of_port(failure: &Failure) -> bool {
    failure.engine_error().is_some_and(|error| error.stage() == handfast::Stage::Listen)
}

async fn start_at(
    options: &Options,
    port: Option<u16>,
    data_port: Option<u16>,
) -> Result<Engine, Failure> {
    let environment = &options.environment;
    let mooncake = environment.mooncake();
    let mooncake = mooncake.with(|it| it.data_port = data_port.unwrap_or(it.data_port));
    let mut builder = environment
        .bounds(Engine::builder())
        .listen(&options.listen_at(port))
        .advertise(&options.advertise)
        .transport(options.transport)
        .rdma(options.rdma())
        .mooncake(mooncake)
        .adjust(|limits, _| {
            limits.requests_per_batch_max = REQUESTS_AT_ONCE as u32;
            limits.batches_max = BATCHES_MAX as u32;
            limits.regions_max = options.regions_max;
        });
    if let Some(source) = &options.auth {
        builder = builder.auth(AuthOptions::from_source(source)?);
    }
    builder = builder.encrypt_lanes(options.encrypt_lanes);
    builder = builder.administrators(options.administrators()?);
    if let Some(name) = &options.name {
        builder = builder.name(name);
    }
    #[cfg(feature = "metrics")]
    if let Some(address) = &options.metrics {
        builder = builder.metrics(address);
    }
    let invalid = |error: handfast_metadata::StoreError| {
        let why = match error.cause {
            StoreCause::NotBuilt { feature } => {
                format!("this build has no {feature}: install a release, which has every store")
            }
            _ => error.to_string(),
        };
        Failure::argument(format!("the metadata store cannot be used: {why}"))
    };
    let credentials = match options.store {
        Source::Etcd(_) => environment.etcd_credentials()?,
        Source::Redis(_) => environment.redis_credentials(),
        _ => Credentials::default(),
    };
    if let Some(store) = options.store.open(credentials).map_err(invalid)? {
        builder = builder.metadata(environment.metadata(MetadataOptions::new(store)));
    }
    let engine = builder.start().await?;
    engine.publish().await?;
    Ok(engine)
}

/// Returns the devices near each memory of this machine, as JSON in Mooncake's form.
///
/// # Errors
/// The kernel does not report them.
pub fn topology() -> Result<String, Failure> {
    let machine = handfast::topology::Machine::discover(std::path::Path::new("/"));
    let machine = machine.map_err(|error| Failure::argument(error.to_string()))?;
    Ok(machine.matrix().to_json())
}

/// Callers of Mooncake name `rdma`, so that a machine without it is worth a warning to them.
fn warnings(engine: &Engine, options: &Options) -> Vec<String> {
    let fallbacks = engine.fallbacks();
    let fallbacks = fallbacks.iter().filter(|it| options.is_of_mooncake() || !it.is_expected());
    let fallbacks = fallbacks.map(cures::fallback_text);
    let devices = engine.unusable_devices().into_iter();
    let devices = devices.map(|it| format!("an RDMA device is not used: {it}"));
    fallbacks.chain(devices).chain(engine.trust_warnings()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A port that another program takes before its use costs one try; a failure for another
    /// address is the result at once.
    #[test]
    fn port_that_is_taken_before_its_use_is_left() {
        let options = Options::of_mooncake("127.0.0.1", "P2PHANDSHAKE", "tcp", "").unwrap();
        let first = 20_000 + (std::process::id() % 100) as u16 * 30;
        let started = |taken_times: usize, at_chosen: bool| {
            let (mut tried, mut taken) = (0, Vec::new());
            let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
            let ports = Some(Ports::new("127.0.0.1", first..=first + 9));
            let started = at_ports(ports, (true, false), async |port, _| {
                tried += 1;
                if tried > taken_times {
                    return Ok(());
                }
                let chosen = format!("127.0.0.1:{}", port.unwrap());
                let listener = match at_chosen {
                    true => TcpListener::bind(chosen).unwrap(),
                    false => elsewhere.try_clone().unwrap(),
                };
                let port = listener.local_addr().unwrap().port();
                taken.push(listener);
                start_at(&options, Some(port), None).await.map(drop)
            });
            (outside(runtime().unwrap(), started).unwrap(), tried)
        };
        assert!(matches!(started(0, true), (Ok(()), 1)));
        assert!(matches!(started(2, true), (Ok(()), 3)));
        let (failed, tries) = started(usize::MAX, true);
        let failed = failed.unwrap_err();
        assert!(is_of_port(&failed));
        let range = format!("none of 127.0.0.1, ports {first} to {}", first + 9);
        assert!(failed.to_string().contains(&range), "{failed}");
        assert!((1..=10).contains(&tries), "as many as are free: {tries}");
        let (failed, tries) = started(usize::MAX, false);
        let failed = failed.unwrap_err();
        assert!(is_of_port(&failed) && !failed.to_string().contains("none of"), "{failed}");
        assert_eq!(tries, 1);
    }
}
