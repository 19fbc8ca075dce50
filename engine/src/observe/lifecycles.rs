//! The lifecycles of a node, listed by the driver's task.

use handfast_core::NicPath;
use handfast_core::node::{Node, StateKind};
use serde::Serialize;
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// Maximum lifecycles listed individually; further ones are only counted.
pub const LIFECYCLES_LISTED_MAX: usize = 4_096;

/// Counts by the name of a cause, reason or state, without zeros.
pub type ByCause = BTreeMap<&'static str, u64>;

/// The lifecycles of an engine.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct LifecyclesState {
    /// Number of lifecycles in each state, retiring ones included.
    pub by_state: ByCause,
    /// The oldest lifecycles, at most [`LIFECYCLES_LISTED_MAX`].
    pub listed: Vec<LifecycleState>,
    /// Number of lifecycles left out.
    pub left_out: usize,
}

/// The state of one lifecycle: a set of queue pairs, or one connection.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LifecycleState {
    /// Its number within the incarnation.
    pub lifecycle: u64,
    /// State.
    pub state: &'static str,
    /// Path of the peer, `node@nic`.
    pub peer: String,
    /// The peer's incarnation, if known.
    pub remote_incarnation: Option<String>,
    /// The peer's lifecycle number, if known.
    pub remote_lifecycle: Option<u64>,
}

impl LifecyclesState {
    /// Sends the lifecycles of a node to the requester, which may have stopped waiting.
    pub(crate) fn tell(node: &Node, reply: oneshot::Sender<Self>) {
        if !reply.is_closed() {
            let _ = reply.send(Self::of(node));
        }
    }

    fn of(node: &Node) -> Self {
        let mut state = Self::default();
        for (lifecycle, kind, peer, remote) in node.lifecycles() {
            *state.by_state.entry(name(kind)).or_insert(0) += 1;
            if state.listed.len() >= LIFECYCLES_LISTED_MAX {
                state.left_out += 1;
                continue;
            }
            let peer: &NicPath = peer;
            state.listed.push(LifecycleState {
                lifecycle: lifecycle.0,
                state: name(kind),
                peer: peer.to_string(),
                remote_incarnation: remote.map(|remote| remote.incarnation.to_hex()),
                remote_lifecycle: remote.map(|remote| remote.lifecycle.0),
            });
        }
        state
    }
}

fn name(state: StateKind) -> &'static str {
    match state {
        StateKind::Creating => "raising",
        StateKind::Announced => "announced",
        StateKind::Fencing => "fencing",
        StateKind::Connecting => "wiring",
        StateKind::Connected => "wired",
        StateKind::Established => "established",
        StateKind::Probing => "proving",
        StateKind::Legacy => "weak",
        StateKind::Draining => "draining",
        StateKind::Quiescing => "quiescing",
        StateKind::Retiring => "retiring",
    }
}
