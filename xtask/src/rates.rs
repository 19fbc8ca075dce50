//! `cargo xtask rates`: the speed of the simulation, next to that of an earlier program or of stateright.

// Rates and ratios are only reported.
#![allow(clippy::float_arithmetic)]

pub(crate) mod stateright;

use crate::project::Project;
use anyhow::{Context, Result};
use serde_json::Value;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Measure explorations and random schedules, in turns with an earlier program
///
/// Prints the rates of this checkout and, with --base, the medians of the ratios of the rounds: by the
/// clock and, since other load does not change it much, by processor time. Each program explores its own
/// worlds by its own rules, with all its threads. Takes two minutes after the build; the clock is of use
/// on a machine without other load alone.
///
/// With --stateright it measures the explorer and the breadth-first checker of stateright instead, in turns:
/// one program, the same worlds, events and oracles, and no healing of worlds, which stateright cannot do.
///
/// Exit code: 0 if everything was measured.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Program `handfast` of another commit
    #[arg(long, value_name = "PROGRAM")]
    base: Option<PathBuf>,
    /// Program `handfast` to measure instead of a build of this checkout
    #[arg(long, value_name = "PROGRAM")]
    program: Option<PathBuf>,
    /// Number of rounds
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Measure the explorer next to stateright
    #[arg(long, conflicts_with_all = ["base", "program"])]
    stateright: bool,
    /// Number of faults of the comparison with stateright
    #[arg(long, value_name = "COUNT", default_value_t = 2, requires = "stateright")]
    faults: u8,
    /// Number of threads of both checkers [default: one per processor]
    #[arg(long, value_name = "COUNT", requires = "stateright")]
    threads: Option<NonZeroUsize>,
}

/// Places of the times of children in `/proc/self/stat`, after the name; see proc(5).
const CHILDREN_USER: usize = 13;
const CHILDREN_SYSTEM: usize = 14;
const TICKS_PER_S: f64 = 100.0;
const BUILD_BUDGET: Duration = Duration::from_secs(1_800);

/// A name, the words of the command, and the rate in its line of JSON.
type Case = (&'static str, &'static [&'static str], &'static str);

const CASES: [Case; 4] = [
    ("both open, two faults", &["explore", "--faults", "2"], "transitions_per_s"),
    (
        "both open, three faults, 300,000 worlds",
        &["explore", "--faults", "3", "--states-max", "300000"],
        "transitions_per_s",
    ),
    ("random schedules", &["sweep", "--seeds", "20000"], "seeds_per_s"),
    ("fleets", &["sweep", "--fleet", "--seeds", "100"], "seeds_per_s"),
];

pub(crate) fn run(project: &Project, arguments: &Arguments) -> Result<bool> {
    if arguments.stateright {
        let threads = arguments.threads.map_or_else(thread::available_parallelism, Ok)?;
        stateright::run(project, arguments.rounds, arguments.faults, threads.get())?;
        return Ok(true);
    }
    let program = match &arguments.program {
        Some(program) => program.clone(),
        None => build(project)?,
    };
    for (name, words, rate) in CASES {
        let (mut rates, mut ratios, mut loads) = (Vec::new(), Vec::new(), Vec::new());
        let mut last = Value::Null;
        for _ in 0..arguments.rounds {
            let base = arguments.base.as_deref().map(|base| measure(base, words)).transpose()?;
            let own = measure(&program, words)?;
            rates.push(own.rate(rate)?);
            if let Some(base) = base {
                ratios.push(own.rate(rate)? / base.rate(rate)?);
                loads.extend(own.work(rate)?.zip(base.work(rate)?).map(|(own, base)| own / base));
            }
            last = own.line;
        }
        let load = median(loads).map(|load| format!(" ({load:.2} by processor time)"));
        let load = load.unwrap_or_default();
        let ratio = median(ratios).map(|ratio| format!(", {ratio:.2} times the base{load}"));
        let kept = last["kept_bytes"].as_f64().zip(last["states"].as_f64());
        let kept =
            kept.map(|(kept, states)| format!(", {:.0} bytes kept of a world", kept / states));
        let (rate, own) = (rate.replace("_per_s", " a second"), median(rates).unwrap_or_default());
        let (ratio, kept) = (ratio.unwrap_or_default(), kept.unwrap_or_default());
        anstream::println!("{name}: {own:.0} {rate}{ratio}{kept}");
    }
    Ok(true)
}

/// Builds the program of this checkout.
fn build(project: &Project) -> Result<PathBuf> {
    let build = project.cargo(&["build", "--release", "-p", "handfast-cli"]);
    project.run(build, "rates-build", Instant::now() + BUILD_BUDGET)?;
    Ok(project.target().join("release/handfast"))
}

/// A run of a program.
struct Measured {
    /// Its line of JSON.
    line: Value,
    /// Its processor time in seconds; none where the system has no `/proc`.
    processor_s: Option<f64>,
}

impl Measured {
    fn rate(&self, rate: &str) -> Result<f64> {
        self.line[rate].as_f64().with_context(|| format!("no {rate}"))
    }

    /// Transitions or seeds for each second of processor time.
    fn work(&self, rate: &str) -> Result<Option<f64>> {
        let count = rate.trim_end_matches("_per_s");
        let count = self.line[count].as_f64().with_context(|| format!("no {count}"))?;
        Ok(self.processor_s.filter(|time| *time > 0.0).map(|time| count / time))
    }
}

/// Runs the program `handfast`.
fn measure(program: &Path, words: &[&str]) -> Result<Measured> {
    let mut command = Command::new(program);
    command.arg("sim").args(words).arg("--json");
    measured(command)
}

/// Runs a program that prints a line of JSON.
fn measured(mut command: Command) -> Result<Measured> {
    let before = processor_s();
    let output = command.output()?;
    let processor_s = processor_s().zip(before).map(|(after, before)| after - before);
    let text = String::from_utf8_lossy(&output.stdout);
    let failed = || format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let line = text.lines().next().with_context(failed)?;
    let line = serde_json::from_str(line).with_context(failed)?;
    Ok(Measured { line, processor_s })
}

/// Processor time of all children that have ended.
fn processor_s() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program may have spaces, and ends with the last bracket.
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = |place: usize| fields.get(place)?.parse::<f64>().ok();
    Some((ticks(CHILDREN_USER)? + ticks(CHILDREN_SYSTEM)?) / TICKS_PER_S)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
