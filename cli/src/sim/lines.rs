//! `handfast sim replay`, `minimize` and `timeline`: commands on a replay line.

use super::case::{case_json, words};
use super::show::{Facts, broken, columns, grouped, violation_json};
use super::trace;
use crate::failure::{Failure, Outcome};
use crate::{help, output};
use clap::Args;
use handfast_sim::{ENTRIES_SHOWN_MAX, Line, Picture, Record, Window, timeline as pictures};
use handfast_transport_sim::Violation;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Replay a line event by event, or a recorded run and compare its effects
///
/// Prints each event of a line, its effects on the nodes, and the broken oracles.
#[derive(Args)]
#[command(after_long_help = help::SIM_REPLAY)]
pub(crate) struct Replay {
    /// The line, in quotes; or the file of a trace
    #[arg(value_name = "LINE|FILE")]
    line: String,
    /// With a trace: omit an incomplete last line, left by a process killed during a write
    #[arg(long)]
    allow_cut: bool,
    /// Print each event in one line, with the lifecycles of every node
    #[arg(long)]
    text: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

/// Shrink a failing line to as few events as possible
#[derive(Args)]
#[command(after_long_help = help::SIM_MINIMIZE)]
pub(crate) struct Minimize {
    /// The line, in quotes
    line: String,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

/// Print the events of a line or of a recorded run, or draw them as a sequence diagram
#[derive(Args)]
#[command(after_long_help = help::SIM_TIMELINE)]
pub(crate) struct Timeline {
    /// The line, in quotes; or the file of a trace
    #[arg(value_name = "LINE|FILE")]
    line: String,
    /// With a trace: the first entry to draw [default: such that the last is drawn]
    #[arg(long, value_name = "ENTRY")]
    from: Option<u64>,
    /// With a trace: number of entries to draw
    #[arg(long, value_name = "COUNT", default_value_t = 200,
          value_parser = clap::value_parser!(u64).range(1..=ENTRIES_SHOWN_MAX))]
    entries: u64,
    /// With a trace: omit an incomplete last line
    #[arg(long)]
    allow_cut: bool,
    /// Print a Mermaid sequence diagram
    #[arg(long)]
    mermaid: bool,
    /// Write a page for a browser, and print its address
    #[arg(long, value_name = "PAGE", conflicts_with_all = ["mermaid", "json"])]
    html: Option<PathBuf>,
    /// Print one line of JSON: every event, with the subsequent state of every node
    #[arg(long)]
    json: bool,
}

/// Returns a diagram as JSON.
fn picture_json(picture: &Picture) -> Value {
    let events = picture.rows.iter().map(|row| {
        json!({
            "event": row.words,
            "site": picture.sites[row.site],
            "fault": row.fault,
            "healing": row.healing,
            "outputs": row.notes,
            "states": row.states.iter().map(|state| &state.details).collect::<Vec<_>>(),
            "does_not_hold": row.violations.iter().map(violation_json).collect::<Vec<_>>(),
        })
    });
    json!({
        "sites": picture.sites,
        "events": events.collect::<Vec<_>>(),
        "broken": picture.violation.as_ref().map(violation_json),
        "broken_at_event": picture.broken.map(|row| row + 1),
    })
}

fn record_json(record: &Record) -> Value {
    let mut shown = picture_json(&record.picture);
    shown["case"] = case_json(&record.line.case);
    shown["line"] = record.line.to_string().into();
    shown["trace"] = format!("{:032x}", record.trace_hash).into();
    shown
}

fn parse(line: &str) -> Result<Line, Failure> {
    Ok(line.parse()?)
}

pub(super) fn replay(arguments: Replay) -> Outcome {
    if let Some(path) = trace::named(&arguments.line) {
        return trace::replay_file(&path, arguments.allow_cut, arguments.json);
    }
    let line = parse(&arguments.line)?;
    let record = Record::of(&line)?;
    let picture = &record.picture;
    if arguments.json {
        output::say_json(&record_json(&record))?;
    } else {
        let told = match arguments.text {
            true => pictures::text(picture, columns()),
            false => pictures::story(picture),
        };
        let mut facts = Facts::default();
        facts.add("replayed", words(&line.case));
        let healing = picture.rows.iter().filter(|row| row.healing).count();
        facts.add("events", format!("{}, and {healing} to heal", picture.rows.len() - healing));
        facts.add("trace", format!("{:032x}", record.trace_hash));
        let words = |found: &Violation| format!("broken: {:?}: {}", found.oracle, found.detail);
        let ending = picture.violation.as_ref().map(words);
        facts.add("ending", ending.unwrap_or_else(|| "every oracle holds".to_owned()));
        output::say(format_args!("{told}\n{}", facts.text(columns())))?;
        if picture.violation.is_some() {
            output::say(format_args!("{line}"))?;
        }
    }
    match &picture.violation {
        Some(violation) => Err(broken(violation, line.to_string())),
        None => Ok(()),
    }
}

pub(super) fn minimize(arguments: Minimize) -> Outcome {
    let line = parse(&arguments.line)?;
    let started = Instant::now();
    let smaller = handfast_sim::minimize(&line)?;
    let milliseconds = started.elapsed().as_millis() as u64;
    let events = smaller.run.schedule.len();
    if arguments.json {
        return output::say_json(&json!({
            "case": case_json(&smaller.line.case),
            "line": smaller.line.to_string(),
            "events_before": smaller.events_before,
            "events": events,
            "shortest": smaller.shortest,
            "schedules_tried": smaller.schedules,
            "worlds_searched": smaller.worlds,
            "milliseconds": milliseconds,
            "broken": smaller.run.violation.as_ref().map(violation_json),
        }));
    }
    let mut facts = Facts::default();
    facts.add("shrunk", format!("from {} to {events} events", smaller.events_before));
    facts.add("left", words(&smaller.line.case));
    let (schedules, worlds) = (grouped(smaller.schedules), grouped(smaller.worlds as u64));
    let tried = format!("{schedules} schedules with events left out, {worlds} worlds");
    facts.add("tried", format!("{tried}, {milliseconds} ms"));
    let shortest = match smaller.shortest {
        true => "none shorter exists with these kinds of fault and no more faults",
        false => "the search was bounded: a shorter one may exist",
    };
    facts.add("shortest", shortest);
    output::say(format_args!("{}\n{}\n{}", smaller.transcript, facts.text(columns()), smaller.line))
}

pub(super) fn timeline(arguments: Timeline) -> Outcome {
    if let Some(path) = trace::named(&arguments.line) {
        let window = Window { from: arguments.from, entries: arguments.entries };
        let picture = trace::picture(&path, arguments.allow_cut, window)?;
        if let Some(page) = &arguments.html {
            return write_page(page, &[("trace", path.display().to_string())], &picture);
        }
        return draw(&arguments, &picture, || output::say_json(&picture_json(&picture)));
    }
    let record = Record::of(&parse(&arguments.line)?)?;
    if let Some(page) = &arguments.html {
        let facts = [("world", words(&record.line.case)), ("line", record.line.to_string())];
        return write_page(page, &facts, &record.picture);
    }
    draw(&arguments, &record.picture, || output::say_json(&record_json(&record)))
}

/// Writes a page and prints its address.
fn write_page(page: &Path, facts: &[(&str, String)], picture: &Picture) -> Outcome {
    let failed = |error| Failure::file(page, "writing", error);
    std::fs::write(page, pictures::html("Timeline", facts, picture)).map_err(failed)?;
    let whole = page.canonicalize().map_err(failed)?;
    output::say(format_args!("file://{}", whole.display()))
}

fn draw(arguments: &Timeline, picture: &Picture, say_json: impl FnOnce() -> Outcome) -> Outcome {
    if arguments.json {
        return say_json();
    }
    let printed = match arguments.mermaid {
        true => pictures::mermaid(picture),
        false => pictures::text(picture, columns()),
    };
    output::say(format_args!("{}", printed.trim_end()))
}
