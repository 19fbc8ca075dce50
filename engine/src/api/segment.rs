//! A peer's segment, and batches of requests on it.

use crate::api::engine::Engine;
use crate::api::served::{RemoteMemory, RemotePart, Resolved, Scope};
use crate::api::transfer::{Resubmission, Resubmit, Submitted, Transfer, submit_error};
use crate::api::unregistered::comes_to_share;
use crate::data::local::LocalRegion;
use crate::data::transport::{RegionPair, RequestRegions};
use crate::error::{Cause, Error, Stage};
use crate::mooncake::ABSOLUTE;
use crate::peer::look_ups;
use crate::peer::opening::LaneOpening;
use crate::peer::target::{RequestSpan, Submission, Target};
use handfast_core::policy::{AfterRefusal, Requester};
use handfast_core::sharing::{AT_ONCE_BYTES_MAX, AT_ONCE_REQUESTS_MAX};
use handfast_core::transfer::{BatchReport, Remote};
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::Checksum;
use handfast_core::{Incarnation, Instant};
use handfast_transport::{Direction, Memory, RemoteSpan, Span, TransportKind};
use parking_lot::Mutex;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes that a task copies for one unit of its budget, about 30 microseconds.
const BYTES_PER_BUDGET: u64 = 256 << 10;

/// Bytes read at a time for the checksum of a node that computes none.
const READ_BACK_BYTES: usize = 4 << 20;

/// Maximum bytes of one block that requests far from each other register together.
const REGISTERED_TOGETHER_MAX: usize = 1 << 30;

/// A region of a peer's memory, by name. Cheap to clone. It survives restarts of the peer: the
/// first transfer after a restart fetches the new incarnation's descriptor.
#[derive(Clone)]
pub struct Segment {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    address: String,
    name: String,
    scope: Scope,
    resolved: Mutex<Arc<Resolved>>,
    /// Serializes refreshes; concurrent callers wait and share a failure.
    refresh: tokio::sync::Mutex<Option<Error>>,
    /// Number of failed refreshes.
    failures: AtomicU64,
}

/// Local memory registered with an RDMA device while this is held; empty without a device.
#[must_use = "the device may forget the memory when this is dropped"]
pub struct Prepared {
    registered: Option<Arc<LocalRegion>>,
    /// The registration does not hold the block.
    _span: Option<Span>,
}

impl Prepared {
    pub(crate) fn new(span: &Span, registered: Option<Arc<LocalRegion>>) -> Self {
        Self { _span: registered.is_some().then(|| span.clone()), registered }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("name", &self.name())
            .field("address", &self.address())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_registered = self.registered.is_some();
        f.debug_struct("Prepared").field("is_registered", &is_registered).finish()
    }
}

impl Segment {
    pub(crate) async fn open(engine: &Engine, address: &str, scope: Scope) -> Result<Self, Error> {
        let look_up = look_ups::begin();
        let (descriptor, target) = engine.find(address, look_up).await?;
        let memory = RemoteMemory::of(&descriptor, &scope).map_err(|error| error.at(address))?;
        let name = memory.name().unwrap_or(ABSOLUTE).to_owned();
        // An only segment keeps its identity when the node serves more.
        let scope = match scope {
            Scope::Only => Scope::Named(name.clone()),
            _ => scope,
        };
        let resolved = Mutex::new(Resolved::new(target, memory, look_up));
        let (engine, address) = (engine.clone(), address.to_owned());
        let (refresh, failures) = (tokio::sync::Mutex::default(), AtomicU64::new(0));
        let inner = Inner { engine, address, name, scope, resolved, refresh, failures };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns the segment's name on its node; [`ABSOLUTE`](crate::mooncake::ABSOLUTE) for all
    /// memory of a node.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the address at which the node was opened.
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// Returns the length in bytes, as the owner last reported it; for all memory of a node the
    /// end of its last segment.
    pub fn bytes(&self) -> u64 {
        self.resolved().memory.bytes()
    }

    /// Checks that `bytes` bytes at `offset` are within the segment as last reported by its owner.
    /// A transfer of many pieces can thus be refused before its first piece.
    ///
    /// # Errors
    /// [`Cause::OutOfRange`], or [`Cause::NoSuchAddress`] in all memory of a node.
    pub fn check_range(&self, offset: u64, bytes: u64) -> Result<(), Error> {
        let resolved = self.resolved();
        resolved.memory.place(offset, bytes).map(drop).map_err(|error| error.at(self.address()))
    }

    /// Returns the transport to the owner; `None` before the first lane is established.
    pub fn transport_kind(&self) -> Option<TransportKind> {
        self.resolved().target.transport_kind()
    }

    /// Returns the setup time of the last lane to the owner; `None` before the first, and for a
    /// local segment.
    pub fn opening(&self) -> Option<LaneOpening> {
        self.resolved().target.opening()
    }

    /// Whether a caller with many segments may forget this one: nothing else holds it, and its owner has
    /// neither a lane nor a batch here. The engine knows of an incomplete write without it, up to `peers_max`.
    #[doc(hidden)]
    pub fn is_unused(&self) -> bool {
        Arc::strong_count(&self.inner) == 1 && self.resolved().target.is_idle()
    }

    /// Creates an empty batch.
    pub fn batch(&self) -> Batch {
        Batch { segment: self.clone(), requests: Vec::new(), timeout: None }
    }

    /// Writes `span` at `offset` of the segment when awaited.
    pub fn write(&self, span: &Span, offset: u64) -> Batch {
        self.batch().write(span, offset)
    }

    /// Reads from `offset` of the segment into `span` when awaited.
    pub fn read(&self, span: &Span, offset: u64) -> Batch {
        self.batch().read(span, offset)
    }

    /// Asks the owner for the CRC-32C of `bytes` bytes at `offset`, at most
    /// `checksum_bytes_max` of its limits. Cancel-safe.
    ///
    /// A Mooncake node computes no checksum: its bytes are read, and their checksum is returned.
    /// The local limit applies then.
    ///
    /// # Errors
    /// The owner cannot be reached, or refuses the request.
    pub async fn checksum(&self, offset: u64, bytes: u64) -> Result<u32, Error> {
        let resolved = self.resolve().await?;
        let Resolved { memory, target, .. } = &*resolved;
        let placed = memory.place(offset, bytes).map_err(|error| error.at(self.address()));
        let (part, address) = placed?;
        if target.incarnation() == Incarnation::UNKNOWN {
            return self.checksum_by_reading(offset, bytes).await;
        }
        let question = Checksum { key: part.region.key, address, bytes, answer: None };
        let answers = &self.inner.engine.shared().answers;
        let refused = |text: String| {
            Error::peer(Stage::Checksum, Cause::ChecksumRefused(text)).at(self.address())
        };
        if target.incarnation() == answers.incarnation {
            return answers.checksum(&question, Requester::Own, None).await.map_err(refused);
        }
        let asked = self.call_address(target);
        let descriptor = self.inner.engine.ask(&asked, Some(question)).await?;
        // The first sign of the restart if no lane noticed it.
        if descriptor.incarnation != target.incarnation() {
            target.mark_stale();
            return Err(Error::peer(Stage::Checksum, Cause::PeerRestarted).at(self.address()));
        }
        match descriptor.checksum.and_then(|checksum| checksum.answer) {
            Some(Ok(sum)) => Ok(sum),
            Some(Err(text)) => Err(refused(text)),
            None => Err(refused("the node answers no checksum requests".into())),
        }
    }

    /// Call address of the owner: the opened one, or the one from a store.
    fn call_address(&self, target: &Target) -> String {
        match &self.inner.engine.shared().directory {
            None => self.address().to_owned(),
            Some(_) => target.address().to_string(),
        }
    }

    /// Waits until no earlier, incomplete write to the node
    /// ([`Remote::Indeterminate`](crate::Remote)) can land: the lanes that carried it
    /// are retired with the node's consent, or the node is proven to have restarted. Costs nothing
    /// without such a write; otherwise transfers to the node wait for a new lane. Cancel-safe.
    ///
    /// # Errors
    /// The node cannot be reached, and the writes stay indeterminate; may be retried. A Mooncake
    /// node cannot confirm anything, so its writes stay indeterminate.
    pub async fn fence(&self) -> Result<(), Error> {
        self.inner.engine.check_open()?;
        let resolved = self.resolved();
        let target = &resolved.target;
        if target.incarnation() == Incarnation::UNKNOWN {
            let text = "a Mooncake node does not report whether a received write will still land";
            return Err(
                Error::peer(Stage::Transfer, Cause::Invalid(text.into())).at(self.address())
            );
        }
        if !target.is_in_doubt() {
            return Ok(());
        }
        let answering = self.resolve().await?;
        let lost = |error: Arc<TransportError>| {
            Error::new(error.side, Stage::Handshake, Cause::PeerLost(error)).at(self.address())
        };
        target.fence(&answering.target).await.map_err(lost)
    }

    async fn checksum_by_reading(&self, offset: u64, bytes: u64) -> Result<u32, Error> {
        let max = self.inner.engine.shared().answers.checksum_bytes_max;
        if bytes > max {
            let value = usize::try_from(max).unwrap_or(usize::MAX);
            let cause = Cause::Limit { name: "checksum_bytes_max", value };
            return Err(Error::local(Stage::Checksum, cause).at(self.address()));
        }
        let chunk = usize::try_from(bytes).unwrap_or(usize::MAX).clamp(1, READ_BACK_BYTES);
        let memory = Memory::zeroed(chunk)?;
        let (mut sum, mut done) = (0, 0);
        while done < bytes {
            let length = (bytes - done).min(chunk as u64) as usize;
            self.read(&memory.span(0, length)?, offset.saturating_add(done)).await?;
            sum = crc32c::crc32c_combine(sum, memory.crc32c(0, length)?, length);
            done += length as u64;
        }
        Ok(sum)
    }

    fn resolved(&self) -> Arc<Resolved> {
        self.inner.resolved.lock().clone()
    }

    /// Resolves the segment: returns the cached descriptor, unless its owner was lost or
    /// restarted.
    async fn resolve(&self) -> Result<Arc<Resolved>, Error> {
        let cached = self.resolved();
        if !cached.is_stale() {
            return Ok(cached);
        }
        let failures = self.inner.failures.load(Ordering::Acquire);
        let mut last = self.inner.refresh.lock().await;
        let cached = self.resolved();
        if !cached.is_stale() {
            return Ok(cached);
        }
        if let Some(error) = last.as_ref()
            && self.inner.failures.load(Ordering::Acquire) != failures
        {
            return Err(error.clone());
        }
        // Rare and large: in a box, it does not enlarge the future of every submission.
        let refreshed = Box::pin(self.refresh_settled()).await;
        if let Err(error) = &refreshed {
            *last = Some(error.clone());
            self.inner.failures.fetch_add(1, Ordering::AcqRel);
        }
        refreshed
    }

    /// Looks the descriptor up, and once more if a doubt arose meanwhile, which the answer does not settle. A
    /// doubt that arises during the second look-up is left to the next use.
    async fn refresh_settled(&self) -> Result<Arc<Resolved>, Error> {
        let fresh = self.refresh().await?;
        if fresh.is_stale() { self.refresh().await } else { Ok(fresh) }
    }

    async fn refresh(&self) -> Result<Arc<Resolved>, Error> {
        let look_up = look_ups::begin();
        let (descriptor, target) = self.inner.engine.find(self.address(), look_up).await?;
        let memory = RemoteMemory::of(&descriptor, &self.inner.scope);
        let memory = memory.map_err(|error| error.at(self.address()))?;
        let fresh = Resolved::new(target, memory, look_up);
        *self.inner.resolved.lock() = fresh.clone();
        Ok(fresh)
    }
}

/// Extends an entry of the same block to cover `span`, or adds one.
fn include(spans: &mut Vec<Span>, span: &Span) -> Result<(), Error> {
    let same = |known: &&mut Span| known.memory().same_block(span.memory());
    for known in spans.iter_mut().filter(same) {
        let first = known.offset().min(span.offset());
        let end = (known.offset() + known.len()).max(span.offset() + span.len());
        if end - first <= REGISTERED_TOGETHER_MAX {
            *known = span.memory().span(first, end - first)?;
            return Ok(());
        }
    }
    spans.push(span.clone());
    Ok(())
}

/// Requests that are submitted and complete together. Awaiting a batch submits it and waits.
#[must_use = "a batch does nothing until it is submitted"]
pub struct Batch {
    segment: Segment,
    /// The place of each is an offset in the segment until the batch is submitted.
    requests: Vec<RequestSpan>,
    timeout: Option<Duration>,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("segment", &self.segment)
            .field("requests", &self.requests.len())
            .field("timeout", &self.timeout)
            .finish()
    }
}

impl Batch {
    /// Adds a write of `span` at `offset`.
    pub fn write(mut self, span: &Span, offset: u64) -> Self {
        let span = span.clone();
        let remote = RemoteSpan { key: 0, address: offset };
        self.requests.push(RequestSpan {
            direction: Direction::Write,
            span,
            remote,
            regions: RequestRegions::None,
        });
        self
    }

    /// Adds a read from `offset` into `span`.
    pub fn read(mut self, span: &Span, offset: u64) -> Self {
        let span = span.clone();
        let remote = RemoteSpan { key: 0, address: offset };
        self.requests.push(RequestSpan {
            direction: Direction::Read,
            span,
            remote,
            regions: RequestRegions::None,
        });
        self
    }

    /// Sets the timeout of the batch and of its submission, counted from the latter. A batch of which an
    /// RDMA device has slices ends when they do, within the bound of `docs/hardware.md`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Submits the batch. Waits only for the new descriptor of an owner that was lost or has
    /// restarted, and for the registration of memory that the RDMA device does not know yet
    /// ([`Engine::prepare`]). Cancel-safe: nothing was submitted.
    ///
    /// A batch of at most 64 requests and 2 MiB to a process of this host is copied meanwhile, which takes
    /// about 250 microseconds of the calling thread.
    ///
    /// # Errors
    /// An invalid range, a missing permission, a reached limit, or an unreachable owner.
    pub async fn submit(mut self) -> Result<Transfer, Error> {
        // A task whose batches end at once, and which awaits none, yields once its budget is spent.
        for _ in 0..=self.bytes_at_once() / BYTES_PER_BUDGET {
            tokio::task::consume_budget().await;
        }
        let deadline = self.timeout.map(|timeout| self.segment.inner.engine.deadline(timeout));
        let resolved = match self.place_at_once() {
            Some(placed) => placed,
            // Rare and large: in a box, it does not enlarge the future of every submission.
            None => {
                let engine = self.segment.inner.engine.clone();
                Box::pin(by(&engine, deadline, (Side::Peer, Stage::Metadata), self.check())).await
            }
        };
        let resolved = resolved.map_err(|error| error.at(self.segment.address()))?;
        let submission = self.submit_to(&resolved, deadline).await?;
        let target = resolved.target.clone();
        let submitted = Submitted { segment: self.segment.inner, resolved, deadline };
        Ok(Transfer::new(target, submission, Some(submitted)))
    }

    /// Bytes that its submission copies, if the peer shares memory; 0 beyond the limits of that.
    fn bytes_at_once(&self) -> u64 {
        if self.requests.len() > AT_ONCE_REQUESTS_MAX {
            return 0;
        }
        let bytes: u64 = self.requests.iter().map(|request| request.span.len() as u64).sum();
        if bytes <= AT_ONCE_BYTES_MAX { bytes } else { 0 }
    }

    /// Submits placed requests.
    async fn submit_to(
        &mut self,
        resolved: &Resolved,
        deadline: Option<Instant>,
    ) -> Result<Submission, Error> {
        let engine = &self.segment.inner.engine;
        let Resolved { target, memory, .. } = resolved;
        if memory.has_keys() && engine.shared().answers.offer.transports.rdma {
            let mut unknown = find_regions(engine, &mut self.requests, memory)?;
            let shared = engine.shared();
            let clock = &*shared.clock;
            if !unknown.is_empty() && target.shares_memory() {
                let now = clock.now();
                unknown.retain(|span| !shared.unregistered.has(span, now));
            }
            if !unknown.is_empty() {
                // As above.
                let registered = register_missing(engine, &mut self.requests, memory, &unknown);
                let registered =
                    by(engine, deadline, (Side::Local, Stage::Registration), registered);
                if let Err(error) = Box::pin(registered).await {
                    let shares = comes_to_share(&*shared.transport, clock, target, deadline);
                    if !target.shares_memory() && !Box::pin(shares).await {
                        return Err(error);
                    }
                    // Copies need no registration; the device refuses bytes that it has to carry.
                    tracing::debug!(%error, "memory is not registered for a peer of this host");
                }
            }
        }
        engine.check_open()?;
        let submitted = target.submit(std::mem::take(&mut self.requests), deadline);
        submitted.map_err(|error| submit_error(error).at(self.segment.address()))
    }

    /// Checks and places the requests by the cached descriptor; `None` if another may be needed.
    fn place_at_once(&mut self) -> Option<Result<Arc<Resolved>, Error>> {
        let cached = self.segment.resolved();
        if cached.is_stale() {
            return None;
        }
        match self.place_in(&cached.memory) {
            Err(error) if may_be_outdated(&error) => None,
            placed => Some(placed.map(|()| cached)),
        }
    }

    /// Resolves the segment, and checks and places the requests. An unknown address, or an access
    /// that is not permitted, fetches the descriptor once more: the node may have registered memory
    /// or granted the access since. An answer from before that settles nothing.
    async fn check(&mut self) -> Result<Arc<Resolved>, Error> {
        let resolved = self.segment.resolve().await?;
        match self.place_in(&resolved.memory) {
            Ok(()) => Ok(resolved),
            Err(error) if may_be_outdated(&error) => {
                let doubt = look_ups::doubt();
                resolved.outdated.store(true, Ordering::Release);
                let mut fresh = self.segment.resolve().await?;
                let mut placed = self.place_in(&fresh.memory);
                let is_same = placed.as_ref().is_err_and(may_be_outdated);
                if AfterRefusal::decide(doubt, fresh.look_up, is_same) == AfterRefusal::LookUp {
                    fresh.outdated.store(true, Ordering::Release);
                    fresh = self.segment.resolve().await?;
                    placed = self.place_in(&fresh.memory);
                }
                placed.map(|()| fresh)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks each request against the bounds and permissions of its region, and places it there. After an error
    /// every place is an offset as before.
    fn place_in(&mut self, memory: &RemoteMemory) -> Result<(), Error> {
        let mut placed = 0;
        let result = place(&mut self.requests, memory, &mut placed);
        if result.is_err() {
            memory.unplace(&mut self.requests[..placed]);
        }
        result
    }
}

/// Places requests by offset in the regions that they are checked against, up to the first that fails, and counts
/// them.
fn place(
    requests: &mut [RequestSpan],
    memory: &RemoteMemory,
    placed: &mut usize,
) -> Result<(), Error> {
    for RequestSpan { direction, span, remote, .. } in requests {
        let (part, address) = memory.place(remote.address, span.len() as u64)?;
        let allowed = match direction {
            Direction::Read => part.region.readable,
            Direction::Write => part.region.writable,
        };
        if !allowed {
            return Err(Error::peer(Stage::Transfer, Cause::Permission(*direction)));
        }
        if *direction == Direction::Read && !span.is_writable() {
            return Err(Error::local(Stage::Transfer, Cause::ReadOnly));
        }
        *remote = RemoteSpan { key: part.region.key, address };
        *placed += 1;
    }
    Ok(())
}

/// Whether requests that a descriptor does not permit may be permitted by a later one.
fn may_be_outdated(error: &Error) -> bool {
    matches!(error.cause(), Cause::NoSuchAddress { .. } | Cause::Permission(_))
}

impl Resubmit for Inner {
    fn again(
        self: Arc<Self>,
        resolved: Arc<Resolved>,
        deadline: Option<Instant>,
        refused: (Error, Vec<RequestSpan>),
    ) -> Resubmission {
        Box::pin(async move { Segment { inner: self }.again(resolved, deadline, refused).await })
    }
}

impl Segment {
    /// Submits a refused batch once more, after its segment's descriptor was fetched again, if the
    /// segment has other keys now or the refusal was only a guess. Waits before until nothing of
    /// the first attempt can land any more.
    async fn again(
        &self,
        resolved: Arc<Resolved>,
        deadline: Option<Instant>,
        (refusal, mut requests): (Error, Vec<RequestSpan>),
    ) -> Result<Transfer, Error> {
        let doubt = look_ups::doubt();
        resolved.outdated.store(true, Ordering::Release);
        self.inner.engine.update_counters(|it| it.keys_refused += 1);
        let report = refusal.report().cloned();
        let with_report = |error: Error| match report.clone() {
            Some(report) => error.at(self.address()).with_report(report),
            None => error.at(self.address()),
        };
        let engine = &self.inner.engine;
        resolved.memory.unplace(&mut requests);
        let permits_same = |fresh: &Resolved| {
            fresh.memory.is_same_for(&resolved.memory, &requests)
                && fresh.target.incarnation() == resolved.target.incarnation()
        };
        let resolving = async {
            let fresh = self.resolve().await?;
            let is_same = permits_same(&fresh);
            match AfterRefusal::decide(doubt, fresh.look_up, is_same) {
                AfterRefusal::LookUp => {
                    fresh.outdated.store(true, Ordering::Release);
                    self.resolve().await
                }
                AfterRefusal::Fail | AfterRefusal::Submit => Ok(fresh),
            }
        };
        let fresh = by(engine, deadline, (Side::Peer, Stage::Metadata), resolving).await;
        let fresh = fresh.map_err(with_report)?;
        if permits_same(&fresh) && refusal.side() == Side::Protection {
            return Err(refusal);
        }
        if refusal.remote() == Some(Remote::Indeterminate) {
            if resolved.target.incarnation() == Incarnation::UNKNOWN {
                return Err(refusal);
            }
            let fenced = async {
                let fenced = resolved.target.fence(&fresh.target).await;
                fenced.map_err(|error| {
                    Error::new(error.side, Stage::Handshake, Cause::PeerLost(error))
                })
            };
            by(engine, deadline, (Side::Peer, Stage::Handshake), fenced)
                .await
                .map_err(with_report)?;
        }
        tracing::debug!(segment = self.name(), %refusal, "a batch is submitted again");
        let mut batch = Batch { segment: self.clone(), requests, timeout: None };
        batch.place_in(&fresh.memory).map_err(with_report)?;
        let submission = batch.submit_to(&fresh, deadline).await.map_err(with_report)?;
        Ok(Transfer::new(fresh.target.clone(), submission, None))
    }
}

/// Waits for a step of a submission until its deadline.
async fn by<T>(
    engine: &Engine,
    deadline: Option<Instant>,
    (side, stage): (Side, Stage),
    step: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let Some(deadline) = deadline else { return step.await };
    tokio::select! {
        ended = step => ended,
        () = engine.sleep_until(deadline) => Err(Error::new(side, stage, Cause::DeadlinePassed)),
    }
}

impl IntoFuture for Batch {
    type Output = Result<BatchReport, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.submit().await?.await })
    }
}

/// Whether a registration has all bytes of a span.
fn has(local: &LocalRegion, span: &Span) -> bool {
    local.memory().covers(span)
}

/// Looks up the device registrations of local memory, and returns the memory that has none.
fn find_regions(
    engine: &Engine,
    pieces: &mut [RequestSpan],
    memory: &RemoteMemory,
) -> Result<Vec<Span>, Error> {
    let transport = &engine.shared().transport;
    let mut unknown: Vec<Span> = Vec::new();
    let mut last = &mut RequestRegions::None;
    for RequestSpan { span, remote, regions, .. } in pieces.iter_mut() {
        if span.is_empty() {
            continue;
        }
        let part = memory.part(remote.address, span.len() as u64)?;
        // Requests of one batch are mostly from one block, and to one region.
        let known = match last {
            RequestRegions::Own(pair) if has(&pair.local, span) => Some(pair),
            _ => None,
        };
        if known.as_ref().is_some_and(|pair| Arc::ptr_eq(&pair.remote, &part.keys)) {
            *regions = std::mem::replace(last, RequestRegions::Next);
        } else {
            let local = known.map(|pair| pair.local.clone());
            match local.or_else(|| transport.registered(span)) {
                Some(local) => *regions = pair(&local, part),
                None => include(&mut unknown, span)?,
            }
        }
        last = regions;
    }
    Ok(unknown)
}

/// Registers memory with the devices, for the requests that have no registration. Returns the first
/// refusal after all were tried.
async fn register_missing(
    engine: &Engine,
    pieces: &mut [RequestSpan],
    memory: &RemoteMemory,
    unknown: &[Span],
) -> Result<(), Error> {
    let mut fresh = Vec::with_capacity(unknown.len());
    let mut refused = None;
    for span in unknown {
        match engine.prepare_for(span, None).await {
            Ok(local) => fresh.extend(local),
            Err(error) => {
                let shared = engine.shared();
                shared.unregistered.insert(span, shared.clock.now());
                refused = refused.or(Some(error));
            }
        }
    }
    // An empty span is never registered and never posted.
    let missing = |piece: &&mut RequestSpan| {
        matches!(piece.regions, RequestRegions::None) && !piece.span.is_empty()
    };
    for piece in pieces.iter_mut().filter(missing) {
        if let Some(local) = fresh.iter().find(|local| has(local, &piece.span)) {
            piece.regions =
                pair(local, memory.part(piece.remote.address, piece.span.len() as u64)?);
        }
    }
    refused.map_or(Ok(()), Err)
}

/// The registrations at both ends of a request; none if the peer's end has no keys.
fn pair(local: &Arc<LocalRegion>, part: &RemotePart) -> RequestRegions {
    match part.region.remote_keys.is_empty() {
        true => RequestRegions::None,
        false => {
            RequestRegions::Own(RegionPair { local: local.clone(), remote: part.keys.clone() })
        }
    }
}
