//! Lanes of a NIC that connect through the connection manager.

use super::Manager;
use crate::error::VerbsError;
use crate::verbs::lane::{Lane, Probe};
use crate::verbs::nic::{Nic, is_iwarp};
use handfast_core::Lifecycle;
use handfast_core::connection::{AnnouncedLane, LaneProgress};
use handfast_core::transport::Side;
use handfast_core::wire::Body;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Interval of looks of a thread that waits for a dial.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl Nic {
    /// Announces the queue pairs of a new lane to the connection manager, where they connect through it.
    pub(in crate::verbs) fn announce_to_manager(
        &self,
        lane: &Lane,
    ) -> Result<Option<Box<str>>, VerbsError> {
        let Some(manager) = &lane.setup.manager else { return Ok(None) };
        let peer = lane.setup.announced.peer.as_deref();
        let announced = manager.announce(lane.lifecycle, &lane.numbers, peer);
        announced
            .map(|announcement| Some(announcement.to_string().into()))
            .inspect_err(|_| self.forget_in_manager(lane.lifecycle))
    }

    /// Loses the NIC if its port no longer has the address that the connection manager announces.
    ///
    /// # Errors
    /// The address has left.
    pub(in crate::verbs) fn check_manager_address(&self) -> Result<(), VerbsError> {
        let left = self.shared.manager.as_ref().and_then(|manager| manager.left());
        let Some(error) = left else { return Ok(()) };
        self.shared.lose(error.clone());
        Err(error)
    }

    /// Returns whether queue pairs can connect out of band, as a Mooncake node's do.
    ///
    /// # Errors
    /// They connect through the connection manager alone.
    pub(in crate::verbs) fn check_out_of_band(&self) -> Result<(), VerbsError> {
        if !is_iwarp(self.shared.profile) {
            return Ok(());
        }
        let detail = format!(
            "a Mooncake node connects queue pairs out of band alone, and this device connects them \
             through the connection manager ({}); use TCP to it, or another device",
            self.recognised.profile.name
        );
        Err(self.shared.context.error(Side::Configuration, "bring_up", 0, detail))
    }

    /// Forgets the queue pairs of a lane that was not created.
    pub(in crate::verbs) fn forget_in_manager(&self, lifecycle: Lifecycle) {
        if let Some(manager) = &self.shared.manager {
            manager.retire(None, lifecycle);
            manager.end(lifecycle, Instant::now());
        }
    }

    /// Connects a lane, and blocks until the peer has accepted where this side dials.
    pub(in crate::verbs) fn connect_managed(
        &self,
        manager: &Manager,
        lifecycle: Lifecycle,
        peer: &Body,
    ) -> Result<(), VerbsError> {
        let deadline = Instant::now() + self.dial_max();
        let mut progress = self.begin_connect(lifecycle, peer, deadline)?;
        while progress == LaneProgress::Pending {
            if Instant::now() >= deadline {
                manager.on_overdue(&self.shared, lifecycle);
            }
            std::thread::sleep(LOOK_AGAIN);
            progress = self.continue_connect(lifecycle, deadline)?;
        }
        Ok(())
    }

    /// Longest time of a connect through the connection manager.
    pub(crate) fn dial_max(&self) -> Duration {
        self.config.dial
    }

    /// Changes with every event of a lane's connections; `None` where connects are over at once, and
    /// without such a lane.
    pub(crate) fn connect_changes(&self, lane: Lifecycle) -> Option<watch::Receiver<u64>> {
        self.shared.manager.as_ref()?.changes(lane)
    }

    /// Begins to connect a lane through the connection manager.
    ///
    /// # Errors
    /// The peer's queue pairs connect out of band, or cannot be connected.
    pub(crate) fn begin_connect(
        &self,
        lifecycle: Lifecycle,
        peer: &Body,
        deadline: Instant,
    ) -> Result<LaneProgress, VerbsError> {
        let Some(manager) = &self.shared.manager else {
            return self.connect(lifecycle, peer).map(|()| LaneProgress::Connected);
        };
        let error = |side, detail: String| self.shared.context.error(side, "wire", 0, detail);
        let profile = self.recognised.profile.name;
        let Some(announced) = AnnouncedLane::of(peer) else {
            let cure = if is_iwarp(self.shared.profile) {
                "iWARP connects to iWARP alone: use TCP"
            } else {
                "force it there too (--rdma-cm, RdmaOptions::connection_manager), or use TCP"
            };
            let detail = format!(
                "the peer's queue pairs connect out of band, and ours through the connection manager \
                 ({profile}); {cure}"
            );
            return Err(error(Side::Configuration, detail));
        };
        let announced = announced.map_err(|detail| error(Side::Peer, detail.to_string()))?;
        manager.begin(&self.shared, lifecycle, &announced)?;
        self.continue_connect(lifecycle, deadline)
    }

    /// Goes on with the dials of a lane, as far as they go without an event. Blocks until `deadline` at
    /// most, for the answer of the first read.
    ///
    /// # Errors
    /// A queue pair does not connect; the lane must be retired.
    pub(crate) fn continue_connect(
        &self,
        lifecycle: Lifecycle,
        deadline: Instant,
    ) -> Result<LaneProgress, VerbsError> {
        let Some(manager) = &self.shared.manager else { return Ok(LaneProgress::Connected) };
        let progress = manager.advance(&self.shared, lifecycle)?;
        if progress == LaneProgress::Connected {
            let lane = self.known(lifecycle, "wire")?;
            // The thread of the events may be about to.
            lane.open_connection();
            // On iWARP the side that has dialled is the first to send. The other one is established before,
            // and learns of the first frame by the peer's `ready` alone.
            if !is_iwarp(self.shared.profile) {
                lane.probe(Probe::Announced, deadline)?;
            } else if manager.has_dialled(lifecycle) {
                lane.probe_as_dialler(deadline)?;
            }
            manager.on_wired(lifecycle)?;
        }
        Ok(progress)
    }

    /// Ends a lane that is not connected in time: its connect fails, or the lane if that has returned.
    pub(crate) fn give_up_connect(&self, lifecycle: Lifecycle) {
        if let Some(manager) = &self.shared.manager {
            manager.on_overdue(&self.shared, lifecycle);
        }
    }
}
