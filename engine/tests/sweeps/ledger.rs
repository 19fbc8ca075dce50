//! The content that every page of every node must have, and the findings of a run.

use crate::plan::{Fault, Plan};
use bytes::Bytes;
use handfast::{Memory, MemoryError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Lengths of the pages that a node has in each segment: a byte, less and more than a slice.
pub(crate) const PAGE_BYTES: [usize; 6] = [1, 200, 4_096, 20_000, 65_537, 150_000];
/// Bytes of a segment that belong to one writer.
const AREA_BYTES: usize = 262_144;
/// Time after a fault in which it may still be felt.
pub(crate) const RECOVERY_MS: u64 = 4_000;

/// A page: only its writer changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) writer: usize,
    pub(crate) owner: usize,
    pub(crate) page: usize,
}

impl Place {
    pub(crate) fn bytes(self) -> usize {
        PAGE_BYTES[self.page]
    }

    pub(crate) fn offset(self) -> usize {
        self.writer * AREA_BYTES + PAGE_BYTES[..self.page].iter().sum::<usize>()
    }
}

/// Bytes of the segment of each node.
pub(crate) fn segment_bytes(nodes: usize) -> usize {
    nodes * AREA_BYTES
}

/// The bytes of a write, which differ from those of every other write.
pub(crate) fn pattern(stamp: u64, bytes: usize) -> Vec<u8> {
    let word = |number: u64| (stamp << 20 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let words = (0..bytes as u64 / 8 + 1).flat_map(|number| word(number).to_le_bytes());
    words.take(bytes).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Zeros,
    /// Of the write with this stamp.
    Stamp(u64),
    /// Of several writes, of which nothing will land any more.
    Fenced(Vec<u8>),
    /// An earlier write may still land.
    Unsure,
}

impl Content {
    /// The bytes, if they are known.
    pub(crate) fn expected(&self, bytes: usize) -> Option<Vec<u8>> {
        match self {
            Self::Zeros => Some(vec![0; bytes]),
            Self::Stamp(stamp) => Some(pattern(*stamp, bytes)),
            Self::Fenced(content) => Some(content.clone()),
            Self::Unsure => None,
        }
    }
}

/// A page's content in a run of its owner, as a run of its writer knows it.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) content: Content,
    pub(crate) owner_run: u64,
    pub(crate) writer_run: u64,
}

/// State of a node's current process.
#[derive(Default)]
pub(crate) struct Process {
    pub(crate) run: AtomicU64,
    pub(crate) memory: Mutex<Option<Memory>>,
    /// The port of this run is bound.
    pub(crate) is_listening: AtomicBool,
    /// The process is to serve its memory under another key.
    pub(crate) is_reregistering: AtomicBool,
    /// The process is to close its engine.
    pub(crate) is_closing: AtomicBool,
    pub(crate) is_closed: AtomicBool,
    /// Transfers to peers go on.
    pub(crate) working: AtomicUsize,
}

/// The work of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Load,
    /// No fault happens any more; each pair must transfer.
    Settling,
    /// No transfer begins.
    Quiet,
}

/// The state of a run.
pub(crate) struct Story {
    pub(crate) plan: Plan,
    pub(crate) now_ms: AtomicU64,
    phase: Mutex<Phase>,
    pub(crate) processes: Vec<Process>,
    pages: Mutex<BTreeMap<Place, Page>>,
    settled: Mutex<BTreeSet<(usize, usize)>>,
    stamps: AtomicU64,
    trace: Mutex<Vec<String>>,
    violations: Mutex<Vec<String>>,
    /// The entries of the metadata store.
    pub(crate) entries: Mutex<BTreeMap<String, Bytes>>,
    /// The newcomer has come and gone.
    pub(crate) has_visited: AtomicBool,
}

impl Story {
    pub(crate) fn new(plan: Plan) -> Self {
        Self {
            // The last is the Mooncake node.
            processes: (0..=plan.nodes).map(|_| Process::default()).collect(),
            plan,
            now_ms: AtomicU64::new(0),
            phase: Mutex::new(Phase::Load),
            pages: Mutex::default(),
            settled: Mutex::default(),
            stamps: AtomicU64::new(1),
            trace: Mutex::default(),
            violations: Mutex::default(),
            entries: Mutex::default(),
            has_visited: AtomicBool::new(false),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.lock().unwrap()
    }

    pub(crate) fn enter(&self, phase: Phase) {
        *self.phase.lock().unwrap() = phase;
    }

    pub(crate) fn run_of(&self, node: usize) -> u64 {
        self.processes[node].run.load(Ordering::Relaxed)
    }

    pub(crate) fn is_closing(&self, node: usize) -> bool {
        self.processes[node].is_closing.load(Ordering::Relaxed)
    }

    pub(crate) fn next_stamp(&self) -> u64 {
        self.stamps.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds a line to the trace.
    pub(crate) fn note(&self, text: &str) {
        self.trace.lock().unwrap().push(format!("{:>6} {text}", self.now()));
    }

    /// An oracle fails.
    pub(crate) fn violate(&self, oracle: &str, text: &str) {
        let text = format!("{:>6} {oracle}: {text}", self.now());
        self.trace.lock().unwrap().push(text.clone());
        self.violations.lock().unwrap().push(text);
    }

    pub(crate) fn trace(&self) -> Vec<String> {
        self.trace.lock().unwrap().clone()
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap().clone()
    }

    pub(crate) fn settle(&self, pair: (usize, usize)) {
        self.settled.lock().unwrap().insert(pair);
    }

    pub(crate) fn is_settled(&self, pair: (usize, usize)) -> bool {
        self.settled.lock().unwrap().contains(&pair)
    }

    /// The pairs that have not transferred since the faults stopped.
    pub(crate) fn unsettled(&self) -> Vec<(usize, usize)> {
        let peers = self.plan.peers.iter().enumerate();
        let pairs = peers.flat_map(|(node, peers)| peers.iter().map(move |peer| (node, *peer)));
        pairs.filter(|pair| !self.is_settled(*pair)).collect()
    }

    /// Whether no fault disturbs transfers of a pair between two instants.
    pub(crate) fn is_clean(&self, pair: (usize, usize), begin: u64, end: u64) -> bool {
        let disturbs = |it: &&crate::plan::Disturbance| it.fault.disturbs(pair);
        let mut disturbances = self.plan.disturbances.iter().filter(disturbs);
        disturbances.all(|it| it.ends + RECOVERY_MS < begin || it.begins > end + 1)
    }

    /// First byte of the area of a writer.
    pub(crate) fn area_of(writer: usize) -> usize {
        writer * AREA_BYTES
    }

    /// Peers to which transfers go on.
    pub(crate) fn working(&self) -> usize {
        self.processes.iter().map(|it| it.working.load(Ordering::Relaxed)).sum()
    }

    /// Whether a node is the Mooncake node.
    pub(crate) fn is_legacy(&self, node: usize) -> bool {
        node == self.plan.nodes
    }

    /// Whether the metadata store answers from one instant to another.
    pub(crate) fn is_store_up(&self, begin: u64, end: u64) -> bool {
        let mut lost = self.plan.disturbances.iter().filter(|it| it.fault == Fault::StoreLost);
        lost.all(|it| it.ends + RECOVERY_MS < begin || it.begins > end)
    }

    /// Whether the metadata store has an entry of a node.
    pub(crate) fn is_published(&self, node: usize) -> bool {
        let name = format!("n{node}");
        self.entries.lock().unwrap().keys().any(|key| key.ends_with(&name))
    }

    /// The port of a node is free again. A node that closes has withdrawn its entries before.
    pub(crate) fn unbind(&self, node: usize) {
        self.processes[node].is_listening.store(false, Ordering::Relaxed);
        let is_in_reach = self.is_store_up(self.now(), self.now());
        if self.is_closing(node) && is_in_reach && self.is_published(node) {
            self.violate("O9", &format!("{node} is published, and its port closes"));
        }
    }

    /// Notes an entry that arrives at the metadata store.
    pub(crate) fn publish(&self, key: &str, value: Bytes) {
        let of = |node: &usize| key.ends_with(&format!("n{node}"));
        let node = (0..self.plan.nodes).find(of);
        if let Some(node) = node
            && !self.processes[node].is_listening.load(Ordering::Relaxed)
        {
            self.violate("O9", &format!("{node} is published, and does not listen"));
        }
        self.entries.lock().unwrap().insert(key.to_owned(), value);
    }

    /// A page, with what its bytes must be.
    pub(crate) fn page(&self, place: Place) -> Page {
        let none = Page { content: Content::Zeros, owner_run: 0, writer_run: 0 };
        self.pages.lock().unwrap().get(&place).cloned().unwrap_or(none)
    }

    pub(crate) fn set_page(&self, place: Place, page: Page) {
        self.pages.lock().unwrap().insert(place, page);
    }

    /// The bytes of a page in the memory of its owner; `None` before a process serves it.
    pub(crate) fn peek(&self, place: Place) -> Option<Vec<u8>> {
        let memory = self.processes[place.owner].memory.lock().unwrap().clone()?;
        let mut bytes = vec![0; place.bytes()];
        let copied: Result<(), MemoryError> = memory.copy_out(place.offset(), &mut bytes);
        copied.ok().map(|()| bytes)
    }
}
