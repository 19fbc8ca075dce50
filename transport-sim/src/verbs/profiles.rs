//! The devices. "Shared" is the kernel's common state table; "measured" is soft-RoCE of Linux 6.1
//! and 6.12 in a guest; a driver's name refers to its source in the kernel or in rdma-core 65.

use super::errors::Errno;
use super::objects::{GidKind, Status};
use super::profile::{
    Completions, DuplicateAck, DuplicateRead, EarlySend, HeldSend, LatePost, LateReceive, Numbers,
    Profile, PsnSource, Retry, Statuses,
};
use super::states::{self, QpState};

/// Every device.
pub static PROFILES: [&Profile; 7] =
    [&STRICT, &RXE, &MLX5, &IRDMA, &ERDMA_STANDARD, &ERDMA_COMPAT, &ERDMA_ROCEV2];

/// Devices that connect through the connection manager alone. The first is one of [`PROFILES`]; no
/// sweep draws the others.
pub static MANAGED_PROFILES: [&Profile; 3] = [&ERDMA_STANDARD, &SIW, &IRDMA_IWARP];

/// The specification, with the hardest choice wherever it permits several: numbers are reused at
/// once, and dropped work is never reported.
pub static STRICT: Profile = Profile {
    name: "strict",
    shares_memory: false,
    // Shared: `ib_modify_qp_is_ok`.
    transitions: states::SHARED,
    fresh: QpState::Reset,
    checks_attributes: true,
    checks_path_mtu: true,
    // RoCE v2 only: link-local first, then one entry per address in order of addition.
    gids: &[(GidKind::LinkLocal, 2), (GidKind::Ipv4, 2)],
    gid_table_length: 16,
    gid_index: Some(1),
    // The core resolves the neighbour before it calls the driver, for at most a second.
    resolves: true,
    refuses_link_local: false,
    connects_ipv4_only: false,
    // Specification: posts in the wrong state fail immediately and have no effect.
    early_send: EarlySend::Refused(Errno::Einval),
    receive_in_reset: Some(Errno::Einval),
    // Specification: in the error state work is accepted and flushed.
    post_after_own_error: None,
    late_post: LatePost::Flushed,
    late_receive: LateReceive::AsSends,
    // Specification: held work is sent with the step to RTS.
    held_send: HeldSend::Rts,
    drains_first: false,
    // Specification: the local write permission is enough, and any length is a read.
    sink_needs_remote_write: false,
    refuses_empty_read: false,
    refuses_byte_read: false,
    // Unknown: it differs between devices.
    reads_max: None,
    // Specification: completions stay in the queue when their queue pair is destroyed.
    completions_at_reset: Completions::Kept,
    completions_at_destroy: Completions::Kept,
    reset_breaks_ring: false,
    psn_source: PsnSource::Attributes,
    // Specification: a duplicate is acknowledged, and an acknowledgement of an unsent number
    // completes nothing.
    duplicate_ack: DuplicateAck::Its,
    ack_beyond_ends: false,
    // Specification: a duplicate read is executed again.
    duplicate_read: DuplicateRead::Executed,
    // No source: the allocation that is hardest on a restarted or retired peer.
    numbers: Numbers::SmallestFree { first: 1 },
    key_byte_varies: false,
    one_key: false,
    queue_pairs_max: 64,
    regions_max: 128,
    regions_full: Errno::Enomem,
    needs_depth: false,
    negative_data_codes: false,
    // Specification: the retry count is exact.
    retry: Retry {
        infinite_count: None,
        count_fixed: None,
        interval_floor_ns: 0,
        doubled_up_to_ns: None,
        waits_for_receiver: true,
    },
    statuses: SPECIFIED,
    completes_early: false,
    error_event: false,
    port_active_twice: false,
};

/// The specification, but a silent peer is never given up: a lane over it fails only by its
/// watchdog. Not a real device, and not one of [`PROFILES`].
pub static ENDLESS: Profile = Profile {
    name: "endless",
    // Queue pairs of a world ask for no retry.
    retry: Retry {
        infinite_count: Some(0),
        count_fixed: None,
        interval_floor_ns: 0,
        doubled_up_to_ns: None,
        waits_for_receiver: true,
    },
    ..STRICT
};

/// Processes of one host that map memory of each other, over lanes of another transport. Not a
/// device, and not one of [`PROFILES`].
pub static SHM: Profile = Profile { name: "shm", shares_memory: true, ..STRICT };

/// Soft-RoCE. Every field was measured, or is said to come from its source.
pub static RXE: Profile = Profile {
    name: "rxe",
    // Measured: an MTU of 2,048 or 4,096 over an active one of 1,024 returns 0.
    checks_path_mtu: false,
    // Measured: EINVAL, and the request runs after the next good post.
    early_send: EarlySend::RefusedAndKept(Errno::Einval),
    // Measured: three finished sends were still there after RESET and after destroy.
    completions_at_reset: Completions::Kept,
    completions_at_destroy: Completions::Kept,
    // Measured: a receive posted in ERR is flushed by another step to ERR alone.
    late_receive: LateReceive::NextError,
    // Measured: SQD to RTS sets nothing going, the next post does.
    held_send: HeldSend::NextPost,
    // Measured: RTS with a write under way is refused, and its answer never comes.
    drains_first: true,
    // Measured: 128 are taken, 255 are not.
    reads_max: Some(128),
    // Measured: towards a responder that executed nothing yet a stale write ends as unanswered,
    // unless its number is such that the one before zero lies ahead of it.
    duplicate_ack: DuplicateAck::LastExecuted,
    ack_beyond_ends: true,
    // Measured: a stale read is not answered, one whose answer was lost is.
    duplicate_read: DuplicateRead::Dropped,
    // Measured: +1 per creation from 17, no repeat in 833,086.
    numbers: Numbers::Cycling { first: 17, count: 1_048_560 },
    // Measured: the index counts, the low byte is random, lkey equals rkey.
    key_byte_varies: true,
    one_key: true,
    // Measured: retry count 7 never ends; intervals are at least about 8 ms.
    retry: Retry {
        infinite_count: Some(7),
        count_fixed: None,
        interval_floor_ns: 8_000_000,
        doubled_up_to_ns: None,
        waits_for_receiver: true,
    },
    // Measured on 6.1: bad lkey 2, beyond the region 4, too long a send 11 and 2, into a wrong key the
    // same, own port or address 2.
    statuses: Statuses {
        local_key: Status::LocalQueuePair,
        receive_too_short: Status::LocalQueuePair,
        receive_key: Status::LocalQueuePair,
        remote_operation: Status::RemoteOperation,
        port_down: Some(Status::LocalQueuePair),
        ..SPECIFIED
    },
    // Measured: no event in any row of completions; two for one port.
    error_event: false,
    port_active_twice: true,
    ..STRICT
};

/// The reference NIC.
pub static MLX5: Profile = Profile {
    name: "mlx5",
    // mlx5 makes v1 and v2 entries: link-local twice, then each address twice.
    gids: &[
        (GidKind::LinkLocal, 1),
        (GidKind::LinkLocal, 2),
        (GidKind::Ipv4, 1),
        (GidKind::Ipv4, 2),
    ],
    gid_index: Some(3),
    // mlx5 provider: a per-state maximum of scatter entries is -1 until RTS (INIT for receives).
    early_send: EarlySend::Refused(Errno::Enomem),
    receive_in_reset: Some(Errno::Enomem),
    // mlx5 provider: purges the number from both completion queues.
    completions_at_reset: Completions::Removed,
    completions_at_destroy: Completions::Removed,
    // The firmware chooses, in a way not known; fresh numbers are the mildest choice.
    numbers: Numbers::Fresh { first: 0x40 },
    // General knowledge: the key byte varies.
    key_byte_varies: true,
    // General knowledge: hardware raises access and request events.
    error_event: true,
    ..STRICT
};

/// Intel E810 in RoCE mode.
pub static IRDMA: Profile = Profile {
    name: "irdma",
    // irdma: RESET is handled as ERR, also from a fresh queue pair, which then takes no INIT.
    transitions: states::RESET_IS_ERROR,
    // irdma provider: no check of the state.
    early_send: EarlySend::Kept,
    receive_in_reset: None,
    // irdma: completions stay at RESET, the queue is cleaned in destroy.
    completions_at_reset: Completions::Kept,
    completions_at_destroy: Completions::Removed,
    // irdma: cyclic.
    numbers: Numbers::Cycling { first: 3, count: 16_384 },
    error_event: true,
    ..STRICT
};

/// eRDMA as an iWARP device: no connection without the connection manager.
pub static ERDMA_STANDARD: Profile = Profile {
    name: "erdma-standard",
    transitions: states::ERDMA_STANDARD,
    // One entry, the MAC address; an index above it is EINVAL.
    gids: &[(GidKind::Mac, 0)],
    gid_table_length: 1,
    gid_index: None,
    resolves: false,
    refuses_link_local: false,
    ..ERDMA_COMPAT
};

/// Soft-iWARP. What no comment gives a source for is as specified.
pub static SIW: Profile = Profile {
    name: "siw",
    // siw, siw_qp_modify: no table; RTS without a stream is EINVAL, which is measured.
    transitions: states::SIW,
    fresh: QpState::Init,
    checks_attributes: false,
    checks_path_mtu: false,
    // One entry, the MAC address.
    gids: &[(GidKind::Mac, 0)],
    gid_table_length: 1,
    gid_index: None,
    resolves: false,
    // iWARP: the answer to a read is a write of the peer.
    sink_needs_remote_write: true,
    // siw, siw_qp_add: the lowest free number.
    numbers: Numbers::SmallestFree { first: 1 },
    retry: TCP_RETRY,
    // Measured: a write completes once TCP has its bytes.
    completes_early: true,
    error_event: true,
    ..STRICT
};

/// Intel E810 and X722 in iWARP mode.
pub static IRDMA_IWARP: Profile = Profile {
    name: "irdma-iwarp",
    // irdma, irdma_modify_qp.
    transitions: states::IRDMA_IWARP,
    // One entry, the MAC address.
    gids: &[(GidKind::Mac, 0)],
    gid_table_length: 1,
    gid_index: None,
    resolves: false,
    checks_attributes: false,
    checks_path_mtu: false,
    // iWARP: the answer to a read is a write of the peer, and a write completes once it is sent.
    sink_needs_remote_write: true,
    completes_early: true,
    retry: TCP_RETRY,
    ..IRDMA
};

/// eRDMA of the out-of-tree driver with `compat_mode=Y`.
pub static ERDMA_COMPAT: Profile = Profile {
    name: "erdma-compat",
    // erdma, modify: no transition table, RESET does nothing, ERR stays, RTR is the connect.
    transitions: states::ERDMA_COMPAT,
    // erdma, query: IDLE is reported as INIT.
    fresh: QpState::Init,
    checks_attributes: false,
    checks_path_mtu: false,
    // Newer versions; older ones connect in name only, as after `connects_ipv4_only`.
    refuses_link_local: true,
    connects_ipv4_only: true,
    // erdma provider: no check, the entry sits in the ring.
    early_send: EarlySend::Kept,
    receive_in_reset: None,
    // erdma provider: -EIO if the last successful modify was ERR.
    post_after_own_error: Some(Errno::Eio),
    // erdma: only the kernel's queues are flushed again; late posts may remain for ever.
    late_post: LatePost::Lost,
    // erdma provider: entries of unknown numbers are dropped when polled.
    completions_at_destroy: Completions::Removed,
    // erdma: PSNs are stored and not passed to the hardware; the first sequence number of a flow is
    // a function of addresses and queue-pair numbers.
    psn_source: PsnSource::Constant,
    // erdma: cyclic from 1, from 1 again after a restart of the host.
    numbers: Numbers::Cycling { first: 1, count: 1_023 },
    // erdma: the key is the index and a byte of zero.
    key_byte_varies: false,
    one_key: true,
    regions_full: Errno::Enospc,
    // erdma: both depths must not be zero.
    needs_depth: true,
    negative_data_codes: true,
    // erdma: a device-wide count of 24, independent of the queue pair's attributes.
    retry: Retry {
        infinite_count: None,
        count_fixed: Some(24),
        interval_floor_ns: 0,
        doubled_up_to_ns: None,
        waits_for_receiver: false,
    },
    // erdma: remote failures are general errors, local ones of keys and bounds access errors.
    statuses: Statuses {
        remote_access: Status::General,
        remote_invalid: Status::General,
        remote_operation: Status::General,
        receive_too_short: Status::RemoteAccess,
        receive_key: Status::RemoteAccess,
        local_key: Status::LocalAccess,
        local_bounds: Status::LocalAccess,
        local_read: Status::LocalAccess,
        retry_exceeded: Status::RetryExceeded,
        rnr_exceeded: Status::General,
        port_down: None,
    },
    // erdma: every event of a queue pair becomes QP_FATAL.
    error_event: true,
    ..STRICT
};

/// eRDMA in RoCE v2 mode, of mainline kernels.
pub static ERDMA_ROCEV2: Profile = Profile {
    name: "erdma-rocev2",
    // Shared table; the hardware resets, the provider's indices do not.
    transitions: states::SHARED,
    fresh: QpState::Reset,
    checks_attributes: true,
    refuses_link_local: false,
    connects_ipv4_only: false,
    reset_breaks_ring: true,
    // Not documented for this mode: as in the attributes.
    psn_source: PsnSource::Attributes,
    ..ERDMA_COMPAT
};

/// TCP of Linux, which sends the packets of soft-iWARP: `TCP_RTO_MIN` and `TCP_RTO_MAX` of
/// include/net/tcp.h, and 15 retransmissions (`tcp_retries2`).
pub const TCP_RETRY: Retry = Retry {
    infinite_count: None,
    count_fixed: Some(15),
    interval_floor_ns: 200_000_000,
    doubled_up_to_ns: Some(120_000_000_000),
    waits_for_receiver: true,
};

/// The specification's statuses.
const SPECIFIED: Statuses = Statuses {
    remote_access: Status::RemoteAccess,
    remote_invalid: Status::RemoteInvalid,
    remote_operation: Status::RemoteInvalid,
    receive_too_short: Status::LocalLength,
    receive_key: Status::LocalProtection,
    local_key: Status::LocalProtection,
    local_bounds: Status::LocalProtection,
    local_read: Status::LocalProtection,
    retry_exceeded: Status::RetryExceeded,
    rnr_exceeded: Status::RnrExceeded,
    port_down: None,
};
