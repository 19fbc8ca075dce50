//! `handfast sim mutants`.

use super::case::{no_variants, parse_variant};
use super::show::{columns, grouped};
use crate::failure::Failure;
use crate::{Outcome, output};
use clap::Args;
use handfast_transport_sim::Oracle;
use serde::Serialize;
use sim_tests::mutants::{ALL, Entry};
use sim_tests::sweep::Random;
use sim_tests::{Case, Coverage, Ending, Explorer, Scheduler};
use std::time::Instant;

const EPILOGUE: &str = concat!(
    "\
Examples, in a build that `cargo build --release --features mutants --bin
handfast` makes in the sources:
  handfast sim mutants
  handfast sim mutants SO-1 --schedules 1000

Columns: the variant, the worlds seen until it broke, the events of the
shortest schedule, how many random schedules broke, and the oracle that does
not hold. A variant that is not found out is a failure of the explorer.

",
    include_str!("exit_codes.txt")
);

/// Check that each broken variant of the rules is found out
///
/// The oracles are worth what they find. Each variant is the machine that ships with one rule
/// broken; it is explored until an oracle breaks, and tried with random schedules. Builds without
/// the cargo feature `mutants`, which is every build for users, contain none of this code.
#[derive(Args)]
#[command(after_long_help = EPILOGUE)]
pub(crate) struct Mutants {
    /// Ids of variants, such as SO-1 [default: all]
    #[arg(value_name = "ID", value_parser = parse_variant)]
    variants: Vec<&'static Entry>,
    /// Random schedules for each
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    schedules: u64,
    /// Give each up after that many worlds
    #[arg(long, value_name = "COUNT", default_value_t = 2_000_000)]
    states_max: usize,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    id: &'static str,
    name: &'static str,
    breaks: &'static str,
    found: bool,
    states: usize,
    transitions: u64,
    shortest_events: Option<usize>,
    random_broken: u64,
    random_tried: u64,
    oracle: Option<String>,
    line: Option<String>,
    milliseconds: u128,
}

/// Most events of a random schedule before its world is left to heal.
const EVENTS_MAX: u32 = 120;

impl Row {
    /// Explores a variant, and tries random schedules.
    fn of(entry: &'static Entry, arguments: &Mutants) -> Self {
        let started = Instant::now();
        let case = Case::of_variant(entry);
        let explorer = Explorer {
            states_max: arguments.states_max,
            liveness: entry.oracles.contains(&Oracle::Liveness),
            circles: false,
            oracles: entry.oracles.to_vec(),
            ..Explorer::default()
        };
        let report = explorer.explore(&case.start());
        let found = match &report.ending {
            Ending::Violation(found) => Some(found),
            Ending::Fixpoint | Ending::StatesMax => None,
        };
        let breaks = |seed: &u64| {
            let scheduler = Scheduler::Uniform;
            let random = Random { seed: *seed, events_max: EVENTS_MAX, scheduler };
            random.run(&case, &mut Coverage::default()).violation.is_some()
        };
        Self {
            id: entry.id,
            name: entry.name,
            breaks: entry.breaks,
            found: found.is_some(),
            states: report.states,
            transitions: report.transitions,
            shortest_events: found.map(|found| found.schedule.len()),
            random_broken: (0..arguments.schedules).filter(breaks).count() as u64,
            random_tried: arguments.schedules,
            oracle: found.map(|found| format!("{:?}", found.violation.oracle)),
            line: found.and_then(|found| found.line(&case).ok()).map(|line| line.to_string()),
            milliseconds: started.elapsed().as_millis(),
        }
    }

    fn text(&self, narrow: bool) -> String {
        let Self { id, name, random_broken, random_tried, .. } = self;
        let states = grouped(self.states as u64);
        let events = self.shortest_events.map_or("-".to_owned(), |events| events.to_string());
        let oracle = self.oracle.as_deref().unwrap_or("not found out");
        let random = format!("{random_broken}/{random_tried}");
        if narrow {
            return format!(
                "{id} {name}\n  {states} states, {events} events\n  random {random}\n  {oracle}"
            );
        }
        format!("{id:<8} {name:<26} {states:>9} {events:>8} {random:>9}  {oracle}")
    }
}

/// Columns that the table needs.
const WIDE: usize = 82;

pub(super) fn run(arguments: Mutants) -> Outcome {
    let chosen: Vec<&'static Entry> = match arguments.variants.as_slice() {
        [] => ALL.iter().collect(),
        some => some.to_vec(),
    };
    if chosen.is_empty() {
        return Err(no_variants());
    }
    let narrow = columns().is_some_and(|columns| columns < WIDE);
    if !arguments.json && !narrow {
        output::say(format_args!(
            "{:<8} {:<26} {:>9} {:>8} {:>9}  oracle",
            "mutant", "name", "states", "shortest", "random"
        ))?;
    }
    let mut rows = Vec::new();
    for entry in chosen {
        let row = Row::of(entry, &arguments);
        if !arguments.json {
            output::say(format_args!("{}", row.text(narrow)))?;
        }
        rows.push(row);
    }
    let missed: Vec<&str> = rows.iter().filter(|row| !row.found).map(|row| row.id).collect();
    if arguments.json {
        output::say_json(&rows)?;
    } else {
        output::say(format_args!("{} of {} found out", rows.len() - missed.len(), rows.len()))?;
    }
    if missed.is_empty() { Ok(()) } else { Err(Failure::NotFoundOut(missed.join(", "))) }
}
