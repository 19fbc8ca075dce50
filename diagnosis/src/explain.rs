//! Recognises the catalogue's problems in text: a single message, or a log as a stream.

mod lines;
mod matcher;
mod report;
mod suggest;

pub use lines::EXCERPT_CHARS_MAX;

use crate::ids;
use crate::normal::normal;
use crate::problem::{Id, Problem, Role, Severity, Side, problem, problems};
use lines::{begins_record, connection, excerpt, is_news, plain};
use matcher::{Match, best_match};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use suggest::Sample;

/// Maximum length of a line; longer ones are analysed in pieces.
pub const LINE_BYTES_MAX: usize = 16 << 10;
/// Maximum length of the input, in bytes; the explanation reports a longer one.
pub const INPUT_BYTES_MAX: u64 = 1 << 30;
/// Connections whose first errors are counted separately.
pub const CONNECTIONS_MAX: usize = 256;
/// Maximum length of the end of a broken record that is compared with the next line.
const TAIL_BYTES_MAX: usize = 2 << 10;

/// A problem recognised in the input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// The problem.
    pub id: Id,
    /// Its usual severity.
    pub severity: Severity,
    /// The role of its messages in a log.
    pub role: Role,
    /// The side that the first message points to.
    pub side: Side,
    /// The line of the first message, counted from 1.
    pub line: u64,
    /// Number of lines with it.
    pub count: u64,
    /// The beginning of the first line.
    pub text: String,
    /// Whether all its messages were informational.
    #[serde(skip)]
    news: bool,
}

/// The outcome of one connection: its first error explains the later ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Connection {
    /// The peer or the queue pair, as the log names it.
    pub name: String,
    /// Its first error that is not a consequence; `None` if all were flushed.
    pub first: Option<Id>,
    /// The line of that error, or of the first consequence.
    pub line: u64,
    /// Requests that failed because of an earlier error.
    pub flushed: u64,
}

/// A problem that unknown text resembles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suggestion {
    /// The problem.
    pub id: Id,
    /// The matching share of one of its messages, in percent.
    pub likeness_percent: u8,
}

/// The explanation of an input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The cause of everything else; `None` if nothing was recognised.
    pub first: Option<Seen>,
    /// The first diagnosis, before the log named the kind of device.
    pub refined_from: Option<Id>,
    /// All recognised problems, by line.
    pub seen: Vec<Seen>,
    /// Connections with failed requests, by line; at most [`CONNECTIONS_MAX`].
    pub connections: Vec<Connection>,
    /// Requests that failed because of an earlier error, on all connections.
    pub flushed: u64,
    /// Number of analysed lines.
    pub lines: u64,
    /// Whether the input was longer than [`INPUT_BYTES_MAX`].
    pub truncated: bool,
    /// Suggestions, if nothing was recognised.
    pub nearest: Vec<Suggestion>,
}

/// Analyses text as a stream. Its memory does not grow with the input.
#[derive(Default)]
pub struct Explainer {
    line: Vec<u8>,
    bytes: u64,
    lines: u64,
    truncated: bool,
    pending: Option<Pending>,
    seen: BTreeMap<Id, Seen>,
    connections: Vec<Connection>,
    flushed: u64,
    words: BTreeSet<&'static str>,
    /// Kinds of links in the text.
    links: Links,
    sample: Sample,
}

/// Kinds of links named in a text.
#[derive(Default)]
struct Links {
    ethernet: bool,
    infiniband: bool,
}

impl Links {
    fn note(&mut self, text: &str) {
        let of = |kind: &str| {
            ["linklayer:", "link_layer:"].iter().any(|key| text.contains(&format!("{key}{kind}")))
        };
        self.ethernet |= of("ethernet");
        self.infiniband |= of("infiniband");
    }
}

/// The last line, which may continue on the next.
struct Pending {
    number: u64,
    plain: String,
    /// The end of the record so far, in normal form.
    tail: String,
    found: Option<Match>,
    /// The side named in the line itself.
    marked: Option<Side>,
    /// A message that continues the previous line and was counted there.
    rest_of: Option<(Id, u64)>,
}

/// Explains a complete text.
pub fn explain(text: &str) -> Explanation {
    let mut explainer = Explainer::default();
    explainer.feed(text.as_bytes());
    explainer.finish()
}

impl Explainer {
    /// Analyses the next bytes, split anywhere.
    pub fn feed(&mut self, bytes: &[u8]) {
        let room = usize::try_from(INPUT_BYTES_MAX - self.bytes).unwrap_or(usize::MAX);
        self.truncated |= bytes.len() > room;
        let bytes = &bytes[..bytes.len().min(room)];
        self.bytes += bytes.len() as u64;
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (piece, ends) = match piece.strip_suffix(b"\n") {
                Some(piece) => (piece, true),
                None => (piece, false),
            };
            let mut rest = piece;
            while self.line.len() + rest.len() > LINE_BYTES_MAX {
                let (now, later) = rest.split_at(LINE_BYTES_MAX - self.line.len());
                self.line.extend_from_slice(now);
                self.end_piece();
                rest = later;
            }
            self.line.extend_from_slice(rest);
            if ends {
                self.lines += 1;
                self.end_piece();
            }
        }
    }

    /// Whether further input would be analysed.
    pub fn wants_more(&self) -> bool {
        self.bytes < INPUT_BYTES_MAX
    }

    fn end_piece(&mut self) {
        let raw = std::mem::take(&mut self.line);
        self.handle_line(&plain(&raw));
        self.line = raw;
        self.line.clear();
    }

    fn handle_line(&mut self, line: &str) {
        let text = normal(line);
        self.note_words(&text);
        self.links.note(&text);
        let found = named_id(line).or_else(|| best_match(&text));
        if found.is_none() {
            self.sample.add(&text);
        }
        let mut pending = Pending {
            number: self.lines.max(1),
            plain: line.to_owned(),
            marked: marked_side(&text),
            tail: text,
            found,
            rest_of: None,
        };
        if let Some(last) = self.pending.take() {
            let mut last = last;
            if !begins_record(line) && joins(&mut last, &mut pending) {
                if let Some((id, line)) = last.rest_of.take() {
                    self.withdraw(id);
                    last.number = line;
                }
                pending.rest_of = last.found.map(|found| (found.problem.id, last.number));
            }
            self.account(&last);
        }
        shorten(&mut pending.tail);
        self.pending = Some(pending);
    }

    fn note_words(&mut self, text: &str) {
        let all = problems().iter().flat_map(|problem| problem.refine).map(|(word, _)| *word);
        let new: Vec<_> =
            all.filter(|word| !self.words.contains(word) && text.contains(word)).collect();
        self.words.extend(new);
    }

    fn account(&mut self, pending: &Pending) {
        let Some(found) = pending.found.filter(|_| pending.rest_of.is_none()) else { return };
        let Problem { id, severity, role, side, .. } = *found.problem;
        let side = pending.marked.unwrap_or(side);
        let (text, news) = (excerpt(&pending.plain), is_news(&pending.plain));
        let first = Seen { id, severity, role, side, line: pending.number, count: 0, text, news };
        let seen = self.seen.entry(id).or_insert_with(|| first.clone());
        if seen.news && !news {
            *seen = Seen { count: seen.count, ..first };
        }
        seen.count += 1;
        let is_completion = id.as_str().starts_with("WC-");
        if role == Role::Consequence {
            self.flushed += 1;
        }
        if let Some(name) = connection(&pending.plain).filter(|_| is_completion) {
            self.on_connection(name, id, role, pending.number);
        }
    }

    /// Uncounts a message whose continuation is more specific.
    fn withdraw(&mut self, id: Id) {
        let Some(seen) = self.seen.get_mut(&id) else { return };
        seen.count -= 1;
        if seen.role == Role::Consequence {
            self.flushed = self.flushed.saturating_sub(1);
        }
        if seen.count == 0 {
            self.seen.remove(&id);
        }
    }

    fn on_connection(&mut self, name: String, id: Id, role: Role, line: u64) {
        let flushed = u64::from(role == Role::Consequence);
        let cause = (role == Role::Cause).then_some(id);
        let known = self.connections.iter().position(|known| known.name == name);
        match known {
            Some(at) => {
                let known = &mut self.connections[at];
                known.flushed += flushed;
                if known.first.is_none() && cause.is_some() {
                    (known.first, known.line) = (cause, line);
                }
            }
            None if self.connections.len() < CONNECTIONS_MAX => {
                self.connections.push(Connection { name, first: cause, line, flushed });
            }
            None => {}
        }
    }

    /// Returns the explanation of the whole input.
    pub fn finish(mut self) -> Explanation {
        if !self.line.is_empty() {
            self.lines += 1;
            self.end_piece();
        }
        if let Some(last) = self.pending.take() {
            self.account(&last);
        }
        if self.links.ethernet && !self.links.infiniband {
            // Ports of Ethernet have no subnet manager and no LID.
            self.seen.remove(&ids::IB_NO_SM);
        }
        let mut seen: Vec<Seen> = self.seen.into_values().collect();
        seen.sort_by_key(|seen| seen.line);
        let mut first = first_of(&seen).cloned();
        let refined = first.as_ref().and_then(|first| refined(first.id, &self.words));
        let refined_from = refined.and(first.as_ref()).map(|first| first.id);
        if let (Some(first), Some(id)) = (&mut first, refined) {
            let Problem { severity, side, .. } = *problem(id);
            *first = Seen { id, severity, side, ..first.clone() };
        }
        let nearest = if seen.is_empty() { self.sample.nearest() } else { Vec::new() };
        Explanation {
            first,
            refined_from,
            seen,
            connections: self.connections,
            flushed: self.flushed,
            lines: self.lines,
            truncated: self.truncated,
            nearest,
        }
    }
}

/// Whether a message is split between the last line and the next; it is then counted for the last.
fn joins(last: &mut Pending, next: &mut Pending) -> bool {
    let boundary = last.tail.len();
    let text = format!("{}{}", last.tail, next.tail);
    let spans = |found: &Match| found.start < boundary && found.end > boundary;
    let says_more = |found: &Match, than: &Option<Match>| {
        than.as_ref().is_none_or(|than| found.says_more_than(than))
    };
    let found = best_match(&text).filter(spans);
    let found =
        found.filter(|found| says_more(found, &last.found) && says_more(found, &next.found));
    next.tail = text;
    if found.is_none() {
        return false;
    }
    last.found = found;
    last.marked = last.marked.or(next.marked);
    last.plain = format!("{} {}", last.plain.trim_end(), next.plain.trim_start());
    true
}

/// Truncates the text to its end.
fn shorten(tail: &mut String) {
    let mut start = tail.len().saturating_sub(TAIL_BYTES_MAX);
    while !tail.is_char_boundary(start) {
        start += 1;
    }
    tail.drain(..start);
}

/// Returns the cause of everything else: the first fatal cause, or else the first degrading one,
/// errors before informational messages; otherwise a failure, a remark, or a consequence.
fn first_of(seen: &[Seen]) -> Option<&Seen> {
    let of = |role| seen.iter().filter(move |seen| seen.role == role);
    let cause = |news: bool| {
        let causes = || of(Role::Cause).filter(move |seen| seen.news == news);
        let with = |severity| causes().find(move |seen| seen.severity == severity);
        with(Severity::Fatal).or_else(|| with(Severity::Degraded))
    };
    cause(false)
        .or_else(|| cause(true))
        .or_else(|| of(Role::Dispatcher).next())
        .or_else(|| of(Role::Cause).next())
        .or_else(|| seen.iter().find(|seen| seen.id == ids::WC_FLUSH_ONLY))
        .or_else(|| seen.first())
}

fn refined(id: Id, words: &BTreeSet<&'static str>) -> Option<Id> {
    let mut refine = problem(id).refine.iter();
    refine.find(|(word, _)| words.contains(word)).map(|(_, id)| *id)
}

/// Returns an id in brackets, as in handfast's own messages.
fn named_id(line: &str) -> Option<Match> {
    let mut brackets = line.split('[').skip(1).filter_map(|rest| rest.split_once(']'));
    let id = brackets.find_map(|(text, _)| Id::parse(text).filter(|id| id.as_str() == text))?;
    Some(Match::whole(problem(id)))
}

/// Returns the side that a line names: an error reported by a peer is that side's.
fn marked_side(text: &str) -> Option<Side> {
    const MARKS: [(&str, Side); 13] = [
        ("rejectedbypeer", Side::Remote),
        ("handshakerejectedby", Side::Remote),
        ("reportedbypeer", Side::Remote),
        ("thepeerrefused", Side::Remote),
        ("(thepeersside)", Side::Remote),
        ("被对端拒绝", Side::Remote),
        ("对端拒绝", Side::Remote),
        ("对端报告", Side::Remote),
        ("(ourside)", Side::Local),
        ("localaccessviolation", Side::Local),
        ("本端错误", Side::Local),
        ("(theset-upofthetwo)", Side::Both),
        ("(anaccessthatisnotallowed)", Side::Both),
    ];
    MARKS.iter().find(|(mark, _)| text.contains(mark)).map(|(_, side)| *side)
}

#[cfg(test)]
mod tests;
