//! `handfast sim explore`.

use super::case::{ShownCase, World, words};
use super::show::{Facts, Marks, ShownViolation, columns, grouped};
use crate::failure::{Failure, Outcome};
use crate::{help, output, size};
use clap::Args;
use handfast_sim::{Case, Ending, Explorer, Report};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Explore every interleaving, up to a number of faults
///
/// Prints the number and depth of worlds, the rate, and the transitions, timers and refusals
/// reached. The shortest way to a broken oracle is printed event by event; the last line replays
/// it.
#[derive(Args)]
#[command(after_long_help = help::SIM_EXPLORE)]
pub(crate) struct Explore {
    #[command(flatten)]
    world: World,
    /// Most worlds; a million take 1 to 5 GB
    #[arg(long, value_name = "COUNT", default_value_t = 2_000_000)]
    states_max: usize,
    /// Check safety alone: neither healing nor cycles
    #[arg(long)]
    safety_only: bool,
    /// After the last fault, run pairs of nodes one after the other, not in every order
    ///
    /// Many fewer worlds where there are three nodes or more. It rests on lanes to different nodes
    /// not waiting for each other, which is explored without it for one fault less.
    #[arg(long)]
    apart: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Shown {
    case: ShownCase,
    ending: &'static str,
    states: usize,
    transitions: u64,
    depth: u32,
    longest_without_fault: Option<u32>,
    worst_healing_events: u32,
    milliseconds: u128,
    states_per_s: u64,
    transitions_per_s: u64,
    coverage: Marks,
    #[serde(skip_serializing_if = "Option::is_none")]
    broken: Option<Broken>,
}

#[derive(Serialize)]
struct Broken {
    #[serde(flatten)]
    violation: ShownViolation,
    events: usize,
    line: Option<String>,
}

pub(super) fn run(arguments: Explore) -> Outcome {
    let case = arguments.world.case()?;
    let explorer = Explorer {
        states_max: arguments.states_max,
        liveness: !arguments.safety_only,
        cycles: !arguments.safety_only,
        oracles: case.oracles().to_vec(),
        apart: arguments.apart,
        ..Explorer::default()
    };
    let started = Instant::now();
    let report = explorer.explore(&case.start());
    let took = started.elapsed();
    let shown = shown(&case, &report, took);
    if arguments.json {
        output::say_json(&shown)?;
    } else {
        output::say(format_args!("{}", facts(&case, &shown).text(columns())))?;
    }
    match &report.ending {
        Ending::Fixpoint => Ok(()),
        Ending::StatesMax => Err(Failure::WorldsMax { worlds: report.states }),
        Ending::Violation(found) => {
            if !arguments.json {
                output::say(format_args!("\n{}", found.report(&case)))?;
            }
            let line = found.line(&case).map(|line| line.to_string());
            let line = line.unwrap_or_else(|error| error.to_string());
            Err(ShownViolation::from(&found.violation).failure(line))
        }
    }
}

fn shown(case: &Case, report: &Report, took: Duration) -> Shown {
    let ending = match report.ending {
        Ending::Fixpoint => "fixpoint",
        Ending::Violation(_) => "broken",
        Ending::StatesMax => "states-max",
    };
    let broken = match &report.ending {
        Ending::Violation(found) => Some(Broken {
            violation: (&found.violation).into(),
            events: found.schedule.len(),
            line: found.line(case).ok().map(|line| line.to_string()),
        }),
        _ => None,
    };
    Shown {
        case: case.into(),
        ending,
        states: report.states,
        transitions: report.transitions,
        depth: report.depth,
        longest_without_fault: report.longest_free,
        worst_healing_events: report.worst_healing.events,
        milliseconds: took.as_millis(),
        states_per_s: size::per_second(report.states as u64, took),
        transitions_per_s: size::per_second(report.transitions, took),
        coverage: (&report.coverage).into(),
        broken,
    }
}

fn facts(case: &Case, shown: &Shown) -> Facts {
    let mut facts = Facts::default();
    facts.add("explored", words(case));
    let ending = match shown.ending {
        "fixpoint" => "fixpoint: every world was seen, and every oracle holds",
        "broken" => "an oracle does not hold",
        _ => "the bound on worlds was reached: nothing is known of the rest",
    };
    facts.add("ending", ending);
    facts.add("states", grouped(shown.states as u64));
    facts.add("transitions", grouped(shown.transitions));
    facts.add("depth", format!("{} events", shown.depth));
    if let Some(longest) = shown.longest_without_fault {
        facts.add("longest", format!("{longest} events without a fault"));
    }
    facts.add("worst healing", format!("{} events", shown.worst_healing_events));
    facts.add("time", format!("{} ms", grouped(u64::try_from(shown.milliseconds).unwrap_or(0))));
    let (states, transitions) = (grouped(shown.states_per_s), grouped(shown.transitions_per_s));
    facts.add("rates", format!("{states} states/s, {transitions} transitions/s"));
    shown.coverage.tell(&mut facts);
    facts
}
