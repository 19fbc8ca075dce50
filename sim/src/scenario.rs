//! Worlds to explore, by name.

use crate::liveness::next;
use crate::transfers::{FLEET_NICS, Traffic};
use handfast_core::node::{Limits, Timing};
use handfast_core::sharing::Sharing;
use handfast_core::target::Target;
use handfast_core::{NicPath, Node};
use handfast_transport_sim::{
    Action, Choice, Command, CommandKind, Devices, Faults, OldPeer, Operations, Setup, Step, World,
};
use std::sync::Arc;

/// Scenarios to explore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Both sides open at any time.
    SimultaneousOpen,
    /// The side whose path is lower opens.
    LowerOpens,
    /// The side whose path is higher opens.
    HigherOpens,
    /// Both sides open, and one closes, in any order.
    OpenAgainstClose,
    /// Both sides are established; one closes and reopens, and either may restart.
    Established,
    /// One side opens twice, so two callers wait for one lane.
    OpenTwice,
    /// Two processes share the name of the side that is opened (rule H5).
    Twins,
    /// Both sides open with tables small enough to reach their limits.
    TightLimits,
    /// A node connects to itself (rule H14).
    SelfConnection,
    /// Three nodes open in a circle, each towards the next (rule H7).
    Circle,
    /// Two nodes open towards a third, whose table of peers has room for one.
    Crowd,
    /// Both sides are established and both close, in any order (rule H11).
    CloseAgainstClose,
    /// A table of two lanes is full of idle ones: their owner opens to a third peer, and one of the
    /// idle peers opens too (rule H11).
    EvictAgainstOpen,
    /// One side opens while the other is restarted.
    OpenAgainstRestart,
    /// A node has lanes to both NICs of another, which wants one of them too: both end with a restart
    /// of either, and are opened again (rule H6).
    TwoNics,
    /// Three nodes, each opens to the next; one of them announces no GID (rule H7).
    Ring,
    /// Three nodes in a ring, one of which accepts calls and never answers (oracle O8).
    RingWithMute,
    /// A node opens to an existing Mooncake node, closes, and is restarted (rule H13).
    NewToOld,
    /// A legacy Mooncake node opens to a handfast node, and is restarted (rule H13).
    OldToNew,
    /// Both open, one of them an existing Mooncake node that does not know the ready phase.
    NewAgainstOld,
    /// Both open, one of them an existing Mooncake node that knows the ready phase.
    NewAgainstReady,
    /// A node opens to an existing Mooncake node that replaces its endpoint at every request, closes,
    /// and is restarted.
    NewToReplacing,
    /// Both open, one of them an existing Mooncake node that replaces its endpoint at every request.
    NewAgainstReplacing,
    /// Two nodes open to an existing Mooncake node, whose listener serves one call at a time.
    TwoToOld,
    /// Two nodes without demands of their own: transfers open the lanes.
    Transfers,
    /// Two connected nodes, one with a demand: a lane that is torn down is connected
    /// again.
    Reconnect,
    /// Four nodes with two NICs each and no demands.
    Fleet,
    /// Both sides are established, and both are restarted, in any order.
    BothRestart,
    /// Both sides open twice, with tables small enough to wait for room.
    Impatient,
    /// Two nodes with two rails between them: both open the first, and one the second.
    RailsOpen,
    /// Two nodes with two rails between them, one of them open: the second is opened.
    RailAdded,
    /// Two nodes with two rails between them, both open; one closes the second, and either may
    /// restart.
    RailsUp,
}

impl Scenario {
    /// Scenarios with events even without traffic.
    pub const ALL: [Self; 20] = [
        Self::SimultaneousOpen,
        Self::LowerOpens,
        Self::HigherOpens,
        Self::OpenAgainstClose,
        Self::Established,
        Self::OpenTwice,
        Self::Twins,
        Self::TightLimits,
        Self::SelfConnection,
        Self::Circle,
        Self::Crowd,
        Self::CloseAgainstClose,
        Self::EvictAgainstOpen,
        Self::OpenAgainstRestart,
        Self::TwoNics,
        Self::Ring,
        Self::RingWithMute,
        Self::NewToOld,
        Self::OldToNew,
        Self::NewAgainstOld,
    ];

    /// Scenarios that need traffic.
    pub const OF_TRAFFIC: [Self; 3] = [Self::Transfers, Self::Reconnect, Self::Fleet];

    /// Scenarios of nodes with several NICs and one lane per rail.
    pub const OF_RAILS: [Self; 3] = [Self::RailsOpen, Self::RailAdded, Self::RailsUp];

    /// Scenarios of restarts that a sweep draws by name alone.
    pub const OF_RESTARTS: [Self; 1] = [Self::BothRestart];

    /// Scenarios of full tables that a sweep draws by name alone.
    pub const OF_ROOM: [Self; 1] = [Self::Impatient];

    /// More scenarios with an existing Mooncake node, of several releases.
    pub const OF_MIXED: [Self; 4] =
        [Self::NewAgainstReady, Self::NewToReplacing, Self::NewAgainstReplacing, Self::TwoToOld];

    /// All scenarios.
    pub fn every() -> impl Iterator<Item = Self> {
        let by_name = Self::OF_RAILS.into_iter().chain(Self::OF_MIXED).chain(Self::OF_RESTARTS);
        Self::ALL.into_iter().chain(Self::OF_TRAFFIC).chain(by_name).chain(Self::OF_ROOM)
    }

    /// Default kinds of fault.
    pub fn faults(self) -> Faults {
        Faults { stranger: Self::OF_MIXED.contains(&self), ..Faults::ALL }
    }

    /// Parses a scenario from its [`Debug`] name, ignoring case.
    pub fn named(name: &str) -> Option<Self> {
        let is = |known: &Self| format!("{known:?}").eq_ignore_ascii_case(name);
        Self::every().find(is)
    }

    /// The scenario can carry bytes: between two distinct handfast nodes, each alone under its
    /// name, with room for its lanes; in a fleet between its nodes.
    pub fn carries(self, traffic: Traffic) -> bool {
        match self {
            Self::Fleet => true,
            Self::SelfConnection
            | Self::Twins
            | Self::EvictAgainstOpen
            | Self::NewToOld
            | Self::OldToNew
            | Self::NewAgainstOld
            | Self::NewAgainstReady
            | Self::NewToReplacing
            | Self::NewAgainstReplacing
            | Self::TwoToOld => false,
            _ => traffic != Traffic::Fleet,
        }
    }

    /// The initial state, with small limits and every kind of fault.
    pub fn setup(self, faults_max: u32) -> Setup {
        let open = |site, peer| Command { site, peer, kind: CommandKind::Open };
        let close = |site, peer| Command { site, peer, kind: CommandKind::Close };
        let restart = |site| Command { site, peer: site, kind: CommandKind::Restart };
        let (count, commands) = match self {
            Self::SimultaneousOpen | Self::TightLimits => (2, vec![open(0, 1), open(1, 0)]),
            Self::LowerOpens => (2, vec![open(0, 1)]),
            Self::HigherOpens => (2, vec![open(1, 0)]),
            Self::OpenAgainstClose => (2, vec![open(0, 1), open(1, 0), close(0, 1)]),
            Self::Established => (2, vec![close(0, 1), open(0, 1)]),
            Self::Impatient => (2, vec![open(0, 1), open(1, 0), open(0, 1), open(1, 0)]),
            Self::OpenTwice => (2, vec![open(0, 1), open(0, 1)]),
            Self::Twins => (3, vec![open(0, 1), open(1, 0), open(2, 0)]),
            Self::SelfConnection => (1, vec![open(0, 0)]),
            Self::Circle => (3, vec![open(0, 1), open(1, 2), open(2, 0)]),
            Self::Crowd => (3, vec![open(1, 0), open(2, 0)]),
            Self::CloseAgainstClose => (2, vec![close(0, 1), close(1, 0)]),
            Self::EvictAgainstOpen => (4, vec![open(0, 3), open(1, 0)]),
            Self::OpenAgainstRestart => (2, vec![open(0, 1), restart(1)]),
            Self::BothRestart => (2, vec![restart(0), restart(1)]),
            Self::TwoNics => (3, Vec::new()),
            Self::Ring => (3, vec![open(0, 1), open(1, 2), open(2, 0)]),
            Self::NewToOld | Self::NewToReplacing => (2, vec![open(0, 1), restart(0), close(0, 1)]),
            Self::OldToNew => (2, vec![open(1, 0), restart(1)]),
            Self::Transfers | Self::Reconnect => (2, Vec::new()),
            Self::Fleet => (FLEET_NICS, Vec::new()),
            Self::NewAgainstOld | Self::NewAgainstReady | Self::NewAgainstReplacing => {
                (2, vec![open(0, 1), open(1, 0)])
            }
            Self::TwoToOld => (3, vec![open(0, 2), open(1, 2)]),
            Self::RailsOpen => (4, vec![open(0, 1), open(1, 0), open(2, 3)]),
            Self::RailAdded => (4, vec![open(2, 3)]),
            Self::RailsUp => (4, vec![close(2, 3)]),
            // The unresponsive node opens to no peer, since nothing would answer it. Two others
            // cross next to it.
            Self::RingWithMute => (3, vec![open(0, 1), open(1, 0), open(1, 2)]),
        };
        let path = |name: &str| NicPath::parse(name).expect("a well-formed path");
        Setup {
            sites: self.names()[..count].iter().map(|name| path(name)).collect(),
            processes: match self {
                Self::TwoNics => vec![0, 1, 1],
                Self::Fleet => (0..FLEET_NICS).map(|nic| nic / 2).collect(),
                _ if self.has_rails() => vec![0, 1, 0, 1],
                _ => Vec::new(),
            },
            rails: self.has_rails(),
            mute: (self == Self::RingWithMute).then_some(2),
            without_gid: (self == Self::Ring).then_some(1),
            old: self.old(),
            prompt: matches!(self, Self::Ring | Self::RingWithMute),
            limits: self.limits(),
            timing: Timing::default(),
            commands,
            reopen: true,
            faults: self.faults(),
            faults_max,
            operations: Operations::Stepwise,
            prune: false,
            transfers: None,
            devices: Devices::default(),
            lasting: false,
            build: Arc::new(Node::new),
            build_target: Target::new,
            build_sharing: Sharing::new,
            build_connections: None,
        }
    }

    /// The world of [`Scenario::setup`].
    pub fn world(self, faults_max: u32) -> World {
        self.begin(self.setup(faults_max))
    }

    /// The world of a setup that began as this scenario's.
    pub fn begin(self, setup: Setup) -> World {
        let mut world = World::new(setup);
        let ask = |kind, pairs: &[(usize, usize)], world: &mut World| {
            for (site, peer) in pairs.iter().copied() {
                let command = Command { site, peer, kind };
                let choice = Choice { action: Action::Ask(command), cost: 0 };
                world.apply(&choice, &mut Step::default());
            }
            while let Some(choice) = next(world) {
                world.apply(&choice, &mut Step::default());
            }
        };
        match self {
            Self::Established | Self::CloseAgainstClose | Self::BothRestart => {
                ask(CommandKind::Open, &[(0, 1), (1, 0)], &mut world);
            }
            Self::TwoNics => ask(CommandKind::Open, &[(0, 1), (0, 2), (1, 0)], &mut world),
            Self::RailsUp => ask(CommandKind::Open, &[(0, 1), (2, 3), (1, 0)], &mut world),
            Self::RailAdded => ask(CommandKind::Open, &[(0, 1)], &mut world),
            Self::Reconnect => ask(CommandKind::Open, &[(0, 1)], &mut world),
            Self::EvictAgainstOpen => {
                ask(CommandKind::Open, &[(0, 1), (0, 2)], &mut world);
                ask(CommandKind::Release, &[(0, 1), (0, 2)], &mut world);
            }
            _ => {}
        }
        world
    }

    fn old(self) -> Option<OldPeer> {
        let old = |site, knows_ready, replaces| Some(OldPeer { site, knows_ready, replaces });
        match self {
            Self::NewToOld | Self::OldToNew | Self::NewAgainstReady => old(1, true, false),
            Self::NewAgainstOld => old(1, false, false),
            Self::NewToReplacing | Self::NewAgainstReplacing => old(1, false, true),
            Self::TwoToOld => old(2, true, false),
            _ => None,
        }
    }

    fn has_rails(self) -> bool {
        Self::OF_RAILS.contains(&self)
    }

    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Twins => &["a:1@nic", "b:1@nic", "b:1@nic"],
            Self::TwoNics => &["a:1@nic", "b:1@nic", "b:1@nic2"],
            _ if self.has_rails() => &["a:1@nic", "b:1@nic", "a:1@nic2", "b:1@nic2"],
            Self::Fleet => &[
                "a:1@nic", "a:1@nic2", "b:1@nic", "b:1@nic2", "c:1@nic", "c:1@nic2", "d:1@nic",
                "d:1@nic2",
            ],
            _ => &["a:1@nic", "b:1@nic", "c:1@nic", "d:1@nic"],
        }
    }

    fn limits(self) -> Limits {
        match self {
            Self::TightLimits | Self::Impatient => tight_limits(),
            Self::EvictAgainstOpen => Limits { lifecycles_max: 2, ..small_limits() },
            // An abandoned call still waits at the listener, and its answer reaches no caller.
            Self::TwoToOld => Limits { requests_max: 1, opens_max: 1, ..small_limits() },
            Self::Crowd => Limits { peers_max: 1, ..small_limits() },
            _ if self.has_rails() => Limits { lifecycles_max: 10, ..small_limits() },
            Self::Fleet => Limits { peers_max: 8, lifecycles_max: 24, ..small_limits() },
            _ => small_limits(),
        }
    }
}

/// Limits small enough for exploration to reach them.
pub fn small_limits() -> Limits {
    Limits {
        peers_max: 4,
        lifecycles_max: 6,
        answers_held_max: 2,
        requests_max: 2,
        readies_max: 2,
        retires_max: 2,
        quiesces_max: 2,
        opens_max: 2,
    }
}

/// One lifecycle, one held call: limits are the rule and not the exception.
fn tight_limits() -> Limits {
    Limits { peers_max: 1, lifecycles_max: 1, answers_held_max: 1, ..small_limits() }
}
