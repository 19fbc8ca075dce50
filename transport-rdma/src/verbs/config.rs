//! Configuration of a NIC.

use super::context::mtu_number;
use super::manager::{DIAL_MAX, Options};
use super::nic::is_iwarp;
use crate::gid::GidWanted;
use crate::profile::DeviceProfile;
use crate::settings::{
    LANE_QUEUE_PAIRS_DEFAULT, LANE_QUEUE_PAIRS_MAX, POLLERS_MAX, POOLED_LANES_DEFAULT,
    POOLED_LANES_MAX, PartitionKey, Polling, RETRY_COUNT_MAX, SERVICE_LEVEL_MAX,
    TIMEOUT_EXPONENT_MAX, silent_peer_wait,
};
use handfast_core::address::PORTS_OF_ERDMA;
use handfast_core::connection::CONNECTIONS_MAX;
use handfast_core::policy::TRUST_GROUPS_MAX;
use handfast_core::wire::QUEUE_PAIRS_MAX;
use std::net::IpAddr;
use std::time::Duration;

/// Maximum queue pairs of one lane: the limit of a message.
pub const QUEUE_PAIRS_PER_LANE_MAX: usize = QUEUE_PAIRS_MAX;
/// Maximum configurable depth of a queue pair.
pub const DEPTH_MAX: u32 = 4096;

/// Configuration of a NIC.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// The device, by the name that reports and paths of lanes have.
    pub device: String,
    /// Its present name in the system, where that is another one.
    pub renamed: Option<String>,
    /// The port, counted from 1.
    pub port: u8,
    /// The choice of the port's address.
    pub gid: GidWanted,
    /// The partition, on InfiniBand.
    pub partition_key: PartitionKey,
    /// Lanes that exist at once, from `create` to the end of `retire`.
    pub lanes_max: usize,
    /// Queue pairs of a lane that is created by the transport; at least 1, at most
    /// [`LANE_QUEUE_PAIRS_MAX`]. The smaller number of both sides is used.
    pub queue_pairs_per_lane: usize,
    /// Requests outstanding on a queue pair; at least 1, at most [`DEPTH_MAX`].
    pub depth: u32,
    /// Cap on the path MTU, in bytes. The smaller of both sides' is used.
    pub mtu_max: u32,
    /// The traffic class of packets with a GID: on Ethernet the byte of the IP header whose upper six
    /// bits, the DSCP, choose a queue of the fabric. Each side's own packets have its own.
    pub traffic_class: u8,
    /// The service level, at most [`SERVICE_LEVEL_MAX`]: the virtual lane on InfiniBand, the priority
    /// of tagged frames on Ethernet.
    pub service_level: u8,
    /// Cap on outstanding reads of a queue pair, each way; at least 1. The smaller of both sides'
    /// is used.
    pub rd_atomic_max: u8,
    /// Exponent n of the ACK timeout, 4.096 µs × 2^n; 1 to 31. Devices
    /// stretch it; time limits that matter are the caller's. No effect on iWARP, where TCP retransmits.
    pub timeout_exponent: u8,
    /// Number of retries after that timeout; at most [`RETRY_COUNT_MAX`]. No effect on iWARP.
    pub retries: u8,
    /// Time limit of `retire`; at most [`DRAIN_MAX`].
    pub drain: Duration,
    /// Method of waiting for completions.
    pub polling: Polling,
    /// Threads that take completions, at least 1, at most [`POLLERS_MAX`]: each has completion queues
    /// of its own, and lanes are spread over them.
    pub pollers: usize,
    /// Entries of a completion queue, which lanes share; at most the device's maximum. Further
    /// queues are made when it is full, [`crate::COMPLETION_QUEUES_MAX`] at most.
    pub completion_entries: u32,
    /// Queue pairs that exist at once, in all lanes; at most the device's own number.
    pub queue_pairs_max: u32,
    /// Interval of idle checks. A lane without postings and completions for one to two of them is probed with
    /// an empty read, since a queue pair without traffic never notices that its peer is gone. From
    /// [`IDLE_PROBE_MIN`] to [`IDLE_PROBE_MAX`].
    pub idle_probe: Option<Duration>,
    /// Whether the NIC's threads run on the processors of the NIC's NUMA node alone, as far as the
    /// process may use them.
    pub places_thread: bool,
    /// Lanes whose queue pairs the transport creates in advance, at most [`POOLED_LANES_MAX`]; 0
    /// for none. They count in all limits, and are given back before a limit refuses a lane.
    pub pooled_lanes: usize,
    /// Trust groups of peers, 1 to [`TRUST_GROUPS_MAX`], each with a protection domain of its own.
    pub trust_groups: usize,
    /// Whether queue pairs connect through the connection manager also where the device lets them
    /// connect out of band. Both sides of a lane connect in the same way.
    pub connection_manager: bool,
    /// Longest time of a connect through the connection manager, from the look for the address to the
    /// answer of the first read; at least 1 ms, at most [`DRAIN_MAX`]. A side that does not dial
    /// waits twice as long for the peer.
    pub dial: Duration,
    /// The address at which the connection manager listens; `None` for the first of the machine that
    /// is the device's.
    pub manager_address: Option<IpAddr>,
    /// The port at which it listens there, none of [`PORTS_OF_ERDMA`]; 0 for one that the kernel chooses.
    pub manager_port: u16,
    /// Queue pairs that are announced to the connection manager at once, from `create` to the end of
    /// `retire`; 1 to [`CONNECTIONS_MAX`].
    pub connections_max: usize,
}

/// Default interval between checks for idle lanes.
pub const IDLE_PROBE_DEFAULT: Duration = Duration::from_secs(10);
/// Longest [`NicConfig::patience`], whatever the timers.
pub const PATIENCE_MAX: Duration = Duration::from_secs(60);
/// Factor by which devices stretch their configured timers, at most.
const STRETCH_MAX: u32 = 4;
/// Exponent of the ACK timeout that the kernel's connection manager chooses for a path, at most.
const MANAGER_TIMEOUT_EXPONENT: u8 = 20;
/// Shortest retransmission timeout of Linux's TCP (`TCP_RTO_MIN`, include/net/tcp.h), in milliseconds. Each
/// further one is twice as long.
const TCP_TIMEOUT_MIN_MS: u64 = 200;
/// [`NicConfig::patience`] on iWARP, 25.4 s: TCP retransmits as often as other devices do at most. It goes on
/// for a quarter of an hour (`tcp_retries2`), which no caller waits for.
const TCP_PATIENCE: Duration =
    Duration::from_millis(TCP_TIMEOUT_MIN_MS * ((1 << (RETRY_COUNT_MAX + 1)) - 1));
/// Shortest interval between checks for idle lanes.
pub const IDLE_PROBE_MIN: Duration = Duration::from_millis(10);
/// Longest interval between checks for idle lanes; `None` turns them off.
pub const IDLE_PROBE_MAX: Duration = Duration::from_secs(3_600);
/// Longest time limit of `retire`.
pub const DRAIN_MAX: Duration = Duration::from_secs(600);
/// Shortest time limit of a connect through the connection manager.
const DIAL_MIN: Duration = Duration::from_millis(1);
/// Default size of a completion queue: 256 queue pairs of the default depth of 64.
const COMPLETION_ENTRIES_DEFAULT: u32 = 16_384;

/// Longest wait for a silent peer of this nominal wait.
fn stretched(nominal: Duration) -> Duration {
    nominal.saturating_mul(STRETCH_MAX).min(PATIENCE_MAX).max(nominal)
}

impl NicConfig {
    /// The defaults: an unresponsive peer is detected after half a second on soft-RoCE.
    pub fn new(device: impl Into<String>) -> Self {
        Self {
            device: device.into(),
            renamed: None,
            port: 1,
            gid: GidWanted::Automatic,
            partition_key: PartitionKey::default(),
            lanes_max: 1024,
            queue_pairs_per_lane: LANE_QUEUE_PAIRS_DEFAULT,
            depth: 128,
            mtu_max: 4096,
            traffic_class: 0,
            service_level: 0,
            rd_atomic_max: 16,
            timeout_exponent: 14,
            retries: RETRY_COUNT_MAX,
            drain: Duration::from_secs(2),
            polling: Polling::Event,
            pollers: 1,
            completion_entries: COMPLETION_ENTRIES_DEFAULT,
            queue_pairs_max: u32::MAX,
            idle_probe: Some(IDLE_PROBE_DEFAULT),
            places_thread: true,
            pooled_lanes: POOLED_LANES_DEFAULT,
            trust_groups: 1,
            connection_manager: false,
            dial: DIAL_MAX,
            manager_address: None,
            manager_port: 0,
            connections_max: CONNECTIONS_MAX,
        }
    }

    /// The settings that fit a device of the profile.
    pub fn of_profile(device: impl Into<String>, profile: &DeviceProfile) -> Self {
        Self {
            timeout_exponent: profile.timeout_exponent,
            retries: profile.retries,
            polling: profile.polling,
            drain: profile.drain,
            queue_pairs_per_lane: profile.queue_pairs_per_lane,
            ..Self::new(device)
        }
    }

    /// The present name of the device in the system.
    pub fn system_name(&self) -> &str {
        self.renamed.as_ref().unwrap_or(&self.device)
    }

    /// The nominal wait of a device of the profile for a silent peer, see [`silent_peer_wait`].
    pub fn silent_peer_wait(&self, profile: &DeviceProfile) -> Duration {
        let retries = profile.retries_fixed.unwrap_or(self.retries);
        silent_peer_wait(self.timeout_exponent, retries)
    }

    /// Longest time of a request without an answer or an error, on a device of `profile`: four times its
    /// nominal wait, since devices stretch that, and more than [`PATIENCE_MAX`] only if the nominal wait
    /// is. A device that reports nothing for longer has lost the request. On iWARP it is the time of six
    /// retransmissions of TCP, 25.4 s.
    pub fn patience(&self, profile: &DeviceProfile) -> Duration {
        if is_iwarp(profile) {
            return TCP_PATIENCE;
        }
        stretched(self.silent_peer_wait(profile))
    }

    /// [`NicConfig::patience`] where the kernel's connection manager chooses the timeout.
    pub(super) fn patience_of_manager(&self, profile: &DeviceProfile) -> Duration {
        let chosen = Self { timeout_exponent: MANAGER_TIMEOUT_EXPONENT, ..self.clone() };
        stretched(chosen.silent_peer_wait(profile))
    }

    /// Slices that a lane of so many queue pairs takes at once.
    pub(super) fn lane_depth(&self, profile: &DeviceProfile, queue_pairs: usize) -> u32 {
        let filled = if profile.fills_queue_pairs { queue_pairs } else { 1 };
        self.depth.saturating_mul(u32::try_from(filled).unwrap_or(u32::MAX))
    }

    /// The options of connections of the connection manager, and whether one was chosen. The kernel applies
    /// the timeout to queue pairs of RoCE and InfiniBand alone.
    pub(super) fn manager_options(&self, profile: &DeviceProfile) -> (Options, bool) {
        let default = Self::of_profile("", profile);
        let traffic_class = Some(self.traffic_class).filter(|class| *class != 0);
        let timeout_exponent = Some(self.timeout_exponent).filter(|_| !is_iwarp(profile));
        let is_chosen = timeout_exponent.is_some_and(|it| it != default.timeout_exponent);
        let options = Options { traffic_class, timeout_exponent };
        (options, traffic_class.is_some() || is_chosen)
    }

    /// The settings that differ from their defaults, and that the kernel's connection manager chooses in
    /// their place.
    pub(super) fn refused_by_manager(&self, profile: &DeviceProfile) -> Vec<&'static str> {
        let default = Self::of_profile("", profile);
        let changed = [
            (self.service_level != default.service_level, "service_level"),
            (self.mtu_max != default.mtu_max, "mtu_max"),
            (self.partition_key != default.partition_key, "partition_key"),
            (matches!(self.gid, GidWanted::Index(_)), "gid"),
        ];
        changed.into_iter().filter_map(|(is_changed, name)| is_changed.then_some(name)).collect()
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let lane_pairs = 1..=LANE_QUEUE_PAIRS_MAX;
        let idle_probes = IDLE_PROBE_MIN..=IDLE_PROBE_MAX;
        let checks = [
            (lane_pairs.contains(&self.queue_pairs_per_lane), "queue_pairs_per_lane"),
            (self.depth >= 1 && self.depth <= DEPTH_MAX, "depth"),
            (mtu_number(self.mtu_max).is_some(), "mtu_max"),
            (self.service_level <= SERVICE_LEVEL_MAX, "service_level"),
            (self.rd_atomic_max >= 1, "rd_atomic_max"),
            ((1..=TIMEOUT_EXPONENT_MAX).contains(&self.timeout_exponent), "timeout_exponent"),
            (self.retries <= RETRY_COUNT_MAX, "retries"),
            (self.completion_entries >= 1, "completion_entries"),
            (self.idle_probe.is_none_or(|interval| idle_probes.contains(&interval)), "idle_probe"),
            (self.drain <= DRAIN_MAX, "drain"),
            ((DIAL_MIN..=DRAIN_MAX).contains(&self.dial), "dial"),
            ((1..=CONNECTIONS_MAX).contains(&self.connections_max), "connections_max"),
            (self.polling.is_valid(), "polling"),
            ((1..=POLLERS_MAX).contains(&self.pollers), "pollers"),
            (self.pooled_lanes <= POOLED_LANES_MAX, "pooled_lanes"),
            ((1..=TRUST_GROUPS_MAX).contains(&self.trust_groups), "trust_groups"),
            (!PORTS_OF_ERDMA.contains(&self.manager_port), "manager_port"),
        ];
        let wrong = checks.iter().find(|(good, _)| !good);
        wrong.map_or(Ok(()), |(_, name)| Err(format!("the setting {name} is out of range")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SPIN_MAX;

    /// The device is given four times its own timeout, or a minute: always longer than it tries.
    #[test]
    fn patience_follows_the_timers_and_the_device() {
        use crate::profile::DEVICE_PROFILES;
        let profile = |name| **DEVICE_PROFILES.iter().find(|p| p.name == name).unwrap();
        let config = NicConfig { timeout_exponent: 14, retries: 6, ..NicConfig::new("any") };
        let seconds = |name| config.patience(&profile(name)).as_secs();
        // Seven times 67 ms, or 25 times, and each four times.
        assert_eq!((seconds("rxe"), seconds("erdma-compat")), (1, 6));
        let tries = |retries| NicConfig { timeout_exponent: 16, retries, ..config.clone() };
        assert_eq!(
            tries(4).patience(&profile("mlx5")),
            Duration::from_nanos(4 * 5 * (4_096 << 16))
        );
        assert_eq!(tries(0).patience(&profile("mlx5")), Duration::from_nanos(4 * (4_096 << 16)));
        let patient = |timeout_exponent| NicConfig { timeout_exponent, ..config.clone() };
        assert_eq!(patient(20).patience(&profile("rxe")), PATIENCE_MAX);
        let (longest, rxe) = (patient(31), profile("rxe"));
        assert_eq!(longest.patience(&rxe), longest.silent_peer_wait(&rxe));
    }

    /// Every slot of a lane's queue pairs is used, except where one more only queues behind.
    #[test]
    fn lane_depth_is_that_of_its_queue_pairs() {
        use crate::profile::{RXE, STRICT};
        let config = NicConfig { depth: 64, ..NicConfig::new("any") };
        assert_eq!([1, 2, 8].map(|pairs| config.lane_depth(&STRICT, pairs)), [64, 128, 512]);
        assert_eq!([1, 2, 8].map(|pairs| config.lane_depth(&RXE, pairs)), [64, 64, 64]);
    }

    /// Settings that connects of the connection manager cannot have are named; the others are options.
    #[test]
    fn settings_that_the_manager_refuses_are_named() {
        use crate::profile::RXE;
        let config = NicConfig::of_profile("any", &RXE);
        let refused = |config: &NicConfig| config.refused_by_manager(&RXE);
        assert_eq!(refused(&config), [""; 0]);
        let set = NicConfig { service_level: 3, mtu_max: 1024, ..config.clone() };
        assert_eq!(refused(&set), ["service_level", "mtu_max"]);
        let gid = GidWanted::Index(3);
        assert_eq!(refused(&NicConfig { gid, ..config.clone() }), ["gid"]);
        let options = |config: &NicConfig| {
            let (Options { traffic_class, timeout_exponent }, are_chosen) =
                config.manager_options(&RXE);
            (traffic_class, timeout_exponent, are_chosen)
        };
        assert_eq!(options(&config), (None, Some(16), false));
        let set = NicConfig { traffic_class: 106, ..config.clone() };
        assert_eq!((refused(&set), options(&set)), (vec![], (Some(106), Some(16), true)));
        let set = NicConfig { timeout_exponent: 19, ..config };
        assert_eq!((refused(&set), options(&set)), (vec![], (None, Some(19), true)));
    }

    /// iWARP devices have no timeout of a queue pair: none is set, and TCP is waited for, whatever was chosen.
    #[test]
    fn patience_on_iwarp_is_that_of_tcp() {
        use crate::profile::{ERDMA_STANDARD, IWARP, SIW};
        let mut waits = std::iter::successors(Some(TCP_TIMEOUT_MIN_MS), |wait| Some(2 * wait));
        let waits: u64 = waits.by_ref().take(1 + usize::from(RETRY_COUNT_MAX)).sum();
        assert_eq!(TCP_PATIENCE, Duration::from_millis(waits));
        assert!(TCP_PATIENCE < PATIENCE_MAX);
        for profile in [ERDMA_STANDARD, SIW, IWARP] {
            let config =
                NicConfig { timeout_exponent: 31, ..NicConfig::of_profile("any", &profile) };
            assert_eq!(config.patience(&profile), TCP_PATIENCE);
            let (options, is_chosen) = config.manager_options(&profile);
            assert_eq!((options.timeout_exponent, is_chosen), (None, false), "{}", profile.name);
        }
    }

    /// A lane whose timeout the kernel chooses is given the time of the longest.
    #[test]
    fn patience_covers_the_kernels_own_timeout() {
        use crate::profile::RXE;
        let config = NicConfig { retries: 1, ..NicConfig::of_profile("any", &RXE) };
        assert_eq!(config.patience(&RXE), Duration::from_nanos(4 * 2 * (4_096 << 16)));
        let longest = Duration::from_nanos(4 * 2 * (4_096 << 20));
        assert_eq!(config.patience_of_manager(&RXE), longest);
    }

    #[test]
    fn settings_are_taken_up_to_their_limits_and_no_further() {
        let with = |change: fn(&mut NicConfig)| {
            let mut config = NicConfig::new("any");
            change(&mut config);
            config.check()
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|c| c.retries = RETRY_COUNT_MAX), Ok(()));
        assert!(with(|c| c.retries = RETRY_COUNT_MAX + 1).is_err());
        assert_eq!(with(|c| c.depth = DEPTH_MAX), Ok(()));
        assert!(with(|c| c.depth = DEPTH_MAX + 1).is_err());
        assert!(with(|c| c.depth = 0).is_err());
        assert_eq!(with(|c| c.queue_pairs_per_lane = LANE_QUEUE_PAIRS_MAX), Ok(()));
        assert!(with(|c| c.queue_pairs_per_lane = LANE_QUEUE_PAIRS_MAX + 1).is_err());
        assert!(with(|c| c.queue_pairs_per_lane = 0).is_err());
        assert!(with(|c| c.timeout_exponent = 0).is_err());
        assert!(with(|c| c.timeout_exponent = 32).is_err());
        assert!(with(|c| c.mtu_max = 255).is_err());
        assert!(with(|c| c.rd_atomic_max = 0).is_err());
        assert_eq!(with(|c| c.service_level = SERVICE_LEVEL_MAX), Ok(()));
        assert!(with(|c| c.service_level = SERVICE_LEVEL_MAX + 1).is_err());
        assert_eq!(with(|c| c.pooled_lanes = POOLED_LANES_MAX), Ok(()));
        assert!(with(|c| c.pooled_lanes = POOLED_LANES_MAX + 1).is_err());
        assert_eq!(with(|c| c.trust_groups = TRUST_GROUPS_MAX), Ok(()));
        assert!(with(|c| c.trust_groups = TRUST_GROUPS_MAX + 1).is_err());
        assert!(with(|c| c.trust_groups = 0).is_err());
        assert!(with(|c| c.completion_entries = 0).is_err());
        assert_eq!(with(|c| c.pollers = POLLERS_MAX), Ok(()));
        assert!(with(|c| c.pollers = POLLERS_MAX + 1).is_err());
        assert!(with(|c| c.pollers = 0).is_err());
        assert_eq!(with(|c| c.idle_probe = None), Ok(()));
        assert!(with(|c| c.idle_probe = Some(IDLE_PROBE_MIN / 2)).is_err());
        let longer = Duration::from_nanos(1);
        let idle_probe = |interval| move |c: &mut NicConfig| c.idle_probe = Some(interval);
        let drain = |limit| move |c: &mut NicConfig| c.drain = limit;
        let spin = |spin| move |c: &mut NicConfig| c.polling = Polling::Adaptive { spin };
        let check = |change: &dyn Fn(&mut NicConfig)| {
            let mut config = NicConfig::new("any");
            change(&mut config);
            config.check()
        };
        assert_eq!(check(&spin(SPIN_MAX)), Ok(()));
        assert!(check(&spin(SPIN_MAX * 2)).is_err());
        assert_eq!(check(&idle_probe(IDLE_PROBE_MAX)), Ok(()));
        assert!(check(&idle_probe(IDLE_PROBE_MAX + longer)).is_err());
        assert!(check(&idle_probe(Duration::MAX)).is_err());
        let dial = |limit| move |c: &mut NicConfig| c.dial = limit;
        assert_eq!(check(&dial(DIAL_MIN)), Ok(()));
        assert!(check(&dial(DIAL_MIN / 2)).is_err());
        let manager_port = |port| move |c: &mut NicConfig| c.manager_port = port;
        for (port, fits) in
            [(0, true), (30_607, true), (30_608, false), (30_623, false), (30_624, true)]
        {
            assert_eq!(check(&manager_port(port)).is_ok(), fits, "{port}");
        }
        let connections = |max| move |c: &mut NicConfig| c.connections_max = max;
        assert_eq!(check(&connections(CONNECTIONS_MAX)), Ok(()));
        assert!(check(&connections(CONNECTIONS_MAX + 1)).is_err());
        assert!(check(&connections(0)).is_err());
        assert!(check(&dial(DRAIN_MAX + longer)).is_err());
        assert_eq!(check(&drain(DRAIN_MAX)), Ok(()));
        assert!(check(&drain(DRAIN_MAX + longer)).is_err());
        assert!(check(&drain(Duration::MAX)).is_err());
    }
}
