//! Taking names and addresses out of a trace that still replays.
//!
//! The core compares names: its tables are in their order, and so are the peers that make way and
//! the timers that fire together. So all names of a trace are sorted, and each becomes `name-` with
//! its rank, with as many digits as the last needs: placeholders are in the order of what they
//! stand for. A text that is a name has the name's placeholder wherever it stands. The core
//! never compares addresses, GIDs, tokens and words for people with others.

use crate::error::{TraceCause, TraceError};
use crate::line::{Effects, Entry, Line, What, header, signed};
use crate::reader::TraceReader;
use crate::replay::{ReplayError, Replayed, feed, replay, restore, restored, saved};
use crate::texts::{Plain, lasting};
use handfast_core::codec::{Code, Reader, TextKind, Texts, Writer};
use handfast_core::{Node, Output};
use std::collections::BTreeMap;
use std::io::{BufRead, Write};

/// What was taken out: how many different values of each kind.
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
    /// Words for people, which may have anything in them.
    pub details: usize,
    /// The trace that was read.
    pub replayed: Replayed,
}

/// Why a trace cannot be redacted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedactError {
    /// It does not replay as it is.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// With placeholders something else comes of it: an error of ours. Nothing is to be sent.
    #[error(
        "our side, redacting the trace: entry {entry} leads elsewhere when it is redacted, which is \
         an error of handfast: send nothing, and report that"
    )]
    Changed {
        /// The first such entry.
        entry: u64,
    },
    /// What was redacted cannot be written.
    #[error(
        "our side, writing the redacted trace: {0}; see that there is room, and that it may be written"
    )]
    Write(String),
}

impl From<TraceError> for RedactError {
    fn from(error: TraceError) -> Self {
        Self::Replay(error.into())
    }
}

/// Reads a trace, which is opened three times, and writes it with placeholders in place of names,
/// addresses, GIDs, tokens and words for people; the same value has the same placeholder everywhere.
/// It is replayed before, and step by step beside itself with placeholders: what comes of each step
/// must be the same but for placeholders and words for people.
///
/// # Errors
/// [`RedactError`]; what was written until then is to be thrown away.
pub fn redact<R: BufRead>(
    open: impl Fn() -> Result<TraceReader<R>, TraceError>,
    to: &mut dyn Write,
) -> Result<Redacted, RedactError> {
    let replayed = replay(open()?, &mut |_| {})?;
    let mut found = Found::default();
    let mut reader = open()?;
    while let Some(line) = reader.next_line()? {
        if let Line::Segment { .. } = line {
            restore(&mut reader, &mut found)?;
        } else {
            again(&line, &mut found).map_err(|_| changed(&line))?;
        }
    }
    let (mut placeholders, redacted) = found.placeholders(replayed);
    let mut reader = open()?;
    let failed = |error: std::io::Error| RedactError::Write(error.to_string());
    to.write_all(header(reader.program()).as_bytes()).map_err(failed)?;
    let mut sides = None;
    while let Some(line) = reader.next_line()? {
        let text = write_redacted(line, &mut reader, &mut placeholders, &mut sides)?;
        to.write_all(text.as_bytes()).map_err(failed)?;
    }
    Ok(redacted)
}

/// The node as it was, and the same with placeholders.
struct Sides {
    plain: Node,
    redacted: Node,
}

fn write_redacted<R: BufRead>(
    line: Line,
    reader: &mut TraceReader<R>,
    placeholders: &mut Placeholders,
    sides: &mut Option<Sides>,
) -> Result<String, RedactError> {
    let mut words = Writer::default();
    let mut text = String::new();
    let mut put = |line: &Line| {
        line.write(&mut words);
        text += &signed(words.as_str());
        words.clear();
    };
    match line {
        Line::Segment { .. } => {
            let Some(plain) = restore(reader, &mut Plain)? else { return Ok(text) };
            let redacted = restored(&saved(&plain), placeholders);
            let redacted = redacted.map_err(|_| changed(&line))?;
            put(&line);
            saved(&redacted).into_iter().for_each(|part| put(&Line::State(part)));
            *sides = Some(Sides { plain, redacted });
        }
        Line::Entry(plain) => {
            let changed = RedactError::Changed { entry: plain.number };
            let line = again(&Line::Entry(plain.clone()), placeholders);
            let (Ok(Line::Entry(redacted)), Some(sides)) = (line, sides) else {
                return Err(changed);
            };
            put(&Line::Entry(sides.step(&plain, redacted, placeholders).ok_or(changed)?));
        }
        Line::State(_) | Line::End { .. } => put(&line),
    }
    Ok(text)
}

impl Sides {
    /// Tells both the same, and yields the entry with what comes of it on the redacted side; `None`
    /// if that is something else than on the plain side.
    fn step(
        &mut self,
        plain: &Entry,
        mut redacted: Entry,
        placeholders: &mut Placeholders,
    ) -> Option<Entry> {
        let (before, after) = (feed(&mut self.plain, plain), feed(&mut self.redacted, &redacted));
        let before = in_common(&before, placeholders)?;
        if before != in_common(&after, &mut Placeholders::default())? {
            return None;
        }
        if let What::Input(_, Some(effects)) | What::Timeout(Some(effects)) = &mut redacted.what {
            *effects = Effects::of(&after);
        }
        Some(redacted)
    }
}

/// The words of outputs with placeholders and without words for people.
fn in_common(outputs: &[Output], placeholders: &mut Placeholders) -> Option<Vec<Output>> {
    let wordless = placeholders.wordless;
    placeholders.wordless = true;
    let same = outputs.iter().map(|output| {
        let mut words = Writer::default();
        output.write(&mut words);
        Output::read(&mut Reader::new(words.as_str(), placeholders)).ok()
    });
    let same = same.collect();
    placeholders.wordless = wordless;
    same
}

/// A line with its texts mapped.
fn again(line: &Line, texts: &mut dyn Texts) -> Result<Line, TraceCause> {
    let mut words = Writer::default();
    line.write(&mut words);
    Ok(Line::read(words.as_str(), &mut Reader::new(words.as_str(), texts))?)
}

fn changed(line: &Line) -> RedactError {
    let entry = match line {
        Line::Entry(Entry { number, .. }) => *number,
        Line::Segment { entry, .. } | Line::End { entry, .. } => *entry,
        Line::State(_) => 0,
    };
    RedactError::Changed { entry }
}

/// Every text of a trace, with the first of its kinds.
#[derive(Default)]
struct Found(BTreeMap<String, TextKind>);

impl Texts for Found {
    fn text(&mut self, kind: TextKind, text: String) -> String {
        if !text.is_empty() {
            let known = self.0.entry(text.clone()).or_insert(kind);
            *known = kind.min(*known);
        }
        text
    }

    fn lasting(&mut self, name: &str) -> Option<&'static str> {
        lasting(name)
    }
}

impl Found {
    fn placeholders(self, replayed: Replayed) -> (Placeholders, Redacted) {
        let count = |kind| self.0.values().filter(|known| **known == kind).count();
        let redacted = Redacted {
            names: count(TextKind::Name),
            addresses: count(TextKind::Address),
            gids: count(TextKind::Gid),
            tokens: count(TextKind::Token),
            details: count(TextKind::Detail),
            replayed,
        };
        let kinds = [
            (TextKind::Name, "name", redacted.names),
            (TextKind::Address, "address", redacted.addresses),
            (TextKind::Gid, "gid", redacted.gids),
            (TextKind::Token, "token", redacted.tokens),
            (TextKind::Detail, "text", redacted.details),
        ];
        let mut known = BTreeMap::new();
        for (kind, word, count) in kinds {
            let digits = count.to_string().len();
            let of_kind = self.0.iter().filter(|(_, known)| **known == kind);
            for (rank, (text, _)) in of_kind.enumerate() {
                known.insert(text.clone(), format!("{word}-{:0digits$}", rank + 1));
            }
        }
        (Placeholders { known: Some(known), wordless: false }, redacted)
    }
}

/// What stands for what. Without any, texts stay as they are.
#[derive(Default)]
struct Placeholders {
    known: Option<BTreeMap<String, String>>,
    /// Words for people are left out.
    wordless: bool,
}

impl Texts for Placeholders {
    fn text(&mut self, kind: TextKind, text: String) -> String {
        if kind == TextKind::Detail && self.wordless {
            return String::new();
        }
        match &self.known {
            Some(_) if text.is_empty() => text,
            // What the core says and was never told is words of its own, for people.
            Some(known) => known.get(&text).cloned().unwrap_or_else(|| "text".to_owned()),
            None => text,
        }
    }

    fn lasting(&mut self, name: &str) -> Option<&'static str> {
        lasting(name)
    }
}
