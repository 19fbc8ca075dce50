//! A node beside which its run is written down.

use crate::recorder::Trace;
use handfast_core::{Input, Instant, Node, Output};
use std::collections::VecDeque;
use std::ops::Deref;

/// A node that is driven like any other. With a trace, all that it is told is recorded before
/// anybody acts on what comes of it; without, nothing else happens.
#[derive(Debug)]
pub struct Recorded {
    node: Node,
    trace: Option<Trace>,
    /// What came of inputs and was recorded, and not polled yet.
    outputs: VecDeque<Output>,
}

impl Recorded {
    /// Records a node from now on, if there is a trace.
    pub fn new(node: Node, trace: Option<Trace>) -> Self {
        if let Some(trace) = &trace {
            trace.lock().begin_segment_if_full(&node);
        }
        Self { node, trace, outputs: VecDeque::new() }
    }

    /// As [`Node::handle_input`].
    pub fn handle_input(&mut self, now: Instant, input: Input) {
        self.handle(now, Some(input));
    }

    /// As [`Node::handle_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        self.handle(now, None);
    }

    /// As [`Node::poll_output`].
    pub fn poll_output(&mut self) -> Option<Output> {
        match self.trace {
            Some(_) => self.outputs.pop_front(),
            None => self.node.poll_output(),
        }
    }

    /// Makes room for what transfers tell, when they found none.
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

/// What can be asked without changing anything.
impl Deref for Recorded {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // A core that panics leaves the input that did it behind, as the last line.
        if let Some(trace) = self.trace.as_ref().filter(|_| std::thread::panicking()) {
            trace.lock().finish_unanswered();
        }
    }
}
