//! The control wire: Mooncake's frame and connection descriptor, with one additional key.
//! `docs/wire.md` is the complete schema.

mod administration;
mod cut;
mod frame;
mod message;
mod plain;
mod segment;

pub use administration::{
    GRANTS_LISTED_MAX, GrantsAnswer, GrantsMessageError, GrantsRefusal, GrantsRefusalReason,
    GrantsRequest, SegmentGrants,
};
pub use cut::{Cut, PIECES_MAX};
pub use frame::{FRAME_BYTES_DEFAULT_MAX, FRAME_BYTES_MAX, FRAME_HEADER_BYTES};
pub use frame::{Frame, FrameError, FrameKind, decode_frame, encode_frame, frame_length};
pub(crate) use message::from_object;
pub use message::{
    Body, Descriptor, Message, MessageError, Op, ProbeByte, QUEUE_PAIRS_MAX, Refusal,
    RefusalReason, SEALED_TOKEN_END, SHARED_MEMORY_BYTES_MAX, WIRE_VERSION,
};
pub use plain::PlainMessage;
pub use segment::{
    Checksum, DESCRIPTOR_BYTES_MAX, DEVICE_NAME_BYTES_MAX, DEVICES_PUBLISHED_MAX, DataPort,
    DescriptorError, DeviceDescriptor, NodeDescriptor, REGION_LOCATION_BYTES_MAX,
    REGION_NAME_BYTES_MAX, REGIONS_PUBLISHED_DEFAULT_MAX, REGIONS_PUBLISHED_MAX, REQUIRED_AUTH,
    RegionDescriptor, Transports,
};
