//! The nodes of a world, and what they want.

use handfast_core::Incarnation;
use handfast_core::connection::{ANNOUNCING_PEERS_MAX, LaneConnections};

/// The moment at which a connection is established at its listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Establishment {
    /// The dialler's last message: InfiniBand and RoCE.
    LastMessage,
    /// The listener's own answer, before the dialler has it: iWARP, over a TCP connection that repeats and
    /// loses no message but all.
    OwnAnswer,
}

impl Establishment {
    /// Each of them.
    pub const ALL: [Self; 2] = [Self::LastMessage, Self::OwnAnswer];
}

/// A world before its first event.
#[derive(Clone, Debug)]
pub struct ConnectionSetup {
    /// Builds the machine of a run.
    pub build: fn(Incarnation) -> LaneConnections,
    /// The moment at which the devices call a connection established.
    pub establishment: Establishment,
    /// Queue pairs of each node's lanes.
    pub queue_pairs: [u16; 2],
    /// A node's own calls may fail, at a fault each.
    pub may_fail: bool,
    /// A node's device may be removed, at a fault.
    pub may_be_removed: bool,
    /// Nodes that want a connection.
    pub opens: [bool; 2],
    /// Nodes whose dials do not arrive.
    pub is_blocked: [bool; 2],
    /// Nothing answers such a dial.
    pub is_silent: bool,
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

impl ConnectionSetup {
    /// The same world with other devices.
    #[must_use]
    pub fn on(self, establishment: Establishment) -> Self {
        Self { establishment, ..self }
    }
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
    /// The same, and nothing answers those dials: they end by their timer.
    LowerSilenced,
    /// Neither node's dials arrive.
    BothBlocked,
    /// Both open, and either closes.
    Closed,
    /// The lower node opens, and closes.
    OneCloses,
    /// The higher node opens, and either restarts.
    Restarted,
    /// The lower node opens, and either restarts.
    LowerRestarted,
    /// The lower node opens, and a stranger dials and answers.
    Stranger,
    /// The lower node opens, requests of another peer arrive at both, and a node knows one peer at a time.
    Crowded,
    /// The lower node opens, and calls of either fail.
    CallsFail,
    /// The higher node opens, and either's device is removed.
    Removed,
    /// The lower node opens a lane of two queue pairs.
    TwoPairs,
    /// The higher node opens a lane of two queue pairs, and the lower has one.
    FewerPairs,
}

impl ConnectionScenario {
    /// Every scenario.
    pub const ALL: [Self; 16] = [
        Self::LowerOpens,
        Self::HigherOpens,
        Self::BothOpen,
        Self::LowerBlocked,
        Self::LowerSilenced,
        Self::BothBlocked,
        Self::Closed,
        Self::OneCloses,
        Self::Restarted,
        Self::LowerRestarted,
        Self::Stranger,
        Self::Crowded,
        Self::CallsFail,
        Self::Removed,
        Self::TwoPairs,
        Self::FewerPairs,
    ];

    /// The world of a scenario. Past two faults, which are for random schedules, a run has one lifecycle
    /// more.
    pub fn setup(
        self,
        build: fn(Incarnation) -> LaneConnections,
        faults_max: u32,
    ) -> ConnectionSetup {
        let opens = match self {
            Self::LowerOpens
            | Self::LowerBlocked
            | Self::LowerSilenced
            | Self::LowerRestarted
            | Self::Stranger
            | Self::Crowded
            | Self::CallsFail
            | Self::OneCloses
            | Self::TwoPairs => [true, false],
            Self::HigherOpens | Self::Restarted | Self::Removed | Self::FewerPairs => [false, true],
            Self::BothOpen | Self::BothBlocked | Self::Closed => [true, true],
        };
        let is_blocked = match self {
            Self::LowerBlocked | Self::LowerSilenced => [true, false],
            Self::BothBlocked => [true, true],
            _ => [false, false],
        };
        let queue_pairs = match self {
            Self::TwoPairs => [2, 2],
            Self::FewerPairs => [1, 2],
            _ => [1, 1],
        };
        let is_crowded = self == Self::Crowded;
        ConnectionSetup {
            build,
            establishment: Establishment::LastMessage,
            queue_pairs,
            may_fail: self == Self::CallsFail,
            may_be_removed: self == Self::Removed,
            opens,
            is_blocked,
            is_silent: self == Self::LowerSilenced,
            closes: [self == Self::Closed || self == Self::OneCloses, self == Self::Closed],
            has_stranger: self == Self::Stranger,
            may_restart: matches!(self, Self::Restarted | Self::LowerRestarted),
            others: u8::from(is_crowded),
            peers_max: if is_crowded { 1 } else { ANNOUNCING_PEERS_MAX },
            lifecycles_max: if faults_max > 2 { 3 } else { 2 },
            faults_max,
        }
    }
}
