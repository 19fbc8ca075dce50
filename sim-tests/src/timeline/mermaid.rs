//! A sequence diagram that Markdown viewers draw.

use crate::record::{Fate, Passage, Record};
use std::fmt::Write as _;

/// A Mermaid sequence diagram. Messages are drawn where they arrive or are lost.
pub fn mermaid(record: &Record) -> String {
    let mut text = String::from("sequenceDiagram\n");
    for (site, name) in record.sites.iter().enumerate() {
        let _ = writeln!(text, "    participant {} as {}", participant(site), escaped(name));
    }
    for (number, row) in record.rows.iter().enumerate() {
        let shown: Vec<&Passage> = record
            .passages
            .iter()
            .filter(|passage| passage.ended == number && passage.fate != Fate::Dropped)
            .collect();
        let fault = if row.fault { " [fault]" } else { "" };
        for passage in &shown {
            let arrow = match passage.fate {
                Fate::Lost => "--x",
                _ => "->>",
            };
            let (from, to) = (participant(passage.from), participant(passage.to));
            let words = format!("{}. {}{fault}", number + 1, passage.words);
            let _ = writeln!(text, "    {from}{arrow}{to}: {}", escaped(&words));
        }
        if shown.is_empty() {
            let words = format!("{}. {}{fault}", number + 1, row.words);
            let _ = writeln!(text, "    Note over {}: {}", participant(row.site), escaped(&words));
        }
        if record.broken == Some(number)
            && let Some(violation) = &record.violation
        {
            let words = format!("broken: {:?}: {}", violation.oracle, violation.detail);
            let last = participant(record.sites.len().saturating_sub(1));
            let over = if record.sites.len() > 1 { format!("A,{last}") } else { last };
            let _ = writeln!(text, "    Note over {over}: {}", escaped(&words));
        }
    }
    text
}

fn participant(site: usize) -> String {
    char::from(b'A'.saturating_add(u8::try_from(site).unwrap_or(0))).to_string()
}

/// `#` and `;` mean something to Mermaid.
fn escaped(words: &str) -> String {
    let mut text = String::new();
    for letter in words.chars() {
        match letter {
            '#' => text.push_str("#35;"),
            ';' => text.push_str("#59;"),
            letter => text.push(letter),
        }
    }
    text
}
