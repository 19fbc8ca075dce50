//! What a world starts with.

use handfast_core::node::{Limits, Timing};
use handfast_core::{NicPath, Node, NodeConfig};
use std::sync::Arc;

/// Makes the node of a site; the place where an explorer puts a variant of the rules.
pub type Build = Arc<dyn Fn(NodeConfig) -> Node + Send + Sync>;

/// What an application asks of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandKind {
    /// Wants a lane.
    Open,
    /// No longer wants one.
    Close,
    /// Has no work for it; the lane may make way.
    Release,
    /// The process of the site dies and starts anew under its name; the peer named is nobody.
    Restart,
}

/// A command of the scenario, which may happen at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Command {
    /// The site that commands.
    pub site: usize,
    /// The site it is about.
    pub peer: usize,
    /// What is asked.
    pub kind: CommandKind,
}

/// The kinds of fault a world may spend its budget on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// A call or an answer is lost without a word.
    pub loss: bool,
    /// A call is delivered and stays in flight.
    pub duplication: bool,
    /// A caller is told that its call failed, before or after it took effect.
    pub call_failure: bool,
    /// An operation fails.
    pub operation_failure: bool,
    /// An operation never ends.
    pub operation_stall: bool,
    /// A node crashes and starts anew under its name.
    pub crash: bool,
    /// A queue pair goes to error without a cause in the fabric.
    pub lane_error: bool,
    /// A timer fires while what it waits for is still under way.
    pub early_timer: bool,
}

impl Faults {
    /// Every kind.
    pub const ALL: Self = Self {
        loss: true,
        duplication: true,
        call_failure: true,
        operation_failure: true,
        operation_stall: true,
        crash: true,
        lane_error: true,
        early_timer: true,
    };
    /// What page-sized models know: loss, duplication and restart; reordering is free.
    pub const CLASSIC: Self = Self {
        call_failure: false,
        operation_failure: false,
        operation_stall: false,
        lane_error: false,
        early_timer: false,
        ..Self::ALL
    };
}

/// Whether queue-pair operations are events of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// Each is an event; everything else may happen before it ends.
    Stepwise,
    /// Each succeeds within the event that asks for it, as in page-sized models.
    AtOnce,
}

/// What a world starts with.
#[derive(Clone)]
pub struct Setup {
    /// The NIC of each site. Two sites with one path are twins: two processes that bear one name.
    pub sites: Vec<NicPath>,
    /// The process of each site: sites of one process are the NICs of one node, which have one
    /// incarnation and die together. Empty: each site is a process of its own.
    pub processes: Vec<usize>,
    /// A site that accepts calls and never answers.
    pub mute: Option<usize>,
    /// A site that announces no GID: wiring towards it takes a look-up, which is part of the Wire.
    pub without_gid: Option<usize>,
    /// A site that is an existing Mooncake node, and whether it knows the ready phase (rule H13).
    pub old: Option<(usize, bool)>,
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
    /// Answers that can only be ignored vanish at once. Sound as long as lifecycle numbers are
    /// never reused, and much cheaper; what it hides is that they are indeed ignored.
    pub prune: bool,
    /// Makes the nodes.
    pub build: Build,
}

impl Setup {
    /// The process of a site.
    pub(crate) fn process(&self, site: usize) -> usize {
        self.processes.get(site).copied().unwrap_or(site)
    }
}
