//! What is posted on a lane, and what comes back.

use super::registration::Registration;
use crate::error::VerbsError;
use handfast_core::Lifecycle;
use handfast_core::transfer::SliceId;
use handfast_core::transport::TransportError;
use handfast_transport::Direction;

/// Where bytes are on the peer's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSpan {
    /// [`Registration::remote_key`] of the peer's registration.
    pub key: u32,
    /// First byte, in the peer's addresses.
    pub address: u64,
}

/// A slice to move with one work request.
#[derive(Clone)]
pub struct Posting {
    /// The caller's name for it, returned with its end; unique among those posted on the lane and
    /// not yet ended.
    pub slice: SliceId,
    /// Which way.
    pub direction: Direction,
    /// The memory on our side, registered with the lane's NIC, held until the slice ends.
    pub local: Registration,
    /// First byte within it.
    pub offset: usize,
    /// Bytes to move, at least 1: drivers let empty requests pass whatever their keys are.
    pub length: usize,
    /// The bytes on the peer's side.
    pub remote: RemoteSpan,
}

/// The one end of a posted slice. The NIC touches its local memory no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which slice.
    pub slice: SliceId,
    /// How it ended.
    pub end: SliceEnd,
}

/// How a slice ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SliceEnd {
    /// Every byte is where it should be.
    Done,
    /// It could never be posted; the lane goes on.
    Refused(VerbsError),
    /// The NIC was never given it: provably no byte moved.
    NotPosted,
    /// The first error of its queue pair, which is the cause of all that follow. Of a write, none,
    /// some or all bytes may be in the peer's memory.
    Failed(VerbsError),
    /// It ended with its queue pair because of what happened before. Bytes as with `Failed`.
    Flushed,
    /// Its queue pair was destroyed without a word about it. Bytes as with `Failed`.
    Abandoned,
}

/// What a device tells without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A port can be used again. May come twice, and queue pairs may need a moment.
    PortActive {
        /// Its number.
        port: u32,
    },
    /// A port went down. What is in flight ends by itself, or goes on if the port returns in time.
    PortDown {
        /// Its number.
        port: u32,
    },
    /// Addresses of a port came or went.
    AddressesChanged {
        /// Its number.
        port: u32,
    },
    /// The device is lost; every lane on it has failed.
    DeviceLost,
    /// Any other event, by rdma-core's number.
    Other(u32),
}

/// Where a NIC reports. Called from the NIC's own thread, and from within `post` and `retire`,
/// without a lock of the NIC held; it must not block and may post. It must not retire.
pub trait LaneSink: Send + Sync + 'static {
    /// Slices ended. The callee may drain; what it leaves is dropped.
    fn on_completions(&self, lane: Lifecycle, completions: &mut Vec<Completion>);

    /// The lane broke: the first error, once. It takes nothing more and is to be retired.
    fn on_lane_failed(&self, lane: Lifecycle, error: TransportError);

    /// The device told something.
    fn on_device_event(&self, event: DeviceEvent);
}
