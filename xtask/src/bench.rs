//! `cargo xtask bench`: the speed of handfast against the raw limits of the machine.

// Rates and ratios are only reported.
#![allow(clippy::float_arithmetic)]

mod engines;
mod figures;
mod guest;
mod managed;
mod page;
mod targets;

use crate::project::Project;
use crate::verbs::VerbsBuild;
use anyhow::{Context, Result, ensure};
use figures::Figures;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use targets::Target;

/// Number of peers opened at once.
const PEERS: &str = "1000";

/// Measure handfast and the raw limits of this machine alternately, and compare them with the
/// targets
///
/// Covers writes and reads of 4 KiB to 16 MiB, alone and 32 at a time, from one thread and from
/// four; latency of single requests; the first transfer to a new peer; processor time; and a
/// thousand peers. Each round also measures one TCP socket between two processes. Ratios are
/// medians of the rounds' ratios, so they roughly hold on a busy machine too. One process runs on
/// the first processor, the other on the last; single requests and first transfers are also measured
/// with both on all processors. Transfers through shared memory are measured next to copies between two
/// maps and calls of the kernel. Slices are also measured in the engine alone, without a
/// network or device, and over verbs on scripted devices.
///
/// Writes `bench.json` and `README.md`. Takes about eight minutes after the build, with
/// --quick less than one.
///
/// Exit code: 0 if everything was measured; with --check, 1 if a target was missed.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Fewer and shorter rounds, with the result in cargo's target folder, to test the benchmark
    /// itself
    #[arg(long)]
    quick: bool,
    /// Fail if a target is missed
    #[arg(long)]
    check: bool,
    /// Only transfers in a guest, in turns with perftest's: a single write of 4 KiB on soft-RoCE, sleeping
    /// for its completion, with `ib_write_lat`; and through the connection manager, on soft-iWARP and on
    /// soft-RoCE, with `ib_write_bw -R` and `ib_read_bw -R`. Writes `guest.json` and `guest.md`. Takes six
    /// minutes after the build
    #[arg(long, conflicts_with = "quick")]
    guest: bool,
    /// Only the Python package and those of Mooncake and NIXL in turns with handfast, each in processes
    /// of its own, and calls from Python in turns with those from Rust; writes `python.json` and
    /// `python.md`. Installs them with pip into cargo's target folder; one that cannot be installed
    /// or started is left out with the reason. Takes three minutes after the build
    #[arg(long, conflicts_with = "guest")]
    peers: bool,
    /// The optimised program with RDMA to measure in the guest, in place of one that is built first
    #[arg(long, value_name = "FILE", requires = "guest")]
    program: Option<PathBuf>,
    /// Output folder [default: docs/bench, with --quick target/xtask/bench]
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// One start of `handfast bench`.
struct Part {
    what: &'static str,
    words: &'static [&'static str],
    /// Whether each process runs on a processor of its own. The others' results are kept apart.
    is_pinned: bool,
    /// Batches, rounds and duration of a round, and those of the quick run.
    full: [&'static str; 3],
    quick: [&'static str; 3],
}

/// The engine's benchmark of slices.
const SLICES: [&str; 6] = ["bench", "--quiet", "-p", "handfast", "--bench", "slices"];
/// The engine's benchmark of slices over verbs.
const VERBS: [&str; 8] =
    ["bench", "--quiet", "-p", "handfast", "--features", "bare", "--bench", "verbs"];
/// Timeout after which a run is killed.
const LIMIT: Duration = Duration::from_secs(300);
/// Transfers between two processes of this host.
const SAME_HOST: [&str; 6] = ["bench", "--quiet", "-p", "handfast", "--bench", "same_host"];
/// Nodes with keys, with certificates and with encrypted lanes, in turns with plain ones.
const AUTH: [&str; 6] = ["bench", "--quiet", "-p", "handfast", "--bench", "auth"];
const PARTS: [Part; 3] = [
    Part {
        what: "small and middle sizes, and single requests",
        words: &["--size", "4K,64K,1M", "--latency"],
        is_pinned: true,
        full: ["1,32", "7", "200ms"],
        quick: ["1,32", "3", "40ms"],
    },
    Part {
        what: "16 MiB, the first transfer and a thousand peers",
        words: &["--size", "16M", "--first-transfer", "--peers", PEERS],
        is_pinned: true,
        full: ["1,32", "5", "300ms"],
        quick: ["1", "3", "100ms"],
    },
    Part {
        what: "single requests after other load and the first transfer, not pinned",
        words: &["--size", "4K,64K,1M", "--latency", "--first-transfer"],
        is_pinned: false,
        full: ["32", "5", "200ms"],
        quick: ["32", "2", "40ms"],
    },
];

pub(crate) fn run(project: Project, arguments: &Arguments) -> Result<bool> {
    if arguments.guest {
        let folder = arguments.folder.clone().unwrap_or_else(|| project.root().join("docs/bench"));
        return Ok(guest::run(&project, arguments.program.as_deref(), &folder)? || !arguments.check);
    }
    let program = project.target().join("release/handfast");
    let folder = match (&arguments.folder, arguments.quick) {
        (Some(folder), _) => folder.clone(),
        (None, true) => project.scratch().join("bench"),
        (None, false) => project.root().join("docs/bench"),
    };
    println!("building handfast");
    let build = ["build", "--quiet", "--release", "-p", "handfast-cli"];
    let built = project.cargo(&build).status().context("cargo build")?;
    ensure!(built.success(), "handfast does not build: {built}");
    if arguments.peers {
        let missed = packages(&project, &program, arguments.quick, &folder)?;
        return Ok(!arguments.check || missed == 0);
    }
    // A build here has no limit.
    for benchmark in [SLICES, SAME_HOST, AUTH] {
        let built = project.cargo(&benchmark).arg("--no-run").status().context("cargo bench")?;
        ensure!(built.success(), "the engine's benchmark does not build: {built}");
    }
    let began = Instant::now();
    let mut figures = Figures::new(arguments.quick, commit(&project));
    let cores = cores();
    for Part { what, words, is_pinned, full, quick } in &PARTS {
        println!("measuring {what}");
        let [batch, rounds, duration] = if arguments.quick { quick } else { full };
        let mut command = Command::new(&program);
        command
            .args(["bench", "--json", "--transport", "tcp", "--limit", "--threads", "1,4"])
            .args(cores.iter().filter(|_| *is_pinned))
            .args(*words);
        command.args(["--batch", batch, "--rounds", rounds, "--duration", duration]);
        let output = project.run(command, "bench", Instant::now() + LIMIT)?;
        let result = result_in(&output);
        match is_pinned {
            true => figures.add(result)?,
            false => figures.add(&format!("{{\"unpinned\": {result}}}"))?,
        }
    }
    println!("measuring slices in the engine");
    let output = project.run(project.cargo(&SLICES), "bench-slices", Instant::now() + LIMIT)?;
    figures.add(result_in(&output))?;
    println!("measuring processes that share memory");
    let output =
        project.run(project.cargo(&SAME_HOST), "bench-same-host", Instant::now() + LIMIT)?;
    figures.add(result_in(&output))?;
    println!("measuring keys, certificates and encrypted lanes");
    let output = project.run(project.cargo(&AUTH), "bench-auth", Instant::now() + LIMIT)?;
    figures.add(result_in(&output))?;
    match VerbsBuild::prepare(&project, Instant::now() + LIMIT) {
        Ok(verbs) => figures.add(&over_verbs(&project, &verbs)?)?,
        Err(error) => println!("not measured: slices over verbs: {error:#}"),
    }
    figures.took(began.elapsed());
    let targets = targets::judge(&figures);
    let texts = [
        ("bench.json", figures.to_json(&targets)?),
        ("README.md", page::page(&figures, &targets)?),
    ];
    let missed = write(&targets, texts, &folder)?;
    Ok(!arguments.check || missed == 0)
}

/// Measures the Python package and those of other engines. Returns the number of missed targets.
fn packages(project: &Project, program: &Path, quick: bool, folder: &Path) -> Result<usize> {
    let python = engines::install(project)?;
    println!("measuring the Python package, and those of other engines");
    let began = Instant::now();
    let mut figures = Figures::new(quick, commit(project));
    for result in python.measure(project, program, quick)? {
        figures.add(&result)?;
    }
    figures.took(began.elapsed());
    let targets = targets::judge_packages(&figures);
    let texts = [
        ("python.json", figures.of_packages(&targets)?),
        ("python.md", page::python(&figures, &targets)?),
    ];
    write(&targets, texts, folder)
}

/// Writes the results. Returns the number of missed targets.
fn write(targets: &[Target], texts: [(&str, String); 2], folder: &Path) -> Result<usize> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    for (name, text) in texts {
        fs::write(folder.join(name), text).with_context(|| format!("writing {name}"))?;
    }
    print!("\n{}", page::terminal(targets));
    println!("\nwritten to {}", folder.display());
    let missed = targets.iter().filter(|target| !target.is_met()).count();
    println!("ok: {missed} of {} targets missed", targets.len());
    Ok(missed)
}

/// Measures slices over verbs, and returns the line of the result.
fn over_verbs(project: &Project, verbs: &VerbsBuild) -> Result<String> {
    println!("measuring slices over verbs, on scripted devices");
    let command = || {
        let mut command = project.cargo(&VERBS);
        verbs.apply(&mut command);
        command
    };
    // A build here has no limit.
    let built = command().arg("--no-run").status().context("cargo bench")?;
    ensure!(built.success(), "the benchmark of verbs does not build: {built}");
    let output = project.run(command(), "bench-verbs", Instant::now() + LIMIT)?;
    Ok(result_in(&output).to_owned())
}

/// Returns the line of the result; standard error is in the same log.
fn result_in(output: &str) -> &str {
    output.lines().find(|line| line.starts_with('{')).unwrap_or_default()
}

/// Returns the first processor that this process may use, for one side, and the last, for the
/// other.
fn cores() -> Vec<String> {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let numbers = |text: &str| -> Vec<usize> {
        text.split([',', '-']).filter_map(|number| number.trim().parse().ok()).collect()
    };
    match allowed.map(numbers).as_deref() {
        Some([first, .., last]) => vec!["--cores".to_owned(), format!("{first},{last}")],
        Some([one]) => vec!["--cores".to_owned(), one.to_string()],
        _ => Vec::new(),
    }
}

/// The measured commit.
fn commit(project: &Project) -> Option<String> {
    let mut command = Command::new("git");
    command.current_dir(project.root()).args(["rev-parse", "--short", "HEAD"]);
    let output = command.stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
