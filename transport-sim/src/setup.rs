//! The initial state of a world.

use crate::backend::Backend;
use crate::data::TransferSetup;
use crate::verbs::{Profile, Rebirth, STRICT};
use handfast_core::node::{Limits, Timing};
use handfast_core::target::{Target, TargetConfig};
use handfast_core::{Instant, NicPath, Node, NodeConfig};
use std::sync::Arc;

/// Makes the node of a site; the place where an explorer puts a variant of the rules.
pub type Build = Arc<dyn Fn(NodeConfig) -> Node + Send + Sync>;

/// Makes a target of a site; the same place for the lanes and transfers to a peer.
pub type BuildTarget = fn(TargetConfig, Instant) -> Target;

/// Requests of an application to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandKind {
    /// Wants a lane.
    Open,
    /// No longer wants one.
    Close,
    /// Has no work for the lane, which becomes a candidate for eviction.
    Release,
    /// The process of the site dies and restarts under its name; the peer is unused.
    Restart,
}

/// A command of the scenario, which may happen at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Command {
    /// The site that commands.
    pub site: usize,
    /// The site it is about.
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
    /// A call or an answer is lost without a word.
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
    /// A timer fires while what it waits for is still under way.
    early_timer "early-timer",
    /// An access that is not allowed ends a published queue pair.
    protection "protection",
    /// One verbs step of an operation fails, which is finer than `operation_failure`.
    step_failure "step-failure",
    /// A port goes down; it comes up again for nothing.
    port "port",
    /// The address of a NIC is gone; it comes back for nothing.
    address "address",
    /// The way from one NIC to another is cut, one way; it is mended for nothing.
    partition "partition",
    /// A process is stopped: it accepts calls and never answers, and goes on for nothing.
    mute "mute",
    /// A client connects to an existing Mooncake node and says nothing. Its listener serves one
    /// connection at a time, and takes no call until that client is gone, which costs nothing.
    stranger "stranger",
}

impl Faults {
    /// Every kind that needs no device; those of [`Faults::DEVICE`] come on top where they are
    /// wanted.
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
    /// The faults of page-sized models: loss, duplication and restart; reordering is free.
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
    /// Each is an event; everything else may happen before it ends.
    Stepwise,
    /// Each succeeds within the event that asks for it, as in page-sized models.
    AtOnce,
}

/// An existing Mooncake node (rule H13), by what its release does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldPeer {
    /// The site.
    pub site: usize,
    /// It says *ready*, and waits for it: from 0.3.12 on.
    pub knows_ready: bool,
    /// A request, repeated or not, replaces its endpoint, and waits while a request of its own to
    /// that peer is outstanding: before 0.3.10.post1.
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
    /// Sequence numbers are drawn per lifecycle and exchanged, as between nodes that know each
    /// other's key (rule H13); otherwise all begin at zero.
    pub random_psns: bool,
}

impl Default for Devices {
    /// The strict device, numbers that a restart brings back, and sequence numbers from zero.
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
    /// The NICs of a process have one node, which has a lane per *rail*: one NIC of either side. The
    /// node is that of the first of them, and lanes are wanted from one NIC to another. Otherwise
    /// each NIC has a node.
    pub rails: bool,
    /// A site that accepts calls and never answers.
    pub mute: Option<usize>,
    /// A site that announces no GID: wiring towards it takes a look-up, which is part of the Wire.
    pub without_gid: Option<usize>,
    /// A site that is an existing Mooncake node.
    pub old: Option<OldPeer>,
    /// Without a fault, lanes between peers that answer come up without waiting for a timer (O8).
    pub prompt: bool,
    /// Bounds of every node.
    pub limits: Limits,
    /// Waits of every node; only their order matters here.
    pub timing: Timing,
    /// Commands that may happen at any time, each once.
    pub commands: Vec<Command>,
    /// A restarted site wants again what it wanted before.
    pub reopen: bool,
    /// Kinds of fault.
    pub faults: Faults,
    /// Faults that may be spent.
    pub faults_max: u32,
    /// Grain of queue-pair operations.
    pub operations: Operations,
    /// Removes answers that can only be ignored, and calls whose only possible answer is a
    /// permanent refusal to a dead sender. Sound while lifecycle numbers are never reused, and much
    /// cheaper; it hides the ignoring and refusing itself.
    pub prune: bool,
    /// Transfers; without them lanes carry nothing.
    pub transfers: Option<TransferSetup>,
    /// Devices of the sites.
    pub devices: Devices,
    /// No lifecycle may end: the faults are such as every one is to survive. The wait for an echo runs
    /// out after every shorter wait; elsewhere waits run out in any order, and it may end a lane whose
    /// retry is due.
    pub lasting: bool,
    /// Makes the nodes.
    pub build: Build,
    /// Makes the targets.
    pub build_target: BuildTarget,
}

impl Setup {
    /// The devices hold more state than the table of queue pairs shows.
    pub(crate) fn devices_differ(&self) -> bool {
        let faults = self.faults;
        *self.devices.profile != STRICT
            || self.devices.random_psns
            || self.transfers.is_some()
            || faults.step_failure
            || faults.port
            || faults.address
            || faults.partition
    }

    /// The site that holds the node: with rails the first NIC of its process, otherwise the site
    /// itself.
    pub fn host(&self, site: usize) -> usize {
        let process = self.process(site);
        let mut earlier = (0..site).filter(|_| self.rails);
        earlier.find(|other| self.process(*other) == process).unwrap_or(site)
    }

    /// The process of a site.
    pub(crate) fn process(&self, site: usize) -> usize {
        self.processes.get(site).copied().unwrap_or(site)
    }
}
