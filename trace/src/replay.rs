//! Replay: a trace fed to the core.

use crate::error::{TraceCause, TraceError};
use crate::line::{Effects, Entry, Line, What, json};
use crate::reader::TraceReader;
use handfast_core::{Input, Instant, Node, Output};
use std::io::BufRead;

/// Maximum outputs listed by a difference, and maximum characters of each.
const LISTED_MAX: usize = 16;
const LISTED_CHARACTERS_MAX: usize = 512;

/// The contents of a replayed trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The version of handfast that recorded it.
    pub program: String,
    /// Inputs and timeouts.
    pub steps: u64,
    /// Outputs, each as recorded.
    pub outputs: u64,
    /// Edges of transfers, which are not replayed.
    pub edges: u64,
    /// Segments.
    pub segments: u64,
    /// Entries dropped before the last segment.
    pub missing: u64,
    /// The time of the first entry.
    pub first: Option<Instant>,
    /// The time of the last entry.
    pub last: Option<Instant>,
    /// Whether the trace ends with the end of the engine. Otherwise the process was killed, or was
    /// running when the file was copied.
    pub ended: bool,
    /// Whether the last line was incomplete and was omitted.
    pub cut: bool,
}

/// The first entry whose effects differ from the recorded ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "entry {entry} at {} ms differs: {expected} expected, {got} got: the rules changed since it was \
     recorded, or the run did not depend on its inputs alone; replay it with the version of \
     handfast that recorded it",
    .now.0 / 1_000_000
)]
pub struct Difference {
    /// Its number.
    pub entry: u64,
    /// Its time, in nanoseconds of the run's clock.
    pub now: Instant,
    /// The recorded effects.
    pub expected: String,
    /// The effects of the replay.
    pub got: String,
}

/// The error of a trace that does not replay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// A line cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The effects of an entry differ from the recorded ones.
    #[error(transparent)]
    Differs(#[from] Difference),
}

/// A step of a replay.
pub enum Step<'a> {
    /// A segment begins with a node in this state.
    Segment {
        /// Its number.
        number: u64,
        /// Entries that are missing before it.
        missing: u64,
        /// The node.
        node: &'a Node,
    },
    /// An entry was replayed.
    Entry {
        /// The entry.
        entry: &'a Entry,
        /// The node after it.
        node: &'a Node,
        /// Its outputs.
        outputs: &'a [Output],
    },
    /// The engine was closed.
    End(Instant),
}

/// Replays a trace to its end and passes every step to `show`.
///
/// # Errors
/// [`ReplayError`] at the first line that cannot be read or has other effects.
pub fn replay<R: BufRead>(
    reader: TraceReader<R>,
    show: &mut dyn FnMut(Step<'_>),
) -> Result<Replayed, ReplayError> {
    let program = reader.program().to_owned();
    let mut course = Course { reader, node: None, next: 1, last: Replayed::default() };
    course.last.program = program;
    while let Some(line) = course.reader.next_line()? {
        course.take(line, show)?;
    }
    if course.node.is_none() && !course.reader.may_be_cut() {
        return Err(course.reader.wrong(TraceCause::Order("no segment follows")).into());
    }
    course.last.cut = course.reader.was_cut();
    Ok(course.last)
}

/// A replay in progress.
struct Course<R> {
    reader: TraceReader<R>,
    node: Option<Node>,
    /// The number of the next entry.
    next: u64,
    last: Replayed,
}

impl<R: BufRead> Course<R> {
    fn take(&mut self, line: Line, show: &mut dyn FnMut(Step<'_>)) -> Result<(), ReplayError> {
        match line {
            Line::Segment { number, entry, node } => self.begin_segment(number, entry, *node, show),
            Line::End { entry, now } => {
                if entry != self.next || self.node.is_none() {
                    return Err(self.order("the end does not have the number of the next entry"));
                }
                self.last.ended = true;
                show(Step::End(now));
                Ok(())
            }
            Line::Entry(entry) => self.step(&entry, show),
        }
    }

    fn begin_segment(
        &mut self,
        number: u64,
        entry: u64,
        node: Node,
        show: &mut dyn FnMut(Step<'_>),
    ) -> Result<(), ReplayError> {
        let missing = entry
            .checked_sub(self.next)
            .ok_or_else(|| self.order("a segment repeats an earlier entry"))?;
        if let Some(before) = self.node.as_ref().filter(|_| missing == 0)
            && let Some((expected, got)) = difference(&node, before)
        {
            let now = self.last.last.unwrap_or_default();
            return Err(Difference { entry, now, expected, got }.into());
        }
        self.last.segments += 1;
        self.last.missing += missing;
        self.next = entry;
        show(Step::Segment { number, missing, node: &node });
        self.node = Some(node);
        Ok(())
    }

    fn step(&mut self, entry: &Entry, show: &mut dyn FnMut(Step<'_>)) -> Result<(), ReplayError> {
        if self.node.is_none() {
            return Err(self.order("an entry before the first segment"));
        }
        if entry.number != self.next {
            return Err(self.order("an entry is out of sequence"));
        }
        let next = self.next.checked_add(1);
        self.next = next.ok_or_else(|| self.order("the number of an entry is too high"))?;
        let Some(node) = &mut self.node else { return Ok(()) };
        self.last.first.get_or_insert(entry.now);
        self.last.last = Some(entry.now);
        let recorded = match &entry.what {
            What::Input(_, recorded) | What::Timeout(recorded) => recorded,
            What::Edge(..) => {
                self.last.edges += 1;
                show(Step::Entry { entry, node, outputs: &[] });
                return Ok(());
            }
        };
        let outputs = feed(node, entry);
        let effects = Effects::of(&outputs);
        self.last.steps += 1;
        self.last.outputs += outputs.len() as u64;
        if let Some(recorded) = recorded.as_ref().filter(|recorded| **recorded != effects) {
            let expected = words(recorded);
            let got = format!("{}{}", words(&effects), listed(&outputs));
            return Err(Difference { entry: entry.number, now: entry.now, expected, got }.into());
        }
        show(Step::Entry { entry, node, outputs: &outputs });
        Ok(())
    }

    fn order(&self, what: &'static str) -> ReplayError {
        self.reader.wrong(TraceCause::Order(what)).into()
    }
}

/// Feeds an entry to the core and yields its outputs.
pub(crate) fn feed(node: &mut Node, entry: &Entry) -> Vec<Output> {
    match &entry.what {
        What::Input(input, _) => node.handle_input(entry.now, Input::clone(input)),
        What::Timeout(_) => node.handle_timeout(entry.now),
        What::Edge(..) => {}
    }
    let mut outputs = Vec::new();
    while let Some(output) = node.poll_output() {
        outputs.push(output);
    }
    outputs
}

/// Returns the context of the first byte in which two states differ.
fn difference(expected: &Node, got: &Node) -> Option<(String, String)> {
    let (expected, got) = (json(expected), json(got));
    if expected == got {
        return None;
    }
    let same = expected.chars().zip(got.chars()).take_while(|(expected, got)| expected == got);
    let from = same.count().saturating_sub(LISTED_CHARACTERS_MAX / 2);
    let shown = |text: &str| {
        let part: String = text.chars().skip(from).take(LISTED_CHARACTERS_MAX).collect();
        format!("the state '{part}'")
    };
    Some((shown(&expected), shown(&got)))
}

fn words(effects: &Effects) -> String {
    let Effects { count, digest, kinds } = effects;
    format!("{count} outputs ({kinds}) of digest {digest:016x}")
}

fn listed(outputs: &[Output]) -> String {
    let shown = outputs.iter().take(LISTED_MAX);
    shown.map(|output| format!("\n  {}", brief(&format!("{output:?}")))).collect()
}

fn brief(text: &str) -> String {
    text.chars().take(LISTED_CHARACTERS_MAX).collect()
}
