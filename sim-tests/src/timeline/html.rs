//! One page without anything from elsewhere: for a window of 1280 pixels, and for paper.

use super::layout::{BAR_WRITTEN_MIN, LINE, Layout, TEXT_WIDTH, WIDTH, wrapped};
use crate::case::{Case, names_of};
use crate::record::{Bar, Fate, Passage, Record};
use handfast_core::node::StateKind;
use handfast_transport_sim::Operations;
use std::fmt::Write as _;

const STYLE: &str = include_str!("page.css");
const EXPLANATION: &str = include_str!("page.html");

const STATES: [StateKind; 7] = [
    StateKind::Raising,
    StateKind::Announced,
    StateKind::Fencing,
    StateKind::Wiring,
    StateKind::Wired,
    StateKind::Established,
    StateKind::Retiring,
];

/// The page of a record.
pub fn html(record: &Record) -> String {
    let layout = Layout::of(record);
    let mut page = String::from("<!doctype html>\n<html lang=\"en\">\n<head>\n");
    page.push_str("<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width\">\n");
    let title = title(&record.line.case);
    let _ = writeln!(page, "<title>{}</title>", escaped(&title));
    let _ = writeln!(page, "<style>\n{STYLE}</style>\n</head>\n<body>");
    page.push_str(&heading(record, &title));
    page.push_str(EXPLANATION);
    page.push_str(&legend());
    page.push_str(&site_names(record, &layout));
    for (from, to) in layout.pieces() {
        let label = format!("events from {from} to {to} of the page's height");
        let _ = writeln!(
            page,
            "<svg viewBox=\"0 {from} {WIDTH} {}\" role=\"img\" aria-label=\"{label}\">",
            to - from
        );
        page.push_str(&piece(record, &layout, from, to));
        page.push_str("</svg>\n");
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn title(case: &Case) -> String {
    let rules = match case.variant {
        Some(entry) => format!("variant {} ({}): {}", entry.id, entry.name, entry.breaks),
        None => "shipping rules".to_owned(),
    };
    format!("{:?}, {rules}", case.scenario)
}

fn heading(record: &Record, title: &str) -> String {
    let Case { faults, faults_max, operations, .. } = &record.line.case;
    let grain = match operations {
        Operations::Stepwise => "every queue-pair operation is an event",
        Operations::AtOnce => "queue-pair operations succeed at once",
    };
    let healing = record.rows.iter().filter(|row| row.healing).count();
    let spent = record.rows.iter().filter(|row| row.fault).count();
    let mut text = format!("<h1>{}</h1>\n", escaped(title));
    match &record.violation {
        Some(violation) => {
            let words = format!("{:?}: {}", violation.oracle, violation.detail);
            let _ = writeln!(text, "<p class=\"verdict broken\">broken: {}</p>", escaped(&words));
        }
        None => text.push_str("<p class=\"verdict holds\">every oracle holds</p>\n"),
    }
    let _ = writeln!(
        text,
        "<p>{} events, {healing} of them healing; faults: {spent} of {faults_max} ({}); {grain}; \
         trace {:032x}</p>\n<p>Replay: <code>handfast sim replay '{}'</code></p>",
        record.rows.len(),
        escaped(&names_of(*faults)),
        record.trace_hash,
        escaped(&record.line.to_string())
    );
    text
}

fn legend() -> String {
    let mut text = String::from("<p class=\"legend\">States of a lifecycle: ");
    for state in STATES {
        let _ = write!(text, "<span class=\"{state:?}\">{state:?}</span> ");
    }
    text.push_str("</p>\n");
    text
}

fn site_names(record: &Record, layout: &Layout) -> String {
    let mut text = format!("<svg class=\"sites\" viewBox=\"0 0 {WIDTH} 26\" role=\"img\">\n");
    let _ = writeln!(text, "<text x=\"8\" y=\"18\" class=\"site\">event</text>");
    let last = record.sites.len().saturating_sub(1);
    for (site, (name, x)) in record.sites.iter().zip(&layout.sites).enumerate() {
        let anchor = match site {
            0 if last > 0 => "start",
            _ if site == last => "end",
            _ => "middle",
        };
        let x = match anchor {
            "start" => (*x).min(WIDTH - 150),
            "end" if last == 0 => x + 80,
            "end" => (x + 70).min(WIDTH - 6),
            _ => *x,
        };
        let name = escaped(name);
        let _ = writeln!(
            text,
            "<text x=\"{x}\" y=\"18\" class=\"site\" text-anchor=\"{anchor}\">{name}</text>"
        );
    }
    text.push_str("</svg>\n");
    text
}

/// What of the page is between two heights.
fn piece(record: &Record, layout: &Layout, from: usize, to: usize) -> String {
    let mut text = String::new();
    let overlaps = |top: usize, bottom: usize| top < to && bottom >= from;
    for number in 0..record.rows.len() {
        let placed = &layout.rows[number];
        if placed.top >= from && placed.top < to {
            row(&mut text, record, layout, number);
        }
    }
    for x in &layout.sites {
        let _ = writeln!(text, "<path class=\"line\" d=\"M{x} {from}V{to}\"/>");
    }
    for (bar, x) in record.bars.iter().zip(&layout.bars) {
        let began = bar.states.first().map_or(0, |(_, row)| layout.event(*row));
        if overlaps(began, layout.event(bar.ended)) {
            lifecycle(&mut text, layout, bar, *x);
        }
    }
    for passage in &record.passages {
        if overlaps(layout.event(passage.sent), layout.event(passage.ended) + LINE) {
            message(&mut text, layout, passage);
        }
    }
    text
}

fn row(text: &mut String, record: &Record, layout: &Layout, number: usize) {
    let (row, placed) = (&record.rows[number], &layout.rows[number]);
    let class = match (record.broken == Some(number), row.fault, row.healing) {
        (true, ..) => "row broken",
        (_, true, _) => "row fault",
        (_, _, true) => "row healing",
        _ => "row",
    };
    let mut states = format!("after event {}: {}\n", number + 1, row.words);
    for (name, state) in record.sites.iter().zip(&row.states) {
        let _ = writeln!(states, "{name}");
        let nothing = state.details.is_empty().then(|| "no lifecycle".to_owned());
        for line in state.details.iter().chain(&nothing) {
            let _ = writeln!(states, "    {line}");
        }
    }
    for violation in &row.violations {
        let _ = writeln!(states, "does not hold: {:?}: {}", violation.oracle, violation.detail);
    }
    let height = placed.bottom - placed.top;
    let _ = writeln!(
        text,
        "<g class=\"{class}\"><title>{}</title><rect x=\"0\" y=\"{}\" width=\"{WIDTH}\" \
         height=\"{height}\"/>",
        escaped(states.trim_end()),
        placed.top
    );
    let mut y = placed.event() + 4;
    let _ = writeln!(text, "<text x=\"30\" y=\"{y}\" class=\"number\">{}</text>", number + 1);
    for words in &placed.words {
        let _ =
            writeln!(text, "<text x=\"40\" y=\"{y}\" class=\"words\">{}</text>", escaped(words));
        y += LINE;
    }
    let lines = placed.notes.iter().map(|note| (52, "note", note));
    for (x, class, line) in lines.chain(placed.broken.iter().map(|it| (52, "verdict", it))) {
        let _ =
            writeln!(text, "<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{}</text>", escaped(line));
        y += LINE;
    }
    let mark = match (row.fault, row.healing) {
        (true, _) => "fault",
        (_, true) => "heals",
        _ => "",
    };
    let _ = writeln!(
        text,
        "<text x=\"{}\" y=\"{}\" class=\"mark\">{mark}</text>",
        TEXT_WIDTH - 6,
        placed.bottom - 6
    );
    if let Some(x) = layout.sites.get(row.site) {
        let shape = if row.fault {
            format!(
                "<path class=\"strike\" d=\"M{} {}l12 12m0 -12l-12 12\"/>",
                x - 6,
                placed.event() - 6
            )
        } else {
            format!("<circle cx=\"{x}\" cy=\"{}\" r=\"4\"/>", placed.event())
        };
        let _ = writeln!(text, "{shape}");
    }
    text.push_str("</g>\n");
}

fn lifecycle(text: &mut String, layout: &Layout, bar: &Bar, x: usize) {
    let width = layout.bar_width - 4;
    let number = match bar.queue_pair {
        Some(number) => format!("queue pair {number}"),
        None => "no queue pair".to_owned(),
    };
    let until = bar.states.iter().skip(1).map(|(_, row)| *row).chain([bar.ended]);
    for ((state, began), until) in bar.states.iter().zip(until) {
        let (top, bottom) =
            (layout.event(*began), layout.event(until).max(layout.event(*began) + 3));
        let _ = writeln!(
            text,
            "<g class=\"bar {state:?}\"><title>{} {state:?}; {number}</title><rect x=\"{x}\" \
             y=\"{top}\" width=\"{width}\" height=\"{}\" rx=\"2\"/></g>",
            bar.name,
            bottom - top
        );
        if layout.bar_width >= BAR_WRITTEN_MIN && bottom - top >= 26 {
            let _ = writeln!(
                text,
                "<text x=\"{}\" y=\"{}\" class=\"state\">{state:?}</text>",
                x + 4,
                top + 24
            );
        }
    }
    let (first, height) = bar.states.first().map_or((0, 0), |(_, row)| {
        (layout.event(*row), layout.event(bar.ended).saturating_sub(layout.event(*row)))
    });
    if layout.bar_width >= BAR_WRITTEN_MIN / 2 && height >= 12 {
        let y = first + 12;
        let _ =
            writeln!(text, "<text x=\"{}\" y=\"{y}\" class=\"name\">{}</text>", x + 4, bar.name);
    }
}

fn message(text: &mut String, layout: &Layout, passage: &Passage) {
    let (class, word) = match passage.fate {
        Fate::Arrived => ("arrived", "arrives"),
        Fate::Copied => ("copied", "a copy arrives"),
        Fate::Lost => ("lost", "is lost"),
        Fate::Dropped => ("dropped", "goes nowhere"),
        Fate::OnItsWay => ("dropped", "is on its way"),
    };
    let (from, to) = (layout.sites[passage.from], layout.sites[passage.to]);
    let (sent, ended) = (layout.event(passage.sent), layout.event(passage.ended));
    let _ = write!(text, "<g class=\"message {class}\"><title>{} {word}</title>", passage.words);
    let (end, anchor) = if from == to {
        let out = from + 150;
        let _ =
            write!(text, "<path d=\"M{from} {sent}C{out} {sent} {out} {ended} {from} {ended}\"/>");
        (from + 100, "start")
    } else {
        // What does not arrive ends half-way.
        let arrives = matches!(passage.fate, Fate::Arrived | Fate::Copied);
        let end = if arrives { to } else { (from + to) / 2 };
        let _ = write!(text, "<path d=\"M{from} {sent}L{end} {ended}\"/>");
        (end, if to > from { "end" } else { "start" })
    };
    let left = to < from;
    if matches!(passage.fate, Fate::Arrived | Fate::Copied) {
        let tip = if from == to { from } else { end };
        let back = if left || from == to { tip + 9 } else { tip.saturating_sub(9) };
        let _ = write!(
            text,
            "<path class=\"head\" d=\"M{tip} {ended}L{back} {}L{back} {}Z\"/>",
            ended.saturating_sub(5),
            ended + 5
        );
    } else if from != to {
        let _ = write!(
            text,
            "<path class=\"strike\" d=\"M{} {}l10 10m0 -10l-10 10\"/>",
            end - 5,
            ended - 5
        );
    }
    let away = if left || from == to { end + 14 } else { end.saturating_sub(14) };
    for (line, words) in wrapped(&passage.words, 46).iter().enumerate() {
        let _ = write!(
            text,
            "<text x=\"{away}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            ended + 13 + line * 12,
            escaped(words)
        );
    }
    text.push_str("</g>\n");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
