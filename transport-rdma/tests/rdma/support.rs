//! Two NICs of one machine, their reports, and memory with a pattern.

use crate::links::Link;
use crate::wires::{driver, is_managed};
use handfast_core::Lifecycle;
use handfast_core::transport::TransportError;
use handfast_fabric_control::is_scripted;
use handfast_transport::{
    Access, Completion, CompletionStatus, Direction, LaneSink, Memory, Posting, RemoteSpan, SliceId,
};
use handfast_transport_rdma::{DeviceEvent, Nic, NicConfig, NicSink, Registration};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Longest wait for anything; the guest's processors are emulated and shared.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// All reports of a NIC.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) ends: BTreeMap<u64, Vec<CompletionStatus>>,
    pub(crate) failures: Vec<(Lifecycle, TransportError)>,
    pub(crate) events: Vec<DeviceEvent>,
}

#[derive(Default)]
pub(crate) struct Recorder {
    told: Mutex<Told>,
    more: Condvar,
    /// A report of released slices waits while a story has this.
    pub(crate) releases: Mutex<()>,
}

impl LaneSink for Recorder {
    fn on_completions(&self, _: Lifecycle, completions: &mut Vec<Completion>) {
        if completions.iter().any(|it| matches!(it.status, CompletionStatus::Released(_))) {
            drop(self.releases.lock());
        }
        let mut told = self.told.lock().unwrap();
        for Completion { slice, status } in completions.drain(..) {
            told.ends.entry(slice.to_bits()).or_default().push(status);
        }
        self.more.notify_all();
    }

    fn on_lane_failed(&self, lane: Lifecycle, error: TransportError) {
        self.told.lock().unwrap().failures.push((lane, error));
        self.more.notify_all();
    }
}

impl NicSink for Recorder {
    fn on_device_event(&self, _: &str, event: DeviceEvent) {
        self.told.lock().unwrap().events.push(event);
        self.more.notify_all();
    }
}

impl Recorder {
    /// Waits until `enough` holds for the reports.
    pub(crate) fn wait(&self, what: &str, enough: impl Fn(&Told) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut told = self.told.lock().unwrap();
        while !enough(&told) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} was not told; ends: {:?}", told.ends);
            told = self.more.wait_timeout(told, left).unwrap().0;
        }
    }

    /// Waits until as many slices have ended, and returns the ends by slice. None ends twice.
    pub(crate) fn ends(&self, count: usize) -> Vec<CompletionStatus> {
        self.wait("the end of slices", |told| told.ends.len() >= count);
        let told = self.told.lock().unwrap();
        assert_eq!(told.ends.len(), count);
        let once = |ends: &Vec<CompletionStatus>| {
            assert_eq!(ends.len(), 1, "{ends:?}");
            ends[0].clone()
        };
        told.ends.values().map(once).collect()
    }

    /// Waits for the end of one slice.
    pub(crate) fn end(&self, slice: u64) -> CompletionStatus {
        self.wait("the end of a slice", |told| told.ends.contains_key(&slice));
        self.told.lock().unwrap().ends[&slice][0].clone()
    }

    pub(crate) fn failures(&self) -> Vec<(Lifecycle, TransportError)> {
        self.told.lock().unwrap().failures.clone()
    }

    pub(crate) fn forget(&self) {
        *self.told.lock().unwrap() = Told::default();
    }
}

/// A NIC with its memory.
pub(crate) struct Site {
    pub(crate) nic: Nic,
    pub(crate) told: Arc<Recorder>,
    pub(crate) memory: Memory,
    pub(crate) registration: Registration,
}

pub(crate) const BYTES: usize = 1 << 20;
pub(crate) const LANE: Lifecycle = Lifecycle(7);

/// Patient enough for emulated processors that others use too. On scripted devices a packet arrives at
/// once, however slow the processors are.
pub(crate) fn config(device: &str) -> NicConfig {
    let manager_address = manager_address(device);
    let device = device_of_guest(device);
    let timeout_exponent = exponent(16, 14);
    let connection_manager = is_managed();
    let config = NicConfig::new(&device);
    NicConfig { timeout_exponent, manager_address, connection_manager, ..config }
}

/// The guest's device of the number in `name`, of the guest's driver. Scripted devices keep their names.
fn device_of_guest(name: &str) -> String {
    match name.strip_prefix("rxe").filter(|_| !is_scripted()) {
        Some(number) => format!("{}{number}", driver()),
        None => name.to_owned(),
    }
}

/// The address of a scripted device, which no interface of the machine has: that of its place in the
/// list.
pub(crate) fn manager_address(device: &str) -> Option<IpAddr> {
    let place: u8 = device.strip_prefix("rxe").filter(|_| is_scripted())?.parse().ok()?;
    Some([10, 0, 0, place + 1].into())
}

/// The timeout of the kernel's device, or of a scripted one.
pub(crate) fn exponent(kernel: u8, scripted: u8) -> u8 {
    if is_scripted() { scripted } else { kernel }
}

impl Site {
    pub(crate) fn new(config: NicConfig) -> Self {
        let told = Arc::new(Recorder::default());
        let device = config.device.clone();
        let nic = Nic::open(config, told.clone()).unwrap_or_else(|error| {
            panic!("{error}; these tests need {device}, which `cargo xtask guest` makes")
        });
        let memory = Memory::zeroed(BYTES).unwrap();
        let registration = nic.register(memory.whole(), Access::READ_WRITE).unwrap();
        Self { nic, told, memory, registration }
    }

    /// A slice from our memory to the same place of the peer's, or the other way.
    pub(crate) fn posting(
        &self,
        peer: &Self,
        slice: u64,
        direction: Direction,
        offset: usize,
        length: usize,
    ) -> Posting {
        let remote = peer.registration.remote_span();
        self.posting_to(remote, slice, direction, offset, length)
    }

    /// The same with the memory of a peer that is not of this process.
    pub(crate) fn posting_to(
        &self,
        remote: RemoteSpan,
        slice: u64,
        direction: Direction,
        offset: usize,
        length: usize,
    ) -> Posting {
        Posting {
            slice: SliceId::from_bits(slice),
            direction,
            span: self.memory.span(offset, length).unwrap(),
            remote: RemoteSpan { address: remote.address + offset as u64, ..remote },
            memory: Some(self.registration.memory().clone()),
            region_key: None,
        }
    }

    /// Posts `count` slices that cover the memory.
    pub(crate) fn post_all(&self, peer: &Self, direction: Direction, count: usize) {
        self.post_all_to(peer.registration.remote_span(), direction, count);
    }

    /// The same with the memory of a peer that is not of this process.
    pub(crate) fn post_all_to(&self, remote: RemoteSpan, direction: Direction, count: usize) {
        let length = BYTES / count;
        let slice = |n| self.posting_to(remote, n as u64, direction, n * length, length);
        self.nic.post(LANE, &mut (0..count).map(slice).collect());
    }

    /// Waits until the poller has seen that nothing is left of retired lanes.
    pub(crate) fn wait_for_room(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.nic.load().completion_entries > 0 {
            assert!(Instant::now() < deadline, "{:?}", self.nic.load());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until a connected lane sends what is posted: the side that accepts opens it with the event of the
    /// connection.
    pub(crate) fn wait_until_open(&self, lane: Lifecycle) {
        let deadline = Instant::now() + PATIENCE;
        while !self.nic.is_open(lane) {
            assert!(Instant::now() < deadline, "{lane:?} does not open");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        self.memory.copy_out(0, &mut bytes).unwrap();
        bytes
    }
}

/// A NIC at each end of a wire, whose queue pairs have different numbers.
pub(crate) fn sites_at(wire: &Link, change: impl Fn(NicConfig) -> NicConfig) -> (Site, Site) {
    let site = |side| Site::new(change(config(&wire.device(side))));
    let sites = (site(0), site(1));
    sites.1.nic.skip_numbers(64).unwrap();
    sites
}

/// Two sites with a wired lane of `queue_pairs` between them.
pub(crate) fn connected(one: NicConfig, other: NicConfig, queue_pairs: usize) -> (Site, Site) {
    let (one, other) = (Site::new(one), Site::new(other));
    connect_lane(&one, &other, LANE, queue_pairs);
    (one, other)
}

/// A NIC at each end of a wire, and a lane of the first that nobody answers. Out of band the peer does not connect, so
/// that its device drops every packet. The connection manager connects both sides, and then packets are lost.
pub(crate) fn unanswered(
    wire: &Link,
    change: impl Fn(NicConfig) -> NicConfig,
    queue_pairs: usize,
) -> (Site, Site) {
    let (one, other) = sites_at(wire, change);
    if one.nic.uses_connection_manager() {
        connect_lane(&one, &other, LANE, queue_pairs);
        wire.loses_packets();
    } else {
        one.nic.create(LANE, &psns(queue_pairs)).unwrap();
        let theirs = other.nic.create(LANE, &psns(queue_pairs)).unwrap();
        one.nic.connect(LANE, &theirs).unwrap();
    }
    (one, other)
}

/// A wired lane of `queue_pairs` between two sites.
pub(crate) fn connect_lane(one: &Site, other: &Site, lane: Lifecycle, queue_pairs: usize) {
    let one_body = one.nic.create(lane, &psns(queue_pairs)).unwrap();
    let other_body = other.nic.create(lane, &psns(queue_pairs)).unwrap();
    let shared = one_body.queue_pairs.iter().any(|n| other_body.queue_pairs.contains(n));
    // The connection manager connects by identifiers, and each soft-iWARP gives the lowest free number.
    let by_numbers = !one.nic.uses_connection_manager();
    assert!(!(shared && by_numbers), "equal numbers would hide a mix-up of mine and yours");
    // Both sides know the other's announcement, as after a request and its reply.
    other.nic.note_request(None, &one_body);
    one.nic.note_request(None, &other_body);
    other.nic.connect(lane, &one_body).unwrap();
    one.nic.connect(lane, &other_body).unwrap();
    one.wait_until_open(lane);
    other.wait_until_open(lane);
}

/// First sequence numbers, far from those of other lanes: a device that reuses numbers would take a
/// packet of another story's lane that is sent again for one of this.
pub(crate) fn psns(queue_pairs: usize) -> Vec<u32> {
    static NEXT: AtomicU32 = AtomicU32::new(0x0001_b000);
    let next = |_| NEXT.fetch_add(PSNS_APART, Ordering::Relaxed) & PSN_MASK;
    (0..queue_pairs).map(next).collect()
}

/// More than the packets of a lane's queue pair in a story.
const PSNS_APART: u32 = 0x2000;
/// Sequence numbers have 24 bits.
const PSN_MASK: u32 = 0x00ff_ffff;

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u8) -> Vec<u8> {
    (0..BYTES).map(|n| (n as u8).wrapping_mul(31) ^ (n >> 8) as u8 ^ seed).collect()
}
