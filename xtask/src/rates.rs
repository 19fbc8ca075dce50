//! `cargo xtask rates`: the speed of the simulation, next to that of an earlier program.

// Rates and ratios are only reported.
#![allow(clippy::float_arithmetic)]

use crate::project::Project;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Measure explorations and random schedules, in turns with an earlier program
///
/// Prints the rates of this checkout and, with --base, the median of the ratios of the rounds. Each
/// program explores its own worlds by its own rules, with all its threads. Takes a minute after the
/// build; run it on a machine without other load.
///
/// Exit code: 0 if everything was measured.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Program `handfast` of another commit
    #[arg(long, value_name = "PROGRAM")]
    base: Option<PathBuf>,
    /// Number of rounds
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
}

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
    let build = project.cargo(&["build", "--release", "-p", "handfast-cli"]);
    project.run(build, "rates-build", Instant::now() + BUILD_BUDGET)?;
    let program = project.target().join("release/handfast");
    for (name, words, rate) in CASES {
        let (mut rates, mut ratios) = (Vec::new(), Vec::new());
        let mut last = Value::Null;
        for _ in 0..arguments.rounds {
            let base = arguments.base.as_deref().map(|base| measure(base, words)).transpose()?;
            last = measure(&program, words)?;
            let own = last[rate].as_f64().context("no rate")?;
            rates.push(own);
            let base = base.and_then(|base| base[rate].as_f64());
            ratios.extend(base.map(|base| own / base));
        }
        let ratio = median(ratios).map(|ratio| format!(", {ratio:.2} times the base"));
        let kept = last["kept_bytes"].as_f64().zip(last["states"].as_f64());
        let kept =
            kept.map(|(kept, states)| format!(", {:.0} bytes kept of a world", kept / states));
        let (rate, own) = (rate.replace("_per_s", " a second"), median(rates).unwrap_or_default());
        let (ratio, kept) = (ratio.unwrap_or_default(), kept.unwrap_or_default());
        anstream::println!("{name}: {own:.0} {rate}{ratio}{kept}");
    }
    Ok(true)
}

/// Runs a program and returns its line of JSON.
fn measure(program: &Path, words: &[&str]) -> Result<Value> {
    let output = Command::new(program).arg("sim").args(words).arg("--json").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let words = words.join(" ");
    let line = text.lines().next().with_context(|| format!("no output of sim {words}"))?;
    serde_json::from_str(line).with_context(|| format!("the JSON of sim {words}"))
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
