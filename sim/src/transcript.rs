//! A schedule as numbered lines for people.

use handfast_transport_sim::{Choice, Step, World};
use std::fmt::Write as _;

/// Plays a schedule from a start and writes down what happened, one event per line with what it
/// caused indented below, and the violations at the end.
pub fn transcript(start: &World, schedule: &[Choice]) -> String {
    let mut world = start.clone();
    let mut text = String::new();
    for (number, choice) in schedule.iter().enumerate() {
        let fault = if choice.cost > 0 { " [fault]" } else { "" };
        let words = world.describe(&choice.action);
        let mut step = Step::traced();
        world.apply(choice, &mut step);
        world.check(&mut step.violations);
        let _ = writeln!(text, "{:>3}. {words}{fault}", number + 1);
        for note in step.notes.iter().flatten() {
            let _ = writeln!(text, "       {note}");
        }
        for violation in &step.violations {
            let _ = writeln!(text, "  !! {:?}: {}", violation.oracle, violation.detail);
        }
    }
    text
}
