//! Stages of steps: what each came to, one line per stage, and the sum of all.

use crate::command::take_processor_time;
use anstyle::{AnsiColor, Style};
use std::io::Write;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// A stage that takes this many times its budget is killed: a budget is for two idle processors.
const LIMIT: u32 = 4;

/// Outcome of a step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// With a note such as the number of tests; may be empty.
    Passed(String),
    Failed {
        why: String,
        tail: String,
    },
    /// Not done, and why not.
    Skipped(String),
}

impl Outcome {
    pub(crate) fn failed(why: impl Into<String>, tail: impl Into<String>) -> Self {
        Self::Failed { why: why.into(), tail: tail.into() }
    }

    /// Passed without findings, failed with them.
    pub(crate) fn of_findings(findings: &[String], note: impl Into<String>) -> Self {
        if findings.is_empty() {
            Self::Passed(note.into())
        } else {
            Self::failed(format!("findings: {}", findings.len()), findings.join("\n"))
        }
    }
}

/// One thing that passes, fails or is skipped. It must end before the instant it is given.
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

/// Outcome of a stage's steps.
struct Run {
    name: &'static str,
    what: &'static str,
    budget: Duration,
    took: Duration,
    passed: usize,
    notes: Vec<String>,
    failed: Vec<String>,
    skipped: Vec<String>,
    /// Output of failed steps.
    details: Vec<String>,
    times: Vec<Time>,
}

/// Time of a step.
struct Time {
    step: String,
    took: Duration,
    processor: Duration,
}

impl Stage<'_> {
    /// Names for `--step`.
    pub(crate) fn step_names(&self) -> impl Iterator<Item = &'static str> {
        self.steps.iter().map(|step| step.name)
    }

    /// Leaves out every step but those of that name.
    pub(crate) fn keep_step(&mut self, name: &str) {
        self.steps.retain(|step| step.name == name);
    }

    /// Runs every step, also after a failed one.
    fn run(self) -> Run {
        let started = Instant::now();
        let Stage { name, what, budget, steps } = self;
        let (mut passed, mut notes) = (0, Vec::new());
        let (mut failed, mut skipped, mut details) = (Vec::new(), Vec::new(), Vec::new());
        let mut times = Vec::new();
        for Step { name: step, run } in steps {
            let whole_name = format!("{name}: {step}");
            let (began, _) = (Instant::now(), take_processor_time());
            let outcome = run(started + LIMIT * budget);
            let (took, processor) = (began.elapsed(), take_processor_time());
            times.push(Time { step: whole_name.clone(), took, processor });
            match outcome {
                Outcome::Passed(note) => {
                    passed += 1;
                    notes.extend((!note.is_empty()).then_some(note));
                }
                Outcome::Failed { why, tail } => {
                    details.push(format!("{whole_name}: {why}\n{}", indented(&tail)));
                    failed.push(format!("{whole_name}: {why}"));
                }
                Outcome::Skipped(reason) => skipped.push(format!("{whole_name}: {reason}")),
            }
        }
        let took = started.elapsed();
        Run { name, what, budget, took, passed, notes, failed, skipped, details, times }
    }
}

/// Number of passed steps, and the failed ones.
#[derive(Default)]
pub(crate) struct Summary {
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<String>,
    times: Vec<Time>,
}

impl Summary {
    /// Runs a stage and prints its line.
    pub(crate) fn run(&mut self, stage: Stage<'_>) {
        begin_line(stage.name, stage.what);
        // A failed flush does no harm: the line is complete when the stage is.
        drop(anstream::stdout().flush());
        self.end_line(stage.run());
    }

    /// Runs the stages of each list one after the other, both lists at the same time, and prints the
    /// line of a stage when it ends.
    pub(crate) fn run_beside(&mut self, one: Vec<Stage<'_>>, other: Vec<Stage<'_>>) {
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
        let (style, result) = result_of(run.passed, run.failed.len());
        let seconds = format!("{:.1} s", run.took.as_secs_f64());
        let counts = counts(run.passed, run.failed.len(), run.skipped.len());
        let notes = run.notes.iter().map(|note| format!("; {note}")).collect::<String>();
        let over = if run.took > run.budget { ", over budget" } else { "" };
        anstream::println!(
            "{style}{result:<7}{style:#} {seconds:>8} of {:>4} s  {counts}{over}{notes}",
            run.budget.as_secs()
        );
        for detail in run.details {
            anstream::println!("\n{detail}");
        }
        self.passed += run.passed;
        self.failed.extend(run.failed);
        self.skipped.extend(run.skipped);
        self.times.extend(run.times);
    }

    /// Prints the sum of all stages and says whether nothing failed.
    pub(crate) fn finish(&self) -> bool {
        let (style, result) = result_of(self.passed, self.failed.len());
        let counts = counts(self.passed, self.failed.len(), self.skipped.len());
        anstream::println!("\ntook        of a processor");
        for Time { step, took, processor } in &self.times {
            let (took, processor) = (took.as_secs_f64(), processor.as_secs_f64());
            anstream::println!("{took:>7.1} s  {processor:>7.1} s  {step}");
        }
        anstream::println!("\n{style}{result}{style:#}: {counts}");
        for failed in &self.failed {
            anstream::println!("  failed   {failed}");
        }
        for skipped in &self.skipped {
            anstream::println!("  skipped  {skipped}");
        }
        self.failed.is_empty()
    }
}

fn begin_line(name: &str, what: &str) {
    anstream::print!("{name:<9} {what:<58} ");
}

fn result_of(passed: usize, failed: usize) -> (Style, &'static str) {
    let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into())).bold();
    match (passed, failed) {
        (_, 1..) => (colour(AnsiColor::Red), "FAILED"),
        (0, 0) => (colour(AnsiColor::Yellow), "skipped"),
        _ => (colour(AnsiColor::Green), "ok"),
    }
}

fn counts(passed: usize, failed: usize, skipped: usize) -> String {
    let parts = [(passed, "passed"), (failed, "failed"), (skipped, "skipped")];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    parts.map(|(count, word)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_fails_the_summary_and_the_next_step_still_runs() {
        let mut summary = Summary::default();
        let mut reached = false;
        let steps = vec![
            Step::new("one", |_| Outcome::failed("broken", "why")),
            Step::new("two", |_| Outcome::Skipped("no device".into())),
            Step::new("three", |_| {
                reached = true;
                Outcome::Passed(String::new())
            }),
        ];
        summary.run(Stage { name: "s", what: "w", budget: Duration::from_secs(1), steps });
        assert!(reached);
        assert!(!summary.finish());
        assert_eq!(summary.failed, ["s: one: broken"]);
        assert_eq!(summary.skipped, ["s: two: no device"]);
        assert_eq!(summary.passed, 1);
    }

    #[test]
    fn stages_beside_each_other_run_at_the_same_time_and_all_count() {
        let stage = |name, run: Box<dyn FnOnce() -> Outcome + Send>| Stage {
            name,
            what: "w",
            budget: Duration::from_secs(20),
            steps: vec![Step::new("step", |_| run())],
        };
        let (first, second) = (mpsc::channel(), mpsc::channel());
        // Each waits for what the other sends: one after the other neither would end.
        let meet = |to: mpsc::Sender<()>, from: mpsc::Receiver<()>| {
            Box::new(move || match (to.send(()), from.recv_timeout(Duration::from_secs(10))) {
                (Ok(()), Ok(())) => Outcome::Passed(String::new()),
                missed => Outcome::failed(format!("{missed:?}"), ""),
            })
        };
        let broken = Box::new(|| Outcome::failed("broken", "why"));
        let mut summary = Summary::default();
        summary.run_beside(
            vec![stage("a", meet(first.0, second.1)), stage("b", broken)],
            vec![stage("c", meet(second.0, first.1))],
        );
        assert_eq!((summary.passed, &*summary.failed), (2, &["b: step: broken".to_owned()][..]));
    }

    #[test]
    fn skipped_steps_alone_fail_nothing_and_do_not_count_as_passed() {
        let mut summary = Summary::default();
        let steps = vec![Step::new("one", |_| Outcome::Skipped("no tool".into()))];
        summary.run(Stage { name: "s", what: "w", budget: Duration::from_secs(1), steps });
        assert!(summary.finish());
        assert_eq!(counts(summary.passed, summary.failed.len(), 1), "1 skipped");
        assert_eq!(result_of(0, 0).1, "skipped");
    }
}
