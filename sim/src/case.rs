//! The setting of a schedule: scenario, rules, devices, traffic, faults and granularity.

use crate::devices::Ground;
use crate::scenario::Scenario;
use crate::variants::Entry;
use handfast_transport_sim::{Backend, Faults, Operations, Oracle, Setup, World};

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
            setup.lasting = entry.lasting;
        }
        setup
    }

    /// The initial world.
    pub fn start(&self) -> World {
        self.scenario.begin(self.setup())
    }

    /// The oracles that are asked: all (an empty list) for the shipping rules; a variant breaks
    /// more than the one it is known for.
    pub fn oracles(&self) -> &'static [Oracle] {
        self.variant.map(|entry| entry.oracles).unwrap_or_default()
    }
}

/// A kind of fault: its command-line name and its field in [`Faults`].
struct Kind {
    name: &'static str,
    switch: fn(&mut Faults) -> &mut bool,
}

const KINDS: [Kind; 15] = [
    Kind { name: "loss", switch: |faults| &mut faults.loss },
    Kind { name: "duplication", switch: |faults| &mut faults.duplication },
    Kind { name: "call-failure", switch: |faults| &mut faults.call_failure },
    Kind { name: "operation-failure", switch: |faults| &mut faults.operation_failure },
    Kind { name: "operation-stall", switch: |faults| &mut faults.operation_stall },
    Kind { name: "crash", switch: |faults| &mut faults.crash },
    Kind { name: "lane-error", switch: |faults| &mut faults.lane_error },
    Kind { name: "early-timer", switch: |faults| &mut faults.early_timer },
    Kind { name: "protection", switch: |faults| &mut faults.protection },
    Kind { name: "step-failure", switch: |faults| &mut faults.step_failure },
    Kind { name: "port", switch: |faults| &mut faults.port },
    Kind { name: "address", switch: |faults| &mut faults.address },
    Kind { name: "partition", switch: |faults| &mut faults.partition },
    Kind { name: "mute", switch: |faults| &mut faults.mute },
    Kind { name: "stranger", switch: |faults| &mut faults.stranger },
];

const _: () = assert!(size_of::<Faults>() == KINDS.len(), "every kind of fault has a bit");

/// Names of all kinds of fault, by bit number.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.name)
}

/// Kinds of fault as bits.
pub fn bits_of(mut faults: Faults) -> u32 {
    let on = |(bit, kind): (usize, &Kind)| u32::from(*(kind.switch)(&mut faults)) << bit;
    KINDS.iter().enumerate().map(on).sum()
}

/// Kinds of fault from bits; `None` for an unknown bit.
pub fn faults_of(bits: u32) -> Option<Faults> {
    let mut faults = Faults::ALL;
    for (bit, kind) in KINDS.iter().enumerate() {
        *(kind.switch)(&mut faults) = bits >> bit & 1 == 1;
    }
    (bits >> KINDS.len() == 0).then_some(faults)
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
            _ => match KINDS.iter().position(|kind| kind.name == name) {
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
    let on = KINDS.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
    let names: Vec<&str> = on.map(|(_, kind)| kind.name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(",") }
}
