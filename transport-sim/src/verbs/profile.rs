//! Behaviour of a driver, as a table.

use super::errors::Errno;
use super::objects::{GidKind, Status};
use super::states::{QpState, Transitions};

/// Fate of a send posted before RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlySend {
    /// Refused with this, and gone.
    Refused(Errno),
    /// Refused with this, and yet in the ring: it is executed in front of the next post after RTS.
    RefusedAndKept(Errno),
    /// Accepted; it is executed in front of the next post after RTS.
    Kept,
}

/// Fate of work posted to a queue pair that the device moved to ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatePost {
    /// It completes as flushed.
    Flushed,
    /// It is accepted and never completes.
    Lost,
}

/// Fate of a queue pair's unpolled completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completions {
    /// They stay and can be polled.
    Kept,
    /// They are gone.
    Removed,
}

/// Numbering of new queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// The smallest that is free: numbers are born again at once.
    SmallestFree {
        /// The first.
        first: u32,
    },
    /// The one after the last, from the first again when all were given.
    Cycling {
        /// The first.
        first: u32,
        /// Count of numbers.
        count: u32,
    },
    /// One that was never given since the device started.
    Fresh {
        /// The first.
        first: u32,
    },
}

impl Numbers {
    /// The first number that a device gives.
    pub const fn first(self) -> u32 {
        match self {
            Self::SmallestFree { first } | Self::Cycling { first, .. } | Self::Fresh { first } => {
                first
            }
        }
    }
}

/// Source of sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PsnSource {
    /// From the attributes of RTR and RTS.
    Attributes,
    /// The same for every connection, regardless of the attributes.
    Constant,
}

/// Response to a read with a past PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateRead {
    /// It answers once more, from memory as it is.
    Executed,
    /// It drops it unless it remembers it, as it does the last ones that it answered itself.
    Dropped,
}

/// Acknowledgement of a write or send with a past PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateAck {
    /// Its own PSN.
    Its,
    /// The PSN of what was executed last; the one before zero if nothing was, ever.
    LastExecuted,
}

/// Trigger of requests that were posted in SQD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldSend {
    /// The step to RTS.
    Rts,
    /// The next post after that step.
    NextPost,
}

/// Trigger that flushes a receive posted in ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateReceive {
    /// The same trigger as for late sends.
    AsSends,
    /// The next step to ERR.
    NextError,
}

/// Retry limits of a requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// A retry count that means for ever.
    pub infinite_count: Option<u8>,
    /// Fixed number of retries of the device, regardless of the attributes.
    pub count_fixed: Option<u8>,
    /// Shortest time between two tries, in nanoseconds.
    pub interval_floor_ns: u64,
    /// A receiver that is not ready is waited for; without it that is an error at once.
    pub waits_for_receiver: bool,
}

impl Retry {
    /// Times a packet is sent again; `None` for ever.
    pub fn count(self, timeout: u8, retry_count: u8) -> Option<u8> {
        match self.count_fixed {
            Some(count) => Some(count),
            None if timeout == 0 || self.infinite_count == Some(retry_count) => None,
            None => Some(retry_count),
        }
    }

    /// Time until a requester gives a silent peer up, in nanoseconds; `None` for ever.
    pub fn budget_ns(self, timeout: u8, retry_count: u8) -> Option<u64> {
        let tries = u64::from(self.count(timeout, retry_count)?) + 1;
        let interval = 4_096u64.checked_shl(u32::from(timeout)).unwrap_or(u64::MAX);
        Some(tries.saturating_mul(interval.max(self.interval_floor_ns)))
    }
}

/// Status at the requester, by cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statuses {
    /// Wrong rkey, out of the region's bounds, or a region without the right.
    pub remote_access: Status,
    /// The peer's queue pair lacks the right, or a packet is longer than it expects.
    pub remote_invalid: Status,
    /// The peer failed to take a send.
    pub remote_operation: Status,
    /// The receiver's own completion of a send that is longer than the receive.
    pub receive_too_short: Status,
    /// A write or a send from a region that is not ours.
    pub local_key: Status,
    /// A write or a send from beyond the region's bounds.
    pub local_bounds: Status,
    /// A read into a region that is not ours, or beyond its bounds.
    pub local_read: Status,
    /// No answer.
    pub retry_exceeded: Status,
    /// No receive was posted in time.
    pub rnr_exceeded: Status,
    /// A send into a receive whose key is wrong, at the receiver.
    pub receive_key: Status,
    /// Posted while the own port is down or the own address is gone; without one, it is sent and
    /// not answered.
    pub port_down: Option<Status>,
}

/// Behaviour of one driver. Plain data: [`PROFILES`](super::PROFILES) holds the entries with their
/// sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name; two profiles never share one.
    pub name: &'static str,
    /// Effect of each modify.
    pub transitions: Transitions,
    /// The state that a query gives for a new queue pair.
    pub fresh: QpState,
    /// Missing and surplus attributes of a modify are refused.
    pub checks_attributes: bool,
    /// A path MTU above the port's, 1,024 bytes, is refused at RTR.
    pub checks_path_mtu: bool,
    /// Kind and RoCE version of the first entries of the GID table when the device starts.
    pub gids: &'static [(GidKind, u8)],
    /// Length of the GID table.
    pub gid_table_length: usize,
    /// The entry that a connection should use; `None` where there is none.
    pub gid_index: Option<u8>,
    /// RTR looks for the peer's neighbour entry, and blocks for a second when there is none.
    pub resolves: bool,
    /// RTR refuses a link-local GID on either side.
    pub refuses_link_local: bool,
    /// Connects over IPv4 only; anything else goes to RTS in name and fails with `EAFNOSUPPORT`.
    pub connects_ipv4_only: bool,
    /// Sends posted before RTS.
    pub early_send: EarlySend,
    /// Receives posted in RESET; `None` takes them.
    pub receive_in_reset: Option<Errno>,
    /// Posts after the application itself asked for ERR; `None` takes and flushes them.
    pub post_after_own_error: Option<Errno>,
    /// Work posted after the device found an error.
    pub late_post: LatePost,
    /// Receives posted in ERR.
    pub late_receive: LateReceive,
    /// Sends posted in SQD.
    pub held_send: HeldSend,
    /// As long as work is under way in SQD, every step but ERR is refused, and nothing is sent again.
    pub drains_first: bool,
    /// Most own reads outstanding that RTS takes.
    pub reads_max: Option<u8>,
    /// Completions at RESET.
    pub completions_at_reset: Completions,
    /// Completions at destroy.
    pub completions_at_destroy: Completions,
    /// After RESET the provider's ring is out of step: work is accepted and never completes.
    pub reset_breaks_ring: bool,
    /// Source of PSNs.
    pub psn_source: PsnSource,
    /// Writes and sends behind the expected PSN.
    pub duplicate_ack: DuplicateAck,
    /// An acknowledgement of a number that was not sent yet ends what was sent.
    pub ack_beyond_ends: bool,
    /// Reads behind the expected PSN.
    pub duplicate_read: DuplicateRead,
    /// Numbers of queue pairs.
    pub numbers: Numbers,
    /// The low byte of a key is random per registration; otherwise it is zero.
    pub key_byte_varies: bool,
    /// The lkey and the rkey of a region are the same number.
    pub one_key: bool,
    /// Queue pairs that a device has. Smaller than life, so that tests reach it.
    pub queue_pairs_max: u32,
    /// Regions that a device has. Smaller than life, so that tests reach it.
    pub regions_max: u32,
    /// Error of a full table of regions.
    pub regions_full: Errno,
    /// Both depths of a queue pair must be at least one.
    pub needs_depth: bool,
    /// Data-path calls return their error numbers negative.
    pub negative_data_codes: bool,
    /// Retry limits of requesters.
    pub retry: Retry,
    /// Statuses at the requester.
    pub statuses: Statuses,
    /// An error of a queue pair raises an event as well.
    pub error_event: bool,
    /// Reports `PORT_ACTIVE` twice.
    pub port_active_twice: bool,
}

impl std::hash::Hash for Profile {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}
