//! The initial world.

use crate::failure::Failure;
use clap::{Args, ValueEnum};
use handfast_sim::case::{faults_named, kinds, names_of};
use handfast_sim::devices::named_profiles;
use handfast_sim::variants::{self, Entry};
use handfast_sim::{Case, Ground, Scenario, Traffic};
use handfast_transport_sim::verbs::{Profile, Rebirth};
use handfast_transport_sim::{Faults, Operations};
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Grain {
    /// Every queue-pair operation is a separate event
    Stepwise,
    /// Operations succeed within the event that requests them
    AtOnce,
}

/// The options common to exploring and sweeping.
#[derive(Args)]
pub(super) struct Variant {
    /// Use a broken variant of the rules, by its id such as SO-1; only in the program built by
    /// `cargo xtask variants` [default: the shipping rules]
    #[arg(long = "variant", visible_alias = "mutant", value_name = "ID", value_parser = parse_variant)]
    pub(super) entry: Option<&'static Entry>,
}

/// The effect of a restart on the numbers and keys of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Numbering {
    /// Start from the first number, as after a restart of the host
    FromFirst,
    /// Continue, as after a restart of the process
    GoesOn,
}

/// The first sequence numbers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Sequence {
    /// Random, exchanged in the handshake as between handfast nodes
    Exchanged,
    /// Zero
    Zero,
}

/// Options of all devices.
#[derive(Args)]
pub(super) struct Usage {
    /// Effect of a restart on queue-pair numbers and keys [default: from-first, except on devices that
    /// ignore sequence numbers]
    #[arg(long, value_name = "HOW")]
    numbers: Option<Numbering>,
    /// First sequence numbers [default: exchanged]
    #[arg(long, value_name = "HOW")]
    psns: Option<Sequence>,
}

impl Usage {
    /// Returns the devices and traffic; the default world without options.
    pub(super) fn devices(
        &self,
        device: Option<&'static Profile>,
        traffic: Option<Traffic>,
    ) -> Ground {
        if device.is_none() && traffic.is_none() && self.numbers.is_none() && self.psns.is_none() {
            return Ground::BARE;
        }
        let usual = Ground::on(device.unwrap_or(Ground::BARE.profile), traffic);
        Ground {
            rebirth: match self.numbers {
                Some(Numbering::FromFirst) => Rebirth::Anew,
                Some(Numbering::GoesOn) => Rebirth::GoesOn,
                None => usual.rebirth,
            },
            random_psns: self.psns.map_or(usual.random_psns, |psns| psns == Sequence::Exchanged),
            ..usual
        }
    }
}

#[derive(Args)]
pub(super) struct World {
    /// Demands of the applications; an unknown name, such as `list`, lists all [default:
    /// SimultaneousOpen; with traffic, Transfers]
    #[arg(long, value_parser = parse_scenario)]
    scenario: Option<Scenario>,
    /// The device of every node [default: strict]
    #[arg(long, value_name = "PROFILE", value_parser = parse_device)]
    device: Option<&'static Profile>,
    /// Transfers, with their bytes [default: none]
    #[arg(long, value_name = "KIND", value_parser = parse_traffic)]
    traffic: Option<Traffic>,
    #[command(flatten)]
    usage: Usage,
    /// Maximum number of faults
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    faults: u32,
    /// Kinds of fault: all, classic (loss,duplication,crash), device, none, or a list of names
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = parse_kinds)]
    kinds: Faults,
    /// Whether queue-pair operations are separate events
    #[arg(long, default_value = "at-once")]
    grain: Grain,
    /// Keep answers that their receiver ignores: many more worlds, the same findings
    #[arg(long)]
    unpruned: bool,
    #[command(flatten)]
    variant: Variant,
}

impl World {
    pub(super) fn case(&self) -> Result<Case, Failure> {
        // A variant sets the devices on which it is found, unless the options name others.
        let own = self.variant.entry.map(|entry| (entry.scenario(), entry.devices));
        let asked = self.usage.devices(self.device, self.traffic);
        let devices = own.map(|(_, own)| own).filter(|_| asked == Ground::BARE).unwrap_or(asked);
        let usual = match devices.traffic {
            Some(Traffic::Fleet) => Scenario::Fleet,
            Some(_) => Scenario::Transfers,
            None => Scenario::SimultaneousOpen,
        };
        let scenario = self.scenario.unwrap_or(usual);
        if let Some(traffic) = devices.traffic.filter(|traffic| !scenario.carries(*traffic)) {
            return Err(cannot_carry(scenario, traffic));
        }
        Ok(Case {
            scenario,
            variant: self.variant.entry,
            devices,
            faults: self.kinds,
            faults_max: self.faults,
            operations: match self.grain {
                Grain::Stepwise => Operations::Stepwise,
                Grain::AtOnce => Operations::AtOnce,
            },
            // A variant may reuse numbers, so that an answer ignored now counts later.
            prune: !self.unpruned && self.variant.entry.is_none(),
        })
    }
}

/// Creates the error of an unknown name.
fn unknown(what: &str, name: &str, known: impl Iterator<Item = String>) -> String {
    let known: Vec<String> = known.collect();
    format!("there is no {what} '{name}'; there are {}", known.join(", "))
}

/// Returns a name without the hyphens and blanks that users may write.
fn plain(name: &str) -> String {
    name.chars().filter(|letter| letter.is_alphanumeric()).collect()
}

pub(super) fn parse_scenario(name: &str) -> Result<Scenario, String> {
    let known = || Scenario::every().map(|known| format!("{known:?}"));
    Scenario::named(&plain(name)).ok_or_else(|| unknown("scenario", name, known()))
}

pub(super) fn parse_device(name: &str) -> Result<&'static Profile, String> {
    let known = || named_profiles().map(|profile| profile.name.to_owned());
    handfast_sim::devices::profile_named(name).ok_or_else(|| unknown("device", name, known()))
}

pub(super) fn parse_traffic(name: &str) -> Result<Traffic, String> {
    let known = || Traffic::ALL.iter().chain(&Traffic::OTHERS).map(|known| format!("{known:?}"));
    Traffic::named(&plain(name)).ok_or_else(|| unknown("traffic", name, known()))
}

/// Creates the error of a scenario that cannot carry bytes.
pub(super) fn cannot_carry(scenario: Scenario, traffic: Traffic) -> Failure {
    Failure::Usage(format!(
        "{scenario:?} cannot carry {traffic:?}: take --scenario Transfers, and for Fleet --scenario \
         Fleet"
    ))
}

fn parse_kinds(names: &str) -> Result<Faults, String> {
    faults_named(names).map_err(|name| {
        let known: Vec<&str> = kinds().collect();
        let known = known.join(", ");
        format!("'{name}' is not a kind of fault; the kinds are all, classic, none, {known}")
    })
}

pub(super) fn parse_variant(id: &str) -> Result<&'static Entry, String> {
    variants::find(id).ok_or_else(|| match variants::ALL {
        [] => NO_VARIANTS.to_owned(),
        all => unknown("variant", id, all.iter().map(|entry| entry.id.to_owned())),
    })
}

const NO_VARIANTS: &str = "this build has the shipping rules only: in a checkout of the sources, \
     `cargo xtask variants -- sim sweep --variant ID` builds and runs one with the variants";

/// Formats a case: `SimultaneousOpen, shipping rules, at most 1 fault (all), at once, pruned`.
pub(super) fn words(case: &Case) -> String {
    let rules = match case.variant {
        Some(entry) => format!("variant {} ({})", entry.id, entry.name),
        None => "shipping rules".to_owned(),
    };
    let faults = match case.faults_max {
        0 => "no faults".to_owned(),
        1 => format!("at most 1 fault ({})", names_of(case.faults)),
        count => format!("at most {count} faults ({})", names_of(case.faults)),
    };
    let prune = if case.prune { ", pruned" } else { "" };
    let devices = match case.devices.words() {
        bare if bare.is_empty() => bare,
        words => format!(" {words}"),
    };
    format!("{:?}{devices}, {rules}, {faults}, {}{prune}", case.scenario, grain(case))
}

fn grain(case: &Case) -> &'static str {
    match case.operations {
        Operations::Stepwise => "stepwise",
        Operations::AtOnce => "at once",
    }
}

/// Returns a case as JSON.
pub(super) fn case_json(case: &Case) -> Value {
    json!({
        "scenario": format!("{:?}", case.scenario),
        "device": case.devices.profile.name,
        "traffic": case.devices.traffic.map(|traffic| format!("{traffic:?}")),
        "variant": case.variant.map(|entry| entry.id),
        "faults_max": case.faults_max,
        "kinds": names_of(case.faults),
        "grain": grain(case),
        "pruned": case.prune,
    })
}
