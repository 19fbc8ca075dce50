//! The transport: the NICs of a node, the threads of their steps, and the table of endpoints.

mod slots;
mod steps;
#[cfg(test)]
mod tests;

use crate::counters::NicCounters;
use crate::error::VerbsError;
use crate::settings::LANE_QUEUE_PAIRS_DEFAULT;
use crate::verbs::{AWAITED_DIALS, Nic, NicCounts};
use handfast_core::connection::LaneProgress;
use handfast_core::policy::TrustGroups;
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::Body;
use handfast_core::{Lifecycle, NicPath, Pair};
use handfast_transport::{
    Attempt, Completion, Created, DataPath, Endpoints, LaneHandle, LaneSink, LimitReached,
    NicLimit, NotCreated, Posting, Sent, SliceId, Step, TransportKind,
};
use parking_lot::RwLock;
use slots::Slots;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use steps::{Place, Steps};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Longest probe of a rail ([`DataPath::probe_rail`]). A device usually gives up earlier, see
/// [`NicConfig::retries`](crate::NicConfig::retries).
pub const RAIL_PROBE_MAX: Duration = Duration::from_secs(5);
/// Longest probe of a legacy peer ([`Endpoints::probe`]): less than the life cycle's limit of an
/// operation (`Timing::operation`, 5 s), and longer than most devices retry towards a silent peer.
pub const PEER_PROBE_MAX: Duration = Duration::from_secs(4);
/// Shortest wait for a withdrawn slice: the NIC's thread takes what the device has reported.
const WITHDRAWAL_MIN: Duration = Duration::from_millis(50);
/// Longest time that a waiting thread looks for a completion before it sleeps.
pub const CALLER_SPIN_MAX: Duration = Duration::from_micros(200);
/// Bits of a packet sequence number.
const PSN_BITS: u32 = 24;
const PSN_MASK: u32 = (1 << PSN_BITS) - 1;

/// Reads the name of the local NIC from the path to a peer; `None` stands for the first NIC of the
/// transport.
pub type LocalNic = fn(&NicPath) -> Option<&str>;

/// An endpoint, from its creation to the end of its retirement.
#[derive(Clone)]
struct Endpoint {
    peer: NicPath,
    /// The local NIC.
    nic: Arc<Nic>,
    /// The lane, once it is connected.
    lane: Option<Arc<dyn LaneHandle>>,
}

/// Lanes over queue pairs of several NICs. Cloning is cheap and shares them. Each step runs on one
/// of the transport's threads, in the peer's turn; posting runs on the caller's thread. Dropping the
/// last clone ends all lanes, and blocks as the drop of a [`Nic`] does.
#[derive(Clone)]
pub struct RdmaTransport {
    inner: Arc<Inner>,
}

struct Inner {
    slots: Slots,
    local_nic: LocalNic,
    trust: TrustGroups,
    steps: Steps,
    sink: Arc<dyn LaneSink>,
    /// Runtime handle, since a withdrawal may come from a NIC's own thread.
    runtime: Handle,
    endpoints: RwLock<BTreeMap<Lifecycle, Endpoint>>,
}

impl RdmaTransport {
    /// Creates a transport without endpoints over open NICs, which have the names of their devices.
    /// Without a NIC every creation fails. `sink` receives the slices that are posted to no lane and
    /// the lanes that fail by a withdrawal; everything else goes to the sink of the NIC.
    ///
    /// # Errors
    /// A thread cannot be started.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(nics: Vec<Nic>, local_nic: LocalNic, sink: Arc<dyn LaneSink>) -> io::Result<Self> {
        Self::in_groups(nics, local_nic, TrustGroups::default(), sink)
    }

    /// Like [`RdmaTransport::new`], with lanes in the protection domains of their peers' trust groups: each
    /// NIC was opened for as many.
    ///
    /// # Errors
    /// As [`RdmaTransport::new`].
    ///
    /// # Panics
    /// As [`RdmaTransport::new`].
    pub fn in_groups(
        nics: Vec<Nic>,
        local_nic: LocalNic,
        trust: TrustGroups,
        sink: Arc<dyn LaneSink>,
    ) -> io::Result<Self> {
        let steps = Steps::start(nics.first().map_or("", Nic::device))?;
        let (slots, runtime, endpoints) = (Slots::new(nics), Handle::current(), RwLock::default());
        let inner = Inner { slots, local_nic, trust, steps, sink, runtime, endpoints };
        inner.slots.nics().into_iter().flatten().for_each(|nic| inner.refill(&nic));
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The devices of the NICs, by name, in the order of the construction.
    pub fn devices(&self) -> Vec<String> {
        self.inner.slots.devices()
    }

    /// The NICs, in the same order, or the failure by which one was lost and taken out.
    pub fn nics(&self) -> Vec<Result<Arc<Nic>, VerbsError>> {
        self.inner.slots.nics()
    }

    /// Counters of all NICs together, lost ones included.
    pub fn counters(&self) -> NicCounters {
        self.inner.slots.counters()
    }

    /// The counters of a device, for [`Nic::open_again`].
    pub fn counts(&self, device: &str) -> NicCounts {
        self.inner.slots.counts(device)
    }

    /// Takes a lost NIC out, and returns it. New lanes over its device fail with `lost`; those that
    /// there are hold the NIC until they are retired. Its drop blocks.
    pub fn remove_nic(&self, device: &str, lost: VerbsError) -> Option<Arc<Nic>> {
        self.inner.slots.remove(device, lost)
    }

    /// Puts the NIC of a device that was opened again in its place. It takes no lanes yet.
    pub fn put_nic(&self, nic: Arc<Nic>) {
        self.inner.slots.put(nic);
    }

    /// The device of a path, if its NIC takes no lanes.
    pub fn lost_device(&self, peer: &NicPath) -> Option<String> {
        self.inner.slots.lost_device((self.inner.local_nic)(peer))
    }

    /// Lets a NIC of [`RdmaTransport::put_nic`] take lanes.
    pub fn admit_lanes(&self, device: &str) {
        self.inner.slots.admit_lanes(device);
        let opened = self.inner.slots.nics().into_iter().flatten();
        opened.filter(|nic| nic.device() == device).for_each(|nic| self.inner.refill(&nic));
    }

    /// Records a peer's announced GID with the NIC of its path, see [`Nic::note_address`]. Ignored
    /// if the path names an unknown NIC, which is an error of the creation.
    pub fn note_address(&self, peer: &NicPath, gid: &str, request: Option<Pair>) {
        if let Ok(nic) = self.inner.nic(peer) {
            nic.note_address(peer, gid, request);
        }
    }

    /// Records what a peer announced in a request with the NIC of its path, see
    /// [`Nic::note_request`].
    pub fn note_request(&self, peer: &NicPath, body: &Body) {
        if let Ok(nic) = self.inner.nic(peer) {
            nic.note_request(Some(peer), body);
        }
    }

    /// Like [`Endpoints::create`], for a legacy peer, which announces no sequence numbers: each queue
    /// pair sends from `psn`, 24 bits, and the announced address is the one of the NIC's opening,
    /// since the peer may look it up in the descriptor. They connect out of band.
    pub fn create_legacy(&self, lifecycle: Lifecycle, peer: NicPath, psn: u32) -> Created {
        let create = move |nic: &Nic| {
            nic.create_out_of_band(lifecycle, &vec![psn; nic.queue_pairs_per_lane()])
        };
        Box::pin(self.inner.clone().create(lifecycle, peer, create))
    }

    /// Returns whether the endpoint exists: created, or under creation, and not retired.
    pub fn has_endpoint(&self, lifecycle: Lifecycle) -> bool {
        self.inner.endpoints.read().contains_key(&lifecycle)
    }

    /// Queue pairs of an endpoint here, unless its peer has fewer.
    pub fn queue_pairs_per_lane(&self, lifecycle: Lifecycle) -> usize {
        let endpoints = self.inner.endpoints.read();
        let nic = endpoints.get(&lifecycle).map(|endpoint| &endpoint.nic);
        nic.map_or(LANE_QUEUE_PAIRS_DEFAULT, |nic| nic.queue_pairs_per_lane())
    }

    /// Slices that a lane takes at once, see [`Nic::lane_depth`]; `None` if there is no such lane.
    pub fn lane_depth(&self, lane: Lifecycle) -> Option<u32> {
        self.inner.connected(lane)?.lane_depth(lane)
    }

    /// Returns whether the endpoint is connected, and so the lane of its lifecycle exists here.
    pub fn is_connected(&self, lane: Lifecycle) -> bool {
        self.inner.endpoints.read().get(&lane).is_some_and(|endpoint| endpoint.lane.is_some())
    }

    /// Like [`DataPath::post`], but returns false and leaves `postings` as they are if there is no
    /// such lane. For a caller with another transport, in place of a second look-up.
    pub fn try_post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) -> bool {
        let handle = self.inner.endpoints.read().get(&lane).and_then(|it| it.lane.clone());
        handle.is_some_and(|handle| handle.post(postings))
    }

    /// Like [`DataPath::withdraw`], but returns false if there is no such lane.
    pub fn try_withdraw(
        &self,
        lane: Lifecycle,
        slice: SliceId,
        silence: handfast_core::Duration,
    ) -> bool {
        let Some(nic) = self.inner.connected(lane) else { return false };
        if nic.withdraw(lane, slice) {
            return true;
        }
        let patience = nic.patience();
        let wait =
            patience.saturating_sub(Duration::from_nanos(silence.nanos())).max(WITHDRAWAL_MIN);
        let completions = nic.completions(lane);
        let (nic, sink) = (Arc::downgrade(&nic), Arc::downgrade(&self.inner.sink));
        self.inner.runtime.spawn(async move {
            tokio::time::sleep(wait).await;
            // A lane that answers again has the whole time, once.
            if nic.upgrade().is_some_and(|nic| nic.completions(lane) != completions) {
                tokio::time::sleep(patience.saturating_sub(wait)).await;
            }
            let (Some(nic), Some(sink)) = (nic.upgrade(), sink.upgrade()) else { return };
            // The slice may have completed meanwhile.
            if nic.holds(lane, slice) {
                let detail = format!(
                    "the device reported neither an answer nor an error of a withdrawn slice within \
                     {} ms, more than its timers take",
                    patience.as_millis()
                );
                let error = TransportError::new(nic.silent_side(), "withdraw", detail);
                sink.on_lane_failed(lane, error);
            }
        });
        true
    }
}

impl DataPath for RdmaTransport {
    /// Posts slices on a lane and leaves `postings` empty, as [`Nic::post`] does. Without such a lane
    /// they end at once, as `Released` with [`Sent::None`].
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        if self.try_post(lane, postings) {
            return;
        }
        let released = |posting: Posting| Completion::released(posting.slice, Sent::None);
        let mut ended: Vec<_> = postings.drain(..).map(released).collect();
        if !ended.is_empty() {
            self.inner.sink.on_completions(lane, &mut ended);
        }
    }

    fn handle(&self, lane: Lifecycle) -> Option<Arc<dyn LaneHandle>> {
        self.inner.endpoints.read().get(&lane)?.lane.clone()
    }

    /// Gives a slice back that the device does not have. Otherwise fails the lane if the slice does not complete
    /// within [`Nic::patience`], of which the lane's silence until now is a part: a queue pair gives nothing
    /// back, and a device that still tries ends it earlier. The slice ends with the lane,
    /// [`NicConfig::drain`](crate::NicConfig::drain) later at most.
    fn withdraw(&self, lane: Lifecycle, slice: SliceId, silence: handfast_core::Duration) {
        self.try_withdraw(lane, slice, silence);
    }

    /// Takes the completions of the lane's queue for as long as the NIC's own thread would poll,
    /// and no longer than [`CALLER_SPIN_MAX`]. With [`Polling::Event`](crate::Polling::Event) it
    /// returns at once.
    fn busy_poll(&self, lane: Lifecycle, is_done: &mut dyn FnMut() -> bool) {
        if let Some(handle) = self.handle(lane) {
            handle.busy_poll(is_done);
        }
    }

    /// Probes the peer over each queue pair of the lane, for [`RAIL_PROBE_MAX`] at most. A rail
    /// whose devices answer no probe is used without.
    fn probe_rail(&self, lane: Lifecycle) -> Step<()> {
        let nic = self.inner.endpoints.read().get(&lane).map(|endpoint| endpoint.nic.clone());
        if nic.is_some_and(|nic| !nic.can_probe(lane)) {
            return Box::pin(async { Ok(()) });
        }
        Box::pin(self.inner.clone().probe(lane, "probe", RAIL_PROBE_MAX))
    }
}

impl Endpoints for RdmaTransport {
    /// Creates queue pairs with sequence numbers out of `entropy`, and announces the address that
    /// fits the peer, see [`Nic::create_for`]. At an error nothing is left of the endpoint.
    fn create(&self, lifecycle: Lifecycle, peer: NicPath, entropy: u64, _: Attempt) -> Created {
        let (to, group) = (peer.clone(), self.inner.trust.of(&peer.node));
        let create = move |nic: &Nic| {
            nic.create_in(group, &to, lifecycle, &psns(entropy, nic.queue_pairs_per_lane()))
        };
        Box::pin(self.inner.clone().create(lifecycle, peer, create))
    }

    fn connect(&self, local: Pair, _: Pair, body: Body) -> Step<()> {
        Box::pin(self.inner.clone().connect(local.lifecycle, body))
    }

    /// Ends the endpoint. Its step waits in the peer's turn and is refused at no limit.
    fn retire(&self, lifecycle: Lifecycle) -> Step<()> {
        Box::pin(self.inner.clone().retire(lifecycle))
    }

    /// Probes the peer over each queue pair of the endpoint, for [`PEER_PROBE_MAX`] at most. The read
    /// is empty and needs no key: the peer's device answers for the queue pair, and a device that
    /// distinguishes an earlier pairing from this one by a read does so by an empty one too
    /// (`tests/rdma/hazards.rs`).
    fn probe(&self, lifecycle: Lifecycle) -> Step<()> {
        Box::pin(self.inner.clone().probe(lifecycle, "prove", PEER_PROBE_MAX))
    }

    fn skip_numbers(&self, peer: &NicPath, count: u32) -> Step<()> {
        Box::pin(self.inner.clone().skip_numbers(peer.clone(), count))
    }

    fn transport_kind(&self, _: Lifecycle) -> TransportKind {
        TransportKind::Rdma
    }

    /// Always 0: a queue pair does not expose the peer's requests.
    fn served(&self, _: Lifecycle) -> u64 {
        0
    }
}

impl Inner {
    /// The local NIC of the path to `peer`.
    fn nic(&self, peer: &NicPath) -> Result<Arc<Nic>, TransportError> {
        self.slots.for_lane((self.local_nic)(peer))
    }

    /// Forgets an endpoint, which may be the last to hold its NIC: the end of one blocks.
    fn forget(&self, lifecycle: Lifecycle) {
        let endpoint = self.endpoints.write().remove(&lifecycle);
        if endpoint.as_ref().is_some_and(|endpoint| endpoint.nic.lost().is_some()) {
            self.runtime.spawn_blocking(move || drop(endpoint));
        }
    }

    fn endpoint(
        &self,
        lifecycle: Lifecycle,
        call: &'static str,
    ) -> Result<Endpoint, TransportError> {
        let endpoint = self.endpoints.read().get(&lifecycle).cloned();
        endpoint.ok_or_else(|| TransportError::new(Side::Local, call, "no lane has the lifecycle"))
    }

    /// The NIC of a connected endpoint.
    fn connected(&self, lane: Lifecycle) -> Option<Arc<Nic>> {
        let endpoints = self.endpoints.read();
        let connected = endpoints.get(&lane).filter(|endpoint| endpoint.lane.is_some());
        connected.map(|endpoint| endpoint.nic.clone())
    }

    async fn create(
        self: Arc<Self>,
        lifecycle: Lifecycle,
        peer: NicPath,
        create: impl FnOnce(&Nic) -> Result<Body, VerbsError> + Send + 'static,
    ) -> Result<Body, NotCreated> {
        let nic = self.nic(&peer)?;
        // Before the step, which may go on after this future is dropped: a retire follows it.
        let endpoint = Endpoint { peer: peer.clone(), nic: nic.clone(), lane: None };
        self.insert(lifecycle, endpoint)?;
        let creating = nic.clone();
        let created = self.steps.run(&peer, move || create(&creating)).await;
        self.refill(&nic);
        // The endpoint's handle is the last one then, and ends on a thread that may block.
        drop(nic);
        created.map_err(|error| {
            self.forget(lifecycle);
            not_created(error)
        })
    }

    fn insert(&self, lifecycle: Lifecycle, endpoint: Endpoint) -> Result<(), TransportError> {
        let mut endpoints = self.endpoints.write();
        if endpoints.contains_key(&lifecycle) {
            return Err(TransportError::new(Side::Local, "bring_up", "the lifecycle exists"));
        }
        endpoints.insert(lifecycle, endpoint);
        Ok(())
    }

    async fn connect(
        self: Arc<Self>,
        lifecycle: Lifecycle,
        body: Body,
    ) -> Result<(), TransportError> {
        let Endpoint { peer, nic, .. } = self.endpoint(lifecycle, "wire")?;
        let Some(changes) = nic.connect_changes(lifecycle) else {
            let connect = move || nic.connect(lifecycle, &body).map(|()| nic.handle(lifecycle));
            let lane = self.steps.run(&peer, connect).await?;
            self.on_connected(lifecycle, lane);
            return Ok(());
        };
        self.connect_managed((peer, nic), lifecycle, body, changes).await
    }

    /// Connects through the connection manager. A thread of the steps waits for the answer of the first
    /// read.
    async fn connect_managed(
        &self,
        (peer, nic): (NicPath, Arc<Nic>),
        lifecycle: Lifecycle,
        body: Body,
        mut changes: watch::Receiver<u64>,
    ) -> Result<(), TransportError> {
        let deadline = tokio::time::Instant::now() + nic.dial_max();
        let connecting = nic.clone();
        let begin = move || connecting.begin_connect(lifecycle, &body, deadline.into_std());
        let mut progress = self.steps.run(&peer, begin).await?;
        while progress == LaneProgress::Pending {
            // The sender lives as long as the lane, whose end is an error of the next step.
            let is_overdue = tokio::time::timeout_at(deadline, changes.changed()).await.is_err();
            let connecting = nic.clone();
            let go_on = move || {
                if is_overdue {
                    connecting.give_up_connect(lifecycle);
                }
                connecting.continue_connect(lifecycle, deadline.into_std())
            };
            progress = self.steps.run(&peer, go_on).await?;
        }
        self.on_connected(lifecycle, nic.handle(lifecycle));
        if progress == LaneProgress::Awaiting {
            let waits = nic.dial_max() * AWAITED_DIALS;
            let waiting = Arc::downgrade(&nic);
            self.runtime.spawn(async move {
                tokio::time::sleep(waits).await;
                // It may be the last to hold the NIC, whose end blocks.
                let give_up = move || waiting.upgrade().map(|nic| nic.give_up_connect(lifecycle));
                let _ = tokio::task::spawn_blocking(give_up).await;
            });
        }
        Ok(())
    }

    fn on_connected(&self, lifecycle: Lifecycle, lane: Option<Arc<dyn LaneHandle>>) {
        if let Some(endpoint) = self.endpoints.write().get_mut(&lifecycle) {
            endpoint.lane = lane;
        }
    }

    async fn retire(self: Arc<Self>, lifecycle: Lifecycle) -> Result<(), TransportError> {
        let Ok(Endpoint { peer, nic, .. }) = self.endpoint(lifecycle, "retire") else {
            return Ok(());
        };
        let retiring = nic.clone();
        let retired = self.steps.run_at(Place::Owed, &peer, move || retiring.retire(lifecycle));
        retired.await?;
        self.refill(&nic);
        // As in `create`.
        drop(nic);
        self.forget(lifecycle);
        Ok(())
    }

    async fn probe(
        self: Arc<Self>,
        lifecycle: Lifecycle,
        call: &'static str,
        patience: Duration,
    ) -> Result<(), TransportError> {
        let Endpoint { peer, nic, .. } = self.endpoint(lifecycle, call)?;
        Ok(self.steps.run(&peer, move || nic.probe(lifecycle, None, patience)).await?)
    }

    async fn skip_numbers(
        self: Arc<Self>,
        peer: NicPath,
        count: u32,
    ) -> Result<(), TransportError> {
        let nic = self.nic(&peer)?;
        let skipping = nic.clone();
        let skipped = self.steps.run(&peer, move || skipping.skip_numbers(count)).await;
        self.refill(&nic);
        Ok(skipped?)
    }

    /// Refills the NIC's pool of queue pairs, on a thread of the steps.
    fn refill(&self, nic: &Nic) {
        let Some(pool) = nic.pool_to_refill() else { return };
        let refilled = pool.clone();
        // No name of a peer has a space.
        let turn = format!("pool of {}", nic.device());
        if !self.steps.run_aside(&turn, move || refilled.refill()) {
            pool.on_refill_dropped();
        }
    }
}

/// The first packet sequence number of each of `count` queue pairs: two of `entropy`, and further
/// ones of what follows from it.
fn psns(entropy: u64, count: usize) -> Vec<u32> {
    let words = std::iter::successors(Some(entropy), |word| Some(next_word(*word)));
    let of_word = |word: u64| [word, word >> PSN_BITS].map(|bits| bits as u32 & PSN_MASK);
    words.flat_map(of_word).take(count).collect()
}

/// The successor of a random word (Steele, Lea and Flood: SplitMix64).
fn next_word(word: u64) -> u64 {
    let sum = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (sum ^ (sum >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Converts an error; a limit that another lane's end lifts permits a second attempt.
fn not_created(error: VerbsError) -> NotCreated {
    let is_of_lanes = |limit: &LimitReached| {
        let LimitReached { limit, .. } = limit;
        matches!(limit, NicLimit::Lanes | NicLimit::QueuePairs | NicLimit::CompletionEntries)
    };
    let limit = error.limit.filter(is_of_lanes);
    NotCreated { error: error.into(), limit }
}
