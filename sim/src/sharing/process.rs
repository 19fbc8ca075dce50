//! Processes, channels, maps and copies as they are.

use handfast_core::sharing::{Frame, GrantId, Offered, Sharing};
use handfast_core::transfer::Remote;
use std::collections::{BTreeMap, VecDeque};

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Process {
    /// It runs.
    Running,
    /// It is stopped, and continues as if nothing had been.
    Stopped,
    /// It is gone, with its threads and maps.
    Dead,
}

/// Memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Region {
    pub(super) is_registered: bool,
    /// Its owner uses the memory for something else.
    pub(super) is_given_back: bool,
}

/// Something that an end is asked for by its machine, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Task {
    /// To answer the peer about a key.
    Answer(u64),
    /// To grant a region that was found, whatever has become of it.
    Grant(usize),
    /// To map a grant.
    Map(GrantId, Offered),
}

/// One end of a channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct End {
    pub(super) process: usize,
    pub(super) machine: Sharing,
    /// Messages on their way here.
    pub(super) inbox: VecDeque<Frame>,
    pub(super) tasks: VecDeque<Task>,
    /// Maps of the peer's regions.
    pub(super) maps: BTreeMap<GrantId, usize>,
    /// Regions that could not be mapped.
    pub(super) unmapped: Vec<usize>,
    /// Regions granted to the peer and not released.
    pub(super) granted: BTreeMap<GrantId, usize>,
    /// The socket is open.
    pub(super) is_open: bool,
    /// The application closed the channel.
    pub(super) is_closed: bool,
    pub(super) has_seen_end: bool,
    pub(super) has_seen_death: bool,
    pub(super) has_ended: bool,
}

impl End {
    pub(super) fn new(process: usize, machine: Sharing) -> Self {
        Self {
            process,
            machine,
            inbox: VecDeque::new(),
            tasks: VecDeque::new(),
            maps: BTreeMap::new(),
            unmapped: Vec::new(),
            granted: BTreeMap::new(),
            is_open: true,
            is_closed: false,
            has_seen_end: false,
            has_seen_death: false,
            has_ended: false,
        }
    }
}

/// A connection between two processes, the one with the lower number first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Channel {
    /// Its number among those of the pair.
    pub(super) lane: usize,
    pub(super) ends: [End; 2],
    /// It broke, with the messages on their way, and both processes live.
    pub(super) is_broken: bool,
}

/// The stage of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// It may begin.
    Ready,
    /// It waits for the owner's answer.
    Waiting,
    /// A thread copies over a grant.
    UnderWay(GrantId),
    /// No thread copies for it.
    Over,
}

/// An outcome that was reported to the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Report {
    /// Every byte was moved.
    Success,
    /// The copy failed or was given up, and left this at the peer.
    Left(Remote),
}

/// Progress of a planned copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Progress {
    pub(super) stage: Stage,
    /// Bytes that its thread has moved.
    pub(super) moved: u64,
    /// Times that the owner was asked for the region.
    pub(super) asks: u32,
    pub(super) report: Option<Report>,
    /// Its end was announced to the machine while its thread copies on: a wrong caller.
    pub(super) is_disowned: bool,
}
