//! One node's endpoint life cycle: the rules of `docs/handshake.md` as a state machine.
//!
//! One machine per node and not per connection, because the races cross endpoints. The contract:
//! give an [`Input`], then drain [`Node::poll_output`] to `None`; ask [`Node::poll_timeout`] after
//! every call, since any call may change its answer.

mod api;
mod deadlines;
mod fingerprint;
mod lane;
mod legacy;
mod machine;
mod messages;
mod peers;
mod quiesce;
mod saved;
mod shared_map;
mod transitions;

pub use api::{
    CallFailure, CallToken, Counters, Event, Failure, Input, Limits, NodeConfig, Output, TimerId,
    TimerKind, Timing,
};
pub use fingerprint::Ranks;
pub use lane::StateKind;
pub use machine::Node;
pub use transitions::{TRANSITIONS, Transition, Trigger};
