//! The initial state of a world.

use crate::backend::Backend;
use crate::data::TransferSetup;
use crate::verbs::{Profile, Rebirth, STRICT};
use handfast_core::connection::LaneConnections;
use handfast_core::node::{Limits, Timing};
use handfast_core::sharing::Sharing;
use handfast_core::target::{Target, TargetConfig};
use handfast_core::{Incarnation, Instant, NicPath, Node, NodeConfig};
use std::sync::Arc;

/// Creates the node of a site. An explorer sets a variant of the rules here.
pub type Build = Arc<dyn Fn(NodeConfig) -> Node + Send + Sync>;

/// Creates a target of a site. An explorer sets a variant for lanes and transfers here.
pub type BuildTarget = fn(TargetConfig, Instant) -> Target;

/// Creates an end of a same-host channel. An explorer sets a variant here.
pub type BuildSharing = fn() -> Sharing;

/// Creates the connections of a NIC. An explorer sets a variant here.
pub type BuildConnections = fn(Incarnation) -> LaneConnections;

/// Requests of an application to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandKind {
    /// Requests a lane.
    Open,
    /// Withdraws the request.
    Close,
    /// Has no work for the lane, which becomes a candidate for eviction.
    Release,
    /// Kills the process of the site, which restarts under its name; the peer is unused.
    Restart,
}

/// A command of the scenario, which may happen at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Command {
    /// The commanding site.
    pub site: usize,
    /// The site that the command concerns.
    pub peer: usize,
    /// The request.
    pub kind: CommandKind,
}

macro_rules! faults {
    ($($(#[$doc:meta])* $kind:ident $name:literal,)*) => {
        /// The kinds of fault a world may spend its budget on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Faults {
            $($(#[$doc])* pub $kind: bool,)*
        }

        impl Faults {
            /// None.
            pub const NONE: Self = Self { $($kind: false,)* };
            /// Every kind by its command-line name, in the order of their bits.
            pub const KINDS: &[(&str, fn(&mut Self) -> &mut bool)] =
                &[$(($name, |faults| &mut faults.$kind)),*];
        }
    };
}

faults! {
    /// A call or an answer is lost without an error.
    loss "loss",
    /// A call is delivered and stays in flight.
    duplication "duplication",
    /// A caller receives an error for a call that may have taken effect.
    call_failure "call-failure",
    /// An operation fails.
    operation_failure "operation-failure",
    /// An operation never ends.
    operation_stall "operation-stall",
    /// A node crashes and restarts under its name.
    crash "crash",
    /// A queue pair goes to error without a cause in the fabric.
    lane_error "lane-error",
    /// A timer fires although the awaited event is still pending.
    early_timer "early-timer",
    /// A forbidden access ends a published queue pair.
    protection "protection",
    /// One verbs step of an operation fails, which is finer than `operation_failure`.
    step_failure "step-failure",
    /// A port goes down; it comes up again at no cost.
    port "port",
    /// The address of a NIC is removed; it returns at no cost.
    address "address",
    /// The path from one NIC to another is cut, in one direction; it is restored at no cost.
    partition "partition",
    /// A process is stopped: it accepts calls and never answers. It continues at no cost.
    mute "mute",
    /// A silent client connects to a legacy Mooncake node. Its listener serves one connection at a
    /// time and accepts no call until the client leaves, which costs nothing.
    stranger "stranger",
    /// The connection of a same-host channel breaks while both processes live.
    channel "channel",
    /// A stranger dials a lane, or answers a dial, without the token.
    forgery "forgery",
}

impl Faults {
    /// Every kind that needs no device; those of [`Faults::DEVICE`] may be added.
    pub const ALL: Self = Self {
        loss: true,
        duplication: true,
        call_failure: true,
        operation_failure: true,
        operation_stall: true,
        crash: true,
        lane_error: true,
        early_timer: true,
        ..Self::NONE
    };
    /// Faults of devices, paths and processes.
    pub const DEVICE: Self = Self {
        step_failure: true,
        port: true,
        address: true,
        partition: true,
        mute: true,
        ..Self::NONE
    };
    /// The faults of small models: loss, duplication and restart; reordering is free.
    pub const CLASSIC: Self = Self {
        call_failure: false,
        operation_failure: false,
        operation_stall: false,
        lane_error: false,
        early_timer: false,
        ..Self::ALL
    };
}

/// Granularity of queue-pair operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// Each operation is an event; any other event may precede its end.
    Stepwise,
    /// Each succeeds within the event that requests it, as in small models.
    AtOnce,
}

/// A legacy Mooncake node (rule H13), by the properties of its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldPeer {
    /// The site.
    pub site: usize,
    /// Whether it sends *ready* and waits for it: from 0.3.12 on.
    pub knows_ready: bool,
    /// Whether a request, repeated or not, replaces its endpoint, and waits while its own request
    /// to that peer is outstanding: before 0.3.10.post1.
    pub replaces: bool,
}

/// Devices of the sites and their use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Devices {
    /// The device of every site.
    pub profile: &'static Profile,
    /// The backend of every site.
    pub backend: Backend,
    /// Effect of a restart on the numbers and keys of the site's device.
    pub rebirth: Rebirth,
    /// Whether sequence numbers are drawn per lifecycle and exchanged, as between handfast nodes
    /// (rule H13); otherwise all start at zero.
    pub random_psns: bool,
}

impl Default for Devices {
    /// Returns the strict device, recurring numbers after a restart, and sequence numbers from
    /// zero.
    fn default() -> Self {
        Self {
            profile: &STRICT,
            backend: Backend::Shipping,
            rebirth: Rebirth::Anew,
            random_psns: false,
        }
    }
}

/// The initial state of a world.
#[derive(Clone)]
pub struct Setup {
    /// The NIC of each site. Two sites with one path are two processes that share a name.
    pub sites: Vec<NicPath>,
    /// The process of each site. Sites of one process are the NICs of one node, share an
    /// incarnation and die together. Empty: one process per site.
    pub processes: Vec<usize>,
    /// Whether the NICs of a process share one node, which has a lane per *rail*: one NIC of either
    /// side. The node belongs to the first of them, and demands lead from one NIC to another.
    /// Otherwise each NIC has a node.
    pub rails: bool,
    /// A site that accepts calls and never answers.
    pub mute: Option<usize>,
    /// A site that announces no GID. Connecting to it requires a look-up as part of the Connect.
    pub without_gid: Option<usize>,
    /// A site with a legacy Mooncake node.
    pub old: Option<OldPeer>,
    /// Whether, without a fault, lanes between responsive peers must be established without waiting
    /// for a timer (O8).
    pub prompt: bool,
    /// Limits of every node.
    pub limits: Limits,
    /// Timeouts of every node; only their order matters here.
    pub timing: Timing,
    /// Commands that may happen at any time, each once.
    pub commands: Vec<Command>,
    /// Whether a restarted site repeats its earlier demands.
    pub reopen: bool,
    /// Kinds of fault.
    pub faults: Faults,
    /// Budget of faults.
    pub faults_max: u32,
    /// Granularity of queue-pair operations.
    pub operations: Operations,
    /// Whether to remove answers that can only be ignored, and calls whose only possible answer is
    /// a permanent refusal to a dead sender. Sound while lifecycle numbers are never reused, and
    /// much cheaper; hides the ignoring and refusing itself.
    pub prune: bool,
    /// Transfers; without them lanes carry nothing.
    pub transfers: Option<TransferSetup>,
    /// Devices of the sites.
    pub devices: Devices,
    /// Whether no lifecycle may end, since every one must survive the enabled faults. The timeout
    /// of an echo then exceeds every shorter one; otherwise timeouts expire in any order, and this
    /// one may end a lane whose retry is due.
    pub lasting: bool,
    /// Creates the nodes.
    pub build: Build,
    /// Creates the targets.
    pub build_target: BuildTarget,
    /// Creates the ends of same-host channels.
    pub build_sharing: BuildSharing,
    /// Creates the connections of NICs whose queue pairs connect through the connection manager; `None` if
    /// they connect out of band.
    pub build_connections: Option<BuildConnections>,
}

impl Setup {
    /// Whether a command is listed twice.
    pub(crate) fn repeats_commands(&self) -> bool {
        let known = |at: usize| self.commands[..at].contains(&self.commands[at]);
        (0..self.commands.len()).any(known)
    }

    /// Whether the devices hold more state than the table of queue pairs shows.
    pub(crate) fn devices_differ(&self) -> bool {
        let faults = self.faults;
        *self.devices.profile != STRICT
            || self.devices.random_psns
            || self.transfers.is_some()
            || self.build_connections.is_some()
            || faults.step_failure
            || faults.port
            || faults.address
            || faults.partition
    }

    /// Returns the site that holds the node: with rails the first NIC of its process, otherwise the
    /// site itself.
    pub fn host(&self, site: usize) -> usize {
        let process = self.process(site);
        let mut earlier = (0..site).filter(|_| self.rails);
        earlier.find(|other| self.process(*other) == process).unwrap_or(site)
    }

    /// Returns the process of a site.
    pub(crate) fn process(&self, site: usize) -> usize {
        self.processes.get(site).copied().unwrap_or(site)
    }
}
