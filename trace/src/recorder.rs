//! The recorder of a node's inputs and outputs.

use crate::edge::Edge;
use crate::fails;
use crate::line::{Effects, Entry, LINE_BYTES_MAX, Line, What, json, signed};
use crate::ring::{RecordError, RecordOptions, Ring};
use handfast_core::{Incarnation, Input, Instant, NicPath, Node, Output};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The progress of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecorderStatus {
    /// Entries written, dropped ones included.
    pub entries: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Segments dropped to stay within the bound.
    pub dropped: u64,
    /// The error that ended the recording. The node itself continues.
    pub failure: Option<RecordError>,
}

/// Records a node. An input and its effects are in the file before an output leaves the node, so
/// the trace of a killed process is complete up to its last output. Nothing is synced to the disk:
/// the trace survives the end of the process, but not of the machine.
#[derive(Debug)]
pub struct Recorder {
    ring: Ring,
    /// Numbers of the next entry and of the next segment.
    entry: u64,
    segment: u64,
    /// The entry of the input that the core is handling.
    pending: Option<Entry>,
    /// Whether the segment is full of edges and a new one was requested of the node's owner.
    asked: bool,
    /// Number of edges dropped meanwhile.
    missed: u64,
    ended: bool,
    failure: Option<RecordError>,
}

impl Recorder {
    /// Creates the file.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn create(options: RecordOptions) -> Result<Self, RecordError> {
        Ok(Self {
            ring: Ring::create(options)?,
            entry: 1,
            segment: 1,
            pending: None,
            asked: false,
            missed: 0,
            ended: false,
            failure: None,
        })
    }

    /// Records the next input of the core; `None` is a timeout.
    pub(crate) fn begin(&mut self, node: &Node, now: Instant, input: Option<&Input>) {
        if self.is_over() {
            return;
        }
        self.begin_segment_if_full(node);
        let what = match input {
            Some(input) => What::Input(Box::new(input.clone()), None),
            None => What::Timeout(None),
        };
        self.pending = Some(Entry { number: self.entry, now, what });
        if input.is_some_and(fails::input) {
            self.ring.mark_failed();
        }
    }

    /// Writes the pending entry with its effects.
    pub(crate) fn finish(&mut self, outputs: &[Output]) {
        let Some(entry) = &mut self.pending else { return };
        match &mut entry.what {
            What::Input(_, effects) | What::Timeout(effects) => {
                *effects = Some(Effects::of(outputs))
            }
            What::Edge(..) => {}
        }
        if outputs.iter().any(fails::output) {
            self.ring.mark_failed();
        }
        self.finish_unanswered();
    }

    /// Writes the pending entry without effects, as after a panic of the core.
    pub(crate) fn finish_unanswered(&mut self) {
        if let Some(entry) = self.pending.take() {
            self.write_line(&Line::Entry(entry));
            self.entry += 1;
        }
    }

    /// Records edges of the transfers to one incarnation of a peer, each with its time. Returns
    /// true to request a new segment, which needs the node.
    pub(crate) fn edges(
        &mut self,
        peer: &NicPath,
        run: Incarnation,
        edges: impl Iterator<Item = (Instant, Edge)>,
    ) -> bool {
        if self.is_over() {
            return false;
        }
        if self.ring.wants_segment() {
            self.missed += edges.count() as u64;
            return !std::mem::replace(&mut self.asked, true);
        }
        let mut lines = String::new();
        let mut missed = Some(std::mem::take(&mut self.missed)).filter(|missed| *missed > 0);
        for (now, edge) in edges {
            let missed = missed.take().map(Edge::Missed);
            for edge in missed.into_iter().chain([edge]) {
                if edge.is_failure() {
                    self.ring.mark_failed();
                }
                let what = What::Edge(peer.clone(), run, edge);
                lines += &signed(&json(&Line::Entry(Entry { number: self.entry, now, what })));
                self.entry += 1;
            }
        }
        let written = self.ring.append(&lines);
        self.note(written);
        false
    }

    /// Begins a segment if the current one is full.
    pub(crate) fn begin_segment_if_full(&mut self, node: &Node) {
        if !self.is_over() && self.ring.wants_segment() {
            self.checkpoint(node);
        }
    }

    /// Records the end of the engine.
    pub(crate) fn end(&mut self, now: Instant) {
        if self.is_over() {
            return;
        }
        self.write_line(&Line::End { entry: self.entry, now });
        self.ended = true;
    }

    fn is_over(&self) -> bool {
        self.failure.is_some() || self.ended
    }

    fn checkpoint(&mut self, node: &Node) {
        let node = Box::new(node.clone());
        let line = Line::Segment { number: self.segment, entry: self.entry, node };
        let line = signed(&json(&line));
        self.segment += 1;
        self.asked = false;
        let begun = match line.len() {
            ..=LINE_BYTES_MAX => self.ring.begin_segment(&line),
            bytes => Err(RecordError::State { bytes }),
        };
        self.note(begun);
    }

    fn write_line(&mut self, line: &Line) {
        let written = self.ring.append(&signed(&json(line)));
        self.note(written);
    }

    /// Stops recording after a failure: entries after a gap would not replay.
    fn note(&mut self, written: Result<(), RecordError>) {
        if let Err(error) = written {
            self.failure.get_or_insert(error);
        }
    }

    fn status(&self) -> RecorderStatus {
        RecorderStatus {
            entries: self.entry - 1,
            bytes: self.ring.bytes(),
            dropped: self.ring.dropped(),
            failure: self.failure.clone(),
        }
    }
}

/// A recorder that the driver of a node and its transfers share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Trace(Arc<Mutex<Recorder>>);

impl Trace {
    /// Wraps a recorder.
    pub fn new(recorder: Recorder) -> Self {
        Self(Arc::new(Mutex::new(recorder)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Recorder> {
        // After a panic the pending entry is still valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records edges of the transfers to one incarnation of a peer, each with its time. Returns
    /// true to request a call of [`Recorded::begin_segment`](crate::Recorded::begin_segment); until
    /// then edges are counted and dropped.
    pub fn edges(
        &self,
        peer: &NicPath,
        run: Incarnation,
        edges: impl Iterator<Item = (Instant, Edge)>,
    ) -> bool {
        self.lock().edges(peer, run, edges)
    }

    /// Records the end of the engine, as the last line.
    pub fn end(&self, now: Instant) {
        self.lock().end(now);
    }

    /// Returns the progress of the recording.
    pub fn status(&self) -> RecorderStatus {
        self.lock().status()
    }
}
