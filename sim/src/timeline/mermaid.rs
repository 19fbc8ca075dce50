//! A sequence diagram that Markdown viewers draw.

use crate::record::{Fate, Passage, Picture};
use std::fmt::Write as _;

/// A Mermaid sequence diagram. Messages are drawn where they arrive or are lost.
pub fn mermaid(picture: &Picture) -> String {
    let mut text = String::from("sequenceDiagram\n");
    for (site, name) in picture.sites.iter().enumerate() {
        let _ = writeln!(text, "    participant {} as {}", participant(site), escaped(name));
    }
    for (number, row) in picture.rows.iter().enumerate() {
        let shown: Vec<&Passage> = picture
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
        if picture.broken == Some(number)
            && let Some(violation) = &picture.violation
        {
            let words = format!("broken: {:?}: {}", violation.oracle, violation.detail);
            let last = participant(picture.sites.len().saturating_sub(1));
            let over = if picture.sites.len() > 1 { format!("A,{last}") } else { last };
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
