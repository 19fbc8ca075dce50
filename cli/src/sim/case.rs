//! Which world to begin with.

use crate::failure::Failure;
use clap::{Args, ValueEnum};
use handfast_transport_sim::{Faults, Operations};
use serde::Serialize;
use sim_tests::case::{faults_named, kinds, names_of};
use sim_tests::mutants::{self, Entry};
use sim_tests::{Case, Scenario};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Grain {
    /// Every queue-pair operation is an event of its own
    Stepwise,
    /// Operations succeed within the event that asks for them
    AtOnce,
}

/// The options that both exploring and sweeping take.
#[derive(Args)]
pub(super) struct Variant {
    /// Follow a broken variant of the rules, by its id such as SO-1; only in builds with
    /// `--features mutants` [default: the rules that ship]
    #[arg(long, value_name = "ID", value_parser = parse_variant)]
    pub(super) mutant: Option<&'static Entry>,
}

#[derive(Args)]
pub(super) struct World {
    /// What the applications ask for; a name that there is not, such as `list`, lists all
    #[arg(long, default_value = "SimultaneousOpen", value_parser = parse_scenario)]
    scenario: Scenario,
    /// Most faults
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    faults: u32,
    /// Kinds of fault: all, classic (loss,duplication,crash), none, or a list of names
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = parse_kinds)]
    kinds: Faults,
    /// Whether queue-pair operations are events of their own
    #[arg(long, default_value = "at-once")]
    grain: Grain,
    /// Keep answers that their receiver can only ignore: many more worlds, the same findings
    #[arg(long)]
    unpruned: bool,
    #[command(flatten)]
    variant: Variant,
}

impl World {
    pub(super) fn case(&self) -> Case {
        Case {
            scenario: self.scenario,
            variant: self.variant.mutant,
            faults: self.kinds,
            faults_max: self.faults,
            operations: match self.grain {
                Grain::Stepwise => Operations::Stepwise,
                Grain::AtOnce => Operations::AtOnce,
            },
            // A variant may reuse numbers, and then an answer that is ignored now may count later.
            prune: !self.unpruned && self.variant.mutant.is_none(),
        }
    }
}

pub(super) fn parse_scenario(name: &str) -> Result<Scenario, String> {
    let plain: String = name.chars().filter(|letter| letter.is_alphanumeric()).collect();
    Scenario::named(&plain).ok_or_else(|| {
        let known: Vec<String> = Scenario::ALL.iter().map(|known| format!("{known:?}")).collect();
        format!("there is no scenario '{name}'; there are {}", known.join(", "))
    })
}

fn parse_kinds(names: &str) -> Result<Faults, String> {
    faults_named(names).map_err(|name| {
        let known: Vec<&str> = kinds().collect();
        format!("'{name}' is no kind of fault; there are all, classic, none, {}", known.join(", "))
    })
}

pub(super) fn parse_variant(id: &str) -> Result<&'static Entry, String> {
    mutants::find(id).ok_or_else(|| match mutants::ALL {
        [] => NO_VARIANTS.to_owned(),
        all => {
            let known: Vec<&str> = all.iter().map(|entry| entry.id).collect();
            format!("there is no variant '{id}'; there are {}", known.join(", "))
        }
    })
}

const NO_VARIANTS: &str = "this build has only the rules that ship; in the sources, `cargo run \
     --release --features mutants --bin handfast -- sim mutants` has the broken ones too";

/// What is said to who asks for variants where there are none.
pub(super) fn no_variants() -> Failure {
    Failure::Usage(NO_VARIANTS.to_owned())
}

/// A case in words: `SimultaneousOpen, shipping rules, at most 1 fault (all), at once, pruned`.
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
    format!("{:?}, {rules}, {faults}, {}{prune}", case.scenario, grain(case))
}

fn grain(case: &Case) -> &'static str {
    match case.operations {
        Operations::Stepwise => "stepwise",
        Operations::AtOnce => "at once",
    }
}

/// A case as JSON.
#[derive(Serialize)]
pub(super) struct ShownCase {
    scenario: String,
    variant: Option<&'static str>,
    faults_max: u32,
    kinds: String,
    grain: &'static str,
    pruned: bool,
}

impl From<&Case> for ShownCase {
    fn from(case: &Case) -> Self {
        Self {
            scenario: format!("{:?}", case.scenario),
            variant: case.variant.map(|entry| entry.id),
            faults_max: case.faults_max,
            kinds: names_of(case.faults),
            grain: grain(case),
            pruned: case.prune,
        }
    }
}
