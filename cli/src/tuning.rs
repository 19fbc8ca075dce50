//! Options of RDMA queue pairs, with defaults by device.

use clap::{Args, value_parser};
use handfast::rdma::{
    LANE_QUEUE_PAIRS_MAX, POLLERS_MAX, POOLED_LANES_MAX, PartitionKey, Polling, RETRY_COUNT_MAX,
    RdmaOptions, TIMEOUT_EXPONENT_MAX,
};

const TIMEOUT_MAX: i64 = TIMEOUT_EXPONENT_MAX as i64;
const RETRIES_MAX: i64 = RETRY_COUNT_MAX as i64;
const QUEUE_PAIRS_MAX: i64 = LANE_QUEUE_PAIRS_MAX as i64;
const THREADS_MAX: i64 = POLLERS_MAX as i64;
const POOLED_MAX: i64 = POOLED_LANES_MAX as i64;

/// Options of RDMA queue pairs.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Tuning {
    /// Exponent N of the ACK timeout of RDMA lanes, 4.096 us x 2^N. A silent peer is waited for that
    /// long once and once more for each retry, then the lane fails; 16 with 6 retries is 1.9 s.
    /// Refused by iWARP devices, where TCP retransmits [default: 16]
    #[arg(long, value_name = "N", value_parser = value_parser!(u8).range(1..=TIMEOUT_MAX))]
    ack_timeout: Option<u8>,
    /// Retries of RDMA lanes after that timeout. Refused by iWARP devices [default: 4 on soft-RoCE, 6
    /// on other devices]
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u8).range(0..=RETRIES_MAX))]
    retry_count: Option<u8>,
    /// Wait for an RDMA device's completions: event, busy, adaptive, or adaptive:MICROSECONDS of
    /// polling before sleeping [default: event on soft-RoCE, adaptive:100 on other devices]
    #[arg(long, value_name = "HOW")]
    polling: Option<Polling>,
    /// Threads of each RDMA device that take completions [default: 1]
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u8).range(1..=THREADS_MAX))]
    pollers: Option<u8>,
    /// Queue pairs of an RDMA lane; each is a flow of its own in the fabric. The smaller number of
    /// both sides is used [default: MC_NUM_QP_PER_EP, or 2]
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u8).range(1..=QUEUE_PAIRS_MAX))]
    queue_pairs: Option<u8>,
    /// Lanes of each RDMA device whose queue pairs are created before a peer needs them; 0 for none
    /// [default: 4]
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u8).range(0..=POOLED_MAX))]
    pooled_lanes: Option<u8>,
    /// Partition key of the RDMA ports on InfiniBand, such as 0x8001, or its place in their tables,
    /// such as index:1 [default: the place MC_PKEY_INDEX, or index:0]
    #[arg(long, value_name = "KEY")]
    partition_key: Option<PartitionKey>,
    /// Let the threads of RDMA devices run on any processor, not on their NUMA nodes alone
    #[arg(long)]
    no_thread_placement: bool,
    /// Serve read-only memory, and keep memory registered, also over RDMA devices whose driver lets
    /// every peer write to all of it: eRDMA in compat mode
    #[arg(long)]
    accept_exposed_memory: bool,
    /// Register memory of other libraries also where a fork gives registered pages away: before
    /// Linux 5.12
    #[arg(long)]
    accept_forked_memory: bool,
    /// Connect RDMA queue pairs through the connection manager (librdmacm) also on RoCE and InfiniBand;
    /// iWARP devices, and eRDMA in standard mode, do so in any case. Both sides need it
    #[arg(long)]
    rdma_cm: bool,
    /// Port at which the connection manager of each RDMA device listens, for firewalls that pass it
    /// alone: one process at a time has it at an address [default: HANDFAST_RDMA_CM_PORT, or a port
    /// that the kernel chooses at each start]
    #[arg(long, value_name = "PORT", value_parser = value_parser!(u16).range(1..))]
    rdma_cm_port: Option<u16>,
}

impl Tuning {
    /// Sets the given options.
    pub(crate) fn apply(&self, options: RdmaOptions) -> RdmaOptions {
        options.with(|it| {
            it.timeout_exponent = self.ack_timeout.or(it.timeout_exponent);
            it.retries = self.retry_count.or(it.retries);
            it.polling = self.polling.or(it.polling);
            it.pollers = self.pollers.map_or(it.pollers, usize::from);
            it.queue_pairs = self.queue_pairs.map(usize::from).or(it.queue_pairs);
            it.pooled_lanes = self.pooled_lanes.map_or(it.pooled_lanes, usize::from);
            it.partition_key = self.partition_key.unwrap_or(it.partition_key);
            it.places_threads &= !self.no_thread_placement;
            it.accepts_exposed_memory |= self.accept_exposed_memory;
            it.accepts_forked_memory |= self.accept_forked_memory;
            it.connection_manager |= self.rdma_cm;
            it.connection_manager_port = self.rdma_cm_port.unwrap_or(it.connection_manager_port);
        })
    }

    /// Returns the same options as pairs of a name and a value, which is empty for a switch.
    pub(crate) fn words(&self) -> impl Iterator<Item = String> {
        let options = [
            ("--ack-timeout", self.ack_timeout.map(|exponent| exponent.to_string())),
            ("--retry-count", self.retry_count.map(|count| count.to_string())),
            ("--polling", self.polling.map(|polling| polling.to_string())),
            ("--pollers", self.pollers.map(|count| count.to_string())),
            ("--queue-pairs", self.queue_pairs.map(|count| count.to_string())),
            ("--pooled-lanes", self.pooled_lanes.map(|count| count.to_string())),
            ("--partition-key", self.partition_key.map(|key| key.to_string())),
            ("--rdma-cm-port", self.rdma_cm_port.map(|port| port.to_string())),
        ];
        let given = options.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?]));
        let switches = [
            ("--no-thread-placement", self.no_thread_placement),
            ("--accept-exposed-memory", self.accept_exposed_memory),
            ("--accept-forked-memory", self.accept_forked_memory),
            ("--rdma-cm", self.rdma_cm),
        ];
        let switches = switches.into_iter().filter(|(_, is_on)| *is_on);
        given.flatten().chain(switches.map(|(name, _)| name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::time::Duration;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        tuning: Tuning,
    }

    fn parsed(words: &[&str]) -> Result<Tuning, String> {
        let program = Program::try_parse_from([&["handfast"], words].concat());
        program.map(|program| program.tuning).map_err(|error| error.to_string())
    }

    const ALL: [&str; 20] = [
        "--ack-timeout",
        "20",
        "--retry-count",
        "6",
        "--polling",
        "adaptive:50",
        "--pollers",
        "8",
        "--queue-pairs",
        "8",
        "--pooled-lanes",
        "0",
        "--partition-key",
        "0x8001",
        "--rdma-cm-port",
        "18515",
        "--no-thread-placement",
        "--accept-exposed-memory",
        "--accept-forked-memory",
        "--rdma-cm",
    ];

    /// Options of the line replace those of the environment; what is not given stays.
    #[test]
    fn given_options_replace_the_others() {
        let set = parsed(&ALL).unwrap().apply(RdmaOptions::default());
        assert_eq!(
            (set.timeout_exponent, set.retries, set.queue_pairs),
            (Some(20), Some(6), Some(8))
        );
        assert_eq!((set.pollers, set.pooled_lanes), (8, 0));
        let spin = Duration::from_micros(50);
        assert_eq!(set.polling, Some(Polling::Adaptive { spin }));
        assert_eq!((set.partition_key, set.places_threads), (PartitionKey::Value(0x8001), false));
        assert_eq!(set.connection_manager_port, 18_515);
        assert!(set.accepts_exposed_memory && set.accepts_forked_memory && set.connection_manager);
        assert_eq!(parsed(&[]).unwrap().apply(set.clone()), set);
    }

    /// The server of a measurement is started with the options of its client.
    #[test]
    fn words_are_the_options_again() {
        let words: Vec<_> = parsed(&ALL).unwrap().words().collect();
        assert_eq!(words, ALL);
        assert_eq!(parsed(&[]).unwrap().words().count(), 0);
    }

    /// A value past its range is refused with the range.
    #[test]
    fn values_past_their_ranges_are_refused() {
        for (wrong, words) in [
            (["--ack-timeout", "0"], "1..=31"),
            (["--ack-timeout", "32"], "1..=31"),
            (["--retry-count", "7"], "0..=6"),
            (["--polling", "adaptive:1000001"], "at most 1000000"),
            (["--pollers", "0"], "1..=8"),
            (["--pollers", "9"], "1..=8"),
            (["--queue-pairs", "0"], "1..=8"),
            (["--queue-pairs", "9"], "1..=8"),
            (["--pooled-lanes", "65"], "0..=64"),
            (["--partition-key", "1"], "such as 0x8001"),
        ] {
            let error = parsed(&wrong).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
