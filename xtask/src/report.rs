//! Stages of steps: what each came to, one line per stage, and the sum of all.

use anstyle::{AnsiColor, Style};
use std::io::Write;
use std::time::{Duration, Instant};

/// What a step came to.
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
    run: Box<dyn FnOnce(Instant) -> Outcome + 'a>,
}

impl<'a> Step<'a> {
    pub(crate) fn new(name: &'static str, run: impl FnOnce(Instant) -> Outcome + 'a) -> Self {
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

/// How many steps passed, and which did not.
#[derive(Default)]
pub(crate) struct Summary {
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<String>,
}

impl Summary {
    /// Runs every step of a stage, also after a failed one, and prints the stage's line.
    pub(crate) fn run(&mut self, stage: Stage<'_>) {
        anstream::print!("{:<9} {:<58} ", stage.name, stage.what);
        // Only a courtesy to whoever waits: the line is complete when the stage is.
        drop(anstream::stdout().flush());
        let started = Instant::now();
        let deadline = started + stage.budget;
        let mut passed = 0;
        let mut notes = Vec::new();
        let (failed_before, skipped_before) = (self.failed.len(), self.skipped.len());
        let mut details = Vec::new();
        for Step { name, run } in stage.steps {
            let whole_name = format!("{}: {name}", stage.name);
            match run(deadline) {
                Outcome::Passed(note) => {
                    passed += 1;
                    notes.extend((!note.is_empty()).then_some(note));
                }
                Outcome::Failed { why, tail } => {
                    details.push(format!("{whole_name}: {why}\n{}", indented(&tail)));
                    self.failed.push(format!("{whole_name}: {why}"));
                }
                Outcome::Skipped(reason) => self.skipped.push(format!("{whole_name}: {reason}")),
            }
        }
        self.passed += passed;
        let failed = self.failed.len() - failed_before;
        let skipped = self.skipped.len() - skipped_before;
        let (style, result) = result_of(passed, failed);
        let seconds = format!("{:.1} s", started.elapsed().as_secs_f64());
        let counts = counts(passed, failed, skipped);
        let notes =
            if notes.is_empty() { String::new() } else { format!("; {}", notes.join("; ")) };
        anstream::println!(
            "{style}{result:<7}{style:#} {seconds:>8} of {:>4} s  {counts}{notes}",
            stage.budget.as_secs()
        );
        for detail in details {
            anstream::println!("\n{detail}");
        }
    }

    /// Prints the sum of all stages and says whether nothing failed.
    pub(crate) fn finish(&self) -> bool {
        let (style, result) = result_of(self.passed, self.failed.len());
        let counts = counts(self.passed, self.failed.len(), self.skipped.len());
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
    fn skipped_steps_alone_fail_nothing_and_do_not_count_as_passed() {
        let mut summary = Summary::default();
        let steps = vec![Step::new("one", |_| Outcome::Skipped("no tool".into()))];
        summary.run(Stage { name: "s", what: "w", budget: Duration::from_secs(1), steps });
        assert!(summary.finish());
        assert_eq!(counts(summary.passed, summary.failed.len(), 1), "1 skipped");
        assert_eq!(result_of(0, 0).1, "skipped");
    }
}
