//! Fleets in virtual time: the shipping [`Node`](handfast_core::Node) of thousands of hosts in a network
//! with latencies, losses, restarts and a metadata store that may be out of order.
//!
//! An exploration tries every order of few events; a fleet plays one order of millions. Each event has
//! the time that [`Costs`] gives it, and each node handles one input after the other. One seed is one
//! run, on every platform.

mod figures;
mod incident;
mod network;
mod oracle;
mod site;

pub use figures::{Bucket, Phase, Report};
pub use incident::Incident;

use handfast_core::Duration;
use network::Network;

/// Maximum nodes of a fleet; a node with 64 peers takes some 150 kB.
pub const NODES_MAX: u32 = 100_000;
/// Maximum peers of a node.
pub const PEERS_MAX: u32 = 1_024;
/// Maximum lanes of a fleet, nodes times peers; a lane takes some 2.5 kB.
pub const LANES_MAX: u64 = 8_000_000;
/// Virtual time after which a fleet that has not come to rest has failed.
pub const TIME_MAX: Duration = Duration::from_millis(600_000);

/// A fleet to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Number of nodes.
    pub nodes: u32,
    /// Number of peers of each node, even. A node opens to all of them when it starts, and they open
    /// to it.
    pub peers: u32,
    /// Source of all randomness.
    pub seed: u64,
    /// Disturbance of the fleet.
    pub incident: Incident,
    /// Durations.
    pub costs: Costs,
}

/// A plan that no fleet can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too many nodes, or fewer than three.
    #[error("a fleet has 3 to {NODES_MAX} nodes, not {0}")]
    Nodes(u32),
    /// The number of peers is odd, zero, or larger than the fleet permits.
    #[error("each of {nodes} nodes can have an even number of peers from 2 to {most}, not {peers}")]
    Peers {
        /// Number of nodes.
        nodes: u32,
        /// Number of peers asked for.
        peers: u32,
        /// Largest number of peers.
        most: u32,
    },
    /// Too many lanes in all.
    #[error(
        "a fleet has at most {LANES_MAX} lanes: {nodes} nodes with {peers} peers each have {}, use \
         fewer of either",
        u64::from(*nodes) * u64::from(*peers)
    )]
    Lanes {
        /// Number of nodes.
        nodes: u32,
        /// Number of peers of each.
        peers: u32,
    },
}

/// Durations of what happens outside of the machines, and limits of the engine around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Shortest time of a packet between two hosts. The longest is twice that.
    pub latency: Duration,
    /// Time in which a node handles one input. It handles one at a time.
    pub service: Duration,
    /// Time of a `Create`, a `Connect` or a `Retire`.
    pub operation: Duration,
    /// Time in which the nodes of a fleet start.
    pub start: Duration,
    /// Pause of an application before it opens a peer again that could not be opened; up to half
    /// longer by chance.
    pub reopen: Duration,
    /// Time limit of a call, as `EngineTiming::call_timeout`.
    pub call_timeout: Duration,
    /// Time after which a lane fails whose peer has lost its power. A killed process ends its lanes
    /// at once.
    pub lane_timeout: Duration,
    /// Calls that a node serves at once, as `EngineLimits::control_connections_max`.
    pub calls_served_max: usize,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            latency: Duration(50_000),
            service: Duration(20_000),
            operation: Duration(200_000),
            start: Duration::from_millis(1_000),
            reopen: Duration::from_millis(1_000),
            call_timeout: Duration::from_millis(5_000),
            lane_timeout: Duration::from_millis(10_000),
            calls_served_max: 1_024,
        }
    }
}

impl Plan {
    /// A fleet without a disturbance, with the usual durations.
    pub fn new(nodes: u32, peers: u32, seed: u64) -> Self {
        Self { nodes, peers, seed, incident: Incident::None, costs: Costs::default() }
    }

    /// Runs the fleet until it is at rest, an oracle breaks, or [`TIME_MAX`] is over.
    ///
    /// # Errors
    /// The number of nodes or of peers is out of range.
    pub fn run(&self) -> Result<Report, PlanError> {
        let Self { nodes, peers, .. } = *self;
        if !(3..=NODES_MAX).contains(&nodes) {
            return Err(PlanError::Nodes(nodes));
        }
        // Offsets from 1 to the half of the ring, each with its opposite.
        let most = PEERS_MAX.min((nodes - 1) / 2 * 2);
        if !(2..=most).contains(&peers) || !peers.is_multiple_of(2) {
            return Err(PlanError::Peers { nodes, peers, most });
        }
        if u64::from(nodes) * u64::from(peers) > LANES_MAX {
            return Err(PlanError::Lanes { nodes, peers });
        }
        Ok(Network::new(*self).run())
    }
}
