//! Behaviour of a driver, as a table.

use super::errors::Errno;
use super::objects::{GidKind, Status};
use super::states::{QpState, Step, Transitions};

/// Fate of a send posted before RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlySend {
    /// Refused with this error, and dropped.
    Refused(Errno),
    /// Refused with this error, but kept in the ring: executed before the next post after RTS.
    RefusedAndKept(Errno),
    /// Accepted, and executed before the next post after RTS.
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
    /// The smallest free number: numbers are reused at once.
    SmallestFree {
        /// The first.
        first: u32,
    },
    /// The number after the last one, starting over when all were assigned.
    Cycling {
        /// The first.
        first: u32,
        /// Count of numbers.
        count: u32,
    },
    /// A number that was never assigned since the device started.
    Fresh {
        /// The first.
        first: u32,
    },
}

impl Numbers {
    /// Returns the first number that a device assigns.
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

/// Response to a read with an earlier PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateRead {
    /// Answered again, from the present memory.
    Executed,
    /// Dropped unless the responder remembers it, as it does the last reads that it answered.
    Dropped,
}

/// Acknowledgement of a write or send with an earlier PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateAck {
    /// The PSN of the duplicate.
    Its,
    /// The PSN of the last executed request; the one before zero if there was none.
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
    /// A retry count that means unlimited.
    pub infinite_count: Option<u8>,
    /// Fixed number of retries of the device, regardless of the attributes.
    pub count_fixed: Option<u8>,
    /// Minimum time between two tries, in nanoseconds.
    pub interval_floor_ns: u64,
    /// Maximum time between two tries of a device that doubles it with each, from the minimum on,
    /// regardless of the attributes. `None`: all are the same.
    pub doubled_up_to_ns: Option<u64>,
    /// Whether a receiver that is not ready is waited for; otherwise it is an error at once.
    pub waits_for_receiver: bool,
}

impl Retry {
    /// Returns the number of retransmissions of a packet; `None` if unlimited.
    pub fn count(self, timeout: u8, retry_count: u8) -> Option<u8> {
        match self.count_fixed {
            Some(count) => Some(count),
            None if timeout == 0 || self.infinite_count == Some(retry_count) => None,
            None => Some(retry_count),
        }
    }

    /// Returns the time before a requester gives up a silent peer, in nanoseconds; `None` if it
    /// never does.
    pub fn budget_ns(self, timeout: u8, retry_count: u8) -> Option<u64> {
        let tries = 0..=self.count(timeout, retry_count)?;
        Some(tries.fold(0, |sum: u64, tries| sum.saturating_add(self.interval_ns(timeout, tries))))
    }

    /// Returns the time before the next try after so many retransmissions, in nanoseconds.
    pub fn interval_ns(self, timeout: u8, tries: u8) -> u64 {
        if let Some(max) = self.doubled_up_to_ns {
            let factor = 1u64.checked_shl(u32::from(tries)).unwrap_or(u64::MAX);
            return self.interval_floor_ns.saturating_mul(factor).min(max);
        }
        let interval = 4_096u64.checked_shl(u32::from(timeout)).unwrap_or(u64::MAX);
        interval.max(self.interval_floor_ns)
    }
}

/// Status at the requester, by cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statuses {
    /// Wrong rkey, range outside the region, or a region without the permission.
    pub remote_access: Status,
    /// The peer's queue pair lacks the permission, or a packet is longer than expected.
    pub remote_invalid: Status,
    /// The peer failed to accept a send.
    pub remote_operation: Status,
    /// The receiver's own completion of a send that is longer than the receive.
    pub receive_too_short: Status,
    /// A write or a send from an unregistered region.
    pub local_key: Status,
    /// A write or a send from outside the region's bounds.
    pub local_bounds: Status,
    /// A read into an unregistered region, or outside its bounds.
    pub local_read: Status,
    /// No answer.
    pub retry_exceeded: Status,
    /// No receive was posted in time.
    pub rnr_exceeded: Status,
    /// A send into a receive with a wrong key, at the receiver.
    pub receive_key: Status,
    /// Posted while the local port is down or the local address is removed; without a status, it is
    /// sent and not answered.
    pub port_down: Option<Status>,
}

/// Behaviour of one driver. Plain data: [`PROFILES`](super::PROFILES) holds the entries with their
/// sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name; two profiles never share one.
    pub name: &'static str,
    /// Lanes are channels of processes of one host that map memory of each other; a queue pair is
    /// the lane below, and carries no bytes.
    pub shares_memory: bool,
    /// Effect of each modify.
    pub transitions: Transitions,
    /// The state that a query returns for a new queue pair.
    pub fresh: QpState,
    /// Missing and surplus attributes of a modify are refused.
    pub checks_attributes: bool,
    /// A path MTU above the port's, 1,024 bytes, is refused at RTR.
    pub checks_path_mtu: bool,
    /// Kinds and RoCE versions of the first entries of the GID table when the device starts.
    pub gids: &'static [(GidKind, u8)],
    /// Length of the GID table.
    pub gid_table_length: usize,
    /// The recommended entry for connections; `None` without one.
    pub gid_index: Option<u8>,
    /// Whether RTR resolves the peer's neighbour entry, and blocks for a second if there is none.
    pub resolves: bool,
    /// RTR refuses a link-local GID on either side.
    pub refuses_link_local: bool,
    /// Whether it connects over IPv4 only; otherwise it reports RTS and fails with `EAFNOSUPPORT`.
    pub connects_ipv4_only: bool,
    /// Sends posted before RTS.
    pub early_send: EarlySend,
    /// Receives posted in RESET; `None` accepts them.
    pub receive_in_reset: Option<Errno>,
    /// Posts after the application itself requested ERR; `None` accepts and flushes them.
    pub post_after_own_error: Option<Errno>,
    /// Work posted after the device found an error.
    pub late_post: LatePost,
    /// Receives posted in ERR.
    pub late_receive: LateReceive,
    /// Sends posted in SQD.
    pub held_send: HeldSend,
    /// Whether, as long as work is outstanding in SQD, every step but ERR is refused, and nothing
    /// is retransmitted.
    pub drains_first: bool,
    /// A read's local memory needs the permission of remote writes too, as the bytes of a response
    /// are a write of the peer on iWARP.
    pub sink_needs_remote_write: bool,
    /// The responder refuses empty reads.
    pub refuses_empty_read: bool,
    /// The responder refuses reads of one byte.
    pub refuses_byte_read: bool,
    /// Maximum own outstanding reads accepted at RTS.
    pub reads_max: Option<u8>,
    /// Completions at RESET.
    pub completions_at_reset: Completions,
    /// Completions at destroy.
    pub completions_at_destroy: Completions,
    /// Whether RESET desynchronizes the provider's ring: work is accepted and never completes.
    pub reset_breaks_ring: bool,
    /// Source of PSNs.
    pub psn_source: PsnSource,
    /// Writes and sends with a PSN before the expected one.
    pub duplicate_ack: DuplicateAck,
    /// Whether an acknowledgement of an unsent number completes sent work.
    pub ack_beyond_ends: bool,
    /// Reads with a PSN before the expected one.
    pub duplicate_read: DuplicateRead,
    /// Numbering of queue pairs.
    pub numbers: Numbers,
    /// The low byte of a key is random per registration; otherwise it is zero.
    pub key_byte_varies: bool,
    /// Whether the lkey and the rkey of a region are the same number.
    pub one_key: bool,
    /// Maximum queue pairs of the device. Lower than on real devices, so that tests reach it.
    pub queue_pairs_max: u32,
    /// Maximum regions of the device. Lower than on real devices, so that tests reach it.
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
    /// Whether a write completes once it is sent, as on iWARP. One that the peer refuses ends its queue
    /// pair, and no completion has the cause.
    pub completes_early: bool,
    /// Whether an error of a queue pair also raises an event.
    pub error_event: bool,
    /// Reports `PORT_ACTIVE` twice.
    pub port_active_twice: bool,
}

impl Profile {
    /// Whether the device refuses queue pairs that are connected out of band.
    pub fn connects_managed_only(&self) -> bool {
        let to_rts = self.transitions.iter().map(|from| from[QpState::Rts as usize]);
        !to_rts.into_iter().any(|step| matches!(step, Step::Connect | Step::To(QpState::Rts)))
    }
}

impl std::hash::Hash for Profile {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}
