//! `cargo xtask test` and `cargo xtask nightly`: every check there is, stage by stage.

mod determinism;
mod rust_tests;
mod sanitizer;

pub(crate) use rust_tests::{NIGHTLY, judged};

use crate::checks::{circles, core_source, graph, links, program, texts, words};
use crate::command::{Finished, cargo, modest, run as run_command};
use crate::features::Features;
use crate::project::Project;
use crate::report::{Outcome, Stage, Step, Summary};
use crate::{api, dashboard, fleet, fuzz, guest, setup, variants};
use anyhow::{Result, bail};
use std::time::{Duration, Instant};

/// Check everything: build, lints, tests, exploration. CI runs it on every change.
///
/// Sets up what is missing (see `cargo xtask setup`) and runs the stages, `explorer`, `seeds` and
/// `fleet` in parallel to the others. Each has a budget of time on two idle processors; past four
/// times that it is killed and fails. One line per stage; the output of what failed follows it. A step that cannot
/// run here is skipped, and the summary gives the reason and the time of every step.
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
    /// List the stages with their budgets and run none
    #[arg(long)]
    list: bool,
}

/// Stages that run in parallel to all others, one after the other. The first two need a processor and
/// nothing else, build with another profile, and measure no time: they run at low priority, while the
/// others build, download, wait for sockets and for an emulated machine. The third mostly waits.
const BESIDE: [&str; 3] = ["explorer", "seeds", fleet::STAGE];

/// Seconds of fuzzing at night, over all decoders.
const FUZZ_SECONDS: u64 = 600;

/// Depth of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    EveryChange,
    Nightly,
}

impl Depth {
    /// Stages run in parallel. At night there is time, and explorations need the memory.
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

/// Runs the chosen stages and says whether nothing failed.
pub(crate) fn run(project: Project, arguments: &Arguments, depth: Depth) -> Result<bool> {
    let mut stages = all(&project, depth);
    if arguments.list {
        for stage in &stages {
            anstream::println!(
                "{:<9} {:<58} {:>5} s",
                stage.name,
                stage.what,
                stage.budget.as_secs()
            );
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
    let setup = setup::stage_for(&project, &names);
    let is_beside = |stage: &Stage<'_>| depth.is_crowded() && BESIDE.contains(&stage.name);
    let (beside, mut others): (Vec<_>, Vec<_>) = stages.into_iter().partition(is_beside);
    others.insert(0, setup);
    let mut summary = Summary::default();
    if beside.is_empty() {
        others.into_iter().for_each(|stage| summary.run(stage));
    } else {
        summary.run_beside(others, beside);
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

fn all(project: &Project, depth: Depth) -> Vec<Stage<'_>> {
    let mut stages = stages(project, depth);
    if depth == Depth::Nightly {
        stages.push(Stage {
            name: "sanitizer",
            what: "memory errors and leaks, with AddressSanitizer",
            budget: depth.budget(300),
            steps: sanitizer::steps(project),
        });
        stages.push(Stage {
            name: "fuzz",
            what: "decoders: new inputs",
            budget: depth.budget(200),
            steps: vec![Step::new("fuzzing", move |deadline| {
                fuzz::step(project, FUZZ_SECONDS, deadline)
            })],
        });
        stages.push(Stage {
            name: "release",
            what: "the program as users build it",
            budget: depth.budget(150),
            steps: release(project),
        });
        stages.push(Stage {
            name: "dashboard",
            what: "every query of the Grafana dashboard against live nodes",
            budget: depth.budget(150),
            steps: vec![dashboard::step(project)],
        });
    }
    stages
}

fn stages(project: &Project, depth: Depth) -> Vec<Stage<'_>> {
    vec![
        Stage {
            name: "checks",
            what: "format, lints, licences, what the core may use, texts",
            budget: depth.budget(150),
            steps: checks(project),
        },
        Stage {
            name: "tests",
            what: "every test of every package, examples in the docs",
            budget: depth.budget(430),
            steps: rust_tests::workspace(project, depth.property_cases()),
        },
        Stage {
            name: "explorer",
            what: "every interleaving up to the bounds, random sweeps",
            budget: depth.budget(600),
            steps: explorer(project, depth == Depth::Nightly),
        },
        Stage {
            name: "seeds",
            what: "the same seeds give the same worlds in every build",
            budget: depth.budget(100),
            steps: seeds(project),
        },
        Stage {
            name: fleet::STAGE,
            what: "released Mooncake nodes as peers, a real etcd",
            budget: depth.budget(80),
            steps: fleet::steps(project, depth == Depth::Nightly),
        },
        Stage {
            name: "guest",
            what: "the same on the kernel's RDMA driver in a virtual machine",
            // The machine is emulated.
            budget: depth.budget(280),
            steps: guest::steps(project, depth == Depth::Nightly),
        },
    ]
}

/// `cargo xtask check`: says whether nothing failed.
pub(crate) fn check(project: &Project) -> bool {
    let mut steps = vec![
        cargo_step(project, "format", Some(&setup::RUSTFMT), FORMAT),
        Step::new("lints", |deadline| lints(project, &Features::default_only(), deadline)),
        rust_tests::short(project),
    ];
    steps.extend(fast_checks(project));
    let mut summary = Summary::default();
    let budget = Duration::from_secs(180);
    summary.run(Stage { name: "check", what: "format, lints, short tests", budget, steps });
    summary.finish()
}

const FORMAT: &[&str] = &["fmt", "--all", "--check"];

/// Lints of every target, with such features.
pub(crate) fn lints(project: &Project, features: &Features, deadline: Instant) -> Outcome {
    if !setup::CLIPPY.is_present() {
        return setup::CLIPPY.missing();
    }
    let words: (&[&str], &[&str]) = (&["clippy"], &["--all-targets", "--", "-D", "warnings"]);
    features.run(project, "lints", words, deadline).outcome(|_| String::new())
}

fn checks(project: &Project) -> Vec<Step<'_>> {
    let mut steps = vec![
        cargo_step(project, "format", Some(&setup::RUSTFMT), FORMAT),
        Step::new("lints", |deadline| lints(project, &Features::without_verbs(project), deadline)),
        guest::lints(project),
        Step::new("documentation", |deadline| {
            let mut features = Features::without_verbs(project);
            features.set("RUSTDOCFLAGS", "-D warnings");
            let words: (&[&str], &[&str]) = (&["doc"], &["--no-deps"]);
            features.run(project, "documentation", words, deadline).outcome(|_| String::new())
        }),
        cargo_step(
            project,
            "licences",
            Some(&setup::DENY),
            &["deny", "check", "licenses", "bans", "sources"],
        ),
    ];
    steps.extend(fast_checks(project));
    steps
}

/// Those that read the sources and cargo's graph.
fn fast_checks(project: &Project) -> Vec<Step<'_>> {
    vec![
        Step::new("core-dependencies", |_| graph::core_dependencies(project)),
        Step::new("library-dependencies", |_| graph::library_dependencies(project)),
        Step::new("core-features", |_| graph::core_features(project)),
        Step::new("core-source", |_| core_source::check(project.root())),
        Step::new("import-circles", |_| circles::check(project.root())),
        Step::new("variants-apply", |_| variants::check(project)),
        Step::new("texts", |_| texts::check(project.root())),
        Step::new("links", |_| links::check(project.root())),
        Step::new("words", |_| words::check(project.root())),
    ]
}

/// The default features, which no test of every change is built with.
fn release(project: &Project) -> Vec<Step<'_>> {
    vec![
        Step::new("default-features", |deadline| rust_tests::default_features(project, deadline)),
        Step::new("program-without-variants", |deadline| {
            program::without_variants(project, deadline)
        }),
        Step::new("library-surface", |_| api::check(project)),
    ]
}

fn explorer(project: &Project, nightly: bool) -> Vec<Step<'_>> {
    let mut steps = rust_tests::explorer(project, nightly);
    steps.push(Step::new("lane-gate", |deadline| {
        // Loom replaces the atomics, so it needs a build of its own.
        let target = project.scratch().join("loom");
        let mut command =
            cargo(project.root(), ["test", "--release", "-p", "handfast-core", "--test", "gate"]);
        command.env("RUSTFLAGS", "--cfg core_loom").env("CARGO_TARGET_DIR", target);
        let log = project.scratch().join("lane-gate.log");
        run_command(modest(command), log, deadline)
            .outcome(|_| "the lane gate in every order".to_owned())
    }));
    steps
}

fn seeds(project: &Project) -> Vec<Step<'_>> {
    let mut steps = rust_tests::seeds(project);
    steps.extend(determinism::steps(project));
    steps
}

/// A step that is one cargo command and needs a tool.
fn cargo_step<'a>(
    project: &'a Project,
    name: &'static str,
    tool: Option<&'static setup::Tool>,
    arguments: &'static [&'static str],
) -> Step<'a> {
    Step::new(name, move |deadline| match tool {
        Some(tool) if !tool.is_present() => tool.missing(),
        _ => run_cargo(project, name, arguments, deadline).outcome(|_| String::new()),
    })
}

/// Runs cargo with its output in a log named after the step.
fn run_cargo(project: &Project, name: &str, arguments: &[&str], deadline: Instant) -> Finished {
    let command = cargo(project.root(), arguments.iter().copied());
    run_command(command, project.scratch().join(format!("{name}.log")), deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_has_a_name_of_its_own_a_budget_and_steps() {
        let project = Project::find().unwrap();
        for depth in [Depth::EveryChange, Depth::Nightly] {
            let mut names: Vec<_> = all(&project, depth).iter().map(|stage| stage.name).collect();
            assert!(
                all(&project, depth).iter().all(|s| !s.steps.is_empty() && !s.budget.is_zero())
            );
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), if depth == Depth::Nightly { 10 } else { 6 });
        }
    }

    #[test]
    fn a_single_step_is_chosen_by_its_name_and_one_that_is_none_is_refused_with_those_there_are() {
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

    #[test]
    fn nightly_has_more_time_for_everything() {
        let project = Project::find().unwrap();
        let (short, long) = (all(&project, Depth::EveryChange), all(&project, Depth::Nightly));
        assert!(short.iter().zip(&long).all(|(short, long)| short.budget < long.budget));
        let fuzz = long.iter().find(|stage| stage.name == "fuzz").unwrap();
        assert!(fuzz.budget.as_secs() > FUZZ_SECONDS);
    }

    /// A stage that needs more takes it from another.
    #[test]
    fn budgets_of_a_change_add_up_to_fifteen_minutes() {
        let project = Project::find().unwrap();
        let stages = all(&project, Depth::EveryChange);
        let sum = |beside: bool| {
            let chosen = stages.iter().filter(|stage| BESIDE.contains(&stage.name) == beside);
            chosen.map(|stage| stage.budget.as_secs()).sum::<u64>()
        };
        let names: Vec<_> = stages.iter().map(|stage| stage.name).collect();
        let setup = setup::stage_for(&project, &names).budget.as_secs();
        assert_eq!(setup + sum(false), 900);
        assert!(sum(true) <= 900);
    }
}
