//! Lanes ahead of the first transfer.

use crate::api::engine::Engine;
use crate::error::{Cause, Error, Stage};
use crate::peer::look_ups;
use crate::peer::target::{LaneStatus, Target};
use std::future::Future;
use std::time::Duration;
use tokio::task::JoinSet;

/// Peers warmed at once by [`Engine::warm`].
const WARMING_MAX: usize = 64;
/// Time limit of the wait for a peer's lane in [`Engine::warm`]: a chosen value.
const WARM_TIMEOUT: Duration = Duration::from_secs(120);

impl Engine {
    /// Opens lanes to nodes, `host:port` each, ahead of the first transfer. Returns the failures;
    /// an empty list means that every lane is established. A node that restarts meanwhile is a failure,
    /// [`Cause::PeerRestarted`]: warm it again. A lane that is neither established nor refused within 120 seconds
    /// after the look-up of its node is [`Cause::DeadlinePassed`]. Cancel-safe.
    pub async fn warm(&self, nodes: &[&str]) -> Vec<Error> {
        let mut waiting = nodes.iter().map(|node| (*node).to_owned());
        let mut tasks = JoinSet::new();
        let mut failures = Vec::new();
        loop {
            while tasks.len() < WARMING_MAX
                && let Some(node) = waiting.next()
            {
                let engine = self.clone();
                tasks.spawn(async move { engine.warm_one(&node).await });
            }
            match tasks.join_next().await {
                Some(Ok(Err(error))) => failures.push(error),
                Some(_) => {}
                None => return failures,
            }
        }
    }

    async fn warm_one(&self, node: &str) -> Result<(), Error> {
        let (_, target) = self.find(node, look_ups::begin()).await?;
        let limit = self.sleep_until(self.deadline(WARM_TIMEOUT));
        open_lane_within(limit, &target).await.map_err(|error| error.at(node))
    }
}

/// Waits until a lane to a run of a peer has come up or was refused, or a limit is over. Cancel-safe.
pub(crate) async fn open_lane_within(
    limit: impl Future<Output = ()>,
    target: &Target,
) -> Result<(), Error> {
    tokio::select! {
        opened = open_lane(target) => opened,
        () = limit => Err(Error::peer(Stage::Handshake, Cause::DeadlinePassed)),
    }
}

async fn open_lane(target: &Target) -> Result<(), Error> {
    let mut lanes = target.watch_lanes();
    let LaneStatus { up, established, failures, .. } = *lanes.borrow();
    if up > 0 {
        return Ok(());
    }
    let closed = || Error::local(Stage::Handshake, Cause::Closed);
    if !target.want_lane() {
        return Err(match target.is_closed() {
            true => closed(),
            false => Error::peer(Stage::Handshake, Cause::PeerRestarted),
        });
    }
    // A lane that came and has gone was established.
    let is_settled = |it: &LaneStatus| it.established > established || it.failures > failures;
    let status = lanes.wait_for(is_settled).await.map_err(|_| closed())?.clone();
    match status.failure {
        Some(cause) if status.established == established => {
            Err(Error::new(cause.side, Stage::Handshake, target.loss(&cause)))
        }
        _ => Ok(()),
    }
}
