//! Nodes over a transport that only takes notes, and a sink.

use handfast_core::transport::TransportError;
use handfast_core::wire::Body;
use handfast_core::{Incarnation, Lifecycle, NicPath, Pair};
use handfast_transport::{
    Access, Attempt, Completion, CompletionStatus, Created, DataPath, Direction, Endpoints,
    LaneSink, Memory, OpenDevice, Posting, Region, RegionTable, RemoteSpan, Sent, SliceId, Span,
    Step, TransportKind,
};
use handfast_transport_shm::{ShmConfig, ShmTransport};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// Long enough for anything a test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Reports of lanes.
#[derive(Default)]
pub(crate) struct Sink {
    ended: Mutex<Vec<Completion>>,
    news: Condvar,
    pub(crate) failures: AtomicU64,
    /// The thread of the last completions.
    pub(crate) reporter: Mutex<Option<ThreadId>>,
}

impl LaneSink for Sink {
    fn on_completions(&self, _: Lifecycle, completions: &mut Vec<Completion>) {
        *self.reporter.lock().unwrap() = Some(thread::current().id());
        self.ended.lock().unwrap().append(completions);
        self.news.notify_all();
    }

    fn on_lane_failed(&self, _: Lifecycle, _: TransportError) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

impl Sink {
    /// Waits for the end of a slice.
    pub(crate) fn ended(&self, slice: SliceId) -> CompletionStatus {
        let place = |ended: &[Completion]| ended.iter().position(|one| one.slice == slice);
        let ended = self.ended.lock().unwrap();
        let waited = self.news.wait_timeout_while(ended, PATIENCE, |ended| place(ended).is_none());
        let (mut ended, _) = waited.unwrap();
        let place = place(&ended).expect("a slice ends in time");
        ended.swap_remove(place).status
    }
}

/// Something that happens as a slice reaches the transport below.
pub(crate) type OnPost = Box<dyn FnOnce(SliceId) + Send>;

/// The transport below: its lanes connect at once, and it gives every slice back as unsent.
pub(crate) struct Below {
    sink: Arc<Sink>,
    address: &'static str,
    pub(crate) posted: AtomicU64,
    /// Happens before the transport knows the next slice, which stays then until it is withdrawn.
    pub(crate) before_post: Mutex<Option<OnPost>>,
    staying: Mutex<Vec<SliceId>>,
}

impl DataPath for Below {
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        self.posted.fetch_add(postings.len() as u64, Ordering::Relaxed);
        let before_post = self.before_post.lock().unwrap().take();
        if let Some(before_post) = before_post {
            let slice = postings.remove(0).slice;
            before_post(slice);
            self.staying.lock().unwrap().push(slice);
        }
        let released = |posting: Posting| Completion::released(posting.slice, Sent::None);
        let mut ended: Vec<_> = postings.drain(..).map(released).collect();
        self.sink.on_completions(lane, &mut ended);
    }

    fn withdraw(&self, lane: Lifecycle, slice: SliceId, _: handfast_core::Duration) {
        let mut staying = self.staying.lock().unwrap();
        let known = staying.extract_if(.., |known| *known == slice);
        let mut ended: Vec<_> = known.map(|it| Completion::released(it, Sent::None)).collect();
        drop(staying);
        if !ended.is_empty() {
            self.sink.on_completions(lane, &mut ended);
        }
    }
}

impl Endpoints for Below {
    fn create(&self, _: Lifecycle, _: NicPath, _: u64, _: Attempt) -> Created {
        let body = Body { address: self.address.to_owned(), ..Body::default() };
        Box::pin(std::future::ready(Ok(body)))
    }

    fn connect(&self, _: Pair, _: Pair, _: Body) -> Step<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn retire(&self, _: Lifecycle) -> Step<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn transport_kind(&self, _: Lifecycle) -> TransportKind {
        TransportKind::Tcp
    }

    fn served(&self, _: Lifecycle) -> u64 {
        0
    }
}

/// A node with one lane.
pub(crate) struct Node {
    pub(crate) transport: ShmTransport,
    pub(crate) regions: Arc<RegionTable>,
    pub(crate) sink: Arc<Sink>,
    pub(crate) below: Arc<Below>,
    pub(crate) pair: Pair,
    next: AtomicU64,
}

/// Options of a node.
#[derive(Clone, Default)]
pub(crate) struct Setup {
    pub(crate) directory: Option<PathBuf>,
    pub(crate) is_required: bool,
    pub(crate) open_device: Option<OpenDevice>,
}

impl Node {
    pub(crate) fn start(number: u64, setup: &Setup) -> Self {
        let pair = Pair {
            incarnation: Incarnation(u128::from(number)),
            lifecycle: Lifecycle(number + 10),
        };
        let (regions, sink) = (Arc::new(RegionTable::new()), Arc::new(Sink::default()));
        let address = "127.0.0.1:1";
        let below = Arc::new(Below {
            sink: sink.clone(),
            address,
            posted: AtomicU64::new(0),
            before_post: Mutex::default(),
            staying: Mutex::default(),
        });
        let config = ShmConfig {
            incarnation: pair.incarnation,
            directory: setup.directory.clone(),
            is_required: setup.is_required,
            open_device: setup.open_device,
        };
        let transport =
            ShmTransport::start(config, regions.clone(), sink.clone(), below.clone()).unwrap();
        Self { transport, regions, sink, below, pair, next: AtomicU64::new(0) }
    }

    pub(crate) async fn create(&self) -> Body {
        let path = NicPath::parse("peer@host").unwrap();
        self.transport.create(self.pair.lifecycle, path, 0, Attempt::First).await.unwrap()
    }

    pub(crate) async fn connect(&self, remote: Pair, body: Body) -> Result<(), TransportError> {
        self.transport.connect(self.pair, remote, body).await
    }

    pub(crate) fn serve(&self, memory: &Memory, access: Access, key: u64) -> Region {
        self.regions.register(memory.whole(), access, key).unwrap()
    }

    pub(crate) fn next_slice(&self) -> SliceId {
        SliceId::from_bits(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Moves bytes between a span and the start of a peer's region, and returns the end.
    pub(crate) fn transfer(
        &self,
        direction: Direction,
        span: Span,
        key: u64,
        address: u64,
    ) -> CompletionStatus {
        let slice = self.next_slice();
        let remote = RemoteSpan { key, address };
        let posting = Posting { slice, direction, span, remote, memory: None, region_key: None };
        self.transport.post(self.pair.lifecycle, &mut vec![posting]);
        self.sink.ended(slice)
    }

    /// A slice between a span and the start of a peer's region.
    pub(crate) fn posting(
        &self,
        slice: SliceId,
        direction: Direction,
        span: Span,
        region: &Region,
    ) -> Posting {
        let remote = RemoteSpan { key: region.key(), address: region.address() };
        Posting { slice, direction, span, remote, memory: None, region_key: None }
    }

    pub(crate) fn write(&self, span: Span, region: &Region) -> CompletionStatus {
        self.transfer(Direction::Write, span, region.key(), region.address())
    }

    pub(crate) fn posted_below(&self) -> u64 {
        self.below.posted.load(Ordering::Relaxed)
    }
}

/// Two nodes with a lane between them.
pub(crate) async fn nodes(setup: &Setup) -> (Node, Node) {
    let (first, second) = (Node::start(1, setup), Node::start(2, setup));
    connect(&first, &second).await;
    (first, second)
}

/// Connects a lane between two nodes.
pub(crate) async fn connect(first: &Node, second: &Node) {
    let (ours, theirs) = (first.create().await, second.create().await);
    // The side that is dialled connects last, as a handshake may have it.
    first.connect(second.pair, theirs).await.unwrap();
    second.connect(first.pair, ours).await.unwrap();
    // Until then slices go below.
    wait_until(|| first.transport.is_shared(first.pair.lifecycle));
}

/// Waits until a condition holds, and lets tasks run.
pub(crate) async fn eventually(mut is_true: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + PATIENCE;
    while !is_true() {
        assert!(std::time::Instant::now() < until, "it becomes true in time");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until a condition holds.
pub(crate) fn wait_until(mut is_true: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + PATIENCE;
    while !is_true() {
        assert!(std::time::Instant::now() < until, "it becomes true in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Foreign memory whose second half the kernel's calls do not reach.
pub(crate) fn half_forbidden(bytes: usize) -> Memory {
    struct Mapped(usize, usize);
    impl Drop for Mapped {
        fn drop(&mut self) {
            // SAFETY: nothing else unmaps it, and the block that kept this has gone.
            unsafe { libc::munmap(std::ptr::without_provenance_mut(self.0), self.1) };
        }
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
    // SAFETY: a new mapping, whose second half nothing touches; it stays until the block is dropped.
    unsafe {
        let anywhere = std::ptr::null_mut();
        let start = libc::mmap(anywhere, bytes, protection, flags | libc::MAP_ANONYMOUS, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(start.byte_add(bytes / 2), bytes / 2, libc::PROT_NONE), 0);
        let keeps = Arc::new(Mapped(start.expose_provenance(), bytes));
        Memory::from_raw(start.cast(), bytes, keeps).unwrap()
    }
}

/// A socket that listens at a name without a file, and answers nobody.
pub(crate) fn mute(name: &str) -> OwnedFd {
    // SAFETY: zeros are a valid value of this plain structure.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (place, byte) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    let length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    // SAFETY: a new socket, owned by nothing else; the address is valid for its length.
    unsafe {
        let socket = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        let bound = libc::bind(socket, (&raw const address).cast(), length as libc::socklen_t);
        assert_eq!((bound, libc::listen(socket, 8)), (0, 0));
        OwnedFd::from_raw_fd(socket)
    }
}
