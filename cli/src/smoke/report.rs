//! The steps of a smoke test, with their results.

use super::devices;
use crate::failure::{Failure, Outcome};
use crate::lanes::FallbackReport;
use crate::output;
use crate::sim::show::columns;
use handfast_diagnosis::doctor::Device;
use handfast_diagnosis::wrapped;
use serde::Serialize;
use std::future::Future;
use std::time::{Duration, Instant};

/// The remedy for a failed step without one of its own.
const CURE: &str = "run again with -vv to see each step, and see docs/hardware.md";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Pass,
    Fail,
    Skipped,
    /// An experiment, of which every outcome is valid.
    #[cfg(feature = "verbs")]
    Recorded,
}

#[derive(Serialize)]
struct Step {
    name: &'static str,
    verdict: Verdict,
    milliseconds: u64,
    /// The result, or the reason for skipping it.
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<FallbackReport>,
}

/// Below this width, results are placed below their steps.
const NARROW: usize = 70;

/// Returns a step's result to the right of its head, or below it, in lines of so many columns.
fn beside(head: &str, detail: &str, columns: Option<usize>) -> String {
    let narrow = columns.is_some_and(|columns| columns < NARROW);
    let indent = if narrow { 2 } else { head.chars().count() + 2 };
    let room = columns.map_or(usize::MAX, |columns| columns.saturating_sub(indent).max(8));
    let between = format!("\n{:indent$}", "");
    let lines = wrapped(detail, room).join(&between);
    if narrow { format!("{head}{between}{lines}") } else { format!("{head}  {lines}") }
}

/// The report of a smoke test, which runs its steps.
#[derive(Serialize)]
pub(super) struct Report {
    mode: &'static str,
    passed: bool,
    devices: Vec<Device>,
    steps: Vec<Step>,
    #[serde(skip)]
    timeout: Duration,
    #[serde(skip)]
    json: bool,
    /// The first failure.
    #[serde(skip)]
    failure: Option<Failure>,
}

impl Report {
    pub(super) fn new(mode: &'static str, timeout: Duration, json: bool) -> Self {
        let (devices, steps) = (Vec::new(), Vec::new());
        Self { mode, passed: true, devices, steps, timeout, json, failure: None }
    }

    /// Prints the devices before the first step that uses one.
    pub(super) fn devices(&mut self, devices: Vec<Device>) -> Outcome {
        if !self.json {
            for device in &devices {
                output::say(format_args!("{}", devices::words(device)))?;
            }
        }
        self.devices = devices;
        Ok(())
    }

    /// Runs a step until it ends or times out. Returns its value unless it failed, and reports its
    /// description.
    ///
    /// # Errors
    /// Only errors of the output.
    pub(super) async fn step<T>(
        &mut self,
        name: &'static str,
        work: impl Future<Output = Result<(T, String), Failure>>,
    ) -> Result<Option<T>, Failure> {
        let began = Instant::now();
        match self.bounded(name, work).await {
            Ok((value, detail)) => {
                self.add(name, Verdict::Pass, began, detail, None)?;
                Ok(Some(value))
            }
            Err(failure) => {
                let error = reason(&failure);
                self.add(name, Verdict::Fail, began, failure.to_string(), Some(error))?;
                self.failure.get_or_insert(failure);
                Ok(None)
            }
        }
    }

    /// Runs an experiment and prints its result: it never fails.
    ///
    /// # Errors
    /// Only errors of the output.
    #[cfg(feature = "verbs")]
    pub(super) async fn record(
        &mut self,
        name: &'static str,
        work: impl Future<Output = Result<String, Failure>>,
    ) -> Outcome {
        let (began, ended) = (Instant::now(), self.bounded(name, work).await);
        let words = ended.unwrap_or_else(|failure| failure.to_string());
        self.add(name, Verdict::Recorded, began, words, None)
    }

    async fn bounded<T>(
        &self,
        step: &'static str,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let timeout = self.timeout;
        let ended = tokio::time::timeout(timeout, work).await;
        ended.unwrap_or(Err(Failure::StepOverdue { step, timeout }))
    }

    /// Reports steps as skipped, with the reason.
    pub(super) fn skip(&mut self, names: &[&'static str], why: &str) -> Outcome {
        let skipped = |report: &mut Self, name| {
            report.add(name, Verdict::Skipped, Instant::now(), why.to_owned(), None)
        };
        names.iter().try_for_each(|name| skipped(self, *name))
    }

    fn add(
        &mut self,
        name: &'static str,
        verdict: Verdict,
        began: Instant,
        detail: String,
        error: Option<FallbackReport>,
    ) -> Outcome {
        let milliseconds = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.passed &= verdict != Verdict::Fail;
        if !self.json {
            let word = format!("{verdict:?}").to_lowercase();
            let head = format!("{word:<8} {name:<12} {milliseconds:>6} ms");
            output::say(format_args!("{}", beside(&head, &detail, columns())))?;
        }
        self.steps.push(Step { name, verdict, milliseconds, detail, error });
        Ok(())
    }

    /// Prints the rest of the report.
    ///
    /// # Errors
    /// The first failure of a step.
    pub(super) fn finish(self) -> Outcome {
        if self.json {
            output::say_json(&self)?;
        }
        self.failure.map_or(Ok(()), Err)
    }
}

fn reason(failure: &Failure) -> FallbackReport {
    let (side, stage) = match failure {
        Failure::Engine(error) => return FallbackReport::of(error, CURE),
        #[cfg(feature = "verbs")]
        Failure::Verbs(error) => (format!("{:?}", error.side).to_lowercase(), error.call),
        _ => ("configuration".to_owned(), "the transfer"),
    };
    let id = failure.diagnosis_id().map(handfast_diagnosis::Id::as_str);
    let cause = failure.to_string();
    FallbackReport { side, stage: stage.to_owned(), peer: None, cause, id, cure: CURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A result stays within the columns of a narrow and a wide terminal, and a file has it in one line.
    #[test]
    fn results_fit_the_columns() {
        let head = "skipped  rdma-cm           0 ms";
        let detail = "rxe0 and rxe1 connect out of band, and so do all others of this machine";
        for columns in [40, 80, 140] {
            let text = beside(head, detail, Some(columns));
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}: {text}");
            let words: Vec<_> = text.split_whitespace().collect();
            assert!(words.join(" ").ends_with(detail), "{columns}: {text}");
            assert_eq!(text.lines().next() == Some(head), columns == 40, "{text}");
        }
        assert_eq!(beside(head, detail, None), format!("{head}  {detail}"));
    }
}
