//! Lanes over verbs.

mod binding;
mod context;
mod counters;
mod lane;
mod listener;
mod nic;
mod objects;
mod posting;
mod work;

pub(crate) use context::devices;
pub use counters::NicCounters;
pub use nic::{DEPTH_MAX, Nic, NicConfig, QUEUE_PAIRS_PER_LANE_MAX, RETRY_COUNT_MAX};
pub use objects::Registration;
pub use posting::{Completion, DeviceEvent, LaneSink, Posting, RemoteSpan, SliceEnd};
