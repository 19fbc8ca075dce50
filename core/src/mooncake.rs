//! Messages of the Mooncake Transfer Engine apart from the handshake: segment descriptors,
//! notifications, probes, the entries of metadata stores, and the TCP data protocol.
//!
//! Formats are those of the released engine, as recorded in `core/tests/golden`. None contains the
//! handfast key.

mod data;
mod exchange;
mod link;
mod matrix;
mod notify;
mod segment;
mod store;

pub use data::{
    DataRequest, DataStatus, DataStatusError, ProtocolVersion, REQUEST_BYTES, STATUS_BYTES,
};
pub use exchange::{Awaits, Exchange, ReplyError};
pub use link::{
    DataLink, LANES_UNANSWERED_MAX, LaneEnd, LinkLimits, PostError, RECONNECT_PAUSE_MAX,
    RECONNECT_PAUSE_MIN, Taken, Withdrawn,
};
pub use matrix::{
    MATRIX_BYTES_MAX, MATRIX_LOCATIONS_MAX, MATRIX_NICS_MAX, MatrixError, Nearness, Nics,
    PriorityMatrix, WILDCARD,
};
pub use notify::{
    NOTIFICATION_MESSAGE_BYTES_MAX, NOTIFICATION_NAME_BYTES_MAX, Notification, NotificationError,
    PROBE_ANSWER, PROBE_QUESTION,
};
pub use segment::{
    BUFFERS_MAX, BufferDescriptor, Protocols, SegmentDescriptor, SegmentError, TEXT_BYTES_MAX,
    TIMESTAMP_BYTES_MAX,
};
pub(crate) use segment::{is_bounded, matrix};
pub use store::{CLUSTER_ID_BYTES_MAX, Keys, KeysError, RpcMeta, RpcMetaError};

use alloc::string::String;
use serde::Serialize;

/// Answer of a node without a descriptor for the caller: it is starting, or its descriptor is
/// in a metadata store.
pub const NULL_ANSWER: &str = "null\n";

/// Returns whether a node's answer is [`NULL_ANSWER`].
pub fn is_null(text: &str) -> bool {
    text.trim() == "null"
}

/// Encodes compact JSON with keys in field order and a final line feed.
fn to_line<T: Serialize>(value: &T) -> String {
    let mut text = serde_json::to_string(value)
        .expect("a value of strings and numbers has no fallible serializer");
    text.push('\n');
    text
}
