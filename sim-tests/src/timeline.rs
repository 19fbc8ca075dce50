//! A record as a picture: a page, a Mermaid diagram, or one line per event.

mod html;
mod layout;
mod mermaid;

use crate::record::Record;
use std::fmt::Write as _;

pub use html::html;
pub use mermaid::mermaid;

/// One line per event: its number, what it is, what happens, and the lifecycles of every site.
/// States are left out where a line would be longer than `columns` characters, and what is still
/// longer is cut; without `columns` nothing is.
pub fn text(record: &Record, columns: Option<usize>) -> String {
    let mut text = String::new();
    let widest = record.rows.iter().map(|row| row.words.chars().count()).max().unwrap_or(0);
    for (number, row) in record.rows.iter().enumerate() {
        let mark = match (record.broken == Some(number), row.fault, row.healing) {
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
                let name = record.sites[site].split(' ').next().unwrap_or_default();
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
    if let Some(violation) = &record.violation {
        let _ = writeln!(text, "broken: {:?}: {}", violation.oracle, violation.detail);
    }
    text
}
