//! The setting of a schedule: scenario, rules, devices, traffic, faults and granularity.

use crate::devices::Ground;
use crate::scenario::Scenario;
use crate::variants::Entry;
use handfast_transport_sim::{Backend, Faults, Operations, Oracle, Setup, World};
use std::cell::RefCell;

/// Initial worlds that a thread keeps. At the limit all are forgotten.
const STARTS_MAX: usize = 64;

/// The settings of an initial world, except the faults of nodes and messages.
type StartKey = (Scenario, Ground, Operations, bool, u32);

thread_local! {
    static STARTS: RefCell<Vec<(StartKey, World)>> = const { RefCell::new(Vec::new()) };
}

/// An initial world, described by values that fit into one line.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The scenario.
    pub scenario: Scenario,
    /// The broken variant that the nodes follow; `None` for the shipping rules.
    pub variant: Option<&'static Entry>,
    /// Devices, and what is transferred.
    pub devices: Ground,
    /// Kinds of fault.
    pub faults: Faults,
    /// Budget of faults.
    pub faults_max: u32,
    /// Granularity of queue-pair operations.
    pub operations: Operations,
    /// Drops messages that can only be ignored or refused.
    pub prune: bool,
}

impl Case {
    /// Shipping rules, every kind of fault, every operation a separate event.
    pub fn shipping(scenario: Scenario, faults_max: u32) -> Self {
        Self {
            scenario,
            variant: None,
            devices: Ground::BARE,
            faults: scenario.faults(),
            faults_max,
            operations: Operations::Stepwise,
            prune: false,
        }
    }

    /// The world that finds a variant.
    pub fn of_variant(entry: &'static Entry) -> Self {
        Self {
            scenario: entry.scenario(),
            variant: Some(entry),
            devices: entry.devices,
            faults: entry.faults,
            faults_max: entry.faults_max,
            operations: entry.operations,
            prune: false,
        }
    }

    /// The case of a setup that began as this scenario's and has the shipping rules.
    pub fn of_setup(scenario: Scenario, setup: &Setup) -> Self {
        let Setup { faults, faults_max, operations, prune, .. } = setup;
        let (faults, operations) = (*faults, *operations);
        Self { faults, operations, prune: *prune, ..Self::shipping(scenario, *faults_max) }
    }

    /// The initial state of the world.
    pub fn setup(&self) -> Setup {
        let mut setup = Setup {
            faults: self.faults,
            operations: self.operations,
            prune: self.prune,
            ..self.scenario.setup(self.faults_max)
        };
        let backend = self.variant.map_or(Backend::Shipping, |entry| entry.backend);
        self.devices.lay(backend, &mut setup);
        if let Some(entry) = self.variant {
            setup.build = (entry.build)();
            setup.build_target = entry.target;
            setup.build_sharing = entry.sharing;
            setup.lasting = entry.lasting;
            setup.build_connections = setup.build_connections.map(|_| entry.connections);
        }
        setup
    }

    /// The initial world.
    pub fn start(&self) -> World {
        self.scenario.begin(self.setup())
    }

    /// The same world, copied from an earlier one of this thread that differs in faults alone, if there is
    /// one: faults change nothing before the start, unless they are of devices.
    pub(crate) fn start_again(&self) -> World {
        if self.variant.is_some() {
            return self.start();
        }
        let Self { scenario, devices, operations, prune, faults, faults_max, .. } = *self;
        let of_devices = bits_of(faults) & bits_of(Faults { protection: true, ..Faults::ALL });
        let key = (scenario, devices, operations, prune, bits_of(faults) ^ of_devices);
        STARTS.with_borrow_mut(|starts| {
            if let Some((_, known)) = starts.iter().find(|(known, _)| *known == key) {
                return known.with_faults(faults, faults_max);
            }
            if starts.len() == STARTS_MAX {
                starts.clear();
            }
            let start = self.start();
            starts.push((key, start.clone()));
            start
        })
    }

    /// The oracles that are asked: all (an empty list) for the shipping rules; a variant breaks
    /// more than the one it is known for.
    pub fn oracles(&self) -> &'static [Oracle] {
        self.variant.map(|entry| entry.oracles).unwrap_or_default()
    }
}

/// Names of all kinds of fault, by bit number.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    Faults::KINDS.iter().map(|(name, _)| *name)
}

/// Kinds of fault as bits.
pub fn bits_of(mut faults: Faults) -> u32 {
    let kinds = Faults::KINDS.iter().enumerate();
    kinds.map(|(bit, (_, kind))| u32::from(*kind(&mut faults)) << bit).sum()
}

/// Kinds of fault from bits; `None` for an unknown bit.
pub fn faults_of(bits: u32) -> Option<Faults> {
    let mut faults = Faults::ALL;
    for (bit, (_, kind)) in Faults::KINDS.iter().enumerate() {
        *kind(&mut faults) = bits >> bit & 1 == 1;
    }
    (bits >> Faults::KINDS.len() == 0).then_some(faults)
}

/// Kinds of fault from a list of names.
///
/// # Errors
/// The first unknown name.
pub fn faults_named(names: &str) -> Result<Faults, String> {
    let mut bits = 0;
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        bits |= match name {
            "all" => bits_of(Faults::ALL),
            "classic" => bits_of(Faults::CLASSIC),
            "device" => bits_of(Faults::DEVICE),
            "none" => 0,
            _ => match kinds().position(|kind| kind == name) {
                Some(bit) => 1 << bit,
                None => return Err(name.to_owned()),
            },
        };
    }
    faults_of(bits).ok_or_else(|| names.to_owned())
}

/// Names of the enabled kinds of fault, in the form that [`faults_named`] parses.
pub fn names_of(faults: Faults) -> String {
    let bits = bits_of(faults);
    if bits == bits_of(Faults::ALL) {
        return "all".to_owned();
    }
    let on = kinds().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
    let names: Vec<&str> = on.map(|(_, name)| name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(",") }
}

#[cfg(test)]
mod tests {
    use super::Case;
    use crate::coverage::Coverage;
    use crate::play::Rules;
    use crate::scenario::Scenario;
    use crate::sweep::Random;

    /// A world that is copied from an earlier one of other faults goes on as one that was made for its own.
    #[test]
    fn copied_start_goes_on_as_a_new_one() {
        let random = Random::uniform(5, 60);
        for scenario in Scenario::ALL {
            for faults_max in [0, 4] {
                let case = Case::shipping(scenario, faults_max);
                let copied = random.run(&case, &mut Coverage::default());
                let rules = Rules::new(random.events_max, &[]);
                let made = random.run_in(case.start(), rules, &mut Coverage::default());
                assert_eq!(copied.places, made.places, "{scenario:?}");
                assert_eq!(copied.trace_hash, made.trace_hash, "{scenario:?}");
                assert_eq!(copied.faults, made.faults, "{scenario:?}");
            }
        }
    }
}
