//! Failures of the device and its port: suspicion, loss, and addresses that leave.

use super::config::NicConfig;
use super::context::Context;
use super::counters::NicCounts;
use super::nic::{Nic, Shared};
use super::sink::{DeviceEvent, NicSink};
use crate::error::VerbsError;
use crate::gid::GidEntry;
use handfast_core::transport::Side;
use std::sync::Arc;
use std::time::Instant;

/// Errors of calls to a device that is gone.
const GONE: [i32; 2] = [libc::ENODEV, libc::EIO];

impl Shared {
    /// Fails all lanes, and takes no more, since the device or its descriptors are lost.
    pub(super) fn lose(&self, error: VerbsError) {
        // First: a lane that is being created sees it, or is failed here.
        if self.lost.set(error.clone()).is_ok() {
            self.lost_since.get_or_init(Instant::now);
            self.counts.lock().devices_lost += 1;
            self.all_lanes().iter().for_each(|lane| lane.fail_here(error.clone()));
            self.sink.on_device_event(&self.context.device, DeviceEvent::DeviceLost);
        }
    }

    /// Asks the device for its facts after an error of a device that is gone. It is lost if it does
    /// not answer that either: an event may be missing. A device that takes no commands any more is
    /// lost, whatever it answers.
    pub(super) fn suspect(&self, error: &VerbsError) {
        if self.lost.get().is_some() {
            return;
        }
        if self.profile.ends_commands.contains(&error.code) {
            let detail = format!("{}; the device takes no more commands", error.detail);
            return self.lose(VerbsError { detail, ..error.clone() });
        }
        if !GONE.contains(&error.code) {
            return;
        }
        if let Err(second) = self.context.device_facts()
            && GONE.contains(&second.code)
        {
            let detail =
                format!("{}; and then {} answered: {}", error.detail, second.call, second.detail);
            // The kernel's answer to all calls once it has removed the device, with its objects.
            if (error.code, second.code) == (libc::EIO, libc::EIO) {
                self.context.on_lost();
            }
            self.lose(VerbsError { detail, ..error.clone() });
        }
    }
}

impl Nic {
    /// Opens a device that was lost, as [`Nic::open`] does. `counts` go on.
    ///
    /// # Errors
    /// As [`Nic::open`].
    pub fn open_again(
        config: NicConfig,
        sink: Arc<dyn NicSink>,
        counts: &NicCounts,
    ) -> Result<Self, VerbsError> {
        let context = Arc::new(Context::open_as(config.system_name(), &config.device)?);
        Self::counting(context, config, sink, Arc::clone(&counts.0))
    }

    /// Counts that the device is in use again after a loss.
    pub fn count_reopening(&self) {
        self.shared.counts.lock().devices_reopened += 1;
    }

    /// The counters, for the NIC that is opened after a loss.
    pub fn counts(&self) -> NicCounts {
        NicCounts(Arc::clone(&self.shared.counts))
    }

    /// Returns the address that lanes announce now to a peer of which nothing is known, and the
    /// port's LID.
    ///
    /// # Errors
    /// The port is down, has no usable address, or a call failed.
    pub fn present_address(&self) -> Result<(GidEntry, u16), VerbsError> {
        let (context, number) = (&self.shared.context, self.config.port);
        let port = context.port_facts(number)?;
        if !port.is_active {
            let detail = format!("port {number} is not active");
            return Err(context.error(Side::Local, "ibv_query_port", 0, detail));
        }
        Ok((self.announce(None)?.entry, port.lid))
    }

    /// Fails the lanes whose announced address has left the port, and returns their number. A lane
    /// whose address is at another index stays: the device keeps the entry that it uses. The NIC is lost if the
    /// address of its connection manager has left, which is chosen at the opening.
    ///
    /// # Errors
    /// A failed call, or the loss.
    pub fn fail_unaddressed(&self) -> Result<usize, VerbsError> {
        self.check_manager_address()?;
        let context = &self.shared.context;
        let entries = context.gids(self.config.port)?;
        let is_there = |own: &GidEntry| {
            entries.iter().any(|entry| (entry.address, entry.kind) == (own.address, own.kind))
        };
        let mut failed = 0;
        for lane in self.shared.all_lanes() {
            let own = &lane.setup.announced.gid;
            if !is_there(own) {
                let detail = format!("our address {} has left the port", own.address);
                lane.fail_here(context.error(Side::Local, "asynchronous event", 0, detail));
                failed += 1;
            }
        }
        Ok(failed)
    }
}
