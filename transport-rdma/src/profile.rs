//! Driver profiles: properties of a driver known before the first queue pair, by its driver, its
//! bus numbers and the kernel's description, never by its name.
//!
//! The simulator's profiles agree under the same names; a test of `sim-tests` compares them.

use crate::settings::{LANE_QUEUE_PAIRS_DEFAULT, Polling, SPIN_DEFAULT};
use handfast_core::transport::Side;
use std::fmt;
use std::time::Duration;

/// Alibaba Cloud on the bus; kernel driver `erdma`.
const VENDOR_ALIBABA: u32 = 0x1ded;
/// The eRDMA function of [`VENDOR_ALIBABA`]; kernel driver `erdma`.
const PART_ERDMA: u32 = 0x107f;
/// Amazon on the bus; kernel driver `efa`.
const VENDOR_AMAZON: u32 = 0x1d0f;
/// EFA's functions are numbered 0xefa0, 0xefa1 and so on; kernel driver `efa`.
const PARTS_EFA: std::ops::RangeInclusive<u32> = 0xefa0..=0xefaf;
/// Drivers whose bus device an irdma device hangs on: irdma itself is an auxiliary driver.
const DRIVERS_IRDMA: [&str; 4] = ["ice", "i40e", "idpf", "irdma"];
/// `RDMA_NODE_IB_CA`: InfiniBand and RoCE.
const NODE_CHANNEL_ADAPTER: u32 = 1;
/// `RDMA_NODE_RNIC`: iWARP.
const NODE_RNIC: u32 = 4;

/// Identity of a device, as reported by the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The kernel driver bound to its bus device, empty for software devices, which have none.
    pub driver: String,
    /// PCI vendor id.
    pub vendor: Option<u32>,
    /// PCI device id.
    pub part: Option<u32>,
    /// `node_type`: 1 for InfiniBand and RoCE, 4 for iWARP, 7 for neither; 0 if unknown.
    pub node_type: u32,
    /// Network interface below a software device; empty for other devices.
    pub parent: String,
    /// Length of the first port's GID table, unused entries included.
    pub gid_table_length: usize,
    /// Parameter `compat_mode` of the kernel module `erdma`, if present.
    pub erdma_compat_mode: Option<bool>,
}

/// Connection method of a device's queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connecting {
    /// By exchanging queue-pair numbers out of band, or through the connection manager if an option
    /// says so.
    OutOfBand,
    /// Through the connection manager alone. The text states the reason.
    Manager(&'static str),
    /// Unusable for lanes. The text states the reason and the remedy.
    Never(&'static str),
}

/// Properties of one driver that lanes depend on. Entries name their sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProfile {
    /// Profile name, shared with the simulator's equal profile.
    pub name: &'static str,
    /// Connection method, which determines whether lanes are possible.
    pub connecting: Connecting,
    /// Retry count with unlimited retries.
    pub retries_infinite: Option<u8>,
    /// Fixed number of retries of the device, regardless of the queue pair's attributes.
    pub retries_fixed: Option<u8>,
    /// Uses the announced packet sequence numbers. A device with other numbers keeps no late
    /// packet out, and the handshake's identities are the only guard.
    pub honours_psns: bool,
    /// Supports link-local addresses.
    pub takes_link_local: bool,
    /// Supports IPv6 addresses.
    pub takes_ipv6: bool,
    /// Does not answer a read with a stale sequence number. Otherwise a one-byte read proves
    /// nothing about an earlier pairing.
    pub drops_stale_reads: bool,
    /// Side charged with a queue pair's fatal event.
    pub fatal_event: Side,
    /// Maximum bytes per call of `ibv_post_send`, if more are slower; a longer request has its own
    /// call.
    pub call_bytes_max: Option<u32>,
    /// Maximum bytes of one registration, if less than the device says.
    pub region_bytes_max: Option<u64>,
    /// Maximum bytes of a slice.
    pub slice_bytes_max: u32,
    /// Default number of a lane's queue pairs.
    pub queue_pairs_per_lane: usize,
    /// Whether each queue pair of a lane is filled to its depth. Otherwise a lane has as many slices
    /// outstanding as one of its queue pairs holds.
    pub fills_queue_pairs: bool,
    /// Default exponent of the ACK timeout.
    pub timeout_exponent: u8,
    /// Default number of retries after that timeout.
    pub retries: u8,
    /// Default method of waiting for completions.
    pub polling: Polling,
    /// Longest wait for the flush of outstanding work at the end of a lane.
    pub drain: Duration,
    /// Whether the local memory of a read needs the right of remote writes.
    pub read_sink_needs_remote_write: bool,
    /// Whether the driver lets peers write to every registration, whichever rights were asked for.
    pub grants_remote_write: bool,
    /// Statuses of completions that may mean a refused key, where the device has none for it alone.
    pub hidden_refusals: &'static [u32],
    /// Statuses of a request whose sending was broken off, whatever ended the connection: they say as little of
    /// the cause as a flush.
    pub broken_sends: &'static [u32],
    /// Whether a queue pair or a completion queue whose destruction failed must not be destroyed again: the
    /// driver has given parts of it back by then.
    pub destroys_once: bool,
    /// Whether `rdma_connect` waits for the peer's machine instead of an event.
    pub dials_block: bool,
    /// Errors of a call after which the device takes no command until the kernel probes it again,
    /// although it goes on to answer what the driver knows by heart.
    pub ends_commands: &'static [i32],
}

/// A profile and the reason for its recognition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recognised {
    /// The profile.
    pub profile: &'static DeviceProfile,
    /// Reason for the recognition, for people.
    pub why: String,
}

impl fmt::Display for Recognised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.profile.name, self.why)
    }
}

/// The names and values of all profiles.
pub static DEVICE_PROFILES: [&DeviceProfile; 10] = [
    &STRICT,
    &RXE,
    &MLX5,
    &IRDMA,
    &ERDMA_STANDARD,
    &ERDMA_COMPAT,
    &ERDMA_ROCEV2,
    &SIW,
    &IWARP,
    &EFA,
];

/// An unknown device (also the result of [`recognise`] then): the specification, with the hardest
/// choice where it leaves one.
pub(crate) static STRICT: DeviceProfile = DeviceProfile {
    name: "strict",
    connecting: Connecting::OutOfBand,
    // Specification: seven retries are seven.
    retries_infinite: None,
    retries_fixed: None,
    honours_psns: true,
    takes_link_local: true,
    takes_ipv6: true,
    // Specification: a duplicate read is executed again.
    drops_stale_reads: false,
    // Specification: a local error that no completion could report.
    fatal_event: Side::Local,
    call_bytes_max: None,
    region_bytes_max: None,
    // A packet's timeout starts over with each answer, so a long slice needs no longer one. Larger
    // slices gain nothing: at 4 MiB a slice takes 80 µs of the fastest ports.
    slice_bytes_max: 4 << 20,
    queue_pairs_per_lane: LANE_QUEUE_PAIRS_DEFAULT,
    fills_queue_pairs: true,
    // 268 ms, seven times: 1.9 s nominal. A shorter blip of the fabric costs no lane.
    timeout_exponent: 16,
    retries: 6,
    // A wake-up costs several times a round trip.
    polling: Polling::Adaptive { spin: SPIN_DEFAULT },
    drain: Duration::from_secs(2),
    // InfiniBand and RoCE: the answer to a read is no access of a peer's.
    read_sink_needs_remote_write: false,
    grants_remote_write: false,
    hidden_refusals: &[],
    broken_sends: &[],
    // rxe, mlx4, mlx5, bnxt_re, erdma of rdma-core: the command comes first, and a failed one returns.
    destroys_once: false,
    dials_block: false,
    ends_commands: &[],
};

/// Soft-RoCE.
pub(crate) static RXE: DeviceProfile = DeviceProfile {
    name: "rxe",
    // Measured on 6.1 and 6.12: with 7 a write to a dead peer never ends.
    retries_infinite: Some(7),
    // Measured on 6.1, see the test `an_old_pairing_is_seen_by_a_read_and_not_by_a_write`.
    drops_stale_reads: true,
    // rxe, post_send: the caller moves the packets itself, and answers come within the same call until
    // a soft interrupt's budget is used up, 2 ms or ten rounds. The rest is then moved by another
    // thread, as a rule on another processor, where packets of one queue pair overtake each other:
    // soft-RoCE asks again for what is out of order. Measured on 6.1: 64 KiB reads twice as fast.
    call_bytes_max: Some(64 << 10),
    // rxe: the timeout covers a whole slice and all work in flight before it.
    slice_bytes_max: 256 << 10,
    fills_queue_pairs: false,
    // 268 ms, five times: 1.3 s. Measured on 6.1: with 67 ms a slow device aborted reads that were
    // still arriving, and some kernels reported such a read as successful (docs/hardware.md).
    retries: 4,
    // The poster and the poller move packets themselves and need the processor.
    polling: Polling::Event,
    ..STRICT
};

/// NVIDIA. No known deviation from the specification.
pub(crate) static MLX5: DeviceProfile = DeviceProfile { name: "mlx5", ..STRICT };

/// Intel in RoCE mode. Its only other deviation, RESET, is never used.
pub(crate) static IRDMA: DeviceProfile = DeviceProfile {
    name: "irdma",
    // irdma of rdma-core, udestroy_cq: the lock is destroyed before the command.
    destroys_once: true,
    ..STRICT
};

/// eRDMA as an iWARP device.
pub(crate) static ERDMA_STANDARD: DeviceProfile = DeviceProfile {
    name: "erdma-standard",
    // erdma, modify: RTR is no operation, RTS without a connection of the kernel's is EINVAL.
    connecting: Connecting::Manager(
        "the driver erdma is in its standard mode, in which only the kernel connects queue pairs",
    ),
    // erdma of mainline, reg_user_mr: the rights that are asked for.
    grants_remote_write: false,
    ..ERDMA_COMPAT
};

/// eRDMA of the driver outside of the kernel's tree, with `compat_mode=Y`.
pub(crate) static ERDMA_COMPAT: DeviceProfile = DeviceProfile {
    name: "erdma-compat",
    // erdma: a device-wide count of 24, and none of the queue pair's values.
    retries_infinite: None,
    retries_fixed: Some(24),
    // erdma: PSNs are stored and not given to the hardware.
    honours_psns: false,
    // erdma: newer versions refuse link-local on either side, older ones connect in name only.
    takes_link_local: false,
    // erdma: IPv6 needs a capability, without which it goes to RTS in name only.
    takes_ipv6: false,
    // erdma: every event of a queue pair becomes this one, most are of the connection.
    fatal_event: Side::Peer,
    // erdma: a registration has one table of at most 524,288 pages of 4 KiB. One that begins within
    // a page has a page more.
    region_bytes_max: Some((2 << 30) - (4 << 10)),
    // Not measured: whether late posts are flushed differs between its modes, and a step of another
    // lane waits meanwhile.
    drain: Duration::from_millis(500),
    // Not measured: devices of the iWARP family write the answer to a read as a peer does.
    read_sink_needs_remote_write: true,
    // OpenAnolis' erdma, reg_user_mr: the right is added to every user's region.
    grants_remote_write: true,
    // erdma, completion table: a key that the peer refuses is a general error, and one that this
    // side's part of the device refuses a local access error.
    hidden_refusals: &[8, 21],
    // erdma, command queue: ETIME for a command that is not answered within 15 s, and ENODEV for
    // each after it.
    ends_commands: &[62, 19],
    ..STRICT
};

/// eRDMA in RoCE v2 mode, of mainline kernels.
pub(crate) static ERDMA_ROCEV2: DeviceProfile = DeviceProfile {
    name: "erdma-rocev2",
    // No source for this mode: the attributes are assumed to apply.
    honours_psns: true,
    takes_link_local: true,
    takes_ipv6: true,
    // erdma of mainline, reg_user_mr: the rights that are asked for.
    grants_remote_write: false,
    ..ERDMA_COMPAT
};

/// Soft-iWARP.
pub(crate) static SIW: DeviceProfile = DeviceProfile {
    name: "siw",
    // Measured on 6.1, see the story `a_queue_pair_that_is_wired_out_of_band_is_refused_at_rts`.
    connecting: Connecting::Manager(
        "the driver siw (soft-iWARP) answers ibv_modify_qp(RTS) with EINVAL for a queue pair that the \
         kernel did not connect",
    ),
    polling: Polling::Event,
    // siw, siw_qp_sq_process: a request that TCP does not take, since the peer has ended the connection.
    broken_sends: &[2],
    // siw, siw_connect: TCP connects within the call, for two minutes to a machine that does not answer.
    dials_block: true,
    ..IWARP
};

/// Any iWARP device.
pub(crate) static IWARP: DeviceProfile = DeviceProfile {
    name: "iwarp",
    // siw and irdma, modify: RTS without a connection of the kernel's is EINVAL.
    connecting: Connecting::Manager("an iWARP device connects queue pairs by the kernel alone"),
    // siw, siw_qp_sq_process: also for a send that TCP did not take, since the peer has ended the connection.
    fatal_event: Side::Peer,
    // iWARP: the answer to a read is a write of the peer's to the sink.
    read_sink_needs_remote_write: true,
    // siw of rdma-core, destroy_qp and destroy_cq: the queues are unmapped before the command.
    destroys_once: true,
    ..STRICT
};

/// Amazon EFA.
pub(crate) static EFA: DeviceProfile = DeviceProfile {
    name: "efa",
    // efa, create: EOPNOTSUPP for every kind of queue pair but its own and datagrams.
    connecting: Connecting::Never(
        "EFA has no reliable connections, only datagrams of its own kind; lanes over it do not exist",
    ),
    ..STRICT
};

/// Recognises a device. An unknown one gets the profile `strict`.
pub fn recognise(identity: &Identity) -> Recognised {
    let told = |profile, why: String| Recognised { profile, why };
    let driver = identity.driver.as_str();
    let bus = match (identity.vendor, identity.part) {
        (Some(vendor), Some(part)) => format!("{vendor:#06x}:{part:#06x}"),
        _ => "no number on a bus".to_owned(),
    };
    let by_driver = || format!("driver {driver}, {bus}");
    // First: over a NIC of hardware, older kernels show the NIC's bus device as a software one's.
    if !identity.parent.is_empty() {
        let why = format!("made in software on {}", identity.parent);
        return match identity.node_type {
            NODE_CHANNEL_ADAPTER => told(&RXE, why),
            NODE_RNIC => told(&SIW, why),
            other => told(&STRICT, format!("{why}, of the unknown node type {other}")),
        };
    }
    let is_erdma = (identity.vendor, identity.part) == (Some(VENDOR_ALIBABA), Some(PART_ERDMA));
    if driver == "erdma" || is_erdma {
        let (profile, mode) = erdma(identity);
        return told(profile, format!("driver {driver}, {bus}, {mode}"));
    }
    let is_efa = identity.vendor == Some(VENDOR_AMAZON)
        && identity.part.is_some_and(|part| PARTS_EFA.contains(&part));
    if driver == "efa" || is_efa {
        return told(&EFA, by_driver());
    }
    let on_bus = !driver.is_empty() || identity.vendor.is_some();
    // Soft-iWARP names no parent (6.1), and no other iWARP device is without one on a bus.
    if identity.node_type == NODE_RNIC && !on_bus {
        return told(&SIW, "made in software, node type iWARP".to_owned());
    }
    if identity.node_type == NODE_RNIC {
        return told(&IWARP, format!("{}, node type iWARP", by_driver()));
    }
    // Sub-functions are bound to `mlx5_core.sf`.
    if driver == "mlx5_core" || driver.starts_with("mlx5_core.") {
        return told(&MLX5, by_driver());
    }
    if DRIVERS_IRDMA.contains(&driver) {
        return told(&IRDMA, by_driver());
    }
    told(&STRICT, format!("unknown: {}", by_driver()))
}

/// Operating mode of the erdma driver.
fn erdma(identity: &Identity) -> (&'static DeviceProfile, String) {
    let places = identity.gid_table_length;
    match identity.erdma_compat_mode {
        Some(true) => (&ERDMA_COMPAT, "compat_mode=Y".to_owned()),
        Some(false) => (&ERDMA_STANDARD, "compat_mode=N".to_owned()),
        // An iWARP device has a single GID, a RoCE device a table.
        None if places <= 1 => {
            (&ERDMA_STANDARD, format!("no compat_mode, {places} place for GIDs"))
        }
        None => (&ERDMA_ROCEV2, format!("no compat_mode, {places} places for GIDs")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_bus(driver: &str, vendor: u32, part: u32) -> Identity {
        let (vendor, part) = (Some(vendor), Some(part));
        Identity {
            driver: driver.to_owned(),
            vendor,
            part,
            node_type: NODE_CHANNEL_ADAPTER,
            gid_table_length: 256,
            ..Identity::default()
        }
    }

    fn name(identity: &Identity) -> &'static str {
        recognise(identity).profile.name
    }

    #[test]
    fn hardware_is_recognised_by_its_driver_or_its_numbers() {
        assert_eq!(name(&on_bus("mlx5_core", 0x15b3, 0x101d)), "mlx5");
        assert_eq!(name(&Identity { vendor: None, ..on_bus("mlx5_core.sf", 0, 0) }), "mlx5");
        assert_eq!(name(&on_bus("ice", 0x8086, 0x1592)), "irdma");
        assert_eq!(name(&on_bus("efa", 0x1d0f, 0xefa2)), "efa");
        // Passed through under a driver that is not the device's.
        assert_eq!(name(&on_bus("vfio-pci", 0x1d0f, 0xefa1)), "efa");
        assert_eq!(name(&on_bus("", 0x1ded, 0x107f)), "erdma-rocev2");
        assert_eq!(name(&on_bus("bnxt_en", 0x14e4, 0x1750)), "strict");
        assert_eq!(name(&Identity::default()), "strict");
    }

    #[test]
    fn the_three_modes_of_erdma_are_told_apart() {
        let erdma = |erdma_compat_mode, gid_table_length| {
            let found = on_bus("erdma", 0x1ded, 0x107f);
            recognise(&Identity { erdma_compat_mode, gid_table_length, ..found })
        };
        assert_eq!(erdma(Some(true), 16).profile.name, "erdma-compat");
        assert_eq!(erdma(Some(false), 1).profile.name, "erdma-standard");
        assert_eq!(erdma(None, 1).profile.name, "erdma-standard");
        assert_eq!(erdma(None, 16).profile.name, "erdma-rocev2");
        let Connecting::Manager(why) = erdma(None, 1).profile.connecting else {
            panic!("it connects out of band")
        };
        assert!(why.contains("standard mode"), "{why}");
        assert!(erdma(Some(true), 16).to_string().contains("0x1ded:0x107f, compat_mode=Y"));
    }

    /// Software devices are recognised by parent and kind, whatever lies below.
    #[test]
    fn software_devices_are_recognised() {
        let software = |node_type| Identity {
            node_type,
            parent: "eth0".to_owned(),
            ..on_bus("mlx5_core", 0x15b3, 0x101d)
        };
        assert_eq!(name(&software(NODE_CHANNEL_ADAPTER)), "rxe");
        assert_eq!(name(&software(NODE_RNIC)), "siw");
        assert_eq!(name(&software(7)), "strict");
        let without_parent = Identity { node_type: NODE_RNIC, ..Identity::default() };
        assert_eq!(name(&without_parent), "siw");
    }

    /// iWARP connects through the connection manager, EFA not at all, and all others out of band.
    #[test]
    fn devices_that_do_not_connect_out_of_band_have_a_reason() {
        let iwarp = Identity { node_type: NODE_RNIC, ..on_bus("i40e", 0x8086, 0x37d2) };
        assert_eq!(name(&iwarp), "iwarp");
        for profile in DEVICE_PROFILES {
            let is_iwarp = ["erdma-standard", "siw", "iwarp"].contains(&profile.name);
            match profile.connecting {
                Connecting::OutOfBand => assert!(!is_iwarp && profile.name != "efa"),
                Connecting::Manager(why) => assert!(is_iwarp && !why.is_empty()),
                Connecting::Never(why) => assert!(profile.name == "efa" && !why.is_empty()),
            }
        }
    }
}
