//! Assembly of an engine's state.

use super::state::{EngineState, NodeState, STATE_SCHEMA};
use crate::command::{Command, Commands};
use crate::control::answer::Answers;
use crate::data::transport::{SameHostUse, Transport};
use crate::node::registry::LaneTable;
use crate::observe::counters::Counters;
use crate::observe::lifecycles::LifecyclesState;
use crate::time::Clock;
use handfast_core::Duration;
use handfast_core::wire::Transports;
use handfast_transport::TransportKind;
use handfast_transport_tcp::TcpCounters;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Time for the driver to list its lifecycles. It answers between two commands.
const LIST_TIMEOUT: Duration = Duration::from_millis(1_000);

/// Source of an engine's snapshots.
pub(crate) struct View {
    pub(crate) answers: Arc<Answers>,
    pub(crate) lanes: Arc<LaneTable>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) commands: Commands,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tcp_counters: Box<dyn Fn() -> TcpCounters + Send + Sync>,
}

impl View {
    pub(crate) fn counters(&self) -> Counters {
        let (lanes, rdma) = (self.lanes.len(), self.transport.nic_counters());
        let memory = self.transport.memory_counters();
        let counters = self.answers.counts.snapshot(lanes, (self.tcp_counters)(), rdma);
        Counters { memory, shm: self.transport.shm_counters(), ..counters }
    }

    /// Transports of its lanes, the preferred one first.
    pub(crate) fn transport_kinds(&self) -> impl Iterator<Item = TransportKind> + use<> {
        let Transports { tcp, rdma } = self.answers.offer.transports;
        let used = self.transport.same_host_use();
        let all = [
            (used != SameHostUse::Never, TransportKind::Shm),
            (rdma, TransportKind::Rdma),
            (tcp && used != SameHostUse::Alone, TransportKind::Tcp),
        ];
        all.into_iter().filter_map(|(offered, transport_kind)| offered.then_some(transport_kind))
    }

    /// Returns a snapshot of the engine within [`LIST_TIMEOUT`].
    pub(crate) async fn state(&self) -> EngineState {
        let answers = &self.answers;
        let lifecycles = self.lifecycles().await;
        let (peers, other) = answers.counts.meters.all();
        let counters = self.counters();
        let named = counters.named();
        let devices = answers.offer.devices.names().iter().cloned();
        EngineState {
            schema: STATE_SCHEMA,
            node: NodeState {
                name: answers.name.as_str().to_owned(),
                incarnation: answers.incarnation.to_hex(),
                address: answers.address.clone(),
                version: env!("CARGO_PKG_VERSION"),
                transport_kinds: self.transport_kinds().map(TransportKind::name).collect(),
                devices: devices.collect(),
                segments: answers.regions.len(),
            },
            lanes: counters.lanes,
            rdma_kept_bytes: counters.memory.kept_bytes,
            counters: named.iter().map(|(name, _, count)| (*name, *count)).collect(),
            lifecycles,
            peers,
            other,
            named,
        }
    }

    async fn lifecycles(&self) -> Option<LifecyclesState> {
        let (reply, listed) = oneshot::channel();
        if !self.commands.send(Command::ListLifecycles { reply }) {
            return None;
        }
        let clock = &self.clock;
        let late = clock.sleep_until(clock.now() + LIST_TIMEOUT);
        tokio::select! {
            listed = listed => listed.ok(),
            () = late => None,
        }
    }
}
