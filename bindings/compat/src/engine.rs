//! The engine of the bindings.

use crate::batches::{BATCHES_MAX, BatchId, BatchState, Batches, Share};
use crate::failure::{Cause, Failure};
use crate::managed::{Managed, Step};
use crate::mapped::Mapped;
use crate::options::{Options, credentials, variable};
use crate::regions::{LocalRegion, LocalRegions};
use crate::runtime::{Process, runtime};
use crate::waiting::{asked, drive, interruptible, outside, settle, to_the_end};
use handfast::metadata::MetadataOptions;
use handfast::mooncake::{MooncakeOptions, Notification};
use handfast::rdma::RdmaOptions;
use handfast::{Access, Direction, Engine, Memory, Remote, Segment, ServedSegment, Transfer};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::future::ready;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Time that [`TransferEngine::unregister`] waits for transfers that use the memory.
pub const UNREGISTER_WAIT: Duration = Duration::from_secs(10);
/// Maximum requests of one call.
pub const REQUESTS_MAX: usize = 8 << 20;
/// Maximum names of peers.
pub const PEERS_MAX: usize = 65_536;

/// Requests that the engine takes at once.
const REQUESTS_AT_ONCE: usize = 128 << 10;
/// Tries to unregister memory of a call that failed, each for [`UNREGISTER_WAIT`].
const ROLLBACK_TRIES: usize = 3;
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
    inner: ManuallyDrop<Arc<Inner>>,
}

struct Inner {
    engine: Engine,
    runtime: &'static Handle,
    process: Process,
    timeout: Duration,
    warnings: Vec<String>,
    regions: RwLock<LocalRegions>,
    managed: Mutex<Managed>,
    peers: RwLock<BTreeMap<String, Segment>>,
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
        let invalid = |error: handfast_metadata::StoreError| {
            Failure::argument(format!("the metadata store cannot be used: {error}"))
        };
        let mut builder = Engine::builder()
            .listen(&options.listen)
            .advertise(&options.advertise)
            .transport(options.transport)
            .rdma(RdmaOptions::default().with(|it| it.devices = options.devices.clone()))
            .mooncake(MooncakeOptions::default())
            .adjust(|limits, _| {
                limits.requests_per_batch_max = REQUESTS_AT_ONCE as u32;
                limits.batches_max = BATCHES_MAX as u32;
            });
        if let Some(name) = &options.name {
            builder = builder.name(name);
        }
        let credentials = credentials(&options.store, variable)?;
        let engine = outside(runtime, async move {
            let builder = match options.store.open(credentials).map_err(invalid)? {
                Some(store) => {
                    let cluster_id = std::env::var("MC_METADATA_CLUSTER_ID").unwrap_or_default();
                    let store = MetadataOptions::new(store);
                    builder.metadata(store.with(|it| it.cluster_id = cluster_id))
                }
                None => builder,
            };
            let engine = builder.start().await?;
            engine.publish().await?;
            Ok::<_, Failure>(engine)
        })??;
        let warnings = warnings(&engine);
        let inner = Inner {
            engine,
            runtime,
            process,
            timeout: options.timeout,
            warnings,
            regions: RwLock::default(),
            managed: Mutex::default(),
            peers: RwLock::default(),
            batches: Mutex::default(),
        };
        Ok(Self { inner: ManuallyDrop::new(Arc::new(inner)) })
    }

    /// Warnings of the start: fallbacks to TCP, unusable devices, open ports.
    pub fn warnings(&self) -> &[String] {
        &self.inner.warnings
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

    /// Registers memory: for transfers of this engine, and for peers, which may read and write it.
    /// `location` is one of Mooncake's, such as `cpu:0`; any other has no effect. Blocks while RDMA
    /// devices pin pages.
    ///
    /// # Safety
    /// The bytes stay valid for reads and writes until [`TransferEngine::unregister`] has succeeded
    /// for them or the engine is dropped, and no Rust reference to them exists meanwhile.
    ///
    /// # Errors
    /// They are not writable memory of this process, overlap registered memory, or exceed a limit.
    #[allow(unsafe_code)]
    pub unsafe fn register(&self, address: u64, bytes: u64, location: &str) -> Result<(), Failure> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.register_all(&[(address, bytes)], location) }
    }

    /// Registers memory at several places, or none of it.
    ///
    /// # Safety
    /// As of [`TransferEngine::register`], for each place.
    ///
    /// # Errors
    /// As of [`TransferEngine::register`].
    #[allow(unsafe_code)]
    pub unsafe fn register_all(
        &self,
        places: &[(u64, u64)],
        location: &str,
    ) -> Result<(), Failure> {
        self.inner.process.check()?;
        let mapped = Mapped::read()?;
        for (address, bytes) in places {
            mapped.check(*address, *bytes)?;
        }
        for (done, (address, bytes)) in places.iter().enumerate() {
            let start = std::ptr::with_exposed_provenance_mut(*address as usize);
            // SAFETY: the caller keeps the bytes valid while the block lives: `unregister` drops
            // its last handle, and so does the engine's drop.
            let memory = unsafe { Memory::from_raw(start, *bytes as usize, Arc::new(())) };
            let memory = memory.map_err(handfast::Error::from).map_err(Failure::from);
            let served = memory.and_then(|it| self.serve(LocalRegion::new(it), location));
            if let Err(failure) = served {
                for (address, _) in &places[..done] {
                    // A peer may have found it already; without its registration that ends.
                    let in_use = |ended: &Result<(), Failure>| {
                        ended.as_ref().is_err_and(|it| matches!(it.cause(), Cause::InUse { .. }))
                    };
                    (0..ROLLBACK_TRIES).map(|_| self.unregister(*address)).find(|it| !in_use(it));
                }
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Registers memory for transfers of this engine alone: peers cannot reach it.
    ///
    /// # Safety
    /// As of [`TransferEngine::register`].
    ///
    /// # Errors
    /// As of [`TransferEngine::register`].
    #[allow(unsafe_code)]
    pub unsafe fn register_private(&self, address: u64, bytes: u64) -> Result<(), Failure> {
        self.inner.process.check()?;
        Mapped::read()?.check(address, bytes)?;
        let start = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the caller keeps the bytes valid while the block lives: `unregister` drops its
        // last handle, and so does the engine's drop.
        let memory = unsafe { Memory::from_raw(start, bytes as usize, Arc::new(())) };
        let memory = memory.map_err(handfast::Error::from)?;
        self.inner.regions.write().insert(LocalRegion::new(memory))
    }

    fn serve(&self, region: LocalRegion, location: &str) -> Result<(), Failure> {
        let inner = &self.inner;
        let memory = region.memory.clone();
        let address = memory.address();
        let name = format!("{address:016x}");
        // Reserves the place; the lock is not held while pages are pinned.
        inner.regions.write().insert(region)?;
        let mut register = inner.engine.register(&name).access(Access::READ_WRITE).mooncake();
        if let Some(location) =
            Some(location).filter(|it| *it != "*").and_then(|it| it.parse().ok())
        {
            register = register.location(location);
        }
        let _entered = inner.runtime.enter();
        let served = register.serve(memory.whole());
        drop(memory);
        match served {
            Ok(served) => {
                // Not while the lock is held: a drop releases pages.
                let ended = inner.regions.write().set_served(address, served);
                drop(ended);
                Ok(())
            }
            Err(error) => {
                inner.regions.write().discard(address);
                Err(error.into())
            }
        }
    }

    /// Ends the registration of the memory that begins at `address`, and waits until nothing of the
    /// engine touches it any more.
    ///
    /// # Errors
    /// [`Cause::NotRegistered`]; [`Cause::InUse`] when transfers use it for longer than
    /// [`UNREGISTER_WAIT`]: peers do not reach it any more, and the call may be repeated.
    pub fn unregister(&self, address: u64) -> Result<(), Failure> {
        self.inner.process.check()?;
        let served = self.inner.regions.write().begin_end(address)?;
        let _entered = self.inner.runtime.enter();
        drop(served);
        let started = Instant::now();
        while !self.inner.regions.write().remove_unused(address) {
            if started.elapsed() >= UNREGISTER_WAIT {
                return Err(Cause::InUse { address, waited: UNREGISTER_WAIT }.into());
            }
            std::thread::sleep(USE_INTERVAL);
        }
        Ok(())
    }

    /// Number of registered pieces of memory; 0 in a forked child.
    pub fn registered(&self) -> usize {
        self.inner.process.check().map_or(0, |()| self.inner.regions.read().len())
    }

    /// Moves bytes to or from a peer, and waits for the end. A notification is sent after the last
    /// byte. Without a timeout the engine's holds, and one nanosecond more for each byte.
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
            let transfers = inner.submit(&shares, timeout, interrupt).await?;
            settle(transfers, asked(interrupt)).await.1?;
            if let Some(notification) = notification {
                let sent = interruptible(inner.engine.notify(peer, notification), interrupt).await;
                let sent = sent.and_then(|sent| sent.map_err(Failure::from));
                // The bytes are there.
                return sent.map_err(|failure| failure.with_remote(Remote::Fenced));
            }
            Ok(())
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
        let submitted = outside(inner.runtime, inner.submit(shares, timeout, interrupt));
        let submitted = submitted.and_then(|it| it);
        let transfers = submitted.inspect_err(|_| batch.give_back(requests))?;
        if requests == 0 {
            batch.give_back(0);
            return Ok(());
        }
        let part = batch.add(shares);
        let notification = notification.map(|(peer, it)| (inner.engine.clone(), peer, it));
        inner.runtime.spawn(drive(batch, part, transfers, notification));
        Ok(())
    }

    /// Starts requests as a batch of their own.
    ///
    /// # Errors
    /// Nothing was started.
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

    /// Waits until no earlier failed write to a peer can land in its memory any more.
    ///
    /// # Errors
    /// The peer cannot be reached, or is a Mooncake node, which cannot tell.
    pub fn fence(&self, peer: &str, interrupt: Interrupt<'_>) -> Result<(), Failure> {
        let inner = &self.inner;
        inner.process.check()?;
        let fenced = async { Ok::<_, Failure>(inner.peer(peer).await?.fence().await?) };
        outside(inner.runtime, interruptible(fenced, interrupt))??
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

    /// Opens a peer, unless it is open.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn open(&self, peer: &str, interrupt: Interrupt<'_>) -> Result<(), Failure> {
        let inner = &self.inner;
        inner.process.check()?;
        outside(inner.runtime, async {
            interruptible(inner.peer(peer), interrupt).await?.map(drop)
        })?
    }

    /// Forgets a peer; the next use opens it again. Returns whether it was open: never in a forked
    /// child.
    pub fn close_peer(&self, peer: &str) -> bool {
        self.inner.process.check().is_ok() && self.inner.peers.write().remove(peer).is_some()
    }

    /// Checks that a peer answers calls.
    ///
    /// # Errors
    /// It does not.
    pub fn probe(&self, peer: &str, interrupt: Interrupt<'_>) -> Result<(), Failure> {
        let inner = &self.inner;
        inner.process.check()?;
        let probed = inner.engine.probe(peer);
        Ok(outside(inner.runtime, interruptible(probed, interrupt))???)
    }

    /// Asks a peer for what it serves, in the order of registration.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn segments(
        &self,
        peer: &str,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<ServedSegment>, Failure> {
        let inner = &self.inner;
        inner.process.check()?;
        let asked = inner.engine.segments(peer);
        Ok(outside(inner.runtime, interruptible(asked, interrupt))???)
    }

    /// Sends a notification.
    ///
    /// # Errors
    /// The peer cannot be reached, or refuses it.
    pub fn notify(
        &self,
        peer: &str,
        notification: &Notification,
        interrupt: Interrupt<'_>,
    ) -> Result<(), Failure> {
        let inner = &self.inner;
        inner.process.check()?;
        let sent = inner.engine.notify(peer, notification);
        Ok(outside(inner.runtime, interruptible(sent, interrupt))???)
    }

    /// Takes the notifications received since the last call.
    ///
    /// # Errors
    /// [`Cause::Forked`].
    pub fn take_notifications(&self) -> Result<Vec<Notification>, Failure> {
        self.inner.process.check()?;
        Ok(self.inner.engine.take_notifications())
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
            let memory = Memory::zeroed(block).map_err(handfast::Error::from);
            let memory = memory.map_err(Failure::from).and_then(|memory| {
                let region = LocalRegion::new(memory.clone()).managed();
                self.serve(region, "*").map(|()| memory)
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
        let mut peers = self.peers.write();
        if peers.len() >= PEERS_MAX && !peers.contains_key(name) {
            let cure = "close peers that are gone";
            return Err(Cause::Limit { name: "PEERS_MAX", max: PEERS_MAX, cure }.into());
        }
        Ok(peers.entry(name.to_owned()).or_insert(opened).clone())
    }

    /// Starts requests. After an error those that were started have ended. Empty ones are complete.
    async fn submit(
        &self,
        shares: &[Share<'_>],
        timeout: Option<Duration>,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<Transfer>, Failure> {
        let count: usize = shares.iter().map(|share| share.requests.len()).sum();
        if count > REQUESTS_MAX {
            let cure = "split the call";
            return Err(Cause::Limit { name: "REQUESTS_MAX", max: REQUESTS_MAX, cure }.into());
        }
        let requests = shares.iter().flat_map(|share| share.requests.iter());
        let bytes = requests.fold(0_u64, |sum, it| sum.saturating_add(it.bytes));
        let timeout = timeout.unwrap_or(self.timeout + Duration::from_nanos(bytes));
        let mut batches = Vec::with_capacity(shares.len());
        for share in shares {
            let segment = interruptible(self.peer(share.peer), interrupt).await??;
            batches.extend(self.batches_of(&segment, &share.requests)?);
        }
        let mut transfers = Vec::with_capacity(batches.len());
        for batch in batches {
            let submitted = interruptible(batch.timeout(timeout).submit(), interrupt).await;
            match submitted.and_then(|submitted| submitted.map_err(Failure::from)) {
                Ok(transfer) => transfers.push(transfer),
                Err(failure) => {
                    let (_, ended) = settle(transfers, ready(())).await;
                    let remote = ended.err().map_or(Remote::Untouched, |it| it.remote());
                    return Err(failure.with_remote(remote));
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

/// Returns the devices near each memory of this machine, as JSON in Mooncake's form.
///
/// # Errors
/// The kernel does not report them.
pub fn topology() -> Result<String, Failure> {
    let machine = handfast::topology::Machine::discover(std::path::Path::new("/"));
    let machine = machine.map_err(|error| Failure::argument(error.to_string()))?;
    Ok(machine.matrix().to_json())
}

fn warnings(engine: &Engine) -> Vec<String> {
    let fallbacks = engine.fallbacks();
    let fallbacks = fallbacks.iter().map(|it| format!("lanes run over TCP: {}", it.reason()));
    let devices = engine.unusable_devices().into_iter();
    let devices = devices.map(|it| format!("an RDMA device is not used: {it}"));
    let exposure = engine.exposure().map(|it| it.to_string());
    fallbacks.chain(devices).chain(exposure).collect()
}
