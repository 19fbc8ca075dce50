//! Which lanes to a peer with several NICs are wanted: one over each rail, and one over TCP where no
//! rail works.
//!
//! A rail is a NIC of ours and one of the peer's. It is a circuit with a breaker: one whose lane
//! failed is opened again at once, which also proves that nothing on the lane before can land (rule
//! H12), and carries bytes only after a probe over it was answered. A rail that fails that too is
//! left alone for a while. No rail is left alone while it is the only hope: a demand that finds none
//! in use tries all of them, and is failed only after each has failed it.
//!
//! No I/O, no clock: a pure function of what it is told.

mod near;

pub(crate) use near::Near;

use handfast_core::transport::{Side, TransportError};
use handfast_core::{Duration, Instant, Lifecycle, NicPath, NodeName};
use std::fmt;

/// Rails between two nodes at most: two nodes with eight NICs each have one for each NIC.
pub const RAILS_MAX: usize = 8;
/// How long a rail is left alone at its first failure in a row, of which a lane that broke is one;
/// and always where a port of ours was to blame.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(1_000);
/// The longest that it is left alone; the pause doubles up to it.
pub(crate) const PAUSE_MAX: Duration = Duration::from_millis(30_000);
/// Times in a row that every rail may fail, where nothing else is left, before a demand fails.
pub(crate) const FAILURES_MAX: u32 = 4;
/// A lane that worked for so long makes the failures before it forgotten.
pub(crate) const STEADY: Duration = Duration::from_millis(10_000);

/// What a failure says, and about what. Each has a policy of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureClass {
    /// A port, device or limit of ours. Never counted against the peer: its rail is tried again after
    /// the shortest pause, however often that was in vain.
    LocalPort,
    /// The way to one NIC of the peer. The rail is left alone, longer each time.
    PeerRail,
    /// The peer's process: it takes no calls. No rail is blamed, and each is tried again after the
    /// shortest pause; where none is in use the demand fails, and the next one tries all.
    PeerProcess,
    /// An access that is not allowed. Trying again changes nothing: the rail is out of use until the
    /// peer describes itself anew.
    Protection,
    /// How the two are set up; as [`FailureClass::Protection`].
    Configuration,
}

impl FailureClass {
    /// What an error of a lane, or of opening one, says.
    pub fn of(error: &TransportError) -> Self {
        match error.side {
            Side::Local => Self::LocalPort,
            Side::Configuration => Self::Configuration,
            Side::Protection => Self::Protection,
            Side::Peer if error.call == "handshake" => Self::PeerProcess,
            Side::Peer => Self::PeerRail,
        }
    }

    /// In two words at most, as errors say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::LocalPort => "local port",
            Self::PeerRail => "peer rail",
            Self::PeerProcess => "peer process",
            Self::Protection => "protection",
            Self::Configuration => "configuration",
        }
    }

    /// Whether trying again changes nothing.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Protection | Self::Configuration)
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A rail, or the way over TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RailPlan {
    /// The peer's path over it.
    pub(crate) path: NicPath,
    /// The peer's, by its place in its descriptor.
    pub(crate) theirs: usize,
}

/// The rails between our NICs and a node's, by their names: one for each NIC of the side that has
/// more, those of one name together. None where a single lane does: with one NIC of ours the peer
/// says how many there are.
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "of use with RDMA alone"))]
pub(crate) fn plan_rails(node: &NodeName, ours: &[&str], theirs: &[&str]) -> Vec<RailPlan> {
    if ours.len() < 2 || theirs.is_empty() {
        return Vec::new();
    }
    let count = ours.len().max(theirs.len()).min(RAILS_MAX);
    let plan = |place: usize| {
        let own = place % ours.len();
        let same = theirs.iter().position(|name| *name == ours[own]).filter(|_| place < ours.len());
        let other = same.unwrap_or(place % theirs.len());
        let path = NicPath::over_rail(node, theirs[other], ours[own]).ok()?;
        Some(RailPlan { path, theirs: other })
    };
    let mut plans: Vec<RailPlan> = Vec::with_capacity(count);
    for plan in (0..count).filter_map(plan) {
        if !plans.iter().any(|known| known.path == plan.path) {
            plans.push(plan);
        }
    }
    plans
}

/// What is done with a lane that came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Bytes may go over it.
    Use,
    /// It is probed first.
    Probe,
}

/// What is done about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stance {
    /// It is none of the rails.
    Unknown,
    /// It has a lane, or gets one as soon as there is work.
    Pursued,
    /// It is left alone, or out of use.
    GivenUp,
}

/// What is to be done. Told in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Ask for a lane.
    Open(NicPath),
    /// Ask for none, and end what there is with the peer's consent.
    Close(NicPath),
    /// No rail works, for this reason, and lanes over TCP are to be had instead.
    FallBack(TransportError),
    /// No way is left, and none is being opened.
    Lost(TransportError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody asked for it.
    Closed,
    Opening,
    /// A lane is up and probed.
    Trying(Lifecycle),
    Up {
        lane: Lifecycle,
        since: Instant,
    },
    /// Left alone.
    Paused {
        until: Instant,
    },
    /// Of no use.
    Out,
}

#[derive(Clone, Debug)]
struct Rail {
    plan: RailPlan,
    state: State,
    /// In a row.
    failures: u32,
}

/// The rails to one run of a peer.
#[derive(Clone, Debug)]
pub(crate) struct Rails {
    rails: Vec<Rail>,
    /// The way over TCP, where that is allowed.
    tcp: Option<Rail>,
    /// Somebody has work.
    wanted: bool,
    /// The last demand failed, and there was none since.
    lost: bool,
    /// Why the last rail failed.
    cause: Option<TransportError>,
    acts: Vec<Act>,
}

impl Rails {
    /// Rails that nobody asked for yet; `tcp` is the path that lanes over TCP have.
    pub(crate) fn new(plans: &[RailPlan], tcp: Option<&NicPath>) -> Self {
        let rail = |plan: &RailPlan| Rail { plan: plan.clone(), state: State::Closed, failures: 0 };
        let plans = plans.iter().take(RAILS_MAX);
        let tcp = tcp.map(|path| rail(&RailPlan { path: path.clone(), theirs: 0 }));
        let rails = plans.map(rail).collect();
        Self { rails, tcp, wanted: false, lost: false, cause: None, acts: Vec::new() }
    }

    /// Whether these are the rails that are planned.
    pub(crate) fn are(&self, plans: &[RailPlan]) -> bool {
        self.rails.iter().map(|rail| &rail.plan).eq(plans.iter().take(RAILS_MAX))
    }

    /// The number of the rail that a path leads over.
    pub(crate) fn number(&self, path: &NicPath) -> Option<u8> {
        let place = self.rails.iter().position(|rail| rail.plan.path == *path)?;
        u8::try_from(place).ok()
    }

    /// Our NIC and the peer's of each rail, by number.
    pub(crate) fn nics(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rails.iter().map(|rail| {
            let (theirs, ours) = rail.plan.path.rail().unwrap_or_default();
            (ours, theirs)
        })
    }

    /// What is to be done next; drain to `None` after every call.
    pub(crate) fn poll_act(&mut self) -> Option<Act> {
        if self.acts.is_empty() { None } else { Some(self.acts.remove(0)) }
    }

    /// Somebody wants lanes.
    pub(crate) fn demand(&mut self) {
        (self.wanted, self.lost) = (true, false);
        self.pursue();
    }

    /// Whether there is work: a rail without a lane is looked after only then, or while none is up
    /// for a demand.
    pub(crate) fn set_busy(&mut self, busy: bool) {
        let none_up = || !self.all().any(|rail| matches!(rail.state, State::Up { .. }));
        let wanted = busy || (self.wanted && none_up());
        self.lost &= busy;
        match wanted && !self.wanted {
            // What is still under way after a loss is no new demand.
            true if self.lost => {}
            true => self.demand(),
            false => self.wanted = wanted,
        }
    }

    /// Opens a rail again whatever is thought of it: a lane over it proves what landed (rule H12).
    pub(crate) fn open_again(&mut self, path: &NicPath) {
        let idle = |state| matches!(state, State::Closed | State::Paused { .. });
        if let Some(rail) = self.find(path).filter(|rail| idle(rail.state)) {
            rail.state = State::Opening;
            self.acts.push(Act::Open(path.clone()));
        }
    }

    /// Whether somebody sees to it that there is a lane over a path.
    pub(crate) fn stance(&self, path: &NicPath) -> Stance {
        let rail = self.all().find(|rail| rail.plan.path == *path);
        match rail.map(|rail| rail.state) {
            None => Stance::Unknown,
            Some(State::Paused { .. } | State::Out) => Stance::GivenUp,
            Some(_) => Stance::Pursued,
        }
    }

    /// A lane is up.
    pub(crate) fn on_up(&mut self, now: Instant, path: &NicPath, lane: Lifecycle) -> Verdict {
        let Some(rail) = self.find(path) else { return Verdict::Use };
        let over_tcp = path.rail().is_none();
        if over_tcp && rail.state != State::Opening {
            // The peer's own way out.
            return Verdict::Use;
        }
        if rail.failures > 0 && !over_tcp {
            rail.state = State::Trying(lane);
            return Verdict::Probe;
        }
        rail.state = State::Up { lane, since: now };
        self.close_tcp_if_needless();
        Verdict::Use
    }

    /// The probe over a lane was answered; whether the lane is still the one to use.
    pub(crate) fn on_answer(&mut self, now: Instant, lane: Lifecycle) -> bool {
        let tried = |rail: &&mut Rail| rail.state == State::Trying(lane);
        let Some(rail) = self.rails.iter_mut().find(tried) else { return false };
        rail.state = State::Up { lane, since: now };
        self.close_tcp_if_needless();
        true
    }

    /// A lane is gone; without a `failure` because it was to end.
    pub(crate) fn on_down(
        &mut self,
        now: Instant,
        lane: Lifecycle,
        failure: Option<&TransportError>,
    ) {
        let of_lane = |rail: &&mut Rail| match rail.state {
            State::Trying(of) | State::Up { lane: of, .. } => of == lane,
            _ => false,
        };
        let Some(rail) = self.rails.iter_mut().chain(self.tcp.as_mut()).find(of_lane) else {
            return;
        };
        let Some(error) = failure else {
            rail.state = State::Closed;
            return self.pursue_if_wanted();
        };
        let tried = matches!(rail.state, State::Trying(_));
        let steady =
            matches!(rail.state, State::Up { since, .. } if now.0 - since.0 >= STEADY.nanos());
        rail.failures = if steady { 1 } else { rail.failures.saturating_add(1) };
        self.cause = Some(error.clone());
        if tried {
            let path = rail.plan.path.clone();
            rail.stop(now, FailureClass::of(error));
            self.acts.push(Act::Close(path));
        } else {
            let last = FailureClass::of(error).is_final();
            rail.state = if last { State::Out } else { State::Closed };
        }
        self.pursue_if_wanted();
    }

    /// A lane that was asked for cannot be had.
    pub(crate) fn on_open_failed(&mut self, now: Instant, path: &NicPath, error: &TransportError) {
        let Some(rail) = self.find(path).filter(|rail| rail.state == State::Opening) else {
            return;
        };
        let class = FailureClass::of(error);
        let blamed = class != FailureClass::PeerProcess;
        rail.failures = rail.failures.saturating_add(u32::from(blamed));
        rail.stop(now, class);
        self.cause = Some(error.clone());
        let tries = |rail: &Rail| {
            matches!(rail.state, State::Opening | State::Trying(_) | State::Up { .. })
        };
        let any = self.all().any(tries);
        // Over TCP a process is not reached either that takes no calls.
        let tcp_left = self.tcp.as_ref().is_some_and(|tcp| tcp.state == State::Closed) && blamed;
        match any || tcp_left {
            true => self.pursue_if_wanted(),
            false => self.lose(error.clone()),
        }
    }

    /// The demand fails. Whoever asks next finds none left alone for what failed this one.
    fn lose(&mut self, cause: TransportError) {
        (self.wanted, self.lost) = (false, true);
        for rail in self.rails.iter_mut().chain(&mut self.tcp) {
            if let State::Paused { .. } = rail.state {
                rail.state = State::Closed;
            }
            rail.failures = rail.failures.min(1);
        }
        self.acts.push(Act::Lost(cause));
    }

    /// When a rail is to be tried again; `None` while nobody wants it.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let paused = self.rails.iter().filter_map(|rail| match rail.state {
            State::Paused { until } => Some(until),
            _ => None,
        });
        paused.min().filter(|_| self.wanted)
    }

    /// Tries what is due.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
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

    fn pursue_if_wanted(&mut self) {
        if self.wanted {
            self.pursue();
        }
    }

    fn pursue(&mut self) {
        let in_use = |rail: &Rail| !matches!(rail.state, State::Paused { .. } | State::Out);
        let hopeless = !self.all().any(in_use);
        let spent = |rail: &Rail| rail.state == State::Out || rail.failures >= FAILURES_MAX;
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
                self.acts.push(Act::Open(rail.plan.path.clone()));
            }
        }
        let doubtful = |rail: &Rail| rail.failures > 0 && !matches!(rail.state, State::Up { .. });
        if self.rails.iter().all(doubtful)
            && let Some(tcp) = &mut self.tcp
            && (tcp.state == State::Closed || hopeless && tcp.state != State::Out)
        {
            tcp.state = State::Opening;
            self.acts.extend(self.cause.clone().map(Act::FallBack));
            self.acts.push(Act::Open(tcp.plan.path.clone()));
        }
    }

    /// Lanes over TCP make way as soon as a rail carries bytes.
    fn close_tcp_if_needless(&mut self) {
        let carried = self.rails.iter().any(|rail| matches!(rail.state, State::Up { .. }));
        if let Some(tcp) = &mut self.tcp
            && carried
            && tcp.state != State::Closed
        {
            tcp.state = State::Closed;
            tcp.failures = 0;
            self.acts.push(Act::Close(tcp.plan.path.clone()));
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
    /// Leaves the rail alone for as long as the failure's class says.
    fn stop(&mut self, now: Instant, class: FailureClass) {
        let doublings = self.failures.saturating_sub(1).min(6);
        let pause = match class {
            FailureClass::LocalPort | FailureClass::PeerProcess => PAUSE_MIN,
            FailureClass::PeerRail => {
                Duration(PAUSE_MIN.doubled(doublings).nanos().min(PAUSE_MAX.nanos()))
            }
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
