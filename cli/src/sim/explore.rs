//! `handfast sim explore`.

use super::case::{World, case_json, words};
use super::show::{Facts, broken, columns, coverage_json, grouped, tell_coverage, violation_json};
use super::{estimate, saving};
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::{help, output, size};
use clap::Args;
use handfast_sim::{Case, Ending, Exploration, Explorer, Report};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Interval of progress lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(60);
/// Interval of progress on a terminal.
const SHOWN_EVERY: Duration = Duration::from_secs(1);

/// Explore every interleaving, up to a number of faults
///
/// Prints the number and depth of worlds, the rate, and the reached transitions, timers and
/// refusals. The shortest schedule that breaks an oracle is printed event by event; the last line
/// replays it. One that will take more than a second says before how much it will take, roughly.
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
    /// Stop after a time such as 45m, and save
    #[arg(long, value_name = "TIME", value_parser = size::parse_duration, requires = "save")]
    time: Option<Duration>,
    /// File to save to when the exploration is stopped by Ctrl-C, SIGTERM or --time
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Go on with a saved exploration, in its world and with its options
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "scenario", "device", "traffic", "numbers", "psns", "faults", "kinds", "grain", "unpruned",
        "entry", "safety_only", "apart",
    ])]
    resume: Option<PathBuf>,
    /// Print the result as one line of JSON, and no progress
    #[arg(long)]
    json: bool,
}

/// Figures of the part of an exploration that this run of the program explored.
struct Done {
    states: u64,
    transitions: u64,
    took: Duration,
}

pub(super) fn run(arguments: Explore) -> Outcome {
    let saved = arguments.resume.as_deref().map(saving::open).transpose()?;
    let case = match &saved {
        Some(saved) => saving::case(saved)?,
        None => arguments.world.case()?,
    };
    let mut explorer = Explorer {
        states_max: arguments.states_max,
        liveness: !arguments.safety_only,
        cycles: !arguments.safety_only,
        oracles: case.oracles().to_vec(),
        apart: arguments.apart,
        threads: arguments.threads.map_or_else(processors, usize::from),
        ..Explorer::default()
    };
    saved.iter().for_each(|saved| saved.configure(&mut explorer));
    if saved.is_none() && !arguments.json {
        estimate::tell(&case, &explorer);
    }
    let start = case.start();
    let mut exploration = match saved {
        Some(saved) => saved.resume(&explorer, &start)?,
        None => explorer.begin(&start),
    };
    let before = exploration.progress();
    let started = Instant::now();
    let ending = advance(&mut exploration, &arguments)?;
    let after = exploration.progress();
    match (ending, arguments.save) {
        (Some(ending), _) => {
            let report = exploration.report(ending);
            let done = Done {
                states: (after.states - before.states) as u64,
                transitions: after.transitions - before.transitions,
                took: started.elapsed(),
            };
            end(&case, &report, &done, arguments.json)
        }
        (None, Some(file)) => {
            saving::save(&exploration, &case, &file)?;
            Err(Failure::ExplorationStopped { worlds: after.states, file })
        }
        (None, None) => Err(Failure::Interrupted),
    }
}

/// Explores to the end, or until it is stopped.
fn advance(
    exploration: &mut Exploration<'_>,
    arguments: &Explore,
) -> Result<Option<Ending>, Failure> {
    let stop = arguments.save.as_ref().map(|_| saving::listen()).transpose()?;
    let mut progress = Progress::start(0, "{wide_msg}", LINE_INTERVAL, arguments.json);
    let (started, mut shown) = (Instant::now(), Duration::ZERO);
    loop {
        if let Some(ending) = exploration.advance() {
            return Ok(Some(ending));
        }
        let elapsed = started.elapsed();
        let is_over = arguments.time.is_some_and(|time| elapsed >= time);
        if is_over || stop.as_ref().is_some_and(saving::is_stopped) {
            return Ok(None);
        }
        if elapsed - shown < SHOWN_EVERY {
            continue;
        }
        shown = elapsed;
        let now = exploration.progress();
        let words = || {
            let [states, left] = [now.states as u64, u64::from(now.left)].map(grouped);
            let (depth, kept) = (now.depth, size::show(now.kept_bytes as u64));
            format!("{states} worlds, {left} to be explored, depth {depth}, {kept}")
        };
        progress.bar.set_message(words());
        progress.update(now.states as u64, words);
    }
}

/// Prints the result.
fn end(case: &Case, report: &Report, done: &Done, as_json: bool) -> Outcome {
    if as_json {
        output::say_json(&json(case, report, done))?;
    } else {
        output::say(format_args!("{}", facts(case, report, done).text(columns())))?;
    }
    match &report.ending {
        Ending::Fixpoint => Ok(()),
        Ending::StatesMax => Err(Failure::WorldsMax { worlds: report.states }),
        Ending::Violation(found) => {
            if !as_json {
                output::say(format_args!("\n{}", found.report(case)))?;
            }
            let line = found.line(case).map(|line| line.to_string());
            let line = line.unwrap_or_else(|error| error.to_string());
            Err(broken(&found.violation, line))
        }
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn json(case: &Case, report: &Report, done: &Done) -> Value {
    let Done { states, transitions, took } = *done;
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
        "states_per_s": size::per_second(states, took),
        "transitions_per_s": size::per_second(transitions, took),
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

fn facts(case: &Case, report: &Report, done: &Done) -> Facts {
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
    facts.add("time", format!("{} ms", grouped(done.took.as_millis() as u64)));
    let [states, transitions] =
        [done.states, done.transitions].map(|count| grouped(size::per_second(count, done.took)));
    facts.add("rates", format!("{states} states/s, {transitions} transitions/s"));
    tell_coverage(&report.coverage, &mut facts);
    facts
}
