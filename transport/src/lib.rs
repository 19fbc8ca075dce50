//! Types of the data path that all transports share: memory, regions, postings and
//! completions.
//!
//! A peer may write a registered block at any time, so [`Memory`] is never exposed as a slice:
//! bytes are copied in and out, or accessed by raw pointer through a [`Span`]. Blocks are
//! reference-counted; a [`Span`] keeps its block mapped until the last use. [`RegionTable`] holds
//! the blocks that peers may reach, with key and permissions.

mod block;
mod device;
mod endpoints;
mod huge;
mod kind;
mod limit;
mod mapping;
mod memfd;
mod numa;
mod path;
mod posting;
mod region;
mod spin;
mod staged_copy;
mod staging;

pub use block::{BlockId, Memory, MemoryError, Span};
pub use device::{DeviceId, DeviceKey, DeviceMemory, KeyPlace, RenewedKeys};
pub use endpoints::{Attempt, Created, Endpoints, NotCreated, TransportKind};
pub use handfast_core::policy::{Access, Grant, GrantError, Grants, Requester};
pub use handfast_core::transfer::{
    Completion, CompletionStatus, Direction, RemoteSpan, Sent, SliceId,
};
pub use handfast_core::wire::Cut;
pub use kind::{
    Accelerator, AcceleratorError, DEVICE_HANDLE_BYTES, DEVICE_UUID_BYTES, DeviceAllocation,
    DeviceBytes, DeviceHandle, DmaBuf, MemoryKind, OpenDevice, OpenDeviceError, OpenedMemory,
    STAGING_BYTES, staged,
};
pub use limit::{LimitReached, NicLimit};
pub use mapping::HiddenFromChildren;
pub use path::{AtOnce, DataPath, LaneHandle, Step};
pub use posting::{COPY_CALL, FLUSH_CALL, KEY_NEEDS_FLUSH, LaneSink, Posting};
pub use region::{
    REGIONS_MAX, Refused, Region, RegionCache, RegionError, RegionTable, RegionWatch,
    RegistrationError, WATCHES_MAX,
};
pub use spin::SpinBudget;
pub use staged_copy::StagedCopy;
pub use staging::{STAGING_DEPTH, Staging, StagingBuffer, pass_in, pass_out};
