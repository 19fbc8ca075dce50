//! The choices of a seed: which fault happens when.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Faults of the store, of the way to it and of the published node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The etcd dies, and comes back with its entries and leases.
    Restart,
    /// The etcd dies, and comes back empty.
    Loss,
    /// Every lease is revoked, and its entries with it.
    Revocation,
    /// The etcd forgets the tokens of its users.
    TokensLost,
    /// No message passes between a host and the etcd.
    Partition(&'static str),
    /// No message passes from the etcd to a host.
    Mute(&'static str),
    /// The owner dies, and another process takes its name at another port.
    OwnerCrash,
    /// The owner closes its engine, and another process takes its name at another port.
    OwnerRestart,
}

impl Fault {
    /// Faults of one place happen one after the other.
    fn place(self) -> &'static str {
        match self {
            Self::Restart | Self::Loss | Self::Revocation | Self::TokensLost => "etcd",
            Self::Partition(host) | Self::Mute(host) => host,
            Self::OwnerCrash | Self::OwnerRestart => "process",
        }
    }
}

/// Hosts with engines.
pub(crate) const OWNER: &str = "owner";
pub(crate) const USER: &str = "user";
/// Milliseconds of load after the last fault.
const AFTER_MS: u64 = 500;
/// Longest duration of a fault: more than a lease.
const FAULT_MS: u64 = 5_000;
/// First begin of a fault; the nodes have found each other.
const FIRST_MS: u64 = 1_500;

/// A fault, with the milliseconds of its begin and end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disturbance {
    pub(crate) fault: Fault,
    pub(crate) begins: u64,
    pub(crate) ends: u64,
}

/// A run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) latency_max_ms: u64,
    pub(crate) publish_ms: u64,
    /// One ends before the next of the same place begins.
    pub(crate) disturbances: Vec<Disturbance>,
}

impl Plan {
    /// Each seed has a fault of its kind, of eight, and every other eight seeds up to two more.
    pub(crate) fn of(seed: u64) -> Self {
        let mut numbers = ChaCha8Rng::seed_from_u64(seed);
        let mut between = |first: u64, last: u64| first + numbers.next_u64() % (last - first + 1);
        let (latency_max_ms, publish_ms) = (between(2, 20), between(200, 1_500));
        let kinds = [seed % 8, between(0, 7), between(0, 7)];
        let count = if seed % 16 < 8 { 1 } else { between(2, 3) as usize };
        let mut disturbances: Vec<Disturbance> = Vec::new();
        let mut free = FIRST_MS;
        for kind in &kinds[..count] {
            let host = if between(0, 1) == 0 { OWNER } else { USER };
            let fault = match kind {
                0 => Fault::Restart,
                1 => Fault::Loss,
                2 => Fault::Revocation,
                3 => Fault::TokensLost,
                4 => Fault::Partition(host),
                5 => Fault::Mute(host),
                6 => Fault::OwnerCrash,
                _ => Fault::OwnerRestart,
            };
            let same = disturbances.iter().filter(|it| it.fault.place() == fault.place());
            let after = same.map(|it| it.ends + 1).max().unwrap_or(0);
            let begins = between(free, free + 1_000).max(after);
            let ends = between(begins + 1, begins + FAULT_MS);
            // The next one may begin before this one ends.
            free = if between(0, 1) == 0 { ends + 1 } else { begins + 1 };
            disturbances.push(Disturbance { fault, begins, ends });
        }
        Self { seed, latency_max_ms, publish_ms, disturbances }
    }

    /// Whether the etcd is one before 3.5: with the other eight seeds each kind of fault comes to both.
    pub(crate) fn is_earlier_etcd(&self) -> bool {
        self.seed % 16 >= 8
    }

    /// Milliseconds of load with faults.
    pub(crate) fn load_ms(&self) -> u64 {
        AFTER_MS + self.disturbances.iter().map(|it| it.ends).max().unwrap_or(0)
    }
}
