//! Rails: which lanes to open towards a peer with several NICs, and when to fall back to TCP.
//!
//! Each rail is a circuit breaker. A rail whose lane failed is opened again at once, which also
//! proves that nothing posted on the failed lane can land (rule H12), and carries bytes only after a
//! probe over it was answered. A rail that fails its probe pauses. No rail pauses while it is the
//! only hope: a demand that finds every rail paused tries all of them, and fails after each has.

use crate::identity::{Lifecycle, NicPath, NodeName};
use crate::time::{Duration, Instant};
use crate::transport::{Side, TransportError};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;

/// Most rails between two nodes: two nodes with eight NICs each have one for each NIC.
pub const RAILS_MAX: usize = 8;
/// Pause of a rail after its first failure in a row, a broken lane included, and after every failure
/// of a local port.
pub const RAIL_PAUSE_MIN: Duration = Duration::from_millis(1_000);
/// Longest pause of a rail; the pause doubles up to it.
pub const RAIL_PAUSE_MAX: Duration = Duration::from_millis(30_000);
/// Failures in a row that each rail may have, where no other is left, before a demand fails.
pub const RAIL_FAILURES_MAX: u32 = 4;
/// Time in use after which a lane clears the failures of its rail.
pub const RAIL_STEADY: Duration = Duration::from_millis(10_000);

/// The subject of a failure. Each class has its own retry policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureClass {
    /// A local port, device or limit. Never counted against the peer: its rail is tried again after
    /// the shortest pause, without a bound on the number of tries.
    LocalPort,
    /// The path to one NIC of the peer. The rail pauses, for longer each time.
    PeerRail,
    /// The peer's process takes no calls. No rail is blamed, and each is tried again after the
    /// shortest pause; with no rail in use the demand fails, and the next demand tries all.
    PeerProcess,
    /// An access that is not permitted. The rail stays out of use until the peer publishes another
    /// descriptor.
    Protection,
    /// The configuration of either side; treated as [`FailureClass::Protection`].
    Configuration,
}

impl FailureClass {
    /// The class of an error of a lane, or of opening one.
    pub fn of(error: &TransportError) -> Self {
        match error.side {
            Side::Local => Self::LocalPort,
            Side::Configuration => Self::Configuration,
            Side::Protection => Self::Protection,
            Side::Peer if error.call == "handshake" => Self::PeerProcess,
            Side::Peer => Self::PeerRail,
        }
    }

    /// The name in at most two words, as error messages print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::LocalPort => "local port",
            Self::PeerRail => "peer rail",
            Self::PeerProcess => "peer process",
            Self::Protection => "protection",
            Self::Configuration => "configuration",
        }
    }

    /// Whether a retry cannot change the outcome.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Protection | Self::Configuration)
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One rail to be used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RailPlan {
    /// The peer's path over it.
    pub path: NicPath,
    /// Index of the peer's NIC in its descriptor.
    pub peer_device: usize,
}

/// Pairs local NICs with a node's NICs, by name: one rail for each NIC of the side that has more, NICs
/// of equal name together. Empty where a single lane does, as with one local NIC.
pub fn plan_rails(node: &NodeName, local: &[&str], peer: &[&str]) -> Vec<RailPlan> {
    if local.len() < 2 || peer.is_empty() {
        return Vec::new();
    }
    let count = local.len().max(peer.len()).min(RAILS_MAX);
    let plan = |index: usize| {
        let own = index % local.len();
        let same = peer.iter().position(|name| *name == local[own]);
        let other = same.filter(|_| index < local.len()).unwrap_or(index % peer.len());
        let path = NicPath::over_rail(node, peer[other], local[own]).ok()?;
        Some(RailPlan { path, peer_device: other })
    };
    let mut plans: Vec<RailPlan> = Vec::with_capacity(count);
    for plan in (0..count).filter_map(plan) {
        if !plans.iter().any(|known| known.path == plan.path) {
            plans.push(plan);
        }
    }
    plans
}

/// Use of a lane that came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RailVerdict {
    /// Post on it.
    Use,
    /// Probe it first.
    Probe,
}

/// Whether the machine sees to a lane over a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RailStance {
    /// The path is none of the rails.
    Unknown,
    /// The rail has a lane, or opens one as soon as there is work.
    Pursued,
    /// The rail pauses or is out of use.
    GivenUp,
}

/// Outputs of the rails.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RailOutput {
    /// Open a lane over this path.
    Open(NicPath),
    /// Release the demand for a lane over this path, and retire the lane there is, if any.
    Close(NicPath),
    /// No rail works, for this reason: lanes over TCP are opened instead.
    FallBack(TransportError),
    /// No path is left and none is being opened: the demand failed.
    Lost(TransportError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Not asked for.
    Closed,
    Opening,
    /// A lane is up and being probed.
    Probing(Lifecycle),
    Up {
        lane: Lifecycle,
        since: Instant,
    },
    Paused {
        until: Instant,
    },
    /// Failed for good.
    Out,
    /// Its lane ended for a refused access: out of use while another rail is usable.
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Rail {
    plan: RailPlan,
    state: State,
    /// In a row.
    failures: u32,
    /// The last attempt failed because the peer's process takes no calls.
    unanswered: bool,
}

/// The rails to one incarnation of a peer.
///
/// Drain [`Rails::poll_output`] to `None` after every call, and ask [`Rails::poll_timeout`] again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rails {
    rails: Vec<Rail>,
    /// Lanes over TCP, where they are allowed.
    tcp: Option<Rail>,
    /// There is a demand.
    wanted: bool,
    /// The last demand failed, and no other came since.
    lost: bool,
    /// The failure of the last rail that failed.
    cause: Option<TransportError>,
    outputs: VecDeque<RailOutput>,
}

impl Rails {
    /// Closed rails, at most [`RAILS_MAX`]; `tcp` is the path of lanes over TCP, if allowed.
    pub fn new(plans: &[RailPlan], tcp: Option<&NicPath>) -> Self {
        let rail = |plan: &RailPlan| {
            let (state, failures, unanswered) = (State::Closed, 0, false);
            Rail { plan: plan.clone(), state, failures, unanswered }
        };
        let plans = plans.iter().take(RAILS_MAX);
        let tcp = tcp.map(|path| rail(&RailPlan { path: path.clone(), peer_device: 0 }));
        let rails = plans.map(rail).collect();
        Self { rails, tcp, wanted: false, lost: false, cause: None, outputs: VecDeque::new() }
    }

    /// Whether these plans are the ones in use.
    pub fn are(&self, plans: &[RailPlan]) -> bool {
        self.rails.iter().map(|rail| &rail.plan).eq(plans.iter().take(RAILS_MAX))
    }

    /// The index of the rail with this path.
    pub fn number(&self, path: &NicPath) -> Option<u8> {
        let index = self.rails.iter().position(|rail| rail.plan.path == *path)?;
        u8::try_from(index).ok()
    }

    /// The local NIC and the peer's NIC of each rail, by index.
    pub fn nics(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rails.iter().map(|rail| {
            let (peer, local) = rail.plan.path.rail().unwrap_or_default();
            (local, peer)
        })
    }

    /// Whether the machine sees to a lane over a path.
    pub fn stance(&self, path: &NicPath) -> RailStance {
        let rail = self.all().find(|rail| rail.plan.path == *path);
        match rail.map(|rail| rail.state) {
            None => RailStance::Unknown,
            Some(State::Paused { .. } | State::Out | State::Refused) => RailStance::GivenUp,
            Some(_) => RailStance::Pursued,
        }
    }

    /// Whether the machine waits for a lane that it has asked for over a path.
    pub fn is_opening(&self, path: &NicPath) -> bool {
        self.all().any(|rail| rail.plan.path == *path && rail.state == State::Opening)
    }

    /// Yields the next output, `None` when drained.
    pub fn poll_output(&mut self) -> Option<RailOutput> {
        self.outputs.pop_front()
    }

    /// The time at which [`Rails::handle_timeout`] opens a paused rail; `None` without a demand.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let paused = self.rails.iter().filter_map(|rail| match rail.state {
            State::Paused { until } => Some(until),
            _ => None,
        });
        paused.min().filter(|_| self.wanted)
    }

    /// Opens the rails whose pause is over.
    pub fn handle_timeout(&mut self, now: Instant) {
        let mut due = false;
        for rail in &mut self.rails {
            if let State::Paused { until } = rail.state
                && until <= now
            {
                rail.state = State::Closed;
                due = true;
            }
        }
        if due {
            self.pursue_if_wanted();
        }
    }

    /// Takes a demand for lanes.
    pub fn handle_demand(&mut self) {
        (self.wanted, self.lost) = (true, false);
        self.drive_demand();
    }

    /// Takes whether transfers are under way. A rail without a lane is opened only while they are, or
    /// while no lane is up for a demand.
    pub fn handle_busy(&mut self, busy: bool) {
        let none_up = || !self.all().any(|rail| matches!(rail.state, State::Up { .. }));
        let wanted = busy || (self.wanted && none_up());
        self.lost &= busy;
        match wanted && !self.wanted {
            // Transfers that outlive the loss are no new demand.
            true if self.lost => {}
            true => self.handle_demand(),
            false => self.wanted = wanted,
        }
    }

    /// Opens a rail that is closed, paused or refused an access, regardless of its failures: a lane
    /// over it is the proof that nothing posted before can land (rule H12).
    pub fn handle_fence_demand(&mut self, path: &NicPath) {
        let idle = |state| matches!(state, State::Closed | State::Paused { .. } | State::Refused);
        if let Some(rail) = self.find(path).filter(|rail| idle(rail.state)) {
            rail.state = State::Opening;
            self.outputs.push_back(RailOutput::Open(path.clone()));
        }
    }

    /// Takes a lane that came up.
    pub fn handle_lane_up(&mut self, now: Instant, path: &NicPath, lane: Lifecycle) -> RailVerdict {
        let Some(rail) = self.find(path) else { return RailVerdict::Use };
        rail.unanswered = false;
        let over_tcp = path.rail().is_none();
        if over_tcp && rail.state != State::Opening {
            // The peer's fallback.
            return RailVerdict::Use;
        }
        if rail.failures > 0 && !over_tcp {
            rail.state = State::Probing(lane);
            return RailVerdict::Probe;
        }
        rail.state = State::Up { lane, since: now };
        self.close_tcp_if_needless();
        RailVerdict::Use
    }

    /// Takes the answer to a probe; whether the lane is still the one to use.
    pub fn handle_probe_answered(&mut self, now: Instant, lane: Lifecycle) -> bool {
        let probed = |rail: &&mut Rail| rail.state == State::Probing(lane);
        let Some(rail) = self.rails.iter_mut().find(probed) else { return false };
        rail.state = State::Up { lane, since: now };
        self.close_tcp_if_needless();
        true
    }

    /// Takes the end of a lane; `None` if it was meant to end.
    pub fn handle_lane_down(
        &mut self,
        now: Instant,
        lane: Lifecycle,
        failure: Option<&TransportError>,
    ) {
        let of_lane = |rail: &&mut Rail| match rail.state {
            State::Probing(of) | State::Up { lane: of, .. } => of == lane,
            _ => false,
        };
        let Some(rail) = self.rails.iter_mut().chain(self.tcp.as_mut()).find(of_lane) else {
            return;
        };
        let Some(error) = failure else {
            rail.state = State::Closed;
            return self.pursue_if_wanted();
        };
        let class = FailureClass::of(error);
        let probed = matches!(rail.state, State::Probing(_));
        if !probed && class == FailureClass::Protection {
            let over_tcp = rail.plan.path.rail().is_none();
            rail.state = if over_tcp { State::Closed } else { State::Refused };
            self.cause = Some(error.clone());
            return self.pursue_if_wanted();
        }
        let steady = matches!(rail.state, State::Up { since, .. } if since + RAIL_STEADY <= now);
        rail.failures = if steady { 1 } else { rail.failures.saturating_add(1) };
        self.cause = Some(error.clone());
        if probed {
            let path = rail.plan.path.clone();
            rail.pause(now, class);
            self.outputs.push_back(RailOutput::Close(path));
        } else {
            rail.state = if class.is_final() { State::Out } else { State::Closed };
        }
        self.pursue_if_wanted();
    }

    /// Takes the failure to open a lane.
    pub fn handle_open_failed(&mut self, now: Instant, path: &NicPath, error: &TransportError) {
        let Some(rail) = self.find(path).filter(|rail| rail.state == State::Opening) else {
            return;
        };
        let class = FailureClass::of(error);
        let blamed = class != FailureClass::PeerProcess;
        rail.failures = rail.failures.saturating_add(u32::from(blamed));
        rail.unanswered = !blamed;
        rail.pause(now, class);
        self.cause = Some(error.clone());
        // Rails that fail in turn, each tried again while another pauses, are no hope for each other.
        let tries = |rail: &Rail| match rail.state {
            State::Opening => !rail.unanswered && rail.failures < RAIL_FAILURES_MAX,
            State::Probing(_) | State::Up { .. } => true,
            State::Closed | State::Paused { .. } | State::Out | State::Refused => false,
        };
        // One that refused an access works, unless the peer's process takes no calls.
        let refused = blamed && self.rails.iter().any(|rail| rail.state == State::Refused);
        let any = refused || self.all().any(tries);
        // A process that takes no calls is not reached over TCP either.
        let tcp_left = self.tcp.as_ref().is_some_and(|tcp| tcp.state == State::Closed) && blamed;
        match any || tcp_left {
            true => self.pursue_if_wanted(),
            false => self.lose(error.clone()),
        }
    }

    /// Fails the demand, and ends every pause so that the next demand tries all rails.
    fn lose(&mut self, cause: TransportError) {
        (self.wanted, self.lost) = (false, true);
        for rail in self.rails.iter_mut().chain(&mut self.tcp) {
            if let State::Paused { .. } = rail.state {
                rail.state = State::Closed;
            }
            rail.failures = rail.failures.min(1);
            rail.unanswered = false;
        }
        self.outputs.push_back(RailOutput::Lost(cause));
    }

    fn pursue_if_wanted(&mut self) {
        if self.wanted {
            self.drive_demand();
        }
    }

    fn drive_demand(&mut self) {
        let unusable =
            |rail: &Rail| matches!(rail.state, State::Paused { .. } | State::Out | State::Refused);
        if self.rails.iter().all(unusable) {
            let refused = |rail: &&mut Rail| rail.state == State::Refused;
            self.rails.iter_mut().filter(refused).for_each(|rail| rail.state = State::Closed);
        }
        let hopeless = self.all().all(unusable);
        let spent = |rail: &Rail| rail.state == State::Out || rail.failures >= RAIL_FAILURES_MAX;
        if hopeless
            && self.all().all(spent)
            && let Some(cause) = self.cause.clone()
        {
            return self.lose(cause);
        }
        for rail in &mut self.rails {
            let paused = matches!(rail.state, State::Paused { .. });
            if rail.state == State::Closed || (paused && hopeless) {
                rail.state = State::Opening;
                self.outputs.push_back(RailOutput::Open(rail.plan.path.clone()));
            }
        }
        let doubtful = |rail: &Rail| rail.failures > 0 && !matches!(rail.state, State::Up { .. });
        if self.rails.iter().all(doubtful)
            && let Some(tcp) = &mut self.tcp
            && (tcp.state == State::Closed || hopeless && tcp.state != State::Out)
        {
            tcp.state = State::Opening;
            self.outputs.extend(self.cause.clone().map(RailOutput::FallBack));
            self.outputs.push_back(RailOutput::Open(tcp.plan.path.clone()));
        }
    }

    /// Closes the lane over TCP once a rail carries bytes.
    fn close_tcp_if_needless(&mut self) {
        let carried = self.rails.iter().any(|rail| matches!(rail.state, State::Up { .. }));
        if let Some(tcp) = &mut self.tcp
            && carried
            && tcp.state != State::Closed
        {
            tcp.state = State::Closed;
            tcp.failures = 0;
            self.outputs.push_back(RailOutput::Close(tcp.plan.path.clone()));
        }
    }

    fn all(&self) -> impl Iterator<Item = &Rail> {
        self.rails.iter().chain(&self.tcp)
    }

    fn find(&mut self, path: &NicPath) -> Option<&mut Rail> {
        self.rails.iter_mut().chain(&mut self.tcp).find(|rail| rail.plan.path == *path)
    }
}

impl Rail {
    /// Pauses the rail for as long as the failure's class says.
    fn pause(&mut self, now: Instant, class: FailureClass) {
        let doublings = self.failures.saturating_sub(1).min(6);
        let pause = match class {
            FailureClass::LocalPort | FailureClass::PeerProcess => RAIL_PAUSE_MIN,
            FailureClass::PeerRail => RAIL_PAUSE_MIN.doubled(doublings).min(RAIL_PAUSE_MAX),
            FailureClass::Protection | FailureClass::Configuration => {
                self.state = State::Out;
                return;
            }
        };
        self.state = State::Paused { until: now + pause };
    }
}

#[cfg(test)]
mod tests;
