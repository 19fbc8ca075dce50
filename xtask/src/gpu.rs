//! `cargo xtask gpu`: device memory on this machine's CUDA driver, compared with the scripted one.

use crate::project::Project;
use crate::python;
use crate::report::{Outcome, Step, skipped};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Try device memory on this machine's CUDA driver, and write docs/bench/gpu.md
///
/// Runs engine/examples/gpu.rs on the scripted driver and on the real one, lists the checks whose results
/// differ, compares the rates of staged transfers with those of raw copies and of TCP, and runs the tests of
/// torch's tensors. Without a driver or a device it writes nothing.
///
/// A machine without Rust runs what --bundle collects, `FOLDER/run.sh >FILE`, and --result takes the file.
///
/// Exit code: 0 if all checks hold, 1 if one does not.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Run the scripted driver alone
    #[arg(long)]
    scripted: bool,
    /// A Python that has torch, else python3
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Collect the programs, the wheel and the tests in a folder, and run nothing
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["scripted", "python"])]
    bundle: Option<PathBuf>,
    /// Take the result of a bundle's run on another machine, and run nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scripted", "python", "bundle"])]
    result: Option<PathBuf>,
}

const BUILD_BUDGET: Duration = Duration::from_secs(1_800);
const RUN_BUDGET: Duration = Duration::from_secs(600);
const RUNNER_FILE: &str = "run.sh";
/// Lines before the runs of a bundle.
const SCRIPTED_RUN: &str = "run: scripted\n";
const REAL_RUN: &str = "run: real\n";
/// Least rate of a staged transfer, of the slower of the raw copy and the wire.
const STAGED_MIN: f64 = 0.8;

/// Runs the bundle that it is in, and prints the result.
const RUNNER: &str = include_str!("gpu/run.sh");

/// The output of a run of the program.
#[derive(Debug, Default, PartialEq)]
struct Ran {
    /// The reason why there is no device.
    absent: Option<String>,
    devices: Vec<String>,
    /// Checks and their outcomes.
    checks: Vec<(String, String)>,
    /// Names, GiB/s, and the part of the slower of copy and wire.
    rates: Vec<(String, f64, Option<f64>)>,
}

/// The output of a bundle's run.
#[derive(Debug)]
struct Report {
    machine: String,
    scripted: Ran,
    real: Ran,
    /// The count of the tests of torch's tensors, and whether they hold.
    torch: String,
}

impl Report {
    fn parse(output: &str) -> Result<Self> {
        let after = |name: &str| {
            let line = output.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::to_owned).with_context(|| format!("the result lacks the line `{name}`"))
        };
        let (_, runs) =
            output.split_once(SCRIPTED_RUN).context("the scripted driver did not run")?;
        let (scripted, real) = runs.split_once(REAL_RUN).context("the real driver did not run")?;
        Ok(Self {
            machine: after("machine: ")?,
            scripted: Ran::parse(scripted).context("the scripted driver")?,
            real: Ran::parse(real).context("the real driver")?,
            torch: after("torch: ")?,
        })
    }
}

impl Ran {
    fn parse(output: &str) -> Result<Self> {
        let mut ran = Self::default();
        for line in output.lines() {
            let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
            let text = |name: &str| line[name].as_str().map(str::to_owned);
            if let Some(absent) = text("absent") {
                ran.absent = Some(absent);
            } else if let Some(devices) = line["devices"].as_array() {
                ran.devices = devices.iter().filter_map(|it| Some(it.as_str()?.into())).collect();
            } else if let Some(pair) = text("check").zip(text("outcome")) {
                ran.checks.push(pair);
            } else if let Some((name, rate)) = text("rate").zip(line["gib_per_s"].as_f64()) {
                ran.rates.push((name, rate, line["of_slower_part"].as_f64()));
            }
        }
        ensure!(ran.absent.is_some() || !ran.checks.is_empty(), "no check ran");
        Ok(ran)
    }

    /// The checks that do not hold.
    fn failed(&self) -> Vec<String> {
        let failed = self.checks.iter().filter(|(_, outcome)| outcome != "proven");
        failed.map(|(name, outcome)| format!("{name}: {outcome}")).collect()
    }

    /// The checks with another outcome than in `other`.
    fn differences(&self, other: &Self) -> Vec<String> {
        let differs = |(name, outcome): &(String, String)| {
            let known = other.checks.iter().find(|(it, _)| it == name).map(|(_, it)| it.as_str());
            let known = known.unwrap_or("did not run");
            (known != outcome).then(|| format!("{name}: {outcome}; scripted: {known}"))
        };
        self.checks.iter().filter_map(differs).collect()
    }
}

/// Runs the program on a driver: the scripted one, or by the loader's name the real one.
fn try_driver(project: &Project, program: &Path, driver: Option<&Path>) -> Result<Ran> {
    let mut command = Command::new(program);
    command.args(driver);
    let log = if driver.is_some() { "gpu-scripted" } else { "gpu-real" };
    Ran::parse(&project.run(command, log, Instant::now() + RUN_BUDGET)?)
}

pub(crate) fn run(project: &Project, arguments: &Arguments) -> Result<bool> {
    if let Some(folder) = &arguments.bundle {
        bundle(project, folder)?;
        anstream::println!("{0} is complete: {0}/run.sh >FILE", folder.display());
        return Ok(true);
    }
    if arguments.scripted {
        let (program, driver) = programs(project, Instant::now() + BUILD_BUDGET)?;
        let scripted = try_driver(project, &program, Some(&driver))?;
        anstream::println!("scripted driver:\n{}", listed(&scripted));
        return Ok(report(&scripted.failed()));
    }
    let output = match &arguments.result {
        Some(file) => fs::read_to_string(file).with_context(|| file.display().to_string())?,
        None => {
            let folder = project.scratch().join("gpu");
            bundle(project, &folder)?;
            let mut runner = Command::new(folder.join(RUNNER_FILE));
            runner.envs(arguments.python.as_ref().map(|python| ("PYTHON", python)));
            project.run(runner, "gpu", Instant::now() + RUN_BUDGET)?
        }
    };
    let Report { machine, scripted, real, torch } = Report::parse(&output)?;
    anstream::println!("scripted driver:\n{}", listed(&scripted));
    match &real.absent {
        Some(reason) => anstream::println!("1 skipped: real driver: {reason}"),
        None => {
            let page = page(&real, &scripted, &machine, &torch)?;
            fs::write(project.root().join("docs/bench/gpu.md"), page)?;
            anstream::println!("real driver:\n{}docs/bench/gpu.md is written", listed(&real));
        }
    }
    // Without a driver there are no tensors to try.
    let is_failed = real.absent.is_none() && !torch.contains("OK");
    let torch = is_failed.then(|| format!("tensors of torch: {torch}"));
    Ok(report(&[scripted.failed(), real.failed(), torch.into_iter().collect()].concat()))
}

fn report(failed: &[String]) -> bool {
    failed.iter().for_each(|it| anstream::eprintln!("failed: {it}"));
    failed.is_empty()
}

/// Builds the program and the scripted driver.
fn programs(project: &Project, deadline: Instant) -> Result<(PathBuf, PathBuf)> {
    let words = ["build", "--release", "-p", "handfast", "--example", "gpu"];
    project.run(project.cargo(&words), "gpu-build", deadline)?;
    let driver = project.cargo(&["build", "-p", "handfast-fabric-cuda"]);
    project.run(driver, "gpu-driver-build", deadline)?;
    let driver = python::scripted_driver(project).context("the scripted driver is not built")?;
    Ok((project.target().join("release/examples/gpu"), driver))
}

/// Collects in `folder` what runs on a machine without Rust.
fn bundle(project: &Project, folder: &Path) -> Result<()> {
    let until = Instant::now() + BUILD_BUDGET;
    let (program, driver) = programs(project, until)?;
    let wheel = python::optimized_wheel(project, until)?;
    let tests = project.root().join(python::TESTS);
    let tests = ["test_devices.py", "helpers.py"].map(|file| tests.join(file));
    fs::create_dir_all(folder)?;
    for known in fs::read_dir(folder)? {
        let known = known?.path();
        if known.extension().is_some_and(|it| it == "whl") {
            fs::remove_file(known)?;
        }
    }
    for file in [program, driver, wheel].iter().chain(&tests) {
        let name = file.file_name().context("a file has a name")?;
        fs::copy(file, folder.join(name)).with_context(|| file.display().to_string())?;
    }
    let runner = folder.join(RUNNER_FILE);
    fs::write(&runner, RUNNER)?;
    fs::set_permissions(runner, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Tries both drivers with the program of the tests. It is skipped where there is no real one.
pub(crate) fn step(project: &Project) -> Step<'_> {
    Step::new("gpu", |_| {
        let program = project.target().join("debug/examples/gpu");
        let driver = python::scripted_driver(project).filter(|_| program.exists());
        let driver = driver.ok_or_else(|| skipped("its program was not built with the tests"))?;
        let scripted = try_driver(project, &program, Some(&driver))?;
        outcome(&scripted, try_driver(project, &program, None)?)
    })
}

fn outcome(scripted: &Ran, real: Ran) -> Outcome {
    let failed = [scripted.failed(), real.failed()].concat();
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    let checks = scripted.checks.len();
    match real.absent {
        Some(reason) => {
            Err(skipped(format!("{checks} checks hold on the scripted driver; {reason}")))
        }
        None => Ok(format!("{checks} checks hold on {} devices", real.devices.len())),
    }
}

fn listed(ran: &Ran) -> String {
    let mut text = String::new();
    for (name, outcome) in &ran.checks {
        let _ = writeln!(text, "  {name}: {outcome}");
    }
    for (name, rate, part) in &ran.rates {
        let part = part.map_or(String::new(), |part| format!(", {part:.2} of the slower part"));
        let _ = writeln!(text, "  {name}: {rate:.2} GiB/s{part}");
    }
    text
}

fn page(real: &Ran, scripted: &Ran, machine: &str, torch: &str) -> Result<String> {
    let mut page = String::from("# Device memory on a GPU\n\n");
    writeln!(page, "Written by `cargo xtask gpu` on: {machine}.\n")?;
    writeln!(page, "| check | real driver | scripted driver |\n| --- | --- | --- |")?;
    for (name, outcome) in &real.checks {
        let known = scripted.checks.iter().find(|(it, _)| it == name);
        let known = known.map_or("did not run", |(_, outcome)| outcome);
        writeln!(page, "| {name} | {outcome} | {known} |")?;
    }
    let differences = real.differences(scripted);
    let differences = if differences.is_empty() { "none".into() } else { differences.join("; ") };
    writeln!(page, "\nDifferences: {differences}.\n\nTensors of torch: {torch}.\n")?;
    writeln!(page, "| rate | GiB/s | of the slower part | target |\n| --- | --- | --- | --- |")?;
    for (name, rate, part) in &real.rates {
        let (part, target) = match part {
            Some(part) => {
                let verdict = if *part >= STAGED_MIN { "met" } else { "missed" };
                (format!("{part:.2}"), format!("{STAGED_MIN}, {verdict}"))
            }
            None => (String::new(), String::new()),
        };
        writeln!(page, "| {name} | {rate:.2} | {part} | {target} |")?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPTED: &str = r#"{"devices":["ffff:ff:1f.0"]}
{"check":"copies","outcome":"proven"}
{"check":"export","outcome":"proven"}
"#;
    const REAL: &str = r#"{"devices":["0000:17:00.0"]}
{"check":"copies","outcome":"proven"}
{"check":"export","outcome":"failed: no"}
{"rate":"raw","gib_per_s":20.0,"of_slower_part":null}
{"rate":"staged","gib_per_s":10.0,"of_slower_part":0.5}
"#;

    #[test]
    fn page_has_checks_differences_and_rates() {
        let (real, scripted) = (Ran::parse(REAL).unwrap(), Ran::parse(SCRIPTED).unwrap());
        assert_eq!(real.differences(&scripted), ["export: failed: no; scripted: proven"]);
        assert_eq!(real.failed(), ["export: failed: no"]);
        let page = page(&real, &scripted, "a machine", "OK").unwrap();
        for line in [
            "| copies | proven | proven |",
            "Differences: export: failed: no; scripted: proven.",
            "| raw | 20.00 |  |  |",
            "| staged | 10.00 | 0.50 | 0.8, missed |",
        ] {
            assert!(page.lines().any(|it| it == line), "{page}");
        }
    }

    #[test]
    fn result_of_a_bundle_is_read() {
        let run = format!("machine: one\nrun: scripted\n{SCRIPTED}run: real\n{REAL}torch: OK\n");
        let report = Report::parse(&run).unwrap();
        assert_eq!((report.machine.as_str(), report.torch.as_str()), ("one", "OK"));
        assert_eq!(report.scripted, Ran::parse(SCRIPTED).unwrap());
        assert_eq!(report.real, Ran::parse(REAL).unwrap());
        let error = Report::parse(&run.replace("run: real\n", "")).unwrap_err().to_string();
        assert_eq!(error, "the real driver did not run");
        let error = Report::parse(&run.replace("torch: OK\n", "")).unwrap_err().to_string();
        assert_eq!(error, "the result lacks the line `torch: `");
        for printed in ["machine: ", "run: scripted", "run: real", "torch: "] {
            assert!(RUNNER.contains(&format!("echo \"{printed}")), "{printed}");
        }
    }

    #[test]
    fn absent_driver_is_a_skip_and_a_failed_check_is_not() {
        let scripted = Ran::parse(SCRIPTED).unwrap();
        let absent = Ran::parse(r#"{"absent":"libcuda.so.1 cannot be opened"}"#).unwrap();
        let error = outcome(&scripted, absent).unwrap_err().to_string();
        assert!(error.contains("2 checks hold on the scripted driver; libcuda.so.1"), "{error}");
        let failed = outcome(&scripted, Ran::parse(REAL).unwrap()).unwrap_err().to_string();
        assert_eq!(failed, "export: failed: no");
        assert_eq!(
            outcome(&scripted, Ran::parse(SCRIPTED).unwrap()).unwrap(),
            "2 checks hold on 1 devices"
        );
        assert!(Ran::parse("").is_err());
    }
}
