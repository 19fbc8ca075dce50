//! Stages of steps: their outcomes, one line per stage, and a summary.

use crate::command::take_processor_time;
use anstyle::{AnsiColor, Style};
use anyhow::{Result, anyhow, bail};
use std::io::Write;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Multiple of its budget after which a stage is killed: budgets are for two idle processors. Stages of a change
/// have budgets of fifteen minutes in all, and CI has ninety.
const LIMIT: u32 = 6;

/// The variable with the names of stages, separated by commas, of which no step may be skipped.
const REQUIRED: &str = "HANDFAST_REQUIRED_STAGES";

/// A note such as the number of tests, which may be empty; [`Skipped`]; or a failure, whose first
/// line is the cause.
pub(crate) type Outcome = Result<String>;

/// The error of a step that cannot run here.
#[derive(Debug)]
pub(crate) struct Skipped(String);

impl std::fmt::Display for Skipped {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Skipped {}

/// Creates the error of a step that cannot run here.
pub(crate) fn skipped(why: impl Into<String>) -> anyhow::Error {
    Skipped(why.into()).into()
}

/// Converts the failure of a preparation to a reason for skipping the step.
pub(crate) fn as_skipped(error: anyhow::Error) -> anyhow::Error {
    skipped(format!("{error:#}").lines().next().unwrap_or_default())
}

/// Passes without findings, and fails with them.
pub(crate) fn of_findings(findings: &[String], note: impl Into<String>) -> Outcome {
    if !findings.is_empty() {
        bail!("findings: {}\n{}", findings.len(), findings.join("\n"));
    }
    Ok(note.into())
}

/// A check that passes, fails or is skipped. It must end before the given instant.
pub(crate) struct Step<'a> {
    name: &'static str,
    run: Box<dyn FnOnce(Instant) -> Outcome + Send + 'a>,
}

impl<'a> Step<'a> {
    pub(crate) fn new(
        name: &'static str,
        run: impl FnOnce(Instant) -> Outcome + Send + 'a,
    ) -> Self {
        Self { name, run: Box::new(run) }
    }
}

/// Steps that share a budget of time.
pub(crate) struct Stage<'a> {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) budget: Duration,
    pub(crate) steps: Vec<Step<'a>>,
}

/// A finished stage.
struct Run {
    name: &'static str,
    what: &'static str,
    budget: Duration,
    took: Duration,
    steps: Vec<Done>,
}

/// A finished step.
struct Done {
    /// Its name, with that of its stage.
    name: String,
    took: Duration,
    processor: Duration,
    outcome: Outcome,
}

impl Stage<'_> {
    /// Returns the names for `--step`.
    pub(crate) fn step_names(&self) -> impl Iterator<Item = &'static str> {
        self.steps.iter().map(|step| step.name)
    }

    /// Removes every step with another name.
    pub(crate) fn keep_step(&mut self, name: &str) {
        self.steps.retain(|step| step.name == name);
    }

    /// Runs every step, also after a failed one.
    fn run(self) -> Run {
        let started = Instant::now();
        let Stage { name, what, budget, steps } = self;
        let required = std::env::var(REQUIRED).ok();
        let run = |step: Step<'_>| {
            let (began, _) = (Instant::now(), take_processor_time());
            let outcome = (step.run)(started + LIMIT * budget);
            let outcome = outcome.map_err(|error| as_required(error, name, required.as_deref()));
            let name = format!("{name}: {}", step.name);
            Done { name, took: began.elapsed(), processor: take_processor_time(), outcome }
        };
        let steps = steps.into_iter().map(run).collect();
        Run { name, what, budget, took: started.elapsed(), steps }
    }
}

/// Checks that the variable of required stages names none but these.
pub(crate) fn check_required(stages: &[&str]) -> Result<()> {
    let names = std::env::var(REQUIRED).unwrap_or_default();
    unknown_of(&names, stages).map_or(Ok(()), |unknown| {
        bail!("{REQUIRED} names no stage '{unknown}'; there are: {}", stages.join(", "))
    })
}

fn unknown_of<'a>(names: &'a str, stages: &[&str]) -> Option<&'a str> {
    let mut names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
    names.find(|name| !stages.contains(name))
}

/// Turns the reason of a skipped step into a failure where its stage is one of the required, by their names.
fn as_required(error: anyhow::Error, stage: &str, required: Option<&str>) -> anyhow::Error {
    let mut names = required.into_iter().flat_map(|names| names.split(','));
    let is_required = names.any(|name| name.trim() == stage);
    if !is_required || !error.is::<Skipped>() {
        return error;
    }
    anyhow!("skipped, and {REQUIRED} names the stage: {error}")
}

impl Done {
    fn skipped(&self) -> Option<&Skipped> {
        self.outcome.as_ref().err()?.downcast_ref()
    }

    /// Returns the cause of a failure and its details.
    fn failed(&self) -> Option<(String, String)> {
        let error = self.outcome.as_ref().err().filter(|_| self.skipped().is_none())?;
        let text = format!("{error:#}");
        let (why, rest) = text.split_once('\n').unwrap_or((&text, ""));
        Some((why.to_owned(), rest.lines().map(|line| format!("    {line}\n")).collect()))
    }
}

/// The finished steps of all stages.
#[derive(Default)]
pub(crate) struct Summary {
    steps: Vec<Done>,
}

impl Summary {
    /// Runs a stage and prints its line.
    pub(crate) fn run(&mut self, stage: Stage<'_>) {
        begin_line(stage.name, stage.what);
        // A failed flush is harmless: the line is complete when the stage is.
        drop(anstream::stdout().flush());
        self.end_line(stage.run());
    }

    /// Runs the stages of each list in sequence, both lists in parallel, and prints the line of a
    /// stage when it ends.
    pub(crate) fn run_both(&mut self, one: Vec<Stage<'_>>, other: Vec<Stage<'_>>) {
        let (ended, ends) = mpsc::channel();
        thread::scope(|scope| {
            for stages in [one, other] {
                let ended = ended.clone();
                scope.spawn(move || {
                    // The receiver lives until all senders are gone.
                    stages.into_iter().for_each(|stage| drop(ended.send(stage.run())));
                });
            }
            drop(ended);
            for run in ends {
                begin_line(run.name, run.what);
                self.end_line(run);
            }
        });
    }

    fn end_line(&mut self, run: Run) {
        let (style, result, counts) = result_of(&run.steps);
        let seconds = format!("{:.1} s", run.took.as_secs_f64());
        let notes = run.steps.iter().filter_map(|step| step.outcome.as_ref().ok());
        let notes = notes.filter(|note| !note.is_empty()).map(|note| format!("; {note}"));
        let notes = notes.collect::<String>();
        let over = if run.took > run.budget { ", over budget" } else { "" };
        anstream::println!(
            "{style}{result:<7}{style:#} {seconds:>8} of {:>4} s  {counts}{over}{notes}",
            run.budget.as_secs()
        );
        for step in &run.steps {
            if let Some((why, rest)) = step.failed() {
                anstream::println!("\n{}: {why}\n{rest}", step.name);
            }
        }
        self.steps.extend(run.steps);
    }

    /// Prints the summary of all stages and returns whether nothing failed.
    pub(crate) fn finish(&self) -> bool {
        anstream::println!("\ntook        of a processor");
        for Done { name, took, processor, .. } in &self.steps {
            let (took, processor) = (took.as_secs_f64(), processor.as_secs_f64());
            anstream::println!("{took:>7.1} s  {processor:>7.1} s  {name}");
        }
        let (style, result, counts) = result_of(&self.steps);
        anstream::println!("\n{style}{result}{style:#}: {counts}");
        let failed: Vec<_> =
            self.steps.iter().filter_map(|step| Some((&step.name, step.failed()?.0))).collect();
        failed.iter().for_each(|(name, why)| anstream::println!("  failed   {name}: {why}"));
        for step in &self.steps {
            if let Some(why) = step.skipped() {
                anstream::println!("  skipped  {}: {why}", step.name);
            }
        }
        failed.is_empty()
    }
}

fn begin_line(name: &str, what: &str) {
    anstream::print!("{name:<9} {what:<58} ");
}

/// Returns the overall result, and the number of each outcome.
fn result_of(steps: &[Done]) -> (Style, &'static str, String) {
    let passed = steps.iter().filter(|step| step.outcome.is_ok()).count();
    let skipped = steps.iter().filter(|step| step.skipped().is_some()).count();
    let failed = steps.len() - passed - skipped;
    let (colour, result) = match (passed, failed) {
        (_, 1..) => (AnsiColor::Red, "FAILED"),
        (0, 0) => (AnsiColor::Yellow, "skipped"),
        _ => (AnsiColor::Green, "ok"),
    };
    let parts = [(passed, "passed"), (failed, "failed"), (skipped, "skipped")];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let counts = parts.map(|(count, word)| format!("{count} {word}")).collect::<Vec<_>>();
    (Style::new().fg_color(Some(colour.into())).bold(), result, counts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    fn stage<'a>(name: &'static str, steps: Vec<Step<'a>>) -> Stage<'a> {
        Stage { name, what: "w", budget: Duration::from_secs(20), steps }
    }

    /// A step that is skipped fails where its stage is required, and a failure is never softened.
    #[test]
    fn skipped_step_of_a_required_stage_fails() {
        let judged = |error, required| {
            let outcome = Err(as_required(error, "guest", required));
            let done = Done {
                name: String::new(),
                took: Duration::ZERO,
                processor: Duration::ZERO,
                outcome,
            };
            (done.skipped().is_some(), done.failed().is_some())
        };
        assert_eq!(judged(skipped("no QEMU"), None), (true, false));
        assert_eq!(judged(skipped("no QEMU"), Some("fleet,guests")), (true, false));
        assert_eq!(judged(skipped("no QEMU"), Some("fleet, guest")), (false, true));
        assert_eq!(judged(anyhow!("broken"), Some("guest")), (false, true));
        assert_eq!(judged(anyhow!("broken"), None), (false, true));
        let stages = ["guest", "fleet"];
        assert_eq!(unknown_of("", &stages), None);
        assert_eq!(unknown_of("fleet, guest", &stages), None);
        assert_eq!(unknown_of("fleet,guests", &stages), Some("guests"));
    }

    #[test]
    fn next_step_runs_after_failed_one() {
        let mut summary = Summary::default();
        let mut reached = false;
        let steps = vec![
            Step::new("one", |_| Err(anyhow!("broken\nwhy"))),
            Step::new("two", |_| Err(skipped("no device"))),
            Step::new("three", |_| {
                reached = true;
                Ok(String::new())
            }),
        ];
        summary.run(stage("s", steps));
        assert!(reached);
        assert!(!summary.finish());
        let failed = summary.steps[0].failed();
        assert_eq!(failed, Some(("broken".to_owned(), "    why\n".to_owned())));
        assert_eq!(result_of(&summary.steps).2, "1 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn stages_of_both_lists_run_at_the_same_time() {
        let (first, second) = (mpsc::channel(), mpsc::channel());
        // Each waits for a message of the other: in sequence neither would end.
        let meet = |to: mpsc::Sender<()>, from: mpsc::Receiver<()>| {
            vec![Step::new("step", move |_| {
                to.send(())?;
                from.recv_timeout(Duration::from_secs(10))?;
                Ok(String::new())
            })]
        };
        let broken = vec![Step::new("step", |_| Err(anyhow!("broken")))];
        let mut summary = Summary::default();
        summary.run_both(
            vec![stage("a", meet(first.0, second.1)), stage("b", broken)],
            vec![stage("c", meet(second.0, first.1))],
        );
        assert_eq!(result_of(&summary.steps).2, "2 passed, 1 failed");
    }

    #[test]
    fn skipped_steps_fail_nothing_and_pass_nothing() {
        let mut summary = Summary::default();
        summary.run(stage("s", vec![Step::new("one", |_| Err(skipped("no tool")))]));
        assert!(summary.finish());
        assert_eq!(result_of(&summary.steps).1, "skipped");
    }
}
