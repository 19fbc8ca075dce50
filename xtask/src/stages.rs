//! `cargo xtask test` and `cargo xtask nightly`: all checks, stage by stage.

mod determinism;
mod rust_tests;
mod sanitizer;

pub(crate) use rust_tests::{NIGHTLY, TestBinary, binary, build, judged};

use crate::checks::{circles, graph, inventory, links, program, texts};
use crate::features::Features;
use crate::project::Project;
use crate::rates::stateright;
use crate::report::{Outcome, Stage, Step, Summary, check_required, skipped};
use crate::{api, c_library, dashboard, fleet, fuzz, gpu, guest, python, setup, upgrade, variants};
use anyhow::{Result, bail};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Check everything: build, lints, tests, exploration. CI runs it on every change.
///
/// Installs missing programs (see `cargo xtask setup`) and runs the stages, `explorer`, `seeds`, `fuzz` and
/// `fleet` in parallel to the others. Each has a budget of time on two idle processors; past six
/// times that it is killed and fails. Prints one line per stage, followed by the output of failed
/// steps. A step that cannot run here is skipped, and the summary gives the reason and the time of
/// every step.
///
/// Exit code: 0 if nothing failed, 1 if something did.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Run only this stage; may be given more than once
    #[arg(long = "stage", value_name = "NAME")]
    stages: Vec<String>,
    /// Run only the steps of that name
    #[arg(long = "step", value_name = "NAME")]
    step: Option<String>,
    /// Run the stages so many times, at most 100, whatever fails, and count the runs in which nothing
    /// did: `--stage guest --times 20`
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    times: u32,
    /// Run Mooncake's own tests too, from this folder with its sources, or with Mooncake, LMCache and
    /// nixl, of which the latter two are tested at night; nothing of it is kept
    #[arg(long, value_name = "DIR")]
    upstream: Option<PathBuf>,
    /// List the stages with their budgets and steps without running any
    #[arg(long)]
    list: bool,
}

/// Stages that run in sequence, in parallel to all others. All but the last only need a processor,
/// build with another profile, and measure no time: they run at the lowest priority, while the
/// others build, download, and wait for sockets and an emulated machine. The last mostly waits.
const PARALLEL: [&str; 4] = ["explorer", "seeds", "fuzz", fleet::STAGE];

/// Seconds of inputs to each target of the fuzzer, without counters of coverage and at night with them.
const FUZZ_SECONDS: [u64; 2] = [10, 70];

/// Depth of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    EveryChange,
    Nightly,
}

impl Depth {
    /// Whether stages run in parallel. Nightly runs have time, and their explorations need the
    /// memory.
    fn is_crowded(self) -> bool {
        self == Self::EveryChange
    }

    fn budget(self, seconds: u64) -> Duration {
        Duration::from_secs(if self == Self::Nightly { 6 * seconds } else { seconds })
    }

    fn property_cases(self) -> Option<u32> {
        (self == Self::Nightly).then_some(4096)
    }
}

/// Runs the chosen stages, as often as asked for, and returns whether nothing failed.
pub(crate) fn run(project: Project, arguments: &Arguments, depth: Depth) -> Result<bool> {
    let project = project.built_once().with_upstream(arguments.upstream.as_deref())?;
    repeat(arguments.times, |number| {
        if arguments.times > 1 {
            anstream::println!("run {number} of {}", arguments.times);
        }
        run_once(&project, arguments, depth)
    })
}

/// Counts the runs in which nothing failed, and returns whether those are all.
fn repeat(times: u32, mut run: impl FnMut(u32) -> Result<bool>) -> Result<bool> {
    let mut green = 0;
    for number in 1..=times {
        green += u32::from(run(number)?);
        if times > 1 {
            anstream::println!("{green} of {number} runs are green");
        }
    }
    Ok(green == times)
}

fn run_once(project: &Project, arguments: &Arguments, depth: Depth) -> Result<bool> {
    let every: Vec<_> = all(project, Depth::Nightly).iter().map(|stage| stage.name).collect();
    check_required(&every)?;
    let mut stages = all(project, depth);
    if arguments.list {
        for stage in &stages {
            anstream::println!(
                "{:<9} {:<58} {:>5} s",
                stage.name,
                stage.what,
                stage.budget.as_secs()
            );
            anstream::println!("          {}", stage.step_names().collect::<Vec<_>>().join(", "));
        }
        return Ok(true);
    }
    if !arguments.stages.is_empty() {
        let names: Vec<_> = stages.iter().map(|stage| stage.name).collect();
        if let Some(unknown) = arguments.stages.iter().find(|name| !names.contains(&name.as_str()))
        {
            bail!("no stage '{unknown}'; there are: {}", names.join(", "));
        }
        stages.retain(|stage| arguments.stages.iter().any(|name| name == stage.name));
    }
    if let Some(name) = &arguments.step {
        keep_step(&mut stages, name)?;
    }
    let names: Vec<_> = stages.iter().map(|stage| stage.name).collect();
    let setup = setup::stage_for(project, &names);
    let is_parallel = |stage: &Stage<'_>| depth.is_crowded() && PARALLEL.contains(&stage.name);
    let (parallel, others): (Vec<_>, Vec<_>) = stages.into_iter().partition(is_parallel);
    let mut summary = Summary::default();
    summary.run(setup);
    if parallel.is_empty() {
        others.into_iter().for_each(|stage| summary.run(stage));
    } else {
        summary.run_both(others, parallel);
    }
    Ok(summary.finish())
}

fn keep_step(stages: &mut Vec<Stage<'_>>, name: &str) -> Result<()> {
    if !stages.iter().flat_map(Stage::step_names).any(|step| step == name) {
        let steps: Vec<_> = stages.iter().flat_map(Stage::step_names).collect();
        bail!("no step '{name}' in the stages; there are: {}", steps.join(", "));
    }
    stages.iter_mut().for_each(|stage| stage.keep_step(name));
    stages.retain(|stage| stage.step_names().next().is_some());
    Ok(())
}

/// Returns the stages of a run, each with its budget in seconds for a change.
fn all(project: &Project, depth: Depth) -> Vec<Stage<'_>> {
    let nightly = depth == Depth::Nightly;
    let stage =
        |name, what, seconds, steps| Stage { name, what, budget: depth.budget(seconds), steps };
    let mut stages = vec![
        stage(
            "checks",
            "format, lints, licences, what the core may use, texts",
            140,
            checks(project, nightly),
        ),
        stage(
            "tests",
            "every test of every package, examples in the docs",
            400,
            tests(project, depth),
        ),
        stage(
            "explorer",
            "every interleaving up to the bounds, random sweeps",
            600,
            explorer(project, nightly),
        ),
        stage(
            "seeds",
            "the same seeds give the same worlds in every build",
            100,
            [rust_tests::seeds(project)].into_iter().chain(determinism::steps(project)).collect(),
        ),
        // It waits for the build folder of the stage `tests`, as the end of `explorer` does.
        stage(
            "fuzz",
            "decoders, a lane and the simulated world: new inputs",
            100,
            vec![fuzz::mutations(project, FUZZ_SECONDS[0], nightly)],
        ),
        stage(
            fleet::STAGE,
            "released Mooncake nodes as peers, a real etcd and a real Redis",
            80,
            fleet::steps(project, nightly),
        ),
        stage(
            python::STAGE,
            "the Python package, in an environment of its own",
            110,
            python::steps(project, nightly),
        ),
        // The machine is emulated.
        stage(
            "guest",
            "the same on the kernel's RDMA driver in a virtual machine",
            210,
            guest::steps(project, nightly),
        ),
    ];
    if nightly {
        stages.extend(at_night(project, depth));
    }
    stages
}

/// Returns the steps of the stage `tests`.
fn tests(project: &Project, depth: Depth) -> Vec<Step<'_>> {
    let workspace = rust_tests::workspace(project, depth.property_cases());
    workspace.into_iter().chain([gpu::step(project)]).collect()
}

/// Returns the stages of the night alone.
fn at_night(project: &Project, depth: Depth) -> [Stage<'_>; 6] {
    let stage =
        |name, what, seconds, steps| Stage { name, what, budget: depth.budget(seconds), steps };
    [
        stage(
            "sanitizer",
            "memory errors and leaks, with AddressSanitizer and Miri",
            300,
            vec![
                sanitizer::step(project),
                sanitizer::verbs_step(project),
                sanitizer::pointers_step(project),
            ],
        ),
        stage(
            "libfuzzer",
            "the targets of fuzz, with inputs chosen by coverage",
            200,
            vec![fuzz::step(project, FUZZ_SECONDS[1])],
        ),
        stage("release", "the program as users build it", 150, release(project)),
        stage(
            "upgrade",
            "nodes of an earlier program that restart in turn as this one's",
            300,
            vec![Step::new("rolling", |deadline| upgrade::step(project, deadline))],
        ),
        stage("dashboard", dashboard::WHAT, 150, vec![dashboard::step(project)]),
        stage(
            "deep",
            "explorations of a bounded time: rails, mixed fleets, more faults",
            600,
            vec![Step::new("bounded", |deadline| rust_tests::deep(project, deadline))],
        ),
    ]
}

/// `cargo xtask check`: returns whether nothing failed.
pub(crate) fn check(project: &Project) -> bool {
    let mut steps = vec![
        format(project),
        Step::new("lints", |deadline| lints(project, &Features::default_only(), deadline)),
        rust_tests::short(project),
    ];
    steps.extend(fast_checks(project));
    let mut summary = Summary::default();
    let budget = Duration::from_secs(180);
    summary.run(Stage { name: "check", what: "format, lints, short tests", budget, steps });
    summary.finish()
}

fn format(project: &Project) -> Step<'_> {
    Step::new("format", |deadline| {
        setup::RUSTFMT.check()?;
        project.run(project.cargo(&["fmt", "--all", "--check"]), "format", deadline)?;
        Ok(String::new())
    })
}

/// Lints every target with these features.
fn lints(project: &Project, features: &Features, deadline: Instant) -> Outcome {
    setup::CLIPPY.check()?;
    let words: (_, &[&str]) = ("clippy", &["--all-targets", "--", "-D", "warnings"]);
    features.run(project, "lints", words, deadline)?;
    Ok(String::new())
}

fn checks(project: &Project, nightly: bool) -> Vec<Step<'_>> {
    let mut steps = vec![
        format(project),
        Step::new("lints", |deadline| {
            lints(project, &Features::available(project, deadline), deadline)
        }),
        Step::new("licences", |deadline| {
            setup::DENY.check()?;
            let deny = project.cargo(&["deny", "check", "licenses", "bans", "sources"]);
            project.run(deny, "licences", deadline)?;
            Ok(String::new())
        }),
        Step::new("packages", |deadline| packages(project, deadline)),
    ];
    if nightly {
        steps.push(Step::new("lints-without-verbs", |deadline| {
            lints(project, &Features::without_verbs(project), deadline)
        }));
        steps.push(Step::new("documentation", |deadline| documentation(project, deadline)));
        steps.push(Step::new("advisories", |deadline| advisories(project, deadline)));
    }
    steps.extend(fast_checks(project));
    steps
}

/// Checks that no dependency has a known weakness, by the database of RustSec.
fn advisories(project: &Project, deadline: Instant) -> Outcome {
    setup::DENY.check()?;
    let checked =
        project.run(project.cargo(&["deny", "check", "advisories"]), "advisories", deadline);
    match checked {
        Err(error) if format!("{error:#}").contains("failed to fetch advisory database") => {
            Err(skipped("the database of advisories cannot be fetched"))
        }
        checked => checked.map(|_| String::new()),
    }
}

/// Builds the documentation, without warnings.
fn documentation(project: &Project, deadline: Instant) -> Outcome {
    let mut features = Features::available(project, deadline);
    features.set("RUSTDOCFLAGS", "-D warnings");
    features.run(project, "documentation", ("doc", &["--no-deps"]), deadline)?;
    Ok(String::new())
}

/// Checks that every published crate can be packaged, and links only such crates.
fn packages(project: &Project, deadline: Instant) -> Outcome {
    let names = project.published();
    let mut command = project.cargo(&["package", "--no-verify", "--allow-dirty", "--offline"]);
    command.args(names.iter().flat_map(|name| ["--package", name]));
    command.arg("--target-dir").arg(project.scratch().join("package"));
    project.run(command, "packages", deadline)?;
    Ok(format!("{} crates packaged", names.len()))
}

/// Returns the checks that read the sources and cargo's graph.
fn fast_checks(project: &Project) -> Vec<Step<'_>> {
    vec![
        Step::new("core-dependencies", |_| graph::check(project, &graph::CORE_DEPENDENCIES)),
        Step::new("library-dependencies", |_| graph::check(project, &graph::LIBRARY_DEPENDENCIES)),
        Step::new("core-features", |_| graph::check(project, &graph::CORE_FEATURES)),
        Step::new("core-source", |_| texts::check(project.root(), "core-source")),
        Step::new("import-circles", |_| circles::check(project.root())),
        Step::new("unsafe-code", |_| inventory::check(project.root())),
        Step::new("variants-apply", |_| variants::check(project)),
        Step::new("texts", |_| texts::check(project.root(), "texts")),
        Step::new("links", |_| links::check(project.root())),
        Step::new("words", |_| texts::check(project.root(), "words")),
    ]
}

/// Tests the default features, with which no other test is built.
fn release(project: &Project) -> Vec<Step<'_>> {
    vec![
        Step::new("default-features", |deadline| rust_tests::default_features(project, deadline)),
        Step::new("program-without-variants", |deadline| {
            program::without_variants(project, deadline)
        }),
        Step::new("library-surface", |_| api::check(project)),
        c_library::step(project),
    ]
}

/// The step `variants` is last, since it waits for the build folder of the stage `tests`.
fn explorer(project: &Project, nightly: bool) -> Vec<Step<'_>> {
    let mut steps =
        vec![rust_tests::explorer(project, nightly), rust_tests::with_variants(project, nightly)];
    if nightly {
        steps.push(Step::new("variants-lints", |deadline| variants::lints(project, deadline)));
        steps.push(Step::new("variants-program", |deadline| variants::program(project, deadline)));
        steps.push(Step::new("stateright", |deadline| stateright::step(project, deadline)));
        steps.push(Step::new("planted", |deadline| variants::planted(project, deadline)));
        steps.push(Step::new("engine-variants", |deadline| variants::engine(project, deadline)));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_has_its_own_name_a_budget_and_steps() {
        let project = Project::find().unwrap();
        for depth in [Depth::EveryChange, Depth::Nightly] {
            let mut names: Vec<_> = all(&project, depth).iter().map(|stage| stage.name).collect();
            assert!(
                all(&project, depth).iter().all(|s| !s.steps.is_empty() && !s.budget.is_zero())
            );
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), if depth == Depth::Nightly { 14 } else { 8 });
        }
    }

    /// An unknown step is refused with the names of all steps.
    #[test]
    fn single_step_is_chosen_by_its_name() {
        let project = Project::find().unwrap();
        let mut chosen = all(&project, Depth::Nightly);
        keep_step(&mut chosen, "fleet-over-rdma").unwrap();
        let names: Vec<_> = chosen.iter().map(|stage| stage.name).collect();
        assert_eq!(names, ["guest"]);
        assert_eq!(chosen[0].step_names().collect::<Vec<_>>(), ["fleet-over-rdma"]);
        let mut every = all(&project, Depth::EveryChange);
        let refused = keep_step(&mut every, "fleet-over-rdma").unwrap_err().to_string();
        assert!(refused.contains("no step") && refused.contains("soft-roce"), "{refused}");
    }

    /// Runs after one that fails happen too, and one that fails is enough.
    #[test]
    fn every_repeated_run_counts() {
        let mut runs = Vec::new();
        let all = repeat(3, |number| {
            runs.push(number);
            Ok(number != 2)
        });
        assert!(!all.unwrap());
        assert_eq!(runs, [1, 2, 3]);
        assert!(repeat(2, |_| Ok(true)).unwrap());
    }

    #[test]
    fn nightly_has_more_time_for_everything() {
        let project = Project::find().unwrap();
        let (short, long) = (all(&project, Depth::EveryChange), all(&project, Depth::Nightly));
        assert!(short.iter().zip(&long).all(|(short, long)| short.budget < long.budget));
        let targets = std::fs::read_dir(project.root().join("fuzz/fuzz_targets")).unwrap().count();
        // Inputs of the first are tried for two targets at a time.
        for (stages, name, seconds, at_once) in
            [(&short, "fuzz", FUZZ_SECONDS[0], 2), (&long, "libfuzzer", FUZZ_SECONDS[1], 1)]
        {
            let stage = stages.iter().find(|stage| stage.name == name).unwrap();
            let fuzzing = targets.div_ceil(at_once) as u64 * seconds;
            assert!(stage.budget.as_secs() > fuzzing, "{name}");
        }
    }

    /// The budgets of a change are fixed: a stage that needs more time takes it from another.
    #[test]
    fn budgets_of_a_change_add_up_to_fifteen_minutes() {
        let project = Project::find().unwrap();
        let stages = all(&project, Depth::EveryChange);
        let sum = |parallel: bool| {
            let chosen = stages.iter().filter(|stage| PARALLEL.contains(&stage.name) == parallel);
            chosen.map(|stage| stage.budget.as_secs()).sum::<u64>()
        };
        let names: Vec<_> = stages.iter().map(|stage| stage.name).collect();
        let setup = setup::stage_for(&project, &names).budget.as_secs();
        assert_eq!(setup + sum(false), 900);
        assert!(sum(true) <= 900);
    }
}
