//! A node with an optional recorder.

use crate::recorder::Trace;
use handfast_core::{Input, Instant, Node, Output};
use std::collections::VecDeque;
use std::ops::Deref;

/// A node with the interface of [`Node`]. With a trace, every input and its outputs are in the file
/// before an output is polled.
#[derive(Debug)]
pub struct Recorded {
    node: Node,
    trace: Option<Trace>,
    /// Recorded outputs that were not polled yet.
    outputs: VecDeque<Output>,
}

impl Recorded {
    /// Records a node from now on, if a trace is given.
    pub fn new(node: Node, trace: Option<Trace>) -> Self {
        if let Some(trace) = &trace {
            trace.lock().begin_segment_if_full(&node);
        }
        Self { node, trace, outputs: VecDeque::new() }
    }

    /// Like [`Node::handle_input`].
    pub fn handle_input(&mut self, now: Instant, input: Input) {
        self.handle(now, Some(input));
    }

    /// Like [`Node::handle_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        self.handle(now, None);
    }

    /// Like [`Node::poll_output`].
    pub fn poll_output(&mut self) -> Option<Output> {
        match self.trace {
            Some(_) => self.outputs.pop_front(),
            None => self.node.poll_output(),
        }
    }

    /// Begins a segment if the current one is full, so that edges of transfers are kept again.
    pub fn begin_segment(&self) {
        if let Some(trace) = &self.trace {
            trace.lock().begin_segment_if_full(&self.node);
        }
    }

    /// Records that the engine is closed.
    pub fn end(&self, now: Instant) {
        if let Some(trace) = &self.trace {
            trace.end(now);
        }
    }

    fn handle(&mut self, now: Instant, input: Option<Input>) {
        let Some(trace) = &self.trace else { return tell(&mut self.node, now, input) };
        let mut recorder = trace.lock();
        recorder.begin(&self.node, now, input.as_ref());
        tell(&mut self.node, now, input);
        let mut outputs = Vec::new();
        while let Some(output) = self.node.poll_output() {
            outputs.push(output);
        }
        recorder.finish(&outputs);
        self.outputs.extend(outputs);
    }
}

fn tell(node: &mut Node, now: Instant, input: Option<Input>) {
    match input {
        Some(input) => node.handle_input(now, input),
        None => node.handle_timeout(now),
    }
}

/// Read-only access to the node.
impl Deref for Recorded {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // The last line of a trace is the input that made the core panic.
        if let Some(trace) = self.trace.as_ref().filter(|_| std::thread::panicking()) {
            trace.lock().finish_unanswered();
        }
    }
}
