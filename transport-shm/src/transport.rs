//! The transport: lanes of another one, with a channel for each where the peer shares the host.

use crate::announcement::{Announcement, Place};
use crate::copiers::Copiers;
use crate::counters::{Counts, ShmCounters};
use crate::handle::Handle;
use crate::hello::{self, Admission};
use crate::hub::{self, Hub};
use crate::lane::{INLINE_BYTES_MAX, Lane, SLICES_MAX, is_copied};
use crate::place;
use crate::reason::NoChannel;
use crate::sys::{self, Name};
use crate::wire::Hello;
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::Body;
use handfast_core::{Incarnation, Lifecycle, NicPath, Pair};
use handfast_transport::{
    Attempt, Completion, CompletionStatus, Created, DataPath, Endpoints, LaneHandle, LaneSink,
    OpenDevice, Posting, RegionTable, RegionWatch, SliceId, Step, TransportKind,
};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Time that a connect waits for the answer to its hello, where shared memory alone is wanted.
pub const ANSWER_MAX: Duration = Duration::from_millis(250);
/// Time that the answer has elsewhere, where nothing waits for it.
pub const ANSWER_UNAWAITED_MAX: Duration = Duration::from_secs(5);
/// Pause before a channel is dialled where nothing waits for it. The first transfer is on its way meanwhile,
/// and needs the processors.
pub const DIAL_AFTER: Duration = Duration::from_millis(1);
/// Time that the end of a registration waits for peers that may still touch its memory. Those that are
/// stopped, or have more to copy, keep it.
pub const REVOKED_MAX: Duration = Duration::from_millis(20);
/// Pause between two looks for their answers.
const REVOKED_LOOK: Duration = Duration::from_micros(10);
/// Time that a retiring side waits for the peer to let memory go, before the step fails.
pub const LET_GO_MAX: Duration = Duration::from_secs(2);

/// Configuration of a transport.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// Incarnation of this node.
    pub incarnation: Incarnation,
    /// Directory of the socket, for processes that share a directory and no network namespace.
    /// Processes of the same user, and of the superuser, may connect. Without one the socket is a name of the network
    /// namespace, for processes of the same user.
    pub directory: Option<PathBuf>,
    /// Whether slices fail that cannot be copied. Otherwise they take the lane below.
    pub is_required: bool,
    /// Opens memory of devices that belongs to other processes, where there is a driver.
    pub open_device: Option<OpenDevice>,
}

/// Learns why a lane to a peer of this host shares no memory.
pub type Reporter = Box<dyn Fn(&NicPath, NoChannel) + Send + Sync>;

/// State that lanes share.
pub(crate) struct Shared {
    pub(crate) regions: Arc<RegionTable>,
    pub(crate) sink: Arc<dyn LaneSink>,
    pub(crate) inner: Arc<dyn Endpoints>,
    pub(crate) counts: Counts,
    pub(crate) hub: Hub,
    pub(crate) copiers: Copiers,
    pub(crate) is_required: bool,
    pub(crate) open_device: Option<OpenDevice>,
    config: ShmConfig,
    /// The running kernel's number, or 0.
    host: u64,
    place: Place,
    reporter: OnceLock<Reporter>,
    /// The process that started the transport: a forked child has its sockets and no part in them.
    process: u32,
    lanes: RwLock<BTreeMap<Lifecycle, Arc<Lane>>>,
}

/// Lanes through shared memory, over lanes of another transport that carry what cannot be shared.
/// Cloning is cheap and shares them. Dropping the last clone ends the channels; memory that a peer
/// may still write is kept until it has let it go.
#[derive(Clone)]
pub struct ShmTransport {
    outer: Arc<Outer>,
}

/// Ends the threads with the last clone. They hold the rest.
struct Outer {
    shared: Arc<Shared>,
    /// Kept for the table of regions.
    _watch: Arc<dyn RegionWatch>,
    file: Option<PathBuf>,
    hub: Option<JoinHandle<()>>,
}

impl Drop for Outer {
    fn drop(&mut self) {
        if !self.shared.is_of_this_process() {
            return;
        }
        let lanes = self.shared.take_lanes();
        // Those that are about to dial as well.
        lanes.values().for_each(Lane::close);
        self.shared.hub.all().iter().for_each(Lane::close);
        self.shared.hub.end();
        self.shared.copiers.end();
        // Without a channel to close the thread ends at once, and holds the lanes below no longer.
        if !self.shared.hub.has_work()
            && let Some(hub) = self.hub.take()
            && !hub::is_on_thread()
        {
            let _ = hub.join();
        }
        if let Some(file) = &self.file {
            // Another cleaner may have been faster.
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Takes regions back from peers when they are no longer registered.
struct Revoker(Weak<Shared>);

impl RegionWatch for Revoker {
    fn on_revoked(&self, key: u64) {
        let Some(shared) = self.0.upgrade().filter(|shared| shared.is_of_this_process()) else {
            return;
        };
        let lanes = shared.hub.all();
        lanes.iter().for_each(|lane| lane.revoke(key));
        if hub::is_on_thread() {
            // It would wait for what it alone reads.
            return;
        }
        // A peer that runs answers within microseconds: what it begins from now on is refused.
        let until = Instant::now() + REVOKED_MAX;
        while lanes.iter().any(|lane| lane.awaits_revoked(key)) {
            if Instant::now() >= until {
                let late = lanes.iter().filter(|lane| lane.awaits_revoked(key));
                return late.for_each(|lane| lane.note_late());
            }
            thread::sleep(REVOKED_LOOK);
        }
    }
}

impl Shared {
    /// State without lanes and threads, for a socket at `place` of the running kernel's number.
    pub(crate) fn new(
        config: ShmConfig,
        regions: &Arc<RegionTable>,
        sink: Arc<dyn LaneSink>,
        inner: Arc<dyn Endpoints>,
        (host, place): (u64, Place),
    ) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            regions: Arc::clone(regions),
            sink,
            inner,
            counts: Counts::default(),
            hub: Hub::new()?,
            copiers: Copiers::default(),
            is_required: config.is_required,
            open_device: config.open_device,
            config,
            host,
            place,
            reporter: OnceLock::new(),
            process: std::process::id(),
            lanes: RwLock::default(),
        }))
    }

    /// Adds a created lane.
    pub(crate) fn insert(&self, lane: Lane) -> Arc<Lane> {
        let lane = Arc::new(lane);
        self.lanes.write().insert(lane.lifecycle, Arc::clone(&lane));
        lane
    }

    /// Takes all lanes out. They hold this state, and it holds them.
    pub(crate) fn take_lanes(&self) -> BTreeMap<Lifecycle, Arc<Lane>> {
        std::mem::take(&mut *self.lanes.write())
    }

    /// The lane of a pair of this node.
    pub(crate) fn lane_of(&self, pair: Pair) -> Option<Arc<Lane>> {
        (pair.incarnation == self.config.incarnation).then(|| self.lane(pair.lifecycle)).flatten()
    }

    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    fn lane(&self, lifecycle: Lifecycle) -> Option<Arc<Lane>> {
        self.lanes.read().get(&lifecycle).cloned()
    }

    /// Refuses slices that have no room on a lane.
    fn refuse_past_limit(&self, lane: &Lane, postings: &mut Vec<Posting>) {
        let detail = format!("{SLICES_MAX} slices wait on the lane");
        let error = TransportError::new(Side::Local, "share", detail);
        let refused = |posting: Posting| Completion::refused(posting.slice, error.clone());
        let mut refused: Vec<_> = postings.drain(..).map(refused).collect();
        self.sink.on_completions(lane.lifecycle, &mut refused);
    }

    /// Posts on the lane below, or fails the lane if shared memory alone is wanted.
    pub(crate) fn post_elsewhere(
        &self,
        lane: &Arc<Lane>,
        below: Option<&dyn LaneHandle>,
        postings: &mut Vec<Posting>,
    ) {
        if !self.is_required {
            lane.note_elsewhere();
            return match below {
                Some(below) if below.post(postings) => {}
                _ => self.inner.post(lane.lifecycle, postings),
            };
        }
        if lane.is_up() {
            let mut refused = Vec::new();
            postings.retain(|posting| {
                let stays = is_copied(posting);
                if !stays {
                    let detail =
                        "the slice names a device's memory, or memory that is not writable";
                    let error = TransportError::new(Side::Configuration, "share", detail);
                    refused.push(Completion::refused(posting.slice, error));
                }
                stays
            });
            if !refused.is_empty() {
                self.sink.on_completions(lane.lifecycle, &mut refused);
            }
            if lane.queue(postings) {
                lane.advance(INLINE_BYTES_MAX);
                return;
            }
            if lane.is_up() {
                return self.refuse_past_limit(lane, postings);
            }
        }
        let failed = |posting: Posting| Completion {
            slice: posting.slice,
            status: CompletionStatus::Failed(lane.apart_error().into()),
        };
        let mut ended: Vec<_> = postings.drain(..).map(failed).collect();
        if !ended.is_empty() {
            self.sink.on_completions(lane.lifecycle, &mut ended);
            self.sink.on_lane_failed(lane.lifecycle, lane.apart_error());
        }
    }
}

impl ShmTransport {
    /// Starts to listen. Peers may access `regions`; `sink` receives completions, `inner` carries
    /// the lanes.
    ///
    /// # Errors
    /// The socket, its thread or the watch of regions cannot be made.
    pub fn start(
        config: ShmConfig,
        regions: Arc<RegionTable>,
        sink: Arc<dyn LaneSink>,
        inner: Arc<dyn Endpoints>,
    ) -> io::Result<Self> {
        // Without it nobody knows whose sockets are in the directory.
        let host = sys::host().unwrap_or(0);
        let name = format!("{}{:016x}", place::prefix(host), sys::random()?);
        if let Some(directory) = config.directory.as_ref().filter(|_| host != 0) {
            place::sweep(directory, host);
        }
        let file = config.directory.as_ref().map(|directory| directory.join(&name));
        let (place, admission) = match &file {
            Some(_) => (Place::Directory(name.clone()), Admission::Directory),
            None => (Place::Abstract(name.clone()), Admission::SameUser),
        };
        let shared = Shared::new(config, &regions, sink, inner, (host, place))?;
        let at = file.as_deref().map_or(Name::Abstract(&name), Name::File);
        shared.copiers.start()?;
        let hub = match Hub::start(&shared, &at, admission) {
            Ok(hub) => Some(hub),
            Err(error) => {
                shared.hub.end();
                shared.copiers.end();
                if let Some(file) = &file {
                    // It may not have been made.
                    let _ = std::fs::remove_file(file);
                }
                return Err(error);
            }
        };
        let watch: Arc<dyn RegionWatch> = Arc::new(Revoker(Arc::downgrade(&shared)));
        let is_watched = regions.watch(Arc::downgrade(&watch));
        let started = Self { outer: Arc::new(Outer { shared, _watch: watch, file, hub }) };
        match is_watched {
            true => Ok(started),
            false => Err(io::Error::other("the table of regions has no room for a watch")),
        }
    }

    /// Counters since the start.
    pub fn counters(&self) -> ShmCounters {
        self.shared().counts.snapshot()
    }

    /// Reports lanes to peers of this host that share no memory. The first reporter stays.
    pub fn report_to(&self, reporter: Reporter) {
        let _ = self.shared().reporter.set(reporter);
    }

    /// Whether the slices of a lane are copied.
    pub fn is_shared(&self, lane: Lifecycle) -> bool {
        self.shared().lane(lane).is_some_and(|lane| lane.is_up())
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.outer.shared
    }

    async fn create_both(
        self,
        lifecycle: Lifecycle,
        peer: NicPath,
        entropy: u64,
        attempt: Attempt,
    ) -> Result<Body, handfast_transport::NotCreated> {
        let shared = self.shared();
        let mut body = shared.inner.create(lifecycle, peer.clone(), entropy, attempt).await?;
        let (Ok(knock), Ok(answer)) = (sys::random(), sys::random()) else { return Ok(body) };
        let announcement =
            Announcement { knock, answer, host: shared.host, place: shared.place.clone() };
        body.shared_memory = Some(announcement.to_string().into());
        let lane =
            Lane::new((lifecycle, peer), shared.hub.token(), announcement, Arc::clone(shared));
        lane.note_announced(&body);
        shared.insert(lane);
        Ok(body)
    }

    async fn connect_both(
        self,
        local: Pair,
        remote: Pair,
        body: Body,
    ) -> Result<(), TransportError> {
        let shared = self.shared();
        let Some(lane) = shared.lane(local.lifecycle) else {
            return shared.inner.connect(local, remote, body).await;
        };
        let dialled = self.arm(&lane, local, remote, &body);
        let below = shared.inner.connect(local, remote, body);
        match dialled {
            Dialled::NotWanted => below.await,
            Dialled::Failed(reason) => {
                below.await?;
                shared.note_no_channel(&lane, reason)
            }
            Dialled::Wanted(announcement, hello) if shared.is_required => {
                // The task of the lane below sends its first packet, which the peer handles meanwhile.
                let answer = async {
                    tokio::task::yield_now().await;
                    let answered = shared.dial_lane(&lane, &announcement, &hello);
                    shared.answer(&lane, answered, ANSWER_MAX).await
                };
                let (below, answer) = tokio::join!(biased; below, answer);
                below.and(answer)
            }
            Dialled::Wanted(announcement, hello) => {
                below.await?;
                // The lane below carries slices until the channel is there.
                let shared = Arc::clone(shared);
                tokio::spawn(async move {
                    tokio::time::sleep(DIAL_AFTER).await;
                    let answered = shared.dial_lane(&lane, &announcement, &hello);
                    let _ = shared.answer(&lane, answered, ANSWER_UNAWAITED_MAX).await;
                });
                Ok(())
            }
        }
    }

    /// Handles the local connect of a lane, and decides whether this side dials.
    fn arm(&self, lane: &Arc<Lane>, local: Pair, remote: Pair, body: &Body) -> Dialled {
        let shared = self.shared();
        let Some(text) = &body.shared_memory else {
            return Dialled::Failed(NoChannel::NotOffered);
        };
        let Some(announcement) = Announcement::parse(text) else {
            return Dialled::Failed(NoChannel::Unreadable);
        };
        if [announcement.host, shared.host].iter().all(|host| *host != 0)
            && announcement.host != shared.host
        {
            return Dialled::Failed(NoChannel::OtherHost);
        }
        if lane.arm(remote).is_err() {
            return Dialled::Failed(NoChannel::Retired);
        }
        // As for the lane below: the side with a listener is dialled, else the lower pair dials.
        let lower = local < remote || !lane.has_address();
        if body.address.is_empty() || !lower {
            return Dialled::NotWanted;
        }
        Dialled::Wanted(announcement, Hello { sender: local, receiver: remote })
    }

    async fn retire_both(self, lifecycle: Lifecycle) -> Result<(), TransportError> {
        let shared = self.shared();
        let Some(lane) = shared.lane(lifecycle) else {
            return shared.inner.retire(lifecycle).await;
        };
        lane.close();
        let below = async {
            if !lane.is_retired_below.load(Ordering::Acquire) {
                shared.inner.retire(lifecycle).await?;
                lane.is_retired_below.store(true, Ordering::Release);
            }
            Ok(())
        };
        let mut apart = lane.apart.subscribe();
        let let_go = async { timeout(LET_GO_MAX, apart.wait_for(|apart| *apart)).await.is_ok() };
        let (below, has_let_go) = tokio::join!(below, let_go);
        below?;
        if !has_let_go {
            let detail = "the peer's process lives and has not let this node's memory go: it is \
                          stopped, does not answer, or keeps more than this node holds apart \
                          (shm_held); memory stays with it until then";
            return Err(TransportError::new(Side::Peer, "retire", detail));
        }
        shared.lanes.write().remove(&lifecycle);
        Ok(())
    }
}

/// The answer to a hello.
type Answered = oneshot::Receiver<Result<(), NoChannel>>;

/// Course of the channel of a lane that connects.
enum Dialled {
    /// The peer dials.
    NotWanted,
    Wanted(Announcement, Hello),
    Failed(NoChannel),
}

impl Shared {
    /// Dials the peer's socket for a lane.
    fn dial_lane(
        &self,
        lane: &Arc<Lane>,
        announcement: &Announcement,
        hello: &Hello,
    ) -> Result<Answered, NoChannel> {
        if lane.is_retired() {
            return Err(NoChannel::Retired);
        }
        let socket = self.dial(announcement, hello)?;
        let answered = lane.await_answer(socket, announcement.answer, hello.receiver);
        answered.ok_or(NoChannel::Retired)
    }

    /// Awaits the answer to this side's hello for a time.
    async fn answer(
        &self,
        lane: &Lane,
        answered: Result<Answered, NoChannel>,
        within: Duration,
    ) -> Result<(), TransportError> {
        let connected = match answered {
            Ok(answered) => match timeout(within, answered).await {
                Ok(answered) => answered.unwrap_or(Err(NoChannel::Retired)),
                Err(_) => lane.give_answer_up(),
            },
            Err(reason) => Err(reason),
        };
        connected.or_else(|reason| self.note_no_channel(lane, reason))
    }

    /// Counts and reports a lane without a channel; an error if the channel is required.
    fn note_no_channel(&self, lane: &Lane, reason: NoChannel) -> Result<(), TransportError> {
        use NoChannel::{NotOffered, OtherHost, Retired};
        lane.note_apart(reason);
        if self.is_required || !matches!(reason, NotOffered | OtherHost | Retired) {
            self.counts.dial_failed();
        }
        if self.is_required {
            let detail = format!("no memory is shared with the peer: {reason}");
            return Err(TransportError::new(reason.side(), "share", detail));
        }
        tracing::debug!(lane = lane.lifecycle.0, %reason, "no memory is shared with the peer");
        self.report(&lane.peer, reason);
        Ok(())
    }

    /// Reports a reason that concerns processes of one host.
    pub(crate) fn report(&self, peer: &NicPath, reason: NoChannel) {
        if reason.is_of_one_host()
            && let Some(report) = self.reporter.get()
        {
            report(peer, reason);
        }
    }

    /// Connects to the peer's socket and says hello.
    fn dial(&self, peer: &Announcement, hello: &Hello) -> Result<std::os::fd::OwnedFd, NoChannel> {
        // First: the peer wakes up for the connection, and then finds the hello.
        let proof = hello::Proof::new(peer.knock).map_err(|_| NoChannel::NoHello)?;
        let socket = match (&peer.place, &self.config.directory) {
            (Place::Abstract(name), _) => sys::connect(&Name::Abstract(name)),
            (Place::Directory(name), Some(directory)) => {
                sys::connect(&Name::File(&directory.join(name)))
            }
            (Place::Directory(_), None) => {
                return Err(NoChannel::NoDirectory);
            }
        };
        let socket = socket.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => NoChannel::NoSocket,
            io::ErrorKind::PermissionDenied => NoChannel::Forbidden,
            _ => NoChannel::NoHello,
        })?;
        let admission = match peer.place {
            Place::Abstract(_) => Admission::SameUser,
            Place::Directory(_) => Admission::Directory,
        };
        if !sys::credentials(&socket).is_ok_and(|found| admission.admits(found)) {
            return Err(NoChannel::OtherUser);
        }
        hello::say(&socket, hello, &proof).map_err(|_| NoChannel::NoHello)?;
        Ok(socket)
    }
}

impl DataPath for ShmTransport {
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        let shared = self.shared();
        match shared.lane(lane) {
            Some(lane) if lane.was_offered() => {
                if !lane.queue(postings) {
                    shared.post_elsewhere(&lane, None, postings);
                }
                lane.advance(INLINE_BYTES_MAX);
            }
            _ => shared.inner.post(lane, postings),
        }
    }

    fn handle(&self, lane: Lifecycle) -> Option<Arc<dyn LaneHandle>> {
        let shared = self.shared();
        match shared.lane(lane) {
            Some(of) if of.was_offered() => {
                Some(Arc::new(Handle { lane: of, below: shared.inner.handle(lane) }))
            }
            _ => shared.inner.handle(lane),
        }
    }

    fn withdraw(&self, lane: Lifecycle, slice: SliceId, silence: handfast_core::Duration) {
        let shared = self.shared();
        if !shared.lane(lane).is_some_and(|lane| lane.withdraw(slice, silence)) {
            shared.inner.withdraw(lane, slice, silence);
        }
    }

    fn busy_poll(&self, lane: Lifecycle, is_done: &mut dyn FnMut() -> bool) {
        self.shared().inner.busy_poll(lane, is_done);
    }

    fn poll_in_place(&self, lane: Lifecycle, is_done: &mut dyn FnMut() -> bool) {
        self.shared().inner.poll_in_place(lane, is_done);
    }

    fn request_poll(&self, lane: Lifecycle) {
        if !self.shared().lane(lane).is_some_and(|lane| lane.is_copying()) {
            self.shared().inner.request_poll(lane);
        }
    }

    fn probe_rail(&self, lane: Lifecycle) -> Step<()> {
        self.shared().inner.probe_rail(lane)
    }

    fn note_fallback(&self, peer: &NicPath, reason: TransportError) {
        self.shared().inner.note_fallback(peer, reason);
    }
}

impl Endpoints for ShmTransport {
    fn create(
        &self,
        lifecycle: Lifecycle,
        peer: NicPath,
        entropy: u64,
        attempt: Attempt,
    ) -> Created {
        Box::pin(self.clone().create_both(lifecycle, peer, entropy, attempt))
    }

    fn connect(&self, local: Pair, remote: Pair, body: Body) -> Step<()> {
        Box::pin(self.clone().connect_both(local, remote, body))
    }

    fn retire(&self, lifecycle: Lifecycle) -> Step<()> {
        Box::pin(self.clone().retire_both(lifecycle))
    }

    fn probe(&self, lifecycle: Lifecycle) -> Step<()> {
        self.shared().inner.probe(lifecycle)
    }

    fn skip_numbers(&self, peer: &NicPath, count: u32) -> Step<()> {
        self.shared().inner.skip_numbers(peer, count)
    }

    fn transport_kind(&self, lane: Lifecycle) -> TransportKind {
        let shared = self.shared();
        match shared.lane(lane) {
            Some(lane) => lane.transport_kind(),
            None => shared.inner.transport_kind(lane),
        }
    }

    fn served(&self, lane: Lifecycle) -> u64 {
        self.shared().inner.served(lane)
    }
}
