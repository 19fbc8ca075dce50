//! The processes of a world, their memory and the copies that they begin.

use handfast_core::sharing::{
    Allocation, DEVICE_BLOCK_BYTES, Denial, Frame, GrantId, HANDLE_BYTES, Handle, KeptMemory,
    Offered, Openings, Sharing, Staged,
};
use handfast_core::transfer::Direction;

/// Bytes of a region. A copy moves one at a time, so that a process can stop between two.
pub(super) const REGION_BYTES: u64 = 2;

/// The place of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionPlace {
    /// Memory of the host.
    Host,
    /// A whole allocation on a device.
    Allocation,
    /// The first half of an allocation on a device.
    HalfAllocation,
}

/// Memory of a process that its peers may reach.
#[derive(Clone, Copy, Debug)]
pub struct RegionPlan {
    /// The process that it belongs to.
    pub owner: usize,
    /// Peers may write it, and not only read it.
    pub is_writable: bool,
    /// It has no descriptor: peers copy by the calls for the memory of another process.
    pub is_foreign: bool,
    /// Its owner may drop it.
    pub may_drop: bool,
    /// The place of its bytes.
    pub place: RegionPlace,
}

impl RegionPlan {
    const FIRST: Self = Self {
        owner: 0,
        is_writable: true,
        is_foreign: false,
        may_drop: true,
        place: RegionPlace::Host,
    };
}

/// A copy that a process begins.
#[derive(Clone, Copy, Debug)]
pub struct CopyPlan {
    /// The process that copies.
    pub by: usize,
    /// The channel to the owner, if there is more than one.
    pub lane: usize,
    /// The region of another process.
    pub region: usize,
    /// The direction.
    pub direction: Direction,
    /// The application may give it up.
    pub may_cancel: bool,
    /// It goes past the end of the region.
    pub is_beyond: bool,
    /// The submitting thread copies it at once where the region is mapped, and not as a slice.
    pub is_short: bool,
}

impl CopyPlan {
    const WRITE: Self = Self {
        by: 1,
        lane: 0,
        region: 0,
        direction: Direction::Write,
        may_cancel: false,
        is_beyond: false,
        is_short: false,
    };
}

/// The caller of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingBackend {
    /// It keeps the contract of the machine.
    Shipping,
    /// It takes the end of a connection for the death of its peer.
    HangUpIsDeath,
    /// It ends a copy in the machine when the application gives it up, while its thread copies on.
    EndedWhileCopying,
    /// It looks a region up, and grants it in a later step, dropped or not.
    LookUpApart,
    /// It takes a call at once that failed in the middle for one that has not begun.
    FailedCallIsNothing,
    /// It holds memory that a peer cannot close in the channel, until the death of the peer.
    KeptHoldsChannel,
    /// It takes an allocation that it has opened, and can neither use nor close, for one that is not open.
    KeptTakenForRefused,
    /// It holds memory for no process in particular: all of them have one share.
    KeptByNobody,
}

/// A world before its first event.
#[derive(Clone, Debug)]
pub struct SharingSetup {
    /// The machine of every end of a channel.
    pub machine: Sharing,
    /// The allocations that every process has open.
    pub openings: Openings,
    /// The table of what each process holds for others.
    pub kept: KeptMemory<usize>,
    /// Processes.
    pub processes: usize,
    /// Regions.
    pub regions: Vec<RegionPlan>,
    /// Copies.
    pub copies: Vec<CopyPlan>,
    /// Processes that may close a channel.
    pub closers: Vec<usize>,
    /// A process that may send any message, at a fault each.
    pub hostile: Option<usize>,
    /// The caller of the machines.
    pub backend: SharingBackend,
    /// Most faults.
    pub faults_max: u32,
}

/// Worlds of same-host channels by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingScenario {
    /// A region is dropped while its peer writes and reads it.
    Dropped,
    /// Two processes write to each other, and one closes the channel.
    Closed,
    /// Two peers write into one region, which is dropped.
    Shared,
    /// A region for reads only, a write to it, and a read past its end.
    ReadOnly,
    /// A write that the application gives up, and a region that is dropped.
    GivenUp,
    /// Memory without a descriptor, which is dropped during a write and a read.
    Foreign,
    /// Two channels between two processes, either of which is closed, and a region that is dropped.
    Reopened,
    /// A region is dropped while its peer writes it, by slices and at once, and closes the channel.
    AtOnce,
    /// Memory without a descriptor, which is dropped while its peer writes it, by slices and by a call at once,
    /// and closes the channel.
    ForeignAtOnce,
    /// A region that two peers write, one of which sends any message and owns another region.
    Hostile,
    /// A whole allocation on a device, which a peer writes over two channels, and which is dropped.
    Opened,
    /// An allocation on a device for reads only, and a half of one.
    Staged,
    /// A whole allocation on a device, and memory of the host over another channel, whose owner closes both.
    Kept,
    /// Two allocations on a device, which two processes write over two lanes each, and a process may keep one.
    Shares,
}

impl SharingScenario {
    /// Every scenario.
    pub const ALL: [Self; 14] = [
        Self::Dropped,
        Self::Closed,
        Self::Shared,
        Self::ReadOnly,
        Self::GivenUp,
        Self::Foreign,
        Self::Reopened,
        Self::AtOnce,
        Self::ForeignAtOnce,
        Self::Hostile,
        Self::Opened,
        Self::Staged,
        Self::Kept,
        Self::Shares,
    ];

    /// The world of a scenario.
    pub fn setup(self, machine: Sharing, faults_max: u32) -> SharingSetup {
        let (region, write) = (RegionPlan::FIRST, CopyPlan::WRITE);
        let read = CopyPlan { direction: Direction::Read, ..write };
        let (regions, copies) = match self {
            Self::Dropped => (vec![region], vec![write, read]),
            Self::Closed => {
                let other = RegionPlan { owner: 1, may_drop: false, ..region };
                let back = CopyPlan { by: 0, region: 1, ..write };
                (vec![RegionPlan { may_drop: false, ..region }, other], vec![write, back])
            }
            Self::Shared => (vec![region], vec![write, CopyPlan { by: 2, ..write }]),
            Self::ReadOnly => {
                let beyond = CopyPlan { is_beyond: true, ..read };
                let region = RegionPlan { is_writable: false, ..region };
                (vec![region], vec![read, write, beyond])
            }
            Self::GivenUp => (vec![region], vec![CopyPlan { may_cancel: true, ..write }, write]),
            Self::Foreign => (vec![RegionPlan { is_foreign: true, ..region }], vec![write, read]),
            Self::Reopened => (vec![region], vec![write, CopyPlan { lane: 1, ..write }]),
            Self::AtOnce | Self::ForeignAtOnce => {
                let is_foreign = self == Self::ForeignAtOnce;
                let short = CopyPlan { is_short: true, ..write };
                (vec![RegionPlan { is_foreign, ..region }], vec![write, short])
            }
            Self::Hostile => {
                let other = RegionPlan { owner: 1, may_drop: false, ..region };
                let honest = CopyPlan { by: 2, ..write };
                (vec![region, other], vec![write, honest, CopyPlan { by: 0, region: 1, ..read }])
            }
            Self::Opened => {
                let region = RegionPlan { place: RegionPlace::Allocation, ..region };
                (vec![region], vec![write, CopyPlan { lane: 1, ..write }])
            }
            Self::Staged => {
                let place = RegionPlace::Allocation;
                let whole = RegionPlan { is_writable: false, place, ..region };
                let half = RegionPlan { place: RegionPlace::HalfAllocation, ..region };
                (vec![whole, half], vec![read, CopyPlan { region: 1, ..write }])
            }
            Self::Kept => {
                let opened = RegionPlan { place: RegionPlace::Allocation, ..region };
                let other = CopyPlan { region: 1, lane: 1, ..write };
                (vec![opened, RegionPlan { may_drop: false, ..region }], vec![write, other])
            }
            Self::Shares => {
                let opened = RegionPlan { place: RegionPlace::Allocation, ..region };
                let by = |by| {
                    [write, CopyPlan { region: 1, lane: 1, ..write }]
                        .map(|it| CopyPlan { by, ..it })
                };
                (vec![opened; 2], [by(1), by(2)].concat())
            }
        };
        let is_of_three = matches!(self, Self::Shared | Self::Hostile | Self::Shares);
        let processes = if is_of_three { 3 } else { 2 };
        let closers = self.closers();
        let hostile = (self == Self::Hostile).then_some(1);
        let backend = SharingBackend::Shipping;
        // Each of two peers has its share, and there is no more.
        let kept = if self == Self::Shares { KeptMemory::bounded(2, 1) } else { KeptMemory::new() };
        SharingSetup {
            machine,
            openings: Openings::new(),
            kept,
            processes,
            regions,
            copies,
            closers,
            hostile,
            backend,
            faults_max,
        }
    }
}

impl SharingScenario {
    fn closers(self) -> Vec<usize> {
        match self {
            Self::Closed => vec![0, 1],
            Self::Kept => vec![0],
            Self::Reopened | Self::AtOnce | Self::ForeignAtOnce => vec![1],
            _ => Vec::new(),
        }
    }
}

impl SharingSetup {
    /// A region as its owner offers it.
    pub(super) fn offered(&self, region: usize) -> Offered {
        let writable = self.regions[region].is_writable;
        let address = address(region);
        let bytes = match self.regions[region].place {
            RegionPlace::Host => REGION_BYTES,
            RegionPlace::Allocation | RegionPlace::HalfAllocation => DEVICE_BLOCK_BYTES,
        };
        Offered { address, bytes, readable: true, writable }
    }

    /// The allocation on a device that has a region.
    pub(super) fn allocation(&self, region: usize) -> Option<Allocation> {
        let blocks = match self.regions[region].place {
            RegionPlace::Host => return None,
            RegionPlace::Allocation => 1,
            RegionPlace::HalfAllocation => 2,
        };
        Some(Allocation { start: address(region), bytes: blocks * DEVICE_BLOCK_BYTES })
    }

    /// The reason to stage a region on a device, if there is one.
    pub(super) fn staged(&self, region: usize) -> Option<Staged> {
        let plan = &self.regions[region];
        match plan.place {
            RegionPlace::HalfAllocation => Some(Staged::NotWhole),
            RegionPlace::Allocation if !plan.is_writable => Some(Staged::NotReadWrite),
            RegionPlace::Allocation | RegionPlace::Host => None,
        }
    }

    /// Whether a copy is within the region and its rights.
    pub(super) fn is_allowed(&self, copy: &CopyPlan) -> bool {
        let is_writable = self.regions[copy.region].is_writable;
        !copy.is_beyond && (copy.direction == Direction::Read || is_writable)
    }
}

/// Messages that a hostile process sends whenever it likes: about grants that exist or not, answers to
/// nothing, and a region larger than its memory.
pub(super) fn forged() -> [Frame; 10] {
    let offered =
        Offered { address: address(1), bytes: 2 * REGION_BYTES, readable: true, writable: true };
    [
        Frame::Ask { key: key(0) },
        Frame::Ask { key: key(9) },
        Frame::Grant { key: key(1), grant: GrantId(9), offered },
        Frame::Deny { key: key(1), denial: Denial::NotSharable },
        Frame::Revoke { grant: GrantId(1) },
        Frame::Revoked { grant: GrantId(1) },
        Frame::Revoked { grant: GrantId(2) },
        Frame::Kept { grant: GrantId(1) },
        Frame::Close,
        Frame::Closed,
    ]
}

/// The first byte of a region in the addresses of its owner.
pub(super) fn address(region: usize) -> u64 {
    2 * DEVICE_BLOCK_BYTES * (region as u64 + 1)
}

/// The region with an address, as [`address`] has it.
pub(super) fn region_at(address: u64) -> usize {
    (address / (2 * DEVICE_BLOCK_BYTES)) as usize - 1
}

/// The driver's handle of the allocation that has a region.
pub(super) fn handle(region: usize) -> Handle {
    Handle([region as u8; HANDLE_BYTES])
}

/// The key of a region, and the region of a key.
pub(super) fn key(region: usize) -> u64 {
    region as u64 + 100
}
