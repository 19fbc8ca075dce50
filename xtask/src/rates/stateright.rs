//! The explorer next to the checker of stateright, on one model in one program.

use super::{BUILD_BUDGET, Measured, measured, median};
use crate::project::Project;
use crate::report::Outcome;
use crate::setup;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The package, which is no member of the workspace.
const MANIFEST: &str = "sim-tests/stateright/Cargo.toml";
/// The checkers that do the same work, and the explorer with the work that stateright cannot do.
const CHECKERS: [&str; 3] = ["stateright", "handfast", HEALS];
const HEALS: &str = "handfast-heals";
const RATE: &str = "transitions_per_s";
/// Faults and threads of the comparison of worlds, which takes a second.
const CHECKED: (u8, usize) = (1, 2);

/// `cargo xtask rates --stateright`.
pub(super) fn run(project: &Project, rounds: u8, faults: u8, threads: usize) -> Result<()> {
    let program = build(project, Instant::now() + BUILD_BUDGET)?;
    let (mut rates, mut ratios, mut loads) = ([vec![], vec![], vec![]], Vec::new(), Vec::new());
    let mut worlds = String::new();
    for _ in 0..rounds {
        let round = round(&program, faults, threads)?;
        worlds = counted(&round)?;
        for (rates, measured) in rates.iter_mut().zip(&round) {
            rates.push(measured.rate(RATE)?);
        }
        let [stateright, own, _] = &round;
        ratios.push(own.rate(RATE)? / stateright.rate(RATE)?);
        let work = own.work(RATE)?.zip(stateright.work(RATE)?);
        loads.extend(work.map(|(own, stateright)| own / stateright));
    }
    anstream::println!("both open, --faults {faults} --threads {threads}: {worlds}");
    for (name, rates) in CHECKERS.iter().zip(rates) {
        anstream::println!("{name}: {:.0} transitions a second", median(rates).unwrap_or_default());
    }
    let load = median(loads).map(|load| format!(" ({load:.2} by processor time)"));
    let (ratio, load) = (median(ratios).unwrap_or_default(), load.unwrap_or_default());
    anstream::println!("handfast is {ratio:.2} times stateright{load}; neither heals worlds");
    Ok(())
}

/// Checks the format and the lints of the package, and that both checkers find the same worlds.
pub(crate) fn step(project: &Project, deadline: Instant) -> Outcome {
    setup::RUSTFMT.check()?;
    setup::CLIPPY.check()?;
    let format = project.cargo(&["fmt", "--manifest-path", MANIFEST, "--check"]);
    project.run(format, "stateright-format", deadline)?;
    let mut lints = cargo(project, &["clippy", "--release"]);
    lints.args(["--", "-D", "warnings"]);
    project.run(lints, "stateright-lints", deadline)?;
    let program = build(project, deadline)?;
    let (faults, threads) = CHECKED;
    Ok(format!("both open, {faults} fault: {}", counted(&round(&program, faults, threads)?)?))
}

/// Builds the program with the versions of its own lock file.
fn build(project: &Project, deadline: Instant) -> Result<PathBuf> {
    project.run(cargo(project, &["build", "--release"]), "stateright-build", deadline)?;
    Ok(folder(project).join("release/handfast-stateright"))
}

fn cargo(project: &Project, words: &[&str]) -> Command {
    let mut command = project.cargo(words);
    command.args(["--locked", "--manifest-path", MANIFEST]);
    command.arg("--target-dir").arg(folder(project));
    command
}

fn folder(project: &Project) -> PathBuf {
    project.scratch().join("stateright")
}

/// Runs every checker.
fn round(program: &Path, faults: u8, threads: usize) -> Result<[Measured; 3]> {
    let run = |checker: &str| {
        let mut command = Command::new(program);
        command.args([checker, &faults.to_string(), &threads.to_string()]);
        measured(command)
    };
    let [stateright, own, heals] = CHECKERS;
    Ok([run(stateright)?, run(own)?, run(heals)?])
}

/// Returns the numbers of worlds and events, which no checker changes.
fn counted(round: &[Measured]) -> Result<String> {
    let count = |measured: &Measured, name: &str| {
        measured.line[name].as_u64().with_context(|| format!("no {name}"))
    };
    let counts = |measured| Ok((count(measured, "states")?, count(measured, "transitions")?));
    let counts: Vec<(u64, u64)> = round.iter().map(counts).collect::<Result<_>>()?;
    let same = counts.windows(2).all(|pair| pair[0] == pair[1]);
    ensure!(same, "the checkers differ: worlds and transitions of {CHECKERS:?} are {counts:?}");
    let (worlds, transitions) = counts.first().context("no checker ran")?;
    Ok(format!("{worlds} worlds, {transitions} transitions"))
}

#[cfg(test)]
mod tests {
    use super::{Measured, counted};
    use serde_json::json;

    #[test]
    fn checkers_with_other_worlds_are_no_comparison() {
        let measured = |states: u64| Measured {
            line: json!({ "states": states, "transitions": 7 }),
            processor_s: None,
        };
        assert_eq!(counted(&[measured(3), measured(3)]).unwrap(), "3 worlds, 7 transitions");
        let differing = counted(&[measured(3), measured(4)]).unwrap_err().to_string();
        assert!(differing.contains("[(3, 7), (4, 7)]"), "{differing}");
        assert!(counted(&[Measured { line: json!({}), processor_s: None }]).is_err());
    }
}
