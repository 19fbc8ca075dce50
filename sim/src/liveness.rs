//! Oracle O5: when faults stop, everything ends well, and soon.

use crate::seen::Compact;
use handfast_core::Event;
use handfast_core::node::StateKind;
use handfast_transport_sim::{
    Action, Choice, Command, CommandKind, Demand, Oracle, Step, Violation, World,
};

/// Most events a world may need to settle once faults have stopped.
pub const HEAL_EVENTS_MAX: u32 = 400;

/// Sites for which that is enough, and events that each transfer that has not ended comes with.
const HEAL_SITES: usize = 4;
const HEAL_EVENTS_PER_TRANSFER: usize = 20;
/// Room for the events that are possible in most worlds.
const CHOICES: usize = 32;

/// Most events that this world may need.
fn events_max(world: &World) -> usize {
    let sites = world.sites().div_ceil(HEAL_SITES);
    HEAL_EVENTS_MAX as usize * sites + HEAL_EVENTS_PER_TRANSFER * world.transfers_left()
}

/// Lifecycles that may end per side and disturbance until all is well again, the commands of the
/// scenario counting as one disturbance. Towards oneself, both sides are one.
const ENDED_PER_SIDE: usize = 2;

/// The violation of a healing that ends too many lifecycles.
pub(crate) fn wasteful(world: &World, healing: Healing) -> Option<Violation> {
    exceeds(healing, may_end(world))
}

/// Lifecycles that may end while a world heals; none if any number may.
pub(crate) fn may_end(world: &World) -> Option<u32> {
    let sides = u32::try_from(ENDED_PER_SIDE * world.sites().max(2)).unwrap_or(u32::MAX);
    (!world.has_twins()).then(|| sides * (world.faults_spent() + 1))
}

/// The violation of a healing that ends more lifecycles than that.
pub(crate) fn exceeds(healing: Healing, may_end: Option<u32>) -> Option<Violation> {
    let wasteful = may_end.is_some_and(|may_end| healing.ended > may_end);
    wasteful.then(|| {
        let detail = format!("{} lifecycles end on the way to rest", healing.ended);
        Violation { oracle: Oracle::Liveness, detail }
    })
}

/// Result of healing a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Healing {
    /// Events until nothing was left to happen.
    pub events: u32,
    /// Lifecycles that ended on the way, both sides together.
    pub ended: u32,
}

impl Healing {
    pub(crate) fn packed(self) -> u32 {
        let half = |count: u32| count.min(u32::from(u16::MAX));
        half(self.events) << 16 | half(self.ended)
    }

    pub(crate) fn unpacked(packed: u32) -> Self {
        Self { events: packed >> 16, ended: packed & u32::from(u16::MAX) }
    }

    /// The worse of both, in either figure.
    pub(crate) fn worse(self, other: Self) -> Self {
        Self { events: self.events.max(other.events), ended: self.ended.max(other.ended) }
    }
}

/// Lets worlds settle without faults: deliver what is in flight, let operations succeed, let lanes
/// that are not connected back fail, and only then let time pass to the earliest timer.
#[derive(Default)]
pub struct Healer {
    known: Compact,
    /// Additions to `known`, in order; only with [`Healer::continuing`].
    added: Option<Vec<(u128, Healing)>>,
    /// It heals one world and needs to know none again.
    once: bool,
    /// A world whose memory the next one takes.
    spare: Option<Box<World>>,
    oracles: Vec<Oracle>,
    /// The longest and the most wasteful healing seen.
    pub worst: Healing,
}

impl Healer {
    /// A healer that asks these oracles, or all if there are none.
    pub fn asking(oracles: &[Oracle]) -> Self {
        Self { oracles: oracles.to_vec(), ..Self::default() }
    }

    /// One for a single world, which is much cheaper than finding out what is known of it.
    pub fn once(oracles: &[Oracle]) -> Self {
        Self { once: true, ..Self::asking(oracles) }
    }

    /// One that continues the healings of another, and lists its additions.
    pub(crate) fn continuing(oracles: &[Oracle]) -> Self {
        Self { added: Some(Vec::new()), ..Self::asking(oracles) }
    }

    /// The additions, in order.
    pub(crate) fn into_added(self) -> Vec<(u128, Healing)> {
        self.added.unwrap_or_default()
    }

    /// Adds the healings of another.
    pub(crate) fn learn(&mut self, added: Vec<(u128, Healing)>) {
        for (fingerprint, healing) in added {
            self.known.add(fingerprint, healing.packed());
        }
    }

    /// Settled worlds by their fingerprints, with their healings.
    pub(crate) fn settled_mut(&mut self) -> &mut Compact {
        &mut self.known
    }

    pub(crate) fn settled(&self) -> &Compact {
        &self.known
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.known.bytes()
    }

    fn known(&self, fingerprint: u128) -> Option<Healing> {
        self.known.get(fingerprint).map(Healing::unpacked)
    }

    fn add(&mut self, fingerprint: u128, healing: Healing) {
        self.known.add(fingerprint, healing.packed());
        self.added.iter_mut().for_each(|added| added.push((fingerprint, healing)));
    }

    /// Settles a single world. The schedule that failed is returned with the violation.
    pub fn settle(self, start: &World) -> Result<Healing, (Violation, Vec<Choice>)> {
        self.settle_in_place(Box::new(start.clone()))
    }

    /// The same without a copy of the world.
    pub(crate) fn settle_in_place(
        mut self,
        world: Box<World>,
    ) -> Result<Healing, (Violation, Vec<Choice>)> {
        let fingerprint = self.name(&world);
        self.heal(world, fingerprint, &Self::default())
    }

    fn name(&self, world: &World) -> u128 {
        if self.once { 0 } else { world.fingerprint_without_budget() }
    }

    /// Settles a world. The schedule that failed is returned with the violation.
    pub fn liveness(&mut self, start: &World) -> Result<Healing, (Violation, Vec<Choice>)> {
        self.heal_known(start, self.name(start), &Self::default())
    }

    /// The same for a world whose fingerprint without budget is known, after `earlier` healings.
    pub(crate) fn heal_known(
        &mut self,
        start: &World,
        fingerprint: u128,
        earlier: &Self,
    ) -> Result<Healing, (Violation, Vec<Choice>)> {
        let known = self.known(fingerprint).or_else(|| earlier.known(fingerprint));
        if let Some(known) = known {
            return Ok(known);
        }
        let world = copy(start, &mut self.spare);
        self.heal(world, fingerprint, earlier)
    }

    /// Settles a world that changes on the way.
    fn heal(
        &mut self,
        mut world: Box<World>,
        mut fingerprint: u128,
        earlier: &Self,
    ) -> Result<Healing, (Violation, Vec<Choice>)> {
        let known =
            |own: &Self, fingerprint| own.known(fingerprint).or_else(|| earlier.known(fingerprint));
        let mut trail: Vec<(u128, u32)> = Vec::new();
        let events_max = events_max(&world);
        let (mut schedule, mut step) = (Vec::new(), Step::default());
        let mut rest = loop {
            if let Some(known) = known(self, fingerprint) {
                break known;
            }
            let Some(choice) = next(&world) else {
                if let Err((violation, after)) = at_rest(&world) {
                    schedule.extend(after);
                    return Err((violation, schedule));
                }
                self.add(fingerprint, Healing::default());
                break Healing::default();
            };
            step.clear();
            world.apply(&choice, &mut step);
            schedule.push(choice);
            world.check(&mut step.violations);
            let asked = |violation: &Violation| {
                self.oracles.is_empty() || self.oracles.contains(&violation.oracle)
            };
            if let Some(violation) = step.violations.drain(..).find(asked) {
                return Err((violation, schedule));
            }
            let ended =
                step.events.iter().filter(|(_, event)| matches!(event, Event::Ended { .. }));
            trail.push((fingerprint, u32::try_from(ended.count()).unwrap_or(u32::MAX)));
            if trail.len() > events_max {
                let detail = format!("not settled after {events_max} events without a fault");
                return Err((Violation { oracle: Oracle::Liveness, detail }, schedule));
            }
            fingerprint = self.name(&world);
        };
        for (fingerprint, ended) in trail.into_iter().rev() {
            rest = Healing { events: rest.events + 1, ended: rest.ended + ended };
            self.add(fingerprint, rest);
        }
        self.worst = self.worst.worse(rest);
        self.spare = Some(world);
        Ok(rest)
    }

    /// Distinct worlds that were settled.
    pub fn healed(&self) -> usize {
        self.known.len()
    }
}

/// Copies a world into the memory of one that is no longer needed.
pub(crate) fn copy(world: &World, spare: &mut Option<Box<World>>) -> Box<World> {
    let Some(mut copy) = spare.take() else { return Box::new(world.clone()) };
    World::clone_from(&mut copy, world);
    copy
}

/// The next event of a fair schedule without faults; none when nothing is left to happen.
pub fn next(world: &World) -> Option<Choice> {
    let mut choices = Vec::with_capacity(CHOICES);
    world.prompt_actions(&mut choices);
    let is_prompt = |choice: &Choice| rank(world, choice, false).filter(|(class, _)| *class == 0);
    let prompt = choices.drain(..).filter_map(|choice| Some((is_prompt(&choice)?, choice)));
    if let Some((_, choice)) = prompt.min_by_key(|(rank, _)| *rank) {
        return Some(choice);
    }
    if let Some(arrival) = world.first_arrival() {
        return Some(arrival);
    }
    world.free_actions(&mut choices);
    let quiet = world.quiet();
    choices
        .into_iter()
        .filter_map(|choice| Some((rank(world, &choice, quiet)?, choice)))
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, choice)| choice)
}

/// The class of an event in a fair schedule, and its order in the class; none if it does not happen.
fn rank(world: &World, choice: &Choice, quiet: bool) -> Option<(u8, u64)> {
    match &choice.action {
        Action::Disturb(disturbance) if disturbance.is_end => Some((0, 0)),
        Action::Operation(_) | Action::Probe(..) => Some((0, 0)),
        Action::Completion(_) => Some((0, 1)),
        Action::Packet(_) => Some((0, 2)),
        Action::Frame(..) | Action::Piece(..) | Action::ReadEnd(..) | Action::SeeDeath(..) => {
            Some((0, 3))
        }
        Action::Notice(..) | Action::LoseNotice(..) => Some((0, 4)),
        Action::HeldRetire(_) | Action::DialOverdue(..) => Some((3, 2)),
        Action::Answer(_) => Some((1, 0)),
        Action::Call(..) => Some((2, 0)),
        Action::Broken(..) | Action::Exhaust(..) => Some((3, 0)),
        // Applications that have a list of transfers go on with it.
        Action::Submit(_) if world.submits_in_order() => Some((3, 1)),
        Action::Timer(site, timer) if quiet => {
            let mut timers = world.node(*site).timers();
            timers.find(|(id, ..)| id == timer).map(|(_, at, _)| (4, at.0))
        }
        // A breaker's pause outlasts the waits of a handshake: the clock stands still, so that of two
        // rails the one that fails sooner would be tried again for ever before the other ends.
        Action::TargetTimer(site, at, timer) if quiet => {
            let mut timers = world.target_timers(*site);
            timers.find(|(of, kind, _)| (of, kind) == (at, timer)).map(|(.., due)| (5, due.0))
        }
        _ => None,
    }
}

/// Checks a world without further events. The events that show a violation are returned with it.
pub(crate) fn at_rest(world: &World) -> Result<(), (Violation, Vec<Choice>)> {
    let mut schedule = Vec::new();
    match unsettled(world).or_else(|| locked_out(world, &mut schedule)) {
        Some(violation) => Err((violation, schedule)),
        None => Ok(()),
    }
}

/// A demand that was reported as failed must be met when it is made again after all faults, unless
/// a queue pair that is never gone stands in the way for good.
fn locked_out(settled: &World, schedule: &mut Vec<Choice>) -> Option<Violation> {
    let count = settled.sites();
    let sides = (0..count).flat_map(|site| (0..count).map(move |peer| (site, peer)));
    let again: Vec<(usize, usize)> = sides
        .filter(|(site, peer)| settled.mute() != Some(*peer) && !settled.is_old(*site))
        .filter(|(site, peer)| settled.demand(*site, *peer) == Demand::Reported)
        .collect();
    if again.is_empty() {
        return None;
    }
    if settled.has_twins() || settled.is_crowded() || !settled.stuck().is_empty() {
        return None;
    }
    let mut world = settled.clone();
    let kept = schedule.len();
    for (site, peer) in &again {
        let open = Command { site: *site, peer: *peer, kind: CommandKind::Open };
        let choice = Choice { action: Action::Ask(open), cost: 0 };
        world.apply(&choice, &mut Step::default());
        schedule.push(choice);
    }
    for _ in 0..HEAL_EVENTS_MAX {
        let Some(choice) = next(&world) else { break };
        world.apply(&choice, &mut Step::default());
        schedule.push(choice);
    }
    let locked = again.iter().find(|(site, peer)| !world.connected(*site, *peer));
    if locked.is_none() {
        schedule.truncate(kept);
    }
    locked.map(|(site, peer)| Violation {
        oracle: Oracle::Liveness,
        detail: format!(
            "site {site} is locked out of {peer}: a new open fails although no fault is left"
        ),
    })
}

/// The violation of a world without further events, if any.
fn unsettled(world: &World) -> Option<Violation> {
    let failed = |detail: String| Some(Violation { oracle: Oracle::Liveness, detail });
    for site in 0..world.sites() {
        for (lifecycle, state, _, _) in world.node(site).lifecycles() {
            let stuck = world.stuck().contains(&(site, lifecycle));
            let stuck = stuck && state == StateKind::Retiring;
            if !state.is_in_use() && !stuck {
                return failed(format!("site {site} holds {lifecycle:?} in {state:?} for ever"));
            }
        }
        // Two processes under one name break the assumption of liveness, that incarnations of a
        // name do not overlap. A legacy node's own demands are out of scope.
        let judged = !world.has_twins() && !world.is_old(site);
        for peer in (0..world.sites()).filter(|_| judged) {
            let demand = world.demand(site, peer);
            let told = demand == Demand::Reported && !world.is_crowded();
            // Using a forged key is reported without any fault.
            let told = told && !world.misuses_keys(site, peer) && !world.outlasted(site, peer);
            if told && world.faults_spent() == 0 && world.mute() != Some(peer) {
                return failed(format!(
                    "site {site} was told that {peer} is unreachable, without a fault"
                ));
            }
            if demand == Demand::Wanted && !world.connected(site, peer) {
                return failed(format!(
                    "site {site} wants a lane to {peer}, waits for ever, and was not told"
                ));
            }
        }
    }
    if let Some(site) = world.kept_memory() {
        return failed(format!("site {site} keeps memory that it has dropped for ever"));
    }
    if world.transfers_pending() > 0 {
        return failed(format!("{} transfers never end", world.transfers_pending()));
    }
    for qp in world.queue_pairs() {
        if !world.is_owned(qp.site, qp.lifecycle) {
            return failed(format!(
                "queue pair {} of site {} belongs to nobody",
                qp.number, qp.site
            ));
        }
    }
    None
}
