//! A picture as text: a Mermaid diagram, a page for a browser, or one line per event.

mod html;
mod mermaid;

use crate::record::Picture;
use std::fmt::Write as _;

pub use html::html;
pub use mermaid::mermaid;

/// Every event, with what it made the nodes do below it.
pub fn story(picture: &Picture) -> String {
    let mut text = String::new();
    for (number, row) in picture.rows.iter().enumerate() {
        let mark = match (row.fault, row.healing) {
            (true, _) => " [fault]",
            (_, true) => " [heals]",
            _ => "",
        };
        let _ = writeln!(text, "{:>3}. {}{mark}", number + 1, row.words);
        for note in &row.notes {
            let _ = writeln!(text, "       {note}");
        }
        for violation in &row.violations {
            let _ = writeln!(text, "  !! {:?}: {}", violation.oracle, violation.detail);
        }
    }
    text
}

/// One line per event: its number, what it is, what happens, and the lifecycles of every site.
/// States are left out where a line would be longer than `columns` characters, and what is still
/// longer is cut; without `columns` nothing is.
pub fn text(picture: &Picture, columns: Option<usize>) -> String {
    let mut text = String::new();
    let widest = picture.rows.iter().map(|row| row.words.chars().count()).max().unwrap_or(0);
    for (number, row) in picture.rows.iter().enumerate() {
        let mark = match (picture.broken == Some(number), row.fault, row.healing) {
            (true, ..) => "broken",
            (_, true, _) => "fault",
            (_, _, true) => "heals",
            _ => "",
        };
        let states: Vec<String> = row
            .states
            .iter()
            .enumerate()
            .map(|(site, state)| {
                let name = picture.sites[site].split(' ').next().unwrap_or_default();
                let none = if state.lifecycles.is_empty() { "-" } else { "" };
                format!("{name}: {none}{}", state.lifecycles.join(", "))
            })
            .collect();
        let event = format!("{:>3} {mark:<6} {}", number + 1, row.words);
        let line = format!("{event:<width$}  | {}", states.join(" | "), width = widest + 11);
        let line = match columns {
            Some(columns) if line.chars().count() > columns => {
                event.chars().take(columns).collect()
            }
            _ => line,
        };
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if let Some(violation) = &picture.violation {
        let _ = writeln!(text, "broken: {:?}: {}", violation.oracle, violation.detail);
    }
    text
}
