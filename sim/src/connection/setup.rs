//! The nodes of a world, and what they want.

use handfast_core::Incarnation;
use handfast_core::connection::{ANNOUNCING_PEERS_MAX, LaneConnections};

/// A world before its first event.
#[derive(Clone, Debug)]
pub struct ConnectionSetup {
    /// Builds the machine of a run.
    pub build: fn(Incarnation) -> LaneConnections,
    /// Nodes that want a connection.
    pub opens: [bool; 2],
    /// Nodes whose dials do not arrive.
    pub is_blocked: [bool; 2],
    /// Nodes that may close the connection.
    pub closes: [bool; 2],
    /// Strangers may dial and answer, at a fault each.
    pub has_stranger: bool,
    /// A node may restart, at a fault each.
    pub may_restart: bool,
    /// Requests of other peers that each node hears.
    pub others: u8,
    /// Peers whose announcements a node knows at a time.
    pub peers_max: usize,
    /// Most lifecycles of a run.
    pub lifecycles_max: u64,
    /// Most faults.
    pub faults_max: u32,
}

/// Worlds of connections by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionScenario {
    /// The node with the lower incarnation opens.
    LowerOpens,
    /// The node with the higher incarnation opens.
    HigherOpens,
    /// Both open.
    BothOpen,
    /// The lower node opens, and its dials do not arrive.
    LowerBlocked,
    /// Neither node's dials arrive.
    BothBlocked,
    /// Both open, and either closes.
    Closed,
    /// The higher node opens, and either restarts.
    Restarted,
    /// The lower node opens, and a stranger dials and answers.
    Stranger,
    /// The lower node opens, requests of another peer arrive at both, and a node knows one peer at a time.
    Crowded,
}

impl ConnectionScenario {
    /// Every scenario.
    pub const ALL: [Self; 9] = [
        Self::LowerOpens,
        Self::HigherOpens,
        Self::BothOpen,
        Self::LowerBlocked,
        Self::BothBlocked,
        Self::Closed,
        Self::Restarted,
        Self::Stranger,
        Self::Crowded,
    ];

    /// The world of a scenario. Past two faults, which are for random schedules, a run has one lifecycle
    /// more.
    pub fn setup(
        self,
        build: fn(Incarnation) -> LaneConnections,
        faults_max: u32,
    ) -> ConnectionSetup {
        let opens = match self {
            Self::LowerOpens | Self::LowerBlocked | Self::Stranger | Self::Crowded => [true, false],
            Self::HigherOpens | Self::Restarted => [false, true],
            Self::BothOpen | Self::BothBlocked | Self::Closed => [true, true],
        };
        let is_blocked = match self {
            Self::LowerBlocked => [true, false],
            Self::BothBlocked => [true, true],
            _ => [false, false],
        };
        let is_crowded = self == Self::Crowded;
        ConnectionSetup {
            build,
            opens,
            is_blocked,
            closes: [self == Self::Closed; 2],
            has_stranger: self == Self::Stranger,
            may_restart: self == Self::Restarted,
            others: u8::from(is_crowded),
            peers_max: if is_crowded { 1 } else { ANNOUNCING_PEERS_MAX },
            lifecycles_max: if faults_max > 2 { 3 } else { 2 },
            faults_max,
        }
    }
}
