//! Lanes that do not retire: their retirement failed each time, or takes too long.
//!
//! Such a lane may still touch memory, and no other lane is connected past it (rule H6). Until it
//! is gone, a demand for a lane over its path fails at once with the cause, instead of waiting for
//! the limits of a handshake that cannot end.

use crate::command::{Command, Commands};
use crate::data::transport::Transport;
use crate::path::is_legacy;
use crate::time::Clock;
use handfast_core::transport::{OperationId, OperationKind, Outcome, TransportError};
use handfast_core::{Duration, Incarnation, Lifecycle, NicPath, Pair};
use std::collections::BTreeMap;
use std::sync::Arc;
use tracing::debug;

/// Pause before the first retirement after those of the life cycle.
const RETIRE_PAUSE_MIN: Duration = Duration::from_millis(1_000);
/// Longest pause between two retirements; the pause doubles up to it.
const RETIRE_PAUSE_MAX: Duration = Duration::from_millis(30_000);

/// The lanes of a node that do not retire. Bounded by the table of lifecycles.
#[derive(Default)]
pub(crate) struct Unretired {
    lanes: BTreeMap<Lifecycle, Lane>,
}

struct Lane {
    path: NicPath,
    remote: Pair,
    cause: TransportError,
}

impl Unretired {
    /// Adds a lane that was connected to `remote`.
    pub(crate) fn add(
        &mut self,
        lane: Lifecycle,
        path: NicPath,
        remote: Pair,
        cause: TransportError,
    ) {
        self.lanes.insert(lane, Lane { path, remote, cause });
    }

    pub(crate) fn remove(&mut self, lane: Lifecycle) {
        self.lanes.remove(&lane);
    }

    /// The cause for which no lane over `path` to the peer's incarnation can be connected now.
    pub(crate) fn cause(
        &self,
        path: &NicPath,
        incarnation: Incarnation,
    ) -> Option<&TransportError> {
        let is_earlier = |lane: &&Lane| {
            let is_of_node = lane.path.node == path.node && !is_legacy(path);
            lane.path == *path || is_of_node && lane.remote.incarnation != incarnation
        };
        self.lanes.values().find(is_earlier).map(|lane| &lane.cause)
    }
}

/// Retires a lane again, after pauses that double, until the transport succeeds, which is reported
/// as the outcome of the life cycle's last attempt.
pub(crate) async fn retire_again(
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    commands: Commands,
    lifecycle: Lifecycle,
) {
    let mut pause = RETIRE_PAUSE_MIN;
    loop {
        clock.sleep_until(clock.now() + pause).await;
        match transport.retire(lifecycle).await {
            Ok(()) => break,
            Err(error) => debug!(?lifecycle, %error, "the lane still does not retire"),
        }
        pause = pause.doubled(1).min(RETIRE_PAUSE_MAX);
    }
    let id = OperationId { lifecycle, kind: OperationKind::Retire };
    commands.send(Command::OperationDone { id, outcome: Outcome::Retired });
}
