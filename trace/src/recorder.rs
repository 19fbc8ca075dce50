//! Writing a run down.

use crate::edge::Edge;
use crate::fails;
use crate::line::{Effects, Entry, LINE_BYTES_MAX, Line, What, json, signed};
use crate::ring::{RecordError, RecordOptions, Ring};
use handfast_core::{Incarnation, Input, Instant, NicPath, Node, Output};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a recording came to so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecorderStatus {
    /// Entries written, those that made way included.
    pub entries: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Segments that made way.
    pub dropped: u64,
    /// Why nothing more is recorded, if so. The node goes on without.
    pub failure: Option<RecordError>,
}

/// Writes a node's run down. An input and what came of it are in the file before anybody acts on
/// what came of it, so that the trace of a process that is killed is whole up to its last act. They
/// survive the end of the process and not that of the machine: nothing is forced to the disk.
#[derive(Debug)]
pub struct Recorder {
    ring: Ring,
    /// The number of the next entry, and of the next segment.
    entry: u64,
    segment: u64,
    /// The entry of the input that the core handles now.
    pending: Option<Entry>,
    /// The segment is full of edges, and whoever has the node was asked to begin another.
    asked: bool,
    /// Edges that came meanwhile.
    missed: u64,
    ended: bool,
    failure: Option<RecordError>,
}

impl Recorder {
    /// Makes the file.
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

    /// What the core is about to be told; `None` is that time has passed.
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

    /// What happened to the transfers to one run of a peer, with the time of each. True if a
    /// segment should be begun: only whoever has the node can.
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

    /// Begins a segment, if the one under way is full.
    pub(crate) fn begin_segment_if_full(&mut self, node: &Node) {
        if !self.is_over() && self.ring.wants_segment() {
            self.checkpoint(node);
        }
    }

    /// The engine is closed.
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

    /// Nothing is recorded after a failure: what follows a gap would not replay.
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
    /// Shares a recorder.
    pub fn new(recorder: Recorder) -> Self {
        Self(Arc::new(Mutex::new(recorder)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Recorder> {
        // After a panic the line under way is still the one that was begun.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records what happened to the transfers to one run of a peer, each with its time. True if
    /// [`Recorded::begin_segment`](crate::Recorded::begin_segment) is to be called: edges are counted
    /// and not kept until it was.
    pub fn edges(
        &self,
        peer: &NicPath,
        run: Incarnation,
        edges: impl Iterator<Item = (Instant, Edge)>,
    ) -> bool {
        self.lock().edges(peer, run, edges)
    }

    /// Records that the engine is closed. Nothing is recorded after it.
    pub fn end(&self, now: Instant) {
        self.lock().end(now);
    }

    /// What the recording came to so far.
    pub fn status(&self) -> RecorderStatus {
        self.lock().status()
    }
}
