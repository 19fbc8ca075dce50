//! Reports of the device's poller thread, in the engine's terms.

use crate::data::fallback::Fallbacks;
use crate::error::{Cause, Error, Stage};
use crate::path::is_legacy;
use crate::time::Clock;
use handfast_core::policy::{FAILED_LANES_MAX, FALLBACK_TIME, RdmaFallback};
use handfast_core::transport::{Side, TransportError};
use handfast_core::{Duration, Lifecycle, NicPath};
use handfast_transport::{Completion, CompletionStatus, LaneSink, SliceId};
use handfast_transport_rdma::{DeviceEvent, Nic, NicSink};
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::Handle;
use tracing::{debug, warn};

/// Timeout for a withdrawn slice to complete by itself. A queue pair releases nothing, so past it the
/// lane fails, which releases all. Longer than a device retries towards a silent peer.
const WITHDRAWAL: Duration = Duration::from_millis(1_000);

/// Facts about a lane that the device does not know.
struct Facts {
    peer: NicPath,
    answered: AtomicBool,
}

pub(super) struct Watch {
    lanes: Arc<dyn LaneSink>,
    /// Fallbacks, where lanes may use TCP instead.
    fallbacks: Option<Fallbacks>,
    clock: Arc<dyn Clock>,
    /// Runtime handle, since calls also come from the device's own thread.
    runtime: Handle,
    facts: RwLock<BTreeMap<Lifecycle, Arc<Facts>>>,
    fallback: Mutex<RdmaFallback>,
}

impl Watch {
    /// Creates a watch. Call within the runtime.
    pub(super) fn new(
        lanes: Arc<dyn LaneSink>,
        fallbacks: Option<Fallbacks>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (facts, fallback) = (RwLock::default(), Mutex::default());
        Self { lanes, fallbacks, clock, runtime: Handle::current(), facts, fallback }
    }

    /// The decision between RDMA and TCP, locked for one call.
    pub(super) fn fallback(&self) -> MutexGuard<'_, RdmaFallback> {
        self.fallback.lock()
    }

    pub(super) fn add(&self, lane: Lifecycle, peer: NicPath) {
        let facts = Facts { peer, answered: AtomicBool::new(false) };
        let mut known = self.facts.write();
        known.insert(lane, Arc::new(facts));
    }

    pub(super) fn remove(&self, lane: Lifecycle) {
        self.facts.write().remove(&lane);
    }

    /// Fails the lane if the withdrawn slice does not complete in time.
    pub(super) fn want_back(self: &Arc<Self>, nic: &Arc<Nic>, lane: Lifecycle, slice: SliceId) {
        let at = self.clock.now() + WITHDRAWAL;
        let (watch, nic, clock) = (Arc::downgrade(self), Arc::downgrade(nic), self.clock.clone());
        self.runtime.spawn(async move {
            clock.sleep_until(at).await;
            let (Some(watch), Some(nic)) = (watch.upgrade(), nic.upgrade()) else { return };
            // The device is asked: it may have ended while it was asked back.
            if nic.holds(lane, slice) {
                let limit_ms = WITHDRAWAL.nanos() / 1_000_000;
                let detail = format!("a withdrawn slice did not end within {limit_ms} ms");
                let error = TransportError::new(Side::Local, "withdraw", detail);
                watch.lanes.on_lane_failed(lane, error);
            }
        });
    }

    fn of(&self, lane: Lifecycle) -> Option<Arc<Facts>> {
        self.facts.read().get(&lane).cloned()
    }

    /// Records the failure of a lane without any answer as a failure of RDMA.
    fn doubt(&self, facts: &Facts, error: &TransportError) {
        let Some(fallbacks) = &self.fallbacks else { return };
        let silent = error.side == Side::Peer && error.call == "completion";
        // Lanes to a Mooncake node run over what its descriptor says, and nothing else.
        if !silent || facts.answered.load(Ordering::Acquire) || is_legacy(&facts.peer) {
            return;
        }
        if self.fallback().handle_failure(&facts.peer, self.clock.now()) {
            let seconds = FALLBACK_TIME.nanos() / 1_000_000_000;
            let detail = format!(
                "{}, and no lane of {FAILED_LANES_MAX} ever had an answer; RDMA is tried again \
                 after {seconds} s",
                error.detail
            );
            let error = TransportError { detail, ..error.clone() };
            let reason = Error::new(error.side, Stage::Transfer, Cause::Transport(error));
            fallbacks.tell(reason.at(facts.peer.node.as_str()));
        }
    }
}

impl LaneSink for Watch {
    fn on_completions(&self, lane: Lifecycle, completions: &mut Vec<Completion>) {
        let answered =
            completions.iter().any(|completion| completion.status == CompletionStatus::Done);
        let first = |facts: &Arc<Facts>| answered && !facts.answered.swap(true, Ordering::AcqRel);
        if let Some(facts) = self.of(lane).filter(first) {
            self.fallback().handle_answer(&facts.peer);
            if let Some(fallbacks) = &self.fallbacks {
                fallbacks.forget(facts.peer.node.as_str());
            }
        }
        self.lanes.on_completions(lane, completions);
    }

    fn on_lane_failed(&self, lane: Lifecycle, error: TransportError) {
        if let Some(facts) = self.of(lane) {
            self.doubt(&facts, &error);
        }
        self.lanes.on_lane_failed(lane, error);
    }
}

impl NicSink for Watch {
    fn on_device_event(&self, event: DeviceEvent) {
        match event {
            DeviceEvent::DeviceLost | DeviceEvent::PortDown { .. } => {
                warn!(?event, "an event of the RDMA device");
            }
            _ => debug!(?event, "an event of the RDMA device"),
        }
    }
}
