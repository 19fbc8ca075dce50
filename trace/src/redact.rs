//! Redaction: a copy of a trace without names and addresses, which still replays.
//!
//! The core compares names: its tables, evictions and simultaneous timers depend on their order.
//! All names of a trace are therefore sorted, and the placeholder of each is `name-` and its rank,
//! with as many digits as the last rank, so that placeholders sort as the names do. The core never
//! compares addresses, GIDs, tokens or descriptions. Equal texts get equal placeholders.
//!
//! The key of a text determines its kind. A text under a key that [`kind_of`] does not know is
//! replaced as a description, so that a forgotten key shows as a failure and never leaks a name.

use crate::error::TraceError;
use crate::line::{Effects, Entry, Line, What, header, json, signed};
use crate::reader::TraceReader;
use crate::replay::{ReplayError, Replayed, feed, replay};
use handfast_core::{Node, Output};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, Write};

/// The number of replaced values, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redacted {
    /// Names of nodes and NICs.
    pub names: usize,
    /// Addresses of peers.
    pub addresses: usize,
    /// GIDs.
    pub gids: usize,
    /// Tokens of lanes.
    pub tokens: usize,
    /// Descriptions for people, which may contain anything.
    pub details: usize,
    /// The contents of the trace.
    pub replayed: Replayed,
}

/// The error of a trace that cannot be redacted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedactError {
    /// The trace does not replay.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The trace with placeholders has other effects, a bug in handfast. The output must not be
    /// sent.
    #[error(
        "our side, redacting the trace: entry {entry} replays differently after redaction, \
         a bug in handfast: do not send the trace, and report the bug"
    )]
    Changed {
        /// The first such entry.
        entry: u64,
    },
    /// The redacted trace cannot be written.
    #[error("our side, writing the redacted trace: {0}; check its free space and permissions")]
    Write(String),
}

impl From<TraceError> for RedactError {
    fn from(error: TraceError) -> Self {
        Self::Replay(error.into())
    }
}

/// Writes a trace with placeholders in place of names, addresses, GIDs, tokens and descriptions;
/// equal values get equal placeholders. The trace is opened three times. It is replayed as it is,
/// and then in step with its redacted form: the outputs of each step must agree except for
/// placeholders and descriptions.
///
/// # Errors
/// [`RedactError`]; the caller discards the partial output.
pub fn redact<R: BufRead>(
    open: impl Fn() -> Result<TraceReader<R>, TraceError>,
    to: &mut dyn Write,
) -> Result<Redacted, RedactError> {
    let replayed = replay(open()?, &mut |_| {})?;
    let mut found = BTreeMap::new();
    let mut reader = open()?;
    while let Some(line) = reader.next_line()? {
        map_texts(&mut tree(&line), "", &mut |kind, text| {
            let known = found.entry(text.clone()).or_insert(kind);
            *known = kind.min(*known);
        });
    }
    let (placeholders, redacted) = placeholders(&found, replayed);
    let mut reader = open()?;
    let failed = |error: std::io::Error| RedactError::Write(error.to_string());
    to.write_all(header(reader.program()).as_bytes()).map_err(failed)?;
    let mut sides = None;
    while let Some(line) = reader.next_line()? {
        let line = redacted_line(line, &placeholders, &mut sides)?;
        to.write_all(signed(&json(&line)).as_bytes()).map_err(failed)?;
    }
    Ok(redacted)
}

/// The recorded node, and the same node with placeholders.
struct Sides {
    plain: Node,
    redacted: Node,
}

fn redacted_line(
    plain: Line,
    placeholders: &Placeholders,
    sides: &mut Option<Sides>,
) -> Result<Line, RedactError> {
    let entry = match &plain {
        Line::Entry(Entry { number, .. }) => *number,
        Line::Segment { entry, .. } | Line::End { entry, .. } => *entry,
    };
    let changed = || RedactError::Changed { entry };
    let mut value = tree(&plain);
    map_texts(&mut value, "", &mut |_, text| replace(text, placeholders));
    let mut redacted = serde_json::from_value(value).map_err(|_| changed())?;
    match (plain, &mut redacted) {
        (Line::Segment { node: plain, .. }, Line::Segment { node: redacted, .. }) => {
            *sides = Some(Sides { plain: *plain, redacted: (**redacted).clone() });
        }
        (Line::Entry(plain), Line::Entry(redacted)) => {
            let sides = sides.as_mut().ok_or_else(changed)?;
            sides.step(&plain, redacted, placeholders).ok_or_else(changed)?;
        }
        _ => {}
    }
    Ok(redacted)
}

impl Sides {
    /// Feeds both nodes and returns the entry with the effects of the redacted side; `None` if the
    /// effects differ in more than texts.
    fn step(
        &mut self,
        plain: &Entry,
        redacted: &mut Entry,
        placeholders: &Placeholders,
    ) -> Option<()> {
        let mut before = tree(&feed(&mut self.plain, plain));
        let after = feed(&mut self.redacted, redacted);
        map_texts(&mut before, "", &mut |kind, text| match kind {
            Kind::Detail => text.clear(),
            _ => replace(text, placeholders),
        });
        if before != without_details(&after) {
            return None;
        }
        if let What::Input(_, Some(effects)) | What::Timeout(Some(effects)) = &mut redacted.what {
            *effects = Effects::of(&after);
        }
        Some(())
    }
}

fn without_details(outputs: &[Output]) -> Value {
    let mut value = tree(&outputs);
    map_texts(&mut value, "", &mut |kind, text| {
        if kind == Kind::Detail {
            text.clear();
        }
    });
    value
}

fn tree(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("structs, enums and lists are JSON")
}

/// The kind of a text that may identify a node. For a text with several kinds the first one
/// applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Name,
    Address,
    Gid,
    Token,
    /// Descriptions for people.
    Detail,
}

/// Returns the kind of a text under `key`; `None` if it is a variant, a hexadecimal number or the
/// name of a call.
fn kind_of(key: &str) -> Option<Kind> {
    match key {
        "node" | "nic" | "names" => Some(Kind::Name),
        "address" => Some(Kind::Address),
        "gid" => Some(Kind::Gid),
        "token" | "shared_memory" => Some(Kind::Token),
        "incarnation" | "superseded" | "old" | "new" | "live" | "other" | "transitions" => None,
        "call" | "Limit" => None,
        "Call" | "cause" | "edge" | "ending" | "failure" | "first_failure" | "from" | "kind"
        | "kinds" | "op" | "outcome" | "reason" | "side" | "state" | "timer" | "trigger" => None,
        _ => Some(Kind::Detail),
    }
}

/// Passes to `map` every non-empty text of a value that has a kind. Elements of a list have the
/// list's key.
fn map_texts(value: &mut Value, key: &str, map: &mut dyn FnMut(Kind, &mut String)) {
    match value {
        Value::String(text) => match kind_of(key) {
            Some(kind) if !text.is_empty() => map(kind, text),
            _ => {}
        },
        Value::Array(list) => list.iter_mut().for_each(|value| map_texts(value, key, map)),
        Value::Object(fields) => {
            fields.iter_mut().for_each(|(key, value)| map_texts(value, key, map));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The placeholder of every text of a trace.
type Placeholders = BTreeMap<String, String>;

fn placeholders(found: &BTreeMap<String, Kind>, replayed: Replayed) -> (Placeholders, Redacted) {
    let mut known = Placeholders::new();
    let mut number_all = |kind, word: &str| {
        let texts: Vec<_> = found.iter().filter(|(_, of)| **of == kind).collect();
        let digits = texts.len().to_string().len();
        for (at, (text, _)) in texts.iter().enumerate() {
            known.insert((*text).clone(), format!("{word}-{:0digits$}", at + 1));
        }
        texts.len()
    };
    let redacted = Redacted {
        names: number_all(Kind::Name, "name"),
        addresses: number_all(Kind::Address, "address"),
        gids: number_all(Kind::Gid, "gid"),
        tokens: number_all(Kind::Token, "token"),
        details: number_all(Kind::Detail, "text"),
        replayed,
    };
    (known, redacted)
}

/// A text that appears in no line is a description by the core itself.
fn replace(text: &mut String, placeholders: &Placeholders) {
    *text = placeholders.get(text).cloned().unwrap_or_else(|| "text".to_owned());
}
