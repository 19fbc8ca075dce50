//! Schedulers of random runs: biases that a seed draws from.

use handfast_transport_sim::{Action, Choice, World};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use std::fmt::{self, Display};

/// A bias. Each still takes any event now and then, so that no schedule is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheduler {
    /// Every event alike; one step in four may be a fault.
    Uniform,
    /// No fault in the first half, then every other step one, while the budget lasts.
    FaultLate,
    /// Faults at once, until the budget is spent.
    FaultEarly,
    /// Nothing happens at one site while anything can happen elsewhere.
    Starve(u8),
    /// The newest message arrives first.
    NewestFirst,
    /// The oldest message arrives first, as on one connection.
    OldestFirst,
    /// Timers rather than what they wait for, where that is free.
    TimersFirst,
}

/// One step in this many ignores the bias.
const STRAY: u64 = 16;

impl Scheduler {
    /// Draws one, for a world of that many sites.
    pub(crate) fn draw(generator: &mut ChaCha8Rng, sites: usize) -> Self {
        let site = below(generator, sites);
        match below(generator, 7) {
            0 => Self::Uniform,
            1 => Self::FaultLate,
            2 => Self::FaultEarly,
            3 => Self::Starve(u8::try_from(site).unwrap_or(0)),
            4 => Self::NewestFirst,
            5 => Self::OldestFirst,
            _ => Self::TimersFirst,
        }
    }

    /// Its name without the site that it starves.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::FaultLate => "fault-late",
            Self::FaultEarly => "fault-early",
            Self::Starve(_) => "starve",
            Self::NewestFirst => "newest-first",
            Self::OldestFirst => "oldest-first",
            Self::TimersFirst => "timers-first",
        }
    }

    /// Reads what [`Display`] writes.
    pub fn parse(name: &str) -> Option<Self> {
        if let Some(site) = name.strip_prefix("starve-") {
            return site.parse().ok().map(Self::Starve);
        }
        [
            Self::Uniform,
            Self::FaultLate,
            Self::FaultEarly,
            Self::NewestFirst,
            Self::OldestFirst,
            Self::TimersFirst,
        ]
        .into_iter()
        .find(|scheduler| scheduler.kind() == name)
    }

    /// The place of the next event in `choices`; `event` of `events_max` have happened.
    pub(crate) fn choose(
        self,
        generator: &mut ChaCha8Rng,
        (event, events_max): (u32, u32),
        world: &World,
        choices: &[Choice],
    ) -> Option<usize> {
        // Drawn on every step, so that what a seed chooses later does not hang on this one.
        let (calm, any) = (generator.next_u64(), generator.next_u64());
        let fault = match self {
            Self::FaultLate => event * 2 >= events_max && calm % 2 == 0,
            Self::FaultEarly => calm % STRAY != 0,
            _ => calm % 4 == 0,
        };
        let paid = choices.iter().filter(|choice| choice.cost > 0).count();
        let free = choices.len() - paid;
        let faults_only = fault && matches!(self, Self::FaultEarly | Self::FaultLate);
        if faults_only && paid > 0 {
            return nth(choices, drawn(any, paid), |choice| choice.cost > 0);
        }
        if !fault && free > 0 {
            let preferred = self.preferred(any, world, choices);
            if !preferred.is_empty() {
                return preferred.get(drawn(any, preferred.len())).copied();
            }
            return nth(choices, drawn(any, free), is_free);
        }
        // Free ones first.
        let place = drawn(any, choices.len());
        match place.checked_sub(free) {
            None => nth(choices, place, is_free),
            Some(place) => nth(choices, place, |choice| choice.cost > 0),
        }
    }

    /// The places of the free choices that it prefers; none if all are alike.
    fn preferred(self, any: u64, world: &World, choices: &[Choice]) -> Vec<usize> {
        if (any >> 32).is_multiple_of(STRAY) {
            return Vec::new();
        }
        let free = || choices.iter().enumerate().filter(|(_, choice)| is_free(choice));
        let actions = || free().map(|(place, choice)| (place, &choice.action));
        match self {
            Self::Uniform | Self::FaultLate | Self::FaultEarly => Vec::new(),
            Self::Starve(site) => actions()
                .filter(|(_, action)| world.actor(action) != usize::from(site))
                .map(|(place, _)| place)
                .collect(),
            Self::NewestFirst => extreme(actions().map(|(place, action)| (place, age(action)))),
            Self::OldestFirst => extreme(
                actions().map(|(place, action)| (place, age(action).map(|age| usize::MAX - age))),
            ),
            Self::TimersFirst => actions()
                .filter(|(_, action)| matches!(action, Action::Timer(..) | Action::TargetTimer(..)))
                .map(|(place, _)| place)
                .collect(),
        }
    }
}

impl Display for Scheduler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starve(site) => write!(formatter, "starve-{site}"),
            other => formatter.write_str(other.kind()),
        }
    }
}

/// A number below `bound`; 0 if that is 0.
pub(crate) fn below(generator: &mut ChaCha8Rng, bound: usize) -> usize {
    usize::try_from(generator.next_u64() % bound.max(1) as u64).unwrap_or(0)
}

fn is_free(choice: &Choice) -> bool {
    choice.cost == 0
}

/// A number below `count`, by a drawn one.
fn drawn(any: u64, count: usize) -> usize {
    usize::try_from(any % count.max(1) as u64).unwrap_or(0)
}

/// The place of the wanted choice of this rank.
fn nth(choices: &[Choice], rank: usize, wanted: impl Fn(&Choice) -> bool) -> Option<usize> {
    let mut places = (0..choices.len()).filter(|place| wanted(&choices[*place]));
    places.nth(rank)
}

/// Age of a message among those of its kind.
fn age(action: &Action) -> Option<usize> {
    match action {
        Action::Call(at, _) | Action::Answer(at) => Some(*at),
        _ => None,
    }
}

/// The places with the largest value.
fn extreme(of: impl Iterator<Item = (usize, Option<usize>)>) -> Vec<usize> {
    let valued: Vec<(usize, usize)> =
        of.filter_map(|(place, value)| value.map(|value| (place, value))).collect();
    let most = valued.iter().map(|(_, value)| *value).max();
    valued.iter().filter(|(_, value)| Some(*value) == most).map(|(place, _)| *place).collect()
}
