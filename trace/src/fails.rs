//! Failures: the ring keeps the entries around them for longer.

use crate::line::{Entry, What};
use handfast_core::node::Failure;
use handfast_core::transport::Outcome;
use handfast_core::{Event, Input, Output};

impl Entry {
    /// Whether the entry or one of its outputs is a failure.
    pub fn fails(&self, outputs: &[Output]) -> bool {
        let told = match &self.what {
            What::Input(told, _) => input(told),
            What::Timeout(_) => false,
            What::Edge(_, _, edge) => edge.is_failure(),
        };
        told || outputs.iter().any(output)
    }
}

pub(crate) fn output(output: &Output) -> bool {
    let Output::Event(event) = output else { return false };
    match event {
        Event::PeerForgotten { .. } => false,
        Event::Ended { failure, .. } => {
            !matches!(failure, Failure::Closed | Failure::Evicted | Failure::Quiesced)
        }
        _ => true,
    }
}

pub(crate) fn input(input: &Input) -> bool {
    match input {
        Input::CallFailed { .. } | Input::LaneFailed { .. } => true,
        Input::OperationDone { outcome, .. } => matches!(outcome, Outcome::Failed(_)),
        _ => false,
    }
}
