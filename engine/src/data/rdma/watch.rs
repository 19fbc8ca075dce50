//! Reports of the device's poller thread, in the engine's terms.

use super::keeper::moved;
use super::notices::Notices;
use crate::data::fallback::Fallbacks;
use crate::error::{Cause, Error, Stage};
use crate::path::is_legacy;
use crate::time::Clock;
use handfast_core::policy::{FAILED_LANES_MAX, FALLBACK_TIME, RdmaFallback};
use handfast_core::transport::{Side, TransportError};
use handfast_core::{Lifecycle, NicPath};
use handfast_transport::{Completion, LaneSink};
use handfast_transport_rdma::{DeviceEvent, NicSink};
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use tracing::{debug, warn};

/// A lane, from its creation to its end.
struct Lane {
    peer: NicPath,
    /// The device without which the lane runs over TCP, since it was lost.
    missed: Option<String>,
}

pub(super) struct Watch {
    lanes: Arc<dyn LaneSink>,
    /// Fallbacks, where lanes may use TCP instead.
    fallbacks: Option<Fallbacks>,
    clock: Arc<dyn Clock>,
    known: RwLock<BTreeMap<Lifecycle, Lane>>,
    fallback: Mutex<RdmaFallback>,
    notices: Arc<Notices>,
}

impl Watch {
    pub(super) fn new(
        lanes: Arc<dyn LaneSink>,
        fallbacks: Option<Fallbacks>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (known, fallback, notices) = (RwLock::default(), Mutex::default(), Arc::default());
        Self { lanes, fallbacks, clock, known, fallback, notices }
    }

    /// Reports of the devices, for the keeper.
    pub(super) fn notices(&self) -> &Arc<Notices> {
        &self.notices
    }

    /// The decision between RDMA and TCP, locked for one call.
    pub(super) fn fallback(&self) -> MutexGuard<'_, RdmaFallback> {
        self.fallback.lock()
    }

    /// Adds a lane that is about to be created, with queue pairs or over TCP alone.
    pub(super) fn add(&self, lane: Lifecycle, peer: NicPath, has_queue_pairs: bool) {
        if has_queue_pairs {
            // Lanes to a Mooncake node run over what its descriptor says, and nothing else.
            let has_alternative = self.fallbacks.is_some() && !is_legacy(&peer);
            self.fallback().handle_lane_created(lane, peer.clone(), has_alternative);
        }
        self.known.write().insert(lane, Lane { peer, missed: None });
    }

    pub(super) fn remove(&self, lane: Lifecycle) {
        self.known.write().remove(&lane);
        self.fallback().handle_lane_retired(lane);
    }

    /// A lane runs over TCP, since its device is lost.
    pub(super) fn on_device_missed(&self, lane: Lifecycle, device: String) {
        if let Some(lane) = self.known.write().get_mut(&lane) {
            lane.missed = Some(device);
        }
    }

    /// A device is in use again. The lanes that run over TCP in its absence end, and the next use
    /// it.
    pub(super) fn on_reopened(&self, device: &str) {
        let mut known = self.known.write();
        let missed = known.iter_mut().filter(|(_, lane)| lane.missed.as_deref() == Some(device));
        let lanes: Vec<Lifecycle> = missed
            .map(|(lifecycle, lane)| {
                lane.missed = None;
                *lifecycle
            })
            .collect();
        drop(known);
        for lane in lanes {
            self.on_lane_failed(lane, moved(device));
        }
    }

    /// The peer of a lane, from its creation to its end.
    pub(super) fn peer(&self, lane: Lifecycle) -> Option<NicPath> {
        self.known.read().get(&lane).map(|lane| lane.peer.clone())
    }

    /// Lanes over a NIC whose peers have lanes over another of our NICs too.
    fn replaceable_lanes(&self, device: &str) -> Vec<Lifecycle> {
        let known = self.known.read();
        let over = |lane: &Lane| lane.peer.rail().map(|(_, ours)| ours == device);
        let has_other = |peer: &NicPath| {
            let same_peer = known.values().filter(|lane| lane.peer.node == peer.node);
            same_peer.into_iter().any(|lane| over(lane) == Some(false))
        };
        let lanes = known.iter().filter(|(_, lane)| over(lane) == Some(true));
        lanes.filter(|(_, lane)| has_other(&lane.peer)).map(|(lane, _)| *lane).collect()
    }

    /// Reports that RDMA is given up for a peer.
    fn report(&self, peer: &NicPath, error: &TransportError) {
        let Some(fallbacks) = &self.fallbacks else { return };
        let seconds = FALLBACK_TIME.nanos() / 1_000_000_000;
        let detail = format!(
            "{}, and no lane of {FAILED_LANES_MAX} ever had an answer; RDMA is tried again after \
             {seconds} s",
            error.detail
        );
        let error = TransportError { detail, ..error.clone() };
        let reason = Error::new(error.side, Stage::Transfer, Cause::Transport(error));
        fallbacks.tell(reason.at(peer.node.as_str()));
    }
}

impl LaneSink for Watch {
    fn on_completions(&self, lane: Lifecycle, completions: &mut Vec<Completion>) {
        self.lanes.on_completions(lane, completions);
    }

    fn on_first_answer(&self, lane: Lifecycle) {
        let peer = self.fallback().handle_answer(lane);
        if let (Some(peer), Some(fallbacks)) = (peer, &self.fallbacks) {
            fallbacks.forget(peer.node.as_str());
        }
    }

    fn on_lane_failed(&self, lane: Lifecycle, error: TransportError) {
        let given_up = self.fallback().handle_lane_failed(lane, &error, self.clock.now());
        if let Some(peer) = given_up {
            self.report(&peer, &error);
        }
        self.lanes.on_lane_failed(lane, error);
    }
}

impl NicSink for Watch {
    fn on_device_event(&self, device: &str, event: DeviceEvent) {
        match event {
            DeviceEvent::DeviceLost => {
                warn!(device, "the RDMA device is lost");
                self.notices.on_lost(device);
            }
            DeviceEvent::PortDown { port } => {
                warn!(device, port, "the port of the RDMA device went down");
                // Slices go over other NICs at once. With none the device's retries are the best hope.
                for lane in self.replaceable_lanes(device) {
                    let detail = format!("{device}: port {port} went down");
                    let error = TransportError::new(Side::Local, "asynchronous event", detail);
                    self.on_lane_failed(lane, error);
                }
                self.notices.on_changed(device);
            }
            DeviceEvent::PortActive { .. } | DeviceEvent::AddressesChanged { .. } => {
                debug!(device, ?event, "an event of the RDMA device");
                self.notices.on_changed(device);
            }
            DeviceEvent::Other(_) => debug!(device, ?event, "an event of the RDMA device"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::TokioClock;
    use handfast_core::NodeName;

    /// The lanes that failed.
    #[derive(Default)]
    struct Failed(Mutex<Vec<Lifecycle>>);

    impl LaneSink for Failed {
        fn on_completions(&self, _: Lifecycle, _: &mut Vec<Completion>) {}
        fn on_lane_failed(&self, lane: Lifecycle, error: TransportError) {
            assert!(!error.detail.is_empty());
            self.0.lock().push(lane);
        }
    }

    fn watch() -> (Watch, Fallbacks, Arc<dyn Clock>) {
        let (fallbacks, clock) = (Fallbacks::new(), Arc::new(TokioClock::new()));
        let sink = Arc::<Failed>::default();
        let watch = Watch::new(sink, Some(fallbacks.clone()), clock.clone());
        (watch, fallbacks, clock)
    }

    /// A port that goes down fails the lanes over it at once where the peer has lanes over another NIC of
    /// ours, and no others.
    #[test]
    fn port_down_fails_lanes_with_another_nic() {
        let failed = Arc::<Failed>::default();
        let watch = Watch::new(failed.clone(), None, Arc::new(TokioClock::new()));
        let rail = |node: &str, theirs: &str, ours: &str| {
            NicPath::over_rail(&NodeName::new(node).unwrap(), theirs, ours).unwrap()
        };
        let lanes = [
            rail("a", "x0", "nic0"),
            rail("a", "x1", "nic1"),
            rail("a", "x0", "nic0"),
            // Two NICs of the peer, and a local one.
            rail("b", "x0", "nic0"),
            rail("b", "x1", "nic0"),
            peer(),
        ];
        for (lane, path) in (0..).zip(lanes) {
            watch.add(Lifecycle(lane), path, true);
        }
        watch.on_device_event("nic0", DeviceEvent::PortDown { port: 1 });
        assert_eq!(*failed.0.lock(), [Lifecycle(0), Lifecycle(2)]);
        failed.0.lock().clear();
        watch.on_device_event("nic7", DeviceEvent::PortDown { port: 1 });
        watch.on_device_event("nic0", DeviceEvent::PortActive { port: 1 });
        assert_eq!(*failed.0.lock(), []);
    }

    /// Port events and returns fail the lanes that they concern, and no others: for every set of four lanes to
    /// two peers, over either NIC or over TCP for want of one.
    #[test]
    fn lanes_fail_for_their_own_device() {
        let nics = ["nic0", "nic1"];
        let name = |peer: u32| NodeName::new(["a", "b"][peer as usize]).unwrap();
        for number in 0..6u32.pow(4) {
            let lanes: Vec<_> = (0..4).map(|lane| number / 6u32.pow(lane) % 6).collect();
            let failed = Arc::<Failed>::default();
            let watch = Watch::new(failed.clone(), None, Arc::new(TokioClock::new()));
            for (lane, kind) in (0..).zip(&lanes) {
                let nic = nics.get(*kind as usize / 2);
                let tcp = NicPath { node: name(kind % 2), nic: NodeName::new("tcp").unwrap() };
                let over = |nic: &&str| NicPath::over_rail(&name(kind % 2), "x0", nic).unwrap();
                watch.add(Lifecycle(lane), nic.map_or(tcp, over), nic.is_some());
                if nic.is_none() {
                    watch.on_device_missed(Lifecycle(lane), "nic0".to_owned());
                }
            }
            let kinds = || (0..).map(Lifecycle).zip(lanes.iter().copied());
            let has_other = |peer: u32| lanes.contains(&(2 + peer));
            let replaced = kinds().filter(|(_, kind)| *kind < 2 && has_other(*kind));
            let replaced: Vec<_> = replaced.map(|(lane, _)| lane).collect();
            watch.on_device_event("nic0", DeviceEvent::PortDown { port: 1 });
            assert_eq!(std::mem::take(&mut *failed.0.lock()), replaced, "{lanes:?}");
            let missed: Vec<_> = kinds().filter(|(_, kind)| *kind > 3).map(|it| it.0).collect();
            watch.on_reopened("nic1");
            assert_eq!(*failed.0.lock(), [], "another device");
            watch.on_reopened("nic0");
            assert_eq!(std::mem::take(&mut *failed.0.lock()), missed, "{lanes:?}");
            watch.on_reopened("nic0");
            assert_eq!(*failed.0.lock(), [], "each lane fails once");
        }
    }

    fn peer() -> NicPath {
        let name = |text: &str| NodeName::new(text).unwrap();
        NicPath { node: name("10.0.0.7:7411"), nic: name("tcp") }
    }

    /// A lane comes up, is answered over or not, and fails as lanes to a silent peer do.
    fn fail(watch: &Watch, lane: u32, answered: bool) {
        let lane = Lifecycle(lane.into());
        watch.add(lane, peer(), true);
        if answered {
            watch.on_first_answer(lane);
        }
        let error = TransportError::new(Side::Peer, "completion", "retries exhausted");
        watch.on_lane_failed(lane, error);
        watch.remove(lane);
    }

    /// Three lanes in a row without an answer give RDMA up for a minute, and that is reported once.
    #[tokio::test(start_paused = true)]
    async fn unanswered_lanes_give_rdma_up_for_a_time() {
        let (watch, fallbacks, clock) = watch();
        let given_up = || watch.fallback().is_given_up(&peer(), clock.now());
        for lane in 1..FAILED_LANES_MAX {
            fail(&watch, lane, false);
        }
        fail(&watch, 10, true);
        for lane in 1..FAILED_LANES_MAX {
            fail(&watch, lane, false);
            assert!(!given_up(), "the answer in between starts the count again");
        }
        fail(&watch, 11, false);
        assert!(given_up());
        assert_eq!(fallbacks.all().len(), 1);
        let wait = std::time::Duration::from_nanos(FALLBACK_TIME.nanos());
        tokio::time::advance(wait - std::time::Duration::from_millis(1)).await;
        assert!(given_up());
        tokio::time::advance(std::time::Duration::from_millis(1)).await;
        assert!(!given_up());
        fail(&watch, 12, false);
        assert!(!given_up(), "the count starts again");
    }
}
