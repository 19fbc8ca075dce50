//! `handfast sim explore`.

use super::case::{World, case_json, words};
use super::show::{Facts, broken, columns, coverage_json, grouped, tell_coverage, violation_json};
use crate::failure::{Failure, Outcome};
use crate::{help, output, size};
use clap::Args;
use handfast_sim::{Case, Ending, Explorer, Report};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Explore every interleaving, up to a number of faults
///
/// Prints the number and depth of worlds, the rate, and the reached transitions, timers and
/// refusals. The shortest schedule that breaks an oracle is printed event by event; the last line
/// replays it.
#[derive(Args)]
#[command(after_long_help = help::SIM_EXPLORE)]
pub(crate) struct Explore {
    #[command(flatten)]
    world: World,
    /// Maximum number of worlds; a million take 1 to 5 GB
    #[arg(long, value_name = "COUNT", default_value_t = 2_000_000)]
    states_max: usize,
    /// Check safety only: neither recovery nor cycles
    #[arg(long)]
    safety_only: bool,
    /// After the last fault, run pairs of nodes in sequence, not in every order
    ///
    /// Far fewer worlds with three or more nodes. Assumes that lanes to different nodes do not wait
    /// for each other, which is explored without this option for one fault less.
    #[arg(long)]
    apart: bool,
    /// Number of threads, which changes no result [default: one per processor]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Option<u8>,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: Explore) -> Outcome {
    let case = arguments.world.case()?;
    let explorer = Explorer {
        states_max: arguments.states_max,
        liveness: !arguments.safety_only,
        cycles: !arguments.safety_only,
        oracles: case.oracles().to_vec(),
        apart: arguments.apart,
        threads: arguments.threads.map_or_else(processors, usize::from),
        ..Explorer::default()
    };
    let started = Instant::now();
    let report = explorer.explore(&case.start());
    let took = started.elapsed();
    if arguments.json {
        output::say_json(&json(&case, &report, took))?;
    } else {
        output::say(format_args!("{}", facts(&case, &report, took).text(columns())))?;
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
            Err(broken(&found.violation, line))
        }
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn json(case: &Case, report: &Report, took: Duration) -> Value {
    let mut shown = json!({
        "case": case_json(case),
        "ending": match report.ending {
            Ending::Fixpoint => "fixpoint",
            Ending::Violation(_) => "broken",
            Ending::StatesMax => "states-max",
        },
        "states": report.states,
        "transitions": report.transitions,
        "depth": report.depth,
        "longest_without_fault": report.longest_free,
        "worst_healing_events": report.worst_healing.events,
        "kept_bytes": report.kept_bytes,
        "milliseconds": took.as_millis() as u64,
        "states_per_s": size::per_second(report.states as u64, took),
        "transitions_per_s": size::per_second(report.transitions, took),
        "coverage": coverage_json(&report.coverage),
    });
    if let Ending::Violation(found) = &report.ending {
        let mut broken = violation_json(&found.violation);
        broken["events"] = found.schedule.len().into();
        broken["line"] = found.line(case).ok().map(|line| line.to_string()).into();
        shown["broken"] = broken;
    }
    shown
}

fn facts(case: &Case, report: &Report, took: Duration) -> Facts {
    let mut facts = Facts::default();
    facts.add("explored", words(case));
    let ending = match report.ending {
        Ending::Fixpoint => "fixpoint: every world was seen, and every oracle holds",
        Ending::Violation(_) => "an oracle does not hold",
        Ending::StatesMax => "the bound on worlds was reached: nothing is known of the rest",
    };
    facts.add("ending", ending);
    let states = report.states as u64;
    facts.add("states", grouped(states));
    facts.add("transitions", grouped(report.transitions));
    facts.add("depth", format!("{} events", report.depth));
    if let Some(longest) = report.longest_free {
        facts.add("longest", format!("{longest} events without a fault"));
    }
    facts.add("worst healing", format!("{} events", report.worst_healing.events));
    let kept = report.kept_bytes as u64 / states.max(1);
    facts.add("memory", format!("{kept} bytes kept of a state"));
    facts.add("time", format!("{} ms", grouped(took.as_millis() as u64)));
    let [states, transitions] =
        [states, report.transitions].map(|count| grouped(size::per_second(count, took)));
    facts.add("rates", format!("{states} states/s, {transitions} transitions/s"));
    tell_coverage(&report.coverage, &mut facts);
    facts
}
