//! Output of results to terminals of any width, and to files.

use crate::failure::Failure;
use crate::terminal::Window;
use handfast_core::node::TRANSITIONS;
use handfast_diagnosis::wrapped;
use handfast_sim::Coverage;
use handfast_transport_sim::Violation;
use indicatif::HumanCount;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};

/// Returns the columns of the terminal on standard output; `None` if it is not a terminal.
pub(crate) fn columns() -> Option<usize> {
    Window::of(std::io::stdout()).map(|window| window.columns)
}

/// Named values, one per line; long ones continue on the next line, aligned with their start.
#[derive(Default)]
pub(crate) struct Facts(Vec<(String, String)>);

/// Width of names.
const NAME: usize = 15;
/// Below this width, names are placed above their values.
const NARROW: usize = 48;

impl Facts {
    pub(crate) fn add(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    pub(crate) fn text(&self, columns: Option<usize>) -> String {
        let mut text = String::new();
        let longest = self.0.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let wide = NAME.max(longest + 2);
        let narrow = columns.is_some_and(|columns| columns < NARROW + wide - NAME);
        let indent = if narrow { 2 } else { wide };
        for (name, value) in &self.0 {
            let room = columns.map_or(usize::MAX, |columns| columns.saturating_sub(indent).max(8));
            let lines = wrapped(value, room);
            for (at, line) in lines.iter().enumerate() {
                let _ = match (at, narrow) {
                    (0, true) => writeln!(text, "{name}\n  {line}"),
                    (0, false) => writeln!(text, "{name:<wide$}{line}"),
                    _ => writeln!(text, "{:indent$}{line}", ""),
                };
            }
        }
        text.trim_end().to_owned()
    }
}

/// Formats as `1,234,567`.
pub(super) fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

/// Returns a violation as JSON.
pub(super) fn violation_json(violation: &Violation) -> Value {
    json!({ "oracle": format!("{:?}", violation.oracle), "detail": violation.detail })
}

/// The failure of a command that found a violation; `line` replays it.
pub(super) fn broken(violation: &Violation, line: String) -> Failure {
    let oracle = format!("{:?}", violation.oracle);
    Failure::Broken { oracle, detail: violation.detail.clone(), line }
}

/// Returns the covered marks as JSON.
pub(super) fn coverage_json(coverage: &Coverage) -> Value {
    json!({
        "transitions": coverage.transitions.count_ones(),
        "transitions_declared": TRANSITIONS.len(),
        "timers": named(&coverage.timers),
        "refusals": named(&coverage.refusals),
        "state_pairs": coverage.state_pairs.len(),
    })
}

/// Adds the covered marks to the facts.
pub(super) fn tell_coverage(coverage: &Coverage, facts: &mut Facts) {
    let list = |marks: BTreeMap<String, u64>| {
        let shown = marks.iter().map(|(name, count)| format!("{name} {}", grouped(*count)));
        let shown: Vec<String> = shown.collect();
        if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
    };
    let (reached, declared) = (coverage.transitions.count_ones(), TRANSITIONS.len());
    let pairs = coverage.state_pairs.len();
    let text = format!("{reached} of {declared} declared transitions, {pairs} pairs of states");
    facts.add("coverage", text);
    facts.add("timers fired", list(named(&coverage.timers)));
    facts.add("refusals", list(named(&coverage.refusals)));
}

fn named<K: Debug>(marks: &BTreeMap<K, u64>) -> BTreeMap<String, u64> {
    marks.iter().map(|(mark, count)| (format!("{mark:?}"), *count)).collect()
}

#[cfg(test)]
mod tests {
    use super::{Facts, grouped};

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn facts_fit_terminals_and_are_single_lines_elsewhere() {
        let mut facts = Facts::default();
        facts.add("states", "one two three four five six seven eight nine ten");
        assert_eq!(facts.text(None).lines().count(), 1);
        for columns in [20, 40, 60, 80] {
            let text = facts.text(Some(columns));
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}: {text}");
        }
    }
}
