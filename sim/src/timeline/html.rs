//! One page without anything from elsewhere: for a window of 1280 pixels, and for paper.

use super::layout::{BAR_WRITTEN_MIN, LINE, Layout, WIDTH, wrapped};
use crate::record::{Bar, Fate, Passage, Picture};
use handfast_core::node::StateKind;
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

/// The page of a picture.
pub fn html(picture: &Picture) -> String {
    let layout = Layout::of(picture);
    let mut page = String::from("<!doctype html>\n<html lang=\"en\">\n<head>\n");
    page.push_str("<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width\">\n");
    let _ = writeln!(page, "<title>{}</title>", escaped(&picture.title));
    let _ = writeln!(page, "<style>\n{STYLE}</style>\n</head>\n<body>");
    page.push_str(&heading(picture));
    page.push_str(EXPLANATION);
    page.push_str(&legend());
    page.push_str(&site_names(picture, &layout));
    for (from, to) in layout.pieces() {
        let label = format!("events from {from} to {to} of the page's height");
        let _ = writeln!(
            page,
            "<svg viewBox=\"0 {from} {WIDTH} {}\" role=\"img\" aria-label=\"{label}\">",
            to - from
        );
        page.push_str(&piece(picture, &layout, from, to));
        page.push_str("</svg>\n");
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn heading(picture: &Picture) -> String {
    let mut text = format!("<h1>{}</h1>\n", escaped(&picture.title));
    match &picture.violation {
        Some(violation) => {
            let words = format!("{:?}: {}", violation.oracle, violation.detail);
            let _ = writeln!(text, "<p class=\"verdict broken\">broken: {}</p>", escaped(&words));
        }
        None => {
            let _ = writeln!(text, "<p class=\"verdict holds\">{}</p>", escaped(&picture.holds));
        }
    }
    let (facts, command) = (escaped(&picture.facts), escaped(&picture.command));
    let _ = writeln!(text, "<p>{facts}</p>\n<p>Replay: <code>{command}</code></p>");
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

fn site_names(picture: &Picture, layout: &Layout) -> String {
    let mut text = format!("<svg class=\"sites\" viewBox=\"0 0 {WIDTH} 26\" role=\"img\">\n");
    let _ = writeln!(text, "<text x=\"8\" y=\"18\" class=\"site\">event</text>");
    let last = picture.sites.len().saturating_sub(1);
    for (site, (name, x)) in picture.sites.iter().zip(&layout.sites).enumerate() {
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
fn piece(picture: &Picture, layout: &Layout, from: usize, to: usize) -> String {
    let mut text = String::new();
    let overlaps = |top: usize, bottom: usize| top < to && bottom >= from;
    for number in 0..picture.rows.len() {
        let placed = &layout.rows[number];
        if placed.top >= from && placed.top < to {
            row(&mut text, picture, layout, number);
        }
    }
    let last = picture.sites.len().saturating_sub(1);
    for (site, (x, name)) in layout.sites.iter().zip(&picture.sites).enumerate() {
        let _ = writeln!(text, "<path class=\"line\" d=\"M{x} {from}V{to}\"/>");
        if from > 0 {
            let name = name.split(' ').next().unwrap_or_default();
            // On the side without bars.
            let x = if site == last && last > 0 { x - 13 } else { x + 5 };
            let y = from + 11;
            let _ = writeln!(text, "<text x=\"{x}\" y=\"{y}\" class=\"again\">{name}</text>");
        }
    }
    for (bar, x) in picture.bars.iter().zip(&layout.bars) {
        let began = bar.states.first().map_or(0, |(_, row)| layout.event(*row));
        if overlaps(began, layout.event(bar.ended)) {
            lifecycle(&mut text, layout, bar, *x);
        }
    }
    let shown = |passage: &&Passage| {
        overlaps(layout.event(passage.sent), layout.event(passage.ended) + LABEL_ROOM)
    };
    // Words last, so that no arrow crosses them out.
    for draw in [arrow, label] {
        picture.passages.iter().filter(shown).for_each(|it| draw(&mut text, layout, it));
    }
    text
}

fn row(text: &mut String, picture: &Picture, layout: &Layout, number: usize) {
    let (row, placed) = (&picture.rows[number], &layout.rows[number]);
    let class = match (picture.broken == Some(number), row.fault, row.healing) {
        (true, ..) => "row broken",
        (_, true, _) => "row fault",
        (_, _, true) => "row healing",
        _ => "row",
    };
    let mut states = format!("after event {}: {}\n", number + 1, row.words);
    for (name, state) in picture.sites.iter().zip(&row.states) {
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
    let y = placed.event() + 4 + LINE;
    let _ = writeln!(text, "<text x=\"8\" y=\"{y}\" class=\"mark\">{mark}</text>");
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

/// Height of a bar in which a state's name fits along it.
const TURNED_MIN: usize = 100;

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
        let (x, y) = (x + 4, top + 24);
        // Where a state does not fit into its bar, it is written down along it.
        let turned = match layout.bar_width >= BAR_WRITTEN_MIN {
            true => "".to_owned(),
            false => format!(" transform=\"rotate(90 {x} {y})\""),
        };
        let room = if turned.is_empty() { 26 } else { TURNED_MIN };
        if bottom - top >= room {
            let _ = writeln!(
                text,
                "<text x=\"{x}\" y=\"{y}\"{turned} class=\"state\">{state:?}</text>"
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

/// What a passage is called in the style sheet, and in words.
fn fate(passage: &Passage) -> (&'static str, &'static str) {
    match passage.fate {
        Fate::Arrived => ("arrived", "arrives"),
        Fate::Copied => ("copied", "a copy arrives"),
        Fate::Lost => ("lost", "is lost"),
        Fate::Dropped => ("dropped", "reaches nobody"),
        Fate::OnItsWay => ("dropped", "is on its way"),
    }
}

/// How far a message to the same site swings out.
const SWING: usize = 150;

/// Where a message ends; what does not arrive ends half-way.
fn end_of(layout: &Layout, passage: &Passage) -> usize {
    let (from, to) = (layout.sites[passage.from], layout.sites[passage.to]);
    let arrives = matches!(passage.fate, Fate::Arrived | Fate::Copied);
    if from == to || arrives { to } else { (from + to) / 2 }
}

fn arrow(text: &mut String, layout: &Layout, passage: &Passage) {
    let (class, word) = fate(passage);
    let (from, to) = (layout.sites[passage.from], layout.sites[passage.to]);
    let end = end_of(layout, passage);
    let (sent, ended) = (layout.event(passage.sent), layout.event(passage.ended));
    let _ = write!(text, "<g class=\"message {class}\"><title>{} {word}</title>", passage.words);
    let out = from + SWING;
    let _ = match from == to {
        true => {
            write!(text, "<path d=\"M{from} {sent}C{out} {sent} {out} {ended} {end} {ended}\"/>")
        }
        false => write!(text, "<path d=\"M{from} {sent}L{end} {ended}\"/>"),
    };
    let back = if to > from { end.saturating_sub(9) } else { end + 9 };
    let (up, down) = (ended.saturating_sub(5), ended + 5);
    let _ = match passage.fate {
        Fate::Arrived | Fate::Copied => {
            write!(text, "<path class=\"head\" d=\"M{end} {ended}L{back} {up}L{back} {down}Z\"/>")
        }
        Fate::OnItsWay => write!(text, "<circle cx=\"{end}\" cy=\"{ended}\" r=\"4\"/>"),
        Fate::Lost | Fate::Dropped => {
            let left = end.saturating_sub(5);
            write!(text, "<path class=\"strike\" d=\"M{left} {up}l10 10m0 -10l-10 10\"/>")
        }
    };
    text.push_str("</g>\n");
}

/// Letters of a message's words in a line, and room for two lines below an arrow's end.
const LABEL_LETTERS: usize = 46;
const LABEL_ROOM: usize = 30;
/// Width of one of its letters, in tenths.
const LETTER_TENTHS: usize = 64;

fn label(text: &mut String, layout: &Layout, passage: &Passage) {
    let (class, word) = fate(passage);
    let (from, to) = (layout.sites[passage.from], layout.sites[passage.to]);
    let (end, ended) = (end_of(layout, passage), layout.event(passage.ended));
    let (x, anchor) = if to > from { (end.saturating_sub(14), "end") } else { (end + 14, "start") };
    let words = match passage.fate {
        Fate::Arrived => passage.words.clone(),
        _ => format!("{} {word}", passage.words),
    };
    let _ = write!(text, "<g class=\"message {class}\">");
    let lines = wrapped(&words, LABEL_LETTERS);
    let letters = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let width = letters * LETTER_TENTHS / 10 + 4;
    let left = if to > from { (x + 2).saturating_sub(width) } else { x - 2 };
    let (top, height) = (ended + 4, lines.len() * 12 + 1);
    let _ = write!(text, "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\"/>");
    for (line, words) in lines.iter().enumerate() {
        let _ = write!(
            text,
            "<text x=\"{x}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            ended + 13 + line * 12,
            escaped(words)
        );
    }
    text.push_str("</g>\n");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
